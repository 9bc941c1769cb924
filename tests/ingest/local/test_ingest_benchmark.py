"""The benchmark of ingestion runs, and every row of every form of file is accepted."""

from __future__ import annotations

import pytest

from benchmarks import ingest as benchmark


def test_every_form_is_ingested_completely(capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.run(2_000, 3, 1)  # raises for a row that is missing
    assert capsys.readouterr().out.count("rows/s") == 4
