"""What every test of the project obeys: what it needs, and what happens when that is missing.

Plain ``pytest`` skips a test whose engine is missing, and says what is missing. ``make test``
and CI name the engines in PAIMON_FEATURES_REQUIRE: there a missing engine is an error, so that
a green run means that everything ran.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib.util
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

from paimon_features.core.errors import PaimonFeaturesError, SetupError
from paimon_features.core.installation.jars import missing_jars
from paimon_features.core.installation.java import find_java_home
from paimon_features.testing.servers.redis_server import find_redis_server
from tests.servers.kafka_server import JAR_GROUP

REQUIRED = {name for name in os.environ.get("PAIMON_FEATURES_REQUIRE", "").split(",") if name}

ROOT = Path(__file__).parent

BYTES_OF_A_PROCESS = 5 * 2**30
"""torch, TensorFlow and a Flink cluster in one test process."""

# modules whose import needs an engine: without it they cannot be searched for doctests
ENGINE_OF_MODULES = {
    # other folders named flink import pyflink where they use it: SQL needs no Flink
    "paimon_features/iteration/flink": "pyflink",
    "paimon_features/integrations/feast/plugin": "feast",
    "paimon_features/integrations/mcp/protocol.py": "mcp",
    "paimon_features/online/store/redis_store": "redis",
    "paimon_features/integrations/fastapi.py": "fastapi",
    "trainer_bridge/adapters/duckdb.py": "duckdb",
    "trainer_bridge/adapters/huggingface.py": "datasets",
    "trainer_bridge/adapters/polars.py": "polars",
    "trainer_bridge/adapters/ray.py": "ray",
    "trainer_bridge/adapters/torch": "torch",
    "trainer_bridge/adapters/tensorflow": "tensorflow",
    "trainer_bridge/tensorflow.py": "tensorflow",
}

# a thread for each core in each process of a run: they spin while they wait for each other, and a
# small fit took 4 ms a step instead of 0.1; where threads are the matter, a test asks for them
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

# TensorFlow and Triton (which torch's optimisers look for) each bring an LLVM: the second one to be
# imported aborts the process; nothing here compiles by Triton
sys.modules.setdefault("triton", None)  # type: ignore[arg-type]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # so a script starts what it leaves in the background; here tests send Ctrl-C to themselves
    signal.signal(signal.SIGINT, signal.default_int_handler)

# many short jobs, in the JVMs of tests and of the processes that they start: neither the optimizing
# compiler nor the verification of Flink's own classes pays off within seconds; without the second
# compiler Java reserves 48 MB for compiled code, which the hundreds of jobs of a worker fill within
# three minutes, and from then on code is interpreted, compiled and evicted in turns
os.environ.setdefault(
    "JVM_ARGS",
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
)

hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
hypothesis.settings.register_profile(
    # two fifths of the random cases; without a profile all of them run
    "sample",
    deadline=None,
    print_blob=True,
    derandomize=True,
    max_examples=40,
)
hypothesis.settings.register_profile(
    "fuzz",
    deadline=None,
    print_blob=True,
    max_examples=int(os.environ.get("PAIMON_FEATURES_FUZZ_EXAMPLES", "5000")),
)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


def _package(module: str, extra: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise SetupError(f"the package {module} (pip install 'paimon-features[{extra}]')")


def _flink() -> None:
    _package("pyflink", "flink")
    find_java_home()
    if jars := missing_jars():
        names = ", ".join(jar.file_name for jar in jars)
        raise SetupError(f"the jars {names} (paimon-features jars)")


def _kafka() -> None:
    _package("confluent_kafka", "kafka")
    find_java_home()
    if jars := missing_jars([JAR_GROUP]):
        raise SetupError(f"{len(jars)} jars of a broker (paimon-features jars --group {JAR_GROUP})")


def _redis() -> None:
    _package("redis", "serve")
    find_redis_server()


def _torch() -> None:
    _package("torch", "torch")


def _tensorflow() -> None:
    _package("tensorflow", "tensorflow")


NEEDS: dict[str, Callable[[], None]] = {
    "flink": _flink,
    "kafka": _kafka,
    "redis": _redis,
    "tensorflow": _tensorflow,
    "torch": _torch,
}


@functools.cache
def missing(engine: str) -> str | None:
    """Return what ``engine`` lacks on this machine, None where it is complete."""
    try:
        NEEDS[engine]()
    except PaimonFeaturesError as error:
        return str(error)
    return None


FAST_WITHOUT = {
    "chromium",
    "kafka_broker",
    "object_store",
    "redis_server",
    "redis_url",
    "session_cluster",
    "store",
}
"""Fixtures that start a server: what uses them is not in ``make test-fast``."""

SLOW = (
    "tests/cli",
    "tests/serving/client",
    "tests/flink",
    "tests/iteration/test_iterative_statistics.py",
    "tests/local",
    "tests/online/materialize",
    "tests/project/monitoring",
    "tests/core/native/test_build.py",
    "tests/core/native/test_sanitized.py",
    "tests/core/notebook/test_progress.py",
    "tests/offline",
    "tests/online/store",
    "tests/integrations/openlineage",
    "tests/project/operations",
    "tests/project/outcomes",
    "tests/project/planning",
    "tests/serving/publishing",
    "tests/serving",
    "tests/core/installation",
    "tests/lake",
    "tests/test_bootstrap.py",
    "tests/test_changed_tests.py",
    "tests/test_fuzz.py",
    "tests/test_matrix.py",
    "tests/test_missing_extras.py",
    "tests/test_requirements.py",
    "tests/test_retail_log.py",
    "tests/test_times.py",
    "tests/test_traces.py",
    "tests/test_tracking.py",
    "tests/test_without_arrow.py",
    "tests/trainer_bridge",
    "tests/project/verification",
    "tests/project/web",
    "docs",
    "README.md",
    "CONTRIBUTING.md",
)
"""What opens lakes, starts processes or servers: ``make test`` only."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fast", action="store_true", help="Only tests that need no engine, no server and no lake."
    )
    parser.addoption(
        "--long",
        action="store_true",
        help="Only tests marked `long`, and all cases of the random ones.",
    )


