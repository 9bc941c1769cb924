"""Installs the wheel with each extra into a clean environment, and uses it there.

    make extras                                     # every extra, with every Python of this machine
    make extras ARGS="--extra serve --extra oidc --python 3.13"
    make extras ARGS=--heavy                        # also install those of gigabytes

For each pair of extra and Python: a new virtual environment, the wheel with that extra (versions by
the resolver, so also what is newer than the lock files), and a small program that does what the
extra is for. Extras of gigabytes are resolved only, and it says so, unless they are named or
--heavy is given: their packages, with torch or TensorFlow, are those of `make test`. A pair that
cannot exist (Flink has no release for Python 3.13) is named with the reason and counted; a Python
that is not on this machine is named, too.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
UV = [sys.executable, "-m", "uv"]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
NOT_TRIED = {"all", "dev", "docs"}
"""Sums of other extras, and what only a checkout needs."""

_DEFINE = """
import paimon_features as pf
source = pf.EventSource("s", schema={"k": pf.Int64, "t": pf.Int64}, event_time="t")
entity = pf.Entity("e", keys={"k": pf.Int64})
view = pf.FeatureView("v", source=source, entity=entity, features=[pf.Count(windows=["1d"])])
"""
_LAKE = (
    _DEFINE
    + """
import pathlib, tempfile
from paimon_features.project import Project
folder = pathlib.Path(tempfile.mkdtemp())
(folder / "paimon-features.toml").write_text("")
program = '''
import paimon_features as pf
source = pf.EventSource("s", schema={"k": pf.Int64, "t": pf.Int64}, event_time="t")
entity = pf.Entity("e", keys={"k": pf.Int64})
view = pf.FeatureView("v", source=source, entity=entity, features=[pf.Count(windows=["1d"])])
'''
(folder / "features.py").write_text(program)
project = Project.open(folder)
project.apply()
assert project.plan().is_empty
"""
)
_SERVE = (
    _DEFINE
    + """
from paimon_features.online.store import MemoryStore
from paimon_features.serving.reading.fetcher import FeatureFetcher
answer = FeatureFetcher("p", [view.compiled], MemoryStore())
import paimon_features.serving.http.server.app
"""
)
PROGRAMS = {
    "": "from paimon_features.cli import cli; "
    "import paimon_features.core.configuration.project_config",
    "arrow": _DEFINE + "import pyarrow; from paimon_features.core.columns.column import Column",
    "client": "from paimon_features.serving.client import FeatureClient; "
    "FeatureClient('http://127.0.0.1:1').close()",
    "demo": _LAKE + "import hydra, matplotlib, onnxruntime, torch, pyflink, redis",
    "formats": _LAKE
    + "import deltalake, fastavro, pyiceberg; import paimon_features.ingest.inputs",
    "fastapi": _SERVE + "from paimon_features.integrations.fastapi import feature_router",
    "flink": _LAKE + "import pyflink.table; import paimon_features.flink.environment",
    "kafka": _LAKE + "import confluent_kafka; import paimon_features.serving.publishing",
    "lake": _LAKE,
    "local": _LAKE + "import duckdb; import paimon_features.project.local",
    "mcp": _LAKE + "import paimon_features.integrations.mcp.protocol",
    "mlflow": "import mlflow; import paimon_features.models.mlflow_tracking",
    "oidc": "import jwt; from paimon_features.core.configuration.project_config import OidcConfig",
    "onnx": _LAKE + "import onnx",
    "openlineage": _LAKE
    + "import openlineage.client; import paimon_features.integrations.openlineage",
    "otel": "import opentelemetry.sdk.trace; "
    "from paimon_features.core.process.traces import open_tracer",
    "polars": _LAKE + "import trainer_bridge.adapters.polars",
    "predict": _SERVE + "import onnxruntime; import paimon_features.serving.prediction.network",
    "s3": "import obstore",
    "serve": _SERVE,
    "tensorflow": _LAKE + "import trainer_bridge.tensorflow, tensorflow",
    "torch": _LAKE + "import torch; import trainer_bridge.adapters.torch",
    "train": _LAKE + "import torch, lightning; import trainer_bridge.training.run",
}
"""What each extra is used for; the base install is the extra without a name."""
HEAVY = ("demo", "tensorflow", "torch", "train")
"""Extras that install gigabytes."""
WITH = {"mlflow": ("lake",), "oidc": ("serve",)}
"""Extras that are made to be installed next to others."""
LAST = {
    "flink": ("3.12", "apache-flink has no later release"),
    "demo": ("3.12", "apache-flink has no later release"),
    **dict.fromkeys(
        (
            "formats",
            "kafka",
            "lake",
            "local",
            "mcp",
            "mlflow",
            "onnx",
            "openlineage",
            "polars",
            "torch",
            "train",
        ),
        ("3.13", "pypaimon caps pyarrow below 20, which has no wheels for 3.14"),
    ),
    "tensorflow": ("3.13", "tensorflow has no later release"),
}
"""The last Python of an extra, and why."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--extra", action="append", choices=sorted(PROGRAMS))
    parser.add_argument("--python", action="append", choices=PYTHONS)
    parser.add_argument("--heavy", action="store_true", help="install also extras of gigabytes")
    arguments = parser.parse_args()
    failed, tried, left_out = [], 0, []
    resolved_only = () if arguments.heavy or arguments.extra else HEAVY
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = build(folder)
        for version in arguments.python or PYTHONS:
            interpreter = find(version)
            if interpreter is None:
                left_out.append(f"Python {version} is not on this machine")
                continue
            for extra in arguments.extra or sorted(PROGRAMS):
                last = LAST.get(extra)
                if last is not None and _number(version) > _number(last[0]):
                    left_out.append(f"{extra} on {version}: {last[1]}")
                    continue
                tried += 1
                started_s = time.monotonic()
                if extra in resolved_only:
                    problem, good = resolve(interpreter, wheel, extra), "resolves, not installed"
                else:
                    problem = attempt(folder / "environment", interpreter, wheel, extra)
                    good = "works"
                took_s = time.monotonic() - started_s
                say(f"{extra or '(base)'} on {version}: {problem or good} ({took_s:.0f} s)")
                if problem:
                    failed.append(f"{extra or '(base)'} on {version}")
    for reason in left_out:
        say(f"not tried: {reason}")
    say(
        f"{tried - len(failed)} of {tried} work or resolve"
        + (f"; not: {', '.join(failed)}" if failed else "")
    )
    return 1 if failed or not tried else 0


