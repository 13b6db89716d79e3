"""The documents say what the code and the shipped results say."""

import re
from pathlib import Path

import pytest

from tier import presets
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
    summarize,
    variant_rows,
)

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("document", "preset"), [("README.md", "signs"), ("docs/results.md", "gtsrb"), ("docs/results.md", "gtsrb_tracks")]
)
def test_tables_are_those_of_the_shipped_store(document: str, preset: str) -> None:
    text = (ROOT / document).read_text()
    found = re.search(rf"<!-- table:{preset} -->\n\n(.*?)\n\n", text, re.DOTALL)
    assert found, f"{document} has no table for {preset}"
    assert found[1] == markdown(summarize(Store(str(ASSETS), read_only=True), presets.get(preset))), (
        f"run python -m tier show {preset} --markdown and put the table into {document}"
    )


def test_the_table_of_likeness_is_that_of_the_shipped_store() -> None:
    text = (ROOT / "docs" / "explanations.md").read_text()
    found = re.search(r"<!-- fidelity:signs:tier_full -->\n\n(.*?)\n\n", text, re.DOTALL)
    assert found
    made = fidelity(Store(str(ASSETS), read_only=True), presets.get("signs"), ["tier_full"])
    assert found[1] == as_markdown(fidelity_rows(made)), "run the command above the table and put its output there"


def test_the_tables_of_attacks_are_those_of_the_shipped_store() -> None:
    text = (ROOT / "docs" / "attack.md").read_text()
    made = attacks(Store(str(ASSETS), read_only=True), presets.get("signs"), variants=True)
    tables = {"attack": attack_rows, "battery": battery_rows, "parts": part_rows, "variants": variant_rows}
    for name, rows in ((name, make(made)) for name, make in tables.items()):
        found = re.search(rf"<!-- {name}:signs -->\n\n(.*?)\n\n", text, re.DOTALL)
        assert found
        assert found[1] == as_markdown(rows), "run the command above the tables and put its output there"


def test_links_and_pictures_exist() -> None:
    for document in ("README.md", "CONTRIBUTING.md", "docs/results.md", "docs/explanations.md", "docs/attack.md"):
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
