"""``paimon-features init``: a project folder with a worked example."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paimon_features.cli._inputs import INPUT
from paimon_features.cli._options import JSON, time_text
from paimon_features.errors import ConfigurationError
from paimon_features.input_settings import InputSettings

if TYPE_CHECKING:
    from paimon_features.local.inputs.profiles import InputProfile
    from paimon_features.local.inputs.proposal import Proposal

FILES = ("paimon-features.toml", "features.py")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=".")
@click.option(
    "--from",
    "origin",
    metavar="FILE|TABLE|kafka://BROKER/TOPIC",
    help="Propose definitions from the events in a file, a table or a topic.",
)
@click.option("--event-time", metavar="COLUMN", help="With --from: the column with the time.")
@click.option(
    "--entity",
    "entity",
    multiple=True,
    metavar="COLUMN",
    help="With --from: the column that identifies what features are about; repeat for several.",
)
@click.option(
    "--sample-rows",
    type=click.IntRange(min=1),
    default=200_000,
    show_default=True,
    help="With --from: rows to read at most.",
)
@INPUT
@JSON
def init(
    folder: Path,
    origin: str | None,
    event_time: str | None,
    entity: tuple[str, ...],
    sample_rows: int,
    options: tuple[str, ...],
    as_json: bool,
) -> None:
    """Create a project in FOLDER (default: the current one), from your data or with an example.

    Writes paimon-features.toml, the settings, and features.py, the definitions. Existing files
    are never overwritten.

    \b
    paimon-features init shop --from events.csv      # from your data
    paimon-features init shop --from events.parquet --entity customer_id
    paimon-features init shop --from export.txt --input time_zone=Europe/Berlin
    paimon-features init shop --from kafka://broker:9092/clicks
    paimon-features init churn                       # a worked example

    --from reads the first rows of a file (CSV in any dialect, JSON, Parquet, Avro, ORC, Arrow;
    text also compressed), of the folder of a Delta, Iceberg or Paimon table, or of a topic. It
    finds the columns' types, the event time and its unit, columns that can be entity keys, and
    proposes a view with windows that suit the span of the data. What it saw, left out or could
    have decided otherwise is printed, and is in comments of features.py.
    """
    if origin is None:
        if event_time or entity or options:
            raise click.UsageError("--event-time, --entity and --input go with --from")
        write_project(folder)
        if as_json:
            click.echo(json.dumps({"files": [str(folder / name) for name in FILES]}))
            return
        for name in FILES:
            click.echo(f"wrote {folder / name}")
        click.echo(
            f"next: {_enter(folder)}paimon-features plan  "
            "(then apply, ingest, backfill, materialize, lookup)"
        )
        return
    _check_absent(folder)
    with tempfile.TemporaryDirectory() as scratch:
        path, kafka = _fetched(origin, Path(scratch), sample_rows)
        _write_from(path, kafka, folder, event_time, entity, sample_rows, options, as_json)


def _enter(folder: Path) -> str:
    return "" if folder.resolve() == Path.cwd() else f"cd {folder} && "


def _fetched(origin: str, scratch: Path, rows: int) -> tuple[Path, tuple[str, str] | None]:
    """The file or table to look at; of a topic a file of messages, with brokers and topic."""
    if not origin.startswith("kafka://"):
        return Path(origin), None
    brokers, slash, topic = origin.removeprefix("kafka://").partition("/")
    if not (slash and brokers and topic) or "/" in topic:
        raise ConfigurationError(f"--from {origin}: expected kafka://HOST:PORT/TOPIC")
    from paimon_features.publishing.topic_sample import sample_topic

    path = scratch / f"{topic}.jsonl"
    with path.open("wb") as file:
        for message in sample_topic(brokers, topic, min(rows, 10_000)):
            file.write(message.replace(b"\n", b" ") + b"\n")
    return path, (brokers, topic)


def _write_from(
    path: Path,
    kafka: tuple[str, str] | None,
    folder: Path,
    event_time: str | None,
    entity: tuple[str, ...],
    sample_rows: int,
    options: tuple[str, ...],
    as_json: bool,
) -> None:
    from paimon_features.definitions import load_definitions
    from paimon_features.local.inputs.profiles import profile_input
    from paimon_features.local.inputs.proposal import definitions_text, inputs_text, propose

    source = project_name(path.name.split(".")[0])
    given = InputSettings().with_options(source, options)
    kept = {text.partition("=")[0] for text in options}
    profile = profile_input(path, given, kept, event_time=event_time, sample_rows=sample_rows)
    proposal = propose(profile, source, entity)
    text = definitions_text(profile, proposal)
    engine = "" if kafka else (
        'engine = "local"              # in this process, without Java; "flink": jobs on Flink\n'
    )  # fmt: skip
    extra = inputs_text(profile, source)
    if kafka:
        extra += f'\n[kafka]\nbrokers = "{kafka[0]}"\n'
    with tempfile.TemporaryDirectory() as scratch:
        # what would not load is not written
        trial = Path(scratch, "features.py")
        trial.write_text(text, "utf-8")
        load_definitions(trial)
    write_project(folder, definitions=text, engine=engine, extra=extra)
    if as_json:
        click.echo(json.dumps(_document(profile, proposal, folder), indent=2, default=str))
    else:
        _report(profile, proposal, folder, path, kafka)


def _document(profile: InputProfile, proposal: Proposal, folder: Path) -> dict[str, Any]:
    return {
        "files": [str(folder / name) for name in FILES],
        "form": profile.form,
        "rows_read": profile.rows,
        "complete": profile.complete,
        "rows": profile.total,
        "unreadable": profile.unreadable,
        "settings": profile.settings.to_document(),
        "event_time": profile.event_time.field,
        "first_ms": profile.first_ms,
        "last_ms": profile.last_ms,
        "source": proposal.source,
        "entity": [key.field for key in proposal.keys],
        "other_keys": [key.field for key in proposal.others],
        "view": proposal.view,
        "windows": proposal.windows,
        "columns": [{**asdict(c), "type": None if c.type is None else c.type.text}
                    for c in profile.columns],
        "notes": profile.notes,
    }  # fmt: skip


def _report(
    profile: InputProfile,
    proposal: Proposal,
    folder: Path,
    path: Path,
    kafka: tuple[str, str] | None,
) -> None:
    import sys

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 10_000)
    of = "all" if profile.complete else "the first"
    total = f" of {profile.total:,}" if profile.total and not profile.complete else ""
    console.print(
        f"read {of} {profile.rows:,}{total} rows of {escape(path.name)} ({profile.form})"
        + ("" if profile.complete else "; --sample-rows reads more")
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("column", "type", "role", "different", "empty", "example", "note"):
        table.add_column(head, justify="right" if head in ("different", "empty") else "left")
    for c in profile.columns:
        table.add_row(
            escape(c.field), "-" if c.type is None else repr(c.type), c.role, f"{c.distinct:,}",
            f"{100 * c.nulls / profile.rows:.0f} %", escape(repr(c.example)[1:-1][:24]),
            escape("; ".join(c.notes)),
        )  # fmt: skip
    console.print(table)
    if profile.unreadable:
        console.print(f"note: {profile.unreadable:,} rows have another number of fields")
    for note in profile.notes:
        console.print(f"note: {escape(note)}")
    if profile.first_ms is not None and profile.last_ms is not None:
        console.print(
            f"event time: {escape(profile.event_time.field)}, {time_text(profile.first_ms)} to "
            f"{time_text(profile.last_ms)}"
        )
    keys = ", ".join(key.field for key in proposal.keys)
    if keys:
        others = ", ".join(c.field for c in proposal.others)
        console.print(
            f"entity: {escape(keys)}"
            + (f"; could be: {escape(others)} (--entity)" if others else "")
        )
    else:
        console.print("entity: everything, as no column repeats like a key (--entity COLUMN)")
    for name in FILES:
        console.print(f"wrote {folder / name}")
    given = path if path.is_absolute() or folder.resolve() == Path.cwd() else path.resolve()
    if kafka is None:
        console.print(
            f"next: {_enter(folder)}paimon-features try features.py {given}", soft_wrap=True
        )
    else:
        console.print(
            f"next: {_enter(folder)}paimon-features apply && paimon-features ingest "
            f"{proposal.source} --topic {kafka[1]}",
            soft_wrap=True,
        )


def _check_absent(folder: Path) -> None:
    present = [name for name in FILES if (folder / name).exists()]
    if present:
        raise ConfigurationError(
            f"{folder} already contains {' and '.join(present)}; nothing was written. "
            "Name another folder, or move the files away"
        )


def write_project(
    folder: Path, *, definitions: str | None = None, engine: str = "", extra: str = ""
) -> None:
    """Write the files of a new project into ``folder``, which is created if it is missing.

    ``definitions`` is the text of features.py, by default the example; ``engine`` and ``extra``
    are lines of the settings.

    Raises
    ------
    ConfigurationError
        If one of the files already exists; then nothing is written.
    """
    _check_absent(folder)
    folder.mkdir(parents=True, exist_ok=True)
    templates = resources.files("paimon_features.cli").joinpath("templates")
    for name in FILES:
        text = templates.joinpath(name).read_text("utf-8")
        if name == "features.py":
            text = text if definitions is None else definitions
        else:
            text = text.replace("@NAME@", project_name(folder.resolve().name))
            text = text.replace("\n\n[lake]", f"\n{engine}\n[lake]") + extra
        # "x": whoever made the file since we looked keeps it
        with (folder / name).open("x", encoding="utf-8") as file:
            file.write(text)


def project_name(folder_name: str) -> str:
    """Derive a project name from a folder's name.

    >>> project_name("Churn-2011"), project_name("2nd try"), project_name("")
    ('churn_2011', 'project_2nd_try', 'project')
    """
    name = re.sub(r"[^a-z0-9]+", "_", folder_name.lower()).strip("_")
    return name if name[:1].isalpha() else f"project_{name}".rstrip("_")
