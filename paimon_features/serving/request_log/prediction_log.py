"""The log of predictions: who was predicted what, by which version, from which values.

It is written as the request log is (see ``log``): bounded memory, spool files, a folder for each
model below ``predictions/``; ``paimon-features request-log`` commits them to the tables
``predictions_<model>``. Entities are sampled, not requests: all predictions of an entity are logged
or none, so that outcomes join a random part of the entities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core._arrow import pa, require_arrow
from paimon_features.core.configuration.project_config import ServeConfig
from paimon_features.core.times.clock import now_ms
from paimon_features.models import ModelManifest
from paimon_features.serving.replies.response import OnlineResponse
from paimon_features.serving.request_log.log import (
    chosen_rows,
    salt_of_environment,
    share_of,
    threshold_of,
)
from paimon_features.serving.request_log.log_rows import EntityText
from paimon_features.serving.request_log.log_thread import LogThread
from paimon_features.serving.request_log.prediction_rows import (
    LoggedPrediction,
    PredictionRowBuilder,
    Role,
    prediction_schema,
)
from paimon_features.serving.request_log.spool import described_schema
from paimon_features.serving.request_log.spool_folder import SpoolFolder, SpoolLimits

PREDICTIONS = "predictions"
"""The folder below that of the log with a folder for each model."""


@dataclass(frozen=True, slots=True)
class PredictionId:
    """A logged request, by which predictions of shadow versions are those of the same request."""

    number: int
    served_at_ms: int


class PredictionLog(LogThread[LoggedPrediction]):
    """Logs the predictions of one worker. ``note`` may be called from several threads.

    Parameters
    ----------
    folder
        Where spool files are written, below ``predictions/``; created if missing, for its owner.
    project
        The project's name.
    rate
        The share of the entities whose predictions are logged, 0 to 1.
    reads
        The share of the requests of which the log also has the values that were read, 0 to 1;
        the part of the log that costs most.
    salt
        If given, entities are hashed with it, and no key is written.
    worker
        The worker's name; by default host and process id.
    max_pending
        Most rows that wait in memory.
    limits
        Those of the files of each model.
    flush_interval_s
        About how long rows wait until they are written.

    Raises
    ------
    ConfigurationError
        For an invalid rate or limit.
    """

    def __init__(
        self,
        folder: str | Path,
        project: str,
        *,
        rate: float = 1.0,
        reads: float = 1.0,
        salt: bytes | None = None,
        worker: str | None = None,
        max_pending: int = 20_000,
        limits: SpoolLimits | None = None,
        flush_interval_s: float = 0.5,
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        self._entities = threshold_of("rate", rate)
        self._with_reads = threshold_of("reads", reads)
        super().__init__("prediction-log", worker, max_pending, flush_interval_s)
        self._folder = Path(folder) / PREDICTIONS
        self._clock_ms, self._started_ms = clock_ms, clock_ms()
        self._limits = limits or SpoolLimits()
        self._builder = PredictionRowBuilder(project, self.worker, EntityText(salt))
        self._schema = described_schema(prediction_schema(), project, self.worker)
        self._spools: dict[str, SpoolFolder] = {}
        self._thread.start()

    def note(
        self,
        request_id: str,
        response: OnlineResponse,
        manifest: ModelManifest,
        digest: str,
        role: Role,
        features: Sequence[str],
        outputs: Sequence[npt.NDArray[np.float32]],
        of: PredictionId | None = None,
    ) -> PredictionId:
        """Log the predictions of a version, whose manifest has the SHA-256 ``digest``.

        ``outputs`` has rows for the entities of the response; ``features`` are those that the
        version reads. ``of`` is what the same request returned for the version that answered it,
        if this is a shadow. Never raises, and costs no more than a few microseconds.
        """
        chosen = chosen_rows(response)
        reads = of is None and share_of(request_id) < self._with_reads
        rows, stats = len(chosen), self.stats
        at_ms = self._clock_ms() if of is None else of.served_at_ms
        with self._lock:
            if of is None:
                stats.noted += 1
                of = PredictionId(stats.noted, at_ms)
            stats.rows += rows
            stats.left_out += len(response) - rows
            if rows:
                self._add(
                    LoggedPrediction(
                        request_id, of.number, at_ms, response, chosen, manifest, digest, role,
                        features, outputs, reads,
                    ),
                    rows,
                )  # fmt: skip
        return of

    # -- in the writing thread -----------------------------------------------------------------

    def _begin(self) -> None:
        if self._folder.is_dir():
            for path in self._folder.iterdir():
                if path.is_dir():
                    self._spool(path.name).recover()

    def _spool(self, model: str) -> SpoolFolder:
        spool = self._spools.get(model)
        if spool is None:
            spool = self._spools[model] = SpoolFolder(
                self._folder / model, self._schema, self.worker, self._started_ms, self._limits,
                self.stats,
            )  # fmt: skip
        return spool

    def _write(self, noted: Sequence[tuple[LoggedPrediction, int]]) -> None:
        rows: dict[str, list[dict[str, Any]]] = {}
        for one, count in noted:
            try:
                entities = self._builder.entities(one)
                wanted = [at for at, text in enumerate(entities) if share_of(text) < self._entities]
                self.stats.left_out += len(entities) - len(wanted)
                if wanted:
                    rows.setdefault(one.manifest.name, []).extend(
                        self._builder.rows(one, entities, wanted)
                    )
            except Exception as error:
                self._dropped(count, error)
        for model, model_rows in rows.items():
            self._spool(model).append(pa.RecordBatch.from_pylist(model_rows, prediction_schema()))
        for spool in self._spools.values():
            spool.complete_old()

    def _complete(self) -> None:
        for spool in self._spools.values():
            spool.complete()


def open_prediction_log(project: str, config: ServeConfig) -> PredictionLog | None:
    """Return the prediction log of a worker by its configuration; None if it is not configured.

    Raises
    ------
    ConfigurationError
        If entities are to be hashed and there is no secret.
    MissingExtraError
        If pyarrow is not installed: the log is written in Arrow's format.
    """
    if config.prediction_log is None:
        return None
    require_arrow("the prediction log ([serve] prediction_log)")
    return PredictionLog(
        config.prediction_log,
        project,
        rate=config.prediction_log_rate,
        reads=config.prediction_log_reads,
        salt=salt_of_environment() if config.prediction_log_hash else None,
        limits=SpoolLimits(max_age_s=config.spool_age_ms / 1000),
    )
