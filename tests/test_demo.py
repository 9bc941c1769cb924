"""``paimon-features demo`` ends what it started; ``test_retail_log.py`` checks what it computes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.os_processes import processes_of
from tests.waiting import await_true

pytestmark = [pytest.mark.flink, pytest.mark.redis, pytest.mark.timeout(600)]


def test_an_interrupted_demo_ends_what_it_started(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "paimon_features", "demo", "--into", str(tmp_path / "demo")]
    # a group of its own: the signal of a terminal reaches every process in it
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "$ paimon-features ingest" in line:
                break
        await_true(lambda: set(processes_of(tmp_path / "demo")) > {process.pid})
        os.killpg(process.pid, signal.SIGINT)
        process.stdout.read()
    assert process.returncode == 130
    await_true(lambda: processes_of(tmp_path / "demo") == [])
