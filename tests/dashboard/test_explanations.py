"""The page Explanations: what it shows, filters, order, pages, controls, the sheet, and what is missing."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from dashboard import gallery, inspector, loaders, sheet, triplets, words
from tests.dashboard import synthetic
from tests.dashboard.conftest import Open, charts, texts
from tests.dashboard.engines import FakeEngine
from tier import experiment, figures, presets, sheets, tables
from tier.presets import Preset
from tier.store import Store

Show = Callable[..., AppTest]


@pytest.fixture(autouse=True)
def drawn_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images at once, so that no test waits until the data set is drawn."""
    pixels = np.random.default_rng(0).integers(0, 256, (1000, 3, 32, 32), dtype=np.uint8)
    labels, names = np.arange(1000) % 24, tuple(f"sign_{k}" for k in range(24))
    monkeypatch.setattr(loaders, "images", lambda preset: loaders.Images(pixels, labels, names, None, None))


@pytest.fixture
def show(open_page: Open, full_store: Path) -> Show:
    """The page on the full store, checked to be drawn whole."""

    def start(store: Path = full_store, **query: str | list[str]) -> AppTest:
        return whole(open_page("explanations", store, **query))

    return start


def whole(test: AppTest) -> AppTest:
    assert not test.exception
    assert not [e.value for e in test.error if "could not be drawn" in str(e.proto)]
    return test


def pictures(test: AppTest) -> list[str]:
    """The alternative texts of the page's pictures."""
    return [image.proto.imgs[0].alt for image in test.get("image")]


def rows(test: AppTest) -> list[int]:
    """The data set's rows of the triplets shown."""
    return [int(found[1]) for alt in pictures(test) if (found := re.search(r"row (\d+) of the data set", alt))]


NUMBERED = tables.deck(pd.DataFrame({"index": synthetic.ROWS, "member": np.arange(120) < 60}), kept=experiment.GALLERY)
MEMBERS = set(synthetic.ROWS[: synthetic.IMAGES])


@pytest.fixture
def scores(full_store: Path, preset: Preset) -> pd.DataFrame:
    """The stored scores of TIER Full's gradient maps, by row."""
    found = experiment.find(Store(full_store), "fidelity", preset.fidelity("tier_full", 0, "gradient"))
    assert found is not None
    return found.frame("scores.parquet").set_index("index")


@pytest.fixture
def kept(full_store: Path, preset: Preset) -> dict[str, pd.DataFrame]:
    """The stored galleries of the plain gradient, by model and row."""
    found = {name: experiment.find(Store(full_store), "gallery", preset.run(name)) for name in ("none", "tier_full")}
    return {name: one.frame("gallery.parquet").set_index("index") for name, one in found.items() if one is not None}


def at(row: int) -> dict[str, str]:
    """The link to the gallery's page on which an image stands."""
    number = int(np.flatnonzero(row == NUMBERED)[0]) // gallery.PAGE + 1
    return {"page_number": str(number)} if number > 1 else {}


# ---- triplets


def test_images_are_numbered_as_on_the_page_sample_members_and_others_mixed(show: Show, open_page: Open) -> None:
    """Members first would make a gallery of members of its first pages."""
    shown = rows(show())
    assert shown == list(NUMBERED[: gallery.PAGE])
    members = sum(row in MEMBERS for row in shown)
    assert 0 < members < gallery.PAGE
    kinds = ["member" if row in MEMBERS else "non-member" for row in shown]
    said = texts(show())
    for number, (row, kind) in enumerate(zip(shown, kinds, strict=True), 1):
        assert f"**Image {number}**: sign {row % 24}, {kind}" in said
    assert "in the order of their numbers" in said


def test_numbers_agree_with_the_page_sample_where_only_some_maps_are_kept(
    show: Show, open_page: Open, full_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "GALLERY", 20)
    test = show()
    cards = tables.deck(pd.DataFrame({"index": synthetic.ROWS, "member": np.arange(120) < 60}), kept=20)
    assert rows(test) == list(cards[: gallery.PAGE]) != list(NUMBERED[: gallery.PAGE])
    sample = whole(open_page("sample", full_store, sample="3", reveal="true"))
    assert f"Row {cards[2]} of the data set" in texts(sample)


