"""MemGuard: each formula re-derived by autograd and row by row, the label kept, the leak of a real model reduced."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.tier import toys
from tests.tier.test_experiment import tiny
from tier import config, defenses, demo, experiment, explainers, inference, presets, training
from tier.attacks import loss
from tier.config import ArchitectureName, Defense, MemGuard
from tier.defenses import memguard
from tier.experiment import training as training_stages
from tier.metrics import auc
from tier.models.blocks import Classifier
from tier.store import Store

CLASSES = 6


def judge(*hidden: int, classes: int = CLASSES, seed: int = 0) -> memguard.Layers:
    """A membership classifier that takes certain answers for members and others for non-members."""
    certain = logits(300, 4.0, classes, seed + 1).softmax(1)
    vague = logits(300, 1.0, classes, seed + 2).softmax(1)
    return memguard.fit_membership(certain, vague, hidden or (16,), seed)


def logits(count: int, scale: float = 3.0, classes: int = CLASSES, seed: int = 0) -> Tensor:
    """Random logits `(count, classes)` float64."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, classes, generator=draw, dtype=torch.float64) * scale


def guarded(
    plain: Classifier, classes: int = 4, size: int = 16, fitted: bool = True, **settings: Any
) -> memguard.Guarded:
    """The classifier behind a guard fitted on random images, in evaluation mode."""
    defense = defenses.build(Defense(name="memguard", memguard=MemGuard(hidden=(16,), **settings)))
    model = defense.serve(lambda: toys.net(classes=classes, seed=5), classes).eval()
    assert isinstance(model, memguard.Guarded) and defense.composed
    model.body, model.normalize = plain.body, plain.normalize
    if fitted:
        bytes_ = (toys.images(200, size, size, seed=3) * 255).to(torch.uint8)
        defense.compose(model, [plain], bytes_[:100], lambda: bytes_[100:])
    return model


def steep(architecture: ArchitectureName = "small", spread: float = 2.0) -> Classifier:
    """An untrained net whose logits differ from image to image, with that standard deviation."""
    plain = toys.net(architecture)
    x, last = toys.images(50, seed=8), [module for module in plain.modules() if isinstance(module, nn.Linear)][-1]
    for module in plain.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        plain.train()(x)  # statistics of these images, or a deep net says the same of all of them
        last.weight.mul_(spread / plain.eval()(x).std(0).mean())
        last.bias.sub_(plain(x).mean(0))
    return plain


# ---- the membership classifier


def test_membership_is_a_perceptron_of_ranked_confidences() -> None:
    layers, p = judge(5, 3), logits(4).softmax(1)
    odds = memguard.membership(p, layers)
    for row, found in zip(p.numpy(), odds, strict=True):
        out = np.sort(row)[::-1]
        for number in range(2):
            out = np.maximum(layers[2 * number].numpy() @ out + layers[2 * number + 1].numpy(), 0)
        assert float(found) == pytest.approx(float(layers[4].numpy()[0] @ out + layers[5].numpy()[0]))


@pytest.mark.parametrize("hidden", [(16,), (9, 7, 5)])
def test_slope_is_autograds(hidden: tuple[int, ...]) -> None:
    layers, p = judge(*hidden), logits(50).softmax(1)
    leaf = p.clone().requires_grad_()
    odds = memguard.membership(leaf, layers)
    (wanted,) = torch.autograd.grad(odds.sum(), leaf)
    with torch.inference_mode():
        found, slope = memguard.slope(p, layers)
    torch.testing.assert_close(found, odds.detach())
    torch.testing.assert_close(slope, wanted)


def test_the_classifier_tells_certain_from_vague_and_disturbs_no_generator() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    layers = judge()
    assert torch.equal(torch.get_rng_state(), before)
    certain, vague = logits(500, 4.0, seed=11).softmax(1), logits(500, 1.0, seed=12).softmax(1)
    assert auc(memguard.membership(certain, layers).numpy(), memguard.membership(vague, layers).numpy()) > 0.9
    for first, second in zip(layers, judge(), strict=True):
        assert torch.equal(first, second)


