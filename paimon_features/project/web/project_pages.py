"""The documents that the pages show, read from a project's lake. Every list has a bound."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import parse_qsl

import pyarrow as pa

from paimon_features.core.documents.redaction import redact
from paimon_features.core.errors import PaimonFeaturesError, RequestError, UnfilledError
from paimon_features.core.times.clock import now_ms
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import CompiledView, FeatureRef
from paimon_features.lake import latest_snapshot, table_options
from paimon_features.lake.metadata.snapshots import snapshots
from paimon_features.lake.reading.deltas import live_files, read_batches
from paimon_features.lake.side_folder import generations, registry
from paimon_features.lake.specs import TRAINING_PREFIX
from paimon_features.offline.reading.pinning import Pin
from paimon_features.project import Project
from paimon_features.project.lineage import describe, lineage
from paimon_features.project.lineage.descriptions import describe_all
from paimon_features.project.lineage.lineage_graph import LineageGraph
from paimon_features.project.monitoring.feature_values import newest_event_ms
from paimon_features.project.monitoring.monitored_columns import of_columns, of_features
from paimon_features.project.monitoring.time_ranges import TimeRange
from paimon_features.project.planning.plan import differences
from paimon_features.project.status import StatusReader
from paimon_features.project.web.view_copies import ViewCopies
from paimon_features.serving.reading.explain import explain, explain_event, service_event
from paimon_features.serving.reading.explain_query import ExplainQuery

MOST_DEFINITIONS = 5_000
MOST_FEATURES = 50_000
"""Names of features in the catalogue, over all views."""
MOST_TABLES = 200
MOST_COMMITS = 300
MOST_SAMPLES = 12
MOST_SAMPLE_FEATURES = 24
MOST_PROFILED = 24
"""Features of a view that are profiled at a time."""
MOST_PROFILE_ROWS = 2_000_000
MOST_POINTS = 200
MOST_VERSIONS = 20
MOST_CHANGES = 40
_TEXT = 2_000

Document = dict[str, Any]
Query = Mapping[str, str]


class ProjectPages:
    """Answers ``ui/api/NAME`` and ``explain`` for one project; reads only, one call at a time."""

    def __init__(self, project: Project, *, online: bool = True) -> None:
        self._project = project
        self._copies = ViewCopies(project)
        self._status = StatusReader(project, online=online)
        self._profiles: dict[tuple[str, ...], Document] = {}
        self.pages: dict[str, Callable[[str], Document]] = {
            "ui/api/home": self._home,
            "ui/api/catalogue": self._catalogue,
            "ui/api/definition": self._definition,
            "ui/api/sample": self._sample,
            "ui/api/profile": self._profile,
            "ui/api/history": self._history,
            "ui/api/artifacts": self._artifacts,
            "explain": self._explain,
        }
        """What is answered, by path; each takes the query of the URL."""

    def close(self) -> None:
        """Close the connection to the online store."""
        self._status.close()

    # -- the whole project -----------------------------------------------------------------

    def _home(self, query: str) -> Document:
        """``status``, with the tables by size."""
        _fields(query)
        status = self._status.read()
        tables = sorted(status.tables, key=lambda table: table.bytes, reverse=True)
        document = status.document()
        return {
            **document,
            "attention": [redact(text) for text in status.attention[:100]],
            "attention_in_all": len(status.attention),
            "tables": [asdict(table) for table in tables[:MOST_TABLES]],
            "tables_in_all": len(tables),
            "bytes": sum(table.bytes for table in tables),
            "leases": document["leases"][:MOST_TABLES],
        }

    def _catalogue(self, query: str) -> Document:
        """Return a line per definition with the names of its features, and what is derived from
        what."""
        _fields(query)
        definitions, lake = self._project.definitions, self._project.lake
        graph = lineage(definitions, lake)
        left = MOST_FEATURES
        items: list[Document] = []
        notes = {(node.kind, node.name): node.note for node in graph.nodes}
        entities = {
            (kind, view.name): view.entity
            for kind, views in (
                ("feature_view", definitions.views),
                ("table_view", definitions.tables),
            )
            for view in views.values()
        }
        for description in describe_all(definitions, lake)[:MOST_DEFINITIONS]:
            key = description["kind"], description["name"]
            names: list[str] = []
            view: Any = None
            if key[0] == "feature_view":
                view = definitions.views[key[1]]
                names = [feature.name for feature in view.compiled.features]
            elif key[0] == "service":
                names = [str(item_ref) for item_ref in definitions.services[key[1]].items()]
            item = {**description, "note": notes.get(key, "")}
            item["count"] = 0 if view is None else len(names)
            item["features"] = names[: max(left, 0)]
            left -= len(names)
            if key in entities:
                item["entity"] = entities[key].name
                item["keys"] = {name: kind.text for name, kind in entities[key].keys.items()}
            if view is not None:
                item["online"] = view.compiled.is_online
            if key[0] == "entity":
                entity = definitions.entities[key[1]]
                item["keys"] = {name: kind.text for name, kind in entity.keys.items()}
            items.append(item)
        shown = {(item["kind"], item["name"]) for item in items}
        items += [
            {"kind": node.kind, "name": node.name, "note": node.note, "state": "", "owner": "",
             "description": "", "tags": {}, "features": [], "count": 0}
            for node in graph.nodes
            if (node.kind, node.name) not in shown
        ]  # fmt: skip
        return {
            "project": self._project.name,
            "warehouse": redact(str(self._project.config.warehouse)),
            "database": self._project.config.database,
            "items": items,
            "edges": _edges(graph, items),
            "truncated": left < 0 or len(shown) >= MOST_DEFINITIONS,
        }

    # -- one definition --------------------------------------------------------------------

    def _definition(self, query: str) -> Document:
        """``describe``, with the differences between versions, and commits and jobs of a view."""
        fields = _fields(query, "kind", "name")
        definitions, lake = self._project.definitions, self._project.lake
        kind, name = fields["kind"], fields["name"]
        documents = [
            (document, item)
            for document, item in zip(
                describe(definitions, lake, name),
                [
                    (k, by_name[name])
                    for k, by_name in definitions.by_kind().items()
                    if name in by_name
                ],
                strict=True,
            )
            if item[0] == kind
        ]
        if not documents:
            raise RequestError(f"unknown {kind.replace('_', ' ')[:40]} {name[:80]!r}")
        document = documents[0][0]
        document["changes"] = self._changes(kind, name)
        if kind == "feature_view":
            view = definitions.view(name).compiled
            windows = {feature.name: feature for feature in view.features}
            for feature in document["features"]:
                compiled = windows[feature["name"]]
                feature["aggregate"] = type(compiled.aggregate).__name__
                feature["window"] = compiled.window.to_document()
            document["kept"] = [self._generation(view, r) for r in generations.load(lake, name)]
            document["online"] = view.is_online
        return document

    def _changes(self, kind: str, name: str) -> list[Document]:
        history = registry.versions(self._project.lake).get((kind, name), [])
        out: list[Document] = []
        before: Mapping[str, Any] = {}
        for version in history:
            now = version.document or {}
            changed = list(differences(before, now)) if before and now else []
            out.append(
                {
                    "version": version.number,
                    "applied_at_ms": version.applied_at_ms,
                    "dropped": version.document is None,
                    "changes": [text[:_TEXT] for text in changed[:MOST_CHANGES]],
                    "more": max(0, len(changed) - MOST_CHANGES),
                }
            )
            before = now
        return out[: -MOST_VERSIONS - 1 : -1]

    def _generation(self, view: CompiledView, record: generations.GenerationRecord) -> Document:
        """Return a generation with its newest commits; ``rows`` and ``bytes`` before merging."""
        lake = self._project.lake
        newest = latest_snapshot(lake, record.table) if lake.exists(record.table) else None
        first = None if newest is None else max(1, newest.id - MOST_COMMITS + 1)
        commits = [] if first is None else list(_commits(lake, record.table, first))
        return {
            "generation": record.generation,
            "state": record.state,
            "table": record.table,
            "fits": record.fingerprint == view.fingerprint,
            "incarnation": record.incarnation,
            "buckets": record.buckets,
            "backfilled": record.backfilled,
            "backfill_snapshot": record.backfill_snapshot,
            "job": None if record.job is None else str(record.job.get("state", "")) or "started",
            "snapshot": None if newest is None else newest.id,
            "rows": 0 if newest is None else newest.total_records,
            "commits": commits[-MOST_COMMITS:],
        }

    # -- values ----------------------------------------------------------------------------

    def _sample(self, query: str) -> Document:
        """Return some entities of a view with their values, as of its newest event."""
        fields = _fields(query, "view")
        view = self._project.view(fields["view"])
        record = self._project.generation(view)
        lake = self._project.lake
        newest = latest_snapshot(lake, record.table)
        if newest is None or not view.keys:
            return {"as_of_ms": None, "features": [], "rows": []}
        as_of_ms = self._newest(record.table) + 1
        names = [feature.name for feature in view.features][:MOST_SAMPLE_FEATURES]
        entities = self._entities(record.table, newest.id, list(view.keys))
        rows = entities.append_column(
            "event_time_ms", pa.array([as_of_ms] * entities.num_rows, pa.int64())
        )
        refs = [f"{view.name}:{name}" for name in names]
        if view.is_online and newest.total_records <= MOST_PROFILE_ROWS:
            answer = self._copies.fetcher(view).get(
                self._project.refs(refs),
                {key: entities.column(key) for key in view.keys},
                as_of_ms,
            )
            answer_rows = answer.to_pylist()
            values = [
                {name: row.get(f"{view.name}:{name}", row.get(name)) for name in names}
                for row in answer_rows
            ]
        else:
            table = self._project.get_historical_features(refs, rows)
            values = [
                {name: row.get(name, row.get(f"{view.name}__{name}")) for name in names}
                for row in table.to_pylist()
            ]
        return {
            "as_of_ms": as_of_ms,
            "features": names,
            "features_in_all": len(view.features),
            "rows": [
                {"entity": entity, "values": _plain(one)}
                for entity, one in zip(_plain(entities.to_pylist()), values, strict=True)
            ],
        }

    def _entities(self, table: str, snapshot: int, keys: Sequence[str]) -> pa.Table:
        """Return some entities, from the newest files."""
        parts: list[pa.Table] = []
        distinct: pa.Table | None = None
        files = live_files(self._project.lake, table, snapshot)
        for file in sorted(files, key=lambda each: each.path, reverse=True)[:8]:
            for batch in read_batches(file, list(keys), 4_096):
                parts.append(batch.select(list(keys)))
                break
            distinct = pa.concat_tables(parts).group_by(list(keys)).aggregate([])
            if distinct.num_rows >= MOST_SAMPLES:
                break
        assert distinct is not None  # a snapshot with a commit has a file
        order = [(key, "ascending") for key in keys]
        return distinct.sort_by(order).slice(0, MOST_SAMPLES)

    def _newest(self, table: str) -> int:
        newest = latest_snapshot(self._project.lake, table)
        return newest_event_ms(self._project.lake, Pin.of(table, newest))

    def _profile(self, query: str) -> Document:
        """``monitor``: features at the newest event, against those of seven days before.

        Of a statistics view: the newest seven days of its columns with bins or categories, against
        the 28 days before.
        """
        fields = _fields(query, "view")
        name = fields["view"]
        try:
            reader = self._project.view_reader(name)
        except UnfilledError as error:
            raise RequestError(f"feature view {name!r} has no tiles yet: {error}") from error
        view = reader.view
        newest = latest_snapshot(self._project.lake, reader.tiles.table)
        if newest is None:
            raise RequestError(f"feature view {name!r} has no tiles yet")
        if newest.total_records > MOST_PROFILE_ROWS:
            raise RequestError(
                f"feature view {name!r} has {newest.total_records:,} rows of tiles, at most "
                f"{MOST_PROFILE_ROWS:,} are profiled here; run 'paimon-features monitor {name}'"
            )
        key = (name, newest.ref, view.fingerprint)
        if key not in self._profiles:
            end = newest_event_ms(self._project.lake, reader.tiles) + 1
            week = TimeRange(end - 7 * DAY_MS, end)
            if view.keys:
                usable = [
                    f.name for f in view.features
                    if f.type.is_numeric or f.type.text in ("string", "bool")
                ]  # fmt: skip
                before = TimeRange(None, end - 7 * DAY_MS)
                try:
                    report = of_features(
                        self._project.lake, self._project.offline, view, reader.tiles,
                        usable[:MOST_PROFILED], (week, before),
                    )  # fmt: skip
                except RequestError:  # nobody was known seven days before
                    report = of_features(
                        self._project.lake, self._project.offline, view, reader.tiles,
                        usable[:MOST_PROFILED], (week, None),
                    )  # fmt: skip
            else:
                named = [f.aggregate.column for f in view.features]
                columns = list(dict.fromkeys(name for name in named if name is not None))
                # of other columns all events would have to be read
                binned = [
                    name
                    for name, kept in zip(columns, reader.tile_columns(columns), strict=True)
                    if kept.available & {"bins", "categories"}
                ]
                before = TimeRange(end - 35 * DAY_MS, end - 7 * DAY_MS)
                report = of_columns(reader, binned[:MOST_PROFILED], (week, before), "tiles")
            self._profiles = dict(list(self._profiles.items())[-63:])
            self._profiles[key] = _plain(report.to_document())
        return self._profiles[key]

    def _history(self, query: str) -> Document:
        """Return the values of an entity's feature over time, each computed point in time from the
        lake."""
        entity, fields = _entity_fields(query, "view", "feature", "from", "to", "points")
        view = self._project.any_view(fields["view"])
        typed = ExplainQuery(view.name, entity, None, None).typed(view.keys)
        low, high = _number(fields, "from"), _number(fields, "to")
        points = _number(fields, "points")
        if not 2 <= points <= MOST_POINTS or not high - low > 0:
            raise RequestError(f"expected from < to, and 2 to {MOST_POINTS} points")
        times = [low + (high - low) * step // (points - 1) for step in range(points)]
        columns = {
            key: pa.array([typed[key]] * points, kind.arrow) for key, kind in view.keys.items()
        }
        rows = pa.table({**columns, "event_time_ms": pa.array(times, pa.int64())})
        ref = FeatureRef(view.name, fields["feature"])
        with_status = self._project.get_historical_features([str(ref)], rows, statuses=True)
        last = with_status.column_names
        status = next(name for name in last if name.endswith("__status"))
        value = with_status.column(status.removesuffix("__status")).to_pylist()
        return {
            "feature": str(ref),
            "times_ms": times,
            "values": _plain(value),
            "statuses": [str(value) for value in with_status.column(status).to_pylist()],
        }

    def _explain(self, query: str) -> Document:
        """``GET /explain`` of the feature server, of a copy of the view's newest snapshot."""
        request = ExplainQuery.of(query)
        view = self._project.view(request.view)
        if request.service is not None and request.event is not None:
            chosen = None if request.feature is None else [request.feature]
            event, explained = service_event(
                self._project.definitions, request.service, request.event, view.name, chosen
            )
            return explain_event(self._copies.fetcher(view), view.name, event, explained)
        entity = request.typed(view.keys)
        at_ms = now_ms() if request.as_of_ms is None else request.as_of_ms
        features = None if request.feature is None else [request.feature]
        return explain(self._copies.fetcher(view), view.name, entity, at_ms, features)

    # -- training sets and models ----------------------------------------------------------

    def _artifacts(self, query: str) -> Document:
        """Training sets with their pins; models with the newest versions and theirs."""
        _fields(query)
        lake = self._project.lake
        sets = [
            self._training_set(table) for table in lake.list() if table.startswith(TRAINING_PREFIX)
        ]
        return {
            "training_sets": sets[:MOST_TABLES],
            "models": [self._model(name) for name in self._project.models.names()[:MOST_TABLES]],
        }

    def _training_set(self, table: str) -> Document:
        lake = self._project.lake
        out: Document = {"name": table.removeprefix(TRAINING_PREFIX), "table": table}
        try:
            properties = table_options.properties(lake, table)
            newest = latest_snapshot(lake, table)
            return out | {
                "rows": 0 if newest is None else newest.total_records,
                "written_at_ms": None if newest is None else newest.time_ms,
                "label": properties.get("training-set.label"),
                "features": list(json.loads(properties.get("training-set.features", "{}"))),
                "sources": json.loads(properties.get("training-set.sources", "[]")),
            }
        except (PaimonFeaturesError, ValueError) as error:
            return out | {"error": redact(str(error))}

    def _model(self, name: str) -> Document:
        models = self._project.models
        try:
            states = models.states(name)
            newest = states.versions[: -MOST_VERSIONS - 1 : -1]
            return {
                "name": name,
                "changed_at_ms": states.changed_at_ms,
                "versions_in_all": len(states.versions),
                "versions": [self._model_version(name, version) for version in newest],
            }
        except PaimonFeaturesError as error:
            return {"name": name, "error": redact(str(error)), "versions": []}

    def _model_version(self, name: str, state: Any) -> Document:
        manifest = self._project.models.manifest(name, state.version)
        pins = manifest.training
        return {
            "version": state.version,
            "state": state.state,
            "traffic": state.traffic / 10_000,
            "created_at_ms": manifest.created_at_ms,
            "kind": manifest.kind,
            "service": manifest.signature.service,
            "parents": list(manifest.parents),
            "metrics": {key: asdict(metric) for key, metric in manifest.metrics.items()},
            "pins": None if pins is None else {
                "table": pins.table, "snapshot": pins.snapshot, "rows": pins.rows,
                "sources": dict(pins.sources), "generations": dict(pins.generations),
            },
        }  # fmt: skip


