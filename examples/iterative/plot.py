"""Plots of the progress and the results of each iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from names import named

from paimon_features.core.types.array_types import Floats

BLUE, ORANGE, GREY = "#2f6690", "#d9822b", "#7b8794"


def draw_pagerank(
    path: Path,
    changes: Sequence[float],
    best: Sequence[tuple[str, float]],
    buyers: Any,
    score: Floats,
) -> None:
    """Plot the change per epoch, the best products, and scores against numbers of buyers."""
    figure, (left, middle, right) = _axes(3, 13)
    left.semilogy(range(1, len(changes) + 1), changes, color=BLUE)
    left.set(xlabel="epoch", ylabel="sum of the ranks' changes", title="convergence")
    codes, values = zip(*best[::-1], strict=True)
    middle.barh([named(code) for code in codes], values, color=BLUE)
    middle.tick_params(axis="y", labelsize=7)
    middle.set(xlabel="PageRank", title="best products")
    right.loglog(buyers, score, ".", color=GREY, markersize=2)
    right.set(xlabel="customers who bought it", ylabel="PageRank", title="more than popularity")
    _save(figure, path)


def draw_als(
    path: Path,
    losses: Sequence[float],
    vectors: Floats,
    position: Mapping[str, int],
    near: Mapping[str, Sequence[str]],
) -> None:
    """Plot the loss per epoch, and the products in the plane of their two main directions."""
    figure, (left, right) = _axes(2, 11)
    left.plot(range(1, len(losses) + 1), losses, color=BLUE, marker="o", markersize=3)
    left.set(xlabel="epoch", ylabel="loss", title="alternating least squares")
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    _, _, axes = np.linalg.svd(unit - unit.mean(axis=0), full_matrices=False)
    # axes: (products, 2)
    plane = unit @ axes[:2].T
    right.plot(*plane.T, ".", color="#cbd2d9", markersize=2)
    for colour, (code, others) in zip((BLUE, ORANGE, "#3a7d44"), near.items(), strict=False):
        rows = [position[each] for each in (code, *others)]
        right.plot(*plane[rows].T, "o", color=colour, markersize=5, label=f"near {named(code)}")
    right.set(xticks=[], yticks=[], title="products by direction")
    if near:
        right.legend(frameon=False, fontsize=8)
    _save(figure, path)


def draw_difficulty(path: Path, losses: Sequence[Any], refined: Floats, label: Floats) -> None:
    """Plot the mean loss per round, and the final difficulty of samples of both labels."""
    figure, (left, right) = _axes(2, 10)
    rounds = sorted({each.round for each in losses})
    for wanted, colour, name in ((1, BLUE, "buys"), (0, ORANGE, "does not buy")):
        means = []
        for number in rounds:
            of = [each for each in losses if each.round == number]
            kept = [each.loss[label[each.number] == wanted] for each in of]
            means.append(np.concatenate(kept).mean())
        left.plot(
            [r + 1 for r in rounds], means, color=colour, marker="o", markersize=3, label=name
        )
        right.hist(refined[label == wanted], bins=40, color=colour, alpha=0.6, label=name)
    left.set(xlabel="round", ylabel="mean loss", title="the model learns in the loop")
    right.set(xlabel="difficulty", ylabel="customers", yscale="log", title="difficulty of samples")
    left.legend(frameon=False)
    right.legend(frameon=False)
    _save(figure, path)


def _axes(count: int, width: float) -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt.subplots(1, count, figsize=(width, 4), layout="constrained")


def _save(figure: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    for axes in figure.axes:
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
