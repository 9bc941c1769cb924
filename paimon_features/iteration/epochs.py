"""Epoch numbers with a special meaning; when an epoch ends, ``tracker`` decides."""

from __future__ import annotations

from typing import Final

NONE: Final = -1
"""Epoch watermark of an operator before its first one."""

END: Final = 2**31 - 2
"""Watermark after the last record; also the epoch of records emitted at the end."""
