"""The command line, ``paimon-features``: one file per command group, imported when it is used.

Exit codes, of every command:

- 0: done;
- 1: a check failed, or something outside is not as it has to be (Java, Redis, a table, a job);
- 2: wrong use: an unknown option, or a configuration, definition, name or request that cannot
  be right.

An error that we raise on purpose is printed to stderr as one line, ``error: ...``, followed by
its notes; a traceback means a bug. With ``--json`` a command prints one JSON document to stdout
and nothing else.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from paimon_features import __version__
from paimon_features.errors import (
    ConfigurationError,
    DefinitionError,
    PaimonFeaturesError,
    RequestError,
    UnknownNameError,
)

WRONG_USE = (ConfigurationError, DefinitionError, RequestError, UnknownNameError)
"""Errors about what the user wrote: exit code 2, as for an unknown option."""


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """Where a command is (``module:attribute``) and the line about it in the list.

    The module is a text, so that ``--help`` imports no engine, and so that ``jobs``, which
    builds on this package, adds its commands without being imported by it.
    """

    target: str
    help: str

    def load(self) -> click.Command:
        """Import the command."""
        module, _, attribute = self.target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), self.target
        return command


COMMANDS: Mapping[str, Mapping[str, LazyCommand]] = {
    "Set up": {
        "init": LazyCommand("paimon_features.cli.init:init", "Make a project with an example."),
        "doctor": LazyCommand(
            "paimon_features.cli.doctor:doctor", "Check this machine and project."
        ),
        "jars": LazyCommand("paimon_features.cli.jars:jars", "Fetch and verify the Flink jars."),
        "demo": LazyCommand(
            "paimon_features.cli.demo:demo", "Run the whole loop on a real retail log."
        ),
    },
    "Define": {
        "plan": LazyCommand(
            "paimon_features.cli.plan:plan", "Show what apply would change; changes nothing."
        ),
        "apply": LazyCommand(
            "paimon_features.cli.plan:apply", "Register the definitions, create their tables."
        ),
        "switch": LazyCommand(
            "paimon_features.cli.plan:switch", "Serve another generation of a view."
        ),
        "describe": LazyCommand(
            "paimon_features.cli.describe:describe", "Tell about all definitions, or one."
        ),
        "graph": LazyCommand(
            "paimon_features.cli.describe:graph", "Draw what is made of what, text or SVG."
        ),
        "import-feast": LazyCommand(
            "paimon_features.cli.import_feast:import_feast", "Convert a Feast repository."
        ),
        "drop": LazyCommand("paimon_features.cli.drop:drop", "Delete what is no longer wanted."),
    },
    "Run on Flink": {
        "ingest": LazyCommand(
            "paimon_features.cli.ingest:ingest", "Load files, Kafka, change logs into events."
        ),
        "release": LazyCommand(
            "paimon_features.cli.late:release", "Let events enter whose time has come."
        ),
        "lateness": LazyCommand(
            "paimon_features.cli.late:lateness", "Show how late the events of a source come."
        ),
        "submit": LazyCommand(
            "paimon_features.cli.tile_jobs:submit", "Run the tile job of a view."
        ),
        "backfill": LazyCommand(
            "paimon_features.cli.tile_jobs:backfill", "Compute the tiles of all past events."
        ),
        "repair": LazyCommand(
            "paimon_features.cli.repair:repair",
            "Compare tiles with their events, and replace wrong ones.",
        ),
        "jobs": LazyCommand("paimon_features.cli.tile_jobs:jobs", "List the project's jobs."),
        "cancel": LazyCommand(
            "paimon_features.cli.tile_jobs:cancel", "Stop a job with a savepoint."
        ),
        "maintain": LazyCommand(
            "paimon_features.cli.maintain:maintain", "Merge small files, let old snapshots go."
        ),
        "cluster": LazyCommand(
            "paimon_features.cli.cluster:cluster", "Start, stop or look at a local cluster."
        ),
    },
    "Serve and train": {
        "materialize": LazyCommand(
            "paimon_features.cli.materialize:materialize", "Bring tiles to the online store."
        ),
        "lookup": LazyCommand(
            "paimon_features.cli.lookup:lookup", "Read online features of entities."
        ),
        "serve": LazyCommand(
            "paimon_features.cli.serve:serve", "Run the feature server; make tokens for it."
        ),
        "explain": LazyCommand(
            "paimon_features.cli.explain:explain", "Show which cells make up a number."
        ),
        "sizing": LazyCommand(
            "paimon_features.cli.sizing:sizing", "Tell what memory the online store needs."
        ),
        "rollup": LazyCommand(
            "paimon_features.cli.rollup:rollup", "Fold old tiles, so that lifetimes stay cheap."
        ),
        "history": LazyCommand(
            "paimon_features.cli.history:history", "Write features of past times to a file."
        ),
        "training-set": LazyCommand(
            "paimon_features.cli.training_set:training_set", "Build a point-in-time training set."
        ),
        "fit": LazyCommand(
            "paimon_features.cli.fit:fit", "Fit a transformer on a view, once or with its stream."
        ),
        "fitted": LazyCommand(
            "paimon_features.cli.fitted:fitted", "Show and export fitted transformers."
        ),
        "monitor": LazyCommand(
            "paimon_features.cli.monitor:monitor", "Tell what columns look like, and their drift."
        ),
        "inspect-loader": LazyCommand(
            "paimon_features.cli.inspect_loader:inspect_loader",
            "Show how fast a table loads, and why.",
        ),
        "derive": LazyCommand(
            "paimon_features.cli.derive:derive", "Write daily rows or sessions of a view."
        ),
        "request-log": LazyCommand(
            "paimon_features.cli.request_log:request_log", "Bring what was served to the lake."
        ),
        "verify": LazyCommand(
            "paimon_features.cli.verify:verify", "Compare online, tiles and raw events."
        ),
    },
}
"""Every command, in the order and under the headings of ``--help``."""


class LazyGroup(click.Group):
    """A group that imports a command only when it runs or tells about itself."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for section in COMMANDS.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for section in COMMANDS.values():
            if cmd_name in section:
                return section[cmd_name].load()
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, section in COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, command.help) for name, command in section.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; our own errors become a line on stderr and an exit code."""
        try:
            return super().invoke(ctx)
        except PaimonFeaturesError as error:
            click.echo(f"error: {error}", err=True)
            for note in getattr(error, "__notes__", ()):
                click.echo(f"  {note}", err=True)
            ctx.exit(2 if isinstance(error, WRONG_USE) else 1)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """A feature store on Flink, Paimon and Redis.

    Define features once; the lake merges them; read the same values online and in training
    sets. Start with the demo, or with a project of your own:

    \b
      paimon-features demo --into demo
      paimon-features init churn && cd churn && paimon-features plan

    COMMAND --help shows examples of each command.

    Exit codes: 0 done, 1 a check or the outside failed, 2 wrong use.
    """


def main(args: Sequence[str] | None = None) -> None:
    """The console script."""
    cli.main(args, prog_name="paimon-features")