def test_groups_of_different_size_weigh_the_same() -> None:
    certain, vague = logits(400, 3.0, seed=1).softmax(1), logits(40, 3.0, seed=2).softmax(1)
    odds = memguard.membership(logits(400, 3.0, seed=3).softmax(1), memguard.fit_membership(certain, vague, (4,), 0))
    assert odds.sigmoid().mean() == pytest.approx(0.5, abs=0.1)  # unweighted it would be 10 / 11


# ---- phase I


def paper_loss(z: Tensor, first: Tensor, top: int, layers: memguard.Layers, weight: float) -> Tensor:
    """|h| + 10 relu(largest other logit - that of the label) + c3 |softmax(z) - s|_1 of one row."""
    others = torch.cat([z[:top], z[top + 1 :]])
    p = z.softmax(0)
    odds = memguard.membership(p[None], layers)[0]
    return odds.abs() + 10 * (others.max() - z[top]).relu() + weight * (p - first).abs().sum()


def algorithm_1(z: Tensor, layers: memguard.Layers, steps: int, rounds: int) -> Tensor:
    """The paper's loops for one row, by autograd."""
    first, top = z.softmax(0), int(z.argmax())
    side = memguard.membership(first[None], layers)[0].sign()
    found, weight = torch.zeros_like(z), 0.1
    for _ in range(rounds):
        now = z.clone()
        for _ in range(steps):
            leaf = now.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(paper_loss(leaf, first, top, layers, weight), leaf)
            now = now - 0.1 * gradient / gradient.norm()
            turned = memguard.membership(now.softmax(0)[None], layers)[0].sign() != side
            if turned and int(now.argmax()) == top:
                break
        else:
            break
        found, weight = now - z, weight * 10
    return found


@pytest.mark.parametrize("rounds", [1, 3])
def test_search_is_algorithm_1(rounds: int) -> None:
    layers, z = judge(12), logits(40, 2.0, seed=4)
    wanted = torch.stack([algorithm_1(row, layers, 60, rounds) for row in z])
    with torch.inference_mode():
        found = memguard.search(z, layers, 60, rounds)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-8)
    assert (wanted.abs().sum(1) > 0).float().mean() > 0.8


def test_more_rounds_distort_no_more() -> None:
    layers, z = judge(12), logits(200, 2.0, seed=5)
    first, third = (
        ((z + memguard.search(z, layers, 60, rounds)).softmax(1) - z.softmax(1)).abs().sum(1) for rounds in (1, 3)
    )
    assert third.mean() <= first.mean() + 1e-9


@pytest.mark.parametrize("lost", [False, True])
def test_loss_gradient_is_autograds_direction(lost: bool) -> None:
    layers, z = judge(12), logits(30, 2.0, seed=6)
    top = z.argsort(1)[:, -2 if lost else -1]  # lost: another class is already ahead
    first = logits(30, 2.0, seed=7).softmax(1)
    p = z.softmax(1)
    odds, rise = memguard.slope(p, layers)
    found = memguard.loss_gradient(z, p, odds.sign()[:, None] * rise + 0.3 * (p - first).sign(), top)
    for row in range(30):
        leaf = z[row].clone().requires_grad_()
        value = paper_loss(leaf, first[row], int(top[row]), layers, 0.3)
        (wanted,) = torch.autograd.grad(value, leaf)
        torch.testing.assert_close(F.normalize(found[row], dim=0), F.normalize(wanted, dim=0))


