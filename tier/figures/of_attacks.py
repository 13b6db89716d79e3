"""Attacks from outside: ROC, figures with intervals, features, a hundred little figures, scores, reasons."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tier.figures.look import (
    BOTTOM,
    FONT_PIXELS,
    GREY,
    LABEL_PIXELS,
    TOP,
    End,
    Panel,
    Style,
    add_heading,
    axis_range,
    band_of,
    finished,
    glyph,
    label_ends,
    levels_range,
    member_text,
    rgba,
    style,
)
from tier.figures.of_images import ORDER_TEXTS, belief

ATTACKS: dict[str, str] = {
    "agp": "Explanations (AGP)", "gap": "Gap", "loss": "Loss", "modified_entropy": "Modified entropy",
    "attribution_variance": "Map variance", "attribution_l1": "Map L1", "attribution_l2": "Map L2",
    "input_gradient_norm": "Gradient norm", "loss_mlp": "Loss MLP", "lira_offline": "LiRA, offline",
    "lira_online": "LiRA, online", "rmia": "RMIA",
}  # fmt: skip
STRICT = (0.001, 0.01)  # false-positive rates at which attacks are compared; the first has the line
_WIDTHS = {"transfer": 1.3, "adaptive": 3.2}  # of a curve by who attacks; dashes mean membership everywhere
_LINES = {"transfer": "thin: transfer", "adaptive": "<b>thick</b>: adaptive"}


def roc(curves: pd.DataFrame, null: pd.DataFrame) -> go.Figure:
    """Members found against false alarms on log-log axes, with the diagonal, the null band and the 0.1 % line.

    `curves`: model, setting (`transfer`, `adaptive`), fpr, tpr, all above 0; `null`: fpr, low, high. A model's marker
    stands at 0.1 % and 1 % where its curve reaches so far: filled on the thin line of who does not know the defense,
    open on the thick one of who does.
    """
    models = list(dict.fromkeys(curves["model"]))
    head, plot = TOP + (LABEL_PIXELS + 2) * len(models), 430
    figure = make_subplots(rows=1, cols=1)
    least = min([STRICT[0] / 1.3, *curves["fpr"]])
    floor = min([STRICT[0] / 1.3, *curves["tpr"]])
    figure.add_trace(band_of(null["fpr"], null["low"].clip(lower=floor), null["high"], GREY, 0.25))
    for x, y, dash in (([floor, 1], [floor, 1], "dot"), ([STRICT[0]] * 2, [floor, 1], "solid")):
        line = {"color": GREY, "width": 1.2, "dash": dash}
        figure.add_trace(go.Scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip", showlegend=False))
    for (model, setting), part in curves.groupby(["model", "setting"], sort=False):
        _roc_line(figure, part, style(str(model)), str(setting))
    key = [
        f"{glyph(style(model))} {style(model).label}: "
        + ", ".join(_LINES[name] for name in dict.fromkeys(part["setting"]))
        for model, part in ((model, curves[curves["model"] == model]) for model in models)
    ]
    add_heading(
        figure,
        "Members found against false alarms",
        "<br>".join(["dotted: guessing; grey: 95 % of shuffled memberships", *key]),
        1,
    )
    figure.add_annotation(
        x=np.log10(STRICT[0]), y=0, text="0.1 %", xanchor="left", yanchor="top", showarrow=False, xshift=3,
        font={"size": FONT_PIXELS},
    )  # fmt: skip
    log = {"type": "log", "showgrid": True, "dtick": 1, "minor": {"ticks": ""}}
    figure.update_xaxes(range=[np.log10(least), 0.02], tickformat=".3~%", **log)
    figure.update_yaxes(range=[np.log10(floor), 0.05], tickformat=".3~%", title="members found (TPR)", **log)
    finished(figure, head + plot + BOTTOM, right=24).update_layout(hovermode="closest", margin={"t": head})
    return figure.update_xaxes(showgrid=True, title="non-members taken for members (FPR)")


def _roc_line(figure: go.Figure, part: pd.DataFrame, look: Style, setting: str) -> None:
    """One attack's curve in steps, with markers at the strict rates that it resolves."""
    part, name = part.sort_values("fpr"), f"{look.label}, {setting}"
    hover = f"{name}<br>false alarms %{{x:.2%}}<br>members found %{{y:.2%}}<extra></extra>"
    common = {"name": name, "showlegend": False, "hovertemplate": hover}
    line = {"color": look.colour, "width": _WIDTHS[setting], "shape": "hv"}
    figure.add_trace(go.Scatter(x=part["fpr"], y=part["tpr"], mode="lines", line=line, **common))
    places = [(rate, part["tpr"][part["fpr"] <= rate * (1 + 1e-9)]) for rate in STRICT]
    marks = [(rate, float(found.iloc[-1])) for rate, found in places if len(found)]
    symbol = look.symbol if setting == "transfer" else f"{look.symbol}-open"
    figure.add_trace(
        go.Scatter(
            x=[rate for rate, _ in marks], y=[value for _, value in marks], mode="markers",
            marker={"color": look.colour, "symbol": symbol, "size": 11}, **common,
        )
    )  # fmt: skip


