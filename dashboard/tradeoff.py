"""The Trade-off page: all runs in one plane, one of them in figures, equal accuracy, time, lambda by epochs."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from dashboard import components, listing, loaders, sitemap, state, theme, words
from tier import experiment, figures, tables
from tier.capacity import MONITOR
from tier.config import DefenseName, Experiment
from tier.presets import Preset

MEASURES = {"audit": "Audit or gap attack", "balanced_accuracy": "Best attack", "auc": "Best attack, AUC"}
VARIANTS: dict[DefenseName, str] = {"tier_full": "Full", "tier_reg": "Reg-only"}
TOLERANCE = 0.02  # of the test accuracy: how much less still counts as accurate
FREE = "another accuracy"
SAME = 1e-5  # confidences nearer to each other than this are one, rounded twice
NAME = "tradeoff"


@dataclass(frozen=True)
class View:
    """What the reader has chosen, with all that is stored of the preset."""

    preset: Preset
    runs: pd.DataFrame  # of all defenses, as from `tables.runs`
    paths: pd.DataFrame  # early-stopping paths with the `text` of each checkpoint
    measure: str  # one of MEASURES
    models: tuple[str, ...]  # the defenses shown

    @cached_property
    def attacks(self) -> dict[str, dict[str, Any]]:
        """The best attack on each defense's first seed; read only when it is to be shown."""
        return loaders.best_attacks(self.preset)

    @cached_property
    def points(self) -> pd.DataFrame:
        """The runs in the plane, with the leak as it is measured here."""
        shown = self.runs[self.runs["model"].isin(self.models)]
        if self.measure == "audit":
            return shown[shown["leak"].notna()]
        return tables.measured(shown, self.attacks, self.measure, self.preset.seeds[0])

    @cached_property
    def stopped(self) -> pd.DataFrame:
        """The early-stopping checkpoints in the plane: only the audit is known of them."""
        drawn = self.paths["model"].isin(self.models) if self.measure == "audit" else [False] * len(self.paths)
        return self.paths[drawn]

    @cached_property
    def trails(self) -> pd.DataFrame:
        """Ways through the plane as one setting varies; attacks of the battery are known of too few runs for that."""
        usual = {d.name: (d.tier.lambda_, d.tier.beta) for d in self.preset.defenses if d.name in VARIANTS}
        shown = {str(name): at for name, at in usual.items() if name in self.models}
        points = self.points if self.measure == "audit" else self.points.head(0)
        return tables.trails(points, shown, self.preset.seeds[0])

    @cached_property
    def choices(self) -> pd.DataFrame:
        """All stored settings, each with its mean over seeds (`tables.options`)."""
        return tables.options(self.runs, self.paths)

    @cached_property
    def shown(self) -> pd.DataFrame:
        """The settings in the plane, likewise, with the leak as it is measured here."""
        if self.measure == "audit":
            return self.choices[self.choices["model"].isin(self.models)]
        return tables.options(self.points, self.stopped)

    def settings(self, **extra: object) -> str:
        """The settings line of what is shown."""
        counted = words.seeds(tables.seed_counts(self.shown))
        return components.settings_line(
            self.preset, self.preset.experiment, runs=len(self.points), seeds=counted, **extra
        )


# ---- choices


def choose(preset: Preset) -> View | None:
    """The choices above the plane; None when no run is stored."""
    runs, paths = loaders.runs(preset), loaders.paths(preset)
    if not len(runs):
        return None
    stored = set(runs["model"])
    offered = {str(d.name): words.label(d.name) for d in preset.compared if d.name in stored}
    offered |= {name: words.label(name) for name in ("none", "augmentation") if name in stored}  # of strength 0
    measure = state.choose(
        "Leak measured by", MEASURES, key="leak", default="audit",
        help="Audit or gap attack: of every run. Best attack: the one with the highest AUC of all that are stored "
        "against the first seed of each defense, with reference models and an attacker who knows the defense.",
    )  # fmt: skip
    with st.popover("Defenses", icon=":material/filter_alt:"):
        models = state.choose_many("Shown in the plane", offered, key="shown", default=list(offered))
    texts = [tables.stopped_text(row) for row in paths.to_dict("records")]
    return View(preset, runs, paths.assign(text=texts), measure, tuple(models))


