"""Keys stay as they are, and a change of a stage's code is noticed."""

import json
import shutil
from pathlib import Path

import pytest

from tests.tier import golden
from tier import experiment

KNOWN = json.loads(golden.FILE.read_text())
KEYS, CODE = golden.keys(), golden.code()


def test_every_stage_is_listed() -> None:
    assert set(golden.SOURCES) == set(experiment.STAGES)


@pytest.mark.parametrize("run", KEYS)
def test_keys_of_presets_are_unchanged(run: str) -> None:
    assert KEYS[run] == KNOWN["keys"].get(run), (
        f"the keys of {run} changed: its stored results are no longer found. If that is meant, rebuild the demo store "
        "and run python -m tests.tier.golden"
    )


@pytest.mark.parametrize("stage", golden.SOURCES)
def test_code_of_stages_is_unchanged(stage: str) -> None:
    assert CODE[stage] == KNOWN["code"].get(stage), (
        f"the code behind stage '{stage}' changed: raise its version in tier/experiment/pipeline.py, or confirm "
        "that results are equal; then run python -m tests.tier.golden"
    )


@pytest.mark.parametrize(
    "file, text, stages",
    [
        ("explaining", "def compute_trajectory(", "trajectory"),
        ("reporting", '"divergence", "audit"', "report"),
        ("attacking", "def _at_alpha(", "alpha attack battery"),
        ("explaining", "CHEAP = (", "maps trajectory inference divergence gallery inspect verdict battery "
         "fidelity probes quality"),
        ("inputs", "def joined(", " ".join(set(golden.SOURCES) - {"report"})),
    ],
)  # fmt: skip
def test_a_change_is_noticed_by_the_stages_that_it_reaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str, stages: str
) -> None:
    shutil.copytree(golden.PIPELINE, tmp_path, dirs_exist_ok=True)
    path = tmp_path / f"{file}.py"
    assert path.read_text().count(text) == 1
    path.write_text(path.read_text().replace(text, text + "changed, " if text.endswith("(") else text + ', "changed"'))
    before = {stage: golden.pipeline(stage) for stage in golden.SOURCES}
    monkeypatch.setattr(golden, "PIPELINE", tmp_path)
    assert {stage for stage in before if golden.pipeline(stage) != before[stage]} == set(stages.split())


def test_defaults_are_unchanged() -> None:
    known, now = KNOWN["defaults"], golden.defaults()
    changed = [f"{part}.{name}" for part in known for name in known[part] if known[part][name] != now[part].get(name)]
    assert not changed, (
        f"defaults changed: {', '.join(changed)}. Keys leave defaults out, so raise the version of each stage that "
        "reads them; then run python -m tests.tier.golden"
    )
