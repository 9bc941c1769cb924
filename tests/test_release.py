"""`make release`, `make images` and the release workflow fit the project; neither runs here."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

from paimon_features.core.installation.jars import DEFAULT_GROUPS, locked_jars

ROOT = Path(__file__).parents[1]
RELEASE = runpy.run_path(str(ROOT / "tools" / "release.py"))
IMAGES = runpy.run_path(str(ROOT / "tools" / "images.py"))
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
STAGES = re.findall(r"(?m)^FROM (?:host|serving) AS (\w+)$", DOCKERFILE)


def test_every_image_is_described_bounded_and_tried() -> None:
    assert set(STAGES) == set(IMAGES["BOUNDS"]) == set(IMAGES["FIRST_COMMANDS"])
    assert set(STAGES) | {"client"} == set(RELEASE["HOSTS"])
    for lock in filter(None, RELEASE["HOSTS"].values()):
        assert (ROOT / "locks" / f"{lock}.txt").is_file()


def test_the_workflow_calls_what_there_is_and_signs_what_is_published() -> None:
    targets = set(re.findall(r"(?m)^(\w+):", (ROOT / "Makefile").read_text()))
    steps = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]
    commands = [step["run"] for step in steps if "run" in step]
    made = re.findall(r"\bmake (\w+)", "\n".join(commands))
    assert made
    assert set(made) <= targets
    assert ".ci/run" in commands
    attested = [s["with"] for s in steps if "attest" in s.get("uses", "")]
    assert attested == [{"subject-checksums": "dist/SHA256SUMS"}]
    # nothing is allowed that a job does not name
    assert WORKFLOW["permissions"] == {}
    (line,) = re.findall(r'\$\(sed -n (.+) pyproject\.toml\)"', "\n".join(commands))
    assert line == r"""'s/^version = "\(.*\)"$/\1/p'"""
    assert re.search(r'(?m)^version = "\d+\.\d+\.\d+"$', (ROOT / "pyproject.toml").read_text())


def test_the_jars_of_the_jobs_are_named_with_their_hashes() -> None:
    components = RELEASE["jars"]()
    assert [c["hashes"] for c in components] == [
        [{"alg": "SHA-256", "content": jar.sha256}] for jar in locked_jars(DEFAULT_GROUPS)
    ]
    assert components[0]["purl"].startswith("pkg:maven/org.apache.paimon/paimon-flink-2.0@")


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        ([{"expression": "MIT OR Apache-2.0"}], "MIT OR Apache-2.0"),
        ([{"license": {"id": "MIT"}}, {"license": {"name": "MIT"}}], "MIT"),
        ([{"license": {"name": "License :: OSI Approved :: BSD License"}}], "BSD License"),
        ([{"license": {"name": "Permission | is\nhereby " + "x" * 90}}], "Permission / is hereby "),
        ([], "not declared"),
    ],
)
def test_a_licence_is_one_short_cell_of_a_table(declared: list[Any], text: str) -> None:
    found = RELEASE["licence"]({"licenses": declared})
    assert found.startswith(text)
    assert len(found) <= 80
    assert "\n" not in found


def test_sizes_of_images_are_read_in_every_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = IMAGES["Engine"]("buildah")
    for text, size in [("292 MB", 292.0), ("1.12 GB", 1120.0), ("13.3 KB", 0.0133)]:
        monkeypatch.setitem(
            IMAGES["Engine"].size_mb.__globals__,
            "completed",
            lambda _, t=text: f'[{{"size": "{t}"}}]',
        )
        assert engine.size_mb("image") == pytest.approx(size)
