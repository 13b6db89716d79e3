"""Sentences and the glossary: what a chart says, computed from its numbers, in words for someone new to the subject.

Nothing here is a claim of its own: every sentence is a function of the frames drawn beside it, and it says so when TIER
does no better than its rivals.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from tier import figures, tables

GLOSSARY: dict[str, str] = {
    "Member": "An image that the model was trained on. All other images are non-members.",
    "Membership inference": """Finding out, from what a model answers, whether one particular image was among its
        training images. Where images show people, that can give away a diagnosis, a visit or a face.""",
    "Explanation": """A map that says which pixels the model's answer rests on. Such maps are often handed out together
        with the answer.""",
    "Balanced accuracy": """The share of right guesses when members and non-members count equally. 0.5 is a coin; at 1.0
        every image is told apart.""",
    "Audit": """An attack by the model's own maker: a small classifier learns to tell members from non-members by their
        confidence curves, their loss and the predicted class, and is then tested on images that it has not seen.""",
    "AUC": "The chance that a random member gets a higher attack score than a random non-member. 0.5 is a coin.",
    "Gap attack": "The simplest attack there is: say 'member' when the model classifies the image correctly.",
    "Leak": """The balanced accuracy of the stronger of two attacks, the audit (cross-fitted) and the gap attack. What
        one attack finds has leaked, even where the other finds less; a stronger attack than both may find more. Below
        0.5 an attacker would rather guess, so there the leak is 0.5.""",
    "Cross-fitted": """Every image is scored by a classifier that did not see it: five classifiers, each fitted without
        a fifth of the images. All images count then, which makes the figure about twice as precise as on the 20 % that
        the paper holds out.""",
    "Frontier": """The least leak of all runs and early-stopping checkpoints at each test accuracy or better. A defense
        is worth its trouble where it lies on it.""",
    "Loss attack": "Say 'member' when the model's loss on the image is small.",
    "MoRF curve": """Most relevant first: the model's confidence in the true class while the pixels that the explanation
        calls most important are removed.""",
    "LeRF curve": "Least relevant first: the same, beginning with the pixels that the explanation calls unimportant.",
    "KL divergence": "How far the model's answer moves, in nats, when pixels are removed; 0 means not at all.",
    "TIER": """Training that asks the model to answer alike with and without its most important pixels (weight lambda),
        and to lose about the same confidence on every image (weight beta within lambda).""",
    "Lambda and beta": """The strength of TIER, and how much of it goes into making the losses of confidence equal. At
        lambda 0 it is off.""",
    "Full and Reg-only": """TIER Full also flips, turns and shifts the training images (augmentation); Reg-only does
        not.""",
    "Augmentation": """Training on randomly flipped, turned and shifted copies. It protects by itself, so it is shown as
        a rival.""",
    "Early stopping": """Ending the training sooner. A model that has trained briefly has memorised little; its accuracy
        and leak, epoch by epoch, are what any defense has to beat.""",
    "Bootstrap interval": """The range of 95 % of the results when the images are drawn again, with replacement, many
        times.""",
    "Null band": """What the difference looks like when membership is assigned at random: inside it, nothing has been
        shown.""",
    "Second seed": """The same training from other random numbers. What differs between two such models is chance, so it
        is a yardstick for everything else.""",
}

PRESET_HELP = """Data, models and defenses that belong together. Others appear when their data or results are present;
`python -m tier presets` lists them all."""

STAKES = (
    """A model knows the images it was trained on better than others, and an outsider can use that to find out who or
    what was in the training data.""",
    """An explanation is one more clue: remove the pixels it points at, one tenth after the other, and watch how the
    model's confidence falls.""",
    "Images that the model has seen tend to fall differently, so this curve can work as a fingerprint of membership.",
    """TIER trains the model to fall alike on all images; these pages show how well that works, what it costs, and what
    simpler means achieve.""",
)


def flat(text: str) -> str:
    """A text written over several lines as one."""
    return " ".join(text.split())


