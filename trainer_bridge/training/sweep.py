"""Sweeps: many runs of one configuration in parallel processes, the best of them registered.

The main process keeps all trials in a journal of Optuna, which it alone writes, and hands them to
worker processes. What a worker had when it died is given to another one, and continues at its
checkpoint; what the main process had when it died is continued by the next one.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from filelock import FileLock, Timeout

from paimon_features.core.errors import (
    ConfigurationError,
    JobError,
    MissingExtraError,
    PaimonFeaturesError,
)
from paimon_features.core.process.callbacks import OnMessage, ignore_message
from paimon_features.models import ModelManifest
from trainer_bridge.training.config import TrainConfig, compose, composed
from trainer_bridge.training.notes import quiet
from trainer_bridge.training.search_space import MAX_VALUES, Choice, Interval, SearchSpace
from trainer_bridge.training.training_table import TrainingTable

if TYPE_CHECKING:
    from paimon_features.project import Project

Pruner = Literal["median", "asha", "none"]
FOLDER = "training"
MAX_JOBS = 256
_ATTEMPTS = 3
"""Processes that may die of one trial, for want of memory say, before it counts as failed."""
_RESULTS, _BEST = "results.json", "best.txt"
_VALUES = "values"
"""Of a trial in the journal: the value of each setting that varies."""
_STARTUP_TRIALS = 5
"""Trials before the search learns from others, and before one is pruned."""


@dataclass(frozen=True)
class TrialResult:
    """One trial: ``loss`` is that of the validation part; of a pruned trial the last one seen."""

    number: int
    overrides: tuple[str, ...]
    state: Literal["finished", "pruned", "failed"]
    loss: float | None
    seconds: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    message: str = ""


@dataclass(frozen=True)
class SweepResult:
    """A finished sweep: its trials by number, and the version of the best one's configuration."""

    folder: Path
    trials: tuple[TrialResult, ...]
    best: TrialResult
    overrides: tuple[str, ...]
    """The configuration of the best trial: the overrides of all trials, and its own."""
    manifest: ModelManifest
    is_new: bool

    @property
    def results_file(self) -> Path:
        """All trials, as JSON."""
        return self.folder / _RESULTS

    @property
    def best_file(self) -> Path:
        """The overrides of the best trial, one a line."""
        return self.folder / _BEST


def sweep(
    project: Project,
    file: Path,
    overrides: Sequence[str] = (),
    *,
    trials: int | None = None,
    jobs: int | None = None,
    pruner: Pruner = "median",
    on_message: OnMessage = ignore_message,
) -> SweepResult:
    """Try configurations, and register the one with the least validation loss as a candidate.

    Without ``trials`` every combination of the values is tried; with it Optuna's tree-structured
    Parzen estimator chooses that many, from the sixth on by the losses before. Every trial has the
    seed of the configuration and the same snapshot. With one job the same trials follow each other
    in every sweep; with several, what is known when one is chosen depends on their speed. The same
    call continues a sweep that was interrupted; with more ``trials`` it continues a finished one.

    Parameters
    ----------
    overrides
        Settings of all trials, and those that vary: ``model.layers=1,2``, ``range(1, 5)``,
        ``interval(0, 0.5)``, ``tag(log, interval(1e-5, 1e-2))``; in addition to those of the
        section ``sweep`` of the file.
    jobs
        Worker processes; by default one for each processor of ``trainer.threads`` (1 by default)
        threads, and a single one with a GPU.
    pruner
        What ends a trial early: a loss above the median of earlier trials at that batch,
        asynchronous successive halving (ASHA), or nothing.

    Raises
    ------
    ConfigurationError
        If nothing varies, for a configuration that no trial can have, and while another process
        runs this sweep.
    JobError
        If every trial failed.
    MissingExtraError
        Without the extra ``train``.
    """
    with quiet("optuna"):
        try:
            import optuna

            optuna.logging.set_verbosity(optuna.logging.ERROR)
        except ImportError as error:
            raise MissingExtraError.of("optuna", "train", "a sweep") from error
        sections = composed(file, SearchSpace.of({}, overrides).fixed)["sweep"]
        if not isinstance(sections, Mapping):
            raise ConfigurationError(f"{file}: sweep={sections!r}: expected settings by name")
        space = SearchSpace.of(sections, overrides)
        if not space.dimensions:
            raise ConfigurationError(
                "nothing varies: give a setting several values, such as optimiser.lr=0.001,0.003, "
                "or a section 'sweep' in the file"
            )
        grid = space.grid() if trials is None else None
        base = compose(file, space.fixed)
        if base.trainer.threads is None:
            # part of what the last bits depend on, so that it is part of the best configuration
            space = replace(space, fixed=(*space.fixed, "trainer.threads=1"))
            base = compose(file, space.fixed)
        threads = base.trainer.threads or 1
        table = TrainingTable.open(project, base.data)
        most = (os.cpu_count() or 1) // threads
        if base.trainer.accelerator != "cpu" and Path("/dev/nvidia0").exists():
            most = 1
        number = jobs or max(1, most)
        if not 1 <= number <= MAX_JOBS:
            raise ConfigurationError(f"jobs={number}; expected 1 to {MAX_JOBS}")
        if trials is not None and not 1 <= trials <= MAX_VALUES:
            raise ConfigurationError(f"trials={trials}; expected 1 to {MAX_VALUES:,}")
        identity = [base.to_document(), space.to_document(), table.snapshot,
                    pruner, "grid" if grid else "search"]  # fmt: skip
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
        folder = project.config.state_dir / FOLDER / base.name / f"sweep-{digest}"
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(folder / ".lock", timeout=0):
                running = _Sweep(
                    project, file, space, base, table, folder, threads, pruner, on_message
                )
                target = len(grid) if grid is not None else trials or 0
                running.run(grid, target, min(number, target))
                return running.finish()
        except Timeout as error:
            raise ConfigurationError(
                f"another process runs this sweep (it has the lock {folder / '.lock'})"
            ) from error


