"""The command line: settings, errors in one sentence, run / show / sweep / store on a store of its own."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tier import cli, data, demo, experiment, presets
from tier.attacks import ATTACKS
from tier.config import Defense, DefenseName, Experiment, Model, Tier
from tier.fidelity import METRICS
from tier.presets import Preset
from tier.store import Store
from tier.summary import FIGURES, JUDGED, LEAVES, attack_sentence

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.filterwarnings("ignore:no trajectory feature separates")


@pytest.fixture(scope="module")
def preset() -> Preset:
    """A preset of seconds, registered for this module only."""
    e = Experiment(model=Model(width=4)).set(
        {
            "data.signs.classes": 8, "data.signs.images": 300, "data.image_size": 16, "split.target_train": 40,
            "split.target_test": 40, "split.shadow_train": 10, "split.shadow_test": 10, "train.epochs": 3,
            "train.threads": 1, "train.batch_size": 20,
        }
    )  # fmt: skip
    e = e.set({"data.fingerprint": data.load(e.data).fingerprint})  # presets that ship are pinned
    tier = Tier(warmup=1)
    made = Preset(
        name="tiny",
        title="tiny",
        why="tests",
        experiment=e,
        defenses=tuple(Defense(name=n, tier=tier) for n in ("none", "augmentation", "tier_reg", "tier_full")),
        seeds=(0, 1),
        lambdas=(0.0, 6.0),
        betas=(0.1,),
    )
    presets.PRESETS["tiny"] = made
    yield made
    del presets.PRESETS["tiny"]


@pytest.fixture(scope="module")
def store(preset: Preset, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store in which `run tiny` has computed two defenses."""
    where = Store(str(tmp_path_factory.mktemp("cli") / "store"))
    result = CliRunner().invoke(
        cli.app, ["run", "tiny", "--here", "--defense", "none", "--defense", "tier_reg", "--store", where.url]
    )
    assert result.exit_code == 0, result.output
    return where


def show(store: Store, *arguments: str) -> dict:
    result = CliRunner().invoke(cli.app, ["show", "tiny", "--json", "--store", store.url, *arguments])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_show_json_has_every_figure_with_its_interval(store: Store) -> None:
    shown = show(store)
    assert shown["preset"] == "tiny"
    assert set(shown["defenses"]) == {"none", "tier_reg"}
    assert set(shown["refused"]) == {"augmentation", "tier_full"}
    for figures in shown["defenses"].values():
        assert figures["seeds"] == [0, 1]
        assert set(figures["intervals"]) == set(FIGURES)
        for name in FIGURES:
            low, high = figures["intervals"][name]
            assert low <= figures[name] <= high, name


def test_show_means_are_those_of_the_records(store: Store, preset: Preset) -> None:
    reports = [experiment.find(store, "report", preset.run("none", seed)) for seed in (0, 1)]
    mean = sum(r.metrics["test_accuracy"] for r in reports if r is not None) / 2
    assert show(store)["defenses"]["none"]["test_accuracy"] == pytest.approx(mean)


def test_one_seed_has_no_interval_of_time(store: Store) -> None:
    figures = show(store, "--seed", "0")["defenses"]["none"]
    assert figures["intervals"]["seconds_per_epoch"] is None
    assert "intervals.seconds_per_epoch" in figures["refused"]
    assert "intervals over seeds" in figures["refused"]


def test_show_says_what_is_missing(store: Store) -> None:
    result = CliRunner().invoke(cli.app, ["show", "tiny", "--store", store.url])
    assert "Not in the store: augmentation, tier_full" in result.output


def test_run_again_computes_nothing(store: Store) -> None:
    before = {(r.stage, r.key, r.record["created"]) for r in store.ls()}
    result = CliRunner().invoke(cli.app, ["run", "tiny", "--defense", "none", "--store", store.url])
    assert result.exit_code == 0
    assert {(r.stage, r.key, r.record["created"]) for r in store.ls()} == before


@pytest.fixture(scope="module")
def swept(store: Store) -> Store:
    """The same store, after a sweep over three lambdas."""
    arguments = ["sweep", "tiny", "--here", "--defense", "tier_reg", "--over", "lambda=0,2,6", "--store", store.url]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0, result.output
    return store


def test_sweep_computes_the_grid_and_shares_lambda_zero(swept: Store, preset: Preset) -> None:
    assert experiment.find(swept, "report", preset.point("tier_reg", 2.0, 0.1)) is not None
    assert len({r.key for r in swept.ls("train")}) == 6  # none and tier_reg, two seeds each, lambda 2 and lambda 6


def test_demo_export_keeps_pages_working_without_heavy_files(swept: Store, preset: Preset, tmp_path: Path) -> None:
    target = Store(str(tmp_path / "assets"))
    lines = list(demo.export(swept, target, ["tiny"]))
    assert lines
    assert not target.verify()
    first, second = (experiment.find(target, "train", preset.run("none", seed)) for seed in (0, 1))
    assert first is not None and second is not None
    assert first.has("samples.parquet") and second.has("samples.parquet")
    assert not first.has("weights.safetensors")
    point = experiment.find(target, "trajectory", preset.point("tier_reg", 6.0, 0.1))
    assert point is not None and point.has("curves.parquet") and not point.has("samples.parquet")
    assert experiment.find(target, "report", preset.point("tier_reg", 2.0, 0.1)) is None  # not on the preset's grid
    assert show(target)["defenses"].keys() == {"none", "tier_reg"}
    assert list(demo.export(swept, target, ["tiny"])) == []  # nothing is rewritten
    target.write("report", "f" * 64, {}, {"metrics": {}})
    assert [line.split()[0] for line in demo.export(swept, target, ["tiny"])] == ["removed"]


