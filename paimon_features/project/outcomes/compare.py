"""Two versions of a model compared by the outcomes of their predictions.

A *shadow* predicts for the same requests as the version that answers: losses are compared in pairs,
row by row. Where traffic is *split*, each entity has one version, and mean losses are compared.
Either way an entity counts as one observation, and the looks share the error (see ``looks``), so
the comparison may be repeated at any time, and ended as soon as it has decided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.errors import RequestError
from paimon_features.core.types.array_types import Bools, Floats, Ints
from paimon_features.core.windows import DAY_MS
from paimon_features.lake import read_arrow
from paimon_features.lake.specs import OUTCOMES_PREFIX, SERVED_DAY
from paimon_features.models import Metric, ModelStates
from paimon_features.models.metrics import CalibrationBin, auc, calibration_curve
from paimon_features.project import Project
from paimon_features.project.outcomes.join import counted_once
from paimon_features.project.outcomes.looks import Stream, look_rows, paired_looks, split_looks
from paimon_features.project.outcomes.losses import OutcomeLoss, losses_of
from paimon_features.project.outcomes.sample_ratio import SampleRatio

ALPHA = 0.05
METHOD = "by entity, looks share the error"
Design = Literal["pairs", "split"]
_COLUMNS = (
    "version", "role", "prediction", "label", "entity", "event_time_ms", "matured_at_ms",
    "request_id", "worker", "served_at_ms", "number", "row",
)  # fmt: skip
_REQUEST = ("request_id", "worker", "served_at_ms", "number", "row")
_ANSWERS = ("production", "challenger")


@dataclass(frozen=True)
class LossComparison:
    """A loss of two versions.

    ``difference`` is that of the first less that of the second, estimated; positive: the second
    is better. By the last look it is in [``low``, ``high``], with the confidence of the comparison
    for all looks at once; None: too few entities are known. ``lift`` is the difference over the
    first one's loss. ``decided_after`` is after how many rows the interval excluded zero first,
    None if it never did; ``path`` has (rows, low, high) of each look.
    """

    metric: str
    first: float
    second: float
    difference: float
    low: float | None
    high: float | None
    lift: float | None
    method: str
    decided_after: int | None
    path: tuple[tuple[int, float, float], ...]


@dataclass(frozen=True)
class DayOfVersion:
    """The mature predictions of a version on a day (UTC): their mean, and that of the labels."""

    day: str
    version: int
    rows: int
    predicted: float
    observed: float


@dataclass(frozen=True)
class VersionComparison:
    """What is known of two versions.

    ``winner`` is the version with the smaller loss, by the first of ``losses``; None: undecided.
    Of the mature predictions, ``first_rows`` and ``second_rows`` are compared; ``repeated`` ones
    of an entity whose window overlaps that of an earlier one do not count, since an outcome must
    not count twice. ``unpaired`` ones have no counterpart. Of two streams, ``outside`` are those
    that the split has not assigned while both versions answered: from before or after, of a shadow,
    of further entities of a request. ``auc`` is by version, with an interval for one look.
    ``sample_ratio`` compares how many entities had each version with the shares of the split, None
    where these are not known. Where they do not agree there is no ``winner``: which entities had a
    version was not left to chance.
    """

    model: str
    first: int
    second: int
    design: Design
    alpha: float
    winner: int | None
    first_rows: int
    second_rows: int
    repeated: int
    unpaired: int
    outside: int
    since_ms: int
    until_ms: int
    losses: tuple[LossComparison, ...]
    auc: dict[int, Metric]
    calibration: dict[int, tuple[CalibrationBin, ...]]
    days: tuple[DayOfVersion, ...]
    sample_ratio: SampleRatio | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the comparison in JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class _Rows:
    """Mature predictions of a version, in the order of their time."""

    entities: Ints
    times: Ints
    requests: Ints
    predictions: Floats
    labels: Floats
    answers: Bools

    def __len__(self) -> int:
        return len(self.times)

    @property
    def stream(self) -> Stream:
        return Stream(self.entities, self.labels, self.predictions)

    def take(self, chosen: Ints | Bools) -> _Rows:
        return _Rows(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))


def compare_versions(
    project: Project,
    model: str,
    first: int | None = None,
    second: int | None = None,
    *,
    metric: str | None = None,
    alpha: float = ALPHA,
    since_ms: int = 0,
    until_ms: int = 2**62,
) -> VersionComparison:
    """Compare two versions by the table ``outcomes_<model>``.

    By default the version in production and the newest challenger, or else shadow. Predictions
    count that were served from ``since_ms`` to ``until_ms`` (exclusive).

    Raises
    ------
    RequestError
        If there are no such versions, or no outcomes of one of them.
    UnknownNameError
        If there is no such model or version.
    """
    if not 0 < alpha < 1:
        raise RequestError(f"alpha {alpha}; expected a probability between 0 and 1, such as 0.05")
    numbers = _versions(project, model, first, second)
    task = project.models.manifest(model, numbers[0]).signature.task
    losses = losses_of(task, metric)
    table = outcomes_table(project, model)
    rows, horizon_ms = _rows(project, table, numbers, since_ms, until_ms)
    for number, version_rows in zip(numbers, rows, strict=True):
        if not len(version_rows):
            raise RequestError(
                f"table {table!r} has no outcomes of version {number} in this time; 'models "
                f"outcomes {model}' records those of mature predictions"
            )
    if task == "binary" and any(((r.labels < 0) | (r.labels > 1)).any() for r in rows):
        raise RequestError(
            f"table {table!r} has labels beyond 0 and 1, and model {model!r} predicts "
            "probabilities: record outcomes with such a label, for instance 'amount > 0'"
        )
    days = tuple(
        day
        for number, version_rows in zip(numbers, rows, strict=True)
        for day in _by_day(number, version_rows)
    )
    chosen = _ChosenRows.of(rows, horizon_ms)
    compared = tuple(_compared(loss, chosen, alpha) for loss in losses)
    deciding, winner = compared[0], None
    if deciding.low is not None and deciding.low > 0:
        winner = numbers[1]
    elif deciding.high is not None and deciding.high < 0:
        winner = numbers[0]
    ratio = None
    if chosen.design == "split":
        ratio = _sample_ratio(project.models.states(model), numbers, chosen)
        if ratio is not None and ratio.is_mismatch:
            winner = None
    scores: dict[int, Metric] = {}
    curves: dict[int, tuple[CalibrationBin, ...]] = {}
    for number, stream in zip(numbers, (chosen.first, chosen.second), strict=True):
        if task != "binary":
            continue
        curves[number] = tuple(calibration_curve(stream.labels, stream.predictions))
        if 0 < (stream.labels > 0.5).sum() < len(stream):
            scores[number] = auc(stream.labels, stream.predictions, stream.entities)
    times = np.concatenate([chosen.first.times, chosen.second.times])
    return VersionComparison(
        model, *numbers, chosen.design, alpha, winner, len(chosen.first), len(chosen.second),
        chosen.repeated, chosen.unpaired, chosen.outside, int(times.min()), int(times.max()),
        compared, scores, curves, days, ratio,
    )  # fmt: skip


def outcomes_table(project: Project, model: str) -> str:
    """Return the table of a model's outcomes; RequestError if there is none yet."""
    table = OUTCOMES_PREFIX + model
    if not project.lake.exists(table):
        raise RequestError(
            f"no outcomes of model {model!r} were recorded yet; 'paimon-features models outcomes "
            f"{model}' does that"
        )
    return table


