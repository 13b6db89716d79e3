"""The page Sample: which image, the guess and its score, reveal, what is missing, what a link may hold, uploads."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from dashboard import loaders, seen
from tests.dashboard import synthetic
from tests.dashboard.conftest import Open, charts, texts
from tests.dashboard.engines import FakeEngine
from tier import experiment, neighbours, presets, tables, uploads
from tier.config import Inspect
from tier.presets import Preset
from tier.store import Store

ROWS = np.arange(2 * synthetic.IMAGES) * 7 + 3  # the data set's rows in a made-up store, members first
CARDS = tables.deck(pd.DataFrame({"index": ROWS}))
MODELS = ("none", "tier_full")
NAMES = tuple(f"sign_{k}" for k in range(24))
PIXELS = np.random.default_rng(5).integers(0, 256, (850, 3, 32, 32), dtype=np.uint8)
OWN = np.random.default_rng(6).integers(0, 256, (3, 32, 32), dtype=np.uint8)


def member(number: int) -> bool:
    return int(CARDS[number - 1]) in ROWS[: synthetic.IMAGES]


@pytest.fixture(autouse=True)
def images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small random images in place of the drawn ones, of the classes that the made-up results name."""
    found = loaders.Images(PIXELS, np.arange(850) % 24, NAMES, None, None)
    monkeypatch.setattr(loaders, "images", lambda preset: found)


