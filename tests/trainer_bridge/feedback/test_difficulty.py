"""Difficulty: what the view holds of a sample's feedback, and the scores made from it."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.errors import ConfigurationError, RequestError, UnknownNameError
from paimon_features.core.types.schema import Int64, String
from paimon_features.definitions import FeatureRef, FeedbackSource
from paimon_features.lake.catalog import Lake
from paimon_features.lake.reading.table_reader import read_arrow
from paimon_features.offline.store import OfflineStore
from paimon_features.testing.reference.tiler import event_rows
from tests.tile_lake import TileLake
from trainer_bridge.feedback.difficulty import (
    FEATURES,
    difficulty_view,
    read_difficulty,
    scores_from_features,
)
from trainer_bridge.feedback.writer import FeedbackWriter

DAY = 86_400_000
SOURCE = FeedbackSource("churn", sample_keys={"customer_id": Int64})


def test_the_view_is_keyed_by_the_sample_and_needs_no_window() -> None:
    view = difficulty_view(SOURCE, half_life="3d")
    assert tuple(feature.name for feature in view.compiled.features) == FEATURES
    assert dict(view.entity.keys) == {"customer_id": Int64}
    assert view.source.table == "feedback_churn"
    assert {feature.window_ms for feature in view.compiled.features} == {None}
    assert difficulty_view(SOURCE, name="hard").name == "hard"


def naive_scores(
    seen: dict[Any, tuple[float, int]],
    order: Sequence[Any],
    as_of_ms: int,
    half: int,
    quantile: float,
) -> list[float]:
    """The scores in plain loops."""
    if not seen:
        return [1.0] * len(order)
    mean = statistics.fmean(loss for loss, _ in seen.values())
    faded = {
        key: mean + (loss - mean) * 2 ** (-(as_of_ms - at) / half)
        for key, (loss, at) in seen.items()
    }
    ordered = sorted(faded.values())
    place = quantile * (len(ordered) - 1)
    low = ordered[math.floor(place)]
    unseen = low + (ordered[math.ceil(place)] - low) * (place - math.floor(place))
    return [faded.get(key, unseen) for key in order]


@given(
    losses=st.lists(st.floats(0, 100), max_size=12),
    order=st.lists(st.integers(0, 15), min_size=1, max_size=30),
    quantile=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_scores_are_the_naive_ones_in_the_order_of_the_samples(
    losses: list[float], order: list[int], quantile: float, seed: int
) -> None:
    dice = random.Random(seed)
    seen = {key: (loss, dice.randrange(-5 * DAY, 9 * DAY)) for key, loss in enumerate(losses)}
    shown = list(seen)
    dice.shuffle(shown)
    table = pa.table(
        {
            "a": pa.array([key % 4 for key in shown] + [99], pa.int64()),
            "b": pa.array([str(key // 4) for key in shown] + ["never seen"]),
            "loss_decayed": pa.array([seen[key][0] for key in shown] + [None], pa.float64()),
            "last_seen_ms": pa.array([seen[key][1] for key in shown] + [None], pa.int64()),
        }
    )
    samples = pa.table({"b": [str(k // 4) for k in order], "a": [k % 4 for k in order]})
    found = scores_from_features(
        table, ["a", "b"], samples, as_of_ms=9 * DAY, half_life="2d", unseen_quantile=quantile
    )
    wanted = naive_scores(seen, order, 9 * DAY, 2 * DAY, quantile)
    assert np.allclose(found, wanted, rtol=1e-9, atol=1e-9)


def test_an_old_score_fades_into_the_mean_with_its_half_life() -> None:
    table = pa.table({"id": [1, 2], "loss_decayed": [0.0, 4.0], "last_seen_ms": [0, 0]})
    samples = pa.table({"id": [1, 2]})

    def at(as_of_ms: int) -> list[float]:
        found = scores_from_features(table, ["id"], samples, as_of_ms=as_of_ms, half_life="1d")
        return [round(score, 6) for score in found.tolist()]

    assert at(DAY) == [1.0, 3.0]
    assert at(2 * DAY) == [1.5, 2.5]
    assert at(1_000 * DAY) == [2.0, 2.0]


def test_scores_are_refused_where_they_would_be_wrong() -> None:
    samples = pa.table({"id": [1]})
    twice = pa.table({"id": [1, 1], "loss_decayed": [0.0, 4.0], "last_seen_ms": [0, 0]})
    with pytest.raises(RequestError, match=r"a sample \(id\) is duplicated"):
        scores_from_features(twice, ["id"], samples, as_of_ms=5)
    late = pa.table({"id": [1], "loss_decayed": [0.0], "last_seen_ms": [7]})
    with pytest.raises(RequestError, match="seen 2 ms after as_of_ms=5"):
        scores_from_features(late, ["id"], samples, as_of_ms=5)
    with pytest.raises(ConfigurationError, match="expected 0 to 1"):
        scores_from_features(late, ["id"], samples, as_of_ms=8, unseen_quantile=2)
    with pytest.raises(UnknownNameError, match="unknown difficulty feature 'loss_decayed'"):
        scores_from_features(pa.table({"id": [1]}), ["id"], samples, as_of_ms=8)


class Project:
    """The part of a project that difficulty is read through, over tiles made by the naive job."""

    def __init__(self, tiles: TileLake) -> None:
        self.offline = OfflineStore(tiles.lake, lambda _: tiles.compiled, lambda _: tiles.record)

    def refs(self, features: list[str]) -> list[FeatureRef]:
        return [FeatureRef.parse(text) for text in features]


def test_scores_come_from_the_feedback_that_was_written(tmp_path: Path) -> None:
    #  time     day 0         day 1         day 2 = q
    #  run       #1 #1 #2      #2  #3        |            #4 is never shown
    view = difficulty_view(SOURCE, half_life="1d")
    tiles = TileLake(tmp_path, view)
    clock = iter([DAY // 2, DAY // 2 + 60_000, DAY + 1, 2 * DAY])
    shown = [
        ([1, 2], [4.0, 1.0], [True, True]),
        ([1], [2.0], [False]),
        ([2, 3], [1.0, 9.0], [False, False]),
        ([3], [100.0], [True]),  # at q: not in
    ]
    with FeedbackWriter(tiles.lake, SOURCE, run_id="run", clock_ms=lambda: next(clock)) as writer:
        for step, (ids, losses, right) in enumerate(shown):
            writer.write({"customer_id": ids}, losses, step, right)
    feedback = read_arrow(tiles.lake, SOURCE.table)
    snapshot_id = tiles.commit(event_rows(feedback))

    samples = pa.table({"customer_id": [3, 1, 4, 2, 1]})
    found = read_difficulty(Project(tiles), view, samples, 2 * DAY)
    assert found.snapshot_id == snapshot_id
    rows = {row["customer_id"]: row for row in found.features.to_pylist()}
    assert {key: row["presentations"] for key, row in rows.items() if row["presentations"]} == {
        1: 2,
        2: 2,
        3: 1,
    }
    assert (rows[1]["forgotten"], rows[2]["forgotten"], rows[3]["forgotten"]) == (1, 1, 0)
    assert (rows[1]["last_step"], rows[3]["last_step"]) == (1, 2)
    assert rows[3]["last_seen_ms"] == DAY + 1
    assert rows[1]["loss_mean"] == 3.0
    assert rows[1]["loss_variance"] == pytest.approx(1.0)
    weights = [2 ** ((at - 2 * DAY) / DAY) for at in (DAY // 2, DAY // 2 + 60_000)]
    decayed = (4 * weights[0] + 2 * weights[1]) / sum(weights)
    assert rows[1]["loss_decayed"] == pytest.approx(decayed, rel=1e-12)
    wanted = naive_scores(
        {1: (decayed, DAY // 2 + 60_000), 2: (1.0, DAY + 1), 3: (9.0, DAY + 1)},
        [3, 1, 4, 2, 1],
        2 * DAY,
        DAY,
        0.75,
    )
    assert np.allclose(found.scores(half_life="1d"), wanted, rtol=1e-12)


def test_the_same_commits_in_any_order_give_the_same_scores(tmp_path: Path) -> None:
    view, dice = difficulty_view(SOURCE), random.Random(3)
    with FeedbackWriter(
        Lake.open(tmp_path, "features"), SOURCE, run_id="run", clock_ms=lambda: dice.randrange(DAY)
    ) as writer:
        for step in range(20):
            # multiples of 1/4 add up exactly in any order, decayed ones to the last bits
            losses = [dice.randrange(40) / 4 for _ in range(5)]
            writer.write({"customer_id": dice.sample(range(12), 5)}, losses, step)
    feedback = event_rows(read_arrow(writer.lake, SOURCE.table))
    found = []
    for number in range(3):
        tiles = TileLake(tmp_path, view)
        tiles.new_generation(2 + number)
        dice.shuffle(feedback)
        for start in range(0, len(feedback), 17):
            tiles.commit(feedback[start : start + 17])
        samples = pa.table({"customer_id": list(range(14))})
        found.append(read_difficulty(Project(tiles), view, samples, DAY).scores())
        tiles.lake.drop(tiles.record.table)
        tiles.lake.drop(view.compiled.table(1))
    assert np.allclose(found[0], found[1], rtol=1e-12)
    assert np.allclose(found[0], found[2], rtol=1e-12)


def test_keys_of_other_types_are_cast_to_those_of_the_features() -> None:
    table = pa.table({"id": ["1"], "loss_decayed": [2.0], "last_seen_ms": [0]})
    samples = pa.table({"id": [1]})
    assert scores_from_features(table, ["id"], samples, as_of_ms=1).tolist() == [2.0]
    view = difficulty_view(FeedbackSource("texts", sample_keys={"id": String}))
    assert dict(view.entity.keys) == {"id": String}
