"""The benchmark runs, its contenders read the same; for docs/internals/performance.md."""

from __future__ import annotations

import importlib
from importlib import import_module
from pathlib import Path

import pytest


def test_all_who_merge_in_the_benchmark_come_to_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sizes = {"rows": 2_000, "slow_rows": 200, "columns": 2, "commits": 2, "buckets": 2}
    engines = ["deduplicate", "partial-update", "aggregation"]
    # `run` raises where a contender has other rows
    import_module("benchmarks.merge").run(
        **sizes, share=0.3, repeats=1, engines=engines, key="text"
    )
    assert capsys.readouterr().out.count("merge, opened before") == 3


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")  # pypaimon's own torch data set warns
def test_all_readers_of_the_benchmark_read_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    module = import_module("benchmarks.loader")
    # `run` raises where a reader has other rows
    module.run(rows=20_000, columns=3, files=4, repeats=1, slow_rows=100)
    assert "torch adapter, in order" in capsys.readouterr().out


@pytest.mark.long
def test_all_readers_of_the_s3_benchmark_read_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    s3 = importlib.import_module("benchmarks.s3")
    # `run` raises where a reader has other rows
    s3.run(rows=3_000, columns=3, files=2, repeats=1)
    assert "bytes alone, two at once" in capsys.readouterr().out


def test_deduplicated_data_are_read_the_same_however(capsys: pytest.CaptureFixture[str]) -> None:
    dedup = importlib.import_module("benchmarks.dedup")
    # `run` raises where a contender has other rows
    dedup.run(batches=1, columns=2, users=5, items=2, repeats=1)
    assert "deduplicated, (values, inverse)" in capsys.readouterr().out


@pytest.mark.torch
def test_the_readers_of_hybrid_backends_workload_read_the_same(tmp_path: Path) -> None:
    workload = importlib.import_module("benchmarks._hybrid_backend")
    data = workload.make_data(tmp_path, steps=2, columns=5, batch=300)
    for read in (workload.blocks, workload.torch_tensors, workload.data_frame):
        assert read(data, 200) == data.seen


@pytest.mark.tensorflow
def test_all_pipelines_of_the_csv_benchmark_read_the_same(tmp_path: Path) -> None:
    from benchmarks import _hybrid_backend, tensorflow_csv

    # `run` also holds TensorFlow to one thread, which a process that has used it cannot
    data = _hybrid_backend.make_data(tmp_path, steps=3, columns=4, batch=64)
    contenders = tensorflow_csv.contenders(data, batch=64)
    assert len(contenders) == 12
    assert {name: read() for name, read in contenders.items()} == dict.fromkeys(
        contenders, data.seen
    )


@pytest.mark.long
def test_caches_of_the_benchmark_give_the_same_batches_within_the_memory_limit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = import_module("benchmarks.tensorflow_tuning")
    # `run` raises where one has other labels, or holds too much
    options = {"images": 0, "side": 0, "trial_s": 0.0, "part": "caches"}
    module.run(rows=600, block_rows=20, repeats=1, **options)
    assert "disk cache, prefetch" in capsys.readouterr().out


@pytest.mark.torch
def test_the_training_benchmark_runs_without_a_gpu() -> None:
    import torch

    module = importlib.import_module("benchmarks.train_gpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a loaded machine they wait for each other
    for task in module.SIZES["smoke"]:
        rows = module.train_rates(task, "cpu", 0.0, compiles=False)
        assert [row["variant"] for row in rows] == ["fp32", "bf16-mixed"]
    fed = module.feeding(module.SIZES["smoke"][0], "cpu", rows=320, threads=0)
    assert [name for name, rate in fed if rate > 0] == [
        "the loader alone", "step, data on the device", "step, copied synchronously"
    ]  # fmt: skip
    torch.set_num_threads(threads)
