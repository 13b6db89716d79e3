"""Tables restate results without changing a number, and choose rivals by the rule they state."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest
from scipy.stats import t as student

from tier import metrics as merits
from tier import stats, tables
from tier.config import DEFENSE_SETTINGS, Defense, Experiment, Tier, Train


def experiment(name: str = "none", lam: float = 7.0, beta: float = 0.3, seed: int = 0) -> Experiment:
    tier = Tier(**{"lambda": lam, "beta": beta})
    return Experiment(defense=Defense(name=name, tier=tier), train=Train(seed=seed, epochs=30))  # type: ignore[arg-type]


def metrics(
    test: float = 0.6, leak: float = 0.8, width: float = 0.02, gap: float = 0.52, holdout: float = 0.7
) -> dict[str, Any]:
    """A report in which the cross-fitted audit finds `leak`, the audit of the paper `holdout`."""
    return {
        "train_accuracy": test + 2 * gap - 1, "test_accuracy": test, "gap_balanced_accuracy": gap,
        "crossfit_balanced_accuracy": leak, "crossfit_balanced_accuracy_low": leak - width,
        "crossfit_balanced_accuracy_high": leak + width, "crossfit_auc": leak + 0.05,
        "audit_balanced_accuracy": holdout, "audit_auc": 0.71, "audit_balanced_accuracy_low": holdout - 0.05,
        "audit_balanced_accuracy_high": holdout + 0.05, "features": ["morf_0", "lerf_3"], "loss_auc": 0.75,
        "seconds_per_epoch": 1.0, "epochs": 30, "members": 1000, "nonmembers": 1000,
    }  # fmt: skip


def frame() -> pd.DataFrame:
    rows = [
        tables.run("a", experiment(), metrics(0.60, 0.90)),
        tables.run("b", experiment(seed=1), metrics(0.62, 0.88)),
        tables.run("c", experiment("tier_full"), metrics(0.50, 0.60)),
        tables.run("d", experiment("tier_full", 9.0, 0.1), metrics(0.40, 0.55)),
    ]
    return tables.runs(rows, headline=["a", "b", "c"])


def test_a_run_is_named_by_what_it_computes() -> None:
    row = tables.run("k", experiment("tier_full", lam=0.0), metrics())
    assert row["model"] == "augmentation"
    assert np.isnan(row["lambda"])
    assert tables.describe(row) == "Augmentation, 30 epochs, seed 0"
    row = tables.run("k", experiment("tier_reg", lam=3.0, beta=0.5, seed=2), metrics())
    assert tables.describe(row) == "TIER Reg-only, lambda 3, beta 0.5, 30 epochs, seed 2"


def test_a_rivals_run_is_named_by_its_strength_and_tells_its_guarantee() -> None:
    told = metrics() | {"defense": {"epsilon": 321.0, "delta": 1e-5, "noise_multiplier": 0.3}}
    row = tables.run("k", experiment("dpsgd_eps100"), told)
    assert tables.describe(row) == "DP-SGD, paper, epsilon 100, 30 epochs, seed 0"
    assert (row["strength"], row["epsilon"], row["delta"]) == (100.0, 321.0, 1e-5)
    one = experiment("relaxloss").set({"defense.relaxloss.alpha": 0.0})
    assert tables.run("k", one, metrics())["model"] == "none"  # off is plain training
    row = tables.run("k", experiment("early_stopping"), metrics() | {"epochs": 12})
    assert tables.describe(row) == "Early stopping, 12 epochs, seed 0"
    assert set(tables.NAMES) == set(DEFENSE_SETTINGS) | {"none", "augmentation"}


def test_runs_of_one_name_are_told_apart_by_their_keys() -> None:
    other = experiment("dpsgd_eps100").set({"defense.dpsgd.clip": 0.1})
    made = tables.runs([tables.run(key, one, metrics()) for key, one in
                        (("1" * 64, experiment("dpsgd_eps100")), ("2" * 64, other))])  # fmt: skip
    assert made["text"].is_unique
    assert made["setting"].is_unique
    assert made["text"][0].endswith("seed 0 (11111111)")


def test_the_interval_of_the_test_accuracy_is_wilsons() -> None:
    row = tables.run("k", experiment(), metrics(0.61) | {"nonmembers": 400})
    wanted = binomtest(244, 400).proportion_ci(method="wilson")
    assert (row["test_low"], row["test_high"]) == pytest.approx((wanted.low, wanted.high), abs=1e-6)
    assert np.isnan(stats.share_interval(0.5, 0)).all()


def test_runs_keep_one_row_per_key_and_mark_the_headline() -> None:
    twice = tables.runs([tables.run("a", experiment(), metrics())] * 2, headline=["a"])
    assert len(twice) == 1
    assert twice["headline"].all()
    assert tables.runs([]).empty


def plane() -> pd.DataFrame:
    """Two seeds undefended, TIER over lambda and beta, RelaxLoss at three strengths."""
    rows = [
        tables.run("n0", experiment(), metrics(0.60, 0.90)),
        tables.run("n1", experiment(seed=1), metrics(0.62, 0.80)),
        tables.run("a0", experiment("augmentation"), metrics(0.64, 0.66)),
        *(tables.run(f"t{lam}", experiment("tier_full", lam), metrics(0.64 - lam / 50, 0.65 - lam / 100))
          for lam in (9.0, 3.0, 7.0)),
        *(tables.run(f"b{beta}", experiment("tier_full", 7.0, beta), metrics(0.5 - beta / 10, 0.58))
          for beta in (0.1, 0.5)),
        *(tables.run(f"r{alpha}", experiment("relaxloss").set({"defense.relaxloss.alpha": alpha}),
                     metrics(0.63 - alpha / 10, 0.8 - alpha / 5, width=0.03)) for alpha in (1.0, 0.25, 0.5)),
    ]  # fmt: skip
    return tables.runs(rows, headline=["n0", "n1", "a0", "t7.0", "r1.0"])


def test_trails_follow_lambda_beta_and_every_strength_in_order() -> None:
    made = tables.trails(plane(), {"tier_full": (7.0, 0.3)}, seed=0)
    parts = {str(name): part for name, part in made.groupby("trail", sort=False)}
    assert list(parts) == [
        "TIER Full over lambda, beta 0.3", "TIER Full over beta, lambda 7", "RelaxLoss over alpha"
    ]  # fmt: skip
    first = parts["TIER Full over lambda, beta 0.3"]
    assert list(first["at"]) == [0.0, 3.0, 7.0, 9.0]
    assert first["test_accuracy"].iloc[0] == 0.64  # lambda 0 is augmentation alone
    assert list(parts["TIER Full over beta, lambda 7"]["at"]) == [0.1, 0.3, 0.5]
    assert list(parts["RelaxLoss over alpha"]["test_accuracy"]) == pytest.approx([0.605, 0.58, 0.53])
    assert tables.trails(plane(), {"tier_full": (7.0, 0.3)}, seed=1).empty
    assert tables.trails(tables.runs([]), {}, seed=0).empty


def test_a_trail_is_of_runs_that_differ_in_what_varies_alone() -> None:
    usual = experiment("relaxloss")
    other: dict[str, dict[str, Any]] = {
        "r9": {"defense.relaxloss.flattens": "all"}, "r8": {"train.epochs": 60}, "r7": {"defense.relaxloss.alpha": 2.0}
    }  # fmt: skip
    rows = [tables.run("r", usual, metrics(0.5, 0.6))]
    rows += [tables.run(key, usual.set({"defense.relaxloss.alpha": 1.5, **change}), metrics(0.4, 0.7))
             for key, change in other.items()]  # fmt: skip
    made = tables.trails(tables.runs(rows, headline=["r"]), {}, seed=0)
    assert list(made["at"]) == [1.0, 2.0]
    texts = tables.options(tables.runs(rows, headline=["r"]), tables.paths([]))["setting_text"]
    assert set(texts) == {"alpha 1", "alpha 2", "alpha 1.5, flattens all", "alpha 1.5, epochs 60"}


def test_distillation_with_one_part_is_no_point_on_the_way_of_the_other() -> None:
    parts = [experiment("distillation").set({"defense.distillation.parts": count}) for count in (1, 2, 4)]
    rows = [tables.run(str(i), one, metrics(0.5, 0.6)) for i, one in enumerate(parts)]
    runs = tables.runs(rows, headline=["2"])
    assert list(tables.trails(runs, {}, seed=0)["at"]) == [2.0, 4.0]
    named = tables.options(runs, tables.paths([]))["setting_text"]
    assert set(named) == {"parts 1 (another method)", "parts 2", "parts 4"}


def seeds_of(name: str, leaks: list[float], accuracy: float = 0.6, settings: Any = None) -> list[dict[str, Any]]:
    """One setting's runs, a seed for each leak; `settings` are further ones of its defense."""
    one = experiment(name).set({f"defense.{field}": value for field, value in (settings or {}).items()})
    return [
        tables.run(f"{name} {settings} {seed}", one.set({"train.seed": seed}), metrics(accuracy, leak))
        for seed, leak in enumerate(leaks)
    ]


