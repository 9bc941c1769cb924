"""Conversion of weights, scores and labels: lists, NumPy, Arrow, pandas, Polars, difficulty."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.errors import ConfigurationError, RequestError
from paimon_features.core.types.array_types import Array
from paimon_features.core.types.foreign_types import plain_array, plain_column
from trainer_bridge.feedback.difficulty import Difficulty

_PIECE = 1 << 17


def as_numbers(values: Any, what: str, *, negative: bool = False) -> Array:
    """Return one finite number per row; NumPy arrays and single Arrow chunks are not copied.

    Of a ``Difficulty``, its ``scores()``.

    Raises
    ------
    ConfigurationError
        If there is a null, a NaN, an infinity, no row, or (unless ``negative``) a number below 0.
    """
    values = _to_arrays(values)
    if isinstance(values, pa.Array | pa.ChunkedArray):
        _refuse_nulls(values, what)
        values = (
            values.to_numpy()
            if isinstance(values, pa.ChunkedArray)
            else values.to_numpy(zero_copy_only=False)
        )
    array: Array = np.asarray(values)
    if array.ndim != 1 or not len(array):
        raise ConfigurationError(f"{what}: expected one number per row, got shape {array.shape}")
    if array.dtype == object and (nulls := sum(value is None for value in array)):
        raise ConfigurationError(f"{what}: {nulls} of {len(array)} are null; fill them first")
    if array.dtype.kind not in "fiub":
        raise ConfigurationError(f"{what}: expected numbers, got {array.dtype}")
    low = -np.inf if negative else -np.finfo(np.float64).smallest_subnormal
    least, most = array.min(), array.max()
    if not (least > low and most < np.inf):  # False for NaN as well
        bad = int(np.flatnonzero(~((array > low) & (array < np.inf)))[0])
        bounds = "finite numbers" if negative else "finite numbers that are not negative"
        raise ConfigurationError(f"{what}: number {bad} is {array[bad]}; expected {bounds}")
    return array


def snapshot_of(values: Any, given: int | None) -> int | None:
    """Return the snapshot of the scores: as given, or that of a ``Difficulty``."""
    return values.snapshot_id if given is None and isinstance(values, Difficulty) else given


@dataclass(frozen=True, slots=True)
class Labels:
    """The class of each row: ``classes``, ascending, and an integer code per row."""

    codes: npt.NDArray[Any]
    classes: list[Any]


def as_labels(values: Any, what: str = "labels") -> Labels:
    """Encode labels of any sortable type; 1 byte per row for up to 256 classes.

    Raises
    ------
    ConfigurationError
        If there is a null or a NaN, no row, or more than one label per row.
    """
    values = _to_arrays(values)
    if isinstance(values, np.ndarray) and values.dtype.kind in "OU":
        values = values.tolist()
    if isinstance(values, list | tuple):
        try:
            values = pa.array(values)
        except pa.ArrowException as error:
            raise ConfigurationError(f"{what}: expected labels of one type: {error}") from error
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        values = np.asarray(values)
        if values.ndim != 1:
            raise ConfigurationError(
                f"{what}: expected one label per row, got shape {values.shape}"
            )
    if not len(values):
        raise ConfigurationError(f"{what}: expected one label per row, got none")
    distinct: set[Any] = set()
    for piece in _pieces(values):
        if piece.null_count or (
            pa.types.is_floating(piece.type) and pc.any(pc.is_nan(piece)).as_py()
        ):
            raise ConfigurationError(
                f"{what}: some are null or NaN; assign them a class or drop these rows"
            )
        distinct.update(pc.unique(piece).to_pylist())
    classes = sorted(distinct)
    dtype = np.min_scalar_type(len(classes) - 1)
    codes = np.empty(len(values), dtype=dtype)
    start = 0
    for piece in _pieces(values):
        class_array = pa.array(classes, type=piece.type)
        codes[start : start + len(piece)] = pc.index_in(piece, value_set=class_array).to_numpy()
        start += len(piece)
    return Labels(codes, classes)


def checksum(array: npt.NDArray[Any]) -> int:
    """Return a fingerprint of an array, sensitive to the order of its values."""
    return zlib.crc32(np.ascontiguousarray(array).data)


def check_unchanged(array: npt.NDArray[Any] | None, fingerprint: int | None) -> None:
    """Raise RequestError if an array is not what it was when its checksum was taken."""
    if array is not None and checksum(array) != fingerprint:
        raise RequestError(
            "a state of another seed needs the scores of the sampler again, and its array was "
            "modified since; make the sampler with the seed of the state"
        )


def _to_arrays(values: Any) -> Any:
    """Convert pandas and Polars columns to Arrow and a difficulty to scores; others unchanged."""
    if isinstance(values, Difficulty):
        return values.scores()
    home = type(values).__module__.partition(".")[0]
    if home == "polars":
        values = values.to_arrow()
    if home == "pandas":
        values = pa.array(values)
    try:
        if isinstance(values, pa.ChunkedArray):
            return plain_column(values)
        return plain_array(values) if isinstance(values, pa.Array) else values
    except pa.ArrowException as error:
        raise ConfigurationError(f"expected numbers or labels of a plain type: {error}") from error


def _refuse_nulls(values: pa.Array | pa.ChunkedArray, what: str) -> None:
    if values.null_count:
        raise ConfigurationError(
            f"{what}: {values.null_count} of {len(values)} are null; fill them first"
        )


def _pieces(values: Any) -> Iterator[pa.Array]:
    """Yield the values as short Arrow arrays."""
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    for chunk in chunks:
        for start in range(0, len(chunk), _PIECE):
            piece = chunk[start : start + _PIECE]
            yield piece if isinstance(piece, pa.Array) else pa.array(piece)
