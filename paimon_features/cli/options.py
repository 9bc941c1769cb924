"""Options that many commands share."""

from __future__ import annotations

import click

PROJECT = click.option(
    "--project", "path", default=".", show_default=True, help="Folder of the project."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for a program to read.")
