"""How files are written, as [inputs.SOURCE] and --input say it: read, checked, written again."""

from __future__ import annotations

from typing import Any

import pytest

from paimon_features.core.configuration.input_settings import InputSettings
from paimon_features.core.errors import ConfigurationError

GIVEN = (
    "delimiter=tab", "quote='", "encoding=cp1252", "header=false", "names=a,b", "names=c",
    "skip=3", "line_breaks=True", "decimal=,", "thousands=.", "nulls=NA", "nulls=-,-",
    "time_format=%b %d, %Y", "time_zone=Europe/Berlin", "time_unit=s", "columns=user_id=User ID",
    "columns=price=Price=EUR", "escape=\\", "price.thousands=", "price.decimal=.",
    "at.time_format=%d.%m.%Y",
    "at.time_format=%Y%m%d", "n.nulls=NA",
)  # fmt: skip
READ: dict[str, Any] = {
    "delimiter": "\t", "quote": "'", "encoding": "cp1252", "header": False,
    "names": ["a", "b", "c"], "skip": 3, "line_breaks": True, "decimal": ",", "thousands": ".",
    "nulls": ["NA", "-,-"], "time_format": ["%b %d, %Y"], "time_zone": "Europe/Berlin",
    "time_unit": "s", "columns": {"user_id": "User ID", "price": "Price=EUR"},
    "escape": "\\",
    "by_column": {
        "price": {"thousands": "", "decimal": "."}, "at": {"time_format": ["%d.%m.%Y", "%Y%m%d"]},
        "n": {"nulls": ["NA"]},
    },
}  # fmt: skip


def test_options_are_what_the_file_would_say() -> None:
    settings = InputSettings().with_options("sales", GIVEN)
    assert settings.to_document() == READ
    assert InputSettings.of("sales", READ) == settings
    assert settings.changed == set(READ)
    price = settings.of_column("price")
    assert (price.decimal, price.delimiter, settings.of_column("n").decimal) == (".", "\t", ",")
    # an option adds to a list of the file, and replaces a single value
    more = settings.with_options("sales", ["nulls=none", "decimal=.", "thousands=,"])
    assert (more.nulls, more.decimal, more.thousands) == (("NA", "-,-", "none"), ".", ",")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"delimeter": ";"}, "unknown entry 'delimeter'; available: .*delimiter, .*did you"),
        ({"delimiter": "||"}, "delimiter = '||'; expected one ASCII character"),
        ({"delimiter": "\n"}, "expected one ASCII character"),
        ({"quote": "„"}, "quote = '„'; expected one ASCII character"),
        ({"delimiter": "'", "quote": "'"}, 'expected another character than the delimiter, "\'"'),
        ({"encoding": "utf-9"}, "encoding = 'utf-9'; expected a name such as utf-8, cp1252"),
        ({"encoding": "hex"}, "encoding = 'hex'; expected a name such as utf-8, cp1252"),
        ({"decimal": ";"}, "decimal = ';'; expected '.' or ','"),
        ({"thousands": "x"}, "thousands = 'x'; expected '', '.', ','"),
        ({"decimal": ",", "thousands": ","}, "expected another character than decimal, ','"),
        ({"time_unit": "min"}, "time_unit = 'min'; expected s, ms, us, ns"),
        ({"skip": -1}, "skip = -1; expected 0 or more lines"),
        ({"names": ["a"]}, "names = .*expected header = false with them"),
        ({"time_format": "DD.MM.YYYY"}, "expected formats such as '%d.%m.%Y %H:%M'"),
        ({"time_zone": "Berlin"}, "time_zone = 'Berlin'; expected a name of the time zone data"),
        ({"time_zone": "Europe"}, "time_zone = 'Europe'; expected a name of the time zone data"),
        ({"delimiter": 1}, "delimiter = 1; expected a text"),
        ({"header": "no"}, "header = 'no'; expected true or false"),
        ({"skip": "two"}, "skip = 'two'; expected a number"),
        ({"skip": True}, "skip = True; expected a number"),
        ({"nulls": 0}, "nulls = 0; expected a text, or a list of texts"),
        ({"nulls": ["NA", 0]}, "expected a text, or a list of texts"),
        ({"columns": "a=b"}, "columns = 'a=b'; expected a table such as { customer_id ="),
        ({"columns": {"a": 1}}, "expected a table such as"),
        ({"escape": "ab"}, "escape = 'ab'; expected '' or one ASCII character"),
        ({"escape": '"'}, "escape = '\"'; expected another character than the delimiter and"),
        ({"by_column": {"a": "x"}}, "expected a table of tables such as"),
        ({"by_column": {"a": {"decimal": ";"}}}, "by_column a: decimal = ';'; expected '.' or ','"),
        ({"by_column": {"a": {"nulls": 1}}}, "by_column a nulls = 1; expected a text, or a list"),
        (
            {"by_column": {"a": {"decimals": ","}}},
            "unknown entry of a column 'decimals'; .*did you mean 'decimal",
        ),
        ({"by_column": {"a": {"delimiter": ";"}}}, "'delimiter'; .*it is an entry of a whole file"),
    ],
)
def test_an_entry_that_cannot_be_is_refused_with_what_it_takes(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        InputSettings.of("sales", values)
    assert str(raised.value).startswith("[inputs.sales]")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("delimiter", "--input delimiter: expected NAME=VALUE, as delimiter=;"),
        ("columns=user_id", "--input columns=user_id: expected columns=COLUMN=NAME"),
        ("skip=-1", "skip = -1; expected 0 or more lines"),
        ("skip=two", "skip = 'two'; expected a number"),
        ("header=no", "header = 'no'; expected true or false"),
        ("delimeter=;", "'delimeter'; available: .*delimiter, .*did you mean 'delimiter'"),
    ],
)
def test_an_option_that_cannot_be_is_refused(option: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        InputSettings().with_options("sales", [option])
