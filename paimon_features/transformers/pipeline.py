"""Several transformers one after another, as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from paimon_features.array_types import Floats
from paimon_features.columns import Column
from paimon_features.errors import TransformError
from paimon_features.schema import DataType
from paimon_features.transformers.base import Applied, Params, StoredTransformer
from paimon_features.transformers.fitted_version import FittedVersion
from paimon_features.transformers.frames import Frame, read_frame
from paimon_features.transformers.json_values import names_of
from paimon_features.transformers.matrix_blocks import run_blocks
from paimon_features.transformers.pipeline_steps import (
    as_step,
    check_names,
    event_time_of,
    fit_step,
    inside,
    learn_more,
    merged,
    of_step,
    outcome,
    passed,
    stored,
)
from paimon_features.transformers.supervised import Supervised

Step = Callable[[Floats], Floats]


class Pipeline(Supervised):
    """Steps one after another: each takes what the one before makes.

    A step is a name and a transformer that can be stored, or a ``FittedVersion``, which stays as
    it is. Values are checked once, where they go in; in between nothing is, and a value that
    becomes infinite goes on as that. Steps of numbers run over blocks of rows that stay in the
    cache.

    ``fit`` fits each step on what the steps before make of the data; an encoder of targets makes
    there what a model is trained on (other folds, or the past), and so does ``fit_transform``.
    ``partial_fit`` and ``merge`` are exact, and therefore refused where more than one step learns:
    the later one would have learnt from what an earlier one made before it had learnt all.

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

    def __init__(self, steps: Sequence[tuple[str, StoredTransformer | FittedVersion]]) -> None:
        if not steps:
            raise TransformError("a Pipeline needs at least one step")
        check_names("Pipeline", [name for name, _ in steps])
        self.steps = [(name, as_step("Pipeline", name, step)) for name, step in steps]
        self._steps = [step for _, step in self.steps]
        self._event_time = event_time_of(self._steps)
        self._rows = 0
        self._is_fitted = False
        self._program: Sequence[Step] | None = None

    def __getitem__(self, name: str) -> StoredTransformer:
        """The step of this name."""
        found = dict(self.steps).get(name)
        if found is None:
            known = ", ".join(name for name, _ in self.steps)
            raise TransformError(f"the pipeline has no step {name!r}; it has: {known}")
        return found

    @property
    def learns(self) -> bool:
        return any(step.learns for step in self._steps)

    @property
    def supports_partial_fit(self) -> bool:
        learning = [step for step in self._steps if step.learns]
        return len(learning) < 2 and all(step.supports_partial_fit for step in learning)

    @property
    def needs_target(self) -> bool:  # type: ignore[override]
        return any(step.needs_target for step in self._steps)

    @property
    def event_time(self) -> str | None:
        return self._event_time

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
    def rows_seen(self) -> int:
        return self._rows

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

    def fit(self, X: Any, y: Any = None, *, event_time_ms: Any = None) -> Self:
        """Fit each step on what those before make of ``X``; ``y`` is for encoders of targets."""
        self._fit(read_frame(X), y, event_time_ms, wanted=False)
        return self

    def fit_transform(self, X: Any, y: Any = None, *, event_time_ms: Any = None) -> Any:
        """``fit``, and what the last step makes of ``X`` while it is fitted."""
        given = read_frame(X)
        out = self._fit(given, y, event_time_ms, wanted=True)
        flat = given.is_flat and self.is_scalar
        return given.like(out.columns, names=self._names_of(given), flat=flat)

    def partial_fit(self, X: Any, y: Any = None, *, event_time_ms: Any = None) -> Self:
        """Learn from ``X`` besides what was learnt before; returns itself.

        Raises
        ------
        TransformError
            If more than one step learns.
        """
        self._check_parts("partial_fit")
        frame, times = self._parted(X, event_time_ms)
        frame = self._to_learn(inside(frame))
        rows = frame.rows
        for index, (name, step) in enumerate(self.steps):
            learn_more(name, step, frame, y, times)
            # what is behind the step that learns has nothing to learn from what that makes
            if index + 1 < len(self.steps):
                frame = outcome(step, frame)
        self._rows, self._is_fitted, self._program = self._rows + rows, True, None
        return self

    def merge(self, other: Self) -> Self:
        """A new one that has learnt from the data of both.

        Raises
        ------
        TransformError
            If more than one step learns, or the others differ.
        """
        names = self._to_merge(other)
        self._check_parts("merge")
        if [name for name, _ in self.steps] != [name for name, _ in other.steps]:
            raise TransformError("pipelines of different steps cannot be merged")
        called = [name for name, _ in self.steps]
        steps = merged(called, self._steps, other._steps)
        out = type(self)(list(zip(called, steps, strict=True)))
        out._rows, out.names = self._rows + other._rows, names
        out._is_fitted = self._is_fitted or other._is_fitted
        return out

    def transform(self, X: Any) -> Any:
        """``X`` through all steps.

        Raises
        ------
        TransformError
            For what the first step does not take, and where a step refuses a row.
        """
        self._check_fitted()
        given = read_frame(X)
        frame = self._checked(given)
        if given is frame and frame.matrix is not None and frame.rows and self._blocks:
            names = None if frame.names is None else self._names_of(frame)
            try:
                return run_blocks(frame, self._blocks, self.width_out, names)
            except TransformError:
                pass  # told below, with the name of the step
        self.check(frame)
        columns: Sequence[Column] = frame.columns
        for name, step in self.steps:
            with of_step(name):
                columns = passed(step, columns, frame.rows)
        flat = given.is_flat and self.is_scalar
        return given.like(columns, names=self._names_of(frame), flat=flat)

    def inverse_transform(self, X: Any) -> Any:
        """Data that ``transform`` makes ``X`` of: the steps' inverses, the last step's first."""
        self._check_fitted()
        for name, step in reversed(self.steps):
            with of_step(name):
                X = step.inverse_transform(X)  # noqa: N806 - the name that users know
        return X

    def apply(self, columns: Sequence[Column]) -> Applied:
        if self._blocks and not any(
            c.valid is not None or c.values.dtype.kind == "O" for c in columns
        ):
            values = np.empty((len(columns[0]), len(columns)))
            for j, column in enumerate(columns):
                values[:, j] = column.values
            try:
                return Applied([Column(made) for made in self.block(values).T])
            except TransformError:
                pass  # the steps below mark the rows
        failed = None
        for step in self._steps:
            applied = step.apply(columns)
            columns = applied.columns
            if applied.failed is not None:
                failed = applied.failed if failed is None else failed | applied.failed
        return Applied(list(columns), failed)

    def block(self, values: Floats) -> Floats:
        for step in self._blocks:
            values = step(values)
        return values

    @property
    def _blocks(self) -> Sequence[Step]:
        """What numbers pass one after another, worked out once; none where a step takes others."""
        if self._program is None:
            steps = [
                part
                for step in self._steps
                for part in (step._blocks if isinstance(step, Pipeline) else [step.block])
            ]
            self._program = steps if self.supports_matrix else []
        return self._program

    def _names_of(self, frame: Frame) -> list[str]:
        names = frame.names or [f"x{index}" for index in range(self.width)]
        return self.names_out([name for name in names if name != self.event_time])

    def _fit(self, given: Frame, y: Any, event_time_ms: Any, *, wanted: bool) -> Frame:
        self.names, self._rows, self._is_fitted, self._program = None, 0, False, None
        frame, times = self._parted(given, event_time_ms)
        frame = self._to_learn(inside(frame))
        rows = frame.rows
        for index, (name, step) in enumerate(self.steps):
            is_last = index + 1 == len(self.steps)
            frame = fit_step(name, step, frame, y, times, wanted=wanted or not is_last)
        self._rows, self._is_fitted = rows, True
        return frame

    def _check_parts(self, what: str) -> None:
        learning = [name for name, step in self.steps if step.learns]
        if len(learning) > 1:
            first, last = learning[0], learning[-1]
            raise TransformError(
                f"{what}: the steps {', '.join(map(repr, learning))} all learn, and {last!r} from "
                f"what {first!r} makes, which changes as that learns more; fit() them on all data "
                "at once, or give the earlier ones as they were fitted: Frozen(step), or a version "
                "that is pinned: project.fitted.load(name, version)"
            )

    def _learnt(self) -> Params:
        return {
            "steps": [{"name": name, "transformer": step.to_params()} for name, step in self.steps]
        }

    @classmethod
    def _from_params(cls, params: Mapping[str, Any]) -> Self:
        out = cls([(step["name"], stored(step["transformer"])) for step in params["steps"]])
        out._rows, out._is_fitted = int(params["rows"]), True
        out.names = names_of(params, out.width)
        return out
