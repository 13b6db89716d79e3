"""Stages `alpha` and `attack`: an attack learnt on a shadow model, and which images it learns from."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tier.config import Attack, Experiment
from tier.context import Context
from tier.experiment import auditing, inputs
from tier.experiment.runs import GALLERY, shadow
from tier.experiment.stages import Files, ensure
from tier.store import Store

if TYPE_CHECKING:
    from tier.attacks import agp


def shadow_side(e: Experiment) -> dict[str, Any]:
    """The attack's settings but for whose shadow it is, which the model itself tells."""
    return e.attack.model_copy(update={"shadow": Attack().shadow}).changed()


def tuned_on(e: Experiment) -> dict[str, tuple[str, Experiment]]:
    """The paths of a few images at every alpha, of which one is chosen."""
    few = {"images": e.attack.tuning}
    return {f"alpha {alpha:g}": ("trajectory", _at_alpha(e, alpha, few)) for alpha in e.attack.alphas}


def compute_alpha(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """The weight of the total variation with which a shadow model's images are told apart best (SPEC 5).

    Only the shadow's attack-train part is looked at.
    """
    from tier.attacks import agp

    seen = {}
    for alpha in e.attack.alphas:
        features, table = auditing.features_of(store, _at_alpha(e, alpha, {"images": e.attack.tuning}), context)
        train, _ = attack_rows(e, table["index"].to_numpy())
        member = table["member"].to_numpy(bool)[train]
        seen[alpha] = features.take(train)
    context.step("choosing alpha")(0.0)
    chosen, validation = agp.best_features(seen, member, e.audit)
    return {}, {"alpha": chosen, "validation_auc": {f"{alpha:g}": value for alpha, value in validation.items()}}


def attackers(e: Experiment) -> dict[str, tuple[str, Experiment]]:
    """What the attack reads of other runs: the choice of alpha, and the paths at whichever is chosen."""
    own = _attacker(e)
    found = {"shadow": ("train", own), "alpha": ("alpha", own)}
    for alpha in e.attack.alphas:
        found[f"shadow, alpha {alpha:g}"] = ("trajectory", _at_alpha(own, alpha))
        found[f"target, alpha {alpha:g}"] = ("trajectory", _at_alpha(e, alpha))
    return found


def _attacker(e: Experiment) -> Experiment:
    return shadow(e, adaptive=e.attack.shadow == "same")


def _at_alpha(e: Experiment, alpha: float, more: Mapping[str, Any] = MappingProxyType({})) -> Experiment:
    """The run with the attack's paths (operator, levels) at one alpha."""
    return e.with_(trajectory=e.attack.trajectory.model_copy(update={"alpha": alpha, **more}))


def compute_attack(store: Store, e: Experiment, context: Context) -> tuple[Files, dict[str, Any]]:
    """The attack learnt on a shadow model, and what it is worth there and on the target (SPEC 5)."""
    from tier.attacks import agp
    from tier.metrics import best_threshold, report

    tuned = ensure(store, "alpha", _attacker(e), context).metrics
    seen, known = auditing.features_of(store, _at_alpha(_attacker(e), tuned["alpha"]), context)
    member = known["member"].to_numpy(bool)
    train, test = attack_rows(e, known["index"].to_numpy())
    context.step("learning the attack")(0.0)
    attack = agp.fit(seen.take(train), member[train], e.audit)
    guesses = agp.cross_fitted(seen.take(train), member[train], e.audit)
    threshold = best_threshold(guesses[member[train]], guesses[~member[train]])
    own, targets = auditing.features_of(store, _at_alpha(e, tuned["alpha"]), context)
    inside, held = targets["member"].to_numpy(bool), seen.take(test)
    scores = {"attack_test": attack.score(held), "target": attack.score(own)}
    groups = {"attack_test": member[test], "target": inside}
    metrics = {name: report(scores[name][groups[name]], scores[name][~groups[name]], threshold) for name in scores}
    rows = {"attack_test": known.iloc[test], "target": targets}
    tables = [rows[name][["index", "member", "label"]].assign(set=name, score=scores[name]) for name in scores]
    tables = [table.assign(canary=canaries(e, table["index"].to_numpy())) for table in tables]
    first = np.concatenate([np.flatnonzero(inside)[:GALLERY], np.flatnonzero(~inside)[:GALLERY]])
    reasons = pd.DataFrame(attack.contributions(own.take(first)).astype(np.float32), columns=list(attack.features))
    features = _feature_table(e, attack, attack.importance(held, member[test], threshold))
    files = {
        "scores.parquet": pd.concat(tables, ignore_index=True),
        "features.parquet": features,
        "contributions.parquet": reasons.assign(index=targets["index"].to_numpy()[first]),
    }
    paths = ensure(store, "trajectory", _at_alpha(e, tuned["alpha"]), context).metrics
    told = {name: paths[name] for name in ("cam_layer", "degenerate_maps")}
    kept = int(features["kept"].sum()) - 2  # loss and class are never filtered
    told |= {"operator": e.attack.trajectory.operator, "features_kept": kept}
    return files, metrics | tuned | told


def attack_rows(e: Experiment, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places among the shadow's rows that the attack learns from, and that it is tested on."""
    from tier import splits

    source = inputs.dataset(e.data)
    groups = source.groups if e.split.group_disjoint else None
    parts = splits.attack_split(
        inputs.membership(source, e.split), source.labels, e.attack.seed, e.attack.holdout, groups
    )
    place = {int(row): number for number, row in enumerate(rows)}
    there = [[place[row] for row in part.tolist() if row in place] for part in (parts.train, parts.test)]
    return np.array(there[0], np.int64), np.array(there[1], np.int64)


def _feature_table(e: Experiment, attack: "agp.Attack", importance: np.ndarray) -> pd.DataFrame:
    """What the filter saw of each trajectory feature, and what each feature is worth to the attack."""
    seen = {"kept": attack.kept, "member_mean": attack.member_mean, "nonmember_mean": attack.nonmember_mean}
    seen |= {"t": attack.t, "p": attack.p}
    rows = []
    for name, places in attack.features.items():
        order, _, level = name.partition("_")
        row: dict[str, Any] = {"feature": name, "order": order if level else None}
        if places[0] < len(attack.kept):
            row["level"] = e.attack.trajectory.levels[int(level) if level else 0]
            row |= {column: values[places[0]] for column, values in seen.items()}
        else:  # loss and class are never filtered
            row |= {"level": np.nan, "kept": True, **dict.fromkeys(("member_mean", "nonmember_mean", "t", "p"), np.nan)}
        rows.append(row)
    frame = pd.DataFrame(rows).astype({"kept": bool})
    return frame.assign(**dict(zip(("importance", "importance_low", "importance_high"), importance.T, strict=True)))


def canaries(e: Experiment, rows: np.ndarray) -> np.ndarray:
    """Which of the target's rows are mislabelled on purpose, `(N,)` bool."""
    from tier import splits

    return np.isin(rows, splits.canaries(inputs.membership(inputs.dataset(e.data), e.split), e.split))