def test_a_grid_point_that_becomes_a_headline_run_gets_its_files(
    swept: Store, preset: Preset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "WHOLE", "tiny")
    target = Store(str(tmp_path / "assets"))
    list(demo.export(swept, target, ["tiny"]))
    headline = tuple(
        d.model_copy(update={"tier": d.tier.model_copy(update={"lambda_": 6.0, "beta": 0.1})}) for d in preset.defenses
    )
    moved = preset.model_copy(update={"defenses": headline})
    monkeypatch.setitem(presets.PRESETS, "tiny", moved)
    list(demo.export(swept, target, ["tiny"]))
    for stage, name in (("train", "samples.parquet"), ("trajectory", "samples.parquet"), ("audit", "scores.parquet")):
        found = experiment.find(target, stage, moved.run("tier_reg"))
        assert found is not None and found.has(name)
    monkeypatch.setitem(presets.PRESETS, "tiny", preset)
    list(demo.export(swept, target, ["tiny"]))
    again = experiment.find(target, "trajectory", moved.run("tier_reg"))
    assert again is not None and not again.has("samples.parquet")


def test_export_keeps_what_the_working_store_lacks(swept: Store, preset: Preset, tmp_path: Path) -> None:
    target = Store(str(tmp_path / "assets"))
    list(demo.export(swept, target, ["tiny"]))
    held = {(r.stage, r.key) for r in target.ls()}
    assert list(demo.export(Store(str(tmp_path / "empty")), target, ["tiny"])) == []
    assert {(r.stage, r.key) for r in target.ls()} == held


