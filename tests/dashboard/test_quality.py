"""The page Quality: scores of maps beside both controls, their curves, single images, and the images changed most."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import combine_pvalues
from streamlit.testing.v1 import AppTest

from dashboard import quality_words, words
from tests.dashboard import synthetic
from tests.dashboard.conftest import Open, charts, texts
from tests.dashboard.engines import FakeEngine
from tier import experiment, figures, presets, summary, tables
from tier.config import FAITHFULNESS, LOCALISATION, QUALITY_METRICS
from tier.presets import Preset
from tier.store import Store

ROOT = Path(__file__).parents[2]
ENDS = ("", "_low", "_high")


def scores(seed: int = 0, n: int = 80, lead: float = 0.3) -> pd.DataFrame:
    """A made-up `quality/scores.parquet` with one metric that is `lead` above noise and level with the edges."""
    rng = np.random.default_rng(seed)
    made = pd.DataFrame({"index": np.arange(n) * 3, "member": np.arange(n) % 2 == 0, "label": 0, "correct": True})
    made["sufficiency"] = rng.normal(lead, 0.2, n)
    made["sufficiency_random"] = rng.normal(0, 0.2, n)
    made["sufficiency_edges"] = made["sufficiency"] + rng.normal(0, 0.2, n)
    made.loc[3, "sufficiency"] = np.nan
    return made


# ---- tables


def test_the_table_is_that_of_the_command_line(full_store: Path, preset: Preset) -> None:
    made = {(name, view): of for name, views in summary.quality(Store(full_store), preset).items()
            for view, of in views.items()}  # fmt: skip
    frames: dict[tuple[str, str], dict[int, pd.DataFrame]] = {}
    for defense, explainer, seed, e in summary.quality_runs(preset, seeds=preset.seeds):
        if (found := experiment.find(Store(full_store), "quality", e)) is not None:
            frames.setdefault((defense, explainer), {})[seed] = found.frame("scores.parquet")
    bare = {explainer: frames["none", explainer] for explainer in preset.explainers}
    first = {place: {seed: of[seed] for seed in tables.seeds_judged(place, frames)} for place, of in frames.items()}
    assert len(bare["lime"]) == 2 and all(list(of) == [0] for of in first.values())
    table = tables.quality(first, bare)
    assert {(row["model"], row["explainer"]) for row in table.to_dict("records")} == set(made)
    for row in table.to_dict("records"):
        entry = made[row["model"], row["explainer"]]
        entry = (entry if row["images"] == "all" else entry[row["images"]])[row["metric"]]
        assert row["n"] == entry["n"]
        pairs = [("mean", "interval"), ("random", "random_interval"), ("edges", "edges_interval")]
        pairs += [("change", "change_interval")] if row["model"] != "none" else []
        for ours, theirs in pairs:
            wanted = [entry[ours], *entry[theirs]]
            np.testing.assert_allclose([row[f"{ours}{end}"] for end in ENDS], wanted, rtol=1e-6, atol=1e-9)


def test_differences_are_of_the_same_images() -> None:
    frame = scores()
    row = tables.quality({("none", "lime"): {0: frame}}).query("images == 'all'").iloc[0]
    gain = (frame["sufficiency"] - frame["sufficiency_random"]).dropna()
    assert row["over_random"] == pytest.approx(gain.mean())
    assert row["n"] == len(gain) == 79
    rng = np.random.default_rng(1)
    redrawn = [gain.to_numpy()[rng.integers(79, size=79)].mean() for _ in range(2000)]
    assert row["over_random_low"] == pytest.approx(np.quantile(redrawn, 0.025), abs=0.012)
    assert row["over_random_high"] == pytest.approx(np.quantile(redrawn, 0.975), abs=0.012)


def test_seeds_are_averaged_before_their_images() -> None:
    frames = [scores(0, 80, 0.2), scores(1, 40, 0.6)]
    row = tables.quality({("none", "lime"): dict(enumerate(frames))}).query("images == 'all'").iloc[0]
    assert row["mean"] == pytest.approx(np.mean([frame["sufficiency"].mean() for frame in frames]))
    assert row["seeds"] == 2
    assert row["mean_low"] < frames[0]["sufficiency"].mean() + 0.1  # a resample may draw the first seed twice


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(0.1, 0.2, "✓ better"), (-0.1, 0.2, "✗ not better"), (-0.2, -0.1, "✗ worse"),
                                 (np.nan, np.nan, None)],
)  # fmt: skip
def test_only_an_interval_above_zero_is_better(low: float, high: float, verdict: str | None) -> None:
    assert tables.against({"over_random_low": low, "over_random_high": high}, "random") == verdict


def test_sufficiency_is_better_where_its_permutations_say_so() -> None:
    row = {"over_random_low": 0.1, "over_random_high": 0.2, "over_edges_low": 0.1, "over_edges_high": 0.2}
    assert tables.against({**row, "above": 0.2, "below": 0.8}, "random") == tables.SAME
    assert tables.against({**row, "above": 0.025, "below": 0.98}, "random") == tables.BETTER
    assert tables.against({**row, "above": 0.99, "below": 0.01}, "random") == tables.WORSE
    assert tables.against({**row, "above": 0.2, "below": 0.8}, "edges") == tables.BETTER


def test_p_values_of_seeds_are_taken_together() -> None:
    dealt = [{"all": {"above": p, "below": 1 - p, "over": 0.1, "low": 0.0, "high": 0.1}} for p in (0.1, 0.04)]
    permuted = {("none", "lime"): {seed: {**of, "members": of["all"], "nonmembers": of["all"]}
                                   for seed, of in enumerate(dealt)}}  # fmt: skip
    row = tables.quality({("none", "lime"): {0: scores(0), 1: scores(1)}}, None, permuted).iloc[0]
    assert row["above"] == pytest.approx(combine_pvalues([0.1, 0.04], "stouffer").pvalue)
    assert tables.quality({("none", "lime"): {0: scores(0)}}, None, permuted)["above"].notna().all()


def test_the_interval_of_sufficiency_is_that_of_its_pseudo_values() -> None:
    frame = scores()
    wide = frame.assign(
        sufficiency_pseudo=frame["sufficiency"] + 3 * (frame["sufficiency"] - frame["sufficiency"].mean()) + 1,
        sufficiency_edges_pseudo=frame["sufficiency_edges"],
    )
    plain, spread = (tables.quality({("none", "lime"): {0: of}}).iloc[0] for of in (frame, wide))
    assert spread["mean"] == plain["mean"]
    width = plain["mean_high"] - plain["mean_low"]
    assert spread["mean_high"] - spread["mean_low"] == pytest.approx(4 * width, rel=1e-6)
    assert spread["mean_low"] < spread["mean"] < spread["mean_high"]


def test_cells_bear_a_sign_where_noise_does_as_well_and_n_where_it_is_less() -> None:
    full = scores(lead=0.0).fillna(0.1)
    table = tables.quality({("none", "lime"): {0: scores()}, ("none", "shap"): {0: full}})
    wide = tables.quality_wide(table).set_index("explainer")["sufficiency"]
    assert wide["lime"].endswith("] n=79")
    assert wide["shap"].endswith("✗") and "n=" not in wide["shap"]


@pytest.mark.parametrize(
    ("low", "high", "noise", "verdict"),
    [(-0.1, 0.1, 0.0, tables.UNCLEAR), (0.05, 0.1, 0.06, tables.SEED), (0.05, 0.1, 0.04, tables.HIGHER),
     (-0.1, -0.05, 0.04, tables.LOWER), (-0.1, -0.05, np.nan, tables.LOWER), (np.nan, np.nan, 0.1, None)],
)  # fmt: skip
def test_a_change_counts_beyond_another_seed_only(low: float, high: float, noise: float, verdict: str | None) -> None:
    row = {"change_low": low, "change_high": high, "other_low": -noise, "other_high": noise / 2}
    assert tables.survives(row) == verdict


def test_the_undefended_model_is_shown_with_the_seeds_of_the_others() -> None:
    one = scores()
    held = {
        ("none", "lime"): {0: one, 1: one, 2: one},
        ("tier_full", "lime"): {0: one, 2: one},
        ("none", "shap"): {1: one, 2: one},
    }
    assert tables.seeds_judged(("none", "lime"), held) == [0, 2]
    assert tables.seeds_judged(("tier_full", "lime"), held) == [0, 2]
    assert tables.seeds_judged(("none", "shap"), held) == [1]  # no defended model: the first alone


def test_the_error_of_a_correlation_is_that_of_redrawn_pairs() -> None:
    rng = np.random.default_rng(0)
    for true in (0.0, 0.3):
        pairs = rng.multivariate_normal([0, 0], [[1, true], [true, 1]], size=(3000, 100))
        found = [np.corrcoef(*one.T)[0, 1] for one in pairs]
        told = tables.correlation_error(pd.Series([true]), 100).iloc[0]
        assert told == pytest.approx(np.std(found), rel=0.05)


def test_changes_are_of_images_that_both_models_have() -> None:
    first, second = scores(0), scores(1).drop(index=[7]).sample(frac=1, random_state=0)
    made = tables.quality_change(first, second, "sufficiency")
    assert len(made) == 78  # without the one missing and the one without a value
    assert made["change"].is_monotonic_increasing
    row = made.iloc[0]
    before = first.set_index("index")["sufficiency"][made.index[0]]
    assert row["before"] == before
    assert row["change"] == pytest.approx(second.set_index("index")["sufficiency"][made.index[0]] - before)


def test_sweeps_keep_what_is_not_defined_undefined() -> None:
    kept: Mapping[str, list[float | None]] = {
        "threshold": [0.2, 0.6], "mean": [None, 0.5], "neighbours": [0, 4], "alone": [1, 0]
    }  # fmt: skip
    made = tables.quality_sweeps({"none": {"map": kept, "random": kept}})
    assert made["mean"].isna().tolist() == [True, False, True, False]
    assert made["of"].tolist() == ["map", "map", "random", "random"]


# ---- figures


def drawn(full_store: Path, preset: Preset) -> pd.DataFrame:
    frames = {
        (defense, explainer): {0: experiment.find(Store(full_store), "quality", e).frame("scores.parquet")}  # type: ignore[union-attr]
        for defense, explainer, _, e in summary.quality_runs(preset, ["none", "tier_full"], ["gradient", "lime"])
    }
    bare = {explainer: of for (defense, explainer), of in frames.items() if defense == "none"}
    return tables.quality(frames, bare).query("images == 'all'")


def test_changes_are_drawn_with_their_intervals_for_defended_models_alone(full_store: Path, preset: Preset) -> None:
    table = drawn(full_store, preset)
    figure = figures.quality_changes(table, LOCALISATION)
    lines = [trace for trace in figure.data if trace.name == figures.style("tier_full").label]
    assert len(lines) == 3 and figures.style("none").label not in {trace.name for trace in figure.data}
    for metric, line in zip(LOCALISATION, lines, strict=True):
        part = table[(table["model"] == "tier_full") & (table["metric"] == metric)]
        np.testing.assert_array_equal(line.y, part["change"])
        np.testing.assert_allclose(np.asarray(line.y) + line.error_y.array, part["change_high"])


def test_curves_hold_every_value_and_both_controls(full_store: Path, preset: Preset) -> None:
    table = drawn(full_store, preset)
    figure = figures.quality_curves(table, LOCALISATION)
    for model in ("none", "tier_full"):
        lines = [trace for trace in figure.data if trace.name == figures.style(model).label]
        assert len(lines) == 3
        for metric, line in zip(LOCALISATION, lines, strict=True):
            part = table[(table["model"] == model) & (table["metric"] == metric)]
            np.testing.assert_array_equal(line.y, part["mean"])
            np.testing.assert_allclose(np.asarray(line.y) + line.error_y.array, part["mean_high"])
            assert line.marker.symbol == figures.style(model).symbol
    assert sum(trace.name == "Noise" for trace in figure.data) == 3
    assert sum(trace.name == "Edges" for trace in figure.data) == 3


def test_every_axis_of_the_profile_has_the_better_value_at_the_top() -> None:
    rows = [
        {"model": model, "metric": metric, "mean": value, "mean_low": value - 0.05, "mean_high": value + 0.05}
        for metric, values in (("sufficiency", (0.2, 0.6)), ("mse", (0.2, 0.6)))
        for model, value in zip(("none", "tier_full"), values, strict=True)
    ]
    table = pd.DataFrame(rows).assign(less=lambda frame: frame["metric"] == "mse")
    plain, defended = figures.quality_profile(table).data
    assert plain.y[0] < defended.y[0]  # more sufficiency is better
    assert plain.y[1] > defended.y[1]  # less squared error is
    for line in (plain, defended):
        assert all(0 < y < 1 for y in line.y)
        assert (np.asarray(line.error_y.array) > 0).all() and (np.asarray(line.error_y.arrayminus) > 0).all()
    # the text at an axis's ends says the value there
    texts = {note.text for note in figures.quality_profile(table).layout.annotations if note.y in (0, 1)}
    assert {"0.12", "0.68"} <= texts  # 0.15 to 0.65 with a margin


def test_the_profile_leaves_a_gap_where_a_model_has_no_score() -> None:
    rows = [("none", "sufficiency", 0.2), ("tier_full", "sufficiency", 0.3), ("tier_full", "ssim", 0.5)]
    table = pd.DataFrame([{"model": m, "metric": k, "mean": v, "mean_low": v, "mean_high": v} for m, k, v in rows])
    plain, _ = figures.quality_profile(table.assign(less=False)).data
    assert np.isnan(plain.y[1])


def test_single_images_are_all_counted_and_dashed_for_nonmembers() -> None:
    frame = scores()
    figure = figures.quality_images(frame, "sufficiency", "none")
    assert [trace.line.dash for trace in figure.data] == ["solid", "dash"] * 3
    for trace in figure.data:
        assert sum(trace.y) == pytest.approx(1.0)
    told = " ".join(str(note.text) for note in figure.layout.annotations)
    assert "(n 40)" in told and "(n 39)" in told


# ---- words


def test_the_guide_says_of_each_metric_what_the_page_says() -> None:
    text = (ROOT / "docs" / "quality.md").read_text()
    for metric, (can, cannot) in quality_words.ABILITIES.items():
        assert f"| `{metric}` | {can} | {cannot} |" in text
    assert tuple(quality_words.ABILITIES) == tuple(quality_words.MEANINGS) == QUALITY_METRICS == summary.JUDGED[:6]
    assert (*FAITHFULNESS, *LOCALISATION) == QUALITY_METRICS
    assert set(figures.QUALITY) == set(summary.JUDGED)
    assert set(figures.UNITS) == {*figures.QUALITY, *figures.SCORES}


def row(**values: Any) -> dict[str, Any]:
    """A row of `tables.quality` with made-up values where none are given."""
    names = ("mean", "random", "edges", "over_random", "over_edges", "gap", "change", "other")
    known = {f"{name}{end}": np.nan for name in names for end in ENDS}
    ends = {f"{name}{end}": value + step for name, value in values.items() if name in names
            for end, step in zip(ENDS, (0.0, -0.01, 0.01), strict=True)}  # fmt: skip
    plain = {"explainer": "lime", "metric": "mask_mass", "images": "all", "n": 400, "seeds": 1, "change_n": 400}
    return {**known, "above": np.nan, "below": np.nan, **plain, **values, **ends}


def test_verdicts_name_what_does_not_beat_noise() -> None:
    table = pd.DataFrame([
        row(model="none", explainer="lime", mean=0.6, random=0.5, edges=0.7, over_random=0.1, over_edges=-0.1),
        row(model="none", explainer="shap", mean=0.7, random=0.5, edges=0.7, over_random=0.005, over_edges=0.0, n=90),
        row(model="tier_full", explainer="shap"),
    ])  # fmt: skip
    assert quality_words.verdicts(table, "mask_mass") == {
        "none": "1 of 2 explainers are better than noise (not SHAP), 0 better than the image's edges. Highest: SHAP, "
        "0.700 "
        "on 90 of 400 images only (noise 0.500, edges 0.700).",
        "tier_full": "no map has this score.",
    }


def test_moved_is_the_mean_of_the_paired_changes() -> None:
    table = pd.DataFrame([
        row(model="none", mean=0.1), row(model="none", explainer="shap", mean=0.9),
        row(model="tier_full", mean=0.2, change=0.02), row(model="tier_full", explainer="shap", mean=0.2, change=-0.06),
    ])  # fmt: skip
    assert quality_words.moved(table, ["mask_mass"]) == (
        "Mean change from the undefended model on the same images, over the explainers. Mass on the object: TIER "
        "Full -0.020."
    )
    assert quality_words.moved(table.assign(change=np.nan), ["mask_mass"]) == (
        "Lowest and highest mean: Mass on the object 0.100 to 0.900."
    )


def test_survival_counts_clear_changes_beyond_another_seed() -> None:
    made = [row(model="tier_full", explainer=name, change=change, other=0.02)
            for name, change in (("lime", 0.2), ("shap", 0.031), ("gradcam", -0.2), ("vargrad", 0.005))]  # fmt: skip
    made.append(row(model="tier_full", metric="mask_iou", change=0.001, other=0.02))
    table = pd.DataFrame(made)
    assert quality_words.survival(table, ["mask_mass", "mask_iou"]) == {
        "tier_full": "of 5 scores 1 is clearly lower and 1 is higher. Mass on the object lower under Grad-CAM, "
        "higher under LIME, no more than another seed does "
        "under 1; IoU "
        "with the object without a clear change."
    }


def test_members_are_told_apart_where_the_interval_says_so() -> None:
    table = pd.DataFrame([row(model="none", gap=0.2), row(model="none", explainer="shap", gap=0.001)])
    assert quality_words.apart(table, ["mask_mass"]) == (
        "Members against non-members, 2 scores: members higher in 1 (most: Mass on the object, LIME, Undefended, "
        "+0.200 "
        "[+0.190, +0.210]). One in 20 would be by chance."
    )
    assert "clearly otherwise in none" in quality_words.apart(table.iloc[1:], ["mask_mass"])


def test_traps_name_threshold_images_and_chance() -> None:
    table = pd.DataFrame([
        row(model="none", metric="sufficiency", mean=0.3, random=0.041, n=174),
        row(model="tier_full", metric="sufficiency", mean=0.1, random=0.048, n=368), row(model="none", n=400),
    ])  # fmt: skip
    assert quality_words.traps(table, 0.6) == (
        "**Before reading Sufficiency.** Threshold 0.6 of the largest distance between two maps. Images without a "
        "near map "
        "have none; of 400 are left, at least: LIME Undefended 174 and LIME TIER Full 368. Chance is 0.041 to 0.048, "
        "depending on the model, so that leads over it are what compares."
    )
    assert quality_words.traps(table.iloc[2:], 0.6) == ""


def axes(*rows: tuple[str, str, float]) -> pd.DataFrame:
    return pd.DataFrame([
        {"model": model, "metric": metric, "mean": at, "mean_low": at - 0.01, "mean_high": at + 0.01,
         "less": metric == "mse"}
        for model, metric, at in rows
    ])  # fmt: skip


def test_the_profile_counts_clear_leads_on_axes_that_all_models_have() -> None:
    table = axes(
        ("none", "mask_mass", 0.5), ("tier_full", "mask_mass", 0.6), ("tier_reg", "mask_mass", 0.51),  # clear
        ("none", "mask_iou", 0.5), ("tier_full", "mask_iou", 0.51), ("tier_reg", "mask_iou", 0.4),  # not clear
        ("tier_full", "ssim", 0.9), ("tier_reg", "ssim", 0.1),  # the undefended model has none
        ("random", "mask_mass", 0.5), ("random", "mask_iou", 0.2),
    )  # fmt: skip
    assert quality_words.profile(table, "lime") == (
        "LIME: of 2 axes that all models have, the interval is highest and apart from all others for TIER Full on 1. "
        "At or "
        "below its control at least once: Undefended."
    )
    lone = quality_words.profile(axes(("none", "mask_mass", 0.5)), "lime")
    assert lone == "LIME: one model. No value is at or below its control."
    less = axes(("none", "mse", 0.5), ("tier_full", "mse", 0.1))
    assert "TIER Full on 1" in quality_words.profile(less, "lime")


def test_the_sweep_says_what_each_threshold_gives() -> None:
    kept: dict[str, list[float | None]] = {
        "threshold": [0.2, 0.6], "mean": [None, 0.5], "neighbours": [0.0, 4.0], "alone": [1.0, 0.25]
    }  # fmt: skip
    table = tables.quality_sweeps({"none": {"map": kept}, "tier_full": {"map": kept | {"mean": [None, None]}}})
    assert quality_words.sweep(table, {"none": 0.05, "tier_full": 0.05}, 0.6) == {
        "none": "0.500 at threshold 0.6; 0.500 to 0.500 over the thresholds shown; 0.050 if maps tell nothing; 25 of "
        "100 "
        "images have no neighbour there.",
        "tier_full": "no threshold shown gives any image a neighbour.",
    }


def test_single_images_are_summed_up_with_the_error_of_their_draws() -> None:
    frame = pd.DataFrame({"member": [True, True, False, False], "faithfulness_correlation": [0.1, 0.3, 0.1, 0.1]})
    frame = frame.assign(faithfulness_correlation_random=0.2, faithfulness_correlation_edges=np.nan)
    gap = row(model="none", gap=0.1)
    text = quality_words.images(frame, "faithfulness_correlation", "none", gap, 100)
    assert text == (
        "Nine in ten images lie between 0.100 and 0.270, the median is 0.100. The map is above noise in 25 of 100 "
        "images. "
        "Mean of members 0.200, of non-members 0.100, difference +0.100 [+0.090, +0.110]. One image's value has a "
        "standard "
        "error of 0.10 from its 100 random sets alone, which makes 95 of 100 parts of the variance shown."
    )
    assert "standard error" not in quality_words.images(
        frame.rename(columns=lambda name: name.replace("correlation", "estimate")), "faithfulness_estimate", "none"
    )
    void = frame.assign(faithfulness_correlation=np.nan)
    assert quality_words.images(void, "faithfulness_correlation", "none").startswith("No image has a Faithfulness")


def test_a_change_says_of_which_images_the_largest_are_shown() -> None:
    table = pd.DataFrame({"change": [-0.2, 0.1, 0.4]})
    assert quality_words.change(table, "mask_mass", "tier_full", 2) == (
        "From the undefended map to that of TIER Full 1 of 3 images lose Mass on the object, 2 gain; the mean "
        "changes by "
        "+0.100. Shown are those that change most of the 2 whose maps are kept, not of all 3."
    )
    assert quality_words.change(table.head(0), "mask_mass", "none", 0).startswith("No image has")


def test_a_card_shows_the_error_of_a_single_correlation() -> None:
    shown = {"change": 0.2, "before": 0.1, "after": 0.3}
    of = {"faithfulness_correlation_random": 0.01, "mask_mass_random": np.nan}
    assert quality_words.card(shown, of, of, "faithfulness_correlation", 100) == [
        "**+0.200** ± 0.14", "undefended 0.100 ± 0.10 (noise 0.010)", "defended 0.300 ± 0.09 (noise 0.010)"
    ]  # fmt: skip
    assert quality_words.card(shown, of, of, "mask_mass", 100) == ["**+0.200**", "undefended 0.100", "defended 0.300"]


# ---- the page


def test_the_page_shows_every_metric_beside_both_controls(open_page: Open, full_store: Path) -> None:
    for metric in quality_words.ABILITIES:
        test = open_page("quality", full_store, metric=figures.QUALITY[metric])
        assert not test.exception and not test.error and not test.warning
        shown = test.dataframe[0].value
        assert len(shown) == 4 * 8
        assert set(shown["noise"].dropna()) <= {tables.BETTER, tables.SAME, tables.WORSE}
        assert set(shown.loc[shown["explainer"] == "LIME", "noise"]) <= {tables.SAME, tables.WORSE}
        assert quality_words.ability(metric) in texts(test)


def test_every_chart_owes_the_reader_the_same(open_page: Open, full_store: Path) -> None:
    test = open_page("quality", full_store, metric="Sufficiency")
    found = charts(test)
    assert len(found) == 6  # what survives, thresholds, Fig. 5, localisation, profile, single images
    for chart in found:
        assert len(chart.alt) > 40 and any(digit in chart.alt for digit in "0123456789")
    lines = [caption.value for caption in test.caption if "data: signs" in caption.value]
    assert len(lines) == len(found) + 2  # the table and the triplets
    assert all("members and" in line and "seed" in line for line in lines)
    assert len([button for button in test.get("download_button") if "CSV" in button.proto.label]) == len(lines)
    assert "threshold 0.6, distance seuclidean" in texts(test)
    assert "have no score" in texts(test)  # the notes
    assert "The paper's Table VI counts less Sufficiency as better" in texts(test)


def test_an_address_reopens_the_view(open_page: Open, full_store: Path) -> None:
    query: dict[str, Any] = {"metric": "Mass on the object", "explainer": "SHAP", "judged": ["Undefended", "TIER Full"],
                             "maps_of": "TIER Full", "changed_by": "TIER Full"}  # fmt: skip
    test = open_page("quality", full_store, **query)
    assert not test.warning
    assert set(test.dataframe[0].value["model"]) == {"Undefended", "TIER Full"}
    assert "SHAP: all scores at once" in texts(test)
    wrong = open_page("quality", full_store, metric="Beauty")
    assert "Beauty" in "".join(str(element.value) for element in wrong.warning)


def test_triplets_are_the_images_changed_most_and_lead_to_sample(
    open_page: Open, full_store: Path, preset: Preset
) -> None:
    test = open_page("quality", full_store, explainer="SmoothGrad")
    frames = [
        experiment.find(Store(full_store), "quality", preset.run(name).set({"explain.name": "smoothgrad"}))
        for name in ("none", "tier_full")
    ]
    first, second = (found.frame("scores.parquet") for found in frames if found is not None)
    change = tables.quality_change(first, second, "faithfulness_correlation")
    lost, gained = change[change["change"] < 0], change[change["change"] > 0]
    wanted = [*lost.index[:3], *gained.index[-3:][::-1]]
    links = [link.proto.query_string for link in test.get("page_link") if link.proto.page == "sample"]
    assert [int(part.split("=")[1]) for link in links for part in link.split("&") if part.startswith("row=")] == wanted
    assert all("explainer=SmoothGrad" in link for link in links)
    said = [caption.value for caption in test.caption if "(noise" in str(caption.value)]
    assert [float(text[2:8]) for text in said] == [pytest.approx(change["change"][row], abs=6e-4) for row in wanted]


def test_without_masks_the_page_says_why(open_page: Open, tmp_path: Path) -> None:
    store = Store(tmp_path / "bare")
    preset = synthetic.pinned(store, presets.get("signs"))
    synthetic.add_qualities(store, preset, masks=False)
    test = open_page("quality", tmp_path / "bare")
    assert "Not shown: the data set has no masks." in texts(test)
    assert "Pointing game" not in test.selectbox(key="metric").options
    assert len(charts(test)) == 4
    assert not test.get("imgs")  # no maps are kept: offered instead
    assert "compute_gallery" in {button.key for button in test.button}


def test_what_is_not_stored_is_offered(open_page: Open, tmp_path: Path, engine: FakeEngine) -> None:
    store = Store(tmp_path / "some")
    preset = synthetic.pinned(store, presets.get("signs"))
    for name in ("none", "tier_full"):
        synthetic.add_quality(store, preset.run(name).set({"explain.name": "shap"}))
    test = open_page("quality", tmp_path / "some")
    assert not test.exception
    assert set(test.dataframe[0].value["explainer"]) == {"SHAP"}
    test.button(key="compute_quality").click().run()
    assert not test.exception
    assert {job.stage for job in engine.jobs()} == {"quality"}


def test_defenses_that_are_not_judged_are_named_and_can_be_computed(
    open_page: Open, full_store: Path, preset: Preset, engine: FakeEngine
) -> None:
    test = open_page("quality", full_store)
    rivals = [rival.name for rival in preset.rivals]
    assert f"Not stored for any explainer: {', '.join(map(words.label, rivals))}." in texts(test)
    assert f"--compute --defense {rivals[0]} --explainer gradient" in "".join(str(code.value) for code in test.code)
    test.button(key="compute_unjudged").click().run()
    assert not test.exception
    one = synthetic.pinned(Store(full_store), preset).run(rivals[0]).set({"explain.name": "gradient"})
    assert [job.key for job in engine.jobs()] == [experiment.key("quality", one)]


def test_the_default_view_warns_of_sufficiency_and_says_what_survives(open_page: Open, full_store: Path) -> None:
    shown = texts(open_page("quality", full_store))
    assert "Do the explanations survive?" in shown and "Before reading Sufficiency." in shown
    assert "What was left out, Gradient:" in shown
    assert shown.count("The paper's Table VI counts less Sufficiency as better") >= 2
    assert "Lost most** of the" in shown and "Members against non-members" in shown


def test_a_preset_without_scores_names_the_command(open_page: Open, empty_store: Path) -> None:
    test = open_page("quality", empty_store)
    assert "python -m tier quality signs --compute" in "".join(str(code.value) for code in test.code)
    assert quality_words.ability("sufficiency") in texts(test)


def test_charts_are_valid_for_the_browser(open_page: Open, full_store: Path) -> None:
    test: AppTest = open_page("quality", full_store, metric="Sufficiency")
    for chart in charts(test):
        assert json.loads(chart.spec)["data"]
