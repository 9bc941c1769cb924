"""``sizing``: how much memory the online store needs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click

from paimon_features.cli._names import VIEW_NAME
from paimon_features.cli._options import JSON, PROJECT
from paimon_features.core.errors import ConfigurationError, UnknownNameError
from paimon_features.online.store.sizing import TotalSize, ViewSize, measured_size, size_of, total
from paimon_features.project import Project

GIB = 1 << 30


@click.command()
@click.argument("views", nargs=-1, shell_complete=VIEW_NAME)
@click.option(
    "--events-per-day",
    type=click.FloatRange(min=0, min_open=True),
    help="Average events per entity and day; determines how many tiles it fills.",
)
@click.option("--measure", is_flag=True, help="Measure records in the online store instead.")
@click.option(
    "--sample", type=click.IntRange(1), default=1000, show_default=True,
    help="Records of each view that --measure reads.",
)  # fmt: skip
@click.option(
    "--entities", default="1e6,1e7,1e8,1e9", show_default=True, help="Numbers of entities."
)
@click.option(
    "--node-memory", type=click.FloatRange(min=0, min_open=True), default=64.0, show_default=True,
    help="Memory of one server, GiB.",
)  # fmt: skip
@click.option(
    "--headroom", type=click.FloatRange(0, 1, max_open=True), default=0.25, show_default=True,
    help="Share to keep free: fragmentation, replication, clients.",
)  # fmt: skip
@PROJECT
@JSON
def sizing(
    views: tuple[str, ...],
    events_per_day: float | None,
    measure: bool,
    sample: int,
    entities: str,
    node_memory: float,
    headroom: float,
    path: str,
    as_json: bool,
) -> None:
    """Estimate the online store's memory for VIEWS, or for all feature views.

    A record has a header of 56 bytes and a cell for each tile, hour or day in which its entity
    has events. The estimate depends on what is known about these cells:

    \b
      paimon-features sizing                        # upper bound: an event in every tile
      paimon-features sizing --events-per-day 2.5   # events at random times
      paimon-features sizing --measure              # most accurate: existing records

    The peak occurs while a view is rebuilt next to its old records. Use this number of nodes for
    Redis Cluster (docs/how-to/serving/online-store.md); replicas are extra.
    """
    if measure and events_per_day is not None:
        raise click.UsageError("pass --measure or --events-per-day, not both")
    project = Project.open(path)
    counts = _counts(entities)
    sizes, left_out = [], []
    for name in views or tuple(project.definitions.views):
        view = project.view(name)
        if not view.is_online:
            left_out.append(name)
        elif measure:
            sizes.append(measured_size(view, project.name, project.store, sample))
        else:
            sizes.append(size_of(view, project.name, events_per_day))
    if not sizes:
        raise UnknownNameError("no feature view with windows that can be served online")
    totals = [total(sizes, count, node_memory * GIB, headroom) for count in counts]
    if as_json:
        click.echo(json.dumps(_document(sizes, totals, left_out), indent=2))
        return
    click.echo("\n".join(_lines(sizes, totals, left_out, node_memory, headroom)))


def _counts(text: str) -> list[int]:
    try:
        counts = [int(float(part)) for part in text.split(",")]
    except (ValueError, OverflowError):
        counts = []
    if not counts or min(counts) < 1:
        raise ConfigurationError(f"--entities {text}: expected numbers such as 1e6,250000000")
    return counts


def _document(
    sizes: Sequence[ViewSize], totals: Sequence[TotalSize], left_out: Sequence[str]
) -> dict[str, Any]:
    return {
        "views": [{**asdict(size), "entity_bytes": size.entity_bytes} for size in sizes],
        "not_online": list(left_out),
        "totals": [asdict(one) for one in totals],
    }


def _lines(
    sizes: Sequence[ViewSize],
    totals: Sequence[TotalSize],
    left_out: Sequence[str],
    node_memory: float,
    headroom: float,
) -> Iterator[str]:
    for size in sizes:
        yield f"{size.view}: {size.entity_bytes:,.0f} bytes per entity ({size.basis})"
        yield (
            f"  record {size.record_bytes:,.0f} (header 56, {size.cells:,.1f} cells of "
            f"{size.cell_bytes:,.1f}, texts {size.text_bytes:,.0f}), key {size.key_bytes:,.0f}, "
            f"server {size.overhead_bytes:,.0f}"
        )
        levels = (f"{one.step} {one.cells:,.1f} of {one.most:,}" for one in size.levels)
        yield f"  cells: {', '.join(levels)}"
    for name in left_out:
        yield f"{name}: not served online"
    yield ""
    yield f"{'entities':>15} {'records':>12} {'peak':>12}   nodes of {node_memory:g} GiB"
    for one in totals:
        yield (
            f"{one.entities:>15,} {_bytes(one.bytes):>12} {_bytes(one.peak_bytes):>12}   "
            f"{one.nodes:,}"
        )
    yield f"(peak: one view being rebuilt; {headroom:.0%} of each node stays free)"


def _bytes(count: float) -> str:
    """
    >>> _bytes(3 * 2**30)
    '3.0 GiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"
