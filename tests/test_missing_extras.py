"""What a host does not install it is told to install: one line, exit 1, no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DEFINITIONS = """
import paimon_features as pf

clicks = pf.EventSource("clicks", event_time="t", schema={"user": pf.Int64, "t": pf.Int64})
view = pf.FeatureView("clicks", source=clicks, entity=pf.Entity("user", keys={"user": pf.Int64}),
    features=[pf.Count(windows=["1h"])])
"""
BLOCK = """
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, NotInstalled())
"""
LAKE = ("pypaimon", "pypaimon_rust", "pandas", "polars")
ARROW = ("pyarrow",)
SERVE = ("redis", "hiredis", "msgspec", "httptools", "uvloop", "prometheus_client")
BASE = (*LAKE, *ARROW, *SERVE, "numpy", "rich", "tzdata", "httpx", "duckdb", "pyflink", "torch")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "features.py").write_text(DEFINITIONS)
    (tmp_path / "paimon-features.toml").write_text(
        '[project]\nname = "shop"\n[online]\nurl = "redis://127.0.0.1:1/0"\n'
    )
    return tmp_path


def run(names: tuple[str, ...], script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", BLOCK.format(names=names) + script],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
    )


def command(*args: str) -> str:
    return f"from paimon_features.cli import main\nmain({list(args)!r})"


LOOKUP = ("lookup", "clicks:count_1h", "--entity", "user=7")


@pytest.mark.parametrize(
    ("names", "args", "package", "extra"),
    [
        (BASE, ("plan",), "numpy", "lake"),
        (BASE, LOOKUP, "rich", "serve"),
        (BASE, ("serve",), "numpy", "serve"),
        (BASE, (*LOOKUP, "--explain"), "rich", "serve"),
        (BASE, ("materialize",), "rich", "lake"),
        (BASE, ("describe",), "numpy", "lake"),
        ((*LAKE, *ARROW), ("plan",), "pypaimon", "lake"),
        ((*LAKE, *ARROW), ("apply",), "", "lake"),
        ((*LAKE, *ARROW), ("materialize",), "pyarrow", "lake"),
        ((*LAKE, *ARROW), ("training-set", "t", "--service", "s", "--rows", "r"), "", "lake"),
        (SERVE, LOOKUP, "redis", "serve"),
        (SERVE, ("serve",), "msgspec", "serve"),
        (("duckdb",), ("backfill", "clicks", "--engine", "local"), "duckdb", "local"),
    ],
)  # fmt: skip
def test_a_command_names_the_extra_that_it_needs(
    names: tuple[str, ...], args: tuple[str, ...], package: str, extra: str, project: Path
) -> None:
    if args[0] == "backfill":
        done = run((), command("apply"), project)
        assert done.returncode == 0, done.stderr
    done = run(names, command(*args), project)
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("error: ")
    assert f"pip install 'paimon-features[{extra}]'" in done.stderr
    assert repr(package) in done.stderr or not package


@pytest.mark.parametrize(
    ("names", "script", "message"),
    [
        (BASE, "pf.Sum", "paimon_features.Sum needs the package 'numpy'"),
        (
            BASE,
            "from paimon_features.serving.client import FeatureClient; FeatureClient('http://127.0.0.1:1').health()",
            "'httpx'.*[[]client[]]",
        ),
        (LAKE, "pf.Project.open('.').plan()", "lake needs the package 'pypaimon'.*[[]lake[]]"),
        (LAKE, "pf.Project.open('.').lake", "'pypaimon'.*[[]lake[]]"),
        (LAKE, "from paimon_features.lake import Lake; Lake.open('w', 'd')", "[[]lake[]]"),
        (SERVE, "pf.Project.open('.').store", "'redis'.*[[]serve[]]"),
        (ARROW, "pf.Int64.arrow", "'pyarrow'.*[[]arrow[]]"),
    ],
)
def test_a_call_names_the_extra_that_it_needs(
    names: tuple[str, ...], script: str, message: str, project: Path
) -> None:
    code = f"""
import re
import paimon_features as pf
try:
    {script}
except pf.errors.MissingExtraError as error:
    assert re.search({message!r}, str(error)), error
else:
    sys.exit("nothing was raised")
"""
    done = run(names, code, project)
    assert done.returncode == 0, done.stderr


def test_help_and_version_need_no_extra(project: Path) -> None:
    assert "Serve and train" in run(BASE, command("--help"), project).stdout
    assert "jars" in run(BASE, command("check", "installation", "--json"), project).stdout
    assert (
        run(BASE, "from paimon_features.serving.client import FeatureClient", project).returncode
        == 0
    )
