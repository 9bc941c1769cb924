"""What a client may do, and how much of it: grants, quotas, and the counts of its use.

A grant has names or patterns (``*`` and ``?``, as in a shell). A client has the union of its own
grant and those of its roles.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

EVERYTHING = "*"


@dataclass(frozen=True, slots=True)
class Grant:
    """One part of what a client may do.

    ``services`` and ``views`` are those whose features it may read. ``models`` are those that it
    may use, whatever they read; without it (None), those that read only features of the grant.
    ``explain`` is the right to see from which cells a value is computed, ``admin`` the right to
    see details of the host.
    """

    services: frozenset[str] = frozenset()
    views: frozenset[str] = frozenset()
    models: frozenset[str] | None = None
    explain: bool = True
    admin: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Grants:
    """The union of grants; equal to itself only, so that it is a cheap key.

    >>> grants = Grants.of([Grant(services=frozenset({"churn_*"})), Grant(views=frozenset({"v"}))])
    >>> grants.has_service("churn_v1"), grants.has_view("w"), grants.names_model("churn")
    (True, False, False)
    """

    services: frozenset[str]
    views: frozenset[str]
    models: frozenset[str]
    covered_models: bool
    explain: bool
    admin: bool
    reads_everything: bool

    @classmethod
    def of(cls, parts: Iterable[Grant]) -> Grants:
        """Return the union of these."""
        parts = tuple(parts)
        services = frozenset[str]().union(*(part.services for part in parts))
        views = frozenset[str]().union(*(part.views for part in parts))
        return cls(
            services,
            views,
            frozenset[str]().union(*(part.models or () for part in parts)),
            any(part.models is None for part in parts),
            any(part.explain for part in parts),
            any(part.admin for part in parts),
            EVERYTHING in services or EVERYTHING in views,
        )

    def has_service(self, name: str) -> bool:
        """Return True if the features of a service may be read because it is named."""
        return self.reads_everything or _matches(self.services, name)

    def has_view(self, name: str) -> bool:
        """Return True if the features of a view may be read because it is named."""
        return self.reads_everything or _matches(self.views, name)

    def names_model(self, name: str) -> bool:
        """Return True if a model may be used whatever it reads."""
        return bool(self.models) and _matches(self.models, name)

    def __str__(self) -> str:
        named = (("services", self.services), ("views", self.views))
        parts = [f"these {kind}: {', '.join(sorted(names))}" for kind, names in named if names]
        return " and of ".join(parts) or "nothing"


@dataclass(frozen=True, slots=True)
class Quota:
    """The greatest rates of a client, over all workers of a server; None: no limit.

    A second's worth may come at once. A request of more rows than that is answered when nothing
    was used for a second, and the client then waits until its rate has caught up.
    """

    requests_per_s: float | None = None
    rows_per_s: float | None = None


@dataclass(slots=True, eq=False)
class Usage:
    """Counts of a client since they were last collected."""

    requests: int = 0
    rows: int = 0
    refused: int = 0

    def take(self) -> tuple[int, int, int]:
        """Return the counts, which start at zero again."""
        counts = self.requests, self.rows, self.refused
        self.requests = self.rows = self.refused = 0
        return counts


@dataclass(frozen=True, slots=True, eq=False)
class Rights:
    """What a client may do. ``client`` is its name in logs, ``label`` that in metrics.

    ``quota_key`` are the 16 bytes under which its rates are counted. The limit is no part of it:
    a change of the limit applies at once.
    """

    client: str
    grants: Grants
    label: str
    quota: Quota | None = None
    quota_key: bytes = b""
    usage: Usage = field(default_factory=Usage)


def quota_key(kind: str, name: str) -> bytes:
    """Return the key of a client's rates."""
    return hashlib.sha256(f"{kind}:{name}".encode()).digest()[:16]


ANYBODY = Rights("", Grants.of([Grant(frozenset({EVERYTHING}))]), "")
"""The rights of every client of an open server, where details of the host are for nobody."""


def _matches(patterns: frozenset[str], name: str) -> bool:
    return name in patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
