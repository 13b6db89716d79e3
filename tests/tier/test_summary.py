"""Fidelity over seeds from stored scores, against loops over the same tables; attacks beside each other; speed."""

import json
import shlex
import time
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests import clock
from tier import experiment
from tier.attacks import ATTACKS
from tier.config import EXPLAINER_SETTINGS, Data, Defense, Experiment, Tier
from tier.fidelity import METRICS
from tier.metrics import report
from tier.presets import Preset
from tier.stats import gap_interval, seed_interval
from tier.store import Store
from tier.summary import (
    GROUPS,
    JUDGED,
    LEAK,
    LEAVES,
    UTILITY,
    as_markdown,
    attack_rows,
    attack_runs,
    attack_sentence,
    attacks,
    battery_rows,
    battery_runs,
    exposed_report,
    fidelity,
    fidelity_rows,
    fidelity_runs,
    markdown,
    overheads,
    part_rows,
    quality,
    quality_rows,
    quality_runs,
    rows,
    seeds_report,
    summarize,
    variant_rows,
    variant_runs,
)
from tier.summary.of_scores import _one_sided

SUFFIX = {"mean": "", "shuffled": "_shuffled", "second_seed": "_second_seed"}
PRESET = Preset(
    name="made",
    title="made up",
    why="tests",
    experiment=Experiment(data=Data(fingerprint="0" * 64)),
    defenses=tuple(Defense(name=n, tier=Tier()) for n in ("none", "augmentation", "tier_reg", "tier_full")),
    explainers=("gradient", "gradcam"),
)


def made_scores(seed: int, n: int = 40, level: float = 0.5) -> pd.DataFrame:
    """A scores.parquet: pairs of maps, a third of them of images that one model gets wrong."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"index": np.arange(n), "member": np.arange(n) < n // 2, "label": rng.integers(8, size=n)})
    frame = frame.assign(correct=np.arange(n) % 3 > 0, agree=True)
    for suffix, shift in (("", 0.0), ("_shuffled", -0.3), ("_second_seed", 0.2)):
        for place, metric in enumerate(METRICS):
            right = 0.1 * frame["correct"]
            frame[f"{metric}{suffix}"] = (level + shift + place + right + rng.normal(0, 0.1, n)).astype(np.float32)
    return frame


def write(store: Store, defense: str, explainer: str, seed: int, scores: pd.DataFrame) -> None:
    e = PRESET.fidelity(defense, seed, explainer)
    store.write("fidelity", experiment.key("fidelity", e), {"scores.parquet": scores}, {"metrics": {}})


def store_with(store: Store, tables: dict[int, pd.DataFrame]) -> dict:
    for seed, scores in tables.items():
        write(store, "tier_full", "gradcam", seed, scores)
    return fidelity(store, PRESET)["tier_full"]["gradcam"]


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(str(tmp_path_factory.mktemp("fidelity") / "store"))


def test_means_and_intervals_against_a_loop(store: Store) -> None:
    tables = {seed: made_scores(seed, level=0.2 * seed) for seed in (0, 1, 2)}
    entry = store_with(store, tables)
    assert entry["seeds"] == [0, 1, 2] and entry["n"] == 120 and entry["refused"] == {}
    for subset, of in (("all", entry), ("correct", entry["correct"])):
        rows = [t if subset == "all" else t[t["correct"]] for t in tables.values()]
        assert of["n"] == sum(len(r) for r in rows)
        for metric in METRICS:
            assert set(of[metric]) == {
                "mean", "interval", "shuffled", "shuffled_interval", "second_seed", "second_seed_interval"
            }  # fmt: skip
            for name, suffix in SUFFIX.items():
                values = [np.array([float(v) for v in r[f"{metric}{suffix}"]]) for r in rows]
                assert of[metric][name] == pytest.approx(sum(v.sum() / len(v) for v in values) / 3)
                low, high = of[metric]["interval" if name == "mean" else f"{name}_interval"]
                slow = seed_interval([{"all": v} for v in values], lambda g: float(g["all"].mean()), 2000, seed=5)
                assert (low, high) == pytest.approx(tuple(slow), abs=0.12 * (slow.high - slow.low))
                assert low < of[metric][name] < high


def test_seeds_count_alike_whatever_their_images(store: Store) -> None:
    entry = store_with(store, {0: made_scores(0, n=10, level=0.0), 1: made_scores(1, n=90, level=1.0)})
    expected = np.mean([made_scores(0, n=10, level=0.0)["mse"].mean(), made_scores(1, n=90, level=1.0)["mse"].mean()])
    assert entry["mse"]["mean"] == pytest.approx(float(expected), rel=1e-5)


def test_missing_and_single_seeds_are_told(store: Store) -> None:
    entry = store_with(store, {1: made_scores(1)})
    assert entry["seeds"] == [1]
    assert entry["refused"]["seeds"] == "not in this store: 0, 2"
    assert "one seed only" in entry["refused"]["intervals over seeds"]
    low, high = entry["ssim"]["interval"]
    assert low < entry["ssim"]["mean"] < high  # over images alone
    assert fidelity(store, PRESET, seeds=[1])["tier_full"]["gradcam"]["refused"].keys() == {"intervals over seeds"}
    assert fidelity(store, PRESET, seeds=[0]) == {}


def test_degenerate_maps_and_other_classes_are_left_out_and_counted(store: Store) -> None:
    tables = {seed: made_scores(seed) for seed in (0, 1, 2)}
    for table in tables.values():
        table.loc[:3, list(METRICS)] = np.nan
        table.loc[:5, [f"{m}_shuffled" for m in METRICS]] = np.nan
        table.loc[2, [f"{m}_second_seed" for m in METRICS]] = np.nan
    own = [f"{m}{s}" for m in METRICS for s in ("", "_shuffled")]
    tables[0].loc[30:, own] = np.nan
    tables[0].loc[30:, "agree"] = False
    entry = store_with(store, tables)
    assert entry["n"] == 120 - 12 - 10
    assert entry["refused"] == {
        "other class": "10 of 120 pairs left out: they explain different classes",
        "degenerate maps": "12 of 120 pairs left out: a map is constant or not finite",
        "degenerate maps.shuffled": "18 of 120 pairs left out: a map is constant or not finite",
        "degenerate maps.second_seed": (
            "3 of 120 pairs left out: a map is constant or not finite, or they explain different classes"
        ),
    }
    left = [table["cosine"].dropna() for table in tables.values()]
    assert entry["cosine"]["mean"] == pytest.approx(float(np.mean([v.mean() for v in left])), rel=1e-5)


def test_nothing_to_compare_is_null_with_its_reason(store: Store) -> None:
    tables = {seed: made_scores(seed).assign(correct=False) for seed in (0, 1, 2)}
    for table in tables.values():
        table[[f"{m}_second_seed" for m in METRICS]] = np.nan
    tables[0][list(METRICS)] = np.nan  # a seed without values, not the whole
    entry = store_with(store, tables)
    text = json.dumps(entry, allow_nan=False)
    assert json.loads(text) == entry
    assert entry["ssim"]["second_seed"] is None and entry["ssim"]["second_seed_interval"] is None
    assert entry["refused"]["ssim.second_seed"] == "no pair of maps can be compared"
    assert entry["ssim"]["mean"] == pytest.approx(np.mean([tables[s]["ssim"].mean() for s in (1, 2)]), rel=1e-5)
    right = entry["correct"]
    assert right["n"] == 0 and right["mse"]["mean"] is None and right["mse"]["interval"] is None
    assert right["refused"]["images"] == "there are none of this kind"
    assert {f"{m}.{name}" for m in METRICS for name in SUFFIX} <= right["refused"].keys()


def test_only_what_was_asked_for(store: Store) -> None:
    for defense in ("tier_reg", "tier_full"):
        for explainer in ("gradient", "gradcam", "lime"):
            write(store, defense, explainer, 0, made_scores(0))
    made = fidelity(store, PRESET)
    assert {name: list(views) for name, views in made.items()} == {
        "tier_reg": ["gradient", "gradcam", "lime"],  # stored, though not among the preset's explainers
        "tier_full": ["gradient", "gradcam", "lime"],
    }
    made = fidelity(store, PRESET, ["tier_full"], ["lime"], [0])
    assert {name: list(views) for name, views in made.items()} == {"tier_full": ["lime"]}
    assert fidelity(store, PRESET, settings={"train.epochs": 7}) == {}


def test_runs_are_those_of_the_preset() -> None:
    runs = list(fidelity_runs(PRESET))
    assert len(runs) == 3 * 2 * 3
    assert {run[:2] for run in runs} == {
        (d, x) for d in ("augmentation", "tier_reg", "tier_full") for x in ("gradient", "gradcam")
    }
    for defense, explainer, seed, e in runs:
        assert e == PRESET.fidelity(defense, seed, explainer)
    (only,) = fidelity_runs(PRESET, ["tier_reg"], ["shap"], [4], {"train.epochs": 7})
    assert only[3].train.epochs == 7 and only[3].train.seed == 4 and only[3].explain.name == "shap"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"defenses": ["none"]}, "'none' is what the others are compared with; choose one of augmentation, tier_reg"),
        ({"defenses": ["dpsgd"]}, "has no defense 'dpsgd'"),
        ({"explainers": ["saliency"]}, "no explainer named 'saliency'; there are gradient, smoothgrad"),
    ],
)
def test_unknown_names_are_refused(store: Store, asked: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fidelity(store, PRESET, **asked)


def test_rows_show_the_score_beside_its_controls(store: Store) -> None:
    for defense in ("tier_reg", "tier_full"):
        for explainer in ("gradient", "gradcam"):
            write(store, defense, explainer, 0, made_scores(0))
    summary = fidelity(store, PRESET)
    header, *body = fidelity_rows(summary)
    assert header == ["explainer", "defense", "metric", "mean", "other image", "other seed", "both right"]
    assert [row[:3] for row in body] == [
        [x, d, m] for x in ("gradient", "gradcam") for d in ("tier_reg", "tier_full") for m in METRICS
    ]
    of, right = (part["ssim"] for part in (summary["tier_reg"]["gradient"], summary["tier_reg"]["gradient"]["correct"]))
    cells = [(of["mean"], of["interval"]), (of["shuffled"], of["shuffled_interval"])]
    cells += [(of["second_seed"], of["second_seed_interval"]), (right["mean"], right["interval"])]
    assert body[0][3:] == [f"{v:.3f} [{low:.3f}, {high:.3f}]" for v, (low, high) in cells]
    assert as_markdown([header, *body]).splitlines()[1] == "| " + " | ".join(["---"] * 7) + " |"
    assert fidelity_rows({}) == [header]


@pytest.mark.timed
def test_all_explainers_take_seconds(store: Store) -> None:
    for defense in ("augmentation", "tier_reg", "tier_full"):
        for explainer in EXPLAINER_SETTINGS:
            for seed in (0, 1, 2):
                write(store, defense, explainer, seed, made_scores(seed, n=1000))
    made: list[dict[str, Any]] = []
    # about 2 s; a loop over resamples and statistics takes minutes
    clock.within(15, lambda: clock.took(lambda: made.append(fidelity(store, PRESET)), time.process_time), tries=2)
    assert [len(views) for views in made[0].values()] == [8, 8, 8]


@lru_cache
def leaf(gap: float, seed: int = 0, n: int = 200) -> dict:
    """The report of scores of which members' lie higher by `gap` standard deviations."""
    rng = np.random.default_rng(seed)
    return report(rng.normal(gap, 1, n), rng.normal(0, 1, n), threshold=gap / 2)


