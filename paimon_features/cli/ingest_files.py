"""``ingest files``: files and folders, each file once."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paimon_features.cli import INTERRUPTED
from paimon_features.cli._ingest_jobs import (
    COLUMNS,
    MAX_LINE_BYTES,
    SOURCE,
    STATUS,
    STOP,
    stop_or_show,
)
from paimon_features.cli._inputs import INPUT
from paimon_features.cli._options import CLUSTER, JSON, PROJECT, cluster_address
from paimon_features.cli._progress_line import ProgressLine
from paimon_features.cli._shared_options import changes_data, grouped
from paimon_features.core.configuration.input_settings import InputSettings
from paimon_features.core.errors import ConfigurationError
from paimon_features.core.process import light_imports
from paimon_features.project import Project

if TYPE_CHECKING:
    from paimon_features.ingest.file_ingestion import IngestResult


@dataclass(frozen=True, slots=True)
class FileOptions:
    """The options that say how files are read."""

    engine: str | None
    columns: tuple[str, ...]
    options: tuple[str, ...]
    max_line_bytes: int
    cluster: str | None

    def choose_engine(self, project: Project) -> str:
        """Return the engine: Flink for a cluster, else that of the project by default."""
        return self.engine or ("flink" if self.cluster is not None else project.config.engine)


@click.command()
@SOURCE
@click.argument("paths", metavar="FILE...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--engine",
    type=click.Choice(["flink", "local"]),
    help="Flink, or this process, which needs no Java; default: engine under [project], else "
    "flink.",
)
@COLUMNS
@click.option("--again", is_flag=True, help="Ingest files again that were ingested before.")
@click.option(
    "--mark-ingested",
    is_flag=True,
    help="Record files as ingested without reading them, to rebuild a lost ledger.",
)
@MAX_LINE_BYTES
@INPUT
@CLUSTER
@STOP
@STATUS
@changes_data("stop", "status")
@grouped(FileOptions, "reading")
@PROJECT
@JSON
def files(
    source: str,
    paths: tuple[Path, ...],
    reading: FileOptions,
    again: bool,
    mark_ingested: bool,
    stop: bool,
    status: bool,
    path: str,
    as_json: bool,
) -> None:
    """Ingest files into SOURCE, each once, all in one commit.

    FILES are CSV, Parquet or JSON-lines files (.csv .parquet .jsonl .ndjson, text also .gz), or
    folders of them. A row that is not a valid event (unreadable, wrong type, no time ...) is
    written to rejected_SOURCE with the reason; reasons are counted at the end.

    \b
    paimon-features ingest files retail events.parquet
    paimon-features ingest files retail events.parquet --engine local   # without Java
    paimon-features ingest files retail umsatz.csv --engine local --input "delimiter=;" \\
        --input decimal=,
    paimon-features ingest files retail exports/ --column invoice_time_ms=InvoiceDate
    paimon-features ingest files retail fixed.csv --again
    paimon-features ingest files retail exports/ --mark-ingested   # after the loss of the ledger

    --engine local reads other forms, too: CSV in any dialect (--input, or [inputs.SOURCE] of
    paimon-features.toml), JSON arrays, Avro, ORC, Arrow, and the folder of a Delta, Iceberg or
    Paimon table.

    Both engines accept the same rows and reject the others for the same reasons; either one
    finishes what the other began. --engine local is the faster one on one machine; clusters require
    Flink. 'paimon-features ingest --help' says how columns and times are read.

    An interrupted run has committed nothing, or is completed by the next one.
    """
    if reading.engine == "local" and (stop or status or reading.cluster):
        raise ConfigurationError(
            "--engine local ingests in this process; --cluster, --stop and --status concern "
            "Flink's jobs: leave out --engine local ('paimon-features check installation' shows "
            "whether Flink can run here)"
        )
    if stop_or_show(path, source, stop, status, as_json):
        return
    if not paths:
        raise ConfigurationError("name the files or folders to ingest")
    project = Project.open(path)
    if mark_ingested:
        if again:
            raise ConfigurationError("--mark-ingested takes nothing but the source and FILES")
        _mark(project, source, paths, as_json)
        return
    try:
        with ProgressLine(as_json, events=as_json) as line:
            result = _ingest(project, source, paths, reading, again, line)
    except KeyboardInterrupt:
        click.echo(
            "interrupted; repeat the same command: each row is ingested exactly once", err=True
        )
        sys.exit(INTERRUPTED)
    if as_json:
        click.echo(json.dumps(result.to_document(), indent=2))
    else:
        click.echo("\n".join(_summary(source, result)))


def _ingest(
    project: Project,
    source: str,
    paths: tuple[Path, ...],
    reading: FileOptions,
    again: bool,
    line: ProgressLine,
) -> IngestResult:
    engine = reading.choose_engine(project)
    if engine == "local":
        light_imports.enable()
    settings = InputSettings.of(source, project.config.inputs.get(source, {}))
    if reading.options:
        settings = settings.with_options(source, reading.options)
    if engine == "flink" and not settings.is_default:
        raise ConfigurationError(
            f"[inputs.{source}] {', '.join(sorted(settings.changed - {'columns'}))}: Flink reads "
            "files as they are; add --engine local, which reads them so"
        )
    from paimon_features.ingest.input_columns import parse_mapping
    from paimon_features.ingest.local.sampling import choose_partitions
    from paimon_features.project.engines import resolve_engine

    engine_settings: dict[str, Any] = (
        {"threads": None, "settings": settings}
        if engine == "local"
        else {
            "parallelism": project.config.flink.parallelism,
            "cluster": cluster_address(project.config.state_dir, reading.cluster),
            "choose_partitions": choose_partitions,
        }
    )
    return resolve_engine(engine).ingest_files(
        project.lake,
        project.definitions.source(source),
        paths,
        {**settings.columns, **parse_mapping(reading.columns)},
        state_dir=project.config.state_dir,
        again=again,
        progress=line,
        max_line_bytes=reading.max_line_bytes,
        **engine_settings,
    )


def _mark(project: Project, source: str, paths: tuple[Path, ...], as_json: bool) -> None:
    from paimon_features.ingest.file_ingestion import mark_ingested

    choice = mark_ingested(project.lake, project.definitions.source(source), paths)
    marked = [str(file.path) for file in choice.new]
    if as_json:
        skipped = {str(file.path): why for file, why in choice.skipped}
        click.echo(json.dumps({"marked": marked, "skipped": skipped}, indent=2))
        return
    for file, why in choice.skipped:
        click.echo(f"skipped {file.path}: {why}")
    files = "1 file is" if len(marked) == 1 else f"{len(marked)} files are"
    click.echo(f"{files} recorded as ingested into {source}; nothing was read")


def _summary(source: str, result: IngestResult) -> list[str]:
    lines = []
    if result.finished_run:
        lines.append(f"run {result.finished_run} had been interrupted and is now finished")
    if result.forgotten_files:
        files = ", ".join(result.forgotten_files)
        lines.append(f"an interrupted run had committed nothing of {files}: ingest that again")
    for path, why in result.skipped:
        lines.append(f"skipped {path}: {why} (--again ingests it again)")
    if result.released:
        lines.append(f"{result.released:,} held events released")
    if result.run_id is None:
        return [*lines, "nothing new to ingest"]
    if result.ignored_columns:
        lines.append(f"columns that {source} does not have: {', '.join(result.ignored_columns)}")
    if result.absent_columns:
        names = ", ".join(result.absent_columns)
        lines.append(f"keys missing from the first rows, read as null: {names}")
    bad = sum(result.rejected.values())
    rate = (result.accepted + bad) / max(result.elapsed_s, 1e-9)
    files = f"{len(result.files)} file{'s' if len(result.files) > 1 else ''}"
    lines.append(
        f"{result.accepted:,} events from {files} in {result.elapsed_s:.1f} s "
        f"({rate:,.0f} rows/s), events_{source} is at snapshot {result.events_snapshot or '-'}"
    )
    if bad:
        lines.append(f"{bad:,} row{'s are' if bad > 1 else ' is'} kept in rejected_{source}:")
    for reason, rows in result.rejected.items():
        lines.append(f"  {rows:>9,}  {reason:<18} e.g. {result.examples[reason]}")
    return lines
