"""`python -m tier`."""

from tier.cli import main

if __name__ == "__main__":
    main()
