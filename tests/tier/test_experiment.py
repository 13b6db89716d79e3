"""The pipeline: keys, what shares a key, what is computed when, resume after a kill, damaged results."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tier import checkpoints, experiment, presets
from tier.config import EXPLAINER_SETTINGS, Augmentation, Defense, Experiment, Model, Tier
from tier.context import Cancelled, Context
from tier.experiment import inspecting
from tier.store import Store

ROOT = Path(__file__).resolve().parents[2]
# tiny undertrained nets leak nothing, which the audit says
pytestmark = pytest.mark.filterwarnings("ignore:no trajectory feature separates")


def tiny(defense: Defense = Defense(), **settings: Any) -> Experiment:
    """A run of seconds: 40 members, two classes of signs, a net of width 4."""
    small = {
        "data.signs.classes": 4, "data.signs.images": 400, "data.image_size": 16, "split.target_train": 40,
        "split.target_test": 40, "split.shadow_train": 40, "split.shadow_test": 40, "train.epochs": 6,
        "train.threads": 1, "train.batch_size": 20,
    }  # fmt: skip
    return Experiment(model=Model(width=4), defense=defense).set(small | settings)


def weights(store: Store, e: Experiment) -> dict[str, np.ndarray]:
    found = experiment.find(store, "train", e, ["weights.safetensors"])
    assert found is not None
    return found.arrays("weights.safetensors")


def assert_same(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> None:
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert array.tobytes() == second[name].tobytes(), name


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def test_importing_the_pipeline_loads_no_torch() -> None:
    code = "import sys; import tier.experiment, tier.store, tier.figures, tier.tables, tier.summary, tier.demo; " \
        "import tier.engine; sys.exit('torch' in sys.modules)"  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_a_key_needs_known_data() -> None:
    with pytest.raises(ValueError, match="has not been read yet"):
        experiment.key("train", tiny())


def test_unknown_stage_lists_the_stages() -> None:
    with pytest.raises(ValueError, match="report"):
        experiment.key("nonsense", tiny().set({"data.fingerprint": "0" * 64}))


def test_equal_computations_share_a_key() -> None:
    base = presets.get("signs")
    plain = experiment.key("report", base.run("none"))
    assert experiment.key("report", base.point("tier_reg", 0.0, 0.5)) == plain
    assert experiment.key("report", base.point("tier_full", 0.0, 3.0)) == experiment.key(
        "report", base.run("augmentation")
    )
    assert experiment.key("report", base.point("tier_reg", 3.0, 0.5)) != plain


def test_what_does_not_act_is_not_in_the_key() -> None:
    base = presets.get("signs").run("none")
    other = base.with_(defense=Defense(name="none", augmentation=Augmentation(flip=False), tier=Tier(beta=0.9)))
    assert experiment.key("train", other) == experiment.key("train", base)


@pytest.mark.parametrize("setting", ["train.seed", "split.seed", "train.epochs", "model.width", "train.threads"])
def test_what_acts_is_in_the_key(setting: str) -> None:
    base = presets.get("signs").run("none")
    assert experiment.key("train", base.set({setting: 7})) != experiment.key("train", base)


def test_a_run_that_ends_within_the_warm_up_is_plain() -> None:
    base = presets.get("signs")
    short = base.run("tier_full").set({"train.epochs": 5})
    assert experiment.key("report", short) == experiment.key(
        "report", base.run("augmentation").set({"train.epochs": 5})
    )
    longer = base.run("tier_full").set({"train.epochs": 6})
    assert experiment.key("report", longer) != experiment.key(
        "report", base.run("augmentation").set({"train.epochs": 6})
    )


@pytest.mark.parametrize(
    ("setting", "value", "beside"),
    [
        ("train.momentum", 0.5, {"train.optimizer": "adamw"}),
        ("model.width", 9, {"model.architecture": "mobilenet_v2"}),
        ("explain.cam_layer", "body", {"explain.name": "gradient"}),
        ("explain.channel_reduction", "abs_mean", {"explain.name": "gradcam"}),
    ],
)
def test_other_settings_that_do_not_act(setting: str, value: object, beside: dict[str, Any]) -> None:
    base = presets.get("signs").run("none").set(beside)
    assert experiment.key("report", base.set({setting: value})) == experiment.key("report", base)


def test_need_of_a_file_that_no_stage_makes(store: Store) -> None:
    with pytest.raises(ValueError, match=r"makes no nonsense\.parquet"):
        experiment.ensure(store, "split", tiny(), need=["nonsense.parquet"])


def test_warm_up_is_shared_by_lambda_and_beta() -> None:
    base = presets.get("signs")
    keys = {experiment.key("warmup", base.point("tier_full", lam, beta)) for lam in (3.0, 9.0) for beta in (0.1, 0.5)}
    assert len(keys) == 1
    assert experiment.key("warmup", base.point("tier_reg", 3.0, 0.1)) not in keys


def test_report_has_all_figures_and_every_stage_is_stored(store: Store) -> None:
    e = tiny(Defense(name="tier_full", tier=Tier(warmup=2)))
    seen: list[dict[str, Any]] = []
    report = experiment.ensure(store, "report", e, Context(progress=seen.append))
    for figure in ("train_accuracy", "test_accuracy", "test_loss", "audit_balanced_accuracy", "audit_auc",
                   "gap_balanced_accuracy", "loss_auc", "seconds_per_epoch"):  # fmt: skip
        assert np.isfinite(report.metrics[figure])
    assert report.metrics["test_top5"] is None  # four classes
    assert [event["epoch"] for event in seen if "epoch" in event] == [
        1,
        2,
        1,
        2,
        3,
        4,
        5,
        6,
    ]  # warm-up, then told again
    assert {r.stage for r in store.ls()} == {
        "split", "warmup", "train", "trajectory", "divergence", "audit", "report",
    }  # fmt: skip
    assert report.metrics["sizes"]["target_train"] == 40
    assert isinstance(report.metrics["notes"], list)
    again: list[dict[str, Any]] = []
    assert experiment.ensure(store, "report", e, Context(progress=again.append)).key == report.key
    assert again == []


def test_shared_warm_up_is_the_same_computation(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from tier import defenses, training

    e = tiny(Defense(name="tier_full", tier=Tier(warmup=3)))
    experiment.ensure(store, "train", e)
    problem, _ = experiment.model_sets(experiment.pin(store, e).data, e.split)
    state = training.start(problem, e.model, e.train)
    training.fit(problem, state, defenses.build(e.defense), e.train)
    unbroken = {name: value.numpy() for name, value in state.model.state_dict().items()}
    assert_same(weights(store, e), unbroken)
    assert torch.is_tensor(next(iter(state.model.state_dict().values())))


def test_early_stopping_path_ends_at_the_run_itself(store: Store) -> None:
    e = tiny()
    report = experiment.ensure(store, "report", e).metrics
    path = experiment.ensure(store, "path", e).frame("path.parquet")
    assert list(path["epoch"]) == [1, 2, 3, 4, 5, 6]
    last = path.iloc[-1]
    for figure in ("train_accuracy", "test_accuracy", "gap_balanced_accuracy", "audit_balanced_accuracy", "audit_auc"):
        assert last[figure] == pytest.approx(report[figure], abs=1e-9), figure


def _some(store: Store, e: Experiment, rows: Any) -> tuple[Any, Any, Any]:
    """A run's model and the images and labels of some rows."""
    import torch

    from tier import runtime

    source = experiment.dataset(experiment.pin(store, e).data)
    x = runtime.as_pixels(torch.from_numpy(source.images[rows]))
    return experiment.model_of(store, experiment.pin(store, e)), x, torch.from_numpy(source.labels[rows])


