"""The demo's report: one HTML file with its pictures inside."""

from __future__ import annotations

import html
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from circle import CircleFacts

INK, QUIET, FIRST, SECOND = "#1f2933", "#7b8794", "#2563a8", "#d9822b"


@dataclass
class Facts:
    """What the demo saw; each picture draws from here."""

    days: list[int] = field(default_factory=list)
    events_per_day: list[int] = field(default_factory=list)
    tiles_per_day: list[int] = field(default_factory=list)
    freshness_s: list[float] = field(default_factory=list)
    pairs: list[tuple[str, float, float]] = field(default_factory=list)
    """(feature, online, raw events) of some numbers."""
    compared: int = 0
    largest: float = 0.0
    steps: list[tuple[int, float]] = field(default_factory=list)
    """(epoch, loss of a step), in order."""
    epochs: list[dict[str, float]] = field(default_factory=list)
    hardest: list[dict[str, Any]] = field(default_factory=list)
    rejected: dict[str, int] = field(default_factory=dict)
    lookups: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    circle: CircleFacts = field(default_factory=CircleFacts)
    total_s: float = 0.0


def write_report(path: Path, facts: Facts) -> None:
    """Write the report; it needs no network and no other file."""
    sections = [
        ("Events and tiles", _caption_tiles(facts), _draw(facts, _draw_tiles)),
        ("Freshness", _caption_freshness(facts), _draw(facts, _draw_freshness)),
        ("Parity: online and raw events", _caption_parity(facts), _draw(facts, _draw_parity)),
        ("Loss per epoch", _caption_loss(facts), _draw(facts, _draw_loss)),
        ("Hardest samples", "By decayed loss, read back from the tiles of the feedback.",
         _table(facts.hardest)),
        ("Customers looked up", "As the online store answered, with the open tile whole.",
         _table(facts.lookups)),
        ("Rows that did not become events", "Kept in rejected_retail with the reason.",
         _table([{"reason": r, "rows": n} for r, n in facts.rejected.items()])),
        ("Where the time went", "Seconds per step of the demo.",
         _table([{"step": s, "seconds": f"{t:.1f}"} for s, t in facts.seconds.items()])),
    ]  # fmt: skip
    body = "\n".join(
        f"<section><h2>{html.escape(title)}</h2><p>{html.escape(caption)}</p>{content}</section>"
        for title, caption, content in sections
    )
    path.write_text(_PAGE.replace("{body}", body), encoding="utf-8")


def _caption_tiles(facts: Facts) -> str:
    events, tiles = sum(facts.events_per_day), sum(facts.tiles_per_day)
    ratio = events / tiles if tiles else 0.0
    return (
        f"{events:,} events with a customer became {tiles:,} tiles of five minutes: "
        f"{ratio:.1f} events each, merged by the lake."
    )


def _caption_freshness(facts: Facts) -> str:
    if not facts.freshness_s:
        return "Nothing was measured."
    ordered = sorted(facts.freshness_s)
    middle, high = ordered[len(ordered) // 2], ordered[-1]
    return (
        f"From the commit of an event to its value in a lookup, {len(ordered)} batches while the "
        f"last days of the log were streamed: median {middle:.2f} s, slowest {high:.2f} s, at "
        "checkpoints of one second."
    )


def _caption_parity(facts: Facts) -> str:
    return (
        f"{facts.compared:,} values compared between online store, tiles and raw events; "
        "none differs beyond the tolerance; largest relative difference "
        f"{facts.largest:.1e}."
    )


def _caption_loss(facts: Facts) -> str:
    return "; ".join(
        f"epoch {int(e['epoch'])}: loss {e['loss']:.4f}, held-out AUC {e['auc']:.3f}"
        for e in facts.epochs
    ) + ". The second epoch draws hard samples more often and weighs them back."  # fmt: skip


def _draw(facts: Facts, painter: Callable[[Any, Facts], None]) -> str:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {"font.size": 9, "axes.edgecolor": QUIET, "axes.labelcolor": INK, "xtick.color": QUIET,
         "ytick.color": QUIET, "axes.spines.top": False, "axes.spines.right": False,
         "svg.fonttype": "none"}
    )  # fmt: skip
    figure, axes = plt.subplots(figsize=(7.6, 2.7), layout="constrained")
    painter(axes, facts)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    plt.close(figure)
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _draw_tiles(axes: Any, facts: Facts) -> None:
    days = [datetime.fromtimestamp(day * 86_400, UTC) for day in facts.days]
    axes.plot(days, facts.events_per_day, color=FIRST, lw=1, label="events")
    axes.plot(days, facts.tiles_per_day, color=SECOND, lw=1, label="tiles")
    axes.set_ylabel("per day")
    axes.legend(frameon=False)


def _draw_freshness(axes: Any, facts: Facts) -> None:
    axes.hist(list(facts.freshness_s), bins=30, color=FIRST)
    axes.set_xlabel("seconds from commit to lookup")
    axes.set_ylabel("batches")


def _draw_parity(axes: Any, facts: Facts) -> None:
    shown = [(left, right) for _, left, right in facts.pairs if left > 0 and right > 0]
    if shown:
        left, right = zip(*shown, strict=True)
        axes.loglog(right, left, ".", ms=3, color=FIRST)
        ends = [min(right), max(right)]
        axes.plot(ends, ends, color=SECOND, lw=1)
    axes.set_xlabel("raw events")
    axes.set_ylabel("online")


def _draw_loss(axes: Any, facts: Facts) -> None:
    for epoch, color in ((1, FIRST), (2, SECOND)):
        points = [(i, loss) for i, (e, loss) in enumerate(facts.steps) if e == epoch]
        if points:
            axes.plot(*zip(*points, strict=True), color=color, lw=1, label=f"epoch {epoch}")
    axes.set_xlabel("step")
    axes.set_ylabel("loss of the batch")
    axes.legend(frameon=False)


def _table(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return "<p>None.</p>"
    head = "".join(f"<th>{html.escape(str(name))}</th>" for name in rows[0])
    lines = [
        "<tr>" + "".join(f"<td>{html.escape(_text(v))}</td>" for v in row.values()) + "</tr>"
        for row in rows
    ]
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) >= 100 else f"{value:.4g}"
    return str(value)


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>paimon-features: the demo's report</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; max-width: 52rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .2rem; }
p { margin: .2rem 0 .6rem; color: #52606d; } svg { width: 100%; height: auto; }
table { border-collapse: collapse; font-size: 13px; display: block; overflow-x: auto; }
td, th { border-bottom: 1px solid #e4e7eb; padding: .25rem .8rem .25rem 0; text-align: left; }
</style></head><body>
<h1>The loop, closed once on a real retail log</h1>
<p>Events became tiles, tiles became online features and a training set, the trainer's losses
became tiles again, and those chose what the second epoch looked at.</p>
{body}
</body></html>
"""
