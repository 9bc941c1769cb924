"""The table ``models_<name>``: all versions of a model, their files and their states.

A version is one commit: its files, its manifest and the states with it as a candidate. A change of
the states is one commit, too: of all versions at once, so that a promotion is never seen halfway,
and with the note that says why, if there is one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from paimon_features.core.documents.unambiguous_json import parse_unambiguous_json
from paimon_features.core.errors import (
    DamagedFileError,
    ModelError,
    OwnershipError,
    UnknownNameError,
)
from paimon_features.core.types.schema import check_name
from paimon_features.lake.catalog import Lake
from paimon_features.lake.ownership.lease import acquire
from paimon_features.lake.ownership.locks import locked
from paimon_features.lake.reading.table_reader import read_arrow
from paimon_features.lake.specs import FILES_OF, MODELS_PREFIX, models_spec
from paimon_features.lake.writing.table_writer import append_arrow
from paimon_features.models import (
    MAX_FILE_BYTES,
    NETWORK,
    ModelFile,
    ModelManifest,
    ModelStates,
    VersionNote,
    check_network,
    sha256_of,
)
from paimon_features.models.manifest import verified

COMMIT_USER = "models"
"""The commit user of versions and states; the commit identifier is the serial of the states."""
_PART_BYTES = 8 << 20
_RESTORE = "restore the table from a backup"


def register_version(
    lake: Lake, manifest: ModelManifest, files: Mapping[str, bytes], now_ms: int
) -> ModelManifest:
    """Save a version as the next one of its model, a candidate, in one commit.

    ``files`` are the contents of the manifest's files, whose hashes and sizes are set here, as are
    the version and the time. Saving what the newest version is returns that one: a repeat after a
    crash creates no second one.

    Raises
    ------
    ModelError
        For a file that is too large, a network that must not be loaded (see ``check_network``), or
        one that does not have the inputs and outputs of the signature.
    OwnershipError
        If another process is changing the model.
    """
    for file, data in files.items():
        if len(data) > MAX_FILE_BYTES:
            raise ModelError(
                f"model {manifest.name!r}: the file {file!r} has {len(data):,} bytes; expected at "
                f"most {MAX_FILE_BYTES:,}"
            )
    if NETWORK in files:
        check_network(files[NETWORK], manifest.signature)
    hashed = {name: ModelFile(sha256_of(data), len(data)) for name, data in files.items()}
    manifest = replace(manifest, files=hashed, created_at_ms=now_ms)
    saved: ModelManifest | None = None

    def change(states: ModelStates) -> tuple[ModelStates, list[dict[str, Any]]]:
        nonlocal saved
        numbers = [version.version for version in states.versions]
        if numbers:
            newest = load_manifest(lake, manifest.name, numbers[-1])
            if _same(newest, manifest):
                saved = newest
                return states, []
        saved = replace(manifest, version=max(numbers, default=0) + 1)
        document = saved.to_bytes()
        digest = sha256_of(document)
        rows = [
            {FILES_OF: saved.version, "kind": "file", "name": hashed[name].sha256, "part": part,
             "data": data[start : start + _PART_BYTES]}
            for name, data in files.items()
            for part, start in enumerate(range(0, len(data), _PART_BYTES))
        ]  # fmt: skip
        rows.append(
            {FILES_OF: 0, "kind": "manifest", "name": str(saved.version),
             "document": document.decode(), "digest": digest}
        )  # fmt: skip
        return states.with_version(saved.version, digest, now_ms), rows

    _change(lake, manifest.name, now_ms, change, create=True)
    assert saved is not None
    return saved


def change_states(
    lake: Lake,
    name: str,
    change: Callable[[ModelStates], ModelStates],
    *,
    now_ms: int,
    expected_serial: int | None = None,
    note: VersionNote | None = None,
) -> ModelStates:
    """Replace the states of a model in one commit, with a note; returns the new ones.

    ``change`` is called with the current states while nobody else can change them. A change that
    changes nothing is a note alone.

    Raises
    ------
    UnknownNameError
        If there is no such model.
    OwnershipError
        If another process is changing it, or its states have another serial than
        ``expected_serial``, because another one has changed them.
    """
    states_of(lake, name)  # UnknownNameError

    def checked(states: ModelStates) -> tuple[ModelStates, list[dict[str, Any]]]:
        if expected_serial is not None and states.serial != expected_serial:
            raise OwnershipError(
                f"model {name!r}: its states were changed meanwhile (change {states.serial}, "
                f"expected {expected_serial}); look at them again, then repeat the command"
            )
        return change(states), [] if note is None else [_note_row(note)]

    return _change(lake, name, now_ms, checked, create=False)


def notes_of(lake: Lake, name: str) -> list[VersionNote]:
    """Return the notes about all versions of a model, in the order in which they were made.

    Raises
    ------
    UnknownNameError
        If there is no such model.
    DamagedFileError
        If one is not what was written.
    """
    states_of(lake, name)  # UnknownNameError
    rows = [row for row in _documents(lake, name) if row["kind"] == "note"]
    notes = []
    for row in sorted(rows, key=lambda row: row["serial"]):
        where = f"table {MODELS_PREFIX + name!r}, change {row['serial']}: the note"
        if sha256_of(row["document"].encode()) != row["digest"]:
            raise DamagedFileError(f"{where} does not match its digest: {_RESTORE}")
        try:
            notes.append(VersionNote.from_text(row["document"]))
        except ModelError as error:
            raise DamagedFileError(f"{where}: {error}: {_RESTORE}") from error
    return notes


def model_names(lake: Lake) -> list[str]:
    """Return the names of all models, sorted."""
    tables = [table for table in lake.list() if table.startswith(MODELS_PREFIX)]
    return sorted(table.removeprefix(MODELS_PREFIX) for table in tables)


def states_of(lake: Lake, name: str) -> ModelStates:
    """Return the states of all versions of a model.

    Raises
    ------
    UnknownNameError
        If there is no such model.
    DamagedFileError
        If they are not what was written.
    """
    states = _newest_states(lake, name)
    if states is None:
        raise UnknownNameError.of("model", name, model_names(lake))
    return states


def load_manifest(lake: Lake, name: str, version: int) -> ModelManifest:
    """Return the manifest of a version.

    Raises as ``states_of``, UnknownNameError also for a version.
    """
    return load_manifests(lake, name, [version])[version]


def load_manifests(
    lake: Lake, name: str, versions: list[int] | None = None
) -> dict[int, ModelManifest]:
    """Return the manifests of some versions, all by default; raises as ``load_manifest``."""
    states = states_of(lake, name)
    documents = {
        int(row["name"]): row["document"].encode()
        for row in _documents(lake, name)
        if row["kind"] == "manifest" and row["name"].isdecimal()
    }
    manifests = {}
    for version in [entry.version for entry in states.versions] if versions is None else versions:
        state = states.of(version)
        data = documents.get(version)
        where = f"table {MODELS_PREFIX + name!r}, version {version}: the manifest"
        if data is None or sha256_of(data) != state.manifest:
            problem = "is missing" if data is None else "does not match its SHA-256"
            raise DamagedFileError(f"{where} {problem}: {_RESTORE}")
        manifests[version] = ModelManifest.from_bytes(data, where)
    return manifests


def load_file(lake: Lake, manifest: ModelManifest, file: str) -> bytes:
    """Return the content of a file of a version, verified.

    Raises
    ------
    UnknownNameError
        If the version has no such file.
    ModelError
        If it is missing or damaged.
    """
    if file not in manifest.files:
        raise UnknownNameError.of("file", file, manifest.files, f"model {manifest}")
    expected = manifest.files[file]
    rows = read_arrow(
        lake,
        MODELS_PREFIX + manifest.name,
        ["name", "part", "data"],
        partitions={FILES_OF: (manifest.version, manifest.version + 1)},
    ).to_pylist()
    parts = {row["part"]: row["data"] for row in rows if row["name"] == expected.sha256}
    data = b"".join(parts[number] for number in sorted(parts)) if parts else None
    return verified(data, expected, f"model {manifest}: the file {file!r}", _RESTORE)


def _change(
    lake: Lake,
    name: str,
    now_ms: int,
    change: Callable[[ModelStates], tuple[ModelStates, list[dict[str, Any]]]],
    create: bool,
) -> ModelStates:
    check_name("model", name)
    table = MODELS_PREFIX + name
    lock = lake.side_folder / "models" / f"{lake.database}.{name}.lock"
    # the lease excludes other owners, the lock other threads of this process
    with locked(lock, f"changing model {name!r}"), acquire(lake, table, purpose="change a model"):
        if create:
            lake.create(models_spec(table))
        before = _newest_states(lake, name) or ModelStates.new(name, now_ms)
        after, rows = change(before)
        if after == before:
            if not rows:
                return before
            # a note alone: the states stay, and have a new number
            after = replace(before, serial=before.serial + 1)
        text = json.dumps(after.to_document(), sort_keys=True)
        rows.append(
            {FILES_OF: 0, "kind": "states", "name": name, "document": text,
             "digest": sha256_of(text.encode())}
        )  # fmt: skip
        schema = pa.schema(
            [pa.field(column, kind.arrow) for column, kind in models_spec(table).columns.items()]
        )
        append_arrow(
            lake,
            table,
            pa.Table.from_pylist([{**row, "serial": after.serial} for row in rows], schema),
            commit_user=COMMIT_USER,
            commit_identifier=after.serial,
        )
        written = _newest_states(lake, name)
        if written != after:
            raise DamagedFileError(
                f"table {table!r}: change {after.serial} differs from what was written; another "
                "process commits to this table without its lease"
            )
        return after


def _note_row(note: VersionNote) -> dict[str, Any]:
    text = note.to_text()
    return {FILES_OF: 0, "kind": "note", "name": str(note.version), "document": text,
            "digest": sha256_of(text.encode())}  # fmt: skip


def _newest_states(lake: Lake, name: str) -> ModelStates | None:
    newest = max(
        (row for row in _documents(lake, name) if row["kind"] == "states"),
        key=lambda row: row["serial"],
        default=None,
    )
    if newest is None:
        return None
    where = f"table {MODELS_PREFIX + name!r}, change {newest['serial']}"
    if sha256_of(newest["document"].encode()) != newest["digest"]:
        raise DamagedFileError(f"{where}: the states do not match their digest: {_RESTORE}")
    try:
        return ModelStates.from_document(parse_unambiguous_json(newest["document"]))
    except (ModelError, ValueError) as error:
        raise DamagedFileError(f"{where}: {error}: {_RESTORE}") from error


def _documents(lake: Lake, name: str) -> list[dict[str, Any]]:
    table = MODELS_PREFIX + name
    if not lake.exists(table):
        return []
    columns = ["serial", "kind", "name", "document", "digest"]
    rows: list[dict[str, Any]] = read_arrow(
        lake, table, columns, partitions={FILES_OF: (0, 1)}
    ).to_pylist()
    return rows


def _same(one: ModelManifest, other: ModelManifest) -> bool:
    """Return True if two manifests differ in nothing but version and times."""

    def comparable(manifest: ModelManifest) -> ModelManifest:
        training = manifest.training
        if training is not None:
            training = replace(training, started_at_ms=0, finished_at_ms=0)
        return replace(manifest, version=1, created_at_ms=0, training=training)

    return comparable(one) == comparable(other)
