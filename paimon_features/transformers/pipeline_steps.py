"""Transformers inside of others: what stays as it is, what passes through, how steps run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import MissingMethodError, TransformError, unknown_name
from paimon_features.core.types.array_types import Floats, Ints
from paimon_features.core.types.schema import DataType
from paimon_features.transformers.base import (
    Applied,
    FeatureTransformer,
    Params,
    StoredTransformer,
)
from paimon_features.transformers.estimator import parameters_of
from paimon_features.transformers.fitted_version import FittedVersion
from paimon_features.transformers.frames import (
    Frame,
    as_float,
    inner_frame,
    numbers,
    read_frame,
)
from paimon_features.transformers.matrix_blocks import run_blocks
from paimon_features.transformers.sklearn_steps import from_sklearn
from paimon_features.transformers.supervised import Supervised


class Frozen(StoredTransformer):
    """A fitted transformer as a step that stays as it is: ``fit`` changes nothing.

    A step passed as a ``FittedVersion`` becomes one; its parameters name the version.

    >>> from paimon_features.transformers import StandardScaler
    >>> frozen = Frozen(StandardScaler().fit([1.0, 3.0]))
    >>> frozen.fit([100.0]).transform([5.0])
    [3.0]
    """

    kind = "frozen"

    def __sklearn_clone__(self) -> Self:
        return type(self)(self.transformer, version=self.version)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the transformer and its version, not the parameters of the transformer."""
        return super().get_params(deep=False)

    def __init__(
        self, transformer: StoredTransformer, *, version: Mapping[str, Any] | None = None
    ) -> None:
        transformer.to_params()  # raises where it is not fitted
        self.transformer = transformer
        self.version = version

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the columns that the transformer was fitted on."""
        return self.transformer.names

    @names.setter
    def names(self, names: tuple[str, ...] | None) -> None:
        raise AttributeError("the names are those of the frozen transformer")

    @property
    def is_stateful(self) -> bool:
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

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check that the columns are those that it was fitted on; nothing else."""
        self._checked(X)
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Return the same."""
        return self.fit(X)

    def merge(self, other: Self) -> Self:
        """Return itself; the other must be equal."""
        if self != other:
            raise TransformError("different frozen transformers cannot be merged")
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

    def _fitted_params(self) -> Params:
        return {
            "version": None if self.version is None else dict(self.version),
            "transformer": self.transformer.to_params(),
        }

    @classmethod
    def _from_params(cls, params: Mapping[str, Any]) -> Self:
        return cls(stored_transformer(params["transformer"]), version=params["version"])

    def _restore_names(self, params: Mapping[str, Any]) -> None:
        """Keep the names of the transformer."""


class Passthrough(StoredTransformer):
    """Returns columns unchanged, with numbers and booleans as floats.

    >>> Passthrough().fit_transform([[1, "a"], [None, "b"]])
    [[1.0, 'a'], [None, 'b']]
    """

    kind = "passthrough"

    _width: int = 0

    @property
    def is_stateful(self) -> bool:
        return False

    @property
    def width(self) -> int:
        return self._width

    @property
    def width_out(self) -> int:
        return self._width

    @property
    def supports_matrix(self) -> bool:
        return True

    def names_out(self, names: Sequence[str]) -> list[str]:
        return list(names)

    def fit(self, X: Any, y: Any = None) -> Self:
        """Record the columns."""
        return self.partial_fit(self._fit_data(X))

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Record the rows; the columns must be those of the fit."""
        frame = self._read_fit_data(X)
        self.check(frame)
        self._width = frame.width or self._width
        self._rows += frame.rows
        return self

    def _absorb(self, other: Self) -> None:
        self._width = self._width or other._width

    def transform(self, X: Any) -> Any:
        """Return ``X`` with its numbers as floats."""
        self._check_fitted()
        frame = self._checked(X)
        self.check(frame)
        return frame.like(self.apply(frame.columns).columns)

    def inverse_transform(self, X: Any) -> Any:
        """Return ``X``, as ``transform`` does."""
        return self.transform(X)

    def check(self, frame: Frame) -> None:
        for index, column in enumerate(frame.columns):
            if not _is_text(column):
                numbers(column, frame.label(index))

    def apply(self, columns: Sequence[Column]) -> Applied:
        return Applied([c if _is_text(c) else Column(as_float(c), c.valid) for c in columns])

    def block(self, values: Floats) -> Floats:
        return values

    def _fitted_params(self) -> Params:
        return {"width": self._width}

    @classmethod
    def _from_params(cls, params: Mapping[str, Any]) -> Self:
        out = cls()
        out._width, out._rows = int(params["width"]), int(params["rows"])
        if out._width < 1:
            raise TransformError("got no columns; expected at least one")
        return out


