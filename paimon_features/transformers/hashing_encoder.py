"""Feature hashing: encoding of categories without a vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import TransformError
from paimon_features.core.types.schema import DataType, ListType
from paimon_features.transformers.base import Applied, Params, StoredTransformer, either_failed
from paimon_features.transformers.frames import Frame, missing
from paimon_features.transformers.murmur import hash_texts
from paimon_features.transformers.setting_checks import flag, integer, one_of

_OUTPUTS = ("vector", "index")


class HashingEncoder(StoredTransformer):
    """Maps each category of each column to one of ``n_features`` positions, by its hash.

    With ``output='vector'`` a column becomes ``n_features`` columns: 1.0 at the position of its
    category, zeros elsewhere; the categories of a list are added. With ``alternate_sign`` a
    negative hash counts -1.0, so that colliding categories cancel out on average instead of
    adding up. With ``output='index'`` a column becomes the position itself, 0 to
    ``n_features - 1``, the input of an embedding table.

    The hash is Murmur3 over the UTF-8 bytes, the position ``abs(hash) % n_features``, as in
    scikit-learn's ``FeatureHasher(n_features, input_type='string')``. Integers are hashed as
    decimal strings, booleans as ``true`` and ``false``; fractional numbers are rejected. Null and
    NaN are zeros, or a null index. Only the number of columns and which contain lists is fitted.

    >>> encoder = HashingEncoder(4).fit(["Paris"])
    >>> encoder.transform(["Paris", "Oslo", None])
    [[0.0, 0.0, 0.0, -1.0], [0.0, 0.0, 0.0, -1.0], [0.0, 0.0, 0.0, 0.0]]
    >>> HashingEncoder(4, alternate_sign=False).fit_transform([[["a", "b", "a"]]])
    [[0.0, 1.0, 2.0, 0.0]]
    >>> HashingEncoder(1000, output="index").fit_transform(["Paris", None])
    [955.0, None]
    """

    kind = "hashing_encoder"
    _width: int = 0
    _lists: frozenset[int] = frozenset()

    def __init__(
        self, n_features: int, *, alternate_sign: bool = True, output: str = "vector"
    ) -> None:
        self.n_features = n_features
        self.alternate_sign = alternate_sign
        self.output = output

    @property
    def list_columns_(self) -> list[int]:
        """The columns that contained lists in ``fit``."""
        return sorted(self._lists)

    @property
    def is_stateful(self) -> bool:
        return False

    @property
    def width(self) -> int:
        return self._width

    @property
    def width_out(self) -> int:
        return self._width * (self.settings_.n_features if self.settings_.output == "vector" else 1)

    @property
    def is_scalar(self) -> bool:
        return self._width == 1 and self.settings_.output == "index"

    def accepts(self, index: int, kind: DataType) -> bool:
        if isinstance(kind, ListType) and self.settings_.output == "vector":
            kind = kind.item
        return kind.text in ("string", "bool") or kind.is_integer

    def names_out(self, names: Sequence[str]) -> list[str]:
        if self.settings_.output == "index":
            return [f"{name}_hash" for name in names]
        return [f"{name}_{place}" for name in names for place in range(self.settings_.n_features)]

    def fit(self, X: Any, y: Any = None) -> Self:
        """Record the number and names of the columns; ``y`` is ignored; returns itself."""
        return self.partial_fit(self._fit_data(X))

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Record further rows; the columns must be those of the fit."""
        frame = self._read_fit_data(X)
        self.check(frame)
        self._width = frame.width or self._width
        self._rows += frame.rows
        self._lists |= {index for index, c in enumerate(frame.columns) if _holds_lists(c)}
        return self

    def _absorb(self, other: Self) -> None:
        self._width = self._width or other._width
        self._lists |= other._lists

    def check(self, frame: Frame) -> None:
        for index, column in enumerate(frame.columns):
            values = column.values[~missing(column)]
            if values.dtype.kind == "f" and (values != np.floor(values)).any():
                value = values[values != np.floor(values)][0]
                raise TransformError(
                    f"{frame.label(index)} contains {value}; expected strings, integers or "
                    "booleans: the text of a fractional number differs between languages"
                )
            if np.isinf(values).any() if values.dtype.kind == "f" else False:
                raise TransformError(f"{frame.label(index)} contains an infinite value")
            if values.dtype == np.object_:
                if _holds_lists(column) and self.settings_.output == "index":
                    raise TransformError(
                        f"{frame.label(index)} contains lists, which have no single index; use "
                        "output='vector'"
                    )
                if len(values) and not isinstance(values[0], list | str):
                    raise TransformError(
                        f"{frame.label(index)} contains decimals; cast it to strings"
                    )

    def transform(self, X: Any) -> Any:
        """Return a vector, or an index, for each value of ``X``.

        Raises
        ------
        TransformError
            For fractional numbers, and lists if the output is an index.
        """
        self._check_fitted()
        frame = self._checked(X)
        self.check(frame)
        names = frame.names or [f"x{index}" for index in range(self.width)]
        columns = self.apply(frame.columns).columns
        flat = frame.is_flat and self.is_scalar
        return frame.like(columns, names=self.names_out(names), flat=flat)

    def apply(self, columns: Sequence[Column]) -> Applied:
        out: list[Column] = []
        size = self.settings_.n_features
        failed: npt.NDArray[np.bool_] | None = None
        for column in columns:
            hashes, rows, bad = _hashed(column)
            places = np.abs(hashes) % size
            if bad is not None:
                failed = either_failed(failed, bad)
            if self.settings_.output == "index":
                values, valid = np.zeros(len(column)), np.zeros(len(column), np.bool_)
                values[rows], valid[rows] = places, True
                out.append(Column(values, None if valid.all() else valid))
                continue
            weights = np.where(hashes < 0, -1.0, 1.0) if self.settings_.alternate_sign else None
            flat = np.bincount(rows * size + places, weights, len(column) * size)
            table = flat.astype(np.float64, copy=False).reshape(len(column), size)
            out += [Column(table[:, j]) for j in range(size)]
        return Applied(out, failed)

    def _fitted_params(self) -> Params:
        lists = {"lists": self.list_columns_} if self._lists else {}
        return {"width": self._width, **self._stored_settings(), **lists}

    @classmethod
    def _from_params(cls, params: Mapping[str, Any]) -> Self:
        out = cls._from_settings(params)
        out._width = int(params["width"])
        if out._width < 1:
            raise TransformError("got no columns; expected at least one")
        out._lists = frozenset(map(int, params.get("lists", ())))
        return out

    def _settings(self) -> Params:
        return {
            "n_features": integer(self, "n_features", self.n_features, 1, 2**31 - 1),
            "alternate_sign": flag(self, "alternate_sign", self.alternate_sign),
            "output": one_of(self, "output", self.output, _OUTPUTS),
        }

    def _estimator_flags(self) -> Mapping[str, bool]:
        return {"categorical": True}


