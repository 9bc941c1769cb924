"""What every transformer can do, and what one has to tell to be stored and served."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from paimon_features.array_types import Floats
from paimon_features.columns import Column
from paimon_features.errors import TransformError, UnknownNameError
from paimon_features.schema import DataType
from paimon_features.transformers.column_statistics import ColumnStatistics, Statistic, of_columns
from paimon_features.transformers.frames import Frame, read_frame

Params = dict[str, Any]
"""The state of a transformer in values of JSON: finite numbers, texts, lists, null."""


class FeatureTransformer(ABC):
    """Learns from data and then transforms data: ``fit``, ``transform``, and both at once.

    ``X`` may be a list of lists, a NumPy array, an Arrow table, a pandas or Polars frame, a torch
    tensor, with or without nulls, or one column of them; what goes in comes out. Subclass it with
    ``fit`` and ``transform`` for a transformer of your own; see ``StoredTransformer`` for one that
    services can pin.
    """

    @abstractmethod
    def fit(self, X: Any) -> Self:
        """Learn from ``X`` alone, forgetting what was learnt before; returns itself."""

    @abstractmethod
    def transform(self, X: Any) -> Any:
        """``X`` transformed, in the form in which it came."""

    def fit_transform(self, X: Any) -> Any:
        """``fit``, then ``transform`` of the same data."""
        return self.fit(X).transform(X)

    def partial_fit(self, X: Any) -> Self:
        """Learn from ``X`` besides what was learnt before; returns itself."""
        raise TransformError(f"{type(self).__name__} cannot be fitted in parts")

    def merge(self, other: Self) -> Self:
        """A new one that has learnt from the data of both; neither changes."""
        raise TransformError(f"{type(self).__name__} cannot be merged")

    def inverse_transform(self, X: Any) -> Any:
        """Data that ``transform`` makes ``X`` of."""
        raise TransformError(f"{type(self).__name__} has no inverse")

    def to_params(self) -> Params:
        """What was learnt, in values of JSON; equal ones for what transforms equally."""
        raise TransformError(f"{type(self).__name__} has no parameters that can be stored")

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> FeatureTransformer:
        """The transformer with these parameters, the inverse of ``to_params``.

        Of ``FeatureTransformer`` itself: of whatever kind they are.

        Raises
        ------
        TransformError
            For parameters that are not complete, or of another kind.
        """
        kind = params.get("kind")
        made = _KINDS.get(str(kind))
        if made is None or not issubclass(made, cls):
            known = ", ".join(name for name, of in _KINDS.items() if issubclass(of, cls))
            raise TransformError(f"there is no transformer of kind {kind!r}; there is: {known}")
        try:
            return made._from_params(params)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            if isinstance(error, TransformError):
                raise
            raise TransformError(
                f"the parameters of a {kind} are not complete: {type(error).__name__}: {error}"
            ) from error


@dataclass(frozen=True, slots=True)
class Applied:
    """Columns that a transformer made, and the rows that it cannot transform (None: none)."""

    columns: list[Column]
    failed: npt.NDArray[np.bool_] | None = None


class StoredTransformer(FeatureTransformer):
    """A transformer whose state is a few numbers and texts, so that it is stored, merged, served.

    A subclass names its ``kind``, by which its parameters are known, and has ``width`` (columns
    that it was fitted on, 0 before), ``width_out``, ``names``, and ``apply``: columns to columns,
    the same steps for a training set and for one request.
    """

    kind: ClassVar[str]
    needs_target: ClassVar[bool] = False
    """Whether ``fit`` takes the targets ``y`` besides."""
    names: tuple[str, ...] | None = None
    """The names of the columns that it was fitted on, where they had some."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" in vars(cls):
            _KINDS[cls.kind] = cls

    @property
    @abstractmethod
    def width(self) -> int:
        """How many columns it takes; 0 before it is fitted."""

    @property
    @abstractmethod
    def width_out(self) -> int:
        """How many columns it makes."""

    @property
    def learns(self) -> bool:
        """Whether what it makes of a row depends on the rows that it was fitted on."""
        return True

    @property
    def supports_partial_fit(self) -> bool:
        """Whether ``partial_fit`` and ``merge`` can learn what ``fit`` does; else they refuse."""
        return True

    @property
    def event_time(self) -> str | None:
        """The column that tells the time of a row, where it learns from targets of the past."""
        return None

    @property
    def is_scalar(self) -> bool:
        """Whether a value comes out of a value: a service then gives a number, else a list."""
        return self.width_out == 1

    @property
    def numeric_output(self) -> bool:
        """Whether all that comes out are numbers; services can apply no other."""
        return True

    @property
    def supports_matrix(self) -> bool:
        """Whether there is ``block``: all that goes in and comes out are numbers."""
        return False

    def block(self, values: Floats) -> Floats:
        """A matrix of numbers transformed, index (rows, columns), NaN where there is none.

        It gives the numbers that ``apply`` gives, to the bit, and may overwrite ``values`` and
        give them back. Infinite values are for the caller to refuse.

        Raises
        ------
        TransformError
            For rows that ``transform`` would refuse.
        """
        raise TransformError(f"{type(self).__name__} takes no blocks of numbers")

    @property
    @abstractmethod
    def rows_seen(self) -> int:
        """How many rows it was fitted on."""

    @abstractmethod
    def accepts(self, index: int, kind: DataType) -> bool:
        """Whether values of this type can be those of a column that it was fitted on."""

    @abstractmethod
    def apply(self, columns: Sequence[Column]) -> Applied:
        """These columns transformed; ``failed`` marks rows that ``transform`` would refuse."""

    def check(self, frame: Frame) -> None:
        """Refuse values that ``transform`` does not take, whatever was learnt.

        Raises
        ------
        TransformError
            For texts among numbers, infinite values and the like; the message names the column.
        """
        return

    @abstractmethod
    def names_out(self, names: Sequence[str]) -> list[str]:
        """What the columns are called that are made of columns of these names."""

    def to_params(self) -> Params:
        self._check_fitted()
        return {
            "kind": self.kind,
            "names": None if self.names is None else list(self.names),
            "rows": self.rows_seen,
            **self._learnt(),
        }

    @abstractmethod
    def _learnt(self) -> Params:
        """Settings and what was learnt, as parameters: what only this kind has."""

    @classmethod
    @abstractmethod
    def _from_params(cls, params: Mapping[str, Any]) -> Self: ...

    @property
    def learns_from(self) -> frozenset[Statistic]:
        """Which statistics of a column are enough to fit it; none: only the rows are."""
        return frozenset()

    def fit_from_statistics(self, columns: Sequence[ColumnStatistics]) -> Self:
        """Learn from what is known of each column, without its values; returns itself.

        Learns what ``fit`` on the rows would have, up to the rounding of the statistics.

        Raises
        ------
        TransformError
            Where the statistics do not tell what it needs (``learns_from``), or not well enough.
        """
        if not self.learns_from:
            raise TransformError(f"this {type(self).__name__} can only be fitted on the rows")
        self._learn_statistics(columns, of_columns(columns))
        self.names = tuple(column.column for column in columns)
        return self

    def _learn_statistics(self, columns: Sequence[ColumnStatistics], rows: int) -> None:
        """Forget what was learnt, and learn these, for one that says ``learns_from``."""
        raise NotImplementedError

    @property
    def n_features_in_(self) -> int:
        """How many columns it takes, under scikit-learn's name."""
        self._check_fitted()
        return self.width

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        assert isinstance(other, StoredTransformer)
        return self.to_params() == other.to_params()

    __hash__ = None  # type: ignore[assignment]

    def _check_fitted(self) -> None:
        if not self.width:
            raise TransformError(f"this {type(self).__name__} is not fitted; call fit() first")

    def _checked(self, X: Any) -> Frame:
        """Data as they have to be for what was learnt."""
        frame = read_frame(X)
        # of a list without a row nobody knows the width
        if frame.width != self.width and (frame.rows or frame.width):
            raise TransformError(
                f"got {frame.width} columns; this {type(self).__name__} was fitted on {self.width}"
            )
        if frame.names and self.names and frame.names != self.names:
            raise TransformError(
                f"got the columns {', '.join(frame.names)}; this {type(self).__name__} was fitted "
                f"on {', '.join(self.names)}, in this order"
            )
        return frame

    def _to_learn(self, X: Any) -> Frame:
        """Data to learn from; the first decide on the number and the names of the columns."""
        if self.width:
            frame = self._checked(X)
        else:
            frame = read_frame(X)
            if not frame.width:
                raise TransformError(f"got no column to fit a {type(self).__name__} on")
        if self.names is None:
            self.names = frame.names
        return frame

    def _to_merge(self, other: StoredTransformer) -> tuple[str, ...] | None:
        """Check that another one can be merged; the names of the columns of both."""
        if type(other) is not type(self):
            raise TransformError(
                f"a {type(self).__name__} cannot be merged with a {type(other).__name__}"
            )
        if self.width and other.width and self.width != other.width:
            raise TransformError(
                f"a {type(self).__name__} of {self.width} columns cannot be merged with one of "
                f"{other.width}"
            )
        if self.names and other.names and self.names != other.names:
            raise TransformError(
                f"a {type(self).__name__} of {', '.join(self.names)} cannot be merged with one of "
                f"{', '.join(other.names)}"
            )
        return self.names or other.names


_KINDS: dict[str, type[StoredTransformer]] = {}


def new_transformer(kind: str, settings: Mapping[str, Any] | None = None) -> StoredTransformer:
    """An unfitted transformer by its kind, or the name of its class.

    >>> type(new_transformer("MinMaxScaler", {"feature_range": [-1, 1]})).kind
    'min_max_scaler'

    Raises
    ------
    UnknownNameError
        For a kind that there is not.
    TransformError
        For settings that it does not have.
    """
    named = {name: made for made in _KINDS.values() for name in (made.kind, made.__name__)}
    if kind not in named:
        raise UnknownNameError.of("transformer", kind, _KINDS)
    made = named[kind]
    try:
        return made(**(settings or {}))
    except TypeError as error:
        known = ", ".join(signature(made).parameters) or "none"
        message = str(error).removeprefix(f"{made.__name__}.__init__() ")
        raise TransformError(
            f"the settings of a {made.__name__}: {message}; it has: {known}"
        ) from error
