"""The checks of ``doctor`` for components that are present, broken and missing."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from paimon_features.core.errors import SetupError
from paimon_features.core.installation.jars import Jar
from paimon_features.project import doctor
from paimon_features.testing.servers.redis_server import RedisServer
from paimon_features.testing.servers.resp import connect


@pytest.mark.parametrize(
    ("version", "state"),
    [((3, 10), "missing"), ((3, 11), "ok"), ((3, 12), "ok"), ((3, 13), "ok"), ((3, 14), "ok")],
)
def test_python_must_be_3_11_or_3_12(version: tuple[int, int], state: str) -> None:
    assert doctor.check_python(version).state == state


def test_an_extra_that_is_not_installed_is_optional_and_names_its_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(doctor.EXTRAS, "torch", ("no_such_module", "training"))
    check = doctor.check_extra("torch")
    assert check.state == "optional"
    assert "pip install 'paimon-features[torch]'" in check.remedy


@pytest.mark.parametrize(("needed", "state"), [(True, "missing"), (False, "optional")])
def test_java_is_required_only_with_the_flink_extra(
    needed: bool, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_java() -> None:
        raise SetupError("no Java was found. Install one")

    monkeypatch.setattr(doctor, "find_java", no_java)
    check = doctor.check_java(needed)
    assert (check.state, check.remedy) == (state, "no Java was found. Install one")


def test_jars_are_hashed_completely_and_missing_differs_from_corrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jars = [
        Jar("flink", "org.example:a:1.0", hashlib.sha256(b"a").hexdigest()),
        Jar("flink", "org.example:b:1.0", hashlib.sha256(b"b").hexdigest()),
    ]
    monkeypatch.setenv("PAIMON_FEATURES_CACHE", str(tmp_path))
    monkeypatch.setattr(doctor, "locked_jars", lambda groups: jars)
    (tmp_path / "jars").mkdir()
    first, second = tmp_path / "jars/a-1.0.jar", tmp_path / "jars/b-1.0.jar"

    first.write_bytes(b"x")
    check = doctor.check_jars("flink", needed=True)
    assert check.state == "missing"
    assert check.found.startswith(f"not in the cache: b-1.0.jar; {first} is corrupt: expected")
    assert check.remedy == f"run: rm {first} && paimon-features jars --group flink"
    assert doctor.check_jars("flink", needed=False).state == "optional"

    first.write_bytes(b"a")
    second.write_bytes(b"b")
    check = doctor.check_jars("flink", needed=True)
    assert check.state == "ok"
    assert check.found.startswith("2 in ")


@pytest.mark.redis
def test_a_reachable_online_store_that_never_evicts_is_ok() -> None:
    with RedisServer() as server:
        check = doctor.check_online_store(server.url, needed=True)
        assert check.state == "ok"
        assert check.found.startswith("reachable, version ")


@pytest.mark.redis
def test_an_online_store_that_may_evict_is_reported() -> None:
    with RedisServer() as server:
        with connect(server.url) as connection:
            connection.request("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        check = doctor.check_online_store(server.url, needed=True)
        assert check.state == "missing"
        assert "allkeys-lru" in check.found
        assert "noeviction" in check.remedy


@pytest.mark.redis
def test_an_online_store_with_unknown_eviction_policy_is_ok_with_a_warning() -> None:
    with RedisServer() as server:
        with connect(server.url) as connection:
            connection.request("ACL", "SETUSER", "default", "-config")
        check = doctor.check_online_store(server.url, needed=True)
        assert check.state == "ok"
        assert "its maxmemory-policy is unknown" in check.found


def test_an_unreachable_online_store_is_missing_only_if_required() -> None:
    # port 1 is reserved: no process listens on it
    check = doctor.check_online_store("redis://127.0.0.1:1/0", needed=True)
    assert check.state == "missing"
    assert "127.0.0.1:1" in check.found
    assert "[online] url" in check.remedy
    assert doctor.check_online_store("redis://127.0.0.1:1/0", needed=False).state == "optional"


def test_a_folder_that_does_not_exist_is_checked_at_its_closest_parent(tmp_path: Path) -> None:
    check = doctor.check_folder("warehouse", tmp_path / "not/yet/there")
    assert check.state == "ok"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, which is never writable")
def test_a_read_only_folder_is_reported_even_for_root() -> None:
    assert doctor.check_folder("warehouse", Path("/proc/warehouse")).state == "missing"


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_ENOUGH_BYTES", 1 << 60)
    check = doctor.check_folder("warehouse", tmp_path)
    assert (check.state, check.remedy) == (
        "missing",
        "free up disk space: at least 2 GiB are required",
    )
