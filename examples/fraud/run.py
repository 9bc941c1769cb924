"""Fraud at 1 in 10,000: the same model, steps and rows, with and without a sampler.

python examples/fraud/run.py --into fraud            # 10 million payments, two minutes
python examples/fraud/run.py --into fraud --rows 100000 --frauds 100 --batch-size 256
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import nn

from paimon_features.core.types.array_types import Floats
from paimon_features.core.types.schema import Float32
from paimon_features.lake import Lake, TableSpec, append_arrow
from trainer_bridge import SnapshotReader
from trainer_bridge.adapters.torch import loader
from trainer_bridge.samplers import BalancedBatchSampler

sys.path.insert(0, str(Path(__file__).parent))

from plot import draw
from transactions import FEATURES, LABEL, transactions

TABLE = "payments"
SEED = 7
PART = 1_000_000


@dataclass
class Run:
    """The result of one training run."""

    name: str
    frauds_seen: int = 0
    seconds: float = 0.0
    steps: list[int] = field(default_factory=list)
    recalls: list[float] = field(default_factory=list)
    """Recall at precision 0.5 on the held-out payments, after each of ``steps``."""
    precision: Floats = field(default_factory=lambda: np.empty(0))
    recall: Floats = field(default_factory=lambda: np.empty(0))

    def recall_at(self, precision: float) -> float:
        """Return the highest recall at which the precision is at least this."""
        return recall_at(self.precision, self.recall, precision)

    def summary(self) -> dict[str, Any]:
        """Return the metrics, for printing and tests."""
        return {
            "frauds seen": self.frauds_seen,
            "recall at precision 0.5": round(self.recall_at(0.5), 3),
            "recall at precision 0.9": round(self.recall_at(0.9), 3),
            "average precision": round(average_precision(self.precision, self.recall), 3),
            "training s": round(self.seconds, 1),
        }


class Model(nn.Module):
    """Two layers over normalised logarithms: amounts, distances and times are heavy-tailed."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm1d(len(FEATURES), momentum=0.01),
            nn.Linear(len(FEATURES), 32),
            nn.ReLU(),
            nn.Linear(32, 16),
            nn.ReLU(),
            nn.Linear(16, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(torch.log1p(x))
        return logits.squeeze(1)


def make_table(lake: Lake, rows: int, frauds: int) -> None:
    """Write the payments to an append table, a million rows per commit."""
    lake.create(TableSpec(TABLE, dict.fromkeys([*FEATURES, LABEL], Float32)))
    payments = transactions(rows, frauds, SEED)
    for start in range(0, rows, PART):
        append_arrow(lake, TABLE, payments[start : start + PART])


def epochs(reader: SnapshotReader) -> Iterator[dict[str, torch.Tensor]]:
    """Yield batches indefinitely, epoch after epoch."""
    while True:
        yield from loader(reader, stack={"x": FEATURES})


def train(name: str, reader: SnapshotReader, steps: int, held_out: pa.Table) -> Run:
    """Train a new model for a number of batches; evaluate it ten times on held-out payments."""
    torch.manual_seed(SEED)
    model, run = Model(), Run(name)
    columns = [held_out[column].to_numpy() for column in FEATURES]
    x, is_fraud = torch.from_numpy(np.stack(columns, axis=1)), held_out[LABEL].to_numpy() > 0
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    looks = {steps * part // 10 for part in range(1, 11)}
    started, batches = time.perf_counter(), epochs(reader)
    for step in range(1, steps + 1):
        batch = next(batches)
        loss = nn.functional.binary_cross_entropy_with_logits(model(batch["x"]), batch[LABEL])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.frauds_seen += int(batch[LABEL].sum())
        if step in looks:
            run.seconds += time.perf_counter() - started
            run.precision, run.recall = precision_and_recall(model, x, is_fraud)
            run.steps.append(step)
            run.recalls.append(run.recall_at(0.5))
            started = time.perf_counter()
    return run


def precision_and_recall(
    model: Model, x: torch.Tensor, is_fraud: npt.NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """Return precision and recall by the number of payments flagged, by descending score.

    Ends where all frauds are caught.
    """
    model.eval()
    with torch.no_grad():
        scores = torch.cat([model(part) for part in x.split(65_536)]).numpy()
    model.train()
    reported = np.flatnonzero(scores >= scores[is_fraud].min())
    order = reported[np.argsort(-scores[reported], kind="stable")]
    caught = np.cumsum(is_fraud[order])
    return caught / np.arange(1, len(caught) + 1), caught / caught[-1]


def recall_at(precision: Floats, recall: Floats, least: float) -> float:
    enough = np.flatnonzero(precision >= least)
    return float(recall[enough[-1]]) if len(enough) else 0.0


def average_precision(precision: Floats, recall: Floats) -> float:
    return float((precision * np.diff(recall, prepend=0.0)).sum())


def compare(
    into: Path, rows: int, frauds: int, steps: int, batch_size: int, held_out_rows: int
) -> list[Run]:
    """Create the table, train twice, and plot ``into``/fraud.png."""
    lake = Lake.open(into / "lake", "fraud")
    make_table(lake, rows, frauds)
    # as rare as in training, and held out
    held_out = transactions(held_out_rows, held_out_rows * frauds // rows, SEED + 1)
    with SnapshotReader(lake, TABLE, batch_size=batch_size, seed=SEED) as reader:
        labels = reader.read_columns([LABEL])[LABEL]
        sampler = BalancedBatchSampler(labels, batch_size, seed=SEED)
        runs = [
            train("without a sampler", reader, steps, held_out),
            train("balanced batches", reader.with_sampler(sampler), steps, held_out),
        ]
    draw(into / "fraud.png", runs, rows, frauds, batch_size)
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--into", type=Path, required=True, help="a folder that does not exist yet")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--frauds", type=int, default=1_000)
    parser.add_argument("--steps", type=int, help="number of batches; by default one epoch")
    parser.add_argument("--batch-size", type=int, default=1_024)
    parser.add_argument("--held-out-rows", type=int, help="as many as rows by default")
    arguments = parser.parse_args()
    arguments.steps = arguments.steps or arguments.rows // arguments.batch_size
    arguments.held_out_rows = arguments.held_out_rows or arguments.rows
    if arguments.into.exists():
        parser.error(f"{arguments.into} already exists; choose another folder")
    arguments.into.mkdir(parents=True)
    torch.set_num_threads(
        1
    )  # a small model does not benefit from more, and its reader uses threads
    started = time.perf_counter()
    runs = compare(**vars(arguments))
    for run in runs:
        print(f"{run.name}: {json.dumps(run.summary())}")
    print(f"{arguments.into / 'fraud.png'}, {time.perf_counter() - started:.0f} s in all")


if __name__ == "__main__":
    main()