def test_signs_ship_the_exact_weights_of_the_first_seed(
    swept: Store, preset: Preset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signs = preset.model_copy(update={"name": "signs"})
    monkeypatch.setitem(presets.PRESETS, "signs", signs)
    target = Store(str(tmp_path / "assets"))
    list(demo.export(swept, target, ["signs"]))
    exact, shipped = (experiment.find(s, "train", signs.run("none")) for s in (swept, target))
    assert exact is not None and shipped is not None
    for name, array in exact.arrays("weights.safetensors").items():
        assert shipped.arrays("weights.safetensors")[name].tobytes() == array.tobytes()
    point = experiment.find(target, "train", signs.point("tier_full", 9.0, signs.betas[0]))
    assert point is None or "weights.safetensors" in point.omitted
    assert list(demo.export(swept, target, ["signs"])) == []


def test_store_commands(store: Store) -> None:
    runner = CliRunner()
    listed = runner.invoke(cli.app, ["store", "ls", "--stage", "report", "--store", store.url])
    assert listed.exit_code == 0 and "tier_reg" in listed.output
    checked = runner.invoke(cli.app, ["store", "verify", "--store", store.url])
    assert checked.exit_code == 0 and "0 problems" in checked.output
    swept = runner.invoke(cli.app, ["store", "gc", "--dry-run", "--store", store.url])
    assert swept.exit_code == 0


def test_verify_fails_on_a_damaged_file(store: Store, tmp_path: Path) -> None:
    copy = Store(str(tmp_path / "copy"))
    report = store.ls("split") or store.ls("train")
    store.export(report[0].stage, report[0].key, copy)
    victim = next(p for p in Path(copy.url).rglob("*.parquet"))
    victim.write_bytes(victim.read_bytes()[:-3])
    told = f"{report[0].stage} {report[0].key[:12]}: {victim.name} has "
    for _ in range(2):  # and leaves it where it is
        result = CliRunner().invoke(cli.app, ["store", "verify", "--store", copy.url])
        assert result.exit_code == 1
        assert told in result.output and "1 problems" in result.output
    assert copy.find(report[0].stage, report[0].key) is None  # which sets it aside
    result = CliRunner().invoke(cli.app, ["store", "verify", "--store", copy.url])
    assert result.exit_code == 0
    assert f": {told}" in result.output and "set aside 20" in result.output and "0 problems" in result.output


def test_verify_fails_on_what_is_stored_twice(store: Store, tmp_path: Path) -> None:
    copy = Store(str(tmp_path / "copy"))
    for result in store.ls("audit"):
        store.export(result.stage, result.key, copy)
    assert CliRunner().invoke(cli.app, ["store", "verify", "--store", copy.url]).exit_code == 0
    one, another = copy.ls("audit")[0], "ab" * 32
    copy.write("audit", another, {"scores.parquet": one.frame("scores.parquet")}, one.record)
    result = CliRunner().invoke(cli.app, ["store", "verify", "--store", copy.url])
    assert result.exit_code == 1
    assert "stored twice: the same computation as" in result.output
    keys = {one.key[:12], another[:12]}
    assert all(key in result.output for key in keys) and "1 problems" in result.output


def test_verify_fails_on_a_result_under_the_key_of_another_computation(store: Store, tmp_path: Path) -> None:
    """Its record says what was computed, and the key is made from that again: what is stored is what is asked for."""
    copy, wrong = Store(str(tmp_path / "copy")), "ab" * 32
    one = store.ls("audit")[0]
    copy.write("audit", wrong, {"scores.parquet": one.frame("scores.parquet")}, one.record)
    result = CliRunner().invoke(cli.app, ["store", "verify", "--store", copy.url])
    assert result.exit_code == 1
    assert f"audit {wrong[:12]}: belongs at {one.key[:12]}" in result.output
    older = dict(one.record) | {"version": 0}  # how its key was made is no longer known
    copy.discard("audit", wrong)
    copy.write("audit", wrong, {"scores.parquet": one.frame("scores.parquet")}, older)
    assert CliRunner().invoke(cli.app, ["store", "verify", "--store", copy.url]).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nope"], "choose one of signs"),
        (["run", "signs", "--set", "train.epoch=3"], "train has epochs"),
        (["run", "signs", "--set", "epochs"], "name=value"),
        (["run", "signs", "--defense", "dpsgd"], "has no defense 'dpsgd'"),
        (["sweep", "signs", "--over", "gamma=1"], "--over takes lambda"),
        (["sweep", "signs", "--set", "defense.tier.lambda=3"], "use --over"),
        (["run", "signs", "--set", "train.seed=3"], "use --seed"),
        (["run", "signs", "--set", "train.epochs=abc"], "train.epochs: "),
        (["run", "signs", "--here", "--set", "data.source=[/nowhere]"], "[/nowhere]"),
        (["sweep", "signs", "--defense", "none"], "tier_full or tier_reg"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tier", *arguments, *(["--store", str(tmp_path)])],
        cwd=ROOT, capture_output=True, text=True, env=os.environ | {"COLUMNS": "400"},
    )  # fmt: skip
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_assignments_are_json_or_text() -> None:
    assert cli.assignments(["a.b=1", "c=x", "d=null", "e=[1,2]"]) == {"a.b": 1, "c": "x", "d": None, "e": [1, 2]}


def test_presets_are_listed() -> None:
    listed = CliRunner().invoke(cli.app, ["presets"])
    assert listed.exit_code == 0 and "gtsrb" in listed.output


def compared(store: Store, *arguments: str) -> dict:
    result = CliRunner().invoke(cli.app, ["fidelity", "tiny", "--json", "--store", store.url, *arguments])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def likened(store: Store) -> Store:
    """The same store, after `fidelity --compute` of one defense and the preset's explainers."""
    compared(store, "--compute", "--here", "--defense", "tier_reg")
    return store


def test_fidelity_prints_each_metric_beside_its_controls(likened: Store) -> None:
    shown = compared(likened)
    assert shown["preset"] == "tiny"
    assert shown["defenses"].keys() == {"tier_reg"}
    assert shown["defenses"]["tier_reg"].keys() == {"gradient", "gradcam"}
    for entry in shown["defenses"]["tier_reg"].values():
        assert entry["seeds"] == [0, 1]
        for of in (entry, entry["correct"]):
            for metric in METRICS:
                for name in ("mean", "shuffled", "second_seed"):
                    value, interval = of[metric][name], of[metric]["interval" if name == "mean" else f"{name}_interval"]
                    assert interval[0] <= value <= interval[1]
        assert entry["correct"]["n"] < entry["n"] <= 2 * 80


def test_fidelity_means_are_those_of_the_stored_scores(likened: Store, preset: Preset) -> None:
    found = [experiment.find(likened, "fidelity", preset.fidelity("tier_reg", seed, "gradcam")) for seed in (0, 1)]
    tables = [result.frame("scores.parquet") for result in found if result is not None]
    shown = compared(likened)["defenses"]["tier_reg"]["gradcam"]
    for metric in METRICS:
        assert shown[metric]["mean"] == pytest.approx(sum(table[metric].mean() for table in tables) / 2, rel=1e-5)
        right = sum(table.loc[table["correct"], metric].mean() for table in tables) / 2
        assert shown["correct"][metric]["mean"] == pytest.approx(right, rel=1e-5)


def test_fidelity_says_what_is_missing_and_how_to_compute_it(likened: Store) -> None:
    asked = ["--defense", "tier_full", "--explainer", "gradcam", "--seed", "0", "--set", "train.epochs=2"]
    shown = compared(likened, *asked)
    assert shown["defenses"] == {}
    (reason,) = shown["refused"].values()
    assert shown["refused"].keys() == {"tier_full.gradcam"}
    what, _, command = reason.partition(": ")
    assert what == "not in this store"
    assert command.startswith("python -m tier fidelity tiny --compute ")
    result = CliRunner().invoke(
        cli.app, [*shlex.split(command)[3:], "--here", "--json"]
    )  # the command as it is printed
    assert result.exit_code == 0, result.output
    assert compared(likened, *asked)["defenses"]["tier_full"].keys() == {"gradcam"}
    assert compared(likened, *asked)["refused"] == {}
    partly = compared(likened, "--defense", "tier_reg", "--seed", "1", "--seed", "2")
    assert partly["refused"]["tier_reg.gradient"].startswith("seeds not in this store: 2: python -m tier fidelity tiny")


def test_fidelity_as_tables(likened: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.out, "_width", 160)
    arguments = ["fidelity", "tiny", "--store", likened.url]
    printed = CliRunner().invoke(cli.app, arguments)
    entry = compared(likened)["defenses"]["tier_reg"]["gradcam"]["cosine_unscaled"]
    for name in ("mean", "shuffled", "second_seed"):
        assert f"{entry[name]:.3f} [" in printed.output
    assert "Missing: augmentation.gradient, augmentation.gradcam, tier_full.gradient" in printed.output
    assert f"Compute with: python -m tier fidelity tiny --compute --store {likened.url}" in printed.output
    one = CliRunner().invoke(cli.app, [*arguments, "--seed", "0"])
    assert one.output.count("one seed only: the intervals resample images alone (all)") == 1
    lines = CliRunner().invoke(cli.app, [*arguments, "--markdown"]).output.splitlines()
    assert lines[0] == "| explainer | defense | metric | mean | other image | other seed | both right |"
    assert len(lines) == 2 + 2 * len(METRICS)


def test_quality_prints_each_metric_beside_its_controls(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = ["--set", "quality.images=12", "--set", "quality.runs=8", "--set", "quality.subset_size=50"]
    asked = ["quality", "tiny", *quick, "--store", store.url]
    runner = CliRunner()
    empty = json.loads(runner.invoke(cli.app, [*asked, "--json"]).stdout)
    assert empty["defenses"] == {} and "none.gradcam" in empty["refused"]
    what, _, command = empty["refused"]["none.gradcam"].partition(": ")
    assert what == "not in this store" and "python -m tier quality tiny --compute" in command
    done = runner.invoke(cli.app, [*shlex.split(command)[3:], "--here"])  # the command as it is printed
    assert done.exit_code == 0, done.output
    shown = json.loads(runner.invoke(cli.app, [*asked, "--json"]).stdout)
    assert shown["defenses"].keys() == {"none"} and shown["defenses"]["none"].keys() == {"gradcam"}
    assert "none.gradient" in shown["refused"] and "none.gradcam" not in shown["refused"]
    entry = shown["defenses"]["none"]["gradcam"]
    for group in (entry, entry["members"], entry["nonmembers"]):
        for metric in ("faithfulness_correlation", "faithfulness_estimate", "pointing_game", "mask_mass", "mask_iou"):
            of = group[metric]
            for name in ("mean", "random", "edges"):
                low, high = of["interval" if name == "mean" else f"{name}_interval"]
                assert low <= of[name] <= high
    assert entry["sufficiency"]["random"] == pytest.approx(entry["chance"]) and entry["images"] == 24
    monkeypatch.setattr(cli.out, "_width", 200)
    printed = runner.invoke(cli.app, asked).output
    assert f"{entry['mask_mass']['mean']:.3f} [" in printed and "independent noise" in printed
    assert "Missing: none.gradient" in printed
    lines = runner.invoke(cli.app, [*asked, "--markdown"]).output.splitlines()
    assert lines[0].startswith("| explainer | defense | metric | mean | random | edges | members | non-members | n |")
    assert lines[0].endswith("| change | other seed |")
    assert len(lines) == 2 + len(JUDGED)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--explainer", "saliency"], "no explainer named 'saliency'; there are gradient"),
        (["--defense", "none"], "'none' is what the others are compared with"),
        (["--set", "explain.name=lime"], "use --explainer"),
        (["--set", "train.seed=3"], "use --seed"),
        (["--set", "fidelity.second_seed=3"], "use --seed"),
    ],
)
def test_fidelity_refuses_what_cannot_be(
    arguments: list[str], message: str, preset: Preset, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["tier", "fidelity", "tiny", "--store", str(tmp_path), *arguments])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert message in " ".join(capsys.readouterr().err.split())


