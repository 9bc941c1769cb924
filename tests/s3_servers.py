"""The S3 servers of tests: moto's, and the programs that ``make chaos`` installs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

PROGRAMS = ("gofakes3", "versitygw")


def program(name: str) -> Path | None:
    """The path of a program; None for moto's server. Skips where it is not installed."""
    if name == "moto":
        return None
    folder = os.environ.get("PAIMON_FEATURES_GO_PROGRAMS")
    if not folder:
        pytest.skip(f"{name} is not installed: make chaos does it where there is Go")
    return Path(folder) / name


def strictest() -> Path | None:
    """The server that checks most, signatures and keys included, of those that are installed."""
    return program("versitygw") if os.environ.get("PAIMON_FEATURES_GO_PROGRAMS") else None
