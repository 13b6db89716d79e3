"""The page Paper vs here: its choices, the cells beside each other, the paper's inconsistencies, its figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import components, loaders, sitemap, state, theme, words
from tier import figures, paper, presets, reproduce

NUMBER, TEXT = st.column_config.NumberColumn, st.column_config.TextColumn
LOOKS: dict[str, tuple[str, Any]] = {
    "agrees": (":material/check_circle:", "blue"),
    "same direction": (":material/trending_flat:", "blue"),
    "unclear": (":material/help:", "gray"),
    "does not move": (":material/horizontal_rule:", "yellow"),
    "contradicts": (":material/cancel:", "orange"),
    "differs": (":material/difference:", "violet"),
    "refused": (":material/block:", "gray"),
    "not computed": (":material/hourglass_empty:", "gray"),
}
"""The icon and colour of each verdict."""
COUNTING = {
    ("I", "III"): "Tables I and III count each level five times: members against non-members, the reverse, t and two "
    "p-values.",
    ("IX",): "Verdicts on Reg-only in Table IX are about beta alone, since the paper prints no Reg-only without the "
    "regularizer; those on Full start at Table VIII's lambda 0.",
}
"""What to know of counts of verdicts, by the tables that it concerns."""
QUANTITIES = {
    "kl_mean_member": "mean KL, members", "kl_mean_nonmember": "mean KL, non-members", "t_statistic": "t",
    "t_p_value": "p of t", "ks_statistic": "KS", "ks_p_value": "p of KS", "target_train": "target, members",
    "target_test": "target, non-members", "shadow_train": "shadow, members", "shadow_test": "shadow, non-members",
    "attack_train": "attack, training", "attack_test": "attack, test", "train_accuracy": "training accuracy",
    "test_top1": "test accuracy", "test_top5": "test accuracy, top 5", "test_loss": "test loss",
    "tpr_percent_at_0.1_percent_fpr": "members found at 0.1 % false alarms, %",
    "balanced_accuracy": "balanced accuracy of the attack", "audit_accuracy": "balanced accuracy of the audit",
    "audit_auc": "AUC of the audit", "faithfulness_correlation": "Faithfulness Correlation",
    "faithfulness_estimate": "Faithfulness Estimate", "sufficiency": "Sufficiency", "ssim": "SSIM", "mse": "MSE",
    "cosine": "cosine",
}  # fmt: skip
FIGURE_PAGES = {"figure2": "divergence", "figure3_morf": "trajectories", "figure3_lerf": "trajectories",
                "figure4": "divergence", "figure5": "quality"}  # fmt: skip


@dataclass(frozen=True)
class View:
    """What the reader has chosen: a data set, a table of the paper, and the cells that the filters leave."""

    of: reproduce.Protocol
    table: str
    all: tuple[reproduce.Cell, ...]  # of the data set
    cells: tuple[reproduce.Cell, ...]  # of the table, filtered

    @property
    def command(self) -> str:
        """What computes the table and prints it."""
        return f"python -m tier reproduce --dataset {self.of.dataset} --table {self.table}"

    @property
    def computed(self) -> list[reproduce.Cell]:
        """The cells that have a number of ours."""
        return [cell for cell in self.cells if cell.ours.value is not None]


# ---- choices


def choose() -> View:
    """The choices above the page."""
    names = {name: paper.NAMES[name] for name in reproduce.PROTOCOLS}
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        with st.container(width=180):
            dataset = state.select("Data set of the paper", names, key="of")
        of = reproduce.protocol(dataset)
        cells = loaders.cells(of)
        there = [table for table in paper.TABLES if any(cell.number.place.table == table for cell in cells)]
        table = state.choose("Table", {name: name for name in there}, key="table", default=_first(cells, there))
        of_table = [cell for cell in cells if cell.number.place.table == table]
        with st.popover("Filter", icon=":material/filter_alt:"):
            kept = _filtered(of_table)
    return View(of, table, tuple(cells), tuple(kept))


def _first(cells: Sequence[reproduce.Cell], tables: Sequence[str]) -> str:
    """The table that opens: utility, if ours is there; else the first that has any number of ours but set sizes."""
    known = {cell.number.place.table for cell in cells if cell.ours.value is not None} - {"II"}
    return next((name for name in ("IV", *tables) if name in known and name in tables), tables[0])


def _filtered(cells: Sequence[reproduce.Cell]) -> list[reproduce.Cell]:
    """The cells of the defenses, explainers, quantities and verdicts chosen."""
    places = [cell.number.place for cell in cells]
    offered: dict[str, dict[Any, str]] = {
        "Defenses": {p.defense: words.label(p.defense) for p in places if p.defense},
        "Explainers": {p.explainer: figures.EXPLAINERS[p.explainer] for p in places if p.explainer},
        "Quantities": {p.quantity: QUANTITIES[p.quantity] for p in places},
        "Verdicts": {cell.verdict: cell.verdict for cell in cells},
    }
    chosen = {
        label: set(state.choose_many(label, options, key=f"paper_{label.lower()}", default=list(options)))
        for label, options in offered.items()
        if len(options) > 1
    }

    def kept(cell: reproduce.Cell) -> bool:
        place = cell.number.place
        values = {"Defenses": place.defense, "Explainers": place.explainer, "Quantities": place.quantity}
        values["Verdicts"] = cell.verdict
        return all(values[label] in of or values[label] is None for label, of in chosen.items())

    return [cell for cell in cells if kept(cell)]


# ---- what it comes to


def summary(view: View) -> None:
    """How many numbers of the data set have which verdict, and in what ours depart from the paper."""
    counts = reproduce.counts(view.all)
    st.markdown(takeaway(view.all, paper.NAMES[view.of.dataset]), width=theme.TEXT_WIDTH)
    with st.container(horizontal=True):
        for verdict, count in counts.items():
            icon, colour = LOOKS[verdict]
            st.badge(f"{count} {verdict}", icon=icon, color=colour)
    with st.expander("The counts, table by table", icon=":material/table_rows:"):
        of_tables = reproduce.counts_by_table(view.all)
        st.table(pd.DataFrame(of_tables).T.rename_axis("table"), width="content")
        traps = [text for names, text in COUNTING.items() if of_tables.keys() & set(names)]
        if traps:
            st.caption(" ".join(traps), width=theme.TEXT_WIDTH)
    with st.expander("What the verdicts mean, and in what ours depart from the paper", icon=":material/rule:"):
        meanings = [f"- {LOOKS[name][0]} **{name}**: {of.meaning}." for name, of in reproduce.VERDICTS.items()]
        st.markdown("\n".join(meanings), width=theme.TEXT_WIDTH)
        st.markdown("Ours departs from the paper's protocol in this:", width=theme.TEXT_WIDTH)
        st.markdown("\n".join(f"- {text}." for text in view.of.departures), width=theme.TEXT_WIDTH)


def takeaway(cells: Sequence[reproduce.Cell], name: str) -> str:
    """The counts in a sentence."""
    counts = reproduce.counts(cells)
    whole = sum(counts.values())
    known = whole - counts["not computed"] - counts["refused"]
    if not known:
        return f"None of the paper's numbers on {name} was computed yet."
    others = {
        "unclear": "do not clearly move, but may do so by as much as the paper's",
        "does not move": "do not move as the paper's do",
        "differs": "lie outside our interval, with no direction to compare",
    }
    said = [f"{counts[verdict]} {meaning}" for verdict, meaning in others.items() if counts[verdict]]
    rest = f" Of the others, {'; '.join(said)}." if said else ""
    refused = f" {counts['refused']} cannot be had from so few images." if counts["refused"] else ""
    return (
        f"Of the paper's {whole} numbers on {name}, {known} were computed here. "
        f"**{counts['agrees']} agree within our interval, {counts['same direction']} move in the same direction, "
        f"{counts['contradicts']} contradict the paper**.{rest}{refused}"
    )


def beside(view: View) -> None:
    """The paper's numbers and ours as dots, one quantity at a time."""
    quantities = list(dict.fromkeys(cell.number.place.quantity for cell in view.computed))
    st.subheader(f"Table {view.table}: {paper.TITLES[view.table]}", anchor=False)
    if not quantities or view.table == "II":
        return
    with st.container(width=420):
        quantity = state.select("Number shown", {name: QUANTITIES[name] for name in quantities}, key="quantity")
    cells = [cell for cell in view.computed if cell.number.place.quantity == quantity]
    rows = dots(cells)
    start = chance(quantity)
    shown = figures.attack_dots(
        rows, words.capital(QUANTITIES[quantity]), "open: the paper · filled: here, with its 95 % interval",
        QUANTITIES[quantity], start,
    )  # fmt: skip
    components.chart(
        shown,
        rows.drop(columns=["open"]),
        name=f"paper_{view.of.dataset}_{view.table}_{quantity}",
        takeaway=told(cells, QUANTITIES[quantity]),
        meaning="""An open mark inside the bar of the filled one of its row agrees. The bar resamples images, and seeds
        where there are several: with one seed it leaves out what another training seed would change.""",
        settings=conditions(view, cells),
        key=f"paper_{view.table}_{quantity}",
    )


