"""Tables on screen: tests, matched runs, all runs, jobs, the store, versions."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import components, loaders, state, theme, words
from tier import figures, tables
from tier.presets import Preset

NUMBER = st.column_config.NumberColumn
TEXT = st.column_config.TextColumn

# ---- KL divergence


def tests(model: str, table: pd.DataFrame, unit: str, batch: int) -> None:
    """One model's tests in the form of Tables I and III."""
    label = figures.style(model).label
    st.markdown(f"**{theme.tag(model)}**")
    if table["t"].isna().all():
        fewest = int(min(table["n_members"].min(), table["n_nonmembers"].min()))
        st.caption(f"No tests: batch means of {batch} need at least 8 batches per group, and there are {fewest}.")
    st.dataframe(
        table.assign(removed=100 * table["removed"]),
        hide_index=True,
        placeholder="–",
        alt=f"Tests of the KL divergence of members against non-members, {label}",
        column_config={
            "removed": NUMBER("Removed", format="%.0f %%", pinned=True),
            "members": NUMBER("Mean KL, members", format="%.3f"),
            "nonmembers": NUMBER("Mean KL, non-members", format="%.3f"),
            "t": NUMBER("t", format="%.2f", help="Welch's t for single images, Student's t for batch means."),
            "df": NUMBER("df", format="%.0f", help="Degrees of freedom of t."),
            "t_p": NUMBER("p of t", format="%.2g", help="Corrected over the levels by Holm's method."),
            "ks": NUMBER("KS", format="%.3f", help="Two-sample Kolmogorov-Smirnov statistic."),
            "ks_p": NUMBER("p of KS", format="%.2g", help="Corrected over the levels by Holm's method."),
            "d": NUMBER("Cohen's d", format="%.3f", help="Difference of means in standard deviations."),
            "n_members": NUMBER("n members", format="%d"),
            "n_nonmembers": NUMBER("n non-members", format="%d"),
        },
    )
    name = f"kl_tests_{model}_{unit}"
    components.download(table, name)


def papers() -> None:
    """The paper's own tables, with what they say against the paper's text."""
    first, third = tables.paper_divergence("none"), tables.paper_divergence("tier_full")
    st.markdown(words.paper(first, third), width=theme.TEXT_WIDTH)
    for model, number, frame in (("none", "I", first), ("tier_full", "III", third)):
        st.markdown(f"**Table {number}**, {figures.style(model).label}, CIFAR-100")
        st.dataframe(
            frame.assign(removed=100 * frame["removed"]),
            hide_index=True,
            alt=f"The paper's Table {number}",
            column_config={
                "removed": NUMBER("Removed", format="%.0f %%"),
                "members": NUMBER("Mean KL, members"),
                "nonmembers": NUMBER("Mean KL, non-members"),
                "t": NUMBER("t", format="%.1f"),
                "t_p": NUMBER("p of t", format="%.2g"),
                "ks": NUMBER("KS", format="%.1f"),
                "ks_p": NUMBER("p of KS", format="%.2g"),
            },
        )


# ---- runs


