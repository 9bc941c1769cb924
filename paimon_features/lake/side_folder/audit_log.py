"""The audit log: one record per change of a project, in the side folder, never changed again::

    <warehouse>/_paimon_features/audit/features.1323434999000.5b1c22d09a7e.json

A record is written after its change, or after the change has failed. The name has the time, so that
a range is read without the rest.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from paimon_features._version import __version__
from paimon_features.core.documents.redaction import redact
from paimon_features.core.documents.typed_json import mapping, typed
from paimon_features.core.errors import DamagedFileError
from paimon_features.core.process.identity import Identity
from paimon_features.lake.catalog import Lake
from paimon_features.lake.storage.json_files import read_json, write_json

_KIND = "audit"
KINDS = ("apply", "switch", "drop", "forget", "model", "take_over")
DAMAGED = "damaged"
MAX_DETAILS = 1_000
"""Changes that a record lists; of more it has the number."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change: ``details`` depend on the kind, ``error`` is None where it succeeded."""

    time_ms: int
    kind: str
    project: str
    name: str
    user: str
    host: str
    commit: str | None = None
    modified: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    release: str = __version__


def record(
    lake: Lake,
    kind: str,
    project: str,
    name: str,
    who: Identity,
    now_ms: int,
    details: Mapping[str, Any],
    error: BaseException | None = None,
) -> AuditEntry:
    """Write a record; returns it.

    Raises
    ------
    StorageWriteError
        If the side folder cannot be written to.
    """
    assert kind in KINDS
    failed = None if error is None else redact(f"{type(error).__name__}: {error}")[:1_000]
    entry = AuditEntry(
        now_ms, kind, project, name, who.user, who.host, who.commit, who.modified, details, failed
    )
    file = f"{lake.database}.{now_ms:013d}.{secrets.token_hex(6)}.json"
    write_json(lake.side_folder / _KIND / file, asdict(entry))
    return entry


def entries(lake: Lake, since_ms: int = 0) -> Iterator[AuditEntry]:
    """Yield the records since a time (inclusive) in the order of their times.

    One that is damaged is listed with what its name says: it hides no other.
    """
    folder = lake.side_folder / _KIND
    prefix = f"{lake.database}."
    dated_files = []
    for path in folder.glob("*.json") if folder.is_dir() else ():
        moment, _, _ = path.name.removeprefix(prefix).partition(".")
        if path.name.startswith(prefix) and moment.isdecimal() and int(moment) >= since_ms:
            dated_files.append((int(moment), path.name, path))
    for moment_ms, file, path in sorted(dated_files, key=lambda one: one[:2]):
        try:
            yield _entry(read_json(path))
        except (DamagedFileError, ValueError) as error:
            yield AuditEntry(moment_ms, DAMAGED, "", file, "", "", error=str(error))


def _entry(content: Any) -> AuditEntry:
    names = {field.name for field in fields(AuditEntry)}
    # a later release may say more
    return typed(AuditEntry, {k: v for k, v in mapping(content).items() if k in names})
