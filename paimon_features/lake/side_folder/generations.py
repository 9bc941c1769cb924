"""Generations: the durable records of a feature view's tile tables.

They are stored outside the table's snapshots, because they must survive rollback and expiry: the
job that wrote the table, its last commit, its checkpoints, and the number of rollbacks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypedDict, Unpack

from paimon_features.core.documents.typed_json import mapping, typed
from paimon_features.core.errors import DamagedFileError, GenerationError, SnapshotExpiredError
from paimon_features.core.times.clock import now_ms
from paimon_features.lake.catalog import Lake
from paimon_features.lake.marked_records import Record, record_names
from paimon_features.lake.ownership.locks import locked
from paimon_features.lake.storage.json_files import read_json, write_json
from paimon_features.lake.storage.object_path import SidePath

_KIND = "generations"
_TILE_TABLE = re.compile(r".+_g\d+")

State = Literal["building", "active", "retired"]


@dataclass(frozen=True)
class GenerationRecord:
    """One generation of a view.

    ``fingerprint`` is the hash of everything its partials depend on. ``incarnation`` counts the
    rollbacks of its table, because a rollback reuses snapshot ids. ``job`` describes the job that
    writes it. ``resume_path`` is the checkpoint or savepoint to resume from,
    ``last_committed_identifier`` the checkpoint of the last commit. ``handover_snapshot`` is the
    events snapshot that the backfill read, after which the stream starts, ``events_history`` the
    mark of that table (``history.mark``); ``backfilled`` is true
    once the backfill is committed, as ``backfill_snapshot`` (None if no event was added).
    ``first_scan`` is the events snapshot whose complete content a stream without a backfill reads
    first: 0 for an empty table, None where no such stream was started.
    ``contents`` are ``CompiledView.tile_contents`` of the definition it was created for.
    """

    view: str
    generation: int
    table: str
    fingerprint: str
    buckets: int
    incarnation: int = 0
    job: Mapping[str, Any] | None = None
    commit_user: str | None = None
    last_committed_identifier: int | None = None
    checkpoint_folder: str | None = None
    resume_path: str | None = None
    handover_snapshot: int | None = None
    events_history: str | None = None
    backfilled: bool = False
    backfill_snapshot: int | None = None
    first_scan: int | None = None
    state: State = "building"
    contents: Mapping[str, str] = field(default_factory=dict)

    @property
    def skipped_table(self) -> str:
        """The table that counts the events skipped by this generation."""
        return f"skipped_{self.view}_g{self.generation}"

    @property
    def consumer(self) -> str:
        """The consumer name by which the tile job retains snapshots of events."""
        return f"tiles-{self.view}-g{self.generation}"

    @property
    def read_consumer(self) -> str:
        """The consumer that retains the events snapshot that reads of an idle generation need."""
        return f"read-{self.view}-g{self.generation}"

    @property
    def is_streamed(self) -> bool:
        """Whether its tiles are those of a stream, or continue at the position of one."""
        return self.job is not None and bool(self.job.get("branch"))


class GenerationChanges(TypedDict, total=False):
    """The fields of a ``GenerationRecord`` that ``update`` may replace; others stay as they are.

    A missing key differs from None, which clears a field: keywords with defaults could not say so.
    """

    incarnation: int
    job: Mapping[str, Any] | None
    commit_user: str | None
    last_committed_identifier: int | None
    checkpoint_folder: str | None
    resume_path: str | None
    handover_snapshot: int | None
    events_history: str | None
    backfilled: bool
    backfill_snapshot: int | None
    first_scan: int | None


def load(lake: Lake, view: str) -> list[GenerationRecord]:
    """Return all generations of a view, oldest first."""
    with _checking(lake, view):
        return [typed(GenerationRecord, fields) for fields in _read(lake, view)["generations"]]


def get(lake: Lake, view: str, generation: int) -> GenerationRecord:
    """Return one generation.

    Raises
    ------
    GenerationError
        If the generation does not exist.
    """
    return _one(load(lake, view), view, generation)


def save(lake: Lake, record: GenerationRecord) -> None:
    """Write a new or changed generation; the view's other generations are unchanged.

    Raises
    ------
    GenerationError
        If it would be a second active one; use ``activate`` to switch.
    """

    def change(records: list[GenerationRecord]) -> list[GenerationRecord]:
        others = [r for r in records if r.generation != record.generation]
        if record.state == "active" and any(r.state == "active" for r in others):
            raise GenerationError(
                f"feature view {record.view!r}: generation {record.generation} cannot be saved "
                "as active next to the active one; switch with activate"
            )
        return [*others, record]

    _change(lake, record.view, change)


def update(
    lake: Lake, view: str, generation: int, **changes: Unpack[GenerationChanges]
) -> GenerationRecord:
    """Update fields of the stored generation atomically."""
    result: list[GenerationRecord] = []

    def change(records: list[GenerationRecord]) -> list[GenerationRecord]:
        current = _one(records, view, generation)
        result.append(replace(current, **changes))
        return [result[0] if r is current else r for r in records]

    _change(lake, view, change)
    return result[0]


def active(lake: Lake, view: str) -> GenerationRecord | None:
    """Return the active generation, None before the first activation."""
    return next((r for r in load(lake, view) if r.state == "active"), None)


def active_at(lake: Lake, view: str, time_ms: int) -> GenerationRecord | None:
    """Return the generation that was active at a time (UTC ms, inclusive).

    Before the first activation it is the first one that was activated later, which had nothing to
    read then; None if the view has no generation.

    Raises
    ------
    SnapshotExpiredError
        If that generation was dropped since.
    """
    switches = _read(lake, view)["activations"]
    if not switches:
        return active(lake, view)
    past = [switch for switch in switches if switch[0] <= time_ms] or switches[:1]
    number = past[-1][1]
    record = next((r for r in load(lake, view) if r.generation == number), None)
    if record is None:
        later = next((f" before {at} ms" for at, n in switches[len(past) :] if n != number), "")
        raise SnapshotExpiredError(
            f"feature view {view!r}: at {time_ms} ms its generation {number} was read, which was "
            f"the active one{later} and has been dropped since. Use a later time"
        )
    return record


def activate(lake: Lake, view: str, generation: int) -> GenerationRecord:
    """Activate a generation and retire the previous one, in one atomic write.

    Raises
    ------
    GenerationError
        If the generation does not exist.
    """

    def change(records: list[GenerationRecord]) -> list[GenerationRecord]:
        chosen = _one(records, view, generation)
        return [
            replace(r, state="active")
            if r is chosen
            else (replace(r, state="retired") if r.state == "active" else r)
            for r in records
        ]

    _change(lake, view, change)
    return get(lake, view, generation)


def remove(lake: Lake, view: str, generation: int) -> None:
    """Remove the record of a generation, for example after its table is dropped.

    Raises
    ------
    GenerationError
        If it does not exist, or is the active one.
    """

    def change(records: list[GenerationRecord]) -> list[GenerationRecord]:
        chosen = _one(records, view, generation)
        if chosen.state == "active":
            raise GenerationError(
                f"feature view {view!r}: generation {generation} is the active one; activate "
                "another before this one is removed"
            )
        return [r for r in records if r is not chosen]

    _change(lake, view, change)


def forget(lake: Lake, view: str) -> None:
    """Remove all generation records of a view, whose tables must be dropped before.

    The activation history is kept, because numbering restarts when the view is applied again.
    """
    if _path(lake, view).exists():
        _change(lake, view, lambda _: [])


def views(lake: Lake) -> list[str]:
    """Return the views that have generations, sorted; also those whose records were lost."""
    prefix = f"{lake.database}."
    files = (lake.side_folder / "generations").glob(f"{prefix}*.json")
    names = {
        path.name.removeprefix(prefix).removesuffix(".json")
        for path in files
        if _has_generations(path)
    }
    return sorted(names.union(*(record_names(lake, _KIND, t) for t in _tile_tables(lake))))


def _has_generations(path: SidePath) -> bool:
    content = read_json(path)
    # a damaged record is a view's, too: reading it says what is wrong
    return not isinstance(content, dict) or bool(content.get("generations", True))


def _one(records: list[GenerationRecord], view: str, generation: int) -> GenerationRecord:
    for record in records:
        if record.generation == generation:
            return record
    numbers = ", ".join(str(r.generation) for r in records) or "none"
    raise GenerationError(
        f"unknown generation {generation} of feature view {view!r}; available: {numbers}. "
        "`paimon-features apply` creates one"
    )


def _path(lake: Lake, view: str) -> SidePath:
    return lake.side_folder / _KIND / f"{lake.database}.{view}.json"


def _read(lake: Lake, view: str) -> dict[str, Any]:
    """Return the file: ``generations``, and ``activations`` as (time in UTC ms, generation)."""
    raw: dict[str, Any] | None = read_json(_path(lake, view))
    if raw is None:
        for record in _marked(lake, view):
            raise record.error()
        raw = {"generations": []}
    with _checking(lake, view):
        mapping(raw, "generations")
        records = [typed(GenerationRecord, fields) for fields in _list(raw["generations"])]
        for change in _list(raw.get("activations", [])):
            if len(pair := _list(change)) != 2 or {*map(type, pair)} != {int}:
                raise ValueError(f"activation {str(change)[:80]}, expected [time, generation]")
    for table in {record.table for record in records}:
        _record(lake, view, table).require()
    # of a file of an earlier release nothing else is known than what is active
    activations = [[0, r.generation] for r in records if r.state == "active"]
    return {"activations": activations, **raw}


@contextmanager
def _checking(lake: Lake, view: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise DamagedFileError(
            f"{_path(lake, view)} is damaged, or was written by a newer version ({error}). It "
            "records which generation is active, its job and its rollbacks: restore it from the "
            "same backup as the tables"
        ) from None


def _list(document: Any) -> list[Any]:
    if not isinstance(document, list):
        raise ValueError(f"{str(document)[:80]!r}, expected a list")
    return document


def _marked(lake: Lake, view: str) -> Iterator[Record]:
    """Yield the view's record, once for each existing tile table that it was written for."""
    for table in _tile_tables(lake):
        record = _record(lake, view, table)
        if record.is_marked():
            yield record


def _tile_tables(lake: Lake) -> list[str]:
    return [name for name in lake.list() if _TILE_TABLE.fullmatch(name)]


def _record(lake: Lake, view: str, table: str) -> Record:
    return Record(lake, _KIND, f"{lake.database}.{view}.json", view, table)


_Change = Callable[[list[GenerationRecord]], list[GenerationRecord]]


def _change(lake: Lake, view: str, change: _Change) -> None:
    path = _path(lake, view)
    with locked(path.with_suffix(".lock"), f"the generations of feature view {view!r}") as check:
        activations = _read(lake, view)["activations"]
        records = sorted(change(load(lake, view)), key=lambda record: record.generation)
        chosen = next((r.generation for r in records if r.state == "active"), None)
        if chosen is not None and (not activations or activations[-1][1] != chosen):
            activations = [*activations, [now_ms(), chosen]]
        documents = [asdict(r) for r in records]
        check()
        write_json(path, {"view": view, "generations": documents, "activations": activations})
        for record in records:
            _record(lake, view, record.table).mark()
