"""Settings refuse what does not fit, and their keys depend on what a result depends on, and on nothing else."""

import hashlib
import itertools
import json
from typing import Any

import pytest
from pydantic import ValidationError

from tier import config, presets
from tier.config import (
    Config,
    Data,
    Defense,
    Divergence,
    Experiment,
    Model,
    Signs,
    Split,
    Tier,
    Train,
    Trajectory,
    stage_key,
)


def test_settings_are_frozen_and_refuse_unknown_fields() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Train().epochs = 3  # type: ignore[misc]
    with pytest.raises(ValidationError, match="epoch"):
        Train(epoch=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "assignment",
    [
        {"defense.tier.lambda": -1},
        {"defense.tier.beta": -0.1},
        {"defense.tier.warmup": -1},
        {"defense.tier.confidence": "logits"},
        {"defense.name": "dropout"},
        {"defense.augmentation.rotation": 181},
        {"train.learning_rate": 0},
        {"train.epochs": 0},
        {"train.batch_size": 2.5},
        {"data.image_size": 4},
        {"data.signs.classes": 1},
        {"audit.holdout": 1.0},
        {"audit.folds": 1},
        {"divergence.batch": 1},
    ],
)
def test_values_out_of_range_are_refused_by_the_name_of_their_field(assignment: dict[str, Any]) -> None:
    (path,) = assignment
    with pytest.raises(ValueError, match=path):
        Experiment().set(assignment)


def test_changed_holds_only_what_differs_from_the_defaults() -> None:
    assert Experiment().changed() == {}
    made = Experiment(data=Data(signs=Signs(detail=1.0)), defense=Defense(name="tier_full", tier=Tier(beta=0.5)))
    assert made.changed() == {
        "data": {"signs": {"detail": 1.0}},
        "defense": {"name": "tier_full", "tier": {"beta": 0.5}},
    }
    assert Tier(lambda_=9).changed() == {"lambda": 9.0}
    assert Tier.model_validate({"lambda": 9}) == Tier(lambda_=9.0)


def test_settings_survive_json() -> None:
    made = Experiment().set({"defense.name": "tier_reg", "defense.tier.lambda": 9, "train.gradient_clip": 1})
    assert Experiment.model_validate_json(made.model_dump_json()) == made
    assert Experiment.model_validate(json.loads(json.dumps(made.changed()))) == made


class _LaterTrain(Train):
    """The train settings of a later version, with one field more."""

    restarts: int = 3


class _LaterExperiment(Experiment):
    train: _LaterTrain = _LaterTrain()


def test_a_new_field_with_a_default_keeps_old_keys() -> None:
    now = Experiment(train=Train(epochs=30))
    later = _LaterExperiment(train=_LaterTrain(epochs=30))
    assert "restarts" in later.model_dump()["train"]
    assert stage_key("train", 1, later.changed(), [], None) == stage_key("train", 1, now.changed(), [], None)
    used = _LaterExperiment(train=_LaterTrain(epochs=30, restarts=4))
    assert stage_key("train", 1, used.changed(), [], None) != stage_key("train", 1, now.changed(), [], None)


def test_a_key_is_the_hash_of_canonical_json() -> None:
    text = '{"config":{"a":{"c":0.5},"b":1},"data":"f00d","parents":["p","q"],"stage":"train","version":2}'
    expected = hashlib.sha256(text.encode()).hexdigest()
    assert stage_key("train", 2, {"b": 1, "a": {"c": 0.5}}, ["p", "q"], "f00d") == expected


def test_a_key_changes_with_each_thing_it_is_made_from() -> None:
    base: dict[str, Any] = {"stage": "a", "version": 1, "config": {}, "parents": ["p", "q"], "fingerprint": None}
    changes = [
        {}, {"stage": "b"}, {"version": 2}, {"config": {"x": 1}}, {"parents": ["q", "p"]}, {"fingerprint": "f"},
    ]  # fmt: skip
    keys = {stage_key(**{**base, **change}) for change in changes}
    assert len(keys) == len(changes)


def test_a_key_refuses_nan() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        stage_key("a", 1, {"x": float("nan")}, [], None)


def test_whole_numbers_and_fractions_make_the_same_key() -> None:
    whole, fraction = (Experiment().set({"defense.tier.lambda": value}) for value in (9, 9.0))
    assert json.dumps(whole.changed()) == json.dumps(fraction.changed())


