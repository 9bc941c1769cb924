"""Reports as files: HTML pages, plots of the distributions, Prometheus metrics."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from paimon_features.core.documents.generated_text import metric_label
from paimon_features.core.errors import MissingExtraError, RequestError
from paimon_features.core.process.output_files import check_output_file
from paimon_features.project.monitoring.drift import Drift
from paimon_features.project.monitoring.monitoring_report import (
    ColumnReport,
    MonitoringReport,
    counts,
)

REFERENCE, CURRENT, INK = "#9aa5b1", "#1f6fb2", "#33414e"
MOST_BARS = 24
"""Maximum number of bars; neighbouring bins are merged."""
MOST_CATEGORIES = 10
"""Maximum number of categories with their own bar."""
FORMATS = (".html", ".png", ".svg", ".prom")


def write_report(report: MonitoringReport, path: Path, rows: Sequence[Sequence[str]]) -> None:
    """Write a report as a page, a plot, or Prometheus metrics, by the suffix of ``path``.

    ``rows`` is the table as strings, its head first. A page contains its picture.

    Raises
    ------
    RequestError
        For another suffix, a missing folder, or something else than a file there.
    MissingExtraError
        If matplotlib is not installed.
    """
    if path.suffix not in FORMATS:
        raise RequestError(f"{path}: expected a file that ends with {', '.join(FORMATS)}")
    check_output_file(path)
    if path.suffix == ".prom":
        path.write_text(metrics(report), "utf-8")
    elif path.suffix == ".html":
        path.write_text(_page(report, rows), "utf-8")
    else:
        path.write_bytes(draw(report, path.suffix.removeprefix(".")))


def metrics(report: MonitoringReport) -> str:
    """Return Prometheus gauges, for the textfile collector of the node exporter."""
    out: list[str] = []
    for name, reported in _GAUGES.items():
        lines = []
        for column in report.columns:
            value = _gauge(column, name)
            if value is not None:
                view, label = metric_label(report.name), metric_label(column.column)
                labels = f"view={view},column={label}"
                lines.append(f"paimon_features_monitor_{name}{{{labels}}} {value!r}")
        if lines:
            head = f"paimon_features_monitor_{name}"
            out += [f"# HELP {head} {reported}", f"# TYPE {head} gauge", *lines]
    return "\n".join(out) + "\n"


_GAUGES = {
    "psi": "Population stability index of the column against its reference.",
    "expected_psi": "Mean of that index if nothing has changed.",
    "psi_p_value": "Probability of at least that index if nothing has changed, of one column.",
    "ks": "Kolmogorov-Smirnov distance of the column from its reference.",
    "ks_p_value": "Probability of at least that distance if nothing has changed, of one column.",
    "rows": "Rows of the range.",
    "null_share": "Share of rows without a value.",
    "mean": "Mean of the values.",
    "deviation": "Standard deviation of the values.",
}


def _gauge(column: ColumnReport, name: str) -> float | int | None:
    if hasattr(Drift, name):
        value = None if column.drift is None else getattr(column.drift, name)
    else:
        value = column.to_document()["current"][name]
    return value if isinstance(value, int | float) else None


def draw(report: MonitoringReport, form: str) -> bytes:
    """Return the plot as PNG or SVG: a panel per column with bins or categories.

    Raises
    ------
    MissingExtraError
        If matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtraError.of("matplotlib", "demo", "a picture") from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = [column for column in report.columns if counts(column.current) is not None]
    wide = min(len(shown), 3) or 1
    high = math.ceil(len(shown) / wide) or 1
    with plt.rc_context(
        {"font.size": 8, "axes.edgecolor": REFERENCE, "xtick.color": INK, "ytick.color": INK,
         "axes.labelcolor": INK, "axes.spines.top": False, "axes.spines.right": False}
    ):  # fmt: skip
        figure, axes = plt.subplots(
            high, wide, figsize=(4.2 * wide, 2.7 * high), squeeze=False, layout="constrained"
        )
        for place, one in enumerate(axes.flat):
            if place < len(shown):
                _panel(one, shown[place])
            else:
                one.set_axis_off()
        if not shown:
            axes[0][0].text(0.5, 0.5, "no column has bins", ha="center")
        handles = axes[0][0].get_legend_handles_labels() if shown else ([], [])
        if handles[0]:
            figure.legend(*handles, loc="outside upper right", ncols=2, frameon=False)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=form, dpi=130, metadata={} if form == "png" else None)
        plt.close(figure)
    return buffer.getvalue()


