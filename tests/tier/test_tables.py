"""Tables restate results without changing a number, and choose rivals by the rule they state."""

import numpy as np
import pandas as pd
import pytest

from tier import tables
from tier.config import Defense, Experiment, Tier, Train


def experiment(name: str = "none", lam: float = 7.0, beta: float = 0.3, seed: int = 0) -> Experiment:
    tier = Tier(**{"lambda": lam, "beta": beta})
    return Experiment(defense=Defense(name=name, tier=tier), train=Train(seed=seed, epochs=30))  # type: ignore[arg-type]


def metrics(test: float = 0.6, leak: float = 0.8, width: float = 0.02) -> dict[str, float]:
    return {
        "train_accuracy": 0.99, "test_accuracy": test, "audit_balanced_accuracy": leak, "audit_auc": leak + 0.05,
        "audit_balanced_accuracy_low": leak - width, "audit_balanced_accuracy_high": leak + width,
        "gap_balanced_accuracy": 0.7, "loss_auc": 0.75, "seconds_per_epoch": 1.0, "epochs": 30,
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


def test_runs_keep_one_row_per_key_and_mark_the_headline() -> None:
    twice = tables.runs([tables.run("a", experiment(), metrics())] * 2, headline=["a"])
    assert len(twice) == 1
    assert twice["headline"].all()
    assert tables.runs([]).empty


def test_a_refused_metric_stays_unknown() -> None:
    row = tables.run("a", experiment(), {"test_accuracy": 0.5, "audit_balanced_accuracy": None})
    made = tables.runs([row])
    assert np.isnan(made["leak"].iloc[0])
    assert made["test_accuracy"].iloc[0] == 0.5


def test_summary_is_the_mean_and_range_over_seeds() -> None:
    made = tables.summary(frame()).set_index("model")
    assert made.loc["none", "seeds"] == 2
    assert made.loc["none", "leak"] == pytest.approx(0.89)
    assert (made.loc["none", "leak_min"], made.loc["none", "leak_max"]) == (0.88, 0.90)
    assert made.loc["tier_full", "seeds"] == 1  # the grid point is no headline run
    assert tables.summary(tables.runs([])).empty


def stopped() -> pd.DataFrame:
    full = pd.DataFrame({
        "epoch": [1, 2, 3, 4], "test_accuracy": [0.3, 0.49, 0.515, 0.6], "train_accuracy": 0.5,
        "audit_balanced_accuracy": [np.nan, 0.57, 0.65, 0.9],
    })  # fmt: skip
    return tables.path("none", 0, full)


def test_a_path_keeps_only_audited_epochs() -> None:
    made = stopped()
    assert made["epoch"].tolist() == [2, 3, 4]
    assert list(made.columns) == list(tables.PATH_COLUMNS)
    assert tables.paths([]).empty
    assert len(tables.paths([made, made])) == 6


def test_matching_finds_the_least_and_most_leaking_rival_of_equal_accuracy() -> None:
    runs = frame()
    rivals = tables.alternatives(runs, stopped())
    assert len(rivals) == 2 + 3
    made = tables.matched(runs, rivals).set_index("lambda")
    row = made.loc[7.0]  # accuracy 0.50, leak 0.60: epochs 2 (0.49) and 3 (0.515) are within two points
    assert row["rivals"] == 2
    assert row["best"] == "Undefended, stopped after epoch 2, seed 0"
    assert row["best_leak"] == 0.57
    assert row["worst_leak"] == 0.65
    assert row["advantage"] == pytest.approx(-0.03)  # early stopping leaks less here, and the table says so
    alone = made.loc[9.0]
    assert alone["rivals"] == 0
    assert pd.isna(alone["best"])
    assert pd.isna(alone["advantage"])


def rival(accuracy: float, leak: float) -> pd.DataFrame:
    row = {
        "text": "x",
        "model": "none",
        "test_accuracy": accuracy,
        "leak": leak,
        "low": leak - 0.02,
        "high": leak + 0.02,
    }
    return pd.DataFrame([row])


def test_the_tolerance_includes_its_edge() -> None:
    runs = frame()
    rivals = pd.DataFrame(
        {"text": ["x"], "model": "none", "test_accuracy": [0.52], "leak": [0.7], "low": 0.68, "high": 0.72}
    )
    made = tables.matched(runs, rivals, tolerance=0.02)
    assert made.set_index("lambda").loc[7.0, "rivals"] == 1
    assert made.set_index("lambda").loc[7.0, "clear"]


def test_intervals_that_overlap_are_not_called_clear() -> None:
    runs = frame()
    rivals = pd.DataFrame(
        {"text": ["x"], "model": "none", "test_accuracy": [0.5], "leak": [0.62], "low": 0.60, "high": 0.64}
    )
    made = tables.matched(runs, rivals).set_index("lambda")
    assert not made.loc[7.0, "clear"]
    unknown = tables.matched(runs, rivals.assign(low=np.nan)).set_index("lambda")
    assert unknown.loc[7.0, "clear"] is None or pd.isna(unknown.loc[7.0, "clear"])


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
    first, third = tables.PAPER_DIVERGENCE["none"], tables.PAPER_DIVERGENCE["tier_full"]
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
