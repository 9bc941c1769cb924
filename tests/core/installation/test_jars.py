"""The Flink jars, downloaded with the real downloader from a local Maven repository."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from paimon_features.core.errors import MissingExtraError, SetupError
from paimon_features.core.installation import jars as jars_module
from paimon_features.core.installation.jars import (
    DEFAULT_GROUPS,
    Jar,
    class_path,
    fetch_jar_details,
    fetch_jars,
    locked_jars,
)
from tests.http_servers import ThreadingHTTPServer
from tests.waiting import LONG_S, await_true

pytest.importorskip("jgo", reason="needs the extra flink: the downloader jgo is not installed")

BODIES = {"alpha": b"alpha" * 50_000, "beta": b"beta" * 70_000}
JARS = [
    Jar("flink", f"org.example:{name}:1.0", hashlib.sha256(body).hexdigest())
    for name, body in BODIES.items()
]


class Repository:
    """A Maven repository over HTTP that can drop, truncate, alter and delay its jars."""

    def __init__(self) -> None:
        self.bodies = {f"/{jar.maven_path.as_posix()}": BODIES[_name(jar)] for jar in JARS}
        self.requests: list[str] = []
        self.broken_tries = 0
        self.hold = threading.Event()
        self.hold.set()
        repository = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = repository.bodies.get(self.path)
                if body is None:
                    self.send_error(404)
                    return
                repository.requests.append(self.path.rsplit("/", 1)[1])
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if repository.broken_tries > 0:
                    repository.broken_tries -= 1
                    body = body[:1000]
                self.wfile.write(body[:1000])
                repository.hold.wait(120)
                # a test may have killed the client
                with suppress(OSError):
                    self.wfile.write(body[1000:])

            def log_message(self, *args: object) -> None:
                """Log nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/maven2"
        self.bodies = {f"/maven2{path}": body for path, body in self.bodies.items()}

    def replace(self, name: str, body: bytes | None) -> None:
        (path,) = [path for path in self.bodies if f"/{name}-1.0.jar" in path]
        if body is None:
            del self.bodies[path]
        else:
            self.bodies[path] = body