def put_attack(store: Store, defense: str, explainer: str, kind: str, tested: float, target: float) -> dict:
    e = PRESET.run(defense, 0).set({"explain.name": explainer, "attack.shadow": kind})
    metrics = {"attack_test": leaf(tested, 1, 40), "target": leaf(target, 2), "alpha": 0.1, "features_kept": 7}
    store.write("attack", experiment.key("attack", e), {}, {"metrics": metrics})
    return metrics


def put_battery(store: Store, defense: str) -> dict:
    metrics = {name: leaf(i / 5, i) | {"sign": 1} for i, name in enumerate(ATTACKS) if name != "agp"}
    parts = {"vulnerable_decile": {"loss": leaf(1.0, 3, 20)}, "canaries": {}, "queries": 8, "notes": ["a note"]}
    store.write("battery", experiment.key("battery", PRESET.run(defense, 0)), {}, {"metrics": metrics | parts})
    return metrics


class TestAttacks:
    """What is stored of the attacks from outside, beside each other."""

    def test_who_attacked_from_where_stands_where(self, store: Store) -> None:
        transfer = put_attack(store, "tier_full", "gradient", "undefended", 0.5, 0.6)
        adaptive = put_attack(store, "tier_full", "gradient", "same", 0.7, 0.8)
        battery = put_battery(store, "tier_full")
        of = attacks(store, PRESET, ["tier_full"], ["gradient"])["tier_full"]
        entry = of["explainers"]["gradient"]
        assert entry["transfer"] == transfer["target"] and entry["transfer_attack_test"] == transfer["attack_test"]
        assert entry["adaptive"] == adaptive["target"] and entry["attack_test"] == adaptive["attack_test"]
        assert entry["alpha"] == {"transfer": 0.1, "adaptive": 0.1}
        assert entry["features_kept"] == {"transfer": 7, "adaptive": 7}
        assert list(of["battery"]) == list(ATTACKS)
        assert of["battery"]["agp"] == adaptive["target"] | {"sign": 1, "explainer": "gradient"}
        assert all(of["battery"][name] == battery[name] for name in battery)
        assert of["vulnerable_decile"].keys() == {"loss"} and of["canaries"] == {} and of["seed"] == 0
        assert of["refused"].pop("per_class").startswith("the scores of single images are not in this store: agp, gap")
        assert of["refused"].pop("vulnerable_decile.agp").startswith("the scores or the exposure")
        assert of["refused"] == {"intervals over seeds": "one seed only: the intervals resample images alone"}
        assert (entry["operator"], entry["levels"]) == ("road", [step / 10 for step in range(10)])
        assert (of["queries"], of["notes"], of["battery_explainer"], of["seeds"]) == (8, ["a note"], "gradient", [0])
        json.dumps(of, allow_nan=False)

    def test_without_a_defense_both_attackers_are_the_same(self, store: Store) -> None:
        made = put_attack(store, "none", "gradient", "same", 0.5, 0.6)
        entry = attacks(store, PRESET, ["none"], ["gradient"])["none"]["explainers"]["gradient"]
        assert entry["transfer"] == entry["adaptive"] == made["target"]

    def test_the_explainer_of_agp_is_chosen_on_the_shadow(self, store: Store) -> None:
        put_attack(store, "tier_reg", "gradient", "same", 0.1, 3.0)  # the target would say gradient
        chosen = put_attack(store, "tier_reg", "gradcam", "same", 2.0, 0.3)
        put_attack(store, "tier_reg", "lime", "undefended", 5.0, 5.0)  # another attacker's
        of = attacks(store, PRESET, ["tier_reg"], ["gradient", "gradcam", "lime"])["tier_reg"]
        assert of["battery"] == {"agp": chosen["target"] | {"sign": 1, "explainer": "gradcam"}}
        assert attack_sentence(of) is None  # gap is not there

    def test_an_undefined_area_does_not_choose(self, store: Store) -> None:
        e = PRESET.run("none", 0).set({"explain.name": "gradient", "attack.shadow": "same"})
        undefined = {"attack_test": report([], [1.0], 0.0), "target": leaf(1.0)}
        store.write("attack", experiment.key("attack", e), {}, {"metrics": undefined})
        of = attacks(store, PRESET, ["none"], ["gradient"])["none"]
        assert of["battery"] == {} and "battery.agp" in of["refused"]
        json.dumps(of, allow_nan=False)

    def test_what_is_missing_is_named_with_its_command(self, store: Store) -> None:
        put_attack(store, "tier_reg", "gradient", "undefended", 0.5, 0.6)
        made = attacks(store, PRESET, seed=0, extra=["--store", "a b"])
        assert list(made) == ["none", "augmentation", "tier_reg", "tier_full"]
        assert made["none"]["explainers"] == made["none"]["battery"] == {}
        refused = made["tier_reg"]["refused"]
        assert refused.keys() == {
            "gradient.adaptive", "gradcam", "battery", "battery.agp", "intervals over seeds"
        }  # fmt: skip
        what, _, command = refused["gradcam"].partition(": ")
        asked = ["python", "-m", "tier", "attack", "made", "--seed", "0", "--store", "a b", "--defense", "tier_reg"]
        assert what == "not in this store" and shlex.split(command) == [
            *asked,
            "--explainer",
            "gradcam",
            "--no-battery",
        ]
        assert shlex.split(refused["battery"].partition(": ")[2]) == asked
        entry = made["tier_reg"]["explainers"]["gradient"]
        assert entry["adaptive"] is None is entry["attack_test"] and entry["alpha"]["adaptive"] is None
        assert attack_rows(made)[1:] == [
            ["gradient", "tier_reg", name, *(["-"] * 4 if name != "transfer" else attack_rows(made)[2][3:])]
            for name in LEAVES
        ]

    def test_settings_and_seed_are_those_asked_for(self, store: Store) -> None:
        wanted = {"train.epochs": 7, "explain.name": "lime", "attack.shadow": "same"}
        runs = list(attack_runs(PRESET, ["tier_reg"], ["gradcam"], 4, wanted))
        assert [run[:3] for run in runs] == [("tier_reg", "gradcam", "transfer"), ("tier_reg", "gradcam", "adaptive")]
        assert [run[3].attack.shadow for run in runs] == ["undefended", "same"]
        assert all((e.train.epochs, e.train.seed, e.explain.name) == (7, 4, "gradcam") for *_, e in runs)
        ((_, e),) = battery_runs(PRESET, ["tier_reg"], 4, wanted)
        assert e.explain.name == "lime" and e.train.epochs == 7  # as the settings name it
        ((_, e),) = battery_runs(PRESET, ["tier_reg"], 4)
        assert e.explain.name == "gradient"
        (of,) = attacks(store, PRESET, ["tier_reg"], ["gradcam"], 4, wanted).values()
        assert of["seed"] == 4 and "--set=train.epochs=7" in of["refused"]["gradcam"]
        assert "--battery-explainer=lime" in of["refused"]["battery"] and "explain.name" not in of["refused"]["battery"]
        assert of["battery_explainer"] == "lime"
        assert len(list(attack_runs(PRESET))) == 4 * 2 * 2

    @pytest.mark.parametrize(
        ("asked", "message"),
        [
            ({"defenses": ["dpsgd"]}, "has no defense 'dpsgd'"),
            ({"explainers": ["saliency"]}, "no explainer named 'saliency'; there are gradient"),
            ({"settings": {"split.role": "shadow"}}, "leave defense.name, train.seed, split.role alone"),
            ({"settings": {"defense": {"name": "none"}}}, "leave defense.name"),
            ({"settings": {"train.seed": 5}}, "leave defense.name"),
        ],
    )
    def test_what_would_not_be_in_the_table_is_refused(self, store: Store, asked: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            attacks(store, PRESET, **asked)

    def test_rows_show_intervals_and_counts_and_the_battery_is_ranked(self, store: Store) -> None:
        for kind, gap in (("undefended", 1.0), ("same", 2.0)):
            put_attack(store, "augmentation", "gradient", kind, gap, gap)
        put_battery(store, "augmentation")
        made = attacks(store, PRESET, ["augmentation"], ["gradient"])
        of = made["augmentation"]
        row = next(row for row in attack_rows(made) if row[2] == "transfer")
        entry = of["explainers"]["gradient"]["transfer"]
        (low, high), (area_low, area_high) = entry["interval"], entry["auc_interval"]
        counts = entry["counts_at_0.01"]
        assert row[3:] == [
            f"{entry['balanced_accuracy']:.3f} [{low:.3f}, {high:.3f}]",
            f"{entry['balanced_accuracy_calibrated']:.3f}",
            f"{entry['auc']:.3f} [{area_low:.3f}, {area_high:.3f}]",
            f"{entry['tpr_at_0.01']:.3f} ({counts['true_positives']} of 200; false {counts['false_positives']} of 200)",
        ]
        assert attack_rows(made)[1][2] == "attack_test" and attack_rows(made)[1][6] == "-"  # 40 images: refused
        areas = [float(row[3].split()[0]) for row in battery_rows(made)[1:]]
        assert len(areas) == len(ATTACKS) and areas == sorted(areas, reverse=True)
        assert ["augmentation", "agp (gradient)"] in [row[:2] for row in battery_rows(made)]
        rates = {name: round(100 * leaf["balanced_accuracy"]) for name, leaf in of["battery"].items()}
        bounds = "({:.0f} to {:.0f})".format(*(100 * end for end in of["battery"]["agp"]["interval"]))
        assert attack_sentence(of) == (
            f"An attacker who knows the defense and sees explanations (gradient) gets {rates['agp']} of 100 right "
            f"{bounds}; one who does not know it gets {100 * entry['balanced_accuracy']:.0f}; one who only sees "
            f"whether the answer is correct gets {rates['gap']}. Of all attacks rmia gets most right: {rates['rmia']}."
        )
        alone = attacks(store, PRESET, ["augmentation"], ["gradient"], battery=False)["augmentation"]
        assert alone["battery"].keys() == {"agp"} and alone["refused"]["battery"] == "not asked for"

    def test_without_a_defense_there_is_none_to_know(self, store: Store) -> None:
        put_attack(store, "none", "gradient", "undefended", 1.0, 2.5)
        put_battery(store, "none")
        sentence = attack_sentence(attacks(store, PRESET, ["none"], ["gradient"])["none"])
        assert sentence is not None and sentence.startswith("An attacker who sees explanations (gradient) gets ")
        assert "the defense" not in sentence and "not know" not in sentence and "Of all" not in sentence

    @pytest.mark.timed
    def test_all_explainers_and_defenses_take_seconds(self, store: Store) -> None:
        for defense in PRESET.defenses:
            for explainer in EXPLAINER_SETTINGS:
                for kind in ("undefended", "same"):
                    put_attack(store, defense.name, explainer, kind, 1.0, 1.0)
            put_battery(store, defense.name)
        made: list[dict[str, Any]] = []

        def every() -> None:
            made.append(attacks(store, PRESET, explainers=list(EXPLAINER_SETTINGS)))

        clock.within(10, lambda: clock.took(every, time.process_time), tries=2)  # under 1 s: it reads records only
        assert [len(of["explainers"]) for of in made[0].values()] == [8] * 4


def scored(seed: int, gap: float, canaries: int = 0) -> pd.DataFrame:
    """Scores of 400 members and as many non-members, in an order of their own, members' higher by `gap`."""
    rng, n = np.random.default_rng([7, seed]), 800
    member = np.arange(n) < n // 2
    score = rng.normal(size=n) + gap * member
    canary = np.arange(n) % (n // 2) < canaries
    score[canary & member] += 2.0
    label = np.random.default_rng(0).integers(3, size=n)
    frame = pd.DataFrame({"index": np.arange(n), "member": member, "label": label, "score": score, "canary": canary})
    return frame.sample(frac=1, random_state=seed)


def put_scores(store: Store, defense: str, seed: int, gap: float, canaries: int = 0) -> tuple[pd.DataFrame, Any]:
    """Attack and battery of one seed with the scores of single images; the tables of target and battery."""
    table, rest = scored(seed, gap, canaries), scored(seed + 10, gap).head(500)
    sets = {"target": table, "attack_test": rest.sort_values("index").assign(canary=False)}
    if seed:
        sets["attack_test"] = scored(seed + 10, gap).set_index("index").loc[scored(10, gap).head(500)["index"]]
        sets["attack_test"] = sets["attack_test"].reset_index().assign(canary=False)
    told = {name: _leaf_of(t, 0.1 * seed) for name, t in sets.items()} | {"alpha": 0.1 * seed, "features_kept": seed}
    frame = pd.concat([t.assign(set=name) for name, t in sets.items()], ignore_index=True)
    for kind in ("undefended", "same"):
        e = PRESET.run(defense, seed).set({"attack.shadow": kind})
        store.write("attack", experiment.key("attack", e), {"scores.parquet": frame}, {"metrics": told})
    exposure = np.random.default_rng([3, seed]).normal(size=len(table))
    battery = table[["index", "member", "label"]].assign(exposure=exposure)
    told = {"queries": 8, "notes": [f"note {min(seed, 1)}"], "vulnerable_decile": {}, "canaries": {}}
    for place, name in enumerate(name for name in ATTACKS if name != "agp"):
        battery[name] = table["score"] + place
        told[name] = _leaf_of(table.assign(score=battery[name]), place + 0.2) | {"sign": 1}
    e = PRESET.run(defense, seed)
    store.write("battery", experiment.key("battery", e), {"scores.parquet": battery}, {"metrics": told})
    return table, battery


def _leaf_of(table: pd.DataFrame, threshold: float) -> dict:
    member = table["member"].to_numpy(bool)
    return report(table["score"][member], table["score"][~member], threshold)


class TestSingleImages:
    """What is made from the scores of single images: parts of agp, classes, means over seeds."""

    def test_agp_on_the_parts_and_classes_of_all(self, store: Store) -> None:
        table, battery = put_scores(store, "tier_full", 0, 0.5, canaries=100)
        of = attacks(store, PRESET, ["tier_full"], ["gradient"])["tier_full"]
        both = table.merge(battery[["index", "exposure"]], on="index")
        both = both.sort_values("exposure", ascending=False).head(250)
        assert of["vulnerable_decile"]["agp"] == _leaf_of(both.sort_values("index"), 0.0)
        assert of["vulnerable_decile"]["agp"]["tpr_at_0.01"] is not None
        canaries = of["canaries"]["agp"]
        assert canaries == _leaf_of(table[table["canary"]].sort_values("index"), 0.0)
        assert canaries["tpr_at_0.01"] is not None and canaries["auc"] > of["battery"]["agp"]["auc"]
        assert of["per_class"].keys() == set(ATTACKS)
        for name in ("agp", "loss"):
            scores = table.assign(score=table["score"] if name == "agp" else battery["loss"])
            threshold = of["battery"][name]["threshold"]
            assert {row["label"] for row in of["per_class"][name]} == {0, 1, 2}
            for row in of["per_class"][name]:
                part = scores[scores["label"] == row["label"]]
                own = _leaf_of(part, threshold)
                assert row["balanced_accuracy"] == pytest.approx(own["balanced_accuracy"])
                assert (row["members"], row["nonmembers"]) == (own["members"], own["nonmembers"])
                assert row["interval"][0] < row["balanced_accuracy"] < row["interval"][1]
        body = part_rows({"tier_full": of})[1:]
        assert ["tier_full", "most exposed", "agp (gradient)"] in [row[:3] for row in body]
        assert ["tier_full", "canaries", "agp (gradient)"] in [row[:3] for row in body]
        json.dumps(of, allow_nan=False)
        quick = attacks(store, PRESET, ["tier_full"], ["gradient"], parts=False)["tier_full"]
        assert "per_class" not in quick and "agp" not in quick["vulnerable_decile"]

    def test_a_class_of_one_kind_is_named(self, store: Store) -> None:
        put_scores(store, "none", 0, 0.5)
        result = experiment.find(store, "battery", PRESET.run("none", 0))
        assert result is not None
        frame = result.frame("scores.parquet")
        frame.loc[frame["label"].eq(1), "member"] = True
        assert _one_sided([frame]) == {"per_class.classes": "only members or only non-members: 1"}
        assert _one_sided([]) == {}

    def test_several_seeds_give_means_over_the_same_images(self, store: Store) -> None:
        made = [put_scores(store, "tier_full", seed, 0.4 + 0.2 * seed, canaries=100) for seed in (0, 1, 2)]
        of = attacks(store, PRESET, ["tier_full"], ["gradient"], seed=(0, 1, 2))["tier_full"]
        assert of["seeds"] == [0, 1, 2] and of["refused"] == {} and of["notes"] == ["note 0", "note 1"]
        tables = [table.sort_values("index") for table, _ in made]
        batteries = [battery.sort_values("index") for _, battery in made]
        whole = of["explainers"]["gradient"]["adaptive"]
        assert whole["auc"] == pytest.approx(np.mean([_leaf_of(t, 0.0)["auc"] for t in tables]))
        assert (whole["members"], whole["seeds"]) == (400, 3)
        assert of["battery"]["agp"] == whole | {"sign": 1, "explainer": "gradient"}
        rest = of["explainers"]["gradient"]["attack_test"]
        assert rest["seeds"] == 3 and rest["members"] + rest["nonmembers"] == 500
        assert of["explainers"]["gradient"]["alpha"]["adaptive"] == [0.0, 0.1, 0.2]
        accuracy = [_leaf_of(t.assign(score=b["rmia"]), 0.2 + 10)["balanced_accuracy"]
                    for t, b in zip(tables, batteries, strict=True)]  # fmt: skip
        assert of["battery"]["rmia"]["balanced_accuracy"] == pytest.approx(np.mean(accuracy))
        exposure = np.mean([b["exposure"].to_numpy() for b in batteries], axis=0)
        chosen = np.argsort(-exposure)[:250]
        areas = [_leaf_of(t.iloc[chosen], 0.0)["auc"] for t in tables]
        for name in ATTACKS:
            assert of["vulnerable_decile"][name]["auc"] == pytest.approx(np.mean(areas)), name
            assert (of["canaries"][name]["members"], of["canaries"][name]["nonmembers"]) == (100, 100)
        rows = {row["label"]: row for row in of["per_class"]["agp"]}
        for label, row in rows.items():
            parts = [_leaf_of(t[t["label"] == label], 0.1 * s) for s, t in enumerate(tables)]
            assert row["balanced_accuracy"] == pytest.approx(np.mean([p["balanced_accuracy"] for p in parts]))
            rates = row["true_positives"] / row["members"], row["false_positives"] / row["nonmembers"]
            assert row["interval"] == list(gap_interval(*rates, row["members"], row["nonmembers"]))
        json.dumps(of, allow_nan=False)

    def test_seeds_that_are_not_stored_are_told(self, store: Store) -> None:
        put_scores(store, "tier_reg", 1, 0.5)
        of = attacks(store, PRESET, ["tier_reg"], ["gradient"], seed=[0, 1])["tier_reg"]
        assert of["refused"].keys() == {"gradient.transfer.seeds", "gradient.adaptive.seeds", "battery.seeds"}
        assert of["refused"]["battery.seeds"].startswith("not in this store: seed 0: python -m tier attack made")
        alone = attacks(store, PRESET, ["tier_reg"], ["gradient"], seed=1)["tier_reg"]
        assert of["battery"] == alone["battery"] and of["per_class"] == alone["per_class"]

    def test_other_images_are_refused(self) -> None:
        tables = [scored(0, 0.5).sort_values("index"), scored(1, 0.5).sort_values("index").assign(index=range(1, 801))]
        with pytest.raises(ValueError, match="the seeds have different images"):
            seeds_report(tables, [0.0, 0.0])

    def test_exposure_that_is_unknown_ranks_nothing(self) -> None:
        table = scored(0, 0.5)
        assert exposed_report([table], [0.0], [table.assign(exposure=np.nan)]) is None


class TestVariants:
    """The attack with operators and levels that no defense has trained on."""

    def test_are_an_operator_and_levels_each(self) -> None:
        runs = list(variant_runs(PRESET, ["tier_full"], 1, {"attack.tuning": 99}))
        assert [run[:3] for run in runs] == [
            ("tier_full", name, who)
            for name in ("standard", "road_between", "mean", "blur")
            for who in ("transfer", "adaptive")
        ]
        usual = tuple(step / 10 for step in range(10))
        between = (0.0, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)
        expected = {"standard": ("road", usual), "road_between": ("road", between), "mean": ("mean", usual),
                    "blur": ("blur", usual)}  # fmt: skip
        for _, name, who, e in runs:
            assert (e.attack.trajectory.operator, e.attack.trajectory.levels) == expected[name]
            assert e.attack.shadow == {"transfer": "undefended", "adaptive": "same"}[who]
            assert (e.explain.name, e.train.seed, e.attack.tuning) == ("gradient", 1, 99)
        trained = set(PRESET.defense("tier_full").tier.levels)
        assert not trained & set(between) and trained & set(usual)

    def test_are_shown_and_what_is_missing_is_named(self, store: Store) -> None:
        e = PRESET.run("tier_full", 0).set({"attack.trajectory.operator": "blur", "attack.shadow": "same"})
        told = {"attack_test": leaf(0.5, 1, 40), "target": leaf(0.8, 2), "alpha": 0.0, "features_kept": 3}
        store.write("attack", experiment.key("attack", e), {}, {"metrics": told})
        of = attacks(store, PRESET, ["tier_full"], variants=True)["tier_full"]
        assert list(of["variants"]) == ["blur"] and of["variants"]["blur"]["transfer"] is None
        assert of["variants"]["blur"]["adaptive"] == told["target"]
        assert (of["variants"]["blur"]["operator"], of["variants"]["blur"]["explainer"]) == ("blur", "gradient")
        assert "variants.blur.adaptive" not in of["refused"] and "variants.mean.adaptive" in of["refused"]
        assert of["refused"]["variants.blur.transfer"].endswith("--explainer gradient --no-battery --variants")
        header, *body = variant_rows({"tier_full": of})
        assert header[:5] == ["variant", "operator", "levels", "defense", "attack"]
        assert body[1][:5] == ["blur", "blur", "0, 10, 20, 30, 40, 50, 60, 70, 80, 90 %", "tier_full", "adaptive"]
        assert body[0][5:] == ["-"] * 4 and body[1][5].startswith(f"{told['target']['balanced_accuracy']:.3f} [")
        assert "variants" not in attacks(store, PRESET, ["tier_full"])["tier_full"]
        assert variant_rows({"x": {}}) == [header]


RIVALS = PRESET.model_copy(
    update={"rivals": (Defense(name="dpsgd_eps100"), Defense(name="early_stopping")), "seeds": (0, 1, 2)}
)
MEASURED = {
    "train_accuracy": 0.9, "test_accuracy": 0.6, "test_top5": 0.8, "test_loss": 1.5, "audit_balanced_accuracy": 0.7,
    "audit_auc": 0.75, "gap_balanced_accuracy": 0.65, "loss_auc": 0.72,
}  # fmt: skip


def put_report(
    store: Store, name: str, seed: int, seconds: float, device: str = "cpu", told: dict[str, Any] | None = None
) -> None:
    """A run's report, and what it was trained on."""
    e = RIVALS.run(name, seed)
    store.write("train", experiment.key("train", e), {}, {"metrics": {}, "device": device})
    metrics = MEASURED | {"seconds_per_epoch": seconds} | ({"defense": told} if told else {})
    store.write("report", experiment.key("report", e), {}, {"metrics": metrics})


class TestSummarize:
    """Every defense of a preset in figures: what it costs, and the worst that is known of its leak."""

    def test_rivals_are_among_them_in_the_preset_s_order(self, store: Store) -> None:
        for name in ("early_stopping", "none", "dpsgd_eps100"):
            put_report(store, name, 0, 1.0)
        made = summarize(store, RIVALS)
        assert list(made) == ["none", "dpsgd_eps100", "early_stopping"]
        assert list(summarize(store, RIVALS, defenses=["early_stopping", "none"])) == ["early_stopping", "none"]
        assert made["none"]["refused"]["seeds"] == "not in this store: 1, 2"
        json.dumps(made, allow_nan=False)
        with pytest.raises(ValueError, match="has no defense 'memguard'"):
            summarize(store, RIVALS, defenses=["memguard"])

    def test_overhead_is_the_mean_of_ratios_within_seeds(self, store: Store) -> None:
        plain, own = (0.2, 0.4, 0.5), (0.3, 0.8, 1.5)  # 1.5, 2 and 3 times as long
        for seed in (0, 1, 2):
            put_report(store, "none", seed, plain[seed])
            put_report(store, "dpsgd_eps100", seed, own[seed])
        made = summarize(store, RIVALS)
        assert made["none"]["overhead"] == 1 and made["none"]["intervals"]["overhead"] == [1, 1]
        of = made["dpsgd_eps100"]
        assert of["overhead"] == pytest.approx((1.5 + 2 + 3) / 3)
        assert of["seconds_per_epoch"] == pytest.approx(sum(own) / 3)
        low, high = of["intervals"]["overhead"]
        assert 1.5 <= low < of["overhead"] < high <= 3
        assert not {"overhead", "intervals.overhead"} & of["refused"].keys()
        alone = summarize(store, RIVALS, defenses=["dpsgd_eps100"], seeds=[1])["dpsgd_eps100"]
        assert alone["overhead"] == pytest.approx(2) and alone["intervals"]["overhead"] is None
        assert alone["refused"]["intervals.overhead"] == "one seed only"

    def test_overhead_takes_the_seeds_that_both_have(self, store: Store) -> None:
        put_report(store, "none", 1, 0.5)
        for seed, seconds in ((0, 9.0), (1, 1.0)):
            put_report(store, "tier_full", seed, seconds)
        of = summarize(store, RIVALS)["tier_full"]
        assert of["seeds"] == [0, 1] and of["overhead"] == pytest.approx(2)

    def test_no_overhead_without_the_undefended_run_or_on_another_machine(self, store: Store) -> None:
        put_report(store, "tier_full", 0, 1.0)
        of = summarize(store, RIVALS)["tier_full"]
        assert of["overhead"] is None is of["intervals"]["overhead"]
        assert of["refused"]["overhead"] == "no undefended run of seed 0 is in this store"
        put_report(store, "none", 0, 0.5, device="cuda")
        of = summarize(store, RIVALS)["tier_full"]
        assert of["overhead"] is None and "different machines" in of["refused"]["overhead"]

    def test_memguard_has_no_training_time_of_its_own(self, store: Store) -> None:
        """The seconds stored with it are copied from a plain run, perhaps of another day: their ratio is noise."""
        preset = RIVALS.model_copy(update={"rivals": (Defense(name="memguard"),)})
        for name, seconds in (("none", 0.5), ("memguard", 0.7)):
            for seed in (0, 1):
                e, figures = preset.run(name, seed), MEASURED | {"seconds_per_epoch": seconds + seed}
                store.write("train", experiment.key("train", e), {}, {"metrics": {}, "device": "cpu"})
                store.write("report", experiment.key("report", e), {}, {"metrics": figures})
        of = summarize(store, preset)["memguard"]
        assert of["overhead"] == 1 and of["intervals"]["overhead"] == [1, 1]
        assert "by construction" in of["refused"]["overhead of the guard"]
        row = overheads(store, preset)["memguard"]
        assert (row["value"], row["seeds"]) == (1, 2) and "by construction" in row["note"]
        assert "note" not in overheads(store, preset)["none"]

    def test_the_best_attack_is_that_of_the_highest_area(self, store: Store) -> None:
        put_report(store, "tier_full", 0, 1.0)
        battery = put_battery(store, "tier_full")
        agp = put_attack(store, "tier_full", "gradient", "same", 0.5, 0.1)["target"]
        of = summarize(store, RIVALS)["tier_full"]
        areas = {name: leaf["auc"] for name, leaf in battery.items() if "auc" in leaf} | {"agp": agp["auc"]}
        best = of["battery"]
        assert best["attack"] == sorted(areas, key=lambda name: areas[name])[-1] != "agp"
        assert set(best["attacks"]) == set(ATTACKS) and best["seed"] == 0
        assert {"balanced_accuracy", "interval", "auc", "auc_interval", "tpr_at_0.01"} <= best.keys()
        assert best["balanced_accuracy"] == battery[best["attack"]]["balanced_accuracy"]
        assert not [name for name in of["refused"] if name.startswith("battery")]

    def test_the_attack_on_explanations_can_be_the_best(self, store: Store) -> None:
        put_report(store, "tier_full", 0, 1.0)
        put_battery(store, "tier_full")
        agp = put_attack(store, "tier_full", "gradcam", "same", 0.5, 5.0)["target"]
        best = summarize(store, RIVALS)["tier_full"]["battery"]
        assert (best["attack"], best["explainer"], best["auc"]) == ("agp", "gradcam", agp["auc"])
        assert rows({"x": summarize(store, RIVALS)["tier_full"]})[1][-1].startswith("agp (gradcam): 0.9")

    def test_what_is_not_stored_of_the_attacks_is_told(self, store: Store) -> None:
        for seed in (0, 1):
            put_report(store, "tier_full", seed, 1.0)
        of = summarize(store, RIVALS)["tier_full"]
        assert of["battery"] is None
        assert of["refused"]["battery"] == (
            "not in this store: python -m tier attack made --seed 0 --defense tier_full"
        )
        put_attack(store, "tier_full", "gradient", "same", 0.5, 0.6)
        of = summarize(store, RIVALS)["tier_full"]
        assert of["battery"]["attacks"] == ["agp"] and "--defense tier_full" in of["refused"]["battery.others"]
        assert "battery" not in of["refused"]
        of = summarize(store, RIVALS, seeds=[1])["tier_full"]
        assert of["battery"] is None and "--seed 1" in of["refused"]["battery"]

    def test_settings_of_no_target_have_no_attack(self, store: Store) -> None:
        e = RIVALS.run("none", 0).set({"split.role": "shadow"})
        store.write("report", experiment.key("report", e), {}, {"metrics": MEASURED | {"seconds_per_epoch": 1.0}})
        of = summarize(store, RIVALS, {"split.role": "shadow"})["none"]
        assert of["battery"] is None and "the attack is on the preset's targets" in of["refused"]["battery"]

    def test_private_training_tells_what_it_guarantees(self, store: Store) -> None:
        put_report(store, "none", 0, 1.0)
        put_report(store, "dpsgd_eps100", 0, 2.0, told={"epsilon": 99.0, "delta": 1e-5, "steps": 30})
        put_report(store, "dpsgd_eps100", 1, 2.0, told={"epsilon": 97.0, "delta": 1e-5, "steps": 30})
        put_report(store, "early_stopping", 0, 2.0, told={"delta": 1e-5})
        made = summarize(store, RIVALS)
        assert made["dpsgd_eps100"]["epsilon"] == 98 and made["dpsgd_eps100"]["delta"] == pytest.approx(1e-5)
        assert not {"epsilon", "delta"} & made["none"].keys()
        unlimited = made["early_stopping"]
        assert unlimited["epsilon"] is None and unlimited["refused"]["epsilon"] == "without noise nothing is guaranteed"

    def test_rows_have_a_line_for_each_defense(self, store: Store) -> None:
        for seed in (0, 1):
            put_report(store, "none", seed, 0.5)
            put_report(store, "tier_full", seed, 0.6)
        put_battery(store, "tier_full")
        made = summarize(store, RIVALS)
        header, *body = rows(made)
        assert header == ["defense", *UTILITY, *LEAK] and [row[0] for row in body] == ["none", "tier_full"]
        cells = dict(zip(header, body[1], strict=True))
        assert cells["test accuracy"] == "0.600" and cells["seeds"] == "0, 1"
        assert cells["seconds per epoch (over plain)"] == "0.600 (1.20 x)"
        best = made["tier_full"]["battery"]
        low, high = best["interval"]
        assert cells["best attack"] == f"{best['attack']}: {best['balanced_accuracy']:.3f} [{low:.3f}, {high:.3f}]"
        assert dict(zip(header, body[0], strict=True))["best attack"] == "-"
        assert rows(made, LEAK)[0] == ["defense", *LEAK]
        assert markdown(made).count("\n") == 3
        assert rows({}) == [header]


# ---- quality of maps


def judged_scores(seed: int, n: int = 30, masked: bool = True) -> pd.DataFrame:
    """A scores.parquet of the stage `quality`: every fifth score, and noise under sufficiency, undefined."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"index": np.arange(n), "member": np.arange(n) < n // 2, "label": 0, "correct": True})
    for place, metric in enumerate(JUDGED):
        for suffix in ("", "_random", "_edges"):
            if masked or metric.startswith(("faith", "suff")):
                values = rng.normal(place + seed, 0.1, n)
                values[::5] = np.nan
                frame[metric + suffix] = values.astype(np.float32)
    return frame.assign(sufficiency_random=np.float32(np.nan))


DEALT = {"over": 0.1, "low": -0.1, "high": 0.1, "above": 0.03, "below": 0.98}


def store_judged(store: Store, defense: str, seed: int, scores: pd.DataFrame, **refused: str) -> None:
    e = PRESET.run(defense, seed).set({"explain.name": "gradcam"})
    metrics = {"refused": refused, "sweeps": {"map": {"threshold": [0.6]}}, "chance": 0.1, "notes": [f"note {seed}"]}
    metrics |= {"images": len(scores), "permutation": dict.fromkeys(("all", *GROUPS), DEALT)}
    store.write("quality", experiment.key("quality", e), {"scores.parquet": scores}, {"metrics": metrics})


def test_quality_against_a_loop(store: Store) -> None:
    tables = {seed: judged_scores(seed) for seed in (0, 1)}
    for seed, scores in tables.items():
        store_judged(store, "none", seed, scores)
    made = quality(store, PRESET, seeds=[0, 1])
    assert set(made) == {"none"} and set(made["none"]) == {"gradcam"}
    entry = made["none"]["gradcam"]
    assert entry["seeds"] == [0, 1] and entry["images"] == 60 and entry["chance"] == 0.1
    assert entry["notes"] == {"0": ["note 0"], "1": ["note 1"]}
    assert entry["settings"] == {"threshold": 0.6, "distance": "seuclidean"}
    assert entry["permutation"]["1"]["members"] == DEALT
    assert entry["refused"].pop("change") == "it is the undefended model"
    made_of_seeds = [t.set_index("index") for t in tables.values()]
    for group, of in {None: entry, True: entry["members"], False: entry["nonmembers"]}.items():
        rows_of = [t if group is None else t[t["member"] == group] for t in tables.values()]
        assert of["refused"] == {"sufficiency.random": "not defined for any of these images"}
        for metric in JUDGED:
            names = ["random", "edges", "change", "other_seed", *(["gap"] if group is None else [])]
            assert set(of[metric]) == {"mean", "interval", "n", "change_n", *names, *(f"{n}_interval" for n in names)}
            assert of[metric]["change"] is None and of[metric]["change_n"] == 0
            if metric != "sufficiency":  # which is compared by its lead over chance, of which there is none here
                moved = made_of_seeds[1][metric] - made_of_seeds[0][metric]
                moved = moved if group is None else moved[made_of_seeds[0]["member"] == group]
                assert of[metric]["other_seed"] == pytest.approx(moved.mean(), rel=1e-4)
            assert of[metric]["n"] == sum(len(t) for t in rows_of) * 4 // 5
            for name, suffix in {"mean": "", "random": "_random", "edges": "_edges"}.items():
                bounds = of[metric]["interval" if name == "mean" else f"{name}_interval"]
                if (metric, name) == ("sufficiency", "random"):
                    assert of[metric][name] is bounds is None
                    continue
                expected = np.mean([[v for v in t[metric + suffix] if v == v] for t in rows_of], axis=1).mean()
                assert of[metric][name] == pytest.approx(float(expected), rel=1e-5)
                assert bounds[0] < of[metric][name] < bounds[1]
    json.dumps(made, allow_nan=False)
    header, *body = quality_rows(made)
    assert header[:9] == ["explainer", "defense", "metric", "mean", "random", "edges", "members", "non-members", "n"]
    assert header[9:] == ["change", "other seed"]
    assert [row[2] for row in body] == list(JUDGED) and body[2][4] == "-" and body[0][8] == "48"


def test_quality_without_masks_and_without_a_seed_says_so(store: Store) -> None:
    without = [name for name in JUDGED if not name.startswith(("faith", "suff"))]
    store_judged(store, "tier_full", 0, judged_scores(0, masked=False), **dict.fromkeys(without, "no masks"))
    entry = quality(store, PRESET, ["tier_full"], ["gradcam"], [0, 7])["tier_full"]["gradcam"]
    assert entry["pointing_game"]["mean"] is entry["pointing_game"]["interval"] is None
    assert entry["pointing_game"]["n"] == 0 and entry["mask_mass_positive"]["edges"] is None
    for group in (entry, entry["members"], entry["nonmembers"]):
        refused = group["refused"]
        told = {refused[f"{name}{of}"] for name in without for of in ("", ".random", ".edges")}
        assert told == {"no masks"} and len(without) == 5
    assert entry["refused"]["change"] == "the undefended model's scores are not stored"
    assert "other_seed" in entry["refused"]
    assert entry["refused"]["seeds"] == "not in this store: 7" and "intervals over seeds" in entry["refused"]
    assert entry["faithfulness_correlation"]["n"] == 24
    assert quality(store, PRESET, ["none"]) == {}


def test_changes_are_against_the_undefended_model_on_the_same_images(store: Store) -> None:
    """The defended model is 0.5 higher on each image, other images of either count nowhere, and members gain more."""
    bare = judged_scores(0)
    after = bare.copy()
    after[list(JUDGED)] += 0.5 + 0.2 * after["member"].to_numpy()[:, None]
    after = after.drop(index=[1]).sample(frac=1, random_state=0)
    store_judged(store, "none", 0, bare)
    store_judged(store, "tier_full", 0, after)
    store_judged(store, "none", 1, judged_scores(1))
    of = quality(store, PRESET, ["tier_full"], ["gradcam"])["tier_full"]["gradcam"]
    pairs = 23  # of 30 images 6 have no score, and one is not in both
    for metric in JUDGED:
        if metric == "sufficiency":
            continue
        assert of[metric]["change"] == pytest.approx((0.7 * 11 + 0.5 * 12) / pairs, abs=1e-5)
        assert of[metric]["change_n"] == pairs and of["members"][metric]["change_n"] == 11
        assert of["members"][metric]["change"] == pytest.approx(0.7, abs=1e-5)
        low, high = of["members"][metric]["change_interval"]
        assert high - low < 1e-5
        assert of[metric]["other_seed"] == pytest.approx(1.0, abs=0.1)
        assert of[metric]["gap"] == pytest.approx(of["members"][metric]["mean"] - of["nonmembers"][metric]["mean"])
    assert not {"change", "other_seed"} & set(of["refused"])


def test_the_gap_of_members_has_the_interval_of_two_groups(store: Store) -> None:
    scores = judged_scores(0, 400)
    store_judged(store, "none", 0, scores)
    of = quality(store, PRESET, ["none"], ["gradcam"])["none"]["gradcam"]["mask_mass"]
    rng, values = np.random.default_rng(0), scores["mask_mass"].to_numpy()
    groups = [values[rows][~np.isnan(values[rows])] for rows in (scores["member"], ~scores["member"])]
    drawn = [np.subtract(*(g[rng.integers(len(g), size=len(g))].mean() for g in groups)) for _ in range(4000)]
    np.testing.assert_allclose(of["gap_interval"], np.quantile(drawn, [0.025, 0.975]), atol=0.003)
    assert np.ptp(of["gap_interval"]) == pytest.approx(4 * 0.1 * np.sqrt(2 / 160), rel=0.15)


def test_quality_runs_are_every_defense_and_explainer_of_the_first_seed() -> None:
    runs = list(quality_runs(PRESET))
    assert [(d, x, s) for d, x, s, _ in runs] == [
        (d.name, x, 0) for d in PRESET.defenses for x in PRESET.explainers
    ]  # fmt: skip
    (only,) = quality_runs(PRESET, ["none"], ["lime"], [4], {"quality.runs": 7})
    assert (only[3].explain.name, only[3].train.seed, only[3].quality.runs) == ("lime", 4, 7)
    with pytest.raises(ValueError, match="no explainer named 'saliency'"):
        list(quality_runs(PRESET, explainers=["saliency"]))
