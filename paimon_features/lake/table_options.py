"""Strings that this package stores with a table, as options of Paimon."""

from __future__ import annotations

from collections.abc import Mapping

from paimon_features.core.times.partition_days import WHOLE_HISTORY
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata_damage import metadata_damage
from paimon_features.lake.specs import PARTITION_DAYS_OPTION

PROPERTY_PREFIX = "paimon-features."


def properties(lake: Lake, name: str) -> dict[str, str]:
    """Return the properties stored by ``set_properties``, keys without their common prefix."""
    options = lake.table(name).table_schema.options
    return {
        key.removeprefix(PROPERTY_PREFIX): value
        for key, value in options.items()
        if key.startswith(PROPERTY_PREFIX)
    }


def set_properties(lake: Lake, name: str, properties: Mapping[str, str | None]) -> None:
    """Store strings with the table, as options ``paimon-features.<key>``; None removes one."""
    lake.set_options(name, {PROPERTY_PREFIX + key: value for key, value in properties.items()})


def partition_days(lake: Lake, name: str) -> int:
    """Return how many days a partition of a table of events or tiles contains.

    Older partitions of a table of events may contain fewer.

    Raises
    ------
    UnknownNameError
        If the table does not exist.
    DamagedFileError
        If its option is not a valid number of days.
    """
    return defined_partition_days(lake, name) or 1


def defined_partition_days(lake: Lake, name: str) -> int | None:
    """``partition_days``, None for a table for which they were not set."""
    text = lake.table(name).table_schema.options.get(PARTITION_DAYS_OPTION)
    if text is None:
        return None
    with metadata_damage(f"a schema in {lake.path(name)}/schema", f"table {name!r}"):
        days = int(text)
        if not 1 <= days <= WHOLE_HISTORY:
            raise ValueError(f"option {PARTITION_DAYS_OPTION!r} is {text}")
        return days


def set_partition_days(lake: Lake, name: str, days: int) -> None:
    """Let partitions that are written from now on contain this number of days.

    Only for a table without rows; or, for more days than before, for a table of events: the
    partitions that it has remain, and are within one of the new ones each.
    """
    lake.set_options(name, {PARTITION_DAYS_OPTION: str(days)})
