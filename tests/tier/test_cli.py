"""The command line: settings, errors in one sentence, run / show / sweep / store on a store of its own."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tier import cli, data, demo, experiment, presets
from tier.attacks import ATTACKS
from tier.config import Defense, Experiment, Model, Tier
from tier.fidelity import METRICS
from tier.presets import Preset
from tier.store import Store
from tier.summary import FIGURES, LEAVES

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
        cli.app, ["run", "tiny", "--defense", "none", "--defense", "tier_reg", "--store", where.url]
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
    arguments = ["sweep", "tiny", "--defense", "tier_reg", "--over", "lambda=0,2,6", "--store", store.url]
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
    result = CliRunner().invoke(cli.app, ["store", "verify", "--store", copy.url])
    assert result.exit_code == 1


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
        (["run", "signs", "--set", "data.source=[/nowhere]"], "[/nowhere]"),
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
    compared(store, "--compute", "--defense", "tier_reg")
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
    result = CliRunner().invoke(cli.app, [*shlex.split(command)[3:], "--json"])  # the command as it is printed
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
    result = CliRunner().invoke(cli.app, ["attack", "tiny", "--store", store.url, *QUICK, *arguments])
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
        done = CliRunner().invoke(cli.app, shlex.split(command)[3:])  # the command as it is printed
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
            agp, gap = (100 * of["battery"][attack]["balanced_accuracy"] for attack in ("agp", "gap"))
            sentence = f"{name}: An attacker who sees explanations gets {agp:.0f} of 100 right; one who only sees"
            assert f"{sentence} whether the answer is correct gets {gap:.0f}." in printed
        assert printed.count("tpr_at_0.01: a rate of 0.01 needs at least 100 non-members; there are 40") == 1

    def test_again_computes_nothing_and_markdown_is_two_tables(self, tried: tuple[Store, str]) -> None:
        store = tried[0]
        before = {(r.stage, r.key, r.record["created"]) for r in store.ls()}
        run_attack(store, "--defense", "none")
        assert {(r.stage, r.key, r.record["created"]) for r in store.ls()} == before
        first, second = run_attack(store, "--markdown", "--defense", "none").split("\n\n")
        assert first.splitlines()[0] == ("| explainer | defense | attack | balanced accuracy | AUC | TPR at 1 % FPR |")
        assert len(first.splitlines()) == 2 + 2 * len(LEAVES)
        assert len(second.strip().splitlines()) == 2 + len(ATTACKS)

    def test_what_fails_does_not_hide_the_rest(self, tried: tuple[Store, str], monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(*arguments: object, **options: object) -> None:
            raise ValueError("the importance map holds NaN")

        monkeypatch.setattr(experiment, "ensure", fails)
        result = CliRunner().invoke(cli.app, ["attack", "tiny", "--store", tried[0].url, *QUICK, "--defense", "none"])
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
        monkeypatch.setattr(sys, "argv", ["tier", "attack", "tiny", "--store", str(tmp_path), *arguments])
        with pytest.raises(SystemExit, match="2"):
            cli.main()
        assert message in " ".join(capsys.readouterr().err.split())
