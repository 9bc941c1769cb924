"""The native core, where it is built: ``CORE``, or None.

NumPy's code is the reference implementation and the fallback: every caller has it, and a host
without the core serves the same values, more slowly. ``PAIMON_FEATURES_NATIVE=0`` in the
environment turns the core off.

>>> from paimon_features.core.native import STATE
>>> STATE.found.startswith(("built", "not built", "turned off"))
True
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

VARIABLE = "PAIMON_FEATURES_NATIVE"
_LOG = logging.getLogger(__name__)
Buffer = Any
"""Bytes, or a NumPy array of contiguous words."""


class Core(Protocol):
    """The functions of ``core.c``, which describes them.

    Raises
    ------
    ValueError
        For buffers whose lengths do not fit each other, and indices outside of them.
    """

    def fold(
        self,
        records: Sequence[bytes | None],
        rows: tuple[int, int],
        layout: Buffer,
        plan: Buffer,
        keys: Buffer,
        bounds: Buffer,
        read_ms: Buffer,
        read: Buffer,
        words: Buffer,
        flat: Buffer,
        stale: Buffer | None,
        tables: tuple[Buffer, ...],
        /,
    ) -> tuple[int, int, int, bytes] | int | None:
        """Decode, fold and finish records ``rows``: from, to (exclusive). See ``native_fold``."""

    def count(self, records: list[bytes | None], layout: Buffer, /) -> tuple[int, int]:
        """Return the number of readable records, and of their cells."""

    def unpack(self, layout: Buffer, records: list[bytes], rows: Buffer, /) -> int:
        """Decode the cells of records; returns how many come before the first damaged one."""

    def pack(
        self,
        layout: Buffer,
        rows: Buffer,
        offsets: Buffer,
        event_high: Buffer,
        out: Buffer,
        sizes: Buffer,
        /,
    ) -> None:
        """Pack the cells of records; the bytes of each begin where its cells would."""

    def times_json(self, times_ms: Buffer, /) -> bytes:
        """Return a JSON array of times."""

    def reply_json(
        self,
        opening: bytes,
        values: tuple[Buffer, ...],
        valid: tuple[Buffer | None, ...],
        contents: bytes,
        endings: tuple[bytes, ...],
        groups: bytes,
        start: int,
        stop: int,
        /,
    ) -> bytes | None:
        """Write the results of a reply; None for floats that msgspec has to write."""

    def place(
        self,
        values: list[Any],
        kind: int,
        stems: tuple[bytes, ...],
        markers: tuple[bytes, ...],
        first: bytes,
        /,
    ) -> tuple[list[bytes], list[int], bytes] | None:
        """Make the keys of a read; see ``serving.direct_read``."""

    def buckets(self, slots: Buffer, width: int, count: int, out: Buffer, /) -> None:
        """Compute the buckets of keys of a fixed size; see ``buckets.bucket_of``."""

    def reply_folded(
        self,
        opening: bytes,
        words: Buffer,
        valid: Buffer,
        outputs: Buffer,
        newest: int,
        rows: int,
        start: int,
        stop: int,
        statuses: bytes,
        more: bytes,
        /,
    ) -> bytes | None:
        """Write the results of a reply from what ``fold`` has written; None as ``reply_json``."""

    def permute(
        self, numbers: Buffer, sizes: Buffer, a: Buffer, b: Buffer, keys: Buffer, out: Buffer, /
    ) -> None:
        """Compute a keyed permutation; sizes, radices and keys may be one word for all."""

    def move(
        self,
        source: Buffer,
        rows: Buffer | None,
        size: int,
        out: Buffer,
        places: Buffer | None,
        /,
    ) -> None:
        """Copy rows of ``size`` bytes: ``out[places[i]] = source[rows[i]]``; None: 0, 1, 2, ..."""

    def interleave(
        self, columns: list[Buffer], size: int, out: Buffer, first: int, stride: int, /
    ) -> None:
        """Write columns of items side by side, as columns from ``first`` on of ``stride``."""

    def order(
        self,
        positions: Buffer,
        streams: int,
        cuts: Buffer,
        pieces: tuple[Buffer, Buffer, Buffer, Buffer, Buffer, Buffer],
        out: Buffer,
        /,
    ) -> None:
        """Compute the rows at positions of a global order; see ``GlobalOrder.rows``."""

    def group(
        self, rows: Buffer, firsts: Buffer, counts: Buffer, offsets: Buffer, places: Buffer, /
    ) -> None:
        """Sort rows by their blocks: see ``trainer_bridge.order.blocks_of_rows``."""

    def locate(self, values: Buffer, keys: Buffer, places: Buffer, /) -> tuple[int, int] | None:
        """Search ascending keys in ascending values; None where keys do not ascend."""

    def pick(
        self, blocks: list[Buffer | None], firsts: Buffer, rows: Buffer, size: int, out: Buffer, /
    ) -> None:
        """Copy rows of ``size`` bytes out of blocks, in the order of ``rows``."""

    def pages(
        self, content: Buffer, at: int, end: int, /
    ) -> list[tuple[int, int, int | None, int]] | None:
        """Find the pages of a column chunk of a Parquet file; None if one is unusual."""


@dataclass(frozen=True, slots=True)
class NativeState:
    """Whether the core is used, and why not; ``remedy`` is empty where nothing is wrong."""

    is_used: bool
    found: str
    remedy: str = ""


def _functions() -> list[str]:
    return [name for name in vars(Core) if not name.startswith("_")]


def _load() -> tuple[Core | None, NativeState]:
    if os.environ.get(VARIABLE, "").strip() == "0":
        return None, NativeState(False, f"turned off by {VARIABLE}=0; NumPy does its work")
    try:
        core = importlib.import_module("paimon_features.core.native._core")
        if older := [name for name in _functions() if not hasattr(core, name)]:
            raise ImportError(f"the one here is of an older version: it lacks {', '.join(older)}")
    except ImportError as error:
        remedy = (
            "reads are slower; install a wheel of this platform, or again with a C compiler or the "
            "package ziglang (pip install ziglang)"
        )
        return None, NativeState(False, f"not built ({error}); NumPy does its work", remedy)
    return cast(Core, core), NativeState(True, "built, and used")


CORE, STATE = _load()


@functools.cache
def log_once() -> None:
    """Log, once in a process, that the core is not used; called by what would use it."""
    if not STATE.is_used:
        # turned off is a choice, and needs no remedy
        level = logging.WARNING if STATE.remedy else logging.INFO
        _LOG.log(level, "native core: %s", "; ".join(filter(None, (STATE.found, STATE.remedy))))
