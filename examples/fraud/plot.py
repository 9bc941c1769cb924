"""The figure: recall during training, and the precision-recall curve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

COLOURS = ("#7b8794", "#d9822b")


def draw(path: Path, runs: list[Any], rows: int, frauds: int, batch_size: int) -> None:
    """Save the figure as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for run, colour in zip(runs, COLOURS, strict=True):
        steps, recalls = [0, *run.steps], [0.0, *run.recalls]
        left.plot(steps, recalls, color=colour, marker="o", markersize=3, label=run.name)
        # one point per fraud caught is sufficient for the curve
        caught = np.flatnonzero(np.diff(run.recall, prepend=0.0) > 0)
        label = f"{run.name}, {run.frauds_seen:,} frauds seen"
        right.plot(run.recall[caught], run.precision[caught], color=colour, label=label)
    left.set(xlabel=f"steps of {batch_size:,} rows", ylabel="recall at precision 0.5")
    right.set(xlabel="recall", ylabel="precision", xlim=(0, 1))
    right.axhline(0.5, color="#cbd2d9", linewidth=1, zorder=0)
    for axes in (left, right):
        axes.set_ylim(0, 1.02)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False, loc="lower right")
    right.legend(frameon=False, loc="lower left", fontsize=8)
    figure.suptitle(f"{frauds:,} frauds among {rows:,} payments; measured on held-out payments")
    figure.savefig(path, dpi=120)
    plt.close(figure)
