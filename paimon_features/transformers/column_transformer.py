"""Several transformers side by side, each for some of the columns, as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from paimon_features.array_types import Floats
from paimon_features.columns import Column
from paimon_features.errors import TransformError
from paimon_features.schema import DataType
from paimon_features.transformers.base import Applied, Params, StoredTransformer
from paimon_features.transformers.fitted_version import FittedVersion
from paimon_features.transformers.frames import Frame, inner_frame, read_frame
from paimon_features.transformers.json_values import names_of
from paimon_features.transformers.matrix_blocks import run_blocks
from paimon_features.transformers.pipeline_steps import (
    Passthrough,
    as_step,
    check_names,
    event_time_of,
    fit_step,
    inside,
    learn_more,
    merged,
    of_step,
    passed,
    stored,
)
from paimon_features.transformers.supervised import Supervised

Chosen = int | str | Sequence[int] | Sequence[str]
Given = tuple[str, StoredTransformer | FittedVersion | str, Chosen]

_REMAINDER = "remainder"


@dataclass(frozen=True)
class ColumnBranch:
    """A transformer for some of the columns, None to drop them; ``chosen`` are names or places."""

    name: str
    transformer: StoredTransformer | None
    chosen: Sequence[int | str]


class ColumnTransformer(Supervised):
    """Branches side by side: each takes some of the columns, and what they make stands in a row.

    A branch is a name, a transformer (or a ``FittedVersion``, ``'passthrough'``, ``'drop'``) and
    the columns: names, or places from 0 (from the end, if negative), one or a list of them; a
    column may be in several. Columns of no branch go through ``remainder``, which is ``'drop'``,
    ``'passthrough'`` or a transformer, and stand last. Names that come out have the branch's name
    before them (``scale__amount``), unless ``verbose_feature_names_out=False``.

    ``partial_fit`` and ``merge`` are exact, and refused where a branch refuses them.

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

    def __init__(
        self,
        transformers: Sequence[Given],
        *,
        remainder: StoredTransformer | FittedVersion | str = "drop",
        verbose_feature_names_out: bool = True,
    ) -> None:
        check_names("ColumnTransformer", [*(name for name, _, _ in transformers), _REMAINDER])
        self._branches = [
            ColumnBranch(name, _transformer(name, given), _listed(name, chosen))
            for name, given, chosen in transformers
        ]
        self._rest = _transformer(_REMAINDER, remainder)
        self.verbose_feature_names_out = bool(verbose_feature_names_out)
        self._event_time = event_time_of(step for _, step in self._all)
        self._width = 0
        self._rows = 0
        self._fitted: list[tuple[str, StoredTransformer, list[int]]] = []

    def __getitem__(self, name: str) -> StoredTransformer:
        """The transformer of the branch of this name."""
        known = dict(self._all)
        if name not in known:
            raise TransformError(f"there is no branch {name!r}; there is: {', '.join(known)}")
        return known[name]

    @property
    def branches_(self) -> list[tuple[str, StoredTransformer, list[int]]]:
        """The fitted branches: name, transformer and the places of its columns."""
        return list(self._fitted)

    @property
    def learns(self) -> bool:
        return any(step.learns for _, step in self._all)

    @property
    def supports_partial_fit(self) -> bool:
        return all(step.supports_partial_fit for _, step in self._all)

    @property
    def needs_target(self) -> bool:  # type: ignore[override]
        return any(step.needs_target for _, step in self._all)

    @property
    def event_time(self) -> str | None:
        return self._event_time

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
    def rows_seen(self) -> int:
        return self._rows

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
            own = step.names_out([names[i] for i in columns])
            out += [f"{name}__{each}" for each in own] if self.verbose_feature_names_out else own
        if len(set(out)) < len(out):
            double = next(each for each in out if out.count(each) > 1)
            raise TransformError(
                f"two columns that come out are called {double!r}; use "
                "verbose_feature_names_out=True"
            )
        return out

    def check(self, frame: Frame) -> None:
        for _, step, columns in self._fitted:
            step.check(frame.part(columns))

    def fit(self, X: Any, y: Any = None, *, event_time_ms: Any = None) -> Self:
        """Fit each branch on its columns; ``y`` is for encoders of targets."""
        self._fit(read_frame(X), y, event_time_ms, wanted=False)
        return self

    def fit_transform(self, X: Any, y: Any = None, *, event_time_ms: Any = None) -> Any:
        """``fit``, and what the branches make of ``X`` while they are fitted."""
        given = read_frame(X)
        columns = self._fit(given, y, event_time_ms, wanted=True)
        return given.like(columns, names=self._names_of(given), flat=False)

    def partial_fit(self, X: Any, y: Any = None, *, event_time_ms: Any = None) -> Self:
        """Learn from ``X`` besides what was learnt before; returns itself.

        Raises
        ------
        TransformError
            If a branch cannot be fitted in parts.
        """
        frame, times = self._parted(X, event_time_ms)
        frame = self._to_learn(inside(frame))
        fitted = self._fitted or self._resolved(frame)
        for name, step, columns in fitted:
            learn_more(name, step, frame.part(columns), y, times)
        self._fitted, self._width = fitted, frame.width or self._width
        self._rows += frame.rows
        return self

    def merge(self, other: Self) -> Self:
        """A new one that has learnt from the data of both.

        Raises
        ------
        TransformError
            If a branch cannot be merged, or the others differ.
        """
        names = self._to_merge(other)
        if not (self._fitted and other._fitted):
            raise TransformError(
                "a ColumnTransformer is merged with one that is fitted; call fit()"
            )
        if [(n, c) for n, _, c in self._fitted] != [(n, c) for n, _, c in other._fitted]:
            raise TransformError("transformers of different branches or columns cannot be merged")
        called, mine, columns = zip(*self._fitted, strict=True)
        steps = merged(called, mine, [step for _, step, _ in other._fitted])
        out = self._of(list(zip(called, steps, columns, strict=True)))
        out._rows, out.names = self._rows + other._rows, names
        return out

    def transform(self, X: Any) -> Any:
        """What the branches make of their columns of ``X``.

        Raises
        ------
        TransformError
            For values that a branch does not take, and where one refuses a row.
        """
        self._check_fitted()
        given = read_frame(X)
        frame = self._checked(given)
        if given is frame and frame.matrix is not None and frame.rows and self.supports_matrix:
            names = None if frame.names is None else self._names_of(frame)
            try:
                return run_blocks(frame, [self.block], self.width_out, names)
            except TransformError:
                pass  # told below, with the name of the branch
        self.check(frame)
        out: list[Column] = []
        for name, step, columns in self._fitted:
            with of_step(name):
                out += passed(step, [frame.columns[i] for i in columns], frame.rows)
        return given.like(out, names=self._names_of(frame), flat=False)

    def inverse_transform(self, X: Any) -> Any:
        """Data that ``transform`` makes ``X`` of.

        Raises
        ------
        TransformError
            If a branch has no inverse, or a column went into none of them, or into several.
        """
        self._check_fitted()
        frame = read_frame(X)
        if frame.width != self.width_out:
            raise TransformError(f"got {frame.width} columns; expected {self.width_out}")
        found: list[Column | None] = [None] * self.width
        at = 0
        for name, step, columns in self._fitted:
            # without names, which are those that this one gave its columns
            part = inner_frame(frame.columns[at : at + step.width_out], rows=frame.rows)
            at += step.width_out
            with of_step(name):
                back = read_frame(step.inverse_transform(part)).columns
            for index, column in zip(columns, back, strict=True):
                if found[index] is not None:
                    raise TransformError(f"column {index} went into several branches: no inverse")
                found[index] = column
        if any(column is None for column in found):
            raise TransformError(f"column {found.index(None)} went into no branch: it is lost")
        return frame.like([c for c in found if c is not None], names=self.names, flat=False)

    def apply(self, columns: Sequence[Column]) -> Applied:
        out: list[Column] = []
        failed = None
        for _, step, chosen in self._fitted:
            applied = step.apply([columns[i] for i in chosen])
            out += applied.columns
            if applied.failed is not None:
                failed = applied.failed if failed is None else failed | applied.failed
        return Applied(out, failed)

    def block(self, values: Floats) -> Floats:
        # as the block stands: column by column where there are few of them
        order: Literal["C", "F"] = "F" if values.flags.f_contiguous else "C"
        out: Floats = np.empty((len(values), self.width_out), order=order)
        at = 0
        for _, step, columns in self._fitted:
            # its own copy, for another branch may take the same columns
            part: Floats = np.empty((len(values), len(columns)), order=order)
            for place, index in enumerate(columns):
                part[:, place] = values[:, index]
            made = step.block(part)
            out[:, at : at + made.shape[1]] = made
            at += made.shape[1]
        return out

    @property
    def _all(self) -> list[tuple[str, StoredTransformer]]:
        branches = [*self._branches, ColumnBranch(_REMAINDER, self._rest, ())]
        return [(b.name, b.transformer) for b in branches if b.transformer is not None]

    def _names_of(self, frame: Frame) -> list[str]:
        names = frame.names or [f"x{index}" for index in range(self.width)]
        return self.names_out([name for name in names if name != self.event_time])

    def _fit(self, given: Frame, y: Any, event_time_ms: Any, *, wanted: bool) -> list[Column]:
        self.names, self._rows, self._width, self._fitted = None, 0, 0, []
        frame, times = self._parted(given, event_time_ms)
        frame = self._to_learn(inside(frame))
        fitted = self._resolved(frame)
        out: list[Column] = []
        for name, step, columns in fitted:
            made = fit_step(name, step, frame.part(columns), y, times, wanted=wanted)
            out += made.columns if wanted else ()
        self._fitted, self._width, self._rows = fitted, frame.width, frame.rows
        return out

    def _resolved(self, frame: Frame) -> list[tuple[str, StoredTransformer, list[int]]]:
        """The branches with the places of their columns, the rest of them in the remainder."""
        out = []
        rest = list(range(frame.width))
        for branch in self._branches:
            columns = [_place(branch.name, each, frame) for each in branch.chosen]
            rest = [index for index in rest if index not in columns]
            if branch.transformer is not None:
                out.append((branch.name, branch.transformer, columns))
        if self._rest is not None and rest:
            out.append((_REMAINDER, self._rest, rest))
        if not out:
            raise TransformError("every column is dropped; expected a branch that makes some")
        return out

    def _of(self, fitted: list[tuple[str, StoredTransformer, list[int]]]) -> Self:
        """One with other transformers in the same branches."""
        made = {name: step for name, step, _ in fitted}
        own = [
            (b.name, "drop" if b.transformer is None else made[b.name], list(b.chosen))
            for b in self._branches
        ]
        out = type(self)(
            own,  # type: ignore[arg-type]
            remainder=made.get(_REMAINDER, self._rest or "drop"),
            verbose_feature_names_out=self.verbose_feature_names_out,
        )
        out._fitted, out._width = fitted, self._width
        return out

    def _learnt(self) -> Params:
        return {
            "width": self._width,
            "verbose_feature_names_out": self.verbose_feature_names_out,
            "branches": [
                {"name": name, "columns": columns, "transformer": step.to_params()}
                for name, step, columns in self._fitted
            ],
        }

    @classmethod
    def _from_params(cls, params: Mapping[str, Any]) -> Self:
        fitted = [
            (branch["name"], stored(branch["transformer"]), [int(i) for i in branch["columns"]])
            for branch in params["branches"]
        ]
        width = int(params["width"])
        for name, step, columns in fitted:
            if step.width != len(columns) or not all(0 <= i < width for i in columns):
                raise TransformError(f"branch {name!r} has not the columns that it was fitted on")
        rest = next((step for name, step, _ in fitted if name == _REMAINDER), None)
        out = cls(
            [branch for branch in fitted if branch[0] != _REMAINDER],
            remainder=rest or "drop",
            verbose_feature_names_out=params["verbose_feature_names_out"],
        )
        out._fitted, out._width, out._rows = fitted, width, int(params["rows"])
        out.names = names_of(params, width)
        return out


