"""Features computed from pairs of features."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from paimon_features.core.columns.given_values import TYPES, Values
from paimon_features.core.errors import RequestError, UnknownNameError
from paimon_features.core.expressions import overflow_guard, parse
from paimon_features.core.expressions.evaluate import Program, without_overflow


class InteractionFeatureBuilder:
    """Features computed from pairs of features, by the functions of the expression language.

    Values are scalars, or lists, NumPy, Arrow, pandas or Polars, all of one length; the results
    have the form of the inputs. Null (and NaN) inputs result in null; so does a result that is not
    a finite number or an int64. ``zero`` is the value of a ratio by zero, None for null.

    >>> builder = InteractionFeatureBuilder()
    >>> builder.build({"a": [1, 2], "b": [4, 0]}, [("a", "b", "/"), ("a", "b", "abs_difference")])
    {'a_/_b': [0.25, 0.0], 'a_abs_difference_b': [3, 2]}
    """

    OPERATIONS: Mapping[str, str] = {
        **{op: op for op in (
            "product", "sum", "difference", "abs_difference", "ratio", "min", "max", "concat")},
        "*": "product", "+": "sum", "-": "difference", "/": "ratio",
    }  # fmt: skip

    def __init__(self, *, zero: float | None = 0.0) -> None:
        self.zero = zero

    def build(
        self, features: dict[str, Any], interactions: Sequence[tuple[str, str, str]]
    ) -> dict[str, Any]:
        """Return a result ``<left>_<operation>_<right>`` for each triple (left, right, operation).

        Raises
        ------
        UnknownNameError
            For an unknown feature or operation; the message lists the known ones.
        RequestError
            For features of different lengths.
        ExpressionError
            For features of types that the operation does not support.
        """
        arrays: dict[str, Values] = {}
        out: dict[str, Any] = {}
        for left, right, operation in interactions:
            if operation not in self.OPERATIONS:
                raise UnknownNameError.of("operation", operation, self.OPERATIONS)
            for name in (left, right):
                if name not in features:
                    raise UnknownNameError.of("feature", name, features)
                if name not in arrays:
                    arrays[name] = Values.of(name, features[name])
            pair = arrays[left], arrays[right]
            out[f"{left}_{operation}_{right}"] = self._combined(left, right, operation, *pair)
        return out

    def _combined(self, left: str, right: str, operation: str, a: Values, b: Values) -> Any:
        longer = b if a.single else a
        rows = len(longer.column)
        if not (a.single or b.single) and len(b.column) != rows:
            raise RequestError(f"feature {left!r} has {rows} values, {right!r} {len(b.column)}")
        program = _operation(self.OPERATIONS[operation], a.type.text, b.type.text, self.zero)
        columns = {"left": a.column, "right": b.column}
        value, *guards = program.run(columns, rows)
        kind = program.expressions[0].type
        result, _ = without_overflow(kind, value, guards[0] if guards else None)
        return longer.like(result.to_arrow(kind.arrow))


@functools.lru_cache(maxsize=256)
def _operation(name: str, left: str, right: str, zero: float | None) -> Program:
    option = f", zero={float(zero)!r}" if name == "ratio" and zero is not None else ""
    types = {kind.text: kind for kind in TYPES.values()}
    parsed = parse(f"{name}(left, right{option})", {"left": types[left], "right": types[right]})
    guard = overflow_guard(parsed)
    return Program([parsed] if guard is None else [parsed, guard])
