"""From definitions to tables: what is applied, what would change, and doing it.

A view whose tiles would be others gets a new generation of its tile table; one that only reads
its tiles differently does not, and what only describes it (owner, tags) changes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeGuard

from paimon_features.core.errors import DefinitionError, PaimonFeaturesError
from paimon_features.core.times.partition_days import parse_partition_days, partition_text
from paimon_features.core.types.schema import DataType
from paimon_features.definitions import (
    CompiledView,
    Definitions,
    DerivedView,
    Entity,
    EventSource,
    FeatureView,
    FeedbackSource,
)
from paimon_features.lake import Lake, latest_snapshot, table_options
from paimon_features.lake.metadata import table_history
from paimon_features.lake.side_folder import generations, registry
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.lake.side_folder.registry import Document, Key
from paimon_features.lake.specs import (
    TableSpec,
    events_spec,
    feedback_spec,
    rejected_spec,
    skipped_spec,
)
from paimon_features.models.fitted_table import fitted_versions
from paimon_features.project.planning.center_proposals import proposed_centers
from paimon_features.project.planning.skipped_events import skipped_by_plan
from paimon_features.tiles.partitioning import choose_partitions, partitions_for, tiles_table

Action = Literal["create", "change", "generation", "same", "gone"]
Effect = Literal["create", "change", "generation", "backfill", "removed"]
"""What a reviewer of a plan looks for: ``removed`` is no longer defined, and its tables stay."""

ASSUMED_EVENTS_PER_S = 200_000
"""Rate of a backfill where none was measured yet: two cores, a few partials."""
START_S = 15
"""What a backfill takes before its first event: the engine's start."""
MEASURED_FROM = 100_000
"""Events that a backfill has to have read for its rate to say something of a larger one."""

_SIGNS: Mapping[Action, str] = {
    "create": "+",
    "change": "~",
    "generation": "~",
    "same": " ",
    "gone": "-",
}


@dataclass(frozen=True, slots=True)
class Change:
    """What ``apply`` would do to one definition.

    ``generation`` is the number of the tile table's generation that would be made, if any, and
    ``backfill`` whether there are events of which its tiles have to be computed.
    """

    kind: str
    name: str
    action: Action
    details: tuple[str, ...] = ()
    generation: int | None = None
    backfill: bool = False

    @property
    def effects(self) -> tuple[Effect, ...]:
        """What it does, for a review; empty where nothing would be done."""
        if self.action == "same":
            return ()
        first: Effect = "removed" if self.action == "gone" else self.action
        return (first, "backfill") if self.backfill else (first,)

    def __str__(self) -> str:
        lines = [f"{_SIGNS[self.action]} {self.kind.replace('_', ' ')} {self.name}"]
        return "\n".join([*lines, *(f"    {detail}" for detail in self.details)])


@dataclass(frozen=True, slots=True)
class ProjectPlan:
    """All changes, in the order in which they would be made.

    ``state`` is what they follow from, by hashes: definitions, what is applied, generations.
    """

    changes: tuple[Change, ...]
    state: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)

    @property
    def effects(self) -> tuple[Effect, ...]:
        """The effects of all changes, each once."""
        return tuple(dict.fromkeys(e for change in self.changes for e in change.effects))

    @property
    def is_empty(self) -> bool:
        """Whether applying would do nothing."""
        return all(change.action in ("same", "gone") for change in self.changes)

    def __str__(self) -> str:
        return "\n".join(str(change) for change in self.changes)

    def _repr_html_(self) -> str:
        from paimon_features.core.notebook.markup import card, table

        rows = [
            (c.action, c.kind.replace("_", " "), c.name, "\n".join(c.details)) for c in self.changes
        ]
        note = "nothing to apply" if self.is_empty else ""
        return card("Plan", table(rows, ("", "kind", "name", "details")), note=note)


def make_plan(lake: Lake, definitions: Definitions) -> ProjectPlan:
    """Compare the definitions with what is applied.

    Raises
    ------
    DefinitionError
        For a change that cannot be made, such as other columns of a source with history.
    """
    applied = _applied(lake)
    items = list(_documents(definitions))
    changes = [_with_offline_reason(definitions, _plan_one(lake, applied, *item)) for item in items]
    defined = {(change.kind, change.name) for change in changes}
    for kind, name in applied.keys() - defined:
        detail = "no longer defined; its tables stay"
        changes.append(Change(kind, name, "gone", (detail,)))
    return ProjectPlan(tuple(changes), _state(lake, applied, items))


