"""What ``ingest`` does with the rows of a sample under proposed definitions and settings."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from paimon_features.core.configuration.input_settings import InputSettings
from paimon_features.core.times.clock import now_ms
from paimon_features.definitions import EventSource
from paimon_features.ingest.cells.judge import judge
from paimon_features.ingest.cells.parquet_cells import cell_batches
from paimon_features.ingest.input_columns import FileGroup, InputColumn
from paimon_features.ingest.input_files import parquet_columns
from paimon_features.ingest.inputs.conversion import CellConverter
from paimon_features.ingest.inputs.opening import UnreadableRow
from paimon_features.ingest.physical import TEXT
from paimon_features.ingest.runs import IngestRun

if TYPE_CHECKING:
    from paimon_features.ingest.inputs.column_types import InputColumnProfile


def rejected_notes(
    path: Path,
    sample: pa.Table,
    settings: InputSettings,
    columns: Sequence[InputColumnProfile],
    unreadable: Sequence[UnreadableRow],
) -> list[str]:
    """Return a note for each reason for which ``ingest`` would reject rows of a sample."""
    used = [c for c in columns if c.type is not None]
    schema = {c.name: c.type for c in used if c.type is not None}
    time = next(c for c in used if c.role == "event time")
    source = EventSource("sample", schema=schema, event_time=time.name)
    converter = CellConverter.of_source(settings, source, {c.name: c.field for c in used})
    chosen = sample.select([c.field for c in used]).combine_chunks()
    with converter:
        converted = [converter.convert(batch) for batch in chosen.to_batches()]
        if converter.has_two_orders:
            converter.use_orders()
            converted = [converter.convert(batch) for batch in chosen.to_batches()]
    file = io.BytesIO()
    pq.write_table(converted[0].schema.empty_table(), file)
    file.seek(0)
    names, physical = parquet_columns(path, file)
    stored = dict(zip(names, physical, strict=True))
    inputs = tuple(
        InputColumn(c.name, c.field, 0, stored[c.field],
                    stored[c.field] == TEXT and schema[c.name].text != "string")
        for c in used
    )  # fmt: skip
    group = FileGroup("parquet", (), inputs, (), ())
    run = IngestRun("sample", now_ms())
    counts = Counter(row.reason for row in unreadable)
    examples = {row.reason: row.detail for row in reversed(unreadable)}
    for batch in converted:
        for cells in cell_batches(batch, inputs, str(path)):
            judged = judge(cells, group, source, run).rejected
            if judged is not None:
                reasons = judged.column("reason").to_pylist()
                counts.update(reasons)
                details = judged.column("detail").to_pylist()
                for reason, detail in zip(reasons, details, strict=True):
                    examples.setdefault(reason, detail)
    total = sample.num_rows + len(unreadable)
    return [
        f"ingest rejects {count:,} of these {total:,} rows: {reason}, e.g. {examples[reason]}"
        for reason, count in counts.most_common()
    ]
