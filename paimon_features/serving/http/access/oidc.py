"""JWTs of an OpenID Connect provider: whose they are, and which roles their claims name.

PyJWT checks signatures and times; here is what it leaves to its caller. Keys come from the
provider's key set alone, never from a token: a token names one by ``kid``, which is looked up among
the keys that are there and is neither a path nor an address. A key fits one family of algorithms,
and secret-key algorithms are not among them, so that no public key is used as a secret.

The key set is fetched by a thread of its own, at the start, every ``refresh_ms``, and soon after a
token named a key that is not there; requests never wait for the provider. If it is unavailable, the
keys that were fetched last are used for a day.
"""

from __future__ import annotations

import ssl
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage
from typing import IO, Any
from urllib.parse import urlsplit

from paimon_features.core.configuration.project_config import OidcConfig, is_trusted_url
from paimon_features.core.documents.unambiguous_json import parse_unambiguous_json
from paimon_features.core.errors import shortened
from paimon_features.core.extras import require
from paimon_features.serving.http.access.tokens import Subject
from paimon_features.serving.http.http_errors import RequestRejected, not_ready
from paimon_features.serving.http.logs import LOGGER

MAX_TOKEN_BYTES = 8_192
MAX_DOCUMENT_BYTES = 1 << 20
MAX_KEYS = 100
MAX_CLAIMS = 1_000
_LONGEST_NAME = 256
_TIMEOUT_S = 5.0
_LONGEST_FETCH_S = 15.0
_PAUSE_S = 10.0
_SHORTEST_PAUSE_S = 1.0
_BURST = 5
"""Tokens with made-up key names cause a fetch every ten seconds, but for the first few."""
_MOST_UNKNOWN = 1_000
_KEPT_S = 86_400.0
_RSA_BITS = range(2_048, 8_193)
_FAMILIES = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
"""The beginning of an algorithm's name -> the type of its keys."""
_FOREIGN = ("jwk", "jku", "x5c", "x5u", "crit", "b64", "zip", "enc")
_CHALLENGE = ((b"www-authenticate", b'Bearer realm="paimon-features", error="invalid_token"'),)


@dataclass(frozen=True, slots=True)
class _Key:
    """A public key: ``algorithm`` is the only one it may be used with, None for its family's."""

    type: str
    algorithm: str | None
    key: Any


