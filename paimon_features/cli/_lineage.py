"""Sends OpenLineage events about the runs of commands, where that is configured."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paimon_features.cli._shared_options import DataChanges, data_changes
from paimon_features.core.configuration.project_config import ProjectConfig, find_root, read_config
from paimon_features.core.errors import PaimonFeaturesError

if TYPE_CHECKING:
    from paimon_features.integrations.openlineage import CommandRun


def observe(command: click.Command, name: str) -> None:
    """Let the runs of a command that change data send events from now on, under ``name``.

    Repeating this is harmless.
    """
    changes = data_changes(command)
    if changes is not None and not isinstance(command.invoke, functools.partial):
        invoke = functools.partial(_invoke, name, changes, command.invoke)
        command.invoke = invoke  # type: ignore[method-assign]


def _invoke(name: str, changes: DataChanges, invoke: Any, context: click.Context) -> Any:
    run = _run(name, changes, context) if changes.of_run(context.params) else None
    if run is None:
        return invoke(context)
    try:
        done = invoke(context)
    except (click.exceptions.Exit, SystemExit) as error:
        code = error.exit_code if isinstance(error, click.exceptions.Exit) else error.code
        if code in (0, None):
            run.complete()
        else:
            run.fail(f"exit code {code}")
        raise
    except (KeyboardInterrupt, click.Abort):
        run.abort()
        raise
    except BaseException as error:
        run.fail(str(error) or type(error).__name__)
        raise
    run.complete()
    return done


def _run(name: str, changes: DataChanges, context: click.Context) -> CommandRun | None:
    """Return the run to report; None if OpenLineage is not configured."""
    try:
        config = read_config(find_root(Path(context.find_root().params.get("path", "."))))
    except PaimonFeaturesError:
        return None  # the command says it
    if not is_configured(config):
        return None
    params = dict(context.params)
    # the library, and what reads the lake, only where they are used
    from paimon_features.integrations.openlineage import CommandRun

    try:
        if changes.names is not None:
            with suppress(PaimonFeaturesError):  # the command says it
                params |= changes.names(params)
        return CommandRun(config, name, params, lambda line: click.echo(line, err=True))
    except PaimonFeaturesError as error:
        click.echo(f"warning: {error}", err=True)
        return None


def is_configured(config: ProjectConfig, environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if events are to be sent: by ``[lineage] openlineage``, or by what the library
    reads (OPENLINEAGE_URL and other variables, openlineage.yml in ~/.openlineage)."""
    if environ.get("OPENLINEAGE_DISABLED", "").lower().strip() == "true":
        return False
    if config.openlineage is not None:
        return True
    named = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")
    if any(environ.get(name) for name in named):
        return True
    if any(name.startswith("OPENLINEAGE__TRANSPORT") for name in environ):
        return True
    return (Path(environ.get("HOME", "/")) / ".openlineage" / "openlineage.yml").is_file()
