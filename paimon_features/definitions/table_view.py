"""Slowly changing rows: a table of versions, and the newest version before a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from paimon_features.core.errors import DefinitionError
from paimon_features.core.times.durations import optional_ms
from paimon_features.core.types.schema import DataType, Int64, Timestamp
from paimon_features.definitions.entity import Entity
from paimon_features.definitions.metadata import (
    check_compiles,
    check_metadata,
    metadata,
    name_conflict,
    shown,
)
from paimon_features.definitions.source import EventSource


@dataclass(frozen=True, eq=False)
class TableSource(EventSource):
    """Rows that replace one another: each is a version, valid from its ``event_time`` on.

    They are ingested and stored like events, in the append table ``events_<name>``, so that the
    history of every row is kept. ``created_time`` (Timestamp, or Int64 UTC ms) is the time at
    which a version became known: a read at an earlier time does not see it, and of two versions
    with one event time the one created later counts. Times with more digits than milliseconds are
    rounded up, so that no version counts before its time.

    >>> from paimon_features.core.types.schema import Int64, String
    >>> profiles = TableSource("profiles", event_time="since_ms", created_time="made_ms",
    ...     schema={"user": Int64, "since_ms": Int64, "made_ms": Int64, "plan": String})
    >>> profiles.table
    'events_profiles'
    """

    created_time: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.created_time is None:
            return
        kind = self.schema.get(self.created_time)
        if kind == Timestamp:
            object.__setattr__(self, "schema", {**self.schema, self.created_time: Int64})
            return
        if kind != Int64:
            got = "not a column" if kind is None else f"{kind!r}"
            raise DefinitionError(
                f"source {self.name!r}: created_time={self.created_time!r} is {got}; expected a "
                "Timestamp or an Int64 column, UTC milliseconds; the columns are: "
                f"{', '.join(self.schema)}"
            )

    @property
    def time_columns(self) -> frozenset[str]:
        """The columns of the event time and of the time at which a version became known."""
        return frozenset({self.event_time, self.created_time} - {None})  # type: ignore[arg-type]

    @property
    def rounded_up(self) -> frozenset[str]:
        """Columns whose times are rounded up where they are finer than milliseconds."""
        return self.time_columns

    def to_document(self) -> dict[str, object]:
        """Return the canonical JSON form, as in the registry."""
        return {**super().to_document(), "created_time": self.created_time}


@dataclass(frozen=True, slots=True)
class TableFeature:
    """One feature of a table view: a column of the newest version."""

    name: str
    type: DataType


@dataclass(frozen=True)
class CompiledTable:
    """A table view as the offline store needs it."""

    name: str
    source: TableSource
    entity: Entity
    features: tuple[TableFeature, ...]
    ttl_ms: int | None
    closed: bool

    @property
    def keys(self) -> Mapping[str, DataType]:
        """Entity key columns and their types, in order."""
        return self.entity.keys

    def feature(self, name: str) -> TableFeature | None:
        """Return the feature of that name, or None."""
        return next((f for f in self.features if f.name == name), None)


@dataclass(frozen=True, eq=False)
class TableView:
    """Columns of the newest version of an entity's row, as of a time; read offline.

    A read at time ``q`` uses the newest version with ``event_time <= q``, as in Feast and in an
    ``ASOF JOIN``; with ``edge="open"`` the newest with ``event_time < q``. Where the source has a
    ``created_time``, the version was also known by then: ``created_time <= q``, or null. With
    ``ttl`` it must
    also have ``event_time >= q - ttl``; without such a version the values are null (MISSING). Of
    versions with one event time the one with the greatest ``created_time`` counts (null is the
    least), then the one ingested last, then the one whose columns are greatest, in their order.

    ``columns`` are the features, by default all columns except the keys and times.

    Raises
    ------
    DefinitionError
        For an unknown source or column, a wrong key type, an unknown edge.
    """

    name: str
    source: TableSource
    entity: Entity
    columns: Sequence[str] | None = None
    ttl: str | None = None
    edge: Literal["closed", "open"] = "closed"
    description: str = ""
    owner: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_metadata("table view", self)
        check_compiles("table view", self)

    @cached_property
    def compiled(self) -> CompiledTable:
        """The compiled view, for the offline store."""
        source, keys = self.source, self.entity.keys
        for key, kind in keys.items():
            if source.schema.get(key) != kind:
                raise DefinitionError(
                    f"key {key!r} is {kind!r} in entity {self.entity.name!r} and "
                    f"{source.schema.get(key, 'no column')!r} in source {source.name!r}"
                )
        reserved = {*keys, source.event_time, source.created_time}
        columns = self.columns
        if columns is None:
            columns = [name for name in source.schema if name not in reserved]
        if isinstance(columns, str) or not columns or len(set(columns)) != len(columns):
            raise DefinitionError(
                f"columns={columns!r}; expected the names of one or more columns, each once"
            )
        for name in columns:
            if name not in source.schema or name in keys:
                available = ", ".join(n for n in source.schema if n not in keys)
                raise DefinitionError(
                    f"column {name!r} of source {source.name!r} cannot be a feature; "
                    f"expected one of: {available}"
                )
        if conflict := name_conflict(columns):
            raise DefinitionError(f"{conflict}, or leave it out by columns=[...]")
        return CompiledTable(
            self.name,
            source,
            self.entity,
            tuple(TableFeature(name, source.schema[name]) for name in columns),
            optional_ms("ttl", self.ttl),
            self.edge == "closed",
        )

    def _repr_html_(self) -> str:
        from paimon_features.core.notebook.markup import card, facts, table

        columns = table(
            ((f.name, f.type.text) for f in self.compiled.features), ("feature", "type")
        )
        about = {
            "of": f"{self.source.name} → {self.name}, per {self.entity.name}",
            "null after": self.ttl,
            "edge": self.edge,
            **shown(self),
        }
        return card(f"TableView {self.name}", facts(about), columns, note=self.description)

    def to_document(self) -> dict[str, object]:
        """Return the canonical JSON form, as in the registry."""
        view = self.compiled
        return {
            "kind": "table_view",
            "name": self.name,
            "source": self.source.name,
            "entity": self.entity.name,
            "columns": {f.name: f.type.text for f in view.features},
            "ttl_ms": view.ttl_ms,
            "edge": self.edge,
            **metadata(self),
        }
