"""Mutation checks of the core: each fault is put into a copy of the code, and its tests must fail.

::

    make mutants                      # all of them, as many at a time as there are cores
    make mutants ARGS="-k fold"       # those whose file or fault contains a text
    make mutants ARGS="--minutes 10"  # none starts later than that; says how many were left out

A fault that no test catches is printed, and the exit code is 1. A fault whose text is no longer in
its file is an error, so that this list follows the code.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: ``before`` becomes ``after`` in ``file``; ``tests`` are those that must see it."""

    file: str
    before: str
    after: str
    tests: str

    def __str__(self) -> str:
        return f"{self.file}: {self.before.strip()!r} -> {self.after.strip()!r}"


def _mutants(file: str, tests: str, *faults: tuple[str, str]) -> list[Mutant]:
    return [Mutant(file, before, after, tests) for before, after in faults]


MUTANTS: Sequence[Mutant] = [
    # windows: where an edge is
    *_mutants(
        "paimon_features/core/windows/window.py",
        "tests/core/windows",
        ("begin = at - self.length\n", "begin = at - self.length + 1\n"),
        ("return floor_ms(begin, self.start_step_ms)", "return begin"),
        ("as_of_ms, self.end_step_ms)", "as_of_ms, 1)"),
        ('self.hop_ms if self.kind == "hop" else 1)', "1)"),
        ("self.needs_tail and self.length < self.tile_ms", "self.needs_tail and self.length <= 1"),
        ('if self.kind == "sawtooth" and self.offset_ms else 1', "if self.offset_ms else 1"),
    ),
    # partials are merged
    *_mutants(
        "paimon_features/definitions/aggregates/fold.py",
        "tests/definitions/aggregates/test_laws.py tests/definitions/aggregates/test_edges.py "
        "paimon_features/definitions/aggregates",
        ("return floor_ms(times.astype(np.int64, copy=False), tile_ms) + tile_ms", "return times"),
        ("np.where(column.valid, column.values, neutral)", "column.values"),
        ("np.exp2(-age_ms / half_life_ms)", "np.exp2(age_ms / half_life_ms)"),
        ("seen = segments.reduce(np.logical_or, column.valid, False)", "seen = segments.full"),
        ("segments.spread(newest) - ends", "0 * ends"),
    ),
    # records: cells are kept, folded and encoded
    *_mutants(
        "paimon_features/online/materialize/record_fold.py",
        "tests/online/materialize/test_record_fold.py "
        "tests/online/materialize/test_materializer.py",
        ('> headers["snapshot"][owner]', '>= headers["snapshot"][owner]'),
        ("(level == at) & (index >= first[owners])", "(level == at) & (index > first[owners])"),
        ("gone = ~inside & (level == top)", "gone = ~inside"),
        ("order = np.lexsort((keys, owners))", "order = np.argsort(owners, kind='stable')"),
        ('headers["snapshot"] = snapshot', 'headers["snapshot"] += 0'),
    ),
    *_mutants(
        "paimon_features/online/store/codec.py",
        "tests/online/store/test_codec.py",
        ("sizes != plain_sizes", "sizes != sizes"),
        ('rows[name][:, 0] += bases', 'rows[name][:, 0] += 0 * bases'),
        ('not np.isin(headers["format"], FORMATS).all() or ', ""),
        ("values if mask is None else np.where(mask, values, 0)", "values"),
    ),
    # compare-and-set
    *_mutants(
        "paimon_features/online/store/redis_store/scripts.py",
        "tests/online/store/test_stores.py tests/online/store/test_failures.py "
        "tests/online/materialize/test_crashes.py tests/online/materialize/test_lost_records.py",
        ("redis.call('GETRANGE', key, 0, #expected - 1) == expected\n", "true\n"),
        ("fits = redis.call('EXISTS', key) == 0", "fits = true"),
        ("local open = guard == '' or ", "local open = true or "),
        ("if ARGV[1] ~= '' and run_id() ~= ARGV[1] then", "if false then"),
        ("if not fits and again then", "if false then"),
    ),
    *_mutants(
        "paimon_features/online/materialize/apply.py",
        "tests/online/materialize/test_apply.py tests/online/materialize/test_lost_records.py",
        ("batch = batch.select(places[~np.array(done, bool)])", "batch = batch.select(places[:0])"),
        ("missing([e for e, b in zip(batch.entities, old, strict=True) if b is None])", "pass"),
        ("if raw is None or not raw.startswith(self._guard.expected):", "if False:"),
    ),
    # where a job may start again
    *_mutants(
        "paimon_features/flink/checkpoints.py",
        "tests/tiles/jobs paimon_features/flink/checkpoints.py",
        ("end is None or checkpoint.id <= end", "True"),
    ),
    *_mutants(
        "paimon_features/tiles/jobs/restart.py",
        "tests/tiles/jobs",
        ("if ledger.committed > newest.id:", "if False:"),
        ("ledger.handover_snapshot + 1)", "ledger.handover_snapshot)"),
        ("if s.id < cut]", "if s.id <= cut]"),
        ("if seen <= checkpoint.id:", "if seen < checkpoint.id:"),
        ("if unfinished and user and all(", "if unfinished or all("),
    ),
    # one owner of a table
    *_mutants(
        "paimon_features/lake/ownership/fence.py",
        "tests/lake/test_claims.py tests/lake/test_fencing.py tests/lake/test_lease.py",
        ("if follower is not None:", "if False:"),
    ),
    *_mutants(
        "paimon_features/lake/ownership/claims.py",
        "tests/lake/test_claims.py tests/lake/test_fencing.py tests/lake/test_lease.py",
        ("if not self.files.create(", "if self.files.replace("),
        ("if number < (self._oldest() or 0):", "if False:"),
        ("is None or stored.nonce != previous.nonce", "is None"),
    ),
    # rows of a training run
    *_mutants(
        "trainer_bridge/order/rank_shard.py",
        "tests/trainer_bridge/order trainer_bridge/order",
        ("first = (position + self.rank) % common", "first = self.rank % common"),
        ('if tail and self.last != "drop" else 0', "if tail else 0"),
        ("(self.positions(start) >= self.num_rows)", "(self.positions(start) > self.num_rows)"),
    ),
    # epochs of an iteration
    *_mutants(
        "paimon_features/iteration/epoch_tracker.py",
        "tests/iteration/test_epoch_tracker.py tests/iteration/test_semantics_epochs.py "
        "tests/iteration/test_semantics_termination.py tests/iteration/test_naive_differential.py",
        ("if self._ended[channel] or epoch <= self._rounds[channel]:", "if False:"),
        ("return (last, END) if last > before else (END,)", "return (END,)"),
        ("return min(\n            END if ended", "return max(\n            END if ended"),
    ),
]  # fmt: skip


