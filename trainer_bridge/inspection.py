"""Inspection of loading: what is read, the rate of each stage, the bottleneck, and advice."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Unpack

from paimon_features.core.errors import RequestError
from paimon_features.lake.catalog import Lake
from trainer_bridge.blocks.layout import Layout
from trainer_bridge.readers.read_plan import UnthreadedKeywords
from trainer_bridge.readers.snapshot_reader import SnapshotReader

_FOOTERS = 64
_IN_THREADS = ("read files", "decode")
SMALL_GROUP_ROWS, FEW_STREAMS, SMALL_BATCH = 8_192, 8, 256


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a snapshot; row groups and columns from the first ``footers`` files.

    ``column_bytes`` is the part of ``row_group_bytes`` in the columns that are read, both
    compressed.
    """

    files: int
    bytes: int
    footers: int
    row_groups: int
    row_group_rows: int
    row_group_bytes: int
    column_bytes: int
    columns: int
    columns_read: int

    @property
    def share(self) -> float:
        """The fraction of the bytes that is read; the rest is pruned with its columns."""
        return self.column_bytes / max(self.row_group_bytes, 1)


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of reading, alone on one thread: rows per second, and its number of threads."""

    name: str
    rows_per_s: float
    threads: int

    @property
    def capacity(self) -> float:
        """Rows per second of all its threads."""
        return self.rows_per_s * self.threads


@dataclass(frozen=True, slots=True)
class Inspection:
    """The result of :func:`inspect`; ``plan`` is the reader's own description.

    ``rows_per_s`` is the rate of the complete pipeline, ``waiting`` the fraction of time that a
    loop which only consumes batches spent waiting.
    """

    plan: dict[str, Any]
    output: str
    files: Files
    stages: tuple[Stage, ...]
    rows_per_s: float
    waiting: float
    peak_bytes: int
    retries: int
    bound: str
    advice: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-compatible values."""
        return asdict(self)


def inspect(
    lake: Lake,
    table: str,
    *,
    seconds: float = 3.0,
    threads: int | Literal["auto"] = 2,
    **options: Unpack[UnthreadedKeywords],
) -> Inspection:
    """Read a table for about ``seconds``, once with one thread and once with ``threads``.

    Arrow batches are read if some columns have no tensor form. ``options`` are those of
    :class:`trainer_bridge.SnapshotReader`.

    Raises
    ------
    ConfigurationError, TableError, SnapshotExpiredError, UnknownNameError
        As raised by the reader.

    With ``threads="auto"``, the stages count the threads chosen during that time.
    """
    options = {"rank": 0, **options}  # all ranks are alike
    if "output" in options:
        return _inspect(lake, table, seconds, threads, options)
    try:
        return _inspect(lake, table, seconds, threads, {**options, "output": "numpy"})
    except RequestError:
        return _inspect(lake, table, seconds, threads, {**options, "output": "arrow"})


def _inspect(
    lake: Lake,
    table: str,
    seconds: float,
    threads: int | Literal["auto"],
    options: UnthreadedKeywords,
) -> Inspection:
    with SnapshotReader(lake, table, threads=0, **options) as alone:
        convert_s, rows = _run(alone, seconds / 2)
        stats = alone.stats
        rates = {
            "read files": _rate(stats.rows_decoded, stats.read_s),
            "decode": _rate(stats.rows_decoded, stats.decode_s),
            "order": _rate(rows, stats.order_s),
            "gather": _rate(rows, stats.gather_s),
            "to tensors": _rate(rows, convert_s),
        }
        files = _files(lake, alone.layout, alone.columns_read)
    with SnapshotReader(lake, table, threads=threads, **options) as together:
        began = time.perf_counter()
        _, rows = _run(together, seconds / 2)
        elapsed_s = time.perf_counter() - began
        stats_together = together.stats
        plan = together.describe()
        chosen = plan["autotune"]["threads"] if threads == "auto" else threads
        stages = [
            Stage(name, rate, max(chosen, 1) if name in _IN_THREADS else 1)
            for name, rate in rates.items()
            if rate
        ]
        inspection = Inspection(
            plan=plan,
            output=options["output"],
            files=files,
            stages=tuple(stages),
            rows_per_s=rows / elapsed_s,
            waiting=min(stats_together.wait_s / elapsed_s, 1.0) if chosen else 1.0,
            peak_bytes=stats_together.peak_bytes,
            retries=stats.retries + stats_together.retries,
            bound=bound_by(stages),
            advice=(),
        )
        requested = {"threads": threads, "byte_budget": 1 << 30, **options}
        decoded = together.decoded_bytes()
        advice = tuple(advise(inspection, requested, decoded, lake.storage.is_remote))
    return replace(inspection, advice=advice)


def _rate(rows: int, seconds: float) -> float:
    return rows / seconds if seconds > 0 else 0.0


