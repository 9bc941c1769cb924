"""``serve``: run the feature server, and make tokens for it."""

from __future__ import annotations

import datetime as dt
import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import click

from paimon_features.cli import SuggestingGroup
from paimon_features.cli._options import JSON, PROJECT
from paimon_features.core.configuration.project_config import LOG_LEVELS, find_root, read_config
from paimon_features.core.errors import UnknownNameError
from paimon_features.core.extras import require

TOKEN_FILE = "tokens.toml"


@click.group(cls=SuggestingGroup, invoke_without_command=True)
@click.option("--host", help="Address to listen on; 127.0.0.1 by default.")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port; 6566 by default, 0: any free.")
@click.option("--workers", type=click.IntRange(1, 256), help="Processes; 1 by default.")
@click.option(
    "--open", "may_be_open", is_flag=True, help="Allow serving other hosts without tokens."
)
@click.option(
    "--bundle",
    metavar="FILE|online",
    help="Serve a published bundle instead of the definitions file: runs no code of the project.",
)
@click.option("--log-level", type=click.Choice(LOG_LEVELS), help="info by default.")
@click.option(
    "--log-sample",
    type=click.FloatRange(0, 1),
    help="Share of successful requests to log, 0 to 1; default: 1.",
)
@click.option("--no-reload", is_flag=True, help="Reload definitions on SIGHUP only.")
@PROJECT
@JSON
@click.pass_context
def serve(
    context: click.Context,
    host: str | None,
    port: int | None,
    workers: int | None,
    may_be_open: bool,
    bundle: str | None,
    log_level: str | None,
    log_sample: float | None,
    no_reload: bool,
    path: str,
    as_json: bool,
) -> None:
    """Serve online features over HTTP, in Feast's JSON, MessagePack and Arrow.

    \b
    paimon-features serve --workers 2
    curl -s localhost:6566/get-online-features -d '{
      "feature_service": "churn_v1", "entities": {"customer_id": [12346]}}'
    paimon-features serve --bundle online             # what 'apply' published
    paimon-features serve token --service churn_v1    # create a token and print it once

    \b
    GET /features     served features         GET /health    readiness, with the reason
    GET /docs         API documentation       GET /metrics   for Prometheus

    SIGHUP, or a change of the definitions file, reloads the definitions without dropping a
    request; SIGTERM finishes requests in flight and exits. Settings are in paimon-features.toml
    under [serve]; options override them. See docs/how-to/serving/feature-server.md.
    """
    if context.invoked_subcommand is not None:
        return
    _check_extra()
    from paimon_features.serving.http.server import supervisor

    config = read_config(find_root(Path(path)))
    overrides: dict[str, object] = {}
    for name, value in (("log_level", log_level), ("log_sample", log_sample)):
        if value is not None:
            overrides[name] = value
    if no_reload:
        overrides["reload"] = False
    if bundle is not None:
        overrides["bundle"] = bundle if bundle == "online" else str(Path(bundle).resolve())
    settings = replace(
        config.serve,
        host=host or config.serve.host,
        port=config.serve.port if port is None else port,
        workers=workers or config.serve.workers,
    )
    with supervisor.listen(settings.host, settings.port) as listening:
        supervisor.check_open(listening, settings, may_be_open)

        def on_message(event: Mapping[str, object]) -> None:
            _print_event(event, config.name, as_json)

        supervisor.Supervisor(config.root, listening, settings.workers, overrides, on_message).run()


@serve.command()
@click.option(
    "--service",
    "services",
    multiple=True,
    help="A service whose features the token may read, or a pattern; repeatable; '*' for all.",
)
@click.option(
    "--view", "views", multiple=True, help="A feature view that it may read, or a pattern."
)
@click.option(
    "--model",
    "models",
    multiple=True,
    help="A model that it may use; without it, those that read features of the token.",
)
@click.option("--role", "roles", multiple=True, help="A role of the token file; repeatable.")
@click.option("--requests-per-s", type=click.FloatRange(0.001, 1e9), help="Quota of requests.")
@click.option("--rows-per-s", type=click.FloatRange(0.001, 1e9), help="Quota of entities.")
@click.option("--name", help="Name of its holder in the log; default: what it may read.")
@PROJECT
@JSON
def token(
    services: Sequence[str],
    views: Sequence[str],
    models: Sequence[str],
    roles: Sequence[str],
    requests_per_s: float | None,
    rows_per_s: float | None,
    name: str | None,
    path: str,
    as_json: bool,
) -> None:
    """Create a bearer token and print it once.

    \b
    paimon-features serve token --service churn_v1 --name "churn scorer"
    paimon-features serve token --view 'customer_*' --requests-per-s 50 --name explorer
    paimon-features serve token --role scorer --name nightly    # [role.scorer] in the file

    The token file stores the token's hash. [serve] tokens sets the file; the default is tokens.toml
    in the project. A running server reloads it. To revoke a token, delete its entry.
    """
    _check_extra()
    from paimon_features.project import Project
    from paimon_features.serving.http.access.tokens import NewToken, add_token

    config = read_config(find_root(Path(path)))
    definitions = Project(config).definitions
    for kind, names, available in (
        ("service", services, definitions.services),
        ("feature view", views, definitions.views),
    ):
        for pattern in names:
            if not any(fnmatchcase(one, pattern) for one in available) and pattern != "*":
                raise UnknownNameError.of(kind, pattern, available)
    granted = NewToken(services, views, models, roles, requests_per_s, rows_per_s)
    of = [*services, *views, *(f"model {model}" for model in models), *roles]
    if not of:
        raise click.UsageError("pass at least one --service, --view, --model or --role")
    file = config.serve.tokens or config.root / TOKEN_FILE
    who = name or "+".join(of)
    secret = add_token(file, who, granted, dt.datetime.now(dt.UTC).date().isoformat())
    if as_json:
        click.echo(json.dumps({"name": who, "token": secret, "file": str(file)}))
        return
    click.echo(secret)
    verb = "use" if models or roles else "read"
    click.echo(f"{who!r} may {verb} {', '.join(of)}; kept as a hash in {file}", err=True)
    if config.serve.tokens is None:
        click.echo(f'To use it:  [serve] tokens = "{TOKEN_FILE}" in paimon-features.toml', err=True)


def _check_extra() -> None:
    for package in ("numpy", "msgspec", "prometheus_client", "httptools", "redis"):
        require(package, "serve", "the feature server")


def _print_event(event: Mapping[str, object], project: str, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(event))
        return
    if event["event"] == "ready":
        workers = event["workers"]
        assert isinstance(workers, Sequence)
        click.echo(
            f"{project}: serving on {event['url']} ({len(workers)} workers, pid {event['pid']}); "
            f"{event['url']}/docs documents the API"
        )
    else:
        click.echo(
            f"worker {event['worker']} {_ended(event)}; restarting in {event['restart_in_s']} s",
            err=True,
        )


def _ended(event: Mapping[str, object]) -> str:
    """Return how a worker ended."""
    code = event["code"]
    assert isinstance(code, int)
    if code < 0:
        is_signal = code in {-number for number in signal.Signals}
        return f"was ended by {signal.Signals(-code).name if is_signal else f'signal {-code}'}"
    return f"ended with code {code}" + (f" ({event['reason']})" if event["reason"] else "")
