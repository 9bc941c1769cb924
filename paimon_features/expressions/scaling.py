"""Numbers shared by the three implementations of ``scaled_int``."""

from __future__ import annotations

ROUNDER = "6755399441055744E0"
"""1.5 * 2^52: adding and taking it away rounds a float64 half to even (|x| < 2^51).

At this size the unit in the last place is 1, and IEEE addition rounds half to even. See
Hacker's Delight, section 17-2, for the choice of 1.5.
"""
LIMIT = 2**51 - 1
"""Greatest absolute value that ``scaled_int`` gives exactly."""
BEYOND = 2**62
"""What ``scaled_int`` gives, with its sign, for integers and decimals beyond ``LIMIT``."""
