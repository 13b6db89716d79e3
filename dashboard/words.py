"""Sentences and the glossary: what a chart says, computed from its numbers, in words for someone new to the subject.

Nothing here is a claim of its own: every sentence is a function of the frames drawn beside it, and it says so when TIER
does no better than its rivals.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from tier import figures, tables
from tier.stats import share_interval

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
    "Frontier": """The least leak of all settings and early-stopping checkpoints at each test accuracy or better, by
        their means over seeds. A defense is worth its trouble where it lies on it.""",
    "One seed": """A training run twice from other random numbers leaks a little more or less. Of many settings with one
        run each, the one that leaks least owes it to luck, so such settings are shown but decide nothing.""",
    "Clearly": """More than chance makes in 19 of 20 cases, with everything counted that could make a difference look
        larger: images, seeds, the choice of the best of several settings, and the number of comparisons.""",
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
        is a yardstick for everything else. A defended model shares the seed of the undefended one beside it, so those
        two are more alike from the start than two seeds are.""",
    "SSIM": """Structural similarity of two maps, each scaled to 0 to 1: 1 when they are equal, about 0 when their
        patterns have nothing in common.""",
    "MSE": "Mean squared difference of two maps, each scaled to 0 to 1: 0 when they are equal.",
    "Cosine": """The angle between two maps taken as long lists of numbers: 1 when one is a multiple of the other. Maps
        scaled to 0 to 1 hold no negative number, so their cosine is far above 0 whatever they show: about 0.9 for noise
        that had a sign, about 0.6 for magnitudes of noise. So the cosine of unscaled maps is given too.""",
    "Shuffled pairs": """A defended model's map against the undefended model's map of another image. What such pairs
        have in common has nothing to do with the single image.""",
    "Shadow model": """A model that the attacker trains on data of their own, where they know who is a member, and from
        which they learn what members look like. The attack is then tried on the target, the model it is meant for.""",
    "Attack-test": """The fifth of the shadow model's images that the attack did not learn from. How well it does there
        says how well it was learnt, not yet how much the target leaks.""",
    "Transfer": """The attack learnt on an undefended shadow model and tried on the target, by an attacker who does not
        know, or ignores, that the target is defended.""",
    "Adaptive attacker": """One who knows which defense is used and trains the shadow model with it. A defense that only
        works against those who do not know of it is none.""",
    "Transferred and calibrated threshold": """Above the threshold an attack says 'member'. Transferred: chosen on the
        shadow model and used as it is, as a real attacker must. Calibrated: chosen on one half of the target's images
        and used on the other, as if the attacker had some with known membership.""",
    "ROC": """All an attack can do, at every threshold: the share of members found (TPR) against the share of
        non-members wrongly called members (FPR). On logarithmic axes the left end, where accusations are rarely wrong,
        can be read.""",
    "TPR at 1 % FPR": """The share of members found when only one non-member in a hundred may be called a member. An
        attack that finds few, but is hardly ever wrong about them, does harm that an average hides.""",
    "TNR at 0.1 % FNR": """The mirror image: the share of non-members cleared when only one member in a thousand may be
        cleared wrongly.""",
    "Refused": """A rate of 0.1 % cannot be measured on fewer than 1,000 images: one of them is more than that already.
        Such a figure is not given, and the reason is.""",
    "Reference model": """A model trained like the target on a random half of its images. Comparing models that have
        seen an image with models that have not shows what seeing it does.""",
    "LiRA": """Likelihood ratio attack: is the target's confidence more like that of reference models that trained on
        the image, or of those that did not? Offline knows only the latter.""",
    "RMIA": """Robust membership inference attack. It counts how many other images this one beats in how much likelier
        the target finds it than reference models do.""",
    "Modified entropy": """Is the answer certain and right? An attack from the whole answer, not from the true class's
        confidence alone.""",
    "Loss MLP": """The classifier of the explanation attack without its confidence curves: what the attack has more than
        this is what the explanations give away.""",
    "Most exposed images": """The tenth, or at least 250, on which training changes a model's confidence most, as
        reference models show, without a look at the target. An average over all images hides how badly these fare.""",
    "Canary": """An image with a wrong label put among the training images on purpose. A model can only know it by
        heart, so it shows the worst case.""",
    "Permutation importance": """What a feature is worth: how many right guesses an attack loses when this feature's
        values are shuffled among the images.""",
    "Welch's t test": """Are two groups' means further apart than chance explains? It decides which points of the
        confidence curves the attack may look at.""",
    "Epsilon and delta": """What DP-SGD guarantees: with or without one image, any outcome of the training is at most
        e^epsilon times as likely, but for a chance of delta. At epsilon 1 that is a strong promise, at 100 none.""",
    "ROAD": """A way of removing pixels that leaves no visible hole: each is replaced by a mean of its neighbours, with
        a little noise.""",
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