@pytest.mark.parametrize("margin", [10.0, 30.0, 60.0, 900.0])
def test_certain_predictions_have_a_direction_too(margin: float) -> None:
    z = torch.tensor([[margin, 0.0, -1.0, -2.0, -3.0, -4.0]], dtype=torch.float64)
    unit = torch.eye(1, CLASSES, dtype=torch.float64)
    ten, eight = torch.full((1, 1), 10.0, dtype=torch.float64), torch.full((1,), -8.0, dtype=torch.float64)
    layers = unit, torch.zeros(1, dtype=torch.float64), ten, eight  # members are those above 0.8
    p = z.softmax(1)
    direction = memguard.loss_gradient(z, p, memguard.slope(p, layers)[1], torch.tensor([0]))
    assert direction.isfinite().all() and direction.norm() > 1
    if margin < 100:  # it goes until it gets there
        noise = memguard.search(z, layers, 600, 1)
        assert 0.75 < (z + noise).softmax(1)[0, 0] <= 0.8


def test_a_search_of_too_few_steps_adds_nothing() -> None:
    assert not memguard.search(logits(20, 9.0), judge(), 1, 1).any(1).all()
    assert not memguard.search(torch.tensor([[90.0] + [0.0] * 5], dtype=torch.float64), judge(), 5, 1).any()


# ---- phase II


def test_noise_is_as_likely_as_the_budget_allows() -> None:
    before = torch.tensor([2.0, 2.0, 2.0, -0.1], dtype=torch.float64)
    after = torch.tensor([-0.1, -0.1, -2.5, 0.2], dtype=torch.float64)
    distortion = torch.tensor([0.2, 0.8, 0.1, 0.1], dtype=torch.float64)
    # within the budget, beyond it, and twice no nearer to 0.5 than before
    assert memguard.probability(before, after, distortion, 0.4).tolist() == [1.0, 0.5, 0.0, 0.0]


def test_chance_is_even_and_hangs_on_the_image_alone() -> None:
    x = toys.images(2000, 4, 4)
    found = memguard.chance(x, 0)
    assert found.dtype == torch.float64 and found.min() >= 0 and found.max() < 1
    counts = torch.histc(found.float(), 10, 0.0, 1.0)
    assert counts.min() > 150 and counts.max() < 250  # 200 +- 13.4
    assert torch.equal(memguard.chance(x[17:18], 0), found[17:18])
    assert torch.equal(memguard.chance(x.contiguous(memory_format=torch.channels_last), 0), found)
    other = memguard.chance(x, 1)
    assert abs(np.corrcoef(other, found)[0, 1]) < 0.1
    bytes_ = (x * 255).round() / 255
    assert torch.equal(memguard.chance((bytes_ + 1e-3).clamp(0, 1), 0), memguard.chance(bytes_, 0))
    shifted = bytes_.clone()
    shifted[:, 0, 0, 0] = (shifted[:, 0, 0, 0] * 255 + 1) % 256 / 255
    moved = (memguard.chance(shifted, 0) - found) % 1  # one step of one pixel: the same turn for all
    assert moved.min() > 1e-3 and moved.max() < 1 - 1e-3


# ---- what is served


def test_expected_distortion_is_within_the_budget() -> None:
    layers, z, x = judge(12), logits(800, 2.0, seed=8), toys.images(800, 4, 4)
    total = torch.zeros(800, dtype=torch.float64)
    for seed in range(20):
        served = memguard.answer(x, z, layers, 0.1, 60, 1, seed).double().exp()
        total += (served - z.softmax(1)).abs().sum(1) / 20
    full = (memguard.answer(x, z, layers, 2.0, 60, 1, 0).double().exp() - z.softmax(1)).abs().sum(1)
    assert full.mean() > 0.2
    far = full > 0.2
    assert total[far].mean() == pytest.approx(0.1, rel=0.1)
    assert (total[~far] <= full[~far] + 1e-6).all()


