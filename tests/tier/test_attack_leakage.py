"""Nothing of what an attack is judged on may reach what it is made from."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.tier import null_attacks
from tests.tier.test_experiment import attacked
from tier import experiment, signals, training
from tier.attacks import ATTACKS, agp
from tier.config import Defense, Experiment
from tier.experiment import attacking, auditing, battery
from tier.metrics import best_threshold
from tier.store import Store

NULL_SEEDS = 6
pytestmark = pytest.mark.filterwarnings("ignore:no trajectory feature separates")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def relabelled(
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    name: str,
    rows: Callable[[Experiment, pd.DataFrame], np.ndarray],
) -> None:
    """Let a helper of the stages call members non-members, and the reverse, in the rows that `rows` names."""
    honest = getattr(module, name)

    def lying(store: Store, e: Experiment, *rest: Any) -> Any:
        measured, table = honest(store, e, *rest)
        member = table["member"].to_numpy(bool)
        return measured, table.assign(member=member ^ rows(e, table))

    monkeypatch.setattr(module, name, lying)


def judged(e: Experiment, table: pd.DataFrame) -> np.ndarray:
    """All rows of the target; of the shadow those that the attack is tested on."""
    if e.split.role == "target":
        return np.ones(len(table), bool)
    _, test = attacking.attack_rows(e, table["index"].to_numpy())
    return np.isin(np.arange(len(table)), test)


def attack_of(e: Experiment, folder: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    found = experiment.ensure(Store(str(folder)), "attack", e)
    return found.metrics, found.frame("scores.parquet")


def test_the_attack_does_not_look_at_whose_members_it_is_judged_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = attacked()
    metrics, scores = attack_of(e, tmp_path / "honest")
    relabelled(monkeypatch, auditing, "features_of", judged)
    again, others = attack_of(e, tmp_path / "lying")
    assert again["alpha"] == metrics["alpha"] and again["validation_auc"] == metrics["validation_auc"]
    assert again["target"]["threshold"] == metrics["target"]["threshold"] == metrics["attack_test"]["threshold"]
    np.testing.assert_array_equal(others["score"], scores["score"])
    assert again["target"]["auc"] == pytest.approx(1 - metrics["target"]["auc"])  # the lie was told


def test_alpha_and_the_threshold_come_from_attack_train(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[int]] = {"alpha": [], "threshold": [], "fit": []}
    best, crossed, fit = agp.best_features, agp.cross_fitted, agp.fit

    def best_spied(features: Any, member: np.ndarray, *rest: Any) -> Any:
        seen["alpha"] += [len(member), *(len(of.loss) for of in features.values())]
        return best(features, member, *rest)

    def crossed_spied(features: Any, member: np.ndarray, *rest: Any) -> Any:
        scores = crossed(features, member, *rest)
        if len(member) == 96:  # not those within the choice of alpha
            seen["threshold"].append(best_threshold(scores[member], scores[~member]))
        return scores

    monkeypatch.setattr(agp, "best_features", best_spied)
    monkeypatch.setattr(agp, "cross_fitted", crossed_spied)
    monkeypatch.setattr(agp, "fit", lambda f, m, s: seen["fit"].append(len(m)) or fit(f, m, s))
    e = attacked()
    found = experiment.ensure(store, "attack", e)
    learnt = 96  # 80 % of 60 + 60
    assert set(seen["alpha"]) == {learnt} and learnt in seen["fit"]
    assert found.metrics["target"]["threshold"] == pytest.approx(seen["threshold"][-1])


def test_the_battery_does_not_look_at_the_target_s_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    e = attacked()
    honest = experiment.ensure(Store(str(tmp_path / "honest")), "battery", e)
    relabelled(monkeypatch, battery, "_signals", lambda e, table: np.full(len(table), e.split.role == "target"))
    lying = experiment.ensure(Store(str(tmp_path / "lying")), "battery", e)
    for name in set(ATTACKS) - {"agp"}:
        np.testing.assert_array_equal(lying.frame("scores.parquet")[name], honest.frame("scores.parquet")[name])
        first, second = honest.metrics[name], lying.metrics[name]
        assert (second["sign"], second["threshold"]) == (first["sign"], first["threshold"]), name
        assert second["auc"] == pytest.approx(1 - first["auc"]), name  # the lie was told


def test_a_shadow_starts_from_weights_of_its_own(store: Store) -> None:
    e = attacked()
    for adaptive in (False, True):
        seed = experiment.shadow(e, adaptive).train.seed
        assert seed not in (e.train.seed, *range(1000))
    first, second = (training.start(experiment.model_sets(r.data, r.split)[0], r.net, r.train).model.state_dict()
                     for r in (e, experiment.shadow(e, adaptive=True)))  # fmt: skip
    drawn = [name for name, values in first.items() if values.ndim > 1 and "normalize" not in name]
    assert drawn and all(not (first[name] == second[name]).all() for name in drawn)


def test_with_a_base_augmentation_the_undefended_shadow_has_it_too(store: Store) -> None:
    e = experiment.pin(store, attacked(Defense(base_augmentation="standard")), load=True)
    keys = {experiment.key("attack", e.set({"attack.shadow": kind})) for kind in ("undefended", "same")}
    assert len(keys) == 1
    defended = e.set({"defense.name": "tier_reg", "defense.tier.warmup": 1})
    bare = experiment.shadow(defended, adaptive=False)
    assert bare.defense.augments and bare.defense.name == "none"
    assert experiment.undefended(defended).defense.augments
    assert experiment.key("train", experiment.undefended(defended)) == experiment.key("train", e)


class TestNull:
    """Models that know nothing: every attack finds nothing, through all of the pipeline."""

    def test_every_attack_is_at_chance(self) -> None:
        found = null_attacks.table(NULL_SEEDS)
        assert set(found) == set(ATTACKS)
        for name, of in found.items():
            # one area of 60 + 60 images has a standard error of 0.053
            assert abs(of["mean_auc"] - 0.5) < 4 * 0.053 / NULL_SEEDS**0.5, (name, of)
            assert of["hold"] >= NULL_SEEDS - 2, (name, of)

    def test_a_leak_of_the_order_of_the_images_is_noticed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        honest = signals.log_odds

        def leaking(*arguments: Any) -> Any:
            odds = honest(*arguments)
            return odds - 1e-2 * np.arange(len(odds))

        monkeypatch.setattr(signals, "log_odds", leaking)
        low, high = null_attacks.areas(0)["loss"][1:]
        assert not low <= 0.5 <= high
