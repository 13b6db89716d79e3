"""Every page on a full, an empty and a damaged store; what it owes the reader; links that reopen a view."""

import json
import shutil
import subprocess
import sys
import time
from importlib.machinery import PathFinder
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests import clock
from tests.dashboard import synthetic
from tests.dashboard.conftest import APP, PAGES, Open, charts, texts
from tests.dashboard.engines import FakeEngine
from tier import experiment, figures, presets
from tier.presets import Preset
from tier.store import Store


def drawn(test: AppTest) -> AppTest:
    """The page, after checking that nothing went wrong while drawing it."""
    assert not test.exception
    assert not [e.value for e in test.error if "could not be drawn" in str(e.proto)]
    return test


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("state", ["full_store", "empty_store", "damaged_store", "shipped_store"])
def test_every_page_draws_on_every_store(
    page: str, state: str, open_page: Open, request: pytest.FixtureRequest
) -> None:
    test = drawn(open_page(page, request.getfixturevalue(state)))
    assert len(test.title) == 1


@pytest.mark.parametrize("page", PAGES)
def test_an_empty_store_says_what_to_run(page: str, open_page: Open, empty_store: Path) -> None:
    test = open_page(page, empty_store)
    command = "python -m tier reproduce" if page == "paper" else "python -m tier run signs"
    assert command in "".join(str(code.value) for code in test.code)
    if page != "train":
        assert not charts(test)


@pytest.mark.parametrize("page", ["overview", "trajectories", "divergence", "tradeoff", "train"])
def test_every_chart_states_its_takeaway_settings_and_data(page: str, open_page: Open, full_store: Path) -> None:
    test = open_page(page, full_store)
    found = charts(test)
    assert found
    for chart in found:
        assert len(chart.alt) > 40
        assert any(digit in chart.alt for digit in "0123456789")  # computed from the numbers, not a fixed text
    lines = [caption.value for caption in test.caption if "data: signs" in caption.value]
    assert len(lines) >= len(found)
    assert all("members and" in line and "seed" in line for line in lines)
    csv = [button for button in test.get("download_button") if "CSV" in button.proto.label]
    assert len(csv) >= len(found)
    assert texts(test).count(":material/lightbulb:") == len(found)


def test_the_chart_is_saved_in_the_format_chosen(open_page: Open, full_store: Path) -> None:
    for image in ("SVG", "PNG"):
        chart = charts(open_page("trajectories", full_store, image=image))[0]
        assert json.loads(chart.config)["toImageButtonOptions"]["format"] == image.lower()


def test_no_page_loads_torch(full_store: Path) -> None:
    script = f"""
import sys
from importlib.machinery import PathFinder
from streamlit.testing.v1 import AppTest
import dashboard.loaders as loaders
from tests.dashboard.engines import FakeEngine
loaders.engine = lambda: FakeEngine()
test = AppTest.from_file({str(APP)!r}, default_timeout=60).run()
for page in {PAGES!r}:
    test.switch_page(f"../pages/{{page}}.py").run()
    assert not test.exception, page
    print(page, "torch" in sys.modules)
"""
    environment = {
        "TIER_STORE": str(full_store),
        "TIER_DEMO_STORE": str(full_store / "no"),
        "PATH": "",
        "PYTHONPATH": str(APP.parents[1]),
    }
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == [word for page in PAGES for word in (page, "False")]


# ---- links


def test_a_link_reopens_the_exact_view(open_page: Open, full_store: Path) -> None:
    test = open_page("trajectories", full_store, order="LeRF", models=["Augmentation"], seed="1")
    assert "least important" in charts(test)[0].spec
    assert "Augmentation" in charts(test)[0].spec
    assert "Undefended" not in charts(test)[0].spec
    assert any("seed: 1" in caption.value for caption in test.caption)
    assert not test.warning


def test_the_address_follows_the_view(open_page: Open, full_store: Path) -> None:
    test = open_page("trajectories", full_store)
    test.get_by_key("order").set_value("lerf").run()
    assert "least important" in charts(test)[0].spec