def _is_text(column: Column) -> bool:
    values = column.values
    return values.dtype == np.object_ and all(isinstance(v, str) for v in values[column.mask])


def as_step(what: str, name: str, step: Any) -> StoredTransformer:
    """Return the step, a pinned version as ``Frozen``; TransformError for anything else."""
    if isinstance(step, FittedVersion):
        pinned = {"name": step.name, "version": step.version, "digest": step.digest}
        return Frozen(step.transformer, version=pinned)
    if type(step).__module__.startswith("sklearn."):
        try:
            return Frozen(from_sklearn(step))
        except TransformError as error:
            raise TransformError(f"{what}: {name!r}: {error}") from error
    if not isinstance(step, StoredTransformer):
        raise TransformError(
            f"{what}: {name!r} is {step!r}; expected a transformer that can be stored, a fitted "
            "one of scikit-learn, or a version such as project.fitted.load('amount_scaler', 3)"
        )
    return step


def named_tuples(what: str, argument: str, given: Any, size: int) -> list[tuple[Any, ...]]:
    """Return a list of tuples that start with a name; TransformError for anything else."""
    if not isinstance(given, list | tuple):
        raise TransformError(f"{what}: {argument}={given!r}; expected a list of tuples")
    for item in given:
        if not isinstance(item, list | tuple) or len(item) != size or not isinstance(item[0], str):
            raise TransformError(
                f"{what}: {argument} contains {item!r}; expected tuples of {size}, the name first"
            )
    return [tuple(item) for item in given]


def given_parts(given: Any, size: int) -> dict[str, Any]:
    """Return the steps in an argument by name; none for an argument that ``fit`` refuses."""
    try:
        return {item[0]: item[1] for item in named_tuples("", "", given, size)}
    except TransformError:
        return {}


def not_in_parts(of: Any) -> TransformError | None:
    """Return why a composite transformer cannot be fitted in parts; None if it can."""
    try:
        parts = of._parts
        if of.supports_partial_fit:
            return None
    except TransformError:
        return None  # its arguments are not valid, which partial_fit() says
    for name, step in parts:
        try:
            step.partial_fit  # noqa: B018 - which says why
        except MissingMethodError as error:
            return MissingMethodError(f"step {name!r}: {error}")
    try:
        of._check_parts("partial_fit")
    except MissingMethodError as error:
        return error
    return MissingMethodError(f"this {type(of).__name__} cannot be fitted in parts")


def check_names(what: str, names: Sequence[str]) -> None:
    """Reject step names that are empty, repeated, or contain ``__``."""
    for name in names:
        if not str(name) or "__" in str(name):
            raise TransformError(f"{what}: a step is called {name!r}; expected a name without '__'")
        if names.count(name) > 1:
            raise TransformError(f"{what}: two steps are called {name!r}")


def event_time_of(steps: Iterable[StoredTransformer]) -> str | None:
    """Return the event time that steps declare; TransformError for several."""
    event_times = sorted({step.event_time for step in steps if step.event_time is not None})
    if len(event_times) > 1:
        raise TransformError(
            f"steps declare the event times {' and '.join(event_times)}; expected one"
        )
    return event_times[0] if event_times else None


def unwritable(frame: Frame) -> Frame:
    """Return a frame whose output is a frame again, for use inside of transformers."""
    if frame.matrix is not None:
        return inner_frame(matrix=frame.matrix, names=frame.names)
    return inner_frame(frame.columns, rows=frame.rows, names=frame.names)


