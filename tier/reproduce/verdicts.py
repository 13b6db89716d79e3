"""The paper's numbers beside ours, and whether the two agree."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tier import paper
from tier.paper import Place, Printed
from tier.reproduce.ours import Measured, Reader
from tier.reproduce.protocol import Protocol
from tier.reproduce.published import fill, published
from tier.store import Store


@dataclass(frozen=True)
class Verdict:
    """What a verdict says, and how a table of text has it in one character."""

    mark: str
    meaning: str


VERDICTS = {
    "agrees": Verdict("=", "the paper's number, or one that rounds to it, lies in our 95 % interval"),
    "same direction": Verdict("~", "another value, moved the same way from what it is compared with"),
    "unclear": Verdict("?", "the paper's number moves; ours does not clearly, but may do so by as much"),
    "does not move": Verdict("0", "the paper's number moves, by more than ours can have moved"),
    "contradicts": Verdict("x", "moved the other way, or clearly moved where the paper's number has not"),
    "differs": Verdict(
        ".", "another value, where the paper claims no direction or ours from which it moves is not stored"
    ),
    "refused": Verdict("!", "cannot be had from so few images, or is not defined; the reason is told with it"),
    "not computed": Verdict("", "not in this store"),
}
"""What a cell may say of the paper's number and ours."""
EXACT = 1 + 1e-6  # printed decimals are units of rounding apart, but for what floats make of them: 0.75 - 0.74 > 0.01
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Cell:
    """A number of the paper, ours, and what the two say of each other."""

    number: Printed
    ours: Measured
    verdict: str
    compared_with: str | None  # in words: from where both are said to move
    conditions: str

    @property
    def difference(self) -> float | None:
        """|ours - paper|; None without ours."""
        return None if self.ours.value is None else abs(self.ours.value - self.number.value)

    def row(self) -> dict[str, Any]:
        """All of it, flat, as for JSON."""
        place = self.number.place
        return {
            "table": place.table,
            "dataset": place.dataset,
            "defense": place.defense,
            "explainer": place.explainer,
            "removed": place.level,
            "lambda": place.lam,
            "beta": place.beta,
            "quantity": place.quantity,
            "paper": self.number.value,
            "ours": self.ours.value,
            "interval": None if self.ours.interval is None else list(self.ours.interval),
            "difference": self.difference,
            "verdict": self.verdict,
            "compared_with": self.compared_with,
            "seeds": list(self.ours.seeds),
            "conditions": self.conditions,
            "beside": {
                name: {"value": value, "interval": None if interval is None else list(interval)}
                for name, (value, interval) in self.ours.beside.items()
            },
            "notes": paper.notes(place),
            "refused": self.ours.refused,
        }


def cells(
    store: Store, of: Protocol, tables: Sequence[str] | None = None, seeds: Sequence[int] | None = None
) -> list[Cell]:
    """Every number of the paper that concerns the data set beside ours, from what is stored; nothing is computed.

    Where the results behind a number are not there but the number was published, that one answers. `seeds`: those of
    the presets by default. Raises ValueError for a table that the paper does not have.
    """
    numbers = paper.of(of.dataset, tables)
    printed = {number.place: number for number in paper.of(of.dataset)}
    reader = Reader(store, of, seeds)
    known = published(store, of)
    starts = (start(number.place) for number in numbers)
    places = dict.fromkeys([*(n.place for n in numbers), *(begin for begin in starts if begin in printed)])
    ours = {place: fill(reader.measured(place), reader, place, known) for place in places if isinstance(place, Place)}
    found = []
    for number in numbers:
        begin = start(number.place)
        theirs, mine, words = None, Measured(), None
        if isinstance(begin, Place):
            theirs, mine, words = printed.get(begin), ours.get(begin, mine), _in_words(begin, number.place)
        elif begin is not None:
            theirs, mine, words = Printed(number.place, begin, 0.0), Measured(begin), f"{begin:g}"
        if number.place.quantity.endswith("_p_value"):
            said = verdict_of_p(number, ours[number.place], _opposed(number.place, printed, ours))
        else:
            said = verdict(number, ours[number.place], theirs, mine)
        found.append(Cell(number, ours[number.place], said, words, reader.conditions(number.place)))
    return found


