"""Whether a saved state belongs to what a reader reads."""

from __future__ import annotations

import copy

from paimon_features.core.errors import RequestError
from trainer_bridge.order.reader_state import ReaderState, check_position, other_seed
from trainer_bridge.readers.epoch_rows import RowSampler


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