@pytest.mark.parametrize(
    ("page", "query"),
    [
        ("trajectories", {"order": "sideways"}),
        ("trajectories", {"models": ["Undefended", "Nonsense"]}),
        ("trajectories", {"lambda": "99"}),
        ("divergence", {"unit": "<script>alert(1)</script>"}),
        ("train", {"epochs": "-4"}),
        ("overview", {"preset": "../../etc"}),
    ],
)
def test_a_bad_link_falls_back_and_says_so(page: str, query: dict[str, str], open_page: Open, full_store: Path) -> None:
    test = drawn(open_page(page, full_store, **query))
    assert len(test.warning) == 1
    assert "does not exist here" in test.warning[0].value
    assert "<" not in test.warning[0].value


# ---- overview and the game


def test_the_key_figures_are_those_of_the_store(open_page: Open, full_store: Path, preset: Preset) -> None:
    from tests.dashboard.synthetic import strength

    test = open_page("overview", full_store)
    values = [metric.value for metric in test.metric]
    runs = [strength(preset.run("none", seed)) for seed in preset.seeds]
    leak, accuracy = (sum(run[i] for run in runs) / len(runs) for i in (1, 0))
    assert values[0] == f"{100 * leak:.0f} of 100"
    assert values[1] == f"{100 * accuracy:.0f} of 100"
    assert len(values) == 6


def test_the_overview_leads_to_the_pages_that_judge_by_eye(open_page: Open, full_store: Path) -> None:
    labels = [link.proto.label for link in open_page("overview", full_store).get("page_link")]
    assert {"Trajectories", "Train", "KL divergence", "Explanations", "Sample", "Attack"} <= set(labels)


def test_what_became_of_the_data_is_told(open_page: Open, empty_store: Path) -> None:
    store = Store(empty_store)
    preset = synthetic.pinned(store, presets.get("signs"))
    told = {"sizes": {"target_train": 990, "target_test": 990}, "notes": ["20 duplicates dropped <b>"], "members": 990}
    synthetic.add(store, preset.run("none"), told=told)
    test = drawn(open_page("overview", empty_store))
    assert [expander.label for expander in test.expander] == ["About the data"]
    said = "".join(str(line.value) for line in test.expander[0].markdown)
    assert "990 members and 990 non-members" in said
    assert "20 duplicates dropped" in said
    assert "<" not in said
    assert "n: 990 members and 1000 non-members" in texts(test)  # as trained, not as configured


def test_an_audit_that_sees_no_trajectory_says_so(open_page: Open, empty_store: Path) -> None:
    store = Store(empty_store)
    preset = synthetic.pinned(store, presets.get("signs"))
    for defense in preset.defenses:
        synthetic.add(store, preset.run(defense), told={"features": []})
    for page in ("overview", "train"):
        assert "the audit sees loss and class only" in texts(open_page(page, empty_store))


def test_maps_that_rank_nothing_are_counted(open_page: Open, full_store: Path, empty_store: Path) -> None:
    store = Store(empty_store)
    preset = synthetic.pinned(store, presets.get("signs"))
    synthetic.add(store, preset.run("none"), told={"degenerate_maps": 6, "profile_degenerate_maps": 7})
    for page, count in (("trajectories", 6), ("divergence", 7)):
        said = texts(open_page(page, empty_store, models=["Undefended"]))
        assert f"degenerate maps: Undefended {count} of 2000" in said
        assert f"{count} of 2,000 images (Undefended)" in said
        assert "degenerate" not in texts(open_page(page, full_store))


def test_the_batch_size_of_the_tests_is_the_presets(open_page: Open, full_store: Path, preset: Preset) -> None:
    said = texts(open_page("divergence", full_store, unit="Batch means"))
    assert f"unit: means of {preset.experiment.divergence.batch} images" in said


def test_the_game_hides_membership_until_a_guess_and_keeps_score(open_page: Open, full_store: Path) -> None:
    test = open_page("overview", full_store)
    assert "member" not in charts(test)[0].spec
    test.button(key="guess_member").click().run()
    assert "this image: " in charts(test)[0].spec
    said = texts(test)
    assert ("You: 1 of 1 right" in said) == ("**Right.**" in said)
    test.button(key="next").click().run()
    assert "this image: " not in charts(test)[0].spec
    test.button(key="guess_other").click().run()
    assert "of 2 right" in texts(test)


def test_revealing_counts_no_guess(open_page: Open, full_store: Path) -> None:
    test = open_page("overview", full_store, reveal="true")
    assert "this image: " in charts(test)[0].spec
    assert "No image guessed yet" in texts(test)


