"""Files with lines that are too long: they are cut, in bounded memory, before a job reads them."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from paimon_features.core.errors import ConfigurationError
from paimon_features.ingest import long_lines
from paimon_features.ingest.flink.files import ingest_files
from paimon_features.ingest.input_files import inspect_file
from paimon_features.ingest.long_lines import CUT_LINE, MAX_LINE_BYTES, without_long_lines
from paimon_features.lake import read_arrow
from paimon_features.testing.sizes import every_seed
from tests.flink.ingest.click_source import CLICKS, new_lake

LIMIT = 100


def cut(path: Path, folder: Path, limit: int = LIMIT) -> tuple[bool, bytes]:
    """Whether the job reads a copy, and what it reads."""
    file = inspect_file(path)
    with without_long_lines([file], folder, limit) as (found,):
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(found.read_path, "rb") as stream:
            content: bytes = stream.read()
        assert found.path == path
        copied = found.copy is not None
    assert not folder.exists() or not list(folder.iterdir())
    return copied, content


def naive(content: bytes, limit: int) -> bytes:
    lines = content.split(b"\n")
    found = []
    for line in lines:
        if len(line) > limit:
            begun = line[:1_000].decode("utf-8", "ignore").replace("\r", " ")
            line = f"{CUT_LINE}{len(line)} bytes] {begun}".encode()
        found.append(line)
    return b"\n".join(found)


@every_seed(40)
@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
def test_long_lines_are_replaced_and_all_others_are_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, seed: int
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(long_lines, "_CHUNK", dice.choice([7, 50, 64, 4_096]))
    lengths = (0, 1, 40, LIMIT - 1, LIMIT, LIMIT + 1, 150, 3_000)
    rows = [dice.choice("ab\r,é\x00").encode() * dice.choice(lengths) for _ in range(20)]
    content = b"\n".join([b"id,at_ms", *rows]) + dice.choice([b"", b"\n"])
    path = tmp_path / f"f.{ending}"
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    wanted = naive(content, LIMIT)
    copied, found = cut(path, tmp_path / "copies")
    assert copied == (wanted != content)
    assert found.rstrip(b"\n") == wanted.rstrip(b"\n")


def test_a_header_that_is_too_long_refuses_the_file(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text("a" * 200 + ",b\n1,2\n")
    with pytest.raises(ConfigurationError, match="its first line has more than 100 bytes"):
        cut(path, tmp_path / "copies")


BOUNDED = """
import gzip, resource, sys
from pathlib import Path
from paimon_features.ingest.flink.files import ingest_files
from paimon_features.ingest.long_lines import CUT_LINE, MAX_LINE_BYTES, without_long_lines
from paimon_features.ingest.input_files import InputFile
path, folder = Path(sys.argv[1]), Path(sys.argv[2])
file = InputFile(path, "json", 0, "0" * 64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with without_long_lines([file], folder, 8 << 20) as (found,):
    with gzip.open(found.read_path) as stream:
        lines = stream.read().split(b"\\n")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, len(lines), lines[1][:40])
"""


def test_a_line_of_300_mb_is_cut_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"id": 1}\n{"id": "')
        for _ in range(300):
            file.write(b"x" * 1_000_000)
        file.write(b'"}\n{"id": 2}\n')
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED, str(path), str(tmp_path / "copies")],
        capture_output=True,
        text=True,
        check=True,
    )
    grown_kb, lines, second = done.stdout.strip().split(" ", 2)
    assert int(grown_kb) < 60_000
    assert lines == "4"
    assert "[line of 300000010 bytes] " in second


@pytest.mark.long
@pytest.mark.flink
def test_a_line_that_is_too_long_is_rejected_and_all_others_are_ingested(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    page = "x" * (MAX_LINE_BYTES - 100)
    rows = f"id,page,at_ms\n1,a,1000\n2,{page},2000\n3,{page}{page},3000\n4,b,4000\n"
    with gzip.open(inputs / "a.csv.gz", "wt", compresslevel=1) as file:
        file.write(rows)
    documents = [{"id": 5, "at_ms": 5}, {"id": 6, "at_ms": 6, "page": "y" * 40_000_000}]
    (inputs / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    (inputs / "c.csv").write_text("id,page,at_ms\n7,c,7000\n")
    result = ingest_files(lake, CLICKS, [inputs], state_dir=tmp_path / "state")
    assert (result.accepted, dict(result.rejected)) == (5, {"line_too_long": 2})
    found = read_arrow(lake, CLICKS.table, columns=["id", "page"]).to_pylist()
    assert sorted(row["id"] for row in found) == [1, 2, 4, 5, 7]
    assert page in [row["page"] for row in found]
    rejects = read_arrow(lake, CLICKS.rejected_table).to_pylist()
    assert {row["origin"] for row in rejects} == {
        str(inputs / "a.csv.gz"),
        str(inputs / "b.jsonl"),
    }
    assert sorted(row["detail"] for row in rejects) == [
        f"it has {2 * len(page) + 7} bytes; see --max-line-bytes",
        f"it has {len(json.dumps(documents[1]))} bytes; see --max-line-bytes",
    ]
    assert all(len(row["raw"]) < 1_100 for row in rejects)
    assert not list((tmp_path / "state" / "ingest").glob("*/*"))