def test_the_score_chosen_stands_beside_the_images_own_controls(show: Show, scores: pd.DataFrame) -> None:
    row = scores.loc[NUMBERED[0]]
    for label, metric, digits in (("SSIM", "ssim", 2), ("MSE", "mse", 3)):
        test = show(score=label)
        lines = next(c for c in test.caption if f"**{label} {row[metric]:.{digits}f}**" in c.value)
        assert f"other image {row[f'{metric}_shuffled']:.{digits}f}" in lines.value
        assert f"two seeds {row[f'{metric}_second_seed']:.{digits}f}" in lines.value
        assert "share neither start weights nor batch order" in lines.help
    several = show(beside=["TIER Full", "Augmentation"])  # below maps, where "other image 0.05" would take two lines
    assert any(f"other {row['ssim_shuffled']:.2f}" in caption.value for caption in several.caption)


def test_a_triplet_is_the_image_and_each_map_with_scores_and_predictions(
    show: Show, scores: pd.DataFrame, kept: dict[str, pd.DataFrame]
) -> None:
    test = show()
    alts = pictures(test)
    assert len(alts) == 3 * gallery.PAGE + 1  # and the colour scale
    assert all(alts)
    assert rows(test) == list(NUMBERED[: gallery.PAGE])
    assert sum("Gradient map of Undefended" in alt for alt in alts) == gallery.PAGE
    first = NUMBERED[0]
    row = scores.loc[first]
    assert any(f"SSIM {row['ssim']:.2f}" in caption.value for caption in test.caption)
    assert any(f"{kept['none']['confidence'][first]:.2f}" in caption.value for caption in test.caption)
    assert all(image.proto.imgs[0].url.endswith(".png") for image in test.get("image"))  # JPEG would blur the pixels


def test_a_map_that_tells_nothing_is_named_and_has_no_scores(show: Show) -> None:
    test = show(**at(synthetic.ROWS[5]))
    assert sum("all-zero map" in alt for alt in pictures(test)) == 2
    assert sum("all-zero map" in caption.value for caption in test.caption) == 2
    assert [caption.value for caption in test.caption].count("no scores") == 1


def test_the_gallery_says_what_scores_are_to_be_held_against(show: Show, scores: pd.DataFrame) -> None:
    frame = scores
    said = texts(show())
    for ending in tables.PAIRS.values():
        assert f"{frame[f'ssim{ending}'].mean():.2f} for" in said


def test_a_third_model_stands_beside_the_others(show: Show) -> None:
    test = show(beside=["TIER Full", "Augmentation"])
    assert len(pictures(test)) == 4 * gallery.PAGE + 1
    assert "Scores of" in [control.label for control in test.get("button_group")]


def test_every_explainer_is_offered(show: Show) -> None:
    for label in ("SmoothGrad", "Grad-CAM++", "LIME"):
        test = show(explainer=label)
        assert test.get_by_key("explainer").options == list(figures.EXPLAINERS.values())  # type: ignore[union-attr]
        assert any(f"{label} map of TIER Full" in alt for alt in pictures(test))
        assert any(f"explainer: {label}" in caption.value for caption in test.caption)


def test_the_layer_of_a_class_activation_map_is_told(show: Show) -> None:
    assert any("layer: blocks.5" in caption.value for caption in show(explainer="Grad-CAM").caption)
    assert not any("layer" in caption.value for caption in show().caption)


def test_scale_sign_and_overlay_change_what_is_drawn_and_are_told(show: Show) -> None:
    def urls(test: AppTest) -> list[str]:
        return [image.proto.imgs[0].url for image in test.get("image")]

    plain = show(explainer="SHAP")
    assert "Red pixels speak for the class" in texts(plain)
    for query, told in (
        ({"scale": "Shared"}, "scale: shared"),
        ({"sign": "Absolute"}, "values: absolute"),
        ({"opacity": "0.5"}, "overlay: 0.5"),
    ):
        other = show(explainer="SHAP", **query)
        assert urls(other) != urls(plain)
        assert any(told in caption.value for caption in other.caption)
    assert "sign" not in [control.key for control in show().get("button_group")]  # a magnitude has no sign to drop


