"""``DataFrame``: what HybridBackend calls its columns and their values, over NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.array_types import Array, Ints
from paimon_features.errors import ConfigurationError, RequestError
from trainer_bridge.batches.arrow_values import list_levels
from trainer_bridge.batches.ragged import Ragged, SparseValue
from trainer_bridge.batches.tensor_columns import ColumnSpec
from trainer_bridge.dataframe.dedup import Deduplicated

Features = dict[str, Any]
"""A batch: arrays, ``DataFrame.Value`` and (unrestored) ``Deduplicated`` by column."""

Pad = bool | Sequence[int | None]


@dataclass(frozen=True)
class Field:
    """Definition of a column: what it is read as.

    Attributes
    ----------
    name
        The column.
    dtype
        NumPy or TensorFlow dtype of the items, as a check: another type in the data is refused.
        ``str`` or ``object`` for texts. None takes what is there.
    ragged_rank
        Levels of lists of any length: 0 for a number, 1 for a list, 2 for lists of lists.
    shape
        Fixed dimensions: ``[32]`` for a list of 32 items, which comes as an array ``(rows, 32)``.
    default_value
        What a null becomes (in lists a null item), and every row where a file or the table does
        not have the column; a row of lists of any length is then an empty list. With a shape all
        items become it. None: nulls need ``fill=`` or ``masks=``, and a missing column is refused.

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
            # TensorFlow's dtypes say what they are in NumPy
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
        """Whether dtype or ragged_rank are still to be taken from the data."""
        return self.dtype is None or self.ragged_rank is None

    def build_spec(self) -> ColumnSpec:
        """What a batch has for this field.

        Raises
        ------
        ConfigurationError
            For a field that is incomplete: those of ``Dataset.fields`` are not.
        """
        if self.dtype is None or self.ragged_rank is None:
            raise ConfigurationError(
                f"field {self.name!r} is incomplete: give dtype and ragged_rank, or take the "
                "fields of a Dataset"
            )
        return ColumnSpec(self.name, self.dtype, self.ragged_rank, tuple(self.shape or ()))

    def missing_type(self, where: str) -> pa.DataType:
        """The type that a column would have which is not there.

        Raises
        ------
        ConfigurationError
            If the field does not say it.
        """
        if self.dtype is None:
            raise ConfigurationError(
                f"field {self.name!r}: {where} has no such column; to have "
                f"default_value={self.default_value!r} in its place, declare its dtype as well"
            )
        kind = pa.string() if self.dtype.kind == "O" else pa.from_numpy_dtype(self.dtype)
        for _ in range((self.ragged_rank or 0) + len(self.shape or ())):
            kind = pa.list_(kind)
        return kind

    def check_rank(self, kind: pa.DataType, where: str) -> None:
        """Raise ConfigurationError unless a type has the declared levels of lists.

        A fixed dimension may count as one of them, as it does in HybridBackend.
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
    """Lists of a column: ``values`` and ``nested_row_splits``, as HybridBackend has them.

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
        """Rows as Python lists, null ones as None."""
        return self.to_lists()

    def to_tensor(self, pad: Any = None) -> Array:
        """A dense array, padded at the end of each list: with 0, or an empty text."""
        filler = "" if self.dtype.kind == "O" else 0
        return self.to_dense(filler if pad is None else pad)


class DataFrame:
    """Tabular data to train on: ``DataFrame.Field``, ``.Value``, ``.Spec``, and ``parse``."""

    Field = Field
    Value = Value
    Spec = ColumnSpec

    @classmethod
    def parse(cls, features: Any, pad: Pad | Mapping[str, Pad] = False) -> Any:
        """Lists as sparse values, or dense where ``pad`` says so; arrays as they are.

        ``pad`` is True (as long as the longest), or sizes by level; for a whole batch also by
        column. Deduplicated columns are restored first.

        >>> value = DataFrame.Value(np.array([7, 8]), (np.array([0, 2, 2]),))
        >>> DataFrame.parse({"D": value, "A": np.array([1, 2])}, pad={"D": True})["D"].tolist()
        [[7, 8], [0, 0]]
        >>> DataFrame.parse(value).indices.tolist()
        [[0, 0], [0, 1]]

        Raises
        ------
        RequestError
            If a list is longer than ``pad`` has room for, or for a value of another kind.
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
        raise RequestError(f"{type(features).__name__} is no column of a batch: cannot parse it")

    @classmethod
    def to_sparse(cls, features: Any) -> Any:
        """Lists as sparse values: ``parse`` without padding."""
        return cls.parse(features)

    @classmethod
    def unbatch_and_to_sparse(cls, features: Any) -> Any:
        """The only row of a batch, without the dimension of rows.

        >>> value = DataFrame.Value(np.array([7, 8]), (np.array([0, 2]),))
        >>> row = DataFrame.unbatch_and_to_sparse({"tags": value, "age": np.array([41])})
        >>> row["tags"].indices.tolist(), row["tags"].dense_shape.tolist(), int(row["age"])
        ([[0], [1]], [2], 41)

        Raises
        ------
        RequestError
            For a batch of any other number of rows.
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
    """Lists as a dense array; sizes of ``pad`` may begin with the number of rows."""
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
