"""Outcomes read from events of a source, a table of the lake, or files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.columns.column import Column
from paimon_features.core.columns.given_values import kind_of
from paimon_features.core.errors import ConfigurationError, PaimonFeaturesError, UnknownNameError
from paimon_features.core.expressions import Expression, evaluate, parse
from paimon_features.core.types.array_types import Floats, Ints
from paimon_features.core.types.schema import Bool, DataType
from paimon_features.offline.inputs.checked_columns import EVENT_TIME_MS, event_times, key_columns
from paimon_features.offline.inputs.row_source import row_source
from paimon_features.offline.reading.pinning import Pinner
from paimon_features.project import Project
from paimon_features.project.monitoring.merged_tiles import events_within
from paimon_features.project.monitoring.time_ranges import TimeRange
from paimon_features.project.outcomes.rule import OutcomeRule

_CHUNK_ROWS = 1 << 18


@dataclass(frozen=True)
class OutcomeRows:
    """Some outcomes: their keys, times (UTC ms) and values, one row each."""

    keys: pa.Table
    times: Ints
    values: Floats


class OutcomeEvents:
    """Reads the outcomes of a rule, at one snapshot; ``keys`` are the entity keys of the model.

    Raises
    ------
    ConfigurationError, UnknownNameError, RequestError
        If the source or the rows do not have what the rule names.
    """

    def __init__(self, project: Project, rule: OutcomeRule, keys: Mapping[str, DataType]) -> None:
        self._project, self.rule, self._keys = project, rule, keys
        if rule.source is not None:
            sources = project.definitions.sources
            if rule.source not in sources:
                raise UnknownNameError.of("source", rule.source, sources)
            source = sources[rule.source]
            if source.retraction is not None:
                raise ConfigurationError(
                    f"outcomes from source {rule.source!r}: its events can be retracted; write "
                    "those that hold to a table, and pass it as rows"
                )
            if rule.take == "sum" and source.event_id is not None:
                raise ConfigurationError(
                    f"outcomes from source {rule.source!r}: its table has events that were sent "
                    "twice, which a sum would count twice; take another value than the sum"
                )
            self._time = rule.time or source.event_time
            schema = dict(source.schema)
            self._pin = Pinner(project.lake, None).pin(source.table)
        else:
            self._time = rule.time or EVENT_TIME_MS
            fields = row_source(self._rows, project.lake).schema
            schema = {}
            for field_ in fields:
                try:
                    schema[field_.name] = kind_of(field_.name, field_.type)
                except PaimonFeaturesError:
                    continue  # a type of no feature; it may be in no expression
            if self._time in fields.names:
                schema.setdefault(self._time, kind_of(self._time, pa.int64()))
        for name in (self._time, *(self._column(key) for key in keys)):
            if name not in schema:
                raise UnknownNameError.of("column", name, schema, str(self))
        self._label = None if rule.label is None else parse(rule.label, schema)
        self._where = None if rule.where is None else parse(rule.where, schema)
        label = self._label
        if label is not None and label.type != Bool and not label.type.is_numeric:
            raise ConfigurationError(
                f"outcomes: label = {rule.label!r} is {label.type!r}; expected a number or a "
                "truth value"
            )
        if self._where is not None and self._where.type != Bool:
            raise ConfigurationError(
                f"outcomes: where = {rule.where!r} is {self._where.type!r}; expected a condition"
            )
        expressions = [
            expression for expression in (self._label, self._where) if expression is not None
        ]
        names = {self._time, *map(self._column, keys), *(c for e in expressions for c in e.columns)}
        self._columns = [name for name in schema if name in names]

    def __str__(self) -> str:
        rule = self.rule
        return f"source {rule.source!r}" if rule.rows is None else f"rows {rule.rows!r}"

    def watermark_ms(self, since_ms: int) -> int | None:
        """Up to when (exclusive) outcomes are known: the newest time less ``lateness_ms``.

        None if there is nothing from ``since_ms`` on. All events count, also those that the
        condition leaves out.
        """
        newest = None
        for table in self._tables(TimeRange(since_ms), [self._time]):
            times = self._times(table)
            if len(times):
                last = int(times.max())
                newest = last if newest is None else max(newest, last)
        return None if newest is None or newest < since_ms else newest - self.rule.lateness_ms

    def within(self, times: TimeRange) -> Iterator[OutcomeRows]:
        """Yield the outcomes of a range, in pieces, in any order."""
        for table in self._tables(times, self._columns):
            at = self._times(table)
            inside = (at >= times.low_ms) & (at < times.high_ms)
            table, at = table.filter(pa.array(inside)), at[inside]
            rows = table.num_rows
            columns = self._evaluated(table)
            valid = np.ones(rows, np.bool_)
            values = np.ones(rows)
            if self._where is not None:
                chosen = evaluate(self._where, columns, rows)
                valid &= chosen.mask & chosen.values.astype(np.bool_)
            if self._label is not None:
                label = evaluate(self._label, columns, rows)
                valid &= label.mask
                values = np.where(label.mask, label.values, 0).astype(np.float64)
                valid &= ~np.isnan(values)
            keys = key_columns(
                table.select([self._column(key) for key in self._keys]).rename_columns(
                    list(self._keys)
                ),
                self._keys,
                "of the model",
            )
            for column in keys.columns:
                valid &= column.is_valid().to_numpy()
            if valid.any():
                yield OutcomeRows(keys.filter(pa.array(valid)), at[valid], values[valid])

    @property
    def _rows(self) -> Any:
        """The rows, where a path is relative to the project."""
        text = self.rule.rows
        assert text is not None
        path = self._project.root / text
        return path if path.exists() and not self._project.lake.exists(text) else text

    def _column(self, key: str) -> str:
        return self.rule.keys.get(key, key)

    def _times(self, table: pa.Table) -> Ints:
        times = pa.table({EVENT_TIME_MS: table.column(self._time)})
        if self.rule.source is not None:  # ingestion has checked them; others are rejected
            values: Ints = times.column(0).to_numpy().astype(np.int64, copy=False)
            return values
        return event_times(times)

    def _tables(self, times: TimeRange, columns: list[str]) -> Iterator[pa.Table]:
        if self.rule.source is not None:
            for table in events_within(self._project.lake, self._pin, times, columns)[1]:
                # rows that were not written by ingestion may lack the time
                yield table.filter(pc.is_valid(table.column(self._time)))
            return
        chunks = row_source(self._rows, self._project.lake).chunks()
        while (piece := chunks.take(_CHUNK_ROWS)).num_rows:
            yield piece.select(columns)

    def _evaluated(self, table: pa.Table) -> dict[str, Column]:
        """Return the columns of the expressions."""
        names: set[str] = set()
        expression: Expression | None
        for expression in (self._label, self._where):
            names |= set() if expression is None else set(expression.columns)
        return {name: Column.from_arrow(table.column(name)) for name in names}
