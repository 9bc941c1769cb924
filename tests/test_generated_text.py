"""Names, notes, descriptions and values of others stay texts in all that we generate from them."""

from __future__ import annotations

import ast
import json
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from prometheus_client.parser import text_string_to_metric_families

from paimon_features.cli import cli
from paimon_features.core.configuration.input_settings import InputSettings
from paimon_features.core.documents.generated_text import (
    check_definitions,
    docstring_line,
    java_property,
    markdown_code,
    markdown_text,
    metric_label,
    one_line,
    python_literal,
    toml_key,
    toml_value,
)
from paimon_features.core.errors import ConfigurationError, DefinitionError
from paimon_features.core.notebook.markup import card, facts, table
from paimon_features.ingest.inputs.profiles import InputProfile, profile_input
from paimon_features.integrations.feast.repository_import import convert
from paimon_features.integrations.feast.repository_import.recording import FeastName, Recorded
from paimon_features.lake.duckdb_engine import identifier, literal
from paimon_features.project.deploy.yaml_text import to_yaml
from paimon_features.project.first_steps.proposal import definitions_text, inputs_text, propose
from paimon_features.project.lineage.nodes_and_edges import LineageNode, NodesAndEdges
from paimon_features.project.lineage.rendering import to_svg
from paimon_features.project.monitoring.line_chart import line_chart

HOSTILE = (
    "a\nimport os; os.system('id')#", "a\r\nopen('x','w')#", "\r__import__('os')#", "\x0cexit()",
    '"""\nraise SystemExit\n"""', "'''", '"+__import__("os").name+"', "\\", '\\"""', "{x!r}", "%s",
    "# -*- coding: utf-7 -*-", "x\u2028y", "x\x85y", "\x00", "\x7f", "\x1b[31m", "\ud800", "\u202e",
    "😀", "]\n[project]\nname = 'y'", "a: {b: c}", "- x", "--- !!python/object:os.system", "&a *a",
    "'; DROP TABLE t; --", '"; SELECT 1', "`x`", "<script>alert(1)</script>", "a | b\n|---|",
    "[x](javascript:alert(1))", "![x](http://h/)", "$(id)", "`id`", "; rm -rf x", 'view="b"} 1\nc{',
)  # fmt: skip
TEXTS = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(max_size=12),
    st.lists(st.sampled_from([*HOSTILE, "a", " "]), max_size=3).map("".join),
)
WRITABLE = TEXTS.filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text))


def _values(texts: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    numbers = st.floats(allow_nan=False, allow_infinity=False)
    return st.recursive(
        st.one_of(texts, st.integers(), st.booleans(), numbers),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)
        ),
        max_leaves=6,
    )


@given(_values(TEXTS))
def test_a_python_literal_is_read_back(value: Any) -> None:
    assert ast.literal_eval(python_literal(value)) == value


@given(TEXTS)
def test_a_comment_or_a_docstring_line_contains_no_code(text: str) -> None:
    source = (
        f'"""First.\n{docstring_line(text)}\n"""\n\n# {one_line(text)}\nx = 1  # {one_line(text)}\n'
    )
    assert source.isprintable() or set(source) - {"\n"} == {c for c in source if c.isprintable()}
    statements = ast.parse(source.encode()).body
    assert [type(each) for each in statements] == [ast.Expr, ast.Assign]


@given(WRITABLE.filter(lambda key: key != "last"), _values(WRITABLE))
def test_toml_is_read_back(key: str, value: Any) -> None:
    found = tomllib.loads(f"{toml_key(key)} = {toml_value(value)}\nlast = 1\n")
    assert found == {key: value, "last": 1}


@given(st.dictionaries(WRITABLE, WRITABLE, min_size=1, max_size=3))
def test_yaml_is_read_back(value: dict[str, str]) -> None:
    assert list(yaml.safe_load_all(to_yaml([value, {"last": [value]}]))) == [
        value,
        {"last": [value]},
    ]


@given(TEXTS, TEXTS)
def test_markdown_has_the_text_and_no_markup_of_it(name: str, value: str) -> None:
    row = f"| {markdown_text(name)} | {markdown_code(value)} |"
    page = f"# {markdown_text(name)}\n\n| a | b |\n|---|---|\n{row}\n"
    allowed = {"heading", "inline", "table", "thead", "tbody", "tr", "th", "td"}
    tokens = MarkdownIt("commonmark").enable("table").parse(page)
    assert {token.type.rsplit("_", 1)[0] for token in tokens} <= allowed
    assert sum(token.type == "td_open" for token in tokens) == 2
    inner = {child.type for token in tokens for child in token.children or ()}
    assert inner <= {"text", "text_special", "code_inline"}


