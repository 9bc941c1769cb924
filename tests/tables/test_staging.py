"""Staging tables: there for a while, gone afterwards, also those of a process that was killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from paimon_features.schema import Int64
from paimon_features.tables import Lake
from paimon_features.tables.staging import Staging, drop_leftovers


def test_they_are_gone_behind_the_block_however_it_ends(tmp_path: Path) -> None:
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
    assert not lake.lock_path(names[0]).exists()


def test_those_of_a_process_that_was_killed_are_dropped_and_those_of_a_living_one_stay(
    tmp_path: Path,
) -> None:
    text = f"""
import os
from paimon_features.schema import Int64
from paimon_features.tables import Lake
from paimon_features.tables.staging import Staging
Staging(Lake.open({str(tmp_path)!r}, "features")).create("rows", {{"x": Int64}})
os._exit(9)
"""
    subprocess.run([sys.executable, "-c", text], check=False, timeout=60)
    lake = Lake.open(tmp_path, "features")
    (left,) = lake.list()
    with Staging(lake) as staging:  # drops it
        mine = staging.create("rows", {"x": Int64})
        assert lake.list() == [mine] != [left]
        assert drop_leftovers(lake) == []
