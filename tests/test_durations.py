"""Durations as text: what is refused names the option, and what is advised is accepted."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import paimon_features as pf
from paimon_features.core.configuration.kafka_settings import KafkaSettings
from paimon_features.core.configuration.project_config import (
    FILE_NAME,
    OidcConfig,
    ServeConfig,
    read_config,
)
from paimon_features.core.errors import ConfigurationError, DefinitionError
from paimon_features.core.times.durations import optional_ms, parse_duration
from paimon_features.online.store.settings import OnlineSettings
from paimon_features.project.outcomes.rule import outcome_rule
from trainer_bridge.training.config import DataConfig

USER = pf.Entity("user", {"user": pf.Int64})
SCHEMA = {"user": pf.Int64, "t": pf.Int64}
SOURCE = pf.EventSource("s", SCHEMA, event_time="t")
COUNT = pf.Count(windows=["1d"])


def view(**options: Any) -> object:
    return pf.FeatureView("v", source=SOURCE, entity=USER, features=[COUNT], **options).compiled


def rows(**options: Any) -> object:
    table = pf.TableSource("s", {**SCHEMA, "x": pf.Int64}, event_time="t")
    return pf.TableView("v", source=table, entity=USER, **options).compiled


def session(gap: Any) -> object:
    base = pf.FeatureView("v", source=SOURCE, entity=USER, features=[COUNT])
    return pf.SessionView("sessions", base, gap).compiled


def tumbling(size: Any) -> object:
    base = pf.FeatureView("v", source=SOURCE, entity=USER, features=[COUNT])
    return pf.TumblingView("days", base, size).compiled


def configured(table: str, key: str, text: str) -> object:
    need = 'issuer = "https://i.example"\naudience = "a"\n' if table == "serve.oidc" else ""
    with TemporaryDirectory() as folder:
        content = f'[project]\nname = "p"\n\n[{table}]\n{need}{key} = "{text}"\n'
        (Path(folder) / FILE_NAME).write_text(content)
        return read_config(Path(folder))


def connected(key: str, text: str) -> object:
    if key == "partition_discovery":
        return KafkaSettings.of({key: text}, Path())
    return OnlineSettings.of({key: text}, root=Path())


OPTIONAL: dict[str, Callable[[Any], object]] = {
    "ttl": lambda text: view(ttl=text),
    "ttl of a table": lambda text: rows(ttl=text),
    "max_staleness": lambda text: view(max_staleness=text),
    "dedup_horizon": lambda text: pf.EventSource(
        "s", SCHEMA, event_time="t", event_id="user", dedup_horizon=text
    ),
    "offset": lambda text: pf.Count(windows=["1d"], offset=text),
    "unit": lambda text: pf.TimeSinceLast(windows=["1d"], unit=text),
}
REQUIRED: dict[str, Callable[[Any], object]] = {
    "tile": lambda text: view(tile=text),
    "resolution": lambda text: view(resolution={"1d": text}),
    "window": lambda text: pf.Count(windows=[text]),
    "max_skew": lambda text: pf.EventSource("s", SCHEMA, event_time="t", max_skew=text),
    "per": lambda text: pf.Rate(windows=["1d"], per=text),
    "half_life": lambda text: pf.DecayedCount(half_life=text),
    "gap": session,
    "size": tumbling,
    "within": lambda text: outcome_rule("m", None, {"source": "s", "within": text}),
    "lateness": lambda text: outcome_rule(
        "m", None, {"source": "s", "within": "1d", "lateness": text}
    ),
}


def settings(kind: type[ServeConfig] | type[OidcConfig]) -> list[str]:
    """The settings of a table that are durations."""
    return [f.name.removesuffix("_ms") for f in fields(kind) if f.name.endswith("_ms")]


TABLES = {
    "flink": ["checkpoint_interval"],
    "serve": settings(ServeConfig),
    "serve.oidc": settings(OidcConfig),
}
CONFIGURED = {
    key: partial(configured, table, key) for table, keys in TABLES.items() for key in keys
} | {
    key: partial(connected, key)
    for key in ("connect_timeout", "timeout", "write_timeout", "partition_discovery")
}
ZEROS = ("0s", "0ms", "00d", "0 seconds", "0", "0H")


def refused(option: Callable[[Any], object], text: object) -> str:
    """The message for a text that is no duration."""
    with pytest.raises((DefinitionError, ConfigurationError)) as error:
        option(text)
    return str(error.value)


def advised(message: str) -> list[str]:
    """What a message says to write instead."""
    return re.findall(r"(?:did you mean|the shortest is|for example|or) '([^']+)'", message)


@pytest.mark.parametrize("zero", ZEROS)
@pytest.mark.parametrize("name", [*OPTIONAL, *REQUIRED])
def test_a_duration_of_zero_is_refused_with_advice_that_is_accepted(name: str, zero: str) -> None:
    option = (OPTIONAL | REQUIRED)[name]
    message = refused(option, zero)
    key = name.split()[0]
    assert key in message
    assert f"duration {zero!r} is zero; the shortest is '1ms'" in message
    assert (f"for no {key}, leave it out" in message) == (name in OPTIONAL)


@pytest.mark.parametrize("key", CONFIGURED)
def test_a_setting_of_zero_is_refused_with_its_name(key: str) -> None:
    message = refused(CONFIGURED[key], "0s")
    assert f"{key}: duration '0s' is zero; the shortest is '1ms'" in message


@pytest.mark.parametrize("zero", ["0", "0s", "0ms", "0d"])
def test_a_gap_between_splits_may_be_zero_in_any_notation(zero: str) -> None:
    assert DataConfig(gap=zero).gap_ms == 0


@given(
    st.sampled_from(sorted(OPTIONAL)),
    st.one_of(
        st.from_regex(r"-?[0-9]{0,3}\.?[0-9]{1,2} ?[a-zA-Z]{0,8}", fullmatch=True),
        st.text(max_size=6),
        st.sampled_from(["ms", "s", "Secs", "m", "Min", "hours", "days", "w"]).flatmap(
            lambda unit: st.integers(0, 999).map(lambda number: f"{number} {unit}")
        ),
        st.timedeltas(timedelta(-3), timedelta(3)),
    ),
)
@example("ttl", timedelta(days=-1))
@example("ttl", "9" * 5_000 + "d")
def test_every_piece_of_advice_is_a_duration(name: str, text: Any) -> None:
    message = ""
    try:
        optional_ms(name, text)
    except DefinitionError as error:
        message = str(error)
    assert not message or message.startswith(f"{name}: duration ")
    assert len(message) < 400
    for other in advised(message):
        assert parse_duration(other) > 0
