"""The page of supported versions names those that are locked."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reference/versions.md"


def locked() -> dict[str, set[str]]:
    """The versions of each package and jar that the tests may run with."""
    found: dict[str, set[str]] = {}
    lines = (ROOT / "locks/test.txt").read_text().splitlines()
    matches = [re.match(r"([a-z0-9._-]+)==([^ ;\\]+)", line) for line in lines]
    for match in filter(None, matches):
        found.setdefault(match[1], set()).add(match[2])
    jars = tomllib.loads((ROOT / "paimon_features/core/installation/jars.lock.toml").read_text())[
        "jar"
    ]
    for jar in jars:
        _, name, version = jar["coordinate"].split(":")[:3]
        found.setdefault(name, set()).add(version)
    return found


def test_the_page_names_the_locked_versions() -> None:
    table = PAGE.read_text().partition("## ")[0]
    rows = dict(re.findall(r"^\| ([^|]+?) \| ([0-9.]+) \|", table, re.M))
    known = locked()
    checked = {name: version for name, version in rows.items() if name in known}
    assert len(checked) >= 14
    for name, version in checked.items():
        # a post release is the same program, packaged again
        assert any(found.split(".post")[0] == version for found in known[name]), name
    # what is left is no package
    assert {name.split(",")[0] for name in rows.keys() - checked.keys()} == {"Java", "Python"}
