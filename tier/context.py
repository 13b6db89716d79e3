"""What a long computation tells its caller and asks of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class Cancelled(Exception):
    """Nobody wants the run any more; what is finished stays, and asking again continues from the checkpoint."""


class Waiting(Exception):
    """Another process computes what this run reads, and the caller would rather do something else meanwhile.

    Ask again once nobody holds `lease`; what is finished stays.
    """

    def __init__(self, lease: str) -> None:
        super().__init__(f"{lease} is being computed elsewhere")
        self.lease = lease


@dataclass(frozen=True)
class Context:
    """Callbacks: `progress` takes an event per epoch (with `epoch`) and others (`step`, `fraction`).

    `cancelled` is asked in every batch. Without `waits`, what another process computes is not waited for: Waiting is
    raised instead.
    """

    progress: Callable[[dict[str, Any]], None] = lambda event: None
    cancelled: Callable[[], bool] = lambda: False
    waits: bool = True

    def step(self, name: str) -> Callable[[float], None]:
        """A reporter of the fraction done of a named step, which raises Cancelled when asked to stop."""

        def report(fraction: float) -> None:
            if self.cancelled():
                raise Cancelled(f"stopped while {name}")
            self.progress({"step": name, "fraction": fraction})

        return report
