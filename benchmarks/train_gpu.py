"""Training on a GPU: precision, compilation, memory, and how the loader feeds it.

    python -m benchmarks.train_gpu                     # about three minutes on a GPU
    python -m benchmarks.train_gpu --device cpu --size smoke --seconds 0.1

A step is what ``paimon-features train`` does: forward, loss, backward, clipped gradients, AdamW,
for batches that are on the device already. Contenders take turns in one process, so that ratios
are those of one run. Rates are medians over rounds; memory is the peak of a step.

Then the loader: batches of a snapshot of a table, copied while the step waits, or from pinned
memory behind its back, beside the same step over batches that are on the device already.

Needs torch and NumPy, for the loader pypaimon and pyarrow; what is left out is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from trainer_bridge.models import (
    InputShapes,
    Network,
    SequenceTransformerNetwork,
    TabularTransformerNetwork,
)

Batch = dict[str, torch.Tensor]
ROUNDS = 3
WARM_UP = 3
COMPILE_S = 120.0
LISTS, ITEMS = 2, 1_000


@dataclass(frozen=True)
class Task:
    """A network, and the rows of a batch."""

    name: str
    kind: type[TabularTransformerNetwork] | type[SequenceTransformerNetwork]
    features: int
    dim: int
    layers: int
    heads: int
    rows: int
    events: int = 0

    def network(self) -> Network:
        torch.manual_seed(0)
        shapes = InputShapes(
            tuple((place,) for place in range(self.features)),
            (ITEMS,) * LISTS if self.events else (),
            1 if self.events else 0,
            self.events,
        )
        return self.kind(shapes, 1, dim=self.dim, layers=self.layers, heads=self.heads)

    def batch(self, seed: int, device: str) -> Batch:
        """Random rows; lists are half full on average."""
        dice = np.random.default_rng(seed)
        found: dict[str, np.ndarray[Any, Any]] = {
            "numbers": dice.standard_normal((self.rows, self.features), np.float32),
            "label": dice.integers(0, 2, self.rows).astype(np.float32),
        }
        if self.events:
            there = np.arange(self.events) < dice.integers(0, self.events + 1, self.rows)[:, None]
            codes = dice.integers(1, ITEMS, (self.rows, LISTS, self.events))
            values = dice.standard_normal((self.rows, 1, self.events), np.float32)
            found["codes"] = np.where(there[:, None], codes, 0)
            found["values"] = np.where(there[:, None], values, np.float32(np.nan))
        return {name: torch.from_numpy(array).to(device) for name, array in found.items()}


TABULAR, SEQUENCE = TabularTransformerNetwork, SequenceTransformerNetwork
SIZES: dict[str, tuple[Task, ...]] = {
    "smoke": (
        Task("tabular, 2 x 16", TABULAR, 4, 16, 2, 2, 32),
        Task("sequence, 2 x 16", SEQUENCE, 4, 16, 2, 2, 32, events=8),
    ),
    "full": (
        Task("tabular, 12 features, 4 x 64", TABULAR, 12, 64, 4, 4, 4_096),
        Task("sequence, 50 events, 2 x 64", SEQUENCE, 12, 64, 2, 4, 2_048, events=50),
        Task("tabular, 64 features, 6 x 512", TABULAR, 64, 512, 6, 8, 1_024),
        Task("sequence, 200 events, 6 x 512", SEQUENCE, 12, 512, 6, 8, 256, events=200),
    ),
}


@dataclass(frozen=True)
class Variant:
    """How numbers are computed: ``precision`` is that of the trainer's configuration."""

    name: str
    bf16: bool = False
    tf32: bool = False
    compiled: bool = False


VARIANTS = (
    Variant("fp32"),
    Variant("fp32 + TF32", tf32=True),
    Variant("fp32 + TF32 + compile", tf32=True, compiled=True),
    Variant("bf16-mixed", bf16=True),
    Variant("bf16-mixed + compile", bf16=True, compiled=True),
)


