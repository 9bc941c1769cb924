"""A file that brings down its decoder ends no process of the caller, and the error names it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from paimon_features.core.configuration.input_settings import InputSettings
from paimon_features.core.errors import ConfigurationError
from paimon_features.core.process.supervision import run_supervised
from paimon_features.core.types.schema import Int64, String
from paimon_features.definitions import Definitions, EventSource
from paimon_features.ingest.inputs.profiles import profile_input
from paimon_features.ingest.local.files import ingest_files
from paimon_features.lake import Lake
from paimon_features.project import Project
from paimon_features.project.planning.plan import apply_plan
from tests.ingest.inputs.test_hostile_files import BEGINNING_MS, files
from tests.shop_projects import make_project

pytest.importorskip("duckdb")
SOURCE = EventSource(
    "words", schema={"user_id": Int64, "ts": Int64, "word": String}, event_time="ts"
)
DEFINITIONS = """
import paimon_features as pf
words = pf.EventSource(
    "words", schema={"user_id": pf.Int64, "ts": pf.Int64, "word": pf.String}, event_time="ts"
)
"""
CONFIG = '[project]\nname = "shop"\nengine = "local"\n[online]\nurl = "memory://"\n'
ROWS = pa.table({"user_id": range(2_000), "ts": range(2_000), "word": ["a", "b"] * 1_000})


def orc(path: Path) -> Path:
    pyarrow.orc.write_table(ROWS, path)
    return path


def damaged_orc(path: Path) -> Path:
    """A file whose bytes of a stripe are zero: Arrow 16 aborts."""
    data = orc(path).read_bytes()
    path.write_bytes(data[:100] + bytes(300) + data[400:])
    return path


def damaged_parquet(path: Path) -> Path:
    """A file with 40 more bytes in a page: Arrow 16 reads where it has no memory."""
    data = files()["plain.parquet"]
    path.write_bytes(data[:5163] + bytes(40) + data[5163:])
    return path


def test_orc_files_are_ingested_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    lake = Lake.open(str(tmp_path / "lake"), "features")
    apply_plan(lake, Definitions.of([SOURCE]), now_ms=1)
    files = [orc(tmp_path / "a.orc"), damaged_orc(tmp_path / "b.orc")]
    with pytest.raises(ConfigurationError, match=r"b\.orc: "):
        ingest_files(lake, SOURCE, files, state_dir=tmp_path / "state")
    assert not list((tmp_path / "state").rglob("*.parquet"))
    done = ingest_files(lake, SOURCE, files[:1], state_dir=tmp_path / "state")
    assert (done.accepted, done.forgotten_files) == (2_000, (str(files[1]),))


def test_a_parquet_file_that_aborts_its_reader_is_an_error_of_the_command(tmp_path: Path) -> None:
    project = make_project(tmp_path, DEFINITIONS, CONFIG)
    path = damaged_parquet(tmp_path / "words.parquet")
    done = ingest_command(project, path)
    assert done.returncode == 1, done.stderr
    assert f"{path}: " in done.stderr
    pq.write_table(ROWS, path)
    assert ingest_command(project, path).returncode == 0


def ingest_command(project: Project, path: Path) -> subprocess.CompletedProcess[str]:
    words = ("ingest", "files", "words", str(path), "--project", str(project.root))
    command = [sys.executable, "-m", "paimon_features", *words]
    return subprocess.run(command, capture_output=True, text=True)


def supervised(program: str) -> subprocess.Popen[str]:
    text = f"import os, signal, sys, time\nfrom {run_supervised.__module__} import *\n{program}"
    return subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(("end", "code"), [("sys.exit(3)", 3), ("None", 0), ("sys.exit()", 0)])
def test_the_exit_code_of_a_command_is_kept(end: str, code: int) -> None:
    process = supervised(f"run_supervised(lambda: {end}, print)")
    assert process.communicate() == ("", "")
    assert process.returncode == code


def test_a_crash_names_the_file_that_was_read() -> None:
    crash = "os.kill(os.getpid(), signal.SIGSEGV)"
    process = supervised(
        f"def run():\n  with reading('a.orc'): {crash}\nrun_supervised(run, print)"
    )
    out, _ = process.communicate()
    assert (process.returncode, out.startswith("a.orc: ")) == (1, True)
    assert "SIGSEGV" in out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_the_command(number: int) -> None:
    process = supervised(
        "def run():\n  try: print(os.getpid(), flush=True); time.sleep(60)\n"
        "  except KeyboardInterrupt: sys.exit(130)\nrun_supervised(run, print)"
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(number)
    process.communicate()
    assert process.returncode == (130 if number == signal.SIGINT else -number)


def test_a_command_ends_with_the_process_that_watches_it() -> None:
    process = supervised(
        "run_supervised(lambda: (print(os.getpid(), flush=True), time.sleep(60)), print)"
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.communicate()  # until the child has closed its end as well
    for _ in range(100):
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("it still runs")


@pytest.mark.parametrize("name", ["a.parquet", "a.orc"])
def test_a_text_that_is_not_utf_8_is_an_unreadable_row_of_init_and_of_ingest(
    name: str, tmp_path: Path
) -> None:
    words = pa.array([b"a", b"\x80b", None], pa.binary()).view(pa.string())
    rows = pa.table({"user_id": [1, 2, 3], "ts": [BEGINNING_MS] * 3, "word": words})
    path = tmp_path / name
    if name == "a.parquet":
        pq.write_table(rows, path)
    else:
        pyarrow.orc.write_table(rows, path)
    profile = profile_input(path, InputSettings(), set())
    assert (profile.rows, profile.unreadable) == (2, 1)
    lake = Lake.open(str(tmp_path / "lake"), "features")
    apply_plan(lake, Definitions.of([SOURCE]), now_ms=1)
    done = ingest_files(lake, SOURCE, [path], state_dir=tmp_path / "state")
    assert (done.accepted, done.rejected) == (2, {"unreadable": 1})
    assert "a text is not UTF-8" in done.examples["unreadable"]
