"""The request log read back: a sample of requests, with decoded rows."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.errors import VerificationError
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions.served import SERVED_COLUMNS
from paimon_features.lake import Lake, iter_batches
from paimon_features.lake.specs import SERVED_DAY
from paimon_features.serving.request_log.commit import served_table

RequestKey = tuple[str, str, int, int]
"""Id, worker, time and number of a request: clients may reuse an id, and a restarted worker
reuses its name and numbers."""
LogPart = tuple[int, int, Mapping[str, Any] | None]
"""Rows served from a time (inclusive) to another (exclusive), with these values in columns."""
_KEY = ("request_id", "worker", "served_at_ms", "number")


@dataclass(frozen=True, slots=True)
class LoggedRow:
    """One row of the log. ``values`` and ``statuses`` are by feature, as JSON reads them."""

    request_id: str
    worker: str
    number: int
    served_at_ms: int
    as_of_ms: int
    service: str
    view: str
    row: int
    entity: str
    values: Mapping[str, Any]
    statuses: Mapping[str, str]
    inputs: Mapping[str, Any]
    applied_snapshot: int
    record_snapshot: int | None
    commit_time_ms: int
    freshness_ms: int
    generation: int
    incarnation: int
    definition: str

    @property
    def request(self) -> RequestKey:
        """The key of its request."""
        return self.request_id, self.worker, self.served_at_ms, self.number

    @property
    def snapshot(self) -> int:
        """The snapshot of the tile table that the values are from.

        A record contains all commits of its entity up to its own snapshot, and the entity had none
        from there to its bucket's snapshot, or the record would be newer.
        """
        return max(self.applied_snapshot, self.record_snapshot or 0)

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> LoggedRow:
        """Decode a row of the table; ValueError for one that the log cannot have written."""
        values, statuses = json.loads(raw["feature_values"]), json.loads(raw["feature_statuses"])
        inputs = json.loads(raw["inputs"] or "{}")
        if not all(isinstance(one, dict) for one in (values, statuses, inputs)):
            raise ValueError("values, statuses and inputs have to be JSON objects")
        if values.keys() != statuses.keys():
            raise ValueError("there is not one status for each value")
        names = cls.__dataclass_fields__.keys() - {"values", "statuses", "inputs"}
        plain = {name: raw[name] for name in names}
        for name in ("applied_snapshot", "commit_time_ms", "freshness_ms", "generation",
                     "incarnation"):  # fmt: skip
            if raw["view"] and plain[name] is None:
                raise ValueError(f"{name} is null")
            plain[name] = plain[name] or 0
        return cls(values=values, statuses=statuses, inputs=inputs, **plain)


def sampled_rows(
    lake: Lake,
    project: str,
    *,
    since_ms: int,
    until_ms: int,
    service: str | None,
    sample: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Return all rows of ``sample`` requests that were served from ``since_ms`` to ``until_ms``
    (exclusive), as the table has them; with ``service``, only requests for that service.

    The requests are chosen by their keys and ``seed``; memory is needed for the sample only.

    Raises
    ------
    VerificationError
        If there is no request log, or nothing in it of that time.
    """
    table = served_table(project)
    if not lake.exists(table):
        raise VerificationError(
            f"table {table!r} does not exist: set [serve] request_log, and run "
            "'paimon-features request-log --follow' where the spool files are"
        )
    within = (since_ms, until_ms, None if service is None else {"service": service})
    requests = sampled_requests(lake, table, within, sample, seed)
    if not requests:
        query = "" if service is None else f" of service {service!r}"
        raise VerificationError(
            f"the request log {table!r} has no request{query} from {since_ms} to {until_ms} ms; "
            "is it committed ('paimon-features request-log'), and is the rate high enough?"
        )
    return rows_of_requests(lake, table, list(SERVED_COLUMNS), within, requests)


def sampled_requests(
    lake: Lake, table: str, within: LogPart, sample: int, seed: int, *, having: str | None = None
) -> set[str]:
    """Texts that identify ``sample`` requests of a log, of those ``having`` a column.

    Chosen by their keys and ``seed``; memory is needed for the sample only.
    """
    # the greatest negative numbers are the least numbers: a heap keeps them within its bound
    kept: list[tuple[int, str]] = []
    requests: set[str] = set()
    columns = [*_KEY, *([] if having is None else [having])]
    for batch in _batches(lake, table, columns, within):
        if having is not None:
            batch = batch.filter(pc.is_valid(batch.column(having)))
        for name in pc.unique(_names(batch)).to_pylist():
            if name in requests:
                continue
            entry = (-_number(name, seed), name)
            if len(kept) < sample:
                heapq.heappush(kept, entry)
            elif entry > kept[0]:
                requests.discard(heapq.heappushpop(kept, entry)[1])
            else:
                continue
            requests.add(name)
    return requests


def rows_of_requests(
    lake: Lake, table: str, columns: list[str], within: LogPart, known: Collection[str]
) -> list[dict[str, Any]]:
    """Return all rows of requests that ``sampled_requests`` has chosen."""
    wanted = pa.array(sorted(known), pa.string())
    rows: list[dict[str, Any]] = []
    for batch in _batches(lake, table, columns, within):
        rows += batch.filter(pc.is_in(_names(batch), wanted)).to_pylist()
    return rows


def _batches(
    lake: Lake, table: str, columns: list[str], within: LogPart
) -> Iterator[pa.RecordBatch]:
    since_ms, until_ms, where = within
    days = {SERVED_DAY: (since_ms // DAY_MS, (until_ms - 1) // DAY_MS + 1)}
    read = list(dict.fromkeys([*columns, "served_at_ms", *(where or ())]))
    for batch in iter_batches(lake, table, read, partitions=days):
        at = batch.column("served_at_ms")
        mask = pc.and_(pc.greater_equal(at, since_ms), pc.less(at, until_ms))
        for name, value in (where or {}).items():
            mask = pc.and_(mask, pc.equal(batch.column(name), value))
        yield batch.filter(mask)


def _names(batch: pa.RecordBatch) -> pa.Array:
    """Return a text for each row that identifies its request."""
    columns = [pc.fill_null(batch.column(name).cast(pa.string()), "") for name in _KEY]
    return pc.binary_join_element_wise(*columns, " ")


def _number(name: str, seed: int) -> int:
    data = f"{seed}:{name}".encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
