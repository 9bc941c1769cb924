"""JWTs of an identity provider, whose key set is a real HTTP server on the loopback interface."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jwt", reason="needs the extra oidc")

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from paimon_features.core.configuration.project_config import OidcConfig, read_config
from paimon_features.core.errors import ConfigurationError
from paimon_features.serving.http.access import oidc
from paimon_features.serving.http.access.oidc import OidcIssuer
from paimon_features.serving.http.access.tokens import Tokens
from paimon_features.serving.http.http_errors import RequestRejected
from tests.http_servers import ThreadingHTTPServer
from tests.waiting import LONG_S, await_true

READ = {"feature_service": "reading_v1", "entities": {"user": [1]}}
ROLES = '[role.scorer]\nservices = ["reading_*"]\noidc = ["ml-scorers"]\nrequests_per_s = 3\n'
RSA_KEY = rsa.generate_private_key(65_537, 2_048)
NEXT_KEY = rsa.generate_private_key(65_537, 2_048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
PRIVATE = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(EC_KEY))["d"]
WEAK_KEY = rsa.generate_private_key(65_537, 1_024)


def public(key: Any, name: str | None, algorithm: str | None = None) -> dict[str, Any]:
    """A public key as an entry of a key set."""
    of = {
        rsa.RSAPrivateKey: jwt.algorithms.RSAAlgorithm,
        ec.EllipticCurvePrivateKey: jwt.algorithms.ECAlgorithm,
        ed25519.Ed25519PrivateKey: jwt.algorithms.OKPAlgorithm,
    }
    (kind,) = [kind for base, kind in of.items() if isinstance(key, base)]
    entry = {**json.loads(kind.to_jwk(key.public_key())), "use": "sig"}
    return entry | {k: v for k, v in (("kid", name), ("alg", algorithm)) if v is not None}


class Provider:
    """The identity provider: what it answers, and how often it was requested."""

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = [public(RSA_KEY, "first")]
        self.body: Callable[[str], bytes | None] = self._body
        self.paths: list[str] = []
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.paths.append(self.path)
                body = provider.body(self.path)
                self.send_response(200 if body is not None else 302)
                if body is None:
                    self.send_header("location", "http://127.0.0.1:1/keys")
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.issuer = f"http://127.0.0.1:{self.server.server_port}/realms/ml"

    def _body(self, path: str) -> bytes:
        if path.endswith("/.well-known/openid-configuration"):
            return json.dumps({"issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys"}).encode()
        return json.dumps({"keys": self.keys}).encode()

    def token(
        self,
        key: Any = RSA_KEY,
        algorithm: str = "RS256",
        headers: dict[str, Any] | None = None,
        **changed: Any,
    ) -> str:
        """A token that is valid but for what is changed; None leaves a claim out."""
        now_s = int(time.time())
        claims = {
            "iss": self.issuer, "aud": "features", "sub": "user-7", "exp": now_s + 600,
            "iat": now_s, "roles": ["ml-scorers"],
        } | changed  # fmt: skip
        claims = {name: value for name, value in claims.items() if value is not None}
        head = {"kid": "first"} | (headers or {})
        return jwt.encode(claims, key, algorithm, {k: v for k, v in head.items() if v is not None})


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No fetch takes too long on a loaded machine, and none is due while a test runs."""
    monkeypatch.setattr(oidc, "_PAUSE_S", 3_600.0)
    monkeypatch.setattr(oidc, "_SHORTEST_PAUSE_S", 3_600.0)
    monkeypatch.setattr(oidc, "_TIMEOUT_S", LONG_S)
    monkeypatch.setattr(oidc, "_LONGEST_FETCH_S", 2 * LONG_S)


@pytest.fixture
def provider() -> Iterator[Provider]:
    provider = Provider()
    yield provider
    provider.server.shutdown()
    provider.server.server_close()


@pytest.fixture
def issuer(provider: Provider) -> Iterator[OidcIssuer]:
    issuer = OidcIssuer(
        OidcConfig(provider.issuer, ("features",), algorithms=("RS256", "ES256", "EdDSA"))
    )
    assert issuer.refresh()
    yield issuer
    issuer.close()


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def why(issuer: OidcIssuer, token: str | bytes) -> tuple[int, str]:
    with pytest.raises(RequestRejected) as caught:
        issuer.subject_of(token if isinstance(token, bytes) else token.encode())
    return caught.value.status, caught.value.detail


def accepted(issuer: OidcIssuer, token: str) -> bool:
    try:
        return issuer.subject_of(token.encode()).name == "user-7"
    except RequestRejected:
        return False


