"""Steps that partials share: the same values, from columns of the source alone."""

from __future__ import annotations

import random

from paimon_features.core.expressions import substitute, to_flink
from paimon_features.core.types.schema import Float64, Int64, String
from paimon_features.definitions import Entity, EventSource, FeatureView
from paimon_features.definitions.aggregates import ApproxCountDistinct, Count, Kurtosis, Sum
from paimon_features.testing.sizes import every_seed
from paimon_features.tiles.flink.common_expressions import STEP, shared_steps
from paimon_features.tiles.flink.tiling import EventsScan, tile_statements
from tests.generators import random_view

SOURCE = EventSource(
    "shop", schema={"user": Int64, "t": Int64, "x": Float64, "word": String}, event_time="t"
)
USER = Entity("user", keys={"user": Int64})


@every_seed(40)
def test_inlined_steps_equal_the_original_expressions(seed: int) -> None:
    view = random_view(random.Random(seed)).compiled
    steps, rest = shared_steps(view.expressions)
    assert {name: substitute(e, steps) for name, e in rest.items()} == dict(view.expressions)
    for step in steps.values():
        assert not any(name.startswith(STEP) for name in step.columns)


def test_sums_and_counts_have_no_shared_steps() -> None:
    view = FeatureView("v", source=SOURCE, entity=USER, features=[Sum("x", scale=2), Count("word")])
    steps, rest = shared_steps(view.compiled.expressions)
    assert steps == {}
    assert rest == view.compiled.expressions


def test_repeated_expressions_of_sketches_and_moments_occur_once() -> None:
    features = [ApproxCountDistinct("word"), Kurtosis("x", scale=2)]
    view = FeatureView("v", source=SOURCE, entity=USER, features=features).compiled
    statements = tile_statements(view, 1, EventsScan(1), "user")
    assert statements.tiles.count("MD5(") == statements.skipped.count("MD5(") == 1
    steps, _ = shared_steps(view.expressions)
    for name, step in steps.items():
        assert f"{to_flink(step)} AS `{name}`" in statements.tiles
        assert f"{to_flink(step)} AS `{name}`" in statements.skipped
    before = sum(len(to_flink(e)) for e in view.expressions.values())
    assert len(statements.tiles) < before / 1.5
