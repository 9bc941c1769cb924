"""Replace partitions of a table in one commit."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa

from paimon_features.core.errors import PaimonFeaturesError, TableError
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.snapshots import latest_snapshot
from paimon_features.lake.ownership.lease import committing
from paimon_features.lake.storage.write_errors import write_errors
from paimon_features.lake.writing.checksums import complete_files
from paimon_features.lake.writing.table_writer import conform


class Overwrite:
    """New content of some partitions, written immediately and committed at the end.

    The caller must own the table. Partitions with rows are replaced in one commit, empty ones are
    dropped in another before it; each partition is always complete. Readers of deltas see commits
    of kind OVERWRITE. Without ``commit`` nothing changes.

    ``commit_user`` is recorded in the snapshots.
    """

    def __init__(self, lake: Lake, name: str, commit_user: str) -> None:
        self.lake, self.name = lake, name
        self._builder: Any = lambda: (
            lake.table(name).new_batch_write_builder()._with_commit_user(commit_user)
        )
        self._filling: Any = self._builder().overwrite()
        self._write: Any = self._filling.new_write()
        self._rows = 0
        self._emptied: list[dict[str, Any]] = []

    def replace(self, rows: pa.Table) -> None:
        """Set the complete content of the partitions of these rows.

        Raises
        ------
        TableError
            If the columns do not match the table.
        """
        with write_errors(f"table {self.name!r} cannot be written"):
            self._write.write_arrow(conform(self.lake, self.name, rows))
        self._rows += rows.num_rows

    def empty(self, partition: Mapping[str, Any] | None = None) -> None:
        """Empty a partition, such as ``{"tile_day": 15046}``; without one, the complete table."""
        self._emptied.append(dict(partition or {}))

    def commit(self) -> int | None:
        """Commit; return the newest snapshot, None if the table has none.

        Raises
        ------
        TableError
            If another process holds the commit lock.
        """
        purpose = f"overwriting partitions of {self.name!r}"
        with committing(self.lake, self.name, purpose) as check:
            if self._emptied:
                dropping = self._builder().new_commit()
                try:
                    check()
                    if {} in self._emptied:
                        dropping.truncate_table()
                    else:
                        dropping.truncate_partitions(self._emptied)
                finally:
                    dropping.close()
            if self._rows:
                filling = self._filling.new_commit()
                try:
                    with write_errors(f"table {self.name!r} cannot be written"):
                        messages = self._write.prepare_commit()
                        complete_files(self.lake.table(self.name), messages)
                        check()
                        filling.commit(messages)
                except PaimonFeaturesError:
                    raise
                except Exception as error:
                    raise TableError(
                        f"table {self.name!r}: the overwrite failed: {error}"
                    ) from error
                finally:
                    filling.close()
        newest = latest_snapshot(self.lake, self.name)
        return None if newest is None else newest.id

    def __enter__(self) -> Overwrite:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._write.close()
            return
        with suppress(Exception):  # the original error is more specific
            self._write.abort()
        with suppress(Exception):
            self._write.close()
