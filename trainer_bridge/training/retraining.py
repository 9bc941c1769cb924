"""``retrain``: a model continues with new training rows, behind a gate, and goes back on an alarm.

The registry is the state. What a round has to read follows from the version in production and from
the versions that were made before; the decision about a version is a note of the same commit that
promotes it. A process that is killed has either registered its version or not: the next one repeats
the round that was begun, whose bounds are in the state folder, and makes the same version.
"""

from __future__ import annotations

import json
import math
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.array_types import Ints
from paimon_features.callbacks import OnMessage, ignore_message
from paimon_features.clock import now_ms
from paimon_features.errors import (
    ConfigurationError,
    ModelError,
    OnlineStoreError,
    OwnershipError,
    SnapshotExpiredError,
    VerificationError,
)
from paimon_features.models import Metric, ModelManifest, ModelStates, VersionNote
from paimon_features.tables.side_files import locked
from paimon_features.tables.snapshots import (
    latest_snapshot,
    pinned,
    ref_of,
    snapshot,
    snapshots,
    split_ref,
)
from paimon_features.typed_json import typed
from trainer_bridge.training import export, gate, run
from trainer_bridge.training.config import GradientBoosting, RoundConfig, TrainConfig
from trainer_bridge.training.labels import LabelCodec
from trainer_bridge.training.rounds import (
    RoundTable,
    TrainingRows,
    encoder_of,
    parent_of,
    round_config,
)
from trainer_bridge.training.training_table import column_of, split_by_time

if TYPE_CHECKING:
    from paimon_features.project import Project

VERDICT = "gate.json"
"""The file of a version of a round that says what the gate found."""
_PENDING = "round.json"
_TRIES = 5

Action = Literal["promoted", "passed", "rejected", "superseded", "failed", "rolled_back", "alarm"]
"""Of a round: its version is in production; may be, and waits for somebody to promote it; is not
better; came too late, as another version had got into production; could not be made, and is none.
Of the version in production: the one before is there again; or should be, where nothing may be
changed."""


@dataclass(frozen=True)
class RetrainDecision:
    """What was decided about ``version`` (churn@4; empty if none was made), and why.

    ``production`` is the version in production afterwards. ``seconds`` are those since the rows
    were found.
    """

    action: Action
    version: str
    production: str
    text: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def is_round(self) -> bool:
        """Whether a version was trained."""
        return self.action not in ("rolled_back", "alarm")


def retrain(
    project: Project,
    name: str,
    *,
    follow: bool = False,
    rounds: int | None = None,
    poll_s: float = 1.0,
    promote: bool = True,
    settings: Mapping[str, Any] | None = None,
    stop: threading.Event | None = None,
    on_message: OnMessage = ignore_message,
    progress: bool = False,
) -> Iterator[RetrainDecision]:
    """Train candidates on new rows of a model's training set; yields each decision.

    One round by default, or none if there are too few new rows; with ``follow`` it waits for more
    every ``poll_s`` seconds, until ``stop`` is set or after so many ``rounds``. ``settings``
    replace those of the version's configuration, by dotted name (``{"retrain.min_rows": 100}``).

    Raises
    ------
    UnknownNameError, ConfigurationError
        If there is no such model, none of its versions is in production, or that was not trained by
        ``paimon-features train``; for settings that are none.
    SnapshotExpiredError
        If the training set was replaced since.
    TableError
        If another process is retraining the model.
    """
    stop = stop or threading.Event()
    project.models.states(name)  # UnknownNameError
    lake = project.lake
    lock = lake.side_folder / "models" / f"{lake.database}.{name}.retrain.lock"
    with locked(lock, f"retraining model {name!r}", timeout_s=1.0):
        retrainer = Retrainer(
            project, name, promote=promote, settings=settings or {}, on_message=on_message,
            progress=progress, patient=follow,
        )  # fmt: skip
        done = 0
        if follow:
            retrainer.prepare()
        while not stop.is_set():
            decision = retrainer.step()
            if decision is not None:
                yield decision
                done += decision.is_round
                if done and (not follow or done == rounds):
                    return
            elif not follow:
                return
            else:
                stop.wait(poll_s)