def test_options_are_means_over_seeds() -> None:
    made = tables.options(plane(), stopped())
    bare = made[made["defense"] == "none"].iloc[0]
    assert (bare["seeds"], bare["test_accuracy"], bare["leak"]) == (2, pytest.approx(0.61), pytest.approx(0.85))
    assert bare["text"] == "Undefended, mean of 2 seeds" and bare["headline"]
    assert len(made[made["defense"] == "tier_full"]) == 5
    early = made[made["defense"] == "early_stopping"]
    assert early["setting_text"].tolist() == ["after epoch 2", "after epoch 3"]  # the last checkpoint is no early stop
    assert early["stopped"].all() and early["text"].iloc[0] == "Undefended, stopped after epoch 2, one seed"
    assert tables.seed_counts(made) == {2: 1, 1: 11}


def test_the_error_of_a_mean_is_of_the_images_and_of_the_seeds_pooled_over_settings() -> None:
    """Re-derived slowly: the images are the same for every seed, so their error does not shrink; seeds' does."""
    rows = [*seeds_of("none", [0.9, 0.8]), *seeds_of("augmentation", [0.6, 0.61, 0.62]), *seeds_of("relaxloss", [0.7])]
    made = tables.options(tables.runs(rows), tables.paths([])).set_index("defense")
    variances, freedoms = [np.var([0.9, 0.8], ddof=1), np.var([0.6, 0.61, 0.62], ddof=1)], [1, 2]
    pooled = sum(v * f for v, f in zip(variances, freedoms, strict=True)) / 3
    images = (0.02 / 1.959964) ** 2
    assert (made["freedom"] == 3).all()
    assert made["error"]["relaxloss"] == pytest.approx(np.sqrt(images + pooled))
    assert made["error"]["augmentation"] == pytest.approx(np.sqrt(images + pooled / 3))
    assert made["error"]["none"] == pytest.approx(np.sqrt(images + variances[0] / 2))  # its own is larger
    assert made["error"]["relaxloss"] > made["error"]["augmentation"]  # one seed never looks surer than three
    wide = student.ppf(0.975, 3) * made["error"]["relaxloss"]
    assert (made["low"]["relaxloss"], made["high"]["relaxloss"]) == pytest.approx((0.7 - wide, 0.7 + wide))
    low, high = stats.share_interval(0.6, 1000)
    alike = seeds_of("none", [0.9, 0.8])  # equal accuracies: the images' error alone is left
    found = tables.options(tables.runs(alike), tables.paths([])).iloc[0]
    assert found["test_high"] - found["test_low"] == pytest.approx((high - low) * student.ppf(0.975, 1) / 1.959964)


def test_without_several_seeds_nothing_is_known_of_their_error() -> None:
    rows = [*seeds_of("none", [0.9]), *seeds_of("tier_full", [0.5])]
    choices = tables.options(tables.runs(rows), tables.paths([]))
    assert choices["error"].isna().all()
    assert choices.set_index("defense").loc["none", ["low", "high"]].tolist() == pytest.approx([0.88, 0.92])
    table = tables.at_accuracy(choices, 0.6)
    assert table["counted"].all() and list(table["clear"]) == [None, None]
    assert list(tables.matched(choices, tables.alternatives(choices))["clear"]) == [None]
    assert len(tables.frontier(choices)) == 1


def test_a_lucky_seed_neither_leaks_least_nor_holds_the_frontier() -> None:
    rows = [*seeds_of("tier_full", [0.56, 0.57, 0.58]), *seeds_of("relaxloss", [0.60, 0.62, 0.61])]
    rows += [*seeds_of("relaxloss", [0.53], settings={"relaxloss.alpha": 0.5}), *seeds_of("distillation", [0.49])]
    choices = tables.options(tables.runs(rows), tables.paths([]))
    table = tables.at_accuracy(choices, 0.6)
    assert list(table["defense"]) == ["tier_full", "relaxloss", "distillation"]  # the one seed comes last, however low
    assert list(table["counted"]) == [True, True, False]
    relaxed = table.iloc[1]
    assert (relaxed["setting_text"], relaxed["of"], relaxed["single"]) == ("alpha 1", 1, "alpha 0.5: 0.530")
    assert table["clear"].iloc[2] is None and pd.isna(table["p"].iloc[2])
    assert tables.frontier(choices)["model"].tolist() == ["tier_full"]
    made = tables.matched(choices, tables.alternatives(choices))
    assert made["best"].tolist() == ["RelaxLoss, alpha 1, mean of 3 seeds"]


def test_a_checkpoint_gives_way_to_a_run_that_ended_there_unless_it_has_more_seeds() -> None:
    early = stopped()
    epoch = int(early["epoch"].min())
    own = [tables.run("e", experiment("early_stopping"), metrics(0.41, 0.56) | {"epochs": epoch})]
    rest = [tables.run("n", experiment(), metrics())]

    def same(frame: pd.DataFrame) -> pd.DataFrame:
        made = tables.options(tables.runs(own + rest), frame)
        return made[(made["defense"] == "early_stopping") & (made["setting_text"] == f"after epoch {epoch}")]

    assert list(same(early)["leak"]) == [0.56]
    both = same(pd.concat([early, early.assign(seed=1)], ignore_index=True))
    assert list(both["seeds"]) == [2] and list(both["leak"]) == pytest.approx([0.555])


def compared() -> pd.DataFrame:
    """Choices with three seeds each: TIER Full at two strengths, RelaxLoss at three, undefended."""
    rows = [
        *seeds_of("none", [0.90, 0.91, 0.92], 0.62), *seeds_of("tier_full", [0.55, 0.56, 0.57], 0.52),
        *seeds_of("tier_full", [0.53, 0.54, 0.55], 0.505, settings={"tier.lambda": 9.0}),
        *(row for alpha, leak in ((0.25, 0.75), (0.5, 0.68), (1.0, 0.57))
          for row in seeds_of("relaxloss", [leak, leak + 0.01, leak + 0.02], 0.6 - alpha / 20,
                              settings={"relaxloss.alpha": alpha})),
    ]  # fmt: skip
    return tables.options(tables.runs(rows), tables.paths([]))


