"""A running iteration job: monitored, drained at its end, or stopped with a savepoint."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from paimon_features.core.errors import JobError
from paimon_features.core.process.interrupts import interruptible
from paimon_features.flink.environment import CANCEL_TIMEOUT_S, flink_errors
from paimon_features.iteration.execution_plan import ControlledNode, ControlPlan, ExecutionPlan
from paimon_features.iteration.flink.drain import MAX_CHECKPOINT_WAIT_S
from paimon_features.iteration.flink.job_settings import IterationSettings
from paimon_features.iteration.flink.table_outputs import TableOwnership
from paimon_features.iteration.wires import ENDED, INIT_ENDED, ROUND_CLOSED
from paimon_features.iteration.wires.spec import WireSpec
from paimon_features.lake.storage.file_path import (
    CHECKPOINTS,
    SAVEPOINTS,
    FilePath,
    RemotePath,
    delete_folder,
    modified_ns,
)

if TYPE_CHECKING:
    from pyflink.common import JobClient

POLL_S = 0.02
REMOTE_POLL_S = 0.5
"""Between two listings of checkpoints in an object store, which cost requests."""
REPORT_S = 0.2
STOP_TRIES = 3
START_S = 120.0
"""Minimum timeout of a job that has not started: workers start, slots become free."""

Status = Mapping[str, Any]
OnIterationStatus = Callable[[Sequence[Status]], None]


class RunningIteration:
    """Handle of a running iteration job, returned by ``execute_async``."""

    def __init__(
        self,
        name: str,
        client: JobClient,
        plan: ExecutionPlan,
        wires: WireSpec,
        job_state: FilePath,
        settings: IterationSettings,
        owned: TableOwnership,
        record_end: Callable[..., None],
    ) -> None:
        self.name = name
        self._client = client
        self._plan = plan
        self._wires = wires
        self._job_state = job_state
        self.settings = settings
        self._owned = owned
        self._record_end = record_end
        self._ended: Any = None
        self._drained: str | None = None
        self._variables = dict(os.environ)
        self._opened = [wires.open(control.iteration) for control in plan.controls]

    @property
    def job_id(self) -> str:
        """Flink's id of the job."""
        return str(self._client.get_job_id())

    @property
    def _checkpoints(self) -> FilePath:
        return self._job_state / CHECKPOINTS / self.job_id

    @property
    def state(self) -> str:
        """Flink's state of the job: RUNNING, RESTARTING, FINISHED ..."""
        with flink_errors(f"reading the state of {self.name!r}"):
            return str(self._client._j_job_client.getJobStatus().get().name())

    def status(self) -> list[Status]:
        """Return the last reported status of each iteration: epoch, records, loss, state."""
        return [wire.status() for wire in self._opened]

    def wait(self, report: OnIterationStatus | None = None) -> None:
        """Wait until the program has ended and its outputs are committed.

        The job is drained when all iterations have ended. After Ctrl-C or SIGTERM
        (KeyboardInterrupt), and after any error in ``report``, it is cancelled.

        Raises
        ------
        JobError
            If the job fails, or makes no progress for ``stuck_s``.
        """
        watch = _ProgressWatch(self, report)
        try:
            with interruptible() as stop:
                while not self._has_ended():
                    if stop.wait(POLL_S):
                        raise KeyboardInterrupt
                    if self._plan.controls and watch.poll() and self._drain(watch.status):
                        break
        except BaseException as error:
            if not isinstance(error, KeyboardInterrupt):
                self._record_end("FAILED", error)
            try:
                self.cancel()
            except JobError as second:  # such as an end of the JVM, which ended the job as well
                error.add_note(f"the job was not cancelled: {second}")
            raise
        try:
            with flink_errors(f"running the iteration job {self.name!r}"):
                self._end().result()
        except JobError as error:
            self._record_end("FAILED", error)
            if "NoResourceAvailable" in str(error) and self.settings.mode == "process":
                error.add_note(
                    "a task manager has died, as may happen when a function fails in process mode "
                    "(FLINK-40135): see the first error above, or its log. This does not happen in "
                    "thread mode; a cluster that restarts the task manager continues"
                )
            raise
        finally:
            self.discard()
        self._record_end("FINISHED")
        if self._drained is not None:
            # nothing can resume from the end; the savepoint may contain a complete training set
            delete_folder(self._path(self._drained))

    def stop(self, folder: FilePath | None = None) -> str:
        """Stop a running iteration with a savepoint that another job can resume.

        Raises
        ------
        JobError
            If the savepoint fails; the job continues then.
        """
        for left in reversed(range(STOP_TRIES)):
            starts = [float(one["since"]) for one in self.status() if "since" in one]
            if starts:
                self._await_checkpoint(max(starts))
            try:
                path = self._stop_with_savepoint(drain=False, folder=folder)
                break
            except JobError:
                # a task may just have ended; the job restarts from its last checkpoint
                if not left or self._has_ended():
                    raise
        self._record_end("STOPPED")
        self.discard()
        return path

    def cancel(self) -> None:
        """Cancel the job; uncommitted outputs are lost. Harmless if it has ended."""
        try:
            with flink_errors(f"cancelling the iteration job {self.name!r}"):
                if not self._has_ended():
                    self._client.cancel()
                    deadline = time.monotonic() + CANCEL_TIMEOUT_S
                    while not self._has_ended() and time.monotonic() < deadline:
                        time.sleep(POLL_S)
                    self._record_end("STOPPED")
        finally:
            self.discard()

    def checkpoint(self) -> FilePath | None:
        """Return the latest completed checkpoint, which another job can resume: also that of a
        cancelled or failed job, but not of a finished one."""
        folders = (path.parent for path in self._checkpoints.glob("chk-*/_metadata"))
        return max(folders, key=lambda path: int(path.name.removeprefix("chk-")), default=None)

    def discard(self) -> None:
        """Delete the data of this run on the wires and the changes of pyflink to this process, and
        release the tables.

        If Python of process mode runs in this process, pyflink sets the environment variables of
        a worker, one of which prevents the start of another JVM.
        """
        for control in self._plan.controls:
            self._wires.discard(control.iteration)
        for name in os.environ.keys() - self._variables.keys():
            del os.environ[name]
        os.environ.update(self._variables)
        self._owned.release()

    def _drain(self, status: Sequence[Status]) -> bool:
        """Stop the job with a savepoint after the end of its iterations: sinks commit with it.

        Returns False if the job failed meanwhile (it continues from its last checkpoint and
        reaches its end again) or has ended.
        """
        self._await_checkpoint(max(float(one["since"]) for one in status))
        generations = [one["generation"] for one in status]
        if [one.get("generation") for one in self.status()] != generations:
            return False
        try:
            savepoint = self._stop_with_savepoint(drain=True)
        except JobError:
            # it may have ended meanwhile: then its own result says how, not the savepoint's error
            return False
        self._drained = savepoint
        if [one.get("generation") for one in self.status()] != generations:
            # it failed and restarted between the status and the savepoint
            raise JobError(
                f"iteration job {self.name!r} was restarted while it was drained; continue from "
                f"the savepoint: IterationJob(resume={savepoint!r})"
            )
        return True

    def _await_checkpoint(self, since_s: float) -> None:
        """Wait until an attempt has completed one or two checkpoints, for a limited time.

        Sources that have just ended wait for one. A savepoint at that moment may hang until it
        times out and the job restarts (seen in 1 of 12 runs with failures). The results are exact
        in that case, too, so that rare checkpoints are not worth a wait of minutes.
        """
        pause_s = self.settings.checkpoint_interval_ms / 1000
        deadline = time.monotonic() + min(5 * pause_s + 1, MAX_CHECKPOINT_WAIT_S)
        completed: set[FilePath] = set()
        while time.monotonic() < deadline and not self._has_ended():
            for path in self._checkpoints.glob("chk-*/_metadata"):
                with suppress(FileNotFoundError):  # only the latest one is retained
                    after_s = modified_ns(path) / 1e9 - since_s
                    if after_s > 3 * pause_s + 1:
                        return
                    if after_s > 0:
                        completed.add(path)
            if len(completed) > 1:
                return
            time.sleep(POLL_S if isinstance(self._job_state, Path) else REMOTE_POLL_S)

    def _path(self, uri: str) -> FilePath:
        """Return a folder of this job by the address that Flink reports."""
        if isinstance(self._job_state, Path):
            return Path(unquote(urlsplit(uri).path))
        return RemotePath(self._job_state.storage, uri.rstrip("/"))

    def _stop_with_savepoint(self, drain: bool, folder: FilePath | None = None) -> str:
        from pyflink.java_gateway import get_gateway

        jvm: Any = get_gateway().jvm
        target = folder or self._job_state / SAVEPOINTS
        address = (target.absolute() if isinstance(target, Path) else target).as_uri()
        # pyflink's own method calls a signature that Flink 2 has removed
        kind = jvm.org.apache.flink.core.execution.SavepointFormatType.NATIVE
        with flink_errors(f"stopping the iteration job {self.name!r} with a savepoint"):
            future = self._client._j_job_client.stopWithSavepoint(drain, address, kind)
            return str(future.get())

    def _end(self) -> Any:
        if self._ended is None:
            self._ended = self._client.get_job_execution_result()
        return self._ended

    def _has_ended(self) -> bool:
        with flink_errors(f"running the iteration job {self.name!r}"):
            return bool(self._end().done())


