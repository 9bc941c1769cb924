"""Pending calls of a feedback writer, and their conversion to rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paimon_features.core.errors import RequestError
from paimon_features.core.times.utc_ms import conform
from paimon_features.core.types.array_types import Bools
from paimon_features.core.types.schema import DataType
from trainer_bridge.feedback.memory import LastCorrect
from trainer_bridge.order.key_hashes import key_hashes


@dataclass(frozen=True, slots=True)
class WriteCall:
    """One call of ``write``, with its own immutable arrays.

    ``finite`` marks the finite losses, None if all are; ``correct`` is None if it was not
    passed. ``done``: it was committed before and only updates the memory.
    """

    seq: int
    step: int
    event_time_ms: int
    model_version: str
    keys: tuple[pa.Array, ...]
    loss: pa.Array
    correct: pa.Array | None
    finite: Bools | None
    done: bool
    since_s: float

    @property
    def num_rows(self) -> int:
        """Number of rows to commit."""
        if self.done:
            return 0
        return len(self.loss) if self.finite is None else int(np.count_nonzero(self.finite))

    @property
    def num_bytes(self) -> int:
        """Bytes of the arrays."""
        right = 0 if self.correct is None else self.correct.nbytes
        return self.loss.nbytes + right + sum(column.nbytes for column in self.keys)


def columns_of(
    sample_keys: Mapping[str, DataType], keys: Mapping[str, Any], loss: Any, correct: Any, who: str
) -> tuple[tuple[pa.Array, ...], pa.Array, pa.Array | None]:
    """Validate the arguments of a call and copy them to arrays of their own.

    Raises
    ------
    RequestError
        If keys, lengths or types do not match, or a key contains nulls.
    """
    if set(keys) != set(sample_keys):
        raise RequestError(
            f"{who}: got the keys {', '.join(keys) or 'none'}; expected {', '.join(sample_keys)}"
        )
    losses = to_arrow(loss, pa.float64(), "loss")
    size = len(losses)
    columns = {name: to_arrow(keys[name], kind.arrow, name) for name, kind in sample_keys.items()}
    right = None if correct is None else to_arrow(correct, pa.bool_(), "correct")
    for name, values in {**columns, "correct": right}.items():
        if values is not None and len(values) != size:
            raise RequestError(f"{who}: {len(values)} values of {name!r} for {size} losses")
    for name, values in columns.items():
        if values.null_count:
            raise RequestError(f"{who}: key {name!r} has a null")
    return tuple(columns.values()), losses, right


def to_arrow(values: Any, kind: pa.DataType, name: str) -> pa.Array:
    """Copy NumPy, Arrow, lists or tensors of torch or TensorFlow to an array of ``kind``.

    A tensor may be on any device and require gradients; it is copied to the host.

    Raises
    ------
    RequestError
        If a value does not match ``kind``.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if not isinstance(values, pa.Array):
        if hasattr(values, "detach"):
            values = values.detach().cpu()
            # NumPy has no bfloat16
            values = (values.double() if values.is_floating_point() else values).numpy()
        if not isinstance(values, list | tuple):
            # a copy: training may reuse its array while the call is pending
            values = np.array(values)
            if values.ndim != 1:
                raise RequestError(
                    f"feedback: {name!r} has the shape {values.shape}; expected one value for each "
                    "sample, (samples,): losses before averaging (reduction='none')"
                )
        try:
            values = pa.array(values)
        except (pa.ArrowException, OverflowError) as error:
            raise RequestError(f"feedback: {name!r}: expected {kind}: {error}") from error
    try:
        # a key that is a time is the milliseconds by which readers find the sample
        return conform(values, kind, event_time=True)
    except pa.ArrowException as error:
        raise RequestError(
            f"feedback: {name!r} is {values.type}, expected {kind}: {error}"
        ) from error


def int64_of(value: Any, name: str, who: str) -> int:
    """Validate a signed 64-bit integer.

    Checked in the call: an error in the thread that builds the rows would lose all pending calls.

    Raises
    ------
    RequestError
        If it is anything else.
    """
    try:
        number = int(value)
        whole = bool(number == value) and -(2**63) <= number < 2**63
    except (TypeError, ValueError, OverflowError):
        whole = False
    if not whole:
        raise RequestError(f"{who}: {name}={value!r}; expected a 64-bit integer")
    return number


def finite_losses(losses: pa.Array) -> Bools | None:
    """Return the mask of finite losses; None if all are."""
    mask: Bools = np.isfinite(losses.to_numpy(zero_copy_only=False))  # a null becomes NaN
    return None if mask.all() else mask


def rows_of(
    calls: Sequence[WriteCall],
    sample_keys: Sequence[str],
    run_id: str,
    rank: int,
    memory: LastCorrect,
) -> pa.Table:
    """Convert pending calls to rows of the feedback table.

    ``memory`` is updated, also by calls that were committed before, and returns which samples
    were forgotten.
    """
    lengths = np.array([len(call.loss) for call in calls])
    kept = _kept(calls, lengths)
    keys = [_joined([call.keys[number] for call in calls]) for number in range(len(sample_keys))]
    correct = _joined(
        [pa.nulls(len(c.loss), pa.bool_()) if c.correct is None else c.correct for c in calls]
    )
    forgot = np.zeros(len(correct), dtype=np.bool_)
    if correct.null_count < len(correct):
        reported = correct.is_valid().to_numpy(zero_copy_only=False)
        right = correct.fill_null(False).to_numpy(zero_copy_only=False)
        forgot[reported] = memory.update(key_hashes(keys)[reported], right[reported])

    def repeated(values: Sequence[int], kind: npt.DTypeLike = np.int64) -> pa.Array:
        return pa.array(np.repeat(np.array(values, dtype=kind), lengths))

    versions = pa.array([call.model_version for call in calls], pa.string())
    of_call = repeated(range(len(calls)), np.int32)
    size = len(correct)
    table = pa.table(
        {
            **dict(zip(sample_keys, keys, strict=True)),
            "run_id": pa.repeat(pa.scalar(run_id, pa.string()), size),
            "rank": pa.repeat(pa.scalar(rank, pa.int32()), size),
            "seq": repeated([call.seq for call in calls]),
            "step": repeated([call.step for call in calls]),
            "loss": _joined([call.loss for call in calls]),
            "event_time_ms": repeated([call.event_time_ms for call in calls]),
            "model_version": versions.take(of_call),
            "correct": correct,
            "forgot": pa.array(forgot),
        }
    )
    return table if kept is None else table.filter(pa.array(kept))


def _kept(calls: Sequence[WriteCall], lengths: npt.NDArray[np.int64]) -> Bools | None:
    """Return the mask of rows to commit; None if all are."""
    if all(call.finite is None and not call.done for call in calls):
        return None
    kept = np.repeat(np.array([not call.done for call in calls]), lengths)
    for call, end in zip(calls, np.cumsum(lengths).tolist(), strict=True):
        if call.finite is not None:
            kept[end - len(call.loss) : end] &= call.finite
    return kept


def _joined(arrays: Sequence[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