def _commits(lake: Any, table: str, first: int) -> list[Document]:
    return [
        {"id": snapshot_.id, "time_ms": snapshot_.time_ms, "rows": snapshot_.delta_records}
        for snapshot_ in snapshots(lake, table, first)
    ]


def _edges(graph: LineageGraph, items: Sequence[Document]) -> list[list[int]]:
    """Pairs of indices of items, the second derived from the first; entities before their views."""
    at = {(item["kind"], item["name"]): number for number, item in enumerate(items)}
    pairs = [((a.kind, a.name), (b.kind, b.name)) for a, b in graph.edges]
    return [[at[a], at[b]] for a, b in pairs if a in at and b in at]


def _fields(query: str, *names: str) -> dict[str, str]:
    """Return the fields of a query, each exactly once."""
    entity, fields = _entity_fields(query, *names)
    if entity:
        raise RequestError("the query has an unknown field 'entity'")
    return fields


def _entity_fields(query: str, *names: str) -> tuple[dict[str, str], dict[str, str]]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError as error:
        raise RequestError(f"the query cannot be read: {error}") from error
    entity: dict[str, str] = {}
    fields: dict[str, str] = {}
    for name, text in pairs:
        into, key = fields, name
        if name == "entity":
            into = entity
            key, equals, text = text.partition("=")
            if not equals:
                raise RequestError(f"entity={key[:80]!r}; expected key=value")
        elif name not in names:
            expected = ", ".join(names) or "none"
            raise RequestError(f"unknown field {name[:80]!r}; expected: {expected}")
        if key in into:
            raise RequestError(f"the query has {key[:80]!r} twice")
        into[key] = text
    missing = [name for name in names if name not in fields]
    if missing:
        raise RequestError(f"the query needs {missing[0]}")
    return entity, fields


def _number(fields: Query, name: str) -> int:
    try:
        return int(fields[name][:20])
    except ValueError:
        raise RequestError(f"{name}={fields[name][:40]!r} is not an integer") from None


def _plain(value: Any) -> Any:
    """JSON values: no NaN or infinity, texts and lists within bounds."""
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, str):
        return value[:_TEXT]
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value[:1_000]]
    if value is None or isinstance(value, bool | int):
        return value
    return str(value)[:_TEXT]
