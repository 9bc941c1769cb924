"""Random bytes against the core under AddressSanitizer and UBSan; more with ``make fuzz``."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from paimon_features.testing.sizes import SEED, many
from tests.core.native.test_build import ROOT
from tests.modules import load_file

CALLS = "tests/core/native/hostile_calls.py"
FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")


def runtime_of(compiler: list[str]) -> str | None:
    """The sanitizers' library, which Python has to be started with; None where there is none."""
    for name in ("libasan.so", "libclang_rt.asan-x86_64.so"):
        found = subprocess.run(
            [*compiler, f"-print-file-name={name}"], capture_output=True, text=True
        ).stdout.strip()
        if os.path.isabs(found) and Path(found).is_file():
            return found
    return None


@pytest.mark.long
def test_random_bytes_stay_within_their_buffers(tmp_path: Path) -> None:
    build = load_file("hatch_build", ROOT / "hatch_build.py")
    compiler = build.system_compiler()
    runtime = None if compiler is None else runtime_of(compiler)
    if compiler is None or runtime is None:
        pytest.skip("no system compiler with AddressSanitizer: random bytes were not tried")
    built = tmp_path / "_core.abi3.so"
    build.compile_core(ROOT, built, compiler, *FLAGS)
    # without a seed of its own the suite makes the same calls each time
    seed = random.Random(os.environ.get(SEED, "0")).randrange(10**9)
    environment = {
        **os.environ,
        "LD_PRELOAD": runtime,
        # Python itself never frees all; a size that cannot be had is an error, as without
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        "PAIMON_FEATURES_NATIVE": "1",
    }
    done = subprocess.run(
        [sys.executable, CALLS, str(built), str(seed), str(many(150))],
        cwd=ROOT, env={**environment, "PYTHONPATH": "."}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, f"seed {seed}\n{done.stdout[-2000:]}{done.stderr[-6000:]}"