@given(WRITABLE, WRITABLE)
def test_labels_of_metrics_are_read_back(view: str, column: str) -> None:
    labels = f"view={metric_label(view)},column={metric_label(column)}"
    (family,) = text_string_to_metric_families(f"# TYPE m gauge\nm{{{labels}}} 1.0\n")
    assert [each.labels for each in family.samples] == [{"view": view, "column": column}]


@given(TEXTS)
def test_a_java_property_has_one_line(text: str) -> None:
    assert not {"\n", "\r"} & set(java_property(text))


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        yield opened


@given(WRITABLE.filter(lambda text: "\x00" not in text))
def test_sql_names_and_texts_are_read_back(
    connection: duckdb.DuckDBPyConnection, text: str
) -> None:
    found = connection.execute(f"SELECT {literal(text)} AS {identifier(text or 'x')}")
    assert found.fetchall() == [(text,)]
    assert [column[0] for column in found.description or ()] == [text or "x"]


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, tuple[str, ...]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(name for name, _ in attrs)))


def _tags(page: str) -> list[tuple[str, tuple[str, ...]]]:
    parser = _Tags()
    parser.feed(page)
    parser.close()
    return parser.found


def _pages(name: str) -> list[str]:
    node = LineageNode("source", name, name)
    return [
        card(name, table([[name]], [name]), facts({name: name or "x"}), note=name or "x"),
        to_svg(NodesAndEdges((node,), ()), name),
        line_chart([(name, [(0.0, 0.0), (1.0, 1.0)])], name, name),
    ]


@given(TEXTS)
def test_pages_and_pictures_have_no_tag_of_a_name(name: str) -> None:
    assert list(map(_tags, _pages(name))) == list(map(_tags, _pages("plain")))


# -- init --from ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> InputProfile:
    path = tmp_path_factory.mktemp("input") / "events.csv"
    rows = (
        f"{i % 4},2026-11-0{1 + i % 9}T00:00:00Z,{i}.25,x{i % 3},s{i % 5},\n" for i in range(40)
    )
    path.write_text("user_id,time,amount,kind,store_id,empty\n" + "".join(rows))
    return profile_input(path, InputSettings(), set())


@given(st.data())
def test_a_proposal_of_hostile_columns_is_only_definitions(
    profile: InputProfile, data: st.DataObject
) -> None:
    columns = [
        replace(c, field=data.draw(TEXTS), example=data.draw(TEXTS),
                notes=tuple(data.draw(st.lists(TEXTS, max_size=2))))
        for c in profile.columns
    ]  # fmt: skip
    columns += [replace(columns[0], name=data.draw(TEXTS), role="measure")]
    chosen = propose(profile, "events")
    other = replace(profile, path=Path("/x") / data.draw(TEXTS).replace("/", "_"), columns=columns)
    text = definitions_text(other, replace(chosen, others=(columns[-1],), measures=(columns[-1],)))
    check_definitions(text)
    assert text.encode()


@given(st.dictionaries(WRITABLE, WRITABLE, max_size=3), st.lists(WRITABLE, max_size=2))
def test_the_settings_of_hostile_inputs_are_read_back(
    profile: InputProfile, columns: dict[str, str], nulls: list[str]
) -> None:
    given_ = replace(InputSettings(), columns=columns, nulls=tuple(nulls))
    text = inputs_text(replace(profile, settings=given_), "events")
    read = tomllib.loads(text).get("inputs", {}).get("events", {})
    assert InputSettings.of("events", read) == given_


