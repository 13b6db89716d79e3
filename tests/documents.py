"""The tables of the documents, each between a marker and a blank line, as the commands print them.

`python -m tests.documents` writes them anew from the shipped store; `tests/test_docs.py` compares.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pandas as pd

from tests.tier import null_attacks
from tier import paper, presets, reproduce
from tier.demo import ASSETS
from tier.store import Store
from tier.summary import (
    as_markdown,
    attack_rows,
    attacks,
    battery_rows,
    fidelity,
    fidelity_rows,
    markdown,
    part_rows,
    quality,
    quality_rows,
    summarize,
    variant_rows,
)

ROOT = Path(__file__).resolve().parents[1]
FIGURES = (("README.md", "signs"), ("docs/results.md", "gtsrb"), ("docs/results.md", "gtsrb_tracks"))
REPRODUCTION = "REPRODUCTION.md"
QUALITY = ["none", "tier_full"]


def tables() -> Iterator[tuple[str, str, str]]:
    """(document, marker, table) of each table that is made from stored results."""
    store, signs = Store(str(ASSETS), read_only=True), presets.get("signs")
    for document, preset in FIGURES:
        yield document, f"table:{preset}", markdown(summarize(store, presets.get(preset)))
    likeness = fidelity(store, signs, ["tier_full"])
    yield "docs/explanations.md", "fidelity:signs:tier_full", as_markdown(fidelity_rows(likeness))
    yield "docs/quality.md", "quality:signs", as_markdown(quality_rows(quality(store, signs, QUALITY)))
    made = attacks(store, signs, variants=True)
    for name, rows in (
        ("attack", attack_rows), ("battery", battery_rows), ("parts", part_rows), ("variants", variant_rows)
    ):  # fmt: skip
        yield "docs/attack.md", f"{name}:signs", as_markdown(rows(made))
    yield from reproduced()


@lru_cache
def cells(dataset: str) -> list[reproduce.Cell]:
    """Every number of the paper on a data set beside the shipped one."""
    return list(reproduce.cells(Store(str(ASSETS), read_only=True), reproduce.protocol(dataset)))


@lru_cache
def alternatives(dataset: str) -> pd.DataFrame:
    """What the paper leaves open, as the shipped store has it."""
    return reproduce.alternatives(Store(str(ASSETS), read_only=True), reproduce.protocol(dataset))


def reproduced() -> Iterator[tuple[str, str, str]]:
    """The tables of REPRODUCTION.md: of each data set the verdicts' counts, KL, choices and the paper's tables."""
    mark = reproduce.VERDICTS["refused"].mark
    heads = [f"{name} `{of.mark}`" if of.mark else name for name, of in reproduce.VERDICTS.items()]
    meanings = [[f"`{of.mark}`" if of.mark else "-", of.meaning] for of in reproduce.VERDICTS.values()]
    yield REPRODUCTION, "marks", as_markdown([["mark", "meaning"], *meanings])
    yield REPRODUCTION, "verdicts", as_markdown([["data set", "tables", *heads], *counted()])
    yield REPRODUCTION, "profiles", as_markdown(profiles())
    for dataset in reproduce.PROTOCOLS:
        computed = {cell.number.place.table for cell in cells(dataset) if cell.ours.value is not None}
        for table in paper.TABLES:
            if table != "II" and table in computed:  # II has settings, no findings
                form = reproduce.in_paper_form(cells(dataset), table)
                yield REPRODUCTION, f"reproduce:{dataset}:{table}", as_markdown(form)
                if reasons := reproduce.refusals(cells(dataset), table):
                    yield REPRODUCTION, f"refused:{dataset}:{table}", " ".join(f"`{mark}` {r}." for r in reasons)
        yield REPRODUCTION, f"alternatives:{dataset}", as_markdown(reproduce.alternative_rows(alternatives(dataset)))


def counted() -> Iterator[list[str]]:
    """How many numbers of each data set have which verdict; those of the KL profiles by themselves."""
    for dataset in reproduce.PROTOCOLS:
        for name, part in (("I, III", ("I", "III")), ("IV to IX", ("IV", "V", "VI", "VII", "VIII", "IX"))):
            found = [cell for cell in cells(dataset) if cell.number.place.table in part]
            if found:
                yield [dataset, name, *map(str, reproduce.counts(found).values())]


@lru_cache
def profiles() -> list[list[str]]:
    """KL of members and non-members at a tenth and at half of the pixels removed, on every data set."""
    store, lines = Store(str(ASSETS), read_only=True), [[""]]
    for dataset, of in reproduce.PROTOCOLS.items():
        header, *rows = reproduce.profile_rows(reproduce.profiles(store, of, (0.1, 0.5)))
        lines[0] = ["data set", *header]
        lines += [[dataset, *row] for row in rows]
    return lines


def found(document: str, marker: str) -> str | None:
    """The table that a document has under a marker."""
    match = re.search(rf"<!-- {marker} -->\n\n(.*?)\n\n", (ROOT / document).read_text(), re.DOTALL)
    return None if match is None else match[1]


def put(document: str, marker: str, table: str) -> None:
    """Write a table under its marker. Raises ValueError where the document has no such marker."""
    path = ROOT / document
    text, count = re.subn(
        rf"(<!-- {marker} -->\n\n).*?(\n\n)", lambda m: m[1] + table + m[2], path.read_text(), flags=re.DOTALL
    )
    if count != 1:
        raise ValueError(f"{document} has {count} tables marked {marker}")
    path.write_text(text)


if __name__ == "__main__":
    for one in tables():
        put(*one)
    put("docs/attack.md", "null", null_attacks.as_text(null_attacks.table()))
