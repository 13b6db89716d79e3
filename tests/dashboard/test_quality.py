"""The page Quality: scores of maps beside both controls, their curves, single images, and the images changed most."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from dashboard import quality, quality_words
from tests.dashboard import synthetic
from tests.dashboard.conftest import Open, charts, texts
from tests.dashboard.engines import FakeEngine
from tier import experiment, figures, presets, summary, tables
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
    frames = {
        (defense, explainer): [found.frame("scores.parquet")]
        for defense, explainer, _, e in summary.quality_runs(preset)
        if (found := experiment.find(Store(full_store), "quality", e)) is not None
    }
    table = tables.quality(frames)
    assert {(row["model"], row["explainer"]) for row in table.to_dict("records")} == set(made)
    for row in table.to_dict("records"):
        entry = made[row["model"], row["explainer"]]
        entry = (entry if row["images"] == "all" else entry[row["images"]])[row["metric"]]
        assert row["n"] == entry["n"]
        for ours, theirs in (("mean", "interval"), ("random", "random_interval"), ("edges", "edges_interval")):
            wanted = [entry[ours], *entry[theirs]]
            np.testing.assert_allclose([row[f"{ours}{end}"] for end in ENDS], wanted, rtol=1e-6, atol=1e-9)


def test_differences_are_of_the_same_images() -> None:
    frame = scores()
    row = tables.quality({("none", "lime"): [frame]}).query("images == 'all'").iloc[0]
    gain = (frame["sufficiency"] - frame["sufficiency_random"]).dropna()
    assert row["over_random"] == pytest.approx(gain.mean())
    assert row["n"] == len(gain) == 79
    rng = np.random.default_rng(1)
    redrawn = [gain.to_numpy()[rng.integers(79, size=79)].mean() for _ in range(2000)]
    assert row["over_random_low"] == pytest.approx(np.quantile(redrawn, 0.025), abs=0.012)
    assert row["over_random_high"] == pytest.approx(np.quantile(redrawn, 0.975), abs=0.012)


def test_seeds_are_averaged_before_their_images() -> None:
    frames = [scores(0, 80, 0.2), scores(1, 40, 0.6)]
    row = tables.quality({("none", "lime"): frames}).query("images == 'all'").iloc[0]
    assert row["mean"] == pytest.approx(np.mean([frame["sufficiency"].mean() for frame in frames]))
    assert row["seeds"] == 2
    assert row["mean_low"] < frames[0]["sufficiency"].mean() + 0.1  # a resample may draw the first seed twice


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(0.1, 0.2, "✓ better"), (-0.1, 0.2, "✗ not better"), (-0.2, -0.1, "✗ worse"),
                                 (np.nan, np.nan, None)],
)  # fmt: skip
def test_only_an_interval_above_zero_is_better(low: float, high: float, verdict: str | None) -> None:
    assert tables.against({"over_random_low": low, "over_random_high": high}, "random") == verdict


def test_cells_bear_a_sign_where_noise_does_as_well() -> None:
    table = tables.quality({("none", "lime"): [scores()], ("none", "shap"): [scores(lead=0.0)]})
    wide = tables.quality_wide(table).set_index("explainer")["sufficiency"]
    assert "✗" not in wide["lime"]
    assert wide["shap"].endswith("✗")


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
        (defense, explainer): [experiment.find(Store(full_store), "quality", e).frame("scores.parquet")]  # type: ignore[union-attr]
        for defense, explainer, _, e in summary.quality_runs(preset, ["none", "tier_full"], ["gradient", "lime"])
    }
    return tables.quality(frames).query("images == 'all'")


def test_curves_hold_every_value_and_both_controls(full_store: Path, preset: Preset) -> None:
    table = drawn(full_store, preset)
    figure = figures.quality_curves(table, quality.LOCALISATION)
    for model in ("none", "tier_full"):
        lines = [trace for trace in figure.data if trace.name == figures.style(model).label]
        assert len(lines) == 3
        for metric, line in zip(quality.LOCALISATION, lines, strict=True):
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
    assert tuple(quality_words.ABILITIES) == (*quality.FAITHFULNESS, *quality.LOCALISATION) == summary.JUDGED[:6]
    assert set(figures.QUALITY) == set(summary.JUDGED)
    assert set(figures.UNITS) == {*figures.QUALITY, *figures.SCORES}


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
    assert len(found) == 5  # thresholds, Fig. 5, localisation, profile, single images
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
    wanted = [*change.index[:3], *change.index[-3:][::-1]]
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
    assert len(charts(test)) == 3
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


def test_a_preset_without_scores_names_the_command(open_page: Open, empty_store: Path) -> None:
    test = open_page("quality", empty_store)
    assert "python -m tier quality signs --compute" in "".join(str(code.value) for code in test.code)
    assert quality_words.ability("sufficiency") in texts(test)


def test_charts_are_valid_for_the_browser(open_page: Open, full_store: Path) -> None:
    test: AppTest = open_page("quality", full_store, metric="Sufficiency")
    for chart in charts(test):
        assert json.loads(chart.spec)["data"]
