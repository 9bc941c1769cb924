"""The base classes of transformers, and how parameters become a transformer again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import (
    MissingMethodError,
    TransformError,
    UnknownNameError,
    unknown_name,
)
from paimon_features.core.types.array_types import Bools, Floats
from paimon_features.core.types.schema import DataType
from paimon_features.transformers.column_statistics import ColumnStatistics, Statistic, of_columns
from paimon_features.transformers.estimator import (
    Estimator,
    available_if,
    parameters_of,
    with_output_form,
)
from paimon_features.transformers.frames import Frame, read_frame
from paimon_features.transformers.json_values import names_of

Params = dict[str, Any]
"""The state of a transformer in JSON values: finite numbers, strings, lists, null."""


class FeatureTransformer(ABC):
    """Fits parameters on data and transforms data by them.

    ``X`` may be a list of lists, a NumPy array, an Arrow table, a pandas or Polars frame, a torch
    tensor, with or without nulls, or a single column of them; the output has the form of the
    input. Subclass it with ``fit`` and ``transform`` for a transformer of your own; see
    ``StoredTransformer`` for one that services can pin.
    """

    @abstractmethod
    def fit(self, X: Any) -> Self:
        """Fit on ``X`` alone, discarding an earlier fit; returns itself."""

    @abstractmethod
    def transform(self, X: Any) -> Any:
        """Return ``X`` transformed, in the form of ``X``."""

    def fit_transform(self, X: Any) -> Any:
        """Call ``fit``, then ``transform`` the same data."""
        return self.fit(X).transform(X)

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Fit on ``X`` in addition to earlier data; returns itself."""
        raise TransformError(f"{type(self).__name__} cannot be fitted in parts")

    def merge(self, other: Self) -> Self:
        """Return a new transformer fitted on the data of both; neither changes."""
        raise TransformError(f"{type(self).__name__} cannot be merged")

    def inverse_transform(self, X: Any) -> Any:
        """Return data that ``transform`` maps to ``X``."""
        raise TransformError(f"{type(self).__name__} has no inverse")

    def to_params(self) -> Params:
        """Return the fitted parameters in JSON values; equal for equal transformations."""
        raise TransformError(f"{type(self).__name__} has no parameters that can be stored")

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> FeatureTransformer:
        """Return the transformer with these parameters, the inverse of ``to_params``.

        Called on ``FeatureTransformer`` itself, it returns any kind of transformer.

        Raises
        ------
        TransformError
            For incomplete parameters, or those of another kind.
        """
        kind = params.get("kind")
        transformer_class = _KINDS.get(str(kind))
        if transformer_class is None or not issubclass(transformer_class, cls):
            available = [name for name, candidate in _KINDS.items() if issubclass(candidate, cls)]
            raise TransformError(unknown_name("transformer of kind", str(kind), available))
        try:
            out = transformer_class._from_params(params)
            out._restore_names(params)
            return out
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            if isinstance(error, TransformError):
                raise
            raise TransformError(
                f"the parameters of a {kind} are not complete: {type(error).__name__}: {error}"
            ) from error


@dataclass(frozen=True, slots=True)
class Applied:
    """Transformed columns, and a mask of the rows that cannot be transformed (None: none)."""

    columns: list[Column]
    failed: npt.NDArray[np.bool_] | None = None


def either_failed(left: Bools | None, right: Bools | None) -> Bools | None:
    """Return the rows of both masks; None means no row."""
    if left is None or right is None:
        return right if left is None else left
    return left | right


class _Itself:
    """An attribute that is the object itself until another value is set."""

    def __get__(self, of: Any, kind: type) -> Any:
        return self if of is None else of


