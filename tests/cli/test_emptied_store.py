"""What lies only in the online store is published again by a materializer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from redis import Redis

from paimon_features.cli import cli
from paimon_features.core.windows import HOUR_MS
from paimon_features.project import Project
from tests.cli.test_online_commands import NOW, ROOT
from tests.models.networks import manifest, network
from tests.os_processes import line_with
from tests.shop_projects import started_shop
from tests.waiting import await_true

pytestmark = pytest.mark.redis


@pytest.fixture
def project(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Project:
    started_shop(tmp_path, redis_url, monkeypatch, {12346: [NOW - HOUR_MS]})
    config = Path("paimon-features.toml")
    config.write_text(config.read_text() + '\n[serve]\nbundle = "online"\n')
    project = Project.open(".")
    project.publish_bundle()
    files = {"network.onnx": network(1.0).SerializeToString()}
    project.models.register(manifest(), files)
    project.models.promote("churn", 1)
    return project


@contextmanager
def following() -> Iterator[None]:
    script = "from paimon_features.cli import main; main()"
    worker = subprocess.Popen(
        [sys.executable, "-c", script, "materialize", "--follow", "--json"],
        stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
    )  # fmt: skip
    assert worker.stdout is not None
    try:
        line_with(worker.stdout, '"caught_up": true')
        yield
        worker.terminate()
        assert worker.wait(120) == 0
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()


def published(project: Project) -> tuple[str, str]:
    """The stamps of what is in the store."""
    assert project.bundle_place is not None
    return project.bundle_place.stamp(), project.models.place.stamp()


def check_readable(project: Project) -> None:
    assert project.bundle_place is not None
    assert project.bundle_place.read().definitions.views
    [states] = project.models.place.read().models.values()
    assert project.models.place.load("churn", states.versions[0]).manifest.version == 1


def test_a_following_materializer_publishes_again_what_an_emptied_store_has_lost(
    project: Project, redis_url: str
) -> None:
    before = published(project)
    with following(), Redis.from_url(redis_url) as redis:
        for _ in range(2):
            redis.flushall()
            await_true(lambda: all(published(project)))
            check_readable(project)
    # the bundle is the one that was there
    assert published(project)[0] == before[0]


def test_a_materializer_that_starts_with_an_empty_store_publishes_what_is_applied(
    project: Project, redis_url: str
) -> None:
    with Redis.from_url(redis_url) as redis:
        redis.flushall()
        done = CliRunner().invoke(cli, ["materialize"], catch_exceptions=False)
        assert done.exit_code == 0
        assert "lost, and published again" in done.stderr
        check_readable(project)
        # definitions that are not applied are not published
        redis.flushall()
        features = Path("features.py")
        text = features.read_text()
        assert '"churn_v1"' in text
        features.write_text(text.replace('"churn_v1"', '"churn_v2"'))
        assert not Project.open(".").plan().is_empty
        CliRunner().invoke(cli, ["materialize"], catch_exceptions=False)
        bundle, models = published(project)
        assert (bundle, bool(models)) == ("", True)