def matched(frame: pd.DataFrame) -> None:
    """Each TIER setting beside its rivals of equal accuracy: those with several seeds, best advantage first."""
    shown = frame.sort_values(["counted", "advantage"], ascending=False, na_position="last")
    names = {True: "yes", False: "no", None: "unknown"}
    columns = ["model", "lambda", "beta", "seeds", "test_accuracy", "leak", "advantage", "p", "clear"]
    columns += ["best", "best_accuracy", "best_leak", "worst", "worst_leak", "rivals", "audit", "gap"]
    columns += ["best_audit", "best_gap"]
    verdicts = [None if pd.isna(value) else bool(value) for value in shown["clear"]]
    words_for = [names[v] if rivals else None for v, rivals in zip(verdicts, shown["rivals"], strict=True)]
    st.dataframe(
        shown[columns].assign(
            model=[figures.style(name).label for name in shown["model"]],
            clear=pd.array(words_for, dtype="string"),
        ),
        placeholder="–",
        hide_index=True,
        height=min(38 * (len(shown) + 1), 420),
        alt="TIER settings beside the least and most leaking rivals at their test accuracy",
        column_config={
            "model": TEXT("TIER setting", pinned=True),
            "lambda": NUMBER("Lambda", format="%g"),
            "beta": NUMBER("Beta", format="%g"),
            "seeds": NUMBER("Seeds", format="%d"),
            "test_accuracy": NUMBER("Test accuracy", format="%.3f"),
            "leak": NUMBER("Leak", format="%.3f", help="The larger of its audit and its gap attack."),
            "audit": NUMBER("Audit", format="%.3f", help="Cross-fitted balanced accuracy."),
            "gap": NUMBER("Gap attack", format="%.3f", help="Balanced accuracy of 'member if classified rightly'."),
            "best_audit": NUMBER("Least leaking rival's audit", format="%.3f"),
            "best_gap": NUMBER("Least leaking rival's gap attack", format="%.3f"),
            "rivals": NUMBER(
                "Rivals", format="%d", help="Settings and checkpoints without TIER as accurate, to within 2 points."
            ),
            "best": TEXT("Least leaking rival", width=290, help="Of those as accurate or more."),
            "best_accuracy": NUMBER("Its test accuracy", format="%.3f"),
            "best_leak": NUMBER("Its leak", format="%.3f"),
            "worst": TEXT("Most leaking rival", width=290, help="Of those within 2 points of accuracy."),
            "worst_leak": NUMBER("Its leak ", format="%.3f"),
            "advantage": NUMBER("Advantage of TIER", format="%+.3f"),
            "p": NUMBER("p, corrected", format="%.2g", help="For the choice of the best rival and for all settings."),
            "clear": TEXT("Clear", help="Whether p is below 0.05; unknown of a setting with one seed."),
        },
    )
    components.download(frame, "matched_accuracy")


def at_accuracy(table: pd.DataFrame, against: str) -> None:
    """Each defense's least leaking setting at an accuracy; `table` as from `tables.at_accuracy`, with `overhead`."""
    tier = words.label(against)
    names = {True: "yes", False: "no"}
    columns = ["defense", "setting_text", "seeds", "test_accuracy", "borderline", "leak", "low", "high", "difference"]
    columns += ["difference_low", "difference_high", "p", "clear", "overhead", "of", "single", "epsilon", "delta"]
    single = ["" if counted else ": one seed, not counted" for counted in table["counted"]]
    private = table["delta"].notna().any() if len(table) else False
    st.dataframe(
        table[columns if private else columns[:-2]].assign(
            defense=[f"{words.defense(name)}{end}" for name, end in zip(table["defense"], single, strict=True)],
            borderline=["perhaps less" if value else "yes" for value in table["borderline"]],
            clear=pd.array([None if pd.isna(v) else names[bool(v)] for v in table["clear"]], dtype="string"),
        ),
        hide_index=True,
        placeholder="–",
        alt="The least leaking setting of each defense at this test accuracy",
        column_config={
            "defense": TEXT("Defense", pinned=True),
            "setting_text": TEXT("Strength", help="Of its least leaking setting that is as accurate."),
            "test_accuracy": NUMBER("Test accuracy", format="%.3f"),
            "borderline": TEXT("As accurate", help="Perhaps less: its interval reaches below the limit."),
            "leak": NUMBER("Leak", format="%.3f", help="The larger of audit and gap attack, mean over its seeds."),
            "low": NUMBER("Leak, low", format="%.3f", help="95 % interval of the mean, over images and seeds."),
            "high": NUMBER("Leak, high", format="%.3f"),
            "difference": NUMBER(f"Against {tier}", format="%+.3f", help=f"Below 0: it leaks less than {tier}."),
            "difference_low": NUMBER("Low", format="%+.3f", help="95 % interval of this one difference."),
            "difference_high": NUMBER("High", format="%+.3f"),
            "p": NUMBER("p, corrected", format="%.2g", help="For the choice of settings and the number of rows."),
            "clear": TEXT("Clearly different", help="Whether p is below 0.05."),
            "overhead": NUMBER("Epoch time", format="%.2f ×", help="Over plain training, at its usual strength."),
            "of": NUMBER("Settings", format="%d", help="From so many of its settings and checkpoints it was picked."),
            "single": TEXT("Less, with one seed", help="Its least leaking setting of one seed; not counted."),
            "seeds": NUMBER("Seeds", format="%d"),
            "epsilon": NUMBER("Epsilon", format="localized", help="What DP-SGD guarantees: above 10 next to nothing."),
            "delta": NUMBER("Delta", format="%.0e"),
        },
    )


