"""``fit``: transformers fitted on the tiles of a view, once or with every commit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from paimon_features.cli._options import JSON, PROJECT, time_ms, time_text
from paimon_features.cli._progress import steps
from paimon_features.cli._shared_options import changes_data, grouped
from paimon_features.cli._signals import stop_event
from paimon_features.core.errors import ConfigurationError
from paimon_features.core.process.callbacks import OnProgress
from paimon_features.core.times.clock import now_ms
from paimon_features.project import Project
from paimon_features.project.monitoring.fitting import Fit
from paimon_features.project.monitoring.refits import Saved, drift_since, follow, save_fit
from paimon_features.transformers import new_transformer


@dataclass(frozen=True, slots=True)
class FitOptions:
    """Options that choose the data a transformer is fitted on."""

    columns: str | None
    features: str | None
    rows: str | None
    as_of: str | None
    origin: Any

    def check(self, following: bool) -> None:
        """Raise UsageError for options that cannot be combined."""
        if (self.columns is None) == (self.features is None):
            raise click.UsageError("pass exactly one of --columns and --features")
        if self.features is None and self.rows is not None:
            raise click.UsageError("--rows requires --features")
        if self.rows is not None and self.as_of is not None:
            raise click.UsageError(
                "--rows have their own times; they cannot be combined with --as-of"
            )
        if self.features is not None and (following or self.origin is not None):
            raise click.UsageError("--follow and --from require --columns")
        if following and self.as_of is not None:
            raise click.UsageError("--follow reads new data; it cannot be combined with --as-of")
        if following and self.origin == "events":
            raise click.UsageError("--follow reads tiles; it cannot be combined with --from events")


@click.command()
@click.argument("transformer")
@click.option("--view", required=True, help="The feature view whose events or features to fit on.")
@click.option("--columns", help="Columns of its source, or derived ones: a,b. Over all events.")
@click.option("--features", help="Features of the view: a,b. Over all known entities.")
@click.option(
    "--rows",
    help="With --features: at these entity rows instead (file or table, as for training-set).",
)
@click.option(
    "--as-of",
    help="Only events before this time (exclusive): UTC milliseconds, or 2011-12-01T00:00:00. "
    "With --features: their values at this time; default: just after the newest event.",
)
@click.option("--name", help="Name of the fitted transformer; default: VIEW_TRANSFORMER.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the transformer, such as handle_unknown=ignore; repeatable.",
)
@click.option(
    "--from",
    "origin",
    type=click.Choice(["tiles", "events"]),
    help="Read merged tiles, or every event; default: tiles where they contain what is needed.",
)
@click.option(
    "--export", is_flag=True, help="Also export the version as a file that services can pin."
)
@click.option(
    "--follow", "following", is_flag=True, help="Save a version after each commit of tiles."
)
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=5.0,
    show_default=True,
    help="With --follow: poll interval in seconds.",
)
@click.option("--against", type=click.IntRange(min=1), help="The version to report drift against.")
@click.option("--commits", type=click.IntRange(min=1), help="With --follow: stop after this many.")
@changes_data()
@grouped(FitOptions, "on")
@PROJECT
@JSON
def fit(
    transformer: str,
    view: str,
    on: FitOptions,
    name: str | None,
    settings: tuple[str, ...],
    export: bool,
    following: bool,
    every: float,
    against: int | None,
    commits: int | None,
    path: str,
    as_json: bool,
) -> None:
    """Fit TRANSFORMER on a view and save it as the next version of fitted_NAME.

    With --columns it is fitted on all events that enter the view's tiles: from the tiles where
    they contain what it needs (see statistics_view), otherwise from the events. With --features it
    is fitted on the view's features, read for all known entities at one time.

    \b
    paimon-features fit standard_scaler --view retail_statistics --columns amount,quantity
    paimon-features fit one_hot_encoder --view retail_statistics --columns country \\
        --set handle_unknown=ignore --as-of 2011-12-01T00:00:00
    paimon-features fit min_max_scaler --view customer_spend --features sum_amount_30d --export
    paimon-features fit standard_scaler --view retail_statistics --columns amount --follow

    --follow runs alongside the tile job ('paimon-features submit'): each commit that changes the
    data yields a version, and the drift of events since the version that services pin (or
    --against) is reported as PSI and KS per column.

    Unchanged data yield no new version. Exit code 2 if it cannot be fitted on the columns.
    """
    on.check(following)
    if commits is not None and not following:
        raise click.UsageError("--commits requires --follow")
    project = Project.open(path)
    unfitted = new_transformer(transformer, _settings(settings))
    called = name or f"{view}_{unfitted.kind}"
    until = None if on.as_of is None else time_ms(on.as_of)
    reference = against or _pinned(project, called)

    def fitted(progress: OnProgress) -> Saved:
        fresh = new_transformer(transformer, _settings(settings))
        fit_of_view = project.fitted.fit_view(
            fresh,
            view,
            columns=None if on.columns is None else _names(on.columns),
            features=None if on.features is None else _names(on.features),
            rows=on.rows,
            as_of_ms=until,
            origin="tiles" if following else on.origin,
            progress=progress,
        )
        return _saved(project, called, fit_of_view, reference)

    if not following:
        with steps("reading rows", as_json) as progress:
            saved = fitted(progress)
        _show(project, saved, export, as_json)
        return
    stop = stop_event()
    table = project.generation(project.view(view)).table
    if not as_json:
        click.echo(f"following {table}; Ctrl-C ends it", err=True)
    fits = follow(project.lake, table, every, stop, lambda: fitted(lambda done, total: None))
    for count, fit_or_error in enumerate(fits, 1):
        if not isinstance(fit_or_error, Saved):
            click.echo(f"no version of this commit: {fit_or_error}", err=True)
        elif fit_or_error.is_new or count == 1:
            _show(project, fit_or_error, export, as_json, one_line=True)
            # the first one is what later ones are compared with
            reference = reference or fit_or_error.version.version
        if count == commits:
            return


def _saved(project: Project, name: str, found: Fit, reference: int | None) -> Saved:
    version, is_new = save_fit(project.lake, name, found, now_ms())
    if reference is None or reference == version.version or not found.statistics:
        return Saved(version, is_new)
    drift = drift_since(project.fitted.load(name, reference), found.statistics)
    return Saved(version, is_new, reference, drift)


def _pinned(project: Project, name: str) -> int | None:
    """Return the newest version that a definition pins."""
    pinned = [
        output.fitted.version
        for output in project.definitions.transformed.values()
        if output.fitted.name == name
    ]
    return max(pinned, default=None)


def _settings(texts: tuple[str, ...]) -> dict[str, Any]:
    """Parse settings: as JSON where the text is valid JSON, else as text."""
    out: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigurationError(f"--set {text}: expected KEY=VALUE")
        try:
            out[key] = json.loads(value)
        except ValueError:
            out[key] = value
    return out


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise ConfigurationError(f"{text!r}: expected distinct names, separated by commas")
    return names


def _show(
    project: Project, saved: Saved, export: bool, as_json: bool, one_line: bool = False
) -> None:
    version = saved.version
    written: Path | None = None
    if export:
        written = project.fitted.export(version.name, version.version)
    if as_json:
        document = {**saved.to_document(), "exported": None if written is None else str(written)}
        click.echo(json.dumps(document, indent=None if one_line else 2))
        return
    on = version.fitted_on
    names = ", ".join(on.get("columns") or on.get("features") or ())
    news = "" if saved.is_new else "; unchanged since "
    news += "" if saved.is_new else time_text(version.fitted_at_ms)
    click.echo(
        f"{version}: {version.kind} of {names} from {version.transformer.rows_seen:,} rows "
        f"({on.get('from')}){news}"
    )
    for change in saved.drift:
        click.echo(f"  since v{saved.against}, {change}")
    if written is not None:
        click.echo(f"  exported to {written}")
    elif not one_line:
        click.echo(
            f"  'paimon-features fitted {version.name} {version.version} --export' writes the file "
            "that a service pins"
        )
