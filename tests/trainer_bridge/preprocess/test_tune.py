"""Tuning of pipelines: what is chosen is what was measured to be fastest, within the memory.

Seconds are simulated: no choice depends on the speed of this machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paimon_features.core.errors import ConfigurationError
from paimon_features.lake.catalog import Lake
from trainer_bridge.preprocess import (
    PreprocessPipeline,
    Setting,
    autotune,
    autotune_pipeline,
    open_with,
)
from trainer_bridge.testing.sample_tables import make_samples

SIZES = (9, 3, 17, 30, 1, 26)


class Clock:
    """Simulated seconds; a reading takes one millisecond."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.001
        return self.now_s

    def spend(self, seconds: float) -> None:
        self.now_s += seconds


class Fake:
    """A pipeline whose speed is known: each batch takes so many seconds of the clock."""

    def __init__(self, clock: Clock, seconds: float, log: list[str] | None = None) -> None:
        self.clock = clock
        self.seconds = seconds
        self.log = log if log is not None else []

    def __iter__(self) -> Iterator[Any]:
        for _ in range(5):
            self.clock.spend(self.seconds)
            yield np.zeros((4, 8))

    def close(self) -> None:
        self.log.append("closed")


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_climb_finds_the_best_of_a_known_landscape(clock: Clock) -> None:
    closed: list[str] = []

    def build(setting: Any) -> Fake:
        cost = 4.0 / min(setting.parallel, 2) + (3.0 if setting.prefetch < 2 else 0.0)
        return Fake(clock, 0.3 * cost if setting.cache == "memory" else cost, closed)

    found = autotune(
        build, memory_limit=1 << 20, parallel=[1, 2, 4], prefetch=[0, 1, 2], trial_s=20.0,
        repeats=2, clock=clock, verbose=False,
    )  # fmt: skip
    assert found.setting.cache == "memory"
    assert found.setting.parallel >= 2
    assert found.setting.prefetch == 2
    assert len(closed) >= len(found.trials)


