"""Numbers shared by the three implementations of ``scaled_int``."""

from __future__ import annotations

ROUNDER = "6755399441055744E0"
"""1.5 * 2^52: adding and subtracting it rounds a float64 half to even (|x| < 2^51).

At this size the unit in the last place is 1, and IEEE addition rounds half to even. See
Hacker's Delight, section 17-2, for the choice of 1.5.
"""
LIMIT = 2**51 - 1
"""Greatest absolute value that ``scaled_int`` returns exactly."""
BEYOND = 2**62
"""The value of ``scaled_int``, with its sign, for integers and decimals beyond ``LIMIT``."""
