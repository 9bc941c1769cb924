"""Options that many commands share."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paimon_features.cli._human_times import human_time_ms
from paimon_features.cli._shared_options import JSON, PROJECT
from paimon_features.core.errors import ConfigurationError, RequestError
from paimon_features.core.process import verbosity
from paimon_features.core.process.output_files import check_output_folder
from paimon_features.core.times.clock import now_ms

if TYPE_CHECKING:
    from paimon_features.lake.metadata.snapshots import SnapshotRef
    from paimon_features.offline.reading.pinning import AsOf, Pin


__all__ = [
    "AS_OF",
    "CLUSTER",
    "ENGINE",
    "JSON",
    "LOCAL_CLUSTER",
    "MEMORY",
    "POLL",
    "PROJECT",
    "ROWS",
    "SPILL",
    "OutputFile",
    "check_engine",
    "check_options",
    "cluster_address",
    "message_printer",
    "moment_ms",
    "pins",
    "show_sources",
    "time_ms",
    "time_text",
]


class OutputFile(click.Path):
    """A file to write: its folder must exist before the command computes what goes into it."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        try:
            check_output_folder(path)
        except RequestError as error:
            self.fail(str(error), param, ctx)
        return path


ROWS = click.option(
    "--rows",
    help="Entity rows: a Parquet or CSV file, a folder of Parquet files or a pattern with *; or a "
    "table of the lake, table@snapshot for an older snapshot of it. They contain the "
    "keys, event_time_ms, and any other columns. For a service with request= they are events of "
    "its source, by default all in the lake.",
)
AS_OF = click.option(
    "--as-of",
    multiple=True,
    help="Read only data committed by this time: UTC milliseconds, 2011-12-09T12:50:00, or "
    "'2 days ago'. Or exactly these snapshots: table@number or table@number@commit, once per "
    "table. Or the sources of a training set: training_NAME.",
)
MEMORY = click.option(
    "--memory-mb", type=float, help="Approximate memory limit in MiB; default: 1024."
)
SPILL = click.option(
    "--spill-folder",
    type=click.Path(exists=True, file_okay=False),
    help="Folder to spill to when memory is exceeded; default: the system's temporary folder.",
)
POLL = click.option(
    "--poll-ms",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    help="Poll interval when there is nothing new.",
)

LOCAL_CLUSTER = "local"
"""The value of ``--cluster`` without an address: the project's own cluster."""
CLUSTER = click.option(
    "--cluster",
    is_flag=False,
    flag_value=LOCAL_CLUSTER,
    metavar="[HOST:PORT,...]",
    help="Run on the session cluster with this REST address (of several job managers: with any of "
    "these); without a value: on the local one of 'paimon-features cluster start'.",
)


def cluster_address(state_dir: Path, cluster: str | None) -> str | None:
    """Return the host:port of ``--cluster``; without an address, that of the project's cluster.

    Raises
    ------
    ConfigurationError
        If the project's own cluster is meant and does not run.
    """
    if cluster is None:
        return None
    from paimon_features.flink import cluster as clusters

    return clusters.cluster_address(state_dir, cluster)


ENGINE = click.option(
    "--engine",
    type=click.Choice(["local", "flink"]),
    default="local",
    show_default=True,
    help="Join in this process, or by Flink batch jobs.",
)


def check_options(accepted: Collection[str], subject: str) -> None:
    """Raise UsageError for a parameter on the command line that ``subject`` does not accept."""
    context = click.get_current_context()
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if source == click.core.ParameterSource.COMMANDLINE and parameter.name not in accepted:
            raise click.UsageError(
                f"{parameter.get_error_hint(context)} does not apply to {subject}"
            )


def check_engine(engine: str, cluster: str | None) -> None:
    """Raise UsageError for a cluster without Flink."""
    if engine != "flink" and cluster is not None:
        raise click.UsageError("--cluster goes with --engine flink")


def message_printer(quiet: bool) -> Callable[[str], None]:
    """Return a callback that prints each line to stderr, or nothing if ``quiet``."""
    return (
        (lambda _: None)
        if quiet or verbosity.quiet()
        else (lambda line: click.echo(line, err=True))
    )


def pins(texts: tuple[str, ...]) -> AsOf | str:
    """Parse ``--as-of``: nothing, a time, snapshots by table, or a training set's name.

    >>> pins(()), pins(("1323434999000",)), pins(("tiles_spend_g1@12", "events_retail@30"))
    (None, 1323434999000, {'tiles_spend_g1': 12, 'events_retail': 30})
    >>> pins(("tiles_spend_g1@12@5b1c22d09a7e4f10",))
    {'tiles_spend_g1': '12@5b1c22d09a7e4f10'}

    Raises
    ------
    ConfigurationError
        For any other text, or several texts that are not snapshots.
    """
    if not texts:
        return None
    named: dict[str, SnapshotRef | None] = {}
    for text in texts:
        table, at, ref = text.partition("@")
        if not at and len(texts) == 1:
            name = text.removeprefix("training_")
            return time_ms(text) if name == text else name
        number, commit_follows, _ = ref.partition("@")
        if not (table and number.isdecimal()):
            raise ConfigurationError(
                f"--as-of {text!r}: expected one time, or table@snapshot for each table"
            )
        named[table] = ref if commit_follows else int(number)
    return named


def show_sources(sources: Iterable[Pin], commits: Mapping[str, int]) -> None:
    """Print the snapshots that were read, and the commits that they do not contain."""
    for source in sources:
        click.echo(f"  from {source.describe()}")
    for view, count in commits.items():
        if count:
            commits_of = "1 commit" if count == 1 else f"{count:,} commits"
            click.echo(
                f"  not included: {commits_of} of events of {view}, which its tile job has not "
                f"read; 'paimon-features submit {view} --bounded' reads them, 'paimon-features "
                f"backfill {view} --rebuild' computes all tiles again"
            )


def time_ms(text: str) -> int:
    """Parse UTC milliseconds, an ISO 8601 time (UTC unless it has an offset), or ``2 days ago``.

    >>> time_ms("1323434999000"), time_ms("2011-12-09T12:49:59"), time_ms("2011-12-09T13:50+01:00")
    (1323434999000, 1323434999000, 1323435000000)

    Raises
    ------
    ConfigurationError
        For anything else, and for a number below 1e11: more likely a year, or seconds.
    """
    return human_time_ms(text, now_ms())


def moment_ms(text: str, clock_ms: int) -> int:
    """Parse a time, or a duration before ``clock_ms`` such as ``2h``; raises as ``time_ms``.

    >>> moment_ms("1s", 5_000), moment_ms("1323434999000", 0)
    (4000, 1323434999000)
    """
    from paimon_features.core.errors import DefinitionError
    from paimon_features.core.windows import parse_duration

    try:
        return clock_ms - parse_duration(text)
    except DefinitionError:
        return time_ms(text)


def time_text(moment_ms: int) -> str:
    """Format a time to the second, with its time zone, clamped to the years 1 to 9999.

    >>> time_text(1323434999000)
    '2011-12-09 12:49:59 UTC'
    """
    import datetime as dt

    from paimon_features.core.windows import MAX_TIME_MS, MIN_TIME_MS

    inside = min(max(moment_ms, MIN_TIME_MS), MAX_TIME_MS)
    moment = dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=inside)
    return moment.isoformat(sep=" ", timespec="seconds") + " UTC"
