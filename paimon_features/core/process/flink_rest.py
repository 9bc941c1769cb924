"""A client of Flink's REST interface: a cluster and its jobs. It needs no Flink installation."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from paimon_features.core.errors import ConfigurationError, JobError
from paimon_features.core.process.waiting import wait_until

TIMEOUT_S = 10.0
ENDED = frozenset({"FINISHED", "FAILED", "CANCELED"})
"""Terminal states of a job."""


@dataclass(frozen=True, slots=True)
class JobSummary:
    """A job in a cluster's list; times are UTC ms, ``end_ms`` is None while it runs."""

    id: str
    name: str
    state: str
    start_ms: int
    end_ms: int | None

    @property
    def running(self) -> bool:
        return self.state not in ENDED


class ManagerMemory(NamedTuple):
    """Memory of a task manager in bytes: heap of its tasks, direct memory without the network's."""

    heap: int
    off_heap: int


class FlinkRest:
    """A client of one cluster; every method but ``alive`` raises JobError if it does not answer.

    A cluster with several job managers has several addresses, of which any may answer: the one
    that leads, or one that waits and forwards to it.

    >>> FlinkRest("127.0.0.1:8081").url
    'http://127.0.0.1:8081'
    >>> FlinkRest("jobs-1:8081,jobs-2:8081").url
    'http://jobs-1:8081,http://jobs-2:8081'

    Raises
    ------
    ConfigurationError
        For what is no address.
    """

    def __init__(self, address: str, timeout_s: float = TIMEOUT_S) -> None:
        self._urls = []
        for one in address.split(","):
            host, separator, port = one.strip().removeprefix("http://").rstrip("/").rpartition(":")
            if not separator or not host or not port.isdigit():
                raise ConfigurationError(
                    f"cluster {address!r}: expected host:port of its REST interface, "
                    "for example 127.0.0.1:8081, or several of them with commas in between"
                )
            self._urls.append(f"http://{host}:{port}")
        self.url = ",".join(self._urls)
        self.timeout_s = timeout_s

    def answering(self) -> tuple[str, int]:
        """Return host and port of an address that answers; a single one is not tested."""
        if len(self._urls) > 1:
            self.overview()  # moves it to the front
        host, _, port = self._urls[0].removeprefix("http://").rpartition(":")
        return host, int(port)

    def alive(self) -> bool:
        """Return True if a Flink cluster answers at this address."""
        try:
            return "flink-version" in self.overview()
        except JobError:
            return False

    def overview(self) -> dict[str, Any]:
        """Return the counts of slots, task managers and jobs (``slots-total``, ...)."""
        return self._request("/overview")

    def task_managers(self) -> dict[str, ManagerMemory]:
        """Return the memory of each task manager, by its id; a restarted one has a new id."""
        memory_by_id = {}
        for manager in self._request("/taskmanagers")["taskmanagers"]:
            memory = manager["memoryConfiguration"]
            off_heap = int(memory["frameworkOffHeap"]) + int(memory["taskOffHeap"])
            memory_by_id[manager["id"]] = ManagerMemory(int(memory["taskHeap"]), off_heap)
        return memory_by_id

    def jobs(self) -> list[JobSummary]:
        """Return all jobs that the cluster knows, newest first."""
        summaries = [
            JobSummary(
                job["jid"],
                job["name"],
                job["state"],
                int(job["start-time"]),
                int(job["end-time"]) if int(job["end-time"]) > 0 else None,
            )
            for job in self._request("/jobs/overview")["jobs"]
        ]
        return sorted(summaries, key=lambda job: -job.start_ms)

    def state(self, job_id: str) -> str | None:
        """Return the state of a job (RUNNING, FINISHED ...), None if the cluster does not know the
        job."""
        try:
            return str(self._request(f"/jobs/{job_id}")["state"])
        except _NotFoundError:
            return None

    def ended(self, job_id: str) -> bool:
        """Return True if a job has ended; one that the cluster does not know has."""
        return (self.state(job_id) or "FAILED") in ENDED

    def failure(self, job_id: str) -> str | None:
        """Return the root cause of a job's failure, None if it has not failed."""
        history = self._request(f"/jobs/{job_id}/exceptions").get("exceptionHistory", {})
        entries = history.get("entries", [])
        if not entries:
            return None
        return _root_cause(str(entries[0]["stacktrace"]))

    def checkpoints(self, job_id: str) -> dict[str, Any]:
        """Return the counts and the latest of a job's checkpoints, as Flink reports them."""
        return self._request(f"/jobs/{job_id}/checkpoints")

    def restarts(self, job_id: str) -> int | None:
        """Return how often a job was restarted after a failure, None if it does not report that."""
        for metric in self._get_list(f"/jobs/{job_id}/metrics?get=numRestarts"):
            return int(float(metric["value"]))
        return None

    def sources(self, job_id: str) -> list[str]:
        """Return the ids of a job's parts that begin with a source."""
        vertices = self._request(f"/jobs/{job_id}")["vertices"]
        return [vertex["id"] for vertex in vertices if vertex["name"].startswith("Source:")]

    def source_records(self, job_id: str) -> int:
        """Return rows that the job's sources have read since it started."""
        sources = self.sources(job_id)
        return sum(int(n) for s in sources for n in self._metric(job_id, s, "numRecordsIn", "sum"))

    def source_lag(self, job_id: str) -> int | None:
        """Return the messages that the job's sources have not read yet; None if none reports it.

        A source of Kafka reports it, some seconds after it has begun to read.
        """
        lags = [
            int(lag)
            for source in self.sources(job_id)
            for name in self._metric_names(job_id, source)
            if name.endswith(".pendingRecords")
            for lag in self._metric(job_id, source, name, "sum")
        ]
        return sum(lags) if lags else None

    def receives_from_brokers(self, job_id: str) -> bool | None:
        """Return True if a job's consumers of Kafka have a connection and have received data in the
        last minute (brokers answer also where there are no messages); None if no source reports it.
        """
        signs = {"connection-count": 0.0, "incoming-byte-rate": 0.0}
        reported: set[str] = set()
        for source in self.sources(job_id):
            for name in self._metric_names(job_id, source):
                sign = name.rpartition(".KafkaConsumer.")[2]
                if sign == name or sign not in signs:
                    continue
                for greatest in self._metric(job_id, source, name, "max"):
                    reported.add(sign)
                    signs[sign] = max(signs[sign], greatest)
        return all(signs[sign] > 0 for sign in reported) if reported else None

    def _metric_names(self, job_id: str, vertex: str) -> list[str]:
        path = f"/jobs/{job_id}/vertices/{vertex}/subtasks/metrics"
        return [str(metric["id"]) for metric in self._get_list(path)]

    def _metric(self, job_id: str, vertex: str, name: str, aggregate: str) -> list[float]:
        """Return the aggregate of a metric over subtasks; empty if it is not reported."""
        path = f"/jobs/{job_id}/vertices/{vertex}/subtasks/metrics"
        query = f"get={urllib.parse.quote(name)}&agg={aggregate}"
        return [float(metric[aggregate]) for metric in self._get_list(f"{path}?{query}")]

    def running_s(self, job_id: str) -> float:
        """Return for how long a job has run, or ran until its end."""
        return float(self._request(f"/jobs/{job_id}")["duration"]) / 1_000

    def cancel(self, job_id: str, wait_s: float = 60.0) -> None:
        """Cancel a job and wait for its end; no effect on one that has ended."""
        self._request(f"/jobs/{job_id}?mode=cancel", "PATCH")
        self._await_end(job_id, wait_s)

    def stop_with_savepoint(self, job_id: str, folder: Path | str, wait_s: float = 120.0) -> str:
        """Stop a streaming job with a savepoint in ``folder``; returns the savepoint's path.

        A cluster in application mode ends with its job; it has ended if nothing listens at its
        address any more once the savepoint is complete.

        Raises
        ------
        JobError
            If the savepoint fails (the job then continues), or takes longer than ``wait_s``.
        """
        body = {"targetDirectory": str(folder), "drain": False}
        trigger = self._request(f"/jobs/{job_id}/stop", "POST", body)["request-id"]
        operation: dict[str, Any] = {}

        def completed() -> bool:
            reply = self._request(f"/jobs/{job_id}/savepoints/{trigger}")
            operation.update(reply.get("operation") or {})
            return bool(reply["status"]["id"] == "COMPLETED")

        if not wait_until(completed, wait_s):
            raise JobError(
                f"job {job_id} at {self.url}: its savepoint took longer than {wait_s:g} s; "
                "check its checkpoints, or cancel it and resume from its last checkpoint"
            )
        if "failure-cause" in operation:
            failure = operation["failure-cause"]
            cause = _root_cause(str(failure.get("stack-trace", ""))) or failure.get("class")
            raise JobError(
                f"job {job_id} at {self.url}: the savepoint failed, the job continues: {cause}"
            )
        with suppress(_NotListeningError):
            self._await_end(job_id, wait_s)
        return str(operation["location"])

    def request_drain(self, job_id: str, folder: Path | str) -> None:
        """Request the end of a streaming job: its sources stop, records in flight are processed,
        sinks commit with a savepoint in ``folder``. Does not wait for it."""
        self._request(
            f"/jobs/{job_id}/stop", "POST", {"targetDirectory": str(folder), "drain": True}
        )

    def _await_end(self, job_id: str, wait_s: float) -> None:
        if not wait_until(lambda: self.ended(job_id), wait_s):
            state = self.state(job_id)
            raise JobError(f"job {job_id} at {self.url} is {state} after {wait_s:g} s")

    def _request(
        self, path: str, method: str = "GET", body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        reply = self._reply(path, method, body)
        assert isinstance(reply, dict), path
        return reply

    def _get_list(self, path: str) -> list[dict[str, Any]]:
        reply = self._reply(path, "GET", None)
        assert isinstance(reply, list), path
        return reply

    def _reply(self, path: str, method: str, body: Mapping[str, Any] | None) -> Any:
        """Return the reply of the first address that answers.

        It is the first one of the next request.
        """
        for index, url in enumerate(self._urls):
            try:
                reply = self._reply_of(url, path, method, body)
            except _UnreachableError as error:
                last = index == len(self._urls) - 1
                # what may have arrived is not sent a second time
                if last or not (method == "GET" or isinstance(error, _NotListeningError)):
                    raise
            else:
                self._urls.insert(0, self._urls.pop(index))
                return reply
        raise AssertionError("unreachable: there is at least one address")

    def _reply_of(self, url: str, path: str, method: str, body: Mapping[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if data else {}
        request = urllib.request.Request(f"{url}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as reply:
                text = reply.read()
        except urllib.error.HTTPError as error:
            with error:
                reason = _first_line(error.read())
            kinds = {404: _NotFoundError, 503: _UnreachableError}
            raised = kinds.get(error.code, JobError)
            raise raised(
                f"the cluster {url} refused {method} {path} ({error.code}): {reason}"
            ) from error
        except OSError as error:
            refused = isinstance(getattr(error, "reason", error), ConnectionRefusedError)
            raise (_NotListeningError if refused else _UnreachableError)(
                f"the cluster {self.url} does not answer ({error}); is it running? "
                "'paimon-features cluster' shows the local one"
            ) from error
        try:
            return json.loads(text) if text else {}
        except ValueError as error:
            raise JobError(f"{url} is not a Flink cluster: it does not reply in JSON") from error


class _UnreachableError(JobError):
    """The address does not answer, or has no leader to forward to."""


class _NotListeningError(_UnreachableError):
    """The host answers, and no process listens at the port."""


class _NotFoundError(JobError):
    """The cluster does not know the requested job or operation."""


def _root_cause(trace: str) -> str | None:
    """Return the last cause in a stack trace of Java, None for an empty one."""
    causes = [line for line in trace.splitlines() if line[:1].strip()]
    return causes[-1].removeprefix("Caused by: ") if causes else None


def _first_line(body: bytes) -> str:
    try:
        errors = json.loads(body)["errors"]
        return str(errors[-1]).splitlines()[0]
    except (ValueError, LookupError, TypeError):
        return body.decode("utf-8", "replace")[:200]
