"""Projects whose manifests the tests check.

``python -m tests.project.deploy.projects FOLDER`` renders them, and deploy/kubernetes/base.
``make manifests`` checks the same manifests against the complete schemas of Kubernetes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from click.testing import CliRunner

from paimon_features.cli import cli

ROOT = Path(__file__).parents[3]
BASE = ROOT / "deploy" / "kubernetes" / "base"

BASE_OPTIONS = (
    *("--warehouse-volume", "lake", "--open", "--set", "shards=2"),
    *("--kafka", "retail=kafka:9092/retail"),
)
"""How deploy/kubernetes/base was rendered, from the project of ``paimon-features init shop``."""

FULL_OPTIONS = (
    *("--namespace", "features", "--images", "registry.example.com/ml/", "--tag", "1.2.3"),
    *("--state-volume", "state", "--predict", "--session", "--digest", f"jobs=sha256:{'0' * 64}"),
    *("--kafka", "retail=kafka-0:9092,kafka-1:9092/retail"),
    *("--iterate", "train=train.py:build", "--file", "helpers/units.py"),
    *(
        word
        for setting in (
            *("replicas=3", "max_replicas=30", "in_flight=8", "shards=4", "slots=4"),
            *("lake_secret=s3", "tokens_secret=server-tokens", "online_secret=valkey"),
            *("tls_secret=valkey-tls", "kafka_secret=kafka", "log_secret=salt"),
            *("flink_service_account=jobs", "operator_namespace=operators"),
            "monitoring_namespace=observability",
        )
        for word in ("--set", setting)
    ),
)
"""Every option and setting but those for a warehouse in a folder, and --open."""

FULL_CONFIG = """\
[project]
name = "big_shop"
state = "/var/state"

[lake]
warehouse = "s3://lake/shop"
side_folder = "/var/side"

[lake.options]
"s3.endpoint" = "https://s3.example.com"

[online]
url = "rediss+sentinel://valkey-0:26379,valkey-1:26379/main/0"
user = "features"
tls_ca = "tls/ca.pem"

[serve]
workers = 4
tokens = "tokens.toml"
audit = "audit"
request_log = "logs/requests"
prediction_log = "/var/logs/predictions"
bundle = "online"
hosts = ["features.example.com"]

[kafka]
user = "features"
tls = true
tls_ca = "tls/kafka.pem"
tls_cert = "tls/client.pem"
tls_key = "tls/client.key"

[flink]
parallelism = 8
checkpoints = "s3://lake/jobs"
"""


def base_project(folder: Path) -> Path:
    """The project of ``paimon-features init shop``."""
    done = CliRunner().invoke(cli, ["init", str(folder / "shop")])
    assert done.exit_code == 0, done.output
    return folder / "shop"


def full_project(folder: Path) -> Path:
    """A project on an object store with tokens, TLS, a module of its own and a fitted version."""
    project = base_project(folder)
    (project / "paimon-features.toml").write_text(FULL_CONFIG)
    (project / "helpers").mkdir()
    (project / "helpers" / "units.py").write_text("CENTS = 100\n")
    (project / "train.py").write_text("def build(job):\n    return {}\n")
    return project


def render(project: Path, *options: str) -> str:
    """The output of the command, without an error."""
    done = CliRunner().invoke(cli, ["deploy", "render", "--project", str(project), *options])
    assert done.exit_code == 0, done.output
    return done.stdout


if __name__ == "__main__":
    work = Path(sys.argv[1])
    for name, project, options in (
        ("base", base_project, BASE_OPTIONS),
        ("full", full_project, FULL_OPTIONS),
    ):
        made = project(work / f"project-{name}")
        into = BASE if name == "base" else work / name
        print(render(made, *options, "--into", str(into)), end="")