def of_hundred(share: float) -> str:
    """0.874 -> `87 of 100`."""
    return f"{round(100 * share):d} of 100"


def percent(share: float) -> str:
    """0.3 -> `30 %`."""
    return f"{100 * share:.0f} %"


def label(model: str) -> str:
    """A model's name within a sentence."""
    return figures.style(model).label


def spread(row: Mapping[str, Any]) -> str:
    """How sure a key figure is: the range over its seeds, or the one run's interval."""
    if row["seeds"] > 1:
        return (
            f"Mean of {row['seeds']} seeds; from seed to seed the attack is right for "
            f"{_range(row, 'leak_min', 'leak_max')}, the model for "
            f"{_range(row, 'test_accuracy_min', 'test_accuracy_max')} new images."
        )
    if pd.isna(row["low"]) or pd.isna(row["high"]):
        return "One seed."
    return f"One seed; the attack's 95 % interval is {_range(row, 'low', 'high')}."


def _range(row: Mapping[str, Any], low: str, high: str) -> str:
    least, most = f"{100 * row[low]:.0f}", f"{100 * row[high]:.0f}"
    return least if least == most else f"{least} to {most}"


def overview(summary: pd.DataFrame) -> str:
    """What the key figures say: TIER against no defense and against augmentation alone."""
    rows = tables.by_model(summary)
    if "none" not in rows or "tier_full" not in rows:
        return "The undefended model and TIER Full have not both been computed yet, so nothing can be compared."
    bare, tier = rows["none"], rows["tier_full"]
    text = (
        "Shown images, the stronger of two attacks (the audit and the gap attack) tells rightly for "
        f"{of_hundred(bare['leak'])} whether the undefended model was trained on them, and for "
        f"{of_hundred(tier['leak'])} with TIER Full; a coin reaches 50. New images are "
        f"classified rightly by the undefended model in {of_hundred(bare['test_accuracy'])} cases, by TIER Full in "
        f"{of_hundred(tier['test_accuracy'])}."
    )
    if "augmentation" not in rows:
        return text
    plain = rows["augmentation"]
    leak = round(100 * tier["leak"]) - round(100 * plain["leak"])
    right = round(100 * tier["test_accuracy"]) - round(100 * plain["test_accuracy"])
    text += (
        f" The fair rival is augmentation alone, a simpler means: beside it, the attack is right for {_count(leak)} "
        f"images against TIER Full, and TIER Full is right for {_count(right)} new images."
    )
    return text + (" Here augmentation is at least as good in both." if leak >= 0 and right <= 0 else "")


def _count(difference: int) -> str:
    """`3 more`, `2 fewer` or `as many`: a difference between two counts out of 100."""
    return "as many" if difference == 0 else f"{abs(difference)} {'more' if difference > 0 else 'fewer'}"


def trajectories(difference: pd.DataFrame) -> dict[str, str]:
    """For each model: where members and non-members differ most, and whether chance alone could make that."""
    sentences = {}
    for model, part in difference.groupby("model", sort=False):
        row = part.iloc[int(part["difference"].abs().to_numpy().argmax())]
        outside = int(((part["difference"] < part["null_low"]) | (part["difference"] > part["null_high"])).sum())
        chance = f"outside the null band at {outside} of {len(part)} levels" if outside else "all inside the null band"
        sentences[str(model)] = (
            f"members' confidence differs from non-members' by up to {row['difference']:+.2f} "
            f"({percent(row['level'])} removed; interval {row['low']:+.2f} to {row['high']:+.2f}), {chance}."
        )
    return sentences


