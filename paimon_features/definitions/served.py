"""The columns of the request log: a row for each sampled (request, entity, view).

They are defined here because a server that writes them must not need the lake, and
the ingestion of the log must not need a server.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields

from paimon_features.core.documents.published_document import document_digest
from paimon_features.core.errors import UnknownNameError
from paimon_features.core.types.schema import DataType, Float64, Int32, Int64, String
from paimon_features.definitions.compiled import CompiledFeature, CompiledView
from paimon_features.definitions.interaction import CompiledInteraction
from paimon_features.definitions.transformed import CompiledTransformed

SERVED_COLUMNS: Mapping[str, DataType] = {
    "request_id": String,
    "number": Int64,
    "served_at_ms": Int64,
    "as_of_ms": Int64,
    "service": String,
    "project": String,
    "view": String,
    "row": Int32,
    "entity": String,
    "feature_values": String,
    "feature_statuses": String,
    "inputs": String,
    "applied_snapshot": Int64,
    "record_snapshot": Int64,
    "commit_time_ms": Int64,
    "freshness_ms": Int64,
    "epoch": String,
    "generation": Int32,
    "incarnation": Int64,
    "definition": String,
    "worker": String,
}
"""In the order of the table; docs/reference/logs.md describes each of them."""

PREDICTION_COLUMNS: Mapping[str, DataType] = {
    "request_id": String,
    "number": Int64,
    "row": Int32,
    "served_at_ms": Int64,
    "as_of_ms": Int64,
    "project": String,
    "model": String,
    "version": Int32,
    "manifest": String,
    "role": String,
    "entity": String,
    "prediction": Float64,
    "outputs": String,
    "status": String,
    "reads": String,
    "worker": String,
}
"""Of a log of predictions; docs/reference/logs.md describes each of them."""

OUTCOME_COLUMNS: Mapping[str, DataType] = {
    "event_time_ms": Int64,
    "label": Float64,
    "outcome_time_ms": Int64,
    "matured_at_ms": Int64,
    "version": Int32,
    "role": String,
    "prediction": Float64,
    "entity": String,
    "request_id": String,
    "worker": String,
    "number": Int64,
    "row": Int32,
    "served_at_ms": Int64,
    "status": String,
}
"""Of a prediction with its outcome, after the entity's keys; ``event_time_ms`` is the time as of
which it was made, under the name that training sets have it."""

_OF_THE_VIEW = ("windows", "name", "own_event")


def definition_of(view: CompiledView, features: Sequence[str], *, with_event: bool = False) -> str:
    """Return a digest of some features of a view: equal if the same data result in the same values.

    Adding other features to the view does not change it. ``with_event`` is for a read with an
    event of the view's source: a feature that counts it has another definition.

    Raises
    ------
    UnknownNameError
        If the view has no such feature.
    """
    described = []
    for name in features:
        feature = view.feature(name)
        if feature is None:
            available = [f.name for f in view.features]
            raise UnknownNameError.of("feature", name, available, f"view {view.name!r}")
        counts_event = with_event and feature.aggregate.counts_own_event
        described.append([*_described(feature), *(["own_event"] if counts_event else [])])
    known_from = [json.dumps(window.to_document()) for window in view.windows]
    return _digest(
        # which entities are known depends on the longest of all windows
        [view.fingerprint, view.ttl_ms, view.max_staleness_ms, sorted(known_from), described]
    )


def definition_of_computed(
    outputs: Iterable[CompiledInteraction | CompiledTransformed],
) -> str:
    """Return the same for interactions and transformed features: their inputs and computation."""
    return _digest(
        [
            [
                output.name,
                output.to_property()
                if isinstance(output, CompiledTransformed)
                else output.expression.text,
                output.type.text,
                *map(str, output.refs),
            ]
            for output in outputs
        ]
    )


def _described(feature: CompiledFeature) -> list[object]:
    aggregate = feature.aggregate
    settings = {
        f.name: repr(getattr(aggregate, f.name))
        for f in fields(aggregate)
        if f.name not in _OF_THE_VIEW
    }
    return [
        feature.name, feature.type.text, feature.window.to_document(), list(feature.partials),
        type(aggregate).__name__, settings,
    ]  # fmt: skip


def _digest(document: object) -> str:
    return document_digest(document)[:16]
