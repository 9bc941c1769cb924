"""Commits made of parts: written in many places, published in one.

A part is files of rows that nobody sees yet. It travels as bytes from whoever wrote it to the one
who commits; what is never committed is no row of any snapshot (its files stay until orphans are
removed).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa

from paimon_features.errors import TableError
from paimon_features.tables.catalog import Lake
from paimon_features.tables.files import locked
from paimon_features.tables.snapshots import Snapshot, latest_snapshot, read_snapshot_file
from paimon_features.tables.writer import conform


def write_part(lake: Lake, name: str, rows: pa.Table) -> bytes:
    """Write rows as files of a table, without a commit; the result is for ``replace_partitions``.

    Raises
    ------
    TableError
        If the columns do not fit the table.
    """
    fitting = conform(lake, name, rows)
    write: Any = lake.table(name).new_batch_write_builder().new_write()
    try:
        try:
            write.write_arrow(fitting)
            return pickle.dumps(write.prepare_commit())
        except BaseException:
            with suppress(Exception):  # the error that is on its way says more
                write.abort()
            raise
    finally:
        write.close()


def replace_partitions(
    lake: Lake,
    name: str,
    parts: Iterable[bytes],
    *,
    after: int,
    commit_user: str,
    properties: Mapping[str, str],
) -> Snapshot:
    """Publish parts in one commit: each partition that has rows in them holds just these.

    Other partitions stay as they are. ``after`` is the newest snapshot that the caller knows (0
    for none): whoever comes second with the same one gets an error and has changed nothing.
    ``commit_user`` is one per attempt, so that an attempt whose answer was lost finds its commit.

    Raises
    ------
    TableError
        If the table has gone on since ``after``; if there are no rows; if another process holds
        the commit lock.
    """
    messages = [message for part in parts for message in pickle.loads(part)]
    if not messages:
        raise TableError(f"table {name!r}: a commit of no rows replaces no partition")
    with locked(lake.lock_path(name), f"committing to table {name!r}"):
        newest = latest_snapshot(lake, name)
        found = 0 if newest is None else newest.id
        if found != after:
            raise TableError(
                f"table {name!r} is at snapshot {found}, expected {after}: another process has "
                "committed to it since; start again from what is there"
            )
        builder = lake.table(name).new_batch_write_builder()._with_commit_user(commit_user)
        commit: Any = builder.overwrite().new_commit()
        failure: Exception | None = None
        try:
            commit.commit(messages, dict(properties))
        except Exception as error:
            failure = error  # after the snapshot was published it is none: look
        finally:
            commit.close()
        made = read_snapshot_file(lake, f"{lake.path(name)}/snapshot", after + 1)
        if made is None or made.commit_user != commit_user:
            raise TableError(
                f"table {name!r}: the commit after snapshot {after} failed: "
                f"{failure or 'it was acknowledged and is not there'}"
            ) from failure
        return made