def part(value: Any) -> bytes:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def test_a_role_comes_from_a_claim_and_reads_what_it_grants(
    provider: Provider, issuer: OidcIssuer, make_client: Any, tmp_path: Path, one_instant: None
) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(ROLES)
    client = make_client(tokens=file, issuer=issuer)
    head = {"headers": bearer(provider.token())}
    assert client.read(READ, **head).status == 200
    assert client.log[-1]["client"] == "user-7"
    assert client.read({**READ, "feature_service": "visiting_v1"}, **head).status == 403
    assert client.read(READ, **head).status == 200
    # the quota is of the subject, whichever token it has
    assert client.read(READ, headers=bearer(provider.token(jti="2"))).status == 429
    assert client.read(READ, headers=bearer(provider.token(sub="user-8"))).status == 200
    status, code, detail = client.read(READ, headers=bearer(provider.token(roles=["x"]))).problem
    assert (status, code) == (403, "forbidden")
    assert "oidc = [...]" in detail
    page = client.get("/metrics").body.decode()
    assert 'paimon_features_client_requests_total{client="oidc:scorer"} 5.0' in page
    assert "user-7" not in page


@pytest.mark.parametrize(
    ("key", "algorithm"), [(RSA_KEY, "RS256"), (EC_KEY, "ES256"), (ED_KEY, "EdDSA")]
)
def test_each_algorithm_is_checked_with_the_key_of_its_kind(
    provider: Provider, issuer: OidcIssuer, key: Any, algorithm: str
) -> None:
    provider.keys = [public(each, "first") for each in (RSA_KEY, EC_KEY, ED_KEY)]
    assert issuer.refresh()
    subject = issuer.subject_of(provider.token(key, algorithm).encode())
    assert (subject.name, subject.claims) == ("user-7", {"ml-scorers"})


