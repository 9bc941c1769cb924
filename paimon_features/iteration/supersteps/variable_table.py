"""The variables of a superstep iteration: a Paimon table with one snapshot per epoch.

Each commit replaces the variables of an epoch by those of the next one and adds the outputs of the
epoch, so that the latest snapshot is the complete state of the iteration: after a kill at any
moment, a new run continues after the last commit, and no output is duplicated. Older snapshots are
the variables of earlier epochs, as long as the table retains them.

The rows are batches of values as bytes (pickles, sealed with the user's key, so that a row which
someone else has written into the lake is never unpickled), each with the subtask that reads it:

======== ======= ======= ======== =======================================================
slot     subtask stream  seq      payload
======== ======= ======= ======== =======================================================
-1       -1      -1      0        JSON: the epoch, its phase, its numbers of records
-1       s       i       0, 1, .. values of variable i for subtask s
e        s       j       0, 1, .. values of output j in epoch e
======== ======= ======= ======== =======================================================
"""

from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, cast

import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.configuration.arguments import checked_text
from paimon_features.core.documents.signed_pickle import Seal
from paimon_features.core.documents.strict_json import strict_json
from paimon_features.core.documents.typed_json import mapping, typed
from paimon_features.core.errors import DamagedFileError, JobError, TableError
from paimon_features.core.types.schema import Bytes, Int32, Int64
from paimon_features.iteration.envelope import dumps
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.snapshots import latest_snapshot, ref_of
from paimon_features.lake.ownership.lease import Lease, acquire
from paimon_features.lake.reading.table_reader import Range, iter_batches
from paimon_features.lake.specs import TABLE_OPTIONS, TableSpec
from paimon_features.lake.writing.distributed_commit import replace_partitions, write_part

PREFIX = "iteration_"
"""Prefix of the name of an iteration's table."""

VARIABLES = -1
"""Slot of the variables; the slot of outputs is their epoch."""
NO_SUBTASK = -1
"""Subtask and stream of a row that is not a batch of values."""

Phase = Literal["running", "terminating", "finished"]

Batches = Mapping[tuple[int, int], Sequence[Any]]
"""Values by (stream, subtask)."""


@dataclass(frozen=True, slots=True)
class CommittedEpoch:
    """The state of an iteration in one snapshot.

    ``phase`` determines what follows: a round with the variables of ``epoch``; the end, for which
    they are delivered once more; or nothing. ``feedback`` and ``criteria`` are the numbers of
    records that the previous epoch emitted, ``shape`` describes the program.
    """

    epoch: int
    phase: Phase
    feedback: int
    criteria: int
    shape: str
    pins: dict[str, int | None] = field(default_factory=dict)
    """Snapshots of the tables that are read as data, by table folder."""
    snapshot_id: int = 0


