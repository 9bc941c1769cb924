"""Verified files in a folder that this process cannot write."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from paimon_features.core.installation.cache import VerifiedFolder


def test_a_file_is_found_where_nothing_can_be_recorded(tmp_path: Path) -> None:
    (tmp_path / "a.jar").write_bytes(b"content")
    # a folder at its place makes writing and removing the record fail, also for root
    (tmp_path / f".verified.{os.getpid()}").mkdir()
    folder = VerifiedFolder(tmp_path)
    sha256 = hashlib.sha256(b"content").hexdigest()
    assert folder.contains("a.jar", sha256)
    assert not folder.contains("a.jar", "0" * 64)
    assert not (tmp_path / ".verified.json").exists()
