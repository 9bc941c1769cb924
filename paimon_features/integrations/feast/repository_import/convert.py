"""From what a Feast repository made to the text of a definitions file, and what did not map."""

from __future__ import annotations

import keyword
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paimon_features.core.documents.generated_text import docstring_line, python_literal
from paimon_features.integrations.feast.repository_import.recording import Recorded
from paimon_features.integrations.feast.repository_import.types import (
    arrow_type_text,
    duration_text,
    file_schema,
    our_name,
    type_text,
)

VIEWS = ("FeatureView", "BatchFeatureView", "StreamFeatureView", "stream_feature_view")
SOURCES = ("FileSource", "PushSource", "KafkaSource", "KinesisSource")
ON_DEMAND = ("OnDemandFeatureView", "on_demand_feature_view")

AGGREGATES: Mapping[str, str] = {
    "sum": "pf.Sum({column}{more})",
    "count": "pf.Count({column}{more})",
    "mean": "pf.Mean({column}{more})",
    "avg": "pf.Mean({column}{more})",
    "min": "pf.Min({column}{more})",
    "max": "pf.Max({column}{more})",
    "std": "pf.StdDev({column}, ddof=1{more})",
    "stddev": "pf.StdDev({column}, ddof=1{more})",
    "stddev_samp": "pf.StdDev({column}, ddof=1{more})",
    "stddev_pop": "pf.StdDev({column}{more})",
    "var": "pf.Variance({column}, ddof=1{more})",
    "variance": "pf.Variance({column}, ddof=1{more})",
    "var_samp": "pf.Variance({column}, ddof=1{more})",
    "var_pop": "pf.Variance({column}{more})",
    "first": "pf.First({column}{more})",
    "last": "pf.Last({column}{more})",
    "latest": "pf.Last({column}{more})",
    "count_distinct": "pf.ApproxCountDistinct({column}{more})",
    "approx_count_distinct": "pf.ApproxCountDistinct({column}{more})",
}
"""Feast's aggregation functions (those of its engines) in ours."""


@dataclass
class Conversion:
    """The text of a definitions file, what could not be mapped and why, and further hints.

    ``mapped`` counts definitions by kind, ``unmapped`` are (what, why), ``notes`` are hints on
    what did map. ``loads`` are commands that ingest the data of file sources.
    """

    blocks: list[str] = field(default_factory=list)
    mapped: dict[str, int] = field(default_factory=dict)
    unmapped: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The definitions file."""
        head = ['"""Definitions imported from a Feast repository.']
        if self.unmapped:
            head += ["", "What did not map:", ""]
            head += [docstring_line(f"- {item}: {why}") for item, why in self.unmapped]
        return "\n".join([*head, '"""', "", "import paimon_features as pf", "", *self.blocks])


def convert(found: Sequence[Recorded], root: Path) -> Conversion:
    """Convert what ``read_repository`` gave; ``root`` is where relative paths count from."""
    return _Converter(found, root).run()


def _offline_note(names: Sequence[str]) -> str:
    """Return what to know about table views, which ordinary Feast views become."""
    return (
        f"read offline only (history, training sets), not served: {', '.join(names)}. A Feast view "
        "without aggregations becomes a TableView. To serve its columns, define a FeatureView with "
        "pf.Last(...) over an EventSource with the same rows; a model over a service with a "
        "TableView cannot be promoted"
    )


def _on_demand(view: Recorded) -> str:
    """Return what to write in place of a Python function: an interaction for each of its
    outputs."""
    given = view.get("sources") or ()
    sources = [s for s in (given.values() if isinstance(given, Mapping) else given)
               if isinstance(s, Recorded)]  # fmt: skip
    requests = [s for s in sources if s.kind == "RequestSource"]
    inputs = [
        f"{our_name(source.name)}:{our_name(field.name)}"
        if source.kind != "RequestSource"
        else our_name(field.name)
        for source in sources
        for field in source.get("schema") or ()
        if isinstance(field, Recorded) and field.name in (source.selected or (field.name,))
    ]
    more = f", request={our_name(requests[0].name)}" if requests else ""
    outputs = [our_name(f.name) for f in view.get("schema") or () if isinstance(f, Recorded)]
    written = "; ".join(f'pf.Interaction("{name}", "..."{more})' for name in outputs)
    return (
        "its Python function does not map, as nothing runs Python per request. Write what it "
        f"computes as expressions of {', '.join(inputs) or 'its inputs'}: "
        f"{written or 'a pf.Interaction for each output'} (docs/how-to/features/interactions.md; "
        "what no expression can say is a column of the source, derive=)"
    )


