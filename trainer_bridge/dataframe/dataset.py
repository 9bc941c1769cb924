"""``Dataset``: batches of columns from Parquet files or a table, with the HybridBackend API."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Unpack

import numpy as np
import pyarrow.fs as pafs

from paimon_features.core.errors import ConfigurationError, RequestError, unknown_name
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.snapshots import SnapshotRef
from trainer_bridge.batches.ragged import Ragged
from trainer_bridge.batches.tensor_columns import MASK_SUFFIX
from trainer_bridge.dataframe.batching import (
    Batches,
    as_value,
    cut,
    drawn,
    in_order,
    taken,
)
from trainer_bridge.dataframe.dataset_options import (
    DatasetKeywords,
    DatasetOptions,
    DeduplicatedColumns,
    check_size,
)
from trainer_bridge.dataframe.dedup import Blocks, Deduplicated, as_stored, inverse_of
from trainer_bridge.dataframe.frame import Features, Field, Pad, dense
from trainer_bridge.dataframe.frame_sources import Files, LakeSource, ParquetSource, Source
from trainer_bridge.dataframe.reading import Decoding, Stored, num_rows


class Dataset:
    """Columns of Parquet files or of a table, not batched yet.

    Created by :meth:`from_parquet` and :meth:`from_table`, with

    fields
        Names or ``DataFrame.Field`` of the columns to read; all by default.
    partition_count, partition_index
        Read only the pieces (row groups, or blocks of a table) ``partition_index``,
        ``partition_index + partition_count``, ...: one shard per worker.
    skip_corrupted_data
        Skip damaged row groups with a warning instead of raising (Parquet only).
    to_dense
        Return lists as dense, padded arrays: True for all, sizes, or either by column.
    num_parallel_reads
        Pieces decoded in parallel, in threads; the order is preserved.
    field_ignore_case, field_map_fn
        Match column names case-insensitively; a function that modifies the list of fields.
    key_idx_field_names, value_field_names, restore
        Deduplicated data: index columns, and for each the value columns it restores.
        ``restore=False`` keeps them as ``Deduplicated(values, inverse)``.
    fill, masks, item_masks, codes, scaled
        Nulls, codes of strings and decimals, as in ``SnapshotReader``; strings without codes are
        returned as object arrays.

    Attributes
    ----------
    fields
        The complete fields of a batch.
    """

    def __init__(
        self, source: Source, fields: Iterable[Field | str] | None, options: DatasetOptions
    ) -> None:
        self._source = source
        self._options = options
        self._groups = DeduplicatedColumns.of(options)
        if options.field_map_fn is not None:
            fields = options.field_map_fn(list(source.schema.names if fields is None else fields))
        self._decoding = Decoding(source, fields, self._groups, options)
        for name in options.to_dense if isinstance(options.to_dense, Mapping) else ():
            if name not in self._decoding.fields:
                raise ConfigurationError(
                    f"to_dense=: {unknown_name('field', name, self._decoding.fields)}"
                )
        hidden = set(self._groups.values)
        self.fields = [field for name, field in self._decoding.fields.items() if name not in hidden]

    @classmethod
    def from_parquet(
        cls,
        filenames: Files,
        fields: Iterable[Field | str] | None = None,
        partition_count: int = 1,
        partition_index: int = 0,
        skip_corrupted_data: bool = False,
        to_dense: Pad | Mapping[str, Pad] = False,
        *,
        filesystem: pafs.FileSystem | None = None,
        **options: Unpack[DatasetKeywords],
    ) -> Dataset:
        """Read Parquet files: names, globs, folders or URIs (of one store).

        Raises
        ------
        ConfigurationError
            If fields do not match the files, or there are no fields or files.
        UnknownNameError
            If the files do not have a field.
        TableError
            If a file is damaged.
        """
        source = ParquetSource(
            filenames, filesystem=filesystem, skip_corrupted_data=skip_corrupted_data
        )
        return cls(
            source, fields, DatasetOptions(partition_count, partition_index, to_dense, **options)
        )

    @classmethod
    def from_table(
        cls,
        lake: Lake,
        table: str,
        fields: Iterable[Field | str] | None = None,
        partition_count: int = 1,
        partition_index: int = 0,
        to_dense: Pad | Mapping[str, Pad] = False,
        *,
        snapshot_id: SnapshotRef | None = None,
        tag: str | None = None,
        as_of_ms: int | None = None,
        where: str | None = None,
        **options: Unpack[DatasetKeywords],
    ) -> Dataset:
        """Read a table at a snapshot (the latest one by default), in the order of commits and rows.

        The snapshot is pinned, and ``where`` filters (stored) rows, as in ``SnapshotReader``.

        Raises
        ------
        ConfigurationError, UnknownNameError
            If fields do not match the table.
        TableError, SnapshotExpiredError
            If the table or the snapshot cannot be read.
        """
        source = LakeSource(lake, table, snapshot_id, tag=tag, as_of_ms=as_of_ms, where=where)
        return cls(
            source, fields, DatasetOptions(partition_count, partition_index, to_dense, **options)
        )

    def batch(self, batch_size: int, drop_remainder: bool = False) -> Batches:
        """Batch ``batch_size`` stored rows at a time, in order.

        In deduplicated data a stored row is a block of rows: restored columns have all rows of
        ``batch_size`` blocks, columns outside the groups are returned as stored, one list per
        block. ``rebatch`` counts rows.
        """
        check_size("batch_size", batch_size)
        return Batches(
            lambda: map(self._features, cut(self._stored(), batch_size, batch_size, drop_remainder))
        )

    def shuffle_batch(
        self,
        batch_size: int,
        drop_remainder: bool | int = False,
        buffer_size: int | None = None,
        seed: int | None = None,
        reshuffle_each_iteration: bool = True,
    ) -> Batches:
        """Shuffle with a buffer of ``buffer_size`` stored rows (``batch_size`` by default) and
        batch.

        The second positional argument is the buffer size: ``shuffle_batch(1024, 2048)``.
        """
        if not isinstance(drop_remainder, bool):
            drop_remainder, buffer_size = False, drop_remainder
        check_size("batch_size", batch_size)
        check_size("buffer_size", batch_size if buffer_size is None else buffer_size)
        drop, buffer = drop_remainder, max(buffer_size or batch_size, batch_size)
        start = int(np.random.SeedSequence().entropy) % (1 << 63) if seed is None else seed  # type: ignore[arg-type]
        rounds = itertools.count()

        def shuffled() -> Iterator[Features]:
            turn = next(rounds) if reshuffle_each_iteration else 0
            dice = np.random.default_rng([start, turn])
            return map(self._features, drawn(self._stored(), batch_size, buffer, drop, dice))

        return Batches(shuffled)

    def rebatch(
        self, batch_size: int, min_batch_size: int | None = None, drop_remainder: bool = False
    ) -> Batches:
        """Batch rows in order; for deduplicated data, restored rows."""
        rows = Batches(lambda: (self._rows(stored) for stored in self._stored()))
        return rows.rebatch(batch_size, min_batch_size, drop_remainder).map(self._padded)

    def _stored(self) -> Iterator[Stored]:
        """Yield the stored rows by piece."""
        pieces = self._options.pieces(len(self._source))
        for stored in in_order(self._decoding.read, pieces, self._options.threads):
            if stored is not None and num_rows(stored):
                yield stored

    def _features(self, stored: Stored) -> Features:
        """Convert stored rows to a batch: restored, and lists padded as declared."""
        features: Features = {}
        restored = self._restored(stored)
        for name, column in stored.items():
            if name in self._groups.values:
                continue
            if name in restored:
                features[name] = restored[name]
            elif isinstance(column, Blocks):
                masked = name + MASK_SUFFIX in stored
                features[name] = as_value(as_stored(column, self._where(name), masked))
            else:
                features[name] = as_value(column)
        return self._padded(features)

    def _rows(self, stored: Stored) -> Features:
        """Restore stored rows to rows, including columns outside the groups."""
        if not self._groups.values:
            return {name: as_value(column) for name, column in stored.items()}
        features = self._restored(stored)
        lengths = {key: self._blocks(stored, key).lengths for key in self._groups.values}
        first, rows = next(iter(lengths.items()))
        out: Features = {}
        for name, column in stored.items():
            if name in self._groups.values or name in features:
                block_rows = lengths.get(name, rows)
            elif isinstance(column, Blocks):
                block_rows, features[name] = column.lengths, as_value(column.rows)
            else:  # one value for the complete block
                numbers = np.repeat(np.arange(len(column)), rows)
                block_rows, features[name] = rows, as_value(taken(column, numbers))
            if (block_rows != rows).any():
                block = int(np.flatnonzero(block_rows != rows)[0])
                raise RequestError(
                    f"{self._where(name)}: {block_rows[block]} rows in a block of {rows[block]} by "
                    f"{first!r}; rows cannot be restored: the columns belong to different data"
                )
            if name in features:
                out[name] = features[name]
        return out

    def _restored(self, stored: Stored) -> Features:
        features: Features = {}
        for key, names in self._groups.values.items():
            index, inverses = self._blocks(stored, key), {}
            masks = [mask for name in names for mask in self._decoding.masks_of(name)]
            for name in (*names, *masks):
                uniques = self._blocks(stored, name)
                # columns of a group have equally many unique values, so they share one inverse
                shape = uniques.splits.tobytes()
                if shape not in inverses:
                    inverses[shape] = inverse_of(index, uniques, self._where(name))
                once = Deduplicated(as_value(uniques.rows), inverses[shape])
                features[name] = as_value(once.restore()) if self._options.restore else once
        return features

    def _padded(self, features: Features) -> Features:
        pads = self._options.to_dense
        if pads is False:
            return features
        if not isinstance(pads, Mapping):
            pads = dict.fromkeys(features, pads)
        return {
            name: dense(column, pads[name])
            if isinstance(column, Ragged) and pads.get(name, False) is not False
            else column
            for name, column in features.items()
        }

    def _blocks(self, stored: Stored, name: str) -> Blocks:
        column = stored[name]
        if not isinstance(column, Blocks):
            raise RequestError(
                f"{self._where(name)} is an index or value column of deduplicated data, and not a "
                "list; each of its rows has to be a list with the rows of a block"
            )
        return column

    def _where(self, name: str) -> str:
        return f"{self._source.name!r}: column {name!r}"