def _hashed(
    column: Column,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]:
    """Return the hashes of a column, the row of each, and the rows whose value has no hash."""
    rows = np.flatnonzero(~missing(column))
    values = column.values[rows]
    if values.dtype != np.object_:
        bad = None
        if values.dtype.kind == "f":
            whole = np.isfinite(values) & (values == np.floor(values))
            if not whole.all():
                bad = np.zeros(len(column), np.bool_)
                bad[rows[~whole]] = True
                rows, values = rows[whole], values[whole]
        distinct, inverse = np.unique(values, return_inverse=True)
        return _hashes([text_of(value) for value in distinct.tolist()])[inverse], rows, bad
    if not len(values) or isinstance(values[0], str):
        return hash_texts(values).astype(np.int64), rows, None
    # index: the items of all lists, concatenated
    rows = np.repeat(rows, [len(items) for items in values])
    flat = [item for items in values for item in items]
    present = np.array([item is not None for item in flat], np.bool_)
    return _hashes([text_of(item) for item in flat if item is not None]), rows[present], None


def _holds_lists(column: Column) -> bool:
    first_row = np.flatnonzero(column.mask)[:1]
    return column.values.dtype == np.object_ and any(
        isinstance(value, list) for value in column.values[first_row]
    )


def _hashes(texts: list[str]) -> npt.NDArray[np.int64]:
    array = np.empty(len(texts), np.object_)
    array[:] = texts
    return hash_texts(array).astype(np.int64)


def text_of(value: Any) -> str:
    """Return the string whose hash represents a value."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value))