def test_keys_are_exchanged_without_a_restart(
    provider: Provider, issuer: OidcIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = provider.token(), provider.token(NEXT_KEY, headers={"kid": "second"})
    provider.keys = [public(RSA_KEY, "first"), public(NEXT_KEY, "second")]
    issuer.start()  # fetches, and watches
    assert issuer.subject_of(new.encode()).name == issuer.subject_of(old.encode()).name
    provider.keys = [public(EC_KEY, "third")]
    monkeypatch.setattr(oidc, "_PAUSE_S", 0.05)
    monkeypatch.setattr(oidc, "_SHORTEST_PAUSE_S", 0.05)
    third = provider.token(EC_KEY, "ES256", headers={"kid": "third"})
    await_true(lambda: accepted(issuer, third))  # it is being fetched: the client retries
    assert why(issuer, old)[0] in (401, 503)  # the removed key is not used any more


def test_made_up_key_names_cause_few_fetches_and_are_refused(
    provider: Provider, issuer: OidcIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc, "_SHORTEST_PAUSE_S", 0.01)
    issuer.start()
    keys = provider.paths[-1]

    def fetches() -> int:
        return provider.paths.count(keys)

    for number in range(50):
        made_up = provider.token(headers={"kid": f"made up {number}"})
        if fetches() < oidc._BURST:
            # not known until the key set was fetched again; then it is known to be made up
            await_true(lambda made_up=made_up: why(issuer, made_up)[0] == 401)  # type: ignore[misc]
        else:
            assert why(issuer, made_up)[0] in (401, 503)
    assert fetches() == oidc._BURST


def test_a_new_key_is_accepted_soon_after_a_made_up_one(
    provider: Provider, issuer: OidcIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc, "_SHORTEST_PAUSE_S", 0.01)
    issuer.start()
    await_true(lambda: why(issuer, provider.token(headers={"kid": "made up"}))[0] == 401)
    provider.keys = [public(NEXT_KEY, "second")]
    new = provider.token(NEXT_KEY, headers={"kid": "second"})
    await_true(lambda: accepted(issuer, new))


def test_keys_are_kept_while_the_provider_is_unavailable_and_not_for_ever(
    provider: Provider, issuer: OidcIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.body = lambda path: b"<html>maintenance</html>"
    assert not issuer.refresh()
    assert issuer.subject_of(provider.token().encode()).name == "user-7"
    monkeypatch.setattr(oidc, "_KEPT_S", -1.0)
    assert why(issuer, provider.token())[0] == 503


NOW_S = int(time.time())
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "expired": ({"exp": NOW_S - 3_600}, "expired"),
    "not valid yet": ({"nbf": NOW_S + 10**8}, "not yet valid"),
    "issued in the future": ({"iat": NOW_S + 10**8}, "not yet valid"),
    "no expiry": ({"exp": None}, '"exp"'),
    "an expiry that is no number": ({"exp": "never"}, "integer"),
    "an infinite expiry": ({"exp": float("inf")}, ""),
    "another audience": ({"aud": "other"}, "udience"),
    "no audience": ({"aud": None}, '"aud"'),
    "another issuer": ({"iss": "https://evil.example"}, "ssuer"),
    "no subject": ({"sub": None}, '"sub"'),
    "a subject of control characters": ({"sub": "a\nb"}, "printable"),
    "an endless subject": ({"sub": "x" * 300}, "printable"),
    "another key": ({"key": NEXT_KEY}, "ignature"),
    "a key of another kind": ({"key": EC_KEY, "algorithm": "ES256"}, "kid"),
    "a path as key name": ({"headers": {"kid": "../../../../dev/null"}}, "kid"),
    "SQL as key name": ({"headers": {"kid": "x' UNION SELECT 'k"}}, "kid"),
    "an address as key name": ({"headers": {"kid": "https://evil.example/key"}}, "kid"),
    "an endless key name": ({"headers": {"kid": "x" * 1_000}}, "kid"),
    "its own key": ({"headers": {"jwk": public(NEXT_KEY, "first")}, "key": NEXT_KEY}, "jwk"),
    "an address of keys": ({"headers": {"jku": "https://evil.example/keys"}}, "jku"),
    "certificates": ({"headers": {"x5c": ["MII"]}}, "x5c"),
    "critical extensions": ({"headers": {"crit": ["b64"], "b64": True}}, ""),
    "an algorithm that is not allowed": ({"algorithm": "RS512"}, "alg = 'RS512'"),
    "huge": ({"padding": "x" * 9_000}, "8,192"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_tokens_are_refused(provider: Provider, issuer: OidcIssuer, name: str) -> None:
    changed, message = HOSTILE[name]
    token = provider.token(**changed)
    status, detail = why(issuer, token)
    assert status == 401
    assert message in detail
    assert token not in detail


def test_an_unsigned_token_and_a_public_key_as_a_secret_are_refused(
    provider: Provider, issuer: OidcIssuer
) -> None:
    claims = part({"iss": provider.issuer, "aud": "features", "sub": "x", "exp": NOW_S + 600})
    none = part({"alg": "none", "kid": "first"}) + b"." + claims + b"."
    assert why(issuer, none)[0] == 401
    head = part({"alg": "HS256", "kid": "first"}) + b"." + claims
    for form in (PublicFormat.SubjectPublicKeyInfo, PublicFormat.PKCS1):
        secret = RSA_KEY.public_key().public_bytes(Encoding.PEM, form)
        signed = head + b"." + part(hmac.digest(secret, head, hashlib.sha256))
        assert why(issuer, signed) == (
            401, "the JWT is not accepted: alg = 'HS256'; expected RS256, ES256, EdDSA",
        )  # fmt: skip


@pytest.mark.parametrize(
    "token",
    [b"..", b"a.b.c", b"e30.e30.", part([]) + b".e30.x", b"\xff.\xff.\xff", b"." * 5_000,
     part(b"[" * 5_000) + b".e30.x", part({"alg": ["RS256"]}) + b".e30.x",
     part({"alg": "RS256", "kid": {"a": 1}}) + b".e30.x"],
)  # fmt: skip
def test_what_is_no_jwt_is_401(issuer: OidcIssuer, token: bytes) -> None:
    assert why(issuer, token)[0] == 401


@pytest.mark.parametrize(
    ("keys", "accepts"),
    [
        ([public(WEAK_KEY, "first")], False),
        ([public(RSA_KEY, "first") | {"use": "enc"}], False),
        ([public(RSA_KEY, "first", "RS512")], False),
        ([public(RSA_KEY, "first", "ES256")], False),
        ([public(EC_KEY, "first") | {"d": PRIVATE}], False),  # no source of trust
        ([{"kty": "oct", "kid": "first", "k": "c2VjcmV0"}], False),
        ([{"kty": "RSA", "kid": "first", "n": "!", "e": "AQAB"}, public(RSA_KEY, None)], False),
        ([public(RSA_KEY, "first"), public(RSA_KEY, "first")], False),  # which one?
        ([public(RSA_KEY, "first", "RS256"), "no key", {"kty": 5}], True),
    ],
)
def test_only_keys_that_fit_are_used(
    provider: Provider, issuer: OidcIssuer, keys: list[Any], accepts: bool
) -> None:
    provider.keys = keys
    if issuer.refresh() and accepts:
        assert issuer.subject_of(provider.token().encode()).name == "user-7"
    else:
        assert not accepts
        fresh = OidcIssuer(issuer._config)
        fresh.refresh()
        assert why(fresh, provider.token())[0] in (401, 503)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"keys": []}', b'{"keys": ' + b"[" * 100_000, b" " * (2 << 20), None],
)
def test_a_key_set_that_is_wrong_replaces_nothing(
    provider: Provider, issuer: OidcIssuer, body: bytes | None
) -> None:
    provider.body = lambda path: body  # None: a redirect, which is not followed
    assert not issuer.refresh()
    assert issuer.subject_of(provider.token().encode()).name == "user-7"


def test_a_configuration_of_another_issuer_is_not_taken(
    provider: Provider, issuer: OidcIssuer
) -> None:
    other = {"issuer": "https://evil.example", "jwks_uri": f"{provider.issuer}/keys"}
    provider.body = lambda path: json.dumps(other).encode()
    assert not issuer.refresh()
    provider.body = lambda path: json.dumps(
        {"issuer": provider.issuer, "jwks_uri": "file:///etc/passwd"}
    ).encode()
    assert not issuer.refresh()
    provider.body = lambda path: json.dumps({"issuer": provider.issuer}).encode()
    assert not issuer.refresh()
    assert issuer.subject_of(provider.token().encode()).name == "user-7"


def test_the_key_set_is_fetched_from_the_issuers_own_host_and_port_alone(
    provider: Provider, issuer: OidcIssuer
) -> None:
    fetched: list[str] = []

    def named(uri: str) -> None:
        def body(path: str) -> bytes:
            fetched.append(path)
            return json.dumps({"issuer": provider.issuer, "jwks_uri": uri}).encode()

        provider.body = body

    port = provider.issuer.split(":")[2].split("/")[0]
    for uri in (
        "http://localhost:1/admin", f"http://localhost:{port}/admin", "http://127.0.0.1:1/x",
        f"https://127.0.0.1:{port}/x", "https://169.254.169.254/latest", "http://[::1]/x",
        f"http://127.0.0.1:{port}@evil.example/", f"http://evil@127.0.0.1:{port}/x",
        f"http://127.0.0.1:{port}\\@evil.example/", "//127.0.0.1/x", "http://127.0.0.1:x/y", "",
    ):  # fmt: skip
        named(uri)
        assert not issuer.refresh(), uri
    assert {path.rsplit("/", 1)[1] for path in fetched} == {"openid-configuration"}
    assert issuer.subject_of(provider.token().encode()).name == "user-7"


def test_a_provider_with_one_key_need_not_name_it(provider: Provider, issuer: OidcIssuer) -> None:
    provider.keys = [public(RSA_KEY, None)]
    assert issuer.refresh()
    assert accepted(issuer, provider.token(headers={"kid": None}))
    assert not accepted(issuer, provider.token(NEXT_KEY, headers={"kid": None}))


def test_roles_may_be_in_an_object_and_a_single_text(provider: Provider) -> None:
    for claim, claims in (
        ("realm_access.roles", {"realm_access": {"roles": ["a", 5]}}),
        ("https://x.example/roles", {"https://x.example/roles": "a"}),
    ):
        config = OidcConfig(provider.issuer, ("features", "b"), roles_claim=claim)
        issuer = OidcIssuer(config)
        issuer.refresh()
        assert issuer.subject_of(provider.token(**claims).encode()).claims == {"a"}


def test_a_remembered_token_ends_when_it_expires(
    provider: Provider, issuer: OidcIssuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(ROLES)
    tokens = Tokens(file, issuer)
    authorization = f"Bearer {provider.token()}".encode()
    assert tokens.rights(authorization) is tokens.rights(authorization)
    later_s = time.time() + 700
    monkeypatch.setattr(time, "time", lambda: later_s)
    issuer._keys = {}  # PyJWT has a clock of its own, by which the token is still valid
    with pytest.raises(RequestRejected):
        tokens.rights(authorization)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("", "issuer is missing"),
        ('issuer = "http://login.example.com"\naudience = "a"', "expected https"),
        ('issuer = "https://x"\naudience = 5', "expected a list of texts"),
        ('issuer = "https://x"\naudience = "a"\nalgorithms = ["HS256"]', "expected some of RS256"),
        ('issuer = "https://x"\naudience = "a"\nalgorithms = ["none"]', "expected some of RS256"),
        ('issuer = "https://x"\naudience = "a"\nclock_skew = "1h"', "at most 5min"),
        ('issuer = "https://x"\naudience = "a"\nsecret = "s"', "unknown key 'secret'"),
    ],
)
def test_settings_that_would_weaken_it_are_refused(
    tmp_path: Path, settings: str, message: str
) -> None:
    file = tmp_path / "paimon-features.toml"
    file.write_text(f'[serve]\ntokens = "tokens.toml"\n[serve.oidc]\n{settings}\n')
    with pytest.raises(ConfigurationError, match=message):
        read_config(tmp_path)
    file.write_text('[serve.oidc]\nissuer = "https://x"\naudience = "a"\n')
    with pytest.raises(ConfigurationError, match=r"needs \[serve\] tokens"):
        read_config(tmp_path)
