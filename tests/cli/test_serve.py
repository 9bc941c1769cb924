"""``serve token``, and what ``serve`` says before it starts; servers run in tests/serving/http."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import click
import pytest

from paimon_features.cli import cli
from paimon_features.core.configuration.project_config import ServeConfig, read_config
from paimon_features.core.errors import ConfigurationError
from paimon_features.serving.http.access.tokens import Tokens
from tests.commands import invoke

FEATURES = """
import paimon_features as pf

clicks = pf.EventSource("clicks", schema={"user": pf.Int64, "t": pf.Int64}, event_time="t")
view = pf.FeatureView("clicks", source=clicks, entity=pf.Entity("user", keys={"user": pf.Int64}),
                      features=[pf.Count(windows=["1h"])])
service = pf.FeatureService("reading_v1", [view])
"""

run = partial(invoke, "serve")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "features.py").write_text(FEATURES)
    (tmp_path / "paimon-features.toml").write_text('[project]\nname = "shop"\n')
    return tmp_path


def settings(project: Path, *lines: str) -> ServeConfig:
    (project / "paimon-features.toml").write_text("[serve]\n" + "\n".join(lines))
    return read_config(project).serve


def test_a_token_is_printed_once_and_opens_its_service(project: Path) -> None:
    done = run("token", "--service", "reading_v1", project=project)
    assert done.exit_code == 0, done.output
    token = done.stdout.strip()
    rights = Tokens(project / "tokens.toml").rights(f"Bearer {token}".encode())
    assert (rights.client, rights.grants.services) == ("reading_v1", {"reading_v1"})
    assert '[serve] tokens = "tokens.toml"' in done.stderr


def test_a_token_may_have_roles_views_models_and_rates(project: Path) -> None:
    (project / "tokens.toml").write_text('[role.payer]\nservices = ["paying_*"]\n')
    done = run(
        "token", "--role", "payer", "--view", "cli*", "--model", "churn",
        "--requests-per-s", "5", "--name", "mixed", project=project,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    token = done.stdout.strip()
    rights = Tokens(project / "tokens.toml").rights(f"Bearer {token}".encode())
    grants = rights.grants
    assert grants.has_service("paying_v1")
    assert grants.has_view("clicks")
    assert grants.names_model("churn")
    assert rights.quota is not None
    assert rights.quota.requests_per_s == 5
    for arguments, code, message in (
        (["--role", "nobody", "--name", "x"], 2, "unknown role 'nobody'"),
        (["--view", "nothing*"], 2, "unknown feature view 'nothing*'"),
        ([], 2, "pass at least one --service, --view, --model or --role"),
    ):
        refused = run("token", *arguments, project=project)
        assert refused.exit_code == code
        assert message in f"{refused.output} {refused.exception}"


def test_a_token_for_programs_is_json_and_goes_where_the_settings_say(project: Path) -> None:
    settings(project, 'tokens = "secrets/readers.toml"')
    done = run("token", "--service", "*", "--name", "operations", "--json", project=project)
    document = json.loads(done.stdout)
    assert document["file"] == str(project / "secrets" / "readers.toml")
    assert document["name"] == "operations"
    assert document["token"].startswith("pf_")


def test_a_token_for_no_service_is_wrong_use(project: Path) -> None:
    done = run("token", "--service", "reading", project=project)
    assert done.exit_code == 2
    assert "unknown service 'reading'; available: reading_v1" in done.stderr
    assert not (project / "tokens.toml").exists()
    assert run("token", project=project).exit_code == 2


def test_the_help_names_every_option_and_the_command_below() -> None:
    done = run("--help")
    for text in ("--workers", "--open", "--no-reload", "--log-sample", "token"):
        assert text in done.stdout
    assert isinstance(cli.get_command(click.Context(cli), "serve"), click.Group)


# -- [serve] ---------------------------------------------------------------------------------


def test_settings_are_read_with_their_defaults(project: Path) -> None:
    assert settings(project) == ServeConfig()
    serve = settings(
        project, "workers = 3", 'max_wait = "1s"', 'cache = "500ms"', 'tokens = "t.toml"',
        "log_sample = 0.5", "reload = false", 'spool_age = "2s"',
    )  # fmt: skip
    assert settings(project, "max_body_bytes = 100000000").max_buffered_bytes == 300_000_000
    assert (serve.workers, serve.max_wait_ms, serve.cache_ms) == (3, 1_000, 500)
    assert serve.spool_age_ms == 2_000
    assert (serve.tokens, serve.log_sample, serve.reload) == (project / "t.toml", 0.5, False)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("worker = 2", "unknown key 'worker'"),
        ('workers = "2"', "expected int"),
        ("workers = 0", "workers = 0; expected 1 or more"),
        ("port = 70000", "expected 0 to 65535"),
        ('max_wait = "soon"', "max_wait"),
        ('log_level = "loud"', "expected debug, info, warning, error"),
        ("log_sample = 2.0", "from 0.0 to 1.0"),
        ('head_timeout = "0s"', "head_timeout"),
        ("max_buffered_bytes = 9000000", "at least three times max_body_bytes, 25165824"),
    ],
)
def test_a_wrong_setting_names_itself(project: Path, line: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        settings(project, line)
    assert message in str(caught.value)
