"""Settings of the online store: what is taken, what is refused, and that no password is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paimon_features.core.errors import ConfigurationError
from paimon_features.online.store import OnlineSettings


def of(environ: dict[str, str] | None = None, **values: Any) -> OnlineSettings:
    return OnlineSettings.of(values, environ=environ or {})


def test_the_default_is_the_server_on_this_host() -> None:
    assert of() == OnlineSettings()
    assert of().where == "redis://127.0.0.1:6379"


@pytest.mark.parametrize(
    ("url", "mode", "hosts", "where"),
    [
        ("redis://h", "server", [("h", 6379)], "redis://h:6379"),
        ("redis://h:1/3", "server", [("h", 1)], "redis://h:1/3"),
        ("rediss://u:p@[::1]:7/", "server", [("::1", 7)], "rediss://[::1]:7"),
        ("redis+cluster://a:1,b", "cluster", [("a", 1), ("b", 6379)], "redis+cluster://a:1,b:6379"),
        ("rediss+cluster://:p@a/0", "cluster", [("a", 6379)], "rediss+cluster://a:6379"),
        (
            "redis+sentinel://a,b:1/main/2",
            "sentinel",
            [("a", 26379), ("b", 1)],
            "redis+sentinel://a:26379,b:1/main/2",
        ),
        ("unix:///run/r.sock", "server", [("/run/r.sock", 0)], "unix:///run/r.sock"),
        ("unix://u:p@/a%20b?db=2", "server", [("/a b", 0)], "unix:///a b?db=2"),
        ("memory://", "memory", [], "memory://"),
    ],
)
def test_addresses_of_every_form(
    url: str, mode: str, hosts: list[tuple[str, int]], where: str
) -> None:
    settings = of(url=url)
    assert (settings.mode, list(settings.hosts), settings.where) == (mode, hosts, where)
    assert settings.tls == url.startswith("rediss")


def test_users_and_passwords_may_contain_any_character() -> None:
    settings = of(url="redis://a%40b:p%2Fw%3A%40@h")
    assert (settings.user, settings.password) == ("a@b", "p/w:@")
    assert settings.plain_url == "redis://a%40b:p%2Fw%3A%40@h:6379/0"


def test_the_environment_overrides_the_file_and_its_password_the_address() -> None:
    environ = {
        "PAIMON_FEATURES_ONLINE_URL": "redis://u:inurl@env:1/1",
        "PAIMON_FEATURES_ONLINE_PASSWORD": "own",
        "PAIMON_FEATURES_ONLINE_SENTINEL_PASSWORD": "other",
    }
    settings = of(environ, url="redis://file", user="file")
    assert (settings.where, settings.user) == ("redis://env:1/1", "u")
    assert (settings.password, settings.sentinel_password) == ("own", "other")
    assert of({"PAIMON_FEATURES_ONLINE_PASSWORD": "own"}, user="app").password == "own"


def test_everything_else_comes_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    values: dict[str, Any] = {
        "url": "rediss://h",
        "tls_ca": "ca.pem",
        "tls_verify": True,
        "key_prefix": "team:",
        "connect_timeout": "200ms",
        "timeout": "300ms",
        "write_timeout": "4s",
        "retries": 0,
        "connections": 2,
    }
    settings = OnlineSettings.of(values, root=tmp_path, environ={})
    assert settings.tls_ca == tmp_path / "ca.pem"
    assert (settings.connect_timeout_ms, settings.timeout_ms) == (200, 300)
    assert (settings.write_timeout_ms, settings.retries, settings.connections) == (4000, 0, 2)
    assert settings.key_prefix == "team:"
    assert settings.for_writing().timeout_ms == 4000


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"url": "http://h"}, "'http://h': expected redis://"),
        ({"url": "redis:/h"}, "expected redis://"),
        ({"url": "redis://"}, "'' is not host"),
        ({"url": "redis://h:70000"}, "'h:70000' is not host"),
        ({"url": "redis://h:x"}, "'h:x' is not host"),
        ({"url": "redis://h/x"}, "'x' is not a database number"),
        ({"url": "redis://a,b"}, "2 hosts; several servers are redis.cluster"),
        ({"url": "redis+cluster://a/1"}, "a cluster has only database 0"),
        ({"url": "redis+sentinel://a"}, "no service name"),
        ({"url": "redis+other://a"}, "expected redis://"),
        ({"url": "memory://x"}, "expected redis://"),
        ({"url": "unix://"}, "no path of a socket; expected redis://"),
        ({"url": "unix:///"}, "no path of a socket"),
        ({"url": "unix://run/redis.sock"}, "no path of a socket"),
        ({"url": "unix:///run/redis.sock?db=x"}, r"no option but \?db=N"),
        ({"url": "unix:///run/redis.sock?password=x"}, r"no option but \?db=N"),
        ({"url": "unix:///run/redis.sock", "tls_verify": False}, "tls_verify requires TLS"),
        ({"url": "redis://h?ssl_cert_reqs=none"}, "query options"),
        ({"user": "app"}, "'app' has no password; set PAIMON_FEATURES_ONLINE_PASSWORD"),
        ({"key_prefix": "a{b}"}, "key_prefix = 'a{b}'; expected"),
        ({"key_prefix": ""}, "key_prefix = ''; expected"),
        ({"timeout": "0s"}, r"\[online\] timeout: duration '0s'"),
        ({"connect_timeout": "1"}, r"\[online\] connect_timeout: duration '1'"),
        ({"retries": -1}, "retries = -1; expected 0 to 20"),
        ({"connections": 0}, "connections = 0; expected 1 to"),
        ({"tls_ca": "ca.pem"}, "tls_ca requires TLS.*use rediss"),
        ({"tls_verify": False}, "tls_verify requires TLS"),
        ({"url": "rediss://h", "tls_key": "k"}, "tls_key requires tls_cert"),
        ({"url": "rediss://h", "tls_ca": "/nowhere/ca.pem"}, "file not found: /nowhere/ca.pem"),
    ],
)
def test_invalid_settings_are_rejected_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        of(**values)


@pytest.mark.parametrize(
    "url",
    [
        "http://u:s3cret@h",
        "redis://u:s3cret@h:x",
        "redis://u:s3cret/with/slash@h",
        "redis://u:s3cret@with@h:bad",
        "redis://u:s3cret?x@h",
        "redis+sentinel://:s3cret@h",
        "redis+cluster://:s3cret@h/4",
        "u:s3cret@h",
        "redis://h/0?password=s3cret",
        "unix://u:s3cret@host/redis.sock",
        "unix://u:s3cret@/redis.sock?password=s3cret",
    ],
)
def test_no_error_shows_a_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        of(url=url)
    assert "s3cret" not in str(raised.value)


def test_no_representation_of_the_settings_shows_a_password() -> None:
    settings = of({"PAIMON_FEATURES_ONLINE_SENTINEL_PASSWORD": "s3cret2"}, url="redis://:s3cret@h")
    assert settings.password == "s3cret"
    assert "s3cret" not in f"{settings!r} {settings} {settings.where}"
