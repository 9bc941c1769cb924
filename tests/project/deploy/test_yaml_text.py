"""Documents are read back unchanged from their YAML."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.project.deploy.yaml_text import to_yaml

TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.lists(
        st.sampled_from(["a", " b", "- c: d", "", "# e", "x: |", "\ttab", "é"]), max_size=5
    ).map(lambda lines: "\n".join(lines) + "\n"),
    st.sampled_from(
        ["yes", "NO", "null", "~", "1e3", "0x1f", "1:30", "12:30:45", ".inf", "<<", "="]
    ),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), TEXTS),
    lambda inner: st.one_of(st.dictionaries(TEXTS, inner, max_size=4), st.lists(inner, max_size=4)),
    max_leaves=12,
)


@given(st.lists(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4), min_size=1, max_size=3))
def test_documents_are_read_back_unchanged(documents: list[dict[str, Any]]) -> None:
    assert list(yaml.safe_load_all(to_yaml(documents))) == documents


def test_a_python_file_stays_readable() -> None:
    text = 'x = {\n    "a": 1,\n}\n\n\ndef f():\n    return "# no comment"\n'
    written = to_yaml([{"data": {"features.py": text}}])
    assert '  features.py: |\n    x = {\n        "a": 1,\n' in written
    assert yaml.safe_load(written) == {"data": {"features.py": text}}


@pytest.mark.parametrize("text", ["0o17", "1e3", "1_000", "y", "No", "-", "- a", "null", "", "~"])
def test_a_text_that_some_parser_reads_as_another_type_is_quoted(text: str) -> None:
    assert to_yaml([{"a": text}]) == f'a: "{text}"\n'


def test_repeated_values_are_written_in_full() -> None:
    labels = {"app": "shop"}
    assert to_yaml([{"a": labels, "b": labels}]) == "a:\n  app: shop\nb:\n  app: shop\n"


def test_other_values_have_no_form() -> None:
    with pytest.raises(yaml.YAMLError, match="cannot represent an object"):
        to_yaml([{"a": object()}])
