"""Staging tables are temporary, and are also dropped after a process was killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from paimon_features.core.types.schema import Int64
from paimon_features.lake import Lake
from paimon_features.lake.table_folders import lock_path
from paimon_features.lake.writing.staging import Staging, drop_leftovers


def test_staging_tables_are_dropped_at_the_end_of_the_context(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path, "features")
    names = []

    def interrupted() -> None:
        with Staging(lake) as staging:
            names.append(staging.create("rows", {"x": Int64}))
            assert lake.list() == names
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert lake.list() == []
    assert not lock_path(lake, names[0]).exists()


def test_staging_tables_of_dead_processes_are_dropped_and_others_kept(
    tmp_path: Path,
) -> None:
    text = f"""
import os
from paimon_features.core.types.schema import Int64
from paimon_features.lake import Lake
from paimon_features.lake.writing.staging import Staging
Staging(Lake.open({str(tmp_path)!r}, "features")).create("rows", {{"x": Int64}})
os._exit(9)
"""
    subprocess.run([sys.executable, "-c", text], check=False, timeout=300)
    lake = Lake.open(tmp_path, "features")
    (left,) = lake.list()
    with Staging(lake) as staging:  # drops it
        mine = staging.create("rows", {"x": Int64})
        assert lake.list() == [mine] != [left]
        assert drop_leftovers(lake) == []
