"""Figures say what DESIGN's "Look" promises: colour is the model, dash is membership, labels never touch."""

import re

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from tier import figures, tables

LEVELS = np.arange(10) / 10


def curves(models: tuple[str, ...] = ("none", "tier_full")) -> pd.DataFrame:
    rows = []
    for shift, model in enumerate(models):
        for member in (True, False):
            mean = 0.9 - 0.05 * shift - 0.1 * (not member) - 0.6 * LEVELS
            part = pd.DataFrame({"level": LEVELS, "mean": mean, "low": mean - 0.02, "high": mean + 0.02, "n": 500})
            rows.append(part.assign(model=model, member=member))
    return pd.concat(rows, ignore_index=True)


def differences(models: tuple[str, ...] = ("none", "tier_full")) -> pd.DataFrame:
    rows = []
    for shift, model in enumerate(models):
        value = np.full(10, 0.1 / (1 + shift))
        part = pd.DataFrame({"level": LEVELS, "difference": value, "low": value - 0.03, "high": value + 0.03})
        rows.append(part.assign(model=model, null_low=-0.02 - 0.01 * shift, null_high=0.02 + 0.01 * shift))
    return pd.concat(rows, ignore_index=True)


def lines(figure: go.Figure) -> list[go.Scatter]:
    return [trace for trace in figure.data if trace.name]


def test_colour_is_the_model_and_dash_is_membership() -> None:
    figure = figures.trajectories(curves(), differences(), "morf")
    drawn = {trace.name: trace for trace in lines(figure) if "," in trace.name}
    assert len(drawn) == 4
    for model in ("none", "tier_full"):
        look = figures.style(model)
        member, other = drawn[f"{look.label}, members"], drawn[f"{look.label}, non-members"]
        assert member.line.color == other.line.color == look.colour
        assert (member.line.dash, other.line.dash) == ("solid", "dash")
        assert member.marker.symbol == look.symbol
        assert other.marker.symbol == f"{look.symbol}-open"


def test_every_model_has_its_own_colour_and_marker() -> None:
    looks = list(figures.STYLES.values())
    own = ("none", "augmentation", "tier_reg", "tier_full", "control")  # rivals share colours, never a marker
    assert len({figures.style(name).colour for name in own}) == len(own)
    assert len({look.symbol for look in looks}) == len(looks)
    assert all(look.symbol in figures.GLYPHS for look in looks)
    palette = {"#D55E00", "#009E73", "#CC79A7", "#0072B2", "#E69F00", "#56B4E9", "#F0E442"}
    assert {look.colour for look in looks} <= palette  # Okabe-Ito without black
    assert figures.style("none").colour == "#D55E00"
    assert figures.style("tier_full").colour == "#0072B2"


def test_lines_carry_the_numbers_they_were_given() -> None:
    frame = curves()
    figure = figures.trajectories(frame, differences(), "morf")
    trace = next(t for t in lines(figure) if t.name == "Undefended, members")
    wanted = frame[(frame["model"] == "none") & frame["member"]]["mean"]
    np.testing.assert_allclose(trace.y, wanted)


def test_bands_run_up_the_high_side_and_back_along_the_low_side() -> None:
    frame = curves(("none",))
    figure = figures.trajectories(frame, differences(("none",)), "morf")
    band = figure.data[0]
    member = frame[frame["member"]]
    assert band.fill == "toself"
    np.testing.assert_allclose(band.y, np.concatenate([member["high"], member["low"][::-1]]))


def test_the_null_band_covers_every_model_shown() -> None:
    frame = differences()
    figure = figures.trajectories(curves(), frame, "morf")
    grey = [t for t in figure.data if t.fillcolor and t.fillcolor.startswith("rgba(128")]
    assert len(grey) == 1
    assert max(grey[0].y) == pytest.approx(frame["null_high"].max())
    assert min(grey[0].y) == pytest.approx(frame["null_low"].min())


def test_the_figure_says_what_its_bands_are_and_which_pixels_go_first() -> None:
    for order, word in (("morf", "most important"), ("lerf", "least important")):
        figure = figures.trajectories(curves(), differences(), order)
        text = " ".join(str(a.text) for a in figure.layout.annotations)
        assert "95 % bootstrap interval" in text
        assert "shuffled memberships" in text
        assert word in figure.layout.xaxis2.title.text


def test_direct_labels_do_not_touch() -> None:
    frame = curves(("none", "augmentation", "tier_reg", "tier_full", "control"))
    frame["mean"] = 0.5  # all ten lines end on one point
    figure = figures.trajectories(frame, differences(("none",)), "morf")
    shown = [a for a in figure.layout.annotations if a.showarrow and a.yref == "y"]
    assert len(shown) == 10
    offsets = np.sort([a.ay for a in shown])
    assert np.diff(offsets).min() >= figures.LABEL_PIXELS - 1e-6


