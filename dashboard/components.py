"""What pages share on screen: charts with all they owe the reader, empty and failed states, a run's progress."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from dashboard import loaders, state, theme, words
from tier import figures, presets
from tier.config import EXPLAINER_SETTINGS, Experiment
from tier.engine import Job
from tier.presets import Preset

log = logging.getLogger(__name__)

# ---- around every page


def sidebar() -> None:
    """The choice of preset, the glossary and the format of saved charts."""
    names = loaders.available()
    with st.sidebar:
        name = state.select("Preset", names, key="preset", help=words.PRESET_HELP)
        preset = loaders.pinned(presets.get(name))
        st.caption(state.plain(preset.title, 200))
        glossary()
        state.choose(
            "Save charts as", theme.IMAGE_FORMATS, key="image", default=theme.IMAGE_FORMATS[0],
            help="Point at a chart and press its camera.",
        )  # fmt: skip
    st.session_state["chosen"] = preset


def chosen() -> Preset:
    """The preset that the sidebar shows, pinned to its data."""
    preset: Preset = st.session_state["chosen"]
    return preset


def glossary() -> None:
    """The words of the subject, one click away on every page."""
    with st.popover("Glossary", icon=":material/menu_book:", width="stretch"):
        for term, text in sorted(words.GLOSSARY.items()):
            st.markdown(f"**{term}.** {words.flat(text)}")


def show_notes() -> None:
    """What the view's state had to correct."""
    for text in state.notes():
        st.warning(text, icon=":material/link_off:")


def failed(error: Exception) -> None:
    """A page that could not be drawn: the error, and what to do about it."""
    st.error(
        f"{type(error).__name__}: {state.plain(error, 300)}\n\nReload the page. If it stays, check the stored results "
        "with `python -m tier store verify`; the server's log has the details.",
        title="This page could not be drawn",
        icon=":material/error:",
    )


def title(text: str, lead: str) -> None:
    """The page's name and a short paragraph on what it is for."""
    st.title(text, anchor=False)
    st.markdown(words.flat(lead), width=theme.TEXT_WIDTH)


def empty(preset: Preset, what: str, *more: str) -> None:
    """Nothing stored yet: what to run, in the terminal or here; `more`: further commands, after the preset's name."""
    st.info(
        f"There are no {what} for the preset {preset.name} yet. Compute them in a terminal, as below, or train single "
        "runs on the page Train.",
        title="Nothing to show yet",
        icon=":material/inventory_2:",
    )
    commands = [f"python -m tier run {preset.name}", *(f"python -m tier {command}" for command in more)]
    st.code("\n".join(commands), language="bash")


# ---- charts


def chart(
    figure: go.Figure,
    data: pd.DataFrame,
    *,
    name: str,
    takeaway: str | Mapping[str, str],
    meaning: str,
    settings: str,
    key: str = "",
    on_select: Callable[[], None] | None = None,
) -> None:
    """A figure with its takeaway (also its alternative text), its meaning in plain words, its settings and its data.

    `on_select` is called when a point is clicked; the points lie in the session under `chart_` and the key.
    """
    if isinstance(takeaway, str):
        alt = takeaway
        st.markdown(takeaway, width=theme.TEXT_WIDTH)
    else:
        alt = " ".join(f"{figures.style(model).label}: {text}" for model, text in takeaway.items())
        lines = [f"- **{theme.tag(model)}**: {text}" for model, text in takeaway.items()]
        st.markdown("\n".join(lines), width=theme.TEXT_WIDTH)
    plot(figure, name, alt, key=f"chart_{key or name}", on_select=on_select)
    st.markdown(f":material/lightbulb: {words.flat(meaning)}", width=theme.TEXT_WIDTH)
    caption_with_data(settings, data, name, key)


def plot(figure: go.Figure, name: str, alt: str, key: str, on_select: Callable[[], None] | None = None) -> None:
    """A figure alone, in the theme's ink; its camera saves it in the format that the sidebar names."""
    config = theme.chart_config(name, st.session_state.get("image", theme.IMAGE_FORMATS[0]))
    if on_select is None:
        st.plotly_chart(theme.ink(figure), config=config, alt=alt, key=key)
    else:
        st.plotly_chart(
            theme.ink(figure), config=config, alt=alt, key=key, on_select=on_select, selection_mode="points"
        )


