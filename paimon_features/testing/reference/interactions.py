"""Reference implementation of interactions: their values row by row, from the features read."""

from __future__ import annotations

import decimal
import math
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from paimon_features.core.columns.column import Column
from paimon_features.core.expressions.nodes import Call, walk
from paimon_features.core.types.schema import DataType, DecimalType
from paimon_features.definitions import CompiledInteraction, Selection
from paimon_features.definitions.selection import Computation
from paimon_features.testing.reference.expressions import UnsafeStepError, evaluate_row

INEXACT = ("exp", "exp2", "ln", "power")
"""Functions that are accurate to within units in the last place, not to the bit."""


def interaction_value(interaction: CompiledInteraction, row: Mapping[str, Any]) -> tuple[Any, bool]:
    """Return the value on one row of its inputs, and whether it overflows (then it is None).

    Times and dates are integers, as in ``plain_values``.
    """
    try:
        value = evaluate_row(interaction.expression, row)
    except UnsafeStepError:
        return None, True
    if isinstance(value, float) and not math.isfinite(value):
        return None, True
    return value, False


def agrees(interaction: CompiledInteraction, got: Any, expected: Any) -> bool:
    """Return whether a value is correct: to the bit, unless it uses an inexact function."""
    nodes = walk(interaction.expression)
    inexact = any(isinstance(node, Call) and node.op in INEXACT for node in nodes)
    if inexact and isinstance(got, float) and isinstance(expected, float):
        return abs(got - expected) <= 1e-12 * max(1.0, abs(expected))
    return type(got) is type(expected) and bool(got == expected)


def plain_values(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return Python values of a column, None for null, times and dates as integers."""
    column = Column.from_arrow(array)
    pairs = zip(column.values.tolist(), column.mask.tolist(), strict=True)
    return [value if is_valid else None for value, is_valid in pairs]


def wrong_interactions(
    selection: Selection, table: pa.Table, inputs: Mapping[str, pa.Array]
) -> Iterator[tuple[CompiledInteraction, int, str]]:
    """Return interaction, row and difference wherever a value is not that of its inputs.

    ``table`` contains the outputs of ``selection``, including all features that are read.
    """
    values = {str(o): plain_values(table[name]) for o, name in selection.columns.items()}
    values.update((name, plain_values(array)) for name, array in inputs.items())
    for interaction in selection.interactions:
        names = [*map(str, interaction.refs), *interaction.inputs]
        for row, got in enumerate(values[interaction.name]):
            arguments = {name: values[name][row] for name in names}
            expected, _ = interaction_value(interaction, arguments)
            if not agrees(interaction, got, expected):
                yield interaction, row, f"got {got!r}, expected {expected!r} of {arguments}"


def apart(
    selection: Selection, left: pa.Table, right: pa.Table
) -> Iterator[tuple[Computation, int, str]]:
    """Yield as ``wrong_interactions``, wherever two tables agree on the features but not on the
    value."""
    a, b = (
        {str(o): plain_values(table[name]) for o, name in selection.columns.items()}
        for table in (left, right)
    )
    for computation in selection.computed:
        for row, (one, other) in enumerate(
            zip(a[computation.name], b[computation.name], strict=True)
        ):
            if one != other and all(a[str(r)][row] == b[str(r)][row] for r in computation.refs):
                yield computation, row, f"{one!r} on one path, {other!r} on the other"


def some_inputs(
    rng: random.Random, inputs: Mapping[str, DataType], rows: int
) -> dict[str, pa.Array]:
    """Return random request inputs, about one in ten null."""
    return {
        name: pa.array(
            [None if rng.random() < 0.1 else _some(rng, kind) for _ in range(rows)], kind.arrow
        )
        for name, kind in inputs.items()
    }


def _some(rng: random.Random, kind: DataType) -> Any:
    if isinstance(kind, DecimalType):
        digits = rng.randint(-(10 ** min(kind.precision, 6)) + 1, 10 ** min(kind.precision, 6) - 1)
        return decimal.Decimal(digits).scaleb(-kind.scale)
    if kind.is_float:
        return rng.choice([0.0, rng.gauss(0, 100)])
    if kind.text == "string":
        return rng.choice(["", "a", "EUR", "äö"])
    if kind.text == "bool":
        return rng.random() < 0.5
    return rng.randint(-10, 1000)
