"""Inference `auto`: measured once per model, and replaced by the kind found before anything gets a key."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tier.test_experiment import attacked, tiny
from tier import experiment, inference, presets
from tier.config import Audit, Defense, Experiment, Explain, Trajectory
from tier.context import Cancelled, Context
from tier.environment import cpu_model
from tier.experiment import explaining
from tier.inference import KINDS
from tier.store import Result, Store

# tiny undertrained nets leak nothing, which the audit says
pytestmark = pytest.mark.filterwarnings("ignore:no trajectory feature separates")
AUTO = {"trajectory.inference": "auto"}
PATHS = [f"{order}_{level}" for order in ("morf", "lerf") for level in range(10)]
ERRORS = ("largest_confidence_change", "audit_auc_change")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def run(**settings: Any) -> Experiment:
    return tiny(**({"train.epochs": 2} | settings))


def pinned(store: Store, e: Experiment) -> Experiment:
    """The run with its data's fingerprint, unmeasured."""
    return e.with_(data=experiment.pin(store, run(), load=True).data)


def measured(store: Store, e: Experiment, chosen: str) -> Result:
    """A made-up result of the stage, as if the kind had been found the fastest."""
    return store.write("inference", experiment.key("inference", e), {}, {"metrics": {"chosen": chosen}})


def stages(store: Store) -> list[str]:
    return sorted(result.stage for result in store.ls())


