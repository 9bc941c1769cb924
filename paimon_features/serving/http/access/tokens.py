"""Tokens and roles: who may do what. The file contains hashes only.

::

    [role.scorer]
    services = ["churn_*"]         # or views = [...], models = [...]
    requests_per_s = 200
    oidc = ["ml-scorers"]          # values of the claim that give this role

    [[token]]
    name = "churn scorer"
    sha256 = "9f86d0..."
    services = ["churn_v1"]        # or ["*"] for everything
    roles = ["scorer"]

A token is random and long, so one round of SHA-256 is enough: it cannot be guessed.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
import tomllib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from paimon_features.core.documents.generated_text import toml_value
from paimon_features.core.errors import ConfigurationError, unknown_name
from paimon_features.serving.http.access.access import (
    EVERYTHING,
    Grant,
    Grants,
    Quota,
    Rights,
    Usage,
    quota_key,
)
from paimon_features.serving.http.http_errors import RequestRejected

MAX_ENTRIES = 10_000
"""Tokens and roles of a file."""
KEPT_SUBJECTS = 4_096
"""Validated JWTs that are remembered; the one used longest ago is validated again."""
_MOST_HEADERS = 4_096
_PREFIX = "pf_"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_CHALLENGE = ((b"www-authenticate", b'Bearer realm="paimon-features"'),)
_RIGHTS = ("services", "views", "models", "explain", "admin", "requests_per_s", "rows_per_s")


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom a valid JWT names: ``claims`` are the values that give roles, until ``expires_s``."""

    name: str
    claims: frozenset[str]
    expires_s: float


class TokenIssuer(Protocol):
    """An identity provider whose JWTs are accepted."""

    def subject_of(self, token: bytes) -> Subject:
        """Return the subject of a token, RequestRejected for one that is not valid."""


class Tokens:
    """The tokens and roles of a file, and with ``issuer`` the JWTs of an identity provider.

    Raises
    ------
    ConfigurationError
        If the file cannot be read or is invalid.
    """

    def __init__(self, path: Path, issuer: TokenIssuer | None = None) -> None:
        self.path = path
        content = _read(path)
        self._roles = content.roles
        self._known = {entry.digest: entry.rights for entry in content.tokens}
        # whole headers with a token of the file: their hash is keyed and at random in each process,
        # and reveals by its time as little about a token as its digest does
        self._of_header: dict[bytes, Rights] = {}
        self._issuer = issuer
        # the digest of a JWT -> its rights, and when they end
        self._subjects: OrderedDict[bytes, tuple[Rights, float]] = OrderedDict()
        self._of_roles: dict[tuple[str, ...], tuple[Grants, Quota | None]] = {}
        self._forgotten: dict[tuple[str, str], Usage] = {}

    def rights(self, authorization: bytes) -> Rights:
        """Return the rights of the bearer.

        Raises
        ------
        RequestRejected
            401 without a known token, 403 for a valid JWT without a role.
        """
        if not authorization:
            raise RequestRejected(
                "unauthorized",
                "no token; send the header 'Authorization: Bearer <token>' with a token created by "
                "'paimon-features serve token'",
                _CHALLENGE,
            )
        rights = self._of_header.get(authorization)
        if rights is not None:
            return rights
        scheme, _, token = authorization.partition(b" ")
        if scheme.lower() == b"bearer":
            token = token.strip()
            # a search by the hash reveals by its time nothing about the token
            digest = hashlib.sha256(token).digest()
            rights = self._known.get(digest)
            if rights is not None:
                if len(self._of_header) >= _MOST_HEADERS:  # one token in many spellings
                    self._of_header.clear()
                self._of_header[authorization] = rights
                return rights
            if self._issuer is not None and token.count(b".") == 2:
                return self._of_subject(self._issuer, digest, token)
        raise RequestRejected(
            "unauthorized",
            "the token is not known to this server; expected 'Authorization: Bearer <token>' "
            "with a token created by 'paimon-features serve token' and not removed since",
            _CHALLENGE,
        )

    def take_usage(self) -> Iterator[tuple[str, str, tuple[int, int, int]]]:
        """Name, label, and the requests, rows and refusals of each client since the last call."""
        for (client, label), usage in self._forgotten.items():
            yield client, label, usage.take()
        self._forgotten.clear()
        of_subjects = (rights for rights, _ in self._subjects.values())
        for rights in (*self._known.values(), *of_subjects):
            usage = rights.usage
            if usage.requests or usage.rows or usage.refused:
                yield rights.client, rights.label, usage.take()

    def _of_subject(self, issuer: TokenIssuer, digest: bytes, token: bytes) -> Rights:
        cached = self._subjects.get(digest)
        if cached is not None:
            if time.time() < cached[1]:
                self._subjects.move_to_end(digest)
                return cached[0]
            self._forget(digest)
        subject = issuer.subject_of(token)
        roles = tuple(n for n, role in self._roles.items() if role.claims & subject.claims)
        if not roles:
            raise RequestRejected(
                "forbidden",
                f"{subject.name!r} is known and has no role here: none of the roles in the "
                "server's token file lists (oidc = [...]) a value of its claim",
            )
        grants, quota = self._united(roles)
        rights = Rights(
            subject.name, grants, f"oidc:{'+'.join(roles)}", quota, quota_key("oidc", subject.name)
        )
        if len(self._subjects) >= KEPT_SUBJECTS:
            self._forget(next(iter(self._subjects)))
        self._subjects[digest] = rights, subject.expires_s
        return rights

    def _united(self, roles: tuple[str, ...]) -> tuple[Grants, Quota | None]:
        """Return the same object for the same roles: what a set of definitions knows is by
        grants."""
        united = self._of_roles.get(roles)
        if united is None:
            if len(self._of_roles) >= KEPT_SUBJECTS:
                self._of_roles.clear()
            of = [self._roles[name] for name in roles]
            united = Grants.of(role.grant for role in of), _greatest(role.quota for role in of)
            self._of_roles[roles] = united
        return united

    def _forget(self, digest: bytes) -> None:
        rights, _ = self._subjects.pop(digest)
        if len(self._forgotten) < KEPT_SUBJECTS:
            total = self._forgotten.setdefault((rights.client, rights.label), Usage())
            requests, rows, refused = rights.usage.take()
            total.requests += requests
            total.rows += rows
            total.refused += refused


