"""The command line, ``paimon-features``: one file per command, imported when it is used.

Exit codes, of every command:

- 0: done;
- 1: a check failed, or there was an external error (Java, Redis, a table, a job);
- 130: Ctrl-C ended work that was not done;
- 2: wrong use: an unknown option, or a configuration, definition, name or request that cannot
  be right.

An error that we raise on purpose is printed to stderr as one line, ``error: ...``, followed by
its notes; a traceback means a bug. With ``--json`` a command prints one JSON document to stdout
and nothing else.
"""

from __future__ import annotations

import errno
import importlib
import keyword
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import click

from paimon_features import __version__
from paimon_features.cli._shared_options import (
    command_words,
    data_changes,
    name_shared,
    take_shared,
)
from paimon_features.core.documents.redaction import redact, redact_uncaught_errors
from paimon_features.core.errors import (
    ConfigurationError,
    DefinitionError,
    PaimonFeaturesError,
    RequestError,
    UnknownNameError,
)
from paimon_features.core.extras import missing_extra
from paimon_features.core.process import light_imports, verbosity
from paimon_features.core.suggestions import did_you_mean

INTERRUPTED = 130
"""The exit code of work that Ctrl-C ended: 128 and the number of the signal, as of shells."""

WRONG_USE = (ConfigurationError, DefinitionError, RequestError, UnknownNameError)
"""Errors about what the user wrote: exit code 2, as for an unknown option."""

COMMANDS: Mapping[str, Mapping[str, str]] = {
    "Set up": {
        "init": "Create a project, from your data, Feast, or an example.",
        "try": "Compute features over a file, without a lake.",
        "check": "Check installation, warehouse, leases, changes, memory.",
        "jars": "Download and verify the Flink jars.",
        "demo": "Run the complete circle on a real retail log.",
    },
    "Define": {
        "plan": "Show what apply would change.",
        "apply": "Register definitions; activate, publish them.",
        "describe": "Show definitions, or their lineage graph.",
        "drop": "Drop unused generations and tables.",
    },
    "Run on Flink": {
        "ingest": "Ingest files, Kafka topics or change logs.",
        "submit": "Run or stop the tile job of a view.",
        "backfill": "Compute the tiles of all past events, or some days.",
        "jobs": "List the project's jobs; run an iteration.",
        "cluster": "Start, stop or inspect a local cluster.",
    },
    "Operate": {
        "status": "Show jobs, freshness, sizes, leases, errors.",
        "ui": "Show the project in a browser.",
        "deploy": "Write Kubernetes manifests for the project.",
        "backup": "Copy the project while it runs.",
        "restore": "Create a project from a backup.",
        "forget": "Delete an entity from all tables.",
        "maintain": "Compact files, expire snapshots, roll up tiles.",
    },
    "Serve and train": {
        "materialize": "Load tiles into the online store.",
        "publish": "Publish fresh features to a Kafka topic.",
        "lookup": "Read online features of entities; explain them.",
        "serve": "Run the feature server; manage its tokens.",
        "mcp": "Serve read-only tools to agents (MCP).",
        "sql": "Query the tables of the lake in SQL.",
        "training-set": "Build point-in-time features, a table or a file.",
        "fit": "Fit a transformer on a view, once or continuously.",
        "fitted": "Show and export fitted transformers.",
        "train": "Train a model and register it; run one again.",
        "retrain": "Continue a model with new training rows.",
        "models": "Show model versions; promote, roll back, export.",
        "monitor": "Profile columns and features; report drift.",
        "inspect-loader": "Measure how fast a table loads.",
        "derive": "Materialize a tumbling or session view.",
        "request-log": "Ingest the request logs of feature servers.",
        "verify": "Compare online store, tiles and raw events.",
    },
}
"""The line about every command, in the order and under the headings of ``--help``.

The command ``inspect-loader`` is ``inspect_loader`` of the module
``paimon_features.cli.inspect_loader``, imported only when it runs or its own help is shown: so
that ``--help`` imports no engine.
"""

WITH_FRAMES = (
    "demo", "ingest", "inspect-loader", "jobs", "maintain", "retrain", "submit", "train",
)  # fmt: skip
"""Commands that run programs of a user, or libraries that import pandas anyway."""

SYNONYMS = {
    "audit": "check", "build": "training-set", "cancel": "submit", "compact": "maintain",
    "create": "init", "deploy-k8s": "deploy", "doctor": "check", "explain": "lookup",
    "get": "lookup", "get-historical-features": "training-set", "history": "training-set",
    "import-feast": "init", "list": "describe", "load": "ingest", "ls": "describe", "new": "init",
    "preview": "try", "query": "lookup", "repair": "backfill", "run": "submit", "server": "serve",
    "show": "describe", "sizing": "check", "start": "serve", "stop": "submit", "switch": "apply",
    "validate": "verify",
}  # fmt: skip
"""What commands are called elsewhere."""

ONLINE = ("lookup", "serve")
"""Commands of a serving host; all others that need NumPy also need the lake."""


def load_command(name: str) -> click.Command:
    """Import a command of the table."""
    attribute = name.replace("-", "_")
    if keyword.iskeyword(attribute):
        attribute += "_"
    command = getattr(importlib.import_module(f"{__name__}.{attribute}"), attribute)
    assert isinstance(command, click.Command), name
    name_shared(command)
    return command


