"""``bundle``: publish definitions for serving hosts."""

from __future__ import annotations

import json
from pathlib import Path

import click

from paimon_features.cli._options import JSON, PROJECT
from paimon_features.core.errors import ConfigurationError
from paimon_features.online.store.bundles import ONLINE
from paimon_features.project import Project


@click.command()
@click.argument("file", required=False)
@click.option("--publish", is_flag=True, help="Write it into the online store.")
@PROJECT
@JSON
def bundle(file: str | None, publish: bool, path: str, as_json: bool) -> None:
    """Publish definitions, generations and fitted transformers for serving hosts.

    \b
    paimon-features bundle shop.bundle     # a file, for: serve --bundle shop.bundle
    paimon-features bundle --publish       # the online store, for: serve --bundle online
    paimon-features bundle                 # where [serve] bundle says; 'apply' does it, too

    A bundle is data: a host that serves it needs neither the definitions file nor the lake, and
    runs no code of the project. Servers notice a new one within a second.
    """
    project = Project.open(path)
    if file is not None and publish:
        raise ConfigurationError("pass a FILE or --publish, not both")
    where = ONLINE if publish else None if file is None else str(Path(file).resolve())
    where = where or project.config.serve.bundle
    if where is None:
        raise ConfigurationError(
            "nowhere to publish: pass a FILE or --publish, or set [serve] bundle in "
            "paimon-features.toml"
        )
    size = project.publish_bundle(where)
    if as_json:
        click.echo(json.dumps({"bundle": where, "bytes": size}))
        return
    target = "the online store" if where == ONLINE else where
    click.echo(f"{project.name}: published {size:,} bytes to {target}")
