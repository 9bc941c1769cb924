"""Transformers as parts of others: what stays as it is, what passes, how a part is fitted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np

from paimon_features.array_types import Floats, Ints
from paimon_features.columns import Column
from paimon_features.errors import TransformError
from paimon_features.schema import DataType
from paimon_features.transformers.base import (
    Applied,
    FeatureTransformer,
    Params,
    StoredTransformer,
)
from paimon_features.transformers.fitted_version import FittedVersion
from paimon_features.transformers.frames import Frame, as_float, inner_frame, numbers
from paimon_features.transformers.json_values import names_of
from paimon_features.transformers.supervised import Supervised


class Frozen(StoredTransformer):
    """A fitted transformer as a step that stays as it is: ``fit`` learns nothing.

    A step that is given as a ``FittedVersion`` is one; its parameters name the version.

    >>> from paimon_features.transformers import StandardScaler
    >>> frozen = Frozen(StandardScaler().fit([1.0, 3.0]))
    >>> frozen.fit([100.0]).transform([5.0])
    [3.0]
    """

    kind = "frozen"

    def __init__(
        self, transformer: StoredTransformer, *, version: Mapping[str, Any] | None = None
    ) -> None:
        transformer.to_params()  # raises where it is not fitted
        self.transformer = transformer
        self.version = None if version is None else dict(version)
        self.names = transformer.names

    @property
    def learns(self) -> bool:
        return False

    @property
    def width(self) -> int:
        return self.transformer.width

    @property
    def width_out(self) -> int:
        return self.transformer.width_out

    @property
    def is_scalar(self) -> bool:
        return self.transformer.is_scalar

    @property
    def numeric_output(self) -> bool:
        return self.transformer.numeric_output

    @property
    def rows_seen(self) -> int:
        return self.transformer.rows_seen

    @property
    def supports_matrix(self) -> bool:
        return self.transformer.supports_matrix

    def accepts(self, index: int, kind: DataType) -> bool:
        return self.transformer.accepts(index, kind)

    def names_out(self, names: Sequence[str]) -> list[str]:
        return self.transformer.names_out(names)

    def fit(self, X: Any) -> Self:
        """Nothing but to check that the columns are those that it was fitted on."""
        self._checked(X)
        return self

    def partial_fit(self, X: Any) -> Self:
        """The same."""
        return self.fit(X)

    def merge(self, other: Self) -> Self:
        """It itself; the other has to be equal."""
        if self != other:
            raise TransformError("frozen transformers that differ cannot be merged")
        return self

    def transform(self, X: Any) -> Any:
        return self.transformer.transform(X)

    def inverse_transform(self, X: Any) -> Any:
        return self.transformer.inverse_transform(X)

    def check(self, frame: Frame) -> None:
        self.transformer.check(frame)

    def apply(self, columns: Sequence[Column]) -> Applied:
        return self.transformer.apply(columns)

    def block(self, values: Floats) -> Floats:
        return self.transformer.block(values)

    def _learnt(self) -> Params:
        return {"version": self.version, "transformer": self.transformer.to_params()}

    @classmethod
    def _from_params(cls, params: Mapping[str, Any]) -> Self:
        return cls(stored(params["transformer"]), version=params["version"])


class Passthrough(StoredTransformer):
    """Columns as they are; numbers and truth values as floats.

    >>> Passthrough().fit_transform([[1, "a"], [None, "b"]])
    [[1.0, 'a'], [None, 'b']]
    """

    kind = "passthrough"

    def __init__(self) -> None:
        self._width = 0
        self._rows = 0

    @property
    def learns(self) -> bool:
        return False

    @property
    def width(self) -> int:
        return self._width

    @property
    def width_out(self) -> int:
        return self._width

    @property
    def rows_seen(self) -> int:
        return self._rows

    @property
    def supports_matrix(self) -> bool:
        return True

    def accepts(self, index: int, kind: DataType) -> bool:
        return kind.is_numeric or kind.text == "bool"

    def names_out(self, names: Sequence[str]) -> list[str]:
        return list(names)

    def fit(self, X: Any) -> Self:
        """Note the columns."""
        self.names, self._width, self._rows = None, 0, 0
        return self.partial_fit(X)

    def partial_fit(self, X: Any) -> Self:
        """The same; the columns must be those of before."""
        frame = self._to_learn(X)
        self._width = frame.width or self._width
        self._rows += frame.rows
        return self

    def merge(self, other: Self) -> Self:
        """A new one that has seen the rows of both."""
        out = type(self)()
        out.names = self._to_merge(other)
        out._width, out._rows = self._width or other._width, self._rows + other._rows
        return out

    def transform(self, X: Any) -> Any:
        """``X`` with its numbers as floats."""
        self._check_fitted()
        frame = self._checked(X)
        self.check(frame)
        return frame.like(self.apply(frame.columns).columns)

    def inverse_transform(self, X: Any) -> Any:
        """``X``, likewise."""
        return self.transform(X)

    def check(self, frame: Frame) -> None:
        for index, column in enumerate(frame.columns):
            if not _is_text(column):
                numbers(column, frame.label(index))

    def apply(self, columns: Sequence[Column]) -> Applied:
        return Applied([c if _is_text(c) else Column(as_float(c), c.valid) for c in columns])

    def block(self, values: Floats) -> Floats:
        return values

    def _learnt(self) -> Params:
        return {"width": self._width}

    @classmethod
    def _from_params(cls, params: Mapping[str, Any]) -> Self:
        out = cls()
        out._width, out._rows = int(params["width"]), int(params["rows"])
        if out._width < 1:
            raise TransformError("there is no column")
        out.names = names_of(params, out._width)
        return out


def _is_text(column: Column) -> bool:
    values = column.values
    return values.dtype == np.object_ and all(isinstance(v, str) for v in values[column.mask])


def as_step(what: str, name: str, step: Any) -> StoredTransformer:
    """A step as it was given, a pinned version frozen; TransformError for anything else."""
    if isinstance(step, FittedVersion):
        pinned = {"name": step.name, "version": step.version, "digest": step.digest}
        return Frozen(step.transformer, version=pinned)
    if not isinstance(step, StoredTransformer):
        raise TransformError(
            f"{what}: {name!r} is {step!r}; expected a transformer that can be stored, or a "
            "version such as project.fitted.load('amount_scaler', 3)"
        )
    return step


def check_names(what: str, names: Sequence[str]) -> None:
    """Refuse names of steps that are no texts, empty, doubled, or have the mark of nesting."""
    for name in names:
        if not str(name) or "__" in str(name):
            raise TransformError(f"{what}: a step is called {name!r}; expected a text without '__'")
        if names.count(name) > 1:
            raise TransformError(f"{what}: two steps are called {name!r}")


def event_time_of(steps: Iterable[StoredTransformer]) -> str | None:
    """The event time that steps have declared; TransformError where they name several."""
    found = sorted({step.event_time for step in steps if step.event_time is not None})
    if len(found) > 1:
        raise TransformError(f"steps name the event times {' and '.join(found)}; expected one")
    return found[0] if found else None


def inside(frame: Frame) -> Frame:
    """A frame as one inside of transformers: what is written like it is a frame again."""
    if frame.matrix is not None:
        return inner_frame(matrix=frame.matrix, names=frame.names)
    return inner_frame(frame.columns, rows=frame.rows, names=frame.names)


def fit_step(
    name: str, step: StoredTransformer, frame: Frame, y: Any, times: Ints | None, *, wanted: bool
) -> Frame:
    """Fit a step; what it makes of the data for the next one to be fitted on, where ``wanted``."""
    with of_step(name):
        if step.needs_target:
            assert isinstance(step, Supervised)
            if wanted:
                out: Frame = step.fit_transform(frame, y, event_time_ms=times)
                return out
            step.fit(frame, y, event_time_ms=times)
            return frame
        step.fit(frame)
        return outcome(step, frame) if wanted else frame


def learn_more(
    name: str, step: StoredTransformer, frame: Frame, y: Any, times: Ints | None
) -> None:
    """``partial_fit`` of a step."""
    with of_step(name):
        if step.needs_target:
            assert isinstance(step, Supervised)
            step.partial_fit(frame, y, event_time_ms=times)
        else:
            step.partial_fit(frame)


def merged(
    names: Sequence[str], mine: Sequence[StoredTransformer], its: Sequence[StoredTransformer]
) -> list[StoredTransformer]:
    """The steps of two of equal steps, each merged with its like."""
    out = []
    for name, left, right in zip(names, mine, its, strict=True):
        with of_step(name):
            out.append(left.merge(right))
    return out


def outcome(step: StoredTransformer, frame: Frame) -> Frame:
    """What a fitted step makes of a frame, as ``transform``, without checks of the values."""
    names = None if frame.names is None else step.names_out(frame.names)
    if frame.matrix is not None and step.supports_matrix:
        return inner_frame(matrix=step.block(np.array(frame.matrix, np.float64)), names=names)
    return inner_frame(passed(step, frame.columns, frame.rows), rows=frame.rows, names=names)


def passed(step: StoredTransformer, columns: Sequence[Column], rows: int) -> list[Column]:
    """Columns through a step; TransformError, as ``transform`` tells it, where it refuses a row."""
    applied = step.apply(columns)
    if applied.failed is not None and applied.failed.any():
        step.transform(inner_frame(columns, rows=rows))  # raises and tells which row, and why
        raise TransformError(f"row {int(np.flatnonzero(applied.failed)[0])} cannot be transformed")
    return applied.columns


@contextmanager
def of_step(name: str) -> Iterator[None]:
    """Errors in here are those of a step: they get its name."""
    try:
        yield
    except TransformError as error:
        raise TransformError(f"step {name!r}: {error}") from error


def stored(params: Mapping[str, Any]) -> StoredTransformer:
    """The transformer of these parameters."""
    out = FeatureTransformer.from_params(params)
    assert isinstance(out, StoredTransformer)
    return out