def test_the_colour_scale_is_described_as_a_sentence(show: Show) -> None:
    assert "Colour scale: blue speaks against the class, white for neither, red for it" in pictures(
        show(explainer="SHAP")
    )
    assert "Colour scale: dark is 0, bright the largest" in pictures(show())


# ---- filters, order, pages


def filter_button(test: AppTest) -> Any:
    return next(block.proto.popover for block in test.get("popover") if block.proto.popover.label.startswith("Filter"))


def test_filters_in_use_are_named_on_the_button_and_in_the_sentence(show: Show) -> None:
    assert filter_button(show()).label == "Filter"
    linked = show(group="Members", right="All models right", **{"class": "sign 3"})
    assert filter_button(linked).label == "Filter: class sign 3, members, all models right"
    assert "pass the filter (class sign 3, members, all models right)" in texts(linked)
    clicked = show()
    clicked.get_by_key("group").set_value("members").run()
    assert filter_button(clicked).label == "Filter: members"
    assert any("filter: members" in caption.value for caption in clicked.caption)
    averages = show(view="On average", group="Members")
    assert any("filter: members" in caption.value for caption in averages.caption)


def test_the_means_say_through_which_filter_and_over_how_many_scores(show: Show, scores: pd.DataFrame) -> None:
    """Correct and wrong act on the triplets only, and an image without a score is in no mean."""
    assert "Mean SSIM over all 119 images with this score: " in texts(show())
    test = show(group="Members", right="Some model wrong")
    said = texts(test)
    members = scores[scores["member"]]["ssim"]
    assert f"Mean SSIM over all {members.notna().sum()} images with this score (members): {members.mean():.2f}" in said
    assert "The filter on predictions does not act on these means." in said


def test_the_sheet_switches_off_what_does_not_act_on_it(show: Show) -> None:
    test = show(view="Seven explainers", opacity="0.5", explainer="LIME", beside=["TIER Full", "Augmentation"])
    assert filter_button(test).disabled
    assert test.slider(key="opacity").disabled
    off = {control.key for control in test.get("button_group") if control.proto.disabled}
    assert off == {"explainer", "of"}
    other = show(opacity="0.5", beside=["TIER Full", "Augmentation"])
    assert not filter_button(other).disabled
    assert not other.slider(key="opacity").disabled
    assert not [control.key for control in other.get("button_group") if control.proto.disabled]


def test_the_link_to_the_page_sample_carries_scale_and_sign(show: Show) -> None:
    plain, chosen = show(explainer="SHAP"), show(explainer="SHAP", scale="Shared", sign="Absolute")
    query = plain.get("page_link")[0].proto.query_string
    assert "scale" not in query
    assert "&sign=" not in query
    query = chosen.get("page_link")[0].proto.query_string
    assert "scale=Shared" in query
    assert "sign=Absolute" in query


@pytest.mark.parametrize(("group", "member"), [("Members", True), ("Non-members", False)])
def test_the_group_chosen_is_shown(show: Show, group: str, member: bool) -> None:
    test = show(group=group)
    assert f"{synthetic.IMAGES} of the {2 * synthetic.IMAGES} images" in texts(test)
    kind = "a member" if member else "a non-member"
    assert all(alt.endswith(f", {kind}") for alt in pictures(test) if "of the data set" in alt)


def test_the_class_chosen_is_shown_by_its_name(show: Show) -> None:
    test = show(**{"class": "sign 5"})
    shown = rows(test)
    assert shown == [row for row in NUMBERED if row % 24 == 5]


def test_right_and_wrong_are_counted_over_all_models_shown(show: Show, kept: dict[str, pd.DataFrame]) -> None:
    right = {model: frame["predicted"] == frame["label"] for model, frame in kept.items()}
    both = int((right["none"] & right["tier_full"]).sum())
    assert 0 < both < 120
    assert f"{both} of the 120 images" in texts(show(right="All models right"))
    assert f"{120 - both} of the 120 images" in texts(show(right="Some model wrong"))