def _state(
    lake: Lake, known: Mapping[Key, Document], items: Sequence[tuple[str, str, Document, Any]]
) -> Mapping[str, Mapping[str, Any]]:
    views = [name for kind, name, _, _ in items if kind == "feature_view"]
    return {
        "definitions": {f"{kind} {n}": registry.hash_of(doc) for kind, n, doc, _ in items},
        "applied": {f"{kind} {n}": registry.hash_of(doc) for (kind, n), doc in known.items()},
        "generations": {
            f"feature_view {view}": [
                [record.generation, record.fingerprint, record.state]
                for record in generations.load(lake, view)
            ]
            for view in views
        },
    }


def apply_plan(
    lake: Lake,
    definitions: Definitions,
    now_ms: int,
    check: Callable[[ProjectPlan], None] | None = None,
) -> ProjectPlan:
    """Make what ``make_plan`` shows: tables, generations, registry rows.

    Repeating it is harmless. ``check`` may raise to refuse the plan before anything is changed.
    """
    plan = make_plan(lake, definitions)
    if check is not None:
        check(plan)
    for source in definitions.sources.values():
        for spec in _source_tables(source):
            lake.create(spec)
        if (days := _longer_partitions(lake, source)) is not None:
            table_options.set_partition_days(lake, source.table, days)
    for change in plan.changes:
        if change.kind == "feature_view" and change.generation is not None:
            _make_generation(lake, definitions.view(change.name).compiled, change.generation)
    documents = {(kind, name): document for kind, name, document, _ in _documents(definitions)}
    registry.record(lake, documents, now_ms)
    return plan


def _source_tables(source: EventSource) -> Iterator[TableSpec]:
    if isinstance(source, FeedbackSource):
        yield feedback_spec(source.table, source.sample_keys)
    else:
        days = parse_partition_days(f"source {source.name!r}", source.partition_days)
        yield events_spec(source.table, source.schema, days)
        yield rejected_spec(source.rejected_table)


def _applied(lake: Lake) -> dict[Key, Document]:
    return {key: version.document or {} for key, version in registry.applied(lake).items()}


def _make_generation(lake: Lake, view: CompiledView, generation: int) -> None:
    lake.create(tiles_table(view, generation, choose_partitions(lake, view).days))
    lake.create(skipped_spec(view.skipped_table(generation)))
    first = generations.active(lake, view.name) is None
    generations.save(
        lake,
        GenerationRecord(
            view=view.name,
            generation=generation,
            table=view.table(generation),
            fingerprint=view.fingerprint,
            buckets=view.buckets,
            # a dropped table of this name has used the numbers before
            incarnation=len(table_history.removals(lake, view.table(generation))),
            state="active" if first else "building",
            contents=view.tile_contents,
        ),
    )


def _documents(definitions: Definitions) -> Iterator[tuple[str, str, Document, Any]]:
    """Kind, name, document and definition of everything that is defined."""
    for kind, items in definitions.by_kind().items():
        for name, item in items.items():
            yield kind, name, item.to_document(), item


def _plan_one(
    lake: Lake,
    known: Mapping[Key, Document],
    kind: str,
    name: str,
    document: Document,
    item: Any,
) -> Change:
    old = known.get((kind, name))
    differs = [] if old is None else list(differences(old, document))
    if isinstance(item, EventSource):
        return _plan_source(lake, old, document, item, differs)
    if isinstance(item, FeatureView):
        return _plan_view(lake, old, item.compiled, differs)
    action: Action = "create" if old is None else "change" if differs else "same"
    if isinstance(item, Entity) and old is None:
        differs.append(f"keys: {_typed(item.keys)}")
    if kind == "transformed":
        _check_pinned(lake, name, document["fitted"])
        if item.problem is not None:
            action = "change" if action == "same" else action
            differs.append(f"cannot be read: {item.problem}")
    if kind in ("interaction", "transformed") and action != "same":
        differs.append("is computed when it is read: no backfill")
    if isinstance(item, DerivedView) and action != "same":
        differs.append(f"is computed by 'paimon-features derive {name}': no backfill")
    return Change(kind, name, action, tuple(differs))


def _with_offline_reason(definitions: Definitions, change: Change) -> Change:
    """Add the reason why the online store cannot serve a service."""
    if change.kind != "service":
        return change
    try:
        reason = definitions.offline_reason(definitions.services[change.name])
    except PaimonFeaturesError as error:  # a fit of another definition, say: nothing reads it
        reason = str(error)
    if reason is None:
        return change
    warning = f"warning: cannot be served, and no model over it can be promoted: {reason}"
    return replace(change, details=(*change.details, warning))