class StoredTransformer(Estimator, FeatureTransformer):
    """A transformer whose state is a few numbers and strings, so it can be stored and served.

    A subclass names its ``kind``, which identifies its parameters, and defines ``width`` (the
    columns that it was fitted on, 0 before), ``width_out``, ``names``, and ``apply``: columns to
    columns, by the same steps for a training set and for a single request.

    It is an estimator of scikit-learn: the constructor stores its arguments as they are, ``fit``
    checks them, and what a fit uses are its own, checked ones (``settings_``).
    """

    kind: ClassVar[str]
    needs_target: ClassVar[bool] = False
    """Whether ``fit`` also takes targets ``y``."""
    optional_settings: ClassVar[frozenset[str]] = frozenset()
    """Settings that are stored only if they are not the default."""
    event_time: str | None = None
    """The event time column of a transformer that encodes rows by earlier targets."""
    _names: tuple[str, ...] | None = None
    _rows: int = 0
    settings_: Any = _Itself()
    """The settings of the fit; before one, the transformer and its arguments themselves."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" in vars(cls):
            _KINDS[cls.kind] = cls

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the columns that it was fitted on, if they had names."""
        return self._names

    @names.setter
    def names(self, names: tuple[str, ...] | None) -> None:
        self._names = names

    @abstractmethod
    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit on ``X`` alone, discarding an earlier fit; ``y`` is ignored."""

    @with_output_form
    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Call ``fit``, then ``transform`` the same data.

        ``fit_params`` are further arguments of ``fit``, such as ``sample_weight``.
        """
        return self.fit(X, y, **fit_params).transform(X)

    @available_if(lambda self: MissingMethodError(f"{type(self).__name__} has no inverse"))
    def inverse_transform(self, X: Any) -> Any:
        """Return data that ``transform`` maps to ``X``; missing where there is no inverse."""
        raise AssertionError("a subclass with an inverse defines it")

    @property
    @abstractmethod
    def width(self) -> int:
        """Number of input columns; 0 before it is fitted."""

    @property
    @abstractmethod
    def width_out(self) -> int:
        """Number of output columns."""

    @property
    def is_stateful(self) -> bool:
        """Whether the output for a row depends on the rows that it was fitted on."""
        return True

    @property
    def supports_partial_fit(self) -> bool:
        """Whether ``partial_fit`` and ``merge`` are exact; otherwise they raise TransformError."""
        return True

    @property
    def is_scalar(self) -> bool:
        """Whether one value maps to one value: a service then returns a number, else a list."""
        return self.width_out == 1

    @property
    def numeric_output(self) -> bool:
        """Whether all outputs are numbers; services can apply no other transformer."""
        return True

    @property
    def supports_matrix(self) -> bool:
        """Whether ``block`` is implemented: all inputs and outputs are numbers."""
        return False

    def block(self, values: Floats) -> Floats:
        """Transform a matrix of numbers, index (rows, columns), NaN for null.

        The result equals that of ``apply`` bit for bit. ``values`` may be overwritten and
        returned. The caller rejects infinite values.

        Raises
        ------
        TransformError
            For rows that ``transform`` rejects.
        """
        raise TransformError(f"{type(self).__name__} does not transform matrices")

    @property
    def rows_seen(self) -> int:
        """Number of rows that it was fitted on."""
        return self._rows

    def accepts(self, index: int, kind: DataType) -> bool:
        """Return True if a column that it was fitted on can have values of this type."""
        return kind.is_numeric or kind.text == "bool"

    @abstractmethod
    def apply(self, columns: Sequence[Column]) -> Applied:
        """Transform columns; ``failed`` marks rows that ``transform`` rejects."""

    def check(self, frame: Frame) -> None:
        """Check for values that ``transform`` rejects whatever the fit.

        Raises
        ------
        TransformError
            For strings among numbers, infinite values and the like; names the column.
        """
        return

    @abstractmethod
    def names_out(self, names: Sequence[str]) -> list[str]:
        """Return the names of the output columns for input columns of these names."""

    def to_params(self) -> Params:
        self._check_fitted()
        return {
            "kind": self.kind,
            "names": None if self.names is None else list(self.names),
            "rows": self.rows_seen,
            **self._fitted_params(),
        }

    @abstractmethod
    def _fitted_params(self) -> Params:
        """Return settings and fitted parameters, those that only this kind has."""

    def merge(self, other: Self) -> Self:
        """Return a new transformer fitted on the data of both, the same in either order."""
        names = self._check_merge(other)
        out = self._like_new()
        out.names = names
        for one in (self, other):
            if one.width:
                out._rows += one._rows
                out._absorb(one)
        return out

    def _absorb(self, other: Self) -> None:
        """Add the fit of another transformer with the same settings; its rows are counted."""
        raise TransformError(f"{type(self).__name__} cannot be merged")

    def _settings(self) -> Params:
        """Return the arguments of the constructor that determine the output, in JSON values.

        Raises
        ------
        TransformError
            For an argument that is not valid.
        """
        return {}

    def _bind(self) -> None:
        """Check the arguments of the constructor, and keep them for the fit."""
        self.settings_ = SimpleNamespace(**self._settings())

    def _fit_settings(self) -> Params:
        """Return the settings of the fit; before one, those of the arguments."""
        return dict(vars(self.settings_)) if "settings_" in vars(self) else self._settings()

    def _stored_settings(self) -> Params:
        """Return the settings of the fit as they are stored: some of them only if they are set."""
        defaults = {
            name: parameter.default for name, parameter in parameters_of(type(self)).items()
        }
        return {
            name: value
            for name, value in self._fit_settings().items()
            # None is the JSON value of a default that is none, such as NaN
            if name not in self.optional_settings or value not in (None, defaults[name])
        }

    def _like_new(self) -> Self:
        """Return an unfitted transformer, with the settings of this one's fit."""
        out = type(self)(**{**self.get_params(deep=False), **self._fit_settings()})
        out._bind()
        return out

    @classmethod
    def _from_settings(cls, params: Mapping[str, Any]) -> Self:
        """Return an unfitted transformer with the settings among these parameters."""
        names = [n for n in parameters_of(cls) if n in params or n not in cls.optional_settings]
        out = cls(**{name: params[name] for name in names})
        out._bind()
        out._rows = int(params["rows"])
        return out

    @classmethod
    @abstractmethod
    def _from_params(cls, params: Mapping[str, Any]) -> Self:
        """Return the transformer of these parameters; ``_restore_names`` adds its names."""

    def _restore_names(self, params: Mapping[str, Any]) -> None:
        self.names = names_of(params, self.width)

    @property
    def required_statistics(self) -> frozenset[Statistic]:
        """The statistics of a column that suffice to fit it; empty: it needs the rows."""
        return frozenset()

    def fit_from_statistics(self, columns: Sequence[ColumnStatistics]) -> Self:
        """Fit on statistics of each column instead of its values; returns itself.

        The result equals that of ``fit`` on the rows, up to the rounding of the statistics.

        Raises
        ------
        TransformError
            If the statistics lack those in ``required_statistics``, or are too inexact.
        """
        if not self.required_statistics:
            raise TransformError(f"this {type(self).__name__} can only be fitted on the rows")
        rows = of_columns(columns)
        self._unfit()
        self._bind()
        self._rows = rows
        self._fit_statistics(columns, rows)
        self.names = tuple(column.column for column in columns)
        return self

    def _fit_statistics(self, columns: Sequence[ColumnStatistics], rows: int) -> None:
        """Replace the fit by one on these, for a transformer with ``required_statistics``."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        assert isinstance(other, StoredTransformer)
        if not (self.width and other.width):
            same = [repr(one.get_params(deep=False)) for one in (self, other)]
            return self.width == other.width and same[0] == same[1]
        return self.to_params() == other.to_params()

    def __hash__(self) -> int:
        # a fit may change while it is in a set, its class does not
        return hash(type(self))

    def _estimator_flags(self) -> Mapping[str, bool]:
        return {"requires_y": self.needs_target}

    def _checked(self, X: Any) -> Frame:
        """Read data and check their columns against those of the fit."""
        frame = read_frame(X)
        # a list without rows has no known width
        if frame.width != self.width and (frame.rows or frame.width):
            raise TransformError(
                f"X has {frame.width} features, but {type(self).__name__} is expecting "
                f"{self.width} features as input"
                + (". Reshape your data: one dimension is one column" if frame.is_flat else "")
            )
        if frame.names and self.names and frame.names != self.names:
            raise TransformError(
                "The feature names should match those that were passed during fit: got the columns "
                f"{', '.join(frame.names)}; this {type(self).__name__} was fitted "
                f"on {', '.join(self.names)}, in this order"
            )
        return frame

    def _read_fit_data(self, X: Any) -> Frame:
        """Read data to fit on; the first data determine the number and names of the columns."""
        if self.width:
            frame = self._checked(X)
        else:
            self._bind()
            frame = read_frame(X)
            if not frame.width:
                raise self._too_few("feature", frame)
        if self.names is None:
            self.names = frame.names
        return frame

    def _fit_data(self, X: Any) -> Frame:
        """Forget an earlier fit and read the data of a new one, at least one row."""
        self._unfit()
        frame = read_frame(X)
        if not frame.rows and frame.width:
            self._bind()
            raise self._too_few("sample", frame)
        return frame

    def _too_few(self, what: str, frame: Frame) -> TransformError:
        return TransformError(
            f"Found array with 0 {what}(s) (shape=({frame.rows}, {frame.width})) while a minimum "
            f"of 1 is required by {type(self).__name__}."
        )

    def _check_merge(self, other: StoredTransformer) -> tuple[str, ...] | None:
        """Check that another transformer can be merged; return the column names of both."""
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
        mine, theirs = self._fit_settings(), other._fit_settings()
        for name, value in mine.items():
            if value != theirs[name]:
                raise TransformError(
                    f"a {type(self).__name__} with {name}={value!r} cannot be merged with one with "
                    f"{name}={theirs[name]!r}; merge transformers of equal settings"
                )
        return self.names or other.names


_KINDS: dict[str, type[StoredTransformer]] = {}


def new_transformer(kind: str, settings: Mapping[str, Any] | None = None) -> StoredTransformer:
    """Return an unfitted transformer by its kind or class name.

    >>> type(new_transformer("MinMaxScaler", {"feature_range": [-1, 1]})).kind
    'min_max_scaler'

    Raises
    ------
    UnknownNameError
        For an unknown kind.
    TransformError
        For unknown settings.
    """
    named = {
        name: candidate
        for candidate in _KINDS.values()
        for name in (candidate.kind, candidate.__name__)
    }
    if kind not in named:
        raise UnknownNameError.of("transformer", kind, _KINDS)
    transformer_class = named[kind]
    try:
        out = transformer_class(**(settings or {}))
        out._settings()  # checks them
        return out
    except TypeError as error:
        parameters = ", ".join(parameters_of(transformer_class)) or "none"
        message = str(error).removeprefix(f"{transformer_class.__name__}.__init__() ")
        raise TransformError(
            f"the settings of a {transformer_class.__name__}: {message}; available: {parameters}"
        ) from error
