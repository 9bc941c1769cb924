"""docs/concepts/semantics.md: every rule names tests, and they exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
RULES = [
    line
    for line in (ROOT / "docs" / "concepts" / "semantics.md")
    .read_text(encoding="utf-8")
    .splitlines()
    if line.startswith("|") and not line.startswith(("| edge |", "|---"))
]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::((?:test_|Test)\w+)`")


def test_every_rule_names_a_test() -> None:
    assert len(RULES) > 100
    assert [rule for rule in RULES if not NAMED.search(rule)] == []


def test_every_named_test_exists() -> None:
    known: dict[str, set[str]] = {}
    for file, name in (found for rule in RULES for found in NAMED.findall(rule)):
        if file not in known:
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            known[file] = {
                n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)
            }
        assert name in known[file], f"{file}::{name}"
