"""From definitions to tables: what is applied, what would change, and doing it.

The registry is an append table with one row per applied version of a definition; its newest
row per (kind, name) is what is applied. A view whose tiles would be others gets a new
generation of its tile table; one that only reads its tiles differently does not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from paimon_features.definitions import (
    CompiledView,
    Definitions,
    EventSource,
    FeatureView,
    FeedbackSource,
)
from paimon_features.errors import DefinitionError
from paimon_features.tables import Lake, append_arrow, generations, latest_snapshot, read_arrow
from paimon_features.tables.generations import GenerationRecord
from paimon_features.tables.specs import (
    TableSpec,
    events_spec,
    feedback_spec,
    registry_spec,
    rejected_spec,
    skipped_spec,
    tiles_spec,
)

REGISTRY = "registry"

Action = Literal["create", "change", "generation", "same", "gone"]
Document = Mapping[str, Any]

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

    ``generation`` is the number of the tile table's generation that would be made, if any.
    """

    kind: str
    name: str
    action: Action
    details: tuple[str, ...] = ()
    generation: int | None = None

    def __str__(self) -> str:
        lines = [f"{_SIGNS[self.action]} {self.kind.replace('_', ' ')} {self.name}"]
        return "\n".join([*lines, *(f"    {detail}" for detail in self.details)])


@dataclass(frozen=True, slots=True)
class Plan:
    """All changes, in the order in which they would be made."""

    changes: tuple[Change, ...]

    @property
    def is_empty(self) -> bool:
        """Whether applying would do nothing."""
        return all(change.action in ("same", "gone") for change in self.changes)

    def __str__(self) -> str:
        return "\n".join(str(change) for change in self.changes)


def applied(lake: Lake) -> dict[tuple[str, str], Document]:
    """The newest applied document of each (kind, name); empty before the first ``apply``."""
    if not lake.exists(REGISTRY):
        return {}
    rows = read_arrow(lake, REGISTRY, columns=["kind", "name", "version", "document"])
    newest: dict[tuple[str, str], tuple[int, str]] = {}
    for row in rows.to_pylist():
        key = (row["kind"], row["name"])
        if row["version"] > newest.get(key, (0, ""))[0]:
            newest[key] = (row["version"], row["document"])
    return {
        key: {**json.loads(text), "version": version} for key, (version, text) in newest.items()
    }


def make_plan(lake: Lake, definitions: Definitions) -> Plan:
    """Compare the definitions with what is applied.

    Raises
    ------
    DefinitionError
        For a change that cannot be made, such as other columns of a source with history.
    """
    known = applied(lake)
    changes = [_plan_one(lake, known, *item) for item in _documents(definitions)]
    defined = {(change.kind, change.name) for change in changes}
    for kind, name in known.keys() - defined:
        detail = "no longer defined; its tables stay"
        changes.append(Change(kind, name, "gone", (detail,)))
    return Plan(tuple(changes))


def apply_plan(lake: Lake, definitions: Definitions, now_ms: int) -> Plan:
    """Make what ``make_plan`` shows: tables, generations, registry rows.

    Repeating it is harmless.
    """
    plan = make_plan(lake, definitions)
    known = applied(lake)
    for source in definitions.sources.values():
        for spec in _source_tables(source):
            lake.create(spec)
    for change in plan.changes:
        if change.kind == "feature_view" and change.generation is not None:
            _make_generation(lake, definitions.view(change.name).compiled, change.generation)
    rows = []
    for kind, name, document, _ in _documents(definitions):
        old = known.get((kind, name))
        if old is None or _hash(old) != _hash(document):
            version = 1 if old is None else int(old["version"]) + 1
            rows.append((now_ms, kind, name, version, _hash(document), _canonical(document)))
    if rows:
        spec = registry_spec(REGISTRY)
        lake.create(spec)
        columns = [pa.array(list(c)) for c in zip(*rows, strict=True)]
        append_arrow(lake, REGISTRY, pa.table(columns, names=list(spec.columns)))
    return plan


def tiles_table(view: CompiledView, generation: int) -> TableSpec:
    """The tile table of one generation of a view."""
    partials = [(p.name, p.type, p.merge.paimon) for p in view.partials]
    return tiles_spec(view.table(generation), view.keys, partials, view.buckets)


def _source_tables(source: EventSource) -> Iterator[TableSpec]:
    if isinstance(source, FeedbackSource):
        yield feedback_spec(source.table, source.sample_keys)
    else:
        yield events_spec(source.table, source.schema)
        yield rejected_spec(source.rejected_table)


