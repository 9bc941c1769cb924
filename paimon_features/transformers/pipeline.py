"""Several transformers one after another, as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import MissingMethodError, TransformError
from paimon_features.core.types.array_types import Bools, Floats
from paimon_features.core.types.schema import DataType
from paimon_features.transformers.base import Applied, Params, StoredTransformer, either_failed
from paimon_features.transformers.estimator import available_if
from paimon_features.transformers.fitted_version import FittedVersion
from paimon_features.transformers.frames import Frame
from paimon_features.transformers.pipeline_steps import (
    CompositeTransformer,
    apply_step,
    as_step,
    by_step,
    check_names,
    event_time_of,
    fit_step,
    given_parts,
    in_step,
    merge_steps,
    named_tuples,
    not_in_parts,
    partial_fit_step,
    stored_transformer,
    transform_frame,
    unwritable,
)


class Pipeline(CompositeTransformer):
    """Steps one after another: each transforms the output of the one before.

    A step is a name and a transformer that can be stored, or a ``FittedVersion``, which stays as
    it is. Values are checked once, on input; a value that becomes infinite in between is passed
    on. Steps of numbers run over blocks of rows that fit into the CPU cache.

    ``fit`` fits each step on the output of the steps before; a target encoder outputs there what a
    model is trained on (other folds, or the past), and so does ``fit_transform``. ``partial_fit``
    and ``merge`` are exact, and therefore rejected if several steps are stateful: the later one
    would have been fitted on the output of an incompletely fitted one.

    >>> from paimon_features.transformers import MinMaxScaler, StandardScaler
    >>> pipeline = Pipeline([("centre", StandardScaler()), ("stretch", MinMaxScaler())])
    >>> pipeline.fit([1.0, 2.0, 3.0]).transform([2.0, 4.0])
    [0.5, 1.5]
    >>> pipeline.inverse_transform([0.5])
    [2.0]
    >>> pipeline["centre"].mean_.tolist()
    [2.0]
    """

    kind = "pipeline"
    _is_fitted: bool = False
    _bound_steps: Sequence[StoredTransformer] | None = None

    def __init__(self, steps: Sequence[tuple[str, StoredTransformer | FittedVersion]]) -> None:
        self.steps = steps

    @property
    def _parts(self) -> Sequence[tuple[str, StoredTransformer]]:
        bound: Sequence[tuple[str, StoredTransformer]] | None = self._bound
        return self._checked_steps() if bound is None else bound

    @property
    def _steps(self) -> Sequence[StoredTransformer]:
        bound = self._bound_steps
        return [step for _, step in self._parts] if bound is None else bound

    @property
    def steps_(self) -> list[tuple[str, StoredTransformer]]:
        """The steps of the fit: a version, or a step of scikit-learn, as what it is applied by."""
        return list(self._parts)

    def _bind(self) -> None:
        self._bound = self._checked_steps()
        self._bound_steps = [step for _, step in self._bound]
        self._event_time = event_time_of(self._bound_steps)

    def _checked_steps(self) -> list[tuple[str, StoredTransformer]]:
        pairs = named_tuples("Pipeline", "steps", self.steps, 2)
        if not pairs:
            raise TransformError("a Pipeline needs at least one step")
        check_names("Pipeline", [name for name, _ in pairs])
        steps = [(name, as_step("Pipeline", name, step)) for name, step in pairs]
        event_time_of(step for _, step in steps)
        return steps

    @property
    def _given_parts(self) -> Mapping[str, Any]:
        return given_parts(self.steps, 2)

    def _replace(self, name: str, step: Any) -> None:
        self.steps = [(key, step if key == name else existing) for key, existing in self.steps]

    @property
    def supports_partial_fit(self) -> bool:
        learning = [step for step in self._steps if step.is_stateful]
        return len(learning) < 2 and all(step.supports_partial_fit for step in learning)

    @property
    def width(self) -> int:
        return self._steps[0].width if self._is_fitted else 0

    @property
    def width_out(self) -> int:
        return self._steps[-1].width_out

    @property
    def is_scalar(self) -> bool:
        return all(step.is_scalar for step in self._steps)

    @property
    def numeric_output(self) -> bool:
        return self._steps[-1].numeric_output

    @property
    def supports_matrix(self) -> bool:
        return all(step.supports_matrix for step in self._steps)

    def accepts(self, index: int, kind: DataType) -> bool:
        return self._steps[0].accepts(index, kind)

    def names_out(self, names: Sequence[str]) -> list[str]:
        for step in self._steps:
            names = step.names_out(names)
        return list(names)

    def check(self, frame: Frame) -> None:
        self._steps[0].check(frame)

    @available_if(not_in_parts)
    def partial_fit(self, X: Any, y: Any = None, *, event_time_ms: Any = None) -> Self:
        """Fit on ``X`` in addition to earlier data; returns itself.

        If several steps are stateful there is no such method.
        """
        self._check_parts("partial_fit")
        frame, times = self._split_event_time(X, event_time_ms)
        frame = self._read_fit_data(unwritable(frame))
        rows = frame.rows
        for index, (name, step) in enumerate(self._parts):
            partial_fit_step(name, step, frame, y, times)
            # steps after the stateful one are not fitted on its output
            if index + 1 < len(self._parts):
                frame = transform_frame(step, frame)
        self._rows, self._is_fitted, self._memo = self._rows + rows, True, {}
        return self

    def merge(self, other: Self) -> Self:
        """Return a new pipeline fitted on the data of both.

        Raises
        ------
        TransformError
            If several steps are stateful, or the pipelines differ.
        """
        names = self._check_merge(other)
        self._check_parts("merge")
        called = [name for name, _ in self._parts]
        if called != [name for name, _ in other._parts]:
            raise TransformError("pipelines of different steps cannot be merged")
        steps = merge_steps(called, self._steps, other._steps)
        out = type(self)(list(zip(called, steps, strict=True)))
        out._bind()
        out._rows, out.names = self._rows + other._rows, names
        out._is_fitted, out._memo = self._is_fitted or other._is_fitted, {}
        return out

    def _apply_steps(self, frame: Frame) -> Sequence[Column]:
        columns: Sequence[Column] = frame.columns
        for name, step in self._parts:
            with in_step(name):
                columns = apply_step(step, columns, frame.rows)
        return columns

    def inverse_transform(self, X: Any) -> Any:
        """Apply the inverses of the steps, the last step first."""
        self._check_fitted()
        for name, step in reversed(self._parts):
            with in_step(name):
                X = step.inverse_transform(X)  # noqa: N806 - the name that users know
        return X

    def apply(self, columns: Sequence[Column]) -> Applied:
        if self.supports_matrix and not any(
            c.valid is not None or c.values.dtype.kind == "O" for c in columns
        ):
            values = np.empty((len(columns[0]), len(columns)))
            for j, column in enumerate(columns):
                values[:, j] = column.values
            try:
                return Applied([Column(column) for column in self.block(values).T])
            except TransformError:
                pass  # the steps below mark the rejected rows
        failed: Bools | None = None
        for step in self._steps:
            applied = step.apply(columns)
            columns, failed = applied.columns, either_failed(failed, applied.failed)
        return Applied(list(columns), failed)

    def block(self, values: Floats) -> Floats:
        for step in self._matrix_steps:
            values = step(values)
        return values

    @property
    def _matrix_steps(self) -> Sequence[Callable[[Floats], Floats]]:
        """The steps of numbers, those of nested pipelines included; computed once."""
        memo = {} if self._memo is None else self._memo
        if "program" not in memo:
            memo["program"] = [
                part
                for step in self._steps
                for part in (step._matrix_steps if isinstance(step, Pipeline) else [step.block])
            ]
        program: Sequence[Callable[[Floats], Floats]] = memo["program"]
        return program

    def _fit(
        self,
        given: Frame,
        y: Any,
        event_time_ms: Any,
        fit_params: Mapping[str, Any],
        *,
        output: bool,
    ) -> Sequence[Column]:
        self._bind()
        frame, times = self._split_event_time(given, event_time_ms)
        frame = self._read_fit_data(unwritable(frame))
        rows = frame.rows
        params = by_step("Pipeline", [name for name, _ in self._parts], fit_params)
        for index, (name, step) in enumerate(self._parts):
            is_last = index + 1 == len(self._parts)
            frame = fit_step(
                name, step, frame, y, times, output=output or not is_last, params=params[name]
            )
        self._rows, self._is_fitted, self._memo = rows, True, {}
        return frame.columns if output else ()

    def _check_parts(self, what: str) -> None:
        learning = [name for name, step in self._parts if step.is_stateful]
        if len(learning) > 1:
            first, last = learning[0], learning[-1]
            raise MissingMethodError(
                f"{what}: the steps {', '.join(map(repr, learning))} are all stateful, and "
                f"{last!r} is fitted on the output of {first!r}, which changes with more data; "
                "fit() them on all data at once, or pass the earlier ones fitted: Frozen(step), or "
                "a pinned version: project.fitted.load(name, version)"
            )

    def _fitted_params(self) -> Params:
        return {
            "steps": [{"name": name, "transformer": step.to_params()} for name, step in self._parts]
        }

    @classmethod
    def _from_params(cls, params: Mapping[str, Any]) -> Self:
        out = cls(
            [(step["name"], stored_transformer(step["transformer"])) for step in params["steps"]]
        )
        out._bind()
        out._rows, out._is_fitted, out._memo = int(params["rows"]), True, {}
        return out