def _names(view: View) -> list[str]:
    """Everything that can be looked at alone: finished runs, TIER Full's headline run first, and checkpoints."""
    runs = view.runs
    first = runs[runs["headline"] & (runs["model"] == "tier_full")]
    usual = first if len(first) else runs[runs["headline"]] if runs["headline"].any() else runs
    return list(dict.fromkeys([*usual["text"].head(1), *runs["text"], *view.paths["text"]]))


def _clicked() -> None:
    """Copy the point that was clicked into the choice below the plane, and so into the address."""
    chosen = st.session_state.get(f"chart_{NAME}") or {}
    for point in (chosen.get("selection") or {}).get("points", []):
        text = (point.get("customdata") or [None])[0]
        if isinstance(text, str):
            st.session_state["run"] = text
            return


# ---- the plane


def plane(view: View) -> None:
    """Accuracy against leak of everything shown, with the run chosen below ringed."""
    names = _names(view)
    chosen = state.peek("run", names, names[0])
    state.ready("run", chosen)
    frontier = tables.frontier(view.shown)
    shown = pd.concat([part for part in (view.points, view.stopped) if len(part)] or [view.points])
    ring = shown[shown["text"] == chosen]
    if not len(view.points):
        _without_attacks(view)
        return
    components.chart(
        figures.leak(view.points, view.stopped, frontier, ring, view.trails, view.measure),
        shown.drop(columns=["setting"]),
        name=NAME,
        takeaway=_takeaway(view, frontier),
        meaning=_meaning(view),
        settings=view.settings(
            leak=_measured_by(view), audit=components.audit_text(view.preset) if view.measure == "audit" else None,
            ring=chosen if len(ring) else None,
        ),
        on_select=_clicked,
    )  # fmt: skip
    missing = [name for name in view.models if name not in set(view.points["model"])]
    if view.measure != "audit" and missing:
        _without_attacks(view, missing)


def _takeaway(view: View, frontier: pd.DataFrame) -> str:
    if view.measure != "audit":
        return words.best_attack(view.points, view.measure)
    rivals = tables.alternatives(view.shown)
    told = words.leak(tables.matched(view.shown, rivals), len(rivals)), words.frontier(frontier)
    return " ".join(part for part in told if part)


def _meaning(view: View) -> str:
    text = f"""Every point is a trained model: to the right it is better on new images, further down it gives less
    away. The grey steps are the least leak to be had at each accuracy, of means over seeds where settings have several:
    a defense is worth its trouble only there, and a single point below them may be luck. {_augmented(view)} Click on a
    point to look at it."""
    if view.measure != "audit":
        return f"""{text} Here only the first seed of each defense at its usual strength is known, and the attack with
        the highest AUC is taken after the fact, so that the leak is somewhat above what one attacker gets."""
    planned = "" if view.preset.experiment.train.schedule == "constant" else words.UNPLANNED
    return f"""{text} The lines with dots show plain training and augmentation stopped after each tenth of their epochs,
    the thin ones one defense as one of its settings varies, with training seed {view.preset.seeds[0]}. {planned}"""


def _augmented(view: View) -> str:
    """Which of the defenses shown train on augmented images, which protects by itself."""
    names = [words.label(d.name) for d in view.preset.compared if d.augments and d.name in view.models]
    if not names:
        return "None of these defenses trains on augmented images."
    several = "trains" if len(names) == 1 else "train"
    return f"{words.listed(names)} {several} on augmented images, which protects by itself, all others on plain ones."


def _measured_by(view: View) -> str:
    if view.measure == "audit":
        return "the stronger of gap attack and audit, 95 % bootstrap or Newcombe's interval over images"
    figure = "AUC" if view.measure == "auc" else "balanced accuracy, threshold transferred"
    return f"{figure} of the attack with the highest AUC, 95 % bootstrap over images"


def _without_attacks(view: View, missing: list[str] | None = None) -> None:
    """Which defenses no attack is stored on, and the command that computes them."""
    names = view.models if missing is None else missing
    st.caption(f"No attack is stored on {', '.join(words.label(name) for name in names)}. To compute them:")
    asked = " ".join(f"--defense {name}" for name in names)
    st.code(f"python -m tier attack {view.preset.name} {asked}", language="bash", wrap_lines=True)


# ---- one run


