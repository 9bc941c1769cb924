"""A worker keeps pandas out, and lets definitions have it."""

from __future__ import annotations

import subprocess
import sys

import pytest

CONVERT = """
import sys
from paimon_features.serving.http.no_pandas import forbid_pandas, pandas_allowed
import pyarrow as pa

forbid_pandas()
pa.array([0])
pa.array([1, 2.5, None])  # of a type to be inferred
assert "pandas" not in sys.modules
with pandas_allowed():
    {definitions}
pa.array([1, 2.5, None])
print("pandas" in sys.modules)
"""


@pytest.mark.parametrize(("definitions", "there"), [("pass", "False"), ("import pandas", "True")])
def test_pandas_is_there_only_where_definitions_import_it(definitions: str, there: str) -> None:
    pytest.importorskip("pandas")
    code = CONVERT.replace("{definitions}", definitions)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == there
