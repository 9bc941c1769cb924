"""Feast's offline store: features of the project at past times, and rows of tables of its lake.

Features of the project's views are read by its own point-in-time join. Rows of other tables of the
lake, and of files, are joined in memory by DuckDB; ``feast materialize`` pulls them by Feast's own
code.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ibis
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from feast import OnDemandFeatureView
from feast.errors import SavedDatasetLocationAlreadyExists
from feast.feature_view import DUMMY_ENTITY_ID
from feast.infra.offline_stores import ibis as feast_ibis
from feast.infra.offline_stores import offline_utils
from feast.infra.offline_stores.duckdb import (
    _read_data_source,  # what Feast's own store reads files with
    _write_data_source,
)
from feast.infra.offline_stores.file_source import SavedDatasetFileStorage
from feast.infra.offline_stores.offline_store import (
    OfflineStore as FeastOfflineStore,
)
from feast.infra.offline_stores.offline_store import (
    RetrievalJob,
    RetrievalMetadata,
)
from feast.repo_config import FeastConfigBaseModel
from pydantic import StrictStr

from paimon_features.core.errors import RequestError, unknown_name
from paimon_features.core.expressions.nodes import quoted
from paimon_features.core.types.foreign_types import plain_table
from paimon_features.integrations.feast.plugin.projects import project_of
from paimon_features.integrations.feast.plugin.sources import (
    ADDED_COLUMNS,
    PaimonLoggingDestination,
    PaimonSource,
    SavedDatasetPaimonStorage,
)
from paimon_features.lake import append_arrow, read_arrow
from paimon_features.lake.duckdb_engine import QUOTE, DuckDBEngine
from paimon_features.project import Project

_ROW, _TIME = "__row", "__time"
_UTC_US = pa.timestamp("us", "UTC")


class PaimonOfflineStoreConfig(FeastConfigBaseModel):
    """What ``feature_store.yaml`` says of the offline store: the project, as for the online store.

    ``as_of`` pins what is read of the project's views: the name of a training set, or UTC ms.
    """

    type: StrictStr = "paimon_features.integrations.feast.PaimonOfflineStore"
    project_path: StrictStr = "."
    as_of: int | StrictStr | None = None


class PaimonOfflineStore(FeastOfflineStore):
    """Reads views of a project, tables of its lake, and files; writes tables and files."""

    supports_filter_by_created_timestamp = True

    @staticmethod
    def get_historical_features(
        config: Any,
        feature_views: Sequence[Any],
        feature_refs: Sequence[str],
        entity_df: pd.DataFrame | str | None,
        registry: Any,
        project: str,
        full_feature_names: bool = False,
        filter_by_created_timestamp: bool = False,
    ) -> RetrievalJob:
        """Return the features of each row of ``entity_df`` at the time of the row.

        A feature of the project sees the events before that time, a row of a table or file is seen
        from its own time on.

        Raises
        ------
        RequestError
            For an ``entity_df`` that is absent.
        """
        if isinstance(entity_df, str):
            paimon_project = project_of(config, config.offline_store)
            entity_df = paimon_project.sql(entity_df).read_pandas()
        if not isinstance(entity_df, pd.DataFrame):
            raise RequestError(
                f"entity_df is {type(entity_df).__name__}; expected a data frame with the entity "
                "keys and a time for each row, or SQL over the tables of the lake"
            )
        time_column = offline_utils.infer_event_timestamp_from_entity_df(
            dict(zip(entity_df.columns, entity_df.dtypes, strict=True))
        )
        rows = entity_df.copy()
        rows[time_column] = pd.to_datetime(rows[time_column], utc=True)

        def read() -> pa.Table:
            table = pa.Table.from_pandas(rows, preserve_index=False)
            for view in feature_views:
                names = _names_of(view, feature_refs)
                if _view_of(view) is not None:
                    features = _history(config, view, names, rows, time_column)
                else:
                    features = _newest_rows(
                        config, view, names, rows, time_column, filter_by_created_timestamp
                    )
                prefix = f"{view.projection.name_alias or view.name}__"
                for name in names:
                    title = prefix + name if full_feature_names else name
                    table = table.append_column(title, features[name])
            return table

        metadata = RetrievalMetadata(
            features=list(feature_refs),
            keys=[name for name in rows.columns if name != time_column],
            min_event_timestamp=rows[time_column].min() if len(rows) else None,
            max_event_timestamp=rows[time_column].max() if len(rows) else None,
        )
        on_demand = OnDemandFeatureView.get_requested_odfvs(feature_refs, project, registry)
        return PaimonRetrievalJob(config, read, full_feature_names, on_demand, metadata)

    @staticmethod
    def pull_latest_from_table_or_query(
        config: Any,
        data_source: Any,
        join_key_columns: list[str],
        feature_name_columns: list[str],
        timestamp_field: str,
        created_timestamp_column: str | None,
        start_date: dt.datetime,
        end_date: dt.datetime,
    ) -> RetrievalJob:
        """Return the newest row of each entity, for ``feast materialize``.

        Of a view that the project materializes itself there is nothing to pull: no rows.
        """
        return _pulled(
            feast_ibis.pull_latest_from_table_or_query_ibis,
            config,
            data_source,
            join_key_columns,
            feature_name_columns,
            timestamp_field,
            created_timestamp_column=created_timestamp_column,
            start_date=start_date,
            end_date=end_date,
        )

    @staticmethod
    def pull_all_from_table_or_query(
        config: Any,
        data_source: Any,
        join_key_columns: list[str],
        feature_name_columns: list[str],
        timestamp_field: str,
        created_timestamp_column: str | None = None,
        start_date: dt.datetime | None = None,
        end_date: dt.datetime | None = None,
    ) -> RetrievalJob:
        """Return all rows of a time range; none of a view that the project computes."""
        return _pulled(
            feast_ibis.pull_all_from_table_or_query_ibis,
            config,
            data_source,
            join_key_columns,
            feature_name_columns,
            timestamp_field,
            created_timestamp_column=created_timestamp_column,
            start_date=start_date,
            end_date=end_date,
        )

    @staticmethod
    def offline_write_batch(
        config: Any, feature_view: Any, table: pa.Table, progress: Callable[[int], Any] | None
    ) -> None:
        """Append rows to the table or file of a view.

        Raises
        ------
        RequestError
            For a view that the project computes: its events are ingested.
        """
        feast_ibis.offline_write_batch_ibis(
            config=config,
            feature_view=feature_view,
            table=table,
            progress=progress,
            data_source_writer=_writer(config),
        )

    @staticmethod
    def write_logged_features(
        config: Any, data: pa.Table | Path, source: Any, logging_config: Any, registry: Any
    ) -> None:
        """Append logged features to the table or file of their destination."""
        destination = logging_config.destination
        if not isinstance(destination, PaimonLoggingDestination):
            feast_ibis.write_logged_features_ibis(config, data, source, logging_config, registry)
            return
        table = pq.read_table(data) if isinstance(data, Path) else data
        write_table(project_of(config, config.offline_store), destination.table, table)


class PaimonRetrievalJob(RetrievalJob):
    """A read that runs when its result is requested."""

    def __init__(
        self,
        config: Any,
        read: Callable[[], pa.Table],
        full_feature_names: bool = False,
        on_demand: Sequence[Any] = (),
        metadata: RetrievalMetadata | None = None,
    ) -> None:
        super().__init__()
        self._config, self._read, self._metadata = config, read, metadata
        self._full_feature_names, self._on_demand = full_feature_names, list(on_demand)

    def _to_df_internal(self, timeout: int | None = None) -> pd.DataFrame:
        return self._read().to_pandas()

    def _to_arrow_internal(self, timeout: int | None = None) -> pa.Table:
        return self._read()

    @property
    def full_feature_names(self) -> bool:
        """Whether features are called ``<view>__<feature>``."""
        return self._full_feature_names

    @property
    def on_demand_feature_views(self) -> list[Any]:
        """The on-demand views that Feast computes of the result."""
        return self._on_demand

    @property
    def metadata(self) -> RetrievalMetadata | None:
        """What was requested."""
        return self._metadata

    def persist(
        self, storage: Any, allow_overwrite: bool = False, timeout: int | None = None
    ) -> None:
        """Write the result to a table of the lake, or a file.

        Raises
        ------
        SavedDatasetLocationAlreadyExists
            If it exists, unless ``allow_overwrite``.
        """
        table = self.to_arrow()
        if isinstance(storage, SavedDatasetFileStorage):
            _write_data_source(
                ibis.memtable(table),
                storage.to_data_source(),
                str(self._config.repo_path),
                "overwrite",
                allow_overwrite,
            )
            return
        if not isinstance(storage, SavedDatasetPaimonStorage):
            raise RequestError(
                f"a dataset cannot be saved as {type(storage).__name__}; expected "
                "SavedDatasetPaimonStorage or SavedDatasetFileStorage"
            )
        project = project_of(self._config, self._config.offline_store)
        if project.lake.exists(storage.table):
            if not allow_overwrite:
                raise SavedDatasetLocationAlreadyExists(location=storage.table)
            project.lake.drop(storage.table)
        write_table(project, storage.table, table)


def write_table(project: Project, name: str, table: pa.Table) -> None:
    """Append rows to an append table of the lake, which is created if there is none.

    Times are kept as UTC microseconds.

    Raises
    ------
    TableError
        If the columns are not those of the table.
    """
    table = plain_table(table)
    fields = [pa.field(field.name, _stored(field.type)) for field in table.schema]
    stored = table.cast(pa.schema(fields))
    if not project.lake.exists(name):
        project.lake.create_like(name, stored.schema)
    append_arrow(project.lake, name, stored)


def _stored(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us")
    if pa.types.is_list(kind):
        return pa.list_(_stored(kind.value_type))
    return pa.null() if pa.types.is_null(kind) else kind


def _pulled(
    pull: Callable[..., RetrievalJob],
    config: Any,
    data_source: Any,
    join_key_columns: list[str],
    feature_name_columns: list[str],
    timestamp_field: str,
    **bounds: object,
) -> RetrievalJob:
    """Return the rows that Feast's function pulls; none of a view that the project computes."""
    columns = [*join_key_columns, *feature_name_columns, timestamp_field]
    if isinstance(data_source, PaimonSource) and data_source.is_computed:
        return PaimonRetrievalJob(config, lambda: _no_rows(config, data_source, columns))
    return pull(
        config=config,
        data_source=data_source,
        join_key_columns=join_key_columns,
        feature_name_columns=feature_name_columns,
        timestamp_field=timestamp_field,
        data_source_reader=_reader(config),
        data_source_writer=_writer(config),
        **bounds,
    )