def capital(text: str) -> str:
    """A capital at the start; the rest, which may hold names, as it is."""
    return text[:1].upper() + text[1:]


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


def trajectories(gaps: pd.DataFrame) -> dict[str, str]:
    """For each model, under one explainer: the gap with nothing removed, and whether removing pixels widens it.

    `gaps` as from `tables.gaps`.
    """
    sentences = {}
    for row in gaps.to_dict("records"):
        if pd.isna(row["growth"]):
            sentences[str(row["model"])] = NO_START
            continue
        if row["grown"]:
            told = f"Removing pixels widens that gap {_widened(row)}: this much the explanation adds."
        elif row["growth"] > EVEN:
            told = (
                f"Removing pixels widens that gap by no more than {row['growth']:.2f}, which chance could make: no "
                "sign that the explanation adds to it."
            )
        else:
            told = f"Removing pixels does not widen that gap {_most(row)}: no sign that the explanation adds to it."
        sentences[str(row["model"])] = f"{_start(row)}, and no explanation's doing. {told}"
    return sentences


def trajectory_grid(gaps: pd.DataFrame) -> dict[str, str]:
    """For each model: the gap with nothing removed, and under which explainers removing pixels widens it.

    `gaps` as from `tables.gaps`.
    """
    sentences = {}
    for model, part in gaps.groupby("model", sort=False):
        if part["growth"].isna().all():
            sentences[str(model)] = NO_START
            continue
        rows, of = part.to_dict("records"), _many(len(part), "explainer")
        grown, most = [row for row in rows if row["grown"]], max(rows, key=lambda row: float(row["growth"]))
        if grown:
            found = ", ".join(f"{figures.EXPLAINERS[row['explainer']]} {_widened(row)}" for row in grown)
            told = f"Removing pixels widens that gap beyond chance under {len(grown)} of {of}: {found}."
        else:
            told = f"Removing pixels widens that gap beyond chance under none of {of}"
            told += (
                f" (by {most['growth']:.2f} at the most, under {figures.EXPLAINERS[most['explainer']]})."
                if most["growth"] > EVEN
                else f" {_most(most)}."
            )
        sentences[str(model)] = f"{_start(rows[0])}, the same under every explainer and no explanation's doing. {told}"
    return sentences


EVEN = 0.005  # a growth that two decimals do not show
NO_START = "the curves begin with pixels already removed, so what the explanation adds cannot be told."


def _start(row: Mapping[Any, Any]) -> str:
    """The gap before any explanation is involved."""
    chance = "outside the null band" if row["outside"] else "inside the null band"
    return (
        f"with nothing removed, members' confidence differs from non-members' by {row['start']:+.2f} (interval "
        f"{row['start_low']:+.2f} to {row['start_high']:+.2f}), {chance}"
    )


def _most(row: Mapping[Any, Any]) -> str:
    return f"(the most on the way: {row['difference']:+.2f}, {percent(row['level'])} removed)"


def _widened(row: Mapping[Any, Any]) -> str:
    return f"by {row['growth']:.2f}, to {row['difference']:+.2f} ({percent(row['level'])} removed)"


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


PAPER_GRADIENT = """The paper's Tables I and III rank the pixels by the plain gradient, so they are shown beside the
    explainer Gradient only."""


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
    each = "" if frame["seeds"].max() > 1 else ", one seed each"
    return (
        "The frontier, the least mean leak at each accuracy, is held by "
        f"{_many(stopped.sum(), 'checkpoint')} of early stopping, {_many(tier.sum(), 'TIER setting')} and "
        f"{_many((~tier & ~stopped).sum(), 'finished setting')} without TIER{each}."
    )


def seeds(counts: Mapping[int, int]) -> str:
    """How many seeds settings have, as from `tables.seed_counts`: `3` or `3 (of 13 settings), 1 (of 93)`."""
    if len(counts) < 2:
        return "".join(map(str, counts))
    first, *others = counts.items()
    return ", ".join([f"{first[0]} (of {_many(first[1], 'setting')})", *(f"{n} (of {count})" for n, count in others)])


def _many(count: int, thing: str, several: str | None = None) -> str:
    """`1 run`, `3 runs`."""
    return f"{count} {thing if count == 1 else several or f'{thing}s'}"


def fairness(rivals: pd.DataFrame) -> str:
    """How far choosing after measuring tilts the comparison, from the rivals' own intervals."""
    error = ((rivals["high"] - rivals["low"]) / 2).median()
    size = "" if pd.isna(error) else f" (here {error:.3f}, half an interval)"
    return (
        f"Taking the least of several measured rivals favours the rivals, by up to the error of one measurement{size}; "
        "looking only at the TIER settings on top of this table favours TIER in the same way. What is called clear "
        "allows for both."
    )


