"""Bad input of the stages attack and battery: a defined result, or a refusal that says why.

What the classifier, the metrics and the split themselves do with such input is tested beside them.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tier.test_experiment import attacked
from tier import experiment, signals
from tier.attacks import ATTACKS
from tier.config import Defense, Experiment
from tier.data import Dataset
from tier.experiment import explaining, inputs, training
from tier.splits import SplitError
from tier.store import Store
from tier.tables import class_leaks

QUIET = pytest.mark.filterwarnings("ignore:no trajectory feature separates")


def quick(**settings: Any) -> Experiment:
    """An undefended run after one epoch."""
    return attacked(Defense(), **({"train.epochs": 1} | settings))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def broken(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], object]) -> None:
    """Every model is changed by `change` right after its training."""
    import torch

    fit = training._fit

    def fit_and_break(*arguments: Any, **options: Any) -> Any:
        state = fit(*arguments, **options)
        with torch.no_grad():
            change(state.model)
        return state

    monkeypatch.setattr(training, "_fit", fit_and_break)


def with_data(monkeypatch: pytest.MonkeyPatch, e: Experiment, change: Callable[[Dataset], Dataset]) -> Experiment:
    """The run on changed images; its data have another name, so that nothing is mixed up with the plain ones."""
    named = e.set({"data.signs.seed": 77})
    made = change(experiment.dataset(named.data))
    experiment.model_sets.cache_clear()
    monkeypatch.setattr(inputs, "dataset", lambda data, context=None: made)
    return named.set({"data.fingerprint": made.fingerprint})


@pytest.fixture(autouse=True)
def forget() -> Any:
    """Changed images leave nothing behind in the process."""
    yield
    experiment.model_sets.cache_clear()


def leaves(metrics: dict[str, Any]) -> dict[str, dict[str, Any]]:
    names = ("attack_test", "target", *ATTACKS)
    return {name: metrics[name] for name in names if name in metrics}


def relabelled(labels: np.ndarray, kept: int, rare: int = 3) -> np.ndarray:
    """Labels of which only the first `kept` of one class stay; the others become class 0."""
    made = labels.copy()
    made[np.flatnonzero(labels == rare)[kept:]] = 0
    return made


class TestOneMembershipClass:
    """Without members, or without non-members, nothing is made up."""

    @pytest.mark.parametrize("stage", ["attack", "battery"])
    @pytest.mark.parametrize("missing", ["split.shadow_train", "split.shadow_test"])
    def test_of_the_shadow_is_refused(self, store: Store, stage: str, missing: str) -> None:
        with pytest.raises(SplitError, match=r"set split\.shadow_train and _test above 0"):
            experiment.ensure(store, stage, quick(**{missing: 0}))

    @QUIET
    def test_of_a_class_of_images_is_undefined_there_alone(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        e = with_data(monkeypatch, quick(), lambda source: replace(source, labels=relabelled(source.labels, 5)))
        found = experiment.ensure(store, "battery", e)
        scores = found.frame("scores.parquet")
        sizes = scores.groupby(["label", "member"]).size().unstack(fill_value=0)
        assert sizes.index[(sizes == 0).any(axis=1)].tolist() == [3]  # non-members only
        for name in set(ATTACKS) - {"agp"}:
            rows = class_leaks(scores.assign(score=scores[name]), found.metrics[name]["threshold"])
            assert set(rows["label"]) == {0, 1, 2} and np.isfinite(rows).all().all()
        assert all(leaf["auc"] is not None for leaf in leaves(found.metrics).values())


class TestConstantScores:
    """A model that says the same of every image gives nothing away, and nothing separates."""

    @pytest.fixture
    def blank(self, monkeypatch: pytest.MonkeyPatch) -> None:
        broken(monkeypatch, lambda model: [value.zero_() for value in model.body.fc.parameters()])

    def test_are_worth_nothing_and_said_so(self, store: Store, blank: None) -> None:
        with pytest.warns(UserWarning, match="the attack sees loss and class only"):
            found = experiment.ensure(store, "attack", quick())
        scores = found.frame("scores.parquet")["score"]
        assert scores.nunique() == 1 and np.isfinite(scores).all()
        for leaf in leaves(found.metrics).values():
            assert (leaf["auc"], leaf["balanced_accuracy"], leaf["auc_interval"]) == (0.5, 0.5, [0.5, 0.5])
        assert found.metrics["target"]["tpr_at_0.01"] in (None, 0.0)
        assert found.metrics["features_kept"] == 0
        json.dumps(found.metrics, allow_nan=False)

    @QUIET
    def test_of_the_battery_too(self, store: Store, blank: None) -> None:
        found = experiment.ensure(store, "battery", quick())
        for name in ("loss", "modified_entropy", "attribution_variance", "attribution_l1", "input_gradient_norm"):
            assert found.metrics[name]["auc"] == 0.5, name
        json.dumps(found.metrics, allow_nan=False)


class TestNanMaps:
    """Maps that are NaN have no removal order, and statistics of them are missing."""

    @pytest.fixture
    def holed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The maps of every model's first three images are NaN; its outputs are as they were."""
        attributions = explaining.attributions

        def with_holes(*arguments: Any) -> np.ndarray:
            maps = attributions(*arguments).copy()
            maps[:3] = np.nan
            return maps

        statistics = signals.gradient_statistics

        def with_holes_too(
            model: Any, x: Any, y: Any, output: str, *rest: Any, **options: Any
        ) -> dict[str, np.ndarray]:
            found = statistics(model, x, y, output, *rest, **options)  # type: ignore[arg-type]
            for values in found.values():
                values[:3] = np.nan if output != "loss" else values[:3]
            return found

        monkeypatch.setattr(explaining, "attributions", with_holes)
        monkeypatch.setattr(signals, "gradient_statistics", with_holes_too)

    def test_of_a_model_of_nan_stop_the_attack(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        broken(monkeypatch, lambda model: model.body.fc.weight[0, 0].fill_(float("nan")))
        with pytest.raises(ValueError, match=r"the importance map holds NaN.*did the model diverge"):
            experiment.ensure(store, "attack", quick())
        assert not store.ls("attack")

    def test_of_a_few_images_stop_the_attack_too(self, store: Store, holed: None) -> None:
        with pytest.raises(ValueError, match="the importance map holds NaN"):
            experiment.ensure(store, "attack", quick())
        assert not store.ls("attack")

    @QUIET
    @pytest.mark.parametrize("explainer", ["gradient", "gradcam"])
    def test_are_left_out_of_the_battery_and_counted(self, store: Store, holed: None, explainer: str) -> None:
        found = experiment.ensure(store, "battery", quick(**{"explain.name": explainer}))
        for name, leaf in leaves(found.metrics).items():
            of_maps = name.startswith("attribution")
            assert leaf["refused"].get("scores") == ("3 of 120 scores are missing and left out" if of_maps else None), (
                name
            )
            assert leaf["members"] == (57 if of_maps else 60)
        scores = found.frame("scores.parquet")
        assert scores["attribution_l1"].isna().tolist() == [True] * 3 + [False] * 117
        json.dumps(found.metrics, allow_nan=False)


class TestOutputsThatAreNotFinite:
    """A model that has diverged after all says nothing that an attack could use."""

    @pytest.mark.parametrize("value", ["nan", "inf"])
    def test_stop_the_battery(self, store: Store, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
        broken(monkeypatch, lambda model: model.body.fc.bias[0].fill_(float(value)))
        with pytest.raises(ValueError, match=r"outputs are not finite; did its training diverge\? train it again with"):
            experiment.ensure(store, "battery", quick())
        assert not store.ls("battery")

    def test_of_a_reference_model_stop_it_too(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        e = quick()
        experiment.ensure(store, "train", e)
        experiment.ensure(store, "train", experiment.shadow(e, adaptive=True))
        broken(monkeypatch, lambda model: model.body.fc.bias[0].fill_(float("nan")))
        with pytest.raises(ValueError, match="outputs are not finite"):
            experiment.ensure(store, "battery", e)
        assert len(store.ls("train")) == 2 + 1  # the first of the reference models


class TestAClassMissingFromTheShadow:
    """A class that the attacker has never seen is said to be missing, and its images are scored all the same."""

    @QUIET
    def test_is_noted_and_attacked(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        sizes = {f"split.target_{part}": 120 for part in ("train", "test")}
        sizes |= {f"split.shadow_{part}": 30 for part in ("train", "test")}
        e = quick(**sizes)
        e = with_data(monkeypatch, e, lambda source: replace(source, labels=relabelled(source.labels, 6)))
        notes = experiment.ensure(store, "split", e).metrics["notes"]
        for name in ("shadow_train", "shadow_test"):
            assert f"{name} holds no image of 1 classes: label 3" in notes
        found = experiment.ensure(store, "attack", e)
        scores = found.frame("scores.parquet")
        assert set(scores.loc[scores["set"] == "attack_test", "label"]) == {0, 1, 2}
        unseen = scores[(scores["set"] == "target") & (scores["label"] == 3)]
        assert len(unseen) == 4 and np.isfinite(scores["score"]).all()
        assert found.metrics["target"]["members"] + found.metrics["target"]["nonmembers"] == 240
        battery = experiment.ensure(store, "battery", e)
        assert np.isfinite(battery.frame("scores.parquet")[[n for n in ATTACKS if n != "agp"]]).all().all()


class TestFewNonmembers:
    """Rates that so few images cannot resolve are refused; the battery's are in tests/tier/test_experiment.py."""

    @QUIET
    def test_are_told_with_the_number_needed(self, store: Store) -> None:
        found = leaves(experiment.ensure(store, "attack", quick()).metrics)
        assert [found[name]["nonmembers"] for name in ("attack_test", "target")] == [12, 60]
        for leaf in found.values():
            for level, needed in (("0.001", "1,000"), ("0.01", "100")):
                reason = f"a rate of {level} needs at least {needed} non-members; there are {leaf['nonmembers']}"
                assert leaf[f"tpr_at_{level}"] is None and leaf["refused"][f"tpr_at_{level}"] == reason


class TestEmptySelection:
    """Where no trajectory feature separates, loss and predicted class remain, with a warning."""

    def test_loss_and_class_remain(self, store: Store) -> None:
        with pytest.warns(UserWarning, match="the attack sees loss and class only"):
            found = experiment.ensure(store, "attack", quick(**{"audit.welch": 1e-300}))
        table = found.frame("features.parquet").set_index("feature")
        assert table.index[table["kept"]].tolist() == ["loss", "predicted"]
        assert found.metrics["features_kept"] == 0 and found.metrics["alpha"] == 0.0  # all alphas alike: the first
        scores = found.frame("scores.parquet")
        assert scores["score"].nunique() == len(scores)  # the loss tells images apart


class TestDuplicates:
    """An image in two sets would be member and non-member at once."""

    @QUIET
    def test_across_splits_are_dropped_and_said(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        def copied(source: Dataset) -> Dataset:
            images, labels = source.images.copy(), source.labels.copy()
            images[300:340] = images[:40]
            labels[300:340] = labels[:40]
            images[340:350] = images[50:60]  # with labels that differ
            labels[340:350] = (labels[50:60] + 1) % len(source.class_names)
            return replace(source, images=images, labels=labels)

        e = with_data(monkeypatch, quick(), copied)
        notes = experiment.ensure(store, "split", e).metrics["notes"]
        assert "40 byte-identical images dropped, the first of each kept" in notes
        assert "20 byte-identical images with different labels dropped, none kept" in notes
        used = np.concatenate(
            [experiment.model_sets(run.data, run.split)[1] for run in (e, experiment.shadow(e, True))]
        )
        images = inputs.dataset(e.data).images[used]
        assert len(used) == 240 and len({image.tobytes() for image in images}) == 240
        scores = experiment.ensure(store, "attack", e).frame("scores.parquet")
        assert set(scores["index"]) <= set(used.tolist()) and not scores["index"].duplicated().any()


class TestNoShadowHalf:
    """An attacker without data of their own cannot attack from outside."""

    @pytest.mark.parametrize("stage", ["attack", "battery"])
    def test_says_what_to_set(self, store: Store, stage: str) -> None:
        alone = quick(**{"split.shadow_train": 0, "split.shadow_test": 0})
        with pytest.raises(SplitError, match=r"no shadow images: set split\.shadow_train and _test above 0"):
            experiment.ensure(store, stage, alone)