def test_a_filter_that_no_image_passes_says_so(show: Show, kept: dict[str, pd.DataFrame]) -> None:
    wrong = pd.concat([frame["predicted"] != frame["label"] for frame in kept.values()], axis=1).any(axis=1)
    label = kept["none"]["label"]
    empty = next((k for k in range(24) for side in [wrong[label == k]] if not side.any()), None)
    query = {"right": "Some model wrong"} if empty is not None else {"right": "All models right"}
    if empty is None:
        empty = next(k for k in range(24) if wrong[label == k].all())
    test = show(**query, **{"class": f"sign {empty}"})
    assert not rows(test)
    assert any("No image passes the filter" in info.value for info in test.info)


@pytest.mark.parametrize("metric", tables.FIDELITY)
def test_triplets_are_sorted_by_the_score_chosen(show: Show, scores: pd.DataFrame, metric: str) -> None:
    frame = scores
    rising = frame[metric].dropna().sort_values()
    best = rising.index if metric == "mse" else rising.index[::-1]
    label = figures.SCORES[metric]
    assert rows(show(sort="Most alike", score=label)) == list(best[: gallery.PAGE])
    assert rows(show(sort="Least alike", score=label)) == list(best[::-1][: gallery.PAGE])
    middle = rows(show(sort="Median", score=label))[0]
    assert abs(frame[metric][middle] - frame[metric].median()) == (frame[metric] - frame[metric].median()).abs().min()


def test_pages_follow_each_other_and_a_link_reopens_one(show: Show) -> None:
    assert rows(show(page_number="2")) == list(NUMBERED[gallery.PAGE : 2 * gallery.PAGE])
    last = show(page_number="10")
    assert rows(last) == list(NUMBERED[-gallery.PAGE :])


def test_another_filter_begins_at_the_first_page(show: Show) -> None:
    test = show(page_number="3")
    test.get_by_key("group").set_value("nonmembers").run()
    assert rows(whole(test)) == [row for row in NUMBERED if row not in MEMBERS][: gallery.PAGE]
    assert not test.warning


def test_each_triplet_leads_to_its_image_on_the_page_sample(show: Show) -> None:
    test = show(explainer="LIME")
    queries = [link.proto.query_string for link in test.get("page_link")]
    assert [f"row={row}" in query and "explainer=LIME" in query for row, query in zip(rows(test), queries, strict=True)]
    assert len(queries) == gallery.PAGE


# ---- averages


def test_the_averages_stand_beside_both_controls_over_all_and_correct_images(show: Show, scores: pd.DataFrame) -> None:
    test = show(view="On average")
    assert len(charts(test)) == 2
    frame = scores
    table = test.dataframe[0].value
    assert len(table) == 8
    for images, part in (("all", frame), ("correct", frame[frame["correct"]])):
        row = table[(table["images"] == images) & (table["metric"] == "MSE")].iloc[0]
        assert row["pair"] == pytest.approx(part["mse"].mean())
        assert row["shuffled"] == pytest.approx(part["mse_shuffled"].mean())
        assert row["second_seed"] == pytest.approx(part["mse_second_seed"].mean())
        assert row["n"] == part["mse"].notna().sum()


def test_every_chart_owes_takeaway_meaning_settings_and_data(show: Show) -> None:
    test = show(view="On average", beside=["TIER Full", "TIER Reg-only"])
    found = charts(test)
    for chart in found:
        assert any(digit in chart.alt for digit in "0123456789")  # type: ignore[attr-defined]
    lines = [caption.value for caption in test.caption if "data: signs" in caption.value]
    assert len(lines) == len(found) == texts(test).count(":material/lightbulb:")
    for line in lines:
        assert "59 members and 60 non-members" in line  # one member's map is all zero: no score
        assert "second seed: 1" in line
        assert "class explained: label" in line
    assert sum("CSV" in button.proto.label for button in test.get("download_button")) == len(found)  # each once


def test_the_averages_heed_class_and_group(show: Show, scores: pd.DataFrame) -> None:
    frame = scores
    table = show(view="On average", group="Members").dataframe[0].value
    mean = frame[frame["member"]]["ssim"].mean()
    assert table[(table["images"] == "all") & (table["metric"] == "SSIM")]["pair"].iloc[0] == pytest.approx(mean)


