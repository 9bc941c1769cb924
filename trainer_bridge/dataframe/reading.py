"""From Arrow tables to columns: which columns are read, and what each becomes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.errors import ConfigurationError, RequestError, UnknownNameError
from trainer_bridge.columns import TensorColumn, list_levels, opened
from trainer_bridge.dataframe.dedup import (
    Blocks,
    Deduplicated,
    concat_blocks,
    concat_deduplicated,
)
from trainer_bridge.dataframe.frame import Field
from trainer_bridge.dataframe.sources import Source, matched
from trainer_bridge.forms import MASK_SUFFIX
from trainer_bridge.ragged import Ints, Rows, concat_rows, ends
from trainer_bridge.vocabulary import Vocabulary

Stored = dict[str, Rows | Blocks | Deduplicated]
"""Stored rows by column; of deduplicated data a stored row is a block of rows."""


@dataclass(frozen=True)
class Groups:
    """Which columns are stored once per user: a group for each index column."""

    values: Mapping[str, tuple[str, ...]]
    """Value columns by index column."""

    @classmethod
    def of(
        cls,
        key_idx_field_names: Sequence[str] | None,
        value_field_names: Sequence[Sequence[str]] | None,
    ) -> Groups:
        keys, values = list(key_idx_field_names or ()), list(value_field_names or ())
        if len(keys) != len(values) or len(set(keys)) != len(keys):
            raise ConfigurationError(
                f"key_idx_field_names={keys} and value_field_names={values}: expected one list of "
                "value fields for each index field"
            )
        named = [name for group in values for name in group]
        twice = {name for name in named if named.count(name) > 1 or name in keys}
        if twice or any(isinstance(group, str) for group in values):
            raise ConfigurationError(
                f"value_field_names={values}: expected lists of names, each name once and none of "
                "them an index field"
            )
        return cls({key: tuple(group) for key, group in zip(keys, values, strict=True)})

    @property
    def columns(self) -> list[str]:
        """Index and value columns."""
        return [name for key, group in self.values.items() for name in (key, *group)]


class Decoding:
    """What to read of a source, and how: made once, from the fields and the source's schema.

    Attributes
    ----------
    fields
        The complete fields of what comes out, in the order asked for.
    schema
        What is read.
    """

    def __init__(
        self,
        source: Source,
        fields: Iterable[Field | str] | None,
        groups: Groups,
        *,
        ignore_case: bool,
        fill: Mapping[str, Any],
        masks: Collection[str],
        codes: Mapping[str, Vocabulary | Sequence[str]],
        scaled: Collection[str],
    ) -> None:
        self._in_blocks = bool(groups.values)
        where = f"{source.name!r}"
        asked = [field if isinstance(field, Field) else Field(field) for field in fields or ()]
        if fields is None:
            asked = [Field(name) for name in source.schema.names]
        asked += [Field(name) for name in groups.columns if name not in [f.name for f in asked]]
        for name in (*fill, *masks, *codes, *scaled):
            if name not in [field.name for field in asked]:
                raise ConfigurationError(
                    f"fill=, masks=, codes= or scaled= names {name!r}; read are: "
                    f"{', '.join(field.name for field in asked)}"
                )
        self.fields: dict[str, Field] = {}
        self._plans: dict[str, TensorColumn] = {}
        self._masks = [field.name for field in asked if field.name in masks]
        read = []
        for field in asked:
            found = matched(field.name, source.schema.names, ignore_case)
            if found is None:
                raise UnknownNameError.of(f"column in {where}", field.name, source.schema.names)
            column = source.schema.field(found)
            read.append(column)
            words = codes.get(field.name)
            plan = self._plan(
                column,
                field,
                source.name,
                fill=fill.get(field.name),
                # a null list needs no declaration, a null number does
                masked=field.name in masks,
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
            if field.name in masks:
                mask = field.name + MASK_SUFFIX
                self.fields[mask] = Field(mask, np.bool_, 0)
        self._names = dict(zip(self._plans, (column.name for column in read), strict=True))
        self.schema = pa.schema([column.with_nullable(True) for column in read])

    def _plan(self, column: pa.Field, field: Field, name: str, **options: Any) -> TensorColumn:
        kind = column.type
        if not self._in_blocks:
            field.check_rank(kind, repr(name))
            return TensorColumn.plan(column, name, shape=field.shape or (), **options)
        levels = len(list_levels(kind)[0])
        if levels:
            # the outermost lists are the blocks; a field may count them or not
            kind = kind.value_type
            if field.ragged_rank == levels and not field.shape:
                field = replace(field, ragged_rank=levels - 1)
        field.check_rank(kind, f"{name!r} within blocks")
        inner = pa.field(column.name, kind)
        return TensorColumn.plan(inner, name, shape=field.shape or (), **options)

    def __call__(self, table: pa.Table) -> Stored:
        stored: Stored = {}
        for name, plan in self._plans.items():
            column = table.column(self._names[name])
            masked = name in self._masks
            mask = name + MASK_SUFFIX
            if self._in_blocks and pa.types.is_nested(column.type):
                rows, splits = _in_blocks(column, plan)
                stored[name] = Blocks(plan.rows(rows), splits)
                if masked:
                    stored[mask] = Blocks(_present(rows), splits)
            else:
                stored[name] = plan.rows(column)
                if masked:
                    stored[mask] = _present(column)
        return stored


def _in_blocks(column: pa.ChunkedArray, plan: TensorColumn) -> tuple[pa.ChunkedArray, Ints]:
    """The rows within the lists of a column, and where each list ends."""
    parts = [opened(chunk) for chunk in column.chunks]
    if any(mask is not None for _, _, mask in parts):
        raise RequestError(f"{plan.where} has a null where a block of rows should be")
    rows = pa.chunked_array([child for _, child, _ in parts], column.type.value_type)
    lengths = [length for length, _, _ in parts] or [np.zeros(0, np.int64)]
    return rows, ends(np.concatenate(lengths))


def _present(column: pa.ChunkedArray) -> Rows:
    chunks = pc.is_valid(column).chunks
    found = [chunk.to_numpy(zero_copy_only=False) for chunk in chunks]
    return np.concatenate(found) if found else np.zeros(0, bool)


def concat(parts: Sequence[Stored]) -> Stored:
    """All stored rows of the parts, one after the other."""
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
    """Every column changed in the same way."""
    return {name: of(column) for name, column in stored.items()}


def num_rows(stored: Mapping[str, Any]) -> int:
    """How many rows a batch has."""
    return len(next(iter(stored.values()))) if stored else 0
