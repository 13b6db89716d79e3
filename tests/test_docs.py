"""The documents say what the code and the shipped results say."""

import re
from pathlib import Path

import pytest

from tests import documents
from tier import reproduce

ROOT = Path(__file__).resolve().parents[1]


def test_tables_are_those_of_the_shipped_store() -> None:
    for document, marker, table in documents.tables():
        assert documents.found(document, marker) == table, (
            f"the table {marker} of {document} is not what is stored: run python -m tests.documents"
        )


def test_the_reproduction_lists_no_number_that_the_store_lacks() -> None:
    """Numbers with a fraction in the prose: with three digits they are ours, with fewer the paper's.

    The tables are compared above, and code holds settings.
    """
    text = (ROOT / documents.REPRODUCTION).read_text()
    tables = len(re.findall(r"^\| ---", text, re.M))
    assert tables == len(list(documents.reproduced())), "a table without a marker"
    prose = re.sub(r"```.*?```", "", text, flags=re.S)
    prose = re.sub(r"`[^`]*`|^    .*$|^\|.*$", "", prose, flags=re.M)
    ours, theirs = set(), set()
    for dataset in reproduce.PROTOCOLS:
        values: list[float] = []
        for row in (cell.row() for cell in documents.cells(dataset)):
            theirs |= {f"{row['paper']:.{digits}f}" for digits in (1, 2, 3)}
            values += [row["ours"], row["difference"], *(row["interval"] or ())]
            values += [told["value"] for told in row["beside"].values()]
        values += list(documents.alternatives(dataset).select_dtypes("number").to_numpy().ravel())
        ours |= {f"{value:.3f}" for value in values if value is not None}
    told = re.findall(r"(?<![\w.])-?\d+\.\d+(?!\d|\.\d)", prose)
    assert any(len(number.split(".")[1]) == 3 for number in told)
    assert [n for n in told if n not in (ours if len(n.split(".")[1]) == 3 else theirs)] == []


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
