"""Plan optimisation: from the logical plan (as written) to the physical plan.

The rewrites, and why they preserve the result:

- A row stage is row-wise, so it can run on complete blocks as well as on single rows, and
  before shuffling as well as after: maps are *vectorised*, and a single pass over a block
  runs all of them together with the gather that assembles the batch (*fused*).
- Predicate pushdown: a filter moves before selections, and before a map that produces none of
  the columns it reads. A filter expression that gets to the front becomes part of the read.
- Projection pushdown: a column that no later stage reads is neither computed nor read.
- A cache stores rows, not batches, so it moves before the batch stages: whatever is random
  is drawn again from cached rows in every epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from paimon_features.core.errors import ConfigurationError
from trainer_bridge.preprocess.conditions import Condition
from trainer_bridge.preprocess.stages import (
    Augment,
    BatchStage,
    Cache,
    Filter,
    MakeBatches,
    Map,
    MapBatches,
    Prefetch,
    RowStage,
    Select,
    Shuffle,
    Stage,
)

T = TypeVar("T", bound=Stage)


@dataclass(frozen=True, slots=True)
class Plan:
    """The stages to run, in this order.

    Attributes
    ----------
    columns
        The initial columns (columns of the table, and masks), in the table's order.
    where
        Conditions on columns of the table, evaluated by the read.
    rows
        The row stages; ``vectorised`` is True if they run on complete blocks.
    batch, shuffle
        Batching and shuffling; without a shuffle the order is by commit and row.
    batches
        The batch stages.
    prefetch
        Number of batches to prefetch; 0 computes each batch on request.
    notes
        Human-readable descriptions of the rewrites.
    """

    columns: tuple[str, ...]
    where: tuple[Condition, ...]
    rows: tuple[RowStage, ...]
    vectorised: bool
    shuffle: Shuffle | None
    batch: MakeBatches
    batches: tuple[BatchStage | Select, ...]
    prefetch: int
    notes: tuple[str, ...] = ()

    @property
    def read(self) -> frozenset[str]:
        """The columns to read: the initial columns and those that conditions use."""
        return frozenset(self.columns).union(*(condition.columns for condition in self.where))

    @property
    def cache(self) -> Cache | None:
        return next((stage for stage in self.rows if isinstance(stage, Cache)), None)

    @property
    def cached(self) -> tuple[RowStage, ...]:
        """The row stages whose output is cached."""
        cache = self.cache
        return () if cache is None else self.rows[: self.rows.index(cache)]

    @property
    def uncached(self) -> tuple[RowStage, ...]:
        """The row stages after the cache; all of them if there is no cache."""
        return self.rows[len(self.cached) + (self.cache is not None) :]


def as_written(stages: Sequence[Stage], columns: Sequence[str]) -> Plan:
    """Return the unoptimised plan: all columns, one row at a time.

    Raises
    ------
    ConfigurationError
        For an invalid sequence of stages.
    """
    check_order(stages)
    row_stages, batch_stages = split(stages)
    return Plan(
        columns=tuple(columns),
        where=(),
        rows=tuple(row_stages),
        vectorised=False,
        shuffle=_last(stages, Shuffle),
        batch=_one_batch(stages),
        batches=tuple(batch_stages),
        prefetch=(_last(stages, Prefetch) or Prefetch(0)).depth,
    )


def optimise(
    stages: Sequence[Stage],
    columns: Sequence[str],
    writes: Mapping[int, set[str]],
    delivered: Sequence[str],
    textual: Mapping[int, frozenset[str]],
) -> Plan:
    """Return the optimised plan.

    Parameters
    ----------
    columns
        The initial columns.
    writes
        The columns that each map produces, by ``id`` of the stage.
    delivered
        The output columns.
    textual
        The columns that each filter expression reads, by ``id`` of the stage.
    """
    plan = as_written(stages, columns)
    rows, notes = list(plan.rows), list[str]()
    _move_filters(rows, writes, textual, notes)
    where = list[Condition]()
    while rows and isinstance(first := rows[0], Filter) and first.text is not None:
        where.append(Condition(first.text, textual[id(first)]))
        notes.append(f"{first}: pushed into the read")
        del rows[0]
    rows, needed = _only_needed(rows, columns, writes, delivered, textual, notes)
    read = needed.union(*(condition.columns for condition in where))
    if left := [name for name in columns if name not in read]:
        notes.append(f"read: {', '.join(left)} pruned, no stage needs it")
    if any(isinstance(stage, Map | Filter) for stage in rows):
        notes.append("maps and filters: vectorised over blocks, fused with batch assembly")
    written = [type(stage) for stage in stages]
    if Cache in written and any(
        stage in (MapBatches, Augment) for stage in written[: written.index(Cache)]
    ):
        notes.append("cache: moved before the batch stages, so that random stages are not cached")
    return Plan(
        columns=tuple(name for name in columns if name in needed),
        where=tuple(where),
        rows=tuple(rows),
        vectorised=True,
        shuffle=plan.shuffle,
        batch=plan.batch,
        batches=plan.batches,
        prefetch=plan.prefetch,
        notes=tuple(notes),
    )


def check_order(stages: Sequence[Stage]) -> None:
    """Validate the sequence of stages.

    Raises
    ------
    ConfigurationError
        If a stage is misplaced; names the stage and where it belongs.
    """
    for kind, name in ((MakeBatches, "batch()"), (Cache, "cache()"), (Shuffle, "shuffle()")):
        if sum(isinstance(stage, kind) for stage in stages) > 1:
            raise ConfigurationError(f"a pipeline has at most one {name}")
    batched = in_batches = False
    for stage in stages:
        if isinstance(stage, MapBatches | Augment):
            if not batched:
                raise ConfigurationError(f"{stage}: a batch stage; call batch() before it")
            in_batches = True
        elif isinstance(stage, Filter | Map) and in_batches:
            raise ConfigurationError(
                f"{stage}: a row stage after a batch stage; move "
                "it before the batch stage, or use map_batches()"
            )
        batched = batched or isinstance(stage, MakeBatches)
    _one_batch(stages)


def split(stages: Sequence[Stage]) -> tuple[list[RowStage], list[BatchStage | Select]]:
    """Split into row stages and batch stages; a cache is always a row stage."""
    rows: list[RowStage] = []
    batches: list[BatchStage | Select] = []
    for stage in stages:
        if isinstance(stage, Augment | MapBatches) or (batches and isinstance(stage, Select)):
            batches.append(stage)
        elif isinstance(stage, Map | Filter | Select | Cache):
            rows.append(stage)
    return rows, batches


def _move_filters(
    rows: list[RowStage],
    writes: Mapping[int, set[str]],
    textual: Mapping[int, frozenset[str]],
    notes: list[str],
) -> None:
    for start in range(len(rows)):
        stage = rows[start]
        if not isinstance(stage, Filter):
            continue
        at = start
        while at and _may_pass(stage, rows[at - 1], writes, textual):
            rows[at - 1], rows[at] = rows[at], rows[at - 1]
            at -= 1
        if at < start:
            passed = ", ".join(str(other) for other in rows[at + 1 : start + 1])
            notes.append(f"{stage}: moved before {passed}")


def _may_pass(
    stage: Filter,
    before: RowStage,
    writes: Mapping[int, set[str]],
    textual: Mapping[int, frozenset[str]],
) -> bool:
    reads = textual.get(id(stage), stage.reads)
    if reads is None:
        return False
    if isinstance(before, Map):
        return not writes[id(before)] & set(reads)
    if isinstance(before, Filter):
        # A function may rely on the filter before it; an expression does not depend on other
        # filters.
        # Expressions keep their written order.
        return stage.text is not None and before.text is None
    return True


def _only_needed(
    rows: list[RowStage],
    columns: Sequence[str],
    writes: Mapping[int, set[str]],
    delivered: Sequence[str],
    textual: Mapping[int, frozenset[str]],
    notes: list[str],
) -> tuple[list[RowStage], set[str]]:
    """Remove maps whose columns are unused, and unused columns from the cache."""
    present = [set(columns)]
    for stage in rows:
        written = writes[id(stage)] if isinstance(stage, Map) else set()
        kept = set(stage.columns) if isinstance(stage, Select) else present[-1] | written
        present.append(kept)
    needed, kept_rows = set(delivered), list[RowStage]()
    for stage, before in zip(reversed(rows), reversed(present[:-1]), strict=True):
        if isinstance(stage, Map):
            if not writes[id(stage)] & needed:
                notes.append(f"{stage}: removed, no stage reads its columns")
                continue
            needed = (needed - writes[id(stage)]) | (
                before if stage.reads is None else set(stage.reads)
            )
            if stage.reads is None:
                notes.append(
                    f"{stage}: declare its columns by reads= so that the others need not be read"
                )
        elif isinstance(stage, Filter):
            reads = textual.get(id(stage), stage.reads)
            needed = needed | (before if reads is None else set(reads))
        elif isinstance(stage, Cache):
            kept_rows.append(stage)
            stage = Select(tuple(sorted(needed)))
        elif isinstance(stage, Select):
            stage = Select(tuple(name for name in stage.columns if name in needed))
        kept_rows.append(stage)
    kept_rows.insert(0, Select(tuple(delivered)))
    return _without_repeats(kept_rows[::-1]), needed


def _without_repeats(rows: Sequence[RowStage]) -> list[RowStage]:
    """Remove selections that an adjacent selection makes redundant."""
    kept = list[RowStage]()
    columns: tuple[str, ...] | None = None
    for stage, following in zip(rows, [*rows[1:], None], strict=True):
        if isinstance(stage, Select):
            if isinstance(following, Select) or stage.columns == columns:
                continue
            columns = stage.columns
        elif isinstance(stage, Map):
            columns = None
        kept.append(stage)
    return kept


def _last(stages: Sequence[Stage], kind: type[T]) -> T | None:
    return next((stage for stage in reversed(stages) if isinstance(stage, kind)), None)


def _one_batch(stages: Sequence[Stage]) -> MakeBatches:
    stage = _last(stages, MakeBatches)
    if stage is None:
        raise ConfigurationError("the pipeline has no batch(size); add one")
    return stage


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