def conditions(view: View, cells: Sequence[reproduce.Cell]) -> str:
    """The settings line: the preset, what all cells share, and what differs between them once each."""
    preset = view.of.sweeps if view.table in paper.SWEEPS else view.of.main
    parts = [cell.conditions.split(", ") for cell in cells]
    shared = [part for part in parts[0] if all(part in of for of in parts)]
    seeds = sorted({seed for cell in cells for seed in cell.ours.seeds})
    told = [f"data: {preset}", *shared, f"seeds: {', '.join(map(str, seeds))}" if seeds else ""]
    return " · ".join(part for part in told if part)


def dots(cells: Sequence[reproduce.Cell]) -> pd.DataFrame:
    """Two rows per cell, the paper's and ours, for `figures.attack_dots`."""
    rows = []
    for cell in cells:
        low, high = cell.ours.interval or (cell.ours.value, cell.ours.value)
        own = {"name": row_name(cell), "model": cell.number.place.defense or "none"}
        printed = {"value": cell.number.value, "low": None, "high": None}
        ours = {"value": cell.ours.value, "low": low, "high": high}
        rows.append({**own, "open": True, **printed, "text": f"paper: {cell.number.value:g}"})
        rows.append({**own, "open": False, **ours, "text": f"here: {cell.ours.value:.3f}, {cell.verdict}"})
    return pd.DataFrame(rows)


