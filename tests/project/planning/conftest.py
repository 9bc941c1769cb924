"""The lake whose plans the tests make."""

from __future__ import annotations

from pathlib import Path

import pytest

from paimon_features.lake import Lake


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty lake."""
    return Lake.open(tmp_path / "lake", "features")
