"""Interactions and request sources as they are defined: names, types, circles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paimon_features.core.errors import DefinitionError, UnknownNameError
from paimon_features.core.types.schema import Bool, Bytes, Float64, Int64, List, String
from paimon_features.definitions import (
    Definitions,
    Entity,
    EventSource,
    FeatureService,
    FeatureView,
    Interaction,
    RequestSource,
    load_definitions,
)
from paimon_features.definitions.aggregates import Count, Last, Sum

SHOP = EventSource(
    "shop",
    schema={"user_id": Int64, "product": String, "t": Int64, "amount": Float64},
    event_time="t",
)
USER = Entity("user", keys={"user_id": Int64})
PRODUCT = Entity("product", keys={"product": String})
SPEND = FeatureView(
    "spend",
    source=SHOP,
    entity=USER,
    features=[Sum("amount", windows=["1d", "30d"], scale=2), Count(windows=["30d"])],
)
SOLD = FeatureView("sold", source=SHOP, entity=PRODUCT, features=[Last("product"), Count()])
PAYMENT = RequestSource("payment", schema={"amount": Float64, "currency": String})

FILE = """
import paimon_features as pf

shop = pf.EventSource("shop", event_time="t",
    schema={"user_id": pf.Int64, "t": pf.Int64, "amount": pf.Float64})
spend = pf.FeatureView("spend", source=shop, entity=pf.Entity("user", keys={"user_id": pf.Int64}),
    features=[pf.Sum("amount", windows=["1d", "30d"], scale=2)])