class Training:
    """A network with its optimiser under one variant."""

    def __init__(self, task: Task, variant: Variant, device: str) -> None:
        self.variant, self.device = variant, device
        self.network = task.network().to(device).train()
        self.optimiser = torch.optim.AdamW(self.network.parameters(), lr=1e-3)
        self.call: Any = (
            torch.compile(self.network, dynamic=False) if variant.compiled else self.network
        )

    def step(self, batch: Batch) -> torch.Tensor:
        inputs = {name: array for name, array in batch.items() if name != "label"}
        with torch.autocast(self.device, torch.bfloat16, enabled=self.variant.bf16):
            logits = self.call(**inputs)
        loss = functional.binary_cross_entropy_with_logits(logits[:, 0].float(), batch["label"])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return loss.detach()

    def run(self, batches: Iterable[Batch]) -> tuple[int, float]:
        """Train on all batches; returns rows and seconds."""
        rows, loss = 0, None
        wait(self.device)
        began = time.perf_counter()
        with precision(self.variant):
            for batch in batches:
                loss = self.step(batch)
                rows += len(batch["label"])
        wait(self.device)
        spent = time.perf_counter() - began
        if loss is None or not bool(torch.isfinite(loss)):
            raise RuntimeError(f"{self.variant.name}: the loss is {loss}")
        return rows, spent


@contextlib.contextmanager
def precision(variant: Variant) -> Iterator[None]:
    """Within it, products of float32 matrices are TF32 if the variant says so."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if variant.tf32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def wait(device: str) -> None:
    """Until the device has done everything."""
    if device == "cuda":
        torch.cuda.synchronize()


def cycled(batches: Sequence[Batch], count: int) -> Iterator[Batch]:
    return itertools.islice(itertools.cycle(batches), count)


def variants_of(device: str, compiles: bool) -> list[Variant]:
    return [
        each
        for each in VARIANTS
        if (device == "cuda" or not each.tf32) and (compiles or not each.compiled)
    ]


def fill_compile_caches(size: str, device: str) -> None:
    """Compile every network at once, a process each: torch keeps what they compile on disk."""
    began = time.perf_counter()
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.train_gpu", "--only-compile", str(place),
             "--size", size, "--device", device]
        )
        for place in range(len(SIZES[size]))
    ]  # fmt: skip
    failed = 0
    for process in running:
        try:
            failed += process.wait(timeout=max(1.0, began + COMPILE_S - time.perf_counter())) != 0
        except subprocess.TimeoutExpired:
            process.kill()
            failed += process.wait() != 0
    print(
        f"compiled {len(running) - failed} of {len(running)} networks in two precisions, a process "
        f"each: {time.perf_counter() - began:.0f} s",
        flush=True,
    )


def only_compile(task: Task, device: str) -> None:
    batch = task.batch(0, device)
    for variant in variants_of(device, compiles=True):
        if variant.compiled:
            Training(task, variant, device).run([batch])


def train_rates(task: Task, device: str, seconds: float, compiles: bool) -> list[dict[str, Any]]:
    """Rates and peaks of every variant of a task; the first one is fp32."""
    batches = [task.batch(seed, device) for seed in range(4)]
    contenders, rows, steps = [], [], []
    for variant in variants_of(device, compiles):
        training = Training(task, variant, device)
        try:
            _, first_s = training.run(cycled(batches, 1))
        except Exception as error:  # a compiler may miss a tool of the machine
            if not variant.compiled:
                raise
            print(f"{task.name}, {variant.name}: {type(error).__name__}: {str(error)[:300]}")
            continue
        _, spent = training.run(cycled(batches, WARM_UP))
        steps.append(max(2, round(seconds * WARM_UP / spent)))
        peak = None
        if device == "cuda":
            # above what is there without a step: batches, and the other contenders
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            training.run(cycled(batches, 2))
            peak = torch.cuda.max_memory_allocated() - before
        contenders.append(training)
        rows.append(
            {"task": task.name, "rows": task.rows, "variant": variant.name, "first_s": first_s,
             "peak": peak}
        )  # fmt: skip
    rates: list[list[float]] = [[] for _ in contenders]
    for _ in range(ROUNDS):
        for place, training in enumerate(contenders):
            count, spent = training.run(cycled(batches, steps[place]))
            rates[place].append(count / spent)
    for row, found in zip(rows, rates, strict=True):
        row["rate"] = statistics.median(found)
        row["spread"] = (max(found) - min(found)) / row["rate"]
    return rows


def print_rates(rows: list[dict[str, Any]]) -> None:
    first = rows[0]
    shares = ("samples/s", "x fp32", "spread", "peak MiB", "x fp32")
    print(f"\n{first['task']}, batches of {first['rows']:,}")
    print("  {:24} {:>12} {:>7} {:>7} {:>9} {:>7}".format("variant", *shares))
    for row in rows:
        peak = share = "-"
        if row["peak"] is not None:
            peak, share = f"{row['peak'] / 2**20:,.0f}", f"{row['peak'] / first['peak']:.2f}"
        print(
            f"  {row['variant']:24} {row['rate']:12,.0f} {row['rate'] / first['rate']:7.2f} "
            f"{row['spread']:7.1%} {peak:>9} {share:>7}",
            flush=True,
        )


def graph_breaks(task: Task, device: str) -> int:
    """Breaks of the graph of a training step's forward pass."""
    torch._dynamo.reset()
    network = task.network().to(device).train()
    inputs = {n: array for n, array in task.batch(0, device).items() if n != "label"}
    found = torch._dynamo.explain(network)(**inputs)
    torch._dynamo.reset()
    return int(found.graph_break_count)


