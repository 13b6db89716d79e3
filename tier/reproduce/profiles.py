"""The KL divergence of members and non-members on any data set: the order of Tables I and III, and the tests' unit."""

from collections.abc import Sequence

import numpy as np

from tier import experiment, presets
from tier.reproduce.protocol import AUGMENTED, MODELS, Protocol
from tier.store import Store

LEVELS = (0.1, 0.3, 0.5)


def profile_rows(store: Store, of: Protocol, levels: Sequence[float] = LEVELS) -> list[list[str]]:
    """A line per stored model, share of pixels removed and unit of the test, header first; of the first seed.

    `unit`: whether t compares images or means of batches of them; `cohen_d` is the difference of the means in standard
    deviations of that unit. A t below 0: members diverge less than non-members. A dash: too few batches.
    """
    preset, lines = presets.get(of.main), [["defense", "removed", "unit", "member", "nonmember", "t", "cohen_d"]]
    for name in (*MODELS, AUGMENTED):
        found = experiment.find(store, "divergence", preset.run(name, preset.seeds[0]), ["profile.parquet"])
        if found is None:
            continue
        table = found.frame("profile.parquet")
        for row in (row for level in levels for row in table[np.isclose(table["level"], level)].to_dict("records")):
            numbers = (row[key] for key in ("member_mean", "nonmember_mean", "t", "cohen_d"))
            told = ("-" if np.isnan(number) else f"{number:.3g}" for number in numbers)
            lines.append([name, f"{row['level']:g}", row["unit"], *told])
    return lines