@dataclass(frozen=True, slots=True)
class _Role:
    grant: Grant
    quota: Quota | None
    claims: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Entry:
    digest: bytes
    rights: Rights


@dataclass(frozen=True, slots=True)
class _Content:
    roles: Mapping[str, _Role] = field(default_factory=dict)
    tokens: Sequence[_Entry] = ()


def _read(path: Path) -> _Content:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(
            f"the token file {path} does not exist; 'paimon-features serve token --service NAME' "
            "creates a token and the file"
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"token file {path}: {error}") from error
    entries: Any = document.pop("token", [])
    named: Any = document.pop("role", {})
    if document or not isinstance(entries, list) or not isinstance(named, dict):
        raise ConfigurationError(
            f"token file {path}: expected entries [[token]] and [role.NAME] only, got "
            f"{', '.join(document) or 'a [token] or [[role]]'}"
        )
    if len(entries) + len(named) > MAX_ENTRIES:
        raise ConfigurationError(
            f"token file {path} has {len(entries):,} tokens and {len(named):,} roles; expected at "
            f"most {MAX_ENTRIES:,}: give clients roles by an identity provider ([serve.oidc])"
        )
    roles = {
        name: _role(f"token file {path}: role {name!r}", values) for name, values in named.items()
    }
    tokens = [
        _entry(f"token file {path}: entry {number}", entry, roles)
        for number, entry in enumerate(entries, 1)
    ]
    return _Content(roles, tokens)


def _role(where: str, values: Any) -> _Role:
    fields = {*_RIGHTS, "oidc"}
    if not isinstance(values, dict) or values.keys() - fields:
        raise ConfigurationError(f"{where}: expected {', '.join(sorted(fields))}; got {values}")
    grant = _grant(where, values)
    if grant is None:
        raise ConfigurationError(
            f"{where} grants nothing; expected services, views, models or admin"
        )
    claims = _names(where, values, "oidc", "values of the claim") or ()
    return _Role(grant, _quota(where, values), frozenset(claims))


def _entry(where: str, entry: Any, roles: Mapping[str, _Role]) -> _Entry:
    fields = ("name", "sha256", "created", "roles", *_RIGHTS)
    if not isinstance(entry, dict) or entry.keys() - set(fields):
        raise ConfigurationError(f"{where}: expected {', '.join(fields)}; got {entry}")
    name, digest = entry.get("name"), entry.get("sha256")
    if not isinstance(name, str) or not name:
        raise ConfigurationError(f"{where}: name = {name!r}; expected a string")
    where = f"{where} ({name!r})"
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ConfigurationError(f"{where}: sha256 is not 64 lower-case hex digits")
    chosen = _names(where, entry, "roles", "names of roles") or ()
    for role in chosen:
        if role not in roles:
            raise ConfigurationError(f"{where}: {unknown_name('role', role, roles)}")
    grant = _grant(where, entry)
    if grant is None and not chosen:
        raise ConfigurationError(
            f"{where} grants nothing; expected names of services (or ['*']), views, models or roles"
        )
    of_roles = [roles[role] for role in chosen]
    grants = Grants.of([*([grant] if grant else []), *(role.grant for role in of_roles)])
    quota = _quota(where, entry) or _greatest(role.quota for role in of_roles)
    return _Entry(
        bytes.fromhex(digest), Rights(name, grants, name, quota, quota_key("token", name))
    )


