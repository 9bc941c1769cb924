"""Feast's online store: features that the project serves, and rows that Feast materializes.

A Feast feature view over a ``PaimonSource(view=...)`` is read as every other client reads it, from
the records of the project's feature view. The rows of all other views are written by Feast
(``materialize``, ``push``) and kept next to them, one key per entity::

    pf:{shop:@feast:<feast project>:<view>:<bucket>}:<entity key>
    value:  event time (int64, UTC us) | created time (int64) | message feast.types.Map

A write is a compare-and-set that never replaces a newer row: rows may arrive in any order, from
any number of processes.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from feast.infra.key_encoding_utils import serialize_entity_key
from feast.infra.online_stores.online_store import OnlineStore as FeastOnlineStore
from feast.infra.supported_async_methods import SupportedAsyncMethods
from feast.protos.feast.types.Value_pb2 import Map as MapProto
from feast.protos.feast.types.Value_pb2 import Value as ValueProto
from feast.repo_config import FeastConfigBaseModel
from feast.type_map import python_values_to_proto_values
from pydantic import Field, StrictStr

from paimon_features.core.errors import OnlineStoreError, RequestError
from paimon_features.integrations.feast.plugin.projects import project_of
from paimon_features.integrations.feast.plugin.sources import PaimonSource
from paimon_features.online.store.store import OnlineStore, Write
from paimon_features.serving.client import FeatureClient

BUCKETS = 64
"""Hash slots that the rows of a view are spread over on a cluster."""
_TIMES = struct.Struct(">qq")
_NEVER = -(1 << 63)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_ATTEMPTS = 20
_BATCH = 1_000

Row = tuple[dt.datetime | None, dict[str, Any] | None]


class PaimonOnlineStoreConfig(FeastConfigBaseModel):
    """What ``feature_store.yaml`` says of the online store.

    ``project_path`` is the folder with ``paimon-features.toml``, relative to the repository. With
    ``server_url`` the features of the project come from its feature server, with the token in
    PAIMON_FEATURES_TOKEN. ``key_ttl_seconds`` is the time to live of the rows that Feast writes.
    """

    type: StrictStr = "paimon_features.integrations.feast.PaimonOnlineStore"
    project_path: StrictStr = "."
    server_url: StrictStr | None = None
    key_ttl_seconds: int | None = Field(default=None, ge=1)


class PaimonOnlineStore(FeastOnlineStore):
    """Reads features of the project; reads and writes the rows of Feast's other views."""

    def __init__(self) -> None:
        self._clients: dict[str, FeatureClient] = {}

    @property
    def async_supported(self) -> SupportedAsyncMethods:
        """Reads and writes, each in a thread."""
        return SupportedAsyncMethods(read=True, write=True)

    def online_write_batch(
        self,
        config: Any,
        table: Any,
        data: Sequence[tuple[Any, Mapping[str, Any], dt.datetime, dt.datetime | None]],
        progress: Callable[[int], Any] | None,
    ) -> None:
        """Write rows; of each entity the newest by event time, then created time, stays.

        Raises
        ------
        RequestError
            For a view that the project computes.
        OnlineStoreError
            If the store does not respond, or the rows kept changing under the writes.
        """
        if (source := _computed(table)) is not None:
            raise RequestError(
                f"feature view {table.name!r} reads {source.view!r}, which "
                f"'paimon-features materialize {source.view}' writes; Feast cannot"
            )
        project = project_of(config, config.online_store)
        newest: dict[bytes, dict[bytes, bytes]] = {}
        stem = _stem(project, config, table.name)
        for entity, values, event, created in data:
            stem_of_bucket, key = _key(stem, config, entity)
            times = _TIMES.pack(_us(event), _NEVER if created is None else _us(created))
            rows = newest.setdefault(stem_of_bucket, {})
            if _is_newer(times, rows.get(key)):
                rows[key] = times + MapProto(val=values).SerializeToString()
        ttl_s = config.online_store.key_ttl_seconds
        for stem_of_bucket, rows in newest.items():
            items = [(stem_of_bucket + key, value) for key, value in rows.items()]
            for start in range(0, len(items), _BATCH):
                some = dict(items[start : start + _BATCH])
                _put(project.store, some, None if ttl_s is None else ttl_s * 1_000)
        if progress is not None:
            progress(len(data))

    async def online_write_batch_async(
        self, config: Any, table: Any, data: Any, progress: Callable[[int], Any] | None
    ) -> None:
        """See ``online_write_batch``."""
        await asyncio.to_thread(self.online_write_batch, config, table, data, progress)

    def online_read(
        self,
        config: Any,
        table: Any,
        entity_keys: Sequence[Any],
        requested_features: Sequence[str] | None = None,
    ) -> list[Row]:
        """Return the event time and the features of each entity; ``(None, None)`` where there is
        none.

        Raises
        ------
        StoreNotReadyError, OnlineStoreError, ClientError
            If they cannot be read.
        """
        if not entity_keys:
            return []
        if (source := _computed(table)) is not None:
            names = list(requested_features or (f.name for f in table.features))
            return self._computed_rows(config, table, source, entity_keys, names)
        project = project_of(config, config.online_store)
        stem = _stem(project, config, table.name)
        keys = [b"".join(_key(stem, config, entity)) for entity in entity_keys]
        return [_row(value, requested_features) for value in project.store.get_many(keys)]

    async def online_read_async(
        self,
        config: Any,
        table: Any,
        entity_keys: Sequence[Any],
        requested_features: Sequence[str] | None = None,
    ) -> list[Row]:
        """See ``online_read``."""
        return await asyncio.to_thread(
            self.online_read, config, table, entity_keys, requested_features
        )

    def update(
        self,
        config: Any,
        tables_to_delete: Sequence[Any],
        tables_to_keep: Sequence[Any],
        entities_to_delete: Sequence[Any],
        entities_to_keep: Sequence[Any],
        partial: bool,
    ) -> None:
        """Remove the rows of views that are no longer defined. The project's views stay."""
        self.teardown(config, tables_to_delete, ())

    def teardown(self, config: Any, tables: Sequence[Any], entities: Sequence[Any]) -> None:
        """Remove the rows of these views that Feast wrote. The project's views stay."""
        written = [table for table in tables if _computed(table) is None]
        if not written:
            return
        project = project_of(config, config.online_store)
        for table in written:
            for page in project.store.scan(f"{_stem(project, config, table.name)}:".encode()):
                project.store.delete(page)

    def _computed_rows(
        self,
        config: Any,
        table: Any,
        source: PaimonSource,
        entity_keys: Sequence[Any],
        names: Sequence[str],
    ) -> list[Row]:
        entities: dict[str, list[Any]] = {}
        for entity in entity_keys:
            for name, value in zip(entity.join_keys, entity.entity_values, strict=True):
                entities.setdefault(name, []).append(getattr(value, value.WhichOneof("val")))
        refs = [f"{source.view}:{name}" for name in names]
        url = config.online_store.server_url
        if url is not None:
            client = self._clients.get(url)
            if client is None:
                client = self._clients[url] = FeatureClient(url)
            reply = client.get_online_features(refs, entities)
            columns, statuses = reply.columns, reply.statuses
            times = next(iter(reply.event_times_ms.values()))
        else:
            project = project_of(config, config.online_store)
            response = project.online.get(refs, entities)
            columns = response.to_pydict()
            rows = response.status_rows()
            statuses = {name: [row[name] for row in rows] for name in names}
            times = response.event_time_lists()[str(source.view)]
        types = {field.name: field.dtype.to_value_type() for field in table.features}
        values = {
            name: python_values_to_proto_values(list(columns[name]), types[name]) for name in names
        }
        out: list[Row] = []
        for i, time_ms in enumerate(times):
            if time_ms is None and all(statuses[name][i] == "MISSING" for name in names):
                out.append((None, None))
                continue
            at = _EPOCH + dt.timedelta(milliseconds=time_ms or 0)
            out.append((at, {name: values[name][i] for name in names}))
        return out


