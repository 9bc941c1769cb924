"""Commands import pypaimon without pandas and polars, which stay usable."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEFINITIONS = """
import paimon_features as pf
{more}
clicks = pf.EventSource("clicks", event_time="t", schema={{"user": pf.Int64, "t": pf.Int64}})
view = pf.FeatureView("clicks", source=clicks, entity=pf.Entity("user", keys={{"user": pf.Int64}}),
    features=[pf.Count(windows=["1h"])])
"""
REPORT = """
import atexit, sys
from paimon_features.cli import main

def report():
    frames = sorted({"pandas", "polars"} & sys.modules.keys())
    print(frames, file=sys.stderr)
    if not frames:
        import pandas as pd
        from pypaimon.read import table_read
        assert table_read.pandas.DataFrame is pd.DataFrame
        import pyarrow as pa
        assert pa.table({"x": [1]}).to_pandas().x.tolist() == [1]

atexit.register(report)
"""


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", "[]"),
        pytest.param("import pandas", "['pandas', 'polars']", marks=pytest.mark.long),
    ],
)
def test_commands_import_no_data_frames(more: str, expected: str, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    (tmp_path / "features.py").write_text(DEFINITIONS.format(more=more))
    (tmp_path / "paimon-features.toml").write_text('[project]\nname = "shop"\n')
    # check reads no definitions
    for command in ("apply", "plan", "describe", *(() if more else ("check",))):
        done = subprocess.run(
            [sys.executable, "-c", REPORT + f"main([{command!r}])"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr.splitlines() == [expected], command


def test_a_lookup_imports_neither_pypaimon_nor_arrow(tmp_path: Path) -> None:
    (tmp_path / "features.py").write_text(DEFINITIONS.format(more=""))
    (tmp_path / "paimon-features.toml").write_text(
        '[project]\nname = "shop"\n[online]\nurl = "memory://"\n'
    )
    script = """
import atexit, sys
from paimon_features.cli import main
names = {"pypaimon", "pyarrow", "pandas", "polars", "duckdb"}
atexit.register(lambda: print(sorted(names & sys.modules.keys())))
main(["lookup", "clicks:count_1h", "--entity", "user=7"])
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert "is not in the online store yet" in done.stderr
    assert done.stdout == "[]\n"