QUICK = ("--hypothesis-profile=sample", "-m", "not long")
"""What `make test` runs of the tests; all of them run where these see nothing."""


def misplaced() -> list[Mutant]:
    """Return the faults whose text does not stand once in its file."""
    return [m for m in MUTANTS if (ROOT / m.file).read_text("utf-8").count(m.before) != 1]


def copy_of_checkout(folder: Path) -> None:
    """Copy the tracked files of this checkout, as they are now."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def tests_fail(folder: Path, tests: str, options: Sequence[str]) -> bool:
    """Return True if one of the tests fails in a copy of the checkout.

    Raises
    ------
    SystemExit
        If they cannot be run at all.
    """
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        *options,
    ]
    done = subprocess.run(
        [*command, *tests.split()],
        cwd=folder,
        # the copy, not the checkout that is installed
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"the tests {tests} did not run:\n{done.stdout[-3000:]}{done.stderr}")
    return done.returncode == 1


def is_caught(folder: Path, mutant: Mutant) -> bool:
    """Return True if the tests of a fault see it in a copy of the checkout."""
    file = folder / mutant.file
    right = file.read_text("utf-8")
    file.write_text(right.replace(mutant.before, mutant.after), "utf-8")
    try:
        return tests_fail(folder, mutant.tests, QUICK) or tests_fail(folder, mutant.tests, ())
    finally:
        file.write_text(right, "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="Mutation checks of the core.")
    parser.add_argument("-k", default="", metavar="TEXT", help="Only faults that contain a text.")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="No fault is tried later than that."
    )
    arguments = parser.parse_args()
    chosen = [m for m in MUTANTS if arguments.k in str(m)]
    if lost := misplaced():
        raise SystemExit(f"{lost[0]}: expected that text once in the file; update the list")
    end = time.monotonic() + 60 * arguments.minutes
    workers = max(1, min(len(os.sched_getaffinity(0)), 4))
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(workers) as pool:
        folders: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(workers):
            copy_of_checkout(Path(name) / str(number))
            folders.put(Path(name) / str(number))

        def in_a_copy(check: Callable[[Path], bool]) -> bool | None:
            if time.monotonic() > end:
                return None
            folder = folders.get()
            try:
                return check(folder)
            finally:
                folders.put(folder)

        def try_tests(tests: str) -> bool | None:
            return in_a_copy(lambda folder: tests_fail(folder, tests, QUICK))

        def try_mutant(mutant: Mutant) -> bool | None:
            return in_a_copy(lambda folder: is_caught(folder, mutant))

        groups = list(dict.fromkeys(m.tests for m in chosen))
        for tests, fail in zip(groups, pool.map(try_tests, groups), strict=True):
            if fail:
                raise SystemExit(f"the tests {tests} fail without any fault")
        print(f"without a fault the {len(groups)} groups of tests pass", flush=True)
        results = []
        for number, (mutant, caught) in enumerate(
            zip(chosen, pool.map(try_mutant, chosen), strict=True), 1
        ):
            word = {True: "caught  ", False: "SURVIVED", None: "not run "}[caught]
            print(f"{number}/{len(chosen)} {word} {mutant}", flush=True)
            results.append(caught)
    print(f"{results.count(True)} of {len(chosen)} faults caught", end="")
    print(f", {results.count(None)} not run: out of time" if None in results else "")
    return 1 if False in results else 0


if __name__ == "__main__":
    raise SystemExit(main())