def row_name(cell: reproduce.Cell) -> str:
    """What tells a cell from the others of its table and quantity."""
    place = cell.number.place
    parts = [
        None if place.defense is None else words.label(place.defense),
        None if place.explainer is None else figures.EXPLAINERS[place.explainer],
        None if place.lam is None or place.table == "IX" else f"lambda {place.lam:g}",
        None if place.beta is None or place.table == "VIII" else f"beta {place.beta:g}",
        None if place.level is None else f"{place.level:.0%} removed",
    ]
    return ", ".join(part for part in parts if part)


def chance(quantity: str) -> float | None:
    """Where a quantity stands if nothing is found, for the dotted line; None for one without such a place."""
    if quantity in ("balanced_accuracy", "audit_accuracy", "audit_auc"):
        return 0.5
    return 0.0 if quantity in ("t_statistic", "faithfulness_correlation", "faithfulness_estimate") else None


def told(cells: Sequence[reproduce.Cell], quantity: str) -> str:
    """The numbers of one quantity in a sentence: how many agree, and the one that is farthest apart."""
    counts = reproduce.counts(cells)
    far = max(cells, key=lambda cell: (cell.verdict != "agrees", cell.difference or 0.0))
    said = [f"{count} {name}" for name, count in counts.items() if count]
    counted = f"{words.capital(quantity)}: {', '.join(said)}."
    if far.verdict == "agrees":  # then all do
        return counted
    return (
        f"{counted} Farthest apart: {row_name(far)}, where the paper has {far.number.value:g} and this code "
        f"{far.ours.value:.3g}."
    )


# ---- the table


