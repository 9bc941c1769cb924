"""``inspect-loader``: what it reports about a table, and what it advises."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import Result

from paimon_features.core.errors import RequestError
from paimon_features.core.types.schema import Float32
from paimon_features.lake.catalog import Lake
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import append_arrow
from tests.commands import invoke
from tests.data_files import replace_file
from trainer_bridge import inspection
from trainer_bridge.inspection import Inspection, Stage, advise, bound_by, inspect
from trainer_bridge.testing.sample_tables import make_samples

COLUMNS = [f"f{number}" for number in range(10)]
SMALL_BUDGET = {"byte_budget": 600_000, "block_rows": 10_000, "canonical_streams": 2}


def run(lake: Lake, *args: str) -> Result:
    return invoke("inspect-loader", *args, "--warehouse", lake.warehouse, "--seconds", "0.2")


def numbers(lake: Lake, rows: int, row_group: int | None = None) -> str:
    lake.create(TableSpec("numbers", dict.fromkeys(COLUMNS, Float32)))
    dice = np.random.default_rng(0)
    data = {name: dice.random(rows, dtype=np.float32) for name in COLUMNS}
    append_arrow(lake, "numbers", pa.table(data))
    if row_group is not None:  # as another writer would cut the file
        (path,) = Path(lake.path("numbers")).glob("bucket-0/*.parquet")
        replace_file(path, row_group_size=row_group)
    return "numbers"


def found(lake: Lake, table: str, **options: Any) -> Inspection:
    return inspect(lake, table, **{"seconds": 0.1, "batch_size": 1_024, **options})


def test_it_reports_the_plan_the_stages_and_what_bounds_them(lake: Lake) -> None:
    numbers(lake, 50_000)
    result = run(lake, "numbers", "--columns", "f1, f3")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == "table numbers, snapshot 1: 50,000 rows"
    assert "  columns      2 of 10: 20% of the bytes, the rest is not read" in lines
    assert "  row groups   1 of 50,000 rows (median)" in lines
    assert "  output       one matrix per dtype" in lines
    stages = [line.split("  ")[1] for line in lines if line.startswith(("  read", "  gather"))]
    assert stages == ["read files", "gather"]
    assert any(line.startswith("bound by ") for line in lines)


def test_a_condition_leaves_rows_out_and_the_plan_says_how_many(lake: Lake) -> None:
    numbers(lake, 50_000, row_group=10_000)
    result = run(lake, "numbers", "--where", "f0 < 0.5", "--threads", "auto")
    assert result.exit_code == 0, result.output
    rows = int(result.output.splitlines()[0].split(": ")[1].split()[0].replace(",", ""))
    assert 24_000 < rows < 26_000
    assert f"  left out     {50_000 - rows:,} rows filtered" in result.output
    assert run(lake, "numbers", "--threads", "many").exit_code == 2


def test_json_is_one_document_with_every_figure(lake: Lake) -> None:
    numbers(lake, 20_000)
    result = run(lake, "numbers", "--json", "--world-size", "3", "--batch-size", "100")
    document = json.loads(result.stdout)
    assert document["plan"]["rows"] == 20_000
    assert document["plan"]["global_batch_size"] == 300
    assert document["files"]["files"] == 1
    names = [stage["name"] for stage in document["stages"]]
    assert names[:4] == ["read files", "decode", "order", "gather"]
    assert all(stage["rows_per_s"] > 0 for stage in document["stages"])
    assert document["rows_per_s"] > 0
    assert document["bound"]
    assert isinstance(document["advice"], list)


def test_columns_without_a_tensor_form_are_read_as_arrow_and_that_is_said(lake: Lake) -> None:
    make_samples(lake, [500])
    result = run(lake, "samples")
    assert "output       Arrow batches: some columns have no tensor form" in result.output
    assert "to tensors" not in result.output
    assert found(lake, "samples", columns=["x"]).output == "numpy"


def test_what_cannot_be_is_wrong_use(lake: Lake) -> None:
    make_samples(lake, [5])
    missing = run(lake, "simples")
    assert missing.exit_code == 2
    assert "unknown table 'simples'; available: samples" in missing.output
    with pytest.raises(RequestError, match="'name' is string.*read with output='arrow'"):
        inspect(lake, "samples", seconds=0.01, batch_size=4, output="numpy")
    column = run(lake, "samples", "--columns", "z")
    assert column.exit_code == 2
    assert "column 'z' of table 'samples'" in column.output


@pytest.mark.parametrize(
    ("rows", "row_group", "options", "advice"),
    [
        (80_000, None, {}, "1 streams over 1 blocks"),
        (80_000, 10_000, {"world_size": 3, "block_rows": 10_000}, "by 3 ranks: choose a world"),
        (20_000, None, {"columns": None}, "all 10 columns are read"),
        (80_000, 10_000, SMALL_BUDGET, "with byte_budget above that"),
        (20_000, None, {"batch_size": 16}, "batches of 16 rows"),
    ],
)
def test_it_advises_what_would_make_a_difference(
    lake: Lake, rows: int, row_group: int | None, options: dict[str, Any], advice: str
) -> None:
    numbers(lake, rows, row_group)
    options = {"columns": COLUMNS[:4], **options}
    if options["columns"] is None:
        del options["columns"]
    advice_given = found(lake, "numbers", **options).advice
    assert any(advice in line for line in advice_given), advice_given


DECODING, GATHERING = "more threads decode in parallel", "larger batches may"


@pytest.mark.parametrize(
    ("rates", "threads", "remote", "shuffle", "advice"),
    [
        ((9e6, 3e6, 5e6), 0, False, True, DECODING),
        ((9e6, 3e6, 5e6), 0, False, False, DECODING),
        ((9e6, 3e6, 1e6), 0, False, True, GATHERING),
        ((9e6, 3e6, 1e6), 0, False, False, None),
        # four decode 9 million rows a second, and the producer has 5
        ((9e6, 3e6, 5e6), 4, False, True, GATHERING),
        ((9e6, 2e6, 9e6), 4, False, True, None),
        ((9e6, 2e6, 9e6), 2, True, True, "a remote store serves many requests at once"),
        ((9e6, 2e6, 9e6), "auto", True, True, None),
    ],
)
def test_it_advises_by_what_bounds_reading(
    lake: Lake, rates: tuple[float, ...], threads: Any, remote: bool, shuffle: bool, advice: Any
) -> None:
    numbers(lake, 40_000)
    chosen = 4 if threads == "auto" else max(threads, 1)
    read, decode, gather = rates
    stages = (
        Stage("read files", read, chosen),
        Stage("decode", decode, chosen),
        Stage("gather", gather, 1),
    )
    measured = found(lake, "numbers", columns=COLUMNS[:4], threads=0)
    given = replace(measured, stages=stages, bound=bound_by(stages))
    requested = {"threads": threads, "byte_budget": 1 << 30, "shuffle": shuffle}
    # each line about what bounds reading names threads
    lines = [line for line in advise(given, requested, 0, remote) if "threads" in line]
    assert [advice in line for line in lines] == [True] * (advice is not None), lines


def test_the_measured_bound_and_the_threads_of_the_call_decide(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "bound_by", lambda stages: "reading and decoding files")
    numbers(lake, 40_000)
    (alone,) = found(lake, "numbers", columns=COLUMNS[:4], threads=0, shuffle=False).advice
    assert DECODING in alone
    assert found(lake, "numbers", columns=COLUMNS[:4], threads=2, shuffle=False).advice == ()


def test_many_small_files_are_to_be_compacted(lake: Lake) -> None:
    make_samples(lake, [20] * 18)
    advice_given = found(lake, "samples", columns=["x"]).advice
    assert any("row groups of 20 rows in 18 files" in line for line in advice_given), advice_given


def test_looking_at_a_place_that_is_not_there_makes_none(tmp_path: Path, lake: Lake) -> None:
    def error(*where: str) -> str:
        result = invoke("inspect-loader", "numbers", "--warehouse", *where)
        assert result.exit_code == 2
        return result.output

    assert "folder not found" in error(str(tmp_path / "typo"))
    wrong = error(lake.warehouse, "--database", "shop")
    assert "unknown database of warehouse" in wrong
    assert "'shop'; available: features" in wrong
    assert not (tmp_path / "typo").exists()
    assert not (Path(lake.warehouse) / "shop.db").exists()
