"""Cells in the form of the paper's tables: as text, as LaTeX, and as data frames."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from tier import paper
from tier.reproduce.verdicts import VERDICTS, Cell

KEYS = ("defense", "explainer", "lambda", "beta", "removed")


def in_paper_form(found: Sequence[Cell], table: str) -> list[list[str]]:
    """One table as the paper has it, header first: rows and columns as there, each cell `paper / ours [interval] mark`.

    What stands beside our numbers has rows of its own below them. Columns of KEYS that the table does not use are left
    out. Empty where no cell is of that table.
    """
    keys, rows = _rows(found, table)
    if not rows:
        return []
    quantities = list(dict.fromkeys(quantity for row in rows.values() for quantity in row))
    lines = [[*keys, *quantities]]
    for key, row in rows.items():
        texts = [_key_text(value) for value in key]
        lines.append([*texts, *(cell_text(row[name]) if name in row else "" for name in quantities)])
        for beside in dict.fromkeys(name for told in row.values() for name in told["beside"]):
            told = [row[name]["beside"].get(beside) if name in row else None for name in quantities]
            lines.append([f"- {beside}", *texts[1:], *("" if one is None else _ours_text(**one) for one in told)])
    return lines


def refusals(found: Sequence[Cell], table: str) -> list[str]:
    """Why numbers of one table are refused: a sentence for each reason, with the quantities that it concerns."""
    reasons: dict[str, dict[str, None]] = {}
    for cell in found:
        if cell.number.place.table == table and cell.verdict == "refused":
            reasons.setdefault(str(cell.ours.refused), {})[cell.number.place.quantity] = None
    return [f"{', '.join(names)}: {why}" for why, names in reasons.items()]


def _rows(found: Sequence[Cell], table: str) -> tuple[list[str], dict[tuple[object, ...], dict[str, dict[str, Any]]]]:
    """The keys that tell a table's rows apart, and by their values what `Cell.row` says of each of a row's numbers."""
    told = [cell.row() for cell in found if cell.number.place.table == table]
    keys = [name for name in KEYS if any(row[name] is not None for row in told)]
    rows: dict[tuple[object, ...], dict[str, dict[str, Any]]] = {}
    for row in told:
        rows.setdefault(tuple(row[name] for name in keys), {})[row["quantity"]] = row
    return keys, rows


def _key_text(value: object) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def cell_text(row: dict[str, Any]) -> str:
    """A cell in one line: the paper's number, ours with its interval, and the mark of the verdict."""
    if row["ours"] is None:
        return f"{row['paper']:.3g} / - {VERDICTS[row['verdict']].mark}".rstrip()
    return f"{row['paper']:.3g} / {_ours_text(row['ours'], row['interval'])} {VERDICTS[row['verdict']].mark}"


def _ours_text(value: float, interval: Sequence[float] | None) -> str:
    return f"{value:.3g}" if interval is None else f"{value:.3g} [{interval[0]:.3g}, {interval[1]:.3g}]"


def latex(found: Sequence[Cell], table: str) -> str:
    """One table in the paper's form as LaTeX, for the package booktabs, with a caption that says what a cell holds.

    No rows where no cell is of that table.
    """
    header, *lines = in_paper_form(found, table) or [[]]
    told = {cell.verdict for cell in found if cell.number.place.table == table}
    known = [of for name, of in VERDICTS.items() if name in told - {"refused"} and of.mark]
    refused = [f"{VERDICTS['refused'].mark} {reason}" for reason in refusals(found, table)]
    marks = "; ".join([*(f"{of.mark} {of.meaning}" for of in known), *refused])
    caption = f"{paper.TITLES[table]} (the paper's Table {table}). A cell has the paper's number / ours"
    caption += f" [95 % interval] and a mark: {marks}." if marks else "."
    made = pd.DataFrame(lines, columns=header).to_latex(
        index=False, escape=True, caption=_escaped(caption), label=f"tab:paper-{table.lower()}", position="htbp"
    )
    return str(made)


_SPECIAL = str.maketrans({character: f"\\{character}" for character in "%&#_$"} | {"~": r"\textasciitilde{}"})


def _escaped(text: str) -> str:
    """Text as LaTeX has it; what pandas escapes in cells only."""
    return text.translate(_SPECIAL)


def frame(found: Sequence[Cell]) -> pd.DataFrame:
    """A line per cell: what `Cell.row` says, intervals and texts flat."""
    lines = []
    for row in (cell.row() for cell in found):
        low, high = row.pop("interval") or (None, None)
        beside = "; ".join(f"{name}: {of['value']:.4g}" for name, of in row.pop("beside").items())
        texts = {"notes": " ".join(row.pop("notes")), "seeds": " ".join(map(str, row.pop("seeds")))}
        lines.append({**row, "low": low, "high": high, "beside": beside, **texts})
    return pd.DataFrame(lines)


WIDE = ("paper", "ours", "low", "high", "difference", "verdict")


def wide(found: Sequence[Cell], table: str) -> pd.DataFrame:
    """One table with the paper's rows: per quantity a column for each of WIDE, and for each number that stands
    beside ours.
    """
    keys, rows = _rows(found, table)
    lines = []
    for key, row in rows.items():
        line: dict[str, object] = dict(zip(keys, key, strict=True))
        for quantity, told in row.items():
            told["low"], told["high"] = told["interval"] or (None, None)
            line |= {f"{quantity} {name}": told[name] for name in WIDE}
            line |= {f"{quantity} {name}": beside["value"] for name, beside in told["beside"].items()}
        lines.append(line)
    return pd.DataFrame(lines)