UNPLANNED = """The checkpoints lie in the middle of one learning-rate cycle; a run planned to be that short would be a
    stronger rival."""


def leak(matched: pd.DataFrame, rivals: int) -> str:
    """Whether TIER beats its rivals at equal accuracy or better, counted over the TIER settings shown.

    `matched` as from `tables.matched`; settings with one seed are named apart where others have several.
    """
    if not len(matched):
        return "No TIER run is stored and shown."
    counted = matched[matched["counted"].astype(bool)]
    single = len(matched) - len(counted)
    apart = f" {single} more with one seed are not counted: the best of many such is the luckiest." if single else ""
    if not len(counted):
        return f"No TIER setting has several seeds.{apart}"
    compared = counted[counted["rivals"] > 0]
    if not len(compared):
        return f"No TIER setting has a rival as accurate among the {rivals} shown, so nothing can be compared.{apart}"
    clear = compared["clear"].map({True: True, False: False}).eq(True)
    better = int((compared["advantage"] > 0).sum())
    clearly = int((clear & (compared["advantage"] > 0)).sum())
    worse = int((clear & (compared["advantage"] < 0)).sum())
    text = (
        f"{len(compared)} of {_many(len(counted), 'TIER setting')} have rivals at least as accurate (to within 2 "
        f"points): {better} leak less than the best of these, {clearly} of them clearly (beyond chance and the choice "
        f"of the best); {worse} leak clearly more, {len(compared) - clearly - worse} do not differ clearly."
    )
    return text + ("" if better else " No TIER setting here beats the simpler means at its accuracy.") + apart


def standing_of(matched: pd.DataFrame, least: pd.DataFrame) -> str:
    """How one TIER setting does beside the least leaking rival at least as accurate.

    `matched`: as from `tables.matched`, of this setting alone; `least`: the frontier, told where there is no such one.
    """
    row = matched.iloc[0].to_dict() if len(matched) else {"rivals": 0}
    if not row["rivals"] or pd.isna(row["advantage"]):
        return f"The chosen point cannot be compared yet. {frontier(least)}".strip()
    sure = {True: "clearly ", False: "", None: ""}[None if pd.isna(row["clear"]) else bool(row["clear"])]
    verdict = "less than" if row["advantage"] > 0 else "more than" if row["advantage"] < 0 else "as much as"
    doubt = "" if sure or not row["advantage"] else "; chance could make the difference"
    doubt = "; it rests on one seed, so nothing is shown" if row["seeds"] == 1 and row["advantage"] else doubt
    several = f", mean of {row['seeds']} seeds" if row["seeds"] > 1 else ""
    return (
        f"The chosen point (leak {row['leak']:.2f} at test accuracy {row['test_accuracy']:.2f}{several}) leaks "
        f"{sure}{verdict} the least leaking of {_many(int(row['rivals']), 'rival')} without TIER as accurate, "
        f"{row['best']} ({row['best_leak']:.2f} at {row['best_accuracy']:.2f}){doubt}."
    )


# ---- what each defense is, and which to take

DEFENSES: dict[str, str] = {
    "none": "Plain training: what all others are compared with.",
    "augmentation": """Trains on randomly flipped, turned and shifted copies of the images (the augmentation T of the
        TIER paper, section V-E2).""",
    "tier_reg": """Asks the model to answer alike with and without its most important pixels, and to lose about the same
        confidence on every image (the TIER paper, Algorithm 1), without augmentation.""",
    "tier_full": "The same on augmented images: the paper's defense.",
    "dpsgd_eps100": """Differential privacy: clips each image's gradient and adds noise (Abadi et al. 2016), with the
        noise of the TIER paper's comparison, epsilon 100.""",
    "dpsgd_tuned": """DP-SGD tuned for accuracy: little noise, several augmented copies of an image for each gradient
        (De et al. 2022). It guarantees next to nothing; its epsilon says how little.""",
    "memguard": """Leaves the model as it is and adds noise to the confidences that it serves, never changing the
        predicted class, so that an attacker's classifier guesses wrong (Jia et al. 2019).""",
    "early_stopping": """Ends plain training sooner (Prechelt 1998; a baseline against attacks since Song and Mittal
        2021): a model that has trained briefly has memorised little.""",
    "label_smoothing": """Trains towards labels that leave a share to all classes (Szegedy et al. 2016), so that the
        model never becomes entirely sure.""",
    "relaxloss": """Holds the training loss at a level instead of driving it to 0 (Chen, Yu and Fritz 2022), so that
        members' losses look like non-members'.""",
    "confidence_penalty": "Rewards undecided answers during training (Pereyra et al. 2017).",
    "distillation": """Trains a student on softened answers instead of on the labels (Hinton et al. 2015). With several
        parts each image is taught by a teacher that never saw it, which is SELENA's self-distillation (Tang et al.
        2022). With one part the only teacher has seen them all: another method, and the idea of PFE-KD in the TIER
        paper's related work.""",
    "ensemble_partition": """Trains a model on each of several parts of the images and serves the mean of their
        standardised confidences (the idea of EPD in the TIER paper's related work), so that all of them but one never
        saw an image: with two parts every other one has.""",
}
"""What each defense does, in a sentence or two, and where it comes from."""