def _name(jar: Jar) -> str:
    return jar.coordinate.split(":")[1]


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Repository]:
    repository = Repository()
    thread = threading.Thread(target=repository.server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setattr(jars_module, "locked_jars", lambda groups=None: JARS)
    monkeypatch.setenv("PAIMON_FEATURES_MAVEN_MIRROR", repository.url)
    monkeypatch.setenv("PAIMON_FEATURES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("M2_REPO", str(tmp_path / "m2"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield repository
    repository.hold.set()
    repository.server.shutdown()
    repository.server.server_close()
    thread.join()


def cached(tmp_path: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (tmp_path / "cache/jars").glob("*.jar")}


WHOLE = {f"{name}-1.0.jar": body for name, body in BODIES.items()}


def test_the_lock_file_has_each_jar_once_with_a_coordinate_and_a_hash() -> None:
    jars = locked_jars()
    assert len({jar.file_name for jar in jars}) == len(jars)
    for jar in jars:
        # a classifier may follow the version
        assert jar.coordinate.count(":") in (2, 3)
        assert len(bytes.fromhex(jar.sha256)) == 32
    assert {jar.group for jar in locked_jars(DEFAULT_GROUPS)} == set(DEFAULT_GROUPS)


def test_an_unknown_group_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(SetupError, match="unknown jar group 'kafak'; available: flink, kafka"):
        locked_jars(["kafak"])


def test_missing_jars_are_downloaded_from_the_mirror_and_kept(
    repository: Repository, tmp_path: Path
) -> None:
    details = fetch_jar_details()
    assert cached(tmp_path) == WHOLE
    assert [item.origin for item in details] == ["download", "download"]
    assert [item.size_bytes for item in details] == [len(body) for body in BODIES.values()]


def test_a_second_run_needs_no_network(repository: Repository, tmp_path: Path) -> None:
    paths = fetch_jars()
    repository.bodies.clear()
    assert fetch_jars() == paths
    assert class_path() == ":".join(map(str, paths))
    assert repository.requests == ["alpha-1.0.jar", "beta-1.0.jar"]


def test_a_second_run_does_not_read_the_jars(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch_jars()
    monkeypatch.setattr(
        "paimon_features.core.installation.cache.sha256_of", lambda path: pytest.fail("read")
    )
    fetch_jars()


@pytest.mark.parametrize("damage", [b"", b"alpha" * 49_999 + b"omega"], ids=["cut", "changed"])
def test_a_corrupt_file_in_the_cache_is_replaced(
    repository: Repository, tmp_path: Path, damage: bytes
) -> None:
    fetch_jars()
    (tmp_path / "cache/jars/alpha-1.0.jar").write_bytes(damage)
    assert [item.origin for item in fetch_jar_details()] == ["download", "cache"]
    assert cached(tmp_path) == WHOLE


def test_a_lost_or_unreadable_record_only_causes_a_rehash(
    repository: Repository, tmp_path: Path
) -> None:
    fetch_jars()
    (tmp_path / "cache/jars/.verified.json").write_text("{half a")
    assert [item.origin for item in fetch_jar_details()] == ["cache", "cache"]
    notes = json.loads((tmp_path / "cache/jars/.verified.json").read_text())
    assert sorted(notes) == sorted(WHOLE)


def test_a_jar_of_the_local_maven_repository_is_copied_if_its_hash_matches(
    repository: Repository, tmp_path: Path
) -> None:
    for jar, body in zip(JARS, [BODIES["alpha"], b"another build"], strict=True):
        path = tmp_path / "m2" / jar.maven_path
        path.parent.mkdir(parents=True)
        path.write_bytes(body)
    assert [item.origin for item in fetch_jar_details()] == ["~/.m2", "download"]
    assert cached(tmp_path) == WHOLE


def test_a_failed_download_is_retried_from_the_beginning(
    repository: Repository, tmp_path: Path
) -> None:
    repository.broken_tries = 2
    fetch_jars()
    assert cached(tmp_path) == WHOLE


def test_an_interrupted_download_resumes_with_the_missing_jars(
    repository: Repository, tmp_path: Path
) -> None:
    body = repository.bodies[f"/maven2/{JARS[1].maven_path.as_posix()}"]
    repository.replace("beta", None)
    with pytest.raises(SetupError, match="org.example:beta:1.0 could not be downloaded"):
        fetch_jars()
    repository.bodies[f"/maven2/{JARS[1].maven_path.as_posix()}"] = body
    assert [item.origin for item in fetch_jar_details()] == ["cache", "download"]
    assert repository.requests.count("alpha-1.0.jar") == 1


def test_a_jar_with_another_hash_is_rejected_and_not_cached(
    repository: Repository, tmp_path: Path
) -> None:
    repository.replace("alpha", b"not the jar")
    got = hashlib.sha256(b"not the jar").hexdigest()
    with pytest.raises(SetupError) as caught:
        fetch_jars()
    for part in ("org.example:alpha:1.0", JARS[0].sha256, got, "PAIMON_FEATURES_MAVEN_MIRROR"):
        assert part in str(caught.value)
    assert cached(tmp_path) == {}


def test_progress_reports_every_byte_of_every_jar(repository: Repository) -> None:
    reported: dict[str, int] = {}

    @contextmanager
    def progress(name: str, size_bytes: int):  # type: ignore[no-untyped-def]
        reported[name] = -size_bytes

        def step(count: int) -> None:
            reported[name] += count

        yield step

    fetch_jars(progress=progress)
    assert reported == dict.fromkeys(WHOLE, 0)


def test_without_the_downloader_the_error_names_the_extra(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jgo.maven", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'paimon-features\[flink\]'"):
        fetch_jars()


def test_a_cache_that_cannot_be_created_is_reported_with_the_variable_to_set(
    repository: Repository, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file is in the way")
    with pytest.raises(SetupError, match="set PAIMON_FEATURES_CACHE to another folder"):
        fetch_jars()


FETCH = """
from paimon_features.core.installation import jars
jars.locked_jars = lambda groups=None: [jars.Jar(*entry) for entry in {entries!r}]
jars.fetch_jars()
"""


def fetch_in_another_process() -> subprocess.Popen[bytes]:
    entries = [(jar.group, jar.coordinate, jar.sha256) for jar in JARS]
    return subprocess.Popen([sys.executable, "-c", FETCH.format(entries=entries)])


def wait_for_request(repository: Repository) -> None:
    await_true(lambda: repository.requests)


def test_two_concurrent_processes_download_each_jar_once(
    repository: Repository, tmp_path: Path
) -> None:
    repository.hold.clear()
    first, second = fetch_in_another_process(), fetch_in_another_process()
    wait_for_request(repository)
    repository.hold.set()
    assert first.wait(LONG_S) == 0
    assert second.wait(LONG_S) == 0
    assert cached(tmp_path) == WHOLE
    assert repository.requests == ["alpha-1.0.jar", "beta-1.0.jar"]


def test_a_process_killed_during_a_download_leaves_no_partial_files(
    repository: Repository, tmp_path: Path
) -> None:
    repository.hold.clear()
    process = fetch_in_another_process()
    wait_for_request(repository)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert cached(tmp_path) == {}
    repository.hold.set()
    fetch_jars()
    assert cached(tmp_path) == WHOLE
    assert list((tmp_path / "cache/jars").glob(".fetch-*")) == []