def _run(reader: SnapshotReader, seconds: float) -> tuple[float, int]:
    """Read batches for some time; return the seconds spent on tensor conversion, and the rows."""
    to_tensors = _to_tensors(reader)
    until_s, convert_s, rows = time.perf_counter() + seconds, 0.0, 0
    for batch in reader:
        rows += len(batch)
        if to_tensors is not None:
            began = time.perf_counter()
            to_tensors(batch)
            convert_s += time.perf_counter() - began
        if time.perf_counter() > until_s:
            break
    return convert_s, rows


def _to_tensors(reader: SnapshotReader) -> Any:
    try:
        from trainer_bridge.adapters.torch import loader

        return loader(reader).tensors
    except (ImportError, ValueError):  # no torch, or Arrow batches
        return None


def _files(lake: Lake, layout: Layout, columns: list[str]) -> Files:
    paths = list(dict.fromkeys(span.path for block in layout.blocks for span in block.spans))
    rows: list[int] = []
    all_bytes, wanted, columns_stored = 0, 0, 0
    for path in paths[:_FOOTERS]:
        with lake.storage.open_parquet(path) as file:
            metadata = file.metadata
            for number in range(metadata.num_row_groups):
                group = metadata.row_group(number)
                rows.append(group.num_rows)
                chunks = [group.column(place) for place in range(group.num_columns)]
                all_bytes += sum(chunk.total_compressed_size for chunk in chunks)
                wanted += sum(
                    chunk.total_compressed_size
                    for chunk in chunks
                    if chunk.path_in_schema.split(".")[0] in columns
                )
            columns_stored = max(columns_stored, len(file.schema_arrow.names))
    return Files(
        files=len(paths),
        bytes=sum(block.size for block in layout.blocks),
        footers=min(len(paths), _FOOTERS),
        row_groups=len(rows),
        row_group_rows=int(statistics.median(rows)) if rows else 0,
        row_group_bytes=all_bytes,
        column_bytes=wanted,
        columns=columns_stored,
        columns_read=len(columns),
    )


def bound_by(stages: Sequence[Stage]) -> str:
    """Return what takes the most time if each ran alone: the decoding threads, the producer, or
    the conversion to tensors.

    >>> bound_by([Stage("decode", 4e6, 2), Stage("gather", 5e6, 1)])
    'ordering and gathering rows'
    """
    steps = {
        "reading and decoding files": _IN_THREADS,
        "ordering and gathering rows": ("order", "gather"),
        "making tensors": ("to tensors",),
    }
    seconds = {
        step: sum(1 / stage.capacity for stage in stages if stage.name in names and stage.capacity)
        for step, names in steps.items()
    }
    return max(seconds, key=lambda step: seconds[step])


def advise(
    found: Inspection, requested: Mapping[str, Any], decoded: int, remote: bool
) -> Iterator[str]:
    """Return what would make reading faster, by what was found about the table and the reader.

    ``requested`` are the reader's options, with its ``threads`` and ``byte_budget``; ``decoded``
    are the bytes of a rank's rows in memory, and ``remote`` says that files are in an object store.
    """
    files, plan = found.files, found.plan
    small = files.row_group_rows < SMALL_GROUP_ROWS
    if small and files.files > 16:
        yield (
            f"row groups of {files.row_group_rows:,} rows in {files.files} files: opening them "
            "costs more than reading; compact the table (paimon-features maintain TABLE), or "
            "commit less often"
        )
    shuffled = requested.get("shuffle", True)
    if (
        shuffled
        and plan["streams"] < FEW_STREAMS
        and plan["rows"] > 8 * SMALL_GROUP_ROWS
        and not small
    ):
        yield (
            f"{plan['streams']} streams over {plan['blocks']} blocks: rows that are close "
            "together come from few blocks, so a sorted table is shuffled badly; write "
            "smaller row groups (parquet.block.size), or raise open_bytes"
        )
    if not plan["reads_each_block_once"]:
        yield (
            f"each block is decoded by {plan['ranks_per_block']:g} ranks: choose a world size that "
            f"divides {plan['streams']} streams and the global batch, or smaller row groups"
        )
    if files.share > 0.5 and files.columns_read == files.columns and files.columns > 8:
        yield f"all {files.columns} columns are read: select those that the model needs (columns=)"
    if decoded > requested["byte_budget"] >= decoded / 4:
        yield (
            f"decoded, a rank's rows take {decoded / 2**20:,.0f} MiB: with byte_budget above that, "
            "further epochs would not read any file"
        )
    if plan["global_batch_size"] < SMALL_BATCH:
        yield (
            f"batches of {plan['global_batch_size']} rows: each costs about 20 µs regardless of "
            "its size; use larger ones and split them on the device"
        )
    if found.bound.startswith("reading"):
        if remote and requested["threads"] != "auto":
            yield "a remote store serves many requests at once: threads='auto' uses 4 per core"
        elif requested["threads"] != "auto" and requested["threads"] < 2:
            yield "more threads decode in parallel: threads='auto'"
    if found.bound.startswith("ordering") and shuffled:
        yield "most of the time is spent on shuffling; more threads do not help, larger batches may"
    if found.retries:
        yield f"the store had {found.retries} transient failures; check its request limits"
