"""Predictions as rows of their log: a row for each (request, entity, version)."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from paimon_features.core._arrow import pa
from paimon_features.core.types.schema import arrow_schema
from paimon_features.core.types.statuses import STATUS_NAMES
from paimon_features.definitions.served import PREDICTION_COLUMNS
from paimon_features.models import ModelManifest
from paimon_features.serving.replies.response import OnlineResponse
from paimon_features.serving.request_log.log_rows import (
    EntityText,
    LogRowBuilder,
    SampledReply,
    dumps,
    plain,
)

Role = Literal["production", "challenger", "shadow", "requested"]
"""Why a version has predicted: it was in production, a challenger to which the split assigned the
entity, a shadow, or named by the client."""
READ_FIELDS = (
    "view", "entity", "feature_values", "feature_statuses", "inputs", "applied_snapshot",
    "record_snapshot", "commit_time_ms", "freshness_ms", "epoch", "generation", "incarnation",
    "definition",
)  # fmt: skip
"""What is logged of each read view: columns of the request log."""


@functools.cache
def prediction_schema() -> pa.Schema:
    """Return the Arrow schema of the log's rows."""
    return arrow_schema(PREDICTION_COLUMNS)


@dataclass(frozen=True, slots=True, eq=False)
class LoggedPrediction:
    """A prediction until it is written; it is the ``number``-th request of its worker.

    ``outputs`` has an array of shape (rows of the response, width) for each output of the version,
    and ``rows`` are the positions that are logged. ``features`` are the names of the version's
    features as the response has them. With ``reads``, the row has the values that were read.
    """

    request_id: str
    number: int
    served_at_ms: int
    response: OnlineResponse
    rows: Sequence[int]
    manifest: ModelManifest
    digest: str
    role: Role
    features: Sequence[str]
    outputs: Sequence[npt.NDArray[np.float32]]
    reads: bool


class PredictionRowBuilder:
    """Builds rows of the log; one builder for a project and a worker."""

    def __init__(self, project: str, worker: str, entities: EntityText) -> None:
        self._project, self._worker = project, worker
        self._entity = entities
        self._reads = LogRowBuilder(project, worker, entities)

    def entities(self, noted: LoggedPrediction) -> list[str]:
        """Return the text of the entity of each row."""
        response = noted.response
        kinds = response.batch.key_types
        keys = [
            plain(kinds[key.name], [response.keys[key.name][row] for row in noted.rows])
            for key in noted.manifest.signature.entities
        ]
        return [self._entity(values) for values in zip(*keys, strict=True)]

    def rows(
        self, noted: LoggedPrediction, entities: Sequence[str], wanted: Sequence[int]
    ) -> list[dict[str, Any]]:
        """Return the rows of the ``wanted`` of ``noted.rows``, by their positions in it."""
        response, manifest = noted.response, noted.manifest
        common = {
            "request_id": noted.request_id,
            "number": noted.number,
            "served_at_ms": noted.served_at_ms,
            "as_of_ms": response.as_of_ms,
            "project": self._project,
            "model": manifest.name,
            "version": manifest.version,
            "manifest": noted.digest,
            "role": noted.role,
            "worker": self._worker,
        }
        rows = [noted.rows[at] for at in wanted]
        first = noted.outputs[0]
        is_number = first.shape[1] == 1
        documents: Sequence[str | None] = [None] * len(rows)
        if not is_number or len(noted.outputs) > 1:
            names = [output.name for output in manifest.signature.outputs]
            documents = _outputs(names, noted.outputs, rows)
        statuses = self._statuses(noted, rows)
        reads = self._views(noted, rows) if noted.reads and rows else {}
        return [
            {
                **common,
                "row": row,
                "entity": entities[at],
                "prediction": _number(first[row, 0]) if is_number else None,
                "outputs": document,
                "status": status,
                "reads": dumps(reads[row]) if row in reads else None,
            }
            for at, row, document, status in zip(wanted, rows, documents, statuses, strict=True)
        ]

    def _statuses(self, noted: LoggedPrediction, rows: Sequence[int]) -> list[str]:
        """Return the worst status of the version's features in each row."""
        batch = noted.response.batch
        places = batch.selection.places
        codes = {id(c): c for c in (batch.codes[places[name]] for name in noted.features)}
        if not codes:
            return [STATUS_NAMES[0]] * len(rows)
        start = noted.response.start
        return [
            STATUS_NAMES[max(int(column[start + row]) for column in codes.values())] for row in rows
        ]

    def _views(
        self, noted: LoggedPrediction, rows: Sequence[int]
    ) -> dict[int, list[Mapping[str, Any]]]:
        """Return what was read for each row, by view."""
        reply = SampledReply(
            noted.request_id, noted.number, "", noted.served_at_ms, noted.response, rows, len(rows)
        )
        out: dict[int, list[Mapping[str, Any]]] = {row: [] for row in rows}
        for read in self._reads.rows(reply):
            out[read["row"]].append({name: read.get(name) for name in READ_FIELDS})
        return out


def _number(value: np.float32) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _outputs(
    names: Sequence[str], arrays: Sequence[npt.NDArray[np.float32]], rows: Sequence[int]
) -> list[str]:
    """Return all outputs of each row by name: lists of numbers, null for those that are not
    finite."""
    chosen = [np.asarray(array)[list(rows)] for array in arrays]
    finite = all(np.isfinite(array).all() for array in chosen)
    lists = [array.tolist() for array in chosen]
    if not finite:
        lists = [
            [[x if np.isfinite(x) else None for x in row] for row in output] for output in lists
        ]
    return [dumps(dict(zip(names, values, strict=True))) for values in zip(*lists, strict=True)]