def test_at_an_accuracy_each_defense_has_its_least_leaking_setting() -> None:
    choices = compared()
    made = tables.at_accuracy(choices, 0.52).set_index("defense")
    assert list(made["leak"]) == sorted(made["leak"])
    wanted = {
        name: part["leak"].min() for name, part in choices[choices["test_accuracy"] >= 0.5].groupby("defense")
    }  # fmt: skip
    assert made["leak"].to_dict() == pytest.approx(wanted)
    assert made["setting_text"].to_dict() == {"tier_full": "lambda 9, beta 0.3", "relaxloss": "alpha 1", "none": ""}
    assert made["of"].to_dict() == {"tier_full": 2, "relaxloss": 3, "none": 1}
    tier, rival = made.loc["tier_full"], made.loc["relaxloss"]
    assert rival["difference"] == pytest.approx(rival["leak"] - tier["leak"])
    half = student.ppf(0.975, 12) * np.hypot(rival["error"], tier["error"])
    assert rival["difference_high"] - rival["difference"] == pytest.approx(half)
    assert pd.isna(tier["difference"]) and tier["clear"] is None
    assert made["borderline"].to_dict() == {"tier_full": True, "relaxloss": False, "none": False}  # 0.505 against 0.5
    assert tables.at_accuracy(choices, 0.9).empty
    far = tables.at_accuracy(choices, 0.6).set_index("defense")
    assert "tier_full" not in far.index  # then there is nothing to compare with
    assert far["difference"].isna().all()
    own = tables.at_accuracy(choices, float(tier["test_accuracy"])).set_index("defense")
    assert not own["borderline"]["tier_full"]  # the accuracy that is asked for is its own


def test_a_difference_is_clear_beyond_chance_the_choice_and_the_number_of_comparisons() -> None:
    made = tables.at_accuracy(compared(), 0.52).set_index("defense")
    tier = made.loc["tier_full"]
    plain = {}
    for name in ("relaxloss", "none"):
        t = abs(made["leak"][name] - tier["leak"]) / np.hypot(made["error"][name], tier["error"])
        plain[name] = 2 * student.sf(t, 12) * made["of"][name] * 2  # TIER was picked from two
    first, second = sorted(plain, key=lambda name: plain[name])
    wanted = {first: min(1.0, 2 * plain[first])}
    wanted[second] = max(wanted[first], min(1.0, plain[second]))
    assert made["p"].drop("tier_full").to_dict() == pytest.approx(wanted)
    assert made["clear"]["none"] is True and made["clear"]["relaxloss"] is False
    assert wanted["relaxloss"] > 0.05 > plain["relaxloss"] / 6  # alone it would have been called clear


def test_the_best_attack_takes_the_place_of_the_leak_on_the_first_seed() -> None:
    leaf = {"attack": "rmia", "balanced_accuracy": 0.71, "interval": [0.68, 0.74], "auc": 0.8,
            "auc_interval": [0.77, 0.83], "members": 1000, "nonmembers": 1000}  # fmt: skip
    made = tables.measured(plane(), {"none": leaf, "tier_full": leaf | {"auc": None}}, "auc", seed=0)
    assert made[["key", "leak", "low", "high", "by"]].to_numpy().tolist() == [["n0", 0.8, 0.77, 0.83, "rmia"]]
    both = tables.measured(plane(), {"none": leaf, "tier_full": leaf}, "balanced_accuracy", seed=0)
    assert set(both["key"]) == {"n0", "t7.0"}
    assert tables.measured(plane(), {}, "auc", seed=0).empty


def test_a_refused_metric_stays_unknown() -> None:
    row = tables.run("a", experiment(), metrics(0.5) | {"crossfit_balanced_accuracy": None, "features": None})
    made = tables.runs([row])
    assert made["test_accuracy"].iloc[0] == 0.5
    assert made[["leak", "audit", "features"]].iloc[0].isna().all()  # the gap attack alone would compare unlike things
    assert made["by"].iloc[0] is None


def test_runs_are_compared_by_the_cross_fitted_audit_and_keep_the_papers_figure_beside_it() -> None:
    row = tables.run("a", experiment(), metrics(leak=0.8, width=0.02, holdout=0.7))
    assert (row["leak"], row["low"], row["high"]) == pytest.approx((0.8, 0.78, 0.82))
    assert row["by"] == "audit"
    assert (row["audit"], row["holdout"], row["gap"], row["features"]) == (0.8, 0.7, 0.52, 2)
    assert row["auc"] == pytest.approx(0.85)


def test_the_leak_is_the_gap_attacks_where_that_beats_the_audit() -> None:
    made = tables.leak(metrics(0.6, leak=0.52, gap=0.58), 1000, 1000)
    assert (made["leak"], made["by"], made["audit"], made["gap"]) == (0.58, "gap", 0.52, 0.58)
    assert (made["low"], made["high"]) == pytest.approx(stats.gap_interval(0.76, 0.6, 1000, 1000))
    assert made["low"] < 0.58 < made["high"]


def test_an_attack_worse_than_a_coin_is_worth_a_coin() -> None:
    made = tables.leak(metrics(leak=0.42, width=0.03, gap=0.49), 1000, 1000)
    assert (made["leak"], made["by"], made["gap"]) == (0.5, "coin", 0.49)
    assert made["high"] >= 0.5
    made = tables.leak(metrics(leak=0.42, width=0.03, gap=0.40), 1000, 1000)
    assert (made["leak"], made["high"], made["audit"]) == (0.5, 0.5, 0.42)


def test_the_gap_attacks_interval_covers_the_truth_about_95_times_of_100() -> None:
    generator = np.random.default_rng(0)
    for train, test, members, nonmembers in ((0.76, 0.6, 1000, 1000), (0.99, 0.5, 200, 300), (1.0, 0.6, 100, 100)):
        seen = generator.binomial(members, train, 2000) / members
        new = generator.binomial(nonmembers, test, 2000) / nonmembers
        bounds = [stats.gap_interval(a, b, members, nonmembers) for a, b in zip(seen, new, strict=True)]
        covered = np.mean([low <= (1 + train - test) / 2 <= high for low, high in bounds])
        assert 0.93 < covered < 0.985
    assert np.isnan(stats.gap_interval(np.nan, 0.5, 10, 10)).all()
    assert np.isnan(stats.gap_interval(0.5, 0.5, 0, 10)).all()


def test_summary_is_the_mean_and_range_over_seeds() -> None:
    made = tables.summary(frame()).set_index("model")
    assert made.loc["none", "seeds"] == 2
    assert made.loc["none", "leak"] == pytest.approx(0.89)
    assert made.loc["none", "gap"] == pytest.approx(0.52)
    assert made.loc["none", "features"] == 2
    assert (made.loc["none", "leak_min"], made.loc["none", "leak_max"]) == (0.88, 0.90)
    assert made.loc["tier_full", "seeds"] == 1  # the grid point is no headline run
    assert tables.summary(tables.runs([])).empty


def stopped() -> pd.DataFrame:
    full = pd.DataFrame({
        "epoch": [1, 2, 3, 4], "test_accuracy": [0.3, 0.49, 0.515, 0.6], "train_accuracy": 0.6,
        "gap_balanced_accuracy": [0.65, 0.555, 0.5425, 0.5], "audit_balanced_accuracy": [np.nan, 0.41, 0.7, 0.8],
        "crossfit_balanced_accuracy": [np.nan, 0.53, 0.65, 0.9],
        "crossfit_balanced_accuracy_low": [np.nan, 0.51, 0.63, 0.88],
        "crossfit_balanced_accuracy_high": [np.nan, 0.55, 0.67, 0.92],
    })  # fmt: skip
    return tables.path("none", 0, full, 1000, 1000)


