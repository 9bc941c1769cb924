"""Logged interactions against the features and request inputs that were logged with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paimon_features.definitions.served import definition_of_interactions
from paimon_features.errors import UnknownNameError
from paimon_features.project import Project
from paimon_features.served.report import LogReport, wrong
from paimon_features.served.rows import LoggedRow, RequestKey
from paimon_features.serving.logged import loads
from paimon_features.serving.response import Status
from paimon_features.testing.naive_interactions import agrees, interaction_value


def check_interactions(
    project: Project,
    rows: Sequence[LoggedRow],
    every: Sequence[LoggedRow],
    report: LogReport,
) -> None:
    """Each interaction from the features and request inputs that were logged with it.

    Whether those features are right is checked by themselves, so that this is exact.
    """
    of_views: dict[tuple[RequestKey, int], dict[str, LoggedRow]] = {}
    for row in every:
        if row.view:
            of_views.setdefault((row.request, row.row), {})[row.view] = row
    defined = project.definitions
    for row in rows:
        names = list(row.values)
        try:
            compiled = [defined.interaction(name) for name in names]
        except UnknownNameError:
            compiled = []
        if not compiled or definition_of_interactions(compiled) != row.definition:
            report.unchecked["the definition of an interaction has changed since"] += 1
            continue
        views = of_views.get((row.request, row.row), {})
        known: dict[str, Any] = {}
        codes: dict[str, int] = {}
        try:
            for interaction in compiled:
                for ref in interaction.refs:
                    own = views[ref.view]
                    feature = defined.view(ref.view).compiled.feature(ref.feature)
                    assert feature is not None
                    known[str(ref)] = loads(feature.type, own.values[ref.feature])
                    codes[str(ref)] = Status[own.statuses[ref.feature]]
                for name, kind in interaction.inputs.items():
                    known[name] = loads(kind, row.inputs[name])
        except KeyError as error:
            report.unchecked[f"interactions of which the log lacks {error}"] += 1
            continue
        report.rows += 1
        report.values += len(names)
        for interaction in compiled:
            got = loads(interaction.type, row.values[interaction.name])
            wanted, overflown = interaction_value(interaction, known)
            status = max((codes[str(ref)] for ref in interaction.refs), default=Status.PRESENT)
            if overflown:
                status = Status.ILL_CONDITIONED
            served_status = row.statuses[interaction.name]
            if not agrees(interaction, got, wanted):
                report.differences.append(wrong(row, interaction.name, got, wanted, "features"))
            elif served_status != Status(status).name:
                report.differences.append(
                    wrong(row, interaction.name, served_status, Status(status).name, "features")
                )
