"""The support matrix in the reference says what the code says, of every aggregate."""

from __future__ import annotations

from pathlib import Path

import pytest

from paimon_features.definitions import aggregates
from paimon_features.definitions.aggregates import Aggregate
from tests.modules import load_file

matrix = load_file("support_matrix", Path(__file__).parents[1] / "tools" / "support_matrix.py")


def test_the_page_equals_the_code() -> None:
    page = matrix.PAGE.read_text(encoding="utf-8")
    assert page == matrix.written(page), "run: python tools/support_matrix.py"


def test_every_aggregate_has_a_row() -> None:
    classes = (getattr(aggregates, name) for name in aggregates.__all__)
    names = {c.__name__ for c in classes if isinstance(c, type) and issubclass(c, Aggregate)}
    assert {name.partition("(")[0] for name in matrix.AGGREGATES} == names - {"Aggregate"}


@pytest.mark.parametrize(
    ("aggregate", "kind", "window", "letters"),
    [
        ("Sum", "Float64", "`sawtooth`, a duration", "F L O N P"),
        ("Sum", "Float64", "`exact`, a duration", "F L P"),
        ("Sum", "String", "`sawtooth`, a duration", "-"),
        ("Last", "Decimal", "`hop`, a calendar unit", "F L O"),
    ],
)
def test_single_combinations(aggregate: str, kind: str, window: str, letters: str) -> None:
    view = matrix.compiled_view(
        matrix.AGGREGATES[aggregate], matrix.TYPES[kind], *matrix.WINDOWS[window]
    )
    assert matrix._letters(matrix.support(view, matrix.feast_types())) == letters
