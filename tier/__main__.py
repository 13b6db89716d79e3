"""`python -m tier`."""

import os

# Read when torch starts its threads: threads that spin while they wait made training 10 times slower when another
# process used a core.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

from tier.cli import main

if __name__ == "__main__":
    main()
