"""SQL that rounds down, below zero too, where ``/`` and MOD do not."""

from __future__ import annotations

from paimon_features.core.windows import DAY_MS


def floor_sql(number: str, step: int) -> str:
    """Return SQL of ``windows.floor_ms``; MOD truncates towards zero, so it is shifted above zero
    first.

    >>> floor_sql("t", 300000)
    '(t - MOD(MOD(t, 300000) + 300000, 300000))'
    """
    return f"({number} - MOD(MOD({number}, {step}) + {step}, {step}))"


def first_day_sql(time: str, partition_days: int = 1) -> str:
    """Return SQL of the first day, since 1970, of the partition that contains a time in ms.

    For an event it is also its tile's: a tile divides a day.

    >>> first_day_sql("t")
    'CAST((t - MOD(MOD(t, 86400000) + 86400000, 86400000)) / 86400000 AS INT)'
    """
    return f"CAST({floor_sql(time, partition_days * DAY_MS)} / {DAY_MS} AS INT)"
