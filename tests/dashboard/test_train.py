"""The Train page: stored points at once, new ones through the engine, every state of a run."""

from pathlib import Path

import pytest

from tests.dashboard.conftest import Open, charts, texts
from tests.dashboard.engines import FakeEngine
from tests.dashboard.synthetic import events, strength
from tier import experiment
from tier.presets import Preset


def test_a_stored_point_shows_at_once_and_trains_nothing(
    open_page: Open, full_store: Path, engine: FakeEngine, preset: Preset
) -> None:
    test = open_page("train", full_store, **{"lambda": "3", "beta": "0.1"})
    accuracy, leak, _ = strength(preset.point("tier_full", 3.0, 0.1))
    values = [metric.value for metric in test.metric]
    assert values[:2] == [f"{100 * accuracy:.0f} of 100", f"{100 * leak:.0f} of 100"]
    test.form_submit_button[0].click().run()
    assert not engine.jobs()


def test_moving_a_slider_and_pressing_train_changes_the_point(open_page: Open, full_store: Path) -> None:
    test = open_page("train", full_store)
    test.select_slider(key="lambda").set_value(15.0)
    test.form_submit_button[0].click().run()
    assert "lambda 15" in texts(test)


def test_a_new_point_waits_for_the_button_then_goes_to_the_engine(
    open_page: Open, full_store: Path, engine: FakeEngine, preset: Preset
) -> None:
    test = open_page("train", full_store, free="true", lambda_free="4.5", beta_free="0.2")
    assert any("has not been trained" in str(info.proto) for info in test.info)
    assert not engine.jobs()
    engine.state = {"position": 2, "step": "waiting"}
    test.form_submit_button[0].click().run()
    (job,) = engine.jobs()
    assert job.stage == "report"
    assert job.key == experiment.key("report", preset.point("tier_full", 4.5, 0.2))
    assert "Number 2 in the queue" in texts(test)
    assert test.query_params["me"] == job.requesters[0]


def test_a_running_point_shows_live_curves_time_left_and_cancel(
    open_page: Open, full_store: Path, engine: FakeEngine, preset: Preset
) -> None:
    engine.events = events(preset.run("tier_full")).head(7)
    engine.state = {
        "status": "running", "position": 0, "step": "training", "epoch": 7, "epochs": 40,
        "fraction": 0.23, "eta_seconds": 31.0,
    }  # fmt: skip
    test = open_page("train", full_store, free="true", lambda_free="4.5")
    test.form_submit_button[0].click().run()
    assert "Epoch 7 of 40" in texts(test)
    assert "31 s left in this step" in texts(test)  # no such run has ended yet, so the whole is not known
    assert any("After epoch 7" in chart.alt for chart in charts(test))
    key = engine.jobs()[0].key
    test.button(key=f"cancel_{key}").click().run()
    assert engine.cancelled == [(key, engine.jobs()[0].requesters[0])]
    assert any("cancelled" in str(info.proto) for info in test.info)


@pytest.mark.parametrize(
    ("step", "status", "said"),
    [
        ("waiting for the engine to start", "queued", "Starting the engine; the first run also draws the images"),
        ("starting", "running", "Starting; the first run also draws the images"),
        ("reading the images", "running", "Drawing the images."),
        ("measuring KL", "running", "Measuring KL."),
    ],
)
def test_a_silent_step_says_what_takes_so_long(
    step: str, status: str, said: str, open_page: Open, full_store: Path, engine: FakeEngine
) -> None:
    engine.state = {"status": status, "step": step}
    test = open_page("train", full_store, free="true", lambda_free="4.5")
    test.form_submit_button[0].click().run()
    assert said in texts(test)


def test_the_time_left_is_the_whole_runs_once_such_a_run_has_ended(
    open_page: Open, full_store: Path, engine: FakeEngine, preset: Preset
) -> None:
    engine.state = {"status": "done", "attempt": 1}
    engine.submit("report", preset.point("tier_full", 1.5, 0.2), "somebody")
    engine.state = {"status": "running", "step": "training", "eta_seconds": 31.0}
    test = open_page("train", full_store, free="true", lambda_free="4.5")
    test.form_submit_button[0].click().run()
    assert "31 s left." in texts(test)


def test_a_refresh_finds_the_run_and_may_still_cancel_it(open_page: Open, full_store: Path, engine: FakeEngine) -> None:
    engine.state = {"status": "running", "position": 0, "step": "training"}
    first = open_page("train", full_store, free="true", lambda_free="4.5")
    first.form_submit_button[0].click().run()
    key, me = engine.jobs()[0].key, first.query_params["me"]
    again = open_page("train", full_store, free="true", lambda_free="4.5", me=me)
    again.button(key=f"cancel_{key}").click().run()
    assert engine.cancelled == [(key, me)]


def test_somebody_elses_run_is_shown_without_cancel(open_page: Open, full_store: Path, engine: FakeEngine) -> None:
    engine.state = {"status": "running", "position": 0, "step": "training"}
    first = open_page("train", full_store, free="true", lambda_free="4.5")
    first.form_submit_button[0].click().run()
    other = open_page("train", full_store, free="true", lambda_free="4.5")
    assert "Asked for by somebody else" in texts(other)
    with pytest.raises(KeyError):
        other.button(key=f"cancel_{engine.jobs()[0].key}")


def test_a_failed_run_says_why_and_what_to_do(open_page: Open, full_store: Path, engine: FakeEngine) -> None:
    engine.state = {"status": "failed", "error": "The loss became NaN in epoch 3: lower the learning rate. <b>x</b>"}
    test = open_page("train", full_store, free="true", lambda_free="29")
    test.form_submit_button[0].click().run()
    (error,) = test.error
    assert "lower the learning rate" in error.value
    assert "<b>" not in error.value


def test_an_engine_that_does_not_start_is_an_error_not_a_crash(
    open_page: Open, full_store: Path, engine: FakeEngine
) -> None:
    engine.broken = "no space left"
    test = open_page("train", full_store, free="true", lambda_free="29")
    test.form_submit_button[0].click().run()
    assert not test.exception
    assert any("no space left" in error.value and "python -m tier engine" in error.value for error in test.error)


def test_values_beyond_the_limits_are_refused_on_the_server(
    open_page: Open, full_store: Path, engine: FakeEngine
) -> None:
    test = open_page("train", full_store, free="true")
    test.session_state["epochs"] = 100_000
    test.form_submit_button[0].click().run()
    assert all(job.experiment["train"]["epochs"] <= 200 for job in engine.jobs())


def test_the_chosen_point_is_ringed_among_the_presets_defenses(open_page: Open, full_store: Path) -> None:
    test = open_page("train", full_store, **{"lambda": "5", "beta": "0.1"})
    chart = charts(test)[-1]
    for name in ("Undefended", "Augmentation", "TIER Full", "TIER Reg-only", "frontier", "chosen"):
        assert name in chart.spec
    assert "The chosen point (leak 0." in chart.alt
    assert "than the least leaking of" in chart.alt
    link = test.get("page_link")[-1].proto
    assert link.page == "tradeoff"
    assert "run=TIER+Full%2C+lambda+5%2C+beta+0.1" in link.query_string


def test_a_point_that_is_not_stored_has_no_ring(open_page: Open, full_store: Path) -> None:
    test = open_page("train", full_store, free="true", lambda_free="4.5")
    chart = charts(test)[-1]
    assert '"chosen"' not in chart.spec
    assert "cannot be compared yet" in chart.alt