def table(view: View) -> None:
    """All cells of the table with the paper's number, ours, the verdict, and what has to be known; its command."""
    if not view.cells:
        st.info("The filters leave no number of this table.", icon=":material/filter_alt_off:")
        return
    frame = shown(view.cells)
    st.dataframe(
        frame, hide_index=True, placeholder="", alt=f"Table {view.table} of the paper with our numbers beside",
        column_config={
            "paper": NUMBER("Paper", format="%.4g"),
            "ours": NUMBER("Here", format="%.4g"),
            "interval": TEXT("95 % interval"),
            "difference": NUMBER("Apart", format="%.3g"),
            "beside": TEXT("Beside it", width="large"),
            "compared with": TEXT("Moves from", help="From where both numbers are said to move, for the verdict."),
            "note": TEXT("To be known", width="large"),
        },
    )  # fmt: skip
    st.caption("What computes this table, or prints it where it is stored (`--show` computes nothing):")
    st.code(view.command, language="bash")
    found = list(view.cells)
    with st.container(horizontal=True):
        components.download(reproduce.wide(found, view.table), f"paper_{view.of.dataset}_{view.table}")
        components.download(
            reproduce.latex(found, view.table), f"paper_{view.of.dataset}_{view.table}", key="latex", form="TeX"
        )


def shown(cells: Sequence[reproduce.Cell]) -> pd.DataFrame:
    """The table's lines; columns without a value left out."""
    lines = []
    for row in (cell.row() for cell in cells):
        interval = "" if row["interval"] is None else "{:.3g} to {:.3g}".format(*row["interval"])
        beside = "; ".join(f"{name}: {of['value']:.3g}" for name, of in row["beside"].items())
        lines.append(
            {
                "defense": None if row["defense"] is None else words.label(row["defense"]),
                "explainer": None if row["explainer"] is None else figures.EXPLAINERS[row["explainer"]],
                "lambda": row["lambda"],
                "beta": row["beta"],
                "removed": row["removed"],
                "quantity": QUANTITIES[row["quantity"]],
                "paper": row["paper"],
                "ours": row["ours"],
                "interval": interval,
                "difference": row["difference"],
                "verdict": row["verdict"],
                "compared with": figures.style(row["compared_with"]).label if row["compared_with"] else None,
                "beside": beside,
                "note": " ".join([row["refused"] or "", *row["notes"]]).strip(),
            }
        )
    return pd.DataFrame(lines).dropna(axis="columns", how="all")


def inconsistencies(view: View) -> None:
    """Where the paper disagrees with itself at numbers of this table, as it is about the whole table or some cells."""
    by_note: dict[str, list[reproduce.Cell]] = {}
    for cell in view.cells:
        for note in paper.notes(cell.number.place):
            by_note.setdefault(note, []).append(cell)
    if not by_note:
        return
    st.subheader("Where the paper is unclear or disagrees with itself", anchor=False)
    for note, cells in by_note.items():
        where = "the whole table" if len(cells) == len(view.cells) else f"{len(cells)} of {len(view.cells)} numbers"
        st.markdown(f"- {note} *({where})*", width=theme.TEXT_WIDTH)


# ---- figures


def curves(view: View) -> None:
    """The paper's Figures 2 to 5 from our runs, where they are stored, with links to the pages that show more."""
    made = loaders.paper_charts(view.of)
    st.subheader("The paper's figures, from our runs", anchor=False)
    if made:
        names = {name: reproduce.PAPER_FIGURES[name] for name in made}
        name = state.select("Figure", names, key="figure")
        components.plot(made[name], f"{view.of.dataset}_{name}", names[name], key=f"paper_{name}")
        preset = presets.get(view.of.main)
        epochs, seed = preset.experiment.train.epochs, preset.seeds[0]
        st.caption(f"{names[name]}. Data: {view.of.main}, {epochs} epochs, seed {seed}.")
        with st.container(horizontal=True):
            sitemap.link(FIGURE_PAGES[name], "More of it, with tests and single images", {"preset": view.of.main})
            sitemap.link("explanations", "Figure 6, image by image", {"preset": view.of.main})
    absent = [name for name in FIGURE_PAGES if name not in made]
    if absent:
        listed = "; ".join(reproduce.PAPER_FIGURES[name] for name in absent)
        st.info(f"Not stored yet: {listed}. This computes what is missing:", icon=":material/hourglass_empty:")
        st.code("\n".join(figure_commands(view.of, absent)), language="bash")


