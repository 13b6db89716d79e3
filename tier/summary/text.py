"""Summaries as text: rows for the command line and the documents, and what an attack means in a sentence."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tier.config import QUALITY_CONTROLS
from tier.fidelity import CONTROLS, METRICS
from tier.summary.of_models import ONE_OF_FEW
from tier.summary.of_quality import GROUPS, JUDGED
from tier.summary.runs import ATTACKERS

UTILITY = ("train accuracy", "test accuracy", "test loss", "seconds per epoch (over plain)", "seeds")
LEAK = ("audit balanced accuracy", "audit AUC", "gap balanced accuracy", "loss AUC", "best attack")
LEAVES = ("attack_test", "transfer", "adaptive")
_LEAF_HEADER = ["balanced accuracy", "calibrated", "AUC", "TPR at 1 % FPR"]


def rows(summary: dict[str, dict[str, Any]], columns: Sequence[str] = UTILITY + LEAK) -> list[list[str]]:
    """Defenses down, figures across, as text: a header row, then a row per defense with values and intervals."""
    body = []
    for name, of in summary.items():
        cells = _cells(of)
        body.append([name, *(cells[column] for column in columns)])
    return [["defense", *columns], *body]


def _cells(of: dict[str, Any]) -> dict[str, str]:
    """One defense's cells by the name of their column."""
    shown = {
        "train accuracy": "train_accuracy", "test accuracy": "test_accuracy", "test loss": "test_loss",
        "audit balanced accuracy": "audit_balanced_accuracy", "audit AUC": "audit_auc",
        "gap balanced accuracy": "gap_balanced_accuracy", "loss AUC": "loss_auc",
    }  # fmt: skip
    cells = {column: interval_text(of[figure], of["intervals"][figure]) for column, figure in shown.items()}
    factor = "" if of["overhead"] is None else f" ({of['overhead']:.2f} x)"
    cells["seconds per epoch (over plain)"] = interval_text(of["seconds_per_epoch"], None) + factor
    best = of["battery"]
    cells["best attack"] = "-"
    if best is not None:
        of_few = f" (of {len(best['attacks'])} only)" if ONE_OF_FEW in of["refused"] else ""
        value = interval_text(best["balanced_accuracy"], best["interval"])
        cells["best attack"] = f"{_label(best['attack'], best)}: {value}{of_few}"
    return cells | {"seeds": ", ".join(map(str, of["seeds"]))}


def _label(attack: str, leaf: dict[str, Any]) -> str:
    """An attack's name, that of agp with its explainer."""
    return f"{attack} ({leaf['explainer']})" if "explainer" in leaf else attack


def markdown(summary: dict[str, dict[str, Any]]) -> str:
    """`rows` as a Markdown table."""
    return as_markdown(rows(summary))


def as_markdown(table: list[list[str]]) -> str:
    """A header row and its body as a Markdown table."""
    header, *body = table
    lines = [header, ["---"] * len(header), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def interval_text(value: float | None, interval: list[float] | None) -> str:
    """A figure with its interval, `0.873 [0.856, 0.888]`; a dash where there is none."""
    if value is None:
        return "-"
    return f"{value:.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")


def fidelity_rows(summary: dict[str, dict[str, dict[str, Any]]]) -> list[list[str]]:
    """Explainer, defense and metric down; the score beside its controls, and over correct images, across, as text."""
    header = ["explainer", "defense", "metric", "mean", "other image", "other seed", "both right"]
    return [header, *_by_explainer(summary, METRICS, _likeness_cells)]


def _by_explainer(
    summary: dict[str, dict[str, dict[str, Any]]],
    metrics: Sequence[str],
    cells: Callable[[dict[str, Any], str], list[str]],
) -> Iterator[list[str]]:
    """A row for each explainer, defense and metric."""
    for explainer in dict.fromkeys(name for views in summary.values() for name in views):
        for defense, views in summary.items():
            if explainer in views:
                yield from ([explainer, defense, metric, *cells(views[explainer], metric)] for metric in metrics)


def _likeness_cells(entry: dict[str, Any], metric: str) -> list[str]:
    of, right = entry[metric], entry["correct"][metric]
    controls = [interval_text(of[name], of[f"{name}_interval"]) for name in CONTROLS]
    return [interval_text(of["mean"], of["interval"]), *controls, interval_text(right["mean"], right["interval"])]


def quality_rows(summary: dict[str, dict[str, dict[str, Any]]]) -> list[list[str]]:
    """Explainer, defense and metric down; across, as text, the score beside its controls, of members and non-members,
    and what it has over the undefended model's, beside what another seed has.
    """
    header = ["explainer", "defense", "metric", "mean", "random", "edges", "members", "non-members", "n"]
    return [[*header, "change", "other seed"], *_by_explainer(summary, JUDGED, _judged_cells)]