def runs(frame: pd.DataFrame) -> None:
    """All finished runs of a preset."""
    st.dataframe(
        frame.drop(columns=["headline", "text", "setting"]).assign(
            model=[figures.style(name).label for name in frame["model"]], key=frame["key"].str[:12]
        ),
        hide_index=True,
        placeholder="–",
        height=min(38 * (len(frame) + 1), 420),
        alt="All finished runs of this preset",
        column_config={
            "key": TEXT("Key", help="The first 12 digits of the result's key."),
            "model": TEXT("Model", pinned=True),
            "lambda": NUMBER("Lambda", format="%g"),
            "beta": NUMBER("Beta", format="%g"),
            "strength": NUMBER("Strength", format="%g", help="Of a defense other than TIER: what a sweep varies."),
            "seed": NUMBER("Seed", format="%d"),
            "epochs": NUMBER("Epochs", format="%d"),
            "train_accuracy": NUMBER("Train accuracy", format="%.3f"),
            "test_accuracy": NUMBER("Test accuracy", format="%.3f"),
            "leak": NUMBER("Leak", format="%.3f", help="The larger of the audit and the gap attack."),
            "test_low": NUMBER("Test accuracy, low", format="%.3f", help="Wilson's 95 % interval over images."),
            "test_high": NUMBER("Test accuracy, high", format="%.3f"),
            "low": NUMBER("Leak, low", format="%.3f", help="95 % interval of the attack that counts."),
            "high": NUMBER("Leak, high", format="%.3f"),
            "by": TEXT("Leak by", help="The attack that counts; 'coin' where both did worse than guessing."),
            "audit": NUMBER(
                "Audit", format="%.3f", help="Cross-fitted: each image by a classifier that did not see it."
            ),
            "audit_low": NUMBER("Audit, low", format="%.3f"),
            "audit_high": NUMBER("Audit, high", format="%.3f"),
            "auc": NUMBER("Audit AUC", format="%.3f"),
            "gap": NUMBER("Gap attack", format="%.3f", help="Balanced accuracy of 'member if classified rightly'."),
            "loss_auc": NUMBER("Loss AUC", format="%.3f"),
            "holdout": NUMBER("Audit, 80/20, as the paper", format="%.3f", help="On the 20 % held out only: noisier."),
            "features": NUMBER("Trajectory features", format="%d", help="Those that the audit's filter kept."),
            "seconds_per_epoch": NUMBER("Seconds per epoch", format="%.2f"),
            "epsilon": NUMBER("Epsilon", format="%.3g", help="What DP-SGD guarantees, at delta."),
            "delta": NUMBER("Delta", format="%.0e"),
        },
    )


def weights(preset: Preset) -> None:
    """Model weights of the headline runs, where they are stored; read only when asked for."""
    offered = {}
    for defense in preset.defenses:
        for seed in preset.seeds:
            one = preset.run(defense, seed)
            if loaders.has_weights(one):
                offered[f"{figures.style(defense.name).label}, seed {seed}"] = one
    if not offered:
        st.caption("No weights are stored for these runs; training a run again stores them.")
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        label = st.selectbox("Weights", list(offered), key="weights")
        st.download_button(
            "Weights (safetensors)",
            lambda: loaders.weights(offered[label]),
            f"{state.plain(label, 80).replace(' ', '_').replace(',', '')}.safetensors",
            "application/octet-stream",
            icon=":material/download:",
            type="tertiary",
            on_click="ignore",
        )


# ---- jobs, store, versions


