"""Random typed expressions and a table of edge values to compute them on.

Everything follows from a ``random.Random``. Functions that are exact only to the last bits
(exp, ln, power, exp2) are left out, because comparisons of their results may differ by engine.

>>> random_expression(random.Random(3), Int64, depth=1).type
Int64
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from decimal import Decimal as PyDecimal
from typing import Any

import pyarrow as pa

from paimon_features.core.expressions.calendar_time import FIELDS, UNITS
from paimon_features.core.expressions.combine import COMBINATIONS
from paimon_features.core.expressions.nodes import Call, Expression, Literal, Name, promoted, walk
from paimon_features.core.expressions.operators import build, is_null
from paimon_features.core.types.schema import (
    Bool,
    DataType,
    Date,
    Decimal,
    Float32,
    Float64,
    Int32,
    Int64,
    String,
    Timestamp,
    arrow_schema,
)
from paimon_features.core.windows import MAX_TIME_MS, MIN_TIME_MS
from paimon_features.testing.reference.expressions import (
    BEYOND_SCALE,
    UnsafeStepError,
    evaluate_row,
)

COLUMNS: Mapping[str, DataType] = {
    "i": Int64, "j": Int64, "k": Int32, "x": Float64, "y": Float64, "f": Float32,
    "s": String, "t": String, "p": Bool, "q": Bool,
    "d": Date, "w": Timestamp, "m": Decimal(10, 2), "n": Decimal(20, 6),
}  # fmt: skip

_INT64 = [0, 1, -1, 2, 3, -7, 10, 2**31, -(2**31), 10**12, -(2**62), 2**53 + 1, 2**63 - 1, -(2**63)]
_INT32 = [0, 1, -1, 2, -3, 7, 60_000, 2**31 - 1, -(2**31)]
_FLOAT64 = [
    0.0, -0.0, 0.5, -0.5, 1.0, 1.5, 2.5, -2.5, 3.0, 0.1, 1 / 3, 0.49999999999999994, -12.345,
    1.005, 2.0**31 + 0.5, 2.0**51 + 0.5, 2.0**52 - 0.5, 2.0**53 + 2, -(2.0**63), 2.0**63, 1e15,
    9.223372036854775e18, 1e300, -1e300, 1.7976931348623157e308, 5e-324, 2.2250738585072014e-308,
]  # fmt: skip
_FLOAT32 = [0.0, -1.5, 0.25, 0.10000000149011612, 16777216.0, 3.4028234663852886e38]
_STRING = [
    "", "a", "A", "b", "ab", "it's", "ÄÖ", "äö", "straße", "İ", "ς", "Σίσυφος", "Жук", "ﬁ",
    "\uffff", "😀", "e\u0301", " a ", "\\", "0", ",", "+", "a,b+", "+a", "\x00", "a\x01", "\x02c",
]  # fmt: skip
_TIMES = [0, -1, 1, 1_323_388_800_123, MIN_TIME_MS, MAX_TIME_MS, -2_208_988_800_000]
_ZONES = ("Europe/London", "Pacific/Apia", "Asia/Kathmandu")
_EDGES: Mapping[str, list[Any]] = {
    "int64": _INT64, "int32": _INT32, "float64": _FLOAT64, "float32": _FLOAT32,
    "string": _STRING, "bool": [True, False], "timestamp": _TIMES,
    "date": [time // 86_400_000 for time in _TIMES],
    "decimal(10, 2)": [*map(PyDecimal, (
        "0.00", "0.05", "-0.05", "2.50", "-99999999.99", "99999999.99"))],
    "decimal(20, 6)": [*map(PyDecimal, (
        "0.000000", "0.000001", "2.500000", "-0.000500", "0.001500", "0.002500",
        "-99999999999999.999999", "99999999999999.999999", "1234567.890123"))],
}  # fmt: skip

Rows = list[dict[str, Any]]


def edge_rows(rng: random.Random, rows: int, columns: Mapping[str, DataType] = COLUMNS) -> Rows:
    """Rows of edge values, about one in eight null; every edge occurs about equally often."""
    drawn: dict[str, list[Any]] = {}
    for name, kind in columns.items():
        edges = _EDGES[kind.text]
        pool = [edges[row % len(edges)] for row in range(rows)]
        rng.shuffle(pool)
        drawn[name] = [None if rng.random() < 0.125 else value for value in pool]
    return [{name: drawn[name][row] for name in columns} for row in range(rows)]


def to_arrow(rows: Rows, columns: Mapping[str, DataType] = COLUMNS) -> pa.Table:
    """The rows as an Arrow table of the columns' types."""
    return pa.table(
        [pa.array([row[name] for row in rows], kind.arrow) for name, kind in columns.items()],
        schema=arrow_schema(columns),
    )


