"""Early stopping: the plain run cut off, resumed and reported by what was trained."""

from pathlib import Path
from typing import Any

import pytest

from tests.tier.training_runs import (
    ARCHITECTURES,
    QUICK,
    assert_same_weights,
    column,
    differ,
    interrupted,
    of_architecture,
    trained,
)
from tier import checkpoints, data, experiment, figures
from tier.config import Defense, EarlyStopping, Experiment
from tier.context import Context
from tier.experiment import training
from tier.store import Store


def stopping(epochs: int, **settings: Any) -> Defense:
    return Defense(name="early_stopping", early_stopping=EarlyStopping(epochs=epochs), **settings)


@pytest.mark.parametrize("epochs", [1, 3])
def test_it_is_the_plain_run_cut_off(epochs: int) -> None:
    """Its rate too: a run of fewer epochs would have another schedule."""
    ours = trained(stopping(epochs))
    assert ours.epoch == len(ours.events) == epochs
    assert_same_weights(ours, trained(Defense(), until=epochs))
    assert differ(ours, trained(Defense(), QUICK.model_copy(update={"epochs": epochs})))


@pytest.mark.parametrize("epochs", [4, 9])
def test_a_stop_that_never_comes_is_plain_training(epochs: int) -> None:
    assert_same_weights(trained(stopping(epochs)), trained(Defense()))
    assert stopping(epochs).canonical(4) == Defense()
    assert stopping(3).canonical(4) == stopping(3)


def test_with_augmentation_it_is_the_augmented_run_cut_off() -> None:
    assert_same_weights(
        trained(stopping(2, base_augmentation="standard")), trained(Defense(name="augmentation"), until=2)
    )


@pytest.mark.parametrize("after", [1, 2, 3])
def test_resumes_exactly_and_never_goes_on(after: int) -> None:
    """Also from the checkpoint of its last epoch, after which nothing is left to do."""
    resumed = interrupted(stopping(3), after)
    assert column(resumed, "epoch") == [1, 2, 3]
    assert_same_weights(resumed, trained(stopping(3)))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_architectures(architecture: Any) -> None:
    assert of_architecture(stopping(1), architecture).epoch == 1


@pytest.fixture(scope="module")
def tiny() -> Experiment:
    e = Experiment().set(
        {
            "model.width": 4, "data.signs.classes": 8, "data.signs.images": 120, "data.image_size": 16,
            "split.target_train": 30, "split.target_test": 30, "split.shadow_train": 0, "split.shadow_test": 0,
            "train.epochs": 6, "train.threads": 1, "train.batch_size": 15, "defense.name": "early_stopping",
            "defense.early_stopping.epochs": 2,
        }
    )  # fmt: skip
    return e.set({"data.fingerprint": data.load(e.data).fingerprint})


class TestInTheStore:
    """The stage, with its checkpoints, events and figures."""

    def test_counts_what_was_trained(self, tiny: Experiment, tmp_path: Path) -> None:
        told: list[dict[str, Any]] = []
        made = experiment.ensure(Store(str(tmp_path)), "train", tiny, Context(progress=told.append))
        events = made.frame("events.parquet")
        assert made.metrics["epochs"] == len(events) == 2
        assert made.metrics["seconds_per_epoch"] == pytest.approx(events["seconds"].median())
        fractions = [event["fraction"] for event in told if event.get("step") == "training"]
        assert fractions == sorted(fractions) and len(fractions) == 2 and 0 < fractions[0] < fractions[1] <= 1
        drawn = figures.training(events, "none", tiny.train.epochs)  # as the pages Train and Runs draw it
        assert drawn.layout.xaxis.range == (0, 6.5) and len(drawn.data[0].x) == 2

    def test_a_killed_worker_s_checkpoint_is_taken_up(self, tiny: Experiment, tmp_path: Path) -> None:
        """Whether it died after the first epoch, or after the last before the result was written."""
        left: dict[int, Any] = {}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(training, "CHECKPOINT_SHARE", 0)
            patch.setattr(checkpoints, "save", lambda store, name, epoch, files: left.setdefault(epoch, files))
            whole = experiment.ensure(Store(str(tmp_path / "whole")), "train", tiny)
        assert list(left) == [1, 2]
        for epoch, files in left.items():
            store = Store(str(tmp_path / str(epoch)))
            checkpoints.save(store, experiment.key("train", tiny), epoch, files)
            resumed = experiment.ensure(store, "train", tiny)
            assert resumed.metrics["epochs"] == 2
            for weight, array in whole.arrays(experiment.WEIGHTS).items():
                assert resumed.arrays(experiment.WEIGHTS)[weight].tobytes() == array.tobytes(), weight
