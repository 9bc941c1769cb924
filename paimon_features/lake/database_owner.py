"""Which project a database belongs to: several teams share a warehouse by a database each.

Two projects in one database would replace each other's definitions, and their tables have the same
names. The record is protection only: a lost one is written again by the next ``apply``.
"""

from __future__ import annotations

from typing import Any

from paimon_features.core.errors import ConfigurationError
from paimon_features.lake.catalog import Lake
from paimon_features.lake.ownership.locks import locked
from paimon_features.lake.storage.json_files import read_json, write_json

_KIND = "projects"


def owner(lake: Lake) -> str | None:
    """Return the project of the lake's database; None before its first ``apply``."""
    content: Any = read_json(lake.side_folder / _KIND / f"{lake.database}.json")
    name = content.get("project") if isinstance(content, dict) else None
    return name if isinstance(name, str) else None


def check_owner(lake: Lake, project: str) -> None:
    """Raise ConfigurationError if the database belongs to another project."""
    current_owner = owner(lake)
    if current_owner is not None and current_owner != project:
        raise ConfigurationError(
            f"database {lake.database!r} of {lake.warehouse} belongs to project "
            f"{current_owner!r}, and this is project {project!r}: it would replace that project's "
            f'definitions. Set a database of its own ([lake] database = "{project}"); if the '
            "project was renamed, 'paimon-features apply --take-over' makes the database its own"
        )


def claim(lake: Lake, project: str, *, take_over: bool = False) -> bool:
    """Make the database that of a project; whether it was not before.

    Raises
    ------
    ConfigurationError
        If it belongs to another one, unless ``take_over``.
    """
    path = lake.side_folder / _KIND / f"{lake.database}.json"
    lock = lake.side_folder / "locks" / f"project.{lake.database}"
    if owner(lake) == project:
        return False
    with locked(lock, f"the project of database {lake.database!r}") as check:
        if not take_over:
            check_owner(lake, project)
        check()
        write_json(path, {"project": project})
    return True
