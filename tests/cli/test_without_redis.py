"""Commands that need the Redis client say so where it is not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("redis", "hiredis"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Blocked())
from paimon_features.cli import main

sys.argv = ["paimon-features", *sys.argv[1:]]
main()
"""
DEFINITIONS = """
import paimon_features as pf

shop = pf.EventSource("shop", schema={"user_id": pf.Int64, "t": pf.Int64}, event_time="t")
user = pf.Entity("user", keys={"user_id": pf.Int64})
spend = pf.FeatureView("spend", source=shop, entity=user, features=[pf.Count(windows=["1d"])])
"""


@pytest.mark.parametrize(
    "command",
    [
        ["lookup", "spend", "--entity", "user_id=1"],
        ["lookup", "spend", "--entity", "user_id=1", "--explain"],
        ["materialize"],
        ["serve", "--port", "0"],
    ],
    ids=lambda command: command[0],
)
def test_the_extra_is_named(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "paimon-features.toml").write_text('[project]\nname = "shop"\n')
    (tmp_path / "features.py").write_text(DEFINITIONS)
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command, "--project", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode in (1, 2), ended
    assert "needs the package 'redis': pip install 'paimon-features[serve]'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_package_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "paimon-features.toml").write_text('[project]\nname = "shop"\n')
    (tmp_path / "features.py").write_text(DEFINITIONS)
    program = PROGRAM.replace('("redis", "hiredis")', '("hiredis",)')
    ended = subprocess.run(
        [sys.executable, "-c", program, "materialize", "--project", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "needs the package 'hiredis': pip install 'paimon-features[serve]'" in ended.stderr
