"""Features of a definition over a file, in this process: no lake, no project, nothing written.

Rows take the way of ``ingest``: what it would reject is rejected here, with the same reasons.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.configuration.input_settings import InputSettings
from paimon_features.core.errors import ConfigurationError, RequestError
from paimon_features.core.times.clock import now_ms
from paimon_features.core.types.schema import arrow_schema
from paimon_features.definitions import EventSource, FeatureView
from paimon_features.ingest.cells.judge import judge
from paimon_features.ingest.input_columns import group_files
from paimon_features.ingest.input_files import inspect_file
from paimon_features.ingest.inputs.copies import InputCopies, OnRows
from paimon_features.ingest.inputs.opening import closing_of
from paimon_features.ingest.inputs.reading_process import progressed, read_apart
from paimon_features.ingest.local.parts import parts_of
from paimon_features.ingest.runs import IngestRun
from paimon_features.offline.local.features import features

MOST_ROWS = 2_000_000
MOST_BYTES = 2 << 30
"""Bytes of the events that are read at most."""


@dataclass(frozen=True, slots=True)
class TrialEvents:
    """The events of a file: accepted rows, rejected ones by reason with an example."""

    events: pa.Table
    rejected: Mapping[str, int]
    examples: Mapping[str, str]
    complete: bool
    ignored: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _TrialPart:
    """The events of a part of a file; ``ignored`` are columns that the source does not have."""

    events: pa.Table
    rejected: Mapping[str, int]
    examples: Mapping[str, str]
    ignored: tuple[str, ...]


def read_events(
    path: Path,
    source: EventSource,
    settings: InputSettings,
    mapping: Mapping[str, str],
    most_rows: int = MOST_ROWS,
    on_rows: OnRows = lambda _: None,
    *,
    apart: bool = False,
) -> TrialEvents:
    """Return the rows of a file or table that ``ingest`` would accept, at most about ``most_rows``.

    ``apart``: they are read in a process of their own, see ``reading_process``.

    Raises
    ------
    ConfigurationError
        As ``ingest``: for a column that is missing, ambiguous or can never have its type.
    """
    accepted: list[pa.Table] = []
    rejected: Counter[str] = Counter()
    examples: dict[str, str] = {}
    ignored: tuple[str, ...] = ()
    count, size, complete = 0, 0, True
    names = dict(mapping)
    parts = (
        read_apart(path, _parts_apart, path, source, settings, names, on_rows=on_rows)
        if apart
        else _parts(path, source, settings, names, on_rows)
    )
    with closing_of(parts):
        for part in parts:
            if count >= most_rows or size >= MOST_BYTES:
                complete = False
                break
            accepted.append(part.events)
            count, size = count + part.events.num_rows, size + part.events.nbytes
            on_rows(part.events.num_rows)
            rejected.update(part.rejected)
            examples = {**part.examples, **examples}
            ignored = part.ignored
    events = pa.concat_tables(accepted) if accepted else arrow_schema(source.schema).empty_table()
    return TrialEvents(events, dict(rejected), examples, complete, ignored)


def _parts(
    path: Path,
    source: EventSource,
    settings: InputSettings,
    mapping: Mapping[str, str],
    on_rows: OnRows,
) -> Iterator[_TrialPart]:
    forms = InputCopies(source, settings, on_rows)
    paths = forms.find([path])
    run = IngestRun("trial", now_ms())
    files = [forms.inspect(p) if forms.handles(p) else inspect_file(p) for p in paths]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="paimon-features-"))
        ready = stack.enter_context(forms.copied(files, Path(folder)))
        groups = group_files(ready, source, mapping)
        ignored = tuple(dict.fromkeys(n for g in groups for n in g.ignored))
        for part, group in parts_of(groups, f"reading {path}"):
            for batch in part():
                judged = judge(batch, group, source, run)
                rejected: Counter[str] = Counter()
                examples: dict[str, str] = {}
                if judged.rejected is not None:
                    reasons = judged.rejected.column("reason").to_pylist()
                    rejected.update(reasons)
                    details = judged.rejected.column("detail").to_pylist()
                    for reason, detail in zip(reasons, details, strict=True):
                        examples.setdefault(reason, detail or "")
                yield _TrialPart(judged.events, rejected, examples, ignored)


def _parts_apart(
    path: Path, source: EventSource, settings: InputSettings, mapping: Mapping[str, str]
) -> Iterator[_TrialPart]:
    return _parts(path, source, settings, mapping, progressed)


@dataclass(frozen=True, slots=True)
class FeatureTrial:
    """The features of some entities at one time; ``rows`` has keys, values and statuses."""

    view: str
    as_of_ms: int
    newest_ms: int
    entities: int
    rows: pa.Table


def try_view(
    view: FeatureView,
    events: pa.Table,
    *,
    as_of_ms: int | None = None,
    entities: Mapping[str, Sequence[Any]] | None = None,
    limit: int = 5,
) -> FeatureTrial:
    """Compute a view's features; by default of its entities with most events, after the last.

    Raises
    ------
    RequestError
        If there are no events.
    """
    compiled = view.compiled
    times = events.column(view.source.event_time)
    if not events.num_rows:
        raise RequestError(
            "no row of the file is an event: see the reasons above; types and times are in the "
            "source's schema and in --input"
        )
    newest = int(pc.max(times).as_py())
    at = newest + 1 if as_of_ms is None else as_of_ms
    keys = list(compiled.keys)
    groups = events.group_by(keys).aggregate([([], "count_all")]) if keys else None
    count = 1 if groups is None else groups.num_rows
    if entities:
        lengths = {len(values) for values in entities.values()}
        missing = [key for key in keys if key not in entities]
        if missing or len(lengths) > 1:
            raise ConfigurationError(
                f"--entity: expected values of {', '.join(keys)}, as many of each; got "
                f"{', '.join(f'{k}: {len(v)}' for k, v in entities.items())}"
            )
        chosen = {k: pa.array(entities[k], compiled.keys[k].arrow) for k in keys}
        length = lengths.pop()
    elif groups is None:
        chosen, length = {}, 1
    else:
        for key in keys:
            groups = groups.filter(groups.column(key).is_valid())
        order = [("count_all", "descending"), *((key, "ascending") for key in keys)]
        top = groups.sort_by(order).slice(0, limit)
        chosen = {key: top.column(key).combine_chunks() for key in keys}
        length = top.num_rows
    # skipped events are reported of these entities only
    for key in keys:
        events = events.filter(pc.is_in(events.column(key), pa.array(chosen[key])))
    rows = pa.table({**chosen, "event_time_ms": pa.array([at] * length, pa.int64())})
    return FeatureTrial(view.name, at, newest, count, features(view, events, rows, statuses=True))
