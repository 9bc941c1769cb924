"""The partitions of an events table, chosen by the first rows of the first files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paimon_features.core.errors import JobError
from paimon_features.core.times.partition_days import sampled_partition_days
from paimon_features.core.types.array_types import Ints
from paimon_features.definitions import EventSource
from paimon_features.ingest.cells.judge import judge
from paimon_features.ingest.input_columns import FileGroup
from paimon_features.ingest.local.parts import parts_of
from paimon_features.ingest.runs import IngestRun
from paimon_features.lake import Lake, table_options
from paimon_features.lake.writing.table_writer import event_days, undecided_partitions

SAMPLED_EVENTS = 200_000
"""Events by which the partitions are chosen."""
_LINE_BYTES = 50
"""Bytes of a line of text, where the number of rows is estimated."""


def choose_partitions(
    lake: Lake, source: EventSource, groups: Sequence[FileGroup], run: IngestRun
) -> None:
    """Set the partitions of the events table, unless they are defined or it has had a commit.

    The caller owns the table, and then ingests these files. One that cannot be read is left to
    that, which reports it.
    """
    if not undecided_partitions(lake, source.table):
        return
    days: list[Ints] = []
    count, complete = 0, True
    try:
        for part, group in parts_of(groups, f"ingesting into {source.name!r}"):
            for batch in part():
                days.append(event_days(judge(batch, group, source, run).events, source.event_time))
                count += len(days[-1])
            if count >= SAMPLED_EVENTS:
                complete = False
                break
        events = count if complete else _estimated_rows(groups)
    except (JobError, OSError, pa.ArrowException):
        return
    if count:
        table_options.set_partition_days(
            lake, source.table, sampled_partition_days(np.concatenate(days), events)
        )


def _estimated_rows(groups: Sequence[FileGroup]) -> int:
    """Estimate how many rows files have."""
    total = 0
    for group in groups:
        for file in group.files:
            if group.format == "parquet":
                total += pq.read_metadata(file.read_path).num_rows
            else:
                total += file.size // _LINE_BYTES
    return total