@pytest.fixture
def speeds(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Images per second that the measurement finds; `folded` is the fastest."""
    found = {"fp32": 100.0, "folded": 150.0, "bf16": 120.0}

    def made(model: object, sample: object, kinds: Sequence[str]) -> dict[str, float]:
        return {kind: found[kind] for kind in kinds}

    monkeypatch.setattr(inference, "images_per_second", made)
    return found


class TestTheStage:
    """What is measured, and on what."""

    def test_errors_are_those_of_the_stages_themselves(self, store: Store, speeds: dict[str, float]) -> None:
        # settings of the run that would change its own paths and audit: the measurement has its own, always the same
        e = run(**{"audit.seed": 3, "trajectory.operator": "blur", "explain.name": "gradcam"})
        made = experiment.ensure(store, "inference", e).metrics
        plain = e.with_(explain=Explain(), audit=Audit())
        paths, areas = {}, {}
        for kind in KINDS:
            one = plain.with_(trajectory=Trajectory(inference=kind, images=explaining.MEASURED))
            paths[kind] = experiment.ensure(store, "trajectory", one).frame("samples.parquet")[PATHS].to_numpy(float)
            areas[kind] = experiment.ensure(store, "audit", one).metrics["crossfit_auc"]
        for kind in KINDS:
            change = np.abs(np.exp(paths[kind]) - np.exp(paths["fp32"])).max()
            assert made["largest_confidence_change"][kind] == pytest.approx(change, abs=1e-6)
            assert made["audit_auc_change"][kind] == pytest.approx(areas[kind] - areas["fp32"], abs=1e-12)
        assert 0 == made["largest_confidence_change"]["fp32"] < made["largest_confidence_change"]["bf16"]
        assert made["images_per_second"] == speeds
        assert (made["images"], made["cpu"]) == (80, cpu_model())
        json.dumps(made, allow_nan=False)

    def test_the_choice_follows_from_what_is_recorded(self, store: Store) -> None:
        made = experiment.ensure(store, "inference", run()).metrics
        assert made["chosen"] == inference.choose(made["images_per_second"], *(made[name] for name in ERRORS))
        assert set(made["images_per_second"]) == set(KINDS)

    def test_a_model_that_cannot_be_folded_stays_as_it_is(
        self, store: Store, speeds: dict[str, float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(model: object) -> None:
            raise ValueError("cannot be traced")

        monkeypatch.setattr(inference, "folded", refuse)
        made = experiment.ensure(store, "inference", run()).metrics
        assert made["chosen"] == "fp32"
        assert all(list(made[name]) == ["fp32"] for name in ("images_per_second", *ERRORS))

    def test_at_most_so_many_images(
        self, store: Store, speeds: dict[str, float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(explaining, "MEASURED", 25)
        assert experiment.ensure(store, "inference", run()).metrics["images"] == 50

    def test_it_can_be_stopped(self, store: Store, speeds: dict[str, float]) -> None:
        experiment.ensure(store, "train", run())
        steps: list[str] = []

        def stop() -> bool:
            return "measuring inference" in steps

        context = Context(progress=lambda event: steps.append(event.get("step", "")), cancelled=stop)
        with pytest.raises(Cancelled, match="measuring inference"):
            experiment.ensure(store, "inference", run(), context)
        assert "inference" not in stages(store)

    def test_its_key_depends_on_the_model_alone(self, store: Store) -> None:
        e = pinned(store, run())
        same: list[dict[str, Any]] = [
            AUTO, {"attack.trajectory.inference": "auto"}, {"explain.name": "lime"}, {"audit.seed": 4},
        ]  # fmt: skip
        assert len({experiment.key("inference", e.set(change)) for change in [{}, *same]}) == 1
        other: list[dict[str, Any]] = [
            {"train.seed": 1}, {"defense.name": "augmentation"}, {"split.role": "shadow"}, {"train.threads": 2},
        ]  # fmt: skip
        assert len({experiment.key("inference", e.set(change)) for change in [{}, *other]}) == 1 + len(other)


class TestPinning:
    """`auto` is no kind of inference: results are keyed by what was measured."""

    def test_unmeasured_there_is_no_key(self, store: Store) -> None:
        e = pinned(store, run(**AUTO))
        for stage in ("trajectory", "audit", "report", "gallery", "inspect"):
            with pytest.raises(
                ValueError, match=r"compute the run's stage 'inference' first, or set inference to fp32"
            ):
                experiment.key(stage, e.set({"inspect.row": 1}))
        attack = pinned(store, run(**{"attack.trajectory.inference": "auto"}))
        for stage in ("alpha", "attack"):
            with pytest.raises(experiment.Unmeasured):
                experiment.key(stage, attack)

    def test_what_does_not_depend_on_it_has_its_key(self, store: Store) -> None:
        e, both = pinned(store, run()), AUTO | {"attack.trajectory.inference": "auto"}
        for stage in ("split", "train", "maps", "divergence", "battery", "inference"):
            assert experiment.key(stage, e.set(both)) == experiment.key(stage, e)
        assert experiment.key("report", e.set({"attack.trajectory.inference": "auto"})) == experiment.key("report", e)

    def test_nothing_is_found_and_nothing_computed(self, store: Store) -> None:
        e = pinned(store, run(**AUTO))
        assert experiment.find(store, "trajectory", e) is None
        unpinned = experiment.pin(store, e)  # so that nobody asks for its key
        assert unpinned == e.set({"data.fingerprint": None}) and unpinned.data.fingerprint is None
        assert experiment.find(store, "trajectory", run(**AUTO)) is None
        assert stages(store) == []

    @pytest.mark.parametrize("chosen", KINDS)
    def test_measured_it_is_replaced_in_both_places(self, store: Store, chosen: str) -> None:
        e = pinned(store, run(**AUTO, **{"attack.trajectory.inference": "auto", "trajectory.alpha": 0.5}))
        measured(store, e, chosen)
        made = experiment.pin(store, e)
        assert made == e.set({"trajectory.inference": chosen, "attack.trajectory.inference": chosen})
        assert experiment.pin(store, made) == made

    def test_a_kind_named_by_hand_stays(self, store: Store) -> None:
        e = pinned(store, run(**AUTO, **{"attack.trajectory.inference": "bf16"}))
        measured(store, e, "folded")
        made = experiment.pin(store, e)
        assert (made.trajectory.inference, made.attack.trajectory.inference) == ("folded", "bf16")

    def test_each_defense_has_its_own(self, store: Store) -> None:
        bare = pinned(store, run(**AUTO))
        defended = bare.with_(defense=Defense(name="augmentation"))
        measured(store, bare, "folded")
        assert experiment.pin(store, bare).trajectory.inference == "folded"
        assert experiment.pin(store, defended).data.fingerprint is None
        measured(store, defended, "fp32")
        assert experiment.pin(store, defended).trajectory.inference == "fp32"

    def test_fp32_found_is_the_plain_result(self, store: Store) -> None:
        e = pinned(store, run(**AUTO))
        measured(store, e, "fp32")
        plain = e.set({"trajectory.inference": "fp32"})
        assert experiment.key("report", experiment.pin(store, e)) == experiment.key("report", plain)


class TestEnsure:
    """Computing measures first, once, and only where it matters."""

    def test_the_record_shows_the_kind(self, store: Store, speeds: dict[str, float]) -> None:
        e = run(**AUTO)
        made = experiment.ensure(store, "trajectory", e)
        assert stages(store) == ["inference", "train", "trajectory"]
        assert made.record["config"]["trajectory"] == {"inference": "folded"}
        assert made.record["experiment"]["trajectory"] == {"inference": "folded"}
        found = experiment.find(store, "trajectory", e)
        assert found is not None and found.key == made.key
        by_hand = experiment.ensure(store, "trajectory", run(**{"trajectory.inference": "folded"}))
        assert by_hand.key == made.key

    def test_it_is_measured_once(self, store: Store, speeds: dict[str, float]) -> None:
        first = experiment.ensure(store, "trajectory", run(**AUTO))
        speeds["fp32"] = 1000.0  # by now another machine
        again = experiment.ensure(store, "audit", run(**AUTO))
        assert experiment.ensure(store, "trajectory", run(**AUTO)).key == first.key
        assert again.record["parents"]["trajectory"] == first.key
        assert stages(store).count("inference") == 1

    def test_what_does_not_depend_on_it_is_not_measured(self, store: Store) -> None:
        made = experiment.ensure(store, "divergence", run(**AUTO))
        assert "inference" not in stages(store)
        found = experiment.find(store, "divergence", run(**AUTO))
        assert found is not None and found.key == made.key

    def test_data_never_seen_are_read_first(self, store: Store, speeds: dict[str, float]) -> None:
        assert experiment.pin(store, run(**AUTO), load=True).trajectory.inference == "folded"

    def test_an_attack_follows_the_shadow_s_paths_as_the_target_s(self, store: Store, speeds: dict[str, float]) -> None:
        settings: dict[str, Any] = {"attack.trajectory.inference": "auto", "train.epochs": 2}
        made = experiment.ensure(store, "attack", attacked(**settings))
        assert made.record["config"]["attack"]["trajectory"] == {"inference": "folded"}
        kinds = {result.record["config"]["trajectory"].get("inference") for result in store.ls("trajectory")}
        assert kinds == {"folded"} and len(store.ls("inference")) == 1


def test_presets_name_no_auto() -> None:
    for preset in presets.PRESETS.values():
        e = preset.experiment
        assert (e.trajectory.inference, e.attack.trajectory.inference) == ("fp32", "fp32")
