"""The table of types in docs/reference/aggregates.md is what the code does, on every path."""

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from paimon_features.core.errors import DefinitionError
from paimon_features.core.types.schema import (
    Bool,
    Bytes,
    DataType,
    Date,
    Decimal,
    DecimalType,
    Float32,
    Float64,
    Int32,
    Int64,
    List,
    ListType,
    String,
    Timestamp,
    arrow_schema,
    type_from_text,
)
from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.definitions import Entity, EventSource, FeatureView
from paimon_features.definitions import aggregates as agg
from paimon_features.definitions.aggregates import Aggregate
from paimon_features.lake.duckdb_engine import DuckDBEngine
from paimon_features.testing.generators import random_value
from paimon_features.testing.reference.features import Event
from paimon_features.testing.reference.tiler import event_rows
from paimon_features.testing.sizes import seeds
from paimon_features.tiles.local.tiling import tile_rows, tile_sql
from tests.long_cases import quick_cases
from tests.matrix import Cell, Question, wrong
from tests.matrix_paths import MatrixLake, all_events, from_events, from_tiles

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "aggregates.md"
TYPES: Mapping[str, Sequence[DataType]] = {
    "Int32, Int64": (Int32, Int64),
    "Float32, Float64": (Float32, Float64),
    "Decimal(p, s)": (Decimal(10, 2), Decimal(15, 9), Decimal(16, 2), Decimal(38, 4)),
    "String": (String,),
    "Bool": (Bool,),
    "Date": (Date,),
    "Timestamp": (Timestamp,),
    "Bytes": (Bytes,),
    "List(T, n)": (List(Float32, 3), List(Int64, 2)),
}
"""Types of each column of the table."""
WIDE = Decimal(38, 12)
"""More digits after the point than a scaled integer keeps."""
NEEDS: Mapping[str, Mapping[str, Any]] = {
    "DecayedSum": {"half_life": "1h"}, "DecayedCount": {"half_life": "1h"},
    "DecayedMean": {"half_life": "1h"}, "SumBy": {"by": "word", "values": ["a"]},
    "Rate": {"windows": ["30d"]}, "Histogram": {"edges": [1]}, "Quantile": {"edges": [1], "q": 0.5},
}  # fmt: skip
CATEGORIES = {"string": ["a"], "bool": [True]}


def table() -> Iterator[tuple[str, str, str]]:
    """Aggregate with its arguments, head of the column, and what the cell says."""
    section = PAGE.read_text().split("\n## Types\n")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    heads = rows[0][1:]
    assert heads == list(TYPES)
    for names, *cells in rows[2:]:
        for name in re.findall(r"`([^`]+)`", names):
            yield from ((name, head, cell) for head, cell in zip(heads, cells, strict=True))


def aggregate_of(text: str, kind: DataType) -> Aggregate:
    """The aggregate of a text such as ``Sum(scale=2)``, over the column ``x`` of this type."""
    name, _, rest = text.partition("(")
    given = dict(re.findall(r"(\w+)=(\w+)", rest))
    options: dict[str, Any] = {key: {"True": True}.get(v) or int(v) for key, v in given.items()}
    options |= NEEDS.get(name, {})
    if name == "CountBy":
        options["values"] = CATEGORIES.get(kind.text, [1])
    label = re.sub(r"\W+", "_", text.lower()).strip("_")
    (made,) = getattr(agg, name)("x", name=label, **options).each()
    assert isinstance(made, Aggregate)
    return made


def wanted_type(cell: str, kind: DataType) -> DataType | None:
    """What a cell says about a column of this type; None: it is rejected."""
    if cell == "-":
        return None
    if isinstance(kind, DecimalType):
        cell = re.sub(r"\bp\b", str(kind.precision), re.sub(r"\bs\b", str(kind.scale), cell))
    if isinstance(kind, ListType):
        item = {Int32: Int64, Float32: Float64}.get(kind.item, kind.item)
        cell = re.sub(r"\bT\b", repr(item), re.sub(r"\bn\b", str(kind.length), cell))
    return type_from_text(cell.lower())


def test_types_in_another_process_are_the_same() -> None:
    # plain types are compared by identity
    for kind in (Int64, Float32, String):
        assert pickle.loads(pickle.dumps(kind)) is kind
    for kind in (Decimal(10, 2), List(Float32, 8)):
        assert pickle.loads(pickle.dumps(kind)) == kind


