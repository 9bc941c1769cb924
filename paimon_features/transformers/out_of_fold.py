"""Target means of other rows: of the other folds, or of the past.

Both encode the rows that a model is trained on. A row's own target, and targets that were not
known at its time, do not contribute to its encoding.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from paimon_features.core.errors import TransformError
from paimon_features.core.types.array_types import Floats, Ints

Smooth = float | str


def smoothed(
    counts: Floats, sums: Floats, apart: Floats, mean: Floats | float, variance: Floats | float,
    smooth: Smooth,
) -> Floats:  # fmt: skip
    """Return the encoding of categories: their means, shrunk towards the mean of all rows.

    ``apart`` are sums of squared distances from the category's mean. A number ``smooth`` counts as
    that many rows with the overall mean; ``'auto'`` weighs by the variances (Micci-Barreca 2001,
    equations 3 and 5, as in scikit-learn). A category without rows gets the overall mean.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        if smooth == "auto":
            share = variance * counts / (variance * counts + apart / counts)
            out = share * (sums / counts) + (1 - share) * mean
        else:
            assert isinstance(smooth, float)
            out = (sums + smooth * mean) / (counts + smooth)
        return np.where(np.isnan(out), mean, out)


def folds_of(
    rows: int, classes: Ints | None, folds: int, shuffle: bool, seed: int
) -> npt.NDArray[np.int64]:
    """Return the fold of each row: scikit-learn's ``KFold``; with classes ``StratifiedKFold``.

    Raises
    ------
    TransformError
        For fewer rows than folds, or if no class has as many rows as there are folds.
    """
    if rows < folds:
        raise TransformError(f"{rows} rows with a target cannot be split into cv={folds} folds")
    rng = np.random.RandomState(seed)
    if classes is None:
        order = np.arange(rows)
        if shuffle:
            rng.shuffle(order)
        out = np.empty(rows, np.int64)
        out[order] = np.arange(folds).repeat(
            [rows // folds + (k < rows % folds) for k in range(folds)]
        )
        return out
    # classes in order of first appearance
    _, first, inverse = np.unique(classes, return_index=True, return_inverse=True)
    class_codes = np.argsort(np.argsort(first))[inverse]
    sizes = np.bincount(class_codes)
    if (sizes < folds).all():
        raise TransformError(f"no class of the target has as many rows as cv={folds} folds")
    ordered = np.sort(class_codes)
    shares = np.array([np.bincount(ordered[k::folds], minlength=len(sizes)) for k in range(folds)])
    out = np.empty(rows, np.int64)
    for k in range(len(sizes)):
        chosen = np.arange(folds).repeat(shares[:, k])
        if shuffle:
            rng.shuffle(chosen)
        out[class_codes == k] = chosen
    return out


def of_other_folds(
    codes: Ints, size: int, target: Floats, folds: npt.NDArray[np.int64], smooth: Smooth
) -> Floats:
    """Encode each row by the targets of the other folds; ``codes`` are below ``size``."""
    out = np.empty(len(codes))
    for fold in range(int(folds.max()) + 1):
        train, test = folds != fold, folds == fold
        place, value = codes[train], target[train]
        counts = np.bincount(place, minlength=size).astype(np.float64)
        sums: Floats = np.bincount(place, value, size).astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            distance = value - (sums / counts)[place]
        apart: Floats = np.bincount(place, distance * distance, size).astype(np.float64)
        table = smoothed(counts, sums, apart, value.mean(), value.var(), smooth)
        out[test] = table[codes[test]]
    return out


def of_the_past(
    codes: Ints,
    target: Floats,
    has_target: npt.NDArray[np.bool_],
    times: npt.NDArray[np.int64],
    delay_ms: int,
    smooth: Smooth,
) -> Floats:
    """Encode each row by the targets that were known at its time; NaN if there was none.

    Row ``j`` counts for row ``i`` if it has a target and ``times[j] + delay_ms <= times[i]`` and
    ``times[j] < times[i]``: rows of equal times never affect each other. The overall mean and
    variance are also those of that time.
    """
    # targets before this time are known
    ends = times if delay_ms == 0 else times - delay_ms + 1
    out = np.full(len(codes), np.nan)
    if not has_target.any():
        return out
    # relative to the first target, so that sums of squares keep their digits
    centre = target[has_target][np.argmin(times[has_target])]
    count, total, square = _before(times[has_target], target[has_target] - centre, ends)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = centre + total / count
        variance = np.maximum(square / count - (total / count) ** 2, 0.0)
    for rows in _groups(codes):
        labelled_rows = rows[has_target[rows]]
        n, s, q = _before(times[labelled_rows], target[labelled_rows] - centre, ends[rows])
        apart = np.maximum(q - np.divide(s * s, n, out=np.zeros_like(s), where=n > 0), 0.0)
        out[rows] = smoothed(n, s + n * centre, apart, mean[rows], variance[rows], smooth)
    return out


def _before(
    times: npt.NDArray[np.int64], values: Floats, ends: npt.NDArray[np.int64]
) -> tuple[Floats, Floats, Floats]:
    """Return the number of values before each end, their sum, and their sum of squares."""
    order = np.argsort(times, kind="stable")
    values = values[order]
    place = np.searchsorted(times[order], ends, side="left")
    sums = np.concatenate([[0.0], np.cumsum(values)])
    squares = np.concatenate([[0.0], np.cumsum(values * values)])
    return place.astype(np.float64), sums[place], squares[place]


def _groups(codes: Ints) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the rows of each code."""
    order = np.argsort(codes, kind="stable")
    ends = np.flatnonzero(np.diff(codes[order])) + 1
    yield from np.split(order, ends)
