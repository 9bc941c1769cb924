"""``try``: features of a definition over a file, without a lake."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import click

from paimon_features.cli._human_times import human_time_ms
from paimon_features.cli._inputs import INPUT, project_input_settings
from paimon_features.cli._options import JSON, time_text
from paimon_features.cli._progress import Progress
from paimon_features.cli._tables import new_table
from paimon_features.cli._values import parse_entities, shown
from paimon_features.core._arrow import pa
from paimon_features.core.errors import (
    ConfigurationError,
    SkippedEventsWarning,
    UnknownNameError,
)
from paimon_features.core.times.clock import now_ms
from paimon_features.definitions import Definitions, FeatureView, load_definitions


@click.command(name="try")
@click.argument("definitions", type=click.Path(path_type=Path))
@click.argument("events", type=click.Path(path_type=Path))
@click.option("--view", help="The feature view; default: all over sources that the file fits.")
@click.option(
    "--entity",
    "entities",
    multiple=True,
    metavar="KEY=VALUE[,VALUE...]",
    help="Entities to show; default: those with most events.",
)
@click.option("--limit", type=click.IntRange(1, 1_000), default=5, show_default=True,
              help="Without --entity: how many entities.")  # fmt: skip
@click.option(
    "--now",
    metavar="TIME",
    help="Values as of this time: 2011-12-01, '2 days ago', UTC milliseconds; default: just after "
    "the last event.",
)
@click.option(
    "--max-rows",
    type=click.IntRange(min=1),
    default=2_000_000,
    show_default=True,
    help="Events to read at most.",
)
@INPUT
@JSON
def try_(
    definitions: Path,
    events: Path,
    view: str | None,
    entities: tuple[str, ...],
    limit: int,
    now: str | None,
    max_rows: int,
    options: tuple[str, ...],
    as_json: bool,
) -> None:
    """Compute the features of a DEFINITIONS file over the EVENTS of a file, and show some.

    Runs in this process (DuckDB): no lake, no Java, no store, and nothing is written. Rows that
    'ingest' would reject are left out and counted, by reason.

    \b
    paimon-features try features.py events.parquet
    paimon-features try features.py events.csv --entity customer_id=12346,12347
    paimon-features try features.py events.csv --now 2011-12-01 --json
    paimon-features try features.py export.txt --input delimiter=tab --input time_unit=s

    EVENTS is a file (CSV, JSON, Parquet, Avro, ORC, Arrow) or the folder of a Delta, Iceberg or
    Paimon table. How it is written is read from [inputs.SOURCE] of a paimon-features.toml next to
    DEFINITIONS, if there is one, and from --input.
    """
    from paimon_features.project.first_steps.trial import read_events, try_view

    as_of_ms = None if now is None else human_time_ms(now, now_ms())
    loaded = load_definitions(definitions)
    views = _views(loaded, view)
    results: list[dict[str, Any]] = []
    read: dict[str, Any] = {}
    for chosen in views:
        source = chosen.source
        settings = project_input_settings(definitions, source.name, options)
        if source.name not in read:
            with Progress("reading", as_json, unit="rows") as progress:
                read[source.name] = read_events(
                    events, source, settings, settings.columns, max_rows, progress.add, apart=True
                )
            if not as_json:
                _show_rejected(source.name, read[source.name])
        wanted = parse_entities(entities, chosen.entity.keys) if entities else None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", SkippedEventsWarning)
            trial = try_view(
                chosen, read[source.name].events, as_of_ms=as_of_ms, entities=wanted, limit=limit
            )
        notes = [str(w.message) for w in caught if w.category is SkippedEventsWarning]
        if not read[source.name].complete:
            notes.append(f"only the first {read[source.name].events.num_rows:,} events were read "
                         "(--max-rows): values may lack later ones")  # fmt: skip
        if as_of_ms is not None and as_of_ms > trial.newest_ms + 86_400_000:
            notes.append(
                f"the newest event is of {time_text(trial.newest_ms)}; windows before "
                f"{time_text(as_of_ms)} may be empty: leave out --now for the end of the data"
            )
        result = _document(chosen, trial, read[source.name], notes)
        if as_json:
            results.append(result)
        else:
            _show(result)
    if as_json:
        click.echo(json.dumps(results, indent=2, default=str))


def _views(found: Definitions, view: str | None) -> list[FeatureView]:
    views = list(found.views.values())
    if view is None:
        if not views:
            raise ConfigurationError("the definitions have no FeatureView to try")
        if len({v.source.name for v in views}) > 1:
            names = ", ".join(found.views)
            raise ConfigurationError(
                f"the views are of several sources; choose one by --view: {names}"
            )
        return views
    if view not in found.views:
        raise UnknownNameError.of("feature view", view, found.views)
    return [found.views[view]]


def _show_rejected(source: str, events: Any) -> None:
    for reason, rows in events.rejected.items():
        click.echo(
            f"{rows:,} rows are not events of {source}: {reason}, e.g. {events.examples[reason]}",
            err=True,
        )


def _document(view: FeatureView, trial: Any, events: Any, notes: list[str]) -> dict[str, Any]:
    keys = list(view.entity.keys)
    names = [feature.name for feature in view.compiled.features]
    rows = _rows(trial.rows)
    return {
        "view": view.name,
        "as_of_ms": trial.as_of_ms,
        "newest_event_ms": trial.newest_ms,
        "events": events.events.num_rows,
        "rejected": dict(events.rejected),
        "entities": trial.entities,
        "keys": keys,
        "features": names,
        "rows": [{name: row[name] for name in (*keys, *names)} for row in rows],
        "statuses": [{name: row[f"{name}__status"] for name in names} for row in rows],
        "notes": notes,
    }


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    try:
        return table.to_pylist()
    except OverflowError:  # Python has no days after 9999
        names = table.column_names
        for number, column in enumerate(table.columns):
            if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
                table = table.set_column(number, names[number], column.cast(pa.string()))
        return table.to_pylist()


def _show(result: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 10_000)
    console.print(
        f"[bold]{result['view']}[/] as of {time_text(result['as_of_ms'])}: {result['events']:,} "
        f"events, {result['entities']:,} entities"
    )
    table = new_table()
    table.add_column("feature")
    for row in result["rows"]:
        head = "\n".join(f"{key}={row[key]}" for key in result["keys"]) or "everything"
        table.add_column(head, justify="right")
    for name in result["features"]:
        cells = [
            shown(row[name]) + ("" if status[name] == "PRESENT" else f" {status[name]}")
            for row, status in zip(result["rows"], result["statuses"], strict=True)
        ]
        table.add_row(name, *cells)
    console.print(table)
    for note in result["notes"]:
        console.print(f"note: {note}", markup=False)
