"""Presets give one experiment per defense, seed and grid point, and refuse what they do not have."""

import json
from typing import get_args

import pytest
from pydantic import ValidationError

from tier import presets
from tier.config import Defense, DefenseName, Experiment, Fidelity, Tier, Train, stage_key
from tier.presets import Preset


def toy() -> Preset:
    return Preset(
        name="toy",
        title="Toy",
        why="to test",
        experiment=Experiment(train=Train(epochs=7)),
        defenses=(
            Defense(name="none"),
            Defense(name="augmentation"),
            Defense(name="tier_reg", tier=Tier(warmup=2)),
            Defense(name="tier_full", tier=Tier(warmup=2)),
        ),
        lambdas=(0.0, 3.0, 7.0),
        betas=(0.0, 0.3),
    )


def _key(experiment: Experiment) -> str:
    plain = experiment.with_(defense=experiment.defense.canonical())
    return stage_key("train", 1, plain.changed(), [], None)


def test_the_registry_refuses_duplicates_and_lists_the_valid_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presets, "PRESETS", {})
    made = presets.register(toy())
    presets.register(toy().model_copy(update={"name": "other"}))
    assert presets.get("toy") is made
    with pytest.raises(ValueError, match="toy"):
        presets.register(toy())
    with pytest.raises(ValueError, match="unknown preset 'sings'; choose one of toy, other"):
        presets.get("sings")


def test_a_run_differs_from_the_experiment_by_defense_seed_and_control_only() -> None:
    made = toy().run("tier_reg", seed=2)
    assert made.defense == toy().defenses[2]
    assert made.train == Train(epochs=7, seed=2)
    assert made.with_(defense=Defense(), train=Train(epochs=7), fidelity=Fidelity()) == toy().experiment
    assert toy().run(Defense(name="augmentation")).defense.name == "augmentation"


def test_an_unknown_defense_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="none, augmentation, tier_reg, tier_full"):
        toy().run("memguard")


def test_a_point_sets_lambda_and_beta_and_keeps_the_rest() -> None:
    made = toy().point("tier_full", 9.0, 0.5, seed=1).defense
    assert made.name == "tier_full"
    assert made.tier == Tier(lambda_=9.0, beta=0.5, warmup=2)


def test_a_point_is_validated_and_a_whole_number_makes_the_same_key() -> None:
    with pytest.raises(ValidationError):
        toy().point("tier_full", -1.0, 0.3)
    with pytest.raises(ValidationError):
        toy().point("tier_full", 1.0, -0.3)
    whole = json.dumps(toy().point("tier_full", 9, 0).changed())
    assert whole == json.dumps(toy().point("tier_full", 9.0, 0.0).changed())


def test_the_grid_holds_every_point_once_and_lambda_zero_shares_one_key() -> None:
    points = list(toy().grid("tier_full"))
    assert [(lam, beta) for lam, beta, _ in points] == [
        (0.0, 0.0), (0.0, 0.3), (3.0, 0.0), (3.0, 0.3), (7.0, 0.0), (7.0, 0.3),
    ]  # fmt: skip
    for lam, beta, experiment in points:
        assert (experiment.defense.tier.lambda_, experiment.defense.tier.beta) == (lam, beta)
    assert len({_key(experiment) for *_, experiment in points}) == 5
    assert _key(points[0][2]) == _key(points[1][2]) == _key(toy().run("augmentation"))
    assert _key(toy().point("tier_reg", 0.0, 0.3)) == _key(toy().run("none"))


def test_every_preset_is_complete() -> None:
    for name, preset in [("toy", toy()), *presets.PRESETS.items()]:
        assert preset.name == name
        assert preset.title
        assert preset.why
        names = [defense.name for defense in preset.defenses]
        assert len(set(names)) == len(names)
        assert {"none", "augmentation", "tier_reg", "tier_full"} <= set(names)
        assert len(set(preset.seeds)) == len(preset.seeds) > 0
        keys = {_key(preset.run(defense, seed)) for defense in names for seed in preset.seeds}
        assert len(keys) == len(names) * len(preset.seeds)
        assert Preset.model_validate_json(preset.model_dump_json()) == preset


def test_each_data_set_under_the_root_is_a_preset_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "birds").mkdir()
    (tmp_path / "fish.parquet").touch()
    (tmp_path / "gtsrb").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "README.md").touch()
    monkeypatch.setenv("TIER_DATA", str(tmp_path))
    assert set(presets.known()) == {*presets.PRESETS, "birds", "fish"}
    assert presets.get("birds").run("tier_full").data.source == "birds"
    assert presets.get("gtsrb") is presets.PRESETS["gtsrb"]
    with pytest.raises(ValueError, match="birds, fish"):
        presets.get("mammals")


@pytest.mark.parametrize("name", presets.PRESETS)
def test_every_preset_has_every_defense_and_strengths_that_fit(name: str) -> None:
    preset = presets.PRESETS[name]
    assert {defense.name for defense in preset.compared} == set(get_args(DefenseName))
    assert set(preset.strengths) <= {defense.name for defense in preset.rivals}
    for rival, strengths in preset.strengths.items():
        for strength in strengths:
            assert preset.defense(rival).at(strength).strength == strength
