"""The page Paper vs here: the paper's numbers beside those stored, what is said of them, and what can be kept."""

import re
from pathlib import Path

import pandas as pd
import pytest

from dashboard import paper as page
from dashboard import words
from tests.dashboard.conftest import Open, charts, texts
from tier import demo, paper, reproduce
from tier.paper import Place, Printed
from tier.reproduce import Cell
from tier.reproduce.ours import Measured


def cell(value: float | None, verdict: str, printed: float = 0.7, **place: object) -> Cell:
    where = Place(**{"table": "VIII", "dataset": "gtsrb", "quantity": "test_top1", "defense": "tier_full", **place})
    interval = None if value is None else (value - 0.02, value + 0.02)
    return Cell(Printed(where, printed, 0.005), Measured(value, interval, None, (0,)), verdict, None, "net, 3 epochs")


CELLS = [
    cell(0.71, "agrees", lam=0.0, beta=0.3),
    cell(0.40, "contradicts", lam=7.0, beta=0.3),
    cell(None, "not computed", lam=9.0, beta=0.3),
]


def test_every_quantity_and_data_set_has_a_name() -> None:
    assert {number.place.quantity for number in paper.printed()} == set(page.QUANTITIES)
    assert set(page.LOOKS) == set(reproduce.VERDICTS)
    assert len({icon for icon, _ in page.LOOKS.values()}) == len(page.LOOKS)
    assert set(page.FIGURE_PAGES) == set(reproduce.PAPER_FIGURES) - {"figure6"}


def test_the_sentence_counts_what_was_computed() -> None:
    said = page.takeaway(CELLS, "GTSRB")
    assert "Of the paper's 3 numbers on GTSRB, 2 were computed" in said
    assert "1 agree within our interval, 0 move in the same direction, 1 contradict the paper" in said
    assert page.takeaway(CELLS[2:], "GTSRB") == "None of the paper's numbers on GTSRB was computed yet."
    sizes = cell(1500.0, "agrees", 1500.0, table="II", quantity="target_train", defense=None)
    assert page.takeaway([sizes], "GTSRB").startswith("None")  # a setting is no finding


@pytest.mark.parametrize(("dataset", "told"), [("CIFAR-100", True), ("OpenForensics", False)])
def test_counts_come_with_what_to_know_of_tables_that_are_there(
    dataset: str, told: bool, open_page: Open, shipped_store: Path
) -> None:
    test = open_page("paper", shipped_store, of=dataset)
    assert not test.exception
    captions = " ".join(one.value for one in test.caption)
    assert [text in captions for text in page.COUNTING.values()] == [told, told]


def test_the_sentence_tells_apart_what_neither_agrees_nor_contradicts() -> None:
    verdicts = ["agrees", "unclear", "unclear", "does not move", "does not move", "does not move", "differs", "refused"]
    said = page.takeaway([cell(0.7, verdict) for verdict in verdicts], "GTSRB")
    assert "7 were computed" in said
    assert (
        "Of the others, 2 do not clearly move, but may do so by as much as the paper's; 3 do not move as the paper's "
        "do; 1 lie outside our interval, with no direction to compare."
    ) in said
    assert "1 cannot be had from so few images." in said
    assert "Of the others" not in page.takeaway(CELLS, "GTSRB")


def test_the_farthest_number_is_named() -> None:
    said = page.told(CELLS[:2], "test accuracy")
    assert said == (
        "Test accuracy: 1 agrees, 1 contradicts. Farthest apart: TIER Full, lambda 7, where the paper has 0.7 and this "
        "code 0.4."
    )


def test_none_is_farthest_where_all_agree() -> None:
    assert page.told(CELLS[:1], "test accuracy") == "Test accuracy: 1 agrees."


def test_dots_are_the_two_numbers() -> None:
    rows = page.dots(CELLS[:2])
    assert list(rows["value"]) == [0.7, 0.71, 0.7, 0.40]
    assert list(rows["open"]) == [True, False, True, False]
    assert rows["low"].dropna().tolist() == pytest.approx([0.69, 0.38])


def test_rows_of_a_table_have_different_names() -> None:
    for table in paper.TABLES:
        for dataset in paper.NAMES:
            places = [n.place for n in paper.of(dataset) if n.place.table == table]
            for quantity in {place.quantity for place in places}:
                rows = [cell(0.5, "agrees", table=p.table, quantity=quantity, defense=p.defense, explainer=p.explainer,
                             level=p.level, lam=p.lam, beta=p.beta)
                        for p in places if p.quantity == quantity]  # fmt: skip
                names = [page.row_name(one) for one in rows]
                assert len(set(names)) == len(names), (table, dataset, quantity)


def test_the_page_shows_what_is_stored(open_page: Open, shipped_store: Path) -> None:
    test = open_page("paper", shipped_store, table="VIII")
    assert not test.exception
    assert "Table VIII" in texts(test)
    assert len(charts(test)) >= 1
    table = test.dataframe[0]
    found = reproduce.cells(demo.open_store(str(shipped_store)), reproduce.protocol("gtsrb"), ["VIII"])
    assert list(table.value["paper"]) == [one.number.value for one in found]
    assert list(table.value["verdict"]) == [one.verdict for one in found]
    assert any("tier reproduce --dataset gtsrb --table VIII" in one.value for one in test.code)
    assert "The caption says beta 3.0" in texts(test)


