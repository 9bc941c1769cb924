"""Processes of the operating system, as tests that kill some look at them."""

from __future__ import annotations

from pathlib import Path


def is_running(pid: int | None) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
