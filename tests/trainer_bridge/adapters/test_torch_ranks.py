"""Real processes over gloo: one order for every world size, elastic, and none hangs or leaks."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paimon_features.core.errors import ConfigurationError
from paimon_features.lake.catalog import Lake
from trainer_bridge.readers.snapshot_reader import SnapshotReader
from trainer_bridge.testing.sample_tables import make_samples

pytestmark = pytest.mark.torch

SIZES = (9, 3, 17, 30, 1, 26, 8, 13)
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the processes saw: see ``ranks.py``. One program, since its start takes longest."""
    folder = tmp_path_factory.mktemp("ranks")
    lake = Lake.open(folder / "warehouse", "features")
    make_samples(lake, SIZES)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for name in ("RANK", "WORLD_SIZE"):
        environment.pop(name, None)
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "tests/trainer_bridge/adapters/ranks.py"),
            lake.warehouse,
            str(folder),
        ],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def global_batches(ranks: list[list[list[int]]]) -> list[list[int]]:
    """The ranks' batches put together again: rank r of W has the rows r, r + W, ..."""
    steps = []
    for parts in zip(*ranks, strict=True):
        rows = itertools.zip_longest(*parts)
        steps.append([x for row in rows for x in row if x is not None])
    return steps


@pytest.mark.long
@pytest.mark.parametrize("rule", ["short", "drop", "pad"])
def test_all_world_sizes_see_the_same_global_batches_and_ranks_disjoint_rows(
    found: Any, rule: str
) -> None:
    alone = found["worlds"][f"1 {rule}"][0]
    assert len(alone) == {"short": 9, "drop": 8, "pad": 9}[rule]
    for world in (2, 3):
        ranks = found["worlds"][f"{world} {rule}"]
        assert {len(rank) for rank in ranks} == {len(alone)}
        assert global_batches(ranks)[:-1] == alone[:-1]
        assert sorted(global_batches(ranks)[-1]) == sorted(alone[-1])
        for parts in zip(*ranks, strict=True):
            rows = list(itertools.chain.from_iterable(parts))
            assert len(set(rows)) == len(rows)


@pytest.mark.long
def test_training_goes_on_with_4_then_3_then_5_processes_as_with_one(found: Any) -> None:
    #  position   0 ......... 36 ......... 72 ......... 107
    #  processes  [    4     )[     3     )[     5     )
    parts, alone = found["elastic"]["parts"], found["elastic"]["alone"][0]
    steps = [batch for part in parts for batch in global_batches([rank["seen"] for rank in part])]
    assert [sorted(step) for step in steps] == [sorted(step) for step in alone["seen"]]
    assert sorted(itertools.chain.from_iterable(steps)) == list(range(sum(SIZES)))
    for part in parts:
        assert all(rank["state"] == part[0]["state"] for rank in part)
    weights = [rank["weights"] for rank in parts[-1]]
    assert all(other == weights[0] for other in weights)
    # sums over rows come in another order, and nothing else differs
    assert np.allclose(weights[0], alone["weights"], rtol=0, atol=1e-12)
    assert parts[-1][0]["state"]["epoch"] == 1


@pytest.mark.long
def test_a_killed_rank_is_an_error_on_the_others_and_leaves_nothing(found: Any) -> None:
    killed = found["killed"]
    assert killed["errors"][1] == "killed"
    for rank in (0, 2):
        assert killed["errors"][rank].startswith(("RuntimeError", "DistBackendError"))
    assert len(killed["errors"]) == 3  # all of them ended
    assert killed["workers"] == 1
    assert killed["alive"] == []
    assert killed["children"] == 0
    assert killed["files"] == []
    assert killed["shared_memory"] == []


def test_the_rank_comes_from_the_environment_where_it_is_not_given(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer_bridge.adapters.torch import loader, rank_and_world_size

    table = make_samples(lake, SIZES)

    def make(**options: Any) -> SnapshotReader:
        return SnapshotReader(lake, table, columns=["x"], **options)

    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert rank_and_world_size() == (0, 1)
    reader = make(batch_size=4)
    assert loader(reader).reader is reader
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(ConfigurationError, match="RANK='2' and WORLD_SIZE=None"):
        loader(reader)
    monkeypatch.setenv("WORLD_SIZE", "3")
    own = loader(reader).reader
    assert (own.rank, own.world_size, own.global_batch_size) == (2, 3, 12)
    assert loader(make(global_batch_size=24)).reader.global_batch_size == 24
    # what was given stays
    given = make(batch_size=4, rank=0, world_size=2)
    assert loader(given).reader is given
    other = loader(given, rank=1, world_size=4).reader
    assert (other.rank, other.world_size, other.global_batch_size) == (1, 4, 16)
    with pytest.raises(ConfigurationError, match="together, or neither"):
        loader(reader, rank=1)
    with pytest.raises(ConfigurationError, match="expected 0 <= rank < world_size"):
        loader(reader, rank=4, world_size=4)


def test_closing_the_loader_lets_the_snapshot_go(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paimon_features.lake.metadata.consumers import consumers
    from trainer_bridge.adapters.torch import loader

    table = make_samples(lake, SIZES)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    reader = SnapshotReader(lake, table, columns=["x"], batch_size=4, consumer="run-1")
    with loader(reader) as data:
        assert consumers(lake, table) == {"run-1": 8}
        next(iter(data))
    assert consumers(lake, table) == {}