_DPSGD = """Its guarantee holds only while the seed that draws batches and noise is secret, and here the seed is
    recorded with the run; its settings were chosen on these same images, which no epsilon counts. Its net has GroupNorm
    and pixels scaled by constants, the others' BatchNorm and the members' own mean and spread, so that not all of its
    loss of accuracy is the noise's."""
CAVEATS: dict[str, str] = {
    "dpsgd_eps100": _DPSGD,
    "dpsgd_tuned": _DPSGD,
    "memguard": """The weights are plain training's: whoever has them has no guard before them. Explanations are those
        of the plain model.""",
    "ensemble_partition": """Each part's model trains for as many epochs on its share of the images, and so for as many
        times fewer steps than plain training.""",
    "distillation": """A student's answers depend on other members too, which is an attack of its own (Jagielski et al.
        2023) that is not mounted here.""",
}
"""What has to be known of a defense beside its figures."""
CUT_OFF = """Its learning rate is that of the whole run, cut off on the way; a training planned to be so short, whose
    rate has come down by then, would be a stronger rival."""


def caveat(model: str, schedule: str) -> str | None:
    """What has to be known of a defense beside its figures; `schedule` is the training's of the learning rate."""
    if model == "early_stopping":
        return None if schedule == "constant" else flat(CUT_OFF)
    return flat(CAVEATS[model]) if model in CAVEATS else None


def guarded(changed: float, moved: float) -> str:
    """What MemGuard did to the answers: the share that it changed, and how far the true class's confidence moved."""
    return (
        f"It changed {of_hundred(changed)} answers; confidence in the true class moved by {moved:.2f} on average over "
        "all images."
    )


def defense(name: str) -> str:
    """A defense's name within a sentence; one that is stopped early is named after the other."""
    stopped = name.endswith(tables.STOPPED)
    return f"{label(name.removesuffix(tables.STOPPED))}{', stopped early' if stopped else ''}"


def guarantee(row: Mapping[Any, Any]) -> str | None:
    """What differential privacy a run guarantees; None for a defense that promises none."""
    epsilon, delta = row.get("epsilon"), row.get("delta")
    if delta is None or pd.isna(delta):
        return None
    if epsilon is None or pd.isna(epsilon):
        return "Without noise nothing is guaranteed."
    size = f"{epsilon:,.0f}" if epsilon >= 100 else f"{epsilon:.3g}"
    nothing = f", which in practice promises nothing (above {WEAK:g} little is)" if epsilon > WEAK else ""
    return f"Guarantees epsilon {size} at delta {delta:.0e}{nothing}."


WEAK = 10  # epsilon above which a guarantee is weak or none at all (Ponomareva et al. 2023, "How to DP-fy ML", 5.2)


def best_attack(points: pd.DataFrame, metric: str) -> str:
    """Which defense the strongest attack on it finds least in; `points` as from `tables.measured`."""
    if not len(points):
        return "No attack of the battery on these defenses is stored."
    ranked = points.sort_values("leak", kind="stable").to_dict("records")
    figure = "AUC" if metric == "auc" else "balanced accuracy"

    def told(row: Mapping[Any, Any]) -> str:
        return f"{label(str(row['model']))} ({row['leak']:.2f}, {figures.ATTACKS.get(str(row['by']), row['by'])})"

    text = f"By the best attack on each ({figure}), with one seed each, {told(ranked[0])} leaks least"
    text += f" and {told(ranked[-1])} most." if len(ranked) > 1 else "."
    tier = next((row for row in ranked if row["model"] == "tier_full"), None)
    if tier is None or tier is ranked[0] or tier is ranked[-1]:
        return text
    better = [row for row in ranked if row["leak"] < tier["leak"] and row["test_accuracy"] >= tier["test_accuracy"]]
    text += f" {told(tier)} is number {ranked.index(tier) + 1} of {len(ranked)}"
    if not better:
        return f"{text}."
    names, one = listed([label(str(row["model"])) for row in better]), len(better) == 1
    return f"{text}; {names} {'leaks' if one else 'leak'} less and {'is' if one else 'are'} at least as accurate."


