"""What a column of an input is: its type, its role, and what is ambiguous."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paimon_features.core.types.schema import DataType

Role = Literal["event time", "key", "event id", "measure", "category", "flag", "other", "skipped"]


@dataclass(frozen=True, slots=True)
class InputColumnProfile:
    """A column of an input: its name there and as a column of a source, its type and role.

    ``type`` is None for a column that cannot be one of a source; ``notes`` say why, and what is
    ambiguous. ``per_value`` is the mean number of rows of a value, 0 without values.
    ``time_format`` is None for texts that ``ingest`` reads as they are.
    """

    field: str
    name: str
    stored: str
    type: DataType | None
    nulls: int
    distinct: int
    example: str
    role: Role = "other"
    decimals: int | None = None
    per_value: float = 0.0
    time_format: str | None = None
    time_unit: str | None = None
    days_only: bool = False
    notes: tuple[str, ...] = ()