def _make_generation(lake: Lake, view: CompiledView, generation: int) -> None:
    lake.create(tiles_table(view, generation))
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
            state="active" if first else "building",
        ),
    )


def _documents(
    definitions: Definitions,
) -> Iterator[tuple[str, str, Document, FeatureView | EventSource | None]]:
    for entity in definitions.entities.values():
        yield "entity", entity.name, entity.to_document(), None
    for source in definitions.sources.values():
        yield "source", source.name, source.to_document(), source
    for view in definitions.views.values():
        yield "feature_view", view.name, view.to_document(), view
    for service in definitions.services.values():
        yield "service", service.name, service.to_document(), None


def _plan_one(
    lake: Lake,
    known: Mapping[tuple[str, str], Document],
    kind: str,
    name: str,
    document: Document,
    item: FeatureView | EventSource | None,
) -> Change:
    old = known.get((kind, name))
    differs = [] if old is None else list(_differences(old, document))
    if isinstance(item, EventSource):
        return _plan_source(old, document, item, differs)
    if isinstance(item, FeatureView):
        return _plan_view(lake, old, item.compiled, differs)
    action: Action = "create" if old is None else "change" if differs else "same"
    return Change(kind, name, action, tuple(differs))


def _plan_source(
    old: Document | None, document: Document, source: EventSource, differs: list[str]
) -> Change:
    if old is None:
        tables = ", ".join(spec.name for spec in _source_tables(source))
        return Change("source", source.name, "create", (f"creates {tables}",))
    for part in ("schema", "event_time", "table"):
        if old[part] != document[part]:
            raise DefinitionError(
                f"source {source.name!r}: its {part} differs from what is applied "
                f"({'; '.join(differs)}), and its history has been written; "
                "define a new source under another name"
            )
    return Change("source", source.name, "change" if differs else "same", tuple(differs))


def _plan_view(lake: Lake, old: Document | None, view: CompiledView, differs: list[str]) -> Change:
    records = generations.load(lake, view.name)
    fitting = [r for r in records if r.fingerprint == view.fingerprint]
    if fitting:
        details = list(differs)
        if differs and old is not None and old["tiles"] == view.fingerprint:
            details.append("its tiles hold what this needs: no backfill")
        building = [r for r in fitting if r.state == "building"]
        if building and not any(r.state == "active" for r in fitting):
            details.append(
                f"generation {building[0].generation} is being built; "
                f"'paimon-features switch {view.name}' makes it the one that is read"
            )
        action: Action = "create" if old is None else "change" if differs else "same"
        return Change("feature_view", view.name, action, tuple(details))
    generation = max((r.generation for r in records), default=0) + 1
    details = [*differs, f"creates {view.table(generation)}, {len(view.partials)} partials: "
               + ", ".join(p.name for p in view.partials)]  # fmt: skip
    details += [f"keeps out and counts events with {guard}" for guard in _bounds(view)]
    if records:
        events = _events(lake, view.source)
        details.append(
            f"a new generation: backfill {view.name} reads {events:,} events, then "
            f"'paimon-features switch {view.name}'; generation {records[-1].generation} stays"
        )
    return Change(
        "feature_view", view.name, "generation" if records else "create", tuple(details), generation
    )


def _bounds(view: CompiledView) -> list[str]:
    return [rule.detail for rule in view.skip_rules if rule.reason == "out_of_bounds"]


def _events(lake: Lake, source: EventSource) -> int:
    if not lake.exists(source.table):
        return 0
    newest = latest_snapshot(lake, source.table)
    return 0 if newest is None else newest.total_records


def _differences(old: Document, new: Document, path: str = "") -> Iterator[str]:
    """Readable differences of two documents, in the order of the new one."""
    for key in [*new, *(key for key in old if key not in new)]:
        if key in ("version", "tiles", "online"):
            continue
        left, right, name = old.get(key), new.get(key), f"{path}{key}"
        if left == right:
            continue
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            yield from _differences(left, right, f"{name}.")
        elif key not in old:
            yield f"+ {name}"
        elif key not in new:
            yield f"- {name}"
        else:
            yield f"{name}: {left!r} -> {right!r}"


def _canonical(document: Document) -> str:
    plain = {key: value for key, value in document.items() if key != "version"}
    return json.dumps(plain, sort_keys=True, separators=(",", ":"))


def _hash(document: Document) -> str:
    return hashlib.sha256(_canonical(document).encode()).hexdigest()[:16]
