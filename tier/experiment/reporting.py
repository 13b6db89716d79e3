"""Stage `report`: the figures of a run in one record."""

from typing import Any

from tier.config import Experiment
from tier.context import Context
from tier.experiment.stages import Files, ensure
from tier.store import Store


def compute_report(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """All figures of the run's own stages in one record."""
    figures: dict[str, Any] = {}
    for stage in ("split", "train", "trajectory", "divergence", "audit"):
        figures |= ensure(store, stage, e, context).record["metrics"]
    return {}, figures
