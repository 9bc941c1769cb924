"""Human-readable description of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from trainer_bridge.preprocess.preprocess_plan import Plan
from trainer_bridge.preprocess.stages import Filter, Map, Stage


def explained(source: str, num_columns: int, stages: Sequence[Stage], plan: Plan) -> str:
    """Describe the steps as written and as optimised, one per line, and the rewrites applied."""
    written = [f"read {source}: {num_columns} of {num_columns} columns"]
    written += [
        f"{stage} (row by row)" if isinstance(stage, Map | Filter) else str(stage)
        for stage in stages
    ]
    lines = ["as written", *_numbered(written)]
    lines += ["", "as it runs", *_numbered(_steps(source, num_columns, plan))]
    if plan.notes:
        lines += ["", "changes", *(f"  - {note}" for note in plan.notes)]
    return "\n".join(lines)


def _numbered(steps: Iterable[str]) -> Iterator[str]:
    for number, step in enumerate(steps, start=1):
        yield f"  {number}. {step}"


def _steps(source: str, num_columns: int, plan: Plan) -> Iterator[str]:
    where = "".join(f", where {condition.text}" for condition in plan.where)
    yield f"read {source}: {len(plan.read)} of {num_columns} columns{where}"
    if plan.shuffle:
        yield f"{plan.shuffle}: by the reader's order, no buffer"
    for stage in plan.rows:
        yield f"{stage} (whole blocks)" if isinstance(stage, Map | Filter) else str(stage)
    yield str(plan.batch)
    for batch_stage in plan.batches:
        yield str(batch_stage)
    if plan.prefetch:
        yield f"prefetch {plan.prefetch} batches"
