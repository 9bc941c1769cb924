"""Numeric transformers whose parameters are declared: logarithms, bounds, interactions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, Self

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import MissingMethodError, TransformError, unknown_name
from paimon_features.core.types.array_types import Bools, Floats
from paimon_features.transformers.base import Applied, Params, either_failed
from paimon_features.transformers.estimator import available_if
from paimon_features.transformers.frames import Frame, as_float
from paimon_features.transformers.numeric_base import (
    Columns,
    ColumnwiseTransformer,
    NumericTransformer,
    finite_columns,
)
from paimon_features.transformers.setting_checks import flag, is_number, number, wrong


class StatelessTransformer(NumericTransformer):
    """A transformer that is fitted only on the number and names of the columns."""

    _width: int = 0

    @property
    def width(self) -> int:
        return self._width

    @property
    def is_stateful(self) -> bool:
        return False

    def _absorb(self, other: Self) -> None:
        if not self._width:
            self._resize(other._width)

    def _fitted_params(self) -> Params:
        return {**self._stored_settings(), "width": self._width}

    @classmethod
    def _from_params(cls, params: Mapping[str, Any]) -> Self:
        out, width = cls._from_settings(params), int(params["width"])
        if width < 1:
            raise TransformError(f"width={width}; expected 1 or more")
        out._resize(width)
        return out

    def _partial_fit(self, frame: Frame) -> None:
        self.check(frame)
        if not self._width:
            self._resize(frame.width)

    def _resize(self, width: int) -> None:
        """Set the number of columns."""
        self._width = width


class LogTransform(StatelessTransformer, ColumnwiseTransformer):
    """The natural logarithm of a value plus ``offset``: ``log1p`` for the default 1.

    ``signed`` keeps the sign, for values of both signs: ``sign(x) * log1p(|x| / offset)``.
    Otherwise a value that is not above ``-offset`` is rejected, also by ``fit`` (a service returns
    null and ``ILL_CONDITIONED``).

    >>> LogTransform().fit_transform([[0.0, None], [1.718281828459045, 0.0]])
    [[0.0, None], [1.0, 0.0]]
    >>> LogTransform(signed=True).fit_transform([-1.718281828459045, 0.0])
    [-1.0, 0.0]
    """

    kind = "log_transform"

    def __init__(self, offset: float = 1.0, *, signed: bool = False) -> None:
        self.offset, self.signed = offset, signed

    def check(self, frame: Frame) -> None:
        for index, column in enumerate(finite_columns(frame)):
            least = self._outside(column.values)
            if least is not None:
                raise self._refused(frame.label(index), least)

    def block(self, values: Floats) -> Floats:
        least = self._outside(values)
        if least is not None:
            at = np.flatnonzero((values <= -self.settings_.offset).any(axis=0))[0]
            raise self._refused(f"column {at}", least)
        return super().block(values)

    def apply(self, columns: Sequence[Column]) -> Applied:
        # values at nulls are arbitrary
        with np.errstate(divide="ignore", invalid="ignore"):
            applied = super().apply(columns)
        failed: Bools | None = None
        for column in () if self.settings_.signed else columns:
            outside = as_float(column) <= -self.settings_.offset
            if column.valid is not None:
                outside &= column.valid
            if outside.any():
                failed = either_failed(failed, outside)
        return Applied(applied.columns, failed)

    def _outside(self, values: Floats) -> float | None:
        """Return the smallest value, if it has no logarithm."""
        if self.settings_.signed or not values.size:
            return None
        least = float(np.fmin.reduce(values, axis=None))
        return least if least <= -self.settings_.offset else None

    def _refused(self, label: str, value: float) -> TransformError:
        of = "Negative values in data passed to LogTransform: " if value < 0 else ""
        return TransformError(
            of
            + f"{label} contains {value!r}; expected values above {-self.settings_.offset:g}, or "
            "LogTransform(signed=True)"
        )

    def _settings(self) -> Params:
        signed = flag(self, "signed", self.signed)
        expected = "a number that is not negative" + (", and above 0 with signed=True" * signed)
        offset = number(self, "offset", self.offset, expected)
        if offset < 0 or (signed and not offset):
            raise wrong(self, "offset", self.offset, expected)
        return {"offset": offset, "signed": signed}

    def _estimator_flags(self) -> Mapping[str, bool]:
        is_small = is_number(self.offset) and self.offset <= 1
        return {"positive_only": is_small and not self.signed}

    def _forward(self, values: Floats, columns: Columns, out: Floats) -> None:
        if self.settings_.signed:
            magnitude = np.abs(values)
            if self.settings_.offset != 1.0:
                np.divide(magnitude, self.settings_.offset, out=magnitude)
            np.log1p(magnitude, out=magnitude)
            np.copysign(magnitude, values, out=out)
        elif self.settings_.offset == 1.0:
            np.log1p(values, out=out)
        else:
            np.add(values, self.settings_.offset, out=out)
            np.log(out, out=out)

    def _backward(self, values: Floats, columns: Columns, out: Floats) -> None:
        if self.settings_.signed:
            magnitude = np.expm1(np.abs(values)) * self.settings_.offset
            np.copysign(magnitude, values, out=out)
        elif self.settings_.offset == 1.0:
            np.expm1(values, out=out)
        else:
            np.exp(values, out=out)
            np.subtract(out, self.settings_.offset, out=out)


_LOST = "Clip has no inverse: values outside of the bounds are lost"


class Clip(StatelessTransformer, ColumnwiseTransformer):
    """Limits values to declared bounds; None: no bound.

    >>> Clip(0, 10).fit_transform([[-3.0], [4.0], [99.0], [None]])
    [[0.0], [4.0], [10.0], [None]]
    """

    kind = "clip"

    def __init__(self, low: float | None = None, high: float | None = None) -> None:
        self.low, self.high = low, high

    @available_if(lambda self: MissingMethodError(_LOST))
    def inverse_transform(self, X: Any) -> Any:
        """Raise MissingMethodError: values outside of the bounds are lost."""
        raise AssertionError(_LOST)

    def _settings(self) -> Params:
        ends = [end for end in (self.low, self.high) if end is not None]
        numbers = all(is_number(end) and math.isfinite(end) for end in ends)
        if not ends or not numbers or ends != sorted(ends):
            raise TransformError(
                f"Clip({self.low!r}, {self.high!r}); expected one or two numbers, the smaller one "
                "first"
            )
        return {
            "low": None if self.low is None else float(self.low),
            "high": None if self.high is None else float(self.high),
        }

    def _forward(self, values: Floats, columns: Columns, out: Floats) -> None:
        # maximum and minimum keep NaN
        low, high = self.settings_.low, self.settings_.high
        if low is not None:
            values = np.maximum(values, low, out=out)
        if high is not None:
            values = np.minimum(values, high, out=out)


OPERATIONS: Mapping[str, Callable[[Floats, Floats], Floats]] = {
    "product": np.multiply,
    "sum": np.add,
    "difference": np.subtract,
    "abs_difference": lambda left, right: np.abs(left - right),
    "ratio": lambda left, right: left / right,
    "min": np.minimum,
    "max": np.maximum,
}
"""Operations on two columns; null and NaN in either column propagate."""

Triple = tuple[str | int, str | int, str]


class InteractionFeatures(StatelessTransformer):
    """Adds columns computed from pairs of columns: products, ratios and the like.

    ``interactions`` are triples (left, right, operation): columns by name or position, and one of
    product, sum, difference, abs_difference, ratio, min, max; by default the products of all
    pairs. ``keep`` returns the columns themselves first. Division by zero returns ``zero``, None
    for null. The new columns are called ``<left>_<operation>_<right>``.

    >>> InteractionFeatures().fit_transform([[2.0, 3.0, 5.0]])
    [[2.0, 3.0, 5.0, 6.0, 10.0, 15.0]]
    >>> per = InteractionFeatures([("clicks", "views", "ratio")], keep=False)
    >>> import pyarrow as pa
    >>> per.fit_transform(pa.table({"clicks": [1, 2], "views": [4, 0]})).to_pydict()
    {'clicks_ratio_views': [0.25, 0.0]}
    """

    kind = "interaction"
    _pairs: Sequence[tuple[int, int, str]] = ()

    def __init__(
        self,
        interactions: Sequence[Triple] | None = None,
        *,
        keep: bool = True,
        zero: float | None = 0.0,
    ) -> None:
        self.interactions, self.keep, self.zero = interactions, keep, zero

    @property
    def pairs_(self) -> list[tuple[int, int, str]]:
        """The positions of the columns of each new column, and the operation."""
        return list(self._pairs)

    @property
    def width_out(self) -> int:
        return len(self._pairs) + (self._width if self.settings_.keep else 0)

    def names_out(self, names: Sequence[str]) -> list[str]:
        computed = [f"{names[left]}_{of}_{names[right]}" for left, right, of in self._pairs]
        return [*names, *computed] if self.settings_.keep else computed

    def block(self, values: Floats) -> Floats:
        out = np.empty((len(values), self.width_out))
        at = 0
        if self.settings_.keep:
            at = self._width
            out[:, :at] = values
        for place, (left, right, of) in enumerate(self._pairs, at):
            self._make(values[:, left], values[:, right], of, out[:, place])
        return out

    def apply(self, columns: Sequence[Column]) -> Applied:
        numbers = [Column(as_float(column), column.valid) for column in columns]
        out = list(numbers) if self.settings_.keep else []
        for left, right, of in self._pairs:
            one, other = numbers[left], numbers[right]
            values = np.empty(len(one))
            self._make(one.values, other.values, of, values)
            masks = [side.valid for side in (one, other) if side.valid is not None]
            valid = np.logical_and.reduce(masks) if masks else None
            if of == "ratio" and self.settings_.zero is None:
                defined = (other.values != 0) | np.isnan(one.values)
                if valid is not None:
                    defined &= valid
                values, valid = (
                    np.where(defined, values, np.nan),
                    None if defined.all() else defined,
                )
            out.append(Column(values, valid))
        return Applied(out)

    def _make(self, left: Floats, right: Floats, of: str, out: Floats) -> None:
        if of != "ratio":
            out[:] = OPERATIONS[of](left, right)
            return
        with np.errstate(divide="ignore", invalid="ignore"):
            np.divide(left, right, out=out)
        zero = right == 0
        if zero.any():
            out[zero & ~np.isnan(left)] = (
                np.nan if self.settings_.zero is None else self.settings_.zero
            )

    def _resize(self, width: int) -> None:
        if self.settings_.interactions is None:
            pairs = [(left, right, "product") for left, right in combinations(range(width), 2)]
        else:
            pairs = [
                (self._place(left, width), self._place(right, width), of)
                for left, right, of in self.settings_.interactions
            ]
        if not pairs and not self.settings_.keep:
            raise TransformError(
                "one column has no pairs; with keep=False there are no output columns"
            )
        self._width, self._pairs = width, pairs

    def _place(self, column: str | int, width: int) -> int:
        if isinstance(column, int):
            if not 0 <= column < width:
                raise TransformError(
                    f"InteractionFeatures: column {column} is out of range; the data have {width} "
                    "columns"
                )
            return column
        if self.names is None or column not in self.names:
            hint = "" if self.names else "; use positions, or a frame"
            message = unknown_name("column", column, self.names or ())
            raise TransformError(f"InteractionFeatures: {message}{hint}")
        return self.names.index(column)

    def _settings(self) -> Params:
        keep, zero = flag(self, "keep", self.keep), self.zero
        triples = None
        if self.interactions is not None:
            if not isinstance(self.interactions, list | tuple):
                raise wrong(self, "interactions", self.interactions, "a list of triples, or None")
            triples = [list(_triple(given)) for given in self.interactions]
        if triples == [] and not keep:
            raise TransformError("InteractionFeatures([], keep=False) has no output columns")
        return {
            "interactions": triples,
            "keep": keep,
            "zero": None if zero is None else number(self, "zero", zero, "a finite number or None"),
        }


def _triple(given: Sequence[Any]) -> Triple:
    is_triple = isinstance(given, list | tuple) and len(given) == 3
    left, right, of = given if is_triple else (None, None, None)
    places = all(isinstance(c, str | int) and not isinstance(c, bool) for c in (left, right))
    if not isinstance(of, str) or of not in OPERATIONS or not places:
        raise TransformError(
            f"InteractionFeatures: {given!r}; expected (left, right, operation), columns by name "
            f"or position and one of: {', '.join(OPERATIONS)}"
        )
    assert left is not None
    assert right is not None
    return left, right, str(of)