class Retrainer:
    """Makes the decisions of ``retrain`` one by one."""

    def __init__(
        self,
        project: Project,
        name: str,
        *,
        promote: bool = True,
        settings: Mapping[str, Any] | None = None,
        on_message: OnMessage = ignore_message,
        progress: bool = False,
        patient: bool = False,
    ) -> None:
        self.project, self.name = project, name
        self.promotes, self.settings = promote, dict(settings or {})
        self.on_message, self.progress, self.patient = on_message, progress, patient
        self.folder = project.config.state_dir / run.FOLDER / name
        self._must_publish = True
        self._current: _Production | None = None
        self._handled: int | None = None
        """The snapshot of the training set that nothing more follows from."""

    def prepare(self) -> None:
        """Import what a round needs before there are rows for one: it takes longer than a round."""
        current = self._production(self.project.models.states(self.name))
        modules = ["onnxruntime"]
        if not isinstance(current.config.model, GradientBoosting):
            modules += ["trainer_bridge.training.network_run", "onnxscript", "torch.onnx.ops"]
        for module in modules:
            with suppress(ImportError):  # the round says which extra is missing
                import_module(module)

    def step(self) -> RetrainDecision | None:
        """Make the next decision; None while nothing is to be decided."""
        table = None if self._current is None else self._current.table
        if self._handled is not None and table is not None and not self._must_publish:
            newest = latest_snapshot(self.project.lake, table)
            if newest is not None and newest.id == self._handled:
                return None
        states = self.project.models.states(self.name)
        self._publish(states)
        current = self._production(states)
        found = latest_snapshot(self.project.lake, current.table)
        assert found is not None, "its snapshot is pinned"
        began = time.monotonic()
        decision = self._unfinished(states)
        if decision is None:
            decision = self._watch(states, current, found.id)
        if decision is None:
            bounds = self._next_round(current, found.id)
            if bounds is None:
                self._handled = found.id
                return None
            decision = self._round(current, bounds)
        is_done = decision is None or decision.action == "failed"
        self._handled = found.id if is_done else None
        if decision is None:
            return None
        return replace(decision, seconds=time.monotonic() - began)

    # -- production ----------------------------------------------------------------------------

    def _production(self, states: ModelStates) -> _Production:
        state = states.production
        if state is None:
            raise ConfigurationError(
                f"model {self.name!r} has no version in production to continue; promote one: "
                f"paimon-features models promote {self.name} {states.versions[-1].version}"
            )
        if self._current is None or self._current.manifest.version != state.version:
            self._current = _Production.of(self.project, self.name, state.version, self.settings)
        return self._current

    def _publish(self, states: ModelStates) -> None:
        """Publish what another process promoted, and was killed before it could publish."""
        if not self._must_publish:
            return
        try:
            there = self.project.models.place.read().models.get(self.name)
            if there is None or there.serial < states.serial:
                self.project.models.publish()
        except OnlineStoreError as error:
            if not self.patient:
                raise
            self.on_message(f"the models cannot be published; it is tried again: {error}")
            return
        self._must_publish = False

    # -- decisions -----------------------------------------------------------------------------

    def _unfinished(self, states: ModelStates) -> RetrainDecision | None:
        """Decide about a version that was registered by a process that was killed then."""
        noted = {note.version for note in self.project.models.notes(self.name)}
        for each in states.versions:
            if each.state != "candidate" or each.version in noted:
                continue
            manifest = self.project.models.manifest(self.name, each.version)
            if VERDICT in manifest.files:
                verdict = json.loads(self.project.models.file(manifest, VERDICT))
                return self._decide(manifest, verdict)
        return None

    def _decide(self, manifest: ModelManifest, verdict: Mapping[str, Any]) -> RetrainDecision:
        parent, version = manifest.parents[0], manifest.version
        reasons = verdict["reasons"]
        for _ in range(_TRIES):
            states = self.project.models.states(self.name)
            production = f"{self.name}@{states.production.version if states.production else 0}"
            text = "; ".join(reasons)
            action: Action = "rejected"
            if not reasons:
                overall = gate.Difference(**verdict["overall"])
                text = f"its loss is lower than that of {parent}: {overall}"
                action = "promoted" if self.promotes else "passed"
                if production != parent:
                    action = "superseded"
                    text = f"{production} is in production, and no more {parent}, its parent"
            note = VersionNote(version, now_ms(), action, text, verdict)
            if action != "promoted":
                self.project.models.add_note(self.name, note)
                return RetrainDecision(action, str(manifest), production, text, verdict)
            self._must_publish = True
            try:
                self.project.models.promote(
                    self.name, version, expected_serial=states.serial, note=note
                )
                self._must_publish = False
            except OwnershipError:
                continue  # somebody changed the states meanwhile
            except OnlineStoreError as error:
                if not self.patient:
                    raise
                self.on_message(f"{manifest} is promoted, and not published yet: {error}")
            return RetrainDecision(action, str(manifest), str(manifest), text, verdict)
        raise OwnershipError(
            f"model {self.name!r}: others change its states all the time; {manifest} waits as a "
            "candidate, and the next 'paimon-features retrain' decides about it"
        )

    def _watch(
        self, states: ModelStates, current: _Production, newest: int
    ) -> RetrainDecision | None:
        """Go back to the parent of the version in production if rows since then say so."""
        bounds = current.config.round
        if not bounds.parent or split_ref(bounds.until)[0] >= newest:
            return None
        rows = current.source.committed(
            bounds.until, ref_of(self.project.lake, current.table, newest),
            current.config.retrain.max_rows,
        )  # fmt: skip
        if rows.num_rows < current.config.retrain.segment_rows:
            return None
        # all looks together have the confidence (a union bound over 1/k^2)
        looks = newest - split_ref(bounds.until)[0]
        risk = (1 - current.config.retrain.confidence) * 6 / (math.pi * looks) ** 2
        before = parent_of(self.project, bounds.parent)
        labels = current.labels.apply(rows[current.source.label]).astype(np.float64)
        task = current.manifest.signature.task
        own, other = (
            gate.losses(task, labels, self._predict(each, rows))
            for each in (current.manifest, before)
        )
        entities = _entities(rows, current.manifest)
        found = gate.compare(own, other, entities, 1 - risk)
        if not found.is_worse:
            return None
        version = current.manifest.version
        text = (
            f"on the rows since its training its loss is higher than that of {before} with a "
            f"confidence of {1 - risk:.4%}: {found}"
        )
        figures = asdict(found)
        if not self.promotes or states.previous[-1:] != (before.version,):
            noted = any(
                note.version == version and note.action == "alarm"
                for note in self.project.models.notes(self.name)
            )
            if noted:
                return None
            self.project.models.add_note(
                self.name, VersionNote(version, now_ms(), "alarm", text, figures)
            )
            return RetrainDecision(
                "alarm", str(current.manifest), str(current.manifest), text, figures
            )
        note = VersionNote(version, now_ms(), "rolled_back", text, figures)
        self._must_publish = True
        try:
            self.project.models.rollback(self.name, expected_serial=states.serial, note=note)
            self._must_publish = False
        except OwnershipError:
            return None  # somebody changed the states meanwhile: the next commit is looked at again
        except OnlineStoreError as error:
            if not self.patient:
                raise
            self.on_message(f"{current.manifest} is rolled back, and not published yet: {error}")
        return RetrainDecision("rolled_back", str(current.manifest), str(before), text, figures)

    # -- rounds --------------------------------------------------------------------------------

    def _next_round(self, current: _Production, newest: int) -> RoundConfig | None:
        """The bounds of the next round; None if there are too few new rows."""
        lake, retrain_settings = self.project.lake, current.config.retrain
        judged = self._judged(current)
        pending = self._pending()
        if pending is not None and (pending.parent, pending.since, pending.judged) == (
            str(current.manifest),
            current.since,
            judged,
        ):
            return pending
        first = split_ref(judged)[0]
        known = snapshot(lake, current.table, first).total_records
        until, rows_until = None, known
        for each in snapshots(lake, current.table, first + 1):
            if until is not None and each.total_records - known > retrain_settings.max_rows:
                break
            until, rows_until = each.id, each.total_records
            if each.id >= newest:
                break
        if until is None or rows_until - known < retrain_settings.min_rows:
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
        """The round that was begun, and not registered, when a process was killed."""
        try:
            return typed(RoundConfig, json.loads((self.folder / _PENDING).read_text()))
        except (OSError, ValueError):
            return None

    def _judged(self, current: _Production) -> str:
        """The last snapshot whose rows a round was judged by, or the version trained on."""
        found = current.since
        for manifest in self.project.models.manifests(self.name).values():
            pins = manifest.training
            if pins is None or VERDICT not in manifest.files or pins.table != current.table:
                continue
            if split_ref(pins.snapshot)[0] <= split_ref(found)[0]:
                continue
            try:
                pinned(self.project.lake, current.table, pins.snapshot)
            except SnapshotExpiredError:
                continue  # of a training set that was replaced
            found = pins.snapshot
        return found

    def _round(self, current: _Production, bounds: RoundConfig) -> RetrainDecision | None:
        config = round_config(current.config, bounds)
        table = RoundTable.open_round(self.project, config)
        folder = self.folder / run.identity_of(config, table)
        if not table.new or not table.held_out.num_rows:
            self._forget_round(folder)
            self.on_message(
                f"{current.manifest}: {table.new:,} new rows to train on, and "
                f"{table.held_out.num_rows:,} to hold out; waiting for more (data.gap="
                f"{config.data.gap!r}, retrain.holdout={config.retrain.holdout:g})"
            )
            return None
        how = "fitted again" if table.weights is None else "continued"
        self.on_message(
            f"{current.manifest} is {how} with {table.new:,} new "
            f"and {table.replayed:,} older rows; {table.held_out.num_rows:,} are held out"
        )
        try:
            trained = run.run(
                self.project, config, table, folder,
                on_message=self.on_message, progress=self.progress,
            )  # fmt: skip
        except (ModelError, VerificationError) as error:
            # weights that are not finite, for example: more rows may help, the same do not
            self._forget_round(folder)
            production = str(current.manifest)
            return RetrainDecision("failed", "", production, f"no version was made: {error}")
        verdict = self._judge(current, config, table, trained)
        document = asdict(verdict)
        files = {**trained.files, VERDICT: (json.dumps(document, indent=1) + "\n").encode()}
        found = verdict.overall
        metric = Metric(
            found.mean,
            found.low,
            found.high,
            found.rows,
            f"loss minus that of {current.manifest}, paired, clustered by entity",
        )
        manifest = replace(
            trained.manifest,
            metrics={**trained.manifest.metrics, run.GATE: metric},
            card=trained.manifest.card + _card(current, table, verdict),
        )
        registered = self.project.models.register(manifest, files)
        self._forget_round(folder)
        return self._decide(registered, document)

    def _forget_round(self, folder: Path) -> None:
        (self.folder / _PENDING).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)

    def _judge(
        self, current: _Production, config: TrainConfig, table: RoundTable, trained: run.Trained
    ) -> gate.GateVerdict:
        signature, task = trained.manifest.signature, current.manifest.signature.task
        network = trained.files["network.onnx"]
        rows = table.held_out
        labels = table.labels.apply(rows[table.label]).astype(np.float64)
        predicted = export.run_onnx(network, signature.inputs, _raw(rows, signature.inputs))
        retrain_settings = config.retrain
        verdict = gate.judge(
            gate.losses(task, labels, predicted),
            gate.losses(task, labels, self._predict(current.manifest, rows)),
            _entities(rows, current.manifest),
            {name: rows[name].to_pylist() for name in retrain_settings.segments},
            confidence=retrain_settings.confidence,
            tolerance=retrain_settings.tolerance,
            segment_rows=retrain_settings.segment_rows,
        )
        bounds = None
        if task == "regression":
            seen = table.labels.apply(table.train_rows[table.label])
            span = float(seen.max() - seen.min())
            bounds = float(seen.min()) - span, float(seen.max()) + span
        probes = export.run_onnx(
            network, signature.inputs, _with_nulls(_raw(rows.slice(0, 1), signature.inputs))
        )
        wrong = [
            f"{what}: {problem}"
            for what, problem in (
                ("replayed held-out rows", gate.out_of_range(task, predicted, bounds)),
                ("rows with nulls", gate.out_of_range(task, probes)),
            )
            if problem is not None
        ]
        return replace(verdict, reasons=(*wrong, *verdict.reasons))

    def _predict(self, manifest: ModelManifest, rows: pa.Table) -> npt.NDArray[np.float32]:
        """What a version would have answered: by the network that serves."""
        network = self.project.models.file(manifest, "network.onnx")
        inputs = manifest.signature.inputs
        return export.run_onnx(network, inputs, _raw(rows, inputs))


