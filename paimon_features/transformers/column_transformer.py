"""Several transformers, each for some of the columns, as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import TransformError, unknown_name
from paimon_features.core.repeated_items import duplicates
from paimon_features.core.types.array_types import Bools, Floats
from paimon_features.core.types.schema import DataType
from paimon_features.transformers.base import Applied, Params, StoredTransformer, either_failed
from paimon_features.transformers.estimator import available_if
from paimon_features.transformers.fitted_version import FittedVersion
from paimon_features.transformers.frames import Frame, inner_frame, read_frame
from paimon_features.transformers.pipeline_steps import (
    CompositeTransformer,
    Passthrough,
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
    unwritable,
)
from paimon_features.transformers.setting_checks import flag

Chosen = int | str | Sequence[int] | Sequence[str]
Given = tuple[str, StoredTransformer | FittedVersion | str, Chosen]

_REMAINDER = "remainder"


@dataclass(frozen=True)
class ColumnBranch:
    """A transformer for some columns, None to drop them; ``chosen`` are names or positions."""

    name: str
    transformer: StoredTransformer | None
    chosen: Sequence[int | str]


class ColumnTransformer(CompositeTransformer):
    """Branches for different columns; their outputs are concatenated.

    A branch is a name, a transformer (or a ``FittedVersion``, ``'passthrough'``, ``'drop'``) and
    its columns: names, or positions from 0 (from the end, if negative), one or a list; a column
    may be in several branches. The other columns go through ``remainder``, which is ``'drop'``,
    ``'passthrough'`` or a transformer, and come last. Output names are prefixed by the name of
    the branch (``scale__amount``), unless ``verbose_feature_names_out=False``.

    ``partial_fit`` and ``merge`` are exact, and rejected if a branch rejects them.

    >>> from paimon_features.transformers import OneHotEncoder, StandardScaler
    >>> both = ColumnTransformer([("scale", StandardScaler(), [0]), ("hot", OneHotEncoder(), [1])])
    >>> both.fit_transform([[1.0, "a"], [3.0, "b"]])
    [[-1.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
    >>> both.names_out(["amount", "word"])
    ['scale__amount', 'hot__word_a', 'hot__word_b']
    >>> both.inverse_transform([[1.0, 1.0, 0.0]])
    [[3.0, 'a']]
    """

    kind = "column_transformer"
    _width: int = 0
    _verbose: bool = True
    _fitted: Sequence[tuple[str, StoredTransformer, list[int]]] = ()

    def __init__(
        self,
        transformers: Sequence[Given],
        *,
        remainder: StoredTransformer | FittedVersion | str = "drop",
        verbose_feature_names_out: bool = True,
    ) -> None:
        self.transformers = transformers
        self.remainder = remainder
        self.verbose_feature_names_out = verbose_feature_names_out

    def _bind(self) -> None:
        self._bound = self._checked_branches()
        self._event_time = event_time_of(step for _, step in self._parts)
        self._verbose = flag(self, "verbose_feature_names_out", self.verbose_feature_names_out)

    def _checked_branches(self) -> tuple[list[ColumnBranch], StoredTransformer | None]:
        """Return the branches and what the other columns go through."""
        given = named_tuples("ColumnTransformer", "transformers", self.transformers, 3)
        check_names("ColumnTransformer", [*(name for name, _, _ in given), _REMAINDER])
        branches = [
            ColumnBranch(name, _transformer(name, step), _listed(name, chosen))
            for name, step, chosen in given
        ]
        rest = _transformer(_REMAINDER, self.remainder)
        event_time_of(step for _, step in _named(branches, rest))
        return branches, rest

    @property
    def _branches(self) -> list[ColumnBranch]:
        branches: list[ColumnBranch] = (self._bound or self._checked_branches())[0]
        return branches

    @property
    def _rest(self) -> StoredTransformer | None:
        rest: StoredTransformer | None = (self._bound or self._checked_branches())[1]
        return rest

    @property
    def _given_parts(self) -> Mapping[str, Any]:
        return given_parts(self.transformers, 3)

    def _replace(self, name: str, step: Any) -> None:
        self.transformers = [
            (key, step if key == name else existing, chosen)
            for key, existing, chosen in self.transformers
        ]

    @property
    def branches_(self) -> list[tuple[str, StoredTransformer, list[int]]]:
        """The fitted branches: name, transformer and the positions of its columns."""
        return list(self._fitted)

    @property
    def supports_partial_fit(self) -> bool:
        return all(step.supports_partial_fit for _, step in self._parts)

    @property
    def width(self) -> int:
        return self._width

    @property
    def width_out(self) -> int:
        return sum(step.width_out for _, step, _ in self._fitted)

    @property
    def is_scalar(self) -> bool:
        return False

    @property
    def numeric_output(self) -> bool:
        return all(step.numeric_output for _, step, _ in self._fitted)

    @property
    def supports_matrix(self) -> bool:
        return all(step.supports_matrix for _, step, _ in self._fitted)

    def accepts(self, index: int, kind: DataType) -> bool:
        return all(
            step.accepts(columns.index(index), kind)
            for _, step, columns in self._fitted
            if index in columns
        )

    def names_out(self, names: Sequence[str]) -> list[str]:
        out = []
        for name, step, columns in self._fitted:
            step_names = step.names_out([names[i] for i in columns])
            out += [f"{name}__{output}" for output in step_names] if self._verbose else step_names
        if double := duplicates(out):
            raise TransformError(
                f"two output columns are called {double[0]!r}; use verbose_feature_names_out=True"
            )
        return out

    def check(self, frame: Frame) -> None:
        for _, step, columns in self._fitted:
            step.check(frame.part(columns))

    @available_if(not_in_parts)
    def partial_fit(self, X: Any, y: Any = None, *, event_time_ms: Any = None) -> Self:
        """Fit on ``X`` in addition to earlier data; returns itself.

        If a branch cannot be fitted in parts there is no such method.
        """
        frame, times = self._split_event_time(X, event_time_ms)
        frame = self._read_fit_data(unwritable(frame))
        fitted = self._fitted or self._resolved(frame)
        for name, step, columns in fitted:
            partial_fit_step(name, step, frame.part(columns), y, times)
        self._fitted, self._width = fitted, frame.width or self._width
        self._rows += frame.rows
        return self

    def merge(self, other: Self) -> Self:
        """Return a new transformer fitted on the data of both.

        Raises
        ------
        TransformError
            If a branch cannot be merged, or the branches differ.
        """
        names = self._check_merge(other)
        if not (self._fitted and other._fitted):
            raise TransformError("both ColumnTransformers to merge must be fitted; call fit()")
        if [(n, c) for n, _, c in self._fitted] != [(n, c) for n, _, c in other._fitted]:
            raise TransformError("transformers of different branches or columns cannot be merged")
        called, mine, columns = zip(*self._fitted, strict=True)
        steps = merge_steps(called, mine, [step for _, step, _ in other._fitted])
        out = self._with_branches(list(zip(called, steps, columns, strict=True)))
        out._rows, out.names = self._rows + other._rows, names
        return out

    def _apply_steps(self, frame: Frame) -> Sequence[Column]:
        out: list[Column] = []
        for name, step, columns in self._fitted:
            with in_step(name):
                out += apply_step(step, [frame.columns[i] for i in columns], frame.rows)
        return out

    def inverse_transform(self, X: Any) -> Any:
        """Return data that ``transform`` maps to ``X``.

        Raises
        ------
        TransformError
            If a branch has no inverse, or a column is in no branch, or in several.
        """
        self._check_fitted()
        frame = read_frame(X)
        if frame.width != self.width_out:
            raise TransformError(f"got {frame.width} columns; expected {self.width_out}")
        restored: list[Column | None] = [None] * self.width
        at = 0
        for name, step, columns in self._fitted:
            # without names: those of X are prefixed
            part = inner_frame(frame.columns[at : at + step.width_out], rows=frame.rows)
            at += step.width_out
            with in_step(name):
                back = read_frame(step.inverse_transform(part)).columns
            for index, column in zip(columns, back, strict=True):
                if restored[index] is not None:
                    raise TransformError(f"column {index} is in several branches: no inverse")
                restored[index] = column
        if any(column is None for column in restored):
            raise TransformError(f"column {restored.index(None)} is in no branch: it is lost")
        return frame.like([c for c in restored if c is not None], names=self.names, flat=False)

    def apply(self, columns: Sequence[Column]) -> Applied:
        out: list[Column] = []
        failed: Bools | None = None
        for _, step, chosen in self._fitted:
            applied = step.apply([columns[i] for i in chosen])
            out += applied.columns
            failed = either_failed(failed, applied.failed)
        return Applied(out, failed)

    def block(self, values: Floats) -> Floats:
        # in the memory order of the block
        order: Literal["C", "F"] = "F" if values.flags.f_contiguous else "C"
        out: Floats = np.empty((len(values), self.width_out), order=order)
        at = 0
        for _, step, columns in self._fitted:
            # a copy: another branch may use the same columns
            part: Floats = np.empty((len(values), len(columns)), order=order)
            for place, index in enumerate(columns):
                part[:, place] = values[:, index]
            output = step.block(part)
            out[:, at : at + output.shape[1]] = output
            at += output.shape[1]
        return out

    @property
    def _parts(self) -> Sequence[tuple[str, StoredTransformer]]:
        return _named(*(self._bound or self._checked_branches()))

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
        fitted = self._resolved(frame)
        out: list[Column] = []
        params = by_step("ColumnTransformer", [name for name, _, _ in fitted], fit_params)
        for name, step, columns in fitted:
            result = fit_step(
                name, step, frame.part(columns), y, times, output=output, params=params[name]
            )
            out += result.columns if output else ()
        self._fitted, self._width, self._rows = fitted, frame.width, frame.rows
        return out

    def _resolved(self, frame: Frame) -> list[tuple[str, StoredTransformer, list[int]]]:
        """Return the branches with the positions of their columns, the others in the remainder."""
        out = []
        rest = list(range(frame.width))
        for branch in self._branches:
            columns = [_position(branch.name, column, frame) for column in branch.chosen]
            rest = [index for index in rest if index not in columns]
            if branch.transformer is not None:
                out.append((branch.name, branch.transformer, columns))
        if self._rest is not None and rest:
            out.append((_REMAINDER, self._rest, rest))
        if not out:
            raise TransformError("every column is dropped; expected a branch with output")
        return out

    def _with_branches(self, fitted: list[tuple[str, StoredTransformer, list[int]]]) -> Self:
        """Return a copy with other transformers in the same branches."""
        by_name = {name: step for name, step, _ in fitted}
        branches = [
            (b.name, "drop" if b.transformer is None else by_name[b.name], list(b.chosen))
            for b in self._branches
        ]
        out = type(self)(
            branches,  # type: ignore[arg-type]
            remainder=by_name.get(_REMAINDER, self._rest or "drop"),
            verbose_feature_names_out=self._verbose,
        )
        out._bind()
        out._fitted, out._width = fitted, self._width
        return out

    def _fitted_params(self) -> Params:
        return {
            "width": self._width,
            "verbose_feature_names_out": self._verbose,
            "branches": [
                {"name": name, "columns": columns, "transformer": step.to_params()}
                for name, step, columns in self._fitted
            ],
        }

    @classmethod
    def _from_params(cls, params: Mapping[str, Any]) -> Self:
        fitted = [
            (
                branch["name"],
                stored_transformer(branch["transformer"]),
                [int(i) for i in branch["columns"]],
            )
            for branch in params["branches"]
        ]
        width = int(params["width"])
        for name, step, columns in fitted:
            if step.width != len(columns) or not all(0 <= i < width for i in columns):
                raise TransformError(
                    f"branch {name!r} does not have the columns that it was fitted on"
                )
        rest = next((step for name, step, _ in fitted if name == _REMAINDER), None)
        out = cls(
            [branch for branch in fitted if branch[0] != _REMAINDER],
            remainder=rest or "drop",
            verbose_feature_names_out=params["verbose_feature_names_out"],
        )
        out._bind()
        out._fitted, out._width, out._rows = fitted, width, int(params["rows"])
        return out


def _named(
    branches: Sequence[ColumnBranch], rest: StoredTransformer | None
) -> list[tuple[str, StoredTransformer]]:
    every = [*branches, ColumnBranch(_REMAINDER, rest, ())]
    return [(b.name, b.transformer) for b in every if b.transformer is not None]


def _transformer(name: str, given: Any) -> StoredTransformer | None:
    if isinstance(given, str):
        if given not in ("drop", "passthrough"):
            raise TransformError(
                f"branch {name!r}: {given!r}; expected a transformer, 'passthrough' or 'drop'"
            )
        return None if given == "drop" else Passthrough()
    return as_step("ColumnTransformer", name, given)


def _listed(name: str, chosen: Any) -> list[int | str]:
    one = isinstance(chosen, int | str)
    many = isinstance(chosen, list | tuple | np.ndarray)
    out = [chosen] if one else np.asarray(chosen, object).tolist() if many else []
    if not out or not all(type(column) in (int, str) for column in out):
        raise TransformError(
            f"branch {name!r}: columns={chosen!r}; expected names or positions, one or a list"
        )
    return out


def _position(name: str, chosen: int | str, frame: Frame) -> int:
    """Return the position of a column; TransformError if there is none."""
    if isinstance(chosen, str):
        if frame.names is None:
            raise TransformError(
                f"branch {name!r} names the column {chosen!r}, but the data have no names; use "
                "positions, or a frame"
            )
        if chosen not in frame.names:
            message = unknown_name("column", chosen, frame.names)
            raise TransformError(f"branch {name!r}: {message}")
        return frame.names.index(chosen)
    place = chosen + frame.width if chosen < 0 else chosen
    if not 0 <= place < frame.width:
        raise TransformError(
            f"branch {name!r}: column {chosen} is out of range; the data have {frame.width} columns"
        )
    return place
