"""Claims: the entries of a lease. Each follows the one before it by compare-and-swap; the newest
one names the owner, and its number is the fencing token.

::

    claim 41   released
    claim 42   process 117 on a, to ingest        paused for a minute
    beat       5                                  not increased meanwhile
    claim 43   process 260 on b, to ingest        took over: 42 cannot commit any more

Taking over, releasing and handing over all create the next claim, so that two of them cannot
follow the same one. An owner increases its heartbeat's counter; who wants to take over watches the
counter by its own clock, and no two clocks are compared.

A claim is an owner's, or says that it was released. One whose content is neither is damaged: it may
be a living owner's, so nothing follows it until somebody who knows better releases the lease.

``FolderClaims`` is for file systems, which have no compare-and-swap: each claim is a file that is
created exclusively. ``ObjectClaims`` is for object stores: one object, by conditional puts.
"""

from __future__ import annotations

import json
import secrets
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

from paimon_features.core.documents.typed_json import mapping
from paimon_features.core.errors import DamagedFileError, LeaseLostError, TableError
from paimon_features.lake.storage.exclusive_folder import ExclusiveFolder
from paimon_features.lake.storage.object_path import ObjectPath, SidePath

BEAT_S = 5.0
"""Seconds between two heartbeats."""
SILENT_BEATS = 6
"""An owner whose heartbeat does not change for this number of intervals may be replaced."""

_KEPT = 4
"""The newest claims of a folder, which are not deleted."""
_LOOKS_PER_BEAT = 5
_ATTEMPTS = 10

RELEASED: Mapping[str, Any] = {"released": True}
"""The content of a claim that releases a lease."""
_CRC = "crc32"


@dataclass(frozen=True, slots=True)
class Claim:
    """One entry of a lease. Its ``nonce`` is random: a number may be used again after a loss.

    ``damage`` says what is wrong with its file, None if nothing is. ``version`` is what an object
    store compares.
    """

    number: int
    content: Mapping[str, Any]
    damage: str | None = None
    version: Any = field(default=None, compare=False, repr=False)

    @property
    def nonce(self) -> str:
        self.check()
        return str(self.content["nonce"])

    @property
    def is_release(self) -> bool:
        """Return True if it says that nobody is the owner.

        Raises
        ------
        DamagedFileError
            If the record does not say so either way.
        """
        self.check()
        if "holder" in self.content:
            return False
        if self.content.get("released") is True:
            return True
        raise self.damaged("it has neither an owner nor a mark that it was released")

    def check(self) -> None:
        """Raise DamagedFileError if its file is damaged."""
        if self.damage is not None:
            raise self.damaged(self.damage)

    def damaged(self, why: str) -> DamagedFileError:
        """Return the error for content that is not what was written."""
        return DamagedFileError(
            f"claim {self.number} of a lease is damaged ({why}), and may be that of a living "
            "owner. Restore it from a copy; or, if no process or job writes the table, run "
            "'paimon-features jobs --release TABLE'"
        )

    @property
    def beat_s(self) -> float | None:
        """Seconds between the heartbeats of its owner; None if it has none."""
        beat_s = self.content.get("beat_s")
        if beat_s is not None and not (type(beat_s) in (int, float) and 0 < beat_s < 3_600):
            raise self.damaged(f"beat_s={str(beat_s)[:40]!r}")
        return beat_s