def _judged_cells(entry: dict[str, Any], metric: str) -> list[str]:
    of = entry[metric]
    controls = [interval_text(of[name], of[f"{name}_interval"]) for name in QUALITY_CONTROLS]
    groups = [interval_text(entry[group][metric]["mean"], entry[group][metric]["interval"]) for group in GROUPS]
    moved = [interval_text(of[name], of[f"{name}_interval"]) for name in ("change", "other_seed")]
    return [interval_text(of["mean"], of["interval"]), *controls, *groups, str(of["n"]), *moved]


def attack_sentence(of: dict[str, Any]) -> str | None:
    """What one defense's entry of `attacks` says, in plain words; None where agp or gap is not there.

    Of 100 images, half of them members: balanced accuracies at transferred thresholds. It leads with the attacker who
    knows the defense, under the explainer that is best on attack-test, and ends with the attack that gets most right.
    """
    rates = {name: leaf["balanced_accuracy"] for name, leaf in of["battery"].items()}
    if rates.get("agp") is None or rates.get("gap") is None:
        return None
    own = of["battery"]["agp"]
    explainer = own["explainer"]
    naive = (of["explainers"][explainer]["transfer"] or {}).get("balanced_accuracy")
    low, high = own["interval"]
    same = of["explainers"][explainer]["transfer"] == of["explainers"][explainer]["adaptive"]  # no defense to know
    text = f"An attacker who {'' if same else 'knows the defense and '}sees explanations ({explainer}) gets "
    text += f"{100 * rates['agp']:.0f} of 100 right ({100 * low:.0f} to {100 * high:.0f}); "
    if not same and naive is not None:
        text += f"one who does not know it gets {100 * naive:.0f}; "
    text += f"one who only sees whether the answer is correct gets {100 * rates['gap']:.0f}."
    best = max((name for name in rates if rates[name] is not None), key=lambda name: rates[name])
    return text if best == "agp" else f"{text} Of all attacks {best} gets most right: {100 * rates[best]:.0f}."


def attack_rows(summary: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Explainer, defense and LEAVES down, what the attack is worth across, as text."""
    explainers = dict.fromkeys(name for of in summary.values() for name in of["explainers"])
    body = [
        [explainer, defense, leaf, *_leaf_cells(of["explainers"][explainer][leaf])]
        for explainer in explainers
        for defense, of in summary.items()
        if explainer in of["explainers"]
        for leaf in LEAVES
    ]
    return [["explainer", "defense", "attack", *_LEAF_HEADER], *body]


def battery_rows(summary: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Each defense's attacks on the target, highest AUC first, as text; agp with its explainer."""
    body = []
    for defense, of in summary.items():
        for name, leaf in _ranked(of["battery"]):
            body.append([defense, _label(name, leaf), *_leaf_cells(leaf)])
    return [["defense", "attack", *_LEAF_HEADER], *body]


def part_rows(summary: dict[str, dict[str, Any]]) -> list[list[str]]:
    """The attacks on the most exposed images and on canaries of each defense, highest AUC first, as text."""
    shown = {"vulnerable_decile": "most exposed", "canaries": "canaries"}
    body = []
    for defense, of in summary.items():
        for part, images in shown.items():
            for name, leaf in _ranked(of[part]):
                body.append([defense, images, _label(name, of["battery"].get(name, {})), *_leaf_cells(leaf)])
    return [["defense", "images", "attack", *_LEAF_HEADER], *body]


def variant_rows(summary: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Variants, defenses and ATTACKERS down, what the attack is worth across, as text."""
    names = dict.fromkeys(name for of in summary.values() for name in of.get("variants", {}))
    body = [
        [name, entry["operator"], levels_text(entry["levels"]), defense, who, *_leaf_cells(entry[who])]
        for name in names
        for defense, of in summary.items()
        if (entry := of.get("variants", {}).get(name)) is not None
        for who in ATTACKERS
    ]
    return [["variant", "operator", "levels", "defense", "attack", *_LEAF_HEADER], *body]


def levels_text(levels: Sequence[float]) -> str:
    """Shares of the pixels in percent: `0, 15, 25 %`."""
    return f"{', '.join(f'{100 * level:.4g}' for level in levels)} %"


def _ranked(leaves: dict[str, dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Leaves by attack, highest AUC first, those without one last."""
    return sorted(leaves.items(), key=lambda item: 1.0 if item[1]["auc"] is None else -item[1]["auc"])


def _leaf_cells(leaf: dict[str, Any] | None) -> list[str]:
    if leaf is None:
        return ["-"] * len(_LEAF_HEADER)
    cells = [
        interval_text(leaf["balanced_accuracy"], leaf["interval"]),
        interval_text(leaf["balanced_accuracy_calibrated"], None),
    ]
    cells.append(interval_text(leaf["auc"], leaf["auc_interval"]))
    counts = leaf["counts_at_0.01"]
    if leaf["tpr_at_0.01"] is None or counts is None:
        return [*cells, "-"]
    hits, alarms = (
        f"{counts[f'{what}_positives']:.6g} of {leaf[n]}" for what, n in (("true", "members"), ("false", "nonmembers"))
    )
    return [*cells, f"{leaf['tpr_at_0.01']:.3f} ({hits}; false {alarms})"]
