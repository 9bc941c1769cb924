"""A snapshot that has been opened: everything that all readers of it share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from paimon_features.lake.catalog import Lake
from trainer_bridge.batches.forms import Form
from trainer_bridge.batches.vocabulary import Vocabulary
from trainer_bridge.blocks.layout import Layout, select_schema
from trainer_bridge.order.global_order import GlobalOrder
from trainer_bridge.order.reader_state import ReaderState


@dataclass(frozen=True)
class OpenedSnapshot:
    """The blocks of a snapshot, the columns to read of them, and their form in batches.

    Attributes
    ----------
    schema
        The columns that are read, as the table has them; all may have nulls.
    layout
        The blocks.
    form
        How decoded rows are stored, and made into batches.
    vocabularies
        The texts behind the codes, by column.
    streams
        Number of canonical streams that an order of these blocks has.
    """

    lake: Lake
    table: str
    snapshot_id: int
    schema: pa.Schema
    layout: Layout
    form: Form
    vocabularies: Mapping[str, Vocabulary]
    streams: int

    def order(self, state: ReaderState, epoch: int) -> GlobalOrder:
        """Return the order of the rows in an epoch, with the seed and the streams of a state."""
        return GlobalOrder(
            np.array([block.rows for block in self.layout.blocks], dtype=np.int64),
            streams=state.streams,
            seed=state.seed,
            epoch=epoch,
            shuffle=state.shuffle,
        )

    def read_columns(self, columns: Sequence[str]) -> pa.Table:
        """Return columns of all rows, by row number."""
        schema = select_schema(self.lake.schema(self.table), columns, self.table)
        schema = pa.schema([column.with_nullable(True) for column in schema])
        blocks = range(len(self.layout.blocks))
        return pa.concat_tables([self.layout.decode(number, schema) for number in blocks])
