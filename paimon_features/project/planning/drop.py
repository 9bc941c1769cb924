"""Dropping what is no longer wanted: tables, records of the online store, registry entries.

``plan_drop`` says what would go; ``Drop.carry_out`` does it. What is still defined is not
dropped, because the next ``apply`` would make it again; a generation that is read is not, and
a table that a job writes is refused with the name of its owner.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from paimon_features.core.errors import DefinitionError, GenerationError, UnknownNameError
from paimon_features.definitions import Definitions
from paimon_features.definitions.derived import TABLE_PREFIX
from paimon_features.lake import Lake, latest_snapshot, table_options
from paimon_features.lake.metadata.consumers import delete_consumer
from paimon_features.lake.metadata.tags import delete_tag, training_tags
from paimon_features.lake.ownership.lease import acquire
from paimon_features.lake.side_folder import generations, registry
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.lake.specs import TRAINING_PREFIX
from paimon_features.lake.storage.file_path import CHECKPOINTS, FilePath, delete_folder
from paimon_features.online.store.keys import ViewKeys
from paimon_features.online.store.store import OnlineStore
from paimon_features.tiles.consumed import release_position

KINDS = (
    "feature_view", "table_view", "derived_view", "source", "service", "entity", "interaction",
    "transformed", "request_source", "training_set",
)  # fmt: skip
"""What can be dropped."""


@dataclass(frozen=True)
class Drop:
    """What a drop would delete: these tables, these generations, what is online of a view.

    ``keys`` are the registry entries that end. ``notes`` say what will no longer be possible.
    """

    kind: str
    name: str
    tables: tuple[str, ...] = ()
    records: tuple[GenerationRecord, ...] = ()
    online: bool = False
    registered: bool = False
    tags: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    def carry_out(
        self, lake: Lake, project: str, store: OnlineStore | None, job_state: FilePath, now_ms: int
    ) -> None:
        """Delete it. A drop that was cut off is finished by doing it again.

        Raises
        ------
        OwnershipError
            If a job or process owns one of the tables; nothing is deleted then.
        """
        with ExitStack() as leases:
            for table in self.tables:
                leases.enter_context(acquire(lake, table, purpose="drop it"))
            if store is not None and self.online:
                _empty_online(store, ViewKeys(project, self.name, store.key_prefix))
            for record in self.records:
                _let_go_of_events(lake, record)
                folder = job_state / CHECKPOINTS / record.view / f"g{record.generation}"
                delete_folder(folder)
            for source, tag in self.tags:
                delete_tag(lake, source, tag)
            for table in self.tables:
                lake.drop(table)
            if self.registered:
                generations.forget(lake, self.name)
                registry.record(lake, {(self.kind, self.name): None}, now_ms)
            else:
                for record in self.records:
                    generations.remove(lake, record.view, record.generation)


def plan_drop(
    lake: Lake, definitions: Definitions, kind: str, name: str, generation: int | None = None
) -> Drop:
    """Return what dropping would delete.

    ``kind`` is one of ``KINDS``. ``generation`` drops one generation of a feature view that is
    not the one that is read.

    Raises
    ------
    UnknownNameError
        If there is no such thing.
    DefinitionError
        If it is still defined, or something that exists depends on it.
    GenerationError
        For a generation that is read, or is not there.
    """
    if generation is not None:
        if kind != "feature_view":
            raise DefinitionError(f"a {kind.replace('_', ' ')} has no generations")
        return _drop_generation(lake, name, generation)
    if kind == "training_set":
        return _drop_training_set(lake, name)
    applied = registry.applied(lake)
    applied_names = [applied_name for of, applied_name in applied if of == kind]
    if name not in applied_names:
        raise UnknownNameError.of(f"applied {kind.replace('_', ' ')}", name, applied_names)
    if name in definitions.by_kind().get(kind, {}):
        raise DefinitionError(
            f"{kind.replace('_', ' ')} {name!r} is still defined, and 'apply' would make it again; "
            "remove it from the definitions first"
        )
    document = applied[kind, name].document or {}
    if kind == "derived_view":
        tables = _tables(lake, [TABLE_PREFIX + name])
        return Drop(kind, name, tables, registered=True)
    if kind == "feature_view":
        _check_not_derived_from(applied, name)
        records = tuple(generations.load(lake, name))
        tables = _tables(lake, [t for r in records for t in (r.table, r.skipped_table)])
        notes = _notes(lake, tables)
        return Drop(kind, name, tables, records, online=True, registered=True, notes=notes)
    if kind == "source":
        views = {
            key: version.document or {}
            for key, version in applied.items()
            if key[0] in ("feature_view", "table_view")
        }
        readers = [key for key, view in views.items() if view["source"] == name]
        if readers:
            names = ", ".join(reader for _, reader in readers)
            first = f"{readers[0][0].replace('_', '-')} {readers[0][1]}"
            raise DefinitionError(
                f"{names} is computed from source {name!r}; "
                f"drop that first: 'paimon-features drop {first}'"
            )
        tables = _tables(lake, [document["table"], f"rejected_{name}"])
        return Drop(kind, name, tables, registered=True, notes=_notes(lake, tables))
    return Drop(kind, name, registered=True)


def _check_not_derived_from(applied: Mapping[registry.Key, registry.Version], view: str) -> None:
    derived = [
        name
        for (kind, name), version in applied.items()
        if kind == "derived_view" and (version.document or {})["view"] == view
    ]
    if derived:
        raise DefinitionError(
            f"{', '.join(derived)} is computed from feature view {view!r}; "
            f"drop that first: 'paimon-features drop derived-view {derived[0]}'"
        )


def rows_of(lake: Lake, table: str) -> int:
    """Return how many rows a table's files hold, before merging."""
    newest = latest_snapshot(lake, table)
    return 0 if newest is None else newest.total_records