class Claims(ABC):
    """The claims of one lease or lock.

    All methods raise OSError or TableError if the storage is unreachable.
    """

    @abstractmethod
    def newest(self) -> Claim | None:
        """Return the newest claim, with what is wrong with it; None before the first one.

        Raises
        ------
        TableError
            If claims are missing.
        """

    @abstractmethod
    def follow(self, previous: Claim | None, content: Mapping[str, Any]) -> Claim | None:
        """Create the claim after ``previous``; return None if another one was faster.

        Of several concurrent callers one gets a claim.
        """

    @abstractmethod
    def follower(self, claim: Claim) -> Claim | None:
        """Return the newest claim if it follows this one, None while ``claim`` is the newest one.

        Raises
        ------
        LeaseLostError
            If the claim does not exist any more.
        """

    @abstractmethod
    def beat(self, claim: Claim, count: int) -> None:
        """Publish the owner's heartbeat."""

    @abstractmethod
    def heartbeat(self, claim: Claim) -> str | None:
        """Return what ``beat`` published last, None before that."""

    @abstractmethod
    def is_followed(self, claim: Claim) -> bool:
        """Return True if ``claim`` is not the newest one: ``follower`` for who only watches."""

    def beat_ms(self, claim: Claim) -> int | None:
        """Return the storage's time (UTC ms) of the last heartbeat, before the first one that of
        the claim; None if it is unknown."""
        return None

    def prune(self, newest: Claim) -> None:  # noqa: B027 - an object has no old claims
        """Delete old claims. The caller holds the lock under which claims are created."""

    def watch(
        self,
        claim: Claim,
        beats: float = SILENT_BEATS,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        looks_per_beat: int = _LOOKS_PER_BEAT,
    ) -> Literal["beating", "silent", "followed"]:
        """Watch a heartbeat until it changes, at most for a number of intervals.

        Both a clock that jumps and a process that is paused have to look several times.
        """
        assert claim.beat_s is not None
        before = self.heartbeat(claim)
        since, looks = clock(), 0
        while looks < beats * looks_per_beat or clock() - since < beats * claim.beat_s:
            sleep(claim.beat_s / looks_per_beat)
            looks += 1
            if self.is_followed(claim):
                return "followed"
            if self.heartbeat(claim) != before:
                return "beating"
        return "silent"

    def take(
        self,
        content: Mapping[str, Any],
        may_follow: Callable[[Claim], bool],
        lock: Callable[[], AbstractContextManager[Any]],
    ) -> Claim:
        """Create the claim after the newest one, once it may be followed.

        ``may_follow`` returns False to look again, and raises if its owner lives. Claims are
        created under the lock of the table's commits, so that none follows between a commit's
        check and its snapshot.
        """
        while True:
            newest = self.newest()
            if newest is not None and not may_follow(newest):
                continue
            with lock():
                claim = self.follow(newest, content)
                if claim is not None:
                    self.prune(claim)
                    return claim


def claims_of(folder: SidePath) -> Claims:
    """Return the claims of a lease, which are stored in a folder."""
    if isinstance(folder, ObjectPath):
        return ObjectClaims(folder / "claim")
    return FolderClaims(ExclusiveFolder(folder))


class FolderClaims(Claims):
    """Files ``claim-N`` and ``beat-N``.

    A number that was used stays used: claims are deleted in ascending order, after the file
    ``oldest`` says so, and a claim below ``oldest`` does not count.
    """

    def __init__(self, files: ExclusiveFolder) -> None:
        self.files = files

    def newest(self) -> Claim | None:
        for _ in range(_ATTEMPTS):
            number, newest = self._first() - 1, None
            while (claim := self.read(number + 1)) is not None:
                number, newest = number + 1, claim
            if newest is not None or self._oldest() is None:
                return newest
        raise TableError(
            f"a lease has no claim from number {self._first()} on: its folder was changed by hand, "
            "or restored in part; restore it completely, or delete it"
        )

    def read(self, number: int) -> Claim | None:
        """Return the claim of a number, with what is wrong with it; None if it does not exist."""
        text = self.files.read(_claim_file(number))
        return (
            None if text is None else _parsed(text, self.files.where(_claim_file(number)), number)
        )

    def follow(self, previous: Claim | None, content: Mapping[str, Any]) -> Claim | None:
        number = self._first() if previous is None else previous.number + 1
        claim, text = _next(number, content)
        if not self.files.create(_claim_file(number), text):
            return None
        if number < (self._oldest() or 0):  # it was used and deleted, before this process looked
            self.files.delete(_claim_file(number))
            return None
        return claim

    def prune(self, newest: Claim) -> None:
        first = self._first()
        keep = newest.number - _KEPT + 1
        if keep > first:
            self.files.replace("oldest", str(keep))
            for number in range(first, keep):
                self.files.delete(_claim_file(number))
                self.files.delete(_beat_file(number))

    def follower(self, claim: Claim) -> Claim | None:
        if self.is_followed(claim):
            return self.newest()
        # in this order: a claim that followed and was deleted was deleted after this one
        stored = self.read(claim.number)
        if stored is None or stored.nonce != claim.nonce:
            newest = self.newest()
            if newest is None or newest.number <= claim.number:
                raise LeaseLostError(f"claim {claim.number} does not exist any more")
            return newest
        return None

    def is_followed(self, claim: Claim) -> bool:
        return self.files.read(_claim_file(claim.number + 1)) is not None

    def beat(self, claim: Claim, count: int) -> None:
        self.files.replace(_beat_file(claim.number), f"{claim.nonce} {count}")

    def heartbeat(self, claim: Claim) -> str | None:
        return self.files.read(_beat_file(claim.number))

    def beat_ms(self, claim: Claim) -> int | None:
        beat_ms = self.files.changed_ms(_beat_file(claim.number))
        return self.files.changed_ms(_claim_file(claim.number)) if beat_ms is None else beat_ms

    def _oldest(self) -> int | None:
        text = self.files.read("oldest")
        if text is None:
            return None
        if not (text.isascii() and text.strip().isdigit() and len(text) <= 20):
            raise DamagedFileError(
                f"{self.files.where('oldest')} is damaged ({text[:40]!r}, expected a number); "
                "restore it from a copy, or write the smallest number of the files claim-* next to "
                "it into it"
            )
        return int(text)

    def _first(self) -> int:
        """Return the number from which on claims exist, or will."""
        return self._oldest() or 1


