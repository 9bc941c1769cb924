"""What a command read and wrote: tables of the lake, files, topics, the online store, models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from paimon_features.core.configuration.kafka_settings import KafkaSettings
from paimon_features.definitions import CompiledView, FeatureRef, Selection
from paimon_features.lake import latest_snapshot
from paimon_features.lake.side_folder import generations
from paimon_features.lake.specs import TRAINING_PREFIX
from paimon_features.project import Project

Params = Mapping[str, Any]
Columns = Mapping[str, tuple[tuple["LineageDataset", str], ...]]


@dataclass(frozen=True)
class LineageDataset:
    """A dataset as OpenLineage names it.

    ``fields`` are names and types of its columns, ``version`` is the snapshot of a table.
    ``columns`` maps a column to what it is computed from: datasets and their columns.
    """

    namespace: str
    name: str
    source: str
    fields: tuple[tuple[str, str], ...] = ()
    version: str | None = None
    alias: str | None = None
    columns: Columns = field(default_factory=dict, compare=False)


Datasets = tuple[list[LineageDataset], list[LineageDataset]]


def command_datasets(project: Project, command: str, params: Params) -> Datasets:
    """Return the inputs and outputs of a command with these parameters, as they are now.

    A command that is not known has none. Inputs and outputs are in the order of the definitions.

    Raises
    ------
    PaimonFeaturesError
        If definitions or tables cannot be read.
    """
    reader = _DatasetReader(project)
    find = COMMANDS.get(command)
    return ([], []) if find is None else find(reader, params)


class _DatasetReader:
    def __init__(self, project: Project) -> None:
        self.project = project

    def table(self, name: str, columns: Columns | None = None) -> LineageDataset:
        """Return a table of the lake, which need not exist yet."""
        lake = self.project.lake
        path = lake.path(name)
        parts = urlsplit(path)
        remote = bool(parts.netloc)
        namespace = f"{parts.scheme}://{parts.hostname}" if remote else "file"
        fields: tuple[tuple[str, str], ...] = ()
        version = None
        if lake.exists(name):
            fields = tuple((f.name, str(f.type)) for f in lake.schema(name))
            newest = latest_snapshot(lake, name)
            version = None if newest is None else newest.ref
        return LineageDataset(
            namespace,
            parts.path.lstrip("/") if remote else path,
            lake.warehouse,
            fields,
            version,
            f"{lake.database}.{name}",
            columns or {},
        )

    def file(self, path: str | Path) -> LineageDataset:
        """Return a file, folder or pattern that a command was given."""
        parts = urlsplit(str(path))
        if parts.netloc:
            place = f"{parts.scheme}://{parts.hostname}"
            return LineageDataset(place, parts.path.lstrip("/"), place)
        return LineageDataset("file", str(Path(path).absolute()), "file")

    def topic(self, name: str, brokers: str | None) -> LineageDataset:
        """Return a topic of Kafka."""
        given = brokers or KafkaSettings.of(self.project.config.kafka, self.project.root).brokers
        first = str(given).split(",")[0].strip()
        return LineageDataset(f"kafka://{first}", name, f"kafka://{first}")

    def tiles(self, view: CompiledView, generation: int | None = None) -> LineageDataset:
        """Return the tile table of a view: of a generation, by default the active one, or the
        newest."""
        events = self.table(view.source.table)
        if generation is None:
            records = generations.load(self.project.lake, view.name)
            active = generations.active(self.project.lake, view.name)
            newest = max((r.generation for r in records), default=1)
            generation = newest if active is None else active.generation
        columns = {
            partial: _of_events(events, view, expression.columns)
            for partial, expression in view.expressions.items()
        }
        columns |= {key: ((events, key),) for key in view.keys if key in view.source.schema}
        return self.table(view.table(generation), columns)

    def online(self, view: CompiledView) -> LineageDataset:
        """Return the records of a view in the online store: its features, by the partials of the
        tiles."""
        tiles = self.tiles(view)
        place = self.project.online_settings.where
        return LineageDataset(
            place,
            f"{self.project.name}.{view.name}",
            place,
            tuple((f.name, f.type.text) for f in view.features),
            columns={f.name: tuple((tiles, p) for p in f.partials) for f in view.features},
        )

    def features(self, features: str | Iterable[str]) -> tuple[list[LineageDataset], Columns]:
        """Return the tables behind features, and for the column of each what it is computed
        from."""
        texts = [features] if isinstance(features, str) else list(features)
        selection = Selection.of(self.project.refs(texts))
        inputs: dict[str, LineageDataset] = {}
        parts: dict[FeatureRef, tuple[tuple[LineageDataset, str], ...]] = {}
        for ref in selection.refs:
            view = self.project.any_view(ref.view)
            if isinstance(view, CompiledView):
                feature = view.feature(ref.feature)
                source = inputs.setdefault(ref.view, self.tiles(view))
                names = () if feature is None else feature.partials
                parts[ref] = tuple((source, name) for name in names)
            else:
                source = inputs.setdefault(ref.view, self.table(view.source.table))
                parts[ref] = ((source, ref.feature),)
        columns: dict[str, tuple[tuple[LineageDataset, str], ...]] = {}
        for output, name in selection.columns.items():
            refs = (output,) if isinstance(output, FeatureRef) else output.refs
            columns[name] = tuple(dict.fromkeys(pair for ref in refs for pair in parts[ref]))
        return list(inputs.values()), columns


def _of_events(
    events: LineageDataset, view: CompiledView, columns: Iterable[str]
) -> tuple[tuple[LineageDataset, str], ...]:
    """Return columns of an expression; the times of a tile come from the event time."""
    named = {name if name in view.source.schema else view.source.event_time for name in columns}
    return tuple((events, name) for name in sorted(named))


def _apply(reader: _DatasetReader, params: Params) -> Datasets:
    if params.get("generation"):  # no table is written
        return [], []
    defined = reader.project.definitions
    tables = [reader.table(source.table) for source in defined.sources.values()]
    tables += [reader.tiles(view.compiled) for view in defined.views.values()]
    return [], tables


def _ingest(reader: _DatasetReader, params: Params) -> Datasets:
    source = reader.project.definitions.source(params["source"])
    inputs = [reader.file(path) for path in params.get("paths") or ()]
    if params.get("topic"):
        inputs.append(reader.topic(params["topic"], params.get("kafka")))
    if params.get("table"):
        inputs.append(reader.table(params["table"]))
    return inputs, [reader.table(source.table), reader.table(source.rejected_table)]


def _tile_job(reader: _DatasetReader, params: Params) -> Datasets:
    view = reader.project.view(params["view"])
    return [reader.table(view.source.table)], [reader.tiles(view, params.get("generation"))]


def _materialize(reader: _DatasetReader, params: Params) -> Datasets:
    names = params.get("views") or list(reader.project.definitions.views)
    views = [reader.project.view(name) for name in names]
    online = [view for view in views if view.is_online]
    return [reader.tiles(view) for view in online], [reader.online(view) for view in online]


def _rows(reader: _DatasetReader, rows: str) -> LineageDataset:
    name = rows.partition("@")[0]
    return reader.table(name) if name in reader.project.lake.list() else reader.file(rows)


def _training_set(reader: _DatasetReader, params: Params) -> Datasets:
    inputs, columns = reader.features(params["service"].split(","))
    if params.get("output") is None:
        target = reader.table(TRAINING_PREFIX + params["name"], columns)
    else:
        file = reader.file(params["output"])
        fields = tuple((name, "") for name in columns)
        target = LineageDataset(file.namespace, file.name, file.source, fields, columns=columns)
    return [*inputs, _rows(reader, params["rows"])], [target]


def _train(reader: _DatasetReader, params: Params) -> Datasets:
    place = f"paimon-features://{reader.project.name}"
    model = LineageDataset(place, f"models.{params['name']}", place)
    return [reader.table(TRAINING_PREFIX + params["training_set"])], [model]


def _maintain(reader: _DatasetReader, params: Params) -> Datasets:
    if params.get("only"):  # the names are those of sources or views
        return [], []
    names = params.get("tables") or reader.project.lake.list()
    tables = [reader.table(name) for name in names]
    return tables, tables


def _derive(reader: _DatasetReader, params: Params) -> Datasets:
    derived = reader.project.definitions.derived_view(params["name"])
    view = reader.project.view(derived.compiled.view.name)
    return [reader.tiles(view)], [reader.table(derived.table)]


def _publish(reader: _DatasetReader, params: Params) -> Datasets:
    view = reader.project.view(params["view"])
    topic = reader.topic(params["topic"], params.get("kafka"))
    return [reader.online(view)], [topic]


COMMANDS = {
    "apply": _apply,
    "backfill": _tile_job,
    "derive": _derive,
    "ingest": _ingest,
    "maintain": _maintain,
    "materialize": _materialize,
    "publish": _publish,
    "submit": _tile_job,
    "train": _train,
    "training-set": _training_set,
}
"""The commands with datasets."""