def one_run(view: View) -> None:
    """The run that was clicked or chosen: its figures, and where else it can be seen."""
    chosen = state.select("Run", _names(view), key="run", help="Or click on a point above.")
    found = view.runs[view.runs["text"] == chosen]
    if not len(found):
        _checkpoint(view.paths[view.paths["text"] == chosen].iloc[0].to_dict())
        return
    row = found.iloc[0].to_dict()
    st.markdown(f"**{theme.tag(row['model'])}** · {chosen.partition(', ')[2]}")
    with st.container(horizontal=True, gap="large"):
        _share("New images right", row["test_accuracy"], row["test_low"], row["test_high"])
        _share("Training images right", row["train_accuracy"])
        _share("Leak", row["leak"], row["low"], row["high"])
        _share("Audit right", row["audit"])
        _share("Gap attack right", row["gap"])
    told = [words.guarantee(row), _attacked(view, row), words.BLIND if row["features"] == 0 else None]
    told += [_guarded(view.preset, row), words.caveat(row["model"], view.preset.experiment.train.schedule)]
    if pd.notna(row["seconds_per_epoch"]):
        told.append(f"{row['seconds_per_epoch']:.2f} s per epoch.")
    st.markdown(" ".join(part for part in told if part), width=theme.TEXT_WIDTH)
    _links(view.preset, row)


def _guarded(preset: Preset, row: Mapping[Any, Any]) -> str | None:
    """What MemGuard has done to the answers of a run whose images are stored, against those of the plain model."""
    if row["model"] != "memguard":
        return None
    same = (e for _, e in preset.sweep("memguard", [row["strength"]], int(row["seed"])))
    one = next((e for e in same if loaders.key("report", e) == row["key"]), None)
    if one is None:
        return None
    runs = one, experiment.sources(one)["guarded"]
    both = [loaders.frame("train", e, "samples.parquet", ["index", "log_confidence"]) for e in runs]
    if both[0] is None or both[1] is None:
        return None
    served, plain = (frame.set_index("index")["log_confidence"] for frame in both if frame is not None)
    moved = (np.exp(served) - np.exp(plain)).abs()
    return words.guarded(float((moved > SAME).mean()), float(moved.mean()))


def _checkpoint(row: Mapping[Any, Any]) -> None:
    with st.container(horizontal=True, gap="large"):
        _share("New images right", row["test_accuracy"])
        _share("Leak", row["leak"], row["low"], row["high"])
        _share("Audit right", row["audit"])
        _share("Gap attack right", row["gap"])
    st.caption("A checkpoint of a longer run: the other pages show what the run has become at its end.")


def _share(label: str, value: float, low: float | None = None, high: float | None = None) -> None:
    """A share out of 100 with its 95 % interval where it is known."""
    text = "unknown" if pd.isna(value) else words.of_hundred(value)
    known = low is not None and high is not None and pd.notna(low) and pd.notna(high)
    below = f"95 %: {100 * low:.0f} to {100 * high:.0f}" if known else None  # type: ignore[operator]
    st.metric(label, text, below, delta_color="off", delta_arrow="off", width="content")


def _attacked(view: View, row: Mapping[Any, Any]) -> str | None:
    """What the best attack finds in a run, where it is known."""
    if view.measure == "audit":
        return None
    leaf = view.attacks.get(str(row["model"]))
    if leaf is None or not row["headline"] or row["seed"] != view.preset.seeds[0]:
        return None
    return (
        f"The best of {len(leaf['attacks'])} attacks is {figures.ATTACKS[leaf['attack']]}: balanced accuracy "
        f"{leaf['balanced_accuracy']:.2f}, AUC {leaf['auc']:.2f}."
    )


def _links(preset: Preset, row: Mapping[Any, Any]) -> None:
    """Links to the views of other pages that show this run, and why where there are none."""
    model, tier = str(row["model"]), pd.notna(row["lambda"])
    on_grid = _on_grid(preset, row)
    at = {"lambda": f"{row['lambda']:g}", "beta": f"{row['beta']:g}"} if tier else {}
    with st.container(horizontal=True):
        if on_grid:
            query: dict[str, str | list[str]] = {"preset": preset.name, **at, "seed": f"{row['seed']:.0f}"}
            names = [words.label(model)] if model == "none" else [words.label("none"), words.label(model)]
            sitemap.link("trajectories", "Its trajectories", query | {"models": names})
            beside = {} if model == "none" else {"beside": [words.label(model)]}
            sitemap.link("attack", "Attacks on it", query | beside)
        if tier:
            free = {"free": "true", "lambda_free": at["lambda"], "beta_free": at["beta"]}
            dials = at if _is_stop(preset, row) else free
            query = {"preset": preset.name, "variant": VARIANTS[model], **dials, "seed_free": f"{row['seed']:.0f}"}  # type: ignore[index]
            sitemap.link("train", "Its training", query | {"epochs": f"{row['epochs']:.0f}"})
        elif not on_grid:
            st.caption("The other pages show the preset's own defenses at the strengths of its grid.")


