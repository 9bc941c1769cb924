"""Samples of an entity in loops whose feedback names samples by columns of its own.

A loop keyed by ``sample_id`` has no column of the entity. Tables with both, such as the training
set that the loop reads, name the samples of the entity.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from paimon_features.definitions import Definitions, FeedbackSource
from paimon_features.lake import Lake, iter_batches, latest_snapshot
from paimon_features.lake.side_folder import generations
from paimon_features.project.forget.entities import EntitySet


@dataclass(frozen=True, slots=True)
class SampledLoop:
    """A loop whose samples are not named by the columns of the entities.

    ``tables`` have its feedback and the tiles of its views; ``origins`` are the tables that have
    columns of the entities and of the samples.
    """

    source: FeedbackSource
    views: tuple[str, ...]
    tables: frozenset[str]
    origins: tuple[str, ...]

    def samples(self, lake: Lake, entities: EntitySet) -> EntitySet:
        """Return the samples of the entities, by the rows of all origins."""
        keys = list(self.source.sample_keys)
        samples: set[tuple[Any, ...]] = set()
        for table in self.origins:
            if latest_snapshot(lake, table) is None:
                continue
            for batch in iter_batches(lake, table, list(dict.fromkeys([*entities.columns, *keys]))):
                rows = pa.Table.from_batches([batch])
                matches = rows.filter(pa.array(entities.mask(rows))).select(keys)
                samples.update(
                    zip(*(column.to_pylist() for column in matches.columns), strict=True)
                )
        samples = {sample for sample in samples if None not in sample}
        return EntitySet(tuple(keys), dict(self.source.sample_keys), frozenset(samples))


def loops(lake: Lake, definitions: Definitions, entities: EntitySet) -> Iterator[SampledLoop]:
    """Yield the loops whose feedback has no column of the entities."""
    columns = {table: set(lake.schema(table).names) for table in lake.list()}
    for source in definitions.sources.values():
        if not isinstance(source, FeedbackSource) or entities.are_keys_of(source.schema):
            continue
        views = [n for n, v in definitions.views.items() if v.compiled.source.name == source.name]
        records = [record for view in views for record in generations.load(lake, view)]
        tiles = {record.table for record in records} | {record.skipped_table for record in records}
        loop_tables = frozenset({source.table, *tiles} & columns.keys())
        wanted = {*entities.columns, *source.sample_keys}
        origins = sorted(
            t for t, names in columns.items() if wanted <= names and t not in loop_tables
        )
        yield SampledLoop(source, tuple(views), loop_tables, tuple(origins))
