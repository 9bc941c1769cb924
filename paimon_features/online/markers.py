"""What the online store says about itself: which epoch is read, and how far it is applied.

A marker per bucket is small and fixed, because a request reads one for each bucket it touches;
a view's state changes only when another epoch is built or switched to, and is JSON.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass, field

from paimon_features.errors import OnlineStoreError

_MARKER = struct.Struct("<BBHIQqqqqqQ")
FORMAT = 1
_COMPLETE = 1


@dataclass(frozen=True, slots=True)
class Marker:
    """How far one bucket is applied. All times are UTC milliseconds.

    ``applied_snapshot`` is the newest snapshot of the tile table of which every record of the
    bucket has its share, ``commit_time_ms`` when it was committed and ``identity`` tells it
    from another snapshot with the same number. ``high_ms`` is the newest event time applied.
    ``current_ms`` is the newest time at which the bucket was known to hold all that the table
    held. ``built_ms`` is when the building of the epoch began, ``fence`` the number of the
    lease under which the marker was written. ``complete`` is false while the bucket is built.
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

    def to_bytes(self) -> bytes:
        """The 64 bytes in which it is stored (little endian)."""
        return _MARKER.pack(
            FORMAT,
            _COMPLETE if self.complete else 0,
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
        """The inverse of ``to_bytes``.

        Raises
        ------
        OnlineStoreError
            For bytes of another format.
        """
        if len(data) != _MARKER.size or data[0] != FORMAT:
            raise OnlineStoreError(
                f"a marker of {len(data)} bytes and format {data[:1].hex() or 'none'}; expected "
                f"{_MARKER.size} bytes and format {FORMAT:02x}: another version wrote it, "
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
        )


@dataclass(frozen=True, slots=True)
class Content:
    """What an epoch of a view is made from; two epochs of equal content have equal records."""

    table: str
    generation: int
    incarnation: int
    online_fingerprint: str
    buckets: int


@dataclass(frozen=True, slots=True)
class Building:
    """An epoch that is being built and is not read yet."""

    epoch: str
    content: Content
    since_ms: int


@dataclass(frozen=True, slots=True)
class ViewState:
    """Which epoch of a view is read, and which one is being built.

    >>> content = Content("tiles_spend_g1", 1, 0, "aa", 4)
    >>> state = ViewState("1a2b3c4d", content)
    >>> ViewState.from_bytes(state.to_bytes()) == state
    True
    """

    epoch: str | None = None
    content: Content | None = None
    building: Building | None = field(default=None)

    def to_bytes(self) -> bytes:
        """Canonical JSON: equal states have equal bytes."""
        document = {"format": FORMAT, **asdict(self)}
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> ViewState:
        """The inverse of ``to_bytes``.

        Raises
        ------
        OnlineStoreError
            For bytes of another format.
        """
        try:
            document = json.loads(data)
            if document.pop("format") != FORMAT:
                raise ValueError("another format")
            content, building = document["content"], document["building"]
            return cls(
                document["epoch"],
                None if content is None else Content(**content),
                None
                if building is None
                else Building(
                    building["epoch"], Content(**building["content"]), building["since_ms"]
                ),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise OnlineStoreError(
                f"the online store holds a view state that is not ours ({error}): {data[:80]!r}; "
                "another version wrote it, run 'paimon-features materialize --rebuild'"
            ) from error
