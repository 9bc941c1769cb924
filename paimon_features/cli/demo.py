"""``demo``: the complete circle once, on a real retail log."""

from __future__ import annotations

import runpy
from pathlib import Path

import click

from paimon_features.core.errors import SetupError

PLACES = ("../examples/retail", "_examples/retail")
"""The demo relative to this package: in a clone, and in an installed wheel."""


@click.command()
@click.option(
    "--into", default="demo", show_default=True, type=click.Path(path_type=Path),
    help="Folder for the project; an earlier demo there is replaced.",
)  # fmt: skip
def demo(into: Path) -> None:
    """Run the complete circle on a real retail log, in a minute or two.

    Ingest, tiles, Redis and a training set; a model is trained, registered and served. Then the
    last four weeks of the log stream through Flink, and whoever orders gets a prediction. Their
    outcomes are joined, a second version is trained on them, passes the gate, and answers from the
    same server. A loop by hand feeds losses back and draws hard samples. All paths are compared.
    Leaves a project to explore, with report.html; stops every process it started.

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
