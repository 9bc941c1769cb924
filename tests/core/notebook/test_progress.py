"""Progress in a real kernel: one output that is replaced, and nothing outside a notebook."""

from __future__ import annotations

import pytest

from paimon_features.core.notebook import ProgressBar, in_notebook

nbformat = pytest.importorskip("nbformat", reason="nbformat (extra notebooks) is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient (extra notebooks) is not installed")

CELL = """
from paimon_features.core.notebook import ProgressBar, in_notebook
from paimon_features.tiles.local.submission import BackfillProgress
assert in_notebook()
with ProgressBar("count <b>") as bar:
    for done in range(1001):
        bar(done, 1000)
with ProgressBar("tiles") as bar:
    bar(BackfillProgress(1.0, 250, 1000, 3))
"""
ENGINE = """
from paimon_features.lake.duckdb_engine import DuckDBEngine
with DuckDBEngine():
    pass
"""
TABLES = """
%load_ext paimon_features.core.notebook
import pyarrow as pa
pa.table({"a": ["<script>"]})
"""


def test_nothing_is_shown_outside_a_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    assert not in_notebook()
    with ProgressBar("count") as bar:
        bar(1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_kernel_shows_one_output_that_ends_complete() -> None:
    cells = [nbformat.v4.new_code_cell(source) for source in (CELL, TABLES, ENGINE)]
    book = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(
        book, timeout=120, startup_timeout=120, iopub_timeout=120, kernel_name="python3"
    ).execute()
    shown = [output["data"]["text/html"] for output in book.cells[0].outputs]
    assert len(shown) == 2
    assert "1,000 of 1,000" in shown[0]
    assert "count &lt;b&gt;" in shown[0]
    assert 'value="0.2500"' in shown[1]
    assert "250 of 1,000 events" in shown[1]
    assert "&lt;script&gt;" in book.cells[1].outputs[0]["data"]["text/html"]
