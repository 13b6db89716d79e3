"""What every test shares: one thread per process, and the `browser` mark for everything under tests/browser.

Nothing heavy is imported here, so that a test of a torch-free module stays torch-free.
"""

import os
from pathlib import Path

import pytest

# Before any test imports numpy or torch: tests run side by side on few cores, and sums then have one order.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

_BROWSER = Path(__file__).parent / "browser"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lives under tests/browser, so that no browser test can be forgotten by `make check`."""
    for item in items:
        if _BROWSER in item.path.parents:
            item.add_marker(pytest.mark.browser)