def at_accuracy(table: pd.DataFrame, accuracy: float, against: str = "tier_full") -> str:
    """Which defense leaks least at an accuracy, and whether clearly less than TIER.

    `table` as from `tables.at_accuracy`; rows that are not counted, for their single seed, are named apart.
    """
    least = f"at a test accuracy of {accuracy:.2f}, to within 2 points, or more"
    if not len(table):
        return f"No stored run is as good {least}."
    every = table.to_dict("records")
    rows, single = [row for row in every if row["counted"]], [row for row in every if not row["counted"]]
    text = _verdict(rows, least, against) if rows else f"No setting with several seeds is as good {least}."
    if rows and rows[0]["seeds"] == 1:
        text += " Each rests on one seed, so no difference can be called clear."
    if single:
        text += f" Not counted, as they rest on one seed: {_leaks(single)}."
    if doubtful := [row for row in rows if row["borderline"]]:
        names = listed([defense(str(row["defense"])) for row in doubtful])
        text += f" By the interval of its accuracy {names} may be less accurate than that."
    return text


def _verdict(rows: list[dict[Any, Any]], least: str, against: str) -> str:
    """Which of the counted rows of `tables.at_accuracy` leaks least."""
    best, tier = rows[0], next((row for row in rows if row["defense"] == against), None)
    if tier is None:
        return (
            f"Of {_many(len(rows), 'defense')} {least}, {_choice(best)} leaks least ({best['leak']:.2f}); "
            f"no setting of {label(against)} that counts is as accurate."
        )
    if tier is best:
        if len(rows) == 1:
            return f"Only {label(against)} is as accurate {least}: it leaks {tier['leak']:.2f}."
        clear = sum(row["clear"] is True for row in rows[1:])
        return (
            f"Of {_many(len(rows), 'defense')} {least}, {_choice(tier)} leaks least ({tier['leak']:.2f}), clearly less "
            f"than {clear} of the other {len(rows) - 1}; next is {_choice(rows[1])} ({rows[1]['leak']:.2f})."
        )
    sure = {True: "clearly less", False: "not clearly less", None: "an uncertain difference"}[best["clear"]]
    alike = [row for row in rows if row["clear"] is False and row is not best]
    interval = f", {best['difference_low']:+.2f} to {best['difference_high']:+.2f}"
    text = (
        f"Of {_many(len(rows), 'defense')} {least}, {_choice(best)} leaks least: {best['leak']:.2f} against "
        f"{tier['leak']:.2f} with {_choice(tier)}, {sure} (difference {best['difference']:+.2f}"
        f"{'' if pd.isna(best['difference_low']) else interval})."
    )
    return text + (f" Not clearly different from {label(against)} either: {_leaks(alike)}." if alike else "")


def _leaks(rows: Sequence[Mapping[Any, Any]]) -> str:
    """Defenses with their leaks: `RelaxLoss (0.63) and MemGuard (0.75)`."""
    return listed([f"{defense(str(row['defense']))} ({row['leak']:.2f})" for row in rows])


EQUAL_ACCURACY = """Of each defense the setting that leaks least among those at least as accurate, to within 2 points:
    who needs an accuracy does not mind more. Leak: the stronger of audit and gap attack, mean over its seeds. Settings
    with one seed are not counted where others have several: the best of many of them is the luckiest. The error of a
    mean has two parts: the images, and the seeds, whose spread is taken over all settings with several seeds (or from
    its own, where that is larger), because two or three seeds alone tell little. A difference is clear when chance
    makes so much of it less than once in twenty, after its p has been multiplied by the numbers of settings from which
    both sides were picked and corrected for the number of rows (Holm). The intervals are of one comparison or of one
    number and know of neither. Both models are judged on the same images, so that the true errors are rather
    smaller."""


def _choice(row: Mapping[Any, Any]) -> str:
    """A defense with its setting, within a sentence."""
    return f"{defense(str(row['defense']))}{' at ' + row['setting_text'] if row['setting_text'] else ''}".replace(
        " at after", " after"
    )


def overhead(rows: pd.DataFrame) -> str:
    """What the defenses cost in training time; `rows`: model, value."""
    known = rows[rows["value"].notna() & (rows["model"] != "none")].sort_values("value")
    if not len(known):
        return "No training time can be compared yet."
    most = known.iloc[-1]
    cheap = int((known["value"] < 1.25).sum())
    text = f"{label(str(most['model']))} costs most, {most['value']:.2g} times the epoch of plain training"
    tier = known[known["model"] == "tier_full"]
    if len(tier) and most["model"] != "tier_full":
        text += f"; TIER Full costs {tier['value'].iloc[0]:.2g} times"
    return f"{text}. {cheap} of {_many(len(known), 'defense')} cost less than a quarter more."


