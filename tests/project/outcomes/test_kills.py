"""One version for each reply, and each logged prediction once, whatever is killed meanwhile."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="networks for tests")
pytest.importorskip("onnxruntime", reason="the runtime of models")

from paimon_features.lake import Lake, read_arrow
from paimon_features.serving.request_log.commit import (
    CommitStats,
    SpoolCommitter,
    prediction_log_of,
)
from tests.os_processes import is_running
from tests.serving.http.test_published_models import VERSIONS, Published, check, published
from tests.serving.http.test_server import Running, folder
from tests.serving.prediction.networks import state
from tests.tile_lake import PROJECT
from tests.waiting import await_true

__all__ = ["folder", "published"]  # fixtures
pytestmark = [
    pytest.mark.redis,
    pytest.mark.skipif("PAIMON_FEATURES_KILLS" not in os.environ, reason="a part of make chaos"),
]
ROUNDS = 40


class Host(Running):
    """A server process whose host has Arrow, for the log."""

    blocker = ""


def await_ended(pids: Sequence[int]) -> None:
    await_true(lambda: not any(map(is_running, pids)))


class Load(threading.Thread):
    """Sends requests, each with an id of its own, and checks the replies."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.port: int | None = None
        self.stop = False
        self.sent: set[str] = set()
        self.versions: dict[str, int] = {}
        self.problems: list[BaseException] = []

    def run(self) -> None:
        for number in itertools.count():
            if self.stop:
                return
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
            identifier = f"{self.name}-{number}"
            self.sent.add(identifier)
            try:
                with contextlib.closing(connection):
                    connection.request(
                        "POST", "/predict/churn", b'{"entities":{"user":[7, 8]}}',
                        {"X-Request-Id": identifier},
                    )  # fmt: skip
                    reply = connection.getresponse()
                    document = json.loads(reply.read())
                if reply.status == 503:  # between two processes
                    continue
                self.versions[identifier] = check(reply.status, document)
                assert reply.headers["X-Model-Version"] == f"churn@{document['version']}"
            except (OSError, http.client.HTTPException):
                time.sleep(0.02)  # it was killed
            except BaseException as error:
                self.problems.append(error)
                return


def test_one_version_answers_and_each_prediction_is_logged_once(
    published: Published, folder: Path
) -> None:
    config = folder / "paimon-features.toml"
    config.write_text(
        config.read_text() + '\nprediction_log = "spool"\nprediction_log_hash = false\n'
        "prediction_log_reads = 0.0\n"
    )
    dice = random.Random(int(os.environ.get("PAIMON_FEATURES_SEED", "0")))
    published.publish((VERSIONS[1], state(VERSIONS[1])))
    server = Host(folder, "--workers", "2")
    loads = [Load(f"client{number}") for number in range(3)]
    for load in loads:
        load.port = server.port
        load.start()
    done = Counter[str]()
    lake = Lake.open(folder.parent / "outcomes", "features")
    committed = CommitStats()

    def commit() -> None:
        where = [folder / "spool" / "predictions" / "churn"]
        log = prediction_log_of(PROJECT, "churn")
        committed.add(SpoolCommitter(lake, PROJECT, where, log=log).run_once())

    try:
        for _ in range(ROUNDS):
            event = dice.choice(("promote", "promote", "split", "reload", "worker", "server"))
            done[event] += 1
            first, second = dice.sample((1, 2, 3), 2)
            if event == "promote":
                published.publish((VERSIONS[first], state(VERSIONS[first])))
            elif event == "split":
                challenger = state(VERSIONS[second], "challenger", [(0, 5_000)])
                both = {first: state(VERSIONS[first]), second: challenger}
                published.publish(*((VERSIONS[n], each) for n, each in sorted(both.items())))
            elif event == "reload":
                server.process.send_signal(signal.SIGHUP)
            elif event == "worker":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(dice.choice(server.workers), signal.SIGKILL)
            else:
                server.process.kill()
                server.process.wait()
                workers = server.workers
                await_ended(workers)
                assert server.process.stdout is not None
                server.process.stdout.close()
                server = Host(folder, "--workers", "2")
                for load in loads:
                    load.port = server.port
            time.sleep(dice.random() * 0.6)
            if dice.random() < 0.2:
                commit()
    finally:
        for load in loads:
            load.stop = True
        for load in loads:
            load.join()
        server.stop()
        assert server.process.stdout is not None
        server.process.stdout.close()
    assert [load.problems for load in loads] == [[], [], []]
    commit()
    assert min(done[each] for each in ("promote", "split", "reload", "worker", "server")) > 0
    rows = read_arrow(lake, "predictions_churn").to_pylist()
    sent = set().union(*(load.sent for load in loads))
    answered = {k: v for load in loads for k, v in load.versions.items()}
    found = Counter((row["request_id"], row["row"]) for row in rows)
    # exactly once, and with the version that the client was told
    assert set(found.values()) == {1}
    assert {identifier for identifier, _ in found} <= sent
    for row in rows:
        assert row["version"] == answered.get(row["request_id"], row["version"])
    assert set(answered.values()) == {1, 2, 3}
    logged = {identifier for identifier, _ in found}
    # what a killed process had in memory is lost: half a second of each
    assert len(logged & answered.keys()) > len(answered) / 3
    assert committed.rows == len(rows)
    assert committed.recovered > 0