def _reader(config: Any) -> Callable[[Any, str], Any]:
    def read(source: Any, repo_path: str) -> Any:
        if not isinstance(source, PaimonSource):
            return _read_data_source(source, repo_path)
        project = project_of(config, config.offline_store)
        if source.table is None:
            raise RequestError(f"view {source.view!r} has no rows of its own")
        table = read_arrow(project.lake, source.table)
        times = (source.timestamp_field, source.created_timestamp_column)
        for i, field in enumerate(table.schema):
            column = table.column(i)
            if field.name in times and pa.types.is_int64(field.type):
                column = column.cast(pa.timestamp("ms", "UTC"))
            if pa.types.is_timestamp(column.type):
                column = column.cast(_UTC_US)
            table = table.set_column(i, field.name, column)
        added = [name for name in ADDED_COLUMNS if name in table.column_names]
        return ibis.memtable(table.drop_columns(added))

    return read


def _writer(config: Any) -> Callable[..., None]:
    def write(
        table: Any,
        source: Any,
        repo_path: str,
        mode: str = "append",
        allow_overwrite: bool = False,
    ) -> None:
        if not isinstance(source, PaimonSource):
            _write_data_source(table, source, repo_path, mode, allow_overwrite)
            return
        project = project_of(config, config.offline_store)
        if source.view is not None or source.table is None:
            raise RequestError(
                f"view {source.view!r} is of the project: 'paimon-features ingest' writes it"
            )
        write_table(project, source.table, table.to_pyarrow())

    return write