@dataclass(frozen=True)
class _Production:
    """The version that a round continues, and what it was trained on."""

    manifest: ModelManifest
    config: TrainConfig
    source: TrainingRows
    labels: LabelCodec

    @classmethod
    def of(
        cls, project: Project, name: str, version: int, settings: Mapping[str, Any]
    ) -> _Production:
        manifest = project.models.manifest(name, version)
        encoder, labels = encoder_of(project, manifest)
        pins = manifest.training
        assert pins is not None, "encoder_of has checked it"
        config = _with_settings(run.config_of(project, manifest), settings)
        keys = [key.name for key in manifest.signature.entities]
        source = TrainingRows.of(project.lake, pins.table, config, encoder, labels, keys)
        pinned(project.lake, pins.table, pins.snapshot)  # SnapshotExpiredError
        return cls(manifest, config, source, labels)

    @property
    def table(self) -> str:
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


def _with_settings(config: TrainConfig, settings: Mapping[str, Any]) -> TrainConfig:
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


def _raw(rows: pa.Table, inputs: Any) -> dict[str, Any]:
    """The columns that a network reads."""
    return {each.name: rows[each.name].combine_chunks() for each in inputs}


def _with_nulls(columns: Mapping[str, Any]) -> dict[str, Any]:
    """A row, with one of its values null, then with the next, and with all of them."""
    found = {}
    for number, (name, value) in enumerate(columns.items()):
        rows = np.arange(len(columns) + 1)
        is_null = (rows == number) | (rows == len(columns))
        found[name] = value.take(pa.array(np.zeros(len(rows), np.int64), mask=is_null))
    return found


