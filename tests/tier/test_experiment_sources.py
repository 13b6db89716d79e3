"""Models made from others: who is dealt into which part, which runs are made, shared and put together, end to end."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.tier.test_experiment import assert_same, tiny, weights
from tier import experiment, runtime, splits
from tier.config import Defense, Distillation, EnsemblePartition, Experiment
from tier.context import Cancelled, Context
from tier.defenses.ensemble_partition import Ensemble
from tier.experiment import inputs, stages
from tier.store import Store

# tiny undertrained nets leak nothing, which the audit says
pytestmark = pytest.mark.filterwarnings("ignore:no trajectory feature separates")


def ensemble(parts: int = 3, **more: Any) -> Defense:
    return Defense(name="ensemble_partition", ensemble_partition=EnsemblePartition(parts=parts), **more)


def distilled(parts: int = 3, **more: Any) -> Defense:
    return Defense(name="distillation", distillation=Distillation(parts=parts), **more)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each stage was computed, by its name and key."""
    made: Counter[str] = Counter()
    compute = stages._compute

    def count(store: Store, stage: str, name: str, *rest: Any) -> Any:
        made[f"{stage} {name}"] += 1
        return compute(store, stage, name, *rest)

    monkeypatch.setattr(stages, "_compute", count)
    return made


def trainings(counted: Counter[str]) -> int:
    """How many models were made; none of them twice."""
    assert set(counted.values()) <= {1}
    return sum(name.startswith("train ") for name in counted)


class TestPartition:
    def test_parts_cover_the_members_and_have_their_share_of_every_class(self) -> None:
        labels = np.random.default_rng(0).choice(5, 103, p=[0.1, 0.15, 0.2, 0.25, 0.3])
        parts = splits.partition(labels, 7, 4)
        assert parts.shape == (103,)
        assert sorted(np.bincount(parts)) == [25, 26, 26, 26]
        for label in range(5):
            counts = np.bincount(parts[labels == label], minlength=4)
            share = (labels == label).sum() * np.bincount(parts) / 103
            assert (np.abs(counts - share) < 1).all()

    def test_it_depends_on_the_seed_and_the_count_alone(self) -> None:
        labels = np.arange(60) % 3
        first = splits.partition(labels, 0, 3)
        assert np.array_equal(first, splits.partition(labels, 0, 3))
        assert (first != splits.partition(labels, 1, 3)).any()
        assert not np.array_equal(first, np.sort(first))

    def test_it_is_not_how_reference_halves_are_drawn(self) -> None:
        labels = np.arange(200) % 4
        two = splits.partition(labels, 0, 2) == 0
        for number in range(4):
            assert 60 < (two == splits.halves(labels, 0, number)).sum() < 140

    def test_a_class_smaller_than_the_parts_is_missing_from_some(self) -> None:
        labels = np.array([0] * 20 + [1] * 2)
        parts = splits.partition(labels, 0, 5)
        assert (np.bincount(parts, minlength=5) >= 4).all()
        assert len(set(parts[labels == 1])) == 2

    def test_one_image_each_is_the_most(self) -> None:
        assert sorted(splits.partition(np.zeros(9, np.int64), 0, 9)) == list(range(9))
        with pytest.raises(splits.SplitError, match="9 members are too few for 10 parts"):
            splits.partition(np.zeros(9, np.int64), 0, 10)

    def test_many_parts(self) -> None:
        parts = splits.partition(np.arange(400) % 2, 0, 200)
        assert np.array_equal(np.bincount(parts), np.full(200, 2))

    def test_groups_stay_together(self) -> None:
        labels, groups = np.repeat(np.arange(4), 60), np.arange(240) // 5
        parts = splits.partition(labels, 0, 3, groups)
        assert all(len(set(parts[groups == group])) == 1 for group in range(48))
        assert (np.abs(np.bincount(parts) - 80) <= 10).all()
        assert all((np.bincount(parts[labels == label], minlength=3) >= 15).all() for label in range(4))
        with pytest.raises(splits.SplitError, match="48 groups of members are too few for 49 parts"):
            splits.partition(labels, 0, 49, groups)


