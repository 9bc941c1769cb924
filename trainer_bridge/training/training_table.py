"""The rows of a training run: pinned, split by time, with the features that the model reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.errors import ConfigurationError, UnknownNameError, unknown_name
from paimon_features.core.types.array_types import Ints
from paimon_features.core.types.schema import DataType, ListType
from paimon_features.definitions.reference import FeatureRef
from paimon_features.definitions.selection import Output
from paimon_features.definitions.transformed import CompiledTransformed
from paimon_features.lake import table_options
from paimon_features.lake.catalog import Lake
from paimon_features.lake.specs import TRAINING_PREFIX
from paimon_features.models import ModelKey
from paimon_features.offline.reading.pinning import Pin
from paimon_features.project.model_inputs import digest_of, keys_of, type_of
from trainer_bridge.readers.pins import pinned_snapshot
from trainer_bridge.readers.snapshot_reader import SnapshotReader
from trainer_bridge.training.config import DataConfig
from trainer_bridge.training.encoding import FeatureKind, InputFeature

if TYPE_CHECKING:
    from paimon_features.project import Project


SplitPart = Literal["train", "validation", "test"]


@dataclass(frozen=True, slots=True)
class TimeSplit:
    """Conditions on the time column: rows to train on, to stop by, and for the report.

    ``train_until_ms`` and ``validation_until_ms`` are exclusive, and ``validation_from_ms`` and
    ``test_from_ms`` inclusive, UTC ms; what is between them is in the gap.
    """

    column: str
    train_until_ms: int
    validation_from_ms: int
    validation_until_ms: int
    test_from_ms: int

    @property
    def train(self) -> str:
        return f"{self.column} < {self.train_until_ms}"

    @property
    def validation(self) -> str:
        return (
            f"{self.column} >= {self.validation_from_ms} "
            f"AND {self.column} < {self.validation_until_ms}"
        )

    @property
    def test(self) -> str:
        return f"{self.column} >= {self.test_from_ms}"


def split_by_time(times: npt.NDArray[np.int64], data: DataConfig) -> TimeSplit:
    """Split rows by their times: the newest share is the test, the one before the validation.

    Rows of one time are never separated. Rows less than the gap before a part are in none.

    Raises
    ------
    ConfigurationError
        If a part would be empty.
    """
    ordered = np.sort(times)
    rows = len(ordered)
    test_from = int(ordered[min(rows - 1, int(rows * (1 - data.test)))]) if rows else 0
    at = min(rows - 1, int(rows * (1 - data.test - data.validation)))
    validation_from = int(ordered[at]) if rows else 0
    gap = data.gap_ms
    split = TimeSplit(data.time, validation_from - gap, validation_from, test_from - gap, test_from)
    counts = {
        "training": int((times < split.train_until_ms).sum()),
        "validation": int(
            ((times >= split.validation_from_ms) & (times < split.validation_until_ms)).sum()
        ),
        "test": int((times >= split.test_from_ms).sum()),
    }
    for part, count in counts.items():
        if not count:
            raise ConfigurationError(
                f"data: the {part} part has no rows: {rows:,} rows from "
                f"{ordered[0] if rows else 0} to {ordered[-1] if rows else 0} (UTC ms) with "
                f"data.validation={data.validation:g}, data.test={data.test:g}, "
                f"data.gap={data.gap!r}; lower the gap, or change the shares"
            )
    return split


class PartKeywords(TypedDict, total=False):
    """The keywords of ``SnapshotReader`` that a reader of one part takes."""

    batch_size: int
    global_batch_size: int
    rank: int
    world_size: int
    seed: int
    shuffle: bool
    threads: int | Literal["auto"]


@dataclass(frozen=True)
class TrainingTable:
    """A training set at a pinned snapshot, and what a model reads of it.

    ``sources`` are the snapshots that it was built from, ``generations`` those of the views.
    """

    lake: Lake
    table: str
    snapshot: str
    label: str
    features: tuple[InputFeature, ...]
    keys: tuple[ModelKey, ...]
    split: TimeSplit
    sources: Mapping[str, str] = field(default_factory=dict)
    generations: Mapping[str, int] = field(default_factory=dict)
    fitted: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def open(cls, project: Project, data: DataConfig) -> TrainingTable:
        """Open the training set of a configuration.

        Raises
        ------
        UnknownNameError
            If there is no such training set or service.
        ConfigurationError
            If it lacks outputs of the service, a column, or rows for a part; for features that no
            network reads.
        """
        lake, table = project.lake, TRAINING_PREFIX + data.training_set
        if not lake.exists(table):
            names = [t.removeprefix(TRAINING_PREFIX) for t in lake.list() if
                     t.startswith(TRAINING_PREFIX)]  # fmt: skip
            raise UnknownNameError.of("training set", data.training_set, names)
        properties = table_options.properties(lake, table)
        snapshot = pinned_snapshot(lake, table, data.snapshot)
        label = data.label or properties.get("training-set.label")
        if label is None:
            raise ConfigurationError(
                f"{table} names no label: set data.label, or build it with --label"
            )
        schema = lake.schema(table)
        for name, column in (
            ("label", label), ("time", data.time), ("weights", data.weights or label),
        ):  # fmt: skip
            if column not in schema.names:
                raise ConfigurationError(
                    f"data.{name}: {table}: {unknown_name('column', column, schema.names)}"
                )
        columns = json.loads(properties.get("training-set.features", "{}"))
        features = _features(project, data, columns, lake, table, snapshot.ref)
        times = column_of(lake, table, snapshot.ref, data.time)
        if times.null_count or not pa.types.is_integer(times.type):
            raise ConfigurationError(
                f"data.time: {data.time!r} is {times.type} with {times.null_count} nulls; "
                "expected UTC milliseconds without nulls"
            )
        sources, generations = built_from(lake, table)
        outputs = project.refs(data.service)
        return cls(
            lake,
            table,
            snapshot.ref,
            label,
            features,
            keys_of(project, outputs),
            split_by_time(np.asarray(times), data),
            sources,
            generations,
            {
                str(output.fitted): output.fitted.digest
                for output in outputs
                if isinstance(output, CompiledTransformed)
            },
        )

    def reader(
        self, where: str, columns: Sequence[str], **options: Unpack[PartKeywords]
    ) -> SnapshotReader:
        """Return a reader of one part, of Arrow batches."""
        return SnapshotReader(
            self.lake,
            self.table,
            snapshot_id=self.snapshot,
            where=where,
            columns=list(dict.fromkeys(columns)),
            output="arrow",
            **options,
        )

    def labelled(self, condition: str) -> str:
        """Return the condition, for rows that have a label: neither null nor NaN."""
        labelled = f"{self.label} IS NOT NULL"
        if pa.types.is_floating(self.lake.schema(self.table).field(self.label).type):
            labelled = f"({self.label} <= 0 OR {self.label} > 0)"
        return f"({condition}) AND {labelled}"

    def part(self, name: SplitPart, columns: Sequence[str]) -> pa.Table:
        """Return the labelled rows that are trained on, that validate, or those of the report."""
        conditions: dict[SplitPart, str] = {
            "train": self.split.train,
            "validation": self.split.validation,
            "test": self.split.test,
        }
        return self.rows(self.labelled(conditions[name]), columns)

    def rows(self, where: str, columns: Sequence[str]) -> pa.Table:
        """Return all rows of one part, in the order of the table."""
        with self.reader(where, columns, batch_size=1, shuffle=False) as reader:
            return reader.read_columns(list(dict.fromkeys(columns)))


def _features(
    project: Project,
    data: DataConfig,
    columns: Mapping[str, str],
    lake: Lake,
    table: str,
    snapshot: str,
) -> tuple[InputFeature, ...]:
    outputs = {str(output): output for output in project.refs(data.service)}
    for name in data.exclude:
        if name not in outputs:
            raise ConfigurationError(
                f"data.exclude: service {data.service!r}: {unknown_name('output', name, outputs)}"
            )
    chosen = {name: output for name, output in outputs.items() if name not in data.exclude}
    missing = [name for name in chosen if name not in columns]
    if missing:
        raise ConfigurationError(
            f"{table} lacks {', '.join(missing)} of service {data.service!r}: build it with "
            f"--service {data.service}, or leave them out: data.exclude"
        )
    features = []
    for name, output in chosen.items():
        kind = type_of(project, output)
        form, width = _form(name, kind, _items(project, output))
        if form.endswith("list") and not width:
            width = _longest(lake, table, snapshot, columns[name])
        features.append(
            InputFeature(
                name,
                columns[name],
                kind.text,
                form,
                width,
                digest_of(project, data.service, output),
            )
        )
    return tuple(features)


def _form(name: str, kind: DataType, items: int) -> tuple[FeatureKind, int]:
    if isinstance(kind, ListType):
        item = kind.item
        if kind.length is not None and (item.is_numeric or item.text == "bool"):
            return "vector", kind.length
        if item.is_float or item.is_decimal:
            return "number_list", items
        if item.text == "string" or item.is_integer:
            return "text_list", items
    elif kind.is_numeric or kind.text == "bool":
        return "number", 1
    elif kind.text == "string":
        return "text", 1
    raise ConfigurationError(
        f"feature {name} is {kind.text}, which no network reads; leave it out: data.exclude, or "
        "make a number of it by an Interaction"
    )


def _items(project: Project, output: Output) -> int:
    """Return how many items a last-N list has; 0 where that is not declared."""
    if not isinstance(output, FeatureRef):
        return 0
    feature = project.any_view(output.view).feature(output.feature)
    return int(getattr(getattr(feature, "aggregate", None), "n", 0))


def entities_of(rows: pa.Table, keys: Sequence[str]) -> Ints:
    """Return the number of the entity of each row, by the columns of its keys."""
    codes = np.zeros(rows.num_rows, np.int64)
    for key in keys:
        ranks = pc.rank(rows[key], tiebreaker="dense", null_placement="at_start")
        _, codes = np.unique(codes * (rows.num_rows + 1) + ranks.to_numpy(), return_inverse=True)
    return codes


def column_of(lake: Lake, table: str, snapshot: str, column: str) -> Any:
    """Return a column of all rows of a snapshot, as Arrow."""
    with SnapshotReader(
        lake, table, snapshot_id=snapshot, columns=[column], batch_size=1, output="arrow"
    ) as reader:
        return reader.read_columns([column])[column]


def _longest(lake: Lake, table: str, snapshot: str, column: str) -> int:
    lists = column_of(lake, table, snapshot, column).to_pylist()
    return max((len(items) for items in lists if items is not None), default=1) or 1


def built_from(lake: Lake, table: str) -> tuple[dict[str, str], dict[str, int]]:
    """Return the snapshots that a training set was built from, by table, and the generations, by
    view."""
    documents = json.loads(table_options.properties(lake, table).get("training-set.sources", "[]"))
    pins = [Pin.from_document(document) for document in documents]
    generations = {}
    for pin in pins:
        view, _, number = pin.table.removeprefix("tiles_").rpartition("_g")
        if pin.table.startswith("tiles_") and number.isdecimal():
            generations[view] = int(number)
    return {pin.table: str(pin.ref) for pin in pins}, generations
