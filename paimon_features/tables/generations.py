"""Generations: the durable record of each tile table of a feature view.

It lives outside the table's snapshots, because it has to say what a rolled-back or expired
snapshot no longer can: which job wrote the table, how far it had committed, where its
checkpoints are, and how often the table was rolled back.
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

    ``fingerprint`` is the hash of what its partials depend on. ``incarnation`` counts the
    rollbacks of its table, because a rollback gives snapshot numbers out again. ``job`` is what
    runs on it, as the job layer describes it. ``resume_path`` is the checkpoint or savepoint to
    go on from, ``last_committed_identifier`` the checkpoint of the last commit.
    ``handover_snapshot`` is the events snapshot that the backfill read, the stream starts behind
    it; ``backfilled`` says that the backfill has been committed, ``backfill_snapshot`` as which
    snapshot (None where no event entered a tile).
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
        """The table that counts the events which this generation skipped."""
        return f"skipped_{self.view}_g{self.generation}"

    @property
    def consumer(self) -> str:
        """The name under which the tile job holds back the expiry of events."""
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
        If the view has no such generation.
    """
    return _one(load(lake, view), view, generation)


def save(lake: Lake, record: GenerationRecord) -> None:
    """Write a generation, new or changed; the others of its view stay as they are.

    Raises
    ------
    GenerationError
        If it would be a second active one: ``activate`` switches.
    """

    def change(records: list[GenerationRecord]) -> list[GenerationRecord]:
        others = [r for r in records if r.generation != record.generation]
        if record.state == "active" and any(r.state == "active" for r in others):
            raise GenerationError(
                f"feature view {record.view!r}: generation {record.generation} cannot be saved "
                "as active beside the active one; switch with activate"
            )
        return [*others, record]

    _change(lake, record.view, change)


def update(lake: Lake, view: str, generation: int, **changes: Any) -> GenerationRecord:
    """Change fields of a generation in one step, against what is written now."""
    result: list[GenerationRecord] = []

    def change(records: list[GenerationRecord]) -> list[GenerationRecord]:
        current = _one(records, view, generation)
        result.append(replace(current, **changes))
        return [result[0] if r is current else r for r in records]

    _change(lake, view, change)
    return result[0]


def active(lake: Lake, view: str) -> GenerationRecord | None:
    """The generation that is read, None before the first one is activated."""
    return next((r for r in load(lake, view) if r.state == "active"), None)


def activate(lake: Lake, view: str, generation: int) -> GenerationRecord:
    """Make a generation the one that is read and retire the one before, in one atomic write.

    Raises
    ------
    GenerationError
        If the view has no such generation.
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
    """Forget a generation, for example when its table is dropped.

    Raises
    ------
    GenerationError
        If there is none, or it is the active one.
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
    """Forget all generations of a view; their tables have to be gone."""
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
        "`paimon-features apply` makes one"
    )


def _path(lake: Lake, view: str) -> Path:
    return lake.side_folder / "generations" / f"{lake.database}.{view}.json"


def _change(lake: Lake, view: str, change: Any) -> None:
    path = _path(lake, view)
    with locked(path.with_suffix(".lock"), f"the generations of feature view {view!r}"):
        records: list[GenerationRecord] = change(load(lake, view))
        records.sort(key=lambda record: record.generation)
        write_json(path, {"view": view, "generations": [asdict(r) for r in records]})
