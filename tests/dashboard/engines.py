"""A stand-in for the engine's client, so that pages are tested without processes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from tier import experiment
from tier.config import Experiment
from tier.engine import Job


@dataclass
class FakeEngine:
    """Remembers what was asked; `state` is what every new job begins with, `broken` makes submitting fail."""

    state: dict[str, Any] = field(default_factory=dict)
    broken: str | None = None
    known: dict[str, Job] = field(default_factory=dict)
    events: pd.DataFrame = field(default_factory=pd.DataFrame)
    cancelled: list[tuple[str, str]] = field(default_factory=list)
    needed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    started: int = 0  # how often it was to start early

    def submit(self, stage: str, one: Experiment, requester: str, need: Sequence[str] = ()) -> str:
        if self.broken:
            raise RuntimeError(self.broken)
        key = experiment.key(stage, one)
        self.needed[key] = tuple(need)
        content = one.model_dump(mode="json", by_alias=True)
        self.known[key] = Job(key, stage, content, requesters=[requester], **self.state)
        return key

    def start_engine(self) -> None:
        self.started += 1

    def cancel(self, key: str, requester: str) -> None:
        self.cancelled.append((key, requester))
        self.known[key].status = "cancelled"

    def cancel_all(self, key: str) -> None:
        self.cancel(key, "everybody")

    def job(self, key: str) -> Job | None:
        return self.known.get(key)

    def jobs(self) -> list[Job]:
        return list(self.known.values())

    def history(self, key: str) -> pd.DataFrame:
        return self.events