class OidcIssuer:
    """The provider of ``[serve.oidc]``.

    Raises
    ------
    MissingExtraError
        Without the extra ``oidc``.
    """

    def __init__(self, config: OidcConfig) -> None:
        require("jwt", "oidc", "the validation of JWTs")
        require("cryptography", "oidc", "the validation of JWTs")
        self._config = config
        self._keys: Mapping[str | None, tuple[_Key, ...]] = {}
        self._fetched_s = self._began_s = float("-inf")
        self._tries: deque[float] = deque(maxlen=_BURST)
        self._unknown: dict[str | None, float] = {}
        self._wake = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    # -- validation ------------------------------------------------------------------------

    def subject_of(self, token: bytes) -> Subject:
        """Return the subject of a valid token.

        Raises
        ------
        RequestRejected
            401 for a token that is not valid, 503 while there are no keys to check it with.
        """
        import jwt

        config = self._config
        if len(token) > MAX_TOKEN_BYTES:
            raise _refused(
                f"it has {len(token):,} bytes; expected at most {MAX_TOKEN_BYTES:,}: let the "
                "provider put fewer claims into it"
            )
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.InvalidTokenError, ValueError, RecursionError):
            raise _refused("it is not a signed JWT") from None
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in config.algorithms:
            raise _refused(
                f"alg = {shortened(repr(algorithm), 40)}; expected {', '.join(config.algorithms)}"
            )
        foreign = [name for name in _FOREIGN if name in header]
        if foreign:
            raise _refused(
                f"its header has {', '.join(foreign)}; keys come from the provider's key set alone"
            )
        if key_id is not None and (not isinstance(key_id, str) or len(key_id) > _LONGEST_NAME):
            raise _refused(f"kid: expected a text of at most {_LONGEST_NAME} characters")
        key = self._key(algorithm, key_id)
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=[*config.audience],
                issuer=config.issuer,
                leeway=config.clock_skew_ms / 1_000,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
            # a time beyond all dates, or none that a number can be
            expires_s = float(claims["exp"]) + config.clock_skew_ms / 1_000
            name = claims["sub"]
        except (jwt.InvalidTokenError, ValueError, TypeError, OverflowError, RecursionError) as e:
            # the messages of PyJWT name claims and what was expected, never the token
            raise _refused(shortened(str(e), 200)) from None
        if (
            not isinstance(name, str)
            or not 0 < len(name) <= _LONGEST_NAME
            or not name.isprintable()
        ):
            raise _refused(f"sub: expected a printable text of at most {_LONGEST_NAME} characters")
        return Subject(name, self._roles_of(claims), expires_s)

    def _roles_of(self, claims: Mapping[str, Any]) -> frozenset[str]:
        """Return the values of the claim that grants roles: a claim of this name, or a path with
        dots."""
        claim: Any = claims.get(self._config.roles_claim)
        if claim is None:
            claim = claims
            for part in self._config.roles_claim.split("."):
                claim = claim.get(part) if isinstance(claim, Mapping) else None
        values = [claim] if isinstance(claim, str) else claim if isinstance(claim, list) else []
        return frozenset(value for value in values[:MAX_CLAIMS] if isinstance(value, str))

    def _key(self, algorithm: str, key_id: str | None) -> Any:
        """Return the key of a token."""
        now_s = time.monotonic()
        if now_s - self._fetched_s > _KEPT_S:
            self._wake.set()
            raise not_ready(
                "the identity provider's keys could not be fetched, so no JWT can be checked; the "
                "server's log has the reason"
            )
        kind = _FAMILIES[algorithm[:2]]
        if key_id is None:  # a provider with a single key need not name it
            named = [key for keys in self._keys.values() for key in keys]
        else:
            named = [*self._keys.get(key_id, ())]
        fitting = [k for k in named if k.type == kind and k.algorithm in (None, algorithm)]
        if len(fitting) == 1:
            return fitting[0].key
        if not named and not self._is_made_up(key_id, now_s):
            self._wake.set()  # keys were exchanged: the next request finds the new one
            raise not_ready("the token's key is being fetched from the identity provider")
        raise _refused(
            "its key (kid) is none of the provider's key set for this algorithm"
            if key_id is not None or not named
            else "it names no key (kid), and the provider's key set has several"
        )

    def _is_made_up(self, key_id: str | None, now_s: float) -> bool:
        """Return True if the key set was fetched since a token named this key, not long ago."""
        named_s = self._unknown.get(key_id, float("-inf"))
        if now_s - named_s > _PAUSE_S:
            self._unknown.pop(key_id, None)
            if len(self._unknown) >= _MOST_UNKNOWN:
                del self._unknown[next(iter(self._unknown))]
            named_s = self._unknown[key_id] = now_s
        return self._began_s > named_s or now_s - self._began_s < _SHORTEST_PAUSE_S

    # -- keys ------------------------------------------------------------------------------

    def start(self) -> None:
        """Fetch the keys now, and from now on in a thread; a failure is logged."""
        self.refresh()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="oidc-keys", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._wake.set()

    def refresh(self) -> bool:
        """Fetch the key set; whether that worked. Nothing is replaced if it did not."""
        began_s = time.monotonic()
        self._tries.append(began_s)
        try:
            keys = self._fetch()
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            LOGGER.error(
                "the keys of the identity provider %s could not be fetched: %s",
                self._config.issuer,
                shortened(str(error), 300),
            )
            return False
        self._keys, self._fetched_s, self._began_s = keys, time.monotonic(), began_s
        return True

    def _run(self) -> None:
        while not self._closed:
            unknown = self._wake.wait(self._config.refresh_ms / 1_000 if self._keys else _PAUSE_S)
            self._wake.clear()
            while unknown and not self._is_closed() and (wait_s := self._pause_s()) > 0:
                self._wake.wait(wait_s)
                self._wake.clear()
            if not self._is_closed():
                self.refresh()

    def _is_closed(self) -> bool:
        return self._closed  # read again each time: another thread sets it

    def _pause_s(self) -> float:
        """Return how long the next fetch for a key that is not there has to wait."""
        allowed_s = self._tries[-1] + _SHORTEST_PAUSE_S if self._tries else float("-inf")
        if len(self._tries) == _BURST:
            allowed_s = max(allowed_s, self._tries[0] + _BURST * _PAUSE_S)
        return allowed_s - time.monotonic()

    def _fetch(self) -> Mapping[str | None, tuple[_Key, ...]]:
        config = self._config
        url = config.jwks_url
        if url is None:
            configuration = _get_json(
                config.issuer.rstrip("/") + "/.well-known/openid-configuration", config
            )
            if configuration.get("issuer") != config.issuer:
                named = shortened(repr(configuration.get("issuer")), 80)
                raise ValueError(
                    f"its configuration is of the issuer {named}; expected {config.issuer!r}"
                )
            url = configuration.get("jwks_uri")
            if not isinstance(url, str):
                raise ValueError("its configuration has no jwks_uri")
            if _origin(url) != _origin(config.issuer):
                raise ValueError(
                    f"its configuration has jwks_uri = {shortened(repr(url), 80)}, which is on "
                    "another host or port than the issuer: the server would fetch what the "
                    "provider names. If that is right, write it to [serve.oidc] jwks_url"
                )
        return _keys_of(_get_json(url, config))


