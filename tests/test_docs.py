"""The documents say what the code and the shipped results say."""

import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from tests import documents
from tier import paper, reproduce
from tier.reproduce.alternatives import MEASURED

ROOT = Path(__file__).resolve().parents[1]


def test_tables_are_those_of_the_shipped_store() -> None:
    for document, marker, table in documents.tables():
        assert documents.found(document, marker) == table, (
            f"the table {marker} of {document} is not what is stored: run python -m tests.documents"
        )


def test_the_reproduction_lists_no_number_that_the_store_lacks() -> None:
    """Numbers with a fraction in the prose: with three digits they are ours, with fewer the paper's.

    A data set's section may name that data set's only. The tables are compared above, and code holds settings.
    """
    text = (ROOT / documents.REPRODUCTION).read_text()
    told = 0
    for section in re.split(r"^(?=## )", text, flags=re.M):
        heading = section.partition("\n")[0].removeprefix("## ").partition(",")[0]
        own = paper.DATASETS.get(heading)
        ours, theirs = zip(*(numbers(d) for d in ([own] if own else reproduce.PROTOCOLS)), strict=True)
        found = re.findall(r"(?<![\w.])-?\d+\.\d+(?!\d|\.\d)", prose(section))
        tables = set(re.findall(r"^<!-- \w+:(\w+)", section, flags=re.M))
        assert tables == ({own} if own else set()), heading
        told += sum(len(number.split(".")[1]) == 3 for number in found)
        known = {3: set().union(*ours)}
        unknown = [n for n in found if n not in known.get(len(n.split(".")[1]), set().union(*theirs))]
        assert unknown == [], heading
    assert told > 50
    assert len(re.findall(r"^<!--", text, re.M)) == len(list(documents.reproduced())), "a table that is not made here"
    assert "to come" not in text


def numbers(dataset: str) -> tuple[set[str], set[str]]:
    """Ours on a data set, with three digits, and the paper's, with one to three."""
    rows = [cell.row() for cell in documents.cells(dataset)]
    ours = [row["ours"] for row in rows] + [beside["value"] for row in rows for beside in row["beside"].values()]
    measured = documents.alternatives(dataset)[list(MEASURED)]
    ours += list(measured.to_numpy(dtype=float).ravel())
    theirs = {f"{row['paper']:.{digits}f}" for row in rows for digits in (1, 2, 3)}
    return {f"{value:.3f}" for value in ours if value is not None}, theirs | SETTINGS


SETTINGS = {"0.3", "3.0", "0.5", "0.05"}  # of beta, chance, and the threshold of significance


def prose(text: str) -> str:
    """A text without code, tables and comments."""
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    text = re.sub(r"<!-- refused:\S+ -->\n\n.*?\n\n", "", text, flags=re.S)  # compared with the tables
    return re.sub(r"`[^`]*`|^    .*$|^\|.*$|<!--.*?-->", "", text, flags=re.M)


def test_links_and_pictures_exist() -> None:
    for document in (
        "README.md",
        "CONTRIBUTING.md",
        "docs/results.md",
        "docs/explanations.md",
        "docs/attack.md",
        "docs/quality.md",
        "REPRODUCTION.md",
    ):
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / document).read_text()):
            assert (ROOT / document).parent.joinpath(target).exists(), f"{document} points to {target}"


def test_the_readme_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The ten lines, on a toy."""
    import torch
    from torch import nn

    code = next(
        block
        for block in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
        if "tier_loss" in block
    )
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    loader = [(torch.rand(8, 3, 8, 8), torch.randint(3, (8,)))]
    before = model[0].weight.detach().clone()
    names = {"model": model, "loader": loader, "optimizer": torch.optim.SGD(model.parameters(), 0.01)}
    exec(code.replace("range(100)", "range(7)"), names)
    assert torch.isfinite(names["total"])
    assert set(names["terms"]) == {"loss", "ce", "kl", "var"}
    assert not torch.equal(before, model[0].weight)


def test_the_table_of_layers_is_that_of_the_import_contracts() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract.get("containers") == ["tier"]]
    depth = {name.strip(" ()"): level for level, layer in enumerate(layers) for name in layer.split("|")}
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| layer | modules |")[2].partition("\n\n")[0]
    named = [name for line in table.splitlines()[2:] for name in re.findall(r"`([a-z]+)/?`", line.split("|")[2])]
    assert sorted(named) == sorted(depth)
    for line in table.splitlines()[2:]:  # within a row `then` goes down
        levels = [
            {depth[name] for name in re.findall(r"`([a-z]+)/?`", part)} for part in line.split("|")[2].split("then")
        ]
        assert all(max(upper) < min(lower) for upper, lower in pairwise(levels)), line