def _panel(axes: Any, column: ColumnReport) -> None:
    labels, sides = _bars(column)
    places = range(len(labels))
    here = _shares(sides[0])
    if sides[1] is not None:
        axes.bar(places, _shares(sides[1]), 1.0, color=REFERENCE, alpha=0.55, label="reference")
        axes.step(
            [-0.5, *(p + 0.5 for p in places)], [here[0], *here], where="pre", color=CURRENT,
            lw=1.6, label="current",
        )  # fmt: skip
    else:
        axes.bar(places, here, 1.0, color=CURRENT, alpha=0.8)
    step = max(len(labels) // 6, 1)
    chosen = [place for place in places if place % step == 0]
    turned = any(len(labels[place]) > 6 for place in chosen)
    axes.set_xticks(
        chosen, [labels[place][:16] for place in chosen], rotation=35 if turned else 0,
        ha="right" if turned else "center",
    )  # fmt: skip
    axes.set_ylabel("share")
    axes.set_title(_title(column), fontsize=9, loc="left", color=INK)


def _title(column: ColumnReport) -> str:
    drift = column.drift
    if drift is None or drift.psi is None:
        return column.column
    text = f"{column.column}   PSI {drift.psi:.3f} (p {drift.psi_p_value:.2g})"
    return text if drift.ks is None else f"{text}   KS {drift.ks:.3f}"


def _bars(column: ColumnReport) -> tuple[list[str], list[list[int] | None]]:
    """Return the labels of the bars, and the counts of both sides."""
    here = counts(column.current) or []
    before = None if column.reference is None else counts(column.reference)
    if column.current.categories is not None:
        names = [str(value) for value in column.current.categories] + ["(others)"]
        order = sorted(range(len(names) - 1), key=lambda i: -(before or here)[i])[:MOST_CATEGORIES]
        rest = [i for i in range(len(names)) if i not in order]
        return [*(names[i] for i in order), "(others)"], [
            None if side is None else [*(side[i] for i in order), sum(side[i] for i in rest)]
            for side in (here, before)
        ]
    edges = column.current.edges or ()
    step = math.ceil(len(here) / MOST_BARS) or 1
    starts = range(0, len(here), step)
    # a label is the start of its bar; the first bar has none, and ends at the second label
    labels = [f"{edges[start - 1]:.4g}" for start in starts[1:]]
    first = f"< {labels[0]}" if labels else ""
    return [first, *labels], [
        None if side is None else [sum(side[start : start + step]) for start in starts]
        for side in (here, before)
    ]


def _shares(side: list[int] | None) -> list[float]:
    total = sum(side or ()) or 1
    return [count / total for count in side or ()]


def _page(report: MonitoringReport, rows: Sequence[Sequence[str]]) -> str:
    image = base64.b64encode(draw(report, "png")).decode()
    head, *body = rows
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in body
    )
    return (
        f"<!doctype html><meta charset='utf-8'><title>{escape(report.name)}</title>"
        f"<style>body{{font:14px system-ui;margin:2em;color:{INK}}}img{{max-width:100%}}"
        "table{border-collapse:collapse;margin-bottom:1.5em}"
        "th,td{padding:4px 10px;border-bottom:1px solid #ddd;text-align:right}"
        "th:first-child,td:first-child{text-align:left}</style>"
        f"<h1>{escape(report.name)}</h1><p>{escape(described(report))}</p>"
        f"<table><tr>{cells}</tr>{lines}</table>"
        f"<img alt='distributions of the columns' src='data:image/png;base64,{image}'>\n"
    )


def described(report: MonitoringReport) -> str:
    """Return one line about what was compared.

    >>> from paimon_features.project.monitoring.time_ranges import TimeRange
    >>> described(MonitoringReport("spend", "tiles", TimeRange(0, 86_400_000), None, []))
    'from tiles: 1970-01-01T00:00:00 to 1970-01-02T00:00:00 (UTC, end exclusive)'
    """
    text = f"from {report.origin}: {report.within} (UTC, end exclusive)"
    return text if report.against is None else f"{text}, against {report.against}"
