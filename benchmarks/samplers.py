"""Samplers over many rows, torch and NumPy: time to build, draws per second, peak memory.

Each contender runs in a process of its own, since what counts is the peak of the whole
process: bytes per row are that peak less what the process had before, the given array (8 or
1 bytes per row) included. Draws are timed in pieces of 65,536, as a reader takes them.

    python -m benchmarks.samplers --rows 100000000 --draws 2000000
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from trainer_bridge.samplers import (
    AdvancedSampler,
    BalancedBatchSampler,
    BinnedDifficultySampler,
    CurriculumSampler,
    DifficultyWeightedSampler,
    HardExampleMiningSampler,
    PoissonSampler,
    StratifiedSampler,
    WeightedRandomSampler,
)

PIECE = 65_536


def weights(rows: int) -> Any:
    """Random float64, made in place."""
    return np.random.default_rng(0).random(rows)


def labels(rows: int) -> Any:
    """One in 10,000 is of the rare class."""
    found = np.full(rows, 7, dtype=np.int64)  # zeros would not be in memory
    found[::10_000] = 8
    return found


def bins(rows: int) -> Any:
    return np.random.default_rng(0).integers(0, 256, rows, dtype=np.uint8)


Make = Callable[[Any, int], AdvancedSampler]

OURS: dict[str, tuple[Callable[[int], Any], Make]] = {
    "weighted, with replacement": (weights, lambda x, n: WeightedRandomSampler(x, n)),
    "weighted, without": (weights, lambda x, n: WeightedRandomSampler(x, n, replacement=False)),
    "Poisson": (weights, lambda x, n: PoissonSampler(x, n)),
    "stratified": (labels, lambda x, n: StratifiedSampler(x)),
    "balanced batches of 256": (labels, lambda x, n: BalancedBatchSampler(x, 256)),
    "hard examples": (weights, lambda x, n: HardExampleMiningSampler(n, x)),
    "curriculum": (weights, lambda x, n: CurriculumSampler(x, {0: 0.1, n // 2: 0.5}, n)),
    "difficulty": (weights, lambda x, n: DifficultyWeightedSampler(x, n)),
    "difficulty in bins": (bins, lambda x, n: BinnedDifficultySampler(x, n)),
}


def numpy_choice(given: Any, draws: int, replace: bool) -> None:
    given /= given.sum()
    np.random.default_rng(1).choice(len(given), draws, replace=replace, p=given)


def torch_multinomial(given: Any, draws: int, replace: bool) -> None:
    import torch

    torch.multinomial(torch.from_numpy(given), draws, replacement=replace)


OTHERS: dict[str, Callable[[Any, int], None]] = {
    "numpy choice, with": lambda given, draws: numpy_choice(given, draws, True),
    "numpy choice, without": lambda given, draws: numpy_choice(given, draws, False),
    "torch multinomial, with": lambda given, draws: torch_multinomial(given, draws, True),
    "torch multinomial, without": lambda given, draws: torch_multinomial(given, draws, False),
}


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def one(name: str, rows: int, draws: int) -> dict[str, Any]:
    """One contender, in this process."""
    if "torch" in name:
        import torch  # noqa: F401  # its own memory is not the sampler's

    before = peak_bytes()
    if name in OTHERS:
        given = weights(rows)
        started = time.perf_counter()
        try:
            OTHERS[name](given, draws)
        except (RuntimeError, ValueError, MemoryError) as error:
            return {"error": str(error).splitlines()[0]}
        took_s = time.perf_counter() - started
        return {"draws_per_s": draws / took_s, "bytes": (peak_bytes() - before) / rows}
    make_input, make = OURS[name]
    given = make_input(rows)
    started = time.perf_counter()
    sampler = make(given, draws)
    built_s = time.perf_counter() - started
    started = time.perf_counter()
    sampler.draw(0, np.arange(1))
    first_s = time.perf_counter() - started
    started = time.perf_counter()
    drawn = min(draws, sampler.epoch_size(0))
    for start in range(0, drawn, PIECE):
        sampler.draw(0, np.arange(start, min(start + PIECE, drawn)))
    took_s = time.perf_counter() - started
    return {
        "built_s": built_s,
        "first_s": first_s,
        "draws_per_s": drawn / took_s,
        "bytes": (peak_bytes() - before) / rows,
    }


def run(rows: int, draws: int, only: str) -> dict[str, dict[str, Any]]:
    """Each contender in a new process; prints a line for each."""
    print(f"{rows:,} rows, {draws:,} draws\n{'':28} {'build s':>8} {'epoch s':>8} ", end="")
    print(f"{'draws/s':>12} {'bytes/row':>9}")
    found = {}
    for name in [*OURS, *OTHERS]:
        if only not in name:
            continue
        requested = ["--one", name, "--rows", str(rows), "--draws", str(draws)]
        command = [sys.executable, "-m", "benchmarks.samplers", *requested]
        root = Path(__file__).parents[1]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
        found[name] = json.loads(done.stdout)
        if "error" in found[name]:
            print(f"{name:28} refuses: {found[name]['error'][:70]}", flush=True)
            continue
        built, first = (
            f"{found[name][key]:8.2f}" if key in found[name] else f"{'':8}"
            for key in ("built_s", "first_s")
        )
        rate = f"{found[name]['draws_per_s']:12,.0f} {found[name]['bytes']:9.1f}"
        print(f"{name:28} {built} {first} {rate}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--draws", type=int, default=1_000_000)
    parser.add_argument("--only", default="", help="contenders whose names have this in them")
    parser.add_argument("--one", help="a single contender in this process, figures as JSON")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(one(arguments.one, arguments.rows, arguments.draws)))
    else:
        run(arguments.rows, arguments.draws, arguments.only)


if __name__ == "__main__":
    main()
