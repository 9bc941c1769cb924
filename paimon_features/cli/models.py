"""``models``: the versions of models, which of them serve, and their files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paimon_features.cli import SuggestingGroup
from paimon_features.cli._model_names import NAME, VERSION, VersionsCommand
from paimon_features.cli._options import JSON, PROJECT, check_options, time_text
from paimon_features.cli._tables import table_lines
from paimon_features.cli.models_outcomes import compare, outcomes
from paimon_features.cli.models_quantise import quantise
from paimon_features.core.errors import ConfigurationError
from paimon_features.models import (
    SHARES,
    STATES,
    Metric,
    ModelManifest,
    ModelState,
    ModelStates,
)
from paimon_features.project import Project

if TYPE_CHECKING:
    from paimon_features.transformers import FittedVersion

SERIAL = click.option(
    "--if-change",
    "expected_serial",
    type=click.IntRange(min=0),
    help="Only if the newest change of the model has this number ('models show' shows it): "
    "otherwise another process was faster, and nothing happens.",
)


@click.group(cls=SuggestingGroup)
def models() -> None:
    """Show model versions, and decide which of them serve.

    A version is a candidate when it is registered ('paimon-features train' does it), and never
    changes. Promotion is one write: of all versions at once, for all servers.

    \b
      candidate    registered, not served
      shadow       predicts next to production; its predictions are not returned
      challenger   answers a share of the entities
      production   answers all others
      archived     no longer served
    """


for command in (outcomes, compare, quantise):
    models.add_command(command)


@models.command(cls=VersionsCommand)
@click.argument("name", required=False)
@VERSION
@click.option("--versions", is_flag=True, help="List all versions of NAME.")
@PROJECT
@JSON
def show(name: str | None, version: int | None, versions: bool, path: str, as_json: bool) -> None:
    """List all models, or show a version of NAME; default: the newest.

    A version has a signature, training pins, metrics, files, a card and notes.

    \b
    paimon-features models show                     # all versions of all models
    paimon-features models show churn --versions
    paimon-features models show churn
    paimon-features models show churn@3 --json
    """
    if versions and (name is None or version is not None):
        raise click.UsageError("--versions takes NAME, and no VERSION")
    project = Project.open(path)
    if name is None or versions:
        _list(project, project.models.names() if name is None else [name], as_json)
        return
    manifest = project.models.manifest(name, version)
    state = project.models.states(name).of(manifest.version)
    notes = [entry for entry in project.models.notes(name) if entry.version == manifest.version]
    if as_json:
        document = {**asdict(manifest), "state": asdict(state), "notes": list(map(asdict, notes))}
        click.echo(json.dumps(document, indent=2))
        return
    click.echo("\n".join(_details(manifest, f"{state.state}, {_percent(state.traffic)} traffic")))
    for note in notes:
        action = note.action.replace("_", " ")
        click.echo(f"\n{time_text(note.at_ms)}  {action}: {note.text}")


def _list(project: Project, names: Sequence[str], as_json: bool) -> None:
    listed = [project.models.states(name) for name in names]
    if as_json:
        click.echo(json.dumps([_listed(project, states) for states in listed], indent=2))
        return
    if not listed:
        click.echo("no model is registered yet; 'paimon-features train' registers one")
        return
    lines: list[tuple[str, ...]] = []
    for states in listed:
        for version, manifest in project.models.manifests(states.name).items():
            state = states.of(version)
            lines.append(
                (
                    states.name, str(version), state.state, _percent(state.traffic), manifest.kind,
                    time_text(manifest.created_at_ms), _metric_cells(manifest), str(states.serial),
                )
            )  # fmt: skip
    heads = ("MODEL", "VERSION", "STATE", "TRAFFIC", "KIND", "CREATED", "METRICS", "CHANGE")
    click.echo("\n".join(table_lines([heads, *lines])))


@models.command()
@NAME
@click.option(
    "--fitted",
    required=True,
    metavar="NAME[@VERSION]",
    help="The fitted model ('fitted' lists them); default: its newest version.",
)
@click.option("--service", required=True, help="The feature service: its outputs are the inputs.")
@click.option(
    "--transformer",
    metavar="NAME[@VERSION]",
    help="A fitted transformer of the service's outputs, before the model: scaling, imputation.",
)
@click.option("--card", default="", help="A description, in Markdown.")
@PROJECT
@JSON
def register(
    name: str,
    fitted: str,
    service: str,
    transformer: str | None,
    card: str,
    path: str,
    as_json: bool,
) -> None:
    """Register a fitted model as the next version of NAME.

    The model was fitted by the iteration runtime. Logistic and linear regression and k-means,
    also the online ones, become one ONNX network from raw features, a candidate as any other
    version. An equal one is not registered twice.

    \b
    paimon-features models register churn --fitted churn_online --service churn_v1
    paimon-features models register churn --fitted churn_online@7 --service churn_v1 \\
        --transformer churn_scaled
    """
    project = Project.open(path)
    model = project.models.register_fitted(
        name,
        _fitted_version(project, fitted),
        service,
        transformer=None if transformer is None else _fitted_version(project, transformer),
        card=card,
    )
    if as_json:
        click.echo(json.dumps(asdict(model)))
        return
    click.echo(f"{model}: registered")
    click.echo(f"serve it:    paimon-features models promote {model.name} {model.version}")


def _fitted_version(project: Project, text: str) -> FittedVersion:
    name, at, version = text.partition("@")
    if at and not version.isdecimal():
        raise ConfigurationError(f"{text[:80]!r}: expected NAME@VERSION, such as churn_online@3")
    return project.fitted.load(name, int(version) if at else None)


@models.command(cls=VersionsCommand)
@click.argument("name", required=False)
@VERSION
@click.option(
    "--previous",
    is_flag=True,
    help="Return the previous version to production; the current one is archived.",
)
@click.option(
    "--as",
    "state",
    type=click.Choice(STATES),
    default="production",
    show_default=True,
    help="Its new state.",
)
@click.option(
    "--traffic",
    type=click.FloatRange(0, 100, min_open=True, max_open=True),
    metavar="PERCENT",
    help="Share of the entities that a challenger answers, in steps of 0.01.",
)
@SERIAL
@click.option(
    "--publish",
    is_flag=True,
    help="Only publish all models for serving hosts again, to the online store or next to the "
    "bundle file, as [serve] bundle says. Promotions publish them, too.",
)
@PROJECT
@JSON
def promote(
    name: str | None,
    version: int | None,
    previous: bool,
    state: ModelState,
    traffic: float | None,
    expected_serial: int | None,
    publish: bool,
    path: str,
    as_json: bool,
) -> None:
    """Promote a version or the previous one, or change its state.

    The version that was in production is archived, in the same write; --previous returns to it,
    and a second time to the version before that. Servers load the version within a second, and
    finish the requests that they have with the former one. An entity is always answered by the
    same version while the shares stay.

    \b
    paimon-features models promote churn 4
    paimon-features models promote churn 5 --as challenger --traffic 10
    paimon-features models promote churn 6 --as shadow
    paimon-features models promote churn 5 --as archived
    paimon-features models promote churn --previous     # a rollback
    paimon-features models promote --publish
    """
    project = Project.open(path)
    registry = project.models
    if publish:
        check_options({"publish"}, "--publish")
        _publish(project, as_json)
        return
    if name is None:
        raise click.UsageError("pass the NAME and VERSION to promote")
    if previous:
        if version is not None or traffic is not None or state != "production":
            raise click.UsageError("--previous takes neither VERSION nor --as nor --traffic")
        _report(registry.rollback(name, expected_serial=expected_serial), as_json)
        return
    if version is None:
        raise click.UsageError("pass the VERSION to promote, or --previous")
    slots = 0 if traffic is None else round(traffic * SHARES / 100)
    if traffic is not None and not 0 < slots < SHARES:
        raise click.UsageError("--traffic: expected 0.01 to 99.99")
    after = registry.promote(name, version, state, traffic=slots, expected_serial=expected_serial)
    _report(after, as_json)


@models.command(cls=VersionsCommand)
@NAME
@VERSION
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder to write to; default: NAME-VERSION.",
)
@click.option("--file", "files", multiple=True, help="Only this file; may be repeated.")
@PROJECT
def export(
    name: str, version: int | None, into: Path | None, files: tuple[str, ...], path: str
) -> None:
    """Write the files of a version into a folder.

    ONNX, torch.export, weights, report.

    \b
    paimon-features models export churn
    paimon-features models export churn 4 --into release --file network.onnx
    """
    project = Project.open(path)
    manifest = project.models.manifest(name, version)
    folder = into or Path(f"{name}-{manifest.version}")
    for written in project.models.export(manifest, folder, files):
        click.echo(str(written))


def _publish(project: Project, as_json: bool) -> None:
    index = project.models.publish()
    served = {name: [f"{name}@{v.version}" for v in s.versions] for name, s in index.models.items()}
    if as_json:
        click.echo(json.dumps({"published": served}))
        return
    names = [model for versions in served.values() for model in versions]
    click.echo(f"published {', '.join(names) or 'no version'} to {project.models.place}")


def _report(states: ModelStates, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(states.to_document()))
        return
    for state in states.versions:
        if state.state in ("production", "challenger", "shadow"):
            click.echo(f"{states.name}@{state.version}: {state.state}, {_percent(state.traffic)}")
    if not states.serving:
        click.echo(f"{states.name}: no version answers requests")


def _listed(project: Project, states: ModelStates) -> dict[str, Any]:
    manifests = project.models.manifests(states.name)
    return {
        "model": states.name,
        "change": states.serial,
        "changed_at_ms": states.changed_at_ms,
        "previous": list(states.previous),
        "versions": [
            {
                **asdict(state),
                "kind": manifests[state.version].kind,
                "created_at_ms": manifests[state.version].created_at_ms,
                "metrics": {n: m.value for n, m in manifests[state.version].metrics.items()},
            }
            for state in states.versions
        ],
    }


def _percent(slots: int) -> str:
    return f"{slots * 100 / SHARES:g} %"


def _metric_cells(manifest: ModelManifest) -> str:
    return ", ".join(f"{name} {m.value:.4g}" for name, m in list(manifest.metrics.items())[:3])


def _metric(metric: Metric) -> str:
    text = f"{metric.value:.6g}"
    if metric.low is not None and metric.high is not None:
        text += f" (95 %: {metric.low:.6g} to {metric.high:.6g}, {metric.method})"
    return f"{text} on {metric.rows:,} rows"


def _details(manifest: ModelManifest, state: str) -> Iterator[str]:
    signature, training = manifest.signature, manifest.training
    yield f"{manifest}: {manifest.kind}, {state}"
    yield f"  created    {time_text(manifest.created_at_ms)}"
    if manifest.parents:
        yield f"  parents    {', '.join(manifest.parents)}"
    keys = ", ".join(f"{key.name} ({key.type})" for key in signature.entities)
    yield f"  reads      {signature.service} by {keys}"
    for field in signature.inputs:
        yield f"    {field.of}: {field.type}" + (f", {field.width} items" * (field.width > 1))
    for out in signature.outputs:
        yield f"  returns    {out.name}, {out.width} wide ({signature.task})"
    if training is not None:
        yield f"  trained on {training.table}, snapshot {training.snapshot}, {training.rows:,} rows"
        for label, values in (
            ("sources", training.sources), ("generations", training.generations),
            ("fitted", training.fitted), ("seeds", training.seeds), ("code", training.code),
            ("libraries", training.libraries), ("machine", training.machine),
        ):  # fmt: skip
            if values:
                yield f"    {label:<12} " + ", ".join(f"{k} {v}" for k, v in values.items())
        yield f"    {'weights':<12} {training.weights}"
    for name, metric in manifest.metrics.items():
        yield f"  {name:<10} {_metric(metric)}"
    for name, file in manifest.files.items():
        yield f"  file       {name}, {file.bytes:,} bytes, {file.sha256}"
    if manifest.card:
        yield ""
        yield manifest.card.rstrip()