def _is_stop(preset: Preset, row: Mapping[Any, Any]) -> bool:
    """Whether a TIER run's lambda and beta are stops of the sliders."""
    usual = next(d.tier for d in preset.defenses if d.name in VARIANTS)
    return row["lambda"] in {*preset.lambdas, usual.lambda_} and row["beta"] in {*preset.betas, usual.beta}


def _on_grid(preset: Preset, row: Mapping[Any, Any]) -> bool:
    """Whether the pages that compare models can show a run."""
    own = row["model"] in {d.name for d in preset.defenses}
    as_planned = row["seed"] in preset.seeds and row["epochs"] == preset.experiment.train.epochs
    return bool(own and as_planned and (pd.isna(row["lambda"]) or _is_stop(preset, row)))


# ---- equal accuracy


def equal_accuracy(view: View) -> None:
    """Which defense leaks least among settings as accurate as the reader wants, and each TIER run by itself."""
    st.subheader("At equal accuracy", anchor=False)
    accuracy, whose = _choose_accuracy(view)
    able = tables.at_accuracy(view.choices, accuracy, TOLERANCE)
    held = set(able[able["counted"].astype(bool)]["defense"])
    against = "tier_full" if "tier_full" in held or "tier_reg" not in held else "tier_reg"
    table = tables.at_accuracy(view.choices, accuracy, TOLERANCE, against)
    table = table.merge(
        loaders.overheads(view.preset)[["model", "value"]].rename(columns={"value": "overhead"}), "left", on="model"
    )
    st.markdown(words.at_accuracy(table, accuracy, against), width=theme.TEXT_WIDTH)
    listing.at_accuracy(table, against)
    st.markdown(words.flat(words.EQUAL_ACCURACY), width=theme.TEXT_WIDTH)
    components.caption_with_data(
        components.settings_line(
            view.preset, view.preset.experiment, as_accurate_as=f"{whose}, {accuracy:.3f}",
            seeds=words.seeds(tables.seed_counts(view.choices)), audit=components.audit_text(view.preset),
        ),
        table.drop(columns=["setting"]), "equal_accuracy",
    )  # fmt: skip
    rivals = tables.alternatives(view.choices)
    with st.expander("Each TIER setting beside its rivals", icon=":material/table_rows:"):
        st.markdown(
            words.flat(f"""For each TIER setting: the rivals without TIER, stopped early or not, that are at least as
            accurate to within 2 points, by means over seeds. A positive advantage means that TIER leaks less than the
            best of them. {words.fairness(rivals[tables.repeated(rivals)])}"""),
            width=theme.TEXT_WIDTH,
        )
        if note := words.gap(view.runs):
            st.markdown(note, width=theme.TEXT_WIDTH)
        listing.matched(tables.matched(view.choices, rivals))


def _choose_accuracy(view: View) -> tuple[float, str]:
    """The test accuracy that is wanted, a defense's own or any, and in words whose it is."""
    means = tables.summary(view.runs).set_index("model")["test_accuracy"].dropna()
    order = [name for name in ("tier_full", "none") if name in means.index]
    names = {name: words.label(str(name)) for name in [*order, *means.index]} | {"free": FREE}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        with st.container(width=260):
            of = state.select("As accurate as", names, key="as")
        if of != "free":
            return float(means[of]), names[of]
        known = view.runs["test_accuracy"].dropna()
        with st.container(width=320):
            return state.slide(
                "Test accuracy", 0.0, 1.0, key="accuracy", default=round(float(known.median()), 2), step=0.01
            ), "your choice"


# ---- training time


