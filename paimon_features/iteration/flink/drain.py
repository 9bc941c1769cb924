"""The end of a detached job: its head requests the drain from the cluster."""

from __future__ import annotations

import time
from contextlib import suppress

from paimon_features.core.errors import JobError
from paimon_features.core.process.flink_rest import FlinkRest

POLL_S = 0.2
REQUEST_S = 30.0
"""Time after which a request without effect is repeated."""
CHECKPOINTS = 2
"""Checkpoints to wait for: sources that have just ended wait for one, and a savepoint at that
moment may hang."""
MAX_CHECKPOINT_WAIT_S = 10.0
"""Maximum wait for these checkpoints, whatever the interval."""


class JobDrain:
    """Requests the drain over REST from within the job, which is found by its unique name."""

    def __init__(self, cluster: str, job_name: str, folder: str) -> None:
        self.cluster = cluster
        self.job_name = job_name
        self.folder = folder
        self._polled = 0.0
        self._requested = 0.0
        self._completed: int | None = None
        self._began = 0.0

    def poll(self) -> None:
        """Advance the drain; returns quickly, and is retried after a failure."""
        now = time.monotonic()
        if now - self._polled < POLL_S or now - self._requested < REQUEST_S:
            return
        self._polled = now
        with suppress(JobError):
            rest = FlinkRest(self.cluster)
            job = next(job for job in rest.jobs() if job.name == self.job_name and job.running)
            completed = int(rest.checkpoints(job.id)["counts"]["completed"])
            if self._completed is None:
                self._completed = completed
                self._began = now
            waited = now - self._began >= MAX_CHECKPOINT_WAIT_S
            if waited or completed >= self._completed + CHECKPOINTS:
                self._requested = now
                rest.request_drain(job.id, self.folder)
