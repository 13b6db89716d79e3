"""Every registered attack on a world that gives members away (orientation) and on one that does not (null)."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy.special import log_softmax

from tier import attacks, metrics
from tier.attacks import agp, battery, lira
from tier.attacks.battery import Settings, Signals, score
from tier.config import Audit

SETTINGS = Settings(audit=Audit(hidden=(32,)))
CLASSES, REFERENCES, SIDE, LEVELS = 5, 16, 4, 4


def world(n: int, gap: float, seed: int, flat: bool = True) -> tuple[Signals, np.ndarray]:
    """Signals of n images in random order, half of them members, and who is one.

    Training on an image raises the logit of its label by `gap`, with what follows from it: a lower loss, a flatter
    gradient, a slower fall of the confidence; and it makes the map flatter, or larger if not `flat`.
    """
    rng = np.random.default_rng(seed)
    member = rng.permutation(np.arange(n) < n // 2)
    label = rng.integers(0, CLASSES, n)
    half = np.stack([rng.permutation(np.arange(n) < n // 2) for _ in range(REFERENCES // 2)])
    inside = np.concatenate([half, ~half])
    logits = rng.normal(0, 0.7, (n, CLASSES))

    def seen(trained: np.ndarray) -> np.ndarray:
        own = logits + rng.normal(0, 0.3, logits.shape)
        own[np.arange(n), label] += gap * trained
        return log_softmax(own, axis=1)

    log_probabilities = seen(member)
    log_p = log_probabilities[np.arange(n), label]
    spread = np.exp(rng.normal(0, 0.2, n) + (-0.5 if flat else 0.5) * gap * member)
    removed = -log_p[:, None] * np.linspace(1, 2, LEVELS) * np.exp(rng.normal(0, 0.1, (2, n, LEVELS)))
    others = rng.normal(-1.5, 0.3, (REFERENCES + 1, 300))
    return Signals(
        label=label, predicted=np.argmax(log_probabilities, axis=1), classes=CLASSES, loss=-log_p,
        log_probabilities=log_probabilities, maps=spread[:, None, None] * rng.normal(size=(n, SIDE, SIDE)),
        gradient_norm=spread, morf=-removed[0], lerf=-removed[1], log_p=log_p,
        reference_log_p=np.stack([seen(row)[np.arange(n), label] for row in inside]), reference_in=inside,
        population_log_p=others[0], population_reference_log_p=others[1:],
    ), member  # fmt: skip


def without_members(signals: Signals, member: np.ndarray) -> Signals:
    """The same, of the images that the target did not train on; references did train on some of them."""
    per_image: dict[str, Any] = {
        name: value[..., ~member] if name.startswith("reference") or name == "log_p" else value[~member]
        for name, value in vars(signals).items()
        if isinstance(value, np.ndarray) and not name.startswith("population")
    }
    return replace(signals, **per_image)


@pytest.fixture(scope="module")
def telling() -> tuple[Signals, np.ndarray]:
    return world(800, 5.0, seed=0)


class TestOrientation:
    @pytest.mark.parametrize("name", attacks.ATTACKS)
    def test_members_score_higher(self, name: str, telling: tuple[Signals, np.ndarray]) -> None:
        target, member = world(400, 5.0, seed=1)
        made = score(name, target, *telling, SETTINGS)
        scores = made.scores
        assert scores.dtype == np.float64 and np.isfinite(scores).all()
        assert metrics.auc(scores[member], scores[~member]) > 0.9
        assert metrics.balanced_accuracy(scores[member], scores[~member], made.threshold) > 0.85
        if name != "gap":
            assert len(np.unique(scores)) == len(scores)

    @pytest.mark.parametrize("name", [n for n, entry in attacks.ATTACKS.items() if entry.oriented and "attr" in n])
    def test_where_members_have_the_larger_maps_the_shadow_turns_the_sign(self, name: str) -> None:
        target, member = world(300, 5.0, seed=1, flat=False)
        found = score(name, target, *world(300, 5.0, seed=0, flat=False), SETTINGS)
        assert found.sign == 1
        assert metrics.auc(found.scores[member], found.scores[~member]) > 0.9
        assert score(name, target, *world(300, 5.0, seed=0), SETTINGS).sign == -1


class TestNull:
    @pytest.mark.parametrize("name", attacks.ATTACKS)
    def test_two_halves_of_nonmembers_look_alike(
        self, name: str, telling: tuple[Signals, np.ndarray], record_testsuite_property: Callable[[str, object], None]
    ) -> None:
        """AUC 0.5 lies within the 95 % interval in at least 16 of 20 seeds (P = 0.997), and is right on average."""
        inside, areas = 0, []
        for seed in range(20):
            nonmembers = without_members(*world(400, 5.0, seed=100 + seed))
            member = np.random.default_rng(seed).permutation(np.arange(200) < 100)  # one half, said to be members
            scores = self.scores(name, nonmembers, telling)
            low, high = metrics.auc_interval(scores[member], scores[~member])
            inside += low <= 0.5 <= high
            areas.append(metrics.auc(scores[member], scores[~member]))
        record_testsuite_property(f"intervals of {name} that hold 0.5, of 20", inside)
        assert inside >= 16, f"{inside} of 20 intervals hold 0.5"
        assert abs(np.mean(areas) - 0.5) < 0.03  # three standard errors of 20 areas, each 0.041

    trained: ClassVar[dict[str, agp.Attack]] = {}

    def scores(self, name: str, target: Signals, telling: tuple[Signals, np.ndarray]) -> np.ndarray:
        """As `battery.score`, but a classifier is learnt once for the twenty seeds."""
        if not attacks.entry(name).learned:
            return score(name, target, *telling, SETTINGS).scores
        if name not in self.trained:
            self.trained[name] = agp.fit(battery._features(name, telling[0]), telling[1], SETTINGS.audit)
        return self.trained[name].score(battery._features(name, target))

    @pytest.mark.parametrize("name", ["agp", "loss_mlp"])
    def test_a_classifier_learnt_from_nothing_finds_nothing(self, name: str) -> None:
        areas = []
        for seed in range(6):
            shadow, target = world(120, 0.0, seed=200 + seed), world(200, 0.0, seed=300 + seed)
            features = battery._features(name, shadow[0])
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(agp.warnings, "warn", lambda *a, **k: None)  # the filter may find nothing
                attack = agp.fit(features, shadow[1], SETTINGS.audit)
            scores, member = attack.score(battery._features(name, target[0])), target[1]
            areas.append(metrics.auc(scores[member], scores[~member]))
        assert abs(np.mean(areas) - 0.5) < 0.05


class TestThreshold:
    @pytest.mark.parametrize("name", ["lira_offline", "lira_online", "rmia"])
    def test_with_references_it_needs_no_shadow_and_not_the_targets_members(self, name: str) -> None:
        target, member = world(300, 4.0, seed=3)
        made = score(name, target, Signals(), np.empty(0, bool), SETTINGS)
        best = metrics.best_threshold(made.scores[member], made.scores[~member])
        own, found = (
            metrics.balanced_accuracy(made.scores[member], made.scores[~member], threshold)
            for threshold in (best, made.threshold)
        )
        assert found > own - 0.05

    def test_is_the_best_when_each_reference_is_the_target(self) -> None:
        target, _ = world(60, 2.0, seed=3)
        assert target.reference_log_p is not None and target.reference_in is not None
        scores, member = [], []
        for index in range(REFERENCES):
            others = [i for i in range(REFERENCES) if i != index]
            scores += list(
                lira.offline(target.reference_log_p[index], target.reference_log_p[others], target.reference_in[others])
            )
            member += list(target.reference_in[index])
        both = np.array(scores)[np.array(member)], np.array(scores)[~np.array(member)]
        made = score("lira_offline", target, Signals(), np.empty(0, bool), SETTINGS)
        assert made.threshold == metrics.best_threshold(*both)


class TestRefusals:
    def test_unknown_attacks_and_missing_signals(self, telling: tuple[Signals, np.ndarray]) -> None:
        with pytest.raises(ValueError, match="no attack named 'magic'"):
            score("magic", telling[0], *telling, SETTINGS)
        with pytest.raises(ValueError, match="not measured: maps"):
            score("attribution_l1", replace(telling[0], maps=None), *telling, SETTINGS)
        with pytest.raises(ValueError, match="not measured: reference_log_p, reference_in"):
            score("lira_online", Signals(log_p=np.zeros(2)), *telling, SETTINGS)

    def test_ready_lists_what_the_signals_allow(self, telling: tuple[Signals, np.ndarray]) -> None:
        assert battery.ready(telling[0]) == list(attacks.ATTACKS)
        some = Signals(loss=np.ones(3), label=np.zeros(3, np.int64), predicted=np.zeros(3, np.int64))
        assert battery.ready(some) == ["gap", "loss", "loss_mlp"]

    @pytest.mark.parametrize("name", [n for n, entry in attacks.ATTACKS.items() if not entry.references and n != "gap"])
    def test_a_shadow_with_one_group_teaches_nothing(self, name: str, telling: tuple[Signals, np.ndarray]) -> None:
        with pytest.raises(ValueError, match=r"empty|at least 4 members"):
            score(name, telling[0], telling[0], np.ones(800, bool), SETTINGS)

    def test_maps_of_nan_are_counted_in_the_report(self, telling: tuple[Signals, np.ndarray]) -> None:
        target, member = world(400, 5.0, seed=1)
        assert target.maps is not None
        target.maps[:7, 0, 0] = np.nan
        made = score("attribution_variance", target, *telling, SETTINGS)
        leaf = metrics.report(made.scores[member], made.scores[~member], made.threshold)
        assert leaf["refused"]["scores"] == "7 of 400 scores are missing and left out"
        assert leaf["members"] + leaf["nonmembers"] == 393
        json.dumps(leaf, allow_nan=False)
