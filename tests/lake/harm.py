"""Random damages of files."""

from __future__ import annotations

import random
from pathlib import Path


def harm(dice: random.Random, path: Path, others: list[Path]) -> str:
    """Damage a file at random; returns how."""
    content = bytearray(path.read_bytes())
    how = dice.choice(["flip"] * 6 + ["cut", "zeros", "swap"])
    at = dice.randrange(len(content))
    if how == "flip":
        content[at] ^= 1 << dice.randrange(8)
    elif how == "cut":
        del content[at:]
    elif how == "zeros":
        end = min(len(content), at + dice.randrange(1, 600))
        content[at:end] = bytes(end - at)
    else:
        content = bytearray(dice.choice(others).read_bytes())
    path.write_bytes(content)
    return f"{how} at {at} of {path.name}"
