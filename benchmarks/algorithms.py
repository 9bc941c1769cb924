"""Logistic regression on the iteration runtime compared with scikit-learn, over the same batches.

Iterations take turns: each contender goes over a batch of all rows ``--iterations`` times, and
then the next one does; ``--repeats`` times. Rates are rows per second of processor time, so that
other work on the machine does not count: NumPy is held to one thread. ``--flink`` runs it as a
job on Flink, too, in threads of the JVM, where the subtasks make their rows: timed by the clock
from the first gradient to the last.

    python -m benchmarks.algorithms --rows 1000000 --width 100 --iterations 20
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import SGDClassifier
from threadpoolctl import threadpool_limits

from paimon_features.iteration import IterationConfig, ReferenceExecutor
from paimon_features.iteration.algorithms import LogisticRegression
from paimon_features.iteration.algorithms.sgd import LOSSES, logistic
from paimon_features.iteration.algorithms.training_blocks import BLOCK_ROWS, TrainingBlock

Fit = Callable[[], Any]


def rows_of(rows: int, width: int, seed: int = 0) -> tuple[Any, Any]:
    """Features, index (rows, width), and labels that follow them with noise."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((rows, width))
    wanted = np.random.default_rng(99).standard_normal(width)
    return features, (features @ wanted + rng.standard_normal(rows) > 0).astype(np.float64)


def estimator(rows: int, iterations: int) -> LogisticRegression:
    """Every iteration is a step over all rows."""
    return LogisticRegression(
        max_iter=iterations, global_batch_size=rows, learning_rate=1.0, tol=0.0
    )


def contenders(rows: int, width: int, iterations: int) -> dict[str, Fit]:
    """What takes turns."""
    features, labels = rows_of(rows, width)
    ours = estimator(rows, iterations)

    def scikit_learn() -> float:
        model = SGDClassifier(
            loss="log_loss", penalty=None, fit_intercept=False, learning_rate="constant", eta0=0.01
        )
        for _ in range(iterations):
            model.partial_fit(features, labels, classes=[0.0, 1.0])
        return float(model.score(features[:10_000], labels[:10_000]))

    def runtime() -> float:
        model = ours.fit(features, labels, executor=ReferenceExecutor())
        made = model.transform(features[:10_000])[:, 0]
        return float((made == labels[:10_000]).mean())

    def plain_numpy() -> float:
        coefficient = np.zeros(width)
        sign = 2 * labels - 1
        for _ in range(iterations):
            slopes = -sign / (1 + np.exp(sign * (features @ coefficient)))
            coefficient -= (slopes @ features) / rows
        made = features[:10_000] @ coefficient > 0
        return float((made == labels[:10_000]).mean())

    return {
        "scikit-learn partial_fit": scikit_learn,
        "iteration runtime": runtime,
        "plain NumPy": plain_numpy,
    }


class _Made:
    """Makes a subtask's rows in the subtask."""

    def __init__(self, rows: int, width: int, parallelism: int) -> None:
        self.share = rows // parallelism
        self.width = width

    def flat_map(self, subtask: int) -> Any:
        for start in range(0, self.share, BLOCK_ROWS):
            count = min(BLOCK_ROWS, self.share - start)
            features, labels = rows_of(count, self.width, seed=subtask * 1_000_000 + start)
            yield TrainingBlock(features, labels)


@dataclass(frozen=True, kw_only=True)
class _Estimator(LogisticRegression):
    loss = "timed"


class _Timed:
    """The logistic loss, which notes when a subtask first came to it and when it last did."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, product: Any, labels: Any) -> Any:
        if "file" not in vars(self):
            self.file = os.open(f"{self.folder}/{secrets.token_hex(8)}", os.O_CREAT | os.O_WRONLY)
            os.pwrite(self.file, struct.pack("d", time.monotonic()), 0)
        found = logistic(product, labels)
        os.pwrite(self.file, struct.pack("d", time.monotonic()), 8)
        return found


def on_flink(rows: int, width: int, iterations: int, parallelism: int) -> tuple[float, float]:
    """Seconds from the first gradient to the last, and of the whole job in a running JVM."""
    from paimon_features.iteration.flink import IterationJob, IterationSettings

    def seconds(rounds: int, of_rows: int) -> tuple[float, float]:
        with tempfile.TemporaryDirectory() as folder:
            LOSSES["timed"] = _Timed(folder)
            made = _Made(of_rows, width, parallelism)
            program = _Estimator(
                max_iter=rounds, global_batch_size=of_rows, learning_rate=1.0, tol=0.0
            ).program(
                lambda job: job.from_collection(range(parallelism), parallelism).flat_map(made),
                parallelism=parallelism,
                config=IterationConfig(wire="memory"),
            )
            settings = IterationSettings(
                mode="thread", wire="memory", checkpoint_interval_ms=5_000, stuck_s=None
            )
            started = time.perf_counter()
            IterationJob(settings=settings).run(program)
            whole = time.perf_counter() - started
            times = [struct.unpack("dd", path.read_bytes()) for path in Path(folder).iterdir()]
        return max(last for _, last in times) - min(first for first, _ in times), whole

    seconds(1, 1000)  # starts the JVM
    return seconds(iterations, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=100)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--flink", type=int, default=0, metavar="P", help="parallelism on Flink")
    given = parser.parse_args()
    size = (given.rows, given.width, given.iterations)
    print(f"{given.rows:,} rows x {given.width}, {given.iterations} iterations over all rows")
    if given.flink:
        loop_s, whole_s = on_flink(*size, given.flink)
        each = loop_s / given.iterations
        rate = given.rows * given.iterations / loop_s / given.flink
        print(f"on Flink, {given.flink} subtasks: {whole_s:.1f} s, {each:.4f} s an iteration,")
        print(f"  {rate:,.0f} rows/s for each subtask")
    fits = contenders(*size)
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in fits}
    for _ in range(given.repeats):
        for name, fit in fits.items():
            cpu, clock = time.process_time(), time.perf_counter()
            with threadpool_limits(1):
                right = fit()
            found[name].append((time.process_time() - cpu, time.perf_counter() - clock, right))
    total = given.rows * given.iterations
    base = statistics.median(cpu for cpu, _, _ in found["scikit-learn partial_fit"])
    print(f"{'':26} {'seconds':>8} {'rows/s and core':>16} {'of scikit-learn':>16} {'right':>7}")
    for name, runs in found.items():
        cpu = statistics.median(run[0] for run in runs)
        clock = statistics.median(run[1] for run in runs)
        ratios = sorted(
            other[0] / run[0]
            for run, other in zip(runs, found["scikit-learn partial_fit"], strict=True)
        )
        spread = f"{base / cpu:.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
        print(f"{name:26} {clock:8.2f} {total / cpu:16,.0f} {spread:>16} {runs[0][2]:7.3f}")


if __name__ == "__main__":
    main()