BOTH = ["--defense", "none", "--defense", "tier_reg"]
QUICK = ["--set", "battery.references=6", "--set", "audit.iterations=10", "--set", "attack.alphas=[0,0.1]"]


def run_attack(store: Store, *arguments: str) -> str:
    result = CliRunner().invoke(cli.app, ["attack", "tiny", "--here", "--store", store.url, *QUICK, *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def attacked(store: Store, *arguments: str) -> dict:
    return json.loads(run_attack(store, "--json", *arguments))


@pytest.fixture(scope="module")
def tried(store: Store) -> tuple[Store, str]:
    """The same store, after `attack` on two defenses, and what that printed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli.out, "_width", 200)
        return store, run_attack(store, *BOTH)


class TestAttack:
    """The attack from outside, by command."""

    def test_json_is_what_is_stored(self, tried: tuple[Store, str], preset: Preset) -> None:
        store = tried[0]
        before = {(r.stage, r.key) for r in store.ls()}
        shown = attacked(store, *BOTH)
        assert {(r.stage, r.key) for r in store.ls()} == before
        assert shown["preset"] == "tiny" and shown["defenses"].keys() == {"none", "tier_reg"}
        for name, of in shown["defenses"].items():
            e = preset.run(name).set(cli.assignments(QUICK[1::2]))
            assert of["explainers"].keys() == {"gradient", "gradcam"}
            for explainer, entry in of["explainers"].items():
                for kind, where in (("undefended", "transfer"), ("same", "adaptive")):
                    asked = e.set({"explain.name": explainer, "attack.shadow": kind})
                    found = experiment.find(store, "attack", asked)
                    assert found is not None and entry[where] == found.metrics["target"]
                    assert entry["alpha"][where] == found.metrics["alpha"]
                    name_of_rest = "attack_test" if kind == "same" else "transfer_attack_test"
                    assert entry[name_of_rest] == found.metrics["attack_test"]
            found = experiment.find(store, "battery", e)
            assert found is not None and list(of["battery"]) == list(ATTACKS)
            assert all(of["battery"][attack] == found.metrics[attack] for attack in ATTACKS if attack != "agp")
        same = shown["defenses"]["none"]["explainers"]["gradient"]
        assert same["transfer"] == same["adaptive"] and same["attack_test"] == same["transfer_attack_test"]

    def test_each_leaf_holds_what_the_issue_names(self, tried: tuple[Store, str]) -> None:
        named = {
            "balanced_accuracy", "auc", "interval", "tpr_at_0.001", "tpr_at_0.01", "counts_at_0.01", "members",
            "nonmembers", "refused",
        }  # fmt: skip
        for of in attacked(tried[0], *BOTH)["defenses"].values():
            leaves = [entry[leaf] for entry in of["explainers"].values() for leaf in LEAVES]
            for leaf in [*leaves, *of["battery"].values()]:
                assert named <= leaf.keys()
                assert leaf["tpr_at_0.001"] is None and "1,000" in leaf["refused"]["tpr_at_0.001"]
                assert leaf["interval"][0] <= leaf["balanced_accuracy"] <= leaf["interval"][1]

    def test_what_is_missing_is_named_with_its_command(self, tried: tuple[Store, str]) -> None:
        missing = attacked(tried[0], "--defense", "augmentation", "--explainer", "gradient")
        assert missing["defenses"] == {}
        reason = missing["refused"]["augmentation.gradient"]
        what, _, command = reason.partition(": ")
        assert what == "not in this store"
        done = CliRunner().invoke(cli.app, [*shlex.split(command)[3:], "--here"])  # the command as it is printed
        assert done.exit_code == 0, done.output
        again = attacked(tried[0], "--defense", "augmentation", "--explainer", "gradient")
        assert again["defenses"]["augmentation"]["explainers"].keys() == {"gradient"}
        assert again["refused"].keys() == {"augmentation.battery", "augmentation.intervals over seeds"}
        assert again["defenses"]["augmentation"]["battery"].keys() == {"agp"}

    def test_text_shows_tables_reasons_and_a_sentence(self, tried: tuple[Store, str]) -> None:
        store, printed = tried
        shown = attacked(store, *BOTH)["defenses"]
        for of in shown.values():
            for leaf in (*(e[n] for e in of["explainers"].values() for n in LEAVES), *of["battery"].values()):
                low, high = leaf["interval"]
                assert f"{leaf['balanced_accuracy']:.3f} [{low:.3f}, {high:.3f}]" in printed
        for name, of in shown.items():
            assert f"{name}: {attack_sentence(of)}" in printed
            assert ("knows the defense" in str(attack_sentence(of))) == (name != "none")
        assert printed.count("tpr_at_0.01: a rate of 0.01 needs at least 100 non-members; there are 40") == 1
        for of in shown.values():
            assert of["vulnerable_decile"].keys() == of["per_class"].keys() == of["battery"].keys()
            for leaf in of["vulnerable_decile"].values():
                assert f"{leaf['balanced_accuracy_calibrated']:.3f}" in printed
            for view in of["explainers"].values():
                assert (view["operator"], view["levels"]) == ("road", [0, *(step / 10 for step in range(1, 10))])
        assert "most exposed" in printed and "Canaries: members that were trained on with a wrong label" in printed
        assert "Pixels removed by road: 0, 10, 20, 30, 40, 50, 60, 70, 80, 90 %." in printed
        assert "attribution_*: maps of gradient." in printed and "LiRA and RMIA ask about 1 views" in printed
        assert "Training seeds: 0." in printed

    def test_variants_are_computed_printed_and_stored(self, tried: tuple[Store, str], preset: Preset) -> None:
        store, asked = tried[0], ["--defense", "tier_reg", "--explainer", "gradient", "--no-battery", "--variants"]
        missing = attacked(store, *asked)["refused"]
        assert "tier_reg.variants.blur.transfer" in missing and "tier_reg.variants.standard.adaptive" not in missing
        command = missing["tier_reg.variants.blur.transfer"].partition(": ")[2]
        done = CliRunner().invoke(cli.app, [*shlex.split(command)[3:], "--here"])  # the command as it is printed
        assert done.exit_code == 0, done.output
        shown = attacked(store, *asked)
        of = shown["defenses"]["tier_reg"]
        assert [(name, entry["operator"]) for name, entry in of["variants"].items()] == [
            ("standard", "road"), ("road_between", "road"), ("mean", "mean"), ("blur", "blur")
        ]  # fmt: skip
        assert of["variants"]["standard"]["adaptive"] == of["explainers"]["gradient"]["adaptive"]
        assert of["variants"]["road_between"]["levels"] == [0, *(0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)]
        stored = store.ls("attack")
        for entry in of["variants"].values():
            path = {"operator": entry["operator"], "levels": entry["levels"]}
            e = preset.run("tier_reg").set(cli.assignments(QUICK[1::2]))
            e = e.set({f"attack.trajectory.{name}": value for name, value in path.items()})
            for who, kind in (("transfer", "undefended"), ("adaptive", "same")):
                found = experiment.find(store, "attack", e.set({"attack.shadow": kind}))
                assert found is not None and entry[who] == found.metrics["target"]
                stored = [result for result in stored if result.key != found.key]
        assert len(store.ls("attack")) - len(stored) == 8
        table = run_attack(store, "--markdown", *asked).split("\n\n")[-1]
        assert table.startswith("| variant | operator | levels | defense | attack | balanced accuracy |")
        assert len(table.strip().splitlines()) == 2 + 8 and not any("variants" in name for name in shown["refused"])

    def test_several_seeds_give_means(self, tried: tuple[Store, str]) -> None:
        store, asked = tried[0], ["--defense", "none", "--explainer", "gradient", "--seed", "0", "--seed", "1"]
        before = attacked(store, *asked)
        assert "seed 1" in before["refused"]["none.gradient.adaptive.seeds"]
        assert "--seed 0 --seed 1" in before["refused"]["none.battery.seeds"]
        printed = run_attack(store, *asked)
        assert "Training seeds: 0, 1." in printed and "one seed only" not in printed
        shown = attacked(store, *asked)
        of = shown["defenses"]["none"]
        assert of["seeds"] == [0, 1] and "seed" not in of and shown["refused"] == {}
        single = [attacked(store, *asked[:-4], "--seed", seed)["defenses"]["none"] for seed in ("0", "1")]
        for name in ATTACKS:
            for part in ("battery", "vulnerable_decile"):
                assert of[part][name]["seeds"] == 2 and of[part][name]["auc_interval"][0] < of[part][name]["auc"]
            first, second = (one["battery"][name]["auc"] for one in single)
            assert of["battery"][name]["auc"] == pytest.approx((first + second) / 2)
        assert of["explainers"]["gradient"]["alpha"]["adaptive"] == [
            one["explainers"]["gradient"]["alpha"]["adaptive"] for one in single
        ]

    def test_the_battery_has_an_explainer_of_its_own(self, tried: tuple[Store, str]) -> None:
        store = tried[0]
        asked = ["--defense", "none", "--explainer", "gradcam"]
        assert attacked(store, *asked)["defenses"]["none"]["battery_explainer"] == "gradient"
        shown = attacked(store, *asked, "--battery-explainer", "gradcam")
        assert "--battery-explainer=gradcam" in shown["refused"]["none.battery"]
        assert "--set=explain.name" not in shown["refused"]["none.battery"]

    def test_again_computes_nothing_and_markdown_is_a_table_each(self, tried: tuple[Store, str]) -> None:
        store = tried[0]
        before = {(r.stage, r.key, r.record["created"]) for r in store.ls()}
        run_attack(store, "--defense", "none")
        assert {(r.stage, r.key, r.record["created"]) for r in store.ls()} == before
        first, second, exposed = run_attack(store, "--markdown", "--defense", "none").split("\n\n")
        figures = "balanced accuracy | calibrated | AUC | TPR at 1 % FPR |"
        assert first.splitlines()[0] == f"| explainer | defense | attack | {figures}"
        assert len(first.splitlines()) == 2 + 2 * len(LEAVES)
        assert len(second.strip().splitlines()) == 2 + len(ATTACKS)
        assert exposed.splitlines()[0] == f"| defense | images | attack | {figures}"
        assert len(exposed.strip().splitlines()) == 2 + len(ATTACKS)

    def test_what_fails_does_not_hide_the_rest(self, tried: tuple[Store, str], monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(*arguments: object, **options: object) -> None:
            raise ValueError("the importance map holds NaN")

        monkeypatch.setattr(experiment, "ensure", fails)
        arguments = ["attack", "tiny", "--here", "--store", tried[0].url, *QUICK, "--defense", "none"]
        arguments += ["--explainer", "gradient", "--explainer", "smoothgrad"]
        result = CliRunner().invoke(cli.app, arguments)
        assert isinstance(result.exception, ValueError) and "the importance map holds NaN" in str(result.exception)
        assert "none: An attacker who sees explanations" in " ".join(result.output.split())

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--explainer", "saliency"], "no explainer named 'saliency'; there are gradient"),
            (["--defense", "dpsgd"], "has no defense 'dpsgd'"),
            (["--set", "explain.name=lime"], "use --explainer"),
            (["--set", "attack.shadow=same"], "use the rows transfer and adaptive"),
            (["--set", "attack.trajectory.alpha=1"], "use attack.alphas"),
            (["--set", "train.seed=3"], "use --seed"),
            (["--set", "split.role=shadow"], "leave defense.name, train.seed, split.role alone"),
            (["--set", "attack.alphas=[]"], "attack.alphas: "),
            (["--set", "split.shadow_train=0"], "set split.shadow_train and _test above 0"),
        ],
    )
    def test_refuses_what_cannot_be(
        self, arguments: list[str], message: str, preset: Preset, tmp_path: Path, capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        monkeypatch.setattr(sys, "argv", ["tier", "attack", "tiny", "--here", "--store", str(tmp_path), *arguments])
        with pytest.raises(SystemExit, match="2"):
            cli.main()
        assert message in " ".join(capsys.readouterr().err.split())


class TestSweep:
    """Every combination of a defense's settings and seeds, by command."""

    OVER = ("--defense", "tier_reg", "--over", "lambda=0,2", "--over", "lambda=6,2")

    def swept(self, store: Store, *arguments: str) -> dict:
        result = CliRunner().invoke(cli.app, ["sweep", "tiny", "--json", "--store", store.url, *arguments])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def test_json_is_what_is_stored(self, swept: Store, preset: Preset) -> None:
        before = {(r.stage, r.key, r.record["created"]) for r in swept.ls()}
        shown = self.swept(swept, *self.OVER, "--seeds", "2")
        assert {(r.stage, r.key, r.record["created"]) for r in swept.ls()} == before
        seed0 = [point for point in shown["points"] if point["seed"] == 0]
        assert [(p["defense"], p["lambda"], p["beta"]) for p in seed0] == [("tier_reg", v, 0.1) for v in (0, 2, 6)]
        for point in shown["points"]:
            e = preset.point("tier_reg", point["lambda"], point["beta"], point["seed"])
            found = experiment.find(swept, "report", e)
            assert found is not None
            for figure in ("test_accuracy", "crossfit_balanced_accuracy", "gap_balanced_accuracy"):
                assert point[figure] == found.metrics[figure]
        # lambda 0 is the undefended run, which `run` has computed for both seeds
        assert [p["lambda"] for p in shown["points"] if p["seed"] == 1] == [0]
        assert list(shown["refused"]) == [f"tier_reg lambda {v} beta 0.1 seed 1" for v in (2, 6)]

    def test_what_is_missing_is_computed_by_the_command_named(self, swept: Store) -> None:
        asked = (*self.OVER[:2], "--over", "lambda=2", "--seed", "7", "--set", "train.epochs=2")
        what, _, command = self.swept(swept, *asked)["refused"]["tier_reg lambda 2 beta 0.1 seed 7"].partition(": ")
        assert what == "not in this store"
        done = CliRunner().invoke(cli.app, [*shlex.split(command)[3:], "--here"])
        assert done.exit_code == 0, done.output
        assert "tier_reg lambda 2 beta 0.1 seed 7 report: " in " ".join(done.output.split())
        shown = self.swept(swept, *asked)
        assert shown["refused"] == {} and len(shown["points"]) == 1

    def test_the_table_has_a_row_for_each_point(self, swept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cli.out, "_width", 160)
        result = CliRunner().invoke(cli.app, ["sweep", "tiny", "--here", "--store", swept.url, *self.OVER])
        assert result.exit_code == 0
        points = self.swept(swept, *self.OVER)["points"]
        rows = [line.split() for line in result.output.splitlines() if "tier_reg" in line]
        assert [[*row[1::2]] for row in rows] == [
            ["tier_reg", f"{p['lambda']:g}", "0.1", "0", *(f"{p[name]:.3f}" for name in cli._POINT_FIGURES)]
            for p in points
        ]

    def test_rivals_vary_in_strength(self, store: Store, preset: Preset, monkeypatch: pytest.MonkeyPatch) -> None:
        rivals = (Defense(name="label_smoothing"), Defense(name="confidence_penalty"))
        strengths = {"confidence_penalty": (0.0,)}
        wider = preset.model_copy(update={"rivals": rivals, "strengths": strengths})
        monkeypatch.setitem(presets.PRESETS, "tiny", wider)
        names = ("--defense", "tier_reg", "--defense", "label_smoothing", "--defense", "confidence_penalty")
        shown = self.swept(store, *names, "--over", "lambda=0", "--over", "beta=0.1", "--over", "strength=0")
        assert shown["refused"] == {}  # all of them are the undefended run
        assert [(p["defense"], p.get("lambda"), p.get("strength")) for p in shown["points"]] == [
            ("tier_reg", 0.0, None), ("label_smoothing", None, 0.0), ("confidence_penalty", None, 0.0)
        ]  # fmt: skip
        own = self.swept(store, "--defense", "label_smoothing", "--defense", "confidence_penalty")
        assert [p["defense"] for p in own["points"]] == ["confidence_penalty"]
        assert list(own["refused"]) == [f"label_smoothing strength {rivals[0].strength:g} seed 0"]
        with pytest.raises(ValueError, match="use --over"):
            CliRunner().invoke(
                cli.app, ["sweep", "tiny", "--defense", "label_smoothing", "--set", "defense.label_smoothing.amount=1"],
                catch_exceptions=False,
            )  # fmt: skip

    def test_seeds_are_the_presets_first_then_those_above(self, preset: Preset) -> None:
        assert cli._seeds(preset, 1) == [0]
        assert cli._seeds(preset, 4) == [0, 1, 2, 3]
        assert cli._seeds(preset.model_copy(update={"seeds": (5, 2)}), 3) == [5, 2, 6]

    @pytest.mark.parametrize(
        ("over", "names", "message"),
        [
            (["gamma=1"], ["tier_full"], r"takes lambda=... \(tier_full\) or beta=... \(tier_full\) with .*'gamma=1'"),
            (["lambda=1"], ["memguard"], r"takes strength=... \(memguard\) with"),
            (["strength=1"], ["tier_reg"], "takes lambda"),
            (["lambda=1,x"], ["tier_reg"], "not 'lambda=1,x'"),
            (["lambda=nan"], ["tier_reg"], "not 'lambda=nan'"),
            (["lambda"], ["tier_reg"], "not 'lambda'"),
            ([], ["augmentation"], "'augmentation' has nothing to vary; .*strength: dpsgd_eps100"),
        ],
    )
    def test_what_does_not_apply_is_refused(self, over: list[str], names: list[DefenseName], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            cli._over(over, names)

    def test_a_point_that_fails_does_not_hide_the_rest(self, swept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(*arguments: object, **options: object) -> None:
            raise ValueError("the loss is not finite")

        monkeypatch.setattr(experiment, "ensure", fails)
        arguments = ["sweep", "tiny", "--here", "--store", swept.url, *self.OVER, "--over", "lambda=8"]
        result = CliRunner().invoke(cli.app, arguments)
        assert "1 of 4 runs failed" in str(result.exception) and "the loss is not finite" in str(result.exception)
        assert "Missing: tier_reg lambda 8 beta 0.1 seed 0. Compute with: python -m tier sweep tiny" in result.output


# ---- by the engine, as commands of their own


def small(preset: Preset, **settings: object) -> list[str]:
    """`--set` options that make the preset signs, which any process knows, as small as the tests' own."""
    raw = preset.experiment.changed()
    flat = {f"{part}.{name}": value for part, of in raw.items() for name, value in of.items() if part != "data"}
    flat |= {f"data.signs.{name}": value for name, value in dict(preset.experiment.data.signs).items()}
    flat |= {name.replace("__", "."): value for name, value in settings.items()}
    flat |= {"data.image_size": 16, "data.fingerprint": preset.experiment.data.fingerprint}
    return [f"--set={name}={json.dumps(value)}" for name, value in flat.items()]


def command(*arguments: str, cache: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tier", *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"COLUMNS": "200", "XDG_CACHE_HOME": str(cache)},
        # tests that were started in the background of a script ignore Ctrl-C, and their children with them
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    said, told = process.communicate(timeout=240)
    return process.returncode, said, told


def wait_for(condition: Callable[[], object], seconds: float = 120) -> object:
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)
    return value


@pytest.mark.slow  # each half by itself is tested in test_engine.py
@pytest.mark.engine
def test_two_commands_share_the_work_and_a_killed_worker_costs_nothing(preset: Preset, tmp_path: Path) -> None:
    where = Store(str(tmp_path / "store"))
    points = ["sweep", "signs", "--defense", "tier_reg", "--over", "lambda=0,3,7", "--over", "beta=0.1"]
    points += [*small(preset, train__epochs=60), "--store", where.url]
    commands = [command(*points, cache=tmp_path) for _ in range(2)]

    def trainer() -> int | None:
        """The process of a training that has left a checkpoint."""
        assert [process.poll() for process in commands] == [None, None]
        for path in where.list_json("checkpoints"):
            holder = where.holder(f"train-{path.split('/')[1].removesuffix('.json')}")
            if holder is not None:
                return int(holder["process"]["pid"])
        return None

    os.kill(int(str(wait_for(trainer))), signal.SIGKILL)
    for code, _, told in map(ended, commands):
        assert code == 0, told
        assert told.count("report: ") == 3
    jobs = [where.get_json(path) for path in where.list_json("jobs")]
    assert [job["status"] for job in jobs] == ["done"] * 3
    assert sorted(job["attempt"] for job in jobs) == [1, 1, 2]
    assert where.list_json("requests") == []
    checked = CliRunner().invoke(cli.app, ["store", "verify", "--store", where.url])
    assert checked.exit_code == 0 and ", 0 problems" in checked.output
    assert [len(where.ls(stage)) for stage in ("report", "train", "warmup")] == [3, 3, 1]
    alone = Store(str(tmp_path / "alone"))
    code, _, told = ended(command(*points[:-1], alone.url, "--here", cache=tmp_path))
    assert code == 0, told
    for result in alone.ls("report"):
        twin = where.find("report", result.key)
        assert twin is not None
        timing = {"seconds_per_epoch"}
        assert {k: v for k, v in twin.metrics.items() if k not in timing} == {
            k: v for k, v in result.metrics.items() if k not in timing
        }


@pytest.mark.engine
def test_ctrl_c_withdraws_and_says_how_to_go_on(preset: Preset, tmp_path: Path) -> None:
    where = Store(str(tmp_path / "store"))
    points = ["run", "signs", "--defense", "none", "--seed", "0", "--seed", "1"]
    points += [*small(preset, train__epochs=2000), "--store", where.url]
    first = command(*points, cache=tmp_path)
    wait_for(lambda: where.list_json("checkpoints"))
    first.send_signal(signal.SIGINT)
    code, _, told = ended(first)
    assert code == 130
    assert "Stopped. 0 of 2 are finished and stored; run the same command again to go on" in " ".join(told.split())
    assert "Traceback" not in told
    assert where.list_json("requests") == []
    states = [f"jobs/{path.split('/')[1]}" for path in where.list_json("jobs")]
    wait_for(lambda: {where.get_json(path)["status"] for path in states} == {"cancelled"}, 30)
    wait_for(lambda: where.holder("engine") is None, 60)  # its only client has gone
    assert where.list_json("checkpoints")


@pytest.mark.engine
def test_what_fails_is_listed_and_the_rest_is_stored(preset: Preset, tmp_path: Path) -> None:
    where = Store(str(tmp_path / "store"))
    # learning so fast that nothing is left of the net; with the gradient clipped, TIER's run fails the same way
    points = ["run", "signs", "--defense", "none", *small(preset, train__epochs=2), "--store", where.url]
    stored = experiment.ensure(where, "report", preset.run("none").set({"train.epochs": 2}))
    bad = [*points, "--seed", "0", "--set=train.learning_rate=1e30", "--set=train.optimizer=sgd"]
    code, _, told = ended(command(*bad, cache=tmp_path))
    assert code == 2
    assert "1 of 1 runs failed; the rest is stored." in told and "none seed 0 gradient: " in told
    assert where.find("report", stored.key) is not None
    assert where.list_json("requests") == []