class _ProgressWatch:
    """Detects the end of the iterations, and missing progress."""

    def __init__(self, running: RunningIteration, report: OnIterationStatus | None) -> None:
        self._running = running
        self._report = report
        self._reported = 0.0
        self.status: list[Status] = []
        self._moved = time.monotonic()

    def poll(self) -> bool:
        """Read the status; return whether all iterations have finished."""
        status = self._running.status()
        now = time.monotonic()
        if _progress(status) != _progress(self.status):
            self._moved = now
        self.status = status
        finished = all(one.get("state") == "finished" for one in status)
        if self._report is not None and (finished or now - self._reported >= REPORT_S):
            self._reported = now
            self._report(status)
        if finished:
            return True
        limit = self._running.settings.stuck_s
        if limit is not None and any("state" not in one for one in status):
            limit = max(limit, START_S)
        plan = self._running._plan
        if limit is not None and now - self._moved > limit:
            raise JobError(
                f"iteration job {self._running.name!r} is stuck: no progress for "
                f"{limit:g} s; its state in Flink is {self._running.state}. "
                + "; ".join(map(partial(missing_from, plan), plan.controls, status))
            )
        return False


def _progress(status: Sequence[Status]) -> list[Any]:
    names = ("generation", "state", "epoch", "last_notices")
    return [[one.get(name) for name in names] for one in status]


