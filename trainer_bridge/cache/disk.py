"""A folder of prepared blocks shared by several jobs, with one sub-folder per preparation.

::

    <folder>/.lock                     held briefly during eviction
    <folder>/<key>/plan.json           human-readable description of the preparation
    <folder>/<key>/.in-use             locked (shared) by every job that has it open
    <folder>/<key>/.making-07          locked by the job that computes a block
    <folder>/<key>/00000012.block      see ``block_files``

Jobs may start, end and be killed at any time: locks are released with their holders, files
appear atomically, and a missing or damaged block is recomputed. A cache failure never fails a
read.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from filelock import FileLock

from paimon_features.core.errors import ConfigurationError
from paimon_features.core.times.clock import now_ms
from trainer_bridge.cache.block_files import DamagedBlock, read_block, write_block

_log = logging.getLogger(__name__)
_STRIPES = 64
_ORPHAN_AGE_S = 3600.0
_FULL_FOR_S = 30.0


@dataclass
class DiskStats:
    """Counters of one open folder, all in blocks."""

    hits: int = 0
    written: int = 0
    damaged: int = 0
    refused: int = 0
    failed: int = 0


class DiskCache:
    """The shared folder.

    Parameters
    ----------
    folder
        Created if needed. On a local disk, or on one that supports file locks.
    max_bytes
        Maximum bytes of all blocks. When it is reached, preparations that no job has open are
        evicted, least recently used first; after that, blocks are no longer stored. A block
        being written may exceed the limit. None: no limit.
    wait_s
        How long to wait for another job computing the same block before computing it as well.
    """

    def __init__(
        self, folder: str | Path, max_bytes: int | None = None, wait_s: float = 60.0
    ) -> None:
        if max_bytes is not None and max_bytes < 1:
            raise ConfigurationError(f"max_bytes={max_bytes}: expected at least 1, or None")
        self.folder = Path(folder)
        self.max_bytes = max_bytes
        self.wait_s = wait_s

    def open(self, key: str, plan: Mapping[str, Any]) -> DiskPlan:
        """Open the sub-folder of a preparation, protected from eviction until closed."""
        return DiskPlan(self, key, plan)

    def entries(self) -> list[dict[str, Any]]:
        """List the preparations: ``key``, ``bytes``, ``blocks``, ``last_used_s`` (Unix),
        ``plan``."""
        preparations = []
        for folder in self._plans():
            sizes = list(_sizes(folder))
            plan: Any = None
            with contextlib.suppress(OSError, ValueError):
                plan = json.loads((folder / "plan.json").read_text())
            preparations.append(
                {
                    "key": folder.name,
                    "bytes": sum(sizes),
                    "blocks": len(sizes),
                    "last_used_s": _last_used(folder),
                    "plan": plan,
                }
            )
        return sorted(preparations, key=lambda entry: entry["key"])

    def used_bytes(self) -> int:
        """Return the total bytes of all blocks."""
        return sum(sum(_sizes(folder)) for folder in self._plans())

    def make_room(self, size: int) -> bool:
        """Return whether ``size`` more bytes fit, evicting unused preparations if needed."""
        if self.max_bytes is None:
            return True
        excess = self.used_bytes() + size - self.max_bytes
        for folder in sorted(self._plans(), key=_last_used):
            if excess <= 0:
                break
            excess -= _evict(folder)
        return excess <= 0

    def lock(self) -> FileLock:
        """Lock held around :meth:`make_room` and the publishing of a block."""
        return FileLock(self.folder / ".lock", timeout=self.wait_s)

    def _plans(self) -> Iterator[Path]:
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self.folder):
                if entry.is_dir(follow_symlinks=False):
                    yield Path(entry.path)


@dataclass
class DiskPlan:
    """The blocks of one preparation. Threads may share it."""

    cache: DiskCache
    key: str
    plan: Mapping[str, Any]
    stats: DiskStats = field(default_factory=DiskStats)

    def __post_init__(self) -> None:
        self.folder = self.cache.folder / self.key
        self._let_go: Callable[[], object] = _nothing
        self._refuse_until = 0.0
        self._verified: set[int] = set()
        try:
            self._enter()
        except OSError as error:
            self._give_up(error)

    def get(self, number: int) -> pa.Table | None:
        """Return a block if it exists and is intact, else None."""
        path = self._path(number)
        try:
            table = read_block(path, verify=number not in self._verified)
        except FileNotFoundError:
            return None
        except DamagedBlock as error:
            self.stats.damaged += 1
            _log.warning("a cached block is damaged and will be recomputed: %s", error)
            path.unlink(missing_ok=True)
            return None
        except OSError as error:
            self._give_up(error)
            return None
        self._verified.add(number)
        return table

    def get_or_make(self, number: int, make: Callable[[], pa.Table]) -> pa.Table:
        """Return the block from the folder, or compute and store it: one job at a time per
        block."""
        if (table := self.get(number)) is not None:
            self.stats.hits += 1
            return table
        if time.monotonic() < self._refuse_until:
            return make()
        with self._making(number):
            if (table := self.get(number)) is not None:  # another job was faster
                self.stats.hits += 1
                return table
            table = make()
            self._put(number, table)
        return table

    def close(self) -> None:
        """Allow eviction. Idempotent."""
        self._let_go()

    def _enter(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.cache.lock():  # else it could be evicted before it is locked
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.folder / ".in-use", os.O_RDWR | os.O_CREAT, 0o666)
            self._let_go = weakref.finalize(self, os.close, handle)  # also if it is never closed
            fcntl.flock(handle, fcntl.LOCK_SH)
            os.utime(self.folder / ".in-use")
            description = self.folder / "plan.json"
            if not description.exists():  # under the lock, so that threads do not move a file twice
                part = self.folder / f"plan.json.{os.getpid()}.part"
                part.write_text(json.dumps(self.plan, indent=2))
                part.replace(description)
        for part in self.folder.glob("*.part"):  # left by writers that were killed
            with contextlib.suppress(FileNotFoundError):
                if now_ms() / 1000 - part.stat().st_mtime > _ORPHAN_AGE_S:
                    part.unlink()

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}.block"

    @contextlib.contextmanager
    def _making(self, number: int) -> Iterator[None]:
        lock = FileLock(self.folder / f".making-{number % _STRIPES:02d}", timeout=self.cache.wait_s)
        # a hanging job, a disk without locks: computing a block twice is harmless
        with contextlib.suppress(OSError):  # a timeout is one
            lock.acquire(poll_interval=0.01)
        try:
            yield
        finally:
            lock.release()

    def _put(self, number: int, table: pa.Table) -> None:
        try:
            written = write_block(self._path(number), table, self._admit)
        except OSError as error:
            self._give_up(error)
            return
        if written:
            self.stats.written += 1
            self._verified.add(number)
        else:
            self.stats.refused += 1
            self._refuse_until = time.monotonic() + _FULL_FOR_S

    @contextlib.contextmanager
    def _admit(self, size: int) -> Iterator[bool]:
        with self.cache.lock():
            yield self.cache.make_room(size)

    def _give_up(self, error: BaseException) -> None:
        """Continue without storing: after a disk error the next write would fail as well."""
        self.stats.failed += 1
        self._refuse_until = float("inf")
        _log.warning("no longer writing to the cache %s: %s", self.folder, error)


def _nothing() -> None:
    return None


def _sizes(folder: Path) -> Iterator[int]:
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            if entry.name.endswith(".block"):
                with contextlib.suppress(FileNotFoundError):
                    yield entry.stat().st_size


def _last_used(folder: Path) -> float:
    try:
        return (folder / ".in-use").stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _evict(folder: Path) -> int:
    """Remove a preparation that no job has open; return the bytes freed."""
    try:
        handle = os.open(folder / ".in-use", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        return 0
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        size = sum(_sizes(folder))
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # in use
        return 0
    finally:
        os.close(handle)
    _log.info("evicted %s, %s bytes", folder, f"{size:,}")
    return size
