"""Autotuning: search for the fastest setting by short trials within a memory limit.

Hill climbing: from a setting that is usually good, one parameter is changed at a time, and a
change is kept if the trials show it to be faster. The two sides of a comparison alternate, so
that temporary load on the machine slows both. Neighbours that would exceed the memory limit
are not tried.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np

from paimon_features.core.errors import ConfigurationError
from trainer_bridge.preprocess.preparation import PreparedBatches
from trainer_bridge.preprocess.preprocess_pipeline import OpenKeywords, PreprocessPipeline
from trainer_bridge.preprocess.stages import Cache, Prefetch

CACHES = ("none", "memory", "disk")


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """The tuned parameters: parallel calls or threads, prefetched batches, and the cache."""

    parallel: int = 1
    prefetch: int = 0
    cache: str = "none"

    def __str__(self) -> str:
        return f"parallel {self.parallel}, prefetch {self.prefetch}, cache {self.cache}"


@dataclass(frozen=True, slots=True)
class Trial:
    """The trial of a setting: batches per second, or why it could not run."""

    setting: Setting
    rate: float
    note: str = ""

    def __str__(self) -> str:
        return f"{self.setting}: {self.note or f'{self.rate:,.1f} batches/s'}"


@dataclass(frozen=True, slots=True)
class Tuned:
    """The chosen setting, and every trial made."""

    setting: Setting
    rate: float
    trials: tuple[Trial, ...]

    def __str__(self) -> str:
        lines = [f"  {trial}" for trial in self.trials]
        return "\n".join([*lines, f"chosen: {self.setting} ({self.rate:,.1f} batches/s)"])


BuildBatches = Callable[[Setting], Iterable[Any]]


@dataclass
class Trials:
    """Measures settings of a pipeline and records the results.

    Parameters
    ----------
    build
        Builds the pipeline for a setting. Each iteration over it is an epoch. It is closed
        after the trial if it has a ``close`` method.
    step
        The trainer's work on a batch; without it another setting may be the best.
    trial_s
        Duration of a trial, after warm-up.
    warm_s
        Maximum duration of the warm-up, which with a cache is the first epoch.
    clock
        Seconds from any start; a simulation passes its own.
    """

    build: BuildBatches
    step: Callable[[Any], Any] | None = None
    trial_s: float = 0.5
    warm_s: float = 30.0
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        self.rates: dict[Setting, list[float]] = {}
        self.notes: dict[Setting, str] = {}

    def measure(self, setting: Setting) -> float:
        """Run one more trial and return its batches per second; 0 if it cannot run."""
        if setting in self.notes:
            return 0.0
        try:
            rate = self._run(setting)
        except ConfigurationError as error:  # such as a byte budget that is too small for it
            self.notes[setting] = str(error)
            rate = 0.0
        self.rates.setdefault(setting, []).append(rate)
        return rate

    def rate(self, setting: Setting) -> float:
        """Return the median of the trials so far."""
        return statistics.median(self.rates[setting])

    def all(self) -> tuple[Trial, ...]:
        """Return all settings tried, in the order of their first trial."""
        return tuple(
            Trial(setting, self.rate(setting), self.notes.get(setting, ""))
            for setting in self.rates
        )

    def _run(self, setting: Setting) -> float:
        built = self.build(setting)
        context: Any = closing(built) if hasattr(built, "close") else nullcontext(built)
        with context:
            batches = _epochs(built)
            if setting.cache != "none" and not self._one_epoch(built):
                self.notes[setting] = f"no epoch within {self.warm_s:g} s, so the cache is not warm"
                return 0.0
            next(batches)  # starts its threads
            count, started = 0, self.clock()
            while (elapsed_s := self.clock() - started) < self.trial_s or not count:
                batch = next(batches)
                if self.step is not None:
                    self.step(batch)
                count += 1
            batches.close()
            return count / elapsed_s

    def _one_epoch(self, made: Iterable[Any]) -> bool:
        until = self.clock() + self.warm_s
        return all(self.clock() < until for _ in made)


def autotune(
    build: BuildBatches,
    *,
    memory_limit: int,
    dataset_bytes: int | None = None,
    caches: Sequence[str] = ("none", "memory"),
    parallel: Sequence[int] | None = None,
    prefetch: Sequence[int] = (0, 1, 2, 4, 8),
    step: Callable[[Any], Any] | None = None,
    trial_s: float = 0.5,
    repeats: int = 3,
    warm_s: float = 30.0,
    clock: Callable[[], float] = time.perf_counter,
    verbose: bool = True,
) -> Tuned:
    """Return the fastest setting found.

    Parameters
    ----------
    build
        Builds the pipeline for a :class:`Setting`; see :class:`Trials`.
    memory_limit
        Maximum bytes for batches in flight and for a cache in memory. The size of one batch
        is measured; each parallel call and each prefetched batch counts as one.
    dataset_bytes
        Final size of a cache in memory; None if the cache enforces the limit itself, as that
        of a :class:`~trainer_bridge.preprocess.PreprocessPipeline` does.
    caches, parallel, prefetch
        The candidates; ``parallel`` up to twice the number of cores by default.
    step, trial_s, repeats, warm_s, clock
        See :class:`Trials`; ``repeats`` trials of each side decide a comparison.
    verbose
        Print every trial and the choice.

    Raises
    ------
    ConfigurationError
        If no setting fits the limit, or none can run.

    Examples
    --------
    A pipeline that spends simulated seconds, half of them with two parallel calls:

    >>> simulated_s = [0.0]
    >>> class Slow:
    ...     def __init__(self, setting):
    ...         self.batch_s = 0.004 / setting.parallel
    ...     def __iter__(self):
    ...         for _ in range(3):
    ...             simulated_s[0] += self.batch_s
    ...             yield np.zeros(8)
    >>> found = autotune(Slow, memory_limit=1 << 20, caches=["none"], parallel=[1, 2],
    ...                  prefetch=[0], clock=lambda: simulated_s[0], verbose=False)
    >>> found.setting
    Setting(parallel=2, prefetch=0, cache='none')
    """
    for cache in caches:
        if cache not in CACHES:
            raise ConfigurationError(f"caches: {cache!r}; expected some of {', '.join(CACHES)}")
    ladders = _Ladders(sorted(parallel or _up_to_twice_the_cores()), sorted(prefetch), list(caches))
    trials = Trials(build, step, trial_s, warm_s, clock)
    batch_bytes = _batch_bytes(build, ladders.least)

    def fits(setting: Setting) -> bool:
        cached = (dataset_bytes or 0) if setting.cache == "memory" else 0
        return (setting.parallel + setting.prefetch) * batch_bytes + cached <= memory_limit

    current = ladders.start
    if not fits(current):
        current = ladders.least
    if not fits(current):
        raise ConfigurationError(
            f"memory_limit={memory_limit:,}: one batch takes {batch_bytes:,} bytes, and "
            f"{current} needs more than the limit; use smaller batches"
        )
    trials.measure(current)
    rejected: set[tuple[Setting, Setting]] = set()
    moved = True
    while moved:
        moved = False
        for other in ladders.around(current):
            if not fits(other) or (current, other) in rejected:
                continue
            if _is_faster(trials, other, current, repeats):
                current, moved = other, True
                break
            rejected.add((current, other))
    best = max((s for s in trials.rates if s not in trials.notes), key=trials.rate, default=None)
    if best is None:
        reasons = "; ".join(f"{setting}: {note}" for setting, note in trials.notes.items())
        raise ConfigurationError(f"no setting could run: {reasons}")
    if best != current and _is_faster(trials, best, current, repeats):
        current = best
    tuned = Tuned(current, trials.rate(current), trials.all())
    if verbose:
        print(tuned)
    return tuned


@dataclass(frozen=True)
class _Ladders:
    """Return the candidates of each parameter, ascending; neighbours are one or two steps apart."""

    parallel: list[int]
    prefetch: list[int]
    caches: list[str]

    @property
    def least(self) -> Setting:
        return Setting(self.parallel[0], self.prefetch[0], self.caches[0])

    @property
    def start(self) -> Setting:
        """Return the setting nearest to one thread per core and two prefetched batches."""
        cores = os.cpu_count() or 1
        near = min(self.parallel, key=lambda n: abs(n - cores))
        return Setting(near, min(self.prefetch, key=lambda n: abs(n - 2)), self.caches[0])

    def around(self, setting: Setting) -> Iterator[Setting]:
        """Return the neighbouring settings; the cache, which matters most, first."""
        for cache in self.caches:
            if cache != setting.cache:
                yield replace(setting, cache=cache)
        for name in ("parallel", "prefetch"):
            rungs = getattr(self, name)
            at = rungs.index(getattr(setting, name))
            for step in (1, -1, 2, -2):
                if 0 <= at + step < len(rungs):
                    yield replace(setting, **{name: rungs[at + step]})


def open_with(
    pipeline: PreprocessPipeline,
    setting: Setting,
    memory_limit: int,
    folder: str | Path | None = None,
    **options: Unpack[OpenKeywords],
) -> PreparedBatches:
    """Open a pipeline with the threads, prefetch and cache of a setting.

    A cache in memory is given three quarters of the limit and the blocks in flight the rest;
    without one they are given all of it. The cache is placed where the pipeline has one, else
    after its row stages.

    Parameters
    ----------
    folder
        Folder of a cache on disk.
    options
        Passed on to :meth:`PreprocessPipeline.open`.
    """
    cache: Cache | None = None
    working = memory_limit
    if setting.cache == "memory":
        working = memory_limit // 4
        cache = Cache(memory_limit - working)
    elif setting.cache == "disk":
        if folder is None:
            raise ConfigurationError("a disk cache needs folder=")
        cache = Cache(folder=Path(folder))
    stages = [stage for stage in pipeline.stages if not isinstance(stage, Prefetch)]
    at = next((i for i, s in enumerate(stages) if isinstance(s, Cache)), len(stages))
    stages[at : at + 1] = [] if cache is None else [cache]
    configured = replace(pipeline, stages=tuple(stages)).prefetch(setting.prefetch)
    return configured.open(threads=setting.parallel, byte_budget=working, **options)


class TuningKeywords(TypedDict, total=False):
    """These keywords of :func:`autotune`; documented there."""

    dataset_bytes: int | None
    caches: Sequence[str]
    parallel: Sequence[int] | None
    prefetch: Sequence[int]
    step: Callable[[Any], Any] | None
    trial_s: float
    repeats: int
    warm_s: float
    clock: Callable[[], float]
    verbose: bool


def autotune_pipeline(
    pipeline: PreprocessPipeline,
    *,
    memory_limit: int,
    folder: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    **tuning: Unpack[TuningKeywords],
) -> Tuned:
    """Return the fastest setting found for a pipeline; :func:`open_with` opens it with that.

    Parameters
    ----------
    memory_limit
        Maximum bytes of blocks and batches in flight and of a cache in memory.
    folder
        Folder for a cache on disk; without it none is tried.
    options
        Further arguments of :meth:`PreprocessPipeline.open`: rank, world size, epoch.
    tuning
        Passed on to :func:`autotune`.
    """
    caches = ("none", "memory") if folder is None else ("none", "memory", "disk")
    tuning = {"caches": caches, **tuning}
    return autotune(
        lambda setting: open_with(pipeline, setting, memory_limit, folder, **(options or {})),
        memory_limit=memory_limit,
        **tuning,
    )


def num_bytes(batch: Any) -> int:
    """Return the bytes of all arrays or tensors of a batch; of strings, those of the characters.

    >>> num_bytes({"x": np.zeros((2, 3), np.float32), "y": (b"abc", [np.zeros(2)])})
    43
    """
    if isinstance(batch, Mapping):
        return sum(num_bytes(part) for part in batch.values())
    if isinstance(batch, tuple | list):
        return sum(num_bytes(part) for part in batch)
    values = batch.numpy() if hasattr(batch, "numpy") else batch
    if isinstance(values, bytes | str):
        return len(values)
    array = np.asarray(values)
    return sum(map(len, array.reshape(-1))) if array.dtype == object else int(array.nbytes)


def _is_faster(trials: Trials, other: Setting, current: Setting, repeats: int) -> bool:
    """Return whether ``other`` is faster; both run in turn, a clear loser only once."""
    for number in range(repeats):
        rate, base = trials.measure(other), trials.measure(current)
        if other in trials.notes:
            return False
        if number == 0 and rate < 0.8 * base:
            return False
    return trials.rate(other) > 1.02 * trials.rate(current)


def _epochs(made: Iterable[Any]) -> Generator[Any, None, None]:
    while True:
        empty = True
        for batch in made:
            empty = False
            yield batch
        if empty:
            raise ConfigurationError("the pipeline yielded no batch")


def _batch_bytes(build: BuildBatches, setting: Setting) -> int:
    built = build(setting)
    context: Any = closing(built) if hasattr(built, "close") else nullcontext(built)
    with context:
        batches = _epochs(built)
        size = num_bytes(next(batches))
        batches.close()
    return max(size, 1)


def _up_to_twice_the_cores() -> list[int]:
    cores = os.cpu_count() or 1
    return sorted({*(2**n for n in range(int(math.log2(cores)) + 1)), cores, 2 * cores})
