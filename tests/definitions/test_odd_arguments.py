"""Every argument of every definition, given as something else: a DefinitionError that names it."""

# ruff: noqa: E501 - a line per mistake

from __future__ import annotations

import datetime as dt
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import paimon_features as pf
from paimon_features.core._lazy import SYNONYMS
from paimon_features.core.errors import DefinitionError
from paimon_features.definitions.aggregates import Aggregate
from paimon_features.definitions.loader import load_definitions

USER = pf.Entity("user", keys={"u": pf.Int64})
COLUMNS = {"u": pf.Int64, "x": pf.Float64, "t": pf.Int64}
SHOP = pf.EventSource("shop", schema=COLUMNS, event_time="t")
PRICES = pf.TableSource("prices", schema=COLUMNS, event_time="t")
VIEW = pf.FeatureView("v", source=SHOP, entity=USER, features=[pf.Count(windows=["7d"])])
AMOUNT = pf.RequestSource("request", schema={"amount": pf.Float64})

VALID: Mapping[Callable[..., Any], Mapping[str, Any]] = {
    pf.Entity: {"name": "a", "keys": {"u": pf.Int64}},
    pf.EventSource: {"name": "a", "schema": COLUMNS, "event_time": "t"},
    pf.TableSource: {"name": "a", "schema": COLUMNS, "event_time": "t"},
    pf.FeatureView: {"name": "a", "source": SHOP, "entity": USER, "features": [pf.Count()]},
    pf.TableView: {"name": "a", "source": PRICES, "entity": USER, "features": ["x"]},
    pf.TumblingView: {"name": "a", "view": VIEW, "size": "1d", "features": [pf.Count()]},
    pf.SessionView: {"name": "a", "view": VIEW, "gap": "1d", "features": [pf.Count()]},
    pf.FeatureService: {"name": "a", "features": [VIEW]},
    pf.RequestSource: {"name": "a", "schema": {"amount": pf.Float64}},
    pf.Interaction: {
        "name": "a", "expression": "amount / v:count_7d", "inputs": [VIEW], "request": AMOUNT,
    },
    pf.Transformed: {"name": "a", "of": "v:count_7d", "fitted": pf.Fitted("n", 1)},
    pf.Fitted: {"name": "a", "version": 1},
}  # fmt: skip
ODD: tuple[Any, ...] = (
    None, 3, -1, 2.5, True, "", "no such thing", "v:count_7d", b"bytes", [], {}, (), ["x"], [None],
    [3], {"x": "y"}, {3: 4}, {"x": None}, int, object(), [["7d"]], "7 days", dt.timedelta(days=7),
    dt.date(2020, 1, 1), pa.int64(), pf.Int64, pf.Count, SHOP, USER, VIEW, AMOUNT, float("nan"),
)  # fmt: skip


@contextmanager
def named(name: str, value: Any) -> Iterator[None]:
    """Say which argument raised another error than a DefinitionError."""
    try:
        yield
    except Exception as error:
        error.add_note(f"{name}={value!r}")
        raise


@pytest.mark.parametrize("made", VALID, ids=lambda made: made.__name__)
def test_an_odd_argument_is_a_definition_error_or_accepted(made: Callable[..., Any]) -> None:
    """Accepted: what the argument may be by its meaning, for example None for an optional one."""
    valid = {k: v for k, v in VALID[made].items() if k in inspect.signature(made).parameters}
    for name in inspect.signature(made).parameters:
        for value in ODD:
            with named(name, value), suppress(DefinitionError):
                item = made(**{**valid, name: value})
                if hasattr(item, "to_document"):
                    item.to_document()


AGGREGATES = [
    value
    for name in pf.__all__
    if inspect.isclass(value := getattr(pf, name))
    and issubclass(value, Aggregate)
    and not inspect.isabstract(value)
]


@pytest.mark.parametrize("aggregate", AGGREGATES, ids=lambda made: made.__name__)
def test_so_is_one_of_an_aggregate(aggregate: type[Aggregate]) -> None:
    required = {
        name: {"n": 3, "half_life": "1d", "by": "t", "weight": "x", "other": "x"}.get(name, "x")
        for name, parameter in inspect.signature(aggregate).parameters.items()
        if parameter.default is inspect.Parameter.empty
    }
    for name in inspect.signature(aggregate).parameters:
        for value in ODD:
            with named(name, value), suppress(DefinitionError):
                one = aggregate(**{**required, name: value})
                pf.FeatureView("a", source=SHOP, entity=USER, features=[one])


