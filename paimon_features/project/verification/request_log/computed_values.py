"""Compare logged interactions and transformed features with the features and request inputs that
were logged with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paimon_features.core.errors import UnknownNameError
from paimon_features.core.types.statuses import Status
from paimon_features.definitions import CompiledInteraction, CompiledTransformed, Definitions
from paimon_features.definitions.served import definition_of_computed
from paimon_features.project import Project
from paimon_features.project.verification.request_log.log_report import LogReport, log_difference
from paimon_features.project.verification.request_log.sampled_rows import LoggedRow, RequestKey
from paimon_features.serving.request_log.log_rows import loads
from paimon_features.testing.reference.interactions import agrees, interaction_value
from paimon_features.testing.reference.transformed import agrees_transformed, transformed_value

Computation = CompiledInteraction | CompiledTransformed


def check_computed(
    project: Project,
    rows: Sequence[LoggedRow],
    every: Sequence[LoggedRow],
    report: LogReport,
) -> None:
    """Recompute each value from the features and request inputs that were logged with it.

    The features are checked by themselves, so that this comparison is exact.
    """
    of_views: dict[tuple[RequestKey, int], dict[str, LoggedRow]] = {}
    for row in every:
        if row.view:
            of_views.setdefault((row.request, row.row), {})[row.view] = row
    defined = project.definitions
    for row in rows:
        names = list(row.values)
        try:
            compiled = [_computation(defined, name) for name in names]
        except UnknownNameError:
            compiled = []
        if not compiled or definition_of_computed(compiled) != row.definition:
            report.unchecked["the definition of what is computed has changed since"] += 1
            continue
        views = of_views.get((row.request, row.row), {})
        inputs: dict[str, Any] = {}
        codes: dict[str, int] = {}
        try:
            for computation in compiled:
                for ref in computation.refs:
                    view_row = views[ref.view]
                    feature = defined.view(ref.view).compiled.feature(ref.feature)
                    assert feature is not None
                    inputs[str(ref)] = loads(feature.type, view_row.values[ref.feature])
                    codes[str(ref)] = Status[view_row.statuses[ref.feature]]
                for name, kind in computation.inputs.items():
                    inputs[name] = loads(kind, row.inputs[name])
        except KeyError as error:
            report.unchecked[f"computed features of which the log lacks {error}"] += 1
            continue
        report.rows += 1
        report.values += len(names)
        truths: dict[str, Any] = {}
        report.truths[row.request, row.row, row.view] = truths
        for computation in compiled:
            got = loads(computation.type, row.values[computation.name])
            wanted, overflown = _value(computation, inputs)
            truths[computation.name] = wanted
            status = max((codes[str(ref)] for ref in computation.refs), default=Status.PRESENT)
            if overflown:
                status = Status.ILL_CONDITIONED
            served_status = row.statuses[computation.name]
            if not _agrees(computation, got, wanted):
                report.differences.append(
                    log_difference(row, computation.name, got, wanted, "features")
                )
            elif served_status != Status(status).name:
                report.differences.append(
                    log_difference(
                        row, computation.name, served_status, Status(status).name, "features"
                    )
                )


def _computation(defined: Definitions, name: str) -> Computation:
    return (
        defined.transformation(name) if name in defined.transformed else defined.interaction(name)
    )


def _value(each: Computation, known: Mapping[str, Any]) -> tuple[Any, bool]:
    """Return the value for these features and inputs, and whether it is ill-conditioned."""
    if isinstance(each, CompiledInteraction):
        return interaction_value(each, known)
    parts = [
        interaction_value(part, known)
        if isinstance(part, CompiledInteraction)
        else (known[str(part)], False)
        for part in each.parts
    ]
    value, failed = transformed_value(each, [value for value, _ in parts])
    return value, failed or any(overflown for _, overflown in parts)


def _agrees(each: Computation, got: Any, wanted: Any) -> bool:
    if isinstance(each, CompiledInteraction):
        return agrees(each, got, wanted)
    return agrees_transformed(each, got, wanted)