def _check_pinned(lake: Lake, name: str, pinned: Mapping[str, Any]) -> None:
    """Raise DefinitionError where an exported version is not the one that the lake has.

    A lake that has no such version is another one than it was exported from: the file counts.
    """
    for version in fitted_versions(lake, pinned["name"]):
        if version.version == pinned["version"] and version.digest != pinned["digest"]:
            raise DefinitionError(
                f"transformed feature {name!r}: the file of {version} has the digest "
                f"{pinned['digest']}, and the lake's version has {version.digest}; a version "
                "never changes: delete the file and run 'paimon-features fitted "
                f"{version.name} {version.version} --export', or save the transformer as the next "
                "version"
            )


def _longer_partitions(lake: Lake, source: EventSource) -> int | None:
    """Return the defined days of a partition of an existing table that has others; None without a
    change.

    Raises
    ------
    DefinitionError
        If the table has events and would get shorter partitions.
    """
    days = parse_partition_days(f"source {source.name!r}", source.partition_days)
    if days is None or not lake.exists(source.table):
        return None
    actual = table_options.partition_days(lake, source.table)
    if latest_snapshot(lake, source.table) is None:
        return None if days == table_options.defined_partition_days(lake, source.table) else days
    if days < actual:
        raise DefinitionError(
            f"source {source.name!r}: partition_days={source.partition_days!r}, and table "
            f"{source.table!r} has {partition_text(actual)}: its partitions can only become "
            "longer, because events are not written again; define a new source under another name"
        )
    return None if days == actual else days


def _plan_source(
    lake: Lake,
    old: Document | None,
    document: Document,
    source: EventSource,
    differs: list[str],
) -> Change:
    if old is None:
        tables = ", ".join(spec.name for spec in _source_tables(source))
        columns = f"columns: {_typed(source.schema)}; event time: {source.event_time}"
        return Change("source", source.name, "create", (f"creates {tables}", columns))
    for part in ("schema", "event_time", "table"):
        if old[part] != document[part]:
            raise DefinitionError(
                f"source {source.name!r}: its {part} differs from what is applied "
                f"({'; '.join(differs)}), and its history has been written; "
                "define a new source under another name"
            )
    if (days := _longer_partitions(lake, source)) is not None:
        differs.append(
            f"events that are written from now on get {partition_text(days)}; 'paimon-features "
            "maintain' merges the partitions that are there"
        )
    action: Action = "change" if differs else "same"
    if source.partition_days is None and not isinstance(source, FeedbackSource):
        actual = (
            table_options.partition_days(lake, source.table) if lake.exists(source.table) else 1
        )
        choice = partitions_for(lake, source.table)
        if choice.days > actual and choice.advises(actual):
            differs.append(
                f"{source.table} has {partition_text(actual)}, and would read faster with "
                f"{choice}: partition_days={choice.days}, and 'paimon-features maintain' merges "
                "the partitions that are there"
            )
    return Change("source", source.name, action, tuple(differs))


def _plan_view(lake: Lake, old: Document | None, view: CompiledView, differs: list[str]) -> Change:
    records = generations.load(lake, view.name)
    fitting = [r for r in records if r.fingerprint == view.fingerprint]
    if fitting:
        details = list(differs)
        if differs and old is not None and old["tiles"] == view.fingerprint:
            details.append("its tiles hold what this needs: no backfill")
        details += _running(old, view)
        building = [r for r in fitting if r.state == "building"]
        if building and not any(r.state == "active" for r in fitting):
            details.append(
                f"generation {building[0].generation} is being built; "
                f"'paimon-features apply --generation {view.name}' makes it the one that is read"
            )
        details += _partitions_advice(lake, view, fitting)
        action: Action = "create" if old is None else "change" if differs else "same"
        return Change("feature_view", view.name, action, tuple(details))
    generation = max((r.generation for r in records), default=0) + 1
    details = [
        *differs,
        f"creates {view.table(generation)}, {len(view.features)} features by " + _typed(view.keys),
        f"features: {_typed({f.name: f.type for f in view.features})}",
    ]
    choice = choose_partitions(lake, view)
    if choice.days != 1 and view.partition_days is None:
        details.append(f"gets {choice}")
    details += [f"keeps out and counts events with {guard}" for guard in _bounds(view)]
    details += _room(view)
    details += map(str, proposed_centers(lake, view))
    details += skipped_by_plan(lake, view)
    details += _running(old, view)
    events = _events(lake, view.source)
    if records:
        details.append(
            f"needs a backfill: 'paimon-features backfill {view.name}' reads {events:,} events, "
            f"{_duration(lake, events)}; then 'paimon-features apply "
            f"--generation {view.name}'. Generation {records[-1].generation} stays"
        )
        same = [r.generation for r in records if dict(r.contents) == dict(view.tile_contents)]
        if same:
            details.append(
                f"generation {same[-1]} has the same tiles in other buckets or partitions: "
                "'paimon-features "
                f"backfill {view.name} --from-generation {same[-1]}' copies them instead"
            )
    elif events:
        details.append(
            f"needs a backfill: 'paimon-features backfill {view.name}' reads {events:,} events, "
            f"{_duration(lake, events)}"
        )
    return Change(
        "feature_view",
        view.name,
        "generation" if records else "create",
        tuple(details),
        generation,
        backfill=bool(records) or bool(events),
    )


