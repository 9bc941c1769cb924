"""Transformed features of a read, by the stored parameters of their transformers alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from paimon_features.definitions import CompiledTransformed, Selection
from paimon_features.testing.reference.fitted import row_of
from paimon_features.testing.reference.interactions import plain_values
from paimon_features.testing.reference.numeric import is_inexact, near


def transformed_value(transformed: CompiledTransformed, row: Sequence[Any]) -> tuple[Any, bool]:
    """Return the value of one row of its parts, and whether it cannot be transformed (then it is
    None).

    It follows from the stored parameters only, as in the exported file.
    """
    out, failed = row_of(transformed.fitted.transformer.to_params(), row)
    if failed or any(number is not None and not math.isfinite(number) for number in out):
        return None, all(v is not None for v in row)
    if transformed.fitted.transformer.is_scalar:
        return out[0], False
    return (None if all(v is None for v in out) else out), False


def agrees_transformed(transformed: CompiledTransformed, got: Any, expected: Any) -> bool:
    """Return True if a value is right: to the bit, unless a function in it is not exact."""
    if is_inexact(transformed.fitted.transformer.to_params()):
        return near(got, expected)
    return type(got) is type(expected) and bool(got == expected)


def wrong_transformed(
    selection: Selection, table: pa.Table
) -> Iterator[tuple[CompiledTransformed, int, str]]:
    """Yield the feature, the row and what is wrong, wherever a value is not what its parts say.

    ``table`` has the outputs of ``selection``, among them all that is transformed.
    """
    values = {str(o): plain_values(table[name]) for o, name in selection.columns.items()}
    for transformed in selection.transformed:
        parts = [values[str(part)] for part in transformed.parts]
        for row, got in enumerate(values[transformed.name]):
            given = [part[row] for part in parts]
            expected, _ = transformed_value(transformed, given)
            if not agrees_transformed(transformed, got, expected):
                yield transformed, row, f"got {got!r}, expected {expected!r} of {given}"