def _keys_of(document: Mapping[str, Any]) -> Mapping[str | None, tuple[_Key, ...]]:
    """Return the keys by name that can be used; others (encryption, unknown kinds) are left out."""
    import jwt

    listed = document.get("keys")
    if not isinstance(listed, list) or not 0 < len(listed) <= MAX_KEYS:
        raise ValueError(f"its key set has no list of 1 to {MAX_KEYS} keys")
    out: dict[str | None, tuple[_Key, ...]] = {}
    for entry in listed:
        if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
            continue
        kind, algorithm, name = entry.get("kty"), entry.get("alg"), entry.get("kid")
        if kind not in _FAMILIES.values() or not isinstance(name, str | None):
            continue
        if algorithm is not None and _FAMILIES.get(str(algorithm)[:2]) != kind:
            continue
        try:
            key = jwt.PyJWK(entry).key
        except (jwt.PyJWTError, ValueError, TypeError, KeyError):
            continue
        if hasattr(key, "private_numbers") or hasattr(key, "private_bytes"):
            continue  # a set that has private keys is no source of trust
        if kind == "RSA" and key.key_size not in _RSA_BITS:
            continue
        out[name] = (*out.get(name, ()), _Key(str(kind), algorithm, key))
    if not out:
        raise ValueError("its key set has no public key for signatures that can be used")
    return out


def _origin(url: str) -> tuple[str, str | None, int | None] | None:
    """Return the scheme, host and port of an address; None for one that is not plain."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    except ValueError:
        return None
    if "@" in parts.netloc or "\\" in url or not url.isprintable():
        return None
    return parts.scheme, parts.hostname, port


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """An address that was not configured is not trusted."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> None:
        return None


def _get_json(url: str, config: OidcConfig) -> Mapping[str, Any]:
    """Return a document of the provider, of at most 1 MiB and within 15 s."""
    if not is_trusted_url(url):
        raise ValueError(f"jwks_uri = {shortened(repr(url), 80)}; expected https://HOST/...")
    handlers: list[Any] = [_NoRedirects()]
    if config.tls_ca is not None:
        context = ssl.create_default_context(cafile=str(config.tls_ca))
        handlers.append(urllib.request.HTTPSHandler(context=context))
    request = urllib.request.Request(url, headers={"accept": "application/json"})
    until_s = time.monotonic() + _LONGEST_FETCH_S
    body = b""
    with urllib.request.build_opener(*handlers).open(request, timeout=_TIMEOUT_S) as response:
        read: Callable[[int], bytes] = response.read1
        while part := read(65_536):
            body += part
            if len(body) > MAX_DOCUMENT_BYTES:
                raise ValueError(f"{url}: more than {MAX_DOCUMENT_BYTES:,} bytes")
            if time.monotonic() > until_s:
                raise ValueError(f"{url}: not complete within {_LONGEST_FETCH_S:g} s")
    document = parse_unambiguous_json(body)
    if not isinstance(document, dict):
        raise ValueError(f"{url}: expected a JSON object")
    return document


def _refused(why: str) -> RequestRejected:
    return RequestRejected("unauthorized", f"the JWT is not accepted: {why}", _CHALLENGE)
