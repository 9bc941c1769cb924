"""When new scores enter a training, and which: at declared steps, from snapshots kept in mind."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from paimon_features.core.errors import ConfigurationError
from paimon_features.definitions import FeatureView
from paimon_features.lake.catalog import Lake
from paimon_features.lake.marked_records import Record
from paimon_features.lake.storage.json_files import create_file, read_json
from paimon_features.lake.storage.object_path import SidePath
from paimon_features.offline.reading.pinning import Pin
from trainer_bridge.batches.forms import Batch
from trainer_bridge.feedback.difficulty import Difficulty, read_difficulty
from trainer_bridge.readers.epoch_rows import RowSampler
from trainer_bridge.readers.snapshot_reader import SnapshotReader


class ScoreSchedule:
    """Reads the difficulty of all samples at declared steps of a training run.

    The first rank to reach such a step chooses the newest snapshots and the time of reading. The
    choice is recorded in the lake once; ranks that reach it later reuse that choice, and so does
    the same run when it is repeated from a checkpoint or from the start. So a run sees
    bit-identical scores as long as those snapshots exist.

    Parameters
    ----------
    project, view
        The view of :func:`trainer_bridge.difficulty_view`, in its project.
    samples
        The sample keys in the order of the row numbers (``reader.read_columns`` returns them).
    run_id
        Name of the run; another name chooses again.
    every, at
        The steps: every multiple of a number, or a list of steps.
    clock_ms
        Gives the time of reading: events before it are in.

    Raises
    ------
    ConfigurationError
        Unless one of ``every`` and ``at`` is given, with steps >= 0.
    """

    def __init__(
        self,
        project: Any,
        view: FeatureView | str,
        samples: pa.Table,
        run_id: str,
        *,
        every: int | None = None,
        at: Collection[int] = (),
        clock_ms: Callable[[], int],
    ) -> None:
        steps = at if every is None else [every - 1]
        if not run_id or (every is None) == (not at) or min(steps, default=0) < 0:
            raise ConfigurationError(
                f"run_id={run_id!r}, every={every}, at={sorted(at)}: expected a name, and either "
                "every=, at least 1, or at=, steps of 0 or more"
            )
        self._project, self._view, self._samples = project, view, samples
        self._every, self._at, self._clock_ms = every, frozenset(at), clock_ms
        lake: Lake = project.lake
        self._lake = lake
        name = view if isinstance(view, str) else view.name
        folder = f"{lake.database}.{name}.{quote(run_id, safe='')}"
        self._folder = lake.side_folder / "scores" / folder

    def is_due(self, step: int) -> bool:
        """Return True if new scores enter before this step."""
        return self.last_due(step) == step

    def last_due(self, step: int) -> int | None:
        """Return the step at which the scores in force at ``step`` entered.

        None before the first.
        """
        if self._every is not None:
            return step // self._every * self._every if step >= self._every else None
        return max((due for due in self._at if due <= step), default=None)

    def next_due(self, step: int) -> int | None:
        """Return the first step after ``step`` at which new scores enter; None after the last."""
        if self._every is not None:
            return (step // self._every + 1) * self._every
        return min((due for due in self._at if due > step), default=None)

    def difficulty(self, step: int) -> Difficulty | None:
        """Return what is in force at a step: read when it entered, or again as it was then.

        None before the first declared step.

        Raises
        ------
        SnapshotExpiredError
            If the snapshots of an earlier choice are gone.
        RecordLostError
            If an earlier choice was lost.
        """
        due = self.last_due(step)
        if due is None:
            return None
        record = self._record(due)
        chosen = record.read()
        if chosen is None:
            current = read_difficulty(self._project, self._view, self._samples, self._clock_ms())
            chose = self._choose(due, current)
            record.mark()
            if chose:
                return current
            chosen = read_json(self._path(due))
            assert chosen is not None, "choices are never removed"
        pins = [Pin.from_document(pin) for pin in chosen["pins"]]
        return read_difficulty(
            self._project, self._view, self._samples, chosen["as_of_ms"], as_of=pins
        )

    def choices(self) -> dict[int, Any]:
        """Return what was chosen so far: step -> time of reading and pinned snapshots."""
        files: Iterable[SidePath] = self._folder.glob("*.json")
        paths = sorted(files, key=lambda path: int(path.stem))
        return {int(path.stem): read_json(path) for path in paths}

    # --- inside ---

    def _path(self, step: int) -> SidePath:
        return self._record(step).path

    def _record(self, step: int) -> Record:
        run = self._folder.name
        return Record(self._lake, "scores", f"{run}/{step}.json", f"{run}.{step}", None)

    def _choose(self, step: int, found: Difficulty) -> bool:
        """Write a choice down; False if somebody else did before."""
        choice = {"as_of_ms": found.as_of_ms, "pins": [pin.to_document() for pin in found.pins]}
        return create_file(self._folder / f"{step}.json", json.dumps(choice))


def scheduled_batches(
    reader: SnapshotReader,
    schedule: ScoreSchedule,
    sampler: Callable[[Difficulty], RowSampler],
    *,
    start: int = 0,
    stop: int,
) -> Iterator[tuple[int, Batch]]:
    """Yield the batches of steps ``start <= step < stop``, as (step, batch).

    Before the first declared step they are the reader's own, epoch after epoch; from each
    declared step on those that ``sampler(difficulty)`` draws. What comes at a step depends on
    nothing but the step, the reader's seed and the choices of the schedule: a run that continues
    at ``start`` gets what it would have got. Every rank calls this with a reader of its own.
    """
    step = start
    origin = reader.state_dict()
    while step < stop:
        due, until = schedule.last_due(step), schedule.next_due(step)
        difficulty = schedule.difficulty(step)
        if difficulty is None:
            drawn, first = reader, 0
            drawn.load_state_dict(origin)
        else:
            assert due is not None
            drawn, first = reader.with_sampler(sampler(difficulty)), due
            drawn.set_epoch(due)  # draws of its own for every refresh
        _forward(drawn, step - first)
        last = stop if until is None else min(stop, until)
        try:
            while step < last:
                for batch in drawn:
                    yield step, batch
                    step += 1
                    if step == last:
                        break
        finally:
            if drawn is not reader:
                drawn.close()


def _forward(reader: SnapshotReader, batches: int) -> None:
    """Advance by a number of batches, across epochs, without reading any."""
    while batches:
        part = min(batches, reader.remaining())
        reader.load_state_dict(reader.state_after(part))
        batches -= part