ratio = pf.Interaction("ratio_1d", "ratio(spend:sum_amount_1d, spend:sum_amount_30d, zero=0)")
payment = pf.RequestSource("payment", schema={"amount": pf.Float64})
over = pf.Interaction("over", "amount > spend:sum_amount_30d", request=payment)
model = pf.FeatureService("model", [ratio, "spend:sum_amount_1d", over])
"""


def project(*interactions: Interaction, **services: list[Any]) -> Definitions:
    return Definitions.of(
        [SPEND, SOLD, *interactions, *(FeatureService(n, items) for n, items in services.items())]
    )


def test_a_file_defines_interactions_with_inferred_types(tmp_path: Path) -> None:
    (tmp_path / "features.py").write_text(FILE)
    found = load_definitions(tmp_path / "features.py")
    assert list(found.interactions) == ["ratio_1d", "over"]
    assert list(found.requests) == ["payment"]
    assert [found.interaction(name).type for name in ("ratio_1d", "over")] == [Float64, Bool]
    outputs = found.outputs(found.service("model").items())
    assert list(map(str, outputs)) == ["ratio_1d", "spend:sum_amount_1d", "over"]
    assert found.service("model").to_document()["features"] == list(map(str, outputs))
    with pytest.raises(
        UnknownNameError, match="unknown interaction 'rato'; available: over, ratio_1d"
    ):
        found.interaction("rato")


def test_a_service_includes_the_definitions_it_names() -> None:
    over = Interaction("over", "amount > spend:sum_amount_30d", request=PAYMENT)
    found = project(model=["spend:count_30d", over])
    assert found.interactions == {"over": over}
    assert found.requests == {"payment": PAYMENT}


def test_an_interaction_may_use_others() -> None:
    base = Interaction("base", "ratio(spend:sum_amount_1d, spend:sum_amount_30d)")
    top = Interaction("top", "coalesce(base, 0) * amount", request=PAYMENT)
    compiled = project(top, base).interaction("top")
    assert compiled.expression.text == (
        "coalesce(spend:sum_amount_1d / spend:sum_amount_30d, 0.0) * amount"
    )
    assert list(map(str, compiled.refs)) == ["spend:sum_amount_1d", "spend:sum_amount_30d"]
    assert dict(compiled.inputs) == {"amount": Float64}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ratio(spent:x, 1)", "position 7: unknown feature view 'spent'; available: sold, sp"),
        (
            "spend:count_1d + 1",
            "unknown feature 'count_1d' of view 'spend'; available: ",
        ),
        ("1 + price", r"position 5: unknown request input or interaction 'price'; request in"),
        ("spend:count_30d + currency", "position 17: .* one type, got int64 and string"),
        (
            "ratio(spend:count_30d, amount, zer=0)",
            "position 32: unknown option 'zer' of ratio",
        ),
        ("spend:count_30d +", "position 18: got the end"),
        ("sin(amount)", "unknown function 'sin'; available: abs, abs_difference"),
        ("2 + 3", "names no feature and no request input"),
        ("spend:count_30d * 2", r"uses none of its request inputs \(amount, currency\)"),
        ("hash_cross(spend:sum_amount_1d, buckets=5)", "position 1: hash_cross takes strings, int"),
    ],
)
def test_an_error_names_the_interaction_the_position_and_the_known_names(
    text: str, message: str
) -> None:
    with pytest.raises(DefinitionError, match=f"interaction 'wrong': .*{message}"):
        project(Interaction("wrong", text, request=PAYMENT))


def test_a_cycle_is_reported_with_its_links() -> None:
    a, b, c = (Interaction(n, f"{m} + spend:count_30d") for n, m in ("ab", "bc", "ca"))
    with pytest.raises(DefinitionError, match="depend on each other: a -> b -> c -> a"):
        project(a, b, c)
    with pytest.raises(DefinitionError, match="depend on each other: a -> a"):
        project(Interaction("a", "a + 1"))


@pytest.mark.parametrize(
    ("interactions", "services", "message"),
    [
        ([Interaction("spend", "sold:count + 1")], {}, "'spend' has the name of a feature view"),
        (
            [Interaction("m", "sold:count + 1")],
            {"m": ["sold:count"]},
            "'m' has the name of a service",
        ),
        (
            [Interaction("product", "sold:count + 1")],
            {"m": [SOLD, Interaction("product", "sold:count + 1")]},
            "service 'm': the interaction 'product' has the name of a key of feature view 'sold'",
        ),
        (
            [],
            {
                "m": [
                    Interaction(
                        "x",
                        "user_id + spend:count_30d",
                        request=RequestSource("r", {"user_id": Int64}),
                    )
                ]
            },
            "the request input 'user_id' has the name of a key of feature view 'spend'",
        ),
        (
            [],
            {"m": [Interaction("x", "amount * 2", request=PAYMENT)]},
            "x is computed from request inputs only; name a feature, too",
        ),
        (
            [],
            {
                "m": [
                    Interaction("x", "amount + spend:count_30d", request=PAYMENT),
                    Interaction(
                        "y",
                        "concat(amount, sold:last_product)",
                        request=RequestSource("text", {"amount": String}),
                    ),
                ]
            },
            "request input 'amount' is Float64 for one interaction and String for 'y'",
        ),
        (
            [Interaction("x", "amount", request=RequestSource("other", {"amount": Int64}))],
            {"m": [Interaction("y", "x + amount + spend:count_30d", request=PAYMENT)]},
            "request input 'amount' is Float64 here and Int64 in interaction 'x'",
        ),
        (
            [Interaction("amount", "spend:count_30d")],
            {"m": [Interaction("y", "amount + 1", request=PAYMENT)]},
            "'amount' is a request input and an interaction; rename one",
        ),
        (
            [Interaction("x", "spend:count_30d + 1"), Interaction("x", "spend:count_30d + 2")],
            {},
            "two different definitions of interaction 'x'",
        ),
    ],
)  # fmt: skip
def test_ambiguous_names_are_rejected(
    interactions: list[Interaction], services: dict[str, list[Any]], message: str
) -> None:
    with pytest.raises(DefinitionError, match=message):
        project(*interactions, **services)


def test_keys_of_one_name_have_one_type_in_a_service() -> None:
    text = EventSource("text", schema={"user_id": String, "t": Int64}, event_time="t")
    other = FeatureView(
        "other", source=text, entity=Entity("user2", keys={"user_id": String}), features=[Count()]
    )
    with pytest.raises(DefinitionError, match="key 'user_id' is Int64 in feature view 'spend' and"):
        Definitions.of([SPEND, other, FeatureService("m", [SPEND, other])])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Interaction("Bad", "x"), "Bad"),
        (lambda: Interaction("x", "  "), "has an empty expression"),
        (lambda: Interaction("x", "a", request=3), "request=3; expected RequestSource"),
        (lambda: Interaction("x", "a", request=["a"]), r"request=\['a'\]; expected Req"),
        (lambda: RequestSource("r", {}), "has no inputs"),
        (lambda: RequestSource("r", {"a": Bytes}), "'a' is Bytes; an input is a Bool, number"),
        (lambda: RequestSource("r", {"a": List(Int64)}), r"'a' is List\(Int64\)"),
        (lambda: RequestSource("r", {"event_time_ms": Int64}), "reserved for the time of entity"),
        (lambda: RequestSource("r", {"A": Int64}), "'A'"),
        (
            lambda: Interaction(
                "x",
                "a",
                request=[RequestSource("r", {"a": Int64}), RequestSource("s", {"a": Bool})],
            ),
            "request input 'a' is Int64 and Bool",
        ),
    ],
)  # fmt: skip
def test_an_invalid_definition_is_rejected(make: Any, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        make()


def test_a_service_names_an_interaction_once() -> None:
    x = Interaction("x", "spend:count_30d + 1")
    with pytest.raises(DefinitionError, match="names x twice"):
        FeatureService("m", [x, SPEND, x])
