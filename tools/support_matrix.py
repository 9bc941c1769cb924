"""Write the tables of docs/reference/support-matrix.md: which path supports which combination.

Every aggregate is defined over a column of every type and with every kind of window, and what the
definition compiles to is passed to each engine: Flink and DuckDB translate its expressions, the
online store checks its windows, the native kernel plans its fold, and the Feast plugin looks its
type up. ``python tools/support_matrix.py`` rewrites the page; a test compares it.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import paimon_features as pf
from paimon_features.core.errors import PaimonFeaturesError
from paimon_features.core.types.schema import DataType, ListType
from paimon_features.definitions import CompiledView
from paimon_features.definitions.aggregates import Aggregate
from paimon_features.serving.reading import native_fold
from paimon_features.tiles.flink import tiling as flink_tiling
from paimon_features.tiles.local import tiling as local_tiling

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "support-matrix.md"
FEAST_TYPES = ROOT / "paimon_features" / "integrations" / "feast" / "plugin" / "definitions.py"

TYPES: Mapping[str, DataType] = {
    "Int32": pf.Int32,
    "Int64": pf.Int64,
    "Float32": pf.Float32,
    "Float64": pf.Float64,
    "Decimal": pf.Decimal(12, 2),
    "String": pf.String,
    "Bool": pf.Bool,
    "Date": pf.Date,
    "Timestamp": pf.Timestamp,
    "Bytes": pf.Bytes,
    "List": pf.List(pf.Float32, 3),
}
WINDOWS: Mapping[str, tuple[str, str | None]] = {
    "`sawtooth`, a duration": ("sawtooth", "1h"),
    "`hop`, a duration": ("hop", "1h"),
    "`exact`, a duration": ("exact", "1h"),
    "`sawtooth`, a calendar unit": ("sawtooth", "today"),
    "`hop`, a calendar unit": ("hop", "today"),
    "`exact`, a calendar unit": ("exact", "today"),
    "`sawtooth`, a lifetime": ("sawtooth", None),
    "`hop`, a lifetime": ("hop", None),
    "`exact`, a lifetime": ("exact", None),
}
ENGINES = ("Flink", "local", "online", "native kernel", "Feast plugin")
LETTERS = ("F", "L", "O", "N", "P")

Value = TypeVar("Value", bound=Hashable)
Build = Callable[[str, DataType, str | None], Aggregate]


def _column(aggregate: type[Aggregate], **options: object) -> Build:
    return lambda column, _, window: aggregate(column, windows=[window], **options)


def _categories(aggregate: type[Aggregate], **options: object) -> Build:
    def build(column: str, kind: DataType, window: str | None) -> Aggregate:
        values = [1, 2] if kind.is_numeric else [True] if kind is pf.Bool else ["a", "b"]
        return aggregate(column, values=values, windows=[window], **options)

    return build


AGGREGATES: Mapping[str, Build] = {
    "Count": _column(pf.Count),
    "Sum": _column(pf.Sum),
    "Sum(scale=2)": _column(pf.Sum, scale=2),
    "Sum(as_decimal=True)": _column(pf.Sum, as_decimal=True),
    "Mean": _column(pf.Mean),
    "Min": _column(pf.Min),
    "Max": _column(pf.Max),
    "Variance": _column(pf.Variance),
    "StdDev": _column(pf.StdDev),
    "Skewness": _column(pf.Skewness),
    "Kurtosis": _column(pf.Kurtosis),
    "First": _column(pf.First),
    "Last": _column(pf.Last),
    "FirstN": _column(pf.FirstN, n=3),
    "LastN": _column(pf.LastN, n=3),
    "TopK": _column(pf.TopK, n=3),
    "BottomK": _column(pf.BottomK, n=3),
    "DecayedSum": _column(pf.DecayedSum, half_life="1d"),
    "DecayedCount": _column(pf.DecayedCount, half_life="1d"),
    "DecayedMean": _column(pf.DecayedMean, half_life="1d"),
    "CountBy": _categories(pf.CountBy),
    "SumBy": lambda column, kind, window: pf.SumBy(
        column, by="category", values=["a", "b"], windows=[window]
    ),
    "TopCategories": _column(pf.TopCategories, n=3),
    "Any": _column(pf.Any),
    "All": _column(pf.All),
    "Rate": _column(pf.Rate, per="1d"),
    "TimeSinceFirst": _column(pf.TimeSinceFirst),
    "TimeSinceLast": _column(pf.TimeSinceLast),
    "ApproxCountDistinct": _column(pf.ApproxCountDistinct),
    "Histogram": _column(pf.Histogram, edges=[0, 1]),
    "Quantile": _column(pf.Quantile, q=0.5, edges=[0, 1, 2]),
    "VectorSum": _column(pf.VectorSum),
    "VectorMean": _column(pf.VectorMean),
}


def compiled_view(
    build: Build, kind: DataType, window_kind: str, window: str | None
) -> CompiledView | None:
    """Return the compiled view with one feature; None where its definition is rejected."""
    source = pf.EventSource(
        "events",
        schema={"user_id": pf.Int64, "at_ms": pf.Int64, "x": kind, "category": pf.String},
        event_time="at_ms",
    )
    user = pf.Entity("user", keys={"user_id": pf.Int64})
    try:
        features = [build("x", kind, window)]
        return pf.FeatureView(
            "view",
            source=source,
            entity=user,
            tile="5min",
            kind=window_kind,
            time_zone="UTC",
            features=features,
        ).compiled
    except PaimonFeaturesError:
        return None


def _on_flink(view: CompiledView) -> bool:
    statements = [flink_tiling.event_sql(view, view.expressions[p.name]) for p in view.partials]
    return all([*statements, flink_tiling.verdict_sql(view)])


def _on_local_engine(view: CompiledView) -> bool:
    return bool(local_tiling.tile_sql(view, "events"))


def _in_native_kernel(view: CompiledView) -> bool:
    folded, _ = native_fold.split_features(view, view.features)
    return view.is_online and bool(folded)


def _in_feast(view: CompiledView, feast_types: frozenset[str]) -> bool:
    kinds = [feature.type for feature in view.features]
    return all((k.item if isinstance(k, ListType) else k).text in feast_types for k in kinds)


def feast_types() -> frozenset[str]:
    """Return the names of types that the Feast plugin maps, read without importing Feast."""
    for node in ast.parse(FEAST_TYPES.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "_TYPES":
            assert isinstance(node.value, ast.Dict)
            return frozenset(ast.literal_eval(key) for key in node.value.keys if key is not None)
    raise LookupError(f"{FEAST_TYPES} has no _TYPES")


def support(view: CompiledView | None, in_feast: frozenset[str]) -> tuple[bool, ...]:
    """Return which of ``ENGINES`` support the view; all False where it cannot be defined."""
    if view is None:
        return (False,) * len(ENGINES)
    return (
        _on_flink(view),
        _on_local_engine(view),
        view.is_online,
        _in_native_kernel(view),
        _in_feast(view, in_feast),
    )


def measured() -> dict[tuple[str, str, str], tuple[bool, ...]]:
    """Return the support of every (aggregate, type, window)."""
    in_feast = feast_types()
    return {
        (aggregate, kind, window): support(
            compiled_view(AGGREGATES[aggregate], TYPES[kind], *WINDOWS[window]), in_feast
        )
        for aggregate, kind, window in itertools.product(AGGREGATES, TYPES, WINDOWS)
    }


def tables() -> str:
    """Return the tables of the page, and the combinations that they do not explain."""
    return "\n".join(_lines(measured())) + "\n"


def _lines(cells: Mapping[tuple[str, str, str], tuple[bool, ...]]) -> Iterator[str]:
    def best(keys: Iterator[tuple[str, str, str]]) -> tuple[bool, ...]:
        return tuple(map(any, zip(*(cells[key] for key in keys), strict=True)))

    by_type = {
        (aggregate, kind): best((aggregate, kind, window) for window in WINDOWS)
        for aggregate, kind in itertools.product(AGGREGATES, TYPES)
    }
    by_window = {
        window: best((aggregate, kind, window) for aggregate in AGGREGATES for kind in TYPES)
        for window in WINDOWS
    }
    yield "## Windows\n"
    yield f"| window | {' | '.join(ENGINES)} |"
    yield "|---" * (len(ENGINES) + 1) + "|"
    for windows, flags in _grouped(by_window):
        yield f"| {'; '.join(windows)} | {' | '.join('yes' if f else '-' for f in flags)} |"
    yield "\n## Aggregates and types\n"
    columns = {kind: tuple(by_type[aggregate, kind] for aggregate in AGGREGATES) for kind in TYPES}
    merged = [kinds for kinds, _ in _grouped(columns)]
    yield f"| aggregate | {' | '.join(map(', '.join, merged))} |"
    yield "|---" * (len(merged) + 1) + "|"
    rows = {
        f"`{aggregate}`": tuple(_letters(by_type[aggregate, kinds[0]]) for kinds in merged)
        for aggregate in AGGREGATES
    }
    for aggregates, letters in _grouped(rows):
        yield f"| {', '.join(aggregates)} | {' | '.join(letters)} |"
    yield "\n## Exceptions\n"
    exceptions: dict[tuple[str, str], dict[str, list[str]]] = {}
    for (aggregate, kind, window), flags in cells.items():
        pairs = zip(by_type[aggregate, kind], by_window[window], strict=True)
        if flags != tuple(a and b for a, b in pairs):
            windows = exceptions.setdefault((aggregate, _letters(flags)), {})
            windows.setdefault(window, []).append(kind)
    for (aggregate, letters), windows in exceptions.items():
        kinds = ", ".join(dict.fromkeys(itertools.chain.from_iterable(windows.values())))
        support_text = "is rejected" if letters == "-" else f"has {letters}"
        yield f"- `{aggregate}` of {kinds} {support_text} with {'; '.join(windows)}"
    if not exceptions:
        yield "None."


def _grouped(values: Mapping[str, Value]) -> list[tuple[list[str], Value]]:
    """Return the names with equal values, in the order of their first name."""
    groups: dict[Value, list[str]] = {}
    for name, value in values.items():
        groups.setdefault(value, []).append(name)
    return [(names, value) for value, names in groups.items()]


def _letters(flags: tuple[bool, ...]) -> str:
    return " ".join(letter for letter, flag in zip(LETTERS, flags, strict=True) if flag) or "-"


def written(page: str) -> str:
    """Return the text of the page with the tables of this code."""
    return re.sub(
        r"(?<=<!-- generated: tools/support_matrix.py -->\n\n).*",
        lambda _: tables(),
        page,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