def extras() -> set[str]:
    """The extras of pyproject.toml."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return set(document["project"]["optional-dependencies"])


def build(folder: Path) -> Path:
    """The wheel of this checkout."""
    run([*UV, "build", "--quiet", "--wheel", "--out-dir", str(folder), str(ROOT)])
    (wheel,) = folder.glob("*.whl")
    return wheel


def find(version: str) -> str | None:
    """The interpreter of a version, None if this machine has none that runs."""
    done = subprocess.run(
        [*UV, "python", "find", "--no-python-downloads", "--no-project", version],
        capture_output=True, text=True, cwd="/",
    )  # fmt: skip
    return done.stdout.strip() or None if done.returncode == 0 else None


def attempt(folder: Path, interpreter: str, wheel: Path, extra: str) -> str | None:
    """Install and use one pair; what went wrong, None where it works."""
    names = [name for name in (extra, *WITH.get(extra, ())) if name]
    what = f"paimon-features[{','.join(names)}] @ {wheel.as_uri()}"
    python = folder / "bin" / "python"
    try:
        run([*UV, "venv", "--quiet", "--clear", "--python", interpreter, str(folder)])
        run([*UV, "pip", "install", "--quiet", "--python", str(python), what])
        run([*UV, "pip", "check", "--quiet", "--python", str(python)])
        run([str(folder / "bin" / "paimon-features"), "--version"])
        run([str(python), "-P", "-c", PROGRAMS[extra]])
    except RuntimeError as error:
        return str(error)
    return None


def resolve(interpreter: str, wheel: Path, extra: str) -> str | None:
    """Find versions for one pair, which are not installed; what went wrong, None where it works."""
    with tempfile.TemporaryDirectory() as name:
        wanted = Path(name, "wanted.in")
        wanted.write_text(f"paimon-features[{extra}] @ {wheel.as_uri()}\n")
        command = [*UV, "pip", "compile", "--quiet", "--python", interpreter, str(wanted)]
        try:
            run([*command, "-o", str(wanted.with_suffix(".txt"))])
        except RuntimeError as error:
            return str(error)
    return None


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise RuntimeError(f"exit code {done.returncode}: {' / '.join(lines[-3:])}"[:600])


def say(text: str) -> None:
    print(f"extras: {text}", flush=True)


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


if __name__ == "__main__":
    sys.exit(main())
