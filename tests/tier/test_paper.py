"""The paper's numbers as data."""

import csv
from pathlib import Path

import pytest

from tier import paper
from tier.config import EXPLAINER_SETTINGS

FOLDER = Path(paper.__file__).parent


def value(**wanted: object) -> float:
    """The one number whose place has these values."""
    (found,) = [n for n in paper.printed() if all(getattr(n.place, name) == each for name, each in wanted.items())]
    return found.value


def test_every_number_of_every_file_is_there() -> None:
    keys = {"dataset", "defense", "explainer", "lambda", "beta", "variant", "removal_percent"}
    expected = 0
    for path in FOLDER.glob("table*.csv"):
        for row in csv.DictReader(path.read_text().splitlines()):
            numbers = sum(bool(text) for name, text in row.items() if name not in keys)
            expected += numbers * (2 if row.get("explainer") == "IG / SHAP" else 1)  # one row for two explainers
    assert len(paper.printed()) == expected == 918


def test_numbers_have_our_names() -> None:
    assert value(table="IV", dataset="gtsrb", defense="tier_full", quantity="test_top1") == 0.74
    assert value(
        table="V", dataset="cifar100", defense="none", explainer="smoothgrad", quantity="balanced_accuracy"
    ) == pytest.approx(0.85)
    assert value(table="IX", dataset="gtsrb", defense="tier_reg", beta=0.5, quantity="test_top1") == 0.277
    assert value(table="VIII", dataset="gtsrb", lam=9.0, quantity="audit_auc") == 0.49
    assert value(table="III", level=0.1, quantity="t_statistic") == -24.1
    assert value(table="II", dataset="openforensics", quantity="attack_test") == 2000
    assert {n.place.explainer for n in paper.printed()} <= {None, *EXPLAINER_SETTINGS}


def test_a_place_is_one_number_only() -> None:
    places = [number.place for number in paper.printed()]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize(
    ("wanted", "half"),
    [
        ({"table": "V", "dataset": "gtsrb", "defense": "none", "explainer": "lime"}, 0.005),
        ({"table": "VIII", "dataset": "gtsrb", "lam": 0.0}, 0.005),
        ({"table": "IX", "dataset": "gtsrb", "defense": "tier_reg", "beta": 0.0}, 0.0005),
        ({"table": "II", "dataset": "gtsrb"}, 0.5),
    ],
)
def test_half_a_unit_of_the_last_digit(wanted: dict[str, object], half: float) -> None:
    found = [n for n in paper.printed() if all(getattr(n.place, name) == each for name, each in wanted.items())]
    assert found
    assert all(number.half == pytest.approx(half) for number in found)


def test_half_a_unit_in_scientific_notation() -> None:
    (p,) = [
        n for n in paper.printed() if n.place.table == "I" and n.place.quantity == "t_p_value" and n.value == 1.1e-12
    ]
    assert p.half == pytest.approx(5e-14)


def test_notes_stand_where_they_belong() -> None:
    at = {n.place: paper.notes(n.place) for n in paper.printed()}
    for note in paper.NOTES:
        assert any(note.text in texts for texts in at.values()), note.text
    gap = [place for place, texts in at.items() if any("gap attack" in text for text in texts)]
    assert {place.dataset for place in gap} == {"cifar100"}
    assert {place.table for place in gap} == {"IV", "V"}


def test_the_gap_attack_that_a_note_states() -> None:
    rows = {"dataset": "cifar100", "defense": "tier_full", "table": "IV"}
    gap = 0.5 + (value(**rows, quantity="train_accuracy") - value(**rows, quantity="test_top1")) / 2
    assert gap == pytest.approx(0.66)


def test_rates_of_a_note_are_multiples_of_one_in_313() -> None:
    def multiple(percent: float) -> bool:
        return abs(percent / 100 * 313 - round(percent / 100 * 313)) < 0.02

    of: dict[str, list[float]] = {"none": [], "tier_full": []}
    for number in paper.of("gtsrb", ["V"]):
        if number.place.defense in of and number.place.quantity.startswith("tpr"):
            of[str(number.place.defense)].append(number.value)
    assert all(multiple(rate) for rate in of["none"])
    assert not all(multiple(rate) for rate in of["tier_full"])


def test_what_the_paper_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="no data set 'mnist'; it has cifar10, cifar100"):
        paper.of("mnist")
    with pytest.raises(ValueError, match="no Table 'X'; it has I, II"):
        paper.of("gtsrb", ["X"])