def missing_from(plan: ExecutionPlan, control: ControlPlan, status: Status) -> str:
    """Describe what an iteration waits for, by the names of its stages."""
    about = f"iteration {control.iteration}"
    state = status.get("state")
    if state is None:
        return f"{about}: its head has not started"
    notices = status.get("last_notices", {})
    epoch = status.get("epoch")

    def missing(members: Sequence[ControlledNode], reported: Callable[[int, int], bool]) -> str:
        # one stage may contain several of them
        subtasks = {
            f"stage {plan.stages[member.stage].name!r} subtask {subtask}": None
            for member in members
            for subtask in range(member.parallelism)
            if not reported(*notices.get(f"{member.node}:{subtask}", (-1, -1)))
        }
        return ", ".join(subtasks)

    tails = [*control.tails, *([control.criteria] if control.criteria else [])]
    if state == "ending":
        members, awaited = [*control.heads, *tails, *control.outputs], "the end"
        lacking = missing(members, lambda kind, _: kind == ENDED)
    elif epoch is None:
        members, awaited = list(control.heads), "the end of the initial variables"
        lacking = missing(members, lambda kind, _: kind >= INIT_ENDED)
    else:
        members, awaited = tails, f"the end of epoch {epoch}"
        lacking = missing(
            members,
            lambda kind, closed: kind == ENDED or (kind == ROUND_CLOSED and closed > epoch),
        )
    return f"{about} ({state}, epoch {epoch}) waits for {awaited} from: {lacking or 'none'}"
