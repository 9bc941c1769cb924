"""``status --lateness``: how late the events of a source arrive."""

from __future__ import annotations

import json
from itertools import pairwise

import click

from paimon_features.core.times.clock import now_ms
from paimon_features.core.windows import DAY_MS, HOUR_MS, format_duration, parse_duration
from paimon_features.ingest.lateness import EDGES_MS, Lateness
from paimon_features.project import Project

_BAR = 40


def show_lateness(source: str, since: str | None, path: str, as_json: bool) -> None:
    """Show how late events of a source arrive: from event time to ingestion."""
    from paimon_features.ingest.lateness import lateness as measure

    project = Project.open(path)
    from_ms = None if since is None else now_ms() - parse_duration(since)
    measured = measure(project.lake, project.definitions.source(source), from_ms)
    if as_json:
        click.echo(json.dumps(_document(measured), indent=2))
    else:
        click.echo("\n".join(_drawn(measured)))


def _drawn(found: Lateness) -> list[str]:
    if not found.events:
        return [f"{found.source} has no events (of that time)"]
    counts = [(label, count) for label, count in zip(_labels(), found.counts, strict=True)]
    used = [i for i, (_, count) in enumerate(counts) if count]
    shown = counts[used[0] : used[-1] + 1]
    most = max(count for _, count in shown)
    lines = [f"{found.source}: {found.events:,} events by how late they came"]
    for label, count in shown:
        bar = "█" * round(_BAR * count / most) or ("▏" if count else "")
        lines.append(f"  {label:<16} {bar:<{_BAR}} {count:>13,} {count / found.events:>8.3%}")
    quantiles = ", ".join(f"{100 * share:g} % <= {_span(ms)}" for share, ms in found.quantiles_ms)
    lines.append(f"{quantiles}; the latest {_span(found.greatest_ms or 0)}")
    later = [
        f"{found.later_than(edge):,} after {format_duration(edge)}"
        for edge in (HOUR_MS, DAY_MS, 7 * DAY_MS, 30 * DAY_MS)
    ]
    return [*lines, ", ".join(later)]


def _labels() -> list[str]:
    spans = [format_duration(edge) for edge in EDGES_MS[1:]]
    between = [f"{low} to {high}" for low, high in pairwise(spans)]
    return ["ahead of clock", f"< {spans[0]}", *between, f">= {spans[-1]}"]


def _document(found: Lateness) -> dict[str, object]:
    lows: list[int | None] = [None, *EDGES_MS]
    buckets = [
        {"from_ms": low, "to_ms": high, "events": count}
        for low, high, count in zip(lows, [*EDGES_MS, None], found.counts, strict=True)
    ]
    return {
        "source": found.source,
        "events": found.events,
        "buckets": buckets,
        "quantiles_ms": {f"{share:g}": ms for share, ms in found.quantiles_ms},
        "least_ms": found.least_ms,
        "greatest_ms": found.greatest_ms,
    }


def _span(ms: int) -> str:
    """Format a duration in its two largest units.

    >>> _span(0), _span(59_999), _span(3_700_000), _span(40 * DAY_MS)
    ('0 ms', '59 s 999 ms', '1 h 1 min', '40 d')
    """
    parts = []
    rest = abs(ms)
    for unit, size in (("d", DAY_MS), ("h", HOUR_MS), ("min", 60_000), ("s", 1_000), ("ms", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}")
        elif parts:
            break
    return ("-" if ms < 0 else "") + (" ".join(parts[:2]) or "0 ms")