def test_a_pair_is_said_to_share_its_seed_wherever_the_second_seed_stands(show: Show) -> None:
    """Being more alike than two seeds is then no merit of the defense."""
    averages = show(view="On average")
    said = texts(averages)
    assert "trained with one seed" in said
    assert "expected and no merit" in said
    assert "no more can be asked of a defense" not in said
    lines = [caption.value for caption in averages.caption if "second seed: 1" in caption.value]
    assert lines
    assert all("pair: one training seed for both models" in line for line in lines)
    assert "pair: one training seed for both models" in texts(show())
    document = (Path(__file__).parents[2] / "docs" / "explanations.md").read_text()
    assert "share their training seed, hence start weights and batch order" in document


def test_the_scaled_cosine_is_measured_and_not_quoted(show: Show, scores: pd.DataFrame) -> None:
    """Noise that had a sign scores above 0.9 when scaled, magnitudes 0.64: the shuffled pairs tell what holds here."""
    for explainer in ("Gradient", "SHAP"):
        assert "above 0.9" not in texts(show(view="On average", explainer=explainer))
    said = texts(show(view="On average"))
    assert f"different images already have a mean cosine of {scores['cosine_shuffled'].mean():.2f} here" in said
    assert "about 0.6 for magnitudes" in words.GLOSSARY["Cosine"]
    assert words.scaled_cosine(tables.fidelity({"tier_full": synthetic_scores().head(0)})) == ""


@pytest.mark.parametrize("name", ["best", "median", "worst"])
def test_best_median_and_worst_are_one_click_away(show: Show, preset: Preset, name: str) -> None:
    test = show(view="On average", score="Cosine")
    test.button(key=f"jump_{name}").click().run()
    whole(test)
    order = {"best": "Most alike", "median": "Median", "worst": "Least alike"}[name]
    assert rows(test) == rows(show(sort=order, score="Cosine"))
    assert not charts(test)  # the gallery is open


def test_the_jumps_say_how_many_images_they_choose_from(show: Show) -> None:
    said = texts(show(view="On average"))
    assert "among the 119 images whose maps are kept" in said
    assert "the means are over 119 images" in said  # one has no score


def means(*rows: tuple[str, float, float]) -> pd.DataFrame:
    """Means in which a pair is more alike than shuffled ones, and than a second seed, by so much, give or take 0.1."""
    made = []
    for metric, over_shuffled, over_seed in rows:
        for pair, mean in (("pair", 0.4), ("shuffled", 0.4 - over_shuffled), ("second_seed", 0.4 - over_seed)):
            row = {"model": "tier_full", "images": "all", "metric": metric, "pair": pair, "mean": mean, "n": 500}
            for name, value in (("over_shuffled", over_shuffled), ("over_second_seed", over_seed)):
                row |= {name: value, f"{name}_low": value - 0.1, f"{name}_high": value + 0.1}
            made.append(row if pair == "pair" else {k: v for k, v in row.items() if not k.startswith("over")})
    return pd.DataFrame(made)


def test_a_score_no_better_than_shuffled_pairs_is_called_so() -> None:
    said = words.fidelity(means(("ssim", 0.05, -0.5), ("mse", -0.5, -0.5)))["tier_full"]
    assert said.startswith("By no score are its maps more like the undefended model's than maps of different images")
    assert "by MSE they are even less alike" in said
    assert "By every score they differ more than the maps of two undefended seeds do, although the pair shares" in said


def test_a_score_above_the_controls_is_called_so_and_a_mixed_one_as_what_it_is() -> None:
    said = words.fidelity(means(("ssim", 0.2, 0.0), ("cosine", 0.3, 0.2)))["tier_full"]
    assert said.startswith("By every score its maps are more like the undefended model's than maps of different images")
    assert "They differ no more than the maps of two undefended seeds do, which is expected and no merit" in said
    assert "it and the undefended model 0.40, maps of different images 0.20, two undefended seeds 0.40" in said
    mixed = words.fidelity(means(("ssim", 0.2, -0.2), ("cosine_unscaled", 0.0, 0.0)))["tier_full"]
    assert mixed.startswith("By SSIM its maps are more like")
    assert "by unscaled cosine they are not" in mixed
    assert "By SSIM they differ more than the maps of two undefended seeds do" in mixed


