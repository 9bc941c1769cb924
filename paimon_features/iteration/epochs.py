"""Epoch numbers that mean something: none yet, and the end."""

from __future__ import annotations

from typing import Final

NONE: Final = -1
"""The watermark of an operator before its first one."""

END: Final = 2**31 - 2
"""The watermark after which nothing comes; also the epoch of what is emitted at the end."""