def feeding(task: Task, device: str, rows: int, threads: int) -> list[tuple[str, float]]:
    """Samples/s of a loader by itself, and of the fastest step over what it delivers."""
    import pyarrow as pa

    from paimon_features.core.types.schema import Float32
    from paimon_features.lake import TableSpec, append_arrow
    from paimon_features.lake.catalog import Lake
    from trainer_bridge.adapters.torch import TensorBatch, loader
    from trainer_bridge.readers.snapshot_reader import SnapshotReader

    names = [f"f{place}" for place in range(task.features)]
    variant = VARIANTS[-1] if device == "cuda" else VARIANTS[0]
    training = Training(task, variant, device)
    batches = [task.batch(seed, device) for seed in range(4)]
    training.run(cycled(batches, WARM_UP))

    with tempfile.TemporaryDirectory() as folder:
        lake = Lake.open(Path(folder), "bench")
        lake.create(TableSpec("samples", dict.fromkeys([*names, "label"], Float32)))
        dice = np.random.default_rng(0)
        for part in np.array_split(np.arange(rows), 8):
            data = {name: dice.standard_normal(len(part), np.float32) for name in names}
            data["label"] = dice.integers(0, 2, len(part)).astype(np.float32)
            append_arrow(lake, "samples", pa.table(data))

        def delivered(pinned: bool) -> Iterator[TensorBatch]:
            reader = SnapshotReader(lake, "samples", batch_size=task.rows, threads=threads)
            with loader(reader, stack={"numbers": names}, pin_memory=pinned) as found:
                yield from (batch for batch in found if len(batch["label"]) == task.rows)

        def on_device(pinned: bool) -> Iterator[Batch]:
            for batch in delivered(pinned):
                yield batch.to(device, non_blocking=pinned)

        def own_stream() -> Iterator[Batch]:
            """Copies run ahead on a stream of their own, in parallel with computation."""
            stream, coming = torch.cuda.Stream(), None
            for batch in itertools.chain(delivered(pinned=True), [None]):
                ready, coming = coming, None
                if batch is not None:
                    with torch.cuda.stream(stream):
                        coming = batch.to(device, non_blocking=True), batch
                        coming = coming[0], stream.record_event(), batch
                if ready is not None:
                    now = torch.cuda.current_stream()
                    now.wait_event(ready[1])
                    for array in ready[0].values():
                        array.record_stream(now)
                    yield ready[0]

        def read_only(pinned: bool) -> tuple[int, float]:
            began, count = time.perf_counter(), 0
            for batch in delivered(pinned):
                count += len(batch["label"])
            return count, time.perf_counter() - began

        steps = rows // task.rows
        contenders: list[tuple[str, Callable[[], tuple[int, float]]]] = [
            ("the loader alone", lambda: read_only(False)),
            ("step, data on the device", lambda: training.run(cycled(batches, steps))),
            ("step, copied synchronously", lambda: training.run(on_device(False))),
        ]
        if device == "cuda":
            contenders += [
                ("the loader alone, pinned", lambda: read_only(True)),
                ("step, pinned, asynchronous", lambda: training.run(on_device(True))),
                ("step, pinned, stream of its own", lambda: training.run(own_stream())),
            ]
        for _, run in contenders:
            run()
        rates: dict[str, list[float]] = {name: [] for name, _ in contenders}
        for _ in range(ROUNDS):
            for name, run in contenders:
                count, spent = run()
                rates[name].append(count / spent)
    return [(name, statistics.median(found)) for name, found in rates.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--size", choices=tuple(SIZES), default=None)
    parser.add_argument("--seconds", type=float, default=0.7, help="of a round of a contender")
    parser.add_argument("--rows", type=int, default=None, help="rows of the loader's table")
    parser.add_argument("--threads", type=int, default=4, help="threads of the loader")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument("--json", type=Path, default=None, help="write all figures there")
    parser.add_argument("--only-compile", type=int, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    device = arguments.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    on_gpu = device == "cuda"
    size = arguments.size or ("full" if on_gpu else "smoke")
    compiles = on_gpu if arguments.compile is None else arguments.compile
    if arguments.only_compile is not None:
        only_compile(SIZES[size][arguments.only_compile], device)
        return
    name = torch.cuda.get_device_name() if on_gpu else platform.processor() or "cpu"
    print(
        f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {torch.__version__}, NumPy {np.__version__}",
        flush=True,
    )
    left_out = []
    if not on_gpu:
        left_out.append("TF32, memory peaks, pinned memory: no GPU")
    if not compiles:
        left_out.append("compile: takes minutes on a processor; --compile")
    results: dict[str, Any] = {
        "device": name,
        "torch": torch.__version__,
        "tasks": [],
        "feeding": [],
    }
    if compiles:
        fill_compile_caches(size, device)
    for task in SIZES[size]:
        rows = train_rates(task, device, arguments.seconds, compiles)
        print_rates(rows)
        breaks = graph_breaks(task, device)
        print(f"  graph breaks of torch.compile: {breaks}", flush=True)
        results["tasks"].append({"rows": rows, "graph_breaks": breaks})
        if on_gpu:
            torch.cuda.empty_cache()
    try:
        import pyarrow  # noqa: F401
        import pypaimon  # noqa: F401
    except ImportError as error:
        left_out.append(f"the loader: {error.name} is not installed")
    else:
        count = arguments.rows or (2_000_000 if on_gpu else 3_200)
        task = SIZES[size][0]
        found = feeding(task, device, count, arguments.threads)
        ceiling = dict(found)["step, data on the device"]
        print(f"\nfeeding: {task.name}, {count:,} rows of a table, batches of {task.rows:,}")
        for each, rate in found:
            print(f"  {each:34} {rate:12,.0f} samples/s {rate / ceiling:6.2f}")
        results["feeding"] = found
    for each in left_out:
        print(f"left out: {each}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