class _TrialProcess:
    """A process that trains one trial after another."""

    def __init__(self, root: Path, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(
            target=_work, args=(other, str(root), threads), name="sweep-worker", daemon=True
        )
        self.process.start()
        other.close()
        self.trial: Any = None

    def stop(self) -> None:
        self.connection.close()
        if self.process.is_alive():
            self.process.terminate()
        self.process.join()


class _Sweep:
    """The main process of a sweep."""

    def __init__(
        self,
        project: Project,
        file: Path,
        space: SearchSpace,
        base: TrainConfig,
        table: TrainingTable,
        folder: Path,
        threads: int,
        pruner: Pruner,
        on_message: OnMessage,
    ) -> None:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        self.project, self.file, self.space, self.base = project, file, space, base
        self.table, self.folder, self.threads, self.on_message = table, folder, threads, on_message
        journal = folder / "trials.log"
        _drop_torn_line(journal)
        for lock in folder.glob(
            "trials.log.lock*"
        ):  # of a process that was killed; the folder is ours
            lock.unlink()
        pruning = {
            "median": optuna.pruners.MedianPruner(n_startup_trials=_STARTUP_TRIALS),
            "asha": optuna.pruners.SuccessiveHalvingPruner(),
            "none": optuna.pruners.NopPruner(),
        }[pruner]
        self.study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(journal))),
            study_name=base.name,
            pruner=pruning,
            load_if_exists=True,
        )
        self.deaths: dict[int, int] = {}

    # -- trials --------------------------------------------------------------------------------

    def run(self, grid: list[dict[str, str]] | None, target: int, jobs: int) -> None:
        """Train until ``target`` trials have ended."""
        import optuna

        states = optuna.trial.TrialState
        trials = self.study.get_trials(deepcopy=False)
        left = [record for record in trials if record.state == states.RUNNING]
        if trials:
            self.on_message(f"{len(trials) - len(left)} trials are known, {len(left)} continue")
        waiting: list[Any] = [optuna.trial.Trial(self.study, record._trial_id) for record in left]
        ahead = max(0, target - len(trials))
        workers: list[_TrialProcess] = []
        try:
            while True:
                busy = sum(worker.trial is not None for worker in workers)
                while (waiting or ahead) and busy < jobs:
                    if waiting:
                        trial = waiting.pop(0)
                    else:
                        trial, ahead = self.study.ask(), ahead - 1
                    settings = self._settings(trial, grid)
                    if settings is None:
                        continue
                    worker = next((worker for worker in workers if worker.trial is None), None)
                    if worker is None:
                        worker = _TrialProcess(self.project.root, self.threads)
                        workers.append(worker)
                    worker.trial = trial
                    self._send(worker, (settings, str(self._trial_folder(trial))))
                    busy += 1
                if not busy:
                    return
                ready = wait([worker.connection for worker in workers if worker.trial is not None])
                for worker in [worker for worker in workers if worker.connection in ready]:
                    if not self._handle(worker):
                        workers.remove(worker)
                        again = self._died(worker)
                        waiting += [again] if again is not None else []
        finally:
            for worker in workers:
                worker.stop()

    def _settings(self, trial: Any, grid: list[dict[str, str]] | None) -> dict[str, Any] | None:
        """Return the configuration of a trial; None if it cannot have one, which ends it."""
        if _VALUES not in trial.user_attrs:
            values = self._suggested(trial) if grid is None else grid[trial.number]
            trial.set_user_attr(_VALUES, values)
        try:
            return self.config_of(trial.user_attrs[_VALUES]).to_document()
        except PaimonFeaturesError as error:
            self._end(trial, "failed", None, 0.0, message=str(error))
            return None

    def _suggested(self, trial: Any) -> dict[str, str]:
        """Return values that depend on the trial's number, the seed and the trials before it."""
        import optuna

        self.study.sampler = optuna.samplers.TPESampler(
            seed=(self.base.seed * 1_000_003 + trial.number) % 2**32,
            n_startup_trials=_STARTUP_TRIALS,
            constant_liar=True,
        )
        dimensions = self.space.dimensions.items()
        return {name: _suggested(trial, name, dimension) for name, dimension in dimensions}

    def config_of(self, values: Mapping[str, str]) -> TrainConfig:
        """Return the configuration of a trial, at the snapshot of all trials."""
        config = compose(self.file, [*self.space.fixed, *_overrides(values)])
        data = config.data
        if data.training_set == self.base.data.training_set and data.snapshot is None:
            data = replace(data, snapshot=self.table.snapshot)
        return replace(config, data=data)

    def _trial_folder(self, trial: Any) -> Path:
        return self.folder / f"trial-{trial.number}"

    def _send(self, worker: _TrialProcess, message: Any) -> None:
        with suppress(ConnectionError):  # it died: the next read says so
            worker.connection.send(message)

    def _handle(self, worker: _TrialProcess) -> bool:
        """Read a message of a worker; whether it lives."""
        trial = worker.trial
        try:
            kind, *rest = worker.connection.recv()
        except (EOFError, ConnectionError):
            return False
        if kind == "step":
            step, loss = rest
            stop = not math.isfinite(loss)  # it has diverged
            if not stop:
                with quiet("optuna"):
                    trial.report(loss, step)  # of a trial that is trained again: has no effect
                    stop = bool(trial.should_prune())
            self._send(worker, stop)
            return True
        worker.trial = None
        if kind == "failed":
            self._end(trial, "failed", None, rest[1], message=rest[0])
        else:
            metrics, seconds = rest
            loss = metrics["mse" if "mse" in metrics else "log_loss"]
            if math.isfinite(loss):
                self._end(trial, kind, loss, seconds, metrics)
            else:  # Optuna takes no such value
                message = f"training diverged: the loss on the validation rows is {loss}"
                self._end(trial, "failed", None, seconds, message=message)
        return True

    def _died(self, worker: _TrialProcess) -> Any:
        """Whose process ended without a word: once more, unless it did so too often."""
        trial = worker.trial
        worker.stop()
        self.deaths[trial.number] = self.deaths.get(trial.number, 0) + 1
        code = worker.process.exitcode
        ended = f"its process ended with {f'signal {-code}' if code and code < 0 else code}"
        if self.deaths[trial.number] >= _ATTEMPTS:
            self._end(trial, "failed", None, 0.0, message=f"{ended}, {_ATTEMPTS} times")
            return None
        self.on_message(f"trial {trial.number}: {ended}; it continues in another one")
        return trial

    def _end(
        self,
        trial: Any,
        state: Literal["finished", "pruned", "failed"],
        loss: float | None,
        seconds: float,
        metrics: Mapping[str, float] | None = None,
        message: str = "",
    ) -> None:
        import optuna

        overrides = _overrides(trial.user_attrs[_VALUES])
        result = TrialResult(trial.number, overrides, state, loss, seconds, metrics or {}, message)
        trial.set_user_attr("result", asdict(result))
        states = optuna.trial.TrialState
        kind = {"finished": states.COMPLETE, "pruned": states.PRUNED, "failed": states.FAIL}[state]
        self.study.tell(trial, loss if state == "finished" else None, state=kind)
        shutil.rmtree(self._trial_folder(trial), ignore_errors=True)
        shown = (
            f"{state}" if loss is None else f"loss {loss:.5g}" + " (pruned)" * (state == "pruned")
        )
        self.on_message(
            f"trial {trial.number}: {shown}, {' '.join(overrides)}, {seconds:.1f} s"
            + (f": {message}" if message else "")
        )

    # -- results -------------------------------------------------------------------------------

    def results(self) -> list[TrialResult]:
        """Return all trials that have ended, by number."""
        ended = []
        for trial in self.study.get_trials(deepcopy=False):
            document = trial.user_attrs.get("result")
            if document is not None:
                ended.append(TrialResult(**{**document, "overrides": tuple(document["overrides"])}))
        return ended

    def finish(self) -> SweepResult:
        """Write the results, and train and register the best configuration."""
        trials = self.results()
        finished = [one for one in trials if one.state == "finished" and one.loss is not None]
        if not finished:
            reasons = {trial.message for trial in trials if trial.message}
            raise JobError(
                f"no trial of {len(trials)} finished: {'; '.join(sorted(reasons)[:3])[:500]}"
            )
        best = min(finished, key=lambda each: (each.loss, each.number))
        overrides = (*self.space.fixed, *best.overrides)
        document = {
            "snapshot": self.table.snapshot,
            "trials": [asdict(trial) for trial in trials],
            "best": {"number": best.number, "loss": best.loss, "overrides": list(overrides)},
        }
        _write(self.folder / _RESULTS, json.dumps(document, indent=1) + "\n")
        _write(self.folder / _BEST, "\n".join(overrides) + "\n")
        self.on_message(f"trial {best.number} is the best of {len(trials)}: it is registered")
        from trainer_bridge.training import run

        config = self.config_of(self.study.trials[best.number].user_attrs[_VALUES])
        manifest, is_new = run.train(self.project, config, on_message=self.on_message)
        return SweepResult(self.folder, tuple(trials), best, overrides, manifest, is_new)