def test_words_for_scores_that_do_not_exist() -> None:
    nothing = tables.fidelity({"tier_full": synthetic_scores().head(0)})
    assert words.fidelity(nothing)["tier_full"].startswith("no image has a score")
    frame = synthetic_scores().assign(ssim=np.nan)
    assert words.scores(frame, "ssim", "tier_full").startswith("No image has a SSIM")
    assert words.controls(frame, "ssim", "tier_full").startswith("No image has a SSIM")


def synthetic_scores() -> pd.DataFrame:
    frame = pd.DataFrame({"index": range(10), "member": True, "label": 0, "correct": True, "agree": True})
    for name in tables.FIDELITY:
        frame = frame.assign(**{f"{name}{ending}": np.linspace(0, 1, 10) for ending in tables.PAIRS.values()})
    return frame


def test_the_share_better_than_shuffled_pairs_is_counted() -> None:
    frame = synthetic_scores()
    frame["mse_shuffled"] = 0.5
    assert "In 50 of 100 cases" in words.scores(frame, "mse", "tier_full")  # smaller is more alike: 0 to 0.44
    frame["mse_shuffled"] = 2.0
    assert "In 100 of 100 cases" in words.scores(frame, "mse", "tier_full")


# ---- the sheet


def test_the_sheet_shows_seven_explainers_of_the_image_chosen(show: Show) -> None:
    test = show(view="Seven explainers")
    (alt,) = pictures(test)
    for name in sheet.SEVEN:
        assert figures.EXPLAINERS[name] in alt
    assert "Input, Undefended, TIER Full" in alt
    kind = "member" if NUMBERED[0] in MEMBERS else "non-member"
    assert f"Image 1: sign {NUMBERED[0] % 24}, {kind}" in alt
    labels = [button.proto.label for button in test.get("download_button")]
    assert labels == ["PNG", "SVG", "PDF"]