def _running(old: Document | None, view: CompiledView) -> Iterator[str]:
    """Yield what happens to servers and materializers that run, where records get another
    layout."""
    if old is None or not view.is_online or old.get("online") == view.online_fingerprint:
        return
    yield (
        "servers that run answer by the applied definition until the online store has the view by "
        "this one; features that are new are unknown names until then"
    )
    yield (
        "materializers that run keep to the applied definition: start them again after 'apply'"
        + ("" if old["tiles"] == view.fingerprint else f" and 'apply --generation {view.name}'")
        + ", and they rebuild the view"
    )


def _partitions_advice(
    lake: Lake, view: CompiledView, fitting: Sequence[GenerationRecord]
) -> Iterator[str]:
    """Yield what the density of the events says about the partitions of the existing tile
    tables."""
    if view.partition_days is not None:
        return
    choice = choose_partitions(lake, view)
    for record in fitting:
        if not lake.exists(record.table):
            continue
        actual = table_options.partition_days(lake, record.table)
        if latest_snapshot(lake, record.table) is None:
            if choice.days != actual:
                yield f"{record.table} gets {choice}, when it is filled"
        elif choice.advises(actual):
            yield (
                f"{record.table} has {partition_text(actual)}, and would read faster with "
                f"{choice}: 'paimon-features backfill {view.name} --rebuild' writes it again, or "
                f"partition_days={choice.days} makes a new generation next to it"
            )


MOST_NAMES = 40
"""Columns or features that a plan shows of one definition."""


def _typed(columns: Mapping[str, DataType]) -> str:
    """Return columns or features with their types.

    >>> from paimon_features.core.types.schema import Float64, Int64
    >>> _typed({"customer_id": Int64, "amount": Float64})
    'customer_id Int64, amount Float64'
    """
    names = [f"{name} {kind!r}" for name, kind in columns.items()]
    more = [f"... {len(names)} in all"] if len(names) > MOST_NAMES else []
    return ", ".join([*names[:MOST_NAMES], *more]) or "all events together"


def _bounds(view: CompiledView) -> list[str]:
    return [rule.detail for rule in view.skip_rules if rule.reason == "out_of_bounds"]


def _room(view: CompiledView) -> Iterator[str]:
    """Yield how many events an entity may have in a window until the tightest sum of integers
    wraps."""
    rooms = [(p.events_that_fit, p.name) for p in view.partials if p.events_that_fit is not None]
    if rooms:
        events, partial = min(rooms)
        name = next((f.name for f in view.features if partial in f.partials), partial)
        yield (
            f"has room for {events:,} events of an entity in a window, each at its bound "
            f"(the sum {name} wraps beyond 64 bits)"
        )


def _events(lake: Lake, source: EventSource) -> int:
    if not lake.exists(source.table):
        return 0
    newest = latest_snapshot(lake, source.table)
    return 0 if newest is None else newest.total_records


def _duration(lake: Lake, events: int) -> str:
    """Return the estimated duration of reading this number of events, by the newest measured
    backfill."""
    jobs = [
        record.job
        for view in generations.views(lake)
        for record in generations.load(lake, view)
        if record.job is not None and record.job.get("events_read", 0) >= MEASURED_FROM
    ]
    rate, basis = float(ASSUMED_EVENTS_PER_S), "a guess: none was measured yet"
    if jobs:
        newest = max(jobs, key=lambda job: job["since_ms"])
        rate = newest["events_read"] / newest["seconds"]
        basis = "as the last backfill"
    seconds = START_S + events / rate
    shown = f"{seconds / 60:,.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
    return f"about {shown} ({rate:,.0f} events/s, {basis})"


def differences(old: Document, new: Document, path: str = "") -> Iterator[str]:
    """Readable differences of two documents, in the order of the new one."""
    for key in [*new, *(key for key in old if key not in new)]:
        if key in ("tiles", "online"):
            continue
        left, right, name = old.get(key), new.get(key), f"{path}{key}"
        if left == right:
            continue
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            yield from differences(left, right, f"{name}.")
        elif key not in old:
            yield f"+ {name}"
        elif key not in new:
            yield f"- {name}"
        elif _of_names(left) and _of_names(right) and set(left) != set(right):
            yield from (f"- {name}: {item}" for item in left if item not in right)
            yield from (f"+ {name}: {item}" for item in right if item not in left)
        else:
            yield f"{name}: {left!r} -> {right!r}"


def _of_names(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