def test_a_path_keeps_only_audited_epochs() -> None:
    made = stopped()
    assert made["epoch"].tolist() == [2, 3, 4]
    assert list(made.columns) == list(tables.PATH_COLUMNS)
    assert made["leak"].tolist() == [0.555, 0.65, 0.9]  # at first the gap attack, which beats the audit, then the audit
    assert made["by"].tolist() == ["gap", "audit", "audit"]
    assert (made["low"] < made["leak"]).all()
    assert tuple(made.loc[0, ["test_low", "test_high"]]) == pytest.approx(stats.share_interval(0.49, 1000))
    assert tables.paths([]).empty
    assert len(tables.paths([made, made])) == 6


def twice() -> pd.DataFrame:
    """Choices with two seeds each, alike: undefended with its early stops, and TIER Full at two strengths."""
    rows = [*seeds_of("none", [0.89] * 2, 0.61), *seeds_of("tier_full", [0.60] * 2, 0.50),
            *seeds_of("tier_full", [0.55] * 2, 0.40, settings={"tier.lambda": 9.0, "tier.beta": 0.1})]  # fmt: skip
    early = stopped()
    return tables.options(tables.runs(rows), pd.concat([early, early.assign(seed=1)], ignore_index=True))


def test_matching_finds_the_least_and_most_leaking_rival() -> None:
    choices = twice()
    rivals = tables.alternatives(choices)
    assert len(rivals) == 1 + 2
    made = tables.matched(choices, rivals).set_index("lambda")
    row = made.loc[7.0]  # accuracy 0.50, leak 0.60: epochs 2 (0.49) and 3 (0.515) are within two points
    assert row["rivals"] == 3  # and the finished run is more accurate
    assert row["best"] == "Undefended, stopped after epoch 2, mean of 2 seeds"
    assert (row["best_leak"], row["best_audit"], row["best_gap"]) == pytest.approx((0.555, 0.53, 0.555))
    assert (row["worst_leak"], row["gap"]) == pytest.approx((0.65, 0.52))
    assert row["advantage"] == pytest.approx(-0.045)  # early stopping leaks less here, and the table says so
    far = made.loc[9.0]  # accuracy 0.40: no rival is near, but a more accurate one leaks hardly more
    assert (far["rivals"], far["best_leak"]) == (3, pytest.approx(0.555))
    assert pd.isna(far["worst"])
    alone = tables.matched(choices, rivals[rivals["test_accuracy"] < 0.47]).set_index("lambda").loc[7.0]
    assert alone["rivals"] == 0
    assert pd.isna(alone["best"])
    assert pd.isna(alone["advantage"])


def test_a_setting_is_clear_of_its_best_rival_beyond_chance_and_the_choice() -> None:
    choices = twice()
    made = tables.matched(choices, tables.alternatives(choices)).set_index("lambda")
    best = choices[choices["text"] == made["best"].iloc[0]].iloc[0]
    plain = {}
    for lam in (7.0, 9.0):
        own = choices[choices["lambda"] == lam].iloc[0]
        t = abs(best["leak"] - own["leak"]) / np.hypot(best["error"], own["error"])
        plain[lam] = min(1.0, 3 * 2 * student.sf(t, 3))
    wanted = {7.0: min(1.0, 2 * plain[7.0])}
    wanted[9.0] = max(wanted[7.0], plain[9.0])
    assert made["p"].to_dict() == pytest.approx(wanted)
    assert list(made["clear"]) == [p < 0.05 for p in wanted.values()]


def rival(accuracy: float, leak: float) -> pd.DataFrame:
    return tables.options(tables.runs(seeds_of("none", [leak] * 2, accuracy)), tables.paths([]))


def test_a_more_accurate_rival_that_leaks_less_counts_however_far() -> None:
    near, far = rival(0.51, 0.79).assign(text="near"), rival(0.62, 0.55).assign(text="far")
    made = tables.matched(twice(), pd.concat([near, far], ignore_index=True)).set_index("lambda").loc[7.0]
    assert (made["best"], made["worst"]) == ("far", "near")
    assert made["advantage"] == pytest.approx(-0.05)


def test_the_frontier_is_the_least_leak_at_each_accuracy_or_better() -> None:
    choices = twice()
    made = tables.frontier(choices)
    assert made["test_accuracy"].tolist() == pytest.approx([0.40, 0.49, 0.50, 0.515, 0.61])
    assert made["leak"].tolist() == pytest.approx([0.55, 0.555, 0.60, 0.65, 0.89])
    assert made["stopped"].tolist() == [False, True, False, True, False]
    assert made["model"].tolist() == ["tier_full", "none", "tier_full", "none", "none"]
    for row in made.to_dict("records"):  # re-derived slowly
        assert row["leak"] == choices.loc[choices["test_accuracy"] >= row["test_accuracy"], "leak"].min()
    assert tables.frontier(tables.options(tables.runs([]), tables.paths([]))).empty


def test_the_tolerance_includes_its_edge() -> None:
    made = tables.matched(twice(), rival(0.52, 0.9), tolerance=0.02)
    assert made.set_index("lambda").loc[7.0, "rivals"] == 1
    assert made.set_index("lambda").loc[7.0, "clear"]
    assert tables.matched(twice(), rival(0.4799, 0.9)).set_index("lambda").loc[7.0, "rivals"] == 0


def divergence_profile() -> pd.DataFrame:
    parts = []
    for unit, n in (("sample", 500), ("batch", 4)):
        part = pd.DataFrame({"level": [0.1, 0.2], "unit": unit})
        for word, mean in (("member", 2.0), ("nonmember", 1.5)):
            part[[f"{word}_mean", f"{word}_sd", f"{word}_n"]] = [mean, 0.5, n]
            part[[f"{word}_low", f"{word}_high"]] = [mean - 0.1, mean + 0.1]
        tested = unit == "sample"
        for name in ("t", "t_df", "t_p", "ks", "ks_p", "cohen_d", "t_p_holm", "ks_p_holm"):
            part[name] = 1.0 if tested else np.nan
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def test_profile_and_tests_restate_the_stage_result() -> None:
    made = tables.profile(divergence_profile(), "sample")
    assert len(made) == 4
    assert made[made["member"]]["mean"].eq(2.0).all()
    shown = tables.tests(divergence_profile(), "sample")
    assert list(shown.columns)[:4] == ["removed", "members", "nonmembers", "t"]
    assert len(shown) == 2
    assert tables.tests(divergence_profile(), "batch")["t"].isna().all()


def test_the_papers_tables_keep_their_inversion() -> None:
    first, third = tables.paper_divergence("none"), tables.paper_divergence("tier_full")
    assert (first["members"] > first["nonmembers"]).all()
    assert third.iloc[0]["t"] == -24.1
    assert third.iloc[0]["ks"] > first.iloc[0]["ks"]


def test_stack_names_models_and_keeps_one_order() -> None:
    part = pd.DataFrame({"order": ["morf", "lerf"], "level": 0.0})
    made = tables.stack({"none": part, "tier_full": part}, "morf")
    assert made["model"].tolist() == ["none", "tier_full"]
    assert set(made["order"]) == {"morf"}
    assert tables.stack({}).empty


