"""The KL divergence of members and non-members on any data set: the order of Tables I and III, and the tests' unit."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tier import experiment, presets
from tier.reproduce.protocol import AUGMENTED, MODELS, TOO_FEW, Protocol
from tier.store import Store

LEVELS = (0.1, 0.3, 0.5)


def profiles(store: Store, of: Protocol, levels: Sequence[float] = LEVELS) -> list[dict[str, Any]]:
    """A row per stored model, share of pixels removed and unit of the test; of the first seed.

    `unit`: whether t compares images or means of batches of them; `member` and `nonmember` are mean KL divergences in
    nats; `cohen_d` is the difference of the means in standard deviations of that unit. A t below 0: members diverge
    less than non-members. None: too few batches for a test, which `refused` then says.
    """
    preset, rows = presets.get(of.main), []
    for name in (*MODELS, AUGMENTED):
        found = experiment.find(store, "divergence", preset.run(name, preset.seeds[0]), ["profile.parquet"])
        if found is None:
            continue
        table = found.frame("profile.parquet")
        for row in (row for level in levels for row in table[np.isclose(table["level"], level)].to_dict("records")):
            told = {ours: float(row[stored]) for ours, stored in _NUMBERS.items()}
            numbers = {key: None if math.isnan(number) else number for key, number in told.items()}
            refused = TOO_FEW if numbers["t"] is None else None
            rows.append({"defense": name, "removed": row["level"], "unit": row["unit"], **numbers, "refused": refused})
    return rows


_NUMBERS = {"member": "member_mean", "nonmember": "nonmember_mean", "t": "t", "cohen_d": "cohen_d"}


def profile_rows(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Rows of `profiles` as text, header first; a dash: too few batches."""
    lines = [["defense", "removed", "unit", *_NUMBERS]]
    for row in rows:
        told = ("-" if row[key] is None else f"{row[key]:.3g}" for key in _NUMBERS)
        lines.append([row["defense"], f"{row['removed']:g}", row["unit"], *told])
    return lines