def _computed(table: Any) -> PaimonSource | None:
    """Return the source of a view that the project computes; None for all others."""
    source = getattr(table, "batch_source", None)
    return source if isinstance(source, PaimonSource) and source.is_computed else None


def _stem(project: Any, config: Any, view: str) -> str:
    # no feature view is called '@feast', so the keys are not those of one
    return f"{project.store.key_prefix}{{{project.name}:@feast:{config.project}:{view}"


def _key(stem: str, config: Any, entity: Any) -> tuple[bytes, bytes]:
    """Return the part of a key that its bucket has, and the rest."""
    text = serialize_entity_key(
        entity, entity_key_serialization_version=config.entity_key_serialization_version
    )
    return f"{stem}:{zlib.crc32(text) % BUCKETS}}}:".encode(), text


def _us(moment: dt.datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return (moment - _EPOCH) // _MICROSECOND


def _is_newer(times: bytes, before: bytes | None) -> bool:
    return before is None or _TIMES.unpack(times) >= _TIMES.unpack_from(before)


def _put(store: OnlineStore, rows: Mapping[bytes, bytes], expire_ms: int | None) -> None:
    """Write the rows of one bucket that are newer than the stored ones."""
    waiting = dict(rows)
    for _ in range(_ATTEMPTS):
        keys = list(waiting)
        writes = [
            Write(key, None if before is None else before[: _TIMES.size], waiting[key], expire_ms)
            for key, before in zip(keys, store.get_many(keys), strict=True)
            if _is_newer(waiting[key][: _TIMES.size], before)
        ]
        done = store.compare_and_set_many(writes) if writes else []
        waiting = {write.key: write.value for write, ok in zip(writes, done, strict=True) if not ok}
        if not waiting:
            return
    raise OnlineStoreError(
        f"{len(waiting)} rows changed under each of {_ATTEMPTS} writes; other processes write the "
        "same entities"
    )


def _row(value: bytes | None, requested: Sequence[str] | None) -> Row:
    if value is None:
        return None, None
    event_us, _ = _TIMES.unpack_from(value)
    values = MapProto.FromString(value[_TIMES.size :]).val
    names = values if requested is None else requested
    features = {name: values[name] if name in values else ValueProto() for name in names}
    return _EPOCH + event_us * _MICROSECOND, features
