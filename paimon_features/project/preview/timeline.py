"""Draws the events of an entity, their tiles, and the windows of a read on one axis, as SVG.

The picture is bounded by its pixels: what falls on one pixel is one mark that says how many it
stands for.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass

from paimon_features.core.notebook.markup import Markup, escaped, text, utc
from paimon_features.core.windows import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from paimon_features.project.preview.preview_data import PreviewData, PreviewWindow

_LEFT, _RIGHT, _WIDTH = 110, 190, 940
_ACROSS = _WIDTH - _LEFT - _RIGHT
_TOP, _ROW = 34, 30
_COUNTS, _OUT, _LATER = "#2563a8", "#b0b7c0", "#d9822b"
_STEPS = (
    1, 10, 100, SECOND_MS, 10 * SECOND_MS, MINUTE_MS, 5 * MINUTE_MS, 15 * MINUTE_MS, HOUR_MS,
    3 * HOUR_MS, 6 * HOUR_MS, 12 * HOUR_MS, DAY_MS, 2 * DAY_MS, 7 * DAY_MS, 14 * DAY_MS,
    30 * DAY_MS, 91 * DAY_MS, 365 * DAY_MS, 3_650 * DAY_MS, 36_500 * DAY_MS, 365_000 * DAY_MS,
)  # fmt: skip
_TICKS = 7


@dataclass(frozen=True)
class Picture:
    """An SVG: notebooks show it, ``svg`` is its text."""

    svg: str

    @property
    def markup(self) -> Markup:
        """As a part of a page."""
        return Markup(self.svg)

    def _repr_svg_(self) -> str:
        return self.svg


def draw(preview: PreviewData, last_ms: int | None) -> Picture:
    """Draw a preview: the complete time range of its windows, or ``last_ms`` before the read."""
    scale = _Scale(preview, last_ms)
    windows = preview.windows
    height = _TOP + (2 + len(windows)) * _ROW + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" font-family="system-ui,sans-serif" font-size="11">',
        f"<title>{escaped(f'Events, tiles and windows of {preview.view.name}')}</title>",
        f'<rect width="{_WIDTH}" height="{height}" rx="6" fill="#fff"/>',
        *_axis(scale, height),
        *_events(preview, scale, _TOP + _ROW // 2),
        *_tiles(preview, scale, _TOP + _ROW),
    ]
    for number, window in enumerate(windows):
        parts += _window(window, scale, _TOP + (2 + number) * _ROW)
    x = scale.x(preview.as_of_ms)
    parts.append(
        f'<line x1="{x}" y1="{_TOP - 6}" x2="{x}" y2="{height - 24}" stroke="{_LATER}" '
        f'stroke-dasharray="4 3"/><text x="{x}" y="{_TOP - 12}" text-anchor="end" '
        f'fill="{_LATER}">read as of {utc(preview.as_of_ms)}</text>'
    )
    return Picture("".join([*parts, "</svg>"]))


class _Scale:
    """Times as pixels, over the drawn range."""

    def __init__(self, preview: PreviewData, last_ms: int | None) -> None:
        as_of = preview.as_of_ms
        times = [event.time_ms for event in preview.events]
        if last_ms is not None:
            self.low = as_of - last_ms
        else:
            starts = [w.start_ms for w in preview.windows if w.window.length is not None]
            # a lifetime has no start that could be drawn: its first event stands for it
            if len(starts) < len(preview.windows) and times:
                starts.append(min(times))
            self.low = min(starts, default=as_of - DAY_MS)
        span = max(as_of - self.low, 1)
        self.low -= span // 40
        self.high = as_of + max(span // 25, 1)

    def x(self, time_ms: int) -> float:
        inside = min(max(time_ms, self.low), self.high)
        return round(_LEFT + (inside - self.low) / (self.high - self.low) * _ACROSS, 1)

    def has(self, time_ms: int) -> bool:
        return self.low <= time_ms <= self.high


def _axis(scale: _Scale, height: int) -> Iterator[str]:
    span = scale.high - scale.low
    step = next((s for s in _STEPS if span / s <= _TICKS), _STEPS[-1])
    y = height - 24
    yield f'<line x1="{_LEFT}" y1="{y}" x2="{_LEFT + _ACROSS}" y2="{y}" stroke="#98a2b3"/>'
    tick = -(-scale.low // step) * step
    while tick <= scale.high:
        x = scale.x(tick)
        yield (
            f'<line x1="{x}" y1="{_TOP}" x2="{x}" y2="{y}" stroke="#eef0f3"/>'
            f'<text x="{x}" y="{y + 15}" text-anchor="middle" fill="#667085">'
            f"{_tick(tick, step)}</text>"
        )
        tick += step


def _tick(time_ms: int, step_ms: int) -> str:
    try:
        moment = dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=time_ms)
    except OverflowError:
        return ""
    if step_ms >= DAY_MS:
        return f"{moment:%Y-%m-%d}"
    if step_ms >= MINUTE_MS:
        return f"{moment:%m-%d %H:%M}"
    return f"{moment:%H:%M:%S}" if step_ms >= SECOND_MS else f"{moment:%S.%f}"[:6]


def _label(y: float, said: str) -> str:
    return f'<text x="{_LEFT - 10}" y="{y}" text-anchor="end" fill="#344054">{escaped(said)}</text>'


def _events(preview: PreviewData, scale: _Scale, y: int) -> Iterator[str]:
    marks: dict[tuple[int, str | None], list[int]] = {}
    for event in preview.events:
        if scale.has(event.time_ms):
            marks.setdefault((round(scale.x(event.time_ms)), event.left_out), []).append(
                event.time_ms
            )
    yield _label(y + 4, "events")
    for (x, why), times in marks.items():
        fill = _COUNTS if why is None else _LATER if why == "at or after the read" else "#fff"
        edge = fill if fill != "#fff" else _OUT
        count = f"{len(times):,} events" if len(times) > 1 else "event"
        title = f"{count} at {utc(times[0])}" + (f": {why}" if why else "")
        yield (
            f'<circle cx="{x}" cy="{y}" r="4" fill="{fill}" fill-opacity="0.75" '
            f'stroke="{edge}"><title>{escaped(title)}</title></circle>'
        )
    hidden = sum(event.left_out is not None for event in preview.events)
    yield f'<text x="{_WIDTH - _RIGHT + 12}" y="{y + 4}" fill="#344054">' + (
        f"{len(preview.events) - hidden:,} count, {hidden:,} do not</text>"
    )


def _tiles(preview: PreviewData, scale: _Scale, y: int) -> Iterator[str]:
    tile_ms = preview.view.compiled.tile_ms
    counts: dict[int, int] = {}
    for event in preview.events:
        if event.left_out is None and event.tile_ms + tile_ms > scale.low:
            counts[event.tile_ms] = counts.get(event.tile_ms, 0) + 1
    yield _label(y + 19, f"tiles of {preview.view.tile}")
    drawn: dict[int, list[int]] = {}
    for start in counts:
        drawn.setdefault(round(scale.x(start)), []).append(start)
    for x, starts in drawn.items():
        width = max(scale.x(starts[-1] + tile_ms) - x, 2.0)
        events = sum(counts[start] for start in starts)
        tiles = f"{len(starts):,} tiles" if len(starts) > 1 else "tile"
        title = f"{tiles} from {utc(starts[0])}: {events:,} events"
        yield (
            f'<rect x="{x}" y="{y + 5}" width="{width:.1f}" height="20" fill="#dbeafe" '
            f'stroke="{_COUNTS}" stroke-width="0.7"><title>{escaped(title)}</title></rect>'
        )
        if width > 16:
            yield (
                f'<text x="{x + width / 2:.1f}" y="{y + 19}" text-anchor="middle">{events}</text>'
            )
    yield (
        f'<text x="{_WIDTH - _RIGHT + 12}" y="{y + 19}" fill="#344054">{len(counts):,} tiles</text>'
    )


def _window(window: PreviewWindow, scale: _Scale, y: int) -> Iterator[str]:
    name = window.window.name or "lifetime"
    yield _label(y + 19, name)
    left, right = scale.x(window.start_ms), scale.x(window.end_ms)
    title = (
        f"{name}: from {utc(window.start_ms)} (inclusive) to {utc(window.end_ms)} (exclusive), "
        f"{_many(window.events, 'event')}"
    )
    yield (
        f'<rect x="{left}" y="{y + 7}" width="{max(right - left, 1.5):.1f}" height="16" rx="2" '
        f'fill="#dcfce7" stroke="#15803d" stroke-width="0.8"><title>{escaped(title)}</title></rect>'
    )
    length = window.window.length
    if isinstance(length, int) and window.window.kind == "sawtooth":
        # what rounding the start down to the hop adds before the window's length
        exact = scale.x(window.end_ms - length)
        if exact - left >= 2 and scale.has(window.start_ms):
            yield (
                f'<rect x="{left}" y="{y + 7}" width="{exact - left:.1f}" height="16" '
                'fill="#15803d" fill-opacity="0.25"><title>the start is rounded down to the hop'
                "</title></rect>"
            )
    values = ", ".join(text(value) for value in window.values.values())
    short = values if len(values) <= 18 else values[:17] + "…"
    yield (
        f'<text x="{_WIDTH - _RIGHT + 12}" y="{y + 19}" fill="#344054">'
        f"{_many(window.events, 'event')}: {escaped(short)}<title>{escaped(values)}</title></text>"
    )


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