def _drop_generation(lake: Lake, view: str, generation: int) -> Drop:
    record = generations.get(lake, view, generation)
    if record.state == "active":
        raise GenerationError(
            f"feature view {view!r}: generation {generation} is the one that is read; "
            f"'paimon-features apply --generation {view}' to another one first"
        )
    tables = _tables(lake, [record.table, record.skipped_table])
    return Drop("feature_view", view, tables, (record,), notes=_notes(lake, tables))


def _drop_training_set(lake: Lake, name: str) -> Drop:
    table = TRAINING_PREFIX + name
    if not lake.exists(table):
        names = [
            t.removeprefix(TRAINING_PREFIX) for t in lake.list() if t.startswith(TRAINING_PREFIX)
        ]
        raise UnknownNameError.of("training set", name, names)
    tags = tuple(
        (source, tag)
        for source in dict.fromkeys(_sources(lake, table))
        for tag in training_tags(lake, source, table)
    )
    return Drop("training_set", name, (table,), tags=tags)


def _tables(lake: Lake, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in dict.fromkeys(names) if lake.exists(name))


def _notes(lake: Lake, tables: Sequence[str]) -> tuple[str, ...]:
    """Training sets computed from these tables: they stay, but could not be computed again."""
    return tuple(
        f"training set {name.removeprefix(TRAINING_PREFIX)} was computed from it; it stays, but "
        "could not be computed again"
        for name in lake.list()
        if name.startswith(TRAINING_PREFIX) and set(_sources(lake, name)) & set(tables)
    )


def _sources(lake: Lake, table: str) -> list[str]:
    text = table_options.properties(lake, table).get("training-set.sources", "[]")
    return [source["table"] for source in json.loads(text)]


def _let_go_of_events(lake: Lake, record: GenerationRecord) -> None:
    events = (record.job or {}).get("events")
    if events is not None and lake.exists(events):
        delete_consumer(lake, events, record.consumer)
        release_position(lake, record, events)


def _empty_online(store: OnlineStore, keys: ViewKeys) -> None:
    # the state first: readers then see that there is nothing, never a part of it
    store.delete([keys.state])
    for key in store.scan(keys.all_epochs):
        store.delete(key)
