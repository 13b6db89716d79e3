"""What a long computation tells its caller and asks of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class Cancelled(Exception):
    """Nobody wants the run any more; what is finished stays, and asking again continues from the checkpoint."""


@dataclass(frozen=True)
class Context:
    """Callbacks: `progress` takes an event per epoch (with `epoch`) and others (`step`, `fraction`).

    `cancelled` is asked in every batch.
    """

    progress: Callable[[dict[str, Any]], None] = lambda event: None
    cancelled: Callable[[], bool] = lambda: False

    def step(self, name: str) -> Callable[[float], None]:
        """A reporter of the fraction done of a named step, which raises Cancelled when asked to stop."""

        def report(fraction: float) -> None:
            if self.cancelled():
                raise Cancelled(f"stopped while {name}")
            self.progress({"step": name, "fraction": fraction})

        return report
