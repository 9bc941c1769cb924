"""``demo``: the complete loop once, on a real retail log."""

from __future__ import annotations

import runpy
from pathlib import Path

import click

from paimon_features.errors import SetupError

PLACES = ("../examples/retail", "_examples/retail")
"""The demo relative to this package: in a clone, and in an installed wheel."""


@click.command()
@click.option(
    "--into", default="demo", show_default=True, type=click.Path(path_type=Path),
    help="Folder for the project; an earlier demo there is replaced.",
)  # fmt: skip
def demo(into: Path) -> None:
    """Run the complete loop on a real retail log, in about three minutes.

    Ingest, tiles on Flink, Redis, lookups with freshness, a training set, two epochs of a small
    torch model with feedback in between, and a check that all paths agree. Leaves a project to
    explore, with report.html; stops every process it started.

    Needs the extra 'demo'.

    \b
    paimon-features demo --into demo
    """
    package = Path(__file__).resolve().parents[1]
    for place in PLACES:
        script = (package / place / "run.py").resolve()
        if script.is_file():
            runpy.run_path(str(script))["main"](into)
            return
    raise SetupError(
        "this installation does not include the demo; clone the repository, 'make demo'"
    )