def grid(names: tuple[str, ...], models: tuple[str, ...] = ("none", "tier_full")) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Curves and gaps of several explainers; under the last one the gap grows no further than chance makes it."""
    frame = pd.concat([curves(models).assign(explainer=name) for name in names], ignore_index=True)
    gaps = [
        {
            "explainer": name,
            "model": model,
            "growth": 0.1 + 0.01 * i,
            "grown": name != names[-1],
        }
        for name in names
        for i, model in enumerate(models)
    ]
    return frame, pd.DataFrame(gaps)


def test_the_grid_has_a_panel_for_each_explainer_on_one_scale() -> None:
    names, models = tuple(reversed(figures.EXPLAINERS)), ("none", "none", "tier_full", "tier_full")
    figure = figures.trajectory_grid(*grid(names), "lerf")
    titles = [a.text.split("<br>")[0] for a in figure.layout.annotations if "domain" in str(a.xref)]
    assert titles == [f"<b>{label}</b>" for label in figures.EXPLAINERS.values()]  # in one order, whatever the input's
    axes = [name for name in figure.to_dict()["layout"] if name.startswith("yaxis")]
    assert len(axes) == 8
    assert len({tuple(figure.layout[name].range) for name in axes}) == 1
    for name in (f"x{i or ''}" for i in (0, 2, 3, 4, 5, 6, 7, 8)):
        drawn = [trace for trace in lines(figure) if trace.xaxis == name]
        assert [trace.line.dash for trace in drawn] == ["solid", "dash"] * 2
        assert [trace.line.color for trace in drawn] == [figures.style(m).colour for m in models]
    assert "least important" in " ".join(str(a.text) for a in figure.layout.annotations)


def test_the_grid_draws_the_numbers_it_was_given() -> None:
    frame, gaps = grid(("gradient", "lime"))
    frame.loc[frame["explainer"] == "lime", ["mean", "low", "high"]] -= 0.2
    figure = figures.trajectory_grid(frame, gaps, "morf")
    for number, name in enumerate(("gradient", "lime")):
        wanted = frame[(frame["explainer"] == name) & (frame["model"] == "none") & ~frame["member"]]["mean"]
        trace = next(t for t in lines(figure) if t.name == "Undefended, non-members" and t.xaxis == ("x", "x2")[number])
        np.testing.assert_allclose(trace.y, wanted)


def test_the_grid_brackets_what_chance_could_make() -> None:
    figure = figures.trajectory_grid(*grid(("gradient", "lime")), "morf")
    below = [a.text.split("<br>")[1] for a in figure.layout.annotations if "domain" in str(a.xref)]
    assert "+0.10" in below[0]
    assert "+0.11" in below[0]
    assert "(+0.10)" not in below[0]
    assert "(+0.10)" in below[1]
    assert "(+0.11)" in below[1]
    frame, gaps = grid(("gradient",))
    figure = figures.trajectory_grid(frame, gaps.assign(growth=[-0.001, -0.2], grown=False), "morf")
    (text,) = [a.text.split("<br>")[1] for a in figure.layout.annotations if "domain" in str(a.xref)]
    assert "(+0.00)" in text
    assert "(-0.20)" in text
    figure = figures.trajectory_grid(*grid(("gradient", "lime")), "morf")
    assert "none beyond chance" in " ".join(str(a.text) for a in figure.layout.annotations)


def test_many_models_numbers_stand_in_lines_that_fit_half_a_phone() -> None:
    models = tuple(figures.STYLES)
    two, five = (figures.trajectory_grid(*grid(("gradient", "lime"), models[:n]), "morf") for n in (2, 5))
    for figure, lines_below in ((two, 1), (five, 3)):
        for note in figure.layout.annotations[:2]:
            below = note.text.split("<br>")[1:]
            assert len(below) == lines_below
            assert all(line.count("+") <= 2 for line in below)
    assert five.layout.height - two.layout.height >= 2 * figures.LABEL_PIXELS  # the lines have room
    key = five.layout.annotations[-1].text.split("<br>")
    assert [sum(figures.style(model).label in line for model in models) for line in key if "TIER" in line] == [3, 2]


@pytest.mark.parametrize("columns", [2, 4])
@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_the_grid_takes_any_number_of_explainers(count: int, columns: int) -> None:
    figure = figures.trajectory_grid(*grid(tuple(figures.EXPLAINERS)[:count]), "morf", columns)
    axes = [name for name in figure.to_dict()["layout"] if name.startswith("xaxis")]
    assert len(axes) == count  # no empty panel
    rows = -(-count // columns)
    panel = (figure.layout.height - figure.layout.margin.t - figures.BOTTOM) * np.diff(figure.layout.yaxis.domain)[0]
    assert panel == pytest.approx(figures.GRID_PIXELS, abs=1)  # as high in one row as in four
    assert figure.layout.height < 500 * rows


@pytest.mark.parametrize("wanted", [[0.1, 0.1, 0.1], [0.0, 1.0], [], [0.95, 0.99, 1.0], [0.3, 0.2, 0.25]])
def test_spread_keeps_order_gap_and_bounds(wanted: list[float]) -> None:
    placed = figures.spread(wanted, 0.1, 0.0, 1.0)
    ordered = placed[np.argsort(wanted, kind="stable")]
    assert (np.diff(ordered) >= 0.1 - 1e-9).all()
    assert ((placed >= -1e-9) & (placed <= 1 + 1e-9)).all()


def test_spread_moves_nothing_that_has_room_and_shrinks_the_gap_when_there_is_none() -> None:
    np.testing.assert_allclose(figures.spread([0.1, 0.5, 0.9], 0.1, 0, 1), [0.1, 0.5, 0.9])
    np.testing.assert_allclose(np.sort(figures.spread([0.5] * 5, 1.0, 0, 1)), [0, 0.25, 0.5, 0.75, 1])


def profile(models: tuple[str, ...] = ("none",)) -> pd.DataFrame:
    rows = []
    for model in models:
        for member in (True, False):
            mean = np.linspace(1, 8, 7) + 0.5 * member
            part = pd.DataFrame({"level": np.arange(1, 8) / 10, "mean": mean, "sd": 2.0})
            rows.append(part.assign(model=model, member=member, low=mean - 0.1, high=mean + 0.1))
    return pd.concat(rows, ignore_index=True)


def test_divergence_draws_the_band_that_was_asked_for() -> None:
    frame = profile()
    for band, width in (("mean", 0.2), ("sd", 4.0)):
        figure = figures.divergence(frame, band)
        filled = figure.data[0]
        assert filled.y[0] - filled.y[-1] == pytest.approx(width)
    with pytest.raises(ValueError, match="mean or sd"):
        figures.divergence(frame, "range")


def events(epochs: int = 5) -> pd.DataFrame:
    return pd.DataFrame({
        "epoch": np.arange(1, epochs + 1), "train_accuracy": np.linspace(0.2, 0.9, epochs),
        "test_accuracy": np.linspace(0.2, 0.5, epochs), "gap_balanced_accuracy": np.linspace(0.5, 0.7, epochs),
        "loss_auc": np.linspace(0.5, 0.8, epochs),
    })  # fmt: skip


@pytest.mark.parametrize("epochs", [0, 1, 5])
def test_training_draws_any_number_of_epochs_and_keeps_its_axis(epochs: int) -> None:
    figure = figures.training(events(epochs), "tier_full", epochs=30)
    assert figure.layout.xaxis.range[1] == 30.5
    assert all(len(trace.x) == epochs for trace in lines(figure))


def points() -> pd.DataFrame:
    return pd.DataFrame({
        "model": ["none", "tier_full", "tier_full"], "text": ["a", "b", "c"], "test_accuracy": [0.6, 0.5, 0.4],
        "leak": [0.9, 0.6, 0.55], "low": [0.88, 0.57, np.nan], "high": [0.92, 0.63, np.nan],
        "test_low": [0.57, 0.46, 0.37], "test_high": [0.63, 0.54, 0.43],
        "headline": [True, True, False],
    })  # fmt: skip


def stopped(seeds: list[int]) -> pd.DataFrame:
    parts = [
        pd.DataFrame({"model": "none", "seed": seed, "epoch": [5, 10], "test_accuracy": [0.4 + 0.01 * seed, 0.6],
                      "leak": [0.55, 0.9], "text": [f"after {epoch}, seed {seed}" for epoch in (5, 10)]})
        for seed in seeds
    ]  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def frontier() -> pd.DataFrame:
    return pd.DataFrame({"test_accuracy": [0.4, 0.6], "leak": [0.55, 0.9]})


def test_leak_draws_runs_paths_and_the_chosen_point() -> None:
    paths = stopped([0])
    figure = figures.leak(points(), paths, frontier(), points().tail(1))
    names = [t.name for t in figure.data]
    assert "Undefended, stopped early" in names
    assert "chosen" in names
    headline = next(t for t in figure.data if t.name == "TIER Full" and t.error_y.visible)
    assert headline.error_y.array[0] == pytest.approx(0.03)
    assert headline.error_x.arrayminus[0] == pytest.approx(0.04)
    assert headline.customdata[0][0] == "b"
    assert figures.leak(points(), paths.head(0), frontier().head(0)).layout.xaxis.range is not None


def test_paths_of_several_seeds_are_lines_of_their_own() -> None:
    paths = stopped([0, 1])
    figure = figures.leak(points(), paths, frontier())
    drawn = [trace for trace in figure.data if trace.name == "Undefended, stopped early"]
    assert len(drawn) == 2
    for seed, trace in enumerate(drawn):
        np.testing.assert_allclose(trace.x, paths[paths["seed"] == seed]["test_accuracy"])
        assert f"seed {seed}" in trace.hovertemplate
    named = [a.text for a in figures.leak(points().tail(2), paths, frontier()).layout.annotations]
    assert sum("stopped early" in str(text) for text in named) == 1  # one name for both


def test_the_frontier_is_a_named_thin_line_of_steps() -> None:
    figure = figures.leak(points(), stopped([0]), frontier())
    line = next(trace for trace in figure.data if trace.name == figures.FRONTIER)
    assert line.line.shape == "vh"  # between two points the leak is that of the more accurate one
    np.testing.assert_allclose(line.x[1:], frontier()["test_accuracy"])
    np.testing.assert_allclose(line.y, [0.55, 0.55, 0.9])
    assert any(figures.FRONTIER in str(a.text) for a in figure.layout.annotations)


def test_names_in_the_plane_stand_apart_on_a_phone_and_in_a_large_window() -> None:
    models = list(tables.NAMES)
    generator = np.random.default_rng(0)
    x, y = generator.uniform(0.55, 0.62, len(models)), generator.uniform(0.55, 0.8, len(models))  # a crowd
    crowd = pd.DataFrame({
        "model": models, "text": models, "test_accuracy": x, "leak": y, "low": y - 0.02, "high": y + 0.02,
        "test_low": x - 0.03, "test_high": x + 0.03, "headline": True,
    })  # fmt: skip
    paths = stopped([0])
    figure = figures.leak(crowd, paths, frontier())
    notes = [a for a in figure.layout.annotations if a.ax is not None]
    assert [note.text.split("</span> ")[1] for note in notes] == sorted(
        (figures.style(model).label for model in models), key=[note.text.split("</span> ")[1] for note in notes].index
    )
    tall = figure.layout.height - figure.layout.margin.t - figure.layout.margin.b
    (left, right), (low, high) = figure.layout.xaxis.range, figure.layout.yaxis.range
    for width in figures.WIDTHS:
        boxes = []
        for note in notes:
            px, py = (note.x - left) / (right - left) * width + note.ax, (high - note.y) / (high - low) * tall + note.ay
            half = 3.4 * (len(note.text.split("</span> ")[1]) + 2)
            assert half - 5 <= px <= width - half + 5
            boxes.append((px - half, px + half, py))
        for i, (first, last, line) in enumerate(boxes):
            for other_first, other_last, other_line in boxes[i + 1 :]:
                assert last <= other_first or other_last <= first or abs(line - other_line) >= 15


def test_trails_are_thin_lines_in_their_order() -> None:
    trails = pd.DataFrame({"trail": "TIER Full over lambda", "model": "tier_full", "at": [0, 3, 7],
                           "test_accuracy": [0.6, 0.5, 0.4], "leak": [0.6, 0.58, 0.55]})  # fmt: skip
    figure = figures.leak(points(), stopped([0]).head(0), frontier(), trails=trails, axis="auc")
    line = next(trace for trace in figure.data if trace.name == "TIER Full over lambda")
    np.testing.assert_allclose(line.x, trails["test_accuracy"])
    assert line.line.width == 1
    assert "AUC" in figure.layout.yaxis.title.text


def test_overhead_draws_each_defense_once_on_a_log_axis() -> None:
    rows = pd.DataFrame({"model": ["augmentation", "dpsgd_tuned"], "value": [1.1, 12.0], "low": [1.0, np.nan],
                         "high": [1.2, np.nan], "text": ["a", "b"]})  # fmt: skip
    figure = figures.overhead(rows)
    assert [trace.x[0] for trace in figure.data] == [1.1, 12.0]
    assert figure.layout.xaxis.type == "log"
    low, high = figure.layout.xaxis.range
    assert low < 0 < np.log10(12.0) < high
    assert "12 ×" in [a.text for a in figure.layout.annotations]


def test_strength_curves_name_every_lambda_in_both_panels() -> None:
    events = pd.concat([
        pd.DataFrame({"lambda": lam, "epoch": [1, 2], "train_accuracy": [0.3, 0.9 - lam / 100],
                      "test_accuracy": [0.2, 0.6 - lam / 100]})
        for lam in (0.0, 7.0, 15.0)
    ])  # fmt: skip
    figure = figures.strength_curves(events)
    for lam in ("0", "7", "15"):
        assert sum(str(a.text).endswith(f"lambda {lam}") for a in figure.layout.annotations) == 2
    drawn = {trace.name: trace for trace in figure.data}
    assert drawn["lambda 7, non-members"].line.dash == "dash"
    assert drawn["lambda 7, members"].line.dash == "solid"
    np.testing.assert_allclose(drawn["lambda 7, non-members"].y, [0.2, 0.53])
    colours = [drawn[f"lambda {lam}, members"].line.color for lam in ("0", "7", "15")]
    assert len(set(colours)) == 3
    assert drawn["lambda 7, non-members"].line.color == colours[1]


def test_the_guess_hides_model_and_membership_until_they_are_revealed() -> None:
    curve = pd.DataFrame({"level": LEVELS, "confidence": 1 - LEVELS})
    hidden = figures.guess(curve)
    assert figures.style("none").colour not in hidden.to_json()
    assert hidden.data[-1].line.dash == "solid"
    assert "member" not in hidden.data[-1].name
    shown = figures.guess(curve, model="none", member=False)
    assert shown.data[-1].line.color == figures.style("none").colour
    assert shown.data[-1].line.dash == "dash"
    hint = figures.guess(curve, curves(("none",)).drop(columns="model"))
    assert any("average" in (t.name or "") for t in hint.data)
    assert hint.data[-1].name == "this image"  # the averages do not tell what the image is


def test_figures_leave_their_input_alone() -> None:
    frame, change, shape = curves(), differences(), profile()
    before = frame.copy(), change.copy(), shape.copy()
    figures.trajectories(frame, change, "lerf")
    figures.divergence(shape)
    for now, then in zip((frame, change, shape), before, strict=True):
        pd.testing.assert_frame_equal(now, then)


def test_an_unknown_model_is_grey_under_its_own_name() -> None:
    assert figures.style("new_defense") == figures.Style("new_defense", figures.GREY, "x")


# ---- one image


def image_path() -> pd.DataFrame:
    parts = [
        pd.DataFrame({"order": order, "level": LEVELS, "confidence": np.exp(-slope * LEVELS)})
        for order, slope in (("morf", 4.0), ("lerf", 1.0))
    ]
    return pd.concat(parts, ignore_index=True)


def image_means() -> pd.DataFrame:
    parts = [curves(("none",)).drop(columns="model").assign(order=order) for order in ("morf", "lerf")]
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize("level", [0.0, 0.4, 0.9])
def test_the_cursor_stands_at_the_level_on_both_curves(level: float) -> None:
    figure = figures.image_curves(image_path(), image_means(), "none", level)
    cursors = [shape for shape in figure.layout.shapes if shape.type == "line"]
    assert [(shape.x0, shape.x1) for shape in cursors] == [(level, level)] * 2
    assert [shape.xref for shape in cursors] == ["x", "x2"]


@pytest.mark.parametrize("member, dash", [(None, "dot"), (True, "solid"), (False, "dash")])
def test_an_images_line_tells_its_membership_only_when_it_is_told(member: bool | None, dash: str) -> None:
    figure = figures.image_curves(image_path(), image_means(), "tier_full", 0.2, member)
    own = [trace for trace in figure.data if trace.name == "this image"]
    assert [trace.line.dash for trace in own] == [dash] * 2
    assert list(own[0].y) == pytest.approx(list(np.exp(-4 * LEVELS)))
    assert list(own[1].y) == pytest.approx(list(np.exp(-LEVELS)))


def test_curves_of_an_image_do_without_means() -> None:
    figure = figures.image_curves(image_path(), None, "none", 0.5)
    assert [trace.name for trace in lines(figure)] == ["this image"] * 2


def test_a_third_of_the_page_is_left_to_the_curves() -> None:
    figure = figures.image_curves(image_path(), image_means(), "none", 0.5, narrow=True)
    scores = pd.DataFrame({"member": [True, False] * 20, "score": np.linspace(-3, 3, 40)})
    for made in (figure, figures.belief(scores, 0.5, "none", narrow=True)):
        assert made.layout.margin.l + made.layout.margin.r <= 64
        assert not [note for note in made.layout.annotations if note.showarrow]  # no labels beside the lines
        heading = made.layout.annotations[-1].text
        longest = max(re.sub("<[^>]*>", "", line) for line in heading.split("<br>"))
        assert len(longest) <= 36
        assert "members" in heading and "this image" in heading  # a key takes their place
        assert made.layout.xaxis.tickangle == 0
    assert (
        "members" not in figures.image_curves(image_path(), None, "none", 0.5, narrow=True).layout.annotations[0].text
    )


def test_the_beliefs_figure_counts_every_image_and_marks_one() -> None:
    generator = np.random.default_rng(0)
    scores = pd.DataFrame({"member": [True] * 300 + [False] * 100, "score": generator.normal(0, 2, 400)})
    scores.loc[0, "score"] = -100.0  # far out: counted in the outermost bin, the axis stays readable
    figure = figures.belief(scores, 1.5, "none")
    shares = {trace.name: np.sum(trace.y) for trace in lines(figure) if "members" in trace.name}
    assert shares == {"members": pytest.approx(1.0), "non-members": pytest.approx(1.0)}
    mark = next(trace for trace in figure.data if trace.name == "this image")
    assert set(mark.x) == {1.5}
    low, high = figure.layout.xaxis.range
    assert -10 < low < high < 10
    assert figures.belief(scores, -100.0, "none").data[-1].x[0] >= low


@pytest.mark.parametrize("score", [None, float("nan")])
def test_the_beliefs_figure_draws_without_a_score(score: float | None) -> None:
    scores = pd.DataFrame({"member": [True, False], "score": [0.0, 0.0]})
    assert "this image" not in {trace.name for trace in figures.belief(scores, score, "none").data}


# ---- fidelity


def fidelity_means(models: tuple[str, ...] = ("tier_full",)) -> pd.DataFrame:
    rows = []
    for model in models:
        for metric, middle in (("ssim", 0.4), ("mse", 0.05), ("cosine", 0.8), ("cosine_unscaled", 0.3)):
            for images, shift in (("all", 0.0), ("correct", 0.01)):
                for pair, at in (("pair", 0.02), ("shuffled", 0.0), ("second_seed", 0.05)):
                    mean = middle + shift + at
                    row = {"model": model, "images": images, "metric": metric, "pair": pair, "mean": mean, "n": 1000}
                    rows.append(row | {"low": mean - 0.005, "high": mean + 0.007})
    return pd.DataFrame(rows)


def test_every_mean_of_the_fidelity_stands_with_its_interval_in_its_own_panel() -> None:
    means = fidelity_means()
    figure = figures.fidelity(means)
    assert len(figure.data) == len(means) == 24
    drawn = {round(float(trace.x[0]), 6): trace for trace in figure.data}
    for row in means.to_dict("records"):
        trace = drawn[round(row["mean"], 6)]
        assert trace.error_x.array[0] == pytest.approx(0.007)
        assert trace.error_x.arrayminus[0] == pytest.approx(0.005)
        assert trace.marker.symbol.endswith("-open") == (row["images"] == "correct")
        panel = ["ssim", "mse", "cosine", "cosine_unscaled"].index(row["metric"])
        assert trace.xaxis == ("x" if panel == 0 else f"x{panel + 1}")
    text = " ".join(str(a.text) for a in figure.layout.annotations)
    assert text.count("larger: more alike") == 3
    assert text.count("smaller: more alike") == 1


def test_controls_look_like_no_defended_model() -> None:
    figure = figures.fidelity(fidelity_means(("tier_full", "augmentation")))
    colours = {trace.name: trace.marker.color for trace in figure.data}
    assert colours["TIER Full"] == figures.style("tier_full").colour
    assert colours["Shuffled, TIER Full"] == colours["Shuffled, Augmentation"] == figures.GREY
    assert colours["Second seed"] == figures.style("control").colour
    assert len(figure.layout.yaxis.ticktext) == 5  # two models, their shuffled pairs, one second seed


@pytest.mark.parametrize("order", [("tier_full", "augmentation"), ("augmentation", "tier_full")])
def test_the_second_seed_depends_on_no_defended_model(order: tuple[str, ...]) -> None:
    """Which of its images a pair gets right does, so beside several models only the mean over all images is drawn."""
    means = fidelity_means(order)
    right = (means["pair"] == "second_seed") & (means["images"] == "correct")
    means.loc[right, "mean"] += np.where(means.loc[right, "model"] == "augmentation", 0.1, 0.0)
    drawn = [trace for trace in figures.fidelity(means).data if trace.name == "Second seed"]
    assert [trace.marker.symbol for trace in drawn] == [figures.style("control").symbol] * 4
    alone = [trace for trace in figures.fidelity(fidelity_means(order[:1])).data if trace.name == "Second seed"]
    assert len(alone) == 8  # beside one model the open marker is that pair's


def test_scores_of_single_images_share_one_axis_and_name_mean_and_median() -> None:
    frame = pd.DataFrame({"ssim": [0.1, 0.2, 0.6, np.nan], "ssim_second_seed": 0.7, "ssim_shuffled": np.nan})
    figure = figures.scores(frame, "ssim", "tier_full")
    assert [len(trace.x) for trace in figure.data] == [3, 4, 0]
    assert len({(trace.xbins.start, trace.xbins.end, trace.xbins.size) for trace in figure.data}) == 1
    text = " ".join(str(a.text) for a in figure.layout.annotations)
    assert "3 images: mean 0.300 ━, median 0.200 ┈" in text
    assert "no image has this score" in text
    assert figure.layout.xaxis3.range[0] < 0.1 < 0.7 < figure.layout.xaxis3.range[1]


# ---- attacks from outside


def roc_curves() -> pd.DataFrame:
    fpr = np.geomspace(0.001, 1, 40)
    lines = (("none", "transfer", 0.3), ("tier_full", "transfer", 0.8), ("tier_full", "adaptive", 0.6))
    parts = [
        pd.DataFrame({"fpr": fpr, "tpr": fpr**power}).assign(model=model, setting=setting)
        for model, setting, power in lines
    ]
    return pd.concat(parts, ignore_index=True)


def roc_null() -> pd.DataFrame:
    return pd.DataFrame({"fpr": [0.001, 0.1, 1.0], "low": [0.0, 0.08, 1.0], "high": [0.004, 0.12, 1.0]})


def test_the_roc_is_log_log_with_the_strict_line_and_the_diagonal() -> None:
    figure = figures.roc(roc_curves(), roc_null())
    assert (figure.layout.xaxis.type, figure.layout.yaxis.type) == ("log", "log")
    assert [0.001, 0.001] in [list(trace.x) for trace in figure.data if trace.x is not None and len(trace.x) == 2]
    diagonals = [trace for trace in figure.data if len(trace.x) == 2 and list(trace.x) == list(trace.y)]
    assert [trace.line.dash for trace in diagonals] == ["dot"]
    curves = {(trace.name, trace.mode): trace for trace in figure.data if trace.name}
    adaptive = curves["TIER Full, adaptive", "lines"]
    transfer = curves["TIER Full, transfer", "lines"]
    assert adaptive.line.color == figures.style("tier_full").colour
    assert not adaptive.line.dash and not transfer.line.dash  # a dash means non-members, here as everywhere
    assert adaptive.line.width > 2 * transfer.line.width
    words = " ".join(note.text for note in figure.layout.annotations)
    assert "thin: transfer" in words and "thick" in words and "95 % of shuffled memberships" in words
    assert list(curves["Undefended, transfer", "markers"].x) == [0.001, 0.01]


def test_the_roc_marks_only_rates_that_it_resolves() -> None:
    curves = roc_curves()
    figure = figures.roc(curves[curves["fpr"] > 0.005], roc_null())
    marks = [trace for trace in figure.data if trace.mode == "markers"]
    assert all(list(trace.x) == [0.01] for trace in marks)
    assert 10 ** figure.layout.xaxis.range[0] < 0.001  # the line stays in view


def dots(values: list[float]) -> pd.DataFrame:
    return pd.DataFrame({
        "name": ["a", "b", "b"], "model": ["none", "none", "tier_full"], "open": [False, False, True], "value": values,
        "low": np.array(values) - 0.05, "high": np.array(values) + 0.05, "text": ["x", "y", "z"],
    })  # fmt: skip


def test_attack_dots_stand_level_with_their_name_the_first_at_the_top() -> None:
    figure = figures.attack_dots(dots([0.7, 0.6, 0.8]), "Heading", "below", "axis", 0.5)
    bare, tier = figure.data
    assert bare.y[0] == figure.layout.yaxis.tickvals[0] == 1  # alone in its line
    assert bare.y[1] > 0 > tier.y[0]  # two in a line, side by side
    assert list(bare.error_x.array) == pytest.approx([0.05, 0.05])
    assert tier.marker.symbol.endswith("-open")
    assert figure.layout.shapes[0].x0 == 0.5


def test_attack_dots_leave_out_what_is_refused() -> None:
    figure = figures.attack_dots(dots([np.nan, 0.6, np.nan]), "Heading", "below", "axis", 0.5)
    assert [list(trace.x) for trace in figure.data] == [[0.6]]


def attack_features() -> pd.DataFrame:
    part = pd.DataFrame({"level": LEVELS, "kept": LEVELS < 0.5, "member_mean": 0.9 - LEVELS / 2, "t": 5 - 8 * LEVELS})
    part = part.assign(nonmember_mean=part["member_mean"] - 0.05)
    return pd.concat([part.assign(order=order) for order in ("morf", "lerf")], ignore_index=True)


def test_features_that_the_filter_dropped_are_crosses() -> None:
    figure = figures.attack_features(attack_features(), "tier_full")
    lines = {name: [trace for trace in figure.data if trace.name == name] for name in ("members", "non-members")}
    assert len(figure.data) == 6
    for name, dash in (("members", "solid"), ("non-members", "dash")):
        assert len(lines[name]) == 2
        for trace in lines[name]:
            assert [symbol == "x-thin" for symbol in trace.marker.symbol] == [bool(x >= 0.5) for x in LEVELS]
            assert trace.line.dash == dash
    orders = {trace.name: trace for trace in figure.data if trace.name in ("MoRF", "LeRF")}
    assert {trace.line.dash for trace in orders.values()} == {"solid"}  # a dash means non-members
    assert orders["MoRF"].line.width > orders["LeRF"].line.width
    ends = " ".join(note.text for note in figure.layout.annotations if note.showarrow)
    assert "━" in ends and "╍" in ends and "◆" not in ends and "◇" not in ends  # a marker says: kept


def test_the_untouched_confidence_begins_both_orders() -> None:
    table = attack_features()
    first = table.iloc[:1].assign(order=None)
    figure = figures.attack_features(pd.concat([first, table[table["level"] > 0]], ignore_index=True), "none")
    for trace in figure.data:
        assert trace.x[0] == 0 and len(trace.x) == len(LEVELS)


@pytest.mark.parametrize("found, alarms", [(39, 8), (50, 50), (0, 0)])
def test_a_hundred_figures_are_drawn_filled_for_members_and_coloured_when_accused(found: int, alarms: int) -> None:
    counts = ((True, True, found), (True, False, 50 - found), (False, True, alarms), (False, False, 50 - alarms))
    table = pd.DataFrame([{"member": m, "said": s, "figures": n, "images": 10 * n} for m, s, n in counts])
    figure = figures.hundred(table, "none")
    heads = [trace for trace in figure.data if trace.marker.symbol.startswith("circle")]
    assert sum(len(trace.x) for trace in heads) == 100
    colour = figures.style("none").colour
    assert sum(len(trace.x) for trace in heads if trace.marker.color == colour) == found + alarms
    assert sum(len(trace.x) for trace in heads if trace.marker.symbol == "circle") == 50
    words = " ".join(note.text for note in figure.layout.annotations)
    assert f"{found} found" in words and f"{50 - alarms} cleared" in words
    places = [(trace.xaxis, x, y) for trace in heads for x, y in zip(trace.x, trace.y, strict=True)]
    assert len(set(places)) == 100  # none covers another


def test_who_is_called_a_member_shows_without_colour() -> None:
    counts = ((True, True, 20), (True, False, 30), (False, True, 5), (False, False, 45))
    table = pd.DataFrame([{"member": m, "said": s, "figures": n, "images": 10 * n} for m, s, n in counts])
    figure = figures.hundred(table, "none")
    for symbol in ("circle", "triangle-up"):
        parts = [trace for trace in figure.data if trace.marker.symbol.removesuffix("-open") == symbol]
        called = {trace.marker.color != figures.GREY: trace.marker.size for trace in parts}
        assert called[False] <= 0.7 * called[True]
    words = " ".join(note.text for note in figure.layout.annotations)
    assert "▲</span> 20 found" in words and "▴</span> 30 missed" in words


def test_a_hundred_of_one_group_only_is_half_a_picture() -> None:
    table = pd.DataFrame([{"member": True, "said": True, "figures": 50, "images": 7}])
    assert "50 members" in figures.hundred(table, "none").layout.annotations[0].text
    assert not figures.hundred(table.head(0), "none").data


def test_thresholds_are_marked_on_the_spread_of_scores() -> None:
    frame = pd.DataFrame({"member": np.arange(100) < 50, "score": np.linspace(-3, 3, 100)})
    figure = figures.attack_scores(frame, "none", {"transferred +0.50": 0.5, "chosen +99": 99.0, "none": np.nan})
    marks = [shape.x0 for shape in figure.layout.shapes]
    assert marks[0] == 0.5 and len(marks) == 2
    assert marks[1] == figure.layout.xaxis.range[1]  # what lies beyond is marked at the edge
    assert "dotted: transferred +0.50" in figure.layout.annotations[-1].text


def test_a_title_stands_above_the_headings_and_takes_no_room_from_the_panels() -> None:
    frame = pd.DataFrame(
        [{"model": "none", "level": x, "member": m, "mean": x, "sd": 0.1, "low": x, "high": x} for x in (0.1, 0.5)
         for m in (True, False)]
    )  # fmt: skip
    plain = figures.divergence(frame, "sd").layout
    layout = figures.titled(figures.divergence(frame, "sd"), "What Figure 2 shows").layout
    assert layout.title.text == "What Figure 2 shows"
    assert layout.height - layout.margin.t == plain.height - plain.margin.t
    foot_of_title = layout.title.pad.t + 1.3 * layout.title.font.size  # from the upper edge
    lines = layout.annotations[-1].text.count("<br>") + 1
    head_of_heading = layout.margin.t - layout.annotations[-1].yshift - 1.3 * figures.FONT_PIXELS * lines
    assert foot_of_title < head_of_heading


def test_reasons_point_the_way_they_push_the_largest_at_the_top() -> None:
    table = pd.DataFrame({"text": ["Loss", "MoRF, 10 % removed"], "contribution": [2.0, -1.0]})
    (bar,) = figures.reasons(table, "none").data
    assert list(bar.y)[-1] == "Loss" and list(bar.x) == [-1.0, 2.0]
    assert bar.marker.color[0] != bar.marker.color[1]


def test_the_heading_of_reasons_does_not_shrink_with_the_panel() -> None:
    table = pd.DataFrame({"text": ["Confidence, nothing removed"], "contribution": [2.0]})
    figure = figures.reasons(table, "none")
    layout = figure.layout
    assert list(figure.data[0].y) == ["Confidence,<br>nothing removed"]  # a third of a page is narrow
    assert layout.title.xref == "container" and "What moved the score" in layout.title.text
