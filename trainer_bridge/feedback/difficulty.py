"""Sample difficulty: a feature view over the feedback, and scores for samplers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from paimon_features.core.columns.column import one_array
from paimon_features.core.errors import ConfigurationError, RequestError, UnknownNameError
from paimon_features.core.times.utc_ms import conform
from paimon_features.core.types.array_types import Floats
from paimon_features.core.types.schema import DataType
from paimon_features.core.windows import parse_duration
from paimon_features.definitions import Entity, FeatureView, FeedbackSource
from paimon_features.definitions.aggregates import (
    Count,
    DecayedMean,
    Last,
    Max,
    Mean,
    Sum,
    Variance,
)
from paimon_features.offline.reading.pinning import AsOf, Pin

PRESENTATIONS = "presentations"
LOSS = "loss_decayed"
LOSS_SQUARE = "loss_square_decayed"
LOSS_MEAN = "loss_mean"
LOSS_VARIANCE = "loss_variance"
LAST_STEP = "last_step"
LAST_SEEN_MS = "last_seen_ms"
FORGOTTEN = "forgotten"

FEATURES = (
    PRESENTATIONS,
    LOSS,
    LOSS_SQUARE,
    LOSS_MEAN,
    LOSS_VARIANCE,
    LAST_STEP,
    LAST_SEEN_MS,
    FORGOTTEN,
)


class _Project(Protocol):
    """The part of ``paimon_features.Project`` that is used."""

    def refs(self, features: Any) -> Any: ...

    @property
    def offline(self) -> Any: ...


@dataclass(frozen=True)
class Difficulty:
    """The difficulty of samples at one time.

    Attributes
    ----------
    samples
        The sample keys as passed, one row per sample.
    features
        Each distinct sample once, with the features of :func:`difficulty_view`; null for a
        sample never seen.
    as_of_ms
        The as-of time: events before it are included.
    snapshot_id
        Snapshot of the tile table that was read, to be recorded in a sampler's state; None if
        nothing was committed yet.
    pins
        All snapshots that were read; pass as ``as_of`` to repeat the read.
    """

    samples: pa.Table
    features: pa.Table
    as_of_ms: int
    snapshot_id: int | None
    pins: tuple[Pin, ...] = ()

    def scores(self, *, half_life: str = "7d", unseen_quantile: float = 0.75) -> Floats:
        """Return one score per row of ``samples``; see :func:`scores_from_features`."""
        return scores_from_features(
            self.features,
            self.samples.column_names,
            self.samples,
            as_of_ms=self.as_of_ms,
            half_life=half_life,
            unseen_quantile=unseen_quantile,
        )


def difficulty_view(
    loop: FeedbackSource,
    sample_keys: Mapping[str, DataType] | None = None,
    half_life: str = "7d",
    *,
    name: str | None = None,
    tile: str = "5min",
    loss_center: float = 0.0,
    max_staleness: str | None = None,
) -> FeatureView:
    """Define sample difficulty as a feature view over the feedback of a training loop.

    All features cover the complete history: ``presentations``, the decayed mean of the loss
    and of its square (``half_life`` in event time; together they define the decayed variance),
    the plain mean and variance, the last step and event time, and how often the sample was
    ``forgotten``. ``loss_center`` is a typical loss, for numerical accuracy (see Variance).

    >>> from paimon_features.core.types.schema import Int64
    >>> view = difficulty_view(FeedbackSource("churn", sample_keys={"customer_id": Int64}))
    >>> view.name, [feature.name for feature in view.compiled.features][:2]
    ('churn_difficulty', ['presentations', 'loss_decayed'])
    """
    keys = dict(loop.sample_keys if sample_keys is None else sample_keys)
    return FeatureView(
        name or f"{loop.name}_difficulty",
        source=loop,
        entity=Entity(f"{loop.name}_sample", keys=keys),
        tile=tile,
        derive={
            "loss_square": "loss * loss",
            "forgot_number": "CASE WHEN forgot THEN 1 ELSE 0 END",
        },
        features=[
            Count(name=PRESENTATIONS),
            DecayedMean("loss", half_life=half_life, name=LOSS),
            DecayedMean("loss_square", half_life=half_life, name=LOSS_SQUARE),
            Mean("loss", name=LOSS_MEAN),
            Variance("loss", center=loss_center, name=LOSS_VARIANCE),
            Last("step", name=LAST_STEP),
            Max("event_time_ms", name=LAST_SEEN_MS),
            Sum("forgot_number", name=FORGOTTEN),
        ],
        max_staleness=max_staleness,
        description=f"How hard each sample of the loop {loop.name!r} is for its model.",
    )


def read_difficulty(
    project: _Project,
    view: FeatureView | str,
    samples: pa.Table,
    as_of_ms: int,
    *,
    as_of: AsOf = None,
) -> Difficulty:
    """Read the difficulty of samples at ``as_of_ms``, from the offline store.

    ``samples`` contains exactly the sample keys, in the order of the row numbers (as returned
    by ``reader.read_columns``). Reads of the same snapshots are bit-identical; ``as_of`` limits
    the read to what had been committed by a time (UTC ms), or pins the snapshots (the ``pins``
    of an earlier read), so that runs are reproducible.

    Raises
    ------
    UnknownNameError, GenerationError, SnapshotExpiredError
        If the view is not defined or applied, or its snapshot at that time has expired.
    """
    name = view if isinstance(view, str) else view.name
    refs = project.refs([f"{name}:{feature}" for feature in FEATURES])
    pinned = project.offline.pin(refs, as_of=as_of, repeatable=True)
    once = samples.group_by(samples.column_names).aggregate([])
    times = pa.repeat(pa.scalar(as_of_ms, pa.int64()), once.num_rows)
    features = pinned.read(once.append_column("event_time_ms", times))
    return Difficulty(samples, features, as_of_ms, pinned.pins[0].snapshot_id, pinned.pins)


def scores_from_features(
    table: pa.Table,
    sample_keys: Sequence[str],
    order_of_samples: pa.Table,
    *,
    as_of_ms: int,
    half_life: str = "7d",
    unseen_quantile: float = 0.75,
) -> Floats:
    """Return one score per sample, for sampling the next epoch.

    The score of a sample is its decayed mean loss. With age it decays towards the mean ``mu``
    of all samples seen: ``mu + (score - mu) * 2 ** (-(as_of_ms - last_seen_ms) / half_life)``.
    A sample never seen gets the ``unseen_quantile`` of these scores, or 1 if none was seen.

    Parameters
    ----------
    table
        Key columns and the features ``loss_decayed`` and ``last_seen_ms``, as in
        :class:`Difficulty`; each sample at most once.
    sample_keys
        Names of the key columns.
    order_of_samples
        Keys of all samples in the order of their row numbers in ``SnapshotReader``; samples may
        be repeated.
    as_of_ms
        The as-of time, from which ages are computed.

    Returns
    -------
    Float64 array of shape ``(rows of order_of_samples,)``.

    Raises
    ------
    RequestError
        If the table has a duplicate sample, or one seen at or after ``as_of_ms``.

    Examples
    --------
    >>> seen = pa.table({"id": [1, 2], "loss_decayed": [4.0, 2.0], "last_seen_ms": [0, 0]})
    >>> day = 86_400_000
    >>> scores_from_features(
    ...     seen, ["id"], pa.table({"id": [2, 1, 9]}), as_of_ms=day, half_life="1d"
    ... ).tolist()
    [2.5, 3.5, 3.25]
    """
    if not 0 <= unseen_quantile <= 1:
        raise ConfigurationError(f"unseen_quantile={unseen_quantile}: expected 0 to 1")
    keys = list(sample_keys)
    for name in (*keys, LOSS, LAST_SEEN_MS):
        if name not in table.column_names:
            raise UnknownNameError.of("difficulty feature", name, table.column_names)
    aggregated = pa.table(
        {
            **{key: table.column(key) for key in keys},
            "__loss": table.column(LOSS).cast(pa.float64()),
            "__seen": table.column(LAST_SEEN_MS).cast(pa.int64()),
        }
    ).filter(table.column(LOSS).is_valid())
    if aggregated.group_by(keys).aggregate([]).num_rows != aggregated.num_rows:
        raise RequestError(f"a sample ({', '.join(keys)}) is duplicated in the difficulty features")
    losses = aggregated.column("__loss").to_numpy()
    ages = as_of_ms - aggregated.column("__seen").to_numpy()
    if len(ages) and ages.min() <= 0:
        raise RequestError(
            f"a sample was seen {-int(ages.min())} ms after as_of_ms={as_of_ms} or at "
            "that very time; "
            "features at as_of_ms hold what was before it"
        )
    mean = float(losses.mean()) if len(losses) else 1.0
    faded = mean + (losses - mean) * np.exp2(-ages / parse_duration(half_life))
    unseen = float(np.quantile(faded, unseen_quantile)) if len(faded) else 1.0
    scored = aggregated.select(keys).append_column("__score", pa.array(faded))
    numbers = pa.array(np.arange(order_of_samples.num_rows))
    kinds = [scored.schema.field(key).type for key in keys]
    wanted = pa.table(
        {
            **{
                key: conform(one_array(order_of_samples.column(key)), kind, event_time=True)
                for key, kind in zip(keys, kinds, strict=True)
            },
            "__row": numbers,
        }
    )
    # Arrow's join does not preserve the order
    joined = wanted.join(scored, keys, join_type="left outer").sort_by("__row")
    return joined.column("__score").fill_null(unseen).to_numpy()