def _overrides(values: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{name}={value}" for name, value in values.items())


def _suggested(trial: Any, name: str, dimension: Choice | Interval) -> str:
    if isinstance(dimension, Choice):
        if dimension.step:
            low, high = int(dimension.values[0]), int(dimension.values[-1])
            return str(trial.suggest_int(name, low, high, step=dimension.step))
        return str(trial.suggest_categorical(name, list(dimension.values)))
    if dimension.integer:
        low, high = int(dimension.low), int(dimension.high)
        return str(trial.suggest_int(name, low, high, log=dimension.log))
    return repr(trial.suggest_float(name, dimension.low, dimension.high, log=dimension.log))


def _drop_torn_line(path: Path) -> None:
    """Without what a killed process had begun to write: the next line would be added to it."""
    if path.is_file():
        data = path.read_bytes()
        end = data.rfind(b"\n") + 1
        if end != len(data):
            os.truncate(path, end)


def _write(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


# -- the worker process ----------------------------------------------------------------------


def _work(connection: Connection, root: str, threads: int) -> None:
    """Train trials until the main process closes the connection, or is gone."""
    import signal

    # Ctrl-C goes to all processes of a terminal; the main one ends this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from paimon_features.project import Project

    project = Project.open(root)
    from trainer_bridge.training import run  # noqa: F401  (seconds, which are no trial's)

    while True:
        try:
            document, folder = connection.recv()
        except (EOFError, ConnectionError):
            os._exit(0)  # there is no more to do; threads of readers need no farewell
        began = time.monotonic()
        try:
            message = _tried(project, connection, document, Path(folder))
        except PaimonFeaturesError as error:
            message = ("failed", str(error))
        except Exception as error:  # of a library, about this configuration
            message = ("failed", f"{type(error).__name__}: {str(error)[:500]}")
        with suppress(ConnectionError):
            connection.send((*message, time.monotonic() - began))


def _end_with_parent() -> None:
    """Nobody else may have the trials of this process while it trains."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _tried(
    project: Project, connection: Connection, document: dict[str, Any], folder: Path
) -> tuple[str, Any]:
    from trainer_bridge.training import run

    state = "finished"

    def on_validation(step: int, loss: float) -> bool:
        nonlocal state
        connection.send(("step", step, loss))
        if connection.recv():
            state = "pruned"
        return state == "pruned"

    folder.mkdir(parents=True, exist_ok=True)
    metrics = run.validate(project, TrainConfig.from_document(document), folder, on_validation)
    return state, {name: metric.value for name, metric in metrics.items()}
