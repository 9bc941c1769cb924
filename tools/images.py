"""Builds the images of docker/, checks their sizes, and starts a small platform from them.

    make images                                  with docker, podman or buildah, whichever is here
    make images ARGS="--only serving"            one of them
    make images ARGS="--python-image localhost/base --no-platform"

Three steps, each of which ends with an error if it fails:

1. every target of docker/Dockerfile is built;
2. its size above the Python image it starts from is printed, and has to be within its bound;
3. the platform of docker/compose.yaml is started from the images, as processes on this host's
   network: `apply`, the two Flink processes, the tile job, `ingest`, the materializer and the
   feature server; then the server's answer for one entity has to be the number computed here.

buildah needs neither a daemon nor root's cgroups: ``--storage-driver vfs`` and ``--isolation
chroot`` work inside containers, too. There HEALTHCHECK is left out (the OCI format has none).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paimon_features.cli.init import write_project
from paimon_features.core.process.ports import free_ports
from paimon_features.testing.servers.redis_server import RedisServer

ROOT = Path(__file__).parents[1]
PYTHON_IMAGE = re.findall(
    r"(?m)^ARG PYTHON_IMAGE=(\S+)$", (ROOT / "docker/Dockerfile").read_text()
)[0]

# MB that an image may add to the Python image; serving hosts are many and start often
BOUNDS = {
    "serving": 135,
    "predict": 205,
    "materializer": 1_000,
    "jobs": 1_800,
    "training": 7_200,
}

# what shows that an image has all that it needs, in a second or two
FIRST_COMMANDS: dict[str, list[str]] = {
    "serving": ["paimon-features", "serve", "--help"],
    "materializer": ["paimon-features", "materialize", "--help"],
    "jobs": ["paimon-features", "jars"],
    "predict": ["python", "-c", "import onnxruntime, paimon_features.serving"],
    "training": ["python", "-c", "import torch, trainer_bridge; trainer_bridge.SnapshotReader"],
}


class StepFailedError(Exception):
    """A step did not end as it has to; the text says which, and what was printed."""


@dataclass(frozen=True)
class Engine:
    """A program that builds and runs images: ``docker``, ``podman`` or ``buildah``."""

    name: str

    @property
    def program(self) -> list[str]:
        """The start of every command line."""
        return ["buildah", "--storage-driver", "vfs"] if self.name == "buildah" else [self.name]

    def build(self, target: str, python_image: str) -> None:
        """Build one target of docker/Dockerfile as ``paimon-features-TARGET``."""
        command = [*self.program, "build", "-f", "docker/Dockerfile"]
        if self.name == "buildah":
            command += ["--isolation", "chroot"]
        if self.name != "docker":  # docker finds docker/Dockerfile.dockerignore by its name
            command += ["--ignorefile", "docker/Dockerfile.dockerignore"]
        command += ["--build-arg", f"PYTHON_IMAGE={python_image}", "--target", target]
        completed([*command, "-t", image(target), "."])

    def size_mb(self, name: str) -> float:
        """The size of an image with all its layers, in MB (10^6 bytes)."""
        if self.name != "buildah":
            inspected = [*self.program, "image", "inspect", "--format", "{{.Size}}", name]
            return int(completed(inspected)) / 1e6
        (found,) = json.loads(completed([*self.program, "images", "--json", name]))
        value, unit = re.match(r"([\d.]+) (\w+)", found["size"]).groups()  # type: ignore[union-attr]
        return float(value) * {"KB": 1e-3, "MB": 1.0, "GB": 1e3}[unit]

    @contextlib.contextmanager
    def container(self, target: str) -> Iterator[Container]:
        """A container of an image, removed at the end."""
        name = f"paimon-features-{target}-{uuid.uuid4().hex[:8]}"
        if self.name == "buildah":
            completed([*self.program, "from", "--name", name, image(target)])
        try:
            yield Container(self, target, name)
        finally:
            if self.name == "buildah":
                completed([*self.program, "rm", name])


@dataclass(frozen=True)
class Container:
    """Where commands of one image run: on this host's network, as user 10001."""

    engine: Engine
    target: str
    name: str

    def command(
        self, words: Sequence[str], volumes: dict[Path, str], variables: dict[str, str]
    ) -> list[str]:
        """The command line that runs ``words`` in this container, with folders mounted."""
        flags = [f"--volume={host}:{inside}" for host, inside in volumes.items()]
        flags += [f"--env={name}={value}" for name, value in variables.items()]
        program = self.engine.program
        if self.engine.name == "buildah":
            # Java resolves the host's name, and nothing makes that of such a container resolvable
            flags += ["--isolation", "chroot", "--hostname", "localhost"]
            return [*program, "run", *flags, self.name, "--", *words]
        entry = ["--entrypoint", words[0]]
        run = ["run", "--rm", "--init", "--network", "host", *entry, *flags]
        return [*program, *run, image(self.target), *words[1:]]


