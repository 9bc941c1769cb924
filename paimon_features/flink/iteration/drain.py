"""The end of a detached job: its head asks the cluster to drain it."""

from __future__ import annotations

import time
from contextlib import suppress

from paimon_features.errors import JobError
from paimon_features.flink_rest import FlinkRest

POLL_S = 0.2
REQUEST_S = 30.0
"""After which time a request that came to nothing is made again."""
CHECKPOINTS = 2
"""To complete first: sources that have just ended wait for one, and a savepoint that meets them
there may hang."""
MOST_AWAITED_S = 10.0
"""How long they are waited for at most, however rarely they come."""


class JobDrain:
    """Asks over REST, from within the job; it is known there by its name, which no other has."""

    def __init__(self, cluster: str, job_name: str, folder: str) -> None:
        self.cluster = cluster
        self.job_name = job_name
        self.folder = folder
        self._looked = 0.0
        self._asked = 0.0
        self._completed: int | None = None
        self._began = 0.0

    def ask(self) -> None:
        """Go on with draining; never waits for long, and a failure is tried again."""
        now = time.monotonic()
        if now - self._looked < POLL_S or now - self._asked < REQUEST_S:
            return
        self._looked = now
        with suppress(JobError):
            rest = FlinkRest(self.cluster)
            job = next(job for job in rest.jobs() if job.name == self.job_name and job.running)
            completed = int(rest.checkpoints(job.id)["counts"]["completed"])
            if self._completed is None:
                self._completed = completed
                self._began = now
            waited = now - self._began >= MOST_AWAITED_S
            if waited or completed >= self._completed + CHECKPOINTS:
                self._asked = now
                rest.request_drain(job.id, self.folder)