def _request(source: Recorded) -> str:
    fields = ", ".join(
        f'"{our_name(field.name)}": {type_text(field.get("dtype")) or "..."}'
        for field in source.get("schema") or ()
        if isinstance(field, Recorded)
    )
    name = our_name(source.name)
    return f'{name} = pf.RequestSource("{name}", schema={{{fields}}})'


class _Converter:
    def __init__(self, found: Sequence[Recorded], root: Path) -> None:
        self.found = list(found)
        self.root = root
        self.out = Conversion()
        self.sources: dict[str, _FeastSource] = {}
        self.entities: dict[tuple[str, ...], str] = {}
        self.texts: list[str] = []
        self.views: dict[str, str] = {}
        self.key_types: dict[tuple[str, str], str] = {}
        self._file_columns: dict[str | None, Mapping[str, Any]] = {}
        self.offline: list[str] = []
        """Views and services that the online store cannot serve."""

    def run(self) -> Conversion:
        views = [item for item in self.found if item.kind in VIEWS]
        for view in views:
            self._find_key_types(view)
        for view in views:
            self._view(view)
        for item in self.found:
            if item.kind == "FeatureService":
                self._service(item)
            elif item.kind in ON_DEMAND:
                self._unmapped(item, _on_demand(item))
            elif item.kind == "RequestSource":
                self._unmapped(item, f"write it for the interactions that use it: {_request(item)}")
            elif item.kind not in (*VIEWS, *SOURCES, "Entity", "Field", "Aggregation"):
                self._unmapped(item, "nothing like it here")
        sources = [source.text(name) for name, source in self.sources.items()]
        self.out.blocks = [*sources, *self.texts]
        if self.offline:
            self.out.notes.insert(0, _offline_note(self.offline))
        self.out.notes = list(dict.fromkeys(self.out.notes))
        return self.out

    # -- views -----------------------------------------------------------------------------

    def _view(self, view: Recorded) -> None:
        source = _source_of(view)
        file = _file_of(source)
        if not isinstance(source, Recorded) or source.kind not in SOURCES:
            kind = source.kind if isinstance(source, Recorded) else "no source"
            return self._unmapped(view, f"its source is {kind}; only {', '.join(SOURCES)} map")
        entities = [e for e in view.get("entities") or () if isinstance(e, Recorded)]
        if not entities:
            return self._unmapped(view, "it has no entity")
        columns = self._columns_of(file)
        keys = {key: self._key_type(entity, key) for entity in entities for key in _keys(entity)}
        if view.kind == "stream_feature_view" or view.get("udf") is not None:
            self.out.notes.append(
                f"{view.name}: its Python function is left out; what it computes goes into "
                "derive= and where="
            )
        time = view.get("timestamp_field") or _time_of(source) or "event_timestamp"
        aggregations = view.get("aggregations") or ()
        if aggregations:
            return self._aggregated(view, source, entities, keys, time, columns, aggregations)
        created = (file or source).get("created_timestamp_column")
        features = dict(self._features(view, {*keys, time, created}, columns))
        if not features:
            return self._unmapped(view, "none of its fields maps")
        schema = {
            **keys,
            time: "pf.Int64",
            **({created: "pf.Int64"} if created else {}),
            **features,
        }
        arguments = [f"event_time={_text(our_name(time))}"]
        if created:
            self.out.notes.append(
                f"{view.name}: a version counts from its {created} on, so that no read sees what "
                "was not known yet; Feast uses that column for ties only. Without created_time= "
                "history that was loaded later is read as Feast does"
            )
            arguments.append(f"created_time={_text(our_name(created))}")
        variable = self._source("TableSource", source, view, schema, arguments)
        self._block(
            "TableView",
            view,
            [
                f"source={variable}",
                f"entity={self._entity(entities, keys)}",
                f"columns={python_literal([our_name(name) for name in features])}",
            ],
        )
        return None

    def _aggregated(
        self,
        view: Recorded,
        source: Recorded,
        entities: Sequence[Recorded],
        keys: Mapping[str, str],
        time: str,
        columns: Mapping[str, Any],
        aggregations: Iterable[Recorded],
    ) -> None:
        fields = {f.name: type_text(f.get("dtype")) for f in view.get("schema") or ()}
        schema = {**keys, time: "pf.Int64"}
        windows: dict[tuple[str, str], list[str | None]] = {}
        for aggregation in aggregations:
            function, column = str(aggregation.get("function")), str(aggregation.get("column"))
            if function not in AGGREGATES:
                self._unmapped(view, f"aggregation {function} of {column}", part=True)
                continue
            arrow = columns.get(column)
            kind = (None if arrow is None else arrow_type_text(arrow)) or fields.get(column)
            if kind is None:
                kind = "pf.Float64"
                self.out.notes.append(f"{view.name}: the type of {column} is a guess, Float64")
            schema.setdefault(column, kind)
            length = duration_text(aggregation.get("time_window"))
            windows.setdefault((function, column), []).append(length)
            if aggregation.get("slide_interval") not in (None, aggregation.get("time_window")):
                self.out.notes.append(
                    f"{view.name}: {function} of {column} slid by its slide_interval; here every "
                    "window ends at the time of the read, and resolution= says how its start is "
                    "rounded"
                )
        if not windows:
            return self._unmapped(view, "none of its aggregations maps")
        arguments = [f"event_time={_text(our_name(time))}"]
        variable = self._source("EventSource", source, view, schema, arguments)
        features = [
            AGGREGATES[function].format(
                column=_text(our_name(column)), more=f", windows={_windows(lengths)}"
            )
            for (function, column), lengths in windows.items()
        ]
        self._block(
            "FeatureView",
            view,
            [
                f"source={variable}",
                f"entity={self._entity(entities, keys)}",
                "features=[\n" + "".join(f"        {text},\n" for text in features) + "    ]",
            ],
        )
        return None

    def _features(
        self, view: Recorded, taken: Collection[str], columns: Mapping[str, Any]
    ) -> Iterator[tuple[str, str]]:
        """Yield the view's fields; without any declared, the columns of its file, as in Feast.

        Keys and times are ``taken``.
        """
        fields = view.get("schema") or view.get("features") or ()
        if not fields:
            for name, arrow in columns.items():
                kind = arrow_type_text(arrow)
                if name not in taken and kind is not None:
                    yield name, kind
        for declared in fields:
            if declared.name in taken:
                continue
            kind = type_text(declared.get("dtype"))
            if kind is None:
                self._unmapped(
                    view, f"field {declared.name} of type {declared.get('dtype')!r}", part=True
                )
            else:
                self._renamed(view, declared.name)
                yield declared.name, kind

    # -- parts of views --------------------------------------------------------------------

    def _columns_of(self, file: Recorded | None) -> Mapping[str, Any]:
        """Return the columns of a file source; its footer is read once."""
        path = file.get("path") if file else None
        if path not in self._file_columns:
            self._file_columns[path] = file_schema(path, self.root)
        return self._file_columns[path]

    def _find_key_types(self, view: Recorded) -> None:
        """Find the type of a key: in all views of its entity the first that one of them knows."""
        columns = self._columns_of(_file_of(_source_of(view)))
        declared = {f.name: type_text(f.get("dtype")) for f in view.get("schema") or ()}
        for entity in view.get("entities") or ():
            for key in _keys(entity) if isinstance(entity, Recorded) else ():
                kind = declared.get(key) or type_text(entity.get("value_type"))
                if kind is None and key in columns:
                    kind = arrow_type_text(columns[key])
                if kind is not None:
                    self.key_types.setdefault((entity.name, key), kind)

    def _key_type(self, entity: Recorded, key: str) -> str:
        kind = self.key_types.get((entity.name, key))
        if kind is None:
            kind = "pf.String"
            self.out.notes.append(f"entity {entity.name}: the type of {key} is a guess, String")
        return kind

    def _entity(self, entities: Sequence[Recorded], keys: Mapping[str, str]) -> str:
        """Return the variable of an entity.

        Several entities of one view are one with all their keys.
        """
        names = tuple(keys)
        if names not in self.entities:
            name = "_".join(our_name(entity.name) for entity in entities)
            texts = ", ".join(f"{_text(our_name(key))}: {kind}" for key, kind in keys.items())
            variable = f"{name}_entity"
            arguments = [f"keys={{{texts}}}", *_metadata(entities[0])]
            self.texts.append(_call(variable, "Entity", name, arguments))
            self._count("entities")
            self.entities[names] = variable
        return self.entities[names]

    def _source(
        self,
        kind: str,
        source: Recorded,
        view: Recorded,
        schema: Mapping[str, str],
        arguments: Sequence[str],
    ) -> str:
        """Return the variable of a source, which has the columns of all views that read it."""
        name = our_name(str(source.get("name") or f"{view.name}_source"))
        feast_source = self.sources.get(name)
        if feast_source is not None and feast_source.kind != kind:
            # events to aggregate and rows that change are two tables here
            name = f"{name}_{'events' if kind == 'EventSource' else 'rows'}"
            feast_source = self.sources.get(name)
        if feast_source is None:
            feast_source = _FeastSource(kind, {}, [*arguments, *_metadata(source)])
            self.sources[name] = feast_source
            self._count("sources")
            file = _file_of(source)
            path = file.get("path") if file else None
            if path:
                words = ("paimon-features", "ingest", "files", name, str(path))
                self.out.loads.append(shlex.join(words))
            if source.kind in ("KafkaSource", "KinesisSource"):
                self.out.notes.append(f"source {name}: a stream; ingest it with 'ingest topic'")
            elif source.kind == "PushSource":
                self.out.notes.append(
                    f"source {name}: rows that were pushed are written with EventWriter"
                )
        feast_source.schema.update({**schema, **feast_source.schema})
        return _variable(name)

    def _block(self, kind: str, view: Recorded, arguments: list[str]) -> None:
        name = our_name(view.name)
        self._renamed(view, view.name)
        ttl = duration_text(view.get("ttl"))
        if ttl is not None:
            arguments.append(f"ttl={_text(ttl)}")
        arguments += _metadata(view)
        if kind == "TableView":
            self.offline.append(f"view {name}")
        variable = f"{name}_view" if keyword.iskeyword(name) or name == "pf" else name
        self.views[view.name] = variable
        self.texts.append(_call(variable, kind, name, arguments))
        self._count("feature views")

    def _service(self, service: Recorded) -> None:
        parts = []
        items = list(service.get("features") or next(iter(service.args[1:2]), ()))
        for item in items:
            variable = self.views.get(item.name)
            if variable is None:
                self._unmapped(service, f"part {item.name}, which did not map", part=True)
            elif item.selected is None:
                parts.append(variable)
            else:
                parts += [_text(f"{our_name(item.name)}:{our_name(f)}") for f in item.selected]
        if not parts:
            return self._unmapped(service, "none of its parts maps")
        name = our_name(service.name)
        variable = f"{name}_service"
        if name in map(our_name, self.views):
            # Feast looks up services and views apart; here a request names either
            self.out.notes.append(
                f"service {name}: a view has this name, so it is called {variable} here"
            )
            name = variable
        if any(f"view {our_name(item.name)}" in self.offline for item in items):
            self.offline.append(f"service {name}")
        arguments = [f"[{', '.join(parts)}]", *_metadata(service)]
        self.texts.append(_call(variable, "FeatureService", name, arguments))
        self._count("services")
        return None

    def _renamed(self, item: Recorded, name: str) -> None:
        if our_name(name) != name:
            self.out.notes.append(f"{item.name}: {name} is called {our_name(name)} here")

    def _unmapped(self, item: Recorded, why: str, part: bool = False) -> None:
        where = f"{_kind(item)} {item.name}"
        self.out.unmapped.append((where, f"without its {why}" if part else why))

    def _count(self, what: str) -> None:
        self.out.mapped[what] = self.out.mapped.get(what, 0) + 1