def _versions(
    project: Project, model: str, first: int | None, second: int | None
) -> tuple[int, int]:
    states = project.models.states(model)
    for number in (first, second):
        if number is not None:
            states.of(number)
    if first is None:
        first = None if states.production is None else states.production.version
    if second is None:
        others = [
            version.version
            for state in ("challenger", "shadow")
            for version in reversed(states.versions)
            if version.state == state and version.version != first
        ]
        second = others[0] if others else None
    if first is None or second is None or first == second:
        existing = ", ".join(f"{version.version} ({version.state})" for version in states.versions)
        raise RequestError(
            f"model {model!r}: name two versions to compare; without, it is production with a "
            f"challenger or shadow. There are: {existing}"
        )
    return first, second


def _rows(
    project: Project, table: str, numbers: Sequence[int], since_ms: int, until_ms: int
) -> tuple[list[_Rows], int]:
    """Return the rows of each version, and the longest time that an outcome may take."""
    days = {SERVED_DAY: (since_ms // DAY_MS, min(until_ms // DAY_MS + 1, 2**31 - 1))}
    rows = read_arrow(project.lake, table, list(_COLUMNS), partitions=days)
    served, version = rows.column("served_at_ms"), rows.column("version")
    mask = pc.and_(pc.greater_equal(served, since_ms), pc.less(served, until_ms))
    mask = pc.and_(mask, pc.is_in(version, pa.array(numbers, pa.int32())))
    # the entities that a client requests of a version by its number are no random choice
    mask = pc.and_(mask, pc.not_equal(rows.column("role"), "requested"))
    rows = rows.filter(mask)
    rows = rows.sort_by([(name, "ascending") for name in ("event_time_ms", *_REQUEST)])
    request = pc.binary_join_element_wise(
        *(rows.column(name).cast(pa.string()) for name in _REQUEST), " "
    )
    every = _Rows(
        _codes(rows.column("entity")),
        rows.column("event_time_ms").to_numpy(),
        _codes(request),
        rows.column("prediction").to_numpy(),
        rows.column("label").to_numpy(),
        # the split has assigned the first entity of a request, and the others have followed it
        pc.and_(
            pc.is_in(rows.column("role"), pa.array(_ANSWERS)), pc.equal(rows.column("row"), 0)
        ).to_numpy(),
    )
    waits = pc.max(pc.subtract(rows.column("matured_at_ms"), rows.column("event_time_ms"))).as_py()
    versions = rows.column("version").to_numpy()
    return [every.take(versions == number) for number in numbers], waits or 0


def _codes(column: pa.ChunkedArray) -> Ints:
    if not len(column):
        return np.zeros(0, np.int64)
    codes: Ints = column.combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
    return codes


@dataclass(frozen=True)
class _ChosenRows:
    """The rows that are compared: pairs row by row, or two streams."""

    design: Design
    first: _Rows
    second: _Rows
    repeated: int
    unpaired: int
    outside: int

    @classmethod
    def of(cls, rows: Sequence[_Rows], horizon_ms: int) -> _ChosenRows:
        first, second = rows
        _, at, other_at = np.intersect1d(first.requests, second.requests, return_indices=True)
        answers = [version_rows.take(version_rows.answers) for version_rows in rows]
        # a version that was a shadow first and then a challenger has both
        if len(at) and len(at) >= min(map(len, answers)):
            order = np.argsort(at)  # rows are in the order of time
            pairs = first.take(at[order]), second.take(other_at[order])
            counts = counted_once(pairs[0].entities, pairs[0].times, horizon_ms)
            return cls(
                "pairs",
                pairs[0].take(counts),
                pairs[1].take(counts),
                int((~counts).sum()),
                len(first) + len(second) - 2 * len(at),
                0,
            )
        begin = max((int(answer.times[0]) for answer in answers if len(answer)), default=0)
        end = min((int(answer.times[-1]) for answer in answers if len(answer)), default=0)
        streams, repeated = [], 0
        for answer in answers:
            answer = answer.take((answer.times >= begin) & (answer.times <= end))
            counts = counted_once(answer.entities, answer.times, horizon_ms)
            repeated += int((~counts).sum())
            streams.append(answer.take(counts))
        if not all(map(len, streams)):
            raise RequestError(
                "the two versions have no time in common in which both predicted for the same "
                "requests (a shadow) or both answered (a split); there is nothing to compare"
            )
        outside = len(first) + len(second) - repeated - sum(map(len, streams))
        return cls("split", streams[0], streams[1], repeated, 0, outside)


def _compared(loss: OutcomeLoss, chosen: _ChosenRows, alpha: float) -> LossComparison:
    first, second = chosen.first.stream, chosen.second.stream
    if chosen.design == "pairs":
        looks = paired_looks(loss, first, second, alpha)
    else:
        ends = ends_of_looks(chosen.first.times, chosen.second.times)
        looks = split_looks(loss, first, second, ends, alpha)
    finite = [look for look in looks if math.isfinite(look.low)]
    base, other = (
        float(loss.of(stream.labels, stream.predictions).mean()) for stream in (first, second)
    )
    difference = base - other
    return LossComparison(
        loss.name,
        base,
        other,
        difference,
        finite[-1].low if finite else None,
        finite[-1].high if finite else None,
        difference / base if base else None,
        METHOD,
        next((look.rows for look in finite if look.excludes(0.0)), None),
        tuple((look.rows, look.low, look.high) for look in finite),
    )


def ends_of_looks(times: Ints, other_times: Ints) -> list[tuple[int, int]]:
    """Return how many rows of each stream there are at each look, in the order of their times."""
    is_second = np.repeat([False, True], [len(times), len(other_times)])
    order = np.argsort(np.concatenate([times, other_times]), kind="stable")
    seconds = np.cumsum(is_second[order])
    ends = [(rows, int(seconds[rows - 1])) for rows in look_rows(len(order))]
    return [(rows - second, second) for rows, second in ends]


def _sample_ratio(
    states: ModelStates, numbers: tuple[int, int], chosen: _ChosenRows
) -> SampleRatio | None:
    """Return the entities since the shares are what they are; None for versions without a share."""
    shares = [version.traffic for number in numbers for version in states.serving
              if version.version == number]  # fmt: skip
    counts = [
        len(np.unique(stream.entities[stream.times >= states.changed_at_ms]))
        for stream in (chosen.first, chosen.second)
    ]
    if len(shares) < 2 or not all(shares) or not any(counts):
        return None
    return SampleRatio.of((counts[0], counts[1]), shares[1] / sum(shares))


def _by_day(number: int, rows: _Rows) -> list[DayOfVersion]:
    days = rows.times // DAY_MS
    out = []
    for day in np.unique(days).tolist():
        day_rows = rows.take(days == day)
        out.append(
            DayOfVersion(
                str(np.datetime64(day, "D")), number, len(day_rows),
                float(day_rows.predictions.mean()), float(day_rows.labels.mean()),
            )
        )  # fmt: skip
    return out