def random_expression(
    rng: random.Random, kind: DataType, depth: int, columns: Mapping[str, DataType] = COLUMNS
) -> Expression:
    """Return an expression of type ``kind`` with at most ``depth`` nested calls."""
    return _Generator(rng, columns).draw(kind, depth)


class _Generator:
    def __init__(self, rng: random.Random, columns: Mapping[str, DataType]) -> None:
        self._rng = rng
        self._columns = columns

    def draw(self, kind: DataType, depth: int) -> Expression:
        if depth == 0 or self._rng.random() < 0.1:
            return self._leaf(kind)
        makers = [self._case, self._coalesce, *self._makers(kind)]
        return self._rng.choice(makers)(kind, depth - 1)

    def _leaf(self, kind: DataType) -> Expression:
        names = [name for name, declared in self._columns.items() if promoted(declared) == kind]
        # a lone decimal literal has its own precision, not that of ``kind``
        if names and (kind.is_decimal or self._rng.random() < 0.7):
            name = self._rng.choice(names)
            return Name(kind, name, self._columns[name])
        if self._rng.random() < 0.1:
            return Literal(kind, None)
        return self._constant(kind)

    def _constant(self, kind: DataType) -> Literal:
        value = self._rng.choice(_EDGES[kind.text])
        return Literal(kind, value or 0.0 if kind is Float64 else value)

    def _case(self, kind: DataType, depth: int) -> Expression:
        args = []
        for _ in range(self._rng.randint(1, 2)):
            args += [self.draw(Bool, depth), self.draw(kind, depth)]
        return build("case", (*args, self.draw(kind, depth)))

    def _coalesce(self, kind: DataType, depth: int) -> Expression:
        return build("coalesce", (self.draw(kind, depth), self.draw(kind, depth)))

    def _of(self, op: str, *kinds: DataType) -> Callable[[DataType, int], Expression]:
        return lambda _, depth: build(op, [self.draw(kind, depth) for kind in kinds])

    def _cast(self, source: DataType) -> Callable[[DataType, int], Expression]:
        return lambda kind, depth: build("cast", (self.draw(source, depth),), kind)

    def _makers(self, kind: DataType) -> list[Callable[[DataType, int], Expression]]:
        of = self._of
        if kind is Int64:
            pairs = [of(op, Int64, Int64) for op in ("add", "sub", "mul", "least", "greatest")]
            ones = [of(op, Int64) for op in ("neg", "abs")]
            casts = [self._cast(Float64), self._cast(Bool)]
            places = [self._bucket, self._hash_bucket, self._field, self._date_trunc, self._age]
            return [
                *pairs, *ones, *casts, *places, of("length", String), self._divided, self._scaled,
            ]  # fmt: skip
        if kind is Float64:
            pairs = [of(op, Float64, Float64) for op in ("add", "sub", "mul", "least", "greatest")]
            mixed = [of("add", Int64, Float64), of("mul", Float64, Int64)]
            ones = [of(op, Float64) for op in ("neg", "abs", "floor", "ceil", "round", "sqrt")]
            casts = [self._cast(Int64), self._cast(Bool), self._cast(Decimal(20, 6))]
            return [*pairs, *mixed, *ones, *casts, self._divided]
        if kind is String:
            texts = [of("lower", String), of("upper", String), of("concat", String, String)]
            return [*texts, self._ordered, self._item, self._cast(Int64), self._cast(Bool)]
        if kind is Bool:
            logic = [of("and", Bool, Bool), of("or", Bool, Bool), of("not", Bool)]
            steps = ("add", "sub", "mul", "floordiv")
            fits = [of(f"fits_{step}", Int64, Int64) for step in steps]
            tests = [self._compared, self._tested, self._among, of("finite", Float64)]
            return [*tests, *tests, *logic, *fits, self._field]
        return [self._date_trunc] if kind in (Timestamp, Date) else []

    def _divided(self, kind: DataType, depth: int) -> Expression:
        op = "div" if kind is Float64 else self._rng.choice(["floordiv", "mod"])
        divisor = self.draw(kind, depth)
        if isinstance(divisor, Literal) and divisor.value == 0:
            divisor = Literal(kind, 3.0 if kind is Float64 else -3)
        return build(op, (self.draw(kind, depth), divisor))

    def _bucket(self, _: DataType, depth: int) -> Expression:
        kind = self._rng.choice([Int64, Float64, Date, Timestamp])
        values = sorted(set(_EDGES[kind.text]))
        edges = sorted(self._rng.sample(values, self._rng.randint(1, 4)))
        constants = [Literal(kind, edge or 0.0 if kind is Float64 else edge) for edge in edges]
        return build("bucket", (self.draw(kind, depth), *constants))

    def _time(self, zone: bool) -> tuple[Expression, ...]:
        """A time, and a time zone or not; SQL repeats a time at each change of the clocks."""
        kind = self._rng.choice([Int64, Timestamp, Date][: 2 if zone else 3])
        drawn = self.draw(kind, 0)
        if kind is Int64:
            drawn = build("mod", (drawn, Literal(Int64, 10**13)))
        return (drawn, Literal(String, self._rng.choice(_ZONES))) if zone else (drawn,)

    def _field(self, kind: DataType, _: int) -> Expression:
        args = self._time(self._rng.random() < 0.25)
        if kind is Bool:
            return COMBINATIONS["is_weekend"].build(args, {})
        fields = [*FIELDS][: 6 if args[0].type is Date else None]
        return COMBINATIONS[self._rng.choice(fields)].build(args, {})

    def _date_trunc(self, kind: DataType, _: int) -> Expression:
        time = self.draw(kind, 0)
        if kind is Int64:
            time = build("mod", (time, Literal(Int64, 10**13)))
        unit = Literal(String, self._rng.choice(UNITS))
        zone = kind is not Date and self._rng.random() < 0.25
        zones = (Literal(String, self._rng.choice(_ZONES)),) if zone else ()
        return COMBINATIONS["date_trunc"].build((unit, time, *zones), {})

    def _age(self, _: DataType, __: int) -> Expression:
        return COMBINATIONS["age_days"].build((*self._time(False), *self._time(False)), {})

    def _hash_bucket(self, _: DataType, depth: int) -> Expression:
        buckets = Literal(Int64, self._rng.choice([1, 2, 1000, 2**31]))
        return build("hash_bucket", (self.draw(String, depth), buckets))

    def _scaled(self, _: DataType, depth: int) -> Expression:
        source = self._rng.choice([Int64, Float64, Decimal(10, 2), Decimal(20, 6)])
        scale = Literal(Int64, self._rng.randint(0, 9))
        return build("scaled_int", (self.draw(source, depth), scale))

    def _ordered(self, _: DataType, depth: int) -> Expression:
        time = build("mod", (self.draw(Int64, depth), Literal(Int64, 10**13)))
        return build("ordered", (time, self.draw(self._some_kind(), depth)))

    def _item(self, _: DataType, depth: int) -> Expression:
        kinds = [self._some_kind() for _ in range(self._rng.randint(1, 3))]
        # of leaves only: the SQL of a part repeats it many times
        return build("item", [self.draw(kind, 0) for kind in kinds])

    def _some_kind(self) -> DataType:
        return self._rng.choice([promoted(kind) for kind in self._columns.values()])

    def _compared(self, _: DataType, depth: int) -> Expression:
        kind = self._some_kind()
        orders = [] if kind is Bool else ["lt", "le", "gt", "ge"]
        op = self._rng.choice(["eq", "ne", *orders])
        other = kind
        if kind in (Int64, Float64) and self._rng.random() < 0.2:
            other = Float64
        return build(op, (self._compared_value(kind, depth), self._compared_value(other, depth)))

    def _compared_value(self, kind: DataType, depth: int) -> Expression:
        """A value that a text may compare: not NULL itself."""
        drawn = self.draw(kind, depth)
        return self._constant(kind) if is_null(drawn) else drawn

    def _tested(self, _: DataType, depth: int) -> Expression:
        op = self._rng.choice(["isnull", "isnotnull"])
        return build(op, (self.draw(self._some_kind(), depth),))

    def _among(self, _: DataType, depth: int) -> Expression:
        kind = self._rng.choice([Int64, Float64, String, Date, Timestamp, Decimal(10, 2)])
        items = [self._constant(kind) for _ in range(self._rng.randint(1, 6))]
        return build("in", (self._compared_value(kind, depth), *items))


def beyond_scale(expr: Expression, row: dict[str, Any]) -> bool:
    """Return whether a scaled_int in the expression exceeds its guaranteed range."""
    for node in walk(expr):
        if isinstance(node, Call) and node.op == "scaled_int":
            try:
                value = evaluate_row(node, row)
            except UnsafeStepError:
                return True
            if value is not None and abs(value) >= BEYOND_SCALE:
                return True
    return False


def agree(got: Any, expected: Any, kind: DataType, ulps: int = 0) -> bool:
    """Return whether an engine's value is correct, floats within ``ulps`` units in the last place.

    Infinities and NaN only need to be recognized; the sign of zero is ignored.
    """
    if kind is not Float64 or not isinstance(got, float) or not isinstance(expected, float):
        return type(got) is type(expected) and bool(got == expected)
    if not math.isfinite(expected):
        return not math.isfinite(got)
    return got == expected or abs(got - expected) <= ulps * math.ulp(expected)