def _transformer(name: str, given: Any) -> StoredTransformer | None:
    if isinstance(given, str):
        if given not in ("drop", "passthrough"):
            raise TransformError(
                f"branch {name!r}: {given!r}; expected a transformer, 'passthrough' or 'drop'"
            )
        return None if given == "drop" else Passthrough()
    return as_step("ColumnTransformer", name, given)


def _listed(name: str, chosen: Any) -> list[int | str]:
    out = [chosen] if isinstance(chosen, int | str) else list(chosen)
    if not out or not all(type(each) in (int, str) for each in out):
        raise TransformError(
            f"branch {name!r}: columns={chosen!r}; expected names or places, one or a list of them"
        )
    return out


def _place(name: str, chosen: int | str, frame: Frame) -> int:
    """The place of a column; TransformError where it is not there."""
    if isinstance(chosen, str):
        if frame.names is None:
            raise TransformError(
                f"branch {name!r} names the column {chosen!r}, and the data have no names; give "
                "places, or a frame"
            )
        if chosen not in frame.names:
            raise TransformError(
                f"branch {name!r}: there is no column {chosen!r}; there is: "
                f"{', '.join(frame.names)}"
            )
        return frame.names.index(chosen)
    place = chosen + frame.width if chosen < 0 else chosen
    if not 0 <= place < frame.width:
        raise TransformError(f"branch {name!r}: there is no column {chosen} of {frame.width}")
    return place