def by_step(what: str, names: Sequence[str], fit_params: Mapping[str, Any]) -> StepParams:
    """Return the arguments ``<step>__<argument>`` of a fit, for each step.

    Raises
    ------
    TransformError
        For one that names no step.
    """
    params: dict[str, dict[str, Any]] = {name: {} for name in names}
    for key, value in fit_params.items():
        name, separator, argument = key.partition("__")
        if not separator or name not in params:
            raise TransformError(
                f"unknown argument {key!r} of {what}.fit; expected <step>__<argument>, such as "
                f"{names[0]}__sample_weight; steps: {', '.join(names)}"
            )
        params[name][argument] = value
    return params


def fit_step(
    name: str,
    step: StoredTransformer,
    frame: Frame,
    y: Any,
    times: Ints | None,
    *,
    output: bool,
    params: Mapping[str, Any],
) -> Frame:
    """Fit a step; with ``output`` return the training data for the next step."""
    with in_step(name):
        if step.needs_target:
            assert isinstance(step, Supervised)
            if output:
                out: Frame = step.fit_transform(frame, y, event_time_ms=times, **params)
                return out
            step.fit(frame, y, event_time_ms=times, **params)
            return frame
        step.fit(frame, **params)
        return transform_frame(step, frame) if output else frame


def partial_fit_step(
    name: str, step: StoredTransformer, frame: Frame, y: Any, times: Ints | None
) -> None:
    """Call ``partial_fit`` of a step."""
    with in_step(name):
        if step.needs_target:
            assert isinstance(step, Supervised)
            step.partial_fit(frame, y, event_time_ms=times)
        else:
            step.partial_fit(frame)


def merge_steps(
    names: Sequence[str], mine: Sequence[StoredTransformer], theirs: Sequence[StoredTransformer]
) -> list[StoredTransformer]:
    """Merge the steps of two composite transformers pairwise."""
    out = []
    for name, left, right in zip(names, mine, theirs, strict=True):
        with in_step(name):
            out.append(left.merge(right))
    return out


def transform_frame(step: StoredTransformer, frame: Frame) -> Frame:
    """Transform a frame by a fitted step without checking its values."""
    names = None if frame.names is None else step.names_out(frame.names)
    if frame.matrix is not None and step.supports_matrix:
        return inner_frame(matrix=step.block(np.array(frame.matrix, np.float64)), names=names)
    return inner_frame(apply_step(step, frame.columns, frame.rows), rows=frame.rows, names=names)


def apply_step(step: StoredTransformer, columns: Sequence[Column], rows: int) -> list[Column]:
    """Apply a step; raise the TransformError of ``transform`` if it rejects a row."""
    applied = step.apply(columns)
    if applied.failed is not None and applied.failed.any():
        step.transform(inner_frame(columns, rows=rows))  # raises, with the row and the reason
        raise TransformError(f"row {int(np.flatnonzero(applied.failed)[0])} cannot be transformed")
    return applied.columns


@contextmanager
def in_step(name: str) -> Iterator[None]:
    """Prefix the messages of errors with the name of the step."""
    try:
        yield
    except TransformError as error:
        raise TransformError(f"step {name!r}: {error}") from error


def stored_transformer(params: Mapping[str, Any]) -> StoredTransformer:
    """Return the transformer with these parameters."""
    out = FeatureTransformer.from_params(params)
    assert isinstance(out, StoredTransformer)
    return out


StepParams = Mapping[str, Mapping[str, Any]]
"""Further arguments of ``fit`` by step."""


