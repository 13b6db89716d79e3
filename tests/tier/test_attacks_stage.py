"""The battery as a stage: what it learns from, what it asks, what it says of its own settings."""

from typing import Any

import numpy as np
import pytest
from torch import Tensor

from tests.tier.test_experiment import attacked
from tier import experiment
from tier.attacks import ATTACKS, agp, lira
from tier.config import Defense
from tier.defenses import augmentation
from tier.store import Store

pytestmark = pytest.mark.filterwarnings("ignore:no trajectory feature separates")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(str(tmp_path_factory.mktemp("battery") / "store"))


def quick(**settings: Any) -> Any:
    return attacked(Defense(), **({"train.epochs": 2} | settings))


def test_both_classifiers_learn_from_the_same_rows_in_the_same_order(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that agp less loss_mlp is what trajectories add, and nothing else."""
    taught: list[tuple[agp.Features, np.ndarray]] = []
    fit = agp.fit

    def spy(features: agp.Features, member: np.ndarray, config: Any) -> agp.Attack:
        taught.append((features, member))
        return fit(features, member, config)

    monkeypatch.setattr(agp, "fit", spy)
    e = quick(**{"attack.shadow": "same", "attack.seed": 3, "attack.holdout": 0.3})
    attack, battery = (experiment.ensure(store, stage, e) for stage in ("attack", "battery"))
    (full, member), (alone, also) = taught
    assert alone.morf.shape == (len(full.loss), 0) and len(member) == 84
    np.testing.assert_array_equal(member, also)
    np.testing.assert_array_equal(full.predicted, alone.predicted)
    np.testing.assert_allclose(full.loss, alone.loss, rtol=1e-9)  # all different: it names the images
    assert len(np.unique(full.loss)) == 84
    for name in set(ATTACKS) - {"agp", "lira_online"}:
        leaf = battery.metrics[name]["attack_test"]
        for group in ("members", "nonmembers"):
            assert leaf[group] == attack.metrics["attack_test"][group] == 18, name


def test_every_setting_that_acts_changes_the_key_and_no_other_does(store: Store) -> None:
    def key(**settings: Any) -> str:
        e = attacked(**{name.replace("__", "."): value for name, value in settings.items()})
        return experiment.key("battery", experiment.pin(store, e, load=True))

    acting = {
        "battery__output": "logit", "battery__queries": 3, "battery__references": 8, "battery__mode": "online",
        "battery__gamma": 1.5, "battery__a": 0.5, "battery__seed": 4, "attack__seed": 1, "attack__holdout": 0.3,
        "explain__name": "lime",
    }  # fmt: skip
    keys = {key(**{name: value}) for name, value in acting.items()}
    assert len(keys | {key()}) == len(acting) + 1
    assert key(battery__variance="per_image", battery__enough=3) not in keys | {key()}
    assert key(battery__enough=9) == key()
    assert key(battery__queries=1, battery__seed=4) == key(battery__queries=1)
    assert key(explain__name="lime", battery__output="logit") == key(explain__name="lime")
    plain = {"defense__name": "none"}
    assert key(**plain, battery__queries=3, battery__seed=4) == key(**plain)


class TestQueries:
    @pytest.mark.parametrize("e", [quick(), attacked(**{"battery.queries": 1})], ids=["without T", "one"])
    def test_may_be_the_image_alone(self, store: Store, monkeypatch: pytest.MonkeyPatch, e: Any) -> None:
        for run in (e, experiment.shadow(e, True), *(experiment.reference(e, number) for number in range(6))):
            experiment.ensure(store, "train", run)  # with T, where that is used
        monkeypatch.setattr(augmentation, "augment", lambda *a: pytest.fail("another view was asked for"))
        found = experiment.ensure(store, "battery", e)
        assert found.metrics["queries"] == 1
        frame = found.frame("scores.parquet")
        runs = [e, *(experiment.reference(e, number) for number in range(6))]
        tables = [experiment.ensure(store, "train", run).frame("samples.parquet").set_index("index") for run in runs]
        log_p = np.stack([table.loc[frame["index"], "log_confidence"] for table in tables])
        inside = np.stack([table.loc[frame["index"], "member"] for table in tables])
        phi = log_p - np.log(-np.expm1(log_p))
        expected = lira.offline(phi[0], phi[1:], inside[1:].astype(bool))
        np.testing.assert_allclose(frame["lira_offline"], expected, rtol=1e-6, atol=1e-9)

    def test_all_models_are_asked_the_same(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        plain = experiment.ensure(store, "battery", attacked(**{"battery.queries": 1})).frame("scores.parquet")
        asked: dict[int, set[bytes]] = {}
        honest = augmentation.augment

        def spy(x: Tensor, *rest: Any) -> Tensor:
            views = honest(x, *rest)
            asked.setdefault(hash(x.numpy().tobytes()), set()).add(views.numpy().tobytes())
            return views

        monkeypatch.setattr(augmentation, "augment", spy)
        found = experiment.ensure(store, "battery", attacked(**{"battery.queries": 3}))
        assert found.metrics["queries"] == 3
        frame = found.frame("scores.parquet")
        assert len(asked) == 2  # the target's images and the shadow's, each a batch
        assert [len(views) for views in asked.values()] == [2, 2]  # of eight models, two views beside the image
        for name in set(ATTACKS) - {"agp"}:
            changed = (frame[name] != plain[name]).any()
            assert changed == (name in ("lira_offline", "lira_online", "rmia")), name


class TestExplanation:
    def test_of_the_gradient_both_outputs_can_be_had(self, store: Store) -> None:
        found = {
            output: experiment.ensure(store, "battery", quick(**{"battery.output": output}))
            for output in ("probability", "logit")
        }
        for output, result in found.items():
            assert result.metrics["output"] == output
            for name in ("attribution_variance", "attribution_l1", "attribution_l2"):
                assert result.metrics[name]["output"] == output
                assert result.metrics[name]["opposite"]["auc"] == pytest.approx(1 - result.metrics[name]["auc"])
        assert "output" not in found["logit"].metrics["loss"]
        frames = [result.frame("scores.parquet") for result in found.values()]
        changed = {name for name in set(ATTACKS) - {"agp"} if (frames[0][name] != frames[1][name]).any()}
        assert changed == {"attribution_variance", "attribution_l1", "attribution_l2"}

    @pytest.mark.parametrize("explainer", ["gradcam", "vargrad"])
    def test_of_another_explainer_the_map_is_used(self, store: Store, explainer: str) -> None:
        e = quick(**{"explain.name": explainer})
        found = experiment.ensure(store, "battery", e)
        assert found.metrics["output"] is None and found.metrics["attribution_l1"]["output"] is None
        maps = experiment.ensure(store, "maps", e).arrays("maps.safetensors")[explainer]
        sums = np.abs(maps.reshape(len(maps), -1).astype(float)).sum(1)
        expected = np.log(np.maximum(sums, np.finfo(float).tiny))  # a flat map has 0
        sign, made = found.metrics["attribution_l1"]["sign"], found.frame("scores.parquet")["attribution_l1"]
        np.testing.assert_allclose(made, sign * expected, rtol=1e-4, atol=1e-4)
        read = {name: stage for name, (stage, _) in experiment.STAGES["battery"].others(e).items()}
        assert {"maps", "shadow maps"} <= read.keys() if explainer == "vargrad" else "maps" not in read


class TestUnevenSizes:
    """Half of 90 + 30 images are 60: references then know less of the images than the target."""

    def test_are_noted(self, store: Store) -> None:
        e = quick(**{"split.target_train": 90, "split.target_test": 30, "split.shadow_train": 60})
        notes = experiment.ensure(store, "battery", e).metrics["notes"]
        assert len(notes) == 2
        assert notes[0].startswith("the shadow is trained on 60 images and the target on 90: ")
        assert notes[1].startswith("each reference model is trained on 60 images and the target on 90: ")
        assert notes[1].endswith("set split.target_test equal to split.target_train")

    def test_even_ones_need_no_note(self, store: Store) -> None:
        assert experiment.ensure(store, "battery", quick()).metrics["notes"] == []