def _grant(where: str, values: Mapping[str, Any]) -> Grant | None:
    """Return what an entry itself grants; None for nothing."""
    services = _names(where, values, "services", "names of services, or ['*']")
    views = _names(where, values, "views", "names of feature views")
    models = _names(where, values, "models", "names of models", may_be_empty=True)
    for name in ("explain", "admin"):
        if type(values.get(name, True)) is not bool:
            raise ConfigurationError(f"{where}: {name} = {values[name]!r}; expected true or false")
    reads = services is not None or views is not None
    if not reads and models is None and not values.get("explain") and not values.get("admin"):
        return None
    return Grant(
        frozenset(services or ()),
        frozenset(views or ()),
        None if models is None and reads else frozenset(models or ()),
        values.get("explain", reads),
        values.get("admin", EVERYTHING in (services or ())),
    )


def _names(
    where: str, values: Mapping[str, Any], key: str, expected: str, *, may_be_empty: bool = False
) -> list[str] | None:
    if key not in values:
        return None
    names = values[key]
    texts = isinstance(names, list) and all(isinstance(n, str) and n for n in names)
    if not texts or not (names or may_be_empty):
        raise ConfigurationError(f"{where}: {key} = {names!r}; expected {expected}")
    return list(names)


def _quota(where: str, values: Mapping[str, Any]) -> Quota | None:
    rates = [values.get(name) for name in ("requests_per_s", "rows_per_s")]
    for name, rate in zip(("requests_per_s", "rows_per_s"), rates, strict=True):
        if rate is not None and (type(rate) not in (int, float) or not 0.001 <= rate <= 1e9):
            raise ConfigurationError(
                f"{where}: {name} = {rate!r}; expected a number from 0.001 to 1e9"
            )
    return Quota(*rates) if any(rate is not None for rate in rates) else None


def _greatest(quotas: Iterable[Quota | None]) -> Quota | None:
    """Return the greatest rate of each kind; a role without a quota sets none."""
    given = [quota for quota in quotas if quota is not None]
    if not given:
        return None
    requests = [q.requests_per_s for q in given if q.requests_per_s is not None]
    rows = [q.rows_per_s for q in given if q.rows_per_s is not None]
    return Quota(max(requests, default=None), max(rows, default=None))


@dataclass(frozen=True, slots=True)
class NewToken:
    """What a new token is to have; see the token file."""

    services: Sequence[str] = ()
    views: Sequence[str] = ()
    models: Sequence[str] = ()
    roles: Sequence[str] = ()
    requests_per_s: float | None = None
    rows_per_s: float | None = None

    def lines(self) -> Iterator[str]:
        """Yield its lines in the file."""
        for name in ("services", "views", "models", "roles"):
            values: Sequence[str] = getattr(self, name)
            if values:
                yield f"{name} = [{', '.join(_quoted(value) for value in values)}]\n"
        for name in ("requests_per_s", "rows_per_s"):
            if (rate := getattr(self, name)) is not None:
                yield f"{name} = {float(rate)!r}\n"


def add_token(path: Path, name: str, granted: NewToken | Sequence[str], created: str) -> str:
    """Create a token for a new entry of the file, or for names of services; return it.

    The file is created if there is none, readable by its owner only. ``created`` is a date for
    the reader of the file.

    Raises
    ------
    ConfigurationError
        If the file exists and is invalid, or has a token of this name, or no such role.
    """
    if not isinstance(granted, NewToken):
        granted = NewToken(services=granted)
    content = _read(path) if path.exists() else _Content()
    if name in {entry.rights.client for entry in content.tokens}:
        raise ConfigurationError(
            f"token file {path} already has a token {name!r}; remove its entry first, or "
            "choose another --name"
        )
    token = _PREFIX + secrets.token_urlsafe(32)
    digest = hashlib.sha256(token.encode()).hexdigest()
    entry = (
        f"[[token]]\nname = {_quoted(name)}\nsha256 = {_quoted(digest)}\n"
        f"{''.join(granted.lines())}created = {_quoted(created)}\n"
    )
    _entry("the new token", tomllib.loads(entry)["token"][0], content.roles)
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    separator = "\n" if before and not before.endswith("\n\n") else ""
    # a new file, then one rename: a server that reads meanwhile sees the old or the new one
    fresh = path.with_name(path.name + ".new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(before + separator + entry)
    os.replace(fresh, path)
    return token


def _quoted(text: str) -> str:
    if any(ord(c) < 32 or ord(c) == 127 for c in text):
        raise ConfigurationError(f"{text!r} has control characters; expected plain text")
    return toml_value(text)
