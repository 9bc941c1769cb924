"""``retrain``: a model continues with new training rows, behind a gate, and goes back on an alarm.

The registry is the state. What a round has to read follows from the version in production and from
the versions that were made before; the decision about a version is a note of the same commit that
promotes it. A process that is killed has either registered its version or not: the next one repeats
the round that was begun, whose bounds are in the state folder, and makes the same version.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from paimon_features.core.errors import (
    ConfigurationError,
    ModelError,
    OnlineStoreError,
    OwnershipError,
    VerificationError,
)
from paimon_features.core.process.callbacks import OnMessage, OnPhase, ignore_message, ignore_phase
from paimon_features.core.times.clock import now_ms
from paimon_features.lake.metadata.snapshots import latest_snapshot, ref_of, split_ref
from paimon_features.lake.ownership.locks import locked
from paimon_features.models import Metric, ModelManifest, ModelStates, VersionNote
from trainer_bridge.training import gate, run
from trainer_bridge.training.config import GradientBoosting, RoundConfig
from trainer_bridge.training.labels import sample_weights
from trainer_bridge.training.round_gate import gate_card, judge_round, losses_of
from trainer_bridge.training.round_planning import VERDICT, ProductionVersion, RoundPlanner
from trainer_bridge.training.rounds import RoundTable, parent_of, round_config
from trainer_bridge.training.training_table import entities_of

if TYPE_CHECKING:
    from paimon_features.project import Project

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
    on_phase: OnPhase = ignore_phase,
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
            on_phase=on_phase, patient=follow,
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
        on_phase: OnPhase = ignore_phase,
        patient: bool = False,
    ) -> None:
        self.project, self.name = project, name
        self.promotes, self.settings = promote, dict(settings or {})
        self.on_message, self.on_phase, self.patient = on_message, on_phase, patient
        folder = project.config.state_dir / run.FOLDER / name
        self.planner = RoundPlanner(project, name, folder)
        self._must_publish = True
        self._current: ProductionVersion | None = None
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
        latest = latest_snapshot(self.project.lake, current.table)
        assert latest is not None, "its snapshot is pinned"
        began = time.monotonic()
        decision = self._unfinished(states)
        if decision is None:
            decision = self._watch(states, current, latest.id)
        if decision is None:
            bounds = self.planner.next_round(current, latest.id)
            if bounds is None:
                self._handled = latest.id
                return None
            decision = self._round(current, bounds)
        is_done = decision is None or decision.action == "failed"
        self._handled = latest.id if is_done else None
        if decision is None:
            return None
        return replace(decision, seconds=time.monotonic() - began)

    # -- production ----------------------------------------------------------------------------

    def _production(self, states: ModelStates) -> ProductionVersion:
        state = states.production
        if state is None:
            raise ConfigurationError(
                f"model {self.name!r} has no version in production to continue; promote one: "
                f"paimon-features models promote {self.name} {states.versions[-1].version}"
            )
        if self._current is None or self._current.manifest.version != state.version:
            self._current = ProductionVersion.of(
                self.project, self.name, state.version, self.settings
            )
        return self._current

    def _publish(self, states: ModelStates) -> None:
        """Publish what another process promoted, and was killed before it could publish."""
        if not self._must_publish:
            return
        try:
            published = self.project.models.place.read().models.get(self.name)
            if published is None or published.serial < states.serial:
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
        for state in states.versions:
            if state.state != "candidate" or state.version in noted:
                continue
            manifest = self.project.models.manifest(self.name, state.version)
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
        self, states: ModelStates, current: ProductionVersion, newest: int
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
        label, span = current.source.label, current.label_span
        current_losses, other = (
            losses_of(self.project, manifest, rows, label, current.labels, span)
            for manifest in (current.manifest, before)
        )
        keys = [key.name for key in current.manifest.signature.entities]
        weights = sample_weights(rows, current.config.data.weights)
        difference = gate.compare(current_losses, other, entities_of(rows, keys), 1 - risk, weights)
        if not difference.is_worse:
            return None
        version = current.manifest.version
        text = (
            f"on the rows since its training its loss is higher than that of {before} with a "
            f"confidence of {1 - risk:.4%}: {difference}"
        )
        figures = asdict(difference)
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

    def _round(self, current: ProductionVersion, bounds: RoundConfig) -> RetrainDecision | None:
        config = round_config(current.config, bounds)
        table = RoundTable.open_round(self.project, config)
        folder = self.planner.folder / run.identity_of(config, table)
        if not table.new or not table.held_out.num_rows:
            self.planner.forget(folder)
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
                on_message=self.on_message, on_phase=self.on_phase,
            )  # fmt: skip
        except (ModelError, VerificationError) as error:
            # weights that are not finite, for example: more rows may help, the same do not
            self.planner.forget(folder)
            production = str(current.manifest)
            return RetrainDecision("failed", "", production, f"no version was made: {error}")
        verdict = judge_round(self.project, config, table, trained)
        document = asdict(verdict)
        files = {**trained.files, VERDICT: (json.dumps(document, indent=1) + "\n").encode()}
        overall = verdict.overall
        metric = Metric(
            overall.mean,
            overall.low,
            overall.high,
            overall.rows,
            f"loss minus that of {current.manifest}, paired, clustered by entity",
        )
        manifest = replace(
            trained.manifest,
            metrics={**trained.manifest.metrics, run.GATE: metric},
            card=trained.manifest.card + gate_card(table, verdict),
        )
        registered = self.project.models.register(manifest, files)
        self.planner.forget(folder)
        return self._decide(registered, document)