def strengths(events: pd.DataFrame, images: int) -> str:
    """How the end of training changes with lambda; `events`: lambda, epoch, train_accuracy, test_accuracy.

    Accuracies are shares of so many `images`; which lambda is best is left open among those within its interval.
    """
    last = events.sort_values("epoch").groupby("lambda").tail(1).sort_values("lambda")
    weak, strong = last.iloc[0], last.iloc[-1]
    best = last.sort_values("test_accuracy").iloc[-1]
    text = (
        f"At lambda {weak['lambda']:g} the model ends right for {of_hundred(weak['test_accuracy'])} new images and "
        f"{of_hundred(weak['train_accuracy'])} training images"
    )
    if len(last) < 2:
        return f"{text}."
    text += (
        f", at lambda {strong['lambda']:g} for {of_hundred(strong['test_accuracy'])} and "
        f"{of_hundred(strong['train_accuracy'])}. Most accurate on new images in this one run is lambda "
        f"{best['lambda']:g}"
    )
    low, _ = share_interval(best["test_accuracy"], images)
    near = last[(last["test_accuracy"] >= low) & (last["lambda"] != best["lambda"])]["lambda"]
    if not len(near):
        return f"{text}; no other lies within the interval of its {images:,} images."
    return f"{text}; within the interval of its {images:,} images: lambda {listed([f'{x:g}' for x in near])} too."


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


# ---- explanations


def fidelity(means: pd.DataFrame) -> dict[str, str]:
    """For each defended model: how alike its maps are to the undefended model's, beside both controls.

    `means` as from `tables.fidelity`. Where no score puts it above maps of different images, it says so first.
    """
    sentences = {}
    for model, part in means[means["images"] == "all"].groupby("model", sort=False):
        table = part.pivot(index="metric", columns="pair", values="mean")
        pairs = part[part["pair"] == "pair"].set_index("metric")
        known = [metric for metric in tables.FIDELITY if metric in pairs.index and pairs["n"][metric] > 1]
        if not known:
            sentences[str(model)] = "no image has a score, because its map or the undefended model's tells nothing."
            continue
        first = known[0]
        numbers = ", ".join(
            f"{name} {table[pair][first]:.2f}"
            for pair, name in (
                ("pair", "it and the undefended model"),
                ("shuffled", "maps of different images"),
                ("second_seed", "two undefended seeds"),
            )
            if pd.notna(table[pair][first])
        )
        verdict = _against(pairs, known, "over_shuffled")
        sentences[str(model)] = f"{_beside_shuffled(*verdict)} Mean {score_name(first)}: {numbers}. " + _beside_seed(
            *_against(pairs, known, "over_second_seed")
        )
    return {model: text.strip() for model, text in sentences.items()}


SHARED_SEED = """The two models of a pair are trained with one seed: they start from the same weights and see the images
    in the same order, while two undefended seeds share neither. So being more alike than two seeds is expected and no
    merit; being less alike means that the defense has changed the explanation more than chance would."""


def scaled_cosine(means: pd.DataFrame) -> str:
    """How large the cosine of scaled maps is without any likeness of the single image, from these very maps.

    `means` as from `tables.fidelity`.
    """
    found = means[(means["images"] == "all") & (means["metric"] == "cosine") & (means["pair"] == "shuffled")]
    known = found["mean"].dropna()
    if not len(known):
        return ""
    return (
        "Without the controls the figures mean little: scaled maps of different images already have a mean cosine of "
        f"{' and '.join(dict.fromkeys(f'{value:.2f}' for value in known))} here."
    )


def controls(frame: pd.DataFrame, metric: str, model: str, used: str | None = None) -> str:
    """What the scores under single images are to be held against: the mean of all pairs and of both controls.

    `used`: the filter through which `frame` has gone. Only images that have the score are counted.
    """
    means: list[Any] = [frame[f"{metric}{ending}"].mean() for ending in tables.PAIRS.values()]
    own, shuffled, seeds = means
    of = f" ({used})" if used else ""
    if pd.isna(own):
        return f"No image{of} has a {score_name(metric)} of {label(model)} and the undefended model."
    parts = [f"{score_number(metric, own)} for {label(model)} and the undefended model"]
    parts += [f"{score_number(metric, shuffled)} for maps of different images"] if pd.notna(shuffled) else []
    parts += [f"{score_number(metric, seeds)} for two undefended seeds"] if pd.notna(seeds) else []
    count = f"{int(frame[metric].notna().sum()):,}"
    return f"Mean {score_name(metric)} over all {count} images with this score{of}: {', '.join(parts)}."