def divergence(tests: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    """For each model: its largest effect, with its sign, and whether it is significant."""
    sentences = {}
    for model, table in tests.items():
        known = table[table["d"].notna()]
        if not len(known):
            sentences[model] = f"no test, because there are only {int(table['n_members'].min())} units per group."
            continue
        row = known.iloc[int(known["d"].abs().to_numpy().argmax())]
        more = "more" if row["d"] > 0 else "less"
        doubt = "" if row["t_p"] < 0.05 else ", not significant after correction"
        sentences[model] = (
            f"removing {percent(row['removed'])} of the pixels moves the answer {more} on members "
            f"(mean KL {row['members']:.2f}) than on non-members ({row['nonmembers']:.2f}); effect size "
            f"{row['d']:+.2f}{doubt}."
        )
    return sentences


def inversions(tests: Mapping[str, pd.DataFrame]) -> str | None:
    """A note when a model's difference changes sign, significantly on both sides, as in the paper's Table III."""
    turned = []
    for model, table in tests.items():
        sure = table[table["t_p"] < 0.05]
        if (sure["d"] > 0).any() and (sure["d"] < 0).any():
            turned.append(label(model))
    if not turned:
        return None
    return (
        f"{' and '.join(turned)}: the sign of the difference changes with the share removed, significantly on both "
        "sides. An inverted difference is not a removed one: an attack can use it just as well."
    )


def paper(first: pd.DataFrame, third: pd.DataFrame) -> str:
    """What the paper's Tables I and III say beside each other."""
    before, after = first.iloc[0], third.iloc[0]
    turned = int((third["members"] < third["nonmembers"]).sum())
    statistics = f"|t| = {abs(after['t']):.1f} and KS = {after['ks']:.1f}"
    return (
        f"At {percent(after['removed'])} removal the paper reports {statistics} under TIER, against "
        f"{before['t']:.1f} and {before['ks']:.1f} undefended: the difference is inverted, not removed. At {turned} of "
        f"its {len(third)} levels the answer moves less on members than on non-members, at the others more. Its "
        "p-values fit means of about 80 batches per group, so they can be compared in that unit only."
    )


def point(row: Mapping[str, Any]) -> str:
    """The settings of a run, short."""
    parts = [] if pd.isna(row["lambda"]) else [f"lambda {row['lambda']:g}", f"beta {row['beta']:g}"]
    return ", ".join([*parts, f"{int(row['epochs'])} epochs", f"seed {int(row['seed'])}"])


def gap(runs: pd.DataFrame) -> str | None:
    """Where the simplest attack beats the audit: by how much at most, and what that means for the leak."""
    known = runs[runs[["audit", "gap"]].notna().all(axis=1)]
    beaten = known[known["gap"] > known["audit"]]
    if not len(beaten):
        return None
    models = ", ".join(dict.fromkeys(label(str(model)) for model in beaten["model"]))
    return (
        f"In {len(beaten)} of {len(known)} runs ({models}) the gap attack, which only asks whether the model is right, "
        f"beats the audit, by up to {(beaten['gap'] - beaten['audit']).max():.3f}. What leaks there is at least what "
        "the gap attack finds, so its figure is the one compared."
    )


BLIND = "No trajectory feature separates: the audit sees loss and class only."


def flat_maps(counts: Mapping[str, tuple[int, int]]) -> str | None:
    """What it means that some maps rank no pixel; `counts`: by model, how many of how many images."""
    found = [f"{count} of {images:,} images ({label(model)})" for model, (count, images) in counts.items() if count]
    if not found:
        return None
    return (
        f"The explanation is constant or all zero on {', '.join(found)}: it ranks no pixel there, so these images' "
        "pixels go in an order that says nothing about it."
    )


def sizes(of: Mapping[str, int]) -> str:
    """The sizes of the sets that were made, in words."""
    return (
        f"{of.get('target_train', 0):,} members and {of.get('target_test', 0):,} non-members of the models shown; "
        f"{of.get('shadow_train', 0):,} and {of.get('shadow_test', 0):,} images are set apart for shadow models."
    )


def frontier(frame: pd.DataFrame) -> str:
    """Who holds the frontier of least leak at each accuracy."""
    if not len(frame):
        return ""
    tier, stopped = frame["model"].isin(["tier_reg", "tier_full"]), frame["stopped"].astype(bool)
    return (
        "The frontier, the least leak at each accuracy, is held by "
        f"{_many(stopped.sum(), 'checkpoint')} of early stopping, {_many(tier.sum(), 'TIER run')} and "
        f"{_many((~tier & ~stopped).sum(), 'finished run')} without TIER."
    )


def _many(count: int, thing: str) -> str:
    """`1 run`, `3 runs`."""
    return f"{count} {thing}{'' if count == 1 else 's'}"


def fairness(rivals: pd.DataFrame) -> str:
    """How far choosing after measuring tilts the comparison, from the rivals' own intervals."""
    error = ((rivals["high"] - rivals["low"]) / 2).median()
    size = "" if pd.isna(error) else f" (here {error:.3f}, half an interval)"
    return (
        f"Taking the least of several measured rivals favours the rivals, by up to the error of one measurement{size}; "
        "looking only at the TIER runs on top of this table favours TIER in the same way."
    )


UNPLANNED = """The checkpoints lie in the middle of one learning-rate cycle; a run planned to be that short would be a
    stronger rival."""


def leak(matched: pd.DataFrame, rivals: int) -> str:
    """Whether TIER beats its rivals at equal accuracy or better, counted over all TIER runs shown."""
    if not len(matched):
        return "No TIER run has been computed yet."
    compared = matched[matched["rivals"] > 0]
    if not len(compared):
        return f"No TIER run has a rival as accurate among the {rivals} stored, so nothing can be compared."
    clear = compared["clear"].map({True: True, False: False}).eq(True)
    better = int((compared["advantage"] > 0).sum())
    clearly = int((clear & (compared["advantage"] > 0)).sum())
    worse = int((clear & (compared["advantage"] < 0)).sum())
    text = (
        f"{len(compared)} of {len(matched)} TIER runs have rivals at least as accurate (to within 2 points): "
        f"{better} leak less than the best of these, {clearly} of them clearly (intervals apart); {worse} leak "
        f"clearly more, {len(compared) - clearly - worse} do not differ clearly."
    )
    return text if better else text + " No TIER run here beats stopping early or augmentation at its accuracy."


def training(events: pd.DataFrame) -> str:
    """The last epoch in words."""
    if not len(events):
        return "Training has not finished its first epoch."
    last = events.iloc[-1]
    text = (
        f"After epoch {int(last['epoch'])} the model is right for {of_hundred(last['train_accuracy'])} images it was "
        f"trained on and for {of_hundred(last['test_accuracy'])} new ones"
    )
    if pd.notna(last["loss_auc"]):
        text += f"; the loss attack ranks a member above a non-member {of_hundred(last['loss_auc'])} times (a coin: 50)"
    return text + "."


def score(right: int, attack: int | None, rounds: int) -> str:
    """The guessing game's running score."""
    if not rounds:
        return "No image guessed yet."
    text = f"You: {right} of {rounds} right. A coin would expect {rounds / 2:g}."
    return text if attack is None else f"{text} The audit, which also sees loss and class: {attack}."


def one_curve(number: int, curve: pd.DataFrame) -> str:
    """One image's curve in words, without its membership."""
    first, last = curve["confidence"].iloc[0], curve["confidence"].iloc[-1]
    half = curve[curve["confidence"] < first / 2]
    when = f"it has halved at {percent(half['level'].iloc[0])} removed" if len(half) else "it never halves"
    return f"Image {number}: confidence begins at {first:.2f} and ends at {last:.2f}; {when}."


def truth(member: bool) -> str:
    """Whether an image is a member, in words."""
    seen = "a **member**: the model was trained on it" if member else "**no member**: the model never saw it"
    return f"This image is {seen}."


def answer(member: bool, guessed: bool, attack: bool | None) -> str:
    """The answer of one round of the game."""
    text = f"**{'Right' if guessed == member else 'Wrong'}.** {truth(member)}"
    return text if attack is None else f"{text} The audit {'got it right' if attack == member else 'got it wrong'}."
