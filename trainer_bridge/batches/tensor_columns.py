"""One Arrow column as tensors: which form it has, and how its values get there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.errors import ConfigurationError, RequestError
from paimon_features.core.types.array_types import Array, Bools, Ints
from trainer_bridge.batches.arrow_values import (
    as_numbers,
    can_represent,
    innermost,
    is_text,
    leaf_dtype,
    list_levels,
    opened,
    scaled_integers,
)
from trainer_bridge.batches.ragged import Ragged, Rows, concat_rows, ends, wrap
from trainer_bridge.batches.vocabulary import Vocabulary

MASK_SUFFIX = "_present"


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """What a column is in a batch.

    ``ragged_rank`` counts the levels of lists (0: an array of shape ``(rows, *shape)``, else a
    :class:`~trainer_bridge.batches.ragged.Ragged`), ``shape`` is that of the fixed dimensions
    inside.
    """

    name: str
    dtype: np.dtype[Any]
    ragged_rank: int = 0
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorColumn:
    """How an Arrow column becomes an array or lists.

    Attributes
    ----------
    spec
        What the column becomes.
    where
        The column, for messages: ``table 'shop': column 'tags'``.
    fill
        The value for a null; None: a null is an error unless ``masked``.
    masked
        Nulls of rows have a mask, so a row may be null (its number is ``fill``, else 0).
    items_masked
        The same for nulls within lists.
    vocabulary
        The codes of texts.
    """

    spec: ColumnSpec
    where: str
    fill: Any = None
    masked: bool = False
    vocabulary: Vocabulary | None = None
    items_masked: bool = False

    @classmethod
    def plan(
        cls,
        field: pa.Field,
        table: str,
        *,
        shape: Sequence[int] = (),
        fill: Any = None,
        masked: bool = False,
        items_masked: bool = False,
        vocabulary: Vocabulary | None = None,
        scaled: bool = False,
        texts: bool = False,
        float_dtype: str | None = None,
    ) -> TensorColumn:
        """Return the plan of a column, from its type and what was declared for it.

        ``shape`` fixes the innermost dimensions; those of fixed-size lists are known already.
        ``texts`` allows texts without a vocabulary, as Python objects.

        Raises
        ------
        RequestError
            For a type without a tensor form; names the column and the remedy.
        ConfigurationError
            For a declaration that does not fit the type.
        """
        where = f"table {table!r}: column {field.name!r}"
        levels, leaf = list_levels(field.type)
        fixed = tuple(shape) or innermost(levels)
        if len(fixed) > len(levels) or any(
            level not in (None, size)
            for level, size in zip(levels[len(levels) - len(fixed) :], fixed, strict=True)
        ):
            raise ConfigurationError(
                f"{where} is {field.type}, which has no shape {list(fixed)} inside; "
                f"it has {len(levels)} levels of lists"
            )
        if any(size < 1 for size in fixed):
            raise ConfigurationError(f"{where}: shape={list(fixed)}: expected sizes of 1 or more")
        if texts and vocabulary is None and is_text(leaf):
            dtype = np.dtype(object)
        else:
            dtype = leaf_dtype(leaf, field.type, where, vocabulary, scaled)
        if float_dtype is not None and dtype.kind == "f":
            dtype = np.dtype(float_dtype)
        if fill is not None and not can_represent(dtype, fill):
            raise ConfigurationError(
                f"fill={{{field.name!r}: {fill!r}}}: column {field.name!r} is {dtype.name}, "
                "which cannot represent that"
            )
        if items_masked and not levels:
            raise ConfigurationError(
                f"{where} is {field.type}, which has no items; item_masks= is for lists, masks= "
                "for the rows themselves"
            )
        spec = ColumnSpec(field.name, dtype, len(levels) - len(fixed), fixed)
        return cls(spec, where, fill, masked, vocabulary, items_masked)

    def item_masks(self) -> list[ItemMask]:
        """Return a mask for each level of lists: of the items of the row's list, of their items,
        ..."""
        rank, shape = self.spec.ragged_rank, self.spec.shape
        masks = []
        for depth in range(1, rank + len(shape) + 1):
            name = f"{self.spec.name}{MASK_SUFFIX}_{depth}"
            spec = ColumnSpec(name, np.dtype(bool), min(depth, rank), shape[: max(0, depth - rank)])
            masks.append(ItemMask(spec, self.where, fill=False))
        return masks

    def rows(self, column: pa.ChunkedArray) -> Rows:
        """Return the column's rows, in memory of their own.

        Raises
        ------
        RequestError
            For a null that nothing was declared for, a list without the declared length,
            a text outside the vocabulary, a number that does not fit int64.
        """
        parts = [self._decoded(chunk, 0) for chunk in column.chunks]
        decoded = concat_rows(parts or [self._decoded(pa.array([], column.type), 0)])
        values = decoded.values if isinstance(decoded, Ragged) else decoded
        values = values.astype(self.spec.dtype, copy=not values.flags.writeable)
        return decoded.with_values(values) if isinstance(decoded, Ragged) else values

    def numbers(self, column: pa.ChunkedArray) -> Iterator[Array]:
        """Plain numbers chunk by chunk: views of Arrow's memory, not yet of the spec's dtype."""
        return (self._numbers(chunk) for chunk in column.chunks)

    def _decoded(self, array: pa.Array, level: int) -> Rows:
        spec = self.spec
        if level == spec.ragged_rank + len(spec.shape):
            return self._numbers(array)
        lengths, child, mask = opened(array)
        inner = self._decoded(child, level + 1)
        if level < spec.ragged_rank:
            if mask is not None and level > 0 and self.fill is None and not self.items_masked:
                raise RequestError(
                    f"{self.where} has a null list inside a list; declare "
                    f"fill={{{spec.name!r}: <number>}}, which makes it an empty one, or "
                    f"item_masks=[{spec.name!r}], which marks it as well, or leave the column out "
                    "by columns="
                )
            return wrap(inner, ends(lengths), mask if level == 0 else None)
        assert isinstance(inner, np.ndarray)
        return self._fixed(inner, lengths, mask, level)

    def _fixed(self, inner: Array, lengths: Ints, mask: Bools | None, level: int) -> Array:
        """Return lists of one length as one more dimension of their items."""
        size = self.spec.shape[level - self.spec.ragged_rank]
        present = lengths if mask is None else lengths[mask]
        if (present != size).any():
            other = int(present[present != size][0])
            raise RequestError(
                f"{self.where} has a list of {other} items; its shape says {size}: declare it "
                "as ragged (without a shape), or mend the rows"
            )
        items = inner.reshape(len(present), size, *inner.shape[1:])
        if mask is None:
            return items
        self._check_null(masked=self.items_masked if level else self.masked)
        out = np.full((len(mask), *items.shape[1:]), self._filler, dtype=items.dtype)
        out[mask] = items
        return out

    def _numbers(self, array: pa.Array) -> Array:
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if self.vocabulary is not None:
            try:
                array = self.vocabulary.encode(array)
            except RequestError as error:
                raise RequestError(f"{self.where}: {error}") from None
        elif pa.types.is_decimal(array.type):
            array = scaled_integers(array, self.where)
        else:
            array = as_numbers(array)
        if array.null_count:
            spec = self.spec
            in_lists = spec.shape or spec.ragged_rank
            self._check_null(masked=self.items_masked if in_lists else self.masked)
            if pa.types.is_float16(array.type):  # Arrow fills no nulls of these
                halves = array.to_numpy(zero_copy_only=False).copy()
                halves[array.is_null().to_numpy(zero_copy_only=False)] = self._filler
                return halves
            array = array.fill_null(pa.scalar(self._filler).cast(array.type))
        numbers: Array = array.to_numpy(zero_copy_only=False)
        return numbers

    @property
    def _filler(self) -> Any:
        if self.fill is not None:
            return self.fill
        return "" if self.spec.dtype.kind == "O" else 0

    def _check_null(self, masked: bool) -> None:
        if self.fill is not None or masked:
            return
        name, rank = self.spec.name, self.spec.ragged_rank + len(self.spec.shape)
        remedy = f"declare fill={{{name!r}: <number>}}"
        remedy += f" or {'item_masks' if rank else 'masks'}=[{name!r}]"
        raise RequestError(
            f"{self.where} has a null, which is not a number; {remedy}, "
            "or leave the column out by columns="
        )


@dataclass(frozen=True, slots=True)
class ItemMask(TensorColumn):
    """Which items of a column of lists are not null: the same lists, of booleans.

    A row that is null itself has no items.
    """

    def rows(self, column: pa.ChunkedArray) -> Rows:
        decoded = TensorColumn.rows(self, column)
        return Ragged(decoded.values, decoded.splits) if isinstance(decoded, Ragged) else decoded

    def _numbers(self, array: pa.Array) -> Array:
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        validity: Array = array.is_valid().to_numpy(zero_copy_only=False)
        return validity
