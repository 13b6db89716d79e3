"""Every registered attack on a world that gives members away: its orientation, sign, threshold and refusals.

The null tests, of whole stages, are in tests/tier/test_attack_leakage.py.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import log_softmax

from tier import attacks, metrics
from tier.attacks import attribution, battery, lira, rmia
from tier.attacks.battery import Settings, Signals, score
from tier.config import Audit, Battery, Experiment

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

    def odds(log_probabilities: np.ndarray) -> np.ndarray:
        log_p = log_probabilities[np.arange(n), label]
        return log_p - np.log(-np.expm1(log_p))

    log_probabilities = seen(member)
    log_p = log_probabilities[np.arange(n), label]
    spread = np.exp(rng.normal(0, 0.2, n) + (-0.5 if flat else 0.5) * gap * member)
    removed = -log_p[:, None] * np.linspace(1, 2, LEVELS) * np.exp(rng.normal(0, 0.1, (2, n, LEVELS)))
    others = rng.normal(-1.5, 0.3, (REFERENCES + 1, 300))
    return Signals(
        label=label, predicted=np.argmax(log_probabilities, axis=1), classes=CLASSES, loss=-log_p,
        log_probabilities=log_probabilities,
        explanation=attribution.log_statistics(spread[:, None, None] * rng.normal(size=(n, SIDE, SIDE))),
        log_gradient_norm=np.log(spread), morf=-removed[0], lerf=-removed[1], phi=odds(log_probabilities),
        reference_phi=np.stack([odds(seen(row)) for row in inside]), reference_in=inside,
        population_phi=others[0], population_reference_phi=others[1:],
    ), member  # fmt: skip


def shadow(n: int, gap: float, seed: int, flat: bool = True) -> tuple[Signals, np.ndarray]:
    """As `world`, of a model whose images no reference has seen; one of each pair of references acts."""
    signals, member = world(n, gap, seed, flat)
    assert signals.reference_phi is not None and signals.population_reference_phi is not None
    half = signals.reference_phi[: REFERENCES // 2] - gap * world_inside(signals)[: REFERENCES // 2]
    return replace(
        signals, reference_phi=half, reference_in=np.zeros(half.shape, bool),
        population_reference_phi=signals.population_reference_phi[: REFERENCES // 2],
    ), member  # fmt: skip


def world_inside(signals: Signals) -> np.ndarray:
    assert signals.reference_in is not None
    return signals.reference_in.astype(float)


def attack(
    name: str, target: Signals, taught: tuple[Signals, np.ndarray], settings: Settings = SETTINGS
) -> battery.Scored:
    """`battery.score` that learns from all of a shadow's images."""
    return score(name, target, *taught, np.arange(len(taught[1])), settings)


@pytest.fixture(scope="module")
def telling() -> tuple[Signals, np.ndarray]:
    return shadow(800, 5.0, seed=0)


class TestOrientation:
    @pytest.mark.parametrize("name", attacks.ATTACKS)
    def test_members_score_higher(self, name: str, telling: tuple[Signals, np.ndarray]) -> None:
        target, member = world(400, 5.0, seed=1)
        made = attack(name, target, telling)
        scores = made.scores
        assert scores.dtype == np.float64 and np.isfinite(scores).all()
        assert metrics.auc(scores[member], scores[~member]) > 0.9
        assert metrics.balanced_accuracy(scores[member], scores[~member], made.threshold) > 0.85
        if name != "gap":
            assert len(np.unique(scores)) == len(scores)

    @pytest.mark.parametrize("name", [n for n, entry in attacks.ATTACKS.items() if entry.oriented and "attr" in n])
    def test_where_members_have_the_larger_maps_the_shadow_turns_the_sign(self, name: str) -> None:
        target, member = world(300, 5.0, seed=1, flat=False)
        found = attack(name, target, shadow(300, 5.0, seed=0, flat=False))
        assert found.sign == 1
        assert metrics.auc(found.scores[member], found.scores[~member]) > 0.9
        assert attack(name, target, shadow(300, 5.0, seed=0)).sign == -1


