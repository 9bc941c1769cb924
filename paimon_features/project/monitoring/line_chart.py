"""Lines in a picture: SVG without a library, for pages and files."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

import numpy as np

_WIDTH, _HEIGHT, _MARGIN = 520, 260, 40


def line_chart(
    series: Iterable[tuple[str, Sequence[tuple[float, float]]]], x_name: str, y_name: str
) -> str:
    """Draw lines in one picture with a legend, as an SVG element; empty without finite points."""
    drawn = [(name, [p for p in points if np.isfinite(p).all()]) for name, points in series]
    drawn = [(name, points) for name, points in drawn if points]
    if not drawn:
        return ""
    every = np.array([point for _, points in drawn for point in points])
    low, high = every.min(axis=0), every.max(axis=0)
    span = np.where(high > low, high - low, 1.0)
    lines = []
    for index, (name, points) in enumerate(drawn):
        colour = ("#1565c0", "#ef6c00", "#2e7d32")[index % 3]
        places = [
            (
                _MARGIN + (x - low[0]) / span[0] * (_WIDTH - 2 * _MARGIN),
                _HEIGHT - _MARGIN - (y - low[1]) / span[1] * (_HEIGHT - 2 * _MARGIN),
            )
            for x, y in points
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}"/>')
        lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{colour}"/>' for x, y in places]
        lines.append(
            f'<text x="{_MARGIN}" y="{14 + 14 * index}" fill="{colour}">{html.escape(name)}</text>'
        )
    ends = [
        (_MARGIN, _HEIGHT - 22, f"{low[0]:.4g}", "start"),
        (_WIDTH - _MARGIN, _HEIGHT - 22, f"{high[0]:.4g}", "end"),
        (_WIDTH / 2, _HEIGHT - 6, x_name, "middle"),
        (_MARGIN - 4, _HEIGHT - _MARGIN, f"{low[1]:.4g}", "end"),
        (_MARGIN - 4, _MARGIN, f"{high[1]:.4g}", "end"),
        (_MARGIN - 4, _HEIGHT / 2, y_name, "end"),
    ]
    lines += [
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="11">{html.escape(text)}</text>'
        for x, y, text, anchor in ends
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-30 0 {_WIDTH + 30} {_HEIGHT}" '
        f'width="{_WIDTH}">{"".join(lines)}</svg>'
    )