def attack_dots(rows: pd.DataFrame, heading: str, below: str, axis: str, neutral: float | None) -> go.Figure:
    """Figures of attacks as dots with intervals, a line of text per `name`, the first at the top.

    `rows`: name, model, open (bool: an open marker), value, low, high (null where unknown), text (for the hover).
    `neutral` gets a dotted line: guessing, or no effect; None where nothing of the kind exists.
    """
    names = list(dict.fromkeys(rows["name"]))
    order, several = rows.groupby("name").cumcount(), rows.groupby("name")["name"].transform("size")
    most = int(several.max()) if len(rows) else 1
    line = max(26, 15 * most + 8)  # pixels of a name
    shift = ((several - 1) / 2 - order) / (most + 0.8)
    heights = pd.Series([len(names) - 1 - names.index(name) for name in rows["name"]], rows.index) + shift
    figure = make_subplots(rows=1, cols=1)
    for (model, hollow), part in rows[rows["value"].notna()].groupby(["model", "open"], sort=False):
        look, places = style(str(model)), heights[part.index]
        figure.add_trace(
            go.Scatter(
                x=part["value"], y=places, mode="markers", name=look.label, showlegend=False, customdata=part[["text"]],
                error_x={
                    "type": "data", "array": part["high"] - part["value"], "arrayminus": part["value"] - part["low"],
                    "color": look.colour, "thickness": 1.5, "width": 3,
                },
                marker={"color": look.colour, "size": 10, "symbol": f"{look.symbol}-open" if hollow else look.symbol},
                hovertemplate="%{customdata[0]}<extra></extra>",
            )
        )  # fmt: skip
    marked = [] if neutral is None else [neutral]
    low, high = axis_range(rows["value"], rows["low"], rows["high"], include=marked)
    for place in marked:
        figure.add_vline(x=place, line={"color": GREY, "width": 1.2, "dash": "dot"})
    add_heading(figure, heading, below, 1)
    figure.update_yaxes(
        tickvals=list(range(len(names)))[::-1], ticktext=names, range=[-0.6, len(names) - 0.4], automargin=True
    )
    figure.update_xaxes(range=[low, high], title=axis, nticks=7)
    head = TOP + LABEL_PIXELS * below.count("<br>")
    finished(figure, head + line * max(len(names), 1) + BOTTOM, right=24)
    figure.update_layout(hovermode="closest", margin={"t": head})
    return figure.update_xaxes(showgrid=True)