def pytest_configure(config: pytest.Config) -> None:
    if unknown := REQUIRED - NEEDS.keys():
        raise pytest.UsageError(
            f"PAIMON_FEATURES_REQUIRE names {sorted(unknown)}; it takes: {', '.join(NEEDS)}"
        )
    for engine in sorted(REQUIRED):
        if lack := missing(engine):
            raise pytest.UsageError(f"{engine} is required here, but it lacks: {lack}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """``-n auto``: one process more than cores, as far as memory goes, at most four.

    Tests of processes, jobs and servers wait for a quarter of their time. Fast ones wait for
    nothing, and another process has all modules to import.
    """
    waiting = 0 if config.getoption("--fast") else 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)) + waiting, memory // BYTES_OF_A_PROCESS, 4))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One process runs the jobs, another one those with a broker: few JVMs, soon warm."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class JvmScheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            module: str = super()._split_scope(nodeid)
            return _jvm_of(module) or module

    return JvmScheduling(config, log)


@functools.cache
def _jvm_of(module: str) -> str | None:
    """Provide the JVM that the tests of a module start in their own process, or None."""
    if not module.endswith(".py"):
        return None
    source = (ROOT / module).read_text(encoding="utf-8")
    if "kafka_broker" in source:
        return "kafka"
    in_jvm = _is_below(module, "tests/flink") and "mark.flink" in source
    return "flink" if in_jvm or "flink_sql" in source or "flink_tables" in source else None


def _is_fast(item: pytest.Item) -> bool:
    place = item.path.relative_to(ROOT).as_posix()
    return not (
        any(item.get_closest_marker(engine) for engine in NEEDS)
        or FAST_WITHOUT & set(getattr(item, "fixturenames", ()))
        or _is_below(place, *SLOW)
    )


def _is_below(place: str, *roots: str) -> bool:
    """Whether a path, relative to the repository, is one of ``roots`` or inside one."""
    return any(place == root or place.startswith(f"{root}/") for root in roots)


def _longest_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """Modules that take long come first, so that no process ends long after the others.

    A module that ``tests/slowest.txt`` does not name keeps its place behind them, and a name of
    a module that is gone means nothing.
    """
    lines = (ROOT / "tests" / "slowest.txt").read_text("utf-8").splitlines()
    ranks = {line.split()[1]: rank for rank, line in enumerate(lines) if not line.startswith("#")}
    last = len(lines)
    return sorted(items, key=lambda item: ranks.get(item.path.relative_to(ROOT).as_posix(), last))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """``make fuzz`` runs what is random, its modules in another order each time."""
    if config.getoption("--fast"):
        _select(config, items, _is_fast)
    if config.getoption("--long"):
        _select(
            config, items, lambda item: bool(item.get_closest_marker("long")) or _is_random(item)
        )
    if hasattr(config, "workerinput"):
        items[:] = _longest_first(items)
    if config.getoption("--hypothesis-profile") != "fuzz":
        return
    order = {path: i for i, path in enumerate(dict.fromkeys(item.path for item in items))}
    places = list(order.values())
    random.Random(os.environ.get("PAIMON_FEATURES_SEED")).shuffle(places)
    _select(config, items, _is_random)
    items.sort(key=lambda item: places[order[item.path]])


def _select(
    config: pytest.Config, items: list[pytest.Item], wanted: Callable[[pytest.Item], bool]
) -> None:
    """Keep the wanted items, and count the others as deselected."""
    left_out = [item for item in items if not wanted(item)]
    items[:] = [item for item in items if wanted(item)]
    config.hook.pytest_deselected(items=left_out)


def _is_random(item: pytest.Item) -> bool:
    # Hypothesis sets its own marker later than collection
    if hypothesis.is_hypothesis_test(getattr(item, "obj", None)):
        return True
    # a loop over ``seeds(...)``, in the test itself or by ``every_seed``
    code = getattr(getattr(item, "function", None), "__code__", None)
    if code is not None and "seeds" in code.co_names:
        return True
    of_pytest = getattr(item, "callspec", None)
    return of_pytest is not None and "seed" in of_pytest.params


MANY_MODULES = 200
"""As many as an engine imports, at the least."""

_modules_frozen = 0


def _freeze() -> None:
    """Make later garbage collections visit only what is made from now on.

    A collection would else visit all that the engines' packages made, a second each time.
    """
    global _modules_frozen
    gc.collect()
    gc.freeze()
    _modules_frozen = len(sys.modules)


def pytest_collection_finish(session: pytest.Session) -> None:
    _freeze()
    # what is frozen is never freed, which DuckDB's bindings report as a leak at exit; not before:
    # pytest collects five times when it ends
    atexit.register(gc.unfreeze)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.time() > float(os.environ.get("PAIMON_FEATURES_FUZZ_UNTIL", "inf")):
        pytest.skip("the time for this run is over")
    for engine in NEEDS:
        if item.get_closest_marker(engine) and (lack := missing(engine)):
            pytest.skip(f"needs {engine}, which lacks: {lack}")
    if item.get_closest_marker("flink"):
        _share_mini_cluster()


@functools.cache
def _share_mini_cluster() -> None:
    # not at the top: the fast tests import no engine
    from tests.mini_cluster import share_mini_cluster

    share_mini_cluster()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    result = yield
    # behind a module's fixtures: what they made is not kept
    ends = nextitem is None or nextitem.path != item.path
    if ends and len(sys.modules) > _modules_frozen + MANY_MODULES:
        _freeze()
    return result


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    place = collection_path.relative_to(ROOT).as_posix()
    # importing the engines takes longer than the fast tests
    if config.getoption("--fast") and _is_below(place, *SLOW, *ENGINE_OF_MODULES):
        return True
    for modules, package in ENGINE_OF_MODULES.items():
        if _is_below(place, modules) and importlib.util.find_spec(package) is None:
            return True
    return None


@pytest.fixture
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty folder, so that a code block of a document leaves nothing behind."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


# The Python blocks of a document run in their order, in one namespace, in an empty folder. A
# block that cannot run says why, in a comment before it:  <!-- skip: next "needs a cluster" -->
pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()],
    patterns=["README.md", "CONTRIBUTING.md", "docs/*.md", "docs/*/*.md", "docs/*/*/*.md"],
    fixtures=["in_empty_folder"],
).pytest()