def test_filters_that_leave_nothing_say_so(open_page: Open, shipped_store: Path) -> None:
    found = reproduce.cells(demo.open_store(str(shipped_store)), reproduce.protocol("gtsrb"), ["IV"])
    there = {(cell.number.place.defense or "", cell.verdict) for cell in found}
    defense, verdict = next(
        (name, said) for name in sorted({n for n, _ in there}) for said in sorted({v for _, v in there})
        if (name, said) not in there
    )  # fmt: skip
    test = open_page("paper", shipped_store, table="IV", paper_verdicts=verdict, paper_defenses=words.label(defense))
    assert not test.exception
    assert "The filters leave no number of this table." in texts(test)
    empty = reproduce.latex([], "IX")
    assert r"\begin{tabular}{}" in empty
    assert r"\\" not in empty  # not even a header
    assert page.shown([]).empty


def test_without_results_every_number_is_to_be_computed(open_page: Open, empty_store: Path) -> None:
    test = open_page("paper", empty_store)
    assert not test.exception
    assert "None of the paper's numbers on GTSRB was computed yet." in texts(test)
    (table,) = test.dataframe
    assert set(table.value["verdict"]) == {"not computed"}


def test_choices_are_counted_by_intervals_that_are_apart() -> None:
    def lines(choice: str, none: float, tier: float) -> list[dict[str, object]]:
        return [
            {"choice": choice, "defense": name, "key": f"{choice} {name}", "audit_auc": v, "audit_auc_low": v - 0.02,
             "audit_auc_high": v + 0.02}
            for name, v in (("none", none), ("tier_full", tier))
        ]  # fmt: skip

    usual = reproduce.CHOICES[0].name
    whole = [*lines(usual, 0.7, 0.9), *lines("a", 0.8, 0.6), *lines("b", 0.6, 0.8), *lines("c", 0.7, 0.71)]
    # d concerns TIER alone: it is compared with the protocol's undefended model; of e the undefended one alone was
    # trained, and of another net TIER alone, which another net's undefended model says nothing of
    other = next(choice.name for choice in reproduce.CHOICES if choice.defenses == ("none", "tier_full"))
    table = pd.DataFrame([*whole, lines("d", 0.9, 0.5)[1], lines("e", 0.9, 0.5)[0], lines(other, 0.9, 0.5)[1]])
    # f is the protocol's own computation under another name, and g is a's
    again = pd.DataFrame([*lines("f", 0.7, 0.9), *lines("g", 0.8, 0.6)])
    again["key"] = [f"{usual} none", f"{usual} tier_full", "a none", "a tier_full"]
    assert page.choice_told(pd.concat([table, again])) == page.choice_told(table)
    assert set(page.further(pd.concat([table, again]))["choice"]) == {"a", "b", "c", "d", "e", "g", other}
    assert page.choice_told(table) == (
        "Under 4 choices both an undefended model and TIER were trained. TIER leaks clearly less under 2 and clearly "
        "more under 1 (AUC of the audit, intervals apart)."
    )
    rows = page.choice_dots(table)
    assert list(rows["name"]) == [usual, usual, "a", "a", "b", "b", "c", "c", "d", "e", other]
    assert (rows["low"] < rows["value"]).all()
    assert re.sub("<[^>]*>", "", page.named(rows)) == "● Undefended · ◆ TIER Full"


def test_the_audit_of_the_tables_shows_where_no_choice_was_tried(open_page: Open, shipped_store: Path) -> None:
    of = reproduce.protocol("cifar10")
    known = reproduce.alternatives(demo.open_store(str(shipped_store)), of)
    known = known[known["audit_auc"].notna()]
    assert not len(page.further(known))
    test = open_page("paper", shipped_store, of="CIFAR-10", table="IV")
    assert not test.exception
    assert "The audit of the models in the tables" in texts(test)
    assert "What the paper leaves open" not in texts(test)
    shown = test.dataframe[1].value
    assert list(shown["AUC"]) == list(known["audit_auc"])
    assert "choice" not in shown
    assert list(page.model_dots(known)["name"]) == [words.label(name) for name in known["defense"]]


def test_how_tier_leaks_is_told_without_a_choice() -> None:
    def row(defense: str, value: float) -> dict[str, object]:
        return {"choice": reproduce.CHOICES[0].name, "defense": defense, "audit_auc": value,
                "audit_auc_low": value - 0.02, "audit_auc_high": value + 0.02}  # fmt: skip

    rows = [row("none", 0.7), row("tier_full", 0.8), row("tier_reg", 0.69)]
    assert page.audit_told(pd.DataFrame(rows)) == (
        "AUC of the audit: undefended 0.700; TIER Full (0.800) leaks clearly more and TIER Reg-only (0.690) leaks "
        "neither clearly more nor clearly less."
    )
    assert "TIER Full (0.600) leaks clearly less" in page.audit_told(pd.DataFrame([rows[0], row("tier_full", 0.6)]))
    assert page.audit_told(pd.DataFrame(rows[1:2])) == "AUC of the audit: TIER Full 0.800."


def test_absent_figures_are_named_with_what_computes_them(open_page: Open, empty_store: Path) -> None:
    of = reproduce.protocol("cifar100")
    base = "python -m tier reproduce --dataset cifar100"
    assert page.figure_commands(of, ["figure2", "figure4", "figure5"]) == [f"{base} --table IV", f"{base} --table VI"]
    assert page.figure_commands(of, ["figure3_morf", "figure5"]) == [f"{base} --output paper"]
    test = open_page("paper", empty_store, of="CIFAR-100", table="IV")
    (said,) = [one.value for one in test.info if one.value.startswith("Not stored yet")]
    assert all(reproduce.PAPER_FIGURES[name] in said for name in page.FIGURE_PAGES)
    assert any(one.value == f"{base} --output paper" for one in test.code)


def test_filters_leave_rows_out(open_page: Open, shipped_store: Path) -> None:
    test = open_page("paper", shipped_store, table="IX", paper_defenses="TIER Reg-only")
    assert not test.exception
    table = test.dataframe[0]
    assert set(table.value["defense"]) == {"TIER Reg-only"}