class TestParts:
    def rows(self, store: Store, **settings: Any) -> tuple[Any, np.ndarray]:
        e = experiment.pin(store, tiny(**settings), load=True)
        return experiment.model_sets(e.data, e.split)

    @pytest.mark.parametrize("role", ["target", "shadow", "reference"])
    def test_members_of_a_part_and_everybody_else(self, store: Store, role: str) -> None:
        common = {"split.role": role, "split.reference": 3}
        problem, rows = self.rows(store, **common)
        whole, others = set(rows[: len(problem.members)]), set(rows[len(problem.members) :])
        covered: set[int] = set()
        for part in range(3):
            sub, known = self.rows(store, **common, **{"split.parts": 3, "split.part": part})
            inside = set(known[: len(sub.members)])
            assert len(inside) == len(sub.members) in (13, 14) and inside < whole
            assert not inside & covered
            covered |= inside
            outside = known[len(sub.members) :]
            assert set(outside[: len(whole) - len(inside)]) == whole - inside
            assert set(outside[len(whole) - len(inside) :]) == others
            source = experiment.dataset(experiment.pin(store, tiny(), load=True).data)
            assert np.array_equal(sub.members.numpy(), source.images[known[: len(sub.members)]])
            assert np.array_equal(sub.member_labels.numpy(), source.labels[known[: len(sub.members)]])
        assert covered == whole

    def test_parts_keep_tracks_together(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """Else the sub-models that never saw an image would have seen the frames before and after it."""
        from dataclasses import replace

        source = experiment.dataset(experiment.pin(store, tiny(), load=True).data)
        tracks = source.labels * 1000 + np.arange(len(source.labels)) // 16
        monkeypatch.setattr(inputs, "dataset", lambda *_: replace(source, groups=tracks))
        experiment.model_sets.cache_clear()
        dealt = [
            self.rows(store, **{"split.group_disjoint": True, "split.parts": 2, "split.part": part}) for part in (0, 1)
        ]
        experiment.model_sets.cache_clear()
        first, second = (set(tracks[rows[: len(problem.members)]]) for problem, rows in dealt)
        assert first and second and not first & second

    def test_a_part_that_there_is_not(self, store: Store) -> None:
        with pytest.raises(ValueError, match="part 3 of 3"):
            self.rows(store, **{"split.parts": 3, "split.part": 3})

    def test_mislabelled_members_are_mislabelled_in_their_part(self, store: Store) -> None:
        exchanged = 0
        source = experiment.dataset(experiment.pin(store, tiny(), load=True).data)
        for part in range(2):
            sub, known = self.rows(store, **{"split.canaries": 6, "split.parts": 2, "split.part": part})
            exchanged += int((sub.member_labels.numpy() != source.labels[known[: len(sub.members)]]).sum())
        assert exchanged == 6

    def test_a_part_has_a_key_of_its_own_and_one_part_is_the_whole(self) -> None:
        e = tiny().set({"data.fingerprint": "0" * 64})
        keys = {experiment.key("train", e.set({"split.parts": 3, "split.part": part})) for part in range(3)}
        assert len(keys | {experiment.key("train", e)}) == 4
        assert experiment.key("train", e.set({"split.parts": 1, "split.part": 2})) == experiment.key("train", e)
        assert experiment.key("split", e.set({"split.parts": 3})) == experiment.key("split", e)


class TestSources:
    def test_what_is_made_of_one_model_has_none(self) -> None:
        for name in ("none", "augmentation", "tier_full", "label_smoothing", "dpsgd_eps100"):
            assert experiment.sources(tiny(Defense(name=name))) == {}

    def test_an_ensemble_learns_on_parts_and_teachers_on_all_but_one(self) -> None:
        e = tiny()
        first, second = (experiment.sources(e.with_(defense=made)) for made in (ensemble(), distilled()))
        assert list(first) == list(second) == ["part 0", "part 1", "part 2"]
        members = set(experiment.model_sets(e.data, e.split)[1][:40].tolist())
        for name, run in first.items():
            (part, own), (others, theirs) = (experiment.model_sets(r.data, r.split) for r in (run, second[name]))
            inside, outside = set(own[: len(part.members)].tolist()), set(theirs[: len(others.members)].tolist())
            assert inside | outside == members and not inside & outside
            assert run.defense == second[name].defense == Defense()

    def test_two_parts_are_shared_by_both_defenses(self) -> None:
        e = tiny().set({"data.fingerprint": "0" * 64})
        first, second = (experiment.sources(e.with_(defense=made)) for made in (ensemble(2), distilled(2)))
        keys = [[experiment.key("train", run) for run in runs.values()] for runs in (first, second)]
        assert keys[0] == keys[1][::-1]

    @pytest.mark.parametrize("name", ["distillation", "memguard"])
    def test_a_single_source_is_the_plain_run(self, name: Any) -> None:
        one = {"name": name, "distillation": Distillation(parts=1), "base_augmentation": "standard"}
        e = tiny(Defense.model_validate(one)).set({"data.fingerprint": "0" * 64})
        (run,) = experiment.sources(e).values()
        plain = e.with_(defense=Defense(name="augmentation"))
        assert experiment.key("train", run) == experiment.key("train", plain)

    def test_sources_have_the_role_of_what_is_made_from_them(self) -> None:
        e = experiment.reference(tiny(ensemble()), 5)
        for number, run in enumerate(experiment.sources(e).values()):
            split = run.split
            assert (split.role, split.reference, split.parts, split.part) == ("reference", 5, 3, number)
            assert run.train.seed == experiment.REFERENCE_SEED + 5

    @pytest.mark.parametrize("made", [ensemble(), distilled()])
    def test_a_part_is_not_dealt_into_parts(self, made: Defense) -> None:
        with pytest.raises(ValueError, match=r"set split\.parts back to 1"):
            experiment.sources(tiny(made, **{"split.parts": 2}))

    def test_they_are_parents(self) -> None:
        e = tiny(ensemble()).set({"data.fingerprint": "0" * 64})
        keys = stages._parents("train", e)
        assert set(keys) == {"split", "part 0", "part 1", "part 2"}
        assert keys["part 1"] == experiment.key("train", experiment.sources(e)["part 1"])

    def test_off_needs_nobody(self) -> None:
        e = tiny(ensemble(1)).set({"data.fingerprint": "0" * 64})
        assert experiment.key("train", e) == experiment.key("train", tiny().set({"data.fingerprint": "0" * 64}))


def served(store: Store, e: Experiment) -> torch.nn.Module:
    return experiment.model_of(store, experiment.pin(store, e))


class TestMadeAndServed:
    def test_an_ensemble_is_its_sub_models(self, store: Store) -> None:
        e = tiny(ensemble())
        made = experiment.ensure(store, "train", e)
        model = served(store, e)
        assert isinstance(model, Ensemble)
        source = experiment.dataset(experiment.pin(store, e).data)
        x = runtime.as_pixels(torch.from_numpy(source.images[:6]))
        subs = [served(store, run) for run in experiment.sources(e).values()]
        torch.testing.assert_close(model.each(x), torch.stack([sub(x) for sub in subs], 1), rtol=1e-3, atol=1e-4)
        problem, _ = experiment.model_sets(experiment.pin(store, e).data, e.split)
        z = torch.stack([sub(runtime.as_pixels(problem.members)) for sub in subs]).detach().double()
        assert float(model.scale) == pytest.approx(float(z.std(2, correction=0).mean()), rel=1e-5)
        assert made.metrics["defense"] == {"scale": pytest.approx(float(model.scale))}
        table = made.frame("samples.parquet").set_index("index")
        said = model(x).double().log_softmax(1).gather(1, torch.from_numpy(source.labels[:6])[:, None])[:, 0].detach()
        for row, value in enumerate(said.tolist()):
            if row in table.index:
                assert table.loc[row, "log_confidence"] == pytest.approx(value, rel=1e-4)
        assert made.metrics["members"] == made.metrics["nonmembers"] == 40

    def test_its_epochs_are_those_of_the_sub_models(self, store: Store) -> None:
        e = tiny(ensemble())
        made = experiment.ensure(store, "train", e)
        events = made.frame("events.parquet")
        parts = [
            experiment.ensure(store, "train", run).frame("events.parquet") for run in experiment.sources(e).values()
        ]
        assert events["epoch"].tolist() == [1, 2, 3, 4, 5, 6]
        for name in ("loss", "ce", "train_accuracy", "loss_auc"):
            np.testing.assert_allclose(events[name], np.mean([part[name] for part in parts], axis=0))
        np.testing.assert_allclose(events["seconds"], np.sum([part["seconds"] for part in parts], axis=0))
        assert events["kl"].isna().all()
        assert made.metrics["epochs"] == 6

    def test_a_student_is_taught_by_those_that_never_saw_an_image(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from tier.defenses import distillation

        e = tiny(distilled())
        told: list[Any] = []
        teach = distillation.DistillationDefense.teach

        def note(self: Any, models: Any, seen: Any) -> None:
            told.append((models, seen))
            teach(self, models, seen)

        monkeypatch.setattr(distillation.DistillationDefense, "teach", note)
        experiment.ensure(store, "train", e)
        ((models, seen),) = told
        assert seen.shape == (3, 40) and (seen.sum(0) == 2).all()  # all teachers but one have seen it
        whole, _ = experiment.model_sets(experiment.pin(store, e).data, e.split)
        for row, run in zip(seen, experiment.sources(e).values(), strict=True):
            problem, _ = experiment.model_sets(experiment.pin(store, run).data, run.split)
            assert torch.equal(
                whole.members[row], problem.members
            )  # in the order of the members, of which a part keeps it
        assert len(models) == 3

    def test_nothing_is_trained_twice(self, store: Store, counted: Counter[str]) -> None:
        experiment.ensure(store, "train", tiny(ensemble(2)))
        assert trainings(counted) == 3
        experiment.ensure(store, "train", tiny(distilled(2)))
        assert trainings(counted) == 4
        experiment.ensure(store, "train", tiny())
        experiment.ensure(store, "train", tiny(distilled(1)))
        assert trainings(counted) == 6
        experiment.ensure(store, "report", tiny(ensemble(2)))
        assert trainings(counted) == 6

    def test_a_student_cut_short_goes_on_to_the_same_weights(self, store: Store, tmp_path: Path) -> None:
        e = tiny(distilled(2))
        for run in experiment.sources(e).values():
            experiment.ensure(store, "train", run)
        epochs: list[int] = []
        stopping = Context(
            progress=lambda event: epochs.append(event.get("epoch", 0)), cancelled=lambda: max(epochs, default=0) >= 3
        )
        with pytest.raises(Cancelled):
            experiment.ensure(store, "train", e, stopping)
        again: list[int] = []
        experiment.ensure(store, "train", e, Context(progress=lambda event: again.append(event.get("epoch", 0))))
        assert sorted(set(again) - {0}) == [1, 2, 3, 4, 5, 6]
        other = Store(str(tmp_path / "other"))
        experiment.ensure(other, "train", e)
        assert_same(weights(store, e), weights(other, e))

    def test_an_ensemble_cut_short_keeps_its_finished_parts(self, store: Store, counted: Counter[str]) -> None:
        e = tiny(ensemble())
        steps: list[str] = []
        stopping = Context(
            progress=lambda event: steps.append(event["step"]), cancelled=lambda: steps.count("training") >= 8
        )
        with pytest.raises(Cancelled):
            experiment.ensure(store, "train", e, stopping)
        assert len(store.ls("train")) == 1
        counted.clear()
        experiment.ensure(store, "train", e)
        assert trainings(counted) == 3  # two parts and the ensemble

    def test_too_many_parts_are_refused(self, store: Store) -> None:
        with pytest.raises(splits.SplitError, match="40 members are too few for 41 parts"):
            experiment.ensure(store, "train", tiny(ensemble(41)))

    @pytest.mark.parametrize("made", [ensemble(), distilled()])
    def test_there_is_no_early_stopping_path(self, store: Store, made: Defense) -> None:
        with pytest.raises(ValueError, match="made from several models"):
            experiment.ensure(store, "path", tiny(made))


@pytest.mark.parametrize("made", [ensemble(2), distilled(2, base_augmentation="standard")])
def test_from_training_to_the_battery(store: Store, counted: Counter[str], made: Defense) -> None:
    e = tiny(made, **{"train.epochs": 2, "battery.references": 6})
    report = experiment.ensure(store, "report", e).metrics
    for figure in ("train_accuracy", "test_accuracy", "audit_balanced_accuracy", "seconds_per_epoch"):
        assert np.isfinite(report[figure])
    battery = experiment.ensure(store, "battery", e)
    scores = battery.frame("scores.parquet")
    attacks = [
        name for name in battery.metrics if isinstance(battery.metrics[name], dict) and "sign" in battery.metrics[name]
    ]
    assert {"gap", "loss", "lira_offline", "rmia", "attribution_variance"} <= set(attacks)
    assert np.isfinite(scores[attacks].to_numpy()).all()
    # the target, its shadow and six references, each of two parts
    assert trainings(counted) == 8 * 3


@pytest.mark.parametrize("name", ["gradcam", "smoothgrad"])
def test_an_ensemble_is_attacked_under_other_explainers(store: Store, name: Any) -> None:
    e = tiny(ensemble(2), **{"train.epochs": 2, "data.image_size": 32, "explain.name": name, "explain.samples": 3})
    attack = experiment.ensure(store, "attack", e)
    assert 0 <= attack.metrics["target"]["balanced_accuracy"] <= 1
    assert attack.metrics["cam_layer"] == ("nets.body.block3" if name == "gradcam" else None)
