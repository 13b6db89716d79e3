"""A run's last checkpoint in the store: written whole under its own name, then pointed to, then the former dropped.

So a kill at any moment leaves either the former checkpoint or the new one; `Store.gc` removes what is left over.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from tier.config import stage_key
from tier.store import CHECKPOINT, Result, Store, check

FILES = ("state.safetensors", "events.parquet")  # without both, sound to the last bit, no run can go on


def save(store: Store, run: str, epoch: int, files: Mapping[str, pd.DataFrame | Mapping[str, np.ndarray]]) -> None:
    """Make `files` the checkpoint of the run with that key, after `epoch` finished epochs."""
    former = _pointed(store, run)
    name = stage_key(CHECKPOINT, 1, {"run": run, "epoch": epoch}, [], None)
    store.write(CHECKPOINT, name, files, {"run": run, "epoch": epoch, "metrics": {}})
    store.put_json(_pointer(run), {"key": name, "epoch": epoch})
    if former is not None and former != name:
        store.discard(CHECKPOINT, former)


def last(store: Store, run: str) -> Result | None:
    """The run's checkpoint, or None; a damaged one counts as none."""
    name = _pointed(store, run)
    return None if name is None else store.find(CHECKPOINT, name, FILES)


def drop(store: Store, run: str) -> None:
    """Forget the run's checkpoint, once its result is stored."""
    name = _pointed(store, run)
    store.delete(_pointer(run))
    if name is not None:
        store.discard(CHECKPOINT, name)


def _pointed(store: Store, run: str) -> str | None:
    """The name of the run's checkpoint; None without a pointer or with one that makes no sense."""
    pointer = store.get_json(_pointer(run))
    name = pointer.get("key") if isinstance(pointer, dict) else None
    try:
        check(CHECKPOINT, name if isinstance(name, str) else "")
    except ValueError:
        return None
    return name


def _pointer(run: str) -> str:
    return f"checkpoints/{run}.json"
