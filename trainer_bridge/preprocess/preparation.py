"""Execution of a plan: blocks are prepared where they are decoded, batches where yielded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.errors import ConfigurationError, RequestError, TableError
from paimon_features.core.process.closeable import Closeable
from paimon_features.core.types.array_types import Array
from trainer_bridge.batches.forms import Batch as ReaderBatch
from trainer_bridge.blocks.layout import Layout
from trainer_bridge.cache import BlockCache, CacheStats, DiskCache, fingerprint
from trainer_bridge.preprocess.conditions import Condition
from trainer_bridge.preprocess.form import ArraysForm, Spec
from trainer_bridge.preprocess.prefetch import Ahead
from trainer_bridge.preprocess.preprocess_plan import Plan
from trainer_bridge.preprocess.row_block import ColumnConverter, RowBlock, checked
from trainer_bridge.preprocess.stages import (
    Augment,
    Batch,
    BatchStage,
    Filter,
    Map,
    RowStage,
    Select,
)
from trainer_bridge.readers.loops import Loops
from trainer_bridge.readers.loss_weights import SAMPLE_WEIGHT
from trainer_bridge.readers.snapshot_reader import SnapshotReader

_NO_COLUMNS = pa.schema([])
"""Request for the columns of a prepared layout."""

FORMAT = 1
"""Version of the cached blocks; part of the cache key."""


def run_rows(stages: Sequence[RowStage], rows: RowBlock) -> RowBlock:
    """Run the row stages on a block, all rows at a time."""
    for stage in stages:
        if isinstance(stage, Map):
            given = rows if stage.reads is None else rows.only(stage.reads)
            result = _called(stage.name, stage.function, given)
            rows = rows.with_columns(checked(stage.name, result, rows.num_rows))
        elif isinstance(stage, Filter):
            rows = rows.where(_mask(stage, rows))
        elif isinstance(stage, Select):
            rows = rows.only(stage.columns)
    return rows


def run_rows_singly(stages: Sequence[RowStage], rows: RowBlock) -> RowBlock:
    """Return the same, one row at a time: the reference semantics."""
    single_rows = [run_rows(stages, rows.part(i, i + 1)) for i in range(rows.num_rows)]
    kept = [part for part in single_rows if part.num_rows]
    if not kept:
        return run_rows(stages, rows.part(0, 0))
    return RowBlock.joined(kept)


def run_batches(stages: Sequence[BatchStage | Select], batch: Batch, draw: Sequence[int]) -> Batch:
    """Run the batch stages on a batch; ``draw`` is the key of its random numbers."""
    for number, stage in enumerate(stages):
        if isinstance(stage, Select):
            batch = {name: batch[name] for name in stage.columns}
            continue
        if isinstance(stage, Augment):
            dice = np.random.default_rng([*draw, number])
            result = _called(stage.name, stage.function, batch, dice)
            output = checked(stage.name, result, _num_rows(batch))
        else:
            result = _called(stage.name, stage.function, batch)
            if not isinstance(result, Mapping) or not result:
                raise RequestError(f"function {stage.name!r}: expected a mapping to arrays")
            output, batch = checked(stage.name, result, len(next(iter(result.values())))), {}
        for name, values in output.items():
            if not isinstance(values, np.ndarray):
                raise RequestError(
                    f"function {stage.name!r}, column {name!r}: expected a NumPy array, because "
                    "it is part of a batch"
                )
            batch = {**batch, name: values}
    return batch


@dataclass(frozen=True)
class PreparedLayout(Layout):
    """Blocks of a snapshot after the row stages; its rows are the rows kept by the filters."""

    inner: Layout = field(repr=False, kw_only=True)
    homes: tuple[int, ...] = field(repr=False, kw_only=True)
    preparation: Preparation = field(repr=False, kw_only=True)
    cache: BlockCache | None = field(repr=False, kw_only=True)

    @property
    def files(self) -> str:  # type: ignore[override]
        """The identity of the snapshot, including the filters if there are any."""
        conditions = self.preparation.conditions
        if not conditions:
            return self.inner.files
        return _digest([self.inner.files, *conditions])

    def has_groups(self, number: int) -> bool:
        return False

    def decode(self, number: int, schema: pa.Schema) -> pa.Table:
        """Return the preprocessed rows of a block."""
        home = self.homes[number]
        rows = self.preparation.prepare(self.inner, home, self.cache)
        if rows.num_rows != self.blocks[number].rows:
            raise TableError(
                f"table {self.table!r}, snapshot {self.snapshot_id}, block {home}: its filters "
                f"kept {self.blocks[number].rows} rows when they were counted and "
                f"{rows.num_rows} now; a filter has to be a function of the row alone"
            )
        return rows.to_arrow()


@dataclass(frozen=True, eq=False)
class Preparation:
    """The per-block work of a plan: the ``prepare`` argument of :class:`SnapshotReader`."""

    plan: Plan
    table: str
    schema: pa.Schema
    """Columns to read."""
    numbers: ColumnConverter
    options: Mapping[str, Any]
    """How columns are converted to NumPy: part of the cache key."""
    spec: Spec
    """Dtypes and shapes of preprocessed rows."""
    threads: int = 1

    @property
    def form(self) -> ArraysForm:
        return ArraysForm(self.spec, self.numbers)

    @property
    def conditions(self) -> list[str]:
        """The conditions and filters that determine which rows are kept."""
        filters = [stage for stage in self.plan.rows if isinstance(stage, Filter)]
        return [*(c.text for c in self.plan.where), *(_identity(stage) for stage in filters)]

    def read(self, layout: Layout, number: int) -> RowBlock:
        """Return the rows of a block that match ``where``."""
        rows = RowBlock.of_table(self.numbers, layout.decode(number, self.schema))
        rows = self._where(rows)
        return rows.only([name for name in self.plan.columns if name in rows])

    def prepare(self, layout: Layout, number: int, cache: BlockCache | None) -> RowBlock:
        """Return the preprocessed rows of a block."""
        run = run_rows if self.plan.vectorised else run_rows_singly
        if cache is None:
            return run(self.plan.uncached, self.read(layout, number))

        def make() -> pa.Table:
            return run(self.plan.cached, self.read(layout, number)).to_arrow()

        rows = RowBlock.from_arrow(self.numbers, cache.get(number, make))
        return run(self.plan.uncached, rows)

    def layout(self, inner: Layout) -> PreparedLayout:
        """Prepare the blocks of a snapshot. With filters, the rows kept are counted now."""
        cache = self._cache(inner)
        numbers = range(len(inner.blocks))
        counts = [block.rows for block in inner.blocks]
        if self.conditions:
            with ThreadPoolExecutor(max(self.threads, 1)) as pool:
                counts = list(pool.map(lambda number: self._count(inner, number, cache), numbers))
        blocks, homes, first = [], [], 0
        for number, count in zip(numbers, counts, strict=True):
            if count:
                blocks.append(replace(inner.blocks[number], first_row=first, rows=count))
                homes.append(number)
                first += count
        if inner.blocks and not blocks:
            raise TableError(
                f"table {inner.table!r}, snapshot {inner.snapshot_id}: none of {inner.num_rows} "
                f"rows passes {'; '.join(self.conditions)}"
            )
        same = {attribute.name: getattr(inner, attribute.name) for attribute in fields(inner)}
        return PreparedLayout(
            **{**same, "blocks": tuple(blocks)},
            inner=inner,
            homes=tuple(homes),
            preparation=self,
            cache=cache,
        )

    def cache_key(self, inner: Layout) -> tuple[str, dict[str, Any]]:
        """Return the cache key: the snapshot and everything done to its rows.

        Excludes seed, batch size, world size and epoch: blocks do not depend on them.
        """
        sizes = [block.rows for block in inner.blocks]
        # names of files are unique, and a moved warehouse has other paths
        named = {path.rsplit("/", 1)[-1]: bits for path, bits in inner.selection.masks.items()}
        masks = [f"{name} {bits.hex()}" for name, bits in sorted(named.items())]
        parts = {
            "table": inner.table,
            "snapshot_id": inner.snapshot_id,
            "files": inner.files,
            "columns": [f"{column.name} {column.type}" for column in self.schema],
            "numbers": dict(self.options),
            "where": [inner.where, *(condition.text for condition in self.plan.where)],
            "stages": [_identity(stage) for stage in self.plan.cached],
            "rows": _digest([*map(str, sizes), *masks]),
            "format": FORMAT,
        }
        digest = _digest([json.dumps(parts, sort_keys=True)])
        return f"{inner.table}-{inner.snapshot_id}-{digest}", parts

    def _where(self, rows: RowBlock) -> RowBlock:
        for condition in self.plan.where:
            rows = rows.where(condition.matches(rows))
        return rows

    def _count(self, inner: Layout, number: int, cache: BlockCache | None) -> int:
        if any(isinstance(stage, Filter) for stage in self.plan.rows):
            return self.prepare(inner, number, cache).num_rows
        reads = {name for condition in self.plan.where for name in condition.columns}
        sources = {self.numbers.names[name] for name in reads}
        schema = pa.schema([column for column in self.schema if column.name in sources])
        return self._where(RowBlock.of_table(self.numbers, inner.decode(number, schema))).num_rows

    def _cache(self, inner: Layout) -> BlockCache | None:
        stage = self.plan.cache
        if stage is None:
            return None
        if inner.on_bad_file != "error":
            raise ConfigurationError(
                f"on_bad_file={inner.on_bad_file!r} with a cache: it would cache the rows that "
                "replace bad ones; use only one of the two"
            )
        disk = None
        if stage.folder is not None:
            key, parts = self.cache_key(inner)
            disk = DiskCache(stage.folder, stage.disk_bytes).open(key, parts)
        return BlockCache(stage.memory_bytes, disk)


class PreparedBatches(Closeable):
    """The batches of a pipeline: dicts of NumPy arrays, sharded and resumable like its reader.

    Iterating continues from the current position to the end of the epoch. Created by
    :meth:`trainer_bridge.preprocess.PreprocessPipeline.open`.

    Attributes
    ----------
    reader
        The underlying reader; with prefetching it is ahead of the batches yielded.
    plan
        The plan being run.
    spec
        The dtype and per-row shape of each column of a batch.
    """

    def __init__(
        self,
        reader: SnapshotReader,
        plan: Plan,
        spec: Spec,
        *,
        form: ArraysForm,
        threads: int = 1,
        deterministic: bool = True,
    ) -> None:
        self.reader, self.plan, self.spec = reader, plan, spec
        self._form = form
        self._threads = threads
        self._deterministic = deterministic
        self._state = reader.state_dict()
        self._whole = True
        self._loops: Loops[Batch] = Loops(f"pipeline of table {reader.table!r}")

    def __iter__(self) -> Iterator[Batch]:
        self._loops.end("used by another loop")
        if self.reader.state_dict() != self._state:
            self.reader.load_state_dict(self._state)
        return self._loops.start(self._batches())

    def __len__(self) -> int:
        """Return the number of batches in an epoch; the same on every rank."""
        return len(self.reader)

    @property
    def cache_stats(self) -> CacheStats | None:
        """Cache statistics; None without a cache."""
        cache = self._cache
        return None if cache is None else cache.stats

    @property
    def epoch(self) -> int:
        """The epoch that iteration continues with."""
        return int(self._state["epoch"])

    def read_columns(self, names: Sequence[str]) -> dict[str, Array]:
        """Return columns of all preprocessed rows by row number, e.g. as labels for a sampler."""
        layout = self.reader.layout
        blocks = [layout.decode(number, _NO_COLUMNS) for number in range(len(layout.blocks))]
        parts = [self._form.decode(block) for block in blocks]
        return {name: np.concatenate([part[name] for part in parts]) for name in names}

    def set_epoch(self, epoch: int) -> None:
        """Move to the start of an epoch; no effect within that epoch."""
        if epoch != self.epoch or not self._whole:
            self._loops.end("moved by set_epoch()")
            self.reader.set_epoch(epoch)
            self._state, self._whole = self.reader.state_dict(), True

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch yielded, as ``SnapshotReader.state_dict``.

        Raises
        ------
        RequestError
            In the middle of an epoch with ``deterministic=False``: the batches yielded so far
            are then not a prefix of the order.
        """
        if not self._whole:
            raise RequestError(
                "deterministic=False yields batches as they complete, so there is no state in "
                "the middle of an epoch; save it at the end, or open with deterministic=True"
            )
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved position; see ``SnapshotReader.load_state_dict``."""
        self._loops.end("moved by load_state_dict()")
        self.reader.load_state_dict(state)
        self._state, self._whole = self.reader.state_dict(), True

    def close(self) -> None:
        """Stop the threads and release all resources. Idempotent."""
        self._loops.end()
        if (cache := self._cache) is not None:
            cache.close()
        self.reader.close()

    @property
    def _cache(self) -> BlockCache | None:
        layout = self.reader.layout
        return layout.cache if isinstance(layout, PreparedLayout) else None

    def _batches(self) -> Generator[Batch, None, None]:
        seed, rank = self._state["seed"], self.reader.rank

        def work(item: tuple[ReaderBatch, dict[str, Any]]) -> tuple[Batch, dict[str, Any]]:
            batch, state = item
            draw = (seed, batch.epoch, batch.position, rank)
            columns = dict(batch.columns)
            weight = columns.pop(SAMPLE_WEIGHT, None) if SAMPLE_WEIGHT in self.spec else None
            columns = run_batches(self.plan.batches, columns, draw)
            if weight is not None:
                if _num_rows(columns) != len(weight):
                    raise RequestError(
                        f"map_batches() turned a batch of {len(weight)} rows with loss weights "
                        f"into {_num_rows(columns)} rows; change the rows by map() and filter()"
                    )
                columns[SAMPLE_WEIGHT] = weight
            return columns, state

        items = ((batch, self.reader.state_dict()) for batch in self.reader)
        depth = self.plan.prefetch
        if not depth:
            for item in items:
                batch, self._state = work(item)
                yield batch
            return
        ahead = Ahead(items, work, depth, self._threads, self._deterministic)
        try:
            for batch, state in ahead:
                if self._deterministic:
                    self._state = state
                else:
                    self._whole = False
                yield batch
            if not self._deterministic:
                self._state, self._whole = self.reader.state_dict(), True
        finally:
            ahead.close()


def _mask(stage: Filter, rows: RowBlock) -> npt.NDArray[np.bool_]:
    if stage.text is not None:
        return Condition.of(stage.text, rows).matches(rows)
    given = rows if stage.reads is None else rows.only(stage.reads)
    result = _called(stage.name, stage.function, given)
    if isinstance(result, pa.Array | pa.ChunkedArray):
        result = pc.fill_null(result, False).to_numpy(zero_copy_only=False)
    mask = np.asarray(result)
    if mask.dtype != np.bool_ or mask.shape != (rows.num_rows,):
        raise RequestError(
            f"filter {stage.name!r} returned {mask.dtype}{list(mask.shape)} for {rows.num_rows} "
            "rows; expected one boolean per row"
        )
    return mask


def _called(name: str, function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        error.add_note(f"in function {name!r} of a pipeline")
        raise


def _identity(stage: RowStage) -> str:
    """Identity of a stage: a string that changes when its behaviour may change."""
    if isinstance(stage, Map):
        return f"map {stage.reads} {fingerprint(stage.function, stage.version)}"
    if isinstance(stage, Filter) and stage.function is not None:
        return f"filter {stage.reads} {fingerprint(stage.function, stage.version)}"
    return str(stage)


def _digest(texts: Iterable[str]) -> str:
    digest = hashlib.blake2b(digest_size=10)
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()


def _num_rows(batch: Batch) -> int:
    return len(next(iter(batch.values())))