def verdict(number: Printed, ours: Measured, begin: Printed | None, our_begin: Measured) -> str:
    """One of VERDICTS. `begin` is the paper's number from which this one is said to move, `our_begin` ours.

    Ours moves where the two intervals lie apart; the paper's where the difference is more than rounding.
    """
    if ours.value is None:
        return _without(ours)
    low, high = ours.interval or (ours.value, ours.value)
    half = number.half * EXACT
    if low - half <= number.value <= high + half:
        return "agrees"
    if begin is None or our_begin.value is None:
        return "differs"
    moved = number.value - begin.value
    rounding = (number.half + begin.half) * EXACT
    theirs = 0 if abs(moved) <= rounding else np.sign(moved)
    first, last = our_begin.interval or (our_begin.value, our_begin.value)
    mine = 1 if low > last else -1 if high < first else 0
    if theirs == mine:
        return "same direction" if theirs else "differs"
    if mine:
        return "contradicts"
    return "unclear" if low - last - rounding <= moved <= high - first + rounding else "does not move"


def verdict_of_p(number: Printed, ours: Measured, opposed: bool) -> str:
    """One of VERDICTS for a p-value, of which only the side of SIGNIFICANT is compared: its size is the sample's.

    `opposed`: the two differences that are tested have opposite signs.
    """
    if ours.value is None:
        return _without(ours)
    theirs, mine = number.value <= SIGNIFICANT, ours.value <= SIGNIFICANT
    if theirs and mine:
        return "contradicts" if opposed else "same direction"
    if theirs:
        return "unclear"
    return "contradicts" if mine else "differs"


def _opposed(place: Place, printed: dict[Place, Printed], ours: dict[Place, Measured]) -> bool:
    """Whether the means behind a p-value differ in opposite directions here and in the paper."""
    t = replace(place, quantity="t_statistic")
    value = ours.get(t, Measured()).value
    return t in printed and value is not None and printed[t].value * value < 0


def _without(ours: Measured) -> str:
    return "not computed" if ours.refused == Reader.absent else "refused"


def start(place: Place) -> Place | float | None:
    """From where a number is said to move: another number of the paper, chance, or None where it claims nothing."""
    match place.table:
        case "I" | "III":
            other = {"kl_mean_member": "kl_mean_nonmember", "kl_mean_nonmember": "kl_mean_member"}
            if place.quantity in other:
                return replace(place, quantity=other[place.quantity])
            if place.quantity.endswith("_p_value"):
                return SIGNIFICANT
            return 0.0 if place.quantity == "t_statistic" else None
        case "IV" | "V" | "VI" if place.defense != "none":
            return replace(place, defense="none")
        case "V":
            return 0.5 if place.quantity == "balanced_accuracy" else 0.1  # percent: the rate of false positives
        case "VI":
            return None if place.quantity == "sufficiency" else 0.0
        case "VIII" if place.lam:
            return replace(place, lam=0.0)
        case "IX" if place.defense == "tier_full":  # as Table VIII, which has some of the same runs
            return replace(place, table="VIII", lam=0.0, beta=paper.BETA_OF_TABLE_VIII)
        case "IX":  # no table has Reg-only's at lambda 0
            return replace(place, beta=0.0) if place.beta else None
        case "VIII":
            return 0.5 if place.quantity.startswith("audit") else None
    return None


def _in_words(start: Place, place: Place) -> str:
    """What tells a number's start from the number itself."""
    if start.quantity != place.quantity:
        return start.quantity.removeprefix("kl_mean_")
    if start.defense != place.defense:
        return str(start.defense)
    return f"lambda {start.lam:g}" if start.lam != place.lam else f"beta {start.beta:g}"


def counts_by_table(found: Sequence[Cell]) -> dict[str, dict[str, int]]:
    """`counts` of each table that cells are of; Table II does not count."""
    names = dict.fromkeys(cell.number.place.table for cell in found)
    of = {name: [cell for cell in found if cell.number.place.table == name] for name in names if name != "II"}
    return {name: counts(part) for name, part in of.items()}


def counts(found: Sequence[Cell]) -> dict[str, int]:
    """How many cells have each of VERDICTS; those of Table II, which are settings and no findings, do not count."""
    findings = [cell for cell in found if cell.number.place.table != "II"]
    return {name: sum(cell.verdict == name for cell in findings) for name in VERDICTS}