def caption_with_data(settings: str, data: pd.DataFrame, name: str, key: str = "") -> None:
    """The settings line of a chart or table, with its data."""
    with st.container(horizontal=True, vertical_alignment="center", wrap=False):
        st.caption(settings, width="stretch")
        download(data, name, key=key)


def key_figure(model: str, row: Mapping[str, Any] | None) -> None:
    """One model's accuracy and leak, out of 100, with the range over its seeds."""
    with st.container(border=True, height="stretch"):
        st.markdown(f"**{theme.tag(model)}**")
        if row is None:
            st.caption("Not computed yet.")
            return
        with st.container(horizontal=True, gap="medium"):
            st.metric("Attack right", words.of_hundred(row["leak"]), width="content")
            st.metric("New images right", words.of_hundred(row["test_accuracy"]), width="content")
        st.caption(words.spread(row))
        if row["features"] == 0:
            st.caption(words.BLIND)


def about_data(preset: Preset) -> None:
    """What became of the images on their way into the four sets; nothing while no report tells."""
    sizes, notes = loaders.about_data(preset)
    if not sizes and not notes:
        return
    with st.expander("About the data", icon=":material/photo_library:"):
        lines = [f"{preset.title}. {preset.why}", *([words.sizes(sizes)] if sizes else []), *notes]
        st.markdown("\n".join(f"- {state.plain(line, 400)}" for line in lines), width=theme.TEXT_WIDTH)


def download(data: pd.DataFrame | str, name: str, key: str = "", form: str = "CSV") -> None:
    """A table as CSV, or text in the form named, for the reader to keep."""
    text = data if isinstance(data, str) else data.to_csv(index=False)
    kind = form.lower()
    st.download_button(
        f"Data ({form})", text, f"{name}.{kind}", f"text/{kind}" if kind == "csv" else f"application/{kind}",
        key=f"{kind}_{key or name}", type="tertiary", icon=":material/download:", on_click="ignore",
    )  # fmt: skip


def settings_line(preset: Preset, one: Experiment, **extra: object) -> str:
    """The settings that a chart's numbers depend on; `extra` adds a chart's own, None leaves one out."""
    members, nonmembers = loaders.sizes(one)
    parts = {"data": preset.name, "n": f"{members} members and {nonmembers} non-members", **extra}
    return " · ".join(f"{name.replace('_', ' ')}: {value}" for name, value in parts.items() if value is not None)


def audit_text(preset: Preset) -> str:
    """How the audit compared on the pages is made, for a settings line."""
    return f"{preset.experiment.audit.folds}-fold cross-fitted"


# ---- models to compare


@dataclass(frozen=True)
class Strength:
    """TIER's lambda and beta (None without TIER) and the training seed that a page shows."""

    lambda_: float | None
    beta: float | None
    seed: int


def choose_strength(preset: Preset) -> Strength:
    """Lambda, beta and seed, in a popover, because most readers leave them as they are."""
    tier = next((d.tier for d in preset.defenses if d.name in ("tier_full", "tier_reg")), None)
    lam = beta = None
    with st.popover("TIER strength and seed", icon=":material/tune:"):
        if tier is not None:
            lam = state.stop("Lambda", _stops(preset.lambdas, tier.lambda_), key="lambda", default=tier.lambda_)
            beta = state.stop("Beta", _stops(preset.betas, tier.beta), key="beta", default=tier.beta)
        seed = state.choose("Training seed", list(preset.seeds), key="seed", default=preset.seeds[0])
    return Strength(lam, beta, seed)


def choose_models(preset: Preset, at: Strength, usual: Sequence[str], control: bool = False) -> dict[str, Experiment]:
    """The models that a page compares, each with its experiment; `control` offers a second undefended seed."""
    offered: dict[str, str] = {defense.name: figures.style(defense.name).label for defense in preset.defenses}
    if control and len(preset.seeds) > 1:
        offered["control"] = figures.style("control").label
    default = [name for name in usual if name in offered] or list(offered)[:1]
    return {
        name: _experiment(preset, name, at)
        for name in state.choose_many("Models", offered, key="models", default=default)
    }


