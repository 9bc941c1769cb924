"""What Feast reads and writes: a feature view of a project, or a table of its lake."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
from feast import type_map
from feast.data_source import DataSource
from feast.feature_logging import LoggingDestination
from feast.protos.feast.core.DataSource_pb2 import DataSource as DataSourceProto
from feast.protos.feast.core.FeatureService_pb2 import LoggingConfig as LoggingConfigProto
from feast.protos.feast.core.SavedDataset_pb2 import SavedDatasetStorage as StorageProto
from feast.saved_dataset import SavedDatasetStorage
from feast.value_type import ValueType

from paimon_features.core.errors import DefinitionError
from paimon_features.integrations.feast.plugin.projects import project_of
from paimon_features.lake.specs import EVENT_DAY, INGEST_TIME_MS

ADDED_COLUMNS = (EVENT_DAY, INGEST_TIME_MS)
"""Columns of an events table that ingestion adds."""


class PaimonSource(DataSource):
    """A feature or table view of a project (``view``), or rows of a table of its lake (``table``).

    A feature view is computed and materialized by ``paimon-features``; Feast reads it. A table is
    any append table: rows with a time in ``timestamp_field``, a timestamp or an integer of UTC
    milliseconds. A table view has both.

    Raises
    ------
    DefinitionError
        Without a view and a table, or a table without ``timestamp_field``.
    """

    def __init__(
        self,
        *,
        view: str | None = None,
        table: str | None = None,
        name: str | None = None,
        timestamp_field: str | None = None,
        **options: Any,
    ) -> None:
        if not (view or table):
            raise DefinitionError(
                "PaimonSource names nothing; expected view= (a feature view of the project) or "
                "table= (a table of its lake)"
            )
        self.view, self.table = view or None, table or None
        # Feast requires a time; a feature view has none of its own
        time = timestamp_field or "event_timestamp"
        super().__init__(name=name or table or view, timestamp_field=time, **options)

    @property
    def is_computed(self) -> bool:
        """Whether the values are computed by the project, and not rows that Feast may read."""
        return self.table is None

    def __hash__(self) -> int:
        return int(super().__hash__())

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, PaimonSource) and super().__eq__(other)
        return bool(same and (self.view, self.table) == (other.view, other.table))  # type: ignore[attr-defined]

    def source_type(self) -> Any:
        """Return Feast's type of sources that are not its own."""
        return DataSourceProto.CUSTOM_SOURCE

    @staticmethod
    def from_proto(data_source: Any) -> PaimonSource:
        """Return the source of a message of the registry."""
        options = json.loads(data_source.custom_options.configuration)
        return PaimonSource(
            view=options["view"],
            table=options["table"],
            name=data_source.name,
            timestamp_field=data_source.timestamp_field,
            created_timestamp_column=data_source.created_timestamp_column,
            field_mapping=dict(data_source.field_mapping),
            description=data_source.description,
            tags=dict(data_source.tags),
            owner=data_source.owner,
        )

    def _to_proto_impl(self) -> Any:
        return DataSourceProto(
            name=self.name,
            type=DataSourceProto.CUSTOM_SOURCE,
            data_source_class_type="paimon_features.integrations.feast.PaimonSource",
            custom_options=DataSourceProto.CustomSourceOptions(
                configuration=json.dumps({"view": self.view, "table": self.table}).encode()
            ),
            timestamp_field=self.timestamp_field,
            created_timestamp_column=self.created_timestamp_column,
            field_mapping=self.field_mapping,
            description=self.description,
            tags=self.tags,
            owner=self.owner,
        )

    def validate(self, config: Any) -> None:
        """Raise UnknownNameError unless the view or table exists."""
        project = project_of(config, config.offline_store)
        if self.view is not None:
            project.any_view(self.view)
        if self.table is not None:
            project.lake.schema(self.table)

    @staticmethod
    def source_datatype_to_feast_value_type() -> Callable[[str], ValueType]:
        """Return the conversion of Arrow's names of types to Feast's."""
        return type_map.pa_to_feast_value_type

    def get_table_column_names_and_types(self, config: Any) -> Iterable[tuple[str, str]]:
        """Return the columns, and their types as Arrow names them."""
        return [(name, str(kind)) for name, kind in self.columns(config)]

    def columns(self, config: Any) -> list[tuple[str, pa.DataType]]:
        """Return the columns and their Arrow types."""
        project = project_of(config, config.offline_store)
        if self.table is not None:
            return [
                (field.name, field.type)
                for field in project.lake.schema(self.table)
                if field.name not in ADDED_COLUMNS
            ]
        assert self.view is not None
        view = project.any_view(self.view)
        types = {**view.keys, **{feature.name: feature.type for feature in view.features}}
        return [(name, kind.arrow) for name, kind in types.items()]

    def get_table_query_string(self) -> str:
        """Return the name of the table or view."""
        return str(self.table or self.view)


class SavedDatasetPaimonStorage(SavedDatasetStorage):
    """A saved dataset as an append table of the lake."""

    _proto_attr_name = "custom_storage"

    def __init__(self, table: str, timestamp_field: str = "event_timestamp") -> None:
        self.table, self.timestamp_field = table, timestamp_field

    @staticmethod
    def from_proto(storage_proto: Any) -> SavedDatasetPaimonStorage:
        """Return the storage of a message of the registry."""
        options = json.loads(storage_proto.custom_storage.configuration)
        return SavedDatasetPaimonStorage(options["table"], options["timestamp_field"])

    def to_proto(self) -> StorageProto:
        """Return the message of the registry."""
        options = {"table": self.table, "timestamp_field": self.timestamp_field}
        return self._custom_storage_proto(
            DataSourceProto.CustomSourceOptions(configuration=json.dumps(options).encode())
        )

    def to_data_source(self) -> DataSource:
        """Return the source that reads it."""
        return PaimonSource(table=self.table, timestamp_field=self.timestamp_field)


class PaimonLoggingDestination(LoggingDestination):
    """Logged features as rows of an append table of the lake."""

    _proto_kind = "paimon_features.integrations.feast.PaimonLoggingDestination"

    def __init__(self, *, table: str) -> None:
        self.table = table

    @classmethod
    def from_proto(cls, config_proto: Any) -> PaimonLoggingDestination:
        """Return the destination of a message of the registry."""
        return cls(table=config_proto.custom_destination.config["table"])

    def to_proto(self) -> LoggingConfigProto:
        """Return the message of the registry."""
        return LoggingConfigProto(
            custom_destination=LoggingConfigProto.CustomDestination(
                kind=self._proto_kind, config={"table": self.table}
            )
        )

    def to_data_source(self) -> DataSource:
        """Return the source that reads it."""
        return PaimonSource(table=self.table, timestamp_field="__log_timestamp")
