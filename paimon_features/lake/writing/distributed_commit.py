"""Distributed commits: parts written by many processes, published by one.

A part is a set of uncommitted files. It is sent as bytes from its writer to the committer; an
uncommitted part is in no snapshot (its files remain until orphan files are removed).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa

from paimon_features.core.errors import LeaseLostError, TableError
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.snapshots import Snapshot, latest_snapshot, read_snapshot_file
from paimon_features.lake.ownership.lease import committing
from paimon_features.lake.storage.write_errors import write_errors
from paimon_features.lake.writing.checksums import complete_files
from paimon_features.lake.writing.table_writer import conform


def write_part(lake: Lake, name: str, rows: pa.Table) -> bytes:
    """Write rows as files of a table, without a commit; the result is for ``replace_partitions``.

    Raises
    ------
    TableError
        If the columns do not match the table.
    """
    fitting = conform(lake, name, rows)
    table = lake.table(name)
    write: Any = table.new_batch_write_builder().new_write()
    try:
        try:
            with write_errors(f"table {name!r} cannot be written"):
                write.write_arrow(fitting)
                messages = write.prepare_commit()
                complete_files(table, messages)
                return pickle.dumps(messages)
        except BaseException:
            with suppress(Exception):  # the original error is more specific
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
    """Publish parts in one commit that replaces the partitions of their rows.

    Other partitions are unchanged. ``after`` is the newest snapshot that the caller knows (0 for
    none): of two commits after the same snapshot, the second fails without any change.
    ``commit_user`` is unique per attempt, so that an attempt whose reply was lost finds its commit.

    Raises
    ------
    TableError
        If there is a snapshot after ``after``; if there are no rows; if another process holds the
        commit lock.
    """
    messages = [message for part in parts for message in pickle.loads(part)]
    if not messages:
        raise TableError(f"table {name!r}: a commit of no rows replaces no partition")
    with committing(lake, name, f"committing to table {name!r}") as check:
        newest = latest_snapshot(lake, name)
        found = 0 if newest is None else newest.id
        if found != after:
            raise TableError(
                f"table {name!r} is at snapshot {found}, expected {after}: another process has "
                "committed to it meanwhile; restart from its present content"
            )
        builder = lake.table(name).new_batch_write_builder()._with_commit_user(commit_user)
        commit: Any = builder.overwrite().new_commit()
        failure: Exception | None = None
        try:
            check()
            commit.commit(messages, dict(properties))
        except LeaseLostError:
            raise
        except Exception as error:
            failure = error  # not an error once the snapshot is published: check
        finally:
            commit.close()
        made = read_snapshot_file(lake, f"{lake.path(name)}/snapshot", after + 1)
        if made is None or made.commit_user != commit_user:
            raise TableError(
                f"table {name!r}: the commit after snapshot {after} failed: "
                f"{failure or 'it was acknowledged, but does not exist'}"
            ) from failure
        return made
