"""``paimon-features init``: a project folder with a worked example."""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paimon_features.cli._inputs import INPUT
from paimon_features.cli._options import JSON, check_options, time_text
from paimon_features.cli._tables import new_table
from paimon_features.core.configuration.input_settings import InputSettings
from paimon_features.core.configuration.kafka_settings import check_brokers
from paimon_features.core.documents.generated_text import check_definitions, toml_value
from paimon_features.core.errors import ConfigurationError
from paimon_features.core.suggestions import did_you_mean

if TYPE_CHECKING:
    from paimon_features.ingest.inputs.profiles import InputProfile
    from paimon_features.project.first_steps.proposal import Proposal

FILES = ("paimon-features.toml", "features.py")
_KAFKA_FILES = ("tls_ca", "tls_cert", "tls_key", "password_file")
_KAFKA_TEXTS = (*_KAFKA_FILES, "user", "mechanism")


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
@click.option(
    "--kafka",
    "kafka_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="With --from kafka://: how to reach the brokers, as under [kafka]: tls, tls_ca, tls_cert, "
    "tls_key, user, mechanism, password_file; repeatable. The password: "
    "PAIMON_FEATURES_KAFKA_PASSWORD.",
)
@INPUT
@click.option(
    "--from-feast",
    "feast",
    type=click.Path(exists=True, path_type=Path),
    metavar="REPOSITORY",
    help="Convert the definitions of a Feast repository, a folder or one file, which is executed.",
)
@JSON
def init(
    folder: Path,
    origin: str | None,
    event_time: str | None,
    entity: tuple[str, ...],
    sample_rows: int,
    kafka_options: tuple[str, ...],
    options: tuple[str, ...],
    feast: Path | None,
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
    paimon-features init shop --from kafka://broker:9093/clicks --kafka tls=true --kafka user=me
    paimon-features init shop --from-feast feature_repo
    paimon-features init churn                       # a worked example

    --from reads the first rows of a file (CSV in any dialect, JSON, Parquet, Avro, ORC, Arrow;
    text also compressed), of the folder of a Delta, Iceberg or Paimon table, or the newest
    messages of a topic (JSON objects, at most 10,000 and 64 MiB). It
    finds the columns' types, the event time and its unit, columns that can be entity keys, and
    proposes a view with windows that suit the span of the data. What it saw, left out or could
    have decided otherwise is printed, and is in comments of features.py.

    --from-feast converts entities, FeatureViews with file, push or stream sources, aggregations and
    FeatureServices, and lists what has no counterpart with the reason. Feast need not be installed.
    A FeatureView without aggregations becomes a TableView: the newest row at each time, within its
    ttl. One with aggregations becomes a FeatureView.
    """
    if feast is not None:
        check_options({"folder", "feast"}, "--from-feast")
        _write_from_feast(feast, folder, as_json)
        return
    if origin is None:
        if event_time or entity or options or kafka_options:
            raise click.UsageError("--event-time, --entity, --input and --kafka go with --from")
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
    if not origin.startswith("kafka://"):
        if kafka_options:
            raise click.UsageError("--kafka goes with --from kafka://BROKER/TOPIC")
        path = Path(origin)
        _write_from(path, None, folder, event_time, entity, sample_rows, options, as_json)
        return
    kafka = _topic(origin, kafka_options)
    with tempfile.TemporaryDirectory() as scratch:
        path = _fetched(kafka, Path(scratch), sample_rows)
        try:
            _write_from(path, kafka, folder, event_time, entity, sample_rows, options, as_json)
        except ConfigurationError as error:
            # the copy is ours: what the user knows is the topic
            raise ConfigurationError(str(error).replace(str(path), origin)) from None


@dataclass(frozen=True, slots=True)
class _Topic:
    """A topic to look at; ``settings`` are the entries of ``[kafka]`` for its brokers."""

    name: str
    settings: Mapping[str, Any]


def _enter(folder: Path) -> str:
    return "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "


def _topic(origin: str, options: tuple[str, ...]) -> _Topic:
    brokers, slash, topic = origin.removeprefix("kafka://").partition("/")
    if not (slash and brokers and topic) or "/" in topic:
        raise ConfigurationError(f"--from {origin}: expected kafka://HOST:PORT/TOPIC")
    check_brokers("--from", brokers)
    settings: dict[str, Any] = {"brokers": brokers}
    names = {"tls": bool, **dict.fromkeys(_KAFKA_TEXTS, str)}
    for option in options:
        name, equals, value = option.partition("=")
        if name not in names or not equals:
            raise ConfigurationError(
                f"--kafka {name}: expected NAME=VALUE with one of the names: {', '.join(names)}"
                f"{did_you_mean(name, names)}"
            )
        if name == "tls" and value not in ("true", "false"):
            raise ConfigurationError(f"--kafka {option}: expected tls=true or tls=false")
        settings[name] = value == "true" if name == "tls" else value
        if name in _KAFKA_FILES:  # relative to here, while settings are relative to the project
            settings[name] = str(Path(value).resolve())
    return _Topic(topic, settings)


def _fetched(kafka: _Topic, scratch: Path, rows: int) -> Path:
    """Return a file of messages of the topic."""
    from paimon_features.core.configuration.kafka_settings import KafkaSettings
    from paimon_features.project.first_steps.topic_sample import sample_topic

    settings = KafkaSettings.of(kafka.settings, Path.cwd())
    brokers = kafka.settings["brokers"]
    sample = sample_topic(settings, brokers, kafka.name, min(rows, 10_000))
    flaws = ((sample.unreadable, "are not JSON objects"), (sample.empty, "have no value"))
    for count, flaw in flaws:
        if count:
            click.echo(f"note: {count:,} messages {flaw}; ingest rejects such messages", err=True)
    path = scratch / f"{kafka.name}.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in sample.lines))
    return path


def _write_from(
    path: Path,
    kafka: _Topic | None,
    folder: Path,
    event_time: str | None,
    entity: tuple[str, ...],
    sample_rows: int,
    options: tuple[str, ...],
    as_json: bool,
) -> None:
    from paimon_features.ingest.inputs.profiles import profile_parts
    from paimon_features.ingest.inputs.reading_process import read_apart
    from paimon_features.project.first_steps.proposal import definitions_text, inputs_text, propose

    source = project_name(path.name.split(".")[0])
    given = InputSettings().with_options(source, options)
    kept = {text.partition("=")[0] for text in options}
    [profile] = read_apart(path, profile_parts, path, given, kept, event_time, sample_rows)
    proposal = propose(profile, source, entity)
    text = definitions_text(profile, proposal)
    engine = "" if kafka else (
        'engine = "local"              # in this process, without Java; "flink": jobs on Flink\n'
    )  # fmt: skip
    if kafka:
        extra = "\n[kafka]\n"
        extra += "".join(f"{k} = {toml_value(v)}\n" for k, v in kafka.settings.items())
    else:
        extra = inputs_text(profile, source)
    _check_loads(text)
    write_project(folder, definitions=text, engine=engine, extra=extra)
    if as_json:
        click.echo(json.dumps(_document(profile, proposal, folder), indent=2, default=str))
    else:
        _report(profile, proposal, folder, path, kafka)


def _check_loads(text: str) -> None:
    """Raise DefinitionError if generated definitions do not load; other code is not run."""
    from paimon_features.definitions import load_definitions

    check_definitions(text)
    with tempfile.TemporaryDirectory() as scratch:
        trial = Path(scratch, "features.py")
        trial.write_text(text, "utf-8")
        load_definitions(trial)


def _write_from_feast(repository: Path, folder: Path, as_json: bool) -> None:
    from paimon_features.integrations.feast.repository_import import convert, read_repository

    _check_absent(folder)
    root = repository if repository.is_dir() else repository.parent
    done = convert(read_repository(repository), root)
    if done.mapped:
        _check_loads(done.text)
    else:  # an empty file defines nothing, which is an error when it is loaded
        check_definitions(done.text)
    write_project(folder, definitions=done.text)
    files = [str(folder / name) for name in FILES]
    unmapped = [{"what": item, "why": why} for item, why in done.unmapped]
    if as_json:
        document = {
            "files": files, "mapped": done.mapped, "unmapped": unmapped, "notes": done.notes,
            "loads": done.loads,
        }  # fmt: skip
        click.echo(json.dumps(document, indent=2))
        return
    counts = ", ".join(f"{count} {kind}" for kind, count in done.mapped.items()) or "nothing"
    lines = [*(f"wrote {file}" for file in files), f"mapped: {counts}"]
    for title, texts in (
        ("did not map", [f"{item}: {why}" for item, why in done.unmapped]),
        ("to know", done.notes),
        ("to load the data, once the definitions are applied", done.loads),
    ):
        if texts:
            lines += [f"{title}:", *(f"  {text}" for text in texts)]
    click.echo("\n".join(lines))


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
    kafka: _Topic | None,
) -> None:
    import sys

    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 10_000)
    of = "all" if profile.complete else "the first"
    total = f" of {profile.total:,}" if profile.total and not profile.complete else ""
    console.print(
        f"read {of} {profile.rows:,}{total} row{'s' * (profile.rows != 1)} of "
        f"{escape(path.name)} ({profile.form})"
        + ("" if profile.complete else "; --sample-rows reads more")
    )
    table = new_table()
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
        console.print(f"wrote {escape(str(folder / name))}")
    given = path if path.is_absolute() or folder.resolve() == Path.cwd() else path.resolve()
    if kafka is None:
        console.print(
            escape(
                f"next: {_enter(folder)}paimon-features try features.py {shlex.quote(str(given))}"
            ),
            soft_wrap=True,
        )
        return
    columns, notes = _of_messages(profile)
    for note in notes:
        console.print(f"note: {escape(note)}", soft_wrap=True)
    words = ["ingest", "topic", proposal.source, kafka.name]
    words += [word for column in columns for word in ("--column", column)]
    console.print(
        escape(
            f"next: {_enter(folder)}paimon-features apply && paimon-features {shlex.join(words)}"
        ),
        soft_wrap=True,
    )


def _of_messages(profile: InputProfile) -> tuple[list[str], list[str]]:
    """Return what ``ingest topic`` needs as ``--column``, and what it does not convert.

    It reads messages as they are: of the ways to write a file only other names of columns.
    """
    changed = profile.settings.changed
    by_column = {entry for entries in profile.settings.by_column.values() for entry in entries}
    columns = [f"{c.name}={c.field}" for c in profile.columns if c.type and c.name != c.field]
    notes = []
    if changed & {"time_format", "time_unit", "time_zone"}:
        time = profile.event_time
        columns = [c for c in columns if not c.startswith(f"{time.name}=")]
        columns.append(f"{time.name}=kafka:timestamp")
        notes.append(
            f"{time.field!r}, as {time.example!r}, is neither ms since 1970 nor text like "
            "2010-12-01T08:26:30.125Z, which topics are read by; below, the time of each message "
            "is the event time. Write such times into the messages to keep those of the events"
        )
    if others := sorted((changed | by_column) & {"decimal", "thousands", "nulls"}):
        notes.append(f"messages are not converted by {', '.join(others)}: write plain JSON numbers")
    if "time_format" in by_column:
        notes.append("times of other columns are read as RFC 3339: write them so")
    return columns, notes


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
