"""A small model, two epochs: the second one draws what the first one found hard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from paimon_features.project import Project, now_ms
from paimon_features.tables import read_arrow
from trainer_bridge.adapters.torch import loader
from trainer_bridge.difficulty import read_difficulty, scores_from_features
from trainer_bridge.feedback import FeedbackWriter
from trainer_bridge.reader import SnapshotReader
from trainer_bridge.samplers import DifficultyWeightedSampler

TABLE = "training_will_buy"
SKIPPED = ("sample_id", "customer_id", "event_time_ms", "will_buy", "last_country_180d")
BATCH = 256
SEED = 7


@dataclass
class Result:
    """What training showed: (epoch, loss) per step, a summary per epoch, the hardest samples."""

    steps: list[tuple[int, float]] = field(default_factory=list)
    epochs: list[dict[str, float]] = field(default_factory=list)
    hardest: list[dict[str, Any]] = field(default_factory=list)


class Model(nn.Module):
    """Amounts and counts are heavy-tailed: signed logarithms, normalised, then one layer."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm1d(features), nn.Linear(features, 24), nn.ReLU(), nn.Linear(24, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(torch.sign(x) * torch.log1p(torch.abs(x)))
        return logits.squeeze(1)


def train_two_epochs(project: Project, tiles_of_feedback: Callable[[], None]) -> Result:
    """Train on ``training_will_buy``; ``tiles_of_feedback`` runs the tile job in between."""
    torch.manual_seed(SEED)
    lake, result = project.lake, Result()
    table = read_arrow(lake, TABLE)
    features = [name for name in table.column_names if name not in SKIPPED]
    held_out = int(np.max(table["event_time_ms"].to_numpy()))
    model = Model(len(features))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loop = project.definitions.source("will_buy")
    with SnapshotReader(
        lake,
        TABLE,
        columns=["sample_id", "event_time_ms", "will_buy", *features],
        batch_size=BATCH,
        seed=SEED,
        float_dtype="float32",
        fill=dict.fromkeys(features, 0.0),
    ) as reader:
        run_id = f"demo_{now_ms()}"
        with FeedbackWriter(lake, loop, run_id=run_id, model_version="1") as writer:
            _epoch(1, reader, features, held_out, model, optimizer, writer, result)
            _evaluate(1, table, features, held_out, model, result)
            writer.flush()
            tiles_of_feedback()
            scores = _scores(project, reader, held_out, result)
            sampler = DifficultyWeightedSampler(scores, seed=SEED)
            hard = reader.with_sampler(sampler)
            _epoch(2, hard, features, held_out, model, optimizer, writer, result)
            _evaluate(2, table, features, held_out, model, result)
    return result


def _epoch(
    number: int,
    reader: SnapshotReader,
    features: list[str],
    held_out: int,
    model: Model,
    optimizer: torch.optim.Optimizer,
    writer: FeedbackWriter,
    result: Result,
) -> None:
    """One epoch; the losses of the samples go into the feedback table."""
    model.train()
    losses = []
    for step, batch in enumerate(loader(reader)):
        kept = batch["event_time_ms"] < held_out
        if int(kept.sum()) < 2:
            continue
        x = torch.stack([batch[name].float() for name in features], dim=1)[kept]
        y = batch["will_buy"][kept].float()
        logits = model(x)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y, reduction="none")
        weights = batch["sample_weight"][kept] if "sample_weight" in batch else torch.ones(len(y))
        optimizer.zero_grad()
        (loss * weights).mean().backward()
        optimizer.step()
        plain = loss.detach().numpy()
        correct = ((logits.detach() > 0).float() == y).numpy()
        writer.write({"sample_id": batch["sample_id"][kept].numpy()}, plain, step, correct)
        losses.append(float((loss.detach() * weights).mean()))
        result.steps.append((number, losses[-1]))
    result.epochs.append({"epoch": number, "loss": float(np.mean(losses))})


def _scores(
    project: Project, reader: SnapshotReader, held_out: int, result: Result
) -> np.ndarray[Any, Any]:
    """How hard each row of the training table is, by its feedback; notes the hardest ones."""
    columns = ["sample_id", "customer_id", "event_time_ms", "will_buy"]
    with SnapshotReader(
        project.lake,
        TABLE,
        snapshot_id=reader.snapshot_id,
        columns=columns,
        batch_size=BATCH,
        shuffle=False,
        output="arrow",
    ) as plain:
        samples = pa.concat_tables([batch.arrow for batch in plain])
    keys, q_ms = samples.select(["sample_id"]), now_ms() + 1
    difficulty = read_difficulty(project, "will_buy_difficulty", keys, q_ms)
    scores = scores_from_features(difficulty, ["sample_id"], keys, q_ms=q_ms)
    # the held-out month is not trained on: it is never drawn for being hard
    scores = np.where(samples["event_time_ms"].to_numpy() < held_out, scores, 0.0)
    for row in np.argsort(-scores)[:10]:
        sample = {name: samples[name][int(row)].as_py() for name in columns}
        at = datetime.fromtimestamp(sample.pop("event_time_ms") / 1000, UTC).date().isoformat()
        result.hardest.append({**sample, "at": at, "loss": float(scores[row])})
    return scores


def _evaluate(
    number: int,
    table: pa.Table,
    features: list[str],
    held_out: int,
    model: Model,
    result: Result,
) -> None:
    """Area under the ROC curve of the last month, which was not trained on."""
    model.eval()
    last = table.filter(pa.array(table["event_time_ms"].to_numpy() == held_out))
    x = np.stack([last[n].fill_null(0).to_numpy().astype(np.float32) for n in features], axis=1)
    with torch.no_grad():
        order = model(torch.from_numpy(x)).numpy().argsort(kind="stable")
    label = last["will_buy"].to_numpy()[order].astype(bool)
    ranks = np.arange(1, len(label) + 1)
    positives, negatives = label.sum(), (~label).sum()
    # Mann and Whitney: the share of (buyer, other) pairs in the right order
    auc = (ranks[label].sum() - positives * (positives + 1) / 2) / (positives * negatives)
    result.epochs[number - 1]["auc"] = float(auc)