def test_maps_are_those_of_the_explainer_and_its_family(store: Store) -> None:
    from tier import explainers

    e = tiny(**{"explain.name": "gradcampp", "data.image_size": 32})
    arrays = experiment.ensure(store, "maps", e).arrays("maps.safetensors")
    assert arrays["gradcam"].shape == arrays["gradcampp"].shape == (80, 32, 32)
    model, x, y = _some(store, e, arrays["index"][:3])
    for name in ("gradcam", "gradcampp"):
        one = e.set({"explain.name": name})
        assert experiment.ensure(store, "maps", one).arrays("maps.safetensors").keys() == arrays.keys()
        expected = explainers.explain(one.explain, model, x, y).numpy()
        np.testing.assert_allclose(arrays[name][:3], expected, atol=1e-4 * expected.max())
    assert len(store.ls("maps")) == 1


def test_a_trajectory_is_the_same_from_stored_maps(store: Store, tmp_path: Path) -> None:
    e = tiny(**{"explain.name": "gradcam", "data.image_size": 32})
    experiment.ensure(store, "maps", e)
    other = Store(str(tmp_path / "other"))
    frames = [experiment.ensure(s, "trajectory", e).frame("samples.parquet") for s in (store, other)]
    assert not other.ls("maps")
    assert frames[0].equals(frames[1])


