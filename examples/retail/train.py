"""A training loop by hand, two epochs: the second one draws what the first one found hard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
from torch import nn

from paimon_features.core.times.clock import now_ms
from paimon_features.core.windows import DAY_MS
from paimon_features.lake import read_arrow
from paimon_features.project import Project
from trainer_bridge.adapters.torch import loader
from trainer_bridge.feedback.difficulty import read_difficulty
from trainer_bridge.feedback.writer import FeedbackWriter
from trainer_bridge.readers.snapshot_reader import SnapshotReader
from trainer_bridge.samplers import DifficultyWeightedSampler

TABLE = "training_will_buy"
SKIPPED = ("sample_id", "customer_id", "event_time_ms", "will_buy", "last_country_180d")
BATCH = 256
SEED = 7
HELD_OUT = 0.15
GAP_MS = 7 * DAY_MS
"""A label looks a week ahead."""


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


class Training:
    """Two epochs on ``training_will_buy``; the newest rows are held out, with a gap before them."""

    def __init__(self, project: Project) -> None:
        torch.manual_seed(SEED)
        self.project = project
        self.loop = project.definitions.source("will_buy")
        table = read_arrow(project.lake, TABLE)
        self.features = [name for name in table.column_names if name not in SKIPPED]
        held_out_ms = int(np.quantile(table["event_time_ms"].to_numpy(), 1 - HELD_OUT))
        self.until_ms = held_out_ms - GAP_MS
        self.held_out = table.filter(pc.greater_equal(table["event_time_ms"], held_out_ms))
        self.model = Model(len(self.features))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        self.result = Result()

    def run(self, tiles_of_feedback: Callable[[], None]) -> Result:
        """Train; ``tiles_of_feedback`` runs the tile job between the epochs."""
        lake = self.project.lake
        reader = SnapshotReader(
            lake,
            TABLE,
            columns=["sample_id", "event_time_ms", "will_buy", *self.features],
            batch_size=BATCH,
            seed=SEED,
            float_dtype="float32",
            fill=dict.fromkeys(self.features, 0.0),
        )
        writer = FeedbackWriter(lake, self.loop, run_id=f"demo_{now_ms()}", model_version="1")
        with reader, writer:
            self.epoch(1, reader, writer)
            writer.flush()
            tiles_of_feedback()
            self.epoch(2, reader.with_sampler(self.sampler(reader)), writer)
        return self.result

    def epoch(self, number: int, reader: SnapshotReader, writer: FeedbackWriter) -> None:
        """One epoch; the losses of the samples go into the feedback table."""
        self.model.train()
        losses = []
        for step, batch in enumerate(loader(reader)):
            kept = batch["event_time_ms"] < self.until_ms
            if int(kept.sum()) < 2:
                continue
            x = torch.stack([batch[name].float() for name in self.features], dim=1)[kept]
            y = batch["will_buy"][kept].float()
            logits = self.model(x)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, y, reduction="none")
            # a sampler's draws are weighed back, so that the mean is that of all samples
            weights = batch.get("sample_weight", torch.ones(len(kept)))[kept]
            mean = (weights * loss).sum() / weights.sum()
            self.optimizer.zero_grad()
            mean.backward()
            self.optimizer.step()
            correct = ((logits.detach() > 0).float() == y).numpy()
            keys = {"sample_id": batch["sample_id"][kept].numpy()}
            writer.write(keys, loss.detach().numpy(), step, correct)
            losses.append(mean.item())
            self.result.steps.append((number, losses[-1]))
        self.result.epochs.append(
            {"epoch": number, "loss": float(np.mean(losses)), "auc": self.auc()}
        )

    def sampler(self, reader: SnapshotReader) -> DifficultyWeightedSampler:
        """Draws rows by how hard they are, by their feedback; notes the hardest."""
        columns = ["sample_id", "customer_id", "event_time_ms", "will_buy"]
        samples = reader.read_columns(columns)
        keys = samples.select(["sample_id"])
        difficulty = read_difficulty(self.project, "will_buy_difficulty", keys, now_ms() + 1)
        # rows that are not trained on are never drawn for being hard
        trained = samples["event_time_ms"].to_numpy() < self.until_ms
        scores = np.where(trained, difficulty.scores(), 0.0)
        for row in np.argsort(-scores)[:10]:
            sample = {name: samples[name][int(row)].as_py() for name in columns}
            at = datetime.fromtimestamp(sample.pop("event_time_ms") / 1000, UTC).date().isoformat()
            self.result.hardest.append({**sample, "at": at, "loss": float(scores[row])})
        return DifficultyWeightedSampler(
            scores, score_snapshot_id=difficulty.snapshot_id, seed=SEED
        )

    def auc(self) -> float:
        """Area under the ROC curve of the rows that are held out."""
        self.model.eval()
        columns = [self.held_out[n].fill_null(0).to_numpy() for n in self.features]
        with torch.no_grad():
            x = torch.from_numpy(np.stack(columns, axis=1).astype(np.float32))
            order = self.model(x).numpy().argsort(kind="stable")
        label = self.held_out["will_buy"].to_numpy()[order].astype(bool)
        ranks = np.arange(1, len(label) + 1)
        positives, negatives = label.sum(), (~label).sum()
        # Mann and Whitney: the share of (buyer, other) pairs in the right order
        above = ranks[label].sum() - positives * (positives + 1) / 2
        return float(above / (positives * negatives))
