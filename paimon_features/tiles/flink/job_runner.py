"""Running a tile job: in the JVM of this process, or on a cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from paimon_features.core.errors import JobError
from paimon_features.core.process.flink_rest import FlinkRest
from paimon_features.core.times.clock import now_ms
from paimon_features.flink.checkpoints import Branch
from paimon_features.flink.gateway import start_gateway
from paimon_features.lake import table_options
from paimon_features.lake.ownership.lease import FlinkJobHolder, Lease, ProcessHolder
from paimon_features.tiles.flink.tiling import EventsScan, tile_statements
from paimon_features.tiles.jobs.jobs import release_ended
from paimon_features.tiles.jobs.target import TileTarget

if TYPE_CHECKING:
    from paimon_features.tiles.flink.statement_set import RunningJob

POLL_S = 0.25
SHORT_LIVED_EVENTS = 2_000_000
"""A local job over at most this number of events ends before Java's second compiler pays off."""
STOP_TIMEOUT_S = 120.0
CANCEL_TIMEOUT_S = 10.0


class JobRunner:
    """Runs one job, whose id is chosen before it is submitted.

    So lease and record name the job from the start, and it does not count as dead while it is
    being submitted. ``cluster`` is ``host:port``; None is this process's JVM, which is
    started here. That JVM, not the Python process, commits, so it owns the lease; it ends when
    this process does, and the tables are not free before it has ended. ``events`` is the number
    of events that the job will read, None for an unbounded job.
    """

    def __init__(self, target: TileTarget, cluster: str | None, events: int | None) -> None:
        from paimon_features.flink.cluster import LocalCluster
        from paimon_features.flink.environment import is_application, local_rest, new_job_id

        self.target = target
        self.cluster = cluster
        self.job_id = new_job_id()
        self.application = is_application()
        self.since_ms = now_ms()
        self.job: RunningJob | None = None
        self.rest_options: dict[str, str] = {}
        self.address = cluster or ""
        if cluster is None:
            self.address, self.rest_options = local_rest()
        self.rest = FlinkRest(self.address)
        if cluster is not None:
            self.rest.overview()  # raises at once if the cluster does not answer
        short_lived = cluster is not None or (events is not None and events <= SHORT_LIVED_EVENTS)
        jvm = ProcessHolder.of(start_gateway(target.state_dir, short_lived=short_lived).pid)
        self.process: ProcessHolder | None = jvm
        if cluster is not None:
            self.process = LocalCluster(target.state_dir).process_of(cluster)
        self.job_holder = FlinkJobHolder(self.rest.url, self.job_id, self.process)
        # owned by the job from the start; alive while the JVM that submits it is
        self.holder = self.job_holder if cluster is None else replace(self.job_holder, client=jvm)

    @property
    def savepoint_folder(self) -> str:
        """The folder of the job's savepoints, next to its checkpoints."""
        return str(self.target.checkpoint_folder / self.job_id)

    def execute(
        self, batch: bool, options: Mapping[str, str], scan: EventsScan, commit_user: str
    ) -> None:
        """Start the job.

        Raises
        ------
        JobError
            If it cannot be planned or submitted.
        """
        from paimon_features.flink.environment import FIXED_JOB_ID, open_environment, register_lake
        from paimon_features.tiles.flink.statement_set import execute

        target = self.target
        kind = "backfill" if batch else "tiles"
        conf = {
            "pipeline.name": f"{kind} of {target.project}/{target.view.name} g{target.generation}",
            FIXED_JOB_ID: self.job_id,
            **options,
        }
        if self.cluster is None:
            conf |= self.rest_options | {
                # Paimon's reader waits 10 s for room in its queue; a job that is being stopped
                # takes no more rows and need not wait
                "source.reader.close.timeout": "500",
                # failed tasks restart from the last checkpoint; the job fails after five
                # failures in a row
                "restart-strategy.type": "fixed-delay",
                "restart-strategy.fixed-delay.attempts": "5",
                "restart-strategy.fixed-delay.delay": "1 s",
            }
        env = open_environment(
            "batch" if batch else "streaming",
            target.flink.parallelism,
            conf | (_batch_options(self.cluster) if batch else {}),
            self.cluster,
            state_dir=target.state_dir,
        )
        register_lake(env, target.lake)
        partition_days = table_options.partition_days(target.lake, target.tables[0])
        statements = tile_statements(
            target.view, target.generation, scan, commit_user, partition_days
        )
        self.job = execute(env, statements)

    def hand_over(self, leases: tuple[Lease, ...]) -> None:
        """Transfer the leases to a job on a cluster, which outlives this process."""
        if self.cluster is not None:
            for lease in leases:
                lease.transfer(self.job_holder)

    @property
    def ended(self) -> bool:
        """Whether the job has ended, successfully or not."""
        assert self.job is not None
        if self.cluster is None:
            return self.job.ended
        return self.rest.ended(self.job_id)

    def failure(self) -> str | None:
        """Wait for the end; returns the cause of a failure, None if the job succeeded."""
        assert self.job is not None
        if self.cluster is None:
            return self.job.failure()
        while not self.ended:
            time.sleep(POLL_S)
        state = self.rest.state(self.job_id)
        if state == "FINISHED":
            return None
        return self.rest.failure(self.job_id) or f"it is {state or 'no longer known'}"

    def stop(self) -> None:
        """Stop the job with a savepoint; no effect if it has ended.

        Raises
        ------
        JobError
            If it cannot be stopped; it then continues.
        """
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while not self.ended:
            try:
                self.rest.stop_with_savepoint(self.job_id, self.savepoint_folder)
            except JobError:
                # not all of its tasks run yet; or it has ended, and a local cluster with it
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)

    def cancel(self) -> None:
        """End the job without a savepoint; no effect if it has ended.

        Raises
        ------
        JobError
            If the cluster does not answer.
        """
        assert self.job is not None
        try:
            self.rest.cancel(self.job_id, CANCEL_TIMEOUT_S)
        except JobError:
            if self.cluster is not None:
                raise
            # a local cluster ends with its job, and cannot confirm it any more
            deadline = time.monotonic() + CANCEL_TIMEOUT_S
            while not self.job.ended:
                if time.monotonic() > deadline:
                    start_gateway().stop()
                time.sleep(POLL_S)

    def __enter__(self) -> JobRunner:
        return self

    def __exit__(self, *_: object) -> None:
        """After an error, end a local job before its tables become free; free those of a job that
        ended in application mode, because its cluster ends, too, and cannot be queried later."""
        if self.job is None:
            return
        if self.cluster is None:
            if not self.job.ended:
                self.cancel()
        elif self.application:
            with suppress(JobError):
                if self.ended:
                    release_ended(self.target, self.job_id)

    def describe(self, kind: str, branch: Branch) -> dict[str, Any]:
        """Return the job as the generation's record describes it."""
        return {
            "kind": kind,
            "job_id": self.job_id,
            "events": self.target.events,
            "rest": self.address,
            "local": self.cluster is None,
            "application": self.application,
            "process": None if self.process is None else asdict(self.process),
            "since_ms": self.since_ms,
            "parallelism": self.target.flink.parallelism,
            "branch": [list(step) for step in branch.jobs],
        }


def _batch_options(cluster: str | None) -> dict[str, str]:
    from paimon_features.flink.environment import PIPELINED_BATCH

    return {**_BATCH, **(PIPELINED_BATCH if cluster is None else {})}


_BATCH = {
    # a retry after an attempt whose commit succeeded would count twice, and Paimon cannot detect it
    # batch commits apart; a failed backfill is started again from empty tables
    "restart-strategy.type": "none",
}
