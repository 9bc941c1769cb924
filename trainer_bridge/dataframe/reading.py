"""Decoding of Arrow tables: the columns to read and the conversion of each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.errors import ConfigurationError, RequestError, UnknownNameError
from paimon_features.core.repeated_items import duplicates
from paimon_features.core.types.array_types import Ints
from trainer_bridge.batches.arrow_values import list_levels, opened
from trainer_bridge.batches.ragged import Rows, concat_rows, ends
from trainer_bridge.batches.tensor_columns import MASK_SUFFIX, ItemMask, TensorColumn
from trainer_bridge.batches.vocabulary import Vocabulary
from trainer_bridge.dataframe.dedup import (
    Blocks,
    Deduplicated,
    concat_blocks,
    concat_deduplicated,
)
from trainer_bridge.dataframe.frame import Field
from trainer_bridge.dataframe.frame_sources import Source, matched

Stored = dict[str, Rows | Blocks | Deduplicated]
"""Stored rows by column; in deduplicated data a stored row is a block of rows."""


@dataclass(frozen=True)
class DeduplicatedColumns:
    """The deduplicated columns: one group of value columns per index column."""

    values: Mapping[str, tuple[str, ...]]
    """Value columns by index column."""

    @classmethod
    def of(
        cls,
        key_idx_field_names: Sequence[str] | None,
        value_field_names: Sequence[Sequence[str]] | None,
    ) -> DeduplicatedColumns:
        keys, values = list(key_idx_field_names or ()), list(value_field_names or ())
        if len(keys) != len(values) or len(set(keys)) != len(keys):
            raise ConfigurationError(
                f"key_idx_field_names={keys} and value_field_names={values}: expected one list of "
                "value fields per index field"
            )
        named = [name for group in values for name in group]
        twice = duplicates(named) or not set(keys).isdisjoint(named)
        if twice or any(isinstance(group, str) for group in values):
            raise ConfigurationError(
                f"value_field_names={values}: expected lists of distinct names, none of "
                "them an index field"
            )
        return cls({key: tuple(group) for key, group in zip(keys, values, strict=True)})

    @property
    def columns(self) -> list[str]:
        """Index and value columns."""
        return [name for key, group in self.values.items() for name in (key, *group)]


class Decoding:
    """The columns to read from a source and their decoding, derived once from the schema.

    Attributes
    ----------
    fields
        The complete fields of the output, in the requested order.
    schema
        Schema of the columns to read.
    """

    def __init__(
        self,
        source: Source,
        fields: Iterable[Field | str] | None,
        groups: DeduplicatedColumns,
        *,
        ignore_case: bool,
        fill: Mapping[str, Any],
        masks: Collection[str],
        item_masks: Collection[str],
        codes: Mapping[str, Vocabulary | Sequence[str]],
        scaled: Collection[str],
    ) -> None:
        self._source = source
        self._in_blocks = bool(groups.values)
        where = f"{source.name!r}"
        requested = [field if isinstance(field, Field) else Field(field) for field in fields or ()]
        if fields is None:
            requested = [Field(name) for name in source.schema.names]
        names = [field.name for field in requested]
        if not names or len(set(names)) < len(names):
            raise ConfigurationError(
                f"fields {', '.join(names) or 'none'}: expected at least one, without duplicates"
            )
        requested += [Field(name) for name in groups.columns if name not in names]
        for name in (*fill, *masks, *item_masks, *codes, *scaled):
            if name not in [field.name for field in requested]:
                raise ConfigurationError(
                    f"fill=, masks=, item_masks=, codes= or scaled= names {name!r}, which is not "
                    f"read; read are: "
                    f"{', '.join(field.name for field in requested)}"
                )
        defaults = {f.name: f.default_value for f in requested if f.default_value is not None}
        twice = defaults.keys() & fill.keys()
        if twice:
            raise ConfigurationError(
                f"field {min(twice)!r} has both default_value and fill=; declare only one"
            )
        fill = {**fill, **defaults}
        self.fields: dict[str, Field] = {}
        self._plans: dict[str, TensorColumn] = {}
        self._types: dict[str, pa.DataType] = {}
        self._item_masks: dict[str, list[ItemMask]] = {}
        self._masks = [field.name for field in requested if field.name in masks]
        self._names: dict[str, str] = {}  # the existing columns of those fields
        read = []
        for field in requested:
            found = matched(field.name, source.schema.names, ignore_case)
            if found is not None:
                column = source.schema.field(found)
                self._names[field.name] = found
                read.append(column)
            elif field.default_value is None or self._in_blocks:
                raise UnknownNameError.of(f"column in {where}", field.name, source.schema.names)
            else:
                column = pa.field(field.name, field.missing_type(where))
            words = codes.get(field.name)
            plan = self._plan(
                column,
                field,
                source.name,
                fill=fill.get(field.name),
                # a null list needs no declaration, a null number does
                masked=field.name in masks,
                items_masked=field.name in item_masks,
                vocabulary=words
                if words is None or isinstance(words, Vocabulary)
                else Vocabulary.of(words),
                scaled=field.name in scaled,
                texts=True,
            )
            spec = plan.spec
            if field.dtype not in (None, spec.dtype):
                raise ConfigurationError(
                    f"field {field.name!r}: dtype {field.dtype}; {where} has {column.type}, "
                    f"which is {spec.dtype} as a tensor"
                )
            self._plans[field.name] = plan
            self.fields[field.name] = replace(
                field, dtype=spec.dtype, ragged_rank=spec.ragged_rank, shape=spec.shape
            )
            self._types[field.name] = column.type
            if field.name in masks:
                mask = field.name + MASK_SUFFIX
                self.fields[mask] = Field(mask, np.bool_, 0)
            own = plan.item_masks() if field.name in item_masks else []
            self._item_masks[field.name] = own
            for spec in (plan.spec for plan in own):
                self.fields[spec.name] = Field(spec.name, np.bool_, spec.ragged_rank, spec.shape)
        if not read:
            raise ConfigurationError(
                f"{where} has none of the fields {', '.join(self._plans)}, so the number of rows "
                "is unknown; read an existing column as well"
            )
        self.schema = pa.schema([column.with_nullable(True) for column in read])
        self._optional = [self._names[name] for name in defaults if name in self._names]

    def _plan(self, column: pa.Field, field: Field, name: str, **options: Any) -> TensorColumn:
        kind = column.type
        if not self._in_blocks:
            field.check_rank(kind, repr(name))
            return TensorColumn.plan(column, name, shape=field.shape or (), **options)
        levels = len(list_levels(kind)[0])
        if levels:
            # the outermost lists are the blocks; a field may include that level or not
            kind = kind.value_type
            if field.ragged_rank == levels and not field.shape:
                field = replace(field, ragged_rank=levels - 1)
        field.check_rank(kind, f"{name!r} within blocks")
        inner = pa.field(column.name, kind)
        return TensorColumn.plan(inner, name, shape=field.shape or (), **options)

    def read(self, piece: int) -> Stored | None:
        """Return the stored rows of a piece of the source; None if it is skipped as damaged."""
        table = self._source.read(piece, self.schema, self._optional)
        return None if table is None else self._decoded(table)

    def masks_of(self, name: str) -> list[str]:
        """Return the mask columns of a column."""
        of_rows = [name + MASK_SUFFIX] if name in self._masks else []
        return [*of_rows, *(mask.spec.name for mask in self._item_masks[name])]

    def _decoded(self, table: pa.Table) -> Stored:
        stored: Stored = {}
        for name, plan in self._plans.items():
            if name in self._names:
                rows = table.column(self._names[name])
            else:
                rows = pa.chunked_array([pa.nulls(table.num_rows, self._types[name])])
            splits = None
            if self._in_blocks and pa.types.is_nested(rows.type):
                rows, splits = _in_blocks(rows, plan)
            found = {name: plan.rows(rows)}
            if name in self._masks:
                found[name + MASK_SUFFIX] = _present(rows)
            found |= {mask.spec.name: mask.rows(rows) for mask in self._item_masks[name]}
            for one, values in found.items():
                stored[one] = values if splits is None else Blocks(values, splits)
        return stored


def _in_blocks(column: pa.ChunkedArray, plan: TensorColumn) -> tuple[pa.ChunkedArray, Ints]:
    """Return the rows within the lists of a column, and the end of each list."""
    parts = [opened(chunk) for chunk in column.chunks]
    if any(mask is not None for _, _, mask in parts):
        raise RequestError(f"{plan.where} has a null where a block of rows is expected")
    rows = pa.chunked_array([child for _, child, _ in parts], column.type.value_type)
    lengths = [length for length, _, _ in parts] or [np.zeros(0, np.int64)]
    return rows, ends(np.concatenate(lengths))


def _present(column: pa.ChunkedArray) -> Rows:
    chunks = pc.is_valid(column).chunks
    found = [chunk.to_numpy(zero_copy_only=False) for chunk in chunks]
    return np.concatenate(found) if found else np.zeros(0, bool)


def concat(parts: Sequence[Stored]) -> Stored:
    """Concatenate the stored rows of the parts."""
    if len(parts) == 1:
        return parts[0]
    out: Stored = {}
    for name, first in parts[0].items():
        columns: list[Any] = [part[name] for part in parts]
        if isinstance(first, Blocks):
            out[name] = concat_blocks(columns)
        elif isinstance(first, Deduplicated):
            out[name] = concat_deduplicated(columns)
        else:
            out[name] = concat_rows(columns)
    return out


def each(stored: Stored, of: Callable[[Any], Any]) -> Stored:
    """Apply a function to every column."""
    return {name: of(column) for name, column in stored.items()}


def num_rows(stored: Mapping[str, Any]) -> int:
    """Return the number of rows of a batch."""
    return len(next(iter(stored.values()))) if stored else 0