class CompositeTransformer(Supervised):
    """Named transformers as one: a ``Pipeline`` or a ``ColumnTransformer``."""

    _event_time: str | None = None
    _bound: Any = None
    """The checked steps or branches of the fit; None before."""
    _memo: dict[str, Any] | None = None
    """What follows from the fit, computed at the first use."""

    @property
    @abstractmethod
    def _parts(self) -> Sequence[tuple[str, StoredTransformer]]:
        """The transformers and their names; before a fit, as the arguments have them.

        Raises
        ------
        TransformError
            For arguments that are not valid.
        """

    @property
    @abstractmethod
    def _given_parts(self) -> Mapping[str, Any]:
        """The steps in the arguments by name, as they were passed."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments; with ``deep`` also the steps by name, and their parameters."""
        out = super().get_params(deep=False)
        if not deep:
            return out
        out |= super().get_params(deep=True)
        for name, step in self._given_parts.items():
            out[name] = step
            if hasattr(step, "get_params"):
                out |= {
                    f"{name}__{key}": inner_value for key, inner_value in step.get_params().items()
                }
        return out

    def _set_param(self, name: str, value: Any) -> None:
        if name in parameters_of(type(self)):
            setattr(self, name, value)
        else:
            self._replace(name, value)

    @abstractmethod
    def _replace(self, name: str, step: Any) -> None:
        """Replace a step in the arguments."""

    def __getitem__(self, name: str) -> StoredTransformer:
        """Return the transformer of this name."""
        steps = dict(self._parts)
        if name not in steps:
            raise TransformError(unknown_name("step", name, steps, f"this {type(self).__name__}"))
        return steps[name]

    @property
    def is_stateful(self) -> bool:
        return any(step.is_stateful for _, step in self._parts)

    @property
    def needs_target(self) -> bool:  # type: ignore[override]
        return any(step.needs_target for _, step in self._parts)

    @property
    def event_time(self) -> str | None:  # type: ignore[override]
        if self._bound is not None:
            return self._event_time
        return event_time_of(step for _, step in self._parts)

    def fit(self, X: Any, y: Any = None, *, event_time_ms: Any = None, **fit_params: Any) -> Self:
        """Fit all steps; ``y`` is for target encoders.

        ``fit_params`` are arguments of steps, such as ``scale__sample_weight`` of a step ``scale``.
        """
        self._fit(self._fit_data(X), y, event_time_ms, fit_params, output=False)
        return self

    def fit_transform(
        self, X: Any, y: Any = None, *, event_time_ms: Any = None, **fit_params: Any
    ) -> Any:
        """Fit, and return the training data: target encoders exclude a row's own target."""
        given = self._fit_data(X)
        columns = self._fit(given, y, event_time_ms, fit_params, output=True)
        return self._like(given, columns, given)

    def transform(self, X: Any) -> Any:
        """Return ``X`` transformed.

        Raises
        ------
        TransformError
            For values that a step does not accept, and rows that it rejects; names the step.
        """
        self._check_fitted()
        given = read_frame(X)
        frame = self._checked(given)
        if given is frame and frame.matrix is not None and frame.rows and self.supports_matrix:
            names = None if frame.names is None else self._names_of(frame)
            try:
                return run_blocks(frame, self._matrix_steps, self.width_out, names)
            except TransformError:
                pass  # raised again below, with the name of the step
        self.check(frame)
        return self._like(given, self._apply_steps(frame), frame)

    @abstractmethod
    def _fit(
        self,
        given: Frame,
        y: Any,
        event_time_ms: Any,
        fit_params: Mapping[str, Any],
        *,
        output: bool,
    ) -> Sequence[Column]:
        """Fit all steps; with ``output`` return the columns of the training data."""

    @abstractmethod
    def _apply_steps(self, frame: Frame) -> Sequence[Column]:
        """Return the columns of a checked frame transformed; errors name the step."""

    @property
    def _matrix_steps(self) -> Sequence[Callable[[Floats], Floats]]:
        """The functions that a matrix of numbers passes through."""
        return [self.block]

    def _like(self, given: Frame, columns: Sequence[Column], named: Frame) -> Any:
        flat = given.is_flat and self.is_scalar
        return given.like(columns, names=self._names_of(named), flat=flat)

    def _names_of(self, frame: Frame) -> list[str]:
        names = frame.names or [f"x{index}" for index in range(self.width)]
        return self.names_out([name for name in names if name != self.event_time])
