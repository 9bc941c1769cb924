"""``paimon-features init``: a project folder with a worked example."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import click

from paimon_features.errors import ConfigurationError

FILES = ("paimon-features.toml", "features.py")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=".")
def init(folder: Path) -> None:
    """Create a project in FOLDER (default: the current one) with a worked example.

    Writes paimon-features.toml, the settings, and features.py, the definitions of a small shop.
    Existing files are never overwritten.

    \b
      paimon-features init churn
      cd churn
      paimon-features plan        shows what would be created
    """
    write_project(folder)
    for name in FILES:
        click.echo(f"wrote {folder / name}")
    enter = "" if folder.resolve() == Path.cwd() else f"cd {folder} && "
    click.echo(
        f"next: {enter}paimon-features plan  (then apply, ingest, backfill, materialize, lookup)"
    )


def write_project(folder: Path) -> None:
    """Write the files of a new project into ``folder``, which is created if it is missing.

    Raises
    ------
    ConfigurationError
        If one of the files already exists; then nothing is written.
    """
    present = [name for name in FILES if (folder / name).exists()]
    if present:
        raise ConfigurationError(
            f"{folder} already contains {' and '.join(present)}; nothing was written. "
            "Name another folder, or move the files away"
        )
    folder.mkdir(parents=True, exist_ok=True)
    templates = resources.files("paimon_features.cli").joinpath("templates")
    for name in FILES:
        text = templates.joinpath(name).read_text("utf-8")
        text = text.replace("@NAME@", project_name(folder.resolve().name))
        # "x": whoever made the file since we looked keeps it
        with (folder / name).open("x", encoding="utf-8") as file:
            file.write(text)


def project_name(folder_name: str) -> str:
    """Derive a project name from a folder's name.

    >>> project_name("Churn-2011"), project_name("2nd try"), project_name("")
    ('churn_2011', 'project_2nd_try', 'project')
    """
    name = re.sub(r"[^a-z0-9]+", "_", folder_name.lower()).strip("_")
    return name if name[:1].isalpha() else f"project_{name}".rstrip("_")