def _view_of(view: Any) -> str | None:
    """Return the view of the project that a Feast view reads; None for other sources."""
    source = view.batch_source
    return source.view if isinstance(source, PaimonSource) else None


def _names_of(view: Any, refs: Sequence[str]) -> list[str]:
    """Return the requested features of a view."""
    name = view.projection.name_to_use()
    return [ref.split(":")[1] for ref in refs if ref.split(":")[0] == name]


def _history(
    config: Any, view: Any, names: Sequence[str], rows: pd.DataFrame, time_column: str
) -> pa.Table:
    """Return the features of one view of the project, for each row, in the order of the rows."""
    project = project_of(config, config.offline_store)
    name = _view_of(view)
    assert name is not None
    keys: dict[str, pa.Array] = {}
    mapping = view.projection.join_key_map
    for key, kind in project.any_view(name).keys.items():
        column = mapping.get(key, key)
        if column not in rows:
            raise RequestError(unknown_name("column", column, map(str, rows.columns), "entity_df"))
        keys[key] = pa.array(rows[column], from_pandas=True).cast(kind.arrow)
    times = pa.array(rows[time_column].dt.floor("ms")).cast(pa.timestamp("ms", "UTC"))
    keys["event_time_ms"] = times.cast(pa.int64())
    as_of = config.offline_store.as_of
    refs = [f"{name}:{feature}" for feature in names]
    features = project.get_historical_features(refs, pa.table(keys), as_of=as_of)
    return features.select(list(names))


