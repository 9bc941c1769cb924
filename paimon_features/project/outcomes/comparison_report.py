"""A comparison as text for a terminal, and as a page with pictures."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from paimon_features.core.errors import RequestError
from paimon_features.core.process.output_files import check_output_file
from paimon_features.models import Metric
from paimon_features.project.monitoring.line_chart import line_chart
from paimon_features.project.outcomes.compare import LossComparison, VersionComparison
from paimon_features.project.outcomes.drift_by_day import DayDrift

SHOWN_DRIFT = 10


def comparison_lines(found: VersionComparison, drift: Sequence[DayDrift]) -> Iterator[str]:
    """Yield what a person reads first: the decision and its bounds, then metrics, days and
    drift."""
    first, second = (f"{found.model}@{number}" for number in (found.first, found.second))
    deciding = found.losses[0]
    confidence = f"{100 * (1 - found.alpha):g} %"
    if found.winner is None:
        yield f"{first} and {second}: undecided by {deciding.metric} at {confidence}"
    else:
        yield (
            f"{found.model}@{found.winner} is better by {deciding.metric} at {confidence}, "
            "whenever you look"
        )
    if found.design == "pairs":
        yield f"  {found.first_rows:,} pairs of predictions for the same requests (a shadow)"
    else:
        yield (
            f"  {found.first_rows:,} predictions of {first}, {found.second_rows:,} of {second} "
            "(split traffic)"
        )
    ratio = found.sample_ratio
    if ratio is not None:
        yield (
            f"  entities: {ratio.first:,} of {first}, {ratio.second:,} of {second}; the split "
            f"expects {ratio.share:.2%} for {second} (p = {ratio.p_value:.2g})"
        )
    if ratio is not None and ratio.is_mismatch:
        yield (
            "  SAMPLE RATIO MISMATCH: no winner is named, since the entities of the two versions "
            "are not those that the split assigned; look for requests or outcomes that are missing"
        )
    for count, reason in (
        (found.repeated, "of an entity whose outcome counts already"),
        (found.unpaired, "without a counterpart"),
        (found.outside, "not assigned by the split while both answered"),
    ):
        if count:
            yield f"  {count:,} do not count: {reason}"
    yield ""
    for loss in found.losses:
        yield _loss_line(loss, first, second)
    for number, score in found.auc.items():
        yield (f"  auc            {found.model}@{number}: {_interval(score)} (for one look)")
    if found.days:
        yield ""
        yield "  by day         version      rows  predicted  observed"
        for day in found.days:
            yield (
                f"  {day.day}  {day.version:>9}  {day.rows:>8,}  {day.predicted:9.4f}  "
                f"{day.observed:8.4f}"
            )
    notable = [
        day_drift
        for day_drift in drift
        if day_drift.p_value is not None and day_drift.p_value < 0.001
    ]
    if drift:
        yield ""
        yield (
            f"  drift against the first day: {len(notable)} of {len(drift)} columns and days with "
            "a p-value below 0.001"
        )
        strongest = sorted(notable, key=lambda each: -(each.psi or 0.0))
        for day_drift in strongest[:SHOWN_DRIFT]:
            yield (
                f"  {day_drift.day}  {day_drift.column}: PSI {day_drift.psi:.3f} (without a change "
                f"{day_drift.expected_psi:.2g})"
            )


def write_comparison(found: VersionComparison, drift: Sequence[DayDrift], path: Path) -> None:
    """Write a page with the text, the interval over time, and the calibration of both versions.

    Raises
    ------
    RequestError
        For another suffix than .html, a missing folder, or something else than a file there.
    """
    if path.suffix != ".html":
        raise RequestError(f"{path}: expected a file that ends with .html")
    check_output_file(path)
    title = html.escape(f"{found.model}: version {found.first} and {found.second}")
    text = html.escape("\n".join(comparison_lines(found, drift)))
    parts = [f"<h1>{title}</h1><pre>{text}</pre>"]
    for loss in found.losses:
        # intervals of the first rows are so wide that nothing else could be seen
        path_of = [point for point in loss.path if point[0] >= loss.path[-1][0] / 20]
        if path_of:
            parts += [
                f"<h2>{html.escape(loss.metric)}: how much worse version {found.first} is</h2>",
                line_chart(
                    [
                        ("highest", [(n, high) for n, _, high in path_of]),
                        ("lowest", [(n, low) for n, low, _ in path_of]),
                        ("equal", [(path_of[0][0], 0.0), (path_of[-1][0], 0.0)]),
                    ],
                    "rows",
                    "difference",
                ),
            ]
    for number, curve in found.calibration.items():
        points = [(bin_.predicted, bin_.observed) for bin_ in curve]
        parts += [
            f"<h2>Calibration of version {number}</h2>",
            line_chart(
                [("observed", points), ("ideal", [(0.0, 0.0), (1.0, 1.0)])], "predicted", "observed"
            ),
        ]
    for number in (found.first, found.second):
        version_days = [day for day in found.days if day.version == number]
        if len(version_days) > 1:
            at = [float(np.datetime64(day.day, "D").astype(np.int64)) for day in version_days]
            parts += [
                f"<h2>Version {number} by day</h2>",
                line_chart(
                    [
                        (
                            "predicted",
                            [(x, d.predicted) for x, d in zip(at, version_days, strict=True)],
                        ),
                        (
                            "observed",
                            [(x, d.observed) for x, d in zip(at, version_days, strict=True)],
                        ),
                    ],
                    "days since 1970",
                    "mean",
                ),
            ]
    style = "body{font:15px system-ui,sans-serif;margin:2em;max-width:60em}"
    path.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{style}</style><body>{''.join(parts)}</body></html>\n",
        "utf-8",
    )


def _loss_line(loss: LossComparison, first: str, second: str) -> str:
    bounds = "unknown yet"
    if loss.low is not None and loss.high is not None:
        bounds = f"{loss.low:+.4g} to {loss.high:+.4g}"
    text = (
        f"  {loss.metric:<14} {first}: {loss.first:.5g}, {second}: {loss.second:.5g}; "
        f"difference {loss.difference:+.4g}, in {bounds} ({loss.method})"
    )
    if loss.lift is not None:
        text += f", lift {100 * loss.lift:+.2f} %"
    if loss.decided_after is not None:
        text += f"; excluded zero first after {loss.decided_after:,} rows"
    return text


def _interval(score: Metric) -> str:
    return f"{score.value:.4f} (95 %: {score.low:.4f} to {score.high:.4f}, {score.method})"
