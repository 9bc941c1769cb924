"""Which rows the next round reads: it follows from the registry and the commits of the table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from paimon_features.core.documents.typed_json import typed
from paimon_features.core.errors import ConfigurationError, SnapshotExpiredError
from paimon_features.lake.metadata.snapshots import pinned, ref_of, snapshot, snapshots, split_ref
from paimon_features.models import ModelManifest
from trainer_bridge.training import run
from trainer_bridge.training.config import RoundConfig, TrainConfig
from trainer_bridge.training.labels import LabelCodec
from trainer_bridge.training.rounds import TrainingRows, encoder_of
from trainer_bridge.training.training_table import column_of, split_by_time

if TYPE_CHECKING:
    from paimon_features.project import Project

VERDICT = "gate.json"
"""The file of a version of a round that says what the gate found."""
_PENDING = "round.json"


@dataclass(frozen=True)
class ProductionVersion:
    """The version that a round continues, and what it was trained on."""

    manifest: ModelManifest
    config: TrainConfig
    source: TrainingRows
    labels: LabelCodec

    @classmethod
    def of(
        cls, project: Project, name: str, version: int, settings: Mapping[str, Any]
    ) -> ProductionVersion:
        """Read a version, whose settings are replaced.

        Raises
        ------
        UnknownNameError, ConfigurationError
            If there is no such version, or it was not trained by ``paimon-features train``; for
            settings that are none, and columns that the training set does not have.
        SnapshotExpiredError
            If the training set was replaced since.
        """
        manifest = project.models.manifest(name, version)
        encoder, labels = encoder_of(project, manifest)
        pins = manifest.training
        assert pins is not None, "encoder_of has checked it"
        config = with_settings(run.config_of(project, manifest), settings)
        keys = [key.name for key in manifest.signature.entities]
        source = TrainingRows.of(project.lake, pins.table, config, encoder, labels, keys)
        pinned(project.lake, pins.table, pins.snapshot)  # SnapshotExpiredError
        return cls(manifest, config, source, labels)

    @property
    def table(self) -> str:
        """The table of its training set."""
        return self.source.table

    @property
    def since(self) -> str:
        """The snapshot that it was trained on."""
        assert self.manifest.training is not None
        return self.manifest.training.snapshot

    @cached_property
    def seen_until_ms(self) -> int:
        """It was trained on rows before this time, exclusive."""
        if self.config.round.parent:
            return self.config.round.train_until_ms
        data = self.config.data
        times = column_of(self.source.lake, self.table, self.since, data.time)
        return split_by_time(np.asarray(times), data).train_until_ms

    @cached_property
    def label_span(self) -> tuple[float, float] | None:
        """The range of a regression's labels in its training set: newer rows may lack some."""
        if self.labels.task != "regression":
            return None
        column = column_of(self.source.lake, self.table, self.since, self.source.label)
        values = self.labels.apply(column.filter(pa.array(self.labels.known(column))))
        return (float(values.min()), float(values.max())) if len(values) else None


def with_settings(config: TrainConfig, settings: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration with other settings, by dotted name.

    Raises
    ------
    ConfigurationError
        For a setting that a round does not take, or a value that it cannot have.
    """
    document = config.to_document()
    for name, value in settings.items():
        group, _, key = name.partition(".")
        if group not in ("retrain", "optimiser", "schedule", "trainer") or not key:
            raise ConfigurationError(
                f"{name}: a round takes settings of retrain, optimiser, schedule and trainer, such "
                "as retrain.min_rows=100; for others train a new version"
            )
        document[group][key] = value
    return TrainConfig.from_document(document)


@dataclass(frozen=True)
class RoundPlanner:
    """Plans rounds of a model; ``folder`` has the bounds of the one that was begun."""

    project: Project
    name: str
    folder: Path

    def next_round(self, current: ProductionVersion, newest: int) -> RoundConfig | None:
        """Return the bounds of the next round; None if there are too few new rows."""
        lake, retrain_settings = self.project.lake, current.config.retrain
        judged = self.judged(current)
        pending = self._pending()
        if pending is not None and (pending.parent, pending.since, pending.judged) == (
            str(current.manifest),
            current.since,
            judged,
        ):
            return pending
        first = split_ref(judged)[0]
        rows_before = snapshot(lake, current.table, first).total_records
        until, rows_until = None, rows_before
        for commit in snapshots(lake, current.table, first + 1):
            if until is not None and commit.total_records - rows_before > retrain_settings.max_rows:
                break
            until, rows_until = commit.id, commit.total_records
            if commit.id >= newest:
                break
        if until is None or rows_until - rows_before < retrain_settings.min_rows:
            return None
        until_ref = ref_of(lake, current.table, until)
        times = current.source.committed(judged, until_ref)[current.config.data.time].drop_null()
        if len(times) < retrain_settings.min_rows:
            return None
        ordered = np.sort(times.to_numpy())
        at = min(len(ordered) - 1, int(len(ordered) * (1 - retrain_settings.holdout)))
        test_from = int(ordered[at])
        bounds = RoundConfig(
            str(current.manifest),
            current.since,
            judged,
            until_ref,
            current.seen_until_ms,
            test_from - current.config.data.gap_ms,
            test_from,
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / _PENDING
        partial = path.with_suffix(".tmp")
        partial.write_text(json.dumps(asdict(bounds)))
        partial.replace(path)
        return bounds

    def _pending(self) -> RoundConfig | None:
        """Return the round that was begun, and not registered, when a process was killed."""
        try:
            return typed(RoundConfig, json.loads((self.folder / _PENDING).read_text()))
        except (OSError, ValueError):
            return None

    def judged(self, current: ProductionVersion) -> str:
        """Return the last snapshot whose rows a round was judged by, or the version trained on."""
        judged_until = current.since
        for manifest in self.project.models.manifests(self.name).values():
            pins = manifest.training
            if pins is None or VERDICT not in manifest.files or pins.table != current.table:
                continue
            if split_ref(pins.snapshot)[0] <= split_ref(judged_until)[0]:
                continue
            try:
                pinned(self.project.lake, current.table, pins.snapshot)
            except SnapshotExpiredError:
                continue  # of a training set that was replaced
            judged_until = pins.snapshot
        return judged_until

    def forget(self, folder: Path) -> None:
        """Forget the round that was begun, and its checkpoints."""
        (self.folder / _PENDING).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
