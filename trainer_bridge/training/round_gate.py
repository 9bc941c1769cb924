"""The gate of a round: candidate and production on the same rows, by the networks that serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from paimon_features.core.documents.generated_text import markdown_text
from paimon_features.models import ModelManifest
from trainer_bridge.training import export, gate
from trainer_bridge.training.config import TrainConfig
from trainer_bridge.training.labels import LabelCodec, sample_weights
from trainer_bridge.training.rounds import RoundTable
from trainer_bridge.training.run import Trained
from trainer_bridge.training.training_table import entities_of

if TYPE_CHECKING:
    from paimon_features.project import Project


def judge_round(
    project: Project, config: TrainConfig, table: RoundTable, trained: Trained
) -> gate.GateVerdict:
    """Compare what was trained with its parent; both predict the rows that are held out."""
    settings = config.retrain
    signature, parent = trained.manifest.signature, table.parent
    network, task, rows = trained.files["network.onnx"], signature.task, table.held_out
    labels = table.labels.apply(rows[table.label]).astype(np.float64)
    seen = table.labels.apply(table.train_rows[table.label]).astype(np.float64)
    span = float(seen.min()), float(seen.max())
    predicted = export.run_onnx(network, signature.inputs, _raw(rows, signature.inputs))
    verdict = gate.judge(
        gate.losses(task, labels, predicted, span),
        losses_of(project, parent, rows, table.label, table.labels, span),
        entities_of(rows, [key.name for key in parent.signature.entities]),
        {name: rows[name].to_pylist() for name in settings.segments},
        weights=sample_weights(rows, config.data.weights),
        confidence=settings.confidence,
        tolerance=settings.tolerance,
        segment_rows=settings.segment_rows,
    )
    width = span[1] - span[0]
    bounds = (span[0] - width, span[1] + width) if task == "regression" else None
    probes = export.run_onnx(
        network, signature.inputs, _with_nulls(_raw(rows.slice(0, 1), signature.inputs))
    )
    wrong = [
        f"{subject}: {problem}"
        for subject, problem in (
            ("replayed held-out rows", gate.out_of_range(task, predicted, bounds)),
            ("rows with nulls", gate.out_of_range(task, probes)),
        )
        if problem is not None
    ]
    return replace(verdict, reasons=(*wrong, *verdict.reasons))


def losses_of(
    project: Project,
    manifest: ModelManifest,
    rows: pa.Table,
    label: str,
    labels: LabelCodec,
    span: tuple[float, float] | None = None,
) -> gate.RowLosses:
    """Return the loss of what a version would have answered to each row: see ``gate.losses``."""
    network = project.models.file(manifest, "network.onnx")
    signature = manifest.signature
    predicted = export.run_onnx(network, signature.inputs, _raw(rows, signature.inputs))
    truth = labels.apply(rows[label]).astype(np.float64)
    return gate.losses(signature.task, truth, predicted, span)


def gate_card(table: RoundTable, verdict: gate.GateVerdict) -> str:
    """Return what the card of a version says of its round."""
    trees = table.weights is None
    lines = [
        "",
        f"## Continues {table.parent}",
        "",
        ("Trees cannot be continued: they were fitted again on" if trees else
         "Trained from its weights on")
        + f" {table.new:,} new rows and {table.replayed:,} older "
        f"ones. Held out: the {table.held_out.num_rows:,} newest rows, from "
        f"{table.split.test_from_ms} on (`{table.split.column}`, UTC ms).",
        "",
        "| rows | loss minus that of the parent (bounds), from the parent's |",
        "|---|---|",
        f"| all | {verdict.overall} |",
        *(f"| {markdown_text(name)} | {change} |" for name, change in verdict.segments.items()),
        "",
        "Gate: passed." if verdict.passed else "Gate: not passed.",
        *(f"- {markdown_text(reason)}" for reason in verdict.reasons),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _raw(rows: pa.Table, inputs: Any) -> dict[str, Any]:
    """Return the columns that a network reads."""
    return {model_input.name: rows[model_input.name].combine_chunks() for model_input in inputs}


def _with_nulls(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row, with one of its values null, then with the next, and with all of them."""
    by_name = {}
    for number, (name, value) in enumerate(columns.items()):
        rows = np.arange(len(columns) + 1)
        is_null = (rows == number) | (rows == len(columns))
        by_name[name] = value.take(pa.array(np.zeros(len(rows), np.int64), mask=is_null))
    return by_name