def _newest_rows(
    config: Any,
    view: Any,
    names: Sequence[str],
    rows: pd.DataFrame,
    time_column: str,
    by_created: bool,
) -> pa.Table:
    """Return the features of a table or file: of each row's entity the newest version at its
    time."""
    source = view.batch_source
    lazy = _reader(config)(source, str(config.repo_path))
    lazy = lazy.rename(
        {new: old for old, new in source.field_mapping.items() if old in lazy.columns}
    )
    event, created = source.timestamp_field, source.created_timestamp_column
    keys = view.projection.join_key_map or {e.name: e.name for e in view.entity_columns}
    keys = {key: row for key, row in keys.items() if key != DUMMY_ENTITY_ID}
    times = dict.fromkeys([event, *([created] if created else [])])
    lazy = lazy.mutate(**{name: lazy[name].cast("timestamp('UTC', 6)") for name in times})
    table = lazy.select(*dict.fromkeys([*keys, *names, *times])).to_pyarrow()
    entity_rows = {f"k{i}": pa.array(rows[column]) for i, column in enumerate(keys.values())}
    entity_rows[_TIME] = pa.array(rows[time_column]).cast(_UTC_US)
    entity_rows[_ROW] = pa.array(range(len(rows)), pa.int64())

    conditions = [f"f.{_quoted(key)} = e.k{i}" for i, key in enumerate(keys)]
    conditions.append(f"f.{_quoted(event)} <= e.{_TIME}")
    order = f"f.{_quoted(event)} DESC"
    if view.ttl:
        ttl_us = view.ttl // dt.timedelta(microseconds=1)
        conditions.append(f"f.{_quoted(event)} >= e.{_TIME} - to_microseconds({ttl_us})")
    if created:
        order += f", f.{_quoted(created)} DESC NULLS LAST"
        if by_created:
            conditions.append(f"f.{_quoted(created)} <= e.{_TIME}")
    columns = ", ".join(f"f.{_quoted(name)}" for name in names)
    statement = (
        f"SELECT {', '.join(map(_quoted, names))} FROM (SELECT e.{_ROW} AS __at, {columns}, "
        f"row_number() OVER (PARTITION BY e.{_ROW} ORDER BY {order}) AS __nth "
        f"FROM e LEFT JOIN f ON {' AND '.join(conditions)}) WHERE __nth = 1 ORDER BY __at"
    )
    with DuckDBEngine() as engine:
        engine.add("e", pa.table(entity_rows))
        engine.add("f", table)
        return engine.table(statement, f"joining feature view {view.name!r}")


def _quoted(name: str) -> str:
    return quoted(name, QUOTE)


def _no_rows(config: Any, source: PaimonSource, columns: Sequence[str]) -> pa.Table:
    types = dict(source.columns(config))
    return pa.schema([(name, types.get(name, _UTC_US)) for name in columns]).empty_table()
