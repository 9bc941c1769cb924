"""``tools/setup.sh`` refuses a machine without a fitting Python, and says what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A tree with the script and nothing installed."""
    shutil.copytree(ROOT / "tools", tmp_path / "tree/tools")
    shutil.copytree(ROOT / "locks", tmp_path / "tree/locks")
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "tree")
    return tmp_path / "tree"


def set_up(checkout: Path, path: Path, python: str = "") -> subprocess.CompletedProcess[str]:
    # the few tools that the script itself needs, but no Python
    path.mkdir(exist_ok=True)
    for tool in ("bash", "cat", "cksum", "dirname"):
        (path / tool).symlink_to(str(shutil.which(tool)))
    return subprocess.run(
        ["bash", "tools/setup.sh", "test"],
        cwd=checkout,
        env={"PATH": str(path), "PYTHON": python, "HOME": os.environ.get("HOME", "/")},
        capture_output=True,
        text=True,
    )


def test_without_a_python_the_message_says_how_to_name_one(checkout: Path, tmp_path: Path) -> None:
    done = set_up(checkout, tmp_path / "bin")
    assert done.returncode == 2
    assert "no Python 3.11, 3.12 or 3.13 on PATH" in done.stderr
    assert "make PYTHON=" in done.stderr
    assert not (checkout / ".venv").exists()


def test_a_named_python_of_another_version_is_refused(checkout: Path, tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = set_up(checkout, tmp_path / "bin", python=str(old))
    assert done.returncode == 2
    assert f"PYTHON={old} is not Python 3.11, 3.12 or 3.13" in done.stderr


def test_a_python_without_venv_is_distinguished(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    bare = tmp_path / "bin/python3.11"
    bare.write_text('#!/bin/sh\ncase "$1" in -m) exit 1;; --version) echo Python 3.11.9;; esac\n')
    bare.chmod(0o755)
    done = set_up(checkout, tmp_path / "bin")
    assert done.returncode == 2
    assert "apt install python3-venv" in done.stderr


def test_an_unknown_profile_is_wrong_use(checkout: Path) -> None:
    done = subprocess.run(
        ["bash", "tools/setup.sh", "tset"], cwd=checkout, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "unknown profile 'tset'; available: demo, docs, test" in done.stderr
    assert not (checkout / ".venv").exists()
