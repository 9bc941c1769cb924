"""Plans as documents: written for a review, and applied only as they were reviewed.

A plan has the state that it was made for: the definitions, what is applied, and the generations of
the views. ``apply --plan`` refuses where that state is another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paimon_features.core.documents.published_document import document_digest
from paimon_features.core.documents.typed_json import mapping
from paimon_features.core.documents.unambiguous_json import parse_unambiguous_json
from paimon_features.core.errors import ConfigurationError, PlanMovedError
from paimon_features.lake.side_folder.audit_log import MAX_DETAILS
from paimon_features.project.planning.plan import Effect, ProjectPlan

FORMAT = 1
MAX_BYTES = 32 << 20
FAIL_ON: Mapping[str, tuple[Effect, ...]] = {
    "backfill": ("backfill",),
    "drop": ("removed",),
    "any": ("create", "change", "generation", "backfill", "removed"),
}
"""What ``plan --fail-on`` stands for."""


def plan_document(plan: ProjectPlan, project: str, database: str) -> dict[str, Any]:
    """Return a plan for programs.

    A reader may rely on these keys, and later releases may add some.
    """
    return {
        "format": FORMAT,
        "project": project,
        "database": database,
        "digest": document_digest(plan.state),
        "is_empty": plan.is_empty,
        "effects": list(plan.effects),
        "changes": [
            {
                "kind": change.kind,
                "name": change.name,
                "action": change.action,
                "effects": list(change.effects),
                "generation": change.generation,
                "details": list(change.details),
            }
            for change in plan.changes
        ],
        "state": plan.state,
    }


def audited_changes(plan: ProjectPlan) -> dict[str, Any]:
    """Return what the audit log has of an applied plan."""
    changes = [change for change in plan.changes if change.action not in ("same", "gone")]
    names = [f"{change.action} {change.kind} {change.name}" for change in changes[:MAX_DETAILS]]
    return {"changes": names, "count": len(changes), "effects": list(plan.effects)}


@dataclass(frozen=True, slots=True)
class ReviewedPlan:
    """A plan that was read from a file."""

    where: str
    project: str
    database: str
    state: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls, path: Path) -> ReviewedPlan:
        """Read what ``plan --json`` or ``plan --out`` wrote.

        Raises
        ------
        ConfigurationError
            If the file cannot be read, or is no plan of a format that this release knows.
        """
        try:
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                raise ValueError(f"more than {MAX_BYTES:,} bytes")
            document = mapping(
                parse_unambiguous_json(data), "format", "project", "database", "digest", "state"
            )
            if document["format"] != FORMAT:
                raise ValueError(
                    f"format {str(document['format'])[:20]!r}; this release reads {FORMAT}: make "
                    "the plan with the same release"
                )
            state = {
                part: mapping(mapping(document["state"], part)[part])
                for part in ("definitions", "applied", "generations")
            }
            if document_digest(state) != document["digest"]:
                raise ValueError("its digest is another one: the file was changed")
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise ConfigurationError(
                f"plan {path}: {error}; expected a file of 'paimon-features plan --out FILE'"
            ) from None
        return cls(str(path), str(document["project"]), str(document["database"]), state)

    def check(self, plan: ProjectPlan, project: str, database: str) -> None:
        """Raise PlanMovedError unless this is the plan of the project as it is now."""
        moved = [
            f"its {property_} is {then!r}, and this is {now!r}"
            for property_, then, now in (
                ("project", self.project, project),
                ("database", self.database, database),
            )
            if then != now
        ]
        if not moved:
            moved = list(_differences(self.state, plan.state))
        if moved:
            more = f", and {len(moved) - 5:,} more" if len(moved) > 5 else ""
            raise PlanMovedError(
                f"{self.where} is not what would be applied now: {'; '.join(moved[:5])}{more}. "
                "Nothing was changed; make a new plan and review it"
            )


_TEXTS = {
    "definitions": "is defined otherwise than in the plan",
    "applied": "was applied or dropped since",
    "generations": "has other generations since",
}


def _differences(
    then: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    for part, text in _TEXTS.items():
        for name in sorted({*then[part], *now[part]}):
            if then[part].get(name) != now[part].get(name):
                yield f"{name} {text}"