class TestCanonical:
    """`Defense.canonical`: the same computation has one name."""

    @staticmethod
    def _all() -> list[Defense]:
        options = itertools.product(("none", "augmentation", "tier_reg", "tier_full"), ("none", "standard"), (0.0, 9.0))
        return [
            Defense(
                name=name,  # type: ignore[arg-type]
                base_augmentation=base,  # type: ignore[arg-type]
                augmentation=config.Augmentation(rotation=5.0),
                tier=Tier(lambda_=lam, beta=0.7),
            )
            for name, base, lam in options
        ]

    @pytest.mark.parametrize(
        ("name", "base", "lam", "expected"),
        [
            ("none", "none", 7.0, "none"),
            ("none", "standard", 7.0, "augmentation"),
            ("augmentation", "none", 7.0, "augmentation"),
            ("augmentation", "standard", 7.0, "augmentation"),
            ("tier_reg", "none", 7.0, "tier_reg"),
            ("tier_reg", "standard", 7.0, "tier_full"),
            ("tier_full", "none", 7.0, "tier_full"),
            ("tier_full", "standard", 7.0, "tier_full"),
            ("tier_reg", "none", 0.0, "none"),
            ("tier_reg", "standard", 0.0, "augmentation"),
            ("tier_full", "none", 0.0, "augmentation"),
            ("tier_full", "standard", 0.0, "augmentation"),
        ],
    )
    def test_names(self, name: Any, base: Any, lam: float, expected: str) -> None:
        made = Defense(name=name, base_augmentation=base, tier=Tier(lambda_=lam)).canonical().trained
        assert (made.name, made.base_augmentation) == (expected, "none")

    def test_keeps_what_acts_and_resets_what_does_not(self) -> None:
        for defense in self._all():
            made = defense.canonical()
            assert made.augments == defense.augments
            assert made.regularizes == defense.regularizes
            assert made.augmentation == (defense.augmentation if defense.augments else config.Augmentation())
            assert made.tier == (defense.tier if defense.regularizes else Tier())

    def test_is_idempotent(self) -> None:
        for defense in self._all():
            assert defense.canonical().canonical() == defense.canonical()

    @pytest.mark.parametrize("name", presets.PRESETS)
    def test_is_idempotent_for_every_run_of_a_preset(self, name: str) -> None:
        preset = presets.get(name)
        for run in (preset.run(each.name, 0) for each in (*preset.defenses, *preset.rivals)):
            assert run.canonical().canonical() == run.canonical()

    def test_of_the_default_is_the_default(self) -> None:
        assert Defense().canonical().changed() == {}


class TestSet:
    """`Experiment.set`: dotted assignments."""

    def test_replaces_and_leaves_the_rest(self) -> None:
        before = Experiment(train=Train(epochs=30))
        after = before.set({"defense.tier.lambda": 9, "audit.hidden": [8, 4], "data.limit": None})
        assert after.defense.tier.lambda_ == 9.0
        assert after.audit.hidden == (8, 4)
        assert after.train == before.train
        assert before.defense.tier.lambda_ == 7.0

    def test_takes_a_whole_part(self) -> None:
        made = Experiment().set({"model": {"architecture": "mobilenet_v2"}})
        assert made.model == Model(architecture="mobilenet_v2")

    @pytest.mark.parametrize(
        ("path", "here", "valid"),
        [
            ("defence.name", "the experiment has", "defense"),
            ("defense.tier.lamda", "defense.tier has", "lambda"),
            ("defense.tier.lambda_", "defense.tier has", "lambda"),
            ("defense.name.first", "defense.name has", "no fields"),
            ("", "the experiment has", "train"),
        ],
    )
    def test_says_which_name_is_unknown_and_which_are_valid(self, path: str, here: str, valid: str) -> None:
        with pytest.raises(ValueError, match=f"unknown setting '{path}'") as error:
            Experiment().set({path: 1})
        assert here in str(error.value)
        assert valid in str(error.value).split(here)[1]


def test_with_replaces_whole_parts_and_validates() -> None:
    made = Experiment().with_(train=Train(epochs=3), model=Model(width=8))
    assert (made.train.epochs, made.model.width) == (3, 8)
    assert made.defense == Defense()
    with pytest.raises(ValidationError):
        Experiment().with_(model=Train())
    with pytest.raises(ValidationError):
        Experiment().with_(tran=Train())


def test_other_data_lose_the_pinned_fingerprint() -> None:
    pinned = Experiment().set({"data.fingerprint": "a" * 64})
    assert pinned.data.fingerprint == "a" * 64
    assert pinned.set({"train.epochs": 3}).data.fingerprint == "a" * 64
    assert pinned.set({"data.signs.detail": 1.0}).data.fingerprint is None
    assert pinned.set({"data.source": "gtsrb"}).data.fingerprint is None
    assert pinned.set({"data.source": "gtsrb", "data.fingerprint": "b" * 64}).data.fingerprint == "b" * 64


@pytest.mark.parametrize("levels", [(), (0.2, 0.1), (0.1, 0.1), (0.5, 1.2), (-0.1, 0.5)])
@pytest.mark.parametrize("part", [Tier, Trajectory, Divergence])
def test_levels_are_rising_fractions(part: type[Config], levels: tuple[float, ...]) -> None:
    with pytest.raises(ValidationError, match="rising fractions"):
        part.model_validate({"levels": levels})


def test_infinite_settings_and_negative_seeds_are_refused() -> None:
    for part, content in ((Tier, {"lambda": float("inf")}), (Train, {"seed": -1}), (Split, {"seed": -1})):
        with pytest.raises(ValidationError):
            part.model_validate(content)


def test_momentum_counts_where_dp_sgd_uses_it() -> None:
    def made(momentum: float) -> Experiment:
        return Experiment().set(
            {"defense.name": "dpsgd_eps100", "defense.dpsgd.optimizer": "sgd", "train.momentum": momentum}
        )

    assert made(0.5).canonical() != made(0.9).canonical()
    assert made(0.5).canonical().train.momentum == 0.5


def test_a_part_that_is_not_there_is_refused() -> None:
    for settings in ({"parts": 2, "part": 5}, {"parts": 2, "part": 2, "left_out": True}):
        with pytest.raises(ValueError, match="there is no part"):
            Split.model_validate(settings)
    assert Split(part=3).canonical() == Split()