def _entities(rows: pa.Table, manifest: ModelManifest) -> Ints:
    """The number of the entity of each row."""
    codes = np.zeros(rows.num_rows, np.int64)
    for key in manifest.signature.entities:
        own = pc.rank(rows[key.name], tiebreaker="dense", null_placement="at_start")
        _, codes = np.unique(codes * (rows.num_rows + 1) + own.to_numpy(), return_inverse=True)
    return codes


def _card(current: _Production, table: RoundTable, verdict: gate.GateVerdict) -> str:
    trees = isinstance(current.config.model, GradientBoosting)
    lines = [
        "",
        f"## Continues {current.manifest}",
        "",
        ("Trees cannot be continued: they were fitted again on" if trees else
         "Trained from its weights on")
        + f" {table.new:,} new rows and {table.replayed:,} older "
        f"ones. Held out: the {table.held_out.num_rows:,} newest rows, from "
        f"{table.split.test_from_ms} on (`{table.split.column}`, UTC ms).",
        "",
        "| rows | loss minus that of the parent (bounds), from the parent's |",
        "|---|---|",
        f"| all | {verdict.overall} |",
        *(f"| {name} | {found} |" for name, found in verdict.segments.items()),
        "",
        "Gate: passed." if verdict.passed else "Gate: not passed.",
        *(f"- {reason}" for reason in verdict.reasons),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"