@dataclass(frozen=True)
class TypeCell(Cell):
    """All aggregates of one type of column as a cell of the matrix."""

    aggregates: tuple[Aggregate, ...] = ()
    column: DataType = field(default=Int64)

    @cached_property
    def view(self) -> FeatureView:  # type: ignore[override]
        columns = {"user": String, "t": Int64, "x": self.column, "word": String}
        source = EventSource("typed", schema=columns, event_time="t")
        user = Entity("user", keys={"user": String})
        return FeatureView("typed", source, user, self.aggregates, tile=self.tile)

    @cached_property
    def batches(self) -> tuple[tuple[Event, ...], ...]:  # type: ignore[override]
        rng = random.Random(repr((self.column, self.seed)))
        rows = [
            {
                "user": rng.choice("ab"),
                "t": rng.choice((0, rng.randrange(3 * DAY_MS))),
                "x": random_value(rng, self.column),
                "word": random_value(rng, String),
            }
            for _ in range(40)
        ]
        events = event_rows(pa.Table.from_pylist(rows, arrow_schema(self.view.source.schema)))
        return tuple(events[:15]), tuple(events[15:])

    @cached_property
    def questions(self) -> list[Question]:
        times = (HOUR_MS, 2 * DAY_MS, 3 * DAY_MS, 4 * DAY_MS)
        return [Question(user, q) for user in ("a", "b", "nobody") for q in times]


def accepted(kind: DataType) -> tuple[Aggregate, ...]:
    """The aggregates that take a column of this type, by the table."""
    return tuple(
        aggregate_of(name, kind)
        for name, head, cell in table()
        if kind in TYPES[head] and cell != "-"
    )


def test_the_table_has_every_aggregate() -> None:
    public = {kind for name in agg.__all__ if isinstance(kind := getattr(agg, name), type)}
    names = {kind.__name__ for kind in public if issubclass(kind, Aggregate)} - {"Aggregate"}
    assert {name.partition("(")[0] for name, _, _ in table()} == names


def test_the_table_of_types_is_what_the_code_does() -> None:
    rejected = r"(?i)int|float|decimal|string|bool|date|time|bytes"
    cells = [(name, kind, cell) for name, head, cell in table() for kind in TYPES[head]]
    assert len(cells) > 300
    for name, kind, cell in cells:
        scope = {"x": kind, "word": String}
        aggregate = aggregate_of(name, kind)
        wanted = wanted_type(cell, kind)
        if wanted is None:
            with pytest.raises(DefinitionError) as error:
                aggregate.partials(scope)
            assert re.search(rejected, str(error.value)), (name, kind)
        else:
            assert aggregate.partials(scope), (name, kind)
            assert aggregate.output_type(scope) == wanted, (name, kind)


def test_decimals_of_many_digits_need_a_scale_in_sums_only() -> None:
    scope = {"x": WIDE}
    for kind in (agg.Sum, agg.Mean, agg.StdDev, agg.Skewness):
        with pytest.raises(DefinitionError, match="give scale="):
            kind("x").partials(scope)
        assert kind("x", scale=2).partials(scope)
    for one in (agg.Min("x"), agg.Max("x"), agg.Last("x")):
        assert one.partials(scope)
        assert one.output_type(scope) == WIDE


ALL_TYPES = [*(kind for kinds in TYPES.values() for kind in kinds), WIDE]


@pytest.mark.parametrize(
    "kind", quick_cases(ALL_TYPES, Int64, Float64, String, Decimal(38, 4), WIDE), ids=repr
)
def test_values_of_every_type_equal_the_oracle_on_every_path(
    kind: DataType, tmp_path: Path
) -> None:
    aggregates = accepted(kind) if kind != WIDE else (agg.Min("x"), agg.Max("x"), agg.LastN("x"))
    for seed in seeds(1):
        cell = TypeCell("sawtooth", "1h", "1ms", "shuffled", seed, aggregates, kind)
        questions = cell.questions
        assert not wrong(cell, questions, from_events(cell, questions)), "raw events"
        with DuckDBEngine(threads=1) as engine:
            engine.add("events", all_events(cell))
            found = engine.table(tile_sql(cell.view.compiled, "events"), "tiles")
            batches = found.combine_chunks().to_batches()
        tiles = pa.Table.from_batches([tile_rows(cell.view.compiled, b) for b in batches])
        assert not wrong(cell, questions, from_tiles(cell, tiles, questions)), "DuckDB's tiles"
        lake = MatrixLake(tmp_path / str(seed), cell)
        answers = lake.as_of(cell, questions, len(cell.batches))
        assert not wrong(cell, questions, answers), "the lake"
        answered, given = lake.online(cell, questions)
        assert answered
        assert not wrong(cell, answered, given, online=True), "online"
