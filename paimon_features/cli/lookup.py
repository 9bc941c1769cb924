"""``lookup``: read online features of entities."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click
from rich.text import Text

from paimon_features.cli._names import READ_NAME
from paimon_features.cli._options import JSON, PROJECT, time_ms, time_text
from paimon_features.cli._tables import STATUS_COLOURS, new_console, new_table
from paimon_features.cli._values import parse_entities, parse_event, parse_request, shown
from paimon_features.core.times.clock import now_ms
from paimon_features.definitions import Output, Selection
from paimon_features.project import Project
from paimon_features.serving.reading.fetcher import FeatureFetcher, OnlineResponse
from paimon_features.serving.replies.freshness import Freshness


@click.command()
@click.argument(
    "features",
    nargs=-1,
    required=True,
    shell_complete=READ_NAME,
    metavar="SERVICE|VIEW|INTERACTION|VIEW:FEATURE...",
)
@click.option(
    "--entity",
    "entities",
    multiple=True,
    metavar="KEY=VALUE[,VALUE...]",
    help="Values of an entity key; repeat for further keys. Write a comma in a value as '\\,'.",
)
@click.option(
    "--request",
    "inputs",
    multiple=True,
    metavar="NAME=VALUE[,VALUE...]",
    help="A request input of an interaction: one value for all entities, or one each.",
)
@click.option(
    "--as-of",
    metavar="TIME",
    help="Read as of this time instead of now: UTC milliseconds, or 2011-12-09T12:50:00.",
)
@click.option(
    "--explain",
    is_flag=True,
    help="Show which cells of a view's tiles each value is computed from.",
)
@click.option(
    "--event",
    metavar="JSON|FILE",
    help="The event of the request, for a service with request=: a JSON object, a file with one, "
    "or - for standard input. It has the keys, the time and the request inputs.",
)
@PROJECT
@JSON
def lookup(
    features: tuple[str, ...],
    entities: tuple[str, ...],
    inputs: tuple[str, ...],
    as_of: str | None,
    explain: bool,
    event: str | None,
    path: str,
    as_json: bool,
) -> None:
    """Read features of entities from the online store, with their status and freshness.

    \b
    paimon-features lookup churn_v1 --entity customer_id=12346,12347
    paimon-features lookup spend:sum_amount_1d spend:count_7d --entity customer_id=12346
    paimon-features lookup churn_v1 --entity user=7 --entity shop=north --as-of 2011-12-09T12:00
    paimon-features lookup fraud_v1 --entity customer_id=12346 --request amount=99.5
    paimon-features lookup spend --entity customer_id=12346 --explain
    paimon-features lookup spend:sum_amount_1d --entity customer_id=12346 --explain
    paimon-features lookup fraud_v2 --event '{"card": 7, "amount": 99.5, "at": 1764324000000}'

    \b
    PRESENT          correct as of the applied snapshot
    STALE            the same, but the store has lagged for longer than max_staleness
    EXPIRED          the newest event is older than the view's ttl; no value
    MISSING          no event in any window; no value
    ILL_CONDITIONED  a variance lost to rounding, an overflow in an interaction; no value

    Numbers are rounded to six digits and lists truncated; --json prints everything.

    --explain takes one entity and a view, or features of one, whose cells it then lists:

    \b
    #   a cell in the value                   .   a cell not in it
    [   where the window begins               )   where it ends

    With --event, name the service first, and then the view or its features:

    \b
    paimon-features lookup fraud_v2 by_card:sum_1h --event payment.json --explain
    """
    project = Project.open(path)
    if event is not None:
        if entities or inputs or as_of is not None:
            raise click.UsageError(
                "--event has the keys, the time and the request inputs; leave "
                "--entity, --request and --as-of out"
            )
        if explain:
            from paimon_features.cli._explanation import show_event_explanation

            show_event_explanation(project, features, parse_event(event), as_json)
            return
        if len(features) > 1:
            raise click.UsageError("--event is read by one service")
        _show(project.get_online_features(features[0], event=parse_event(event)), as_json)
        return
    for name in features:
        if project.event_reads(name) is not None:
            raise click.UsageError(f"service {name!r} is read with --event, see --help")
    if not entities:
        raise click.UsageError(
            "missing option '--entity', or '--event' for a service with request="
        )
    refs = _refs(project, features)
    views = project.views_of(refs)
    types = {name: kind for view in views for name, kind in view.keys.items()}
    wanted = parse_entities(entities, types)
    as_of_ms = now_ms() if as_of is None else time_ms(as_of)
    if explain:
        if inputs:
            raise click.UsageError("--request does not apply to --explain")
        from paimon_features.cli._explanation import show_explanation

        cells = any(":" in text for text in features)
        show_explanation(project, refs, wanted, as_of_ms, as_json, cells=cells)
        return
    fetcher = FeatureFetcher(project.name, views, project.store)
    request = parse_request(inputs, Selection.of(refs).inputs)
    _show(fetcher.get(refs, wanted, as_of_ms, request), as_json)


def _show(response: OnlineResponse, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(_document(response), default=str))
        return
    _print(response, list(response.batch.key_types), now_ms())


def _refs(project: Project, features: Sequence[str]) -> tuple[Output, ...]:
    refs = [ref for text in features for ref in project.refs(text)]
    return tuple(dict.fromkeys(refs))


def _document(response: OnlineResponse) -> dict[str, Any]:
    return {
        "as_of_ms": response.as_of_ms,
        "rows": response.to_pylist(),
        "statuses": response.status_rows(),
        "event_time_ms": response.event_time_lists(),
        "freshness": {
            view: {
                "applied_snapshot": f.applied_snapshot,
                "commit_time_ms": f.commit_time_ms,
                "event_time_low_ms": f.event_time_low_ms,
                "event_time_high_ms": f.event_time_high_ms,
                "current_ms": f.current_ms,
                "stale": f.stale,
            }
            for view, f in response.freshness.items()
        },
        **({} if response.own_event is None else {"own_event": response.own_event}),
    }


def _print(response: OnlineResponse, keys: Sequence[str], clock_ms: int) -> None:
    console = new_console()
    table = new_table()
    table.add_column("feature")
    rows, statuses = response.to_pylist(), response.status_rows()
    for row in rows:
        table.add_column(", ".join(f"{key}={row[key]}" for key in keys), justify="right")
    for feature in response.features:
        cells = [
            _cell(row[feature], status[feature]) for row, status in zip(rows, statuses, strict=True)
        ]
        table.add_row(feature, *cells)
    console.print(f"as of {time_text(response.as_of_ms)}")
    console.print(table)
    for view, freshness in response.freshness.items():
        state = (response.own_event or {}).get(view)
        note = "" if state is None else f"; the event is {state}"
        console.print(f"{view}: {_freshness(freshness, clock_ms)}{note}", style="dim")


def _cell(value: Any, status: str) -> Text:
    text = shown(value)
    if status == "PRESENT":
        return Text(text)
    return Text(f"{text} {status}", style=STATUS_COLOURS[status])


def _freshness(freshness: Freshness, clock_ms: int) -> str:
    high_ms = freshness.event_time_high_ms
    events = "no events" if high_ms is None else f"events up to {time_text(high_ms)}"
    low_ms = freshness.event_time_low_ms
    if low_ms is not None and low_ms != high_ms:
        events += f" (in every bucket up to {time_text(low_ms)})"
    behind = max(0, clock_ms - freshness.current_ms) / 1000
    stale = ", STALE" if freshness.stale else ""
    return f"snapshot {freshness.applied_snapshot}, {events}; up to date {_ago(behind)} ago{stale}"


def _ago(seconds: float) -> str:
    for unit, size in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"