def test_scores_are_kept_apart_by_model(open_page: Open, full_store: Path) -> None:
    test = open_page("overview", full_store)
    test.button(key="guess_member").click().run()
    test.get_by_key("game").set_value("augmentation").run()
    assert "No image guessed yet" in texts(test)


# ---- explainers


@pytest.mark.parametrize("page", ["trajectories", "divergence"])
def test_every_explainer_is_offered_and_a_link_names_it(page: str, open_page: Open, full_store: Path) -> None:
    specs = {}
    for name, label in figures.EXPLAINERS.items():
        test = drawn(open_page(page, full_store, explainer=label, models=["Undefended", "TIER Full"]))
        assert test.get_by_key("explainer").options == list(figures.EXPLAINERS.values())
        assert test.get_by_key("explainer").value == name
        assert "Not stored" not in texts(test)
        settings = next(caption.value for caption in test.caption if "data: signs" in caption.value)
        assert f"explainer: {label}" in settings
        specs[name] = charts(test)[0].spec
    assert len(set(specs.values())) == len(specs)  # each has a drawing of its own
    assert drawn(open_page(page, full_store)).get_by_key("explainer").value == "gradient"


def test_the_settings_line_names_what_acts_on_the_explainer_only(open_page: Open, full_store: Path) -> None:
    acting = {"SmoothGrad": "samples 25", "Integrated Gradients": "steps 32", "LIME": "segments 40"}
    for page in ("trajectories", "divergence"):
        for label, text in acting.items():
            said = texts(open_page(page, full_store, explainer=label, models=["Undefended"]))
            assert [other for other in acting.values() if other in said] == [text]
        said = texts(open_page(page, full_store, explainer="Grad-CAM++", models=["Undefended"]))
        assert "layer: blocks.5" in said
        assert "layer:" not in texts(open_page(page, full_store, explainer="SHAP", models=["Undefended"]))


def test_the_papers_tables_stand_beside_the_gradient_only(open_page: Open, full_store: Path) -> None:
    test = open_page("divergence", full_store)
    assert [expander.label for expander in test.expander] == ["The paper's Tables I and III"]
    assert "as in the paper" in texts(test)
    other = open_page("divergence", full_store, explainer="SHAP")
    assert not other.expander
    assert "rank the pixels by the plain gradient" in texts(other)
    assert "as in the paper" not in texts(other)


def test_all_explainers_are_shown_side_by_side(open_page: Open, full_store: Path) -> None:
    test = drawn(open_page("trajectories", full_store, view="All explainers", order="LeRF"))
    (chart,) = charts(test)
    titles = [f"<b>{label}</b>" for label in figures.EXPLAINERS.values()]
    words = [note["text"].split("<br>")[0] for note in json.loads(chart.spec)["layout"]["annotations"]]
    assert words[:8] == titles
    assert "least important" in json.loads(chart.spec)["layout"]["annotations"][-1]["text"]
    assert "Second seed" not in chart.alt
    assert "of 8 explainers" in chart.alt
    assert "Not stored" not in texts(test)
    assert len([button for button in test.get("download_button") if "CSV" in button.proto.label]) == 1


def test_the_grid_has_two_panels_in_a_row_which_fit_any_window(open_page: Open, full_store: Path) -> None:
    """Whatever the browser says of itself: four titles side by side overlap in a narrow window."""
    layout = json.loads(charts(open_page("trajectories", full_store, view="All explainers"))[0].spec)["layout"]
    lefts = {layout[axis]["domain"][0] for axis in layout if axis.startswith("xaxis")}
    assert len(lefts) == 2


@pytest.mark.parametrize("query", [{}, {"view": "All explainers"}])
def test_trajectories_tell_the_inherited_gap_from_the_added_one(
    query: dict[str, str], open_page: Open, full_store: Path, preset: Preset
) -> None:
    """Both views by one rule: what is there before any pixel is removed is no explanation's doing."""
    found = experiment.find(Store(full_store), "trajectory", preset.run("none"))
    assert found is not None
    frame = found.frame("difference.parquet")
    start = frame[(frame["order"] == "morf") & (frame["level"] == 0)]["difference"].iloc[0]
    test = open_page("trajectories", full_store, models=["Undefended"], **query)
    assert f"with nothing removed, members' confidence differs from non-members' by {start:+.2f}" in charts(test)[0].alt
    said = texts(test)
    assert "no explanation's doing" in said
    assert "without any explanation" in said
    assert "someone with the explanation can tell" not in said
    assert "the explanation gives membership away" not in said