@dataclass
class _FeastSource:
    kind: str
    schema: dict[str, str]
    arguments: list[str]

    def text(self, name: str) -> str:
        columns = "".join(
            f"        {_text(our_name(column))}: {kind},\n" for column, kind in self.schema.items()
        )
        return _call(
            _variable(name), self.kind, name, [f"schema={{\n{columns}    }}", *self.arguments]
        )


def _variable(source: str) -> str:
    return source if source.endswith("_source") else f"{source}_source"


def _kind(item: Recorded) -> str:
    words = "".join(f" {c.lower()}" if c.isupper() else c for c in item.kind)
    return words.replace("_", " ").strip()


def _keys(entity: Recorded) -> list[str]:
    keys = entity.get("join_keys") or [entity.get("join_key") or entity.name]
    return [str(key) for key in keys]


def _source_of(view: Recorded) -> Any:
    return view.get("source") or view.get("stream_source") or view.get("batch_source")


def _file_of(source: Any) -> Recorded | None:
    """Return the file behind a source: itself, or what a push or stream source has as its batch."""
    if not isinstance(source, Recorded):
        return None
    if source.kind == "FileSource":
        return source
    return _file_of(source.get("batch_source"))


def _time_of(source: Recorded) -> str | None:
    column = source.get("timestamp_field") or source.get("event_timestamp_column")
    if column is None and isinstance(source.get("batch_source"), Recorded):
        return _time_of(source.get("batch_source"))
    return None if column is None else str(column)


def _metadata(item: Recorded) -> list[str]:
    """Return the arguments for description, owner and tags, where there are some."""
    parts = [
        f"{part}={_text(item.get(part))}" for part in ("description", "owner") if item.get(part)
    ]
    if item.get("tags"):
        tags = {str(key): str(value) for key, value in item.get("tags").items()}
        parts.append(f"tags={python_literal(tags)}")
    return parts


def _windows(lengths: Sequence[str | None]) -> str:
    return python_literal(list(dict.fromkeys(lengths)))


def _call(variable: str, kind: str, name: str, arguments: Iterable[str]) -> str:
    lines = "".join(f"    {argument},\n" for argument in arguments)
    return f"{variable} = pf.{kind}(\n    {_text(name)},\n{lines})\n"


def _text(text: Any) -> str:
    return python_literal(str(text))
