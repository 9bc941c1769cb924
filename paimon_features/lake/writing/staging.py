"""Temporary tables to exchange rows with another engine.

They are named ``staging_<random>_<what>`` and record their process, so that the tables of a killed
process are recognised and dropped by the next one.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict

from paimon_features.core.errors import UnknownNameError
from paimon_features.core.process.closeable import Closeable
from paimon_features.core.process.process_holder import ProcessHolder
from paimon_features.core.types.schema import DataType
from paimon_features.lake import table_options
from paimon_features.lake.catalog import Lake
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.table_folders import lock_path
from paimon_features.lake.table_options import PROPERTY_PREFIX

STAGING_PREFIX = "staging_"
_OWNER = "staging.owner"


class Staging(Closeable):
    """Temporary tables of this process, dropped at the end of the block in any case.

    Opening it drops the tables of processes of this host that have ended.
    """

    def __init__(self, lake: Lake) -> None:
        drop_leftovers(lake)
        self.lake = lake
        self.stem = f"{STAGING_PREFIX}{secrets.token_hex(4)}"
        self._made: list[str] = []

    def create(
        self,
        what: str,
        columns: Mapping[str, DataType],
        partition_by: tuple[str, ...] = (),
        *,
        compression: str = "zstd",
    ) -> str:
        """Create an append table and return its name."""
        name = f"{self.stem}_{what}"
        owner = json.dumps(asdict(ProcessHolder.current()))
        options = {
            "file.format": "parquet",
            "file.compression": compression,
            PROPERTY_PREFIX + _OWNER: owner,
        }
        self._made.append(name)
        self.lake.create(TableSpec(name, columns, partition_by=partition_by, options=options))
        return name

    def close(self) -> None:
        """Drop the tables; idempotent."""
        while self._made:
            _drop(self.lake, self._made.pop())


def drop_leftovers(lake: Lake) -> list[str]:
    """Drop the staging tables of processes that have ended; return their names.

    Processes of other hosts are unknown; their tables stay.
    """
    staging_tables = [name for name in lake.list() if name.startswith(STAGING_PREFIX)]
    dropped = []
    for name in staging_tables:
        with suppress(UnknownNameError):  # its own process dropped it meanwhile
            owner = table_options.properties(lake, name).get(_OWNER)
            if owner is not None and not ProcessHolder(**json.loads(owner)).alive()[0]:
                _drop(lake, name)
                dropped.append(name)
    return dropped


def _drop(lake: Lake, name: str) -> None:
    lake.drop(name, how=None)  # names are never reused
    lock_path(lake, name).unlink(missing_ok=True)
