"""Columns named as words of the expression language are columns like others."""

from __future__ import annotations

from collections import Counter

import pytest

import paimon_features as pf
from paimon_features.core.errors import DefinitionError
from paimon_features.core.expressions import parse
from paimon_features.core.expressions.nodes import KEYWORDS
from paimon_features.core.types.schema import CONSTANTS, DataType
from paimon_features.definitions.aggregates.base import EVENT_TIME, TILE_END


def view_with(word: str, part: str) -> pf.FeatureView:
    """A view that has the word as its event time, key, value or condition."""
    names = {"event_time": "t", "key": "id", "value": "x", "where": "y", part: word}
    schema: dict[str, DataType] = {
        names["event_time"]: pf.Int64, names["key"]: pf.Int64,
        names["value"]: pf.Float64, names["where"]: pf.Float64,
    }  # fmt: skip
    value = names["value"]
    return pf.FeatureView(
        "v",
        source=pf.EventSource("e", schema=schema, event_time=names["event_time"]),
        entity=pf.Entity("u", keys={names["key"]: pf.Int64}),
        features=[
            pf.Count(windows=["1d"], where=f"{names['where']} > 1", name="some"),
            *(each(value, windows=["1d"]) for each in (pf.Sum, pf.Mean, pf.Max, pf.StdDev)),
            *(each(value, windows=["1d"]) for each in (pf.Last, pf.ApproxCountDistinct)),
            pf.LastN(value, n=3, windows=["1d"]),
            pf.DecayedSum(value, half_life="1d", windows=["1d"]),
        ],
    )


def texts_of(view: pf.FeatureView) -> list[str]:
    """The expressions that are computed of an event, in their canonical form."""
    scope = {**view.source.schema, EVENT_TIME: pf.Int64, TILE_END: pf.Int64}
    compiled = view.compiled
    found = [parse(partial.expression, scope).text for partial in compiled.partials]
    return found + [rule.condition.text for rule in compiled.skip_rules]


@pytest.mark.parametrize("part", ["event_time", "key", "value", "where"])
def test_a_keyword_names_a_column(part: str) -> None:
    for word in KEYWORDS:
        if word in CONSTANTS:
            with pytest.raises(DefinitionError, match="constant in expressions"):
                view_with(word, part)
            continue
        plain, own = (texts_of(view_with(name, part)) for name in ("w", word))
        # partials are ordered by their names, which contain the word
        assert Counter(text.replace(f'"{word}"', "w") for text in own) == Counter(plain)
