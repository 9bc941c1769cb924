"""The position of a reader: a few numbers, as small JSON.

The state names a position in the global order, not what some rank or thread has done, so
it is the same on all ranks, costs nothing to take, and can be resumed by any world size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from numbers import Integral
from typing import Any

from paimon_features.core.errors import RequestError

VERSION = 2
"""The version of the states of all readers: which rows a position counts."""
_BY_NAME = 1
"""The version of states of releases that read files in the order of their names."""

_LEAST = {
    "snapshot_id": 1,
    "rows": 1,
    "seed": None,
    "epoch": 0,
    "streams": 1,
    "block_rows": 1,
    "position": 0,
}


def is_integer(value: Any) -> bool:
    """Return True if a value is an integer, Python's or NumPy's."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_version(state: Mapping[str, Any], what: str, remedy: str) -> None:
    """Raise RequestError for a state of another version.

    ``remedy`` is what to do about one of a release that read files in another order.

    >>> check_version({"version": 9}, "a reader state", "start the epoch again")
    Traceback (most recent call last):
    ...
    paimon_features.core.errors.RequestError: a reader state of version 9; this release ...
    """
    version = state.get("version")
    if version == VERSION:
        return
    why = ""
    if version == _BY_NAME:
        why = (
            f": it counts the rows by the names of files, version {VERSION} counts them in the "
            f"order of commits, so its position is that of other rows; {remedy}"
        )
    raise RequestError(f"{what} of version {version!r}; this release reads version {VERSION}{why}")


def other_seed(found: Any, own: Mapping[str, Any]) -> int | None:
    """Return the seed of a sampler's identity that equals ``own`` but for its seed; else None.

    >>> other_seed({"sampler": "weighted", "seed": 2}, {"sampler": "weighted", "seed": 1})
    2
    """
    seed = found.get("seed") if isinstance(found, Mapping) else None
    if not is_integer(seed) or "seed" not in own or {**own, "seed": seed} != found:
        return None
    return int(seed)  # type: ignore[arg-type]


def check_numbers(state: Mapping[str, Any], least: Mapping[str, int | None], what: str) -> None:
    """Raise RequestError unless these fields are integers of at least ``least``.

    A damaged state could otherwise name a position that is never reached.
    """
    for name, low in least.items():
        value = state.get(name)
        if not is_integer(value) or (low is not None and value < low):  # type: ignore[operator]
            more = "" if low is None else f" of at least {low}"
            raise RequestError(f"{what} with {name}={value!r}; expected an integer{more}")


def check_position(position: int, rows: int, what: str) -> None:
    """Raise RequestError for a position at or beyond the end, which no state has."""
    if position and position >= rows:
        raise RequestError(
            f"{what} is at position {position} of {rows} rows; it was changed, or is of another "
            "reader"
        )


@dataclass(frozen=True, slots=True)
class ReaderState:
    """A position in the order of a table's snapshot.

    Attributes
    ----------
    table, snapshot_id, rows, files
        What is read, how many rows it had, and a hash of its files, to check that it is still
        the same.
    seed, epoch, shuffle, streams, block_rows
        Everything the order depends on in addition to the snapshot.
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
    paimon_features.core.errors.RequestError: a reader state of version 9; this release ...
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
        """JSON-compatible values; O(1)."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> ReaderState:
        """Return the inverse of :meth:`to_dict`.

        Raises
        ------
        RequestError
            For another version, or a field that is missing, unknown or invalid.
        """
        again = f"start its epoch again: epoch={state.get('epoch')!r}"
        check_version(state, "a reader state", again)
        names = {field.name for field in fields(cls)}
        state = {"where": None, **state}  # states of earlier releases have none
        got = set(state) - {"version"}
        if got != names:
            wrong = ", ".join(sorted(got ^ names))
            raise RequestError(f"a reader state with missing or unknown fields: {wrong}")
        check_numbers(state, _LEAST, "a reader state")
        if state["streams"] > state["rows"]:
            raise RequestError(
                f"a reader state of {state['rows']} rows in {state['streams']} streams"
            )
        return cls(**{name: state[name] for name in names})