@settings(max_examples=4)
@given(st.lists(WRITABLE, min_size=1, max_size=3, unique=True))
def test_init_runs_nothing_of_a_file(
    tmp_path_factory: pytest.TempPathFactory, keys: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("init")
    marker = folder / "ran"
    code = f"a\nopen({str(marker)!r}, 'w')#"
    extra = dict.fromkeys([code, *keys], 1)
    rows = [
        {
            "user": day,
            "t": f"2026-11-0{day}T00:00:00Z",
            "amount": day,
            "e": extra,
            code: "x",
            **extra,
        }
        for day in (1, 2, 3)
    ]
    (folder / "events.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    done = CliRunner().invoke(
        cli, ["init", str(folder / "shop"), "--from", str(folder / "events.jsonl")]
    )
    assert not marker.exists()
    assert done.exit_code in (0, 2), done.output
    assert done.exception is None or isinstance(done.exception, SystemExit | ConfigurationError)
    if done.exit_code == 0:
        check_definitions((folder / "shop" / "features.py").read_text("utf-8"))
        tomllib.loads((folder / "shop" / "paimon-features.toml").read_text("utf-8"))


def test_the_next_command_of_init_is_one_shell_line(tmp_path: Path) -> None:
    file = tmp_path / "a; touch x [b] events.csv"
    file.write_text("user,t\n" + "".join(f"u{i % 3},2026-11-01T00:00:0{i}Z\n" for i in range(9)))
    done = CliRunner().invoke(cli, ["init", str(tmp_path / "$(id) p"), "--from", str(file)])
    (line,) = (line for line in done.output.splitlines() if line.startswith("next: "))
    words = shlex.split(line.removeprefix("next: "))
    assert words == ["cd", str(tmp_path / "$(id) p"), "&&", "paimon-features", "try",
                     "features.py", str(file)]  # fmt: skip


# -- init --from-feast ---------------------------------------------------------------------------


@given(st.data())
def test_the_import_of_a_hostile_repository_is_only_definitions(data: st.DataObject) -> None:
    def text() -> str:
        return data.draw(TEXTS)

    def described(kind: str, **given: Any) -> Recorded:
        more = {"description": text(), "owner": text(), "tags": {text(): text()}}
        return Recorded(kind, (), {"name": text(), **more, **given})

    entity = described("Entity", join_keys=[text()])
    source = described("FileSource", path=text(), timestamp_field=text())
    fields = [described("Field", dtype=FeastName(name)) for name in ("Int64", "Float32", text())]
    sums = Recorded("Aggregation", (), {"function": data.draw(st.sampled_from(["sum", "x\n"])),
                                        "column": text()})  # fmt: skip
    common = {"entities": [entity], "source": source, "schema": fields}
    views = [described("FeatureView", **common),
             described("StreamFeatureView", aggregations=[sums], **common)]  # fmt: skip
    found = [*views, described("FeatureService", features=views), described("OnDemandFeatureView"),
             described("RequestSource", schema=fields), described("Project")]  # fmt: skip
    done = convert(found, Path("/nowhere"))
    check_definitions(done.text)
    assert done.text.encode()
    for command in done.loads:
        assert shlex.split(command)[:3] == ["paimon-features", "ingest", "files"]
        assert len(shlex.split(command)) == 5


@pytest.mark.parametrize(
    "line",
    [
        "import os",
        "print(1)",
        "x = open('f', 'w')",
        "x = pf.Entity(open('f'))",
        "x = pf.Entity(*[1])",
        "x = pf.Entity(**{})",
        "x = pf.load_definitions('f')",
        "x = pf.Entity.__init__.__globals__",
        "x = pf.Entity(pf.errors.os)",
        "x = pf.Entity((lambda: 1)())",
        "x = pf.Entity([y for y in ()])",
        "x = pf.Entity(f'{1}')",
        "x = y = pf.Entity('a')",
        "pf = pf.Entity('a')",
        "x: int = pf.Entity('a')",
        "x.y = pf.Entity('a')",
        "x = pf.Entity('a'",
        "def f(): pass",
    ],
)
def test_a_definitions_file_with_anything_else_is_refused(line: str) -> None:
    begin = '"""Text."""\n\nimport paimon_features as pf\n\n'
    check_definitions(f"{begin}x = pf.Entity('a', keys={{'a': pf.List(pf.Int64)}})\n")
    with pytest.raises(DefinitionError, match="nothing was written"):
        check_definitions(f"{begin}{line}\n")


def test_a_table_of_arrow_values_has_no_tag_of_them() -> None:
    rows = pa.table({name: [name] for name in HOSTILE if name.isascii()})
    shown = card("x", table(zip(*rows.to_pydict().values(), strict=True), rows.column_names))
    assert {tag for tag, _ in _tags(shown)} <= {
        "style", "div", "h4", "table", "thead", "tbody", "tr", "th", "td",
    }  # fmt: skip
