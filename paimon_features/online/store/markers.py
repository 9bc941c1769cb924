"""Metadata in the online store: the epoch that readers use, and the snapshot applied to it.

The marker of a bucket is small and of fixed size, because a request reads one for each bucket
it touches; the state of a view is JSON and changes only when an epoch is built or switched to.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from paimon_features.core.documents.unambiguous_json import parse_unambiguous_json
from paimon_features.core.errors import OnlineStoreError

_MARKER = struct.Struct("<BBHIQqqqqqQ")
_OPENING_SIZE = struct.calcsize("<BBHIQq")
"""From the format to ``applied_snapshot``."""
FORMAT = 1
_COMPLETE = 1
_FOLLOWED = 2


@dataclass(frozen=True, slots=True)
class Marker:
    """The materialization progress of one bucket. All times are UTC milliseconds.

    ``applied_snapshot`` is the newest snapshot of the tile table that has been applied to every
    record of the bucket, ``commit_time_ms`` its commit time; ``identity`` distinguishes it from
    another snapshot with the same id. ``high_ms`` is the newest event time applied.
    ``current_ms`` is the newest time at which the bucket was known to be up to date with the
    table. ``built_ms`` is the time at which the build of the epoch started, ``fence`` the fencing
    number of the lease that wrote the marker. ``complete`` is false while the bucket is built;
    ``followed`` is true if a materializer wrote it that continues, so that ``current_ms`` grows.
    """

    applied_snapshot: int
    commit_time_ms: int
    identity: int
    high_ms: int
    current_ms: int
    built_ms: int
    incarnation: int = 0
    fence: int = 0
    complete: bool = True
    followed: bool = False

    @property
    def opening(self) -> bytes:
        """The first bytes of the stored form, which change when ``applied_snapshot`` moves on.

        They do not change when ``current_ms`` alone does.
        """
        return self.to_bytes()[:_OPENING_SIZE]

    def to_bytes(self) -> bytes:
        """Return the stored form: 64 bytes, little endian."""
        return _MARKER.pack(
            FORMAT,
            self.complete * _COMPLETE | self.followed * _FOLLOWED,
            0,
            self.incarnation,
            self.fence,
            self.applied_snapshot,
            self.commit_time_ms,
            self.high_ms,
            self.current_ms,
            self.built_ms,
            self.identity,
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Marker:
        """Return the inverse of ``to_bytes``.

        Raises
        ------
        OnlineStoreError
            For bytes of another format.
        """
        if len(data) != _MARKER.size or data[0] != FORMAT:
            raise OnlineStoreError(
                f"unsupported marker of {len(data)} bytes, format {data[:1].hex() or 'none'}; "
                f"expected "
                f"{_MARKER.size} bytes, format {FORMAT:02x}: it was written by another version, "
                "run 'paimon-features materialize --rebuild'"
            )
        _, flags, _, incarnation, fence, applied, commit, high, current, built, identity = (
            _MARKER.unpack(data)
        )
        return cls(
            applied_snapshot=applied,
            commit_time_ms=commit,
            identity=identity,
            high_ms=high,
            current_ms=current,
            built_ms=built,
            incarnation=incarnation,
            fence=fence,
            complete=bool(flags & _COMPLETE),
            followed=bool(flags & _FOLLOWED),
        )


@dataclass(frozen=True, slots=True)
class EpochContent:
    """The source of an epoch's records; epochs with equal sources have equal records."""

    table: str
    generation: int
    incarnation: int
    online_fingerprint: str
    buckets: int


@dataclass(frozen=True, slots=True)
class Building:
    """An epoch under construction, not yet visible to readers.

    ``evicted`` is the number of keys that each run of a server had evicted before (absent: none).
    """

    epoch: str
    content: EpochContent
    since_ms: int
    evicted: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ViewState:
    """The epoch of a view that readers use, and the one under construction.

    ``evicted`` is that of the epoch while it was under construction.

    >>> content = EpochContent("tiles_spend_g1", 1, 0, "aa", 4)
    >>> state = ViewState("1a2b3c4d", content)
    >>> ViewState.from_bytes(state.to_bytes()) == state
    True
    """

    epoch: str | None = None
    content: EpochContent | None = None
    building: Building | None = field(default=None)
    evicted: Mapping[str, int] = field(default_factory=dict)

    def evicted_since(self, evicted: Mapping[str, int]) -> int:
        """Return the number of keys evicted since the build of the epoch started.

        ``evicted`` is the present number by run. A run that the state does not have started later,
        or had evicted nothing.

        >>> state = ViewState("1a2b3c4d", evicted={"a": 5})
        >>> state.evicted_since({"a": 5}), state.evicted_since({"a": 7, "b": 1})
        (0, 3)
        """
        return sum(max(0, count - self.evicted.get(run, 0)) for run, count in evicted.items())

    def to_bytes(self) -> bytes:
        """Return canonical JSON: equal states have equal bytes."""
        document: dict[str, Any] = {"format": FORMAT, **asdict(self)}
        # absent where nothing was evicted, as in states of earlier versions
        for part in (document, document["building"]):
            if part is not None and not part["evicted"]:
                del part["evicted"]
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> ViewState:
        """Return the inverse of ``to_bytes``.

        Raises
        ------
        OnlineStoreError
            For bytes of another format.
        """
        try:
            document = parse_unambiguous_json(data)
            if document.pop("format") != FORMAT:
                raise ValueError("another format")
            content, building = document["content"], document["building"]
            return cls(
                _is(str, document["epoch"], optional=True),
                None if content is None else _content(content),
                None
                if building is None
                else Building(
                    _is(str, building["epoch"]),
                    _content(building["content"]),
                    _is(int, building["since_ms"]),
                    _evicted(building),
                ),
                _evicted(document),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise OnlineStoreError(
                f"the online store contains an unreadable view state ({str(error)[:200]}): "
                f"{data[:80]!r}; it is damaged or was written by another version, "
                "run 'paimon-features materialize --rebuild'"
            ) from error


def _is(kind: type[Any], value: Any, optional: bool = False) -> Any:
    if type(value) is not kind and not (optional and value is None):
        raise ValueError(f"{str(value)[:80]!r}, expected {kind.__name__}")
    return value


def _content(document: Mapping[str, Any]) -> EpochContent:
    content = EpochContent(**document)
    for name, kind in (
        ("table", str), ("generation", int), ("incarnation", int), ("online_fingerprint", str),
        ("buckets", int),
    ):  # fmt: skip
        _is(kind, getattr(content, name))
    if content.buckets < 1:
        raise ValueError(f"buckets={content.buckets}")
    return content


def _evicted(document: Mapping[str, Any]) -> dict[str, int]:
    counts = document.get("evicted", {})
    if not all(type(count) is int for count in counts.values()):
        raise ValueError(f"evicted={counts!r}, expected counts by run")
    return dict(counts)
