"""Input files of tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HEADER = "customer_id,unit_price,country,at_ms"
Write = Callable[[str, str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file of this name, by default one with a header alone."""

    def file(name: str, content: str | bytes = HEADER) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return file