@pytest.fixture(scope="module")
def sample_store(full_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store without kept maps, in which images 1 to 4 and one upload have been inspected."""
    root = tmp_path_factory.mktemp("sample") / "store"
    shutil.copytree(full_store, root, ignore=shutil.ignore_patterns("gallery", "fidelity", "attack", "battery"))
    store = Store(root)
    preset = synthetic.pinned(store, presets.get("signs"))
    name = uploads.keep(store, OWN)
    for model in MODELS:
        for number in (1, 2, 3, 4):
            synthetic.add_inspect(store, preset.run(model), Inspect(row=int(CARDS[number - 1])))
        synthetic.add_inspect(store, preset.run(model), Inspect(upload=name), 0.7)
    return root


def press(test: AppTest, label: str) -> AppTest:
    next(button for button in test.button if button.label == label).click()
    return test.run()


def pictures(test: AppTest) -> list[str]:
    """The alternative texts of the pictures on the page."""
    return [image.alt for element in test.get("image") for image in element.proto.imgs]


def number_shown(test: AppTest) -> int:
    return int(test.number_input(key="sample").value)


# ---- which image


def test_a_link_opens_its_image(open_page: Open, sample_store: Path) -> None:
    test = open_page("sample", sample_store, sample="3")
    assert number_shown(test) == 3
    assert "Image 3" in texts(test)
    assert f"sign {int(CARDS[2]) % 24}" in texts(test)


def test_a_row_of_the_data_set_becomes_a_number(open_page: Open, sample_store: Path) -> None:
    test = open_page("sample", sample_store, row=str(CARDS[3]))
    assert number_shown(test) == 4
    assert "row" not in test.query_params


@pytest.mark.parametrize("row", ["99999", "-1", "1e3", "abc", "٣", "9" * 5000, "<b>"])
def test_a_row_that_is_none_of_the_targets_is_noted(open_page: Open, sample_store: Path, row: str) -> None:
    test = open_page("sample", sample_store, row=row)
    assert not test.exception
    assert "none of the target's images" in texts(test)
    assert number_shown(test) == 1


def test_the_buttons_walk_in_a_ring(open_page: Open, sample_store: Path) -> None:
    test = open_page("sample", sample_store, sample="2")
    assert number_shown(press(test, "Previous")) == 1
    assert number_shown(press(test, "Previous")) == len(CARDS)
    assert number_shown(press(test, "Next")) == 1
    assert number_shown(press(test, "Random")) != 1
    assert 1 <= number_shown(test) <= len(CARDS)


def test_hardest_walks_from_the_least_decided(open_page: Open, sample_store: Path, preset: Preset) -> None:
    scores = Store(sample_store).find("audit", experiment.key("audit", preset.run("none")))
    assert scores is not None
    order = tables.undecided(scores.frame("scores.parquet"), CARDS)
    test = open_page("sample", sample_store)
    walked = [number_shown(press(test, "Hardest")) for _ in range(3)]
    assert walked == order[:3]
    press(test, "Next")
    assert number_shown(press(test, "Hardest")) == order[0]  # after leaving the walk it begins anew


def test_every_button_tells_its_key(open_page: Open, sample_store: Path) -> None:
    test = open_page("sample", sample_store)
    keys = {b.label: b.proto.shortcut for b in test.button if b.proto.shortcut}
    assert {"Previous", "Next", "Random", "Hardest", "Member", "Not a member"} <= set(keys)
    assert len({key.lower() for key in keys.values()}) == len(keys)
    for button in test.button:
        if button.proto.shortcut:
            assert f"Key: {button.proto.shortcut.upper()}" in button.proto.help


# ---- what is shown


def test_both_models_are_shown_with_all_they_owe(open_page: Open, sample_store: Path) -> None:
    test = open_page("sample", sample_store)
    assert len(charts(test)) == 4  # curves and scores of two models
    for chart in charts(test):
        assert len(chart.alt) > 40
    alts = pictures(test)
    assert all(len(alt) > 20 for alt in alts)
    assert sum("Gradient map" in alt for alt in alts) == 2
    assert sum("outlined" in alt for alt in alts) == 2
    lines = [caption.value for caption in test.caption if "data: signs" in caption.value]
    assert len(lines) == 3  # curves, audit, the attack from outside
    assert all("members and" in line and "seed: 0" in line for line in lines)
    assert [b.proto.label for b in test.get("download_button")] == ["Data (CSV)"] * 2
    assert texts(test).count(":material/lightbulb:") == 3
    assert "Likeliest" in texts(test)
    assert "nearest training image" in texts(test)


@pytest.mark.parametrize("explainer", ["Gradient", "SmoothGrad", "VarGrad", "Grad-CAM", "Grad-CAM++", "SHAP", "LIME"])
def test_every_explainer_is_drawn(open_page: Open, sample_store: Path, explainer: str) -> None:
    test = open_page("sample", sample_store, explainer=explainer)
    assert not test.exception
    assert sum(f"{explainer} map" in alt for alt in pictures(test)) == 2
    assert ("layer stages.2" in texts(test)) == explainer.startswith("Grad-CAM")


def test_the_slider_moves_masks_and_cursor_together(open_page: Open, sample_store: Path) -> None:
    test = open_page("sample", sample_store, level="0.6", order="LeRF")
    assert sum("60 % of the pixels removed, LeRF" in alt for alt in pictures(test)) == 4
    found = [json.loads(chart.spec) for chart in charts(test)[:2]]
    for figure in found:
        assert [shape["x0"] for shape in figure["layout"]["shapes"]] == [0.6, 0.6]
    test.select_slider(key="level").set_value(0.1).run()
    assert sum("10 % of the pixels removed, LeRF" in alt for alt in pictures(test)) == 4
    shapes = json.loads(charts(test)[0].spec)["layout"]["shapes"]
    assert [shape["x0"] for shape in shapes] == [0.1, 0.1]


def test_the_masked_picture_is_the_one_behind_the_curve() -> None:
    """At every level the picture lacks just the pixels that the model missed."""
    from tier import pictures as drawn

    table = synthetic.seen(presets.get("signs").run("none"), 1, 2, ["gradient"])
    steps = np.frombuffer(table["morf"][0], np.uint8).reshape(32, 32)
    for place, level in enumerate(synthetic.LEVELS):
        shown = drawn.masked(OWN, steps, place)
        changed = (np.abs(shown - OWN / 255) > 1e-6).any(0).sum()
        assert abs(changed - level * 1024) <= 3


def test_the_nearest_training_image_is_a_member_and_not_the_image_itself(
    open_page: Open, sample_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[set[int], int | None]] = []
    plain = neighbours.nearest

    def spy(image: np.ndarray, pool: np.ndarray, rows: np.ndarray, but: int | None = None) -> object:
        asked.append((set(rows.tolist()), but))
        return plain(image, pool, rows, but)

    monkeypatch.setattr(neighbours, "nearest", spy)
    open_page("sample", sample_store, sample="2")
    assert asked[-1] == (set(ROWS[: synthetic.IMAGES].tolist()), int(CARDS[1]))


GROUPS = np.arange(850) // 7  # 7 frames a track; each track has one image of the made-up targets
GROUPS[ROWS[1]] = GROUPS[ROWS[0]]  # but for one with two members


def tracks(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """Give the images tracks, make two members look alike, and note which rows compete to be nearest."""
    pixels = PIXELS.copy()
    pixels[ROWS[1]] = pixels[ROWS[0]] // 2
    found = loaders.Images(pixels, np.arange(850) % 24, NAMES, None, GROUPS)
    monkeypatch.setattr(loaders, "images", lambda preset: found)
    asked: list[set[int]] = []
    plain = neighbours.nearest

    def spy(image: np.ndarray, pool: np.ndarray, rows: np.ndarray, but: int | None = None) -> object:
        asked.append(set(rows.tolist()))
        return plain(image, pool, rows, but)

    monkeypatch.setattr(neighbours, "nearest", spy)
    return asked


def test_a_track_does_not_give_a_member_away(
    open_page: Open, sample_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tracks(monkeypatch)
    number = int(np.flatnonzero(ROWS[0] == CARDS)[0]) + 1
    test = open_page("sample", sample_store, sample=str(number))
    assert asked[-1] == set(ROWS[2 : synthetic.IMAGES].tolist())  # neither the image nor its track
    assert "another frame" not in texts(test)
    assert "left out until" in texts(test)
    test.toggle(key="reveal").set_value(True).run()
    assert int(ROWS[1]) in asked[-1]
    assert "It is another frame of the same track." in texts(test)
    assert "left out until" not in texts(test)


def test_the_nearest_image_is_sought_once(open_page: Open, sample_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tracks(monkeypatch)
    test = open_page("sample", sample_store, sample="3")
    count = len(asked)
    test.run()
    assert len(asked) == count > 0


def test_values_are_offered_only_where_maps_have_a_sign(open_page: Open, sample_store: Path) -> None:
    test = open_page("sample", sample_store, explainer="LIME", sign="Absolute")
    assert test.button_group(key="sign").value == "absolute"
    assert "Bright pixels" in texts(test)
    test = open_page("sample", sample_store, explainer="Grad-CAM", sign="Absolute")
    assert "Values" not in [group.label for group in test.get("button_group")]
    assert "sign" not in test.query_params


def test_a_kept_image_shows_its_likeliest_class(open_page: Open, full_store: Path) -> None:
    test = open_page("sample", full_store)
    assert texts(test).count("Likeliest: ") == 2
    assert texts(test).count("other classes is not kept") == 2


def test_no_alternative_text_holds_markup(open_page: Open, sample_store: Path) -> None:
    test = open_page("sample", sample_store)
    assert not [chart.alt for chart in charts(test) if "*" in chart.alt]  # type: ignore[attr-defined]


def test_three_models_have_narrow_figures_and_folded_strips(
    open_page: Open, sample_store: Path, engine: FakeEngine
) -> None:
    two = open_page("sample", sample_store, models=["Undefended", "TIER Full"])
    three = open_page("sample", sample_store, models=["Undefended", "TIER Full", "Second seed"])
    margins = [[json.loads(chart.spec)["layout"]["margin"]["r"] for chart in charts(test)] for test in (two, three)]
    assert margins == [[130] * 4, [12] * 6]


def test_more_models_than_fit_are_noted(open_page: Open, sample_store: Path, engine: FakeEngine) -> None:
    query = ["Undefended", "Augmentation", "TIER Reg-only", "TIER Full"]
    test = open_page("sample", sample_store, models=query)
    assert "Only 3 models fit" in texts(test)
    assert not test.exception


# ---- membership, guess, score


def test_membership_is_hidden_until_it_is_revealed(open_page: Open, sample_store: Path) -> None:
    test = open_page("sample", sample_store)
    assert "This image is" not in texts(test)
    assert "Row " not in texts(test)
    assert "this image: " not in json.dumps([json.loads(chart.spec) for chart in charts(test)])
    test.toggle(key="reveal").set_value(True).run()
    assert ("a **member**" if member(1) else "**no member**") in texts(test)
    assert f"Row {CARDS[0]} of the data set" in texts(test)
    assert "No image guessed yet" in texts(test)  # revealing counts no guess


def test_guesses_are_scored_for_reader_and_attack(open_page: Open, sample_store: Path, preset: Preset) -> None:
    found = Store(sample_store).find("audit", experiment.key("audit", preset.run("none")))
    assert found is not None
    scores = found.frame("scores.parquet").set_index("index")["score"]
    test = open_page("sample", sample_store)
    right = hits = 0
    for number in (1, 2, 3):
        press(test, "Member")
        right += member(number)
        hits += (scores[int(CARDS[number - 1])] > 0) == member(number)
        assert ("**Right.**" if member(number) else "**Wrong.**") in texts(test)
        assert f"You: {right} of {number} right" in texts(test)
        assert f"The attack on Undefended: {hits} of {number}" in texts(test)
        press(test, "Next")
    press(test, "Previous")
    assert "Was the model trained" not in texts(test)  # what was told stays told
    test.toggle(key="reveal").set_value(True).run()
    assert f"You: {right} of 3 right" in texts(test)


def scored_as(root: Path, preset: Preset, explainer: str, score: float, hardest: int | None = None) -> None:
    """Make the undefended model's audit under an explainer say the same of every image, and nothing of `hardest`."""
    store = Store(root)
    view = loaders.explained(preset.run("none"), explainer)
    found = store.find("audit", experiment.key("audit", view))
    assert found is not None
    frame = found.frame("scores.parquet").assign(score=score)
    frame.loc[frame["index"] == hardest, "score"] = 0.01
    record = {name: found.record[name] for name in ("experiment", "metrics", "seconds")}
    store.discard("audit", found.key)
    store.write("audit", found.key, {"scores.parquet": frame}, record)


@pytest.fixture
def undecided_store(sample_store: Path, tmp_path: Path, preset: Preset) -> Path:
    """A store whose audit of the undefended model cannot decide under Gradient, and is sure under LIME."""
    root = tmp_path / "undecided"
    shutil.copytree(sample_store, root)
    scored_as(root, preset, "gradient", 0.1)
    scored_as(root, preset, "lime", 2.0)
    return root


def test_an_attack_that_cannot_decide_is_half_right(open_page: Open, undecided_store: Path) -> None:
    test = open_page("sample", undecided_store)
    press(test, "Member")
    assert "The attack on Undefended: 0.5 of 1" in texts(test)
    test.selectbox(key="explainer").set_value("lime").run()
    assert f"The attack on Undefended: {int(member(1))} of 1" in texts(test)  # the explainer chosen now
    assert "audit from LIME curves" in texts(test)


def test_an_image_once_revealed_does_not_count(open_page: Open, sample_store: Path) -> None:
    test = open_page("sample", sample_store, sample="2")
    test.toggle(key="reveal").set_value(True).run()
    test.toggle(key="reveal").set_value(False).run()
    press(test, "Member")
    assert ("**Right.**" if member(2) else "**Wrong.**") in texts(test)
    assert "No image guessed yet" in texts(test)
    assert "Not counted so far: 1 guess." in texts(test)


def test_images_that_hardest_picked_do_not_count(open_page: Open, sample_store: Path) -> None:
    test = open_page("sample", sample_store)
    press(test, "Hardest")
    press(test, "Member")
    assert "No image guessed yet" in texts(test)
    assert "Not counted so far: 1 guess." in texts(test)
    press(test, "Random")
    if "Was the model trained" in texts(test):
        press(test, "Member")
        assert "of 1 right" in texts(test)


def test_hardest_follows_the_explainer(open_page: Open, sample_store: Path, tmp_path: Path, preset: Preset) -> None:
    root = tmp_path / "by_explainer"
    shutil.copytree(sample_store, root)
    scored_as(root, preset, "gradient", 2.0, int(CARDS[5]))
    scored_as(root, preset, "lime", 2.0, int(CARDS[11]))
    assert number_shown(press(open_page("sample", root), "Hardest")) == 6
    assert number_shown(press(open_page("sample", root, explainer="LIME"), "Hardest")) == 12


def test_the_line_told_is_described_as_told(open_page: Open, sample_store: Path) -> None:
    test = open_page("sample", sample_store)
    assert "dotted until its membership is told" in texts(test)
    press(test, "Member")
    assert "dotted until" not in texts(test)
    assert ("solid, since it is a member" if member(1) else "dashed, since it is no member") in texts(test)


def test_what_the_attack_claims_stands_beside_how_many_are_members(open_page: Open, sample_store: Path) -> None:
    said = texts(open_page("sample", sample_store))
    assert "it says 73 %" in said  # scores are +1 or -1
    assert "Of the 23 images scored most like it" in said  # a fifth of the other 119
    assert "chance 73" not in said


# ---- missing, empty, damaged


def test_a_fresh_image_is_inspected_without_a_click(
    open_page: Open, sample_store: Path, engine: FakeEngine, preset: Preset
) -> None:
    test = open_page("sample", sample_store, sample="9")
    wanted = {
        experiment.key("inspect", preset.run(model).with_(inspect=Inspect(row=int(CARDS[8])))) for model in MODELS
    }
    assert set(engine.known) == wanted
    assert len(charts(test)) == 4  # curves come from the stored trajectories
    assert "No Gradient map is stored" in texts(test)
    press(test, "Next")
    assert set(engine.known) > wanted
    assert {key for key, _ in engine.cancelled} == wanted  # nobody waits for an image that was left
    press(test, "Previous")
    assert {engine.known[key].status for key in wanted} == {"queued"}  # and whoever comes back need not click
    for key in wanted:
        engine.known[key].status = "cancelled"  # on the page Runs, say
    test.run()
    assert {engine.known[key].status for key in wanted} == {"cancelled"}
    assert "Try again" in [button.label for button in test.button]


def test_a_failed_inspection_can_be_tried_again(open_page: Open, sample_store: Path, engine: FakeEngine) -> None:
    engine.state = {"status": "failed", "error": "the model is <b>gone</b>"}
    test = open_page("sample", sample_store, sample="9")
    test.run()
    assert "the model is ?b?gone" in texts(test)
    asked = len(engine.known)
    test.run()
    assert len(engine.known) == asked  # not again by itself
    assert "Try again" in [button.label for button in test.button]


def test_runs_without_a_click_are_the_sessions_own(open_page: Open, sample_store: Path, engine: FakeEngine) -> None:
    test = open_page("sample", sample_store, sample="9")
    assert "me" not in test.query_params
    (own,) = {name for job in engine.known.values() for name in job.requesters}
    other = open_page("sample", sample_store, sample="9", me=own)  # from a link that names the same requester
    press(other, "Next")
    assert own not in {name for _, name in engine.cancelled}


def test_a_link_that_names_a_requester_ends_nobodys_runs(
    open_page: Open, sample_store: Path, engine: FakeEngine
) -> None:
    author = "a" * 12
    test = open_page("sample", sample_store, sample="9", me=author)
    for job in engine.known.values():
        job.requesters = [author]
    press(test, "Next")
    assert not engine.cancelled


def test_runs_without_a_click_can_be_cancelled_and_tried_again(
    open_page: Open, sample_store: Path, engine: FakeEngine
) -> None:
    test = open_page("sample", sample_store, sample="9")
    press(test, "Cancel")
    assert {key for key, _ in engine.cancelled} == set(engine.known)
    assert "Cancel" not in [button.label for button in test.button]
    press(test, "Try again")
    assert {job.status for job in engine.known.values()} == {"queued"}
    assert "me" not in test.query_params


def test_no_training_starts_without_a_click(
    open_page: Open, sample_store: Path, engine: FakeEngine, preset: Preset
) -> None:
    strong = {"seed": "1", "lambda": "5"}
    test = open_page("sample", sample_store, sample="9", **strong)
    wanted = Inspect(row=int(CARDS[8]))
    bare = preset.run("none", 1).with_(inspect=wanted)
    assert set(engine.known) == {experiment.key("inspect", bare)}  # its weights are stored
    assert "first be trained once more" in texts(test)
    offered = next(button for button in test.button if button.key == "compute_inspect")
    offered.click()
    test.run()
    assert len(engine.known) == 2
    assert [job.experiment["defense"]["name"] for job in engine.known.values()] == ["none", "tier_full"]


def test_an_upload_starts_no_training_of_the_model_that_judges_it(
    open_page: Open, sample_store: Path, tmp_path: Path, engine: FakeEngine, preset: Preset
) -> None:
    root = tmp_path / "no_weights"
    shutil.copytree(sample_store, root)
    shutil.rmtree(root / "train" / experiment.key("train", preset.run("none")))
    name = uploads.keep(Store(root), OWN[:, ::-1])
    open_page("sample", root, source="My own", upload=name, models=["TIER Full"])
    assert not engine.known
    open_page("sample", root, source="My own", upload=name, models=["TIER Full"], label="sign 3")
    assert sorted(job.stage for job in engine.known.values()) == ["inspect", "verdict"]


def test_a_run_that_the_engine_does_not_know_is_waited_for_with_a_limit(
    open_page: Open, sample_store: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeEngine, "job", lambda self, key: None)
    test = open_page("sample", sample_store, sample="9")
    assert "has not answered" not in texts(test)
    assert len(charts(test)) == 4  # drawn once, not over and over
    monkeypatch.setattr(seen, "PATIENCE", 0.0)
    test.run()
    assert "has not answered" in texts(test)
    assert "Ask again" in [button.label for button in test.button]


def test_without_an_engine_what_is_stored_is_shown(open_page: Open, sample_store: Path, engine: FakeEngine) -> None:
    engine.broken = "no worker"
    test = open_page("sample", sample_store, sample="9")
    assert "no worker" in texts(test)
    assert len(charts(test)) == 4


def test_without_the_images_curves_and_scores_are_shown(
    open_page: Open, sample_store: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaders, "images", lambda preset: None)
    test = open_page("sample", sample_store, sample="9")
    assert "not on this machine" in texts(test)
    assert len(charts(test)) == 4
    assert not engine.known  # nothing is downloaded for a page


def test_an_audit_that_is_missing_is_offered(open_page: Open, sample_store: Path, tmp_path: Path) -> None:
    root = tmp_path / "no_audit"
    shutil.copytree(sample_store, root, ignore=shutil.ignore_patterns("audit"))
    test = open_page("sample", root)
    assert "Compute now" in [button.label for button in test.button]
    assert next(button for button in test.button if button.label == "Hardest").disabled


def test_an_empty_store_says_what_to_run(open_page: Open, empty_store: Path) -> None:
    test = open_page("sample", empty_store)
    assert "python -m tier run signs" in "".join(str(code.value) for code in test.code)


def test_damaged_results_are_passed_over(open_page: Open, sample_store: Path, tmp_path: Path) -> None:
    root = tmp_path / "damaged"
    shutil.copytree(sample_store, root)
    for name in ("inspect/*/inspect.parquet", "trajectory/*/curves.parquet"):
        for path in root.glob(name):
            path.write_bytes(path.read_bytes()[:50])
    test = open_page("sample", root)
    assert not test.exception
    assert "could not be drawn" not in texts(test)


@pytest.mark.parametrize(
    "query",
    [
        {"sample": "0", "level": "0.35", "order": "up"}, {"sample": "121", "level": "x", "explainer": "[x](y)"},
        {"sample": "nan", "scale": "1", "values": "?"}, {"sample": "<script>", "reveal": "maybe", "source": "theirs"},
        {"sample": "1e9", "models": ["", "TIER Full"]}, {"upload": "../../x", "row": ["1", "2"]},
        {"upload": "0" * 64, "source": "My own", "label": "nothing"}, {"row": "3", "sample": "5"},
    ],
)  # fmt: skip
def test_hostile_links_draw_the_page(open_page: Open, sample_store: Path, query: dict[str, str]) -> None:
    test = open_page("sample", sample_store, **query)
    assert not test.exception
    assert "could not be drawn" not in texts(test)
    assert "<script>" not in texts(test)


# ---- uploads


def test_an_uploaded_image_is_judged_and_not_said_to_be_a_member(open_page: Open, sample_store: Path) -> None:
    name = uploads.keep(Store(sample_store), OWN)
    test = open_page("sample", sample_store, source="My own", upload=name)
    said = texts(test)
    assert "Not in the data set" in said
    assert "Was the model trained" not in said
    assert "score +0.70" in said
    assert "25 % of the members and of 75 % of the non-members" in said  # as the verdict says, fold by fold
    assert "The file itself is not kept" in said
    assert "nearest training image" in said
    assert len(charts(test)) == 4
    assert "TIER Full: Gradient map of your image for the class sign 0." in pictures(test)


def test_an_upload_with_a_training_images_pixels_is_not_called_new(open_page: Open, sample_store: Path) -> None:
    own = {}
    for word, row in (("member", ROWS[4]), ("other", ROWS[-1]), ("new", None)):
        name = uploads.keep(Store(sample_store), OWN[:, :, ::-1] if row is None else PIXELS[row])
        own[word] = texts(open_page("sample", sample_store, source="My own", upload=name))
    assert "the models shown were trained on this picture" in own["member"]
    assert "none that the models shown were trained on" in own["other"]
    assert ["Not in the data set" in said for said in own.values()] == [False, False, True]


def test_an_uploads_assumed_class_is_said(open_page: Open, sample_store: Path) -> None:
    name = uploads.keep(Store(sample_store), OWN)
    test = open_page("sample", sample_store, source="My own", upload=name)
    assert "No class was chosen, so what the undefended model predicts (sign 0)" in texts(test)
    lines = [caption.value for caption in test.caption if "data: signs" in caption.value]
    assert len(lines) == 2
    assert all("target: predicted by the undefended model" in line for line in lines)
    assert "audit: 5 fold classifiers, mean" in lines[1]
    assert "cross-fitted" not in lines[1]
    test = open_page("sample", sample_store, source="My own", upload=name, label="sign 3")
    assert "No class was chosen" not in texts(test)
    assert "target: sign 3, chosen" in texts(test)


def test_a_link_to_the_data_set_carries_no_upload(open_page: Open, sample_store: Path) -> None:
    name = uploads.keep(Store(sample_store), OWN)
    test = open_page("sample", sample_store, source="My own", upload=name, label="sign 3")
    assert "upload" in test.query_params
    test.button_group(key="source").set_value("data").run()
    assert not {"upload", "label", "source"} & set(test.query_params)
    test = open_page("sample", sample_store, upload=name, label="sign 3")  # a link made before
    assert not {"upload", "label"} & set(test.query_params)


def test_a_fresh_upload_is_inspected_and_judged_without_a_click(
    open_page: Open, sample_store: Path, engine: FakeEngine
) -> None:
    name = uploads.keep(Store(sample_store), OWN[:, ::-1])
    open_page("sample", sample_store, source="My own", upload=name)
    assert sorted(job.stage for job in engine.known.values()) == ["inspect", "inspect", "verdict", "verdict"]
    test = open_page("sample", sample_store, source="My own", upload=name, label="sign 3")
    assert test.selectbox(key="label").value == 3
    labels = [job.experiment["inspect"]["label"] for job in engine.known.values()]
    assert sorted(map(str, labels)) == ["3"] * 4 + ["None"] * 4


def test_the_upload_page_warms_the_engine_up_once(open_page: Open, sample_store: Path, engine: FakeEngine) -> None:
    test = open_page("sample", sample_store)
    assert engine.started == 0
    test.button_group(key="source").set_value("own").run()
    test.run()
    assert engine.started == 1


def test_a_file_is_taken_kept_and_named_in_the_address(open_page: Open, sample_store: Path) -> None:
    from tests.dashboard.test_uploads import ACCEPTED, REFUSED

    test = open_page("sample", sample_store, source="My own")
    uploader = test.file_uploader(key="file")
    uploader.set_value(("<img src=x>.png", ACCEPTED["png"], "image/png")).run()
    named = test.query_params["upload"]
    name = named if isinstance(named, str) else named[0]
    pixels = uploads.read(Store(sample_store), name)
    assert pixels.shape == (3, 32, 32)
    assert "scaled to the model's size" in texts(test)
    assert "img src" not in texts(test)
    test.file_uploader(key="file").set_value(("x.png", REFUSED["huge png"][0], "image/png")).run()
    assert "decompression bomb" in texts(test)
    assert not test.exception


def test_the_attack_from_outside_says_what_drove_its_score(open_page: Open, full_store: Path) -> None:
    test = open_page("sample", full_store, attacker="Adaptive")
    assert not test.exception
    drawn = [str(chart) for chart in charts(test)]
    assert sum("attack_reasons_" in chart for chart in drawn) == 2
    assert "**" not in "".join(re.findall(r'alt: "([^"]*)"', "".join(drawn)))
    assert "The attack from outside" in texts(test)
