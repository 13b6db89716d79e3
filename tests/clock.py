"""Bars in seconds. What else a machine does can only lengthen a measurement, so one try below the bar shows that the
code holds it, if the tries are alike: nothing that an earlier one left in a cache may help a later one. The bars
themselves are the issues' or leave a few times what a quiet machine takes.
"""

import time
from collections.abc import Callable

import pytest


def took(action: Callable[[], object], clock: Callable[[], float] = time.monotonic) -> float:
    """The seconds that an action takes, on the wall or (with `time.process_time`) of processors."""
    began = clock()
    action()
    return clock() - began


def within(bar: float, measure: Callable[[], float], tries: int = 5) -> None:
    """Measure until one try takes less than the bar; fail with all that was measured where none does."""
    measured: list[float] = []
    while len(measured) < tries:
        measured.append(measure())
        if measured[-1] < bar:
            return
    pytest.fail(f"not below {bar:g} s in {tries} tries: {', '.join(f'{seconds:.3g}' for seconds in measured)} s")
