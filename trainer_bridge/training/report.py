"""What people read of a run: a card in Markdown, and a page with pictures, without any script."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.models import Metric, ModelManifest
from trainer_bridge.training.config import TrainConfig
from trainer_bridge.training.evaluation import calibration_curve
from trainer_bridge.training.training_table import TimeSplit

_WIDTH, _HEIGHT, _MARGIN = 520, 260, 40
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Importance:
    """How much the loss of the test part rises when a feature is permuted among its rows."""

    output: str
    increase: float


def metric_text(metric: Metric) -> str:
    """A metric with its interval.

    >>> metric_text(Metric(0.8, 0.75, 0.85, 100, "DeLong"))
    '0.8 (0.75 to 0.85)'
    """
    text = f"{metric.value:.4g}"
    if metric.low is not None and metric.high is not None:
        text += f" ({metric.low:.4g} to {metric.high:.4g})"
    return text


def model_card(
    manifest: ModelManifest,
    config: TrainConfig,
    split: TimeSplit,
    importance: Sequence[Importance],
) -> str:
    """The description of a version in Markdown: what it is for, its data, how good it is."""
    training = manifest.training
    assert training is not None
    lines = [f"# {manifest.name}", ""]
    if config.card:
        lines += [config.card.strip(), ""]
    lines += [
        f"A {manifest.kind.replace('_', ' ')} ({manifest.signature.task}) over the feature service "
        f"`{manifest.signature.service}`, trained on {training.rows:,} rows of `{training.table}`, "
        f"snapshot {training.snapshot}: those before {split.train_until_ms} (`{split.column}`, "
        f"UTC ms). Tested on those from {split.test_from_ms} on.",
        "",
        "| metric | value (95 % interval) | rows | method |",
        "|---|---|---|---|",
        *(
            f"| {name} | {metric_text(metric)} | {metric.rows:,} | {metric.method} |"
            for name, metric in manifest.metrics.items()
        ),
        "",
    ]
    if config.objective.positive_weight != 1:
        lines += [
            f"Positive rows had the weight {config.objective.positive_weight:g}: predictions are "
            "scores, and no probabilities.",
            "",
        ]
    lines += ["Features, by how much the loss rises when one is permuted:", ""]
    lines += [f"- `{each.output}` {each.increase:+.4g}" for each in importance[:_SHOWN]]
    return "\n".join(lines) + "\n"


def report_page(
    manifest: ModelManifest,
    config: TrainConfig,
    history: Sequence[dict[str, float]],
    labels: npt.NDArray[Any],
    predictions: npt.NDArray[np.float64],
    importance: Sequence[Importance],
) -> str:
    """The report as one HTML page with pictures (SVG); every text in it is escaped."""
    parts = [f"<h1>{html.escape(manifest.name)}</h1>", _metrics_table(manifest)]
    train = [(e["batch"], e["train_loss"]) for e in history if "train_loss" in e]
    validation = [(e["batch"], e["val_loss"]) for e in history if "val_loss" in e]
    if train:
        parts += [
            "<h2>Learning curve</h2>",
            _chart(
                [("training (mean of 1/50 of the batches)", _means(train)),
                 ("validation", validation)],
                "batch", "loss",
            ),
        ]  # fmt: skip
    if manifest.signature.task == "binary":
        curve = calibration_curve(labels.astype(np.float64), predictions)
        points = [(each.predicted, each.observed) for each in curve]
        parts += [
            "<h2>Calibration on the test rows</h2>",
            _chart(
                [("observed", points), ("ideal", [(0.0, 0.0), (1.0, 1.0)])], "predicted", "observed"
            ),
        ]
    rows = "".join(
        f"<tr><td>{html.escape(each.output)}</td><td>{each.increase:+.4g}</td></tr>"
        for each in importance
    )
    parts += [
        "<h2>Features</h2><p>How much the loss rises when one is permuted among the rows.</p>",
        f"<table>{rows}</table>",
    ]
    style = (
        "body{font:15px system-ui,sans-serif;margin:2em;max-width:50em}"
        "td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #ddd}"
    )
    title = f"{html.escape(manifest.name)}: {html.escape(config.model.kind)}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{style}</style><body>{''.join(parts)}</body></html>\n"
    )


def _metrics_table(manifest: ModelManifest) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(metric_text(metric))}</td>"
        f"<td>{metric.rows:,}</td><td>{html.escape(metric.method)}</td></tr>"
        for name, metric in manifest.metrics.items()
    )
    head = "<tr><th>metric</th><th>value (95 %)</th><th>rows</th><th>method</th></tr>"
    return f"<table>{head}{rows}</table>"


def _means(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    parts = np.array_split(np.array(points), min(50, len(points)))
    return [(float(part[:, 0].mean()), float(part[:, 1].mean())) for part in parts]


def _chart(
    series: Iterable[tuple[str, Sequence[tuple[float, float]]]], x_name: str, y_name: str
) -> str:
    """Lines in one picture, with a legend."""
    drawn = [(name, [p for p in points if np.isfinite(p).all()]) for name, points in series]
    drawn = [(name, points) for name, points in drawn if points]
    if not drawn:
        return ""
    every = np.array([point for _, points in drawn for point in points])
    low, high = every.min(axis=0), every.max(axis=0)
    span = np.where(high > low, high - low, 1.0)
    lines = []
    for index, (name, points) in enumerate(drawn):
        colour = ("#1565c0", "#ef6c00", "#2e7d32")[index % 3]
        places = [
            (
                _MARGIN + (x - low[0]) / span[0] * (_WIDTH - 2 * _MARGIN),
                _HEIGHT - _MARGIN - (y - low[1]) / span[1] * (_HEIGHT - 2 * _MARGIN),
            )
            for x, y in points
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}"/>')
        lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{colour}"/>' for x, y in places]
        lines.append(
            f'<text x="{_MARGIN}" y="{14 + 14 * index}" fill="{colour}">{html.escape(name)}</text>'
        )
    ends = [
        (_MARGIN, _HEIGHT - 22, f"{low[0]:.4g}", "start"),
        (_WIDTH - _MARGIN, _HEIGHT - 22, f"{high[0]:.4g}", "end"),
        (_WIDTH / 2, _HEIGHT - 6, x_name, "middle"),
        (_MARGIN - 4, _HEIGHT - _MARGIN, f"{low[1]:.4g}", "end"),
        (_MARGIN - 4, _MARGIN, f"{high[1]:.4g}", "end"),
        (_MARGIN - 4, _HEIGHT / 2, y_name, "end"),
    ]
    lines += [
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="11">{html.escape(text)}</text>'
        for x, y, text, anchor in ends
    ]
    return f'<svg viewBox="-30 0 {_WIDTH + 30} {_HEIGHT}" width="{_WIDTH}">{"".join(lines)}</svg>'
