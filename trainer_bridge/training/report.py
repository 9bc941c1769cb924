"""What people read of a run: a card in Markdown, and a page with pictures, without any script."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core.documents.generated_text import markdown_code, markdown_text
from paimon_features.models import Metric, ModelManifest
from paimon_features.project.monitoring.line_chart import line_chart
from trainer_bridge.training.config import TrainConfig
from trainer_bridge.training.evaluation import calibration_curve
from trainer_bridge.training.training_table import TimeSplit

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Importance:
    """How much the loss of the test part rises when a feature is permuted among its rows."""

    output: str
    increase: float


def metric_text(metric: Metric) -> str:
    """Return a metric with its interval.

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
    """Return the description of a version in Markdown: what it is for, its data, how good it is."""
    training = manifest.training
    assert training is not None
    lines = [f"# {markdown_text(manifest.name)}", ""]
    if config.card:
        lines += [config.card.strip(), ""]
    lines += [
        f"A {manifest.kind.replace('_', ' ')} ({manifest.signature.task}) over the feature service "
        f"{markdown_code(manifest.signature.service)}, trained on {training.rows:,} rows of "
        f"{markdown_code(training.table)}, snapshot {training.snapshot}: those before "
        f"{split.train_until_ms} ({markdown_code(split.column)}, UTC ms). Tested on those from "
        f"{split.test_from_ms} on.",
        "",
        "| metric | value (95 % interval) | rows | method |",
        "|---|---|---|---|",
        *(
            f"| {markdown_text(name)} | {metric_text(metric)} | {metric.rows:,} | "
            f"{markdown_text(metric.method)} |"
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
    lines += [
        f"- {markdown_code(entry.output)} {entry.increase:+.4g}" for entry in importance[:_SHOWN]
    ]
    return "\n".join(lines) + "\n"


def report_page(
    manifest: ModelManifest,
    config: TrainConfig,
    history: Sequence[dict[str, float]],
    labels: npt.NDArray[Any],
    predictions: npt.NDArray[np.float64],
    importance: Sequence[Importance],
) -> str:
    """Return the report as one HTML page with pictures (SVG); every text in it is escaped."""
    parts = [f"<h1>{html.escape(manifest.name)}</h1>", _metrics_table(manifest)]
    train = [(e["batch"], e["train_loss"]) for e in history if "train_loss" in e]
    validation = [(e["batch"], e["val_loss"]) for e in history if "val_loss" in e]
    if train:
        parts += [
            "<h2>Learning curve</h2>",
            line_chart(
                [("training (mean of 1/50 of the batches)", _means(train)),
                 ("validation", validation)],
                "batch", "loss",
            ),
        ]  # fmt: skip
    if manifest.signature.task == "binary":
        curve = calibration_curve(labels.astype(np.float64), predictions)
        points = [(point.predicted, point.observed) for point in curve]
        parts += [
            "<h2>Calibration on the test rows</h2>",
            line_chart(
                [("observed", points), ("ideal", [(0.0, 0.0), (1.0, 1.0)])], "predicted", "observed"
            ),
        ]
    rows = "".join(
        f"<tr><td>{html.escape(feature.output)}</td><td>{feature.increase:+.4g}</td></tr>"
        for feature in importance
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