def score_number(metric: str, value: float) -> str:
    """A score with as many digits as it needs: 0.41, MSE 0.031; a score that does not exist is undefined."""
    return "undefined" if math.isnan(value) else f"{value:.{3 if metric == 'mse' else 2}f}"


def score_text(metric: str, value: float) -> str:
    """`SSIM 0.41`."""
    return f"{score_name(metric)} {score_number(metric, value)}"


def score_name(metric: str) -> str:
    """A score's name within a sentence."""
    return {"ssim": "SSIM", "mse": "MSE", "cosine_unscaled": "unscaled cosine"}.get(metric, metric)


def _against(pairs: pd.DataFrame, metrics: list[str], control: str) -> tuple[list[str], list[str], list[str]]:
    """The scores by which a pair is clearly more alike than a control, not clearly different, clearly less alike."""
    more: list[str] = []
    same: list[str] = []
    less: list[str] = []
    for metric in metrics:
        low, high = pairs[f"{control}_low"][metric], pairs[f"{control}_high"][metric]
        if pd.notna(low):
            (more if low > 0 else less if high < 0 else same).append(score_name(metric))
    return more, same, less


def _beside_shuffled(more: list[str], same: list[str], less: list[str]) -> str:
    if not (more or same or less):
        return "There are no shuffled pairs to compare with."
    if not more:
        below = f"; by {listed(less)} they are even less alike" if less else ""
        return (
            "By no score are its maps more like the undefended model's than maps of different images are"
            f"{below}: nothing here shows that it explains the single image as the undefended model does."
        )
    if not (same or less):
        return "By every score its maps are more like the undefended model's than maps of different images are."
    return (
        f"By {listed(more)} its maps are more like the undefended model's than maps of different images are, by "
        f"{listed(same + less)} they are not."
    )


def _beside_seed(more: list[str], same: list[str], less: list[str]) -> str:
    if less:
        by = listed(less) if more or same else "every score"
        return (
            f"By {by} they differ more than the maps of two undefended seeds do, although the pair shares its seed and "
            "those do not."
        )
    if more or same:
        return (
            "They differ no more than the maps of two undefended seeds do, which is expected and no merit: the pair "
            "shares its seed."
        )
    return ""


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b` or `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def scores(frame: pd.DataFrame, metric: str, model: str) -> str:
    """How the scores of single images spread behind their mean, and how often a shuffled pair does better."""
    own, other = frame[metric], frame[f"{metric}_shuffled"]
    known = own.notna() & other.notna()
    if not known.any():
        return f"No image has a {score_name(metric)} for {label(model)} and a shuffled pair."
    low, middle, high = own.dropna().quantile([0.05, 0.5, 0.95])
    better = (own < other) if metric in tables.LESS_IS_MORE else (own > other)
    share = of_hundred(better[known].mean())
    return (
        f"The median {score_name(metric)} is {middle:.2f}; nine in ten images lie between {low:.2f} and {high:.2f}. In "
        f"{share} cases the map of {label(model)} is more like the undefended model's map of the same image than like "
        "that of another image (by chance: 50)."
    )


# ---- one image


def class_name(names: Sequence[str], number: int) -> str:
    """A class in words; its number where the names are not known."""
    return names[number] if 0 <= number < len(names) else f"class {number}"


def prediction(predicted: str, confidence: float, right: bool | None) -> str:
    """What a model says of an image, and whether it is right; NaN and None where that is not known."""
    verdict = "" if right is None else ", which is right" if right else ", which is **wrong**"
    sure = "" if math.isnan(confidence) else f" with confidence {confidence:.2f}"
    return f"Says **{predicted}**{sure}{verdict}."


def top_classes(probabilities: Sequence[float], names: Sequence[str], most: int = 3) -> str:
    """The likeliest classes with their probabilities."""
    order = sorted(range(len(probabilities)), key=lambda k: -probabilities[k])[:most]
    return ", ".join(f"{class_name(names, k)} {percent(probabilities[k])}" for k in order)


def along(model: str, path: pd.DataFrame, means: pd.DataFrame | None, level: float) -> str:
    """One image's confidence at one level of both removal orders, beside the means of members and non-members."""
    parts = []
    for order, name in (("morf", "most important"), ("lerf", "least important")):
        row = path[(path["order"] == order) & (path["level"] == level)]
        if not len(row):
            continue
        text = f"{row['confidence'].iloc[0]:.2f} with the {name} pixels gone"
        at = None if means is None else means[(means["order"] == order) & (means["level"] == level)]
        if at is not None and len(at) == 2:
            mean = dict(zip(at["member"].astype(bool), at["mean"], strict=True))
            text += f" (members on average {mean[True]:.2f}, non-members {mean[False]:.2f})"
        parts.append(text)
    return f"{label(model)}, {percent(level)} of the pixels removed: confidence {', and '.join(parts)}."