def attack_features(table: pd.DataFrame, model: str) -> go.Figure:
    """Mean confidences of members and non-members of a shadow along both orders, and Welch's t below them.

    `table` as from `tables.attack_features`: order, level, kept, member_mean, nonmember_mean, t. The confidence with
    nothing removed begins both orders. A cross is a feature that the filter dropped.
    """
    look, height, gap = style(model), 780, 0.13
    figure = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=gap)
    pixels = (height - TOP - BOTTOM) * (1 - 2 * gap) / 3
    low, high = axis_range(table["member_mean"], table["nonmember_mean"])
    parts = {order: _of_order(table, order) for order in ORDER_TEXTS}
    for row, (order, part) in enumerate(parts.items(), 1):
        ends = []
        for member, column in ((True, "member_mean"), (False, "nonmember_mean")):
            name = member_text(member)
            figure.add_trace(_kept_line(part, column, look, name, member), row=row, col=1)
            if len(part):
                swatch = _swatch(look, member)
                ends.append(End(part["level"].iloc[-1], part[column].iloc[-1], name, look, member, swatch))
        label_ends(figure, Panel(row, pixels, low, high), ends)
        add_heading(figure, ORDER_TEXTS[order], "mean confidence; crosses: dropped by the filter", row)
        figure.update_yaxes(range=[low, high], title="confidence", row=row, col=1)
    low, high = axis_range(table["t"], include=[0.0])
    ends = []
    for part, name, width in zip(parts.values(), ("MoRF", "LeRF"), (3.0, 1.3), strict=True):
        known = part[part["t"].notna()]
        figure.add_trace(_kept_line(known, "t", look, name, width=width), row=3, col=1)
        if len(known):
            ends.append(End(known["level"].iloc[-1], known["t"].iloc[-1], name, look, swatch=_swatch(look)))
    figure.add_hline(y=0, line={"color": GREY, "width": 1}, row=3, col=1)
    label_ends(figure, Panel(3, pixels, low, high), ends)
    add_heading(figure, "How they separate: Welch's t", "above 0: members are surer; thick MoRF, thin LeRF", 3)
    figure.update_yaxes(range=[low, high], title="t", row=3, col=1)
    levels = table["level"].dropna()
    figure.update_xaxes(tickformat=".0%", range=levels_range(levels) if len(levels) else None)
    figure.update_xaxes(title="pixels removed", row=3, col=1)
    return finished(figure, height, 125)


def _of_order(table: pd.DataFrame, order: str) -> pd.DataFrame:
    """The features along one removal order, from the untouched confidence on, which belongs to both."""
    untouched = table["order"].isna() & table["level"].notna()
    return table[untouched | (table["order"] == order)].sort_values("level")


def _swatch(look: Style, member: bool = True) -> str:
    """A piece of a line as text."""
    return f'<span style="color:{look.colour}">{"━" if member else "╍"}</span>'


def _kept_line(
    part: pd.DataFrame, column: str, look: Style, name: str, member: bool = True, width: float = 2.0
) -> go.Scatter:
    """A line with crosses at features that the filter dropped; kept ones have the model's marker."""
    own = look.symbol if member else f"{look.symbol}-open"
    return go.Scatter(
        x=part["level"], y=part[column], mode="lines+markers", name=name, showlegend=False,
        line={"color": look.colour, "width": width, "dash": "solid" if member else "dash"},
        marker={"color": look.colour, "size": [9 if kept else 10 for kept in part["kept"]],
                "symbol": [own if kept else "x-thin" for kept in part["kept"]],
                "line": {"color": look.colour, "width": 2}},
        hovertemplate="%{y:.3f}",
    )  # fmt: skip


ACROSS = 25  # little figures in a row of a hundred
_PAWN = 30  # pixels of such a row


