"""The server as it is run: processes, signals, a real store, clients that do not wait."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from paimon_features.definitions import FeatureView
from paimon_features.definitions.aggregates import Count, Sum
from paimon_features.testing.servers.resp import connect
from paimon_features.transformers import FittedVersion, StandardScaler
from paimon_features.transformers.fitted_version import write_version
from tests.clicks import CLICKS, USER
from tests.os_processes import is_running
from tests.patient_stores import PATIENT_TOML, patient_store
from tests.serving.http.conftest import PATIENT
from tests.tile_lake import PROJECT, TileLake
from tests.waiting import LONG_S, await_true

pytestmark = pytest.mark.redis

ROOT = Path(__file__).parents[3]
NOT_THERE = ("pypaimon", "pypaimon_rust", "pyarrow", "pyflink", "torch", "tensorflow", "duckdb",
             "pandas", "polars", "jobs", "trainer_bridge")  # fmt: skip

BLOCKER = f"""
import sys

class NotThere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {NOT_THERE!r}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, NotThere())
"""

# as VIEW; the two interactions are always of one reading of the file
FEATURES = """
import paimon_features as pf

clicks = pf.EventSource("clicks", event_time="t",
    schema={{"user": pf.Int64, "t": pf.Int64, "n": pf.Int64, "word": pf.String}})
view = pf.FeatureView("clicks", source=clicks, entity=pf.Entity("user", keys={{"user": pf.Int64}}),
    features=[pf.Sum("n", windows=["1d"]), pf.Count(windows=["1d"])])
