"""A run's last checkpoint in the store: written whole under its own name, then pointed to, then the former dropped.

So a kill at any moment leaves either the former checkpoint or the new one.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from tier.config import stage_key
from tier.store import Result, Store

STAGE = "checkpoint"


def save(store: Store, run: str, epoch: int, files: Mapping[str, pd.DataFrame | Mapping[str, np.ndarray]]) -> None:
    """Make `files` the checkpoint of the run with that key, after `epoch` finished epochs."""
    former = store.get_json(_pointer(run))
    name = stage_key(STAGE, 1, {"run": run, "epoch": epoch}, [], None)
    store.write(STAGE, name, files, {"run": run, "epoch": epoch, "metrics": {}})
    store.put_json(_pointer(run), {"key": name, "epoch": epoch})
    if former is not None and former["key"] != name:
        store.discard(STAGE, former["key"])


def last(store: Store, run: str) -> Result | None:
    """The run's checkpoint, or None; a damaged one counts as none."""
    pointer = store.get_json(_pointer(run))
    return store.find(STAGE, pointer["key"]) if pointer else None


def drop(store: Store, run: str) -> None:
    """Forget the run's checkpoint, once its result is stored."""
    pointer = store.get_json(_pointer(run))
    if pointer is not None:
        store.delete(_pointer(run))
        store.discard(STAGE, pointer["key"])


def _pointer(run: str) -> str:
    return f"checkpoints/{run}.json"