def image(target: str) -> str:
    """The name of the image of a target, as docker/compose.yaml has it."""
    return f"paimon-features-{target}"


def say(text: str) -> None:
    print(f"images: {text}", flush=True)


def completed(command: Sequence[str], timeout_s: float = 3600.0) -> str:
    """Run a command to its end and return what it printed; else `StepFailedError` with its end."""
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, errors="replace"
    )
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        raise StepFailedError(f"exit code {done.returncode} of: {' '.join(command)}\n{tail}")
    return done.stdout


def find_engine(wanted: str | None) -> Engine:
    """The engine that was named, or the first one that answers here."""
    checks = {
        "docker": ["docker", "info"],
        "podman": ["podman", "info"],
        "buildah": ["buildah", "--version"],
    }
    for name in [wanted] if wanted else checks:
        if shutil.which(name) and not subprocess.run(checks[name], capture_output=True).returncode:
            return Engine(name)
    raise StepFailedError(
        f"no engine that builds images answers: looked for {wanted or ', '.join(checks)}. "
        "Start Docker, or install buildah (Debian: apt install buildah)"
    )


# ---- the platform of docker/compose.yaml -------------------------------------------------------


class Platform:
    """The processes of the platform, each from its image; all of them end with this object."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._engine = engine
        self._folder = folder
        self._ends = contextlib.ExitStack()
        self._containers: dict[str, Container] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        redis = self._ends.enter_context(RedisServer())
        self._variables = {"PAIMON_FEATURES_ONLINE_URL": redis.url}
        self.project = folder / "project"
        self._volumes = {self.project: "/project", folder / "lake": "/lake"}
        for path in self._volumes:
            path.mkdir()
            path.chmod(0o777)  # user 10001 of the images writes here

    def __enter__(self) -> Platform:
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(self._running):
            self._end(name)
        self._ends.close()

    def run(self, target: str, *words: str) -> str:
        """Run a command of an image to its end."""
        say(f"{target}: {' '.join(words)}")
        return completed(self._command(target, words), timeout_s=600)

    def start(self, name: str, target: str, *words: str) -> None:
        """Start a command that stays."""
        say(f"{target}: {' '.join(words)} &")
        with self._log(name).open("wb") as log:
            self._running[name] = subprocess.Popen(
                self._command(target, words),
                cwd=ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self, what: str, is_there: Callable[[], bool], limit_s: float = 240.0) -> None:
        """Wait for a condition; `StepFailedError` after ``limit_s`` or if a process ends."""
        end = time.monotonic() + limit_s
        while not is_there():
            for name, process in self._running.items():
                if process.poll() is not None:
                    raise StepFailedError(f"{name} ended before {what}:\n{self._tail(name)}")
            if time.monotonic() > end:
                tails = "\n".join(f"--- {name}\n{self._tail(name)}" for name in self._running)
                raise StepFailedError(f"{what} not within {limit_s:.0f} s\n{tails}")
            time.sleep(0.5)

    def _command(self, target: str, words: Sequence[str]) -> list[str]:
        if target not in self._containers:
            container = self._ends.enter_context(self._engine.container(target))
            self._containers[target] = container
        return self._containers[target].command(words, self._volumes, self._variables)

    def _end(self, name: str) -> None:
        process = self._running[name]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _tail(self, name: str) -> str:
        return "\n".join(self._log(name).read_text(errors="replace").splitlines()[-25:])


def answers(url: str, holds: str = "") -> bool:
    """Whether a GET of the address is answered with 200 and a body that contains ``holds``."""
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return holds in reply.read().decode()
    except OSError:
        return False


def online_features(server: str, service: str, customer: int) -> dict[str, object]:
    """The features of one customer as the feature server answers them: name -> value."""
    body = {"feature_service": service, "entities": {"customer_id": [customer]}}
    request = urllib.request.Request(
        f"{server}/get-online-features",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as reply:
            answer = json.load(reply)
    except (OSError, urllib.error.HTTPError):
        return {}
    names = answer["metadata"]["feature_names"]
    return {
        name: result["values"][0] for name, result in zip(names, answer["results"], strict=True)
    }


def try_platform(engine: Engine) -> None:
    """From `apply` to a reply over HTTP, each process from its image."""
    now_ms = int(time.time() * 1000)
    amounts = [(3, 2.5), (1, 10.0), (4, 0.25)]  # of customer 12346: quantity, unit price
    header = (
        "invoice,stock_code,description,quantity,invoice_time_ms,unit_price,customer_id,country"
    )
    rows = [
        f"{i},s,text,{quantity},{now_ms - 3_600_000 * (i + 2)},{price},12346,Norway"
        for i, (quantity, price) in enumerate(amounts)
    ]
    expected = sum(quantity * price for quantity, price in amounts)
    rest, rpc, materializer, port = free_ports(4)
    flink = ["paimon-features", "cluster", "run"]
    with tempfile.TemporaryDirectory() as folder, Platform(engine, Path(folder)) as platform:
        write_project(platform.project / "shop")
        settings = platform.project / "shop" / "paimon-features.toml"
        settings.write_text(settings.read_text().replace('"lake"', '"/lake"', 1))
        (platform.project / "events.csv").write_text("\n".join([header, *rows, ""]))
        for path in (platform.project / "shop", *platform.project.glob("shop/*")):
            path.chmod(0o777)
        project = ["--project", "/project/shop"]

        platform.run("jobs", "paimon-features", "apply", *project)
        address = ["--address", "127.0.0.1", "--host", "127.0.0.1", "--listen", "127.0.0.1"]
        address += ["--rpc-port", str(rpc), *project]
        platform.start(
            "jobmanager", "jobs", *flink, "jobmanager", *address, "--rest-port", str(rest)
        )
        platform.start("taskmanager", "jobs", *flink, "taskmanager", *address, "--slots", "4")
        overview = f"http://127.0.0.1:{rest}/overview"
        platform.wait("a task manager", lambda: answers(overview, '"slots-total":4'))
        platform.run(
            "jobs", "paimon-features", "ingest", "files", "retail", "/project/events.csv", *project
        )
        platform.run(
            "jobs",
            "paimon-features",
            "submit",
            "customer_spend",
            "--cluster",
            f"127.0.0.1:{rest}",
            *project,
        )
        platform.start(
            "materializer",
            "materializer",
            "paimon-features",
            "materialize",
            "--follow",
            "--listen",
            f"127.0.0.1:{materializer}",
            *project,
        )
        platform.start(
            "server",
            "serving",
            "paimon-features",
            "serve",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--workers",
            "2",
            "--open",
            *project,
        )
        server = f"http://127.0.0.1:{port}"
        platform.wait("the feature server", lambda: answers(f"{server}/health/live"))
        last: dict[str, object] = {}

        def has_arrived() -> bool:
            last.update(online_features(server, "churn_v1", 12346))
            return any(value == expected for value in last.values())

        platform.wait(f"sum_amount_30d == {expected}", has_arrived)
        say(f"the platform answers: {last}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=["docker", "podman", "buildah"])
    parser.add_argument(
        "--python-image", default=PYTHON_IMAGE, help="what the images start from: %(default)s"
    )
    parser.add_argument("--only", help="targets, with commas between; then without the platform")
    parser.add_argument("--no-platform", action="store_true", help="leave out step 3")
    parser.add_argument(
        "--no-build", action="store_true", help="take the images as they are: step 3 alone"
    )
    chosen = parser.parse_args(arguments)
    targets = chosen.only.split(",") if chosen.only else list(BOUNDS)
    if unknown := set(targets) - set(BOUNDS):
        parser.error(
            f"unknown targets {', '.join(sorted(unknown))}; available: {', '.join(BOUNDS)}"
        )
    try:
        engine = find_engine(chosen.engine)
        build = [] if chosen.no_build else targets
        too_large = [target for target in build if not fits(engine, target, chosen.python_image)]
        if too_large:
            raise StepFailedError(f"larger than their bounds: {', '.join(too_large)}")
        if not (chosen.only or chosen.no_platform):
            try_platform(engine)
    except (StepFailedError, subprocess.TimeoutExpired) as error:
        say(f"FAILED: {error}")
        return 1
    return 0


def fits(engine: Engine, target: str, python_image: str) -> bool:
    """Build an image, print its size, run its first command; whether it is within its bound."""
    start = time.monotonic()
    engine.build(target, python_image)
    size = engine.size_mb(image(target))
    added = size - engine.size_mb(python_image)
    with engine.container(target) as container:
        completed(container.command(FIRST_COMMANDS[target], {}, {}), timeout_s=120)
    say(
        f"{target}: {size:,.0f} MB, of which {added:,.0f} MB above {python_image} "
        f"(bound {BOUNDS[target]:,} MB); built and started in {time.monotonic() - start:.0f} s"
    )
    return added <= BOUNDS[target]


if __name__ == "__main__":
    sys.exit(main())