class VariableTable:
    """The table ``iteration_<name>`` of one iteration, read and committed epoch by epoch.

    Tasks that receive this object receive the key of its ``seal`` with it.
    """

    def __init__(self, lake: Lake, name: str, seal: Seal | None = None) -> None:
        self.lake, self.name = lake, checked_text("the name of an iteration", name)
        self._seal = seal or Seal.of_user()
        self.table = PREFIX + name
        # unique to this object: identifies a commit whose response was lost
        self.commit_user = f"iteration-{uuid.uuid4()}"

    def exists(self) -> bool:
        """Return whether the iteration has created its table."""
        return self.lake.exists(self.table)

    def create(self) -> None:
        """Create the table; harmless if it exists."""
        columns = {"slot": Int32, "subtask": Int32, "stream": Int32, "seq": Int64}
        spec = TableSpec(
            self.table,
            {**columns, "payload": Bytes},
            partition_by=("slot", "subtask"),
            options=TABLE_OPTIONS,
        )
        self.lake.create(spec)

    def owner(self) -> Lease:
        """Acquire the lease that prevents a second run of the iteration.

        Raises
        ------
        OwnershipError
            If another process runs the iteration.
        """
        return acquire(self.lake, self.table, purpose="iterate")

    def committed(self) -> CommittedEpoch | None:
        """Return the state of the latest snapshot; None before the first commit."""
        newest = latest_snapshot(self.lake, self.table)
        if newest is None:
            return None
        rows = self._read(newest.id, slot=(VARIABLES, 0), subtask=(NO_SUBTASK, 0))
        payloads = [payload for _, _, payload in rows]
        if len(payloads) != 1:
            raise TableError(
                f"table {self.table!r}: snapshot {newest.id} has {len(payloads)} rows with the "
                "epoch, expected 1; it was not written by an iteration"
            )
        try:
            state = {**mapping(strict_json(payloads[0])), "snapshot_id": newest.id}
            return typed(CommittedEpoch, state)
        except (ValueError, RecursionError) as error:
            raise DamagedFileError(
                f"table {self.table!r}: the epoch in snapshot {newest.id} is damaged "
                f"({str(error)[:200]}); roll the table back to the snapshot before, or drop the "
                "table to start again"
            ) from None

    def variables(self, state: CommittedEpoch, subtask: int) -> Iterator[tuple[int, list[Any]]]:
        """Yield (variable, values) for one subtask in batches, in the order of writing."""
        own = (subtask, subtask + 1)
        for slot, stream, payload in self._read(
            state.snapshot_id, slot=(VARIABLES, 0), subtask=own
        ):
            if stream != NO_SUBTASK:
                yield stream, self._values(slot, stream, payload)

    def outputs(
        self, stream: int, subtask: int | None = None, from_epoch: int = 0
    ) -> Iterator[tuple[int, list[Any]]]:
        """Yield (epoch, values) of an output, or of one subtask of it, in committed epochs."""
        newest = latest_snapshot(self.lake, self.table)
        if newest is None:
            return
        own = {} if subtask is None else {"subtask": (subtask, subtask + 1)}
        for epoch, of, payload in self._read(newest.id, slot=(from_epoch, None), **own):
            if of == stream:
                yield epoch, self._values(epoch, of, payload)

    def write(self, epoch: int, writer: int, variables: Batches, outputs: Batches) -> bytes:
        """Write the values of one writer in ``epoch``; they are invisible before the commit.

        ``variables`` are keyed by the subtask that will read them, ``outputs`` by the subtask
        that emitted them. A reader receives values of a smaller ``writer`` first.
        """
        rows: list[tuple[int, int, int, int, bytes]] = []
        for slot, batches in ((VARIABLES, variables), (epoch, outputs)):
            for (stream, target), values in batches.items():
                # the upper half orders by writer
                seq = writer << 32 | len(rows)
                payload = self._seal.close(self._context(slot, stream), dumps(list(values)))
                rows.append((slot, target, stream, seq, payload))
        return self._part(rows)

    def commit(
        self,
        after: CommittedEpoch | None,
        state: CommittedEpoch,
        parts: Sequence[bytes],
        readers: int,
    ) -> CommittedEpoch:
        """Commit parts as ``state``, following ``after``; return it with its snapshot.

        ``readers`` is the number of subtasks that read variables: those without new variables
        must not find the old ones.

        Raises
        ------
        TableError
            If the table has changed since ``after`` was read: two processes run this iteration.
        """
        fields = {key: value for key, value in asdict(state).items() if key != "snapshot_id"}
        rows = [(VARIABLES, NO_SUBTASK, NO_SUBTASK, 0, json.dumps(fields).encode())]
        rows += [(VARIABLES, subtask, NO_SUBTASK, -1, b"") for subtask in range(readers)]
        made = replace_partitions(
            self.lake,
            self.table,
            [*parts, self._part(rows)],
            after=0 if after is None else after.snapshot_id,
            commit_user=self.commit_user,
            properties={"iteration.epoch": str(state.epoch), "iteration.phase": state.phase},
        )
        return CommittedEpoch(**fields, snapshot_id=made.id)

    def _values(self, slot: int, stream: int, payload: bytes) -> list[Any]:
        what = f"iteration {self.name!r}: a row of table {self.table!r}"
        values: list[Any] = pickle.loads(
            self._seal.open(self._context(slot, stream), payload, what)
        )
        return values

    def _context(self, slot: int, stream: int) -> bytes:
        return f"{self.lake.database}.{self.table}:{slot}:{stream}".encode()

    def _part(self, rows: Sequence[tuple[int, int, int, int, bytes]]) -> bytes:
        schema = self.lake.schema(self.table)
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
        arrays = [
            pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)
        ]
        return write_part(self.lake, self.table, pa.Table.from_arrays(arrays, schema=schema))

    def _read(
        self, snapshot_id: int, **partitions: tuple[int, int | None]
    ) -> Iterator[tuple[int, int, bytes]]:
        """Yield (slot, stream, payload) of the rows in partitions, in the order of writing."""
        columns = ["slot", "subtask", "seq", "stream", "payload"]
        ref = ref_of(self.lake, self.table, snapshot_id)
        batches = iter_batches(
            self.lake, self.table, columns, ref, cast("Mapping[str, Range]", partitions)
        )
        schema = self.lake.schema(self.table)
        rows = pa.Table.from_batches(batches, pa.schema([schema.field(name) for name in columns]))
        order = pc.sort_indices(rows, [(name, "ascending") for name in columns[:3]])
        for row in order.to_pylist():
            yield tuple(rows[name][row].as_py() for name in ("slot", "stream", "payload"))


def check_shape(state: CommittedEpoch, shape: str, name: str) -> None:
    """Check that the state was written by the same program.

    Raises
    ------
    JobError
        If variables, outputs or parallelism differ from those of the state.
    """
    if state.shape != shape:
        raise JobError(
            f"iteration {name!r} was started by another program: it had {state.shape}, this one "
            f"has {shape}; use another name, or drop the table {PREFIX + name!r}"
        )
