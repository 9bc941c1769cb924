"""Checks of a reader's state: it belongs to what is read, and a batch can be read there."""

from __future__ import annotations

import copy
from typing import Protocol

from paimon_features.core.errors import ConfigurationError, RequestError
from paimon_features.core.types.array_types import Ints
from trainer_bridge.order.global_order import GlobalOrder
from trainer_bridge.order.reader_state import ReaderState, check_position, other_seed
from trainer_bridge.readers.epoch_rows import RowSampler
from trainer_bridge.readers.opened_snapshot import OpenedSnapshot


def sampler_of(sampler: RowSampler | None, state: ReaderState) -> RowSampler | None:
    """Return the sampler with the seed of a state; itself if that is the same, or unknown."""
    if sampler is None or not hasattr(sampler, "reseed"):
        return sampler
    seed = other_seed(state.sampler, identity := sampler.identity())
    if seed is None or seed == identity["seed"]:
        return sampler
    other: RowSampler = copy.copy(sampler)
    other.reseed(seed)  # type: ignore[attr-defined]
    return other


def check_state(
    state: ReaderState, table: str, where: str | None, sampler: RowSampler | None
) -> None:
    """Raise RequestError for a state of another table, condition, sampler or position."""
    if state.table != table:
        raise RequestError(f"a state of table {state.table!r} does not fit a reader of {table!r}")
    if state.where != where:
        raise RequestError(
            f"table {table!r}: the state was taken with where={state.where!r}, this "
            f"reader has {where!r}: other rows, another order; make it with the "
            "same condition, or start a new epoch"
        )
    expected = None if sampler is None else sampler.identity()
    if state.sampler != expected:
        raise RequestError(
            f"the state was taken with the sampler {state.sampler}, this reader has "
            f"{expected}: make it with the same scores, or start a new epoch"
        )
    rows = state.rows if sampler is None else sampler.epoch_size(state.epoch)
    check_position(state.position, rows, f"a state of table {table!r}")


class SampledTable(Protocol):
    """What a sampler has to suit."""

    @property
    def table(self) -> str: ...
    @property
    def snapshot_id(self) -> int: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def global_batch_size(self) -> int: ...


def check_sampler(sampler: RowSampler, reader: SampledTable) -> None:
    """Raise ConfigurationError for a sampler of other rows, or of batches that do not divide the
    reader's."""
    if sampler.num_rows != reader.num_rows:
        raise ConfigurationError(
            f"the sampler draws from {sampler.num_rows} rows, table {reader.table!r} has "
            f"{reader.num_rows} at snapshot {reader.snapshot_id}"
        )
    if reader.global_batch_size % sampler.batch_multiple:
        raise ConfigurationError(
            f"the sampler makes batches of {sampler.batch_multiple} rows, the reader global "
            f"batches of {reader.global_batch_size}: make that the same, or a multiple"
        )


def check_budget(
    snapshot: OpenedSnapshot, order: GlobalOrder, position: int, streams: Ints | None, budget: int
) -> None:
    """Raise ConfigurationError if the blocks that are open at a position exceed the budget.

    ``streams`` are the canonical streams that the rank reads (None: all).
    """
    opened = order.open_blocks(position, position + 1, streams)
    rows = sum(snapshot.layout.blocks[number].rows for number in opened)
    needed = int(rows * snapshot.form.row_bytes)
    if needed > budget:
        raise ConfigurationError(
            f"table {snapshot.table!r}: {len(opened)} blocks have to be open at once, which takes "
            f"{needed:,} bytes; byte_budget is {budget:,}. Raise it, read fewer "
            "columns, or lower open_bytes (another order), or write smaller row groups"
        )