def choose_beside(preset: Preset, at: Strength, usual: Sequence[str] = ("tier_full",)) -> dict[str, Experiment]:
    """The undefended model, first, and the defended ones that a page shows beside it."""
    offered = {d.name: figures.style(d.name).label for d in preset.defenses if d.name != "none"}
    default = [name for name in usual if name in offered] or list(offered)[:1]
    beside = state.choose_many("Beside the undefended model", offered, key="beside", default=default)
    return {name: _experiment(preset, name, at) for name in ("none", *beside)}


def explainer_text(one: Experiment) -> str:
    """An explainer with the settings that act on it, for a settings line."""
    label, acting = figures.EXPLAINERS.get(one.explain.name, one.explain.name), explainer_settings(one)
    return f"{label} ({acting})" if acting else label


def explainer_settings(one: Experiment) -> str:
    """The settings that act on an explainer, but for a class activation map's layer."""
    acting = {name: getattr(one.explain, name) for name in EXPLAINER_SETTINGS[one.explain.name] if name != "cam_layer"}
    parts = [f"{name.replace('_', ' ')} {value:g}" if isinstance(value, float) else f"{name.replace('_', ' ')} {value}"
             for name, value in acting.items()]  # fmt: skip
    return ", ".join(parts)


def _stops(grid: tuple[float, ...], usual: float) -> list[float]:
    return sorted({*grid, usual})


def _experiment(preset: Preset, model: str, at: Strength) -> Experiment:
    if model == "control":
        return preset.run("none", next(other for other in preset.seeds if other != at.seed))
    if model in ("tier_reg", "tier_full") and at.lambda_ is not None and at.beta is not None:
        return preset.point("tier_full" if model == "tier_full" else "tier_reg", at.lambda_, at.beta, at.seed)
    return preset.run(model, at.seed)


def strength(models: Mapping[str, Experiment]) -> dict[str, str]:
    """What the settings line says about the models shown: TIER's strength and the training seeds."""
    tier = next((one.defense.tier for name, one in models.items() if name.startswith("tier")), None)
    made = {} if tier is None else {"lambda": f"{tier.lambda_:g}", "beta": f"{tier.beta:g}"}
    seeds = sorted({one.train.seed for one in models.values()})
    return {**made, "seeds" if len(seeds) > 1 else "seed": ", ".join(str(seed) for seed in seeds)}


def share(label: str, value: float, base: float | None, better: Literal["normal", "inverse"]) -> None:
    """A share out of 100, with its distance from the undefended model's."""
    delta = None if base is None or pd.isna(value) or pd.isna(base) else round(100 * value) - round(100 * base)
    shown = "unknown" if pd.isna(value) else f"{100 * value:.0f} of 100"
    against = None if delta is None else "vs. undefended"
    st.metric(label, shown, delta, delta_color=better, delta_description=against, width="content")


# ---- runs


def offer(stage: str, missing: Mapping[str, Experiment], file: str) -> None:
    """Results whose `file` is not stored: say which, compute them on request, and show how far they are."""
    if not missing:
        return
    with st.container(border=True):
        names = ", ".join(figures.style(name).label for name in missing)
        st.markdown(f":material/hourglass_empty: Not stored with these settings: **{names}**.")
        if st.button("Compute now", key=f"compute_{stage}", icon=":material/play_arrow:"):
            for one in missing.values():
                submit(stage, one, [file])
        # two models at lambda 0 are one run, which is watched once
        for one in {loaders.key(stage, one) or name: one for name, one in missing.items()}.values():
            watch(stage, one)


def submit(stage: str, one: Experiment, need: Sequence[str] = ()) -> None:
    """Ask the engine for a result with the files in `need`; when that fails, say why and what to do."""
    try:
        loaders.engine().submit(stage, one, state.requester(), need=need)
    except (OSError, RuntimeError, ValueError) as error:
        engine_failed(error)
        return
    state.remember_requester(True)