def test_answers_keep_the_label_lie_on_the_simplex_and_leave_g_guessing() -> None:
    layers, z, x = judge(12), logits(500, 2.0, seed=9), toys.images(500, 4, 4)
    served = memguard.answer(x, z, layers, 2.0, 100, 1, 0)
    assert served.dtype == torch.float32
    assert torch.equal(served.argmax(1), z.argmax(1))
    torch.testing.assert_close(served.exp().sum(1), torch.ones(500))
    before, after = (memguard.membership(p, layers).sigmoid() for p in (z.softmax(1), served.double().softmax(1)))
    assert (after - 0.5).abs().mean() < 0.1 < 0.2 < (before - 0.5).abs().mean()
    assert (((after - 0.5) * (before - 0.5)) <= 0).double().mean() > 0.9


def test_scores_of_certain_predictions_do_not_tie() -> None:
    z = torch.zeros(200, CLASSES)
    z[:, 2] = torch.linspace(20, 32, 200)  # 1 - 1e-8 to 1 - 6e-14; float64 has no more
    blank = tuple(torch.zeros_like(layer) for layer in judge())  # a guard that does not mind
    served = memguard.answer(toys.images(200, 4, 4), z, blank, 1.0, 10, 1, 0)
    scores = served.double().log_softmax(1)
    assert len(served[:, 2].unique()) == len(scores[:, 2].unique()) == 200
    np.testing.assert_allclose(served[:, 2].numpy(), -5 * (-z[:, 2].double()).exp().numpy(), rtol=0.01)
    np.testing.assert_allclose(scores[:, 2].numpy(), served[:, 2].numpy(), rtol=0.01)


def test_labels_survive_rounding() -> None:
    z = torch.zeros(1, CLASSES)
    z[0, 1], z[0, 3] = 1e-9, 2e-9  # as log confidences both are -1.7917595
    blank = tuple(torch.zeros_like(layer) for layer in judge())
    served = memguard.answer(toys.images(1, 4, 4), z, blank, 1.0, 10, 1, 0)
    assert z.argmax() == served.argmax() == 3


# ---- the served model