def test_a_gallery_shows_what_made_the_curves(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from tier import gallery, trajectories

    monkeypatch.setattr(inspecting, "GALLERY", 5)
    e = tiny(**{"explain.name": "smoothgrad", "explain.samples": 4})
    found = experiment.ensure(store, "gallery", e)
    frame = found.frame("gallery.parquet")
    assert frame["member"].tolist() == [True] * 5 + [False] * 5
    samples = experiment.ensure(store, "trajectory", e).frame("samples.parquet").set_index("index")
    arrays = experiment.ensure(store, "maps", e).arrays("maps.safetensors")
    model, x, y = _some(store, e, frame["index"].to_numpy())
    for place, row in enumerate(frame.to_dict("records")):
        look = gallery.look(row, found.metrics["height"], found.metrics["width"])
        exact = arrays["smoothgrad"][list(arrays["index"]).index(look.index)]
        assert np.abs(look.map - exact).max() <= np.abs(exact).max() / 254 * 1.001
        assert look.member == samples.loc[look.index, "member"]
        logits = model(x[place : place + 1]).detach()
        assert look.predicted == int(logits.argmax())
        assert look.confidence == pytest.approx(float(logits.softmax(1).max()), rel=1e-4)
        for order, steps in (("morf", look.morf), ("lerf", look.lerf)):
            for level in (0, 3, 9):
                gone = torch.from_numpy(steps <= level) if e.trajectory.levels[level] else torch.zeros(1, dtype=bool)
                fill = x[place].mean((1, 2), keepdim=True)
                changed = torch.where(gone, fill, x[place])[None]
                expected = trajectories.log_confidence(model(changed), y[place : place + 1])
                assert look.paths[order][level] == pytest.approx(float(expected.detach()), abs=1e-4)
                assert samples.loc[look.index, f"{order}_{level}"] == look.paths[order][level]


def test_one_image_inspected_is_the_same_as_among_the_others(store: Store) -> None:
    from tier import gallery

    e = tiny(**{"split.target_train": 10, "split.target_test": 10})
    curves = {
        name: experiment.ensure(store, "trajectory", e.set({"explain.name": name})).frame("samples.parquet")
        for name in EXPLAINER_SETTINGS
    }
    rows = curves["gradient"]["index"]
    for place in (0, len(rows) - 1):
        found = experiment.ensure(store, "inspect", e.set({"inspect.row": int(rows[place])}))
        frame = found.frame("inspect.parquet").set_index("explainer")
        assert list(frame.index.sort_values()) == sorted(EXPLAINER_SETTINGS)
        for name, expected in curves.items():
            look = gallery.look(frame.loc[name].to_dict(), found.metrics["height"], found.metrics["width"])
            assert look.member == (place == 0)
            for order, columns in gallery.columns(10).items():
                known = expected.loc[place, columns].to_numpy(float)
                np.testing.assert_allclose(look.paths[order], known, atol=1e-6, err_msg=f"{name} {order}")
            assert found.metrics["loss"] == pytest.approx(-look.paths["morf"][0], abs=1e-6)
        assert sum(found.metrics["probabilities"]) == pytest.approx(1.0)


def test_an_upload_is_explained_for_what_the_undefended_model_sees(store: Store) -> None:
    from tier import uploads

    e = tiny(Defense(name="augmentation"))
    pixels = experiment.dataset(experiment.pin(store, e).data).images[3]
    name = uploads.keep(store, pixels)
    asked = e.set({"inspect.upload": name})
    found = experiment.ensure(store, "inspect", asked)
    model, x, _ = _some(store, experiment.undefended(e), [3])
    assert found.metrics["label"] == int(model(x).argmax())
    assert found.frame("inspect.parquet")["member"].isna().all()
    assert (found.frame("inspect.parquet")["index"] == -1).all()
    other = experiment.ensure(store, "inspect", asked.set({"inspect.label": 2}))
    assert other.metrics["label"] == 2


def test_a_verdict_is_the_audit_s_classifiers_on_what_inspecting_saw(store: Store) -> None:
    from tier import uploads
    from tier.attacks import agp

    # so that trajectory features pass the filter, and MoRF taken for LeRF would show
    e = tiny(Defense(name="augmentation"), **{"audit.welch": 0.99, "explain.name": "shap"})
    pixels = experiment.dataset(experiment.pin(store, e, load=True).data).images[3]
    asked = e.set({"inspect.upload": uploads.keep(store, pixels)})
    verdict = experiment.ensure(store, "verdict", asked).metrics
    seen = experiment.ensure(store, "inspect", asked)
    row = seen.frame("inspect.parquet").set_index("explainer").loc[["shap"]]
    paths = experiment.ensure(store, "trajectory", e).frame("samples.parquet")
    table = experiment.ensure(store, "train", e).frame("samples.parquet")

    def features(frame: Any, loss: Any, predicted: Any, orders: tuple[str, str] = ("morf", "lerf")) -> agp.Features:
        both = [frame[[f"{order}_{i}" for i in range(10)]].to_numpy(float) for order in orders]
        return agp.Features(both[0], both[1], np.asarray(loss, float), np.asarray(predicted), 4)

    known = features(paths, table["loss"], table["predicted"])
    told = [seen.metrics["loss"]], [seen.metrics["predicted"]]
    member = table["member"].to_numpy(bool)
    scores = agp.score_new(known, member, e.audit, features(row, *told))[0]
    assert verdict["folds"] == scores.tolist() and len(scores) == e.audit.folds
    assert verdict["score"] == pytest.approx(np.mean(scores))
    swapped = agp.score_new(known, member, e.audit, features(row, *told, orders=("lerf", "morf")))[0]
    assert np.abs(swapped - scores).min() > 1e-6
    own = experiment.ensure(store, "audit", e).frame("scores.parquet")
    for group, inside in (("members", True), ("nonmembers", False)):
        shares = []
        for fold, score in enumerate(scores):
            of_fold = own[(own["fold"] == fold) & (own["member"] == inside)]["score"]
            shares.append(sum(value < score for value in of_fold) / len(of_fold))
        assert verdict[f"{group}_below"] == pytest.approx(np.mean(shares))


def test_what_is_made_of_an_upload_is_kept_as_long_as_the_upload(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from tier import uploads

    e = experiment.pin(store, tiny(), load=True)
    pixels = experiment.dataset(e.data).images[3]
    asked = e.set({"inspect.upload": uploads.keep(store, pixels)})
    experiment.ensure(store, "verdict", asked)
    row = int(experiment.ensure(store, "train", e).frame("samples.parquet")["index"][0])
    experiment.ensure(store, "inspect", e.set({"inspect.row": row}))
    limited = {r.stage: r.record["expires"] for r in store.ls() if "expires" in r.record}
    assert limited == dict.fromkeys(("inspect", "verdict"), uploads.expiry(store, str(asked.inspect.upload)))
    now, later = time.time, (uploads.KEPT_DAYS + 0.1) * 86400
    assert store.gc() == []
    monkeypatch.setattr("tier.store.time.time", lambda: now() + later)
    store.gc()
    assert [r.key for r in store.ls("inspect")] == [experiment.key("inspect", e.set({"inspect.row": row}))]
    assert {r.stage for r in store.ls()} == {"train", "trajectory", "audit", "inspect"}
    with pytest.raises(ValueError, match="upload it again"):
        experiment.ensure(store, "inspect", asked)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"inspect.upload": "0" * 64}, "upload it again"),
        ({"inspect.row": 10**6}, "neither a member nor a non-member"),
        ({}, "either a row of the data set or an upload"),
    ],
)
def test_what_cannot_be_inspected_is_said(store: Store, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        experiment.ensure(store, "inspect", tiny().set(asked))
    assert store.ls("train") == []  # before anything is computed


def test_classes_and_sizes_that_the_model_does_not_have_are_refused(store: Store) -> None:
    from tier import uploads

    e = tiny()
    source = experiment.dataset(experiment.pin(store, e, load=True).data)
    row = int(experiment.ensure(store, "train", e).frame("samples.parquet")["index"][0])
    fits, flat = (uploads.keep(store, source.images[3][:, :height]) for height in (16, 8))
    for asked in ({"inspect.row": row, "inspect.label": 4}, {"inspect.upload": fits, "inspect.label": 4}):
        with pytest.raises(ValueError, match=r"inspect\.label is 4, but the model knows the classes 0 to 3"):
            experiment.ensure(store, "inspect", e.set(asked))
    with pytest.raises(ValueError, match="has 8 x 16 pixels, the model sees 16 x 16"):
        experiment.ensure(store, "inspect", e.set({"inspect.upload": flat, "inspect.label": 3}))
    assert store.ls("inspect") == []


def test_a_verdict_needs_an_upload_and_the_settings_at_which_it_was_explained(store: Store) -> None:
    row = tiny(**{"inspect.row": 3})
    with pytest.raises(ValueError, match="cross-fitted scores are in"):
        experiment.ensure(store, "verdict", row)
    for settings in ({"explain.channel_reduction": "abs_mean"}, {"explain.target": "predicted"}):
        with pytest.raises(ValueError, match="default settings of gradient"):
            experiment.ensure(store, "verdict", tiny(**{"inspect.upload": "0" * 64}, **settings))
    assert store.ls("train") == []


def test_a_canary_is_inspected_for_the_label_that_its_model_was_trained_on(store: Store) -> None:
    e = experiment.pin(store, tiny(**{"split.canaries": 5}), load=True)
    trained = experiment.ensure(store, "train", e).frame("samples.parquet").set_index("index")
    source = experiment.dataset(e.data)
    row = next(row for row, label in trained["label"].items() if label != source.labels[row])
    found = experiment.ensure(store, "inspect", e.set({"inspect.row": row}))
    assert found.metrics["label"] == trained["label"][row]
    assert found.metrics["loss"] == pytest.approx(trained["loss"][row], rel=1e-4)


def test_integrated_gradients_come_with_their_completeness_gap(store: Store) -> None:
    import torch

    from tier import explainers

    e = tiny(**{"explain.name": "integrated_gradients", "explain.steps": 3})
    made = experiment.ensure(store, "maps", e)
    arrays = made.arrays("maps.safetensors")
    model, x, y = _some(store, e, arrays["index"])
    maps = torch.from_numpy(arrays["integrated_gradients"])
    gap = explainers.completeness_gap(model, x, y, maps).abs()
    assert made.metrics["completeness_gap"] == pytest.approx(float(gap.mean()), rel=1e-5)
    found = experiment.ensure(store, "inspect", e.set({"inspect.row": int(arrays["index"][0])}))
    assert 0 < found.metrics["completeness_gap"] < float(gap[0])  # its 32 steps come nearer than 3
    for other in ({"explain.signed": False}, {"explain.name": "gradient"}):
        assert "completeness_gap" not in experiment.ensure(store, "maps", e.set(other)).metrics


def test_fidelity_compares_with_the_undefended_model_and_its_second_seed(store: Store) -> None:
    from skimage.metrics import structural_similarity

    from tier import fidelity

    e = tiny(
        Defense(name="augmentation"),
        **{"fidelity.images": 6, "fidelity.second_seed": 5, "fidelity.shuffle": 3, "explain.target": "predicted"},
    )
    found = experiment.ensure(store, "fidelity", e)
    frame = found.frame("scores.parquet")
    assert frame["member"].tolist() == [True] * 6 + [False] * 6
    runs = [e, experiment.undefended(e), experiment.undefended(e, 5)]
    held = [experiment.ensure(store, "maps", run).arrays("maps.safetensors") for run in runs]
    trained = [experiment.ensure(store, "train", run).frame("samples.parquet").set_index("index") for run in runs]
    places = [list(held[0]["index"]).index(index) for index in frame["index"]]
    agreed = []
    for place, other, row in zip(places, fidelity.shuffled(12, 3), frame.to_dict("records"), strict=True):
        own, reference, second = (arrays["gradient"][place].astype(float) for arrays in held)
        third = held[1]["gradient"][places[other]].astype(float)
        scaled = [(m - m.min()) / (m.max() - m.min()) for m in (own, reference, second, third)]
        predicted = [table.loc[row["index"], "predicted"] for table in trained]
        agreed.append((predicted[0] == predicted[1], predicted[1] == predicted[2]))
        assert row["agree"] == agreed[-1][0]
        if row["agree"]:
            cosine = (own * reference).sum() / np.linalg.norm(own) / np.linalg.norm(reference)
            assert row["ssim"] == pytest.approx(structural_similarity(*scaled[:2], data_range=1), abs=1e-5)
            assert row["cosine_unscaled"] == pytest.approx(cosine, abs=1e-5)
            shuffled = structural_similarity(scaled[0], scaled[3], data_range=1)
            assert row["ssim_shuffled"] == pytest.approx(shuffled, abs=1e-5)
            assert row["mse_shuffled"] == pytest.approx(((scaled[0] - scaled[3]) ** 2).mean(), rel=1e-5)
        else:
            assert np.isnan([row["ssim"], row["cosine_unscaled"], row["ssim_shuffled"]]).all()
        if agreed[-1][1]:
            assert row["mse_second_seed"] == pytest.approx(((scaled[1] - scaled[2]) ** 2).mean(), rel=1e-5)
        else:
            assert np.isnan(row["mse_second_seed"])
        assert row["correct"] == all(guess == row["label"] for guess in predicted[:2])
    assert {first for first, _ in agreed} == {second for _, second in agreed} == {True, False}
    assert found.metrics["ssim"] == pytest.approx(frame["ssim"].mean(), rel=1e-5)
    other = e.set({"fidelity.second_seed": 6})
    assert experiment.key("fidelity", experiment.pin(store, other)) != found.key


def test_the_control_of_fidelity_is_a_model_of_another_seed(store: Store) -> None:
    e = tiny(Defense(name="augmentation"), **{"train.seed": 5, "fidelity.second_seed": 5})
    with pytest.raises(ValueError, match="the control would be the reference itself"):
        experiment.ensure(store, "fidelity", e)


def test_a_pinned_fingerprint_is_verified(store: Store) -> None:
    from tier.data import DataError

    with pytest.raises(DataError, match="fingerprint"):
        experiment.ensure(store, "split", tiny().set({"data.fingerprint": "0" * 64}))


def test_a_truncated_result_is_computed_again(store: Store) -> None:
    e = tiny()
    first = experiment.ensure(store, "train", e)
    file = (
        Path(store.url)
        / "train"
        / first.key
        / next(
            p.name for p in (Path(store.url) / "train" / first.key).iterdir() if p.name.endswith("weights.safetensors")
        )
    )
    before = first.arrays("weights.safetensors")
    file.write_bytes(file.read_bytes()[:-7])
    assert experiment.find(store, "train", e) is None
    experiment.ensure(store, "train", e)
    assert_same(weights(store, e), before)


def test_cancelling_keeps_the_checkpoint_and_asking_again_ends_in_the_same_weights(
    store: Store, tmp_path: Path
) -> None:
    e = tiny(Defense(name="augmentation"))
    told: list[dict[str, Any]] = []
    with pytest.raises(Cancelled):
        experiment.ensure(
            store, "train", e, Context(progress=told.append, cancelled=lambda: any(x.get("epoch") == 3 for x in told))
        )
    key = experiment.key("train", experiment.pin(store, e))
    assert checkpoints.last(store, key) is not None
    experiment.ensure(store, "train", e)
    assert checkpoints.last(store, key) is None
    other = Store(str(tmp_path / "other"))
    experiment.ensure(other, "train", e)
    assert_same(weights(store, e), weights(other, e))


def _train_slowly(url: str, text: str) -> None:
    e = Experiment.model_validate(json.loads(text))
    experiment.ensure(Store(url), "train", e, Context(progress=lambda event: time.sleep(0.2)))


def test_kill_in_mid_training_resumes_to_the_same_weights(store: Store, tmp_path: Path) -> None:
    e = tiny(Defense(name="tier_reg", tier=Tier(warmup=1)))
    text = json.dumps(e.model_dump(mode="json", by_alias=True))
    process = multiprocessing.get_context("spawn").Process(target=_train_slowly, args=(store.url, text))
    process.start()
    deadline = time.time() + 60
    key = ""
    while time.time() < deadline:
        pinned = experiment.pin(store, e)
        if pinned.data.fingerprint is not None:
            key = experiment.key("train", pinned)
            found = checkpoints.last(store, key)
            if found is not None and found.record["epoch"] >= 3:
                break
        time.sleep(0.05)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert checkpoints.last(store, key) is not None, "no checkpoint was written before the kill"
    assert experiment.find(store, "train", e) is None
    told: list[dict[str, Any]] = []
    experiment.ensure(store, "train", e, Context(progress=told.append))
    assert [event["epoch"] for event in told if "epoch" in event] == [*range(1, e.train.epochs + 1)]
    other = Store(str(tmp_path / "other"))
    experiment.ensure(other, "train", e)
    assert_same(weights(store, e), weights(other, e))


def test_diverging_run_says_what_to_change_and_keeps_its_checkpoint(store: Store) -> None:
    from tier.training import Diverged

    e = tiny(Defense(name="tier_reg", tier=Tier(lambda_=1e30, beta=1e30, warmup=2)))
    with pytest.raises(Diverged, match="learning_rate"):
        experiment.ensure(store, "train", e)
    assert experiment.find(store, "warmup", e) is not None
    assert experiment.find(store, "train", e) is None


class TestRoles:
    """Shadow and reference models: whose images they are trained on, and what their keys depend on."""

    def _rows(self, store: Store, e: Experiment) -> tuple[set[int], set[int]]:
        """Members and non-members of a model."""
        problem, rows = experiment.model_sets(experiment.pin(store, e, load=True).data, e.split)
        assert len(problem.members) + len(problem.nonmembers) == len(rows)
        return set(rows[: len(problem.members)].tolist()), set(rows[len(problem.members) :].tolist())

    def test_a_shadow_is_trained_on_the_other_half(self, store: Store) -> None:
        e = tiny(Defense(name="augmentation"))
        target, shadow = self._rows(store, e), self._rows(store, experiment.shadow(e, adaptive=False))
        assert not (target[0] | target[1]) & (shadow[0] | shadow[1])
        assert [len(part) for part in (*target, *shadow)] == [40] * 4
        assert experiment.shadow(e, adaptive=False).defense == Defense()
        assert experiment.shadow(e, adaptive=True).defense == e.defense
        sets = experiment.ensure(store, "split", e).frame("membership.parquet")["set"]
        assert shadow[0] == set(np.flatnonzero(sets == 2)) and shadow[1] == set(np.flatnonzero(sets == 3))

    def test_reference_models_halve_the_target_s_images(self, store: Store) -> None:
        e = tiny()
        pool = set.union(*self._rows(store, e))
        found = [self._rows(store, experiment.reference(e, number)) for number in range(6)]
        for inside, outside in found:
            assert inside | outside == pool and not inside & outside and len(inside) == 40
        assert found[0][0] == found[1][1] and found[2][0] == found[3][1]
        assert found[0][0] != found[2][0] != found[4][0]
        source = experiment.dataset(experiment.pin(store, e).data)
        counts = [np.bincount(source.labels[sorted(part)], minlength=4) for part in found[0]]
        assert np.abs(counts[0] - counts[1]).max() <= 1

    def test_targets_of_every_seed_share_their_reference_models(self, store: Store) -> None:
        e = experiment.pin(store, tiny(), load=True)
        first, second = (e.set({"train.seed": seed}) for seed in (0, 1))
        keys = [experiment.key("train", experiment.reference(run, 3)) for run in (first, second)]
        assert keys[0] == keys[1] != experiment.key("train", experiment.reference(first, 2))

    def test_the_four_sets_are_found_once_for_all_roles(self, store: Store) -> None:
        e = experiment.pin(store, tiny(), load=True)
        runs = [e, experiment.shadow(e, True), experiment.reference(e, 0), e.set({"split.canaries": 3})]
        assert len({experiment.key("split", run) for run in runs}) == 1
        assert len({experiment.key("train", run) for run in runs}) == 4
        assert experiment.key("train", e.set({"split.reference": 5})) == experiment.key("train", e)
        plain = experiment.shadow(e, True)
        assert experiment.key("train", plain.set({"split.canaries": 3})) == experiment.key("train", plain)

    def test_canaries_have_other_labels_in_target_and_references_alike(self, store: Store) -> None:
        e = experiment.pin(store, tiny(**{"split.canaries": 5}), load=True)
        plain = e.set({"split.canaries": 0})
        source = experiment.dataset(e.data)

        def changed(run: Experiment) -> dict[int, int]:
            problem, rows = experiment.model_sets(run.data, run.split)
            labels = np.concatenate([problem.member_labels, problem.nonmember_labels])
            return {int(r): int(y) for r, y in zip(rows, labels, strict=True) if source.labels[r] != y}

        found = changed(e)
        members, nonmembers = self._rows(store, e)
        assert (len(found.keys() & members), len(found.keys() & nonmembers)) == (5, 5)
        assert changed(experiment.reference(e, 1)) == found
        assert changed(plain) == {} == changed(experiment.shadow(e, True))

    def test_what_the_split_does_not_have_is_said(self, store: Store) -> None:
        from tier.splits import SplitError

        alone = tiny(**{"split.shadow_train": 0, "split.shadow_test": 0})
        with pytest.raises(SplitError, match=r"split\.shadow_train"):
            experiment.ensure(store, "train", experiment.shadow(alone, True))
        with pytest.raises(SplitError, match="too few for 41 canaries"):
            experiment.ensure(store, "train", tiny(**{"split.canaries": 41}))


def attacked(defense: Defense = Defense(name="augmentation"), **settings: Any) -> Experiment:
    """A tiny run whose attack and battery take seconds."""
    quick = {
        "attack.trajectory.operator": "mean", "attack.alphas": (0.0, 0.1), "battery.references": 6,
        "audit.iterations": 20,
        "split.target_train": 60, "split.target_test": 60, "split.shadow_train": 60, "split.shadow_test": 60,
    }  # fmt: skip
    return tiny(defense, **(quick | settings))


class TestAttack:
    """The attack from outside: what it learns from, what it is tried on."""

    def test_it_learns_on_the_shadow_and_is_tried_on_the_target(self, store: Store) -> None:
        from tier.attacks import agp
        from tier.metrics import auc

        e = attacked()
        found = experiment.ensure(store, "attack", e)
        scores = found.frame("scores.parquet")
        sets = experiment.ensure(store, "split", e).frame("membership.parquet")["set"].to_numpy()
        tested, target = (scores[scores["set"] == name] for name in ("attack_test", "target"))
        assert set(sets[tested["index"]]) == {2, 3} and set(sets[target["index"]]) == {0, 1}
        assert len(tested) == 24 and len(target) == 120
        assert (tested["member"] == (sets[tested["index"]] == 2)).all()
        assert (target["member"] == (sets[target["index"]] == 0)).all()
        assert found.metrics["target"]["auc"] == pytest.approx(
            auc(target["score"][target["member"]], target["score"][~target["member"]])
        )
        # by hand: alpha as found, the rest of the shadow's images, the same classifier
        alpha = found.metrics["alpha"]
        own = experiment.shadow(e, adaptive=False).set({"trajectory.operator": "mean", "trajectory.alpha": alpha})
        paths = experiment.ensure(store, "trajectory", own).frame("samples.parquet")
        trained = experiment.ensure(store, "train", own).frame("samples.parquet")
        features = agp.Features(
            paths[[f"morf_{i}" for i in range(10)]].to_numpy(float),
            paths[[f"lerf_{i}" for i in range(10)]].to_numpy(float),
            trained["loss"].to_numpy(float), trained["predicted"].to_numpy(int), 4,
        )  # fmt: skip
        held = trained["index"].isin(tested["index"]).to_numpy()
        place = {row: number for number, row in enumerate(trained["index"])}
        learnt = np.flatnonzero(~held)
        learnt = learnt[np.argsort(trained["index"].to_numpy()[learnt])]
        attack = agp.fit(features.take(learnt), trained["member"].to_numpy(bool)[learnt], e.audit)
        again = attack.score(features.take(np.array([place[row] for row in tested["index"]])))
        np.testing.assert_allclose(again, tested["score"], rtol=1e-9)
        assert set(found.metrics["validation_auc"]) == {"0", "0.1"}
        assert found.metrics["validation_auc"][f"{alpha:g}"] == max(found.metrics["validation_auc"].values())

    def test_an_adaptive_attacker_s_shadow_has_the_target_s_defense(self, store: Store) -> None:
        e = experiment.pin(store, attacked(), load=True)
        transfer, adaptive = (e.set({"attack.shadow": kind}) for kind in ("undefended", "same"))
        experiment.ensure(store, "attack", adaptive)
        assert experiment.find(store, "train", experiment.shadow(e, True)) is not None
        assert experiment.find(store, "train", experiment.shadow(e, False)) is None
        assert experiment.key("attack", transfer) != experiment.key("attack", adaptive)
        bare = e.set({"defense.name": "none"})
        keys = {experiment.key("attack", bare.set({"attack.shadow": kind})) for kind in ("undefended", "same")}
        assert len(keys) == 1

    def test_features_are_those_that_the_filter_kept(self, store: Store) -> None:
        found = experiment.ensure(store, "attack", attacked())
        table = found.frame("features.parquet")
        assert table["feature"].tolist()[-2:] == ["loss", "predicted"]
        filtered = table[table["level"].notna()]
        assert filtered["kept"].tolist() == (filtered["p"] < 0.05).tolist()
        assert found.metrics["features_kept"] == filtered["kept"].sum()
        assert (table.loc[~table["kept"], ["importance", "importance_low", "importance_high"]] == 0).all().all()
        assert table["feature"][0] == "untouched" and table["level"][0] == 0 and table["order"].isna()[0]
        assert filtered["feature"].tolist()[1:3] == ["morf_1", "morf_2"] and len(filtered) == 19
        reasons = found.frame("contributions.parquet")
        assert (reasons[filtered["feature"][~filtered["kept"]]] == 0).all().all()
        assert set(reasons["index"]) <= set(found.frame("scores.parquet").query("set == 'target'")["index"])

    def test_each_setting_of_the_attack_changes_its_key(self, store: Store) -> None:
        e = experiment.pin(store, attacked(), load=True)
        changes = {
            "attack.shadow": "same", "attack.alphas": (0.0,), "attack.holdout": 0.3, "attack.seed": 1,
            "attack.trajectory.operator": "zero", "audit.welch": 0.1, "explain.name": "gradcam",
        }  # fmt: skip
        keys = {experiment.key("attack", e.set({name: value})) for name, value in changes.items()}
        assert len(keys | {experiment.key("attack", e)}) == len(changes) + 1
        assert experiment.key("attack", e.set({"attack.trajectory.alpha": 5.0})) == experiment.key("attack", e)
        assert experiment.key("attack", e.set({"trajectory.alpha": 5.0})) == experiment.key("attack", e)


class TestBattery:
    """The sceptic's attacks on one run."""

    def test_all_attacks_are_reported_with_their_signs(self, store: Store) -> None:
        from tier.attacks import ATTACKS, gap, lira
        from tier.metrics import FIGURES, auc

        e = attacked(**{"battery.queries": 1})
        found = experiment.ensure(store, "battery", e)
        frame = found.frame("scores.parquet")
        trained = experiment.ensure(store, "train", e).frame("samples.parquet")
        assert frame["index"].tolist() == trained["index"].tolist()
        member = frame["member"].to_numpy(bool)
        for name in set(ATTACKS) - {"agp"}:
            leaf = found.metrics[name]
            assert {*FIGURES, "sign", "threshold", "members", "nonmembers", "refused"} <= leaf.keys()
            assert leaf["auc"] == pytest.approx(auc(frame[name][member], frame[name][~member]))
            assert leaf["tpr_at_0.001"] is None and "1,000" in leaf["refused"]["tpr_at_0.001"]
            exposed = found.metrics["vulnerable_decile"][name]
            assert exposed["members"] + exposed["nonmembers"] == 60  # half of all, being fewer than 250
        assert (frame["gap"] == gap.score(trained["predicted"].to_numpy(), trained["label"].to_numpy())).all()
        runs = [experiment.reference(e, number) for number in range(6)]
        tables = [experiment.ensure(store, "train", run).frame("samples.parquet").set_index("index") for run in runs]
        said = np.stack([table.loc[frame["index"], "log_confidence"] for table in tables])
        inside = np.stack([table.loc[frame["index"], "member"] for table in tables])
        phi = [log_p - np.log(-np.expm1(log_p)) for log_p in (trained["log_confidence"], said)]
        expected = lira.online(*phi, inside)
        np.testing.assert_allclose(frame["lira_online"], expected, rtol=1e-6, atol=1e-9)

    def test_canaries_are_the_worst_case(self, store: Store) -> None:
        e = attacked(Defense(), **{"split.canaries": 15, "train.epochs": 25})
        found = experiment.ensure(store, "battery", e)
        leaf = found.metrics["canaries"]["loss"]
        assert (leaf["members"], leaf["nonmembers"]) == (15, 15)
        assert leaf["auc"] > 0.8  # a wrong label is learnt by heart or not at all
        assert experiment.ensure(store, "battery", attacked()).metrics["canaries"] == {}

    @pytest.mark.filterwarnings("ignore:no trajectory feature separates")
    def test_scores_of_the_attack_say_which_images_are_canaries(self, store: Store) -> None:
        e = attacked(Defense(), **{"split.canaries": 15, "train.epochs": 25})
        frame = experiment.ensure(store, "attack", e).frame("scores.parquet")
        assert frame[frame["canary"]].groupby(["set", "member"]).size().to_dict() == {
            ("target", False): 15,
            ("target", True): 15,
        }
        plain = experiment.ensure(store, "train", e.set({"split.canaries": 0})).frame("samples.parquet")
        labels = plain.set_index("index")["label"]
        wrong = frame["set"].eq("target") & (frame["label"] != frame["index"].map(labels))
        assert (wrong == frame["canary"]).all()  # the label of each of them, and of no other, is another