def engine_failed(error: Exception) -> None:
    """The engine cannot be reached or started."""
    log.error("the engine cannot be used: %s", error)
    st.error(
        f"{state.plain(error, 300)}\n\nStart it by hand to see why: `python -m tier engine`. Everything that is stored "
        "can still be looked at.",
        title="The engine cannot be used",
        icon=":material/power_off:",
    )


def watch(stage: str, one: Experiment) -> bool:
    """Show the run that computes a result, if there is one; says whether there is."""
    try:
        job = loaders.job(stage, one)
        whole = job is not None and not job.over and loaders.timed(job)
    except (OSError, RuntimeError, ValueError) as error:
        engine_failed(error)
        return True
    if job is None or job.status == "done":
        return False
    st.fragment(_progress, run_every=None if job.over else 1.0)(stage, one, whole)
    return True


def _progress(stage: str, one: Experiment, whole: bool) -> None:
    """One run: its place in the queue, progress, time left, Cancel, live curves; drawn anew each second."""
    job = loaders.job(stage, one)
    if job is None or job.status == "done":
        loaders.refresh()
        st.rerun()  # the page finds the result, or no run any more
    if job.over:
        _ended(job)
        return
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(_progress_text(job, one.data.source, whole), width="stretch")
            if state.requester() not in job.requesters:
                st.caption("Asked for by somebody else", width="content")
            elif st.button("Cancel", key=f"cancel_{job.key}", icon=":material/close:"):
                loaders.engine().cancel(job.key, state.requester())
                st.rerun()
        st.progress(_overall(job))
        events = loaders.engine().history(job.key)
        if len(events):
            figure = figures.training(events, one.defense.canonical().trained.name, one.train.epochs)
            plot(figure, "training", words.training(events), key=f"live_{job.key}")
            st.markdown(words.training(events), width=theme.TEXT_WIDTH)


def forget_requester() -> None:
    """Take the requester out of the address once none of its runs goes on."""
    if "me" not in st.query_params:
        return
    try:
        jobs = loaders.engine().jobs()
    except (OSError, RuntimeError, ValueError) as error:
        log.warning("the engine cannot be asked for its jobs: %s", error)
        return
    if not any(state.requester() in job.requesters and not job.over for job in jobs):
        state.remember_requester(False)


def _overall(job: Job) -> float:
    """The share of the current step that is done, 0 to 1."""
    return min(max(job.fraction or 0.0, 0.0), 1.0)


def _progress_text(job: Job, source: str, whole: bool) -> str:
    """What a run is doing and how long it still takes; `whole`: the time left is the run's, not the step's."""
    parts = [f":material/{'schedule' if job.status == 'queued' else 'sync'}: **{_step_text(job, source)}.**"]
    if job.status == "queued" and job.position:
        parts.append(f"Number {job.position} in the queue.")
    elif job.epoch and job.epochs and job.step == "training":
        parts.append(f"Epoch {job.epoch} of {job.epochs}.")
    if job.eta_seconds is not None:
        step = "" if whole or job.status == "queued" else " in this step"
        parts.append(f"About {duration(job.eta_seconds)} left{step}.")
    if len(job.requesters) > 1:
        parts.append(f"{len(job.requesters)} people wait for it.")
    return " ".join(parts)


def _step_text(job: Job, source: str) -> str:
    """The step in words; the silent ones at the beginning say what takes so long."""
    if job.step in ("starting", "waiting for the engine to start"):
        what = "Starting the engine" if job.status == "queued" else "Starting"
        return f"{what}; the first run also {'draws' if source == 'signs' else 'reads'} the images, for some seconds"
    if job.step == "reading the images" and source == "signs":
        return "Drawing the images"
    step = state.plain(job.step, 200)
    return words.capital(step)


def _ended(job: Job) -> None:
    """A run that failed or was cancelled, and how to go on."""
    if job.status == "cancelled":
        st.info(
            "Asked for again, it goes on from its last checkpoint.",
            title="The run was cancelled",
            icon=":material/block:",
        )
        return
    st.error(
        f"{state.plain(job.error or 'no reason given', 600)}\n\nChange what the message names and ask again. The same "
        "settings can be tried again, too; the page Runs has the details.",
        title="The run failed",
        icon=":material/error:",
    )


def duration(seconds: float) -> str:
    """`40 s`, `3 min` or `2 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
