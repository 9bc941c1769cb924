"""``monitor``: profiles of columns and features in a time range, and their drift."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from paimon_features.cli._names import ANY_NAME
from paimon_features.cli._options import JSON, PROJECT, OutputFile, time_ms
from paimon_features.cli._progress import steps
from paimon_features.cli._shared_options import grouped
from paimon_features.cli._tables import new_console, new_table
from paimon_features.core.errors import ConfigurationError, UnknownNameError
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import CompiledView
from paimon_features.project import Project
from paimon_features.project.monitoring.drift import Drift
from paimon_features.project.monitoring.feature_values import newest_event_ms
from paimon_features.project.monitoring.monitored_columns import of_columns, of_features, of_table
from paimon_features.project.monitoring.monitoring_report import (
    SHARES,
    AlarmLimits,
    ColumnReport,
    ColumnStatus,
    MonitoringReport,
    Summary,
)
from paimon_features.project.monitoring.report_files import FORMATS, described, write_report
from paimon_features.project.monitoring.time_ranges import TimeRange

Ranges = tuple[TimeRange, TimeRange | None]

_HEADS = [
    "column", "rows", "null", "mean", "deviation", "min",
    *(f"p{share * 100:g}" for share in SHARES),
    "max", "PSI", "by chance", "p", "KS",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class AlarmOptions:
    """Options that decide when an alarm is raised."""

    fail_over: float | None
    false_alarms: float
    min_count: int

    @property
    def limits(self) -> AlarmLimits | None:
        """The limits; None without ``--fail-over``."""
        if self.fail_over is None:
            return None
        return AlarmLimits(self.fail_over, self.false_alarms, self.min_count)


@click.command()
@click.argument("name", shell_complete=ANY_NAME)
@click.option("--columns", help="Columns of the source, derived ones, or of a table: a,b.")
@click.option("--features", help="Features of the view: a,b.")
@click.option("--range", "within", metavar="A..B", help="Event times from A (inclusive) to B.")
@click.option("--against", metavar="C..D", help="The range to compare with, or 'nothing'.")
@click.option("--rows", help="With --features: at these entity rows, a file or table.")
@click.option(
    "--from",
    "origin",
    type=click.Choice(["tiles", "events"]),
    help="With --columns: read merged tiles or every event; by default tiles with bins.",
)
@click.option(
    "--out",
    type=OutputFile(),
    help=f"Also write the report to a file: {', '.join(FORMATS)} (HTML, image, Prometheus gauges).",
)
@click.option(
    "--fail-over",
    type=click.FloatRange(min=0),
    metavar="PSI",
    help="Exit with 1 if a column's PSI exceeds this and is statistically significant; 0.1 is "
    "moderate, 0.25 large.",
)
@click.option(
    "--false-alarms",
    type=click.FloatRange(min=0, max=1, min_open=True),
    metavar="RATE",
    default=0.01,
    show_default=True,
    help="With --fail-over: the highest accepted probability of a false alarm, over all columns "
    "together.",
)
@click.option(
    "--min-count",
    type=click.IntRange(min=1),
    metavar="ROWS",
    default=100,
    show_default=True,
    help="With --fail-over: a column with fewer rows in a range raises no alarm.",
)
@grouped(AlarmOptions, "alarms")
@PROJECT
@JSON
def monitor(
    name: str,
    columns: str | None,
    features: str | None,
    within: str | None,
    against: str | None,
    rows: str | None,
    origin: Any,
    out: Path | None,
    alarms: AlarmOptions,
    path: str,
    as_json: bool,
) -> None:
    """Profile NAME's columns (count, nulls, mean, deviation, range, quantiles) and their drift.

    NAME is a feature view or a table of the lake with event_time_ms (a training set). For a view,
    --columns are columns of its events, read from its tiles if these have bins (statistics_view);
    --features are read for all known entities at the end of each range. Without either: all
    columns of a statistics view, otherwise all features that are numbers or strings.

    \b
    paimon-features monitor retail_statistics
    paimon-features monitor retail_statistics --range 2011-12-01..2011-12-08 \\
        --against 2011-11-01..2011-12-01 --out report.html
    paimon-features monitor customer_spend --features sum_amount_30d --range ..2011-12-01
    paimon-features monitor training_churn --columns sum_amount_30d,count_7d
    paimon-features monitor retail_statistics --json --fail-over 0.2   # for cron

    Times are UTC milliseconds or 2011-12-01T00:00:00; an omitted end is open. By default the
    newest 7 days are compared with the 28 days before them; with only --range, against everything
    before it.

    With few rows or many columns a PSI can be large by chance. With --fail-over, an alarm therefore
    requires a PSI above the threshold with a p-value, corrected for the number of columns, of at
    most --false-alarms. Columns with fewer than --min-count rows in a range are reported and pass.

    Exit codes: 0 success, 1 a column exceeds --fail-over (or its PSI is unknown), 2 usage error.
    """
    if columns is not None and features is not None:
        raise click.UsageError("pass --columns or --features, not both")
    if origin is not None and columns is None and features is not None:
        raise click.UsageError("--from requires --columns")
    if out is not None and out.suffix not in FORMATS:
        raise click.UsageError(f"--out {out}: expected a file that ends with {', '.join(FORMATS)}")
    if alarms.fail_over is not None and against == "nothing":
        raise click.UsageError("--fail-over needs something to compare with")
    project = Project.open(path)
    with steps("reading rows", as_json) as progress:
        if name in project.definitions.views:
            report = _of_view(
                project, name, columns, features, rows, (within, against), origin, progress
            )
        else:
            report = _of_table(project, name, columns, (within, against), progress)
    table = [_HEADS, *(line for column in report.columns for line in _lines(column))]
    if out is not None:
        write_report(report, out, table)
    limits = alarms.limits
    verdicts = [] if limits is None else report.verdicts(limits)
    failed = [verdict.message for verdict in verdicts if verdict.is_alarm]
    if as_json:
        document = {
            **report.to_document(),
            "limits": None if limits is None else asdict(limits),
            "verdicts": [asdict(verdict) for verdict in verdicts],
            "failed": failed,
        }
        click.echo(json.dumps(document, indent=2))
    else:
        _print(report, table, out)
        for verdict in verdicts:
            if verdict.status != ColumnStatus.NO_DRIFT:
                click.echo(
                    f"{_heading(verdict.status, alarms.fail_over)}: {verdict.message}", err=True
                )
    if failed:
        raise SystemExit(1)


def _heading(status: ColumnStatus, fail_over: float | None) -> str:
    if status == ColumnStatus.TOO_FEW_ROWS:
        return "not checked"
    return "no alarm" if status == ColumnStatus.CHANCE else f"over {fail_over:g}"


def _of_view(
    project: Project,
    name: str,
    columns: str | None,
    features: str | None,
    rows: str | None,
    texts: tuple[str | None, str | None],
    origin: Any,
    progress: Any,
) -> MonitoringReport:
    reader = project.view_reader(name)
    view = reader.view
    if features is None and columns is None and not view.keys:
        chosen = _kept(view)
    elif features is not None or columns is None:
        ranges = _ranges(texts, lambda: newest_event_ms(project.lake, reader.tiles))
        picked = _names(features) if features else _plain_features(view)
        return of_features(
            project.lake, project.offline, view, reader.tiles, picked, ranges, rows, progress
        )
    else:
        chosen = _names(columns)
    if rows is not None:
        raise click.UsageError("--rows requires --features")
    ranges = _ranges(texts, lambda: newest_event_ms(project.lake, reader.tiles))
    return of_columns(reader, chosen, ranges, origin, progress)


def _of_table(
    project: Project,
    name: str,
    columns: str | None,
    texts: tuple[str | None, str | None],
    progress: Any,
) -> MonitoringReport:
    if not project.lake.exists(name):
        names = [*project.definitions.views, *project.lake.list()]
        raise UnknownNameError.of("feature view or table", name, names)
    if texts[0] is None:
        raise click.UsageError(f"--range is needed for a table such as {name}")
    schema = project.lake.schema(name)
    chosen = _names(columns) if columns else [
        field.name for field in schema
        if field.name != "event_time_ms" and not hasattr(field.type, "value_type")
    ]  # fmt: skip
    return of_table(project.lake, name, chosen, _ranges(texts, lambda: 0), progress)


def _kept(view: CompiledView) -> list[str]:
    """Return the columns that a view keeps aggregates of."""
    columns = [f.aggregate.column for f in view.features if f.aggregate.column is not None]
    return list(dict.fromkeys(columns))


def _plain_features(view: CompiledView) -> list[str]:
    """Return the features that are numbers, texts or truth values."""
    return [f.name for f in view.features if f.type.is_numeric or f.type.text in ("string", "bool")]


def _ranges(texts: tuple[str | None, str | None], newest: Any) -> Ranges:
    """Return the two ranges; by default the newest 7 days, and the 28 days before them."""
    within, against = texts
    if within is None:
        end = newest() + 1
        current = TimeRange(end - 7 * DAY_MS, end)
    else:
        current = _range("--range", within)
    if against == "nothing":
        return current, None
    if against is not None:
        return current, _range("--against", against)
    if current.since_ms is None:
        return current, None
    if within is None:
        return current, TimeRange(current.since_ms - 28 * DAY_MS, current.since_ms)
    return current, TimeRange(None, current.since_ms)


def _range(option: str, text: str) -> TimeRange:
    since, dots, until = text.partition("..")
    if not dots:
        raise ConfigurationError(f"{option} {text}: expected A..B, or A.. or ..B")
    return TimeRange(time_ms(since) if since else None, time_ms(until) if until else None)


def _names(text: str | None) -> list[str]:
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise ConfigurationError(f"{text!r}: expected names, each once, with commas between them")
    return names


def _lines(column: ColumnReport) -> list[list[str]]:
    """Return the rows of the table for one column: the range, and below it the reference."""
    lines = [_line(column.column, Summary.of(column.current), _measures(column.drift))]
    if column.reference is not None:
        lines.append(_line("  reference", Summary.of(column.reference), _measures(None)))
    return lines


def _measures(drift: Drift | None) -> list[str]:
    """Return the cells PSI, by chance, p, KS."""
    if drift is None:
        return [""] * 4
    ks = "" if drift.ks is None else f"{drift.ks:.4f}"
    if drift.psi is None:
        return ["?", "", "", ks]
    return [f"{drift.psi:.4f}", f"{drift.expected_psi:.2g}", f"{drift.psi_p_value:.2g}", ks]


def _line(name: str, found: Summary, measures: Sequence[str]) -> list[str]:
    deviation = "ILL_CONDITIONED" if found.status != "OK" else _number(found.deviation)
    quantiles = found.quantiles or (None,) * len(SHARES)
    null = "" if found.null_share is None else f"{found.null_share:.2%}"
    return [
        name, f"{found.rows:,}", null, _number(found.mean), deviation, _number(found.low),
        *map(_number, quantiles), _number(found.high), *measures,
    ]  # fmt: skip


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:.3e}"


def _print(report: MonitoringReport, table: Sequence[Sequence[str]], out: Path | None) -> None:
    console = new_console()
    shown = new_table()
    for head in table[0]:
        shown.add_column(head, justify="left" if head == "column" else "right", no_wrap=True)
    for row in table[1:]:
        shown.add_row(*row, style="dim" if row[0].startswith(" ") else None)
    console.print(f"{report.name}, {described(report)}", soft_wrap=True)
    console.print(shown)
    for column in report.columns:
        if column.drift is not None:
            console.print(str(column.drift), soft_wrap=True)
    if out is not None:
        console.print(f"written to {out}", soft_wrap=True)
