"""The native core: built where a compiler is, left out where none is, and never missed."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from paimon_features.core import native
from paimon_features.core.native import CORE, STATE
from tests.long_cases import quick_cases
from tests.modules import load_file

ROOT = Path(__file__).parents[3]


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, cwd=ROOT,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_a_checkout_that_was_set_up_has_the_core() -> None:
    if not (ROOT / ".venv").is_dir():
        pytest.skip("not set up by tools/setup.sh")
    assert os.environ.get(native.VARIABLE) == "0" or CORE is not None, STATE.found


@pytest.mark.parametrize("own_header", quick_cases([False, True], True))
def test_it_compiles_with_and_without_headers_of_python(tmp_path: Path, own_header: bool) -> None:
    build = load_file("hatch_build", ROOT / "hatch_build.py")
    compiler = build.find_compiler()
    if compiler is None:
        pytest.skip("no C compiler")
    built = tmp_path / "_core.abi3.so"
    build.compile_core(ROOT, built, compiler, "-Werror", own_header=own_header)
    core = load_file("_core", built)
    assert core.times_json(np.array([0])) == b'["1970-01-01T00:00:00Z"]'
    out = np.zeros(2)
    core.move(np.array([1.0, 2.0, 3.0]), np.array([2, 0]), 8, out, None)
    assert out.tolist() == [3.0, 1.0]
    with pytest.raises(ValueError, match="out of range"):
        core.move(np.array([1.0]), np.array([1, 0]), 8, out, None)
    with pytest.raises(TypeError):
        core.times_json("text")
    assert core.count([None, b"x"], np.array([7, 0, 1, 1, 1_000, 0])) == (0, 0)


@pytest.mark.parametrize("compiler", ["any", "none"])
def test_a_wheel_has_the_core_or_is_for_any_platform(tmp_path: Path, compiler: str) -> None:
    build = load_file("hatch_build", ROOT / "hatch_build.py")
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling, the build backend, is not installed")
    if compiler == "any" and build.find_compiler() is None:
        pytest.skip("no C compiler")
    # a copy: the build writes into the package's folder
    copy = tmp_path / "copy"
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((ROOT / name).read_bytes())
    for name in ("core.c", "stable_abi.h", "__init__.py"):
        target = copy / "paimon_features/core/native" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / "paimon_features/core/native" / name).read_bytes())
    for name in ("trainer_bridge", "jobs", "examples/retail"):
        (copy / name).mkdir(parents=True)
        (copy / name / "__init__.py").touch()
    environment = {**os.environ, "PAIMON_FEATURES_COMPILER": "" if compiler == "any" else compiler}
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "out")],
        cwd=copy, env=environment, check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    [wheel] = (tmp_path / "out").glob("*.whl")
    built = "paimon_features/core/native/_core.abi3.so" in zipfile.ZipFile(wheel).namelist()
    assert built is (compiler == "any")
    assert ("-cp311-abi3-" in wheel.name) is built
    assert wheel.name.endswith("-py3-none-any.whl") is not built


def test_without_the_core_values_are_the_same_and_the_log_says_so_once() -> None:
    code = """
import json, logging, random, sys
logging.basicConfig(stream=sys.stderr, level=logging.INFO)
from paimon_features.core.native import CORE
from paimon_features.online.store import MemoryStore
from paimon_features.serving.reading.fetcher import FeatureFetcher
from paimon_features.serving.reading.view_results import ViewPlan
from tests.generators import random_view
from tests.stored_rows import StoredRows
rng = random.Random(11)
view = next(v for v in iter(lambda: random_view(rng).compiled, None)
            if v.is_online and ViewPlan(StoredRows(v).variant, v.features).types)
for _ in range(2):
    FeatureFetcher("p", [view], MemoryStore())
rows = StoredRows(view)
plan = ViewPlan(rows.variant, view.features)
part = rows.read(rows.random_records(rng, 1_700_000_000_000, 5)).part(0, 5)
folded = plan.fold(part, 1_700_000_000_000, set())
result = plan.compute(part, folded, 1_700_000_000_000, set())
print(json.dumps([CORE is not None, folded is not None,
      {n: [c.mask.tolist(), c.values[c.mask].astype(str).tolist()]
       for n, c in result.values.items()}]))
"""
    off = python(code, PAIMON_FEATURES_NATIVE="0")
    assert off.returncode == 0, off.stderr
    is_built, folded, values = json.loads(off.stdout)
    assert (is_built, folded) == (False, False)
    assert off.stderr.count("native core: turned off by PAIMON_FEATURES_NATIVE=0") == 1
    if CORE is not None:
        on = python(code, PAIMON_FEATURES_NATIVE="1")
        assert on.returncode == 0, on.stderr
        assert json.loads(on.stdout) == [True, True, values]
        assert "native core" not in on.stderr


def test_doctor_says_whether_it_is_used() -> None:
    code = "from paimon_features.project.doctor import check_native; print(check_native())"
    assert "'optional'" in python(code, PAIMON_FEATURES_NATIVE="0").stdout
    if CORE is not None:
        assert "'ok'" in python(code, PAIMON_FEATURES_NATIVE="1").stdout


def test_what_is_not_built_is_said_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(native.VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "paimon_features.core.native._core", None)
    core, state = native._load()
    assert core is None
    assert state.found.startswith("not built (")
    monkeypatch.setattr(native, "STATE", state)
    native.log_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        native.log_once()
        native.log_once()
    native.log_once.cache_clear()
    assert [record.message.count("ziglang") for record in caplog.records] == [2]