def figure_commands(of: reproduce.Protocol, absent: Sequence[str]) -> list[str]:
    """What computes figures: one command a table, or for curves, which no table needs, the one for everything."""
    base = f"python -m tier reproduce --dataset {of.dataset}"
    tables = [_FIGURE_TABLES.get(name) for name in absent]
    if None in tables:
        return [f"{base} --output paper"]
    return list(dict.fromkeys(f"{base} --table {table}" for table in tables))


_FIGURE_TABLES = {"figure2": "IV", "figure4": "IV", "figure5": "VI"}  # whose results a figure is drawn from


# ---- what the paper leaves open


def choices(view: View) -> None:
    """Each open choice tried by itself: does any explain why ours differs? Where none was, the audit of the tables'."""
    table = loaders.alternatives(view.of)
    known = table[table["audit_auc"].notna()]
    if not len(known):
        return
    several = len(further(known)) > 0
    heading = "What the paper leaves open, one choice at a time" if several else "The audit of the models in the tables"
    st.subheader(heading, anchor=False)
    rows = choice_dots(known) if several else model_dots(known)
    preset = presets.get(view.of.sweeps)
    components.chart(
        figures.attack_dots(rows, "AUC of the audit, with its 95 % interval", named(rows), "AUC of the audit", 0.5),
        table,
        name=f"paper_{view.of.dataset}_choices",
        takeaway=choice_told(known) if several else audit_told(known),
        meaning="""The paper leaves many settings open. Where one of them explained the difference, TIER would leak less
        than the undefended model under it, as the paper says it does."""
        if several
        else """The audit learns from the model's own members, which an attacker does not know. If TIER protected as the
        paper says, it would leak less than the undefended model.""",
        settings=f"data: {preset.name} · {preset.experiment.train.epochs} epochs"
        f"{' unless said' if several else ''} · seed {preset.seeds[0]}",
    )
    st.dataframe(
        audited(known), hide_index=True, placeholder="", alt="Accuracy and leak of each model under each choice",
        column_config={
            "training accuracy": NUMBER(format="%.3f"), "test accuracy": NUMBER(format="%.3f"),
            "audit": NUMBER("Audit, balanced accuracy", format="%.3f"), "AUC": NUMBER("Audit, AUC", format="%.3f"),
            "interval": TEXT("95 % interval"), "gap": NUMBER("Gap attack", format="%.3f"),
        },
    )  # fmt: skip
    reasons = table.drop_duplicates("choice")
    lines = [f"- **{row['choice']}**: {row['why']}" for row in reasons.to_dict("records")]
    missing = table[table["audit_auc"].isna()]
    lines += [f"- *{row['choice']}, {words.label(row['defense'])}: not computed*" for row in missing.to_dict("records")]
    title = "The choices, and why they might matter" if several else "What is computed, and what is not"
    with st.expander(title, icon=":material/alt_route:"):
        st.markdown("\n".join(lines), width=theme.TEXT_WIDTH)
        st.code(f"python -m tier reproduce --dataset {view.of.dataset} --alternatives", language="bash")


def further(known: pd.DataFrame) -> pd.DataFrame:
    """The runs that are not the protocol's own: not of its choice, nor the same computation under another name."""
    usual = known["choice"] == reproduce.CHOICES[0].name
    return known[~usual & ~known["key"].isin(known.loc[usual, "key"])]


def audited(known: pd.DataFrame) -> pd.DataFrame:
    """The lines of the table below the chart; the choice left out where there is one."""
    ends = zip(known["audit_auc_low"], known["audit_auc_high"], strict=True)
    made = pd.DataFrame({
        "choice": known["choice"], "defense": known["defense"].map(words.label),
        "training accuracy": known["train_accuracy"], "test accuracy": known["test_accuracy"],
        "audit": known["audit_balanced_accuracy"], "AUC": known["audit_auc"],
        "interval": ["" if pd.isna(low) else f"{low:.3f} to {high:.3f}" for low, high in ends],
        "gap": known["gap_balanced_accuracy"],
    })  # fmt: skip
    return made if known["choice"].nunique() > 1 else made.drop(columns="choice")


def model_dots(known: pd.DataFrame) -> pd.DataFrame:
    """As `choice_dots`, of one choice: a line per model."""
    own = known[known["choice"] == reproduce.CHOICES[0].name]
    return choice_dots(own).assign(name=[words.label(name) for name in own["defense"]])


