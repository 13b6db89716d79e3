"""Keys stay as they are, and a change of a stage's code is noticed."""

import json

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
        f"the code behind stage '{stage}' changed: raise its version in tier/experiment.py, or confirm that results "
        "are equal; then run python -m tests.tier.golden"
    )


def test_defaults_are_unchanged() -> None:
    known, now = KNOWN["defaults"], golden.defaults()
    changed = [f"{part}.{name}" for part in known for name in known[part] if known[part][name] != now[part].get(name)]
    assert not changed, (
        f"defaults changed: {', '.join(changed)}. Keys leave defaults out, so raise the version of each stage that "
        "reads them; then run python -m tests.tier.golden"
    )