def test_settings_beyond_the_memory_limit_are_not_tried(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = []

    def build(setting: Any) -> Fake:
        tried.append(setting)
        return Fake(clock, 0.1)

    batch_bytes = 4 * 8 * 8
    found = autotune(
        build, memory_limit=3 * batch_bytes, dataset_bytes=5 * batch_bytes, parallel=[1, 2],
        prefetch=[0, 1, 2], repeats=1, clock=clock,
    )  # fmt: skip
    assert all(setting.parallel + setting.prefetch <= 3 for setting in tried)
    assert all(setting.cache == "none" for setting in tried)
    out = capsys.readouterr().out
    assert f"chosen: {found.setting}" in out
    assert out.count("batches/s") == len(found.trials) + 1
    with pytest.raises(ConfigurationError, match="one batch takes 256 bytes"):
        autotune(build, memory_limit=100, verbose=False)


def test_a_cache_that_is_never_warm_is_not_chosen(clock: Clock) -> None:
    found = autotune(
        lambda setting: Fake(clock, 0.1), memory_limit=1 << 20, parallel=[1], prefetch=[0, 1],
        repeats=1, warm_s=0.2, clock=clock, verbose=False,
    )  # fmt: skip
    assert found.setting.cache == "none"
    [note] = [trial.note for trial in found.trials if trial.setting.cache == "memory"]
    assert "no epoch within 0.2 s" in note


def test_a_setting_that_cannot_be_run_is_passed_over(clock: Clock) -> None:
    def build(setting: Any) -> Fake:
        if setting.prefetch:
            raise ConfigurationError("no prefetch here")
        return Fake(clock, 0.1)

    options = {"memory_limit": 1 << 20, "parallel": [1], "clock": clock, "verbose": False}
    found = autotune(build, prefetch=[0, 2], repeats=1, **options)
    assert found.setting.prefetch == 0
    with pytest.raises(ConfigurationError, match="caches: 'ram'"):
        autotune(build, caches=["ram"], **options)


def test_a_pipeline_that_no_setting_runs_says_why(clock: Clock) -> None:
    class Empty(Fake):
        def __iter__(self) -> Iterator[Any]:
            return iter(())

    def refuses(setting: Any) -> Fake:
        raise ConfigurationError("no threads here")

    options: dict[str, Any] = {"memory_limit": 1 << 20, "parallel": [1], "prefetch": [0],
                               "repeats": 1, "clock": clock, "verbose": False}  # fmt: skip
    with pytest.raises(ConfigurationError, match="no threads here"):
        autotune(refuses, **options)
    with pytest.raises(ConfigurationError, match="yielded no batch"):
        autotune(lambda setting: Empty(clock, 0.1), **options)
    late = [Fake(clock, 0.1)]

    def once(setting: Any) -> Fake:
        """The first batch, whose size is taken, comes; no trial can be run then."""
        return late.pop() if late else refuses(setting)

    with pytest.raises(ConfigurationError, match="no setting could run: .*: no threads here"):
        autotune(once, **options)


def test_the_time_of_a_training_step_counts(clock: Clock) -> None:
    steps: list[tuple[int, ...]] = []

    def step(batch: Any) -> None:
        clock.spend(0.3)
        steps.append(batch.shape)

    found = autotune(
        lambda setting: Fake(clock, 0.1), memory_limit=1 << 20, caches=["none"], parallel=[1],
        prefetch=[0], step=step, repeats=1, clock=clock, verbose=False,
    )  # fmt: skip
    assert set(steps) == {(4, 8)}
    assert found.rate == pytest.approx(1 / 0.4, rel=0.02)


def test_a_pipeline_opened_with_a_setting_gives_the_same_batches(
    lake: Lake, tmp_path: Path
) -> None:
    def slow(rows: Any) -> dict[str, Any]:
        return {"z": rows["x"] * 2}

    pipeline = (
        PreprocessPipeline(lake, make_samples(lake, SIZES)).map(slow, reads=["x"]).select("z")
    )
    pipeline = pipeline.batch(10).shuffle(1)
    with pipeline.open() as batches:
        expected = [batch["z"].tolist() for batch in batches]
    folder = tmp_path / "cache"
    for setting in (Setting(1, 0, "none"), Setting(2, 2, "memory"), Setting(2, 1, "disk")):
        with open_with(pipeline.cache(9).prefetch(7), setting, 100_000, folder) as batches:
            assert [batch["z"].tolist() for batch in batches] == expected
            assert batches.plan.prefetch == setting.prefetch
            stage = batches.plan.cache
            if setting.cache == "memory":
                assert stage is not None
                assert stage.memory_bytes == 75_000
            else:
                assert (stage is None) == (setting.cache == "none")
    with pytest.raises(ConfigurationError, match="needs folder="):
        open_with(pipeline, Setting(1, 0, "disk"), 100_000)


def test_an_expensive_map_is_cached_and_a_tight_limit_is_kept(lake: Lake, clock: Clock) -> None:
    def expensive(rows: Any) -> dict[str, Any]:
        clock.spend(0.01 * len(rows["x"]))
        return {"z": rows["x"] * 2}

    pipeline = (
        PreprocessPipeline(lake, make_samples(lake, [40])).map(expensive, reads=["x"]).select("z")
    )
    options: dict[str, Any] = {"parallel": [1], "prefetch": [0], "repeats": 1, "clock": clock}
    found = autotune_pipeline(pipeline.batch(10), memory_limit=2000, verbose=False, **options)
    assert found.setting.cache == "memory"
    # a quarter of this limit is too little for a block: no cache then, and the trial says why
    found = autotune_pipeline(pipeline.batch(10), memory_limit=400, verbose=False, **options)
    assert found.setting.cache == "none"
    [note] = [trial.note for trial in found.trials if trial.setting.cache == "memory"]
    assert "byte_budget is 100" in note
