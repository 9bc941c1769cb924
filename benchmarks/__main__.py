"""Run benchmarks: ``python -m benchmarks [NAME...]``, all of them by default.

``--page`` runs the commands of docs/internals/performance*.md, or those of some names, one after
the other on a machine that is idle before each, and keeps what they print, with date, commit,
processor and load, a file each. Run again it continues: what this commit has a file of is not
measured again.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).parent
PAGE = """
feature_server --feast FEAST --wrk WRK --rounds 3 --seconds 3
serving_core
tokens
predict --rounds 3
prediction_log --small
sequential_tests
freshness --seconds 60
freshness --checkpoint-ms 1000
ingest --flink --rounds 2
event_writer
backfill --events 1000000 --entities 100000
backfill --events 2000000 --entities 200000
backfill --events 10000000 --entities 1000000
backfill --only-flink --events 2000000 --entities 200000
backfill_memory
tile_job --events 10000000 --repeats 3
aggregate_rates --events 800000 --repeats 2 --only sum distinct last_n
sparse_history --flink
table_size --checkpoints 600
history_scaling
point_in_time
point_in_time --windows 5
point_in_time --daily
windows --rounds 3
windows --events 1000000 --customers 20000 --rounds 3
history_engines --rows 1000000
bounded
rollup
materialize
loader --hold 10 --repeats 3
merge
page_checks
samplers --rows 100000000 --draws 2000000
dedup --batches 4
tensorflow_csv --steps 2 --copies 10 --repeats 3
tensorflow_tuning
s3 --rows 250000 --files 4 --repeats 3
feedback --events 3000000
circle --seconds 40
learn
iteration --modes thread --runs 10 --rounds 400
iteration --modes process --runs 10 --rounds 150
iteration --modes thread process --trace
all_reduce
algorithms --rows 1000000 --width 100 --iterations 20 --repeats 3
transformers --rows 500000 --repeats 5
monitoring
sweep --jobs 2 --epochs 20
"""
"""The commands of the page; FEAST and WRK are what ``--feast`` and ``--wrk`` say. Not here:
``train_gpu``, which needs a GPU, and ``history_scaling`` up to 10^8 events, which takes an hour."""
IDLE_WAIT_S = 900.0


@dataclass(frozen=True, slots=True)
class Run:
    """A benchmark with its arguments."""

    words: tuple[str, ...]

    @property
    def file_name(self) -> str:
        """Of what it prints."""
        return "_".join(word.strip("-").replace("/", "-") for word in self.words)[:120] + ".txt"

    def __str__(self) -> str:
        return shlex.join(self.command("python"))

    def command(self, python: str = sys.executable) -> list[str]:
        """The command line, by an interpreter."""
        return [python, "-m", f"benchmarks.{self.words[0]}", *self.words[1:]]


def page_runs(names: Sequence[str], tools: dict[str, str]) -> list[Run]:
    """The commands of the page, or those of some benchmarks.

    >>> [str(run) for run in page_runs(["windows"], {})][0]
    'python -m benchmarks.windows --rounds 3'
    """
    lines = (line.split() for line in PAGE.split("\n") if line)
    return [
        Run(tuple(tools.get(word, word) for word in words))
        for words in lines
        if not names or words[0] in names
    ]


def machine() -> str:
    """The processor, its cores and the memory of this machine."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        named = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = named[0].partition(":")[2].strip() if named else model
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return f"{len(os.sched_getaffinity(0))} cores of {model}, {pages:.0f} GiB"


def commit() -> str:
    """The commit that is measured; marked where files were changed since."""
    git = ["git", "-C", str(HERE), "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def await_idle(most: float) -> float:
    """Wait until the load of the last minute is at most ``most``, or fifteen minutes."""
    deadline = time.monotonic() + IDLE_WAIT_S
    is_reported = False
    while (load := os.getloadavg()[0]) > most and time.monotonic() < deadline:
        if not is_reported:
            print(f"   waits for an idle machine: load {load:.2f}, at most {most}", flush=True)
            is_reported = True
        time.sleep(2)
    return load


def run_page(runs: Sequence[Run], into: Path, idle: float, again: bool) -> int:
    """Run the commands and keep their output; the number of those that failed."""
    into.mkdir(parents=True, exist_ok=True)
    failed, measured = 0, commit()
    for number, run in enumerate(runs, 1):
        path = into / run.file_name
        print(f"{number}/{len(runs)} {run}", flush=True)
        if not again and path.is_file() and f"\n# commit {measured}\n" in path.read_text():
            print(f"   has been measured: {path}", flush=True)
            continue
        partial = path.with_suffix(".partial")
        load, began = await_idle(idle), time.monotonic()
        with partial.open("w") as file:
            for line in _head(run, measured, load):
                file.write(f"# {line}\n")
            file.flush()
            code = subprocess.run(
                run.command(),
                stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False,
            ).returncode  # fmt: skip
        seconds = time.monotonic() - began
        if code:
            failed += 1
            print(f"   failed with code {code} after {seconds:.0f} s: {partial}", flush=True)
            continue
        with partial.open("a") as file:
            file.write(f"# {seconds:.0f} s, load {os.getloadavg()[0]:.2f} at the end\n")
        partial.replace(path)
        print(f"   {seconds:.0f} s, load {load:.2f} at the beginning: {path}", flush=True)
    return failed


def _head(run: Run, measured: str, load: float) -> Iterator[str]:
    yield str(run)
    yield f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {machine()}, load {load:.2f}"
    yield f"commit {measured}"


def main(arguments: Sequence[str]) -> int:
    """Run benchmarks, each in a process of its own; the number of those that failed."""
    known = sorted(p.stem for p in HERE.glob("*.py") if not p.stem.startswith("_"))
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Run benchmarks, all of them by default.",
        epilog=f"There is: {', '.join(known)}. Each has --help.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="A benchmark.")
    parser.add_argument(
        "--page", action="store_true",
        help="The commands of docs/internals/performance.md; keeps what they print.",
    )  # fmt: skip
    parser.add_argument("--into", type=Path, default=Path("build/benchmarks"), help="Its folder.")
    parser.add_argument("--again", action="store_true", help="Also what has been measured.")
    parser.add_argument(
        "--idle", type=float, default=0.5, metavar="LOAD",
        help="Wait until the load is at most this before each command; default: 0.5.",
    )  # fmt: skip
    parser.add_argument("--feast", help="A Python with Feast, for the comparison of servers.")
    parser.add_argument("--wrk", default="wrk", help="The load generator wrk; default: on PATH.")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in known]
    if unknown:
        print(f"unknown benchmark {unknown[0]!r}; available: {', '.join(known)}")
        return 2
    if given.page:
        tools = {"WRK": given.wrk} | ({"FEAST": given.feast} if given.feast else {})
        runs = page_runs(given.names, tools)
        left_out = [run for run in runs if "FEAST" in run.words]
        for run in left_out:
            print(f"left out, without --feast PYTHON: {run}")
        return run_page([r for r in runs if r not in left_out], given.into, given.idle, given.again)
    failed = 0
    for name in given.names or known:
        print(f"\n== {name}", flush=True)
        failed += subprocess.run(Run((name,)).command(), check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
