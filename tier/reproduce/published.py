"""What ships of a reproduction: each number with the keys of the results that it was made from, and nothing else.

The results themselves (per-image scores, weights, maps) are too large to ship. A published number answers for as long
as the keys are those that the code would give its results today; then the results have to be computed again.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pandas as pd

from tier import paper
from tier.demo import PUBLISHED
from tier.reproduce.alternatives import measured_alternatives
from tier.reproduce.ours import Measured, Reader
from tier.reproduce.protocol import PROTOCOLS, Protocol, protocol
from tier.store import Store

VERSION = 1


def place_of(of: Protocol) -> tuple[str, str]:
    """Where the store has what is published of a data set: stage and key."""
    return PUBLISHED, hashlib.sha256(f"{PUBLISHED} {VERSION} {of.dataset}".encode()).hexdigest()


def publish(work: Store, target: Store, datasets: Iterable[str] = tuple(PROTOCOLS)) -> Iterator[str]:
    """Write the numbers of data sets that `work`, or what lies below it, has into `target`; yields what changed.

    What `target` has and `work` has not, or not as fully, is kept. Nothing is written where nothing changes.
    """
    for of in map(protocol, datasets):
        reader, known, told = Reader(work, of, None), published(target, of), published(work, of)
        made: dict[str, Any] = dict(known)
        for number in paper.of(of.dataset):
            measured = fill(reader.measured(number.place), reader, number.place, told)
            measured = fill(measured, reader, number.place, known)
            if measured.refused != reader.absent:
                made[_name(number.place)] = {**measured.as_json(), "sources": reader.sources(number.place)}
        before = _published_runs(target, of)
        rows = {row["key"]: row for row in _records(alternatives(work, of))}
        runs = before | {key: row for key, row in rows.items() if not pd.isna(list(row.values())).any()}
        if made == known and runs == before:
            continue
        content = {"numbers": made, "alternatives": list(runs.values())}
        stage, key = place_of(of)
        target.discard(stage, key)
        target.write(stage, key, {}, {"version": VERSION, "config": {"dataset": of.dataset}, "metrics": content})
        yield f"wrote {len(made)} numbers of {of.dataset}"


def published(store: Store, of: Protocol) -> dict[str, dict[str, Any]]:
    """The numbers published of a data set, by the names of their places."""
    found = store.find(*place_of(of))
    return dict(found.metrics["numbers"]) if found is not None else {}


def fill(measured: Measured, reader: Reader, place: paper.Place, known: dict[str, dict[str, Any]]) -> Measured:
    """The number that the store's results give, or the published one, if it still answers and says more.

    A store may hold a run's figures without those of single images, which intervals are made of.
    """
    told = known.get(_name(place))
    if told is None or told["sources"] != reader.sources(place):
        return measured
    kept = Measured.of_json(told)
    less = measured.refused == reader.absent or (measured.interval is None and kept.interval is not None)
    whole = kept if less else measured
    return replace(whole, beside={**kept.beside, **measured.beside})


def alternatives(store: Store, of: Protocol) -> pd.DataFrame:
    """`measured_alternatives`, and where a run is not there, or without its intervals, what was published of it."""
    known, lines = _published_runs(store, of), []
    for row in _records(measured_alternatives(store, of)):
        told = known.get(row["key"]) if pd.isna(list(row.values())).any() else None
        lines.append(row if told is None else {**row, **{name: told[name] for name in row if name not in _WORDS}})
    return pd.DataFrame(lines)


_WORDS = ("choice", "why", "defense", "key")


def _published_runs(store: Store, of: Protocol) -> dict[str, dict[str, Any]]:
    found = store.find(*place_of(of))
    return {} if found is None else {row["key"]: row for row in found.metrics["alternatives"]}


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def _name(place: paper.Place) -> str:
    """A place in one text."""
    parts = (place.table, place.quantity, place.defense, place.explainer, place.level, place.lam, place.beta)
    return " ".join("-" if part is None else f"{part:g}" if isinstance(part, float) else str(part) for part in parts)