def audit_told(known: pd.DataFrame) -> str:
    """How the models leak beside the undefended one, without a choice being tried."""
    rows = known[known["choice"] == reproduce.CHOICES[0].name].set_index("defense", drop=False)
    if "none" not in rows.index or len(rows) < 2:
        found = [f"{words.label(row['defense'])} {row['audit_auc']:.3f}" for row in rows.to_dict("records")]
        return f"AUC of the audit: {words.listed(found)}."
    none = rows.loc["none"].to_dict()
    said = [
        f"{words.label(row['defense'])} ({row['audit_auc']:.3f}) leaks {_beside(row, none)}"
        for row in rows.drop("none").to_dict("records")
    ]
    return f"AUC of the audit: undefended {none['audit_auc']:.3f}; {words.listed(said)}."


def _beside(row: dict[Any, Any], none: dict[Any, Any]) -> str:
    if row["audit_auc_high"] < none["audit_auc_low"]:
        return "clearly less"
    return "clearly more" if row["audit_auc_low"] > none["audit_auc_high"] else "neither clearly more nor clearly less"


def choice_dots(known: pd.DataFrame) -> pd.DataFrame:
    """A row per choice and model for `figures.attack_dots`."""
    made = known.rename(columns={"choice": "name", "defense": "model", "audit_auc": "value"}).assign(open=False)
    made = made.assign(low=known["audit_auc_low"], high=known["audit_auc_high"])
    texts = [f"{words.label(model)}: {value:.3f}" for model, value in zip(made["model"], made["value"], strict=True)]
    return made.assign(text=texts)[["name", "model", "open", "value", "low", "high", "text"]]


def named(rows: pd.DataFrame) -> str:
    """The mark of each model of a chart before its name."""
    looks = [figures.style(str(model)) for model in rows["model"].unique()]
    return " · ".join(f"{figures.glyph(look)} {look.label}" for look in looks)


def choice_told(known: pd.DataFrame) -> str:
    """Under how many choices the defended model leaks clearly less than the undefended one, and more.

    A run that the protocol has under another name, or another choice, counts once.
    """
    fresh = further(known)
    found = [pair for choice in fresh["choice"].unique() if (pair := _pair_of(known, choice)) is not None]
    pairs = list({tier["key"]: (none, tier) for none, tier in found if tier["key"] in set(fresh["key"])}.values())
    told = [_beside(tier, none) for none, tier in pairs]
    less, more = told.count("clearly less"), told.count("clearly more")
    return (
        f"Under {len(pairs)} choices both an undefended model and TIER were trained. TIER leaks clearly less under "
        f"{less} and clearly more under {more} (AUC of the audit, intervals apart)."
    )


def _pair_of(known: pd.DataFrame, choice: str) -> tuple[dict[Any, Any], dict[Any, Any]] | None:
    """The undefended and the TIER run of a choice other than the protocol itself.

    A choice that does not concern the undefended model is compared with that of the protocol.
    """
    usual, rows = reproduce.CHOICES[0].name, known[known["choice"] == choice].set_index("defense", drop=False)
    base = known[known["choice"] == usual].set_index("defense", drop=False)
    tier = next((name for name in ("tier_full", "tier_reg") if name in rows.index), None)
    if choice == usual or tier is None:
        return None
    own = any("none" in made.defenses for made in reproduce.CHOICES if made.name == choice)
    plain = rows if own else base
    return (plain.loc["none"].to_dict(), rows.loc[tier].to_dict()) if "none" in plain.index else None


def about(view: View) -> None:
    """Where the whole comparison is written down."""
    with st.expander("How this comparison is made", icon=":material/info:"):
        st.markdown(words.flat(_ABOUT), width=theme.TEXT_WIDTH)
        st.code(f"python -m tier reproduce --dataset {view.of.dataset} --output paper", language="bash")


_ABOUT = """Each number of the paper is answered by one run or attack of this code. A cell of Table V is the attack on
    the rest of the attacker's own shadow model, trained with the same defense, which is what the paper most likely
    reports; the attack on the target stands beside it. Numbers come from the store: nothing is typed in.
    REPRODUCTION.md says what agreed, what did not, and the likely reason. The command computes what is not stored and
    writes all tables and figures as files."""
