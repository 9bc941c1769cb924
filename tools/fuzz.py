"""`make fuzz`: the random tests again and again, each round with another seed.

FUZZ_MINUTES   stop after so many minutes; without it one long round
FUZZ_EXAMPLES  cases a round of a test that has 100 in the suite: 5000, of rounds by time 300
FUZZ_SEED      the seed of the first round; a random one by default
FUZZ_REQUESTS  only the feature server, by about so many requests at random, half of them over
               sockets: FUZZ_REQUESTS=100000 takes some minutes
Arguments go to pytest: ARGS="tests/test_matrix.py", ARGS="-k join"
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time

OF_REQUESTS = (
    "tests/serving/http/test_fuzz.py",
    "tests/serving/http/test_hostile_clients.py",
    "tests/serving/http/test_split_requests.py",
    "tests/serving/http/test_growth.py",
)
REQUESTS_IN_SUITE = 4_000
"""Which these tests send when a test has 100 cases, half in process and half over sockets."""


def main(arguments: list[str]) -> int:
    minutes = os.environ.get("FUZZ_MINUTES")
    until = None if minutes is None else time.time() + 60 * float(minutes)
    examples = os.environ.get("FUZZ_EXAMPLES", "5000" if until is None else "300")
    if requests := os.environ.get("FUZZ_REQUESTS"):
        examples = str(max(1, int(requests) * 100 // REQUESTS_IN_SUITE))
        arguments = [*OF_REQUESTS, *arguments]
    seed = int(os.environ.get("FUZZ_SEED", random.randrange(10**9)))
    started = time.time()
    for number in range(1, sys.maxsize):
        print(
            f"fuzz: round {number}, seed {seed}, {examples} cases for 100 in the suite, "
            f"{(time.time() - started) / 60:.1f} min gone"
            + ("" if until is None else f" of {float(minutes or 0):g}"),
            flush=True,
        )
        code = round_of(seed, examples, until, arguments)
        if code not in (0, 5):  # 5: nothing was left to run
            again = " ".join(arguments)
            print(f'fuzz: again with FUZZ_SEED={seed} FUZZ_EXAMPLES={examples} ARGS="{again}"')
            return code
        if until is None or time.time() >= until:
            print(f"fuzz: nothing found in {number} rounds")
            return 0
        seed += 1
    return 0


def round_of(seed: int, examples: str, until: float | None, arguments: list[str]) -> int:
    """All random tests with one seed; those that have not begun by ``until`` are left out."""
    environment = {
        **os.environ,
        "PAIMON_FEATURES_SEED": str(seed),
        "PAIMON_FEATURES_FUZZ_EXAMPLES": examples,
    }
    if until is not None:
        environment["PAIMON_FEATURES_FUZZ_UNTIL"] = str(until)
    command = [
        *(sys.executable, "-m", "pytest", "-x", "--timeout=0", "-m", "not flink"),
        *("--hypothesis-profile=fuzz", f"--hypothesis-seed={seed}", "--durations=5", *arguments),
    ]
    return subprocess.run(command, env=environment).returncode


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
