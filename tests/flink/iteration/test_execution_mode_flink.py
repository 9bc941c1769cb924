"""``mode="auto"``: threads where a job has shown that they can be had, else processes, said so."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyflink", reason="pip install 'paimon-features[flink]'")

from paimon_features.flink.stream_environment import execution_target
from paimon_features.iteration.flink import IterationJob, execution_mode, open_stream_environment
from paimon_features.iteration.flink.execution_mode import resolve_mode

pytestmark = pytest.mark.flink


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty user's cache, and a process that knows nothing."""
    monkeypatch.setattr(execution_mode, "cache_root", lambda: tmp_path / "cache")
    monkeypatch.setattr(execution_mode, "_failed_probes", {})
    return tmp_path / "cache"


def _not_again(*_: Any) -> str | None:
    raise AssertionError("it was tried again")


def test_the_probe_of_thread_mode_runs_once_and_is_cached(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert resolve_mode("auto", None) == "thread"
    assert [path.name for path in cache.iterdir()] == ["python-threads.json"]
    monkeypatch.setattr(execution_mode, "_probe", _not_again)
    assert resolve_mode("auto", None) == "thread"
    # another interpreter is another place
    monkeypatch.setattr(execution_mode.sys, "version", "4.0")
    with pytest.raises(AssertionError, match="tried again"):
        resolve_mode("auto", None)


def test_process_mode_is_used_with_a_warning_if_the_probe_fails(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WithoutPackages(execution_mode.ThreadModeProbe):
        def open(self, runtime_context: Any) -> None:
            import a_package_that_is_not_there  # type: ignore[import-not-found]  # noqa: F401

    monkeypatch.setattr(execution_mode, "ThreadModeProbe", WithoutPackages)
    with pytest.warns(UserWarning, match=r"in processes.*No module named 'a_package_that_is_not"):
        assert resolve_mode("auto", None) == "process"
    assert not cache.exists()
    monkeypatch.setattr(execution_mode, "_probe", _not_again)
    with pytest.warns(UserWarning, match="a_package_that_is_not_there"):
        assert resolve_mode("auto", None) == "process"


def test_without_pemja_there_is_no_probe(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution_mode, "_probe", _not_again)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.warns(UserWarning, match="pemja is not installed"):
        assert resolve_mode("auto", None) == "process"


def test_an_explicit_mode_is_used_without_a_probe(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution_mode, "_probe", _not_again)
    assert resolve_mode("thread", None) == "thread"
    assert resolve_mode("process", "127.0.0.1:1") == "process"
    # nothing answers there before the job is started
    assert resolve_mode("auto", execution_mode.UNKNOWN_CLUSTER) == "thread"


def test_the_execution_target_of_an_environment_is_known(tmp_path: Path) -> None:
    assert execution_target(open_stream_environment(state_dir=tmp_path, workers=True)) is None
    remote = open_stream_environment("127.0.0.1:18081", state_dir=tmp_path)
    assert execution_target(remote) == "127.0.0.1:18081"


def test_a_job_knows_its_mode_before_it_starts(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution_mode, "_probe", lambda *_: None)
    env = open_stream_environment(state_dir=tmp_path, workers=True)
    job = IterationJob(env, state_dir=tmp_path)
    assert job.settings.mode == "thread"