@pytest.mark.parametrize("several", [False, True])
def test_the_sheet_prints_settings_and_controls_beside_its_scores(
    several: bool, show: Show, full_store: Path, preset: Preset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who holds the paper has nothing else to hold the scores against."""
    made: list[sheets.Sheet] = []
    of_triplets = sheets.of_triplets
    monkeypatch.setattr(sheets, "of_triplets", lambda *a, **k: made.append(of_triplets(*a, **k)) or made[-1])
    models = ["TIER Full", "Augmentation"] if several else ["TIER Full"]
    show(view="Seven explainers", beside=models)
    details = {row.label: row.detail for row in made[0].rows}
    assert details["SmoothGrad"].startswith("samples 25, ")
    assert "layer blocks.5" in details["Grad-CAM"]
    for label, name in (("SmoothGrad", "smoothgrad"), ("LIME", "lime")):
        for model in ("tier_full", "augmentation")[: 1 + several]:
            found = experiment.find(Store(full_store), "fidelity", preset.fidelity(model, 0, name))
            assert found is not None
            frame = found.frame("scores.parquet")
            means = {
                e: f"{frame[f'ssim{e}'].mean():.2f} / {frame[f'cosine{e}'].mean():.2f}" for e in tables.PAIRS.values()
            }
            assert means["_shuffled"] + (f" ({words.label(model)})" if several else "") in details[label]
        assert "two seeds " in details[label]
    assert "maps of other images" in made[0].note
    assert "explainers as in the preset" not in made[0].note
    drawn = " ".join(line.text for line in sheets.layout(made[0]).labels)
    assert "…" not in drawn  # everything fits


def test_a_triplet_opens_its_sheet(show: Show) -> None:
    test = show()
    test.button(key=f"sheet_{NUMBERED[4]}").click().run()
    (alt,) = pictures(whole(test))
    assert "Image 5:" in alt


# ---- what is missing


def test_missing_maps_and_scores_are_computed_on_request(show: Show, engine: FakeEngine, preset: Preset) -> None:
    test = show(seed="1", explainer="LIME")
    assert not pictures(test)
    test.button(key="compute_gallery").click().run()
    test.button(key="compute_fidelity").click().run()
    one = {name: preset.run(name, 1).set({"explain.name": "lime"}) for name in ("none", "tier_full")}
    wanted = {experiment.key("gallery", one[name]) for name in one}
    wanted.add(experiment.key("fidelity", preset.fidelity("tier_full", 1, "lime")))
    assert set(engine.known) == wanted
    assert {need for needs in engine.needed.values() for need in needs} == {"gallery.parquet", "scores.parquet"}


def test_the_averages_show_without_the_maps(show: Show, preset: Preset, tmp_path: Path, full_store: Path) -> None:
    light = Store(tmp_path / "light")
    for result in Store(full_store).ls():
        if result.stage in ("fidelity", "report"):
            Store(full_store).export(result.stage, result.key, light, [])
    test = show(Path(light.url), view="On average")
    assert len(charts(test)) == 2
    assert test.button(key="compute_gallery")


def test_maps_stand_alone_and_the_page_says_why_where_the_images_are_not(
    show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaders, "images", lambda preset: None)
    test = show()
    alts = pictures(test)
    assert len(alts) == 2 * gallery.PAGE + 1
    assert any("not on this machine" in info.value for info in test.info)
    assert not rows(test)
    (alt,) = pictures(show(view="Seven explainers"))
    assert "Input" not in alt


def test_a_damaged_store_shows_what_is_sound(show: Show, full_store: Path, tmp_path: Path) -> None:
    root = tmp_path / "broken"
    shutil.copytree(full_store, root)
    for path in [*root.glob("gallery/*/gallery.parquet"), *root.glob("fidelity/*/scores.parquet")]:
        path.write_bytes(path.read_bytes()[:200])
    for view in triplets.TABS:
        test = show(root, view=view)
        assert not charts(test)
        assert [button for button in test.button if str(button.key).startswith("compute_")]


def test_an_empty_store_says_what_to_run(show: Show, empty_store: Path) -> None:
    test = show(empty_store)
    assert "python -m tier run signs" in test.code[0].value
    assert not test.get("image")


@pytest.mark.parametrize(
    "query",
    [
        {"class": "<script>alert(1)</script>"},
        {"view": "../../etc/passwd"},
        {"opacity": "nan"},
        {"opacity": "-1"},
        {"page_number": "-3"},
        {"page_number": "1e3"},
        {"sort": "[x](javascript:alert(1))"},
        {"score": "none"},
        {"explainer": "gradient; rm -rf"},
        {"beside": ["Undefended"]},
        {"sheet": "Image 999999", "view": "Seven explainers"},
    ],
)
def test_a_hostile_link_falls_back_and_says_so(show: Show, query: dict[str, str | list[str]]) -> None:
    test = show(**query)
    assert len(test.warning) == 1
    assert "does not exist here" in test.warning[0].value
    assert "<" not in test.warning[0].value
    assert pictures(test)


def test_choices_that_are_not_drawn_do_not_stay_in_the_address(show: Show) -> None:
    """Nothing checks them, so a link would carry whatever somebody wrote there."""
    test = show(sheet="zz", of="zz", sign="zz")
    assert not {"sheet", "of", "sign"} & set(test.query_params)
    test = show(view="On average", sort="zz", page_number="7")
    assert not {"sort", "page_number"} & set(test.query_params)
    test = show(view="Seven explainers", score="zz", sheet=f"Image 1: sign {NUMBERED[0] % 24}, member")
    assert "score" not in test.query_params
    assert "of" in show(of="TIER Full", beside=["TIER Full", "Augmentation"]).query_params


def test_names_from_the_data_are_made_harmless(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    found = loaders.images(presets.get("signs"))
    assert found is not None
    evil = loaders.Images(found.pixels, found.labels, ("[a](javascript:b)<img>",) * 24, None, None)
    monkeypatch.setattr(loaders, "images", lambda preset: evil)
    test = show()
    assert "<img>" not in texts(test)
    assert "](javascript" not in texts(test)
    assert inspector.class_names(presets.get("signs"), evil)[0].startswith("?a?(javascript:b)")
