"""A project whose warehouse, checkpoints and savepoints are on an S3 server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import s3_servers
from tests.servers.object_store import ObjectStore, object_store

ROOT = Path(__file__).parents[2]
JOBS = "s3://bucket/jobs"
"""Where checkpoints and savepoints are."""

_RUN = """
import json, sys
from click.testing import CliRunner
from paimon_features.cli import cli
for arguments in json.loads(sys.argv[1]):
    result = CliRunner().invoke(cli, arguments)
    if result.exit_code and result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    print(json.dumps([result.exit_code, result.output]), flush=True)
"""


@dataclass
class S3Shop:
    """A project whose warehouse is on the store, and its commands in processes of their own."""

    folder: Path
    store: ObjectStore
    environ: dict[str, str]

    def start(self, commands: Sequence[Sequence[str]]) -> subprocess.Popen[str]:
        """Run commands in one process: it starts a JVM of its own, with the jars for S3."""
        given = json.dumps([[*command, "--project", str(self.folder)] for command in commands])
        return subprocess.Popen(
            [sys.executable, "-c", _RUN, given],
            cwd=ROOT,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *commands: Sequence[str]) -> list[str]:
        """The output of each command, which must succeed."""
        process = self.start(commands)
        output, _ = process.communicate(timeout=600)
        results = [json.loads(line) for line in output.splitlines() if line.startswith("[")]
        for command, (code, text) in zip(commands, results, strict=False):
            assert code == 0, f"{command}: {text}"
        assert len(results) == len(commands), output
        assert self.store.secret not in output
        return [text for _, text in results]


@contextmanager
def s3_shop(
    folder: Path, features: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[S3Shop]:
    """A project named shop in ``folder``, with an empty store and its keys in the environment."""
    pytest.importorskip("obstore", reason="pip install 'paimon-features[s3]'")
    folder.mkdir()
    (folder / "features.py").write_text(features)
    with object_store("bucket", s3_servers.strictest()) as store:
        (folder / "paimon-features.toml").write_text(
            '[project]\nname = "shop"\n'
            '[lake]\nwarehouse = "s3://bucket/lake"\n'
            f'options = {{ endpoint = "{store.endpoint}" }}\n'
            f'[online]\nurl = "{redis_url}"\n'
            '[flink]\nparallelism = 1\ncheckpoint_interval = "1s"\n'
            f'checkpoints = "{JOBS}"\n'
        )
        for name, value in {
            "AWS_ACCESS_KEY_ID": store.key,
            "AWS_SECRET_ACCESS_KEY": store.secret,
            "AWS_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        yield S3Shop(folder, store, dict(os.environ))
