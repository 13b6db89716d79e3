"""What ships is what the code makes: the demo store is whole, small and can be trained again."""

from pathlib import Path

import numpy as np
import pytest

from tier import demo, environment, experiment, presets
from tier.attacks import ATTACKS
from tier.store import Result, Store
from tier.summary import FIGURES, attacks, summarize

SIGNS = presets.get("signs")


@pytest.fixture(scope="module")
def shipped() -> Store:
    return Store(str(demo.ASSETS), read_only=True)


def result(store: Store, stage: str, defense: str, seed: int = 0) -> Result:
    found = experiment.find(store, stage, SIGNS.run(defense, seed))
    assert found is not None, (stage, defense, seed)
    return found


def test_the_demo_store_is_undamaged_and_small(shipped: Store) -> None:
    assert shipped.verify() == []
    files = [path for path in Path(shipped.url).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 40e6


def test_every_demo_result_is_there(shipped: Store) -> None:
    missing = [(label, stage) for label, stage, e in demo.jobs(SIGNS) if experiment.find(shipped, stage, e) is None]
    assert missing == []


def test_every_strength_of_a_rival_has_every_seed_and_ships_its_report_alone() -> None:
    """Of fifty strengths with one seed each the best would be the luckiest; nothing but figures is shown of them."""
    jobs = list(demo.grid(SIGNS))
    for rival in SIGNS.rivals:
        own = [(e.defense.strength, e.train.seed) for _, _, e in jobs if e.defense.name == rival.name]
        assert sorted(own) == sorted((s, seed) for s in SIGNS.strengths[rival.name] for seed in SIGNS.seeds)
    e = next(e for _, _, e in jobs if e.defense.name == "relaxloss")
    assert demo._parts(SIGNS, e, "report", is_headline=False) == ("report",)
    assert demo._parts(SIGNS, e, "report", is_headline=True) == demo.REPORT_PARTS
    assert demo._parts(SIGNS, SIGNS.point("tier_full", 7.0, 0.1), "report", False) == demo.REPORT_PARTS
    assert demo._parts(SIGNS, e, "battery", False) == ("battery",)


def test_the_lesson_is_real(shipped: Store) -> None:
    figures = summarize(shipped, SIGNS)
    assert set(figures) == {defense.name for defense in SIGNS.compared}
    for of in figures.values():
        assert of["seeds"] == [0, 1, 2]
        assert all(of[name] is not None and of["intervals"][name] is not None for name in FIGURES)
    none = figures["none"]
    assert none["train_accuracy"] >= 0.99
    assert 0.55 <= none["test_accuracy"] <= 0.85
    assert none["audit_balanced_accuracy"] >= 0.75
    assert figures["tier_full"]["audit_balanced_accuracy"] < none["audit_balanced_accuracy"]


@pytest.mark.parametrize("defense", ["none", "augmentation", "tier_reg", "tier_full"])
def test_headline_runs_keep_what_pages_need(shipped: Store, defense: str) -> None:
    assert result(shipped, "train", defense).has(experiment.WEIGHTS)
    assert result(shipped, "trajectory", defense).has("samples.parquet")
    assert result(shipped, "audit", defense, seed=2).has("scores.parquet")
    for name in SIGNS.explainers:
        view = SIGNS.run(defense).set({"explain.name": name})
        kept = experiment.find(shipped, "gallery", view, ["gallery.parquet"])
        assert kept is not None
        frame = kept.frame("gallery.parquet", ["index", "member", "morf_9"])
        assert frame["member"].sum() == experiment.GALLERY == len(frame) // 2
        assert experiment.find(shipped, "audit", view, ["scores.parquet"]) is not None


def test_the_second_seed_ships_too(shipped: Store) -> None:
    """So that other explainers' maps of the control, and fidelity of new runs, need no training."""
    assert result(shipped, "train", "none", seed=1).has(experiment.WEIGHTS)


def test_fidelity_ships_for_every_defense_explainer_and_seed(shipped: Store) -> None:
    for _, stage, e in demo.fidelity(SIGNS):
        found = experiment.find(shipped, stage, e, ["scores.parquet"])
        assert found is not None
        assert len(found.frame("scores.parquet")) == 2 * e.fidelity.images


def test_attacks_ship_for_every_defense_and_explainer(shipped: Store) -> None:
    """What `python -m tier attack signs --json` prints, and what the page Attack draws."""
    found = attacks(shipped, SIGNS)
    assert set(found) == {"none", "augmentation", "tier_reg", "tier_full"}
    for defense, of in found.items():
        assert set(of["explainers"]) == set(SIGNS.explainers)
        for view in of["explainers"].values():
            for leaf in ("attack_test", "transfer", "adaptive"):
                assert view[leaf]["interval"][0] <= view[leaf]["balanced_accuracy"] <= view[leaf]["interval"][1]
        assert set(of["battery"]) == set(ATTACKS)
        assert experiment.find(shipped, "attack", SIGNS.run(defense), ["scores.parquet", "contributions.parquet"])
        assert experiment.find(shipped, "battery", SIGNS.run(defense), ["scores.parquet"])
    assert found["none"]["battery"]["agp"]["balanced_accuracy"] > found["none"]["battery"]["gap"]["balanced_accuracy"]


def test_a_shipped_run_can_be_trained_again(shipped: Store, tmp_path: Path) -> None:
    """Bitwise where processor and torch are those of the record, else the first losses and the final figures."""
    known = result(shipped, "train", "none")
    store = Store(str(tmp_path))
    again = experiment.ensure(store, "train", SIGNS.run("none"))
    then, now = known.record["environment"], environment.snapshot()
    losses = [r.frame("events.parquet")["loss"].to_numpy()[:2] for r in (known, again)]
    np.testing.assert_allclose(losses[0][0], losses[1][0], rtol=1e-3)
    if then["cpu_flags"] == now["cpu_flags"] and then["packages"]["torch"] == now["packages"]["torch"]:
        exact = again.arrays(experiment.WEIGHTS)
        for name, array in known.arrays(experiment.WEIGHTS).items():
            assert exact[name].tobytes() == array.tobytes(), name
    else:
        low, high = summarize(shipped, SIGNS)["none"]["intervals"]["test_accuracy"]
        assert low - 0.03 <= again.metrics["test_accuracy"] <= high + 0.03
