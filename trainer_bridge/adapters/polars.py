"""Tables as lazy Polars frames."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from paimon_features.core.errors import MissingExtraError
from paimon_features.core.types.schema import NAME
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.snapshots import SnapshotRef
from trainer_bridge.readers.scanning import TableScan

try:
    import polars as pl
    from polars.io.plugins import register_io_source
except ModuleNotFoundError as error:
    raise MissingExtraError.of("polars", "polars", "trainer_bridge.adapters.polars") from error

_OPERATORS = {"Eq": "=", "NotEq": "<>", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}


def scan(
    lake: Lake,
    table: str,
    *,
    snapshot_id: SnapshotRef | None = None,
    tag: str | None = None,
    as_of_ms: int | None = None,
    where: str | None = None,
    threads: int = 2,
) -> pl.LazyFrame:
    """Return a lazy frame over a table snapshot; of primary-key tables, the merged rows.

    The snapshot is pinned now (the latest one by default), however often the frame is collected.
    Only the columns that the query uses are read. Predicates that compare a column with a
    constant are pushed down and skip files and row groups by their statistics; the others are
    evaluated by Polars. Blocks are read on demand, so ``head`` stops early.

    Parameters
    ----------
    where
        An additional condition in the expression language, for what Polars cannot push down.
    threads
        Number of blocks decoded in parallel.

    Raises
    ------
    ConfigurationError
        If more than one of snapshot_id, tag and as_of_ms is given.
    UnknownNameError, TableError, SnapshotExpiredError
        If the table, the tag or the snapshot does not exist. During ``collect``, Polars raises
        errors of files as its own ``ComputeError``: the name of our error (DamagedFileError,
        SnapshotExpiredError) and its message are its text.
    """
    scanned = TableScan.pin(lake, table, snapshot_id, tag, as_of_ms)

    def rows(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        wanted = scanned.schema.names if with_columns is None else with_columns
        used = [] if predicate is None else predicate.meta.root_names()
        # a batch without columns would lose its row count
        read = list(dict.fromkeys([*wanted, *used])) or scanned.schema.names[:1]
        conditions = [where, None if predicate is None else pushed_down(predicate, scanned.schema)]
        texts = [f"({text})" for text in conditions if text is not None]
        left = n_rows
        for part in scanned.tables(read, " AND ".join(texts) or None, threads):
            frame = pl.DataFrame(part)
            if left is not None:
                frame = frame.head(left)
                left -= len(frame)
            if predicate is not None:
                frame = frame.filter(predicate)
            yield frame.select(wanted) if wanted else frame
            if left == 0:
                return
        empty = pl.DataFrame(scanned.select(read).empty_table())
        yield empty.select(wanted) if wanted else empty

    schema = pl.DataFrame(scanned.schema.empty_table()).schema
    return register_io_source(rows, schema=schema, is_pure=True)


def pushed_down(predicate: pl.Expr, schema: pa.Schema) -> str | None:
    """Return a condition in the expression language implied by the predicate, or None.

    Unsupported parts are omitted: less is skipped, and Polars filters the rows itself.

    >>> schema = pa.schema([("n", pa.int64()), ("x", pa.float64()), ("s", pa.string())])
    >>> pushed_down((pl.col("n") > 5) & (pl.col("s") == "it's") & (pl.col("n") % 2 == 0), schema)
    "(n > 5) AND (s = 'it''s')"

    NaN is larger than any number in Polars, whereas no comparison with it is true in the
    expression language:

    >>> pushed_down(pl.col("x") > 1.0, schema) is None
    True
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # in case this form is deprecated one day
        try:
            tree = json.loads(predicate.meta.serialize(format="json"))
        except (ValueError, TypeError, pl.exceptions.PolarsError):
            return None
    return _condition(tree, {field.name: field.type for field in schema})


def _condition(tree: Any, types: dict[str, pa.DataType]) -> str | None:
    match tree:
        case {"BinaryExpr": {"left": left, "op": "And", "right": right}}:
            sides = [_condition(side, types) for side in (left, right)]
            conditions = [f"({side})" if " AND " not in side else side for side in sides if side]
            return " AND ".join(conditions) or None
        case {"BinaryExpr": {"left": left, "op": "Or", "right": right}}:
            either = [_condition(side, types) for side in (left, right)]
            return " OR ".join(f"({side})" for side in either) if all(either) else None
        case {"BinaryExpr": {"left": {"Column": name}, "op": op, "right": {"Literal": literal}}}:
            return _comparison(name, op, literal, types)
        case {"Function": {"input": [{"Column": name}], "function": {"Boolean": test}}}:
            words = {"IsNull": "IS NULL", "IsNotNull": "IS NOT NULL"}.get(str(test))
            return f"{name} {words}" if words and _usable(name, types) else None
    return None


def _comparison(name: str, op: str, literal: Any, types: dict[str, pa.DataType]) -> str | None:
    if op not in _OPERATORS or not _usable(name, types):
        return None
    kind = types[name]
    value = next(iter(literal.values())) if isinstance(literal, dict) and literal else None
    value = next(iter(value.values())) if isinstance(value, dict) and value else None
    if isinstance(value, bool) or value is None:
        return None
    if pa.types.is_integer(kind) and isinstance(value, int):
        return f"{name} {_OPERATORS[op]} {value}" if -(2**63) < value < 2**63 else None
    if pa.types.is_string(kind) and isinstance(value, str):
        quoted = value.replace("'", "''")
        return f"{name} {_OPERATORS[op]} '{quoted}'"
    # Polars treats NaN as the largest number, and compares float32 in float32
    if pa.types.is_float64(kind) and isinstance(value, float) and op in ("Eq", "Lt", "LtEq"):
        return f"{name} {_OPERATORS[op]} {value!r}" if math.isfinite(value) else None
    return None


def _usable(name: str, types: dict[str, pa.DataType]) -> bool:
    """Return whether the expression language can name the column and compares it as Polars does."""
    kind = types.get(name)
    comparable = (pa.types.is_int32, pa.types.is_int64, pa.types.is_string, pa.types.is_float64)
    return (
        kind is not None
        and NAME.fullmatch(name) is not None
        and any(fits(kind) for fits in comparable)
    )
