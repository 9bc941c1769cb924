"""Decoding of Arrow tables: the columns to read and the conversion of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.errors import (
    ConfigurationError,
    RequestError,
    UnknownNameError,
    unknown_name,
)
from paimon_features.core.types.array_types import Ints
from trainer_bridge.batches.arrow_values import list_levels, opened
from trainer_bridge.batches.ragged import Rows, concat_rows, ends
from trainer_bridge.batches.tensor_columns import MASK_SUFFIX, ItemMask, TensorColumn
from trainer_bridge.dataframe.dataset_options import DatasetOptions, DeduplicatedColumns
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
class FieldPlan:
    """How one field is read.

    Attributes
    ----------
    field
        The complete field.
    source_column, source_type
        The column of the source, None if it is missing there, and the type that it has or would
        have.
    column
        How its values become rows.
    masked
        Whether a column of the output says which rows are not null.
    item_masks
        The columns of the output that say which items of lists are not null.
    """

    field: Field
    source_column: str | None
    source_type: pa.DataType
    column: TensorColumn
    masked: bool
    item_masks: Sequence[ItemMask]

    @property
    def output_fields(self) -> list[Field]:
        """The field, and those of its masks."""
        name, specs = self.field.name, [mask.spec for mask in self.item_masks]
        mask = [Field(name + MASK_SUFFIX, np.bool_, 0)] if self.masked else []
        of_items = [Field(spec.name, np.bool_, spec.ragged_rank, spec.shape) for spec in specs]
        return [self.field, *mask, *of_items]


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
        options: DatasetOptions,
    ) -> None:
        self._source = source
        self._options = options
        self._in_blocks = bool(groups.values)
        requested = _requested_fields(source, fields, groups)
        _check_named_fields(options, [field.name for field in requested])
        self._fill = _fill_values(options, requested)
        self._plans = {field.name: self._plan(field) for field in requested}
        self.fields: dict[str, Field] = {
            field.name: field for plan in self._plans.values() for field in plan.output_fields
        }
        self.schema = self._schema_to_read()
        self._optional = [
            plan.source_column
            for field, plan in zip(requested, self._plans.values(), strict=True)
            if field.default_value is not None and plan.source_column is not None
        ]

    def _schema_to_read(self) -> pa.Schema:
        names = [plan.source_column for plan in self._plans.values()]
        columns = [self._source.schema.field(name) for name in names if name is not None]
        if not columns:
            raise ConfigurationError(
                f"{self._source.name!r} has none of the fields {', '.join(self._plans)}, so the "
                "number of rows is unknown; read an existing column as well"
            )
        return pa.schema([column.with_nullable(True) for column in columns])

    def _plan(self, field: Field) -> FieldPlan:
        """Find the column of a field, and plan how it is read."""
        options, available = self._options, self._source.schema.names
        where = f"{self._source.name!r}"
        source_column = matched(field.name, available, options.field_ignore_case)
        if source_column is not None:
            column = self._source.schema.field(source_column)
        elif field.default_value is None or self._in_blocks:
            raise UnknownNameError.of(f"column in {where}", field.name, available)
        else:
            column = pa.field(field.name, field.missing_type(where))
        plan = self._tensor_column(column, field)
        spec = plan.spec
        if field.dtype not in (None, spec.dtype):
            raise ConfigurationError(
                f"field {field.name!r}: dtype {field.dtype}; {where} has {column.type}, "
                f"which is {spec.dtype} as a tensor"
            )
        return FieldPlan(
            replace(field, dtype=spec.dtype, ragged_rank=spec.ragged_rank, shape=spec.shape),
            source_column,
            column.type,
            plan,
            masked=field.name in options.masks,
            item_masks=plan.item_masks() if field.name in options.item_masks else (),
        )

    def _tensor_column(self, column: pa.Field, field: Field) -> TensorColumn:
        """Plan the values of a column; of deduplicated data, those within the blocks."""
        kind, where = column.type, repr(self._source.name)
        if self._in_blocks:
            where += " within blocks"
            levels = len(list_levels(kind)[0])
            if levels:
                # the outermost lists are the blocks; a field may include that level or not
                kind = kind.value_type
                if field.ragged_rank == levels and not field.shape:
                    field = replace(field, ragged_rank=levels - 1)
        field.check_rank(kind, where)
        options = self._options
        return TensorColumn.plan(
            pa.field(column.name, kind) if self._in_blocks else column,
            self._source.name,
            shape=field.shape or (),
            fill=self._fill.get(field.name),
            # a null list needs no declaration, a null number does
            masked=field.name in options.masks,
            items_masked=field.name in options.item_masks,
            vocabulary=options.vocabulary(field.name),
            scaled=field.name in options.scaled,
            texts=True,
        )

    def read(self, piece: int) -> Stored | None:
        """Return the stored rows of a piece of the source; None if it is skipped as damaged."""
        table = self._source.read(piece, self.schema, self._optional)
        return None if table is None else self._decoded(table)

    def masks_of(self, name: str) -> list[str]:
        """Return the mask columns of a column."""
        return [field.name for field in self._plans[name].output_fields[1:]]

    def _decoded(self, table: pa.Table) -> Stored:
        stored: Stored = {}
        for name, plan in self._plans.items():
            if plan.source_column is not None:
                rows = table.column(plan.source_column)
            else:
                rows = pa.chunked_array([pa.nulls(table.num_rows, plan.source_type)])
            splits = None
            if self._in_blocks and pa.types.is_nested(rows.type):
                rows, splits = _in_blocks(rows, plan.column)
            outputs = {name: plan.column.rows(rows)}
            if plan.masked:
                outputs[name + MASK_SUFFIX] = _present(rows)
            outputs |= {mask.spec.name: mask.rows(rows) for mask in plan.item_masks}
            for output, values in outputs.items():
                stored[output] = values if splits is None else Blocks(values, splits)
        return stored


def _requested_fields(
    source: Source, fields: Iterable[Field | str] | None, groups: DeduplicatedColumns
) -> list[Field]:
    """Return the fields to read, with those that deduplicated data need in addition."""
    listed = source.schema.names if fields is None else fields
    requested = [field if isinstance(field, Field) else Field(field) for field in listed]
    names = [field.name for field in requested]
    if not names or len(set(names)) < len(names):
        raise ConfigurationError(
            f"fields {', '.join(names) or 'none'}: expected at least one, without duplicates"
        )
    return requested + [Field(name) for name in groups.columns if name not in names]


def _check_named_fields(options: DatasetOptions, names: Sequence[str]) -> None:
    for option, name in options.iter_named_fields():
        if name not in names:
            raise ConfigurationError(f"{option}=: {unknown_name('field', name, names)}")


def _fill_values(options: DatasetOptions, fields: Sequence[Field]) -> dict[str, Any]:
    """Return what replaces nulls, by field: of ``fill=`` and of the fields themselves."""
    fill = options.fill or {}
    defaults = {f.name: f.default_value for f in fields if f.default_value is not None}
    declared_twice = defaults.keys() & fill.keys()
    if declared_twice:
        raise ConfigurationError(
            f"field {min(declared_twice)!r} has both default_value and fill=; declare only one"
        )
    return {**fill, **defaults}


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
    masks = [chunk.to_numpy(zero_copy_only=False) for chunk in chunks]
    return np.concatenate(masks) if masks else np.zeros(0, bool)


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


def map_columns(stored: Stored, of: Callable[[Any], Any]) -> Stored:
    """Apply a function to every column."""
    return {name: of(column) for name, column in stored.items()}


def num_rows(stored: Mapping[str, Any]) -> int:
    """Return the number of rows of a batch."""
    return len(next(iter(stored.values()))) if stored else 0