def test_explainers_missing_from_the_grid_are_named_and_computed_on_request(
    open_page: Open, empty_store: Path, engine: FakeEngine
) -> None:
    store = Store(empty_store)
    preset = synthetic.pinned(store, presets.get("signs"))
    one = preset.run("none")
    synthetic.add(store, one)
    synthetic.add(store, one.set({"explain.name": "lime"}), ("trajectory",))
    test = drawn(open_page("trajectories", empty_store, view="All explainers", models=["Undefended"]))
    assert len(charts(test)) == 1
    assert "of 2 explainers" in charts(test)[0].alt
    missing = [name for name in figures.EXPLAINERS if name not in ("gradient", "lime")]
    said = next(text.value for text in test.markdown if "Not stored" in text.value)
    assert all(f"{figures.EXPLAINERS[name]}, Undefended" in said for name in missing)
    test.button(key="compute_trajectory").click().run()
    assert set(engine.known) == {experiment.key("trajectory", one.set({"explain.name": name})) for name in missing}


@pytest.mark.timed
@pytest.mark.parametrize(
    ("page", "query"),
    [("trajectories", {"view": "All explainers"}), ("trajectories", {"explainer": "LIME"}), ("divergence", {})],
)
def test_pages_of_explainers_draw_again_within_two_seconds(
    page: str, query: dict[str, str], open_page: Open, full_store: Path
) -> None:
    """In processor time, which other programs on the machine hardly lengthen."""
    test = open_page(page, full_store, **query)
    clock.within(2.0, lambda: clock.took(lambda: drawn(test.run()), time.process_time))


# ---- what is not stored


def test_missing_results_are_named_and_computed_on_request(
    open_page: Open, full_store: Path, engine: FakeEngine, preset: Preset
) -> None:
    test = open_page("trajectories", full_store, explainer="Grad-CAM", models=["TIER Full"], seed="1")
    assert not charts(test)
    assert "TIER Full" in texts(test)
    test.button(key="compute_trajectory").click().run()
    assert [job.stage for job in engine.jobs()] == ["trajectory"]
    one = preset.run("tier_full", 1)
    wanted = experiment.key("trajectory", one.set({"explain.name": "gradcam"}))
    assert list(engine.known) == [wanted]


def test_files_left_out_of_a_store_are_computed_on_request(
    open_page: Open, full_store: Path, engine: FakeEngine, preset: Preset, tmp_path: Path
) -> None:
    """A copy without per-image results holds the stage, but not what the game needs."""
    light, one = Store(tmp_path / "light"), preset.run("none")
    for result in Store(full_store).ls():
        Store(full_store).export(result.stage, result.key, light, ["samples.parquet"])
    test = open_page("overview", Path(light.url))
    test.button(key="compute_trajectory").click().run()
    assert engine.needed == {experiment.key("trajectory", one): ("samples.parquet",)}


def test_runs_that_are_one_at_lambda_zero_are_watched_once(
    open_page: Open, empty_store: Path, engine: FakeEngine, preset: Preset
) -> None:
    views = {"models": ["Augmentation", "TIER Full"], "lambda": "0", "explainer": "Grad-CAM"}
    test = drawn(open_page("trajectories", _with_one_report(empty_store, preset), **views))
    test.button(key="compute_trajectory").click()
    drawn(test.run())
    assert len(engine.jobs()) == 1


def test_a_record_of_another_version_is_passed_over(open_page: Open, full_store: Path, tmp_path: Path) -> None:
    root = tmp_path / "mixed"
    shutil.copytree(full_store, root)
    strange = {"experiment": {"model": {"layers": 3}}, "metrics": {}}
    Store(root).write("report", "e" * 64, {}, strange)
    Store(root).write("report", "d" * 64, {}, {"metrics": {}})
    for page in PAGES:
        drawn(open_page(page, root))


def test_a_run_can_be_cancelled_for_everybody(
    open_page: Open, full_store: Path, engine: FakeEngine, preset: Preset
) -> None:
    engine.state = {"status": "running"}
    key = engine.submit("report", preset.run("none", seed=9), "somebody who left")
    test = open_page("runs", full_store)
    test.button(key="cancel_all_now").click().run()
    assert engine.cancelled == [(key, "everybody")]


