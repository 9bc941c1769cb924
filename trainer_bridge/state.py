"""Where a reader stands: a handful of numbers, as small JSON.

The state names a place in the global order, not what some rank or thread has done, so
it is the same on all ranks, costs nothing to take, and is resumed by any world size.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from paimon_features.errors import RequestError

VERSION = 1


@dataclass(frozen=True, slots=True)
class ReaderState:
    """A place in the order of a table's snapshot.

    Attributes
    ----------
    table, snapshot_id, rows, files
        What is read, how many rows it had, and a hash of its files: a check that it is still
        the same.
    seed, epoch, shuffle, streams, block_rows
        Everything the order depends on besides the snapshot.
    position
        Rows of this epoch, over all ranks, that have been handed out.
    sampler
        State of the sampler that chooses the rows, if there is one.
    where
        The condition that the rows fulfil, if there is one.

    >>> state = ReaderState("t", 3, 100, "c0ffee", seed=1, epoch=0, shuffle=True, streams=4,
    ...                     block_rows=10, position=20)
    >>> ReaderState.from_dict(state.to_dict()) == state
    True
    >>> ReaderState.from_dict({"version": 9})
    Traceback (most recent call last):
    ...
    paimon_features.errors.RequestError: a reader state of version 9; this release reads version 1
    """

    table: str
    snapshot_id: int
    rows: int
    files: str
    seed: int
    epoch: int
    shuffle: bool
    streams: int
    block_rows: int
    position: int
    sampler: dict[str, Any] | None = None
    where: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Only what JSON knows; O(1)."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> ReaderState:
        """The inverse of :meth:`to_dict`.

        Raises
        ------
        RequestError
            For another version, or where a field is missing or unknown.
        """
        if state.get("version") != VERSION:
            raise RequestError(
                f"a reader state of version {state.get('version')!r}; "
                f"this release reads version {VERSION}"
            )
        names = {field.name for field in fields(cls)}
        state = {"where": None, **state}  # those of earlier releases have none
        got = set(state) - {"version"}
        if got != names:
            wrong = ", ".join(sorted(got ^ names))
            raise RequestError(f"a reader state with missing or unknown fields: {wrong}")
        return cls(**{name: state[name] for name in names})