class TestBothSigns:
    @pytest.mark.parametrize("name", [n for n, entry in attacks.ATTACKS.items() if entry.oriented])
    def test_the_other_one_is_reported_with_a_threshold_of_its_own(
        self, name: str, telling: tuple[Signals, np.ndarray]
    ) -> None:
        target, member = world(400, 5.0, seed=1)
        found, test = attack(name, target, telling), np.arange(200)
        made = battery.leaf(found, member, telling[1], test)
        other = made["opposite"]
        assert found.opposite is not None and other["sign"] == -made["sign"]
        assert other["auc"] == pytest.approx(1 - made["auc"])
        theirs = -battery.STATISTICS[name](telling[0]) * found.sign
        assert other["threshold"] == metrics.best_threshold(theirs[telling[1]], theirs[~telling[1]])
        assert other["balanced_accuracy"] == metrics.balanced_accuracy(
            -found.scores[member], -found.scores[~member], found.opposite
        )
        json.dumps(made, allow_nan=False)

    @pytest.mark.parametrize("name", [n for n, entry in attacks.ATTACKS.items() if not entry.oriented])
    def test_others_have_one_direction(self, name: str, telling: tuple[Signals, np.ndarray]) -> None:
        target, member = world(400, 5.0, seed=1)
        found = attack(name, target, telling)
        assert found.sign == 1 and "opposite" not in battery.leaf(found, member, telling[1], np.arange(200))


class TestAttackTrain:
    """What teaches is attack-train: nothing said of the shadow's other rows changes anything."""

    OFFLINE = tuple(name for name in attacks.ATTACKS if name != "lira_online")

    @pytest.mark.parametrize("name", OFFLINE)
    def test_the_rest_of_the_shadow_teaches_nothing(self, name: str) -> None:
        target, _ = world(60, 5.0, seed=1)
        theirs, member = shadow(240, 3.0, seed=0)
        learn, test = np.arange(100), np.arange(100, 240)
        lied = np.where(np.isin(np.arange(240), test), ~member, member)
        honest, lying = (score(name, target, theirs, said, learn, SETTINGS) for said in (member, lied))
        np.testing.assert_array_equal(honest.scores, lying.scores)
        assert honest[1:3] == lying[1:3] and honest.opposite == lying.opposite
        if name != "gap":
            learnt = score(name, target, theirs, lied, np.arange(240), SETTINGS)
            assert learnt.threshold != honest.threshold  # had it been taught by all rows, the lie would have been told

    @pytest.mark.parametrize("name", OFFLINE)
    def test_the_attack_is_reported_on_attack_test(self, name: str) -> None:
        target, inside = world(60, 5.0, seed=1)
        theirs, member = shadow(240, 3.0, seed=0)
        learn, test = np.arange(160), np.arange(160, 240)
        found = score(name, target, theirs, member, learn, SETTINGS)
        assert found.shadow is not None
        made = battery.leaf(found, inside, member, test)["attack_test"]
        assert (made["members"], made["nonmembers"]) == (member[test].sum(), (~member[test]).sum())
        assert made["threshold"] == found.threshold and made["auc"] > 0.8 - 0.2 * (name == "gap")
        as_target = score(name, theirs, theirs, member, learn, SETTINGS).scores  # the shadow attacked like any target
        np.testing.assert_array_equal(found.shadow, as_target)

    def test_of_an_online_attack_there_is_none_and_it_says_why(self, telling: tuple[Signals, np.ndarray]) -> None:
        target, member = world(100, 5.0, seed=1)
        for name, settings in (("lira_online", SETTINGS), ("rmia", replace(SETTINGS, mode="online"))):
            made = battery.leaf(attack(name, target, telling, settings), member, telling[1], np.arange(9))
            assert made["attack_test"] is None
            assert made["refused"]["attack_test"] == "the reference models taught the threshold, not a shadow"


