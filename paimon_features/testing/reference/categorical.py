"""Encoders of categories as loops: by their parameters, and target means of other rows.

Means are fractions until their last step; a category is looked for in a list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from paimon_features.testing.reference.numeric import Made, Row, missing
from paimon_features.transformers.murmur import hash_text

Smooth = float | str


def place(value: Any, among: Row) -> int:
    """Return where a value is among categories, -1 where it is not; null and NaN are None."""
    value = None if missing(value) else value
    return next((i for i, category in enumerate(among) if category == value), -1)


def one_hot(params: Mapping[str, Any], row: Row) -> Made:
    """Return the one-hot columns of a row."""
    out: list[float] = []
    failed = False
    for index, (value, among) in enumerate(zip(row, params["categories"], strict=True)):
        rare = infrequent(params, index)
        labels = [i for i in range(len(among)) if i not in rare] + (["rare"] if rare else [])
        at: Any = place(value, among)
        if at < 0:
            failed = failed or params["handle_unknown"] == "error"
            at = "rare" if params["handle_unknown"] == "infrequent_if_exist" else None
        elif at in rare:
            at = "rare"
        drop = params.get("drop")
        if drop == "first" or (drop == "if_binary" and len(labels) == 2):
            labels = labels[1:]
        out += [1.0 if label == at else 0.0 for label in labels]
    return out, failed


def infrequent(params: Mapping[str, Any], index: int) -> set[int]:
    """Return the places of the categories of a column that share one column."""
    least, most = params.get("min_frequency"), params.get("max_categories")
    if least is None and most is None:
        return set()
    counts = params["counts"][index]
    share = isinstance(least, float)
    need = 0 if least is None else least * (params["rows"] if share else 1)
    rare = {i for i, count in enumerate(counts) if count < need}
    if most is not None and len(counts) - len(rare) + 1 > most:
        by_count = sorted(range(len(counts)), key=lambda i: (counts[i], i))
        rare |= set(by_count[: len(counts) - (most - 1)])
    return rare


def frequency(params: Mapping[str, Any], row: Row) -> Made:
    """Return how often the categories of a row were seen."""
    out: list[float | None] = []
    failed = False
    for index, (value, among) in enumerate(zip(row, params["categories"], strict=True)):
        at = place(value, among)
        count = 0 if at < 0 else params["counts"][index][at]
        number = float(count) if params["output"] == "count" else count / max(params["rows"], 1)
        failed = failed or (at < 0 and params["handle_unknown"] == "error")
        out.append(None if at < 0 and params["handle_unknown"] == "null" else number)
    return out, failed


def hashing(params: Mapping[str, Any], row: Row) -> Made:
    """Return the places of the categories of a row."""
    out: list[float | None] = []
    failed = False
    size = params["n_features"]
    for value in row:
        vector = [0.0] * size
        index: float | None = None
        for category in value if isinstance(value, list) else [value]:
            if missing(category):
                continue
            if isinstance(category, float) and not category.is_integer():
                failed = True
                continue
            if isinstance(category, bool):
                text = "true" if category else "false"
            else:
                text = category if isinstance(category, str) else str(int(category))
            number = hash_text(text)
            index = float(abs(number) % size)
            vector[abs(number) % size] += -1.0 if number < 0 and params["alternate_sign"] else 1.0
        out += vector if params["output"] == "vector" else [index]
    return out, failed


def target(params: Mapping[str, Any], row: Row) -> Made:
    """Return the target means of the categories of a row."""
    classes = params["classes"]
    labels: list[Any] = [None]
    if classes is not None:
        labels = classes if len(classes) > 2 else [*classes[1:], None][:1]
    out: list[float] = []
    for index, (value, among) in enumerate(zip(row, params["categories"], strict=True)):
        at = place(value, among)
        for label in labels:
            count, total, apart = _moments(params["all"], classes, label)
            mean, variance = total / count, apart / count
            if at < 0:
                out.append(mean)
                continue
            moments = _moments(params["targets"][index][at], classes, label)
            out.append(smoothed(*moments, mean, variance, params["smooth"]))
    return out, False


def _moments(sums: Row, classes: Row | None, label: Any) -> tuple[int, float, float]:
    if classes is not None:
        count = sum(sums)
        ones = sums[classes.index(label)] if label in classes else 0
        return count, float(ones), ones * (count - ones) / count
    count, total, squares = sums[0], _sum(sums[1]), _sum(sums[2])
    return count, float(total), float(squares - total * total / count)


def _sum(text: str) -> Fraction:
    whole, _, power = text.partition("p")
    return Fraction(int(whole, 16)) * Fraction(2) ** int(power)


def smoothed(
    count: int, total: float, apart: float, mean: float, variance: float, smooth: Smooth
) -> float:
    """Return the mean of a category, drawn to that of all."""
    if isinstance(smooth, str):
        weight = variance * count
        if not count or not weight + apart / count:
            return mean
        share = weight / (weight + apart / count)
        return share * (total / count) + (1 - share) * mean
    return (total + smooth * mean) / (count + smooth) if count + smooth else mean


def mean_of(category: Any, others: Sequence[tuple[Any, float]], smooth: Smooth) -> float | None:
    """Return the encoding of a category by (category, target) of other rows; None without one."""
    if not others:
        return None
    mean, apart = _spread([Fraction(y) for _, y in others])
    targets = [Fraction(y) for other, y in others if other == category]
    if not targets:
        return float(mean)
    return smoothed(
        len(targets), float(sum(targets)), float(_spread(targets)[1]), float(mean),
        float(apart / len(others)), smooth,
    )  # fmt: skip


def _spread(values: Sequence[Fraction]) -> tuple[Fraction, Fraction]:
    mean = sum(values, Fraction(0)) / len(values)
    return mean, sum(((value - mean) ** 2 for value in values), Fraction(0))


def of_the_past(
    categories: Row,
    targets: Sequence[float | None],
    times: Sequence[int],
    delay_ms: int,
    smooth: Smooth,
) -> list[float | None]:
    """Return each row encoded by the rows whose targets were known at its time."""
    out = []
    for category, now in zip(categories, times, strict=True):
        rows = zip(categories, targets, times, strict=True)
        earlier = [(c, y) for c, y, t in rows if y is not None and t < now and t + delay_ms <= now]
        out.append(mean_of(category, earlier, smooth))
    return out
