"""Fixtures of the trainer bridge: a lake in a temporary folder, torch with one thread."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from paimon_features.lake.catalog import Lake


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.open(tmp_path / "warehouse", "features")


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """Torch with one thread: networks of tests are too small for several."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