class TestThreshold:
    @pytest.mark.parametrize(("name", "mode"), [("lira_online", "offline"), ("rmia", "online")])
    def test_online_it_needs_no_shadow_and_not_the_targets_members(self, name: str, mode: rmia.Mode) -> None:
        target, member = world(300, 4.0, seed=3)
        made = attack(name, target, (Signals(), np.empty(0, bool)), replace(SETTINGS, mode=mode))
        self.is_good(made, member)

    @pytest.mark.parametrize("name", ["lira_offline", "rmia"])
    def test_offline_it_comes_from_a_shadow_whose_images_no_reference_has_seen(self, name: str) -> None:
        """Who of the references trained on what of the target decides scores, but not the threshold."""
        target, member = world(300, 4.0, seed=3)
        theirs = shadow(300, 4.0, seed=4)
        made = attack(name, target, theirs)
        self.is_good(made, member)
        assert target.reference_phi is not None and target.reference_in is not None
        seen = target.reference_phi + 50.0 * target.reference_in  # what only an online attacker could look at
        again = attack(name, replace(target, reference_phi=seen), theirs)
        assert again.threshold == made.threshold
        np.testing.assert_array_equal(again.scores, made.scores)

    def is_good(self, made: battery.Scored, member: np.ndarray) -> None:
        best = metrics.best_threshold(made.scores[member], made.scores[~member])
        own, found = (
            metrics.balanced_accuracy(made.scores[member], made.scores[~member], threshold)
            for threshold in (best, made.threshold)
        )
        assert found > own - 0.05

    @pytest.mark.parametrize("variance", ["fixed", "per_image"])
    def test_is_the_best_when_each_reference_is_the_target(self, variance: lira.Variance) -> None:
        target, _ = world(60, 2.0, seed=3)
        assert target.reference_phi is not None and target.reference_in is not None
        scores, member = [], []
        for index in range(REFERENCES):
            others = [i for i in range(REFERENCES) if i != index]
            scores += list(
                lira.online(
                    target.reference_phi[index], target.reference_phi[others], target.reference_in[others], variance
                )
            )
            member += list(target.reference_in[index])
        both = np.array(scores)[np.array(member)], np.array(scores)[~np.array(member)]
        settings = replace(SETTINGS, variance=variance, enough=REFERENCES // 2)
        made = attack("lira_online", target, (Signals(), np.empty(0, bool)), settings)
        assert made.threshold == metrics.best_threshold(*both)


class TestVariancePerImage:
    """It acts, or it is refused: a setting that silently did nothing would be believed."""

    def test_with_too_few_references_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"needs battery\.enough \(32\) references.*raise that to 64"):
            Battery(variance="per_image")
        with pytest.raises(ValueError, match="or lower battery"):
            Experiment().set({"battery.variance": "per_image", "battery.enough": 9})
        assert Experiment().set({"battery.variance": "per_image", "battery.enough": 8}).battery.enough == 8
        assert Battery(variance="per_image", references=64).enough == 32

    def test_acts_on_scores_and_on_the_threshold(self) -> None:
        target, _ = world(200, 3.0, seed=3)
        nobody = Signals(), np.empty(0, bool)
        fixed = attack("lira_online", target, nobody)
        own = attack("lira_online", target, nobody, replace(SETTINGS, variance="per_image", enough=REFERENCES // 2))
        assert (own.scores != fixed.scores).all()
        assert own.threshold != fixed.threshold

    def test_what_does_not_act_leaves_the_settings_equal(self) -> None:
        idle = Battery(enough=20, seed=4, output="logit", queries=3)
        assert idle.canonical("lime", augments=False) == Battery()
        assert idle.canonical("gradient", augments=False) == Battery(output="logit")
        assert idle.canonical("lime", augments=True) == Battery(seed=4, queries=3)
        assert Battery(queries=1, seed=4).canonical("lime", augments=True) == Battery(queries=1)
        assert Battery(variance="per_image", enough=8).canonical("gradient", augments=True).enough == 8


class TestRefusals:
    def test_unknown_attacks_and_missing_signals(self, telling: tuple[Signals, np.ndarray]) -> None:
        with pytest.raises(ValueError, match="no attack named 'magic'"):
            attack("magic", telling[0], telling)
        with pytest.raises(ValueError, match="not measured: explanation"):
            attack("attribution_l1", replace(telling[0], explanation=None), telling)
        with pytest.raises(ValueError, match="not measured: reference_phi, reference_in"):
            attack("lira_online", Signals(phi=np.zeros(2)), telling)

    @pytest.mark.parametrize("name", [n for n, entry in attacks.ATTACKS.items() if n not in ("gap", "lira_online")])
    def test_a_shadow_with_one_group_teaches_nothing(self, name: str, telling: tuple[Signals, np.ndarray]) -> None:
        with pytest.raises(ValueError, match=r"empty|at least 4 members"):
            attack(name, telling[0], (telling[0], np.ones(800, bool)))

    def test_maps_of_nan_are_counted_in_the_report(self, telling: tuple[Signals, np.ndarray]) -> None:
        target, member = world(400, 5.0, seed=1)
        assert target.explanation is not None
        target.explanation["variance"][:7] = np.nan
        made = attack("attribution_variance", target, telling)
        leaf = metrics.report(made.scores[member], made.scores[~member], made.threshold)
        assert leaf["refused"]["scores"] == "7 of 400 scores are missing and left out"
        assert leaf["members"] + leaf["nonmembers"] == 393
        json.dumps(leaf, allow_nan=False)
