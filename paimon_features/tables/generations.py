"""Generations: the durable records of a feature view's tile tables.

They are stored outside the table's snapshots, because they must survive rollback and expiry: the
job that wrote the table, its last commit, its checkpoints, and the number of rollbacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from paimon_features.errors import GenerationError
from paimon_features.tables.catalog import Lake
from paimon_features.tables.files import locked, read_json, write_json

State = Literal["building", "active", "retired"]


@dataclass(frozen=True)
class GenerationRecord:
    """One generation of a view.

    ``fingerprint`` is the hash of everything its partials depend on. ``incarnation`` counts the
    rollbacks of its table, because a rollback reuses snapshot ids. ``job`` describes the job that
    writes it. ``resume_path`` is the checkpoint or savepoint to resume from,
    ``last_committed_identifier`` the checkpoint of the last commit. ``handover_snapshot`` is the
    events snapshot that the backfill read, after which the stream starts; ``backfilled`` is true
    once the backfill is committed, as ``backfill_snapshot`` (None if no event was added).
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
    backfilled: bool = False
    backfill_snapshot: int | None = None
    state: State = "building"

    @property
    def skipped_table(self) -> str:
        """The table that counts the events skipped by this generation."""
        return f"skipped_{self.view}_g{self.generation}"

    @property
    def consumer(self) -> str:
        """The consumer name by which the tile job retains snapshots of events."""
        return f"tiles-{self.view}-g{self.generation}"


def load(lake: Lake, view: str) -> list[GenerationRecord]:
    """All generations of a view, oldest first."""
    raw = read_json(_path(lake, view)) or {"generations": []}
    return [GenerationRecord(**fields) for fields in raw["generations"]]


def get(lake: Lake, view: str, generation: int) -> GenerationRecord:
    """One generation.

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


def update(lake: Lake, view: str, generation: int, **changes: Any) -> GenerationRecord:
    """Update fields of the stored generation atomically."""
    result: list[GenerationRecord] = []

    def change(records: list[GenerationRecord]) -> list[GenerationRecord]:
        current = _one(records, view, generation)
        result.append(replace(current, **changes))
        return [result[0] if r is current else r for r in records]

    _change(lake, view, change)
    return result[0]


def active(lake: Lake, view: str) -> GenerationRecord | None:
    """The active generation, None before the first activation."""
    return next((r for r in load(lake, view) if r.state == "active"), None)


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
    """Remove all generation records of a view, whose tables must be dropped before."""
    _path(lake, view).unlink(missing_ok=True)


def views(lake: Lake) -> list[str]:
    """The views that have generations, sorted."""
    prefix = f"{lake.database}."
    files = (lake.side_folder / "generations").glob(f"{prefix}*.json")
    return sorted(path.name.removeprefix(prefix).removesuffix(".json") for path in files)


def _one(records: list[GenerationRecord], view: str, generation: int) -> GenerationRecord:
    for record in records:
        if record.generation == generation:
            return record
    known = ", ".join(str(r.generation) for r in records) or "none"
    raise GenerationError(
        f"feature view {view!r} has no generation {generation}; it has: {known}. "
        "`paimon-features apply` creates one"
    )


def _path(lake: Lake, view: str) -> Path:
    return lake.side_folder / "generations" / f"{lake.database}.{view}.json"


def _change(lake: Lake, view: str, change: Any) -> None:
    path = _path(lake, view)
    with locked(path.with_suffix(".lock"), f"the generations of feature view {view!r}"):
        records: list[GenerationRecord] = change(load(lake, view))
        records.sort(key=lambda record: record.generation)
        write_json(path, {"view": view, "generations": [asdict(r) for r in records]})