def hundred(table: pd.DataFrame, model: str) -> go.Figure:
    """A hundred little figures, 50 members and 50 non-members: whom the attack calls a member at its threshold.

    `table`: member, said, figures, images, as `tables.hundred` gives it. Filled figures are members, open ones are not;
    large ones in the model's colour are called members, small grey ones are not.
    """
    look, groups = style(model), [group for group in (True, False) if (table["member"] == group).any()]
    count = max(len(groups), 1)
    deep = -(-int(table.groupby("member")["figures"].sum().max()) // ACROSS) if len(table) else 1
    plot, gap = _PAWN * deep * count, TOP * (count - 1)
    spacing = TOP / (plot + gap) if count > 1 else 0.0
    figure = make_subplots(rows=count, cols=1, vertical_spacing=spacing)
    for number, group in enumerate(groups, 1):
        part, texts, start = table[table["member"] == group], [], 0
        for row in part.sort_values("said", ascending=False).to_dict("records"):
            places = np.arange(start, start + row["figures"])
            start += row["figures"]
            colour, verdict = look.colour if row["said"] else GREY, _verdict_text(group, bool(row["said"]))
            scale = 1.0 if row["said"] else PALE
            figure.add_traces(_pawns(places, colour, group, f"{row['figures']} {verdict}", scale), rows=number, cols=1)
            shape = ("▲" if group else "△") if row["said"] else ("▴" if group else "▵")
            texts.append(f'<span style="color:{colour}">{shape}</span> {row["figures"]} {verdict}')
        add_heading(figure, f"{start} {member_text(group)}", "   ".join(texts), number)
    axis = {"showgrid": False, "zeroline": False, "showticklabels": False, "fixedrange": True}
    finished(figure, TOP + plot + gap + 8, right=8).update_layout(hovermode="closest", margin={"l": 8, "b": 8})
    figure.update_xaxes(range=[-0.7, ACROSS - 0.3], ticks="", **axis)
    return figure.update_yaxes(range=[0.55 - deep, 0.55], ticks="", **axis)


def _verdict_text(member: bool, said: bool) -> str:
    """What it is called when the attack says this of such an image."""
    if member:
        return "found (true positives)" if said else "missed (false negatives)"
    return "accused (false positives)" if said else "cleared (true negatives)"


PALE = 0.6  # size of a little figure that is not called a member, against one that is


def _pawns(places: np.ndarray, colour: str, filled: bool, text: str, scale: float) -> list[go.Scatter]:
    """Little figures, each a head over a body, at numbered places row by row; `scale`: their size."""
    x, y = places % ACROSS, -(places // ACROSS).astype(float)
    return [
        go.Scatter(
            x=x, y=y + shift, mode="markers", showlegend=False, name=text, hovertemplate=f"{text}<extra></extra>",
            marker={"symbol": symbol if filled else f"{symbol}-open", "size": scale * size, "color": colour,
                    "line": {"width": 1.6 * scale, "color": colour}},
        )
        for symbol, size, shift in (("triangle-up", 10, -0.16 * scale), ("circle", 6.5, 0.16 * scale))
    ]  # fmt: skip


def attack_scores(scores: pd.DataFrame, model: str, thresholds: dict[str, float]) -> go.Figure:
    """How an attack's scores spread over members and non-members, with named thresholds as upright lines.

    `scores`: member, score (log odds of membership).
    """
    figure = belief(scores, None, model)
    low, high = figure.layout.xaxis.range
    figure.layout.shapes = ()
    for number, value in enumerate(thresholds.values()):
        if not np.isfinite(value):
            continue
        x = float(np.clip(value, low, high))
        figure.add_vline(x=x, line={"color": GREY, "width": 1.5 + number, "dash": "dot" if number == 0 else "solid"})
    texts = [f"{'dotted' if number == 0 else 'line'}: {name}" for number, name in enumerate(thresholds)]
    figure.layout.annotations[-1].text = f"<b>Scores of the attack</b><br>{', '.join(texts)}"
    return figure


_WRAPPED = 20  # letters of a feature's name from which on it takes two lines


def reasons(table: pd.DataFrame, model: str) -> go.Figure:
    """What moved one image's attack score, and which way: a bar per feature, the largest at the top.

    `table`: text, contribution (of log odds).
    """
    look = style(model)
    figure = make_subplots(rows=1, cols=1)
    values = table["contribution"].astype(float)[::-1]
    names = [text.replace(", ", ",<br>") if len(text) > _WRAPPED else text for text in table["text"]]
    figure.add_trace(
        go.Bar(
            x=values, y=names[::-1], orientation="h", showlegend=False, width=0.6,
            marker={"color": [look.colour if value > 0 else rgba(look.colour, 0.35) for value in values],
                    "line": {"color": look.colour, "width": 1}},
            hovertemplate="%{y}: %{x:+.2f}<extra></extra>",
        )
    )  # fmt: skip
    figure.update_layout(  # of the whole figure: beside long names the panel is narrower than its heading
        title={
            "text": "<b>What moved the score</b><br>right: towards member, left: away", "x": 0, "xref": "container",
            "y": 1, "yref": "container", "yanchor": "top", "pad": {"t": 14}, "font": {"size": FONT_PIXELS},
        }
    )  # fmt: skip
    figure.add_vline(x=0, line={"color": GREY, "width": 1})
    low, high = axis_range(values, include=[0.0])
    figure.update_xaxes(range=[low, high], title="log odds", nticks=4)
    figure.update_yaxes(automargin=True)
    return finished(figure, TOP + 30 * max(len(table), 1) + BOTTOM, right=24).update_layout(hovermode="closest")