class ObjectClaims(Claims):
    """One object, which contains the newest claim, and one with its heartbeat."""

    def __init__(self, path: ObjectPath) -> None:
        self.path = path

    def newest(self) -> Claim | None:
        stored = self.path.store.get(self.path.key)
        return (
            None if stored is None else _parsed(stored.text, str(self.path), None, stored.version)
        )

    def follow(self, previous: Claim | None, content: Mapping[str, Any]) -> Claim | None:
        if previous is None:
            claim, text = _next(1, content)
            return claim if self.path.store.create(self.path.key, text) else None
        claim, text = _next(previous.number + 1, content)
        version = previous.version
        if version is None:  # this process created it
            stored = self.newest()
            if stored is None or stored.nonce != previous.nonce:
                return None
            version = stored.version
        return claim if self.path.store.replace_if(self.path.key, text, version) else None

    def follower(self, claim: Claim) -> Claim | None:
        newest = self.newest()
        if newest is not None and newest.nonce == claim.nonce:
            return None
        if newest is None or newest.number <= claim.number:
            raise LeaseLostError(f"claim {claim.number} does not exist any more")
        return newest

    def is_followed(self, claim: Claim) -> bool:
        newest = self.newest()
        return newest is None or (newest.number, newest.content) != (claim.number, claim.content)

    def beat(self, claim: Claim, count: int) -> None:
        self.path.store.put(self._beat_key, f"{claim.nonce} {count}")

    def heartbeat(self, claim: Claim) -> str | None:
        stored = self.path.store.get(self._beat_key)
        return None if stored is None else stored.text

    @property
    def _beat_key(self) -> str:
        return f"{self.path.key}.beat"


def _next(number: int, content: Mapping[str, Any]) -> tuple[Claim, str]:
    """Return a new claim, with a nonce unless ``content`` has one, and the text of its file."""
    claim = Claim(number, {"nonce": secrets.token_hex(8), **content})
    stated = {**claim.content, "number": number}
    # a flipped bit in a process id would make its owner a dead one
    return claim, _text({**stated, _CRC: _crc(stated)})


def _parsed(text: str, where: str, number: int | None, version: Any = None) -> Claim:
    """Return the claim in a file; ``number`` is that of the file's name."""
    shown = number or 0
    try:
        content = mapping(json.loads(text), "nonce")
        if number is not None and not {"number", _CRC} & content.keys():
            # of an earlier release, which had neither, and released by a claim without an owner
            released = content.keys() <= {"table", "token", "nonce"}
            return Claim(number, {**content, **RELEASED} if released else content, None, version)
        mapping(content, "number", _CRC)
        stated = {key: value for key, value in content.items() if key != _CRC}
        if number is None and type(stated["number"]) is int:
            shown = stated["number"]
        if content[_CRC] != _crc(stated):
            raise ValueError("it does not match its CRC32")
        if stated.pop("number") != shown:
            raise ValueError("its number is another one")
    except (ValueError, RecursionError) as error:
        return Claim(shown, {}, f"{where}: {str(error)[:200]}", version)
    return Claim(shown, stated, None, version)


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, indent=1)


def _crc(content: Mapping[str, Any]) -> int:
    return zlib.crc32(_text(content).encode())


def _claim_file(number: int) -> str:
    return f"claim-{number}"


def _beat_file(number: int) -> str:
    return f"beat-{number}"