def test_runs_of_equal_name_can_be_cancelled_one_by_one(
    open_page: Open, full_store: Path, engine: FakeEngine, preset: Preset
) -> None:
    engine.state = {"status": "running"}
    one = preset.run("tier_full", seed=9)
    keys = [engine.submit("attack", one.set({"attack.shadow": kind}), "somebody") for kind in ("undefended", "same")]
    test = open_page("runs", full_store)
    (choice,) = [box for box in test.selectbox if box.key == "cancel_all"]
    assert len(set(choice.options)) == 2
    choice.select(choice.options[1]).run()
    test.button(key="cancel_all_now").click().run()
    assert engine.cancelled == [(keys[1], "everybody")]


def test_runs_that_failed_for_one_reason_are_told_together(
    open_page: Open, full_store: Path, engine: FakeEngine, preset: Preset
) -> None:
    engine.state = {"status": "failed", "error": "no shadow images", "details": "Traceback ... no shadow images"}
    for name in ("gradient", "lime", "shap"):
        engine.submit("attack", preset.run("none", seed=9).set({"explain.name": name}), "somebody")
    engine.state = {"status": "failed", "error": "no memory", "details": "Traceback ... no memory"}
    engine.submit("report", preset.run("none", seed=8), "somebody")
    test = open_page("runs", full_store)
    told = [box for box in test.expander if "Why it failed" in box.label]
    assert len(told) == 2
    assert "3 runs for one reason" in told[0].label
    assert "report: " in told[1].label
    listed = told[0].markdown[0].value
    assert listed.count("\n") == 2
    assert "LIME" in listed and "SHAP" in listed
    assert told[0].code[0].value == "Traceback ... no shadow images"


def _with_one_report(root: Path, preset: Preset) -> Path:
    one = preset.run("none")
    Store(root).write("report", experiment.key("report", one), {}, {"experiment": one.changed(), "metrics": {}})
    return root


def test_a_damaged_store_says_what_was_set_aside(open_page: Open, damaged_store: Path) -> None:
    for page in ("trajectories", "divergence", "train", "runs"):
        test = drawn(open_page(page, damaged_store))
    warning = next(w for w in test.warning if "were set aside" in w.value)
    assert "trajectory" in warning.value
    assert "divergence" in warning.value
    assert "report" in warning.value


def test_foreign_folders_among_the_damaged_disturb_no_page(open_page: Open, full_store: Path, tmp_path: Path) -> None:
    root = tmp_path / "foreign"
    shutil.copytree(full_store, root)
    (root / "damaged" / "notes-of-somebody").mkdir(parents=True)
    test = drawn(open_page("runs", root))
    assert not [w for w in test.warning if "were set aside" in w.value]


def test_checking_every_file_names_the_damaged_ones(open_page: Open, damaged_store: Path) -> None:
    test = open_page("runs", damaged_store)
    test.button(key="verify").click().run()
    assert any("sha256" in error.value for error in test.error)


def test_checking_a_sound_store_says_so(open_page: Open, full_store: Path) -> None:
    test = open_page("runs", full_store)
    test.button(key="verify").click().run()
    assert test.success


# ---- presets


def test_a_preset_is_offered_when_its_data_or_results_are_present(
    open_page: Open, full_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIER_DATA", raising=False)
    assert open_page("overview", full_store).selectbox(key="preset").options == ["signs"]
    (tmp_path / "data" / "gtsrb").mkdir(parents=True)
    monkeypatch.setenv("TIER_DATA", str(tmp_path / "data"))
    test = drawn(open_page("overview", full_store, preset="gtsrb"))
    assert test.selectbox(key="preset").value == "gtsrb"
    assert "python -m tier run gtsrb" in test.code[0].value


def test_no_file_of_the_dashboard_hides_another_module() -> None:
    """Streamlit puts `dashboard/` on the path first, so a file's name must not be taken by any other module."""
    others = [path for path in sys.path if Path(path).resolve() not in (APP.parent, APP.parents[1], Path.cwd())]
    for file in APP.parent.glob("*.py"):
        assert file.stem not in sys.stdlib_module_names
        assert not any(PathFinder.find_spec(file.stem, [path]) for path in others if path), file.stem
