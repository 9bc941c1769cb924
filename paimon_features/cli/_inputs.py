"""The option ``--input``, and how the files of a source are written."""

from __future__ import annotations

from pathlib import Path

import click

from paimon_features.core.configuration.input_settings import InputSettings
from paimon_features.core.configuration.project_config import FILE_NAME, read_config

INPUT = click.option(
    "--input",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="How the file is written, as under [inputs.SOURCE]: delimiter, quote, encoding, header, "
    "names, skip, line_breaks, escape, decimal, thousands, nulls, time_format, time_zone, "
    "time_unit, columns=COLUMN=NAME; decimal to time_unit also of one column of the source: "
    "price.decimal=,; repeatable.",
)


def project_input_settings(
    definitions: Path, source: str, options: tuple[str, ...]
) -> InputSettings:
    """Return the settings of a source in the project of a definitions file, changed by
    ``--input``."""
    settings = InputSettings()
    folder = definitions.resolve().parent
    if (folder / FILE_NAME).is_file():
        settings = InputSettings.of(source, read_config(folder).inputs.get(source, {}))
    return settings.with_options(source, options)