def samples(n: int = 40) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    made = pd.DataFrame({"index": np.arange(n) + 100, "member": np.arange(n) < n // 2})
    for i in range(10):
        made[f"morf_{i}"] = np.log(generator.uniform(0.01, 1, n)).astype(np.float32)
    return made


def test_the_game_is_balanced_seeded_and_shows_probabilities() -> None:
    scores = pd.DataFrame({"index": samples()["index"], "score": np.where(samples()["member"], 1.0, -1.0)})
    made = tables.game(samples(), scores, seed=3, rounds=10)
    assert len(made) == 10
    assert made["member"].sum() == 5
    assert made["attack"].eq(made["member"]).all()
    pd.testing.assert_frame_equal(made, tables.game(samples(), scores, seed=3, rounds=10))
    assert not made["index"].equals(tables.game(samples(), scores, seed=4, rounds=10)["index"])
    assert made.filter(like="confidence_").to_numpy().max() <= 1.0 + 1e-6
    assert list(made.filter(like="confidence_").columns) == [f"confidence_{i}" for i in range(10)]
    line = tables.curve(made.iloc[0].to_dict(), np.arange(10) / 10)
    assert line["confidence"].tolist() == made.filter(like="confidence_").iloc[0].tolist()


def test_the_game_copes_without_scores_and_with_few_images() -> None:
    made = tables.game(samples(6), None, seed=0, rounds=20)
    assert len(made) == 6
    assert made["attack"].isna().all()


# ---- one image


def scored(values: list[float], members: list[bool]) -> pd.DataFrame:
    return pd.DataFrame({"index": np.arange(len(values)) * 10, "member": members, "score": values})


def test_images_are_numbered_by_a_seeded_shuffle_of_all_rows() -> None:
    images = pd.DataFrame({"index": np.arange(200) * 3, "member": np.arange(200) < 100})
    cards = tables.deck(images)
    assert sorted(cards) == list(images["index"])
    assert list(cards) == list(tables.deck(images.sample(frac=1, random_state=1)))  # the stored order does not show
    assert list(cards) != list(tables.deck(images, seed=1))
    member = np.isin(cards, images["index"][images["member"]])
    assert abs(np.corrcoef(member, np.arange(200))[0, 1]) < 0.15  # neither half holds the members
    assert 70 <= (np.diff(member.astype(int)) != 0).sum() <= 130  # nor do they come in runs


def test_images_whose_maps_are_kept_have_the_lowest_numbers() -> None:
    images = pd.DataFrame({"index": np.arange(200)[::-1], "member": np.arange(200) < 100})
    cards = tables.deck(images, kept=30)
    kept = [*images["index"][:30], *images["index"][100:130]]
    assert sorted(cards[:60]) == sorted(kept)
    assert sorted(cards) == list(range(200))
    member = np.isin(cards[:60], images["index"][:100])
    assert 20 <= (np.diff(member.astype(int)) != 0).sum() <= 40  # shuffled, not in runs
    assert list(tables.deck(images, kept=100)) == list(tables.deck(images))


def test_the_hardest_images_are_those_nearest_to_undecided() -> None:
    frame = scored([3.0, -0.1, np.nan, 0.2, -5.0], [True, True, False, False, False])
    cards = tables.deck(frame)
    numbers = tables.undecided(frame, cards)
    assert [int(cards[number - 1]) for number in numbers] == [10, 30, 0, 40]  # 20 has no score
    assert tables.undecided(frame, cards[cards != 30]) != numbers


@pytest.mark.parametrize("score", [-9.0, 0.0, 1.0, 2.5, 9.0])
def test_a_score_stands_where_counting_puts_it(score: float) -> None:
    frame = scored([0.0, 1.0, 1.0, 3.0, 2.0, 1.0], [True, True, True, True, False, False])
    found = tables.standing(frame, score)
    for name, values in (("members", [0.0, 1.0, 1.0, 3.0]), ("nonmembers", [2.0, 1.0])):
        shares = [1.0 if value < score else 0.5 if value == score else 0.0 for value in values]
        assert found[name] == pytest.approx(sum(shares) / len(values))


def test_a_score_that_is_none_stands_nowhere() -> None:
    frame = scored([0.0, 1.0], [True, True])
    assert np.isnan(tables.standing(frame, float("nan"))["members"])
    assert np.isnan(tables.standing(frame, 0.5)["nonmembers"])


def test_members_among_the_images_scored_alike_are_counted() -> None:
    generator = np.random.default_rng(1)
    member = generator.random(1000) < 0.5
    frame = scored(list(generator.normal(0, 1, 1000) + member), list(member))
    frame.loc[[3, 5], "score"] = np.nan
    own = frame.loc[17]
    found = tables.alike(frame, own["score"], int(own["index"]), most=150)
    others = [
        (abs(score - own["score"]), kind)
        for index, score, kind in zip(frame["index"], frame["score"], frame["member"], strict=True)
        if index != own["index"] and np.isfinite(score)
    ]
    assert found == (sum(kind for _, kind in sorted(others)[:150]), 150)
    assert tables.alike(frame, 0.5) is not None
    assert tables.alike(frame, 0.5)[1] == 199  # a fifth of those with a score  # type: ignore[index]


def test_of_few_images_none_are_called_alike() -> None:
    frame = scored([float(i) for i in range(99)], [i % 2 == 0 for i in range(99)])
    assert tables.alike(frame, 3.0) is None
    assert tables.alike(frame, float("nan")) is None


def test_one_images_curves_come_from_its_row() -> None:
    levels = (0.0, 0.5)
    columns = {f"{order}_{i}": np.log([0.1 * (i + 1), 0.3 + 0.1 * i]) for order in ("morf", "lerf") for i in (0, 1)}
    samples = pd.DataFrame({"index": [7, 9], "member": [True, False], **columns})
    path = tables.stored_path(samples, 9, levels)
    assert path is not None
    assert list(path["confidence"].round(6)) == [0.3, 0.4, 0.3, 0.4]
    assert list(path["order"]) == ["morf", "morf", "lerf", "lerf"]
    assert tables.stored_path(samples, 8, levels) is None
    means = pd.DataFrame({
        "order": ["morf", "morf", "lerf", "lerf"] * 2, "level": [0.0, 0.5] * 4, "member": [True] * 4 + [False] * 4,
        "mean": np.arange(8) / 10, "low": 0.0, "high": 1.0,
    })  # fmt: skip
    kept = tables.with_means(path, means)
    assert list(kept["members"]) == [0.0, 0.1, 0.2, 0.3]
    assert list(kept["nonmembers"]) == [0.4, 0.5, 0.6, 0.7]
    assert tables.with_means(path, None) is path


def removal(values: list[float], null: float = 0.05) -> pd.DataFrame:
    """difference.parquet of two orders; the second one's differences are ten times the first's."""
    parts = [
        pd.DataFrame({"order": order, "level": np.arange(len(values)) / 10, "difference": factor * np.array(values)})
        for order, factor in (("morf", 1.0), ("lerf", 10.0))
    ]
    frame = pd.concat(parts, ignore_index=True)
    low, high = frame["difference"] - 0.01, frame["difference"] + 0.01
    return frame.assign(low=low, high=high, null_low=-null, null_high=null)


def test_gaps_tell_the_start_from_what_is_added_on_the_way() -> None:
    parts = {
        "gradient": {"none": removal([0.3, 0.02, -0.4, 0.1]), "tier_full": removal([0.04, 0.01, 0.06, -0.03])},
        "lime": {"none": removal([0.3, 0.29, 0.04, 0.0])},
        "shap": {},
    }
    stacked = tables.by_explainer(parts, "morf")
    assert set(stacked["order"]) == {"morf"}
    assert len(stacked) == 12
    gaps = tables.gaps(stacked).set_index(["explainer", "model"])
    assert list(gaps.index) == [("gradient", "none"), ("gradient", "tier_full"), ("lime", "none")]
    bare = gaps.loc[("gradient", "none")]
    assert (bare["start"], bare["start_low"], bare["start_high"]) == pytest.approx((0.3, 0.29, 0.31))
    assert (bare["difference"], bare["level"]) == pytest.approx((-0.4, 0.2))
    assert list(gaps["growth"]) == pytest.approx([0.1, 0.02, -0.01])
    assert list(gaps["grown"]) == [True, False, False]  # the null band is 0.05 to either side
    assert list(gaps["outside"]) == [True, False, True]
    assert list(gaps["chance"]) == pytest.approx([0.05] * 3)


def test_what_an_explanation_adds_is_unknown_where_the_curves_begin_late() -> None:
    late = removal([0.3, 0.4])
    (row,) = tables.gaps(late[late["level"] > 0].assign(explainer="lime", model="none").head(1)).to_dict("records")
    assert np.isnan(row["growth"])
    assert not row["grown"]


def test_gaps_of_nothing_are_an_empty_table() -> None:
    empty = tables.gaps(tables.by_explainer({"gradient": {}}, "morf"))
    assert len(empty) == 0
    assert set(empty.columns) == set(tables.GAP_COLUMNS)


# ---- fidelity and the gallery


def likeness(n: int = 40, shift: float = 0.2, seed: int = 0) -> pd.DataFrame:
    """Scores in which pairs are more alike than shuffled ones by `shift`, with one image that has none."""
    generator = np.random.default_rng(seed)
    frame = pd.DataFrame({
        "index": 10 * np.arange(n), "member": np.arange(n) < n // 2, "label": np.arange(n) % 3,
        "correct": np.arange(n) % 4 > 0, "agree": True,
    })  # fmt: skip
    for metric in tables.FIDELITY:
        sign = -1 if metric == "mse" else 1
        for ending, above in (("", shift), ("_shuffled", 0.0), ("_second_seed", 2 * shift)):
            frame[f"{metric}{ending}"] = 0.4 + sign * above + generator.normal(0, 0.05, n)
    frame.loc[3, [name for name in frame.columns if str(name).startswith(tables.FIDELITY)]] = np.nan
    return frame


def test_fidelity_is_the_mean_of_the_images_that_have_a_score() -> None:
    frame = likeness()
    made = tables.fidelity({"tier_full": frame})
    assert len(made) == 2 * 4 * 3
    rows: list[dict[Any, Any]] = made.to_dict("records")
    for row in rows:
        part = frame if row["images"] == "all" else frame[frame["correct"]]
        values = [value for value in part[f"{row['metric']}{tables.PAIRS[row['pair']]}"] if value == value]
        assert row["n"] == len(values)
        assert row["mean"] == pytest.approx(sum(values) / len(values))
        error = 1.96 * np.std(values) / np.sqrt(len(values))
        assert row["low"] == pytest.approx(row["mean"] - error, abs=0.3 * error)
        assert row["high"] == pytest.approx(row["mean"] + error, abs=0.3 * error)


def test_more_alike_counts_upwards_for_every_score_and_pairs_images() -> None:
    frame = likeness()
    made = tables.fidelity({"tier_full": frame})
    pairs = made[(made["pair"] == "pair") & (made["images"] == "all")].set_index("metric")
    for metric in tables.FIDELITY:
        sign = -1 if metric == "mse" else 1
        difference = (sign * (frame[metric] - frame[f"{metric}_shuffled"])).dropna()
        assert pairs["over_shuffled"][metric] == pytest.approx(difference.mean())
        assert 0 < pairs["over_shuffled_low"][metric] < difference.mean() < pairs["over_shuffled_high"][metric]
        assert pairs["over_second_seed_high"][metric] < 0
    assert made[made["pair"] != "pair"]["over_shuffled"].isna().all()


def test_fidelity_without_a_single_score_is_unknown_not_an_error() -> None:
    empty = likeness().head(0)
    made = tables.fidelity({"tier_full": empty})
    assert (made["n"] == 0).all()
    assert made["mean"].isna().all()
    one = tables.fidelity({"tier_full": likeness().head(1)})
    known = one[one["images"] == "all"]
    assert (known["n"] == 1).all()
    assert known["mean"].notna().all()
    assert known["low"].isna().all()  # one image has no spread


def test_the_wide_table_repeats_the_means() -> None:
    made = tables.fidelity({"tier_full": likeness(), "augmentation": likeness(seed=1)})
    wide = tables.fidelity_wide(made)
    assert len(wide) == 2 * 2 * 4
    rows: list[dict[Any, Any]] = wide.to_dict("records")
    for row in rows:
        of = made[(made[["model", "images", "metric"]] == [row["model"], row["images"], row["metric"]]).all(axis=1)]
        by = of.set_index("pair")
        for pair in tables.PAIRS:
            found = (row[pair], row[f"{pair}_low"], row[f"{pair}_high"])
            assert found == tuple(by.loc[pair, ["mean", "low", "high"]])


def looks(predicted: list[int], rows: list[int]) -> pd.DataFrame:
    return pd.DataFrame({
        "member": [row < 20 for row in rows], "label": [row // 10 % 3 for row in rows], "predicted": predicted,
    }, index=pd.Index(rows, name="index"))  # fmt: skip


def test_triplets_are_the_images_kept_for_every_model_right_where_all_are() -> None:
    first, second = looks([0, 1, 2, 0], [0, 10, 20, 30]), looks([0, 2, 0], [30, 20, 10])
    made = tables.triplets({"none": first, "tier_full": second}, likeness())
    assert list(made.index) == [10, 20, 30]  # in the first one's order
    assert list(made["right"]) == [False, True, True]
    assert list(made["member"]) == [True, False, False]
    frame = likeness().set_index("index")
    assert list(made["ssim"][:2]) == list(frame.loc[[10, 20], "ssim"])
    assert np.isnan(made["ssim"][30])
    assert tables.triplets({"none": first}, None)[list(tables.FIDELITY)].isna().all(axis=None)


@pytest.mark.parametrize("metric", tables.FIDELITY)
def test_triplets_are_arranged_by_likeness(metric: str) -> None:
    frame = likeness().set_index("index")
    sign = -1 if metric == "mse" else 1
    known = [int(row) for row in (sign * frame[metric]).drop(30).sort_values().index]
    assert list(tables.arranged(frame, "worst", metric).index) == [*known, 30]
    assert list(tables.arranged(frame, "best", metric).index) == [*known[::-1], 30]
    middle = tables.arranged(frame, "median", metric)
    assert middle.index[0] == known[len(known) // 2]
    assert middle.index[-1] == 30
    assert list(tables.arranged(frame, "drawn", metric).index) == list(frame.index)
    with pytest.raises(ValueError, match="choose one of drawn, best, median, worst"):
        tables.arranged(frame, "sideways", metric)


# ---- attacks from outside


def attack_scores(seed: int = 0, members: int = 300, nonmembers: int = 200, shift: float = 1.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    score = np.concatenate([rng.normal(shift, 1, members), rng.normal(0, 1, nonmembers)])
    member = np.arange(members + nonmembers) < members
    return pd.DataFrame({"index": np.arange(len(score)), "member": member, "label": 0, "score": score})


def attack_report(frame: pd.DataFrame, threshold: float | None = 0.5) -> dict[str, Any]:
    return merits.report(frame["score"][frame["member"]], frame["score"][~frame["member"]], threshold)


def test_an_attack_figure_holds_the_report_s_value_interval_and_counts() -> None:
    leaf = attack_report(attack_scores())
    accuracy = tables.attack_figure(leaf, "balanced_accuracy")
    assert (accuracy["value"], [accuracy["low"], accuracy["high"]]) == (leaf["balanced_accuracy"], leaf["interval"])
    rate = tables.attack_figure(leaf, "tpr_at_0.01")
    assert (rate["hits"], rate["alarms"]) == tuple(leaf["counts_at_0.01"].values())
    assert (rate["of"], rate["alarms_of"]) == (300, 200)
    exact = binomtest(rate["hits"], 300).proportion_ci(method="exact")
    assert (rate["low"], rate["high"]) == pytest.approx((exact.low, exact.high))
    text = tables.figure_text(rate)
    assert text.endswith(f"{rate['hits']} of 300 at {rate['alarms']} of 200")
    strict = tables.attack_figure(leaf, "tpr_at_0.001")
    assert np.isnan(strict["value"]) and "1,000 non-members" in strict["refused"]
    assert tables.figure_text(strict) == "refused"
    assert tables.figure_text(tables.attack_figure(None, "auc")) == "not stored"


def test_a_figure_without_spread_has_an_interval_that_holds() -> None:
    members, others = np.full(20, 2.0), np.full(30, -2.0)
    whole = merits.report(members, others, 0.0)
    assert whole["interval"] == whole["auc_interval"] == [1.0, 1.0]  # what resampling gives
    accuracy, area = (tables.attack_figure(whole, name) for name in ("balanced_accuracy", "auc"))
    assert (accuracy["low"], accuracy["high"]) == pytest.approx(stats.gap_interval(1.0, 0.0, 20, 30))
    assert 0.9 < accuracy["low"] < 1 and accuracy["high"] == pytest.approx(1.0)
    # an area below the bound means a rate below its own exact bound: at the bound, all 20 are found in 2.5 % of cases
    assert area["low"] == pytest.approx(0.025 ** (1 / 20) * 0.025 ** (1 / 30)) and area["high"] == 1.0
    turned = tables.attack_figure(merits.report(others, members, 0.0), "auc")
    assert (turned["low"], turned["high"]) == (0.0, pytest.approx(1 - area["low"]))
    flat = tables.attack_figure(merits.report(np.ones(9), np.ones(9), 0.0), "balanced_accuracy")
    assert flat["value"] == 0.5 and flat["low"] < 0.45 and flat["high"] > 0.55


def test_a_rate_of_one_in_one_group_has_newcombe_s_interval() -> None:
    frame = pd.DataFrame({"member": np.arange(50) < 20, "score": [2.0] * 20 + [-1.0] * 25 + [1.0] * 5})
    leaf = attack_report(frame, 0.0)
    made = tables.exact(leaf, frame)
    assert made["interval"] == pytest.approx(stats.gap_interval(1.0, 5 / 30, 20, 30))
    assert (
        tables.exact(attack_report(attack_scores()), attack_scores())["interval"]
        == (attack_report(attack_scores())["interval"])
    )
    assert tables.exact(attack_report(frame, None), frame)["interval"] is None


def test_the_exposed_are_those_of_the_report() -> None:
    frame = attack_scores().assign(exposure=np.random.default_rng(3).normal(size=500))
    frame.loc[:9, "exposure"] = np.nan
    leaf = merits.vulnerable_decile(frame["score"], frame["member"], frame["exposure"], 0.5)
    chosen = tables.exposed(frame)
    assert attack_report(chosen) == leaf


def test_the_strongest_has_the_highest_area_the_first_of_equal_ones() -> None:
    leaves = {"lime": None, "shap": {"auc": None}, "gradient": {"auc": 0.7}, "vargrad": {"auc": 0.7}}
    assert tables.strongest(leaves) == "gradient"
    assert tables.strongest({"lime": None, "shap": {"auc": None}}) is None


def test_cleared_non_members_are_counted_among_non_members() -> None:
    leaf = attack_report(attack_scores(members=2000, nonmembers=500))
    row = tables.attack_figure(leaf, "tnr_at_0.001")
    assert (row["of"], row["alarms_of"], row["alarms"]) == (500, 2000, 2)
    assert row["hits"] == round(leaf["tnr_at_0.001"] * 500)
    exact = binomtest(row["hits"], 500).proportion_ci(method="exact")
    assert (row["low"], row["high"]) == pytest.approx((exact.low, exact.high))


def test_counts_are_those_of_the_report_and_not_made_up() -> None:
    leaf = attack_report(attack_scores()) | {"tpr_at_0.01": 0.5}
    row = tables.attack_figure(leaf, "tpr_at_0.01")
    assert row["hits"] == leaf["counts_at_0.01"]["true_positives"]
    older = {name: value for name, value in leaf.items() if name not in ("counts_at_0.01", "tpr_interval_at_0.01")}
    row = tables.attack_figure(older, "tpr_at_0.01")
    assert row["value"] == 0.5 and row["hits"] is None and np.isnan(row["low"])
    assert tables.figure_text(row) == "0.500"


def test_attacks_are_a_line_per_report_and_figure_and_cells_a_line_per_model() -> None:
    leaf = attack_report(attack_scores())
    frame = tables.attacks({("lime", "none", "transfer"): leaf, ("lime", "none", "adaptive"): None})
    assert len(frame) == 2 * len(tables.ATTACK_METRICS)
    cells = tables.attack_cells(frame, "auc")
    assert len(cells) == 1
    assert cells["transfer"][0].startswith(f"{leaf['auc']:.3f} (")
    assert cells["adaptive"][0] == "not stored"


def test_a_gain_is_the_difference_of_balanced_accuracies_on_the_same_images() -> None:
    first, second = attack_scores(1, shift=0.5), attack_scores(2, shift=1.5)
    verdicts = [tables.verdicts(frame, 0.7) for frame in (first, second)]
    found = tables.gain(*verdicts)
    values = [attack_report(frame, 0.7)["balanced_accuracy"] for frame in (first, second)]
    assert found["difference"] == pytest.approx(values[1] - values[0])
    # the slow way: images drawn again with their pairs
    change = verdicts[1]["right"].astype(int).to_numpy() - verdicts[0]["right"].astype(int).to_numpy()
    rng, slow = np.random.default_rng(0), []
    for _ in range(2000):
        parts = [rng.choice(change[:300], 300).mean(), rng.choice(change[300:], 200).mean()]
        slow.append(np.mean(parts))
    assert (found["low"], found["high"]) == pytest.approx(tuple(np.quantile(slow, [0.025, 0.975])), abs=0.01)
    same = tables.gain(verdicts[0], verdicts[0])
    assert same == {"difference": 0.0, "low": 0.0, "high": 0.0}


def test_a_gain_needs_pairs_of_both_kinds() -> None:
    members = tables.verdicts(attack_scores().query("member"), 0.0)
    assert np.isnan(tables.gain(members, members)["difference"])


@pytest.mark.parametrize("shared", [0.0, 0.9])
def test_a_gain_of_area_is_that_of_images_drawn_again_with_their_pairs(shared: float) -> None:
    first, second = attack_scores(1, shift=0.5), attack_scores(2, shift=1.0)
    second["score"] = shared * first["score"] + (1 - shared) * second["score"]
    second = second.sample(frac=1, random_state=0)  # pairs are found by their index
    found = tables.auc_gain(first, second)
    second = second.sort_values("index")
    areas = [attack_report(frame)["auc"] for frame in (first, second)]
    assert found["difference"] == pytest.approx(areas[1] - areas[0])
    rng, slow = np.random.default_rng(0), []
    scores = [frame["score"].to_numpy() for frame in (first, second)]
    for _ in range(1500):
        inside, outside = rng.integers(300, size=300), 300 + rng.integers(200, size=200)
        slow.append(np.subtract(*(merits.auc(values[inside], values[outside]) for values in scores[::-1])))
    assert (found["low"], found["high"]) == pytest.approx(tuple(np.quantile(slow, [0.025, 0.975])), abs=0.006)


def test_a_gain_of_area_is_nothing_for_another_scale_and_unknown_for_one_group() -> None:
    frame = attack_scores()
    same = tables.auc_gain(frame, frame.assign(score=3 * frame["score"] - 7))
    assert same == {"difference": 0.0, "low": 0.0, "high": 0.0}
    assert np.isnan(tables.auc_gain(frame.query("member"), frame)["low"])


def test_thresholds_to_try_reach_all_scores_in_steps_of_equally_many_images() -> None:
    frame = attack_scores()
    frame["score"] = -np.exp(2 * frame["score"])  # a long tail
    found = tables.stops(frame, 0.07, -0.004)
    assert found == sorted(set(found)) and {0.07, 0.0} <= set(found)
    assert found[0] == round(frame["score"].min(), 2)
    passed = [int((frame["score"] > value).sum()) for value in found]
    assert max(np.abs(np.diff(passed))) <= 0.02 * len(frame)
    assert len(tables.stops(frame.assign(score=1.0), 1.0)) > 1
    assert len(tables.stops(frame.head(0))) > 1


def test_the_calibrated_threshold_is_the_best_for_these_images() -> None:
    frame = attack_scores()
    best = tables.confusion(frame, tables.calibrated(frame))["balanced_accuracy"]
    every = [tables.confusion(frame, value)["balanced_accuracy"] for value in frame["score"]]
    assert best == pytest.approx(max(every))
    assert np.isnan(tables.calibrated(frame.query("member")))


def test_the_roc_shows_only_what_counts_resolve_and_agrees_with_the_report() -> None:
    frame = attack_scores(members=3000, nonmembers=4000)
    frame.loc[0, "score"] = np.nan
    found = tables.roc(frame)
    assert found["fpr"].min() == 1 / 4000
    assert (found["tpr"] > 0).all() and len(found) <= tables.ROC_POINTS
    assert found["tpr"].is_monotonic_increasing and found.iloc[-1].tolist() == [1.0, 1.0]
    members = frame["score"][frame["member"]].dropna()
    for row in found.sample(20, random_state=0).itertuples():
        rate = merits.tpr_at_fpr(members, frame["score"][~frame["member"]], row.fpr) if row.fpr < 1 else None
        assert rate is None or rate.value == pytest.approx(row.tpr)
    assert not len(tables.roc(frame[frame["member"]]))


def test_the_null_band_of_an_roc_is_what_shuffled_memberships_give() -> None:
    members, others = 80, 100
    band = tables.roc_null(members, others).iloc[[0, 9, 40]]
    allowed = [round(rate * others) for rate in band["fpr"]]
    rng, found = np.random.default_rng(0), []
    for _ in range(3000):
        order = rng.permutation(members + others) < members  # members among the scores, the highest first
        alarms = np.cumsum(~order)
        found.append([order[: np.searchsorted(alarms, k + 1)].sum() / members for k in allowed])
    low, high = np.quantile(found, [0.025, 0.975], axis=0)
    assert allowed[0] == 1
    np.testing.assert_allclose(band["low"], low, atol=1.01 / members)
    np.testing.assert_allclose(band["high"], high, atol=1.01 / members)
    assert not len(tables.roc_null(0, 5))


def test_a_hundred_figures_stand_for_all_in_proportion() -> None:
    frame = attack_scores()
    counts = tables.confusion(frame, 0.5)
    said = frame["score"] > 0.5
    assert counts["found"] == int((said & frame["member"]).sum())
    assert counts["alarms"] == int((said & ~frame["member"]).sum())
    assert counts["balanced_accuracy"] == pytest.approx(attack_report(frame)["balanced_accuracy"])
    table = tables.hundred(counts)
    assert table.groupby("member")["figures"].sum().tolist() == [50, 50]
    assert table["images"].sum() == len(frame)
    found = table[table["member"] & table["said"]]["figures"].iloc[0]
    assert found == round(50 * counts["tpr"])
    alone = tables.confusion(frame[frame["member"]], 0.5)
    assert np.isnan(alone["fpr"]) and len(tables.hundred(alone)) == 2


def test_attacks_are_ranked_by_the_best_model_and_refused_ones_come_last() -> None:
    weak, strong = attack_report(attack_scores(shift=0.3)), attack_report(attack_scores(shift=2))
    leaves = {("loss", "none"): weak, ("rmia", "none"): weak, ("rmia", "tier_full"): strong | {"sign": 1},
              ("gap", "none"): attack_report(attack_scores(), None), ("agp", "none"): None}  # fmt: skip
    rows = tables.ranked(leaves, "balanced_accuracy")
    assert rows["attack"].tolist() == ["rmia", "rmia", "loss", "gap"]
    assert rows["refused"].iloc[-1] == "no threshold was transferred"


def test_classes_come_most_leaking_first_with_an_interval_that_holds_at_the_ends() -> None:
    frame = pd.concat([attack_scores(k, 8, 6, shift).assign(label=k) for k, shift in enumerate((0.0, 9.0, 1.0))])
    frame = pd.concat([frame, attack_scores(9, 5, 0).assign(label=9)])
    rows = tables.class_leaks(frame, 4.0)
    assert rows["label"].iloc[0] == 1 and set(rows["label"]) == {0, 1, 2}
    top = rows.iloc[0]
    assert top["value"] == 1.0 and 0.5 < top["low"] < 0.95 and top["high"] == pytest.approx(1.0)
    assert not len(tables.class_leaks(frame, None))


def test_reasons_are_the_largest_contributions_first() -> None:
    table = pd.DataFrame({"feature": ["morf_0", "morf_1", "loss"], "order": ["morf", "morf", None],
                          "level": [0.0, 0.1, np.nan]})  # fmt: skip
    found = tables.reasons({"morf_0": 0.0, "morf_1": -2.0, "loss": 1.0, "index": 7}, table)
    assert found["feature"].tolist() == ["morf_1", "loss"]
    # the untouched confidence, which both orders begin with, is one feature
    twice = pd.DataFrame({"feature": ["morf_0", "lerf_0", "loss"], "order": ["morf", "lerf", None],
                          "level": [0.0, 0.0, np.nan]})  # fmt: skip
    one = tables.reasons({"morf_0": 0.5, "lerf_0": 0.75, "loss": 1.0}, twice)
    assert one["contribution"].tolist() == [1.25, 1.0] and one["level"].iloc[0] == 0 and one["order"].iloc[0] is None
    assert len(tables.reasons({"morf_1": -2.0, "loss": 1.0}, table, most=1)) == 1


def feature_table(merged: bool) -> pd.DataFrame:
    """features.parquet as it was stored before the untouched confidence was one feature, and as it is since."""
    rows = [
        ("morf_0", "morf", 0.0, True, 0.04),
        ("morf_1", "morf", 0.1, True, 0.01),
        ("lerf_0", "lerf", 0.0, True, 0.03),
        ("lerf_1", "lerf", 0.1, False, 0.0),
        ("loss", None, np.nan, True, 0.02),
        ("predicted", None, np.nan, True, -0.01),
    ]
    frame = pd.DataFrame(rows, columns=["feature", "order", "level", "kept", "importance"])
    if not merged:
        return frame
    frame = frame[frame["feature"] != "lerf_0"].reset_index(drop=True)
    frame.loc[0, ["feature", "order", "importance"]] = ["confidence", None, 0.06]
    return frame.assign(importance_low=frame["importance"] - 0.015, importance_high=frame["importance"] + 0.015)


@pytest.mark.parametrize("merged", [False, True])
def test_the_untouched_confidence_is_one_feature_of_neither_order(merged: bool) -> None:
    made = tables.attack_features(feature_table(merged))
    untouched = made[made["level"] == 0]
    assert len(untouched) == 1 and untouched["order"].isna().all()
    assert untouched["importance"].iloc[0] == pytest.approx(0.06 if merged else 0.07)
    assert len(made) == 5 and (made["level"] > 0).sum() == 2


def test_worth_is_clear_where_its_interval_lies_above_nothing() -> None:
    new = tables.feature_worth(feature_table(True))
    assert new["feature"].tolist() == ["confidence", "loss", "morf_1", "predicted"]
    assert new["clear"].tolist() == [True, True, False, False]
    old = tables.feature_worth(feature_table(False))
    assert old["clear"].tolist() == [True, True, True, False] and old["low"].isna().all()
