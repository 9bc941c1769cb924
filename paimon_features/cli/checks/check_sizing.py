"""``check sizing``: how much memory the online store needs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click

from paimon_features.cli._values import size_text
from paimon_features.cli.checks import SizingOptions
from paimon_features.core.errors import ConfigurationError, UnknownNameError
from paimon_features.online.store.sizing import TotalSize, ViewSize, measured_size, size_of, total
from paimon_features.project import Project

GIB = 1 << 30


def check_sizing(views: Sequence[str], options: SizingOptions, path: str, as_json: bool) -> None:
    """Estimate the online store's memory for ``views``, or for all feature views."""
    if options.measure is not None and options.events_per_day is not None:
        raise click.UsageError("pass --measure or --events-per-day, not both")
    project = Project.open(path)
    counts = _counts(options.entities)
    sizes, left_out = [], []
    for name in views or tuple(project.definitions.views):
        view = project.view(name)
        if not view.is_online:
            left_out.append(name)
        elif options.measure is not None:
            sizes.append(measured_size(view, project.name, project.store, options.measure))
        else:
            sizes.append(size_of(view, project.name, options.events_per_day))
    if not sizes:
        raise UnknownNameError("no feature view with windows that can be served online")
    node_bytes = options.node_memory * GIB
    totals = [total(sizes, count, node_bytes, options.headroom) for count in counts]
    if as_json:
        click.echo(json.dumps(_document(sizes, totals, left_out), indent=2))
        return
    click.echo("\n".join(_lines(sizes, totals, left_out, options)))


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
    options: SizingOptions,
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
    yield f"{'entities':>15} {'records':>12} {'peak':>12}   nodes of {options.node_memory:g} GiB"
    for one in totals:
        yield (
            f"{one.entities:>15,} {size_text(one.bytes):>12} {size_text(one.peak_bytes):>12}   "
            f"{one.nodes:,}"
        )
    yield f"(peak: one view being rebuilt; {options.headroom:.0%} of each node stays free)"