UNDECIDED = 0.05  # a probability so near to a half that it says nothing


def decided(score: float) -> bool | None:
    """Whether the audit calls an image a member, from its score (log odds); None where it cannot decide."""
    claimed = _claimed(score)
    return None if math.isnan(claimed) or abs(claimed - 0.5) < UNDECIDED else claimed > 0.5


def _claimed(score: float) -> float:
    """The probability of a member that a score (log odds) stands for."""
    return 1 / (1 + math.exp(-min(max(score, -500.0), 500.0)))


def belief(score: float, standing: Mapping[str, float], like: tuple[int, int] | None = None) -> str:
    """What the audit believes of an image, from its score (log odds of membership), and where the score stands.

    What the audit claims is no chance: `like` tells how many are members among the images scored most like this one.
    """
    if not math.isfinite(score):
        return "The attack has no score for this image."
    claimed, member = _claimed(score), decided(score)
    if member is None:
        view = f"The attack cannot decide (it says {percent(claimed)} for a member; score {score:+.2f})."
    elif member:
        view = f"The attack believes: **member** (it says {_chance(claimed)}; score {score:+.2f})."
    else:
        view = f"The attack believes: **not a member** (it says {_chance(1 - claimed)}; score {score:+.2f})."
    if like is not None:
        members, images = like
        view += f" Of the {images} images scored most like it, {members} are members ({percent(members / images)})."
    known = {name: standing.get(key, math.nan) for name, key in (("members", "members"), ("non-members", "nonmembers"))}
    shares = [f"{percent(share)} of the {name}" for name, share in known.items() if not math.isnan(share)]
    return f"{view} The score is higher than that of {' and of '.join(shares)}." if shares else view


def _chance(share: float) -> str:
    return percent(share) if share < 0.995 else "over 99 %"


TWINS: dict[str | None, str] = {
    "training": "**A training image has exactly these pixels**: the models shown were trained on this picture.",
    "other": "**An image of the data set has exactly these pixels**, but none that the models shown were trained on.",
    "none": "**Not in the data set**: no image there has exactly these pixels, so no model was trained on this file.",
    None: "**Brought by you**: the images of the data set are not on this machine, so nobody can tell whether it is "
    "one of them.",
}


def dash(told: bool | None, numbered: bool) -> str:
    """How the line of one image is drawn, and why; `told`: its membership where the reader knows it."""
    if not numbered:
        return "dotted, since it is an upload"
    if told is None:
        return "dotted until its membership is told"
    return "solid, since it is a member" if told else "dashed, since it is no member"


def scored_by(numbered: bool, twin: str | None) -> str:
    """Who scores an image in the audit: one of the data set (`numbered`), or an upload and what `TWINS` says of it."""
    if numbered:
        return "each image is scored by a classifier that did not see it"
    seen = "none of which has seen the image"
    if twin in ("training", "other"):
        seen = "which may have seen the image, since its pixels are in the data set"
    return (
        f"the mean of the fold classifiers, {seen}; so are the shares, for which each compares its score of the image "
        "with those that it gave the images it had not seen"
    )


def nearest(distance: float, name: str, same_class: bool | None, same_group: bool, member: bool | None) -> str:
    """The nearest training image in words; `member`: whether the image itself is known to be one."""
    if distance == 0:
        return f"A training image ({name}) has exactly these pixels."
    which = "The nearest other training image" if member else "The nearest training image"
    kind = "" if same_class is None else ", the same class" if same_class else ", another class"
    group = " It is another frame of the same track." if same_group else ""
    return f"{which} is **{name}**{kind}; distance {distance:.3f} (root mean square; 0: the same pixels).{group}"


def contest(right: int, guessed: int, attacks: Mapping[str, tuple[float, int]]) -> str:
    """The running score of reader and attack; `attacks`: by model, points and images scored of those guessed."""
    if not guessed:
        return "No image guessed yet."
    text = f"You: {right} of {guessed} right. A coin would expect {guessed / 2:g}."
    for model, (points, scored) in attacks.items():
        if scored:
            text += f" The attack on {label(model)}: {points:g} of {scored}."
    return text


def contest_rules(explainer: str, left_out: int) -> str:
    """Which images count in the running score, and how; `left_out`: guesses that do not count."""
    text = (
        "Counted are the images guessed before their membership was revealed, unless Hardest led to them: it picks "
        f"those on which the attack is least sure. The attack is the audit from {explainer} curves; where it cannot "
        "decide it is half right. The score lasts until you close or reload this page."
    )
    return text if not left_out else f"{text} Not counted so far: {_many(left_out, 'guess', 'guesses')}."
