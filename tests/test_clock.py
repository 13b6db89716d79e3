"""A bar in seconds is held by one try below it, and failed by none."""

import pytest

from tests import clock


def test_one_try_below_the_bar_is_enough() -> None:
    measured = iter([3.0, 2.0, 1.9, 0.1])
    clock.within(2.0, lambda: next(measured))
    assert list(measured) == [0.1]  # no try more than needed


def test_no_try_below_the_bar_fails_and_names_them_all() -> None:
    measured = iter([3.0, 2.5, 2.0, 1.0])
    with pytest.raises(pytest.fail.Exception, match=r"not below 2 s in 3 tries: 3, 2\.5, 2 s"):
        clock.within(2.0, lambda: next(measured), tries=3)


def test_what_an_action_takes_is_read_from_the_clock() -> None:
    times, done = iter([5.0, 7.5]), []
    assert clock.took(lambda: done.append(1), lambda: next(times)) == 2.5
    assert done == [1]
