"""``DataFrame``: HybridBackend's types of columns and values, over NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.errors import ConfigurationError, RequestError
from paimon_features.core.types.array_types import Array, Ints
from trainer_bridge.batches.arrow_values import list_levels
from trainer_bridge.batches.ragged import Ragged, SparseValue
from trainer_bridge.batches.tensor_columns import ColumnSpec
from trainer_bridge.dataframe.dedup import Deduplicated

Features = dict[str, Any]
"""A batch: arrays, ``DataFrame.Value`` or (not restored) ``Deduplicated`` by column."""

Pad = bool | Sequence[int | None]


@dataclass(frozen=True)
class Field:
    """Definition of a column and the type it is read as.

    Attributes
    ----------
    name
        Name of the column.
    dtype
        NumPy or TensorFlow dtype of the items, as a check: data of another type is rejected.
        ``str`` or ``object`` for strings. None infers it from the data.
    ragged_rank
        Levels of variable-length lists: 0 for a number, 1 for a list, 2 for lists of lists.
    shape
        Fixed dimensions: ``[32]`` for a list of 32 items, read as an array ``(rows, 32)``.
    default_value
        Replaces nulls (null items within lists), and fills every row where a file or the table
        does not have the column; variable-length lists are then empty. With a shape all items
        are filled. None: nulls need ``fill=`` or ``masks=``, and a missing column is an error.

    Examples
    --------
    >>> Field("tags", np.int64, ragged_rank=1)
    Field(name='tags', dtype=dtype('int64'), ragged_rank=1, shape=(), default_value=None)
    >>> Field("embedding", shape=[32]).incomplete
    True
    """

    name: str
    dtype: Any = None
    ragged_rank: int | None = None
    shape: Sequence[int] | None = None
    default_value: Any = None

    def __post_init__(self) -> None:
        if self.dtype is not None:
            # TensorFlow dtypes provide their NumPy equivalent
            dtype = np.dtype(getattr(self.dtype, "as_numpy_dtype", self.dtype))
            object.__setattr__(self, "dtype", np.dtype(object) if dtype.kind in "US" else dtype)
        if self.ragged_rank is not None and self.ragged_rank < 0:
            raise ConfigurationError(
                f"field {self.name!r}: ragged_rank={self.ragged_rank}; expected 0 or more"
            )
        shape = tuple(self.shape or ())
        if any(size < 1 for size in shape):
            raise ConfigurationError(
                f"field {self.name!r}: shape={self.shape!r}; expected sizes of 1 or more"
            )
        object.__setattr__(self, "shape", shape)

    @property
    def incomplete(self) -> bool:
        """Whether dtype or ragged_rank are still to be inferred from the data."""
        return self.dtype is None or self.ragged_rank is None

    def build_spec(self) -> ColumnSpec:
        """Return the type of this field in a batch.

        Raises
        ------
        ConfigurationError
            If the field is incomplete; those of ``Dataset.fields`` are complete.
        """
        if self.dtype is None or self.ragged_rank is None:
            raise ConfigurationError(
                f"field {self.name!r} is incomplete: declare dtype and ragged_rank, or use the "
                "fields of a Dataset"
            )
        return ColumnSpec(self.name, self.dtype, self.ragged_rank, tuple(self.shape or ()))

    def missing_type(self, where: str) -> pa.DataType:
        """Return the Arrow type to assume for a missing column.

        Raises
        ------
        ConfigurationError
            If the field does not declare it.
        """
        if self.dtype is None:
            raise ConfigurationError(
                f"field {self.name!r}: {where} has no such column; to use "
                f"default_value={self.default_value!r} instead, declare its dtype as well"
            )
        kind = pa.string() if self.dtype.kind == "O" else pa.from_numpy_dtype(self.dtype)
        for _ in range((self.ragged_rank or 0) + len(self.shape or ())):
            kind = pa.list_(kind)
        return kind

    def check_rank(self, kind: pa.DataType, where: str) -> None:
        """Raise ConfigurationError if the list levels of a type differ from those declared.

        A fixed dimension may count as one of them, as in HybridBackend.
        """
        levels, fixed = len(list_levels(kind)[0]), len(self.shape or ())
        if self.ragged_rank is not None and levels not in (
            self.ragged_rank,
            self.ragged_rank + fixed,
        ):
            raise ConfigurationError(
                f"field {self.name!r}: ragged_rank={self.ragged_rank}, "
                f"shape={list(self.shape or ())}; {where} has {kind}, "
                f"which is {levels} levels of lists"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Value(Ragged):
    """Lists of a column: ``values`` and ``nested_row_splits``, as in HybridBackend.

    >>> value = Value(np.array([1, 2, 3]), (np.array([0, 2, 2, 3]),))
    >>> value.to_list()
    [[1, 2], [], [3]]
    >>> value.to_tensor().tolist()
    [[1, 2], [0, 0], [3, 0]]
    """

    @classmethod
    def of(cls, lists: Ragged) -> Value:
        return cls(lists.values, lists.splits, lists.mask)

    @property
    def nested_row_splits(self) -> tuple[Ints, ...]:
        """Row splits of each level, outermost first."""
        return self.splits

    def to_list(self) -> list[Any]:
        """Return the rows as Python lists, null rows as None."""
        return self.to_lists()

    def to_tensor(self, pad: Any = None) -> Array:
        """Convert to a dense array, padded at the end of each list with 0 or the empty string."""
        filler = "" if self.dtype.kind == "O" else 0
        return self.to_dense(filler if pad is None else pad)


class DataFrame:
    """Tabular data to train on: ``DataFrame.Field``, ``.Value``, ``.Spec``, and ``parse``."""

    Field = Field
    Value = Value
    Spec = ColumnSpec

    @classmethod
    def parse(cls, features: Any, pad: Pad | Mapping[str, Pad] = False) -> Any:
        """Convert lists to sparse values, or to dense arrays by ``pad``; arrays are unchanged.

        ``pad`` is True (to the longest list), or sizes by level; for a batch also either by
        column. Deduplicated columns are restored first.

        >>> value = DataFrame.Value(np.array([7, 8]), (np.array([0, 2, 2]),))
        >>> DataFrame.parse({"D": value, "A": np.array([1, 2])}, pad={"D": True})["D"].tolist()
        [[7, 8], [0, 0]]
        >>> DataFrame.parse(value).indices.tolist()
        [[0, 0], [0, 1]]

        Raises
        ------
        RequestError
            If a list is longer than ``pad`` allows, or a value is of another kind.
        """
        if isinstance(features, Mapping):
            pads = pad if isinstance(pad, Mapping) else dict.fromkeys(features, pad)
            return {
                name: cls.parse(value, pads.get(name, False)) for name, value in features.items()
            }
        if isinstance(features, Deduplicated):
            features = features.restore()
        if isinstance(features, Ragged):
            wanted = pad if not isinstance(pad, Mapping) else False
            return features.to_sparse() if wanted is False else dense(features, wanted)
        if isinstance(features, np.ndarray | SparseValue):
            return features
        raise RequestError(
            f"{type(features).__name__} is not a column of a batch and cannot be parsed"
        )

    @classmethod
    def to_sparse(cls, features: Any) -> Any:
        """Convert lists to sparse values: ``parse`` without padding."""
        return cls.parse(features)

    @classmethod
    def unbatch_and_to_sparse(cls, features: Any) -> Any:
        """Return the only row of a batch, without the row dimension.

        >>> value = DataFrame.Value(np.array([7, 8]), (np.array([0, 2]),))
        >>> row = DataFrame.unbatch_and_to_sparse({"tags": value, "age": np.array([41])})
        >>> row["tags"].indices.tolist(), row["tags"].dense_shape.tolist(), int(row["age"])
        ([[0], [1]], [2], 41)

        Raises
        ------
        RequestError
            If the batch does not have exactly one row.
        """
        if isinstance(features, Mapping):
            return {name: cls.unbatch_and_to_sparse(value) for name, value in features.items()}
        if isinstance(features, Deduplicated):
            features = features.restore()
        if len(features) != 1:
            raise RequestError(
                f"a batch of {len(features)} rows cannot be unbatched; read with batch(1)"
            )
        if isinstance(features, Ragged):
            indices, values, dense_shape = features.to_sparse()
            return SparseValue(indices[:, 1:], values, dense_shape[1:])
        return features[0]


def dense(lists: Ragged, pad: Pad) -> Array:
    """Convert lists to a dense array; sizes of ``pad`` may start with the number of rows."""
    filler = "" if lists.dtype.kind == "O" else 0
    if pad is True:
        return lists.to_dense(filler)
    sizes = [None if size in (None, -1) else size for size in pad]  # type: ignore[union-attr]
    if len(sizes) == lists.ragged_rank + 1 and sizes[0] in (None, len(lists)):
        sizes = sizes[1:]
    if len(sizes) != lists.ragged_rank:
        raise RequestError(
            f"pad={list(sizes)} for lists of rank {lists.ragged_rank}: expected "
            f"{lists.ragged_rank} sizes, or the number of rows ({len(lists)}) before them"
        )
    return lists.to_dense(filler, sizes)