HEAD = """import paimon_features as pf
shop = pf.EventSource("shop", schema={"u": pf.Int64, "x": pf.Float64, "t": pf.Int64}, event_time="t")
user = pf.Entity("user", keys={"u": pf.Int64})
"""
VIEW_OF = 'pf.FeatureView("v", source=shop, entity=user, features=[{}])'
MISTAKES = {
    'pf.EventSource("s", schema={"u": int, "t": pf.Int64}, event_time="t")': "'u' is int; write pf.Int64",
    'pf.EventSource("s", schema={"u": "int64"}, event_time="u")': "'u' is 'int64'; write pf.Int64",
    'pf.EventSource("s", schema={"u": __import__("pyarrow").timestamp("ns")}, event_time="u")': "write pf.Timestamp",
    'pf.EventSource("s", schema={"u": __import__("pyarrow").large_string()}, event_time="u")': "write pf.String",
    'pf.EventSource("s", schema={"u": __import__("pyarrow").float32()}, event_time="u")': "write pf.Float32",
    'pf.EventSource("s", schema={"u": __import__("pyarrow").int8()}, event_time="u")': "expected a type such as pf.Int64",
    'pf.EventSource("s", schema={"u": [pf.Int64]}, event_time="u")': "expected a type such as pf.Int64",
    'pf.EventSource("s", schema={"u": pf.Float64, "t": pf.Int64}, event_time="t", event_id="u", dedup_horizon="1d")': "event_id 'u' is Float64; expected a type that can be a key",
    'pf.TumblingView("d", 5, "1d")': "derived view 'd': view=5; expected FeatureView",
    'pf.TumblingView("d", pf.FeatureView("v", source=shop, entity=user, features=[pf.Count()]), "1d", features=[3])': "features=[3]; expected a list of Aggregate or None",
    'pf.TumblingView("d", pf.FeatureView("v", source=shop, entity=user, features=[pf.Count()], tile="10min"), "day", time_zone="Asia/Kathmandu")': "days of Asia/Kathmandu begin at multiples of 15min, which the view's tile, 10min, does not divide",
    'pf.TumblingView("d", pf.FeatureView("v", source=pf.EventSource("s", schema={"window_end_ms": pf.Int64, "t": pf.Int64}, event_time="t"), entity=pf.Entity("e", keys={"window_end_ms": pf.Int64}), features=[pf.Count()]), "1d")': "the keys window_end_ms have the names of columns of a derived view",
    "pf.Itn64": "no attribute 'Itn64'; did you mean 'Int64'?",
    "pf.Avg('x')": "did you mean 'Mean'?",
    'pf.Entity("e", keys=["u"])': "entity 'e': keys: got ['u']; expected a dict",
    VIEW_OF.format('pf.Sum("xx")'): "unknown column 'xx'; available: t, u, x; did you mean 'x'?",
    VIEW_OF.format('pf.Sum("x", window="7d")'): "did you mean 'windows'? (arguments: column, windows,",
    VIEW_OF.format('pf.Count("7d")'): "windows are given by name: Count(windows=['7d'])",
    VIEW_OF.format('pf.Sum(["7d"])'): "windows are given by name: Sum(<column>, windows=['7d'])",
    VIEW_OF.format('pf.Count(windows=["7 days"])'): "did you mean '7d'?",
    VIEW_OF.format('pf.Count(windows=["10M"])'): "did you mean '10min'?",
    VIEW_OF.format('pf.Sum("x", where="x > 1 && u > 2")'): "position 7: '&' is not part of the language; write AND",
    VIEW_OF.format("pf.Count()").replace("shop", '"shop"'): "feature view 'v': source='shop'; expected EventSource",
    VIEW_OF.format("pf.Count()") + '["count"]["x"]': "string indices",
    VIEW_OF.format("pf.Count()") + '["cuont"]': "'cuont' of view 'v'; available: count; did you mean 'count'?",
    VIEW_OF.format("pf.Count()") + ".count": "refer to a feature by view['count']",
    "def f(:": "SyntaxError",
    "1 / 0": "ZeroDivisionError",
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_its_file_and_line(tmp_path: Path, mistake: str) -> None:
    path = tmp_path / "features.py"
    path.write_text(
        f"{HEAD}\nmade = {mistake}\n" if "def" not in mistake else f"{HEAD}\n{mistake}\n"
    )
    with pytest.raises(DefinitionError) as caught:
        load_definitions(path)
    message = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert MISTAKES[mistake] in message
    assert f"{path}, line 5" in message


def test_a_mistake_in_a_module_next_to_the_file_is_named_there(tmp_path: Path) -> None:
    (tmp_path / "of_odd_arguments.py").write_text(
        f"{HEAD}\n\ndef make():\n    return pf.Sum(window=1)\n"
    )
    (tmp_path / "features.py").write_text("from of_odd_arguments import make\nmake()\n")
    with pytest.raises(DefinitionError, match=r"of_odd_arguments.py, line 7 does not run"):
        load_definitions(tmp_path / "features.py")


def test_a_reference_by_index_is_one_of_services() -> None:
    assert VIEW["count_7d"] == "v:count_7d"
    assert pf.FeatureService("m", [VIEW["count_7d"]]).refs()[0].feature == "count_7d"


def test_a_timestamp_may_be_the_event_time() -> None:
    """It is stored as the same number of milliseconds, so nothing else differs."""
    typed = {**COLUMNS, "t": pf.Timestamp}
    assert pf.EventSource("shop", schema=typed, event_time="t").to_document() == SHOP.to_document()
    table = pf.TableSource("prices", schema=typed, event_time="t")
    assert table.to_document() == PRICES.to_document()
    with pytest.raises(DefinitionError, match=r"'x' is Float64; expected Timestamp or Int64"):
        pf.EventSource("shop", schema=COLUMNS, event_time="x")


@pytest.mark.parametrize("made", [m for m, valid in VALID.items() if "name" in valid])
def test_names_have_a_bounded_length(made: Callable[..., Any]) -> None:
    # the names of a view's tables are names of files, which have at most 255 bytes
    valid = {k: v for k, v in VALID[made].items() if k in inspect.signature(made).parameters}
    for characters in (129, 1_000_000):
        with pytest.raises(DefinitionError, match=f"128 characters, got {characters:,}") as caught:
            made(**{**valid, "name": "a" * characters})
        assert len(str(caught.value)) < 300


def test_names_of_128_characters_are_defined() -> None:
    source = pf.EventSource("s" * 128, schema={**COLUMNS, "c" * 128: pf.Float64}, event_time="t")
    features = [pf.Sum("c" * 128, windows=["7d"]), pf.Count(windows=["7d"])]
    view = pf.FeatureView("v" * 128, source=source, entity=USER, features=features)
    assert view.name == "v" * 128


def test_names_of_other_libraries_have_a_public_name_here() -> None:
    assert {name for name in SYNONYMS.values() if not hasattr(pf, name)} == set()
