"""The position of a reader that follows a table: a few numbers, as small JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from paimon_features.core.errors import RequestError
from trainer_bridge.order.reader_state import VERSION, check_numbers, check_version

_LEAST = {
    "snapshot_id": 1,
    "position": 0,
    "seed": None,
    "canonical_streams": 1,
    "open_bytes": 1,
    "block_rows": 1,
}


@dataclass(frozen=True, slots=True)
class FollowState:
    """A position in the commits of a table.

    Attributes
    ----------
    table
        The table.
    snapshot_id, position
        The commit that is read next or at the moment, and how many of its rows have been handed
        out, over all ranks.
    whole
        Whether all rows of the table at that commit are read, not only those it added.
    seen_time_ms
        Commit time of the newest snapshot that was handed out, in part at least, or skipped, to
        check that the table was not rolled back. None before the first.
    history
        The mark of the table's history (``Lake.history_mark``), for the same check of a commit
        that has expired. None in states of earlier releases.
    where
        The condition on the rows, of which ``position`` counts those that it keeps.
    seed, shuffle, canonical_streams, open_bytes, block_rows
        Everything the order within a commit depends on in addition to its files.

    >>> state = FollowState("t", 3, 20, whole=False, seen_time_ms=5, seed=1, shuffle=True,
    ...                     canonical_streams=960, open_bytes=1, block_rows=10)
    >>> FollowState.from_dict(state.to_dict()) == state
    True
    >>> FollowState.from_dict({"version": 9})
    Traceback (most recent call last):
    ...
    paimon_features.core.errors.RequestError: the state of a following reader of version 9; this
    release reads version 2
    """

    table: str
    snapshot_id: int
    position: int
    whole: bool
    seen_time_ms: int | None
    seed: int
    shuffle: bool
    canonical_streams: int
    open_bytes: int
    block_rows: int
    history: str | None = None
    where: str | None = None

    @property
    def seen_id(self) -> int:
        """The snapshot of ``seen_time_ms``."""
        return self.snapshot_id if self.position else self.snapshot_id - 1

    def to_dict(self) -> dict[str, Any]:
        """JSON-compatible values; O(1)."""
        return {"version": VERSION, "following": True, **asdict(self)}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> FollowState:
        """Return the inverse of :meth:`to_dict`.

        Raises
        ------
        RequestError
            For another version, the state of a snapshot reader, or a field that is missing,
            unknown or invalid.
        """
        again = f"start with its commit again: start={state.get('snapshot_id')!r}"
        check_version(state, "the state of a following reader", again)
        names = {field.name for field in fields(cls)}
        state = {"history": None, "where": None, **state}
        got = set(state) - {"version", "following"}
        if got != names or not state.get("following"):
            wrong = ", ".join(sorted(got ^ names)) or "following"
            raise RequestError(
                f"the state of a following reader with missing or unknown fields: {wrong}"
            )
        check_numbers(state, _LEAST, "the state of a following reader")
        return cls(**{name: state[name] for name in names})