@pytest.mark.parametrize("architecture", ["small", "resnet18_imagenet", "mobilenet_v2"])
def test_a_guarded_model_answers_image_by_image(architecture: ArchitectureName) -> None:
    model = guarded(steep(architecture), distortion=0.3)
    x = toys.images(60, seed=4)
    with torch.inference_mode():
        together, plain = model(x), model.plain(x)
        alone = torch.cat([model(image) for image in x.split(1)])
        shuffled = model(x.flip(0)).flip(0)
        assert torch.equal(model(x), together)
    torch.testing.assert_close(alone, together, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(shuffled, together, rtol=1e-3, atol=1e-3)
    assert torch.equal(together.argmax(1), plain.argmax(1))
    changed = (together - plain.log_softmax(1)).abs().amax(1) > 1e-3
    assert 0.05 < changed.float().mean() < 1  # the budget leaves some as they are
    torch.testing.assert_close(model(x).detach(), together)


def test_batches_of_1_and_500_get_the_same_answers() -> None:
    model = guarded(steep(), size=8)
    x = toys.images(500, 8, 8, seed=6)
    with torch.inference_mode():
        together = model(x)
        alone = torch.cat([model(image) for image in x.split(1)])
    torch.testing.assert_close(alone, together, rtol=1e-3, atol=1e-3)


def test_explanations_are_those_of_the_guarded_model() -> None:
    plain = steep()
    model, x, y = guarded(plain), toys.images(6), toys.labels(6)
    for settings in (config.Explain(), config.Explain(name="smoothgrad", samples=4), config.Explain(name="gradcam")):
        with torch.no_grad():
            assert not torch.allclose(model(x), plain(x).log_softmax(1), atol=1e-3)
        own = explainers.attributions(settings, model, x, y).maps
        for name, maps in explainers.attributions(settings, plain, x, y).maps.items():
            np.testing.assert_array_equal(own[name], maps)
    assert explainers.default_layer(model, x) == explainers.default_layer(plain, x)


@pytest.mark.parametrize("kind", ["folded", "bf16"])
def test_a_faster_pass_is_guarded_too(kind: config.InferenceKind) -> None:
    model, x = guarded(steep()), toys.images(20)
    forward = inference.fast(model, kind)
    with torch.inference_mode():
        found, wanted, plain = forward(x), model(x), model.plain(x).log_softmax(1)
    assert (found - wanted).abs().max() < (0.02 if kind == "folded" else 0.5)
    assert (found - wanted).abs().mean() < 0.5 * (plain - wanted).abs().mean()


def test_a_guarded_model_is_not_trained() -> None:
    with pytest.raises(RuntimeError, match="served, not trained"):
        guarded(toys.net(), fitted=False).train()(toys.images(2))


def test_unfitted_it_answers_plainly() -> None:
    model, x = guarded(toys.net(), fitted=False), toys.images(8)
    torch.testing.assert_close(model(x), model.plain(x).log_softmax(1))


def test_no_distortion_is_plain_training() -> None:
    off = Defense(name="memguard", memguard=MemGuard(distortion=0.0))
    assert off.canonical(30) == Defense()
    assert type(defenses.build(off)) is defenses.Defense
    assert experiment.sources(tiny(off).canonical()) == {}


# ---- the pipeline


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def test_target_shadow_and_reference_models_are_guarded(store: Store) -> None:
    own = Defense(name="memguard", memguard=MemGuard(hidden=(8,)))
    e = tiny(own, **{"train.epochs": 3})
    for run in (e, experiment.shadow(e, adaptive=True), experiment.reference(e, 0)):
        made = experiment.ensure(store, "train", run, need=["samples.parquet"])
        plain = experiment.ensure(store, "train", run.with_(defense=Defense()), need=["samples.parquet"])
        found, before = made.frame("samples.parquet"), plain.frame("samples.parquet")
        assert found["index"].equals(before["index"]) and found["predicted"].equals(before["predicted"])
        assert (found["log_confidence"] - before["log_confidence"]).abs().max() > 1e-3
        for name in ("train_accuracy", "test_accuracy", "gap_balanced_accuracy", "epochs"):
            assert made.metrics[name] == plain.metrics[name]
        problem, _ = experiment.model_sets(run.data, run.split)
        model = experiment.model_of(store, run)  # the guard comes back with the weights
        assert isinstance(model, memguard.Guarded) and model.layers[0].any()
        table = training.sample_table(model, problem)
        np.testing.assert_array_equal(table["log_confidence"], found["log_confidence"])


def test_a_real_model_keeps_its_labels_and_leaks_less() -> None:
    demo_store = Store(demo.demo_url(), read_only=True)
    e = presets.get("signs").run("none", 0)
    problem, _ = experiment.model_sets(e.data, e.split)
    plain = experiment.model_of(demo_store, e)
    assert isinstance(plain, Classifier)
    defense = defenses.build(Defense(name="memguard"))
    model = defense.serve(lambda: toys.net(classes=problem.classes, width=e.model.width), problem.classes).eval()
    defense.compose(model, [plain], problem.members, lambda: training_stages._outsiders(e))
    before, after = training.sample_table(plain, problem), training.sample_table(model, problem)
    np.testing.assert_array_equal(after["predicted"], before["predicted"])
    leak = []
    for table in (before, after):
        scores = loss.score(table["loss"])
        assert len(np.unique(scores)) > 0.99 * len(scores)
        leak.append(auc(scores[table["member"]], scores[~table["member"]]))
    assert leak[0] > 0.88 and leak[1] < 0.70


def test_no_completeness_is_claimed_where_answers_are_not_what_is_explained() -> None:
    inner = toys.net()
    guarded = memguard.Guarded(toys.net(), 4, MemGuard())
    x, y = toys.images(), toys.labels()
    chosen = config.Explain(name="integrated_gradients", steps=4)
    found = explainers.attributions(chosen, inner, x, y)
    assert explainers.mean_gap(chosen, inner, x, found) is not None
    assert explainers.mean_gap(chosen, guarded, x, found) is None