def _missing(error: ModuleNotFoundError, command: str) -> ImportError:
    """Return the error with the extra to install for a command, or the error itself."""
    shared = "serve" if command in ONLINE else "lake"
    return missing_extra(error, f"'paimon-features {command}'", shared) or error


class SuggestingGroup(click.Group):
    """A group whose error about an unknown command names the most similar one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            names = self.list_commands(ctx)
            meant = "" if args[0] in names else did_you_mean(args[0], names, SYNONYMS)
            if not meant or "id you mean" in error.message:
                raise
            raise click.UsageError(f"{error.message.rstrip('.')}{meant}", ctx) from None


def suggest_choice(error: click.BadParameter) -> click.BadParameter:
    """Return the error with the most similar choice, if the value is none of an option's
    choices."""
    kind = None if error.param is None else error.param.type
    wrong = re.match("'(.*?)' is not one of ", error.message)
    if isinstance(kind, click.Choice) and wrong:
        choices = [str(choice) for choice in kind.choices]
        message = error.message.rstrip(".") + did_you_mean(wrong[1], choices)
        return click.BadParameter(message, error.ctx, error.param, error.param_hint)
    return error


class LazyGroup(SuggestingGroup):
    """A group that imports a command when it runs or its help is shown."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command, rest if command is None else take_shared(ctx, command, rest)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for section in COMMANDS.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        is_command = any(cmd_name in section for section in COMMANDS.values())
        if not is_command:
            return None
        try:
            command = load_command(cmd_name)
        except ModuleNotFoundError as error:
            raise _missing(error, cmd_name) from error
        commands = command.commands.values() if isinstance(command, click.Group) else (command,)
        if any(map(data_changes, commands)):
            from paimon_features.cli._lineage import observe  # --help imports nothing

            for one in commands:
                observe(one, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, section in COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl(list(section.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; our own errors become a line on stderr and an exit code."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            missing = _missing(error, str(ctx.invoked_subcommand))
            if missing is error:
                raise
            click.echo(f"error: {missing}", err=True)
            ctx.exit(1)
        except click.BadParameter as error:
            raise suggest_choice(error) from None
        except KeyboardInterrupt as interrupt:
            click.echo("interrupted", err=True)
            # what the frames hold, such as connections, ends with them
            interrupt.__traceback__ = None
            ctx.exit(INTERRUPTED)
        except PaimonFeaturesError as error:
            if verbosity.verbose():
                traceback.print_exc()
            _print_error(str(error))
            for note in getattr(error, "__notes__", ()):
                click.echo(f"  {redact(note)}", err=True)
            ctx.exit(2 if isinstance(error, WRONG_USE) else 1)
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader of a pipe has ended: click exits with 1
                raise
            # a full disk, a missing folder or permission, a host that refuses: no bug of ours
            if verbosity.verbose():
                traceback.print_exc()
            _print_error(f"{error.filename}: {error.strerror}" if error.filename else str(error))
            ctx.exit(1)


def _complete(context: click.Context, option: click.Parameter, shell: str | None) -> None:
    """Print or install the completion of a shell, and end."""
    if shell is None or context.resilient_parsing:
        return
    from paimon_features.cli._completion import complete  # --help imports nothing

    complete(context.command, shell, install=option.name == "install_completion")
    context.exit()


_COMPLETION: Mapping[str, Any] = {
    "metavar": "[SHELL]", "is_flag": False, "flag_value": "", "is_eager": True,
    "expose_value": False, "callback": _complete,
}  # fmt: skip


def _print_error(text: str) -> None:
    click.echo(f"error: {redact(text)}", err=True)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.option(
    "--project", "path", default=".", show_default=True, help="Folder of the project, or in it."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("-q", "--quiet", is_flag=True, help="Only results and errors: no progress.")
@click.option("-v", "--verbose", count=True, help="Log what is done; of errors the traceback.")
@click.option(
    "--install-completion",
    help="Complete commands, options and names of definitions on Tab, by default in $SHELL.",
    **_COMPLETION,
)
@click.option("--show-completion", help="Print what a shell needs for that.", **_COMPLETION)
def cli(path: str, as_json: bool, quiet: bool, verbose: int) -> None:
    """Run a feature store on Flink, Paimon and Redis.

    Define features once; read the same values online and in training sets. Start with your own
    data, or with the demo:

    \b
      paimon-features init shop --from events.csv
      paimon-features try shop/features.py events.csv
      paimon-features demo --into demo

    COMMAND --help shows examples of each command. The options below may follow the command, too.

    Exit codes: 0 success, 1 a failed check or an external error, 2 usage error, 130 interrupted.
    """
    del path, as_json  # the commands read them from the context
    verbosity.set_verbosity(quiet, verbose)


def main(args: Sequence[str] | None = None) -> None:
    """Run the console script."""
    redact_uncaught_errors()
    for stream in (sys.stdout, sys.stderr):
        # names of files and columns from outside can have parts that no encoding has
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    words = command_words(sys.argv[1:] if args is None else args)
    if words and words[0] not in WITH_FRAMES:
        light_imports.enable()

    def run() -> None:
        cli.main(args, prog_name="paimon-features")

    if words and words[0] == "ingest":  # it reads files in its own process
        from paimon_features.core.process.supervision import run_supervised

        return run_supervised(run, _print_error)
    return run()