@st.fragment(run_every=2.0)
def jobs() -> None:
    """The engine's runs, with the traceback of each that failed, renewed every two seconds."""
    try:
        known = loaders.engine().jobs()
    except (OSError, RuntimeError, ValueError) as error:
        components.engine_failed(error)
        return
    if not known:
        st.caption("Nothing has been asked for. Runs that pages start appear here.")
        return
    rows = [
        {
            "status": job.status,
            "what": job_text(job),
            "step": job.step,
            "progress": 1.0 if job.status == "done" else float(job.fraction or 0.0),
            "left": None if job.eta_seconds is None else components.duration(job.eta_seconds),
            "error": None if job.error is None else state.plain(job.error, 300),
            "key": job.key[:12],
        }
        for job in known
    ]
    st.dataframe(
        pd.DataFrame(rows),
        hide_index=True,
        alt="Runs that the engine knows",
        column_config={
            "status": TEXT("Status", pinned=True),
            "what": TEXT("Run", width="large"),
            "step": TEXT("Step"),
            "progress": st.column_config.ProgressColumn("Progress", format="percent", min_value=0, max_value=1),
            "left": TEXT("Time left"),
            "error": TEXT("Error"),
            "key": TEXT("Key"),
        },
    )
    going = {f"{job_text(job)} ({job.key[:12]})": job for job in known if not job.over}
    if going:
        with st.popover("Cancel for everybody", icon=":material/cancel:", type="tertiary"):
            chosen = st.selectbox("Run", list(going), key="cancel_all")
            st.caption("It ends for all who asked for it. Asked for again, training goes on from its checkpoint.")
            if st.button("Cancel this run", key="cancel_all_now") and chosen in going:
                loaders.engine().cancel_all(going[chosen].key)
    for failed in by_reason(known):
        what = job_text(failed[0]) if len(failed) == 1 else f"{len(failed)} runs for one reason"
        with st.expander(f"Why it failed: {state.plain(what, 120)}", icon=":material/bug_report:"):
            if len(failed) > 1:
                counted = Counter(job_text(job) for job in failed)
                st.markdown(
                    "\n".join(
                        f"- {state.plain(text, 120)}{f' ({n} of them)' if n > 1 else ''}" for text, n in counted.items()
                    )
                )
            st.code(failed[0].details, language=None)


def by_reason(jobs: Iterable[Any]) -> list[list[Any]]:
    """The jobs that failed and left a traceback, those with the same error together."""
    alike: dict[str, list[Any]] = {}
    for job in jobs:
        if job.status == "failed" and job.details:
            alike.setdefault(str(job.error), []).append(job)
    return list(alike.values())


def job_text(job: Any) -> str:
    """A run of the engine in words; its explainer, where that is not the gradient."""
    explainer = figures.EXPLAINERS.get(job.experiment.get("explain", {}).get("name", "gradient"))
    named = f", {explainer}" if explainer and explainer != figures.EXPLAINERS["gradient"] else ""
    return f"{job.stage}: {loaders.run_text(job.experiment)}{named}"


def store_contents() -> None:
    """What lies in the store, by stage, and what was set aside."""
    frame = loaders.contents()
    damaged = loaders.damaged()
    if damaged:
        lines = "\n".join(f"- {state.plain(text, 160)}" for text in damaged)
        st.warning(
            f"They failed a check and were set aside; asking for them again computes them anew.\n\n{lines}",
            title=f"{len(damaged)} damaged {'result' if len(damaged) == 1 else 'results'}",
            icon=":material/healing:",
        )
    if len(frame):
        st.dataframe(
            frame,
            hide_index=True,
            alt="Number and size of stored results by stage",
            column_config={
                "stage": TEXT("Stage"),
                "results": NUMBER("Results", format="%d"),
                "bytes": NUMBER("Size", format="bytes"),
                "seconds": NUMBER("Computing time", format="duration"),
                "newest": st.column_config.DatetimeColumn("Newest"),
                "versions": TEXT("Stage versions"),
            },
        )
    else:
        st.caption("The store is empty.")
    if st.button(
        "Check every file", key="verify", icon=":material/verified:", help="Reads all files and compares checksums."
    ):
        problems = loaders.verify()
        if problems:
            st.error("\n".join(f"- {state.plain(text, 200)}" for text in problems), title="Damaged files")
        else:
            st.success("Every stored file is as it was written.", icon=":material/check:")


def versions(snapshot: dict[str, Any]) -> None:
    """Packages, machine and code of this server."""
    rows = {"python": snapshot["python"], **snapshot["packages"], "cores": snapshot["cores"], "cpu": snapshot["cpu"]}
    rows |= {
        "code": (snapshot["commit"] or "not a git checkout")[:12] + (", changed" if snapshot["code_changed"] else "")
    }
    frame = pd.DataFrame({"name": list(rows), "version": [str(value) for value in rows.values()]})
    st.dataframe(frame, hide_index=True, width="content", alt="Versions", height=280)
    components.download(frame, "versions")
