"""The declarative preprocessing pipeline between a table and the trainer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pyarrow as pa

from paimon_features.core.errors import ConfigurationError, TableError
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.snapshots import Snapshot, SnapshotRef
from paimon_features.lake.table_folders import merge_folder
from trainer_bridge.blocks.open_layout import read_layout
from trainer_bridge.cache.fingerprint import name_of
from trainer_bridge.preprocess.conditions import Condition
from trainer_bridge.preprocess.form import Spec, spec_of
from trainer_bridge.preprocess.preparation import (
    Preparation,
    PreparedBatches,
    run_batches,
    run_rows,
)
from trainer_bridge.preprocess.preprocess_plan import (
    Plan,
    as_written,
    check_order,
    explained,
    optimise,
    split,
)
from trainer_bridge.preprocess.row_block import ColumnConverter, RowBlock
from trainer_bridge.preprocess.stages import (
    Augment,
    Augmentation,
    BatchFunction,
    Cache,
    Filter,
    MakeBatches,
    Map,
    MapBatches,
    Prefetch,
    RowFunction,
    Rows,
    Select,
    Shuffle,
    Stage,
)
from trainer_bridge.readers.epoch_rows import RowSampler
from trainer_bridge.readers.loss_weights import SAMPLE_WEIGHT
from trainer_bridge.readers.pins import pinned_snapshot
from trainer_bridge.readers.read_plan import BlockKeywords, ReaderKeywords
from trainer_bridge.readers.snapshot_reader import SnapshotReader

_PROBE_ROWS = 64
_PROBE_BLOCK_ROWS = 65_536


class OpenKeywords(BlockKeywords, total=False):
    """The keywords of :meth:`PreprocessPipeline.open` except threads and budget."""

    rank: int
    world_size: int
    epoch: int
    sampler: RowSampler | None
    optimised: bool
    deterministic: bool


@dataclass(frozen=True)
class PreprocessPipeline:
    """A table and the stages applied to its rows. Each method returns a new pipeline.

    Row stages (``filter``, ``map``, ``select``) are row-wise: their functions receive any number
    of rows at a time, as a mapping from column names to arrays (Arrow arrays for strings, lists
    and decimals), and each output row may depend on its own input row only. Batch stages
    (``map_batches``, ``augment``) receive the batches of the trainer.

    Parameters
    ----------
    lake, table, snapshot_id
        The table to read; the latest snapshot by default, pinned by :meth:`open`.
    fill, masks, float_dtype
        How columns are converted to NumPy, as in
        :class:`trainer_bridge.batches.numpy_form.NumpyForm`. Filter expressions see the
        table's nulls, before ``fill``.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from paimon_features.lake import Lake
    >>> from trainer_bridge.testing.sample_tables import make_samples
    >>> lake = Lake.open(tempfile.mkdtemp(), "shop")
    >>> def features(rows):
    ...     return {"both": np.stack([rows["x"], rows["y"]], axis=1).astype(np.float32)}
    >>> pipeline = (
    ...     PreprocessPipeline(lake, make_samples(lake, [30, 20]))
    ...     .map(features, reads=["x", "y"])
    ...     .filter("x >= 40")
    ...     .select("both")
    ...     .batch(4)
    ... )
    >>> with pipeline.open() as batches:
    ...     [batch["both"].shape for batch in batches]
    [(4, 2), (4, 2), (2, 2)]
    """

    lake: Lake
    table: str
    snapshot_id: SnapshotRef | None = None
    fill: Mapping[str, float] = field(default_factory=dict)
    masks: Collection[str] = ()
    float_dtype: str | None = None
    stages: tuple[Stage, ...] = ()

    def filter(
        self,
        condition: str | Callable[[Rows], Any],
        reads: Sequence[str] | None = None,
        version: str | None = None,
    ) -> PreprocessPipeline:
        """Keep the rows for which an expression (``"spent > 10"``) or a function is true.

        Only the rows kept make up the epoch: they alone are shuffled, sharded and counted.
        """
        if isinstance(condition, str):
            if reads is not None or version is not None:
                raise ConfigurationError(
                    "reads= and version= apply to a function, not to an expression"
                )
            return self._with(Filter(text=condition))
        return self._with(
            Filter(
                function=condition,
                name=name_of(condition),
                reads=None if reads is None else tuple(reads),
                version=version,
            )
        )

    def map(
        self,
        function: RowFunction,
        reads: Sequence[str] | None = None,
        version: str | None = None,
    ) -> PreprocessPipeline:
        """Add the columns that ``function`` returns, replacing existing columns of the same name.

        Parameters
        ----------
        reads
            The only columns passed to it. By default all columns, which then all have to be
            read.
        version
            Identifies the function in the key of a disk cache. By default a fingerprint of its
            code is used.
        """
        reads = None if reads is None else tuple(reads)
        return self._with(Map(function, name_of(function), reads, version))

    def select(self, *columns: str) -> PreprocessPipeline:
        """Select columns, in this order."""
        return self._with(Select(columns))

    def shuffle(self, seed: int = 0) -> PreprocessPipeline:
        """Shuffle all rows globally, in a different order each epoch, without a buffer."""
        return self._with(Shuffle(seed))

    def batch(self, size: int, drop_last: bool = False) -> PreprocessPipeline:
        """Group rows into batches of ``size`` rows on each rank."""
        if size < 1:
            raise ConfigurationError(f"batch({size}): expected at least 1 row")
        return self._with(MakeBatches(size, drop_last))

    def map_batches(self, function: BatchFunction) -> PreprocessPipeline:
        """Replace each batch with the result of ``function``."""
        return self._with(MapBatches(function, name_of(function)))

    def augment(self, function: Augmentation) -> PreprocessPipeline:
        """Add or replace columns at random: ``function(batch, rng)``.

        The generator is seeded from the seed, the epoch, the batch's position and the rank:
        runs are reproducible and resumable, and the result is never cached.
        """
        return self._with(Augment(function, name_of(function)))

    def cache(
        self,
        memory_bytes: int = 0,
        folder: str | Path | None = None,
        disk_bytes: int | None = None,
    ) -> PreprocessPipeline:
        """Cache the output of the row stages up to here, per block, for later epochs.

        Parameters
        ----------
        memory_bytes
            As many blocks as fit stay in memory; the others are recomputed.
        folder
            A folder that jobs can share, keyed by the snapshot and the stages; blocks that fit
            neither memory nor ``disk_bytes`` are recomputed.
        disk_bytes
            Maximum size of that folder in bytes, over all its contents.
        """
        if not memory_bytes and folder is None:
            raise ConfigurationError("cache(): pass memory_bytes=, folder=, or both")
        return self._with(Cache(memory_bytes, None if folder is None else Path(folder), disk_bytes))

    def prefetch(self, depth: int = 2) -> PreprocessPipeline:
        """Prefetch this many batches ahead of the trainer, in background threads."""
        if depth < 0:
            raise ConfigurationError(f"prefetch({depth}): expected 0 or more batches")
        return self._with(Prefetch(depth))

    # --- running ---

    def open(
        self,
        *,
        rank: int = 0,
        world_size: int = 1,
        epoch: int = 0,
        threads: int = 2,
        byte_budget: int = 1 << 30,
        sampler: RowSampler | None = None,
        optimised: bool = True,
        deterministic: bool = True,
        **reader: Unpack[BlockKeywords],
    ) -> PreparedBatches:
        """Start reading and return the iterable over batches.

        Parameters
        ----------
        threads
            Threads that decode and prepare blocks, and as many again for prefetched batches; 0
            does everything in the calling thread.
        byte_budget
            Maximum bytes of preprocessed rows in flight, in addition to the memory of a cache.
        sampler
            Draws the rows of each epoch, by row number among the rows that pass the filters; its
            loss weights are the column ``sample_weight``. See :meth:`SnapshotReader.with_sampler`.
        optimised
            False runs the plan as written, one row at a time: the same batches, for comparison.
        deterministic
            False yields prefetched batches as they complete: the same batches, in an order that
            differs from run to run.
        pad_last, canonical_streams, block_rows, open_bytes, consumer, on_bad_file, cache
            As for :class:`SnapshotReader`; all else that it takes is written as a stage.

        Raises
        ------
        ConfigurationError, RequestError, TableError
            As raised by the stages and the reader.
        """
        for name in reader.keys() - BlockKeywords.__annotations__.keys():
            if name in ReaderKeywords.__annotations__:
                raise ConfigurationError(
                    f"open({name}=...): the snapshot, columns, rows and batches of a pipeline are "
                    "those that it was made with"
                )
            raise TypeError(f"open() got an unexpected keyword argument {name!r}")
        checked = self._check()
        plan = checked.plan(optimised)
        if not threads:
            plan = replace(plan, prefetch=0)
        # The conditions determine the rows of a block, and so the order: the same for both plans.
        where, left = checked.pushed()
        if optimised:
            plan = replace(plan, where=left)
        prepared = checked.preparation(plan, threads)
        opened = SnapshotReader(
            self.lake,
            self.table,
            snapshot_id=checked.snapshot_ref,
            columns=prepared.schema.names,
            where=where,
            batch_size=plan.batch.size,
            drop_last=plan.batch.drop_last,
            shuffle=plan.shuffle is not None,
            seed=0 if plan.shuffle is None else plan.shuffle.seed,
            rank=rank,
            world_size=world_size,
            epoch=epoch,
            threads=threads,
            byte_budget=byte_budget,
            prepare=prepared,
            **reader,
        )
        spec = dict(checked.batch_spec)
        if sampler is not None:
            opened = opened.with_sampler(sampler)
            if sampler.loss_weights(np.zeros(1, dtype=np.int64)) is not None:
                spec[SAMPLE_WEIGHT] = (np.dtype(np.float32), ())
        return PreparedBatches(
            opened,
            plan,
            spec,
            form=prepared.form,
            threads=max(threads, 1),
            deterministic=deterministic,
        )

    def explain(self) -> str:
        """Describe the plan as written and as optimised, and the rewrites applied."""
        checked = self._check()
        return explained(
            f"{self.table} at snapshot {checked.snapshot_id}",
            len(checked.schema),
            self.stages,
            checked.plan(optimised=True),
        )

    def _with(self, stage: Stage) -> PreprocessPipeline:
        return replace(self, stages=(*self.stages, stage))

    def _check(self) -> _Checked:
        check_order(self.stages)
        return _Checked.of(self, pinned_snapshot(self.lake, self.table, self.snapshot_id))


@dataclass(frozen=True)
class _Checked:
    """A pipeline whose stages were validated on a few rows."""

    pipeline: PreprocessPipeline
    snapshot_id: int
    snapshot_ref: str
    schema: pa.Schema
    numbers: ColumnConverter
    spec: Spec
    batch_spec: Spec
    writes: Mapping[int, set[str]]
    textual: Mapping[int, frozenset[str]]

    @classmethod
    def of(cls, pipeline: PreprocessPipeline, snapshot: Snapshot) -> _Checked:
        lake, table = pipeline.lake, pipeline.table
        schema = pa.schema([column.with_nullable(True) for column in lake.schema(table)])
        numbers = ColumnConverter(
            schema, table, pipeline.fill, pipeline.masks, pipeline.float_dtype
        )
        row_stages, batch_stages = split(pipeline.stages)
        layout = read_layout(
            lake,
            table,
            snapshot.id,
            _PROBE_BLOCK_ROWS,
            where=_leading(row_stages, RowBlock.of_table(numbers, schema.empty_table())),
            cache=merge_folder(lake, table),
        )
        writes: dict[int, set[str]] = {}
        textual: dict[int, frozenset[str]] = {}
        rows: RowBlock | None = None
        for number in range(len(layout.blocks)):
            rows = RowBlock.of_table(numbers, layout.decode(number, schema))
            for place, stage in enumerate(row_stages):
                if isinstance(stage, Filter) and stage.text is not None:
                    textual[id(stage)] = Condition.of(stage.text, rows).columns
                if not any(isinstance(later, Filter) for later in row_stages[place:]):
                    rows = rows.part(0, min(rows.num_rows, _PROBE_ROWS))
                after = run_rows([stage], rows)
                if isinstance(stage, Map):
                    writes[id(stage)] = after.made_since(rows)
                rows = after
                if not rows.num_rows:
                    break
            if rows.num_rows:
                break
        if rows is None or not rows.num_rows:
            filters = [str(stage) for stage in row_stages if isinstance(stage, Filter)]
            raise TableError(
                f"table {table!r} has no rows at snapshot {snapshot.id}"
                + (f" that pass {'; '.join(filters)}" if filters else "")
            )
        columns = rows.part(0, min(rows.num_rows, _PROBE_ROWS)).arrays()
        batch = run_batches(batch_stages, {n: v.copy() for n, v in columns.items()}, (0,))
        return cls(
            pipeline,
            snapshot.id,
            snapshot.ref,
            schema,
            numbers,
            spec_of(columns),
            spec_of(batch),
            writes,
            textual,
        )

    def plan(self, optimised: bool) -> Plan:
        stages, columns = self.pipeline.stages, list(self.numbers.names)
        if not optimised:
            return as_written(stages, columns)
        return optimise(stages, columns, self.writes, list(self.spec), self.textual)

    def pushed(self) -> tuple[str | None, tuple[Condition, ...]]:
        """Split conditions into the reader's ``where=`` and those on masks, which it does not
        have."""
        where = self.plan(optimised=True).where
        on_masks = [test for test in where if not test.columns <= set(self.schema.names)]
        return _and([test.text for test in where if test not in on_masks]), tuple(on_masks)

    def preparation(self, plan: Plan, threads: int) -> Preparation:
        sources = {self.numbers.names[name] for name in plan.read}
        schema = pa.schema([column for column in self.schema if column.name in sources])
        pipeline = self.pipeline
        options = {
            "fill": {k: v for k, v in sorted(pipeline.fill.items()) if k in sources},
            "masks": sorted(set(pipeline.masks) & sources),
            "float_dtype": pipeline.float_dtype,
        }
        return Preparation(plan, pipeline.table, schema, self.numbers, options, self.spec, threads)


def _leading(stages: Sequence[Stage], rows: RowBlock) -> str | None:
    """Return the conditions on table columns that precede every function."""
    texts = []
    for stage in stages:
        if not isinstance(stage, Filter) or stage.text is None:
            break
        if not Condition.of(stage.text, rows).columns <= set(rows.table_columns):
            break
        texts.append(stage.text)
    return _and(texts)


def _and(texts: Sequence[str]) -> str | None:
    return " AND ".join(f"({text})" for text in texts) or None
