"""The table ``fitted_<name>``: all versions of a fitted transformer, one row each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from paimon_features.core.errors import TableError, TransformError, UnknownNameError
from paimon_features.core.types.schema import check_name
from paimon_features.lake.catalog import Lake
from paimon_features.lake.ownership.lease import acquire
from paimon_features.lake.ownership.locks import locked
from paimon_features.lake.reading.table_reader import read_arrow
from paimon_features.lake.specs import FITTED_PREFIX, fitted_spec
from paimon_features.lake.writing.table_writer import append_arrow
from paimon_features.transformers import FeatureTransformer, FittedVersion, StoredTransformer
from paimon_features.transformers.fitted_version import canonical

COMMIT_USER = "fitted"
"""The commit user of versions; the commit identifier is the version."""


def save_fitted(
    lake: Lake,
    name: str,
    transformer: FeatureTransformer,
    *,
    fitted_on: Mapping[str, Any],
    now_ms: int,
) -> FittedVersion:
    """Write a fitted transformer as the next version, in one commit.

    Saving the newest version again (same parameters, fitted on the same data) returns that
    version: a repeat after a crash creates no second one.

    Raises
    ------
    TransformError
        If it is not fitted, or its kind cannot be stored.
    OwnershipError
        If another process is saving a version of it.
    """
    check_name("fitted transformer", name)
    if not isinstance(transformer, StoredTransformer):
        raise TransformError(
            f"fitted transformer {name!r}: a {type(transformer).__name__} cannot be stored; "
            "expected one of paimon_features.transformers, or your own StoredTransformer"
        )
    transformer.to_params()  # raises if it is not fitted
    table = FITTED_PREFIX + name
    lock = lake.side_folder / "fitted" / f"{lake.database}.{name}.lock"
    # the lease excludes other owners, the lock other threads of this process
    with locked(lock, f"saving {name!r}"), acquire(lake, table, purpose="save a version"):
        lake.create(fitted_spec(table))
        versions = fitted_versions(lake, name)
        newest = versions[-1] if versions else None
        if newest is not None and _is(newest, transformer, fitted_on):
            return newest
        number = 1 if newest is None else newest.version + 1
        fitted = FittedVersion(name, number, transformer, now_ms, dict(fitted_on))
        row = {
            "version": pa.array([number], pa.int32()),
            "kind": [fitted.kind],
            "params": [fitted.params],
            "fitted_on": [canonical(fitted.fitted_on)],
            "rows": [transformer.rows_seen],
            "fitted_at_ms": [now_ms],
            "digest": [fitted.digest],
        }
        append_arrow(lake, table, pa.table(row), commit_user=COMMIT_USER, commit_identifier=number)
        if load_fitted(lake, name, number).digest != fitted.digest:
            raise TableError(
                f"table {table!r}: version {number} differs from what was written; another process "
                "commits to this table without its lease"
            )
    # independent of later changes to the given transformer
    return load_fitted(lake, name, number)


def load_fitted(lake: Lake, name: str, version: int | None = None) -> FittedVersion:
    """Return a version of a fitted transformer, the newest by default.

    Raises
    ------
    UnknownNameError
        If the transformer or the version does not exist.
    TableError
        If its row is corrupt.
    """
    versions = fitted_versions(lake, name)
    if not versions:
        raise UnknownNameError.of("fitted transformer", name, fitted_names(lake))
    if version is None:
        return versions[-1]
    fitted = next((candidate for candidate in versions if candidate.version == version), None)
    if fitted is None:
        numbers = ", ".join(str(candidate.version) for candidate in versions)
        raise UnknownNameError(
            f"fitted transformer {name!r} has no version {version}; it has: {numbers}"
        )
    return fitted


def fitted_versions(lake: Lake, name: str) -> list[FittedVersion]:
    """Return all versions, oldest first; empty if never saved. TableError as ``load_fitted``."""
    table = FITTED_PREFIX + name
    if not lake.exists(table):
        return []
    rows = read_arrow(lake, table).to_pylist()
    versions = {row["version"]: _version(table, name, row) for row in rows}
    return [versions[number] for number in sorted(versions)]


def fitted_names(lake: Lake) -> list[str]:
    """Return the names of all fitted transformers, sorted."""
    tables = [table for table in lake.list() if table.startswith(FITTED_PREFIX)]
    return [table.removeprefix(FITTED_PREFIX) for table in tables]


def _is(
    version: FittedVersion, transformer: StoredTransformer, fitted_on: Mapping[str, Any]
) -> bool:
    return version.params == canonical(transformer.to_params()) and canonical(
        version.fitted_on
    ) == canonical(dict(fitted_on))


def _version(table: str, name: str, row: Mapping[str, Any]) -> FittedVersion:
    try:
        return FittedVersion.from_document(
            {
                "name": name,
                "version": row["version"],
                "transformer": json.loads(row["params"]),
                "fitted_at_ms": row["fitted_at_ms"],
                "fitted_on": json.loads(row["fitted_on"]),
                "digest": row["digest"],
            }
        )
    except (TransformError, ValueError) as error:
        raise TableError(f"table {table!r}, version {row['version']}: {error}") from error