first = pf.Interaction("first_times", "{factor} * clicks:count_1d")
second = pf.Interaction("second_times", "{factor} * clicks:count_1d")
service = pf.FeatureService("times_v1", [first, "clicks:sum_n_1d", second])
"""
VIEW = FeatureView(
    "clicks", source=CLICKS, entity=USER, features=[Sum("n", windows=["1d"]), Count(windows=["1d"])]
)
BODY = json.dumps({"feature_service": "times_v1", "entities": {"user": [7]}}).encode()


@pytest.fixture
def folder(tmp_path: Path, redis_url: str) -> Path:
    """A project folder and a store with one click of user 7, and the lake gone."""
    lake, store = TileLake(tmp_path / "lake", VIEW), patient_store(redis_url)
    now_ms = time.time_ns() // 1_000_000
    lake.commit([{"user": 7, "t": now_ms - 1_000, "n": 5, "word": "a"}])
    lake.materializer(store).run_once()
    store.close()
    folder = tmp_path / "host"
    folder.mkdir()
    (folder / "features.py").write_text(FEATURES.format(factor=1))
    configure(folder, redis_url)
    return folder


def configure(folder: Path, url: str, **settings: object) -> None:
    """Write the settings; a busy machine is no reason to refuse a request."""
    patient = {name.removesuffix("_ms"): f"{ms}ms" for name, ms in PATIENT.items()}
    given = {**patient, **settings}
    lines = [f"{name} = {json.dumps(value)}" for name, value in given.items()]
    (folder / "paimon-features.toml").write_text(
        f'[project]\nname = "{PROJECT}"\n[online]\nurl = "{url}"\n{PATIENT_TOML}[serve]\n'
        + "\n".join(lines)
    )


class Running:
    """A server process; ``url`` once it is ready."""

    blocker = BLOCKER
    """What its interpreters do first."""

    def __init__(self, folder: Path, *options: str) -> None:
        blocked = folder.parent / "blocked"
        blocked.mkdir(exist_ok=True)
        (blocked / "sitecustomize.py").write_text(self.blocker)
        self.log = folder.parent / "log"
        self.started_s = time.monotonic()
        with self.log.open("w") as log:
            self._start(folder, blocked, log, options)

    def _start(self, folder: Path, blocked: Path, log: IO[str], options: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "paimon_features", "serve", "--port", "0", "--json", *options],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{blocked}{os.pathsep}{ROOT}"},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        event = json.loads(line)
        self.ready_s = time.monotonic() - self.started_s
        self.workers: list[int] = event["workers"]
        self.port = urlsplit(event["url"]).port

    def read(self, body: bytes = BODY) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        with contextlib.closing(connection):
            connection.request("POST", "/get-online-features", body)
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read())

    def get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        with contextlib.closing(connection):
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.status, reply.read()

    def metric(self, name: str) -> float:
        families = text_string_to_metric_families(self.get("/metrics")[1].decode())
        samples = [s for f in families for s in f.samples]
        return sum(s.value for s in samples if s.name == f"paimon_features_{name}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(120)


@pytest.fixture
def run(folder: Path) -> Iterator[Callable[..., Running]]:
    """Starts servers of the project; none is left after the test."""
    running: list[Running] = []

    def start(*options: str) -> Running:
        running.append(Running(folder, *options))
        return running[-1]

    yield start
    for server in running:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
        assert server.process.stdout is not None
        server.process.stdout.close()
        await_true(lambda server=server: not any(is_running(pid) for pid in server.workers))  # type: ignore[misc]


class Load:
    """Clients that send one request after the other, each over one connection."""

    def __init__(self, port: int | None, clients: int) -> None:
        self._port = port
        self.replies: list[tuple[int, dict[str, Any]]] = []
        self.broken: list[Exception] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def _ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        with contextlib.closing(connection):
            while not self._stop.is_set():
                try:
                    connection.request("POST", "/get-online-features", BODY)
                    reply = connection.getresponse()
                    self.replies.append((reply.status, json.loads(reply.read())))
                except (OSError, http.client.HTTPException) as error:
                    self.broken.append(error)
                    return

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(120)


def values(document: Any) -> Sequence[Any]:
    return [result["values"][0] for result in document["results"]]


def test_workers_answer_with_a_definitions_file_and_a_store_alone(run: Any) -> None:
    server = run("--workers", "2")
    assert len(server.workers) == 2
    status, document = server.read()
    assert (status, values(document)) == (200, [7, 1, 5, 1])
    assert server.get("/health/ready")[0] == 200
    for pid in server.workers:
        resident = Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]
        assert int(resident) < 150_000, "kB"
    # both are seen in the metrics of either
    await_true(lambda: server.metric("workers") == 2)
    assert server.stop() == 0
    assert not any(is_running(pid) for pid in server.workers)


def test_sigterm_answers_what_is_under_way_and_ends(run: Any) -> None:
    server = run("--workers", "2")
    with Load(server.port, 8) as load:
        await_true(lambda: len(load.replies) > 100)
        code = server.stop()
    assert code == 0
    assert {status for status, _ in load.replies} == {200}
    # an idle connection may be closed as its next request is sent; none ends within a reply
    assert not [e for e in load.broken if isinstance(e, http.client.IncompleteRead)]
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    reported = sum(line.get("path") == "/get-online-features" for line in lines)
    assert reported == len(load.replies)


def test_sigint_twice_ends_at_once(run: Any) -> None:
    server = run()
    server.process.send_signal(signal.SIGINT)
    assert server.stop(signal.SIGINT) == 0


def test_a_reload_under_load_drops_no_reply_and_mixes_none(run: Any, folder: Path) -> None:
    server = run("--workers", "2", "--no-reload")
    with Load(server.port, 6) as load:
        await_true(lambda: load.replies)  # of the definitions of the start
        for factor in range(2, 7):
            (folder / "features.py").write_text(FEATURES.format(factor=factor))
            server.process.send_signal(signal.SIGHUP)
            # a worker may be late, and all connections of the load may be with it
            await_true(
                lambda factor=factor: (
                    bool(load.replies) and values(load.replies[-1][1])[1] == factor
                )
            )
            before = len(load.replies)
            await_true(lambda before=before: len(load.replies) > before + 50)
    assert load.broken == []
    assert [document for status, document in load.replies if status != 200] == []
    seen = [values(document) for _, document in load.replies]
    assert all(first == second for _, first, _, second in seen), "one reply, two definitions"
    assert {first for _, first, _, _ in seen} == {1, 2, 3, 4, 5, 6}
    assert server.metric("reloads_total") >= 5


def test_a_changed_file_is_read_and_a_broken_one_is_not(run: Any, folder: Path) -> None:
    server = run()
    features = folder / "features.py"
    features.write_text(FEATURES.format(factor=3))
    await_true(lambda: values(server.read()[1])[1] == 3)
    features.write_text("import paimon_features as pf\n1 / 0\n")
    await_true(lambda: json.loads(server.get("/health")[1])["definitions"]["error"])
    assert "ZeroDivisionError" in server.log.read_text()
    assert values(server.read()[1])[1] == 3
    assert server.metric("definitions_ok") == 0
    features.write_text(FEATURES.format(factor=4))
    await_true(lambda: values(server.read()[1])[1] == 4)
    assert json.loads(server.get("/health")[1])["definitions"]["error"] is None


def test_a_worker_that_dies_is_replaced_and_its_counts_stay(run: Any) -> None:
    server = run("--workers", "2")
    for _ in range(20):
        assert server.read()[0] == 200
    await_true(lambda: server.metric("entity_rows_total") == 20)
    os.kill(server.workers[0], signal.SIGKILL)
    died = json.loads(server.process.stdout.readline())
    assert (died["event"], died["worker"]) == ("worker_died", server.workers[0])
    for _ in range(10):  # the other one continues, and the socket stays
        assert server.read()[0] == 200
    await_true(lambda: server.metric("worker_starts_total") == 3)
    await_true(lambda: server.metric("entity_rows_total") == 30)


def test_workers_end_when_their_supervisor_is_killed(run: Any) -> None:
    server = run("--workers", "2")
    server.process.kill()
    server.process.wait()
    await_true(lambda: not any(is_running(pid) for pid in server.workers))


def test_overload_is_refused_at_once_and_the_accepted_are_answered(
    run: Any, folder: Path, redis_url: str
) -> None:
    configure(folder, redis_url, max_concurrent=2)
    server = run()
    with Load(server.port, 12) as load:
        await_true(lambda: len(load.replies) > 400)
    assert load.broken == []
    by_status = dict(load.replies)
    assert by_status.keys() == {200, 503}
    assert by_status[503]["code"] == "overloaded"
    assert values(by_status[200]) == [7, 1, 5, 1]


def test_heads_that_are_too_long_or_no_http_are_400(run: Any) -> None:
    server = run()
    for head in (
        b"GET /health/live HTTP/1.1\r\nhost: [::1]\r\n" + b"x-a: " + b"a" * 40_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nhost: [::1]\r\n\r\n",
        b"\x00\x01\x02\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: [::1]\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=120) as connection:
            connection.sendall(head)
            assert connection.recv(64).startswith((b"HTTP/1.1 400", b"HTTP/1.1 404")), head[:40]
    assert server.get("/health/live")[0] == 200


def refused(folder: Path, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "paimon_features", "serve", "--port", "0", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode in (1, 2), done.stdout
    return done.stderr


def test_what_cannot_be_served_is_refused_at_the_start(folder: Path, redis_url: str) -> None:
    assert "anybody could read every feature" in refused(folder, "--host", "0.0.0.0")
    configure(folder, redis_url, tokens="tokens.toml")
    problem = refused(folder)
    assert "the token file" in problem
    assert "does not exist" in problem
    configure(folder, redis_url)
    (folder / "features.py").write_text("x = 1\n")
    assert "the server does not start: " in refused(folder)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"cannot listen on 127.0.0.1:{port}" in refused(folder, "--port", port)


def test_the_log_says_why_reads_are_refused_and_that_they_are_answered_again(
    run: Any, redis_url: str
) -> None:
    server = run()
    started_s = time.monotonic()
    with connect(redis_url, LONG_S) as redis:
        redis.request("RENAME", "pf:{shop:clicks}#state", "aside")
        assert [server.read()[0] for _ in range(5)] == [503] * 5
        redis.request("RENAME", "aside", "pf:{shop:clicks}#state")
    await_true(lambda: server.read()[0] == 200 and "answered again" in server.log.read_text())
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    messages = [line["message"] for line in lines if "message" in line]
    reported = [message for message in messages if message.startswith("requests")]
    *rejected, again = reported
    # a reason is repeated after ten seconds
    assert 1 <= len(rejected) <= 1 + (time.monotonic() - started_s) // 10
    assert all(
        message.startswith("requests are rejected (not_ready): feature view 'clicks' is not in")
        for message in rejected
    )
    assert again.startswith("requests are answered again; some were rejected for ")


PINNED = """
pinned = pf.Transformed("pinned", "clicks:sum_n_1d", pf.Fitted("n", version={version}))
"""


def test_a_pinned_version_is_served_from_its_file_and_its_lack_stops_the_start(
    run: Any, folder: Path
) -> None:
    def pin(version: int) -> None:
        text = FEATURES.format(factor=1) + PINNED.format(version=version)
        (folder / "features.py").write_text(text)

    def export(version: int, *seen: float) -> None:
        scaler = StandardScaler().fit([[value] for value in seen])
        write_version(folder / "fitted", FittedVersion("n", version, scaler, 0))

    pin(1)
    assert "'paimon-features fitted n 1 --export' writes it from the lake" in refused(folder)
    export(1, 1, 3)
    server = run()
    body = json.dumps({"features": ["pinned"], "entities": {"user": [7]}}).encode()

    def served() -> object:
        return server.read(body)[1]["results"][1]["values"][0]

    assert served() == 3.0
    pin(2)
    await_true(lambda: json.loads(server.get("/health")[1])["definitions"]["error"])
    assert served() == 3.0
    export(2, 5, 7)  # this file alone makes it read the definitions again
    await_true(lambda: served() == -1.0)
