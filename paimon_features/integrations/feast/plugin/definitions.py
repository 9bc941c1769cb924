"""A project's definitions as objects of Feast, for its registry."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import feast
from feast import types
from feast.value_type import ValueType

from paimon_features.core.types.schema import DataType, ListType
from paimon_features.definitions import FeatureRef, FeatureView, TableView
from paimon_features.integrations.feast.plugin.sources import PaimonSource
from paimon_features.project import Project

_TYPES: Mapping[str, Any] = {
    "bool": types.Bool,
    "int32": types.Int32,
    "int64": types.Int64,
    "float32": types.Float32,
    "float64": types.Float64,
    "string": types.String,
    "bytes": types.Bytes,
    "date": types.UnixTimestamp,
    "timestamp": types.UnixTimestamp,
}
_KEYS = {
    "bool": ValueType.BOOL,
    "int32": ValueType.INT32,
    "int64": ValueType.INT64,
    "string": ValueType.STRING,
    "date": ValueType.UNIX_TIMESTAMP,
}


def feast_objects(project_path: str | Path = ".") -> dict[str, Any]:
    """Return Feast's entities, feature views and services for those of a project, by name.

    In a file of a Feast repository::

        globals().update(paimon_features.integrations.feast.feast_objects("../shop"))

    Feast's entity has one key: an entity of ours with several becomes one for each. Features of
    types that Feast has not (decimals, maps) are left out, as are the interactions and transformed
    features of a service, which the feature server computes.

    Raises
    ------
    ConfigurationError
        If there is no project.
    """
    definitions = Project.open(project_path).definitions
    entities: dict[str, list[Any]] = {}
    for entity in definitions.entities.values():
        single = len(entity.keys) == 1
        entities[entity.name] = [
            feast.Entity(
                name=entity.name if single else f"{entity.name}_{key}",
                join_keys=[key],
                value_type=_KEYS[kind.text],
                description=entity.description,
            )
            for key, kind in entity.keys.items()
        ]
    views: dict[str, Any] = {}
    defined: list[FeatureView | TableView] = [*definitions.views.values()]
    defined += definitions.tables.values()
    for view in defined:
        of_table: dict[str, Any] = {}
        if isinstance(view, TableView):
            source = view.source
            of_table = {"table": source.table, "timestamp_field": source.event_time}
            if source.created_time is not None:
                of_table["created_timestamp_column"] = source.created_time
        compiled = view.compiled
        fields = {name: _type(kind) for name, kind in compiled.keys.items()}
        fields |= {feature.name: _type(feature.type) for feature in compiled.features}
        views[view.name] = feast.FeatureView(
            name=view.name,
            entities=entities[view.entity.name],
            ttl=dt.timedelta(milliseconds=compiled.ttl_ms or 0) if of_table else dt.timedelta(0),
            schema=[feast.Field(name=n, dtype=t) for n, t in fields.items() if t is not None],
            source=PaimonSource(view=view.name, name=f"{view.name}_source", **of_table),
            description=view.description,
            owner=view.owner,
            tags=dict(view.tags),
        )
    services = {}
    for service in definitions.services.values():
        chosen: dict[str, list[str]] = {}
        for item in service.items():
            if isinstance(item, FeatureRef):
                field_names = [field.name for field in views[item.view].features]
                if item.feature in field_names:
                    chosen.setdefault(item.view, []).append(item.feature)
        services[service.name] = feast.FeatureService(
            name=service.name,
            features=[views[view][names] for view, names in chosen.items()],
            description=service.description,
            owner=service.owner,
            tags=dict(service.tags),
        )
    every = {f"entity_{e.name}": e for several in entities.values() for e in several}
    every |= {f"view_{name}": view for name, view in views.items()}
    return every | {f"service_{name}": service for name, service in services.items()}


def _type(kind: DataType) -> Any | None:
    """Return the type in Feast; None where it has none."""
    if isinstance(kind, ListType):
        item = _TYPES.get(kind.item.text)
        return None if item is None else types.Array(item)
    return _TYPES.get(kind.text)
