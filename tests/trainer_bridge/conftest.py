"""A lake in a temporary folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from paimon_features.tables.catalog import Lake


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.open(tmp_path / "warehouse", "features")