def training_time(view: View) -> None:
    """Seconds per epoch of each defense over plain training."""
    rows = loaders.overheads(view.preset)
    known = rows[rows["value"].notna() & rows["note"].isna() & (rows["model"] != "none")].sort_values("value")
    if not len(known):
        return
    st.subheader("What it costs in training time", anchor=False)
    texts = [
        f"{words.label(str(row['model']))}: {row['value']:.2f} times plain training, {row['seconds']:.2f} s per epoch"
        for row in known.to_dict("records")
    ]
    components.chart(
        figures.overhead(known.assign(text=texts)),
        rows,
        name="overhead",
        takeaway=words.overhead(known),
        meaning="""Times are from the machine that each record names and only compared with plain training on the same
        one, whose other work counts too. They are of one epoch: stopping early saves the rest, and several models are
        counted together.""",
        settings=components.settings_line(
            view.preset, view.preset.experiment, seeds=int(known["seeds"].max()), interval="95 % over seeds",
            plain="undefended, same seed",
        ),
    )  # fmt: skip
    for name in ("note", "refused"):
        for row in rows[rows[name].notna()].to_dict("records"):
            st.caption(f"{words.label(str(row['model']))}: {row[name]}.")


# ---- lambda by epochs


def by_epochs(view: View) -> None:
    """Accuracy over epochs at each lambda of the grid (Fig. S1), at the preset's beta."""
    names = {name: text for name, text in VARIANTS.items() if any(d.name == name for d in view.preset.defenses)}
    if not names:
        return
    st.subheader("Accuracy over epochs for each lambda", anchor=False)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        name = state.choose("TIER", names, key="curves_of", default=next(iter(names)))
        seed = state.choose("Training seed", list(view.preset.seeds), key="curves_seed", default=view.preset.seeds[0])
    usual = view.preset.defense(name).tier
    found = _curves(view.preset, name, usual.beta, seed)
    wanted = sorted({*view.preset.lambdas, usual.lambda_})
    if len(found) > 1:
        _draw_curves(view, name, found)
    if missing := [f"{lam:g}" for lam in wanted if lam not in found]:
        st.caption(f"Not stored: lambda {', '.join(missing)}. To compute the curves:")
        command = f"python -m tier sweep {view.preset.name} --defense {name} --seed {seed}"
        st.code(
            f"{command} --over lambda={','.join(missing)} --over beta={usual.beta:g}", language="bash", wrap_lines=True
        )


def _draw_curves(view: View, name: DefenseName, found: dict[float, tuple[pd.DataFrame, Experiment]]) -> None:
    """The curves themselves, `found` as from `_curves`."""
    events = pd.concat([frame.assign(**{"lambda": lam}) for lam, (frame, _) in found.items()], ignore_index=True)
    first = next(one for _, one in found.values())
    tier = view.preset.defense(name).tier
    shown = events[["lambda", "epoch", "train_accuracy", "test_accuracy"]]
    seen = [min(MONITOR, size) for size in loaders.sizes(first)]
    components.chart(
        figures.strength_curves(shown),
        shown,
        name="lambda_by_epochs",
        takeaway=words.strengths(shown, seen[1]),
        meaning=f"""The stronger TIER, the less the model learns its training images by heart, and at some strength it
        learns too little of anything. Each line is one run, so which lambda is best is not settled here. TIER begins
        after {tier.warmup} epochs, so until then all lines are one training; lambda 0 is the training without TIER.""",
        settings=components.settings_line(
            view.preset,
            first,
            n=f"{seen[0]} members and {seen[1]} non-members, the first of each, after every epoch",
            TIER=VARIANTS[name],
            beta=f"{tier.beta:g}",
            seed=first.train.seed,
            epochs=first.train.epochs,
        ),
    )


def _curves(preset: Preset, name: DefenseName, beta: float, seed: int) -> dict[float, tuple[pd.DataFrame, Experiment]]:
    """The epochs of each lambda of the grid whose training is stored, with the experiment."""
    found = {}
    for lam in sorted({*preset.lambdas, preset.defense(name).tier.lambda_}):
        one = preset.point(name, lam, beta, seed)
        events = loaders.frame("train", one, "events.parquet")
        if events is not None:
            found[lam] = (events, one)
    return found


def about(preset: Preset) -> None:
    """What each defense of the preset does, in a sentence with its source, and what else has to be known of it."""
    with st.expander("What each defense does", icon=":material/menu_book:"):
        for defense in preset.compared:
            more = words.caveat(defense.name, preset.experiment.train.schedule)
            text = " ".join(filter(None, [words.flat(words.DEFENSES[defense.name]), more]))
            st.markdown(f"**{theme.tag(defense.name)}.** {text}")
