"""Which versions of a model serve: one document, which one compare-and-set replaces.

Requests are split between production and challengers by a salted hash of the entity, in slots of
1/10,000. A challenger has slots of its own: when its share grows, it takes more of production's,
and no other entity changes its version.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

from paimon_features.core.documents.typed_json import typed
from paimon_features.core.errors import ModelError, RequestError, UnknownNameError
from paimon_features.core.types.schema import check_name

ModelState = Literal["candidate", "shadow", "challenger", "production", "archived"]
"""Of a version: not served yet; predicts next to production, and its predictions are not
returned; answers a share of the entities; answers all others; no longer served."""
STATES: tuple[ModelState, ...] = get_args(ModelState)
SHARES = 10_000
"""The slots of the split."""
MAX_VERSIONS = 100_000
_PREVIOUS = 32
"""So many promotions can be rolled back."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class VersionState:
    """The state of a version; ``manifest`` is the SHA-256 of its manifest.

    ``traffic`` is its number of slots. Those of a challenger are ``slots``, ranges [start, end);
    production has all others.
    """

    version: int
    state: ModelState
    manifest: str
    traffic: int = 0
    slots: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class ModelStates:
    """The states of all versions of a model, in ascending order of versions.

    ``serial`` counts the changes. ``previous`` are the versions that were in production before, the
    newest last.

    Raises
    ------
    ModelError
        For two versions in production, slots that two versions have, and the like.
    """

    name: str
    serial: int
    salt: str
    changed_at_ms: int
    versions: tuple[VersionState, ...] = ()
    previous: tuple[int, ...] = ()

    @classmethod
    def new(cls, name: str, now_ms: int) -> ModelStates:
        """Return the states of a model without versions."""
        return cls(name, 0, secrets.token_hex(8), now_ms)

    def __post_init__(self) -> None:
        check_name("model", self.name)
        if len(self.versions) > MAX_VERSIONS or len(self.salt) > 64 or self.serial < 0:
            raise ModelError(f"model {self.name!r}: its states are not as they are written")
        numbers = [version.version for version in self.versions]
        if numbers != sorted(set(numbers)) or (numbers and numbers[0] < 1):
            raise ModelError(f"model {self.name!r}: its versions are not in ascending order")
        if sum(version.state == "production" for version in self.versions) > 1:
            raise ModelError(f"model {self.name!r}: two versions are in production")
        if any(not _SHA256.fullmatch(version.manifest) for version in self.versions):
            raise ModelError(f"model {self.name!r}: a manifest is not named by its SHA-256")
        slots: list[tuple[int, int]] = []
        for version in self.versions:
            if version.slots and version.state != "challenger":
                raise ModelError(f"model {self.name!r}: version {version.version} has slots")
            slots += version.slots
        slots.sort()
        bounds = [0, *(edge for pair in slots for edge in pair), SHARES]
        if bounds != sorted(bounds) or any(start == end for start, end in slots):
            raise ModelError(f"model {self.name!r}: the slots of its challengers overlap")
        rest = SHARES - sum(end - start for start, end in slots)
        for entry in self.versions:
            own_share = sum(end - start for start, end in entry.slots)
            if entry.traffic != (rest if entry.state == "production" else own_share):
                raise ModelError(
                    f"model {self.name!r}: version {entry.version} has the traffic "
                    f"{entry.traffic:,}"
                )

    @cached_property
    def production(self) -> VersionState | None:
        """The version in production."""
        return next((version for version in self.versions if version.state == "production"), None)

    @cached_property
    def serving(self) -> tuple[VersionState, ...]:
        """The versions that answer: production and challengers."""
        return tuple(
            version for version in self.versions if version.state in ("production", "challenger")
        )

    @cached_property
    def shadows(self) -> tuple[VersionState, ...]:
        """The versions that predict next to production; their predictions are not returned."""
        return tuple(version for version in self.versions if version.state == "shadow")

    def _repr_html_(self) -> str:
        from paimon_features.core.notebook.markup import card, table, utc

        rows = [
            (str(v.version), v.state, f"{v.traffic / SHARES:.2%}" if v.traffic else "")
            for v in reversed(self.versions)
        ]
        note = f"changed {utc(self.changed_at_ms)} UTC"
        return card(f"Model {self.name}", table(rows, ("version", "state", "traffic")), note=note)

    def of(self, version: int) -> VersionState:
        """Return the state of a version; UnknownNameError if there is none."""
        for entry in self.versions:
            if entry.version == version:
                return entry
        existing = ", ".join(str(entry.version) for entry in self.versions[-20:]) or "none"
        raise UnknownNameError(f"model {self.name!r} has no version {version}; it has: {existing}")

    def slot(self, entity: bytes | str) -> int:
        """Return the slot of an entity: the same for equal bytes, whatever the versions are."""
        data = entity.encode() if isinstance(entity, str) else entity
        digest = hashlib.blake2b(data, digest_size=8, key=self.salt.encode()).digest()
        return int.from_bytes(digest, "big") % SHARES

    def version_of(self, entity: bytes | str) -> int | None:
        """Return the version that answers an entity; None where no version does."""
        if self._challenged:
            slot = self.slot(entity)
            for start, end, version in self._challenged:
                if start <= slot < end:
                    return version
        return None if self.production is None else self.production.version

    @cached_property
    def _challenged(self) -> tuple[tuple[int, int, int], ...]:
        return tuple(
            (*slots, version.version) for version in self.versions for slots in version.slots
        )

    # -- changes ---------------------------------------------------------------------------

    def with_version(self, version: int, manifest: str, now_ms: int) -> ModelStates:
        """Return the states with another version, a candidate."""
        added = VersionState(version, "candidate", manifest)
        return self._next([*self.versions, added], now_ms, self.previous)

    def changed(
        self, version: int, state: ModelState, now_ms: int, *, traffic: int = 0
    ) -> ModelStates:
        """Return the states after the state of a version was changed.

        A version that gets into production replaces the one that is, which is archived.
        ``traffic`` are the slots of a challenger, 1 to 9,999 of 10,000.

        Raises
        ------
        UnknownNameError
            If there is no such version.
        RequestError
            For traffic of another state, a challenger without it or without a version in
            production, or more than there is.
        """
        if state not in STATES:
            raise RequestError(f"state {state!r}; expected one of: {', '.join(STATES)}")
        entry_before = self.of(version)
        if (state == "challenger") != (traffic > 0):
            raise RequestError(
                f"model {self.name!r}, version {version}: "
                + ("a challenger has traffic" if not traffic else f"a {state} has no traffic")
                + "; pass --traffic with --as challenger, in percent of the entities"
            )
        current = self.production
        if state == "challenger":
            if current is None or current.version == version:
                raise RequestError(
                    f"model {self.name!r}: a challenger needs another version in production; "
                    "promote one first"
                )
            others = [entry for entry in self.versions if entry.version != version]
            slots = _slots(
                entry_before.slots, [s for entry in others for s in entry.slots], traffic
            )
            if slots is None:
                other_traffic = sum(
                    entry.traffic for entry in others if entry.state == "challenger"
                )
                raise RequestError(
                    f"model {self.name!r}: {traffic / 100:g} % of the entities for version "
                    f"{version}, and other challengers have {other_traffic / 100:g} %"
                )
        else:
            slots = ()
        previous = self.previous
        if current is not None and state == "production" and current.version != version:
            previous = (*previous, current.version)
        if current is not None and state != "production" and current.version == version:
            previous = (*previous, current.version)
        after: list[VersionState] = []
        for entry in self.versions:
            if entry.version == version:
                after.append(replace(entry, state=state, slots=slots))
            elif state == "production" and entry.state == "production":
                after.append(replace(entry, state="archived"))
            else:
                after.append(entry)
        return self._next(after, now_ms, previous)

    def rolled_back(self, now_ms: int) -> ModelStates:
        """Return the states with the version in production that was there before; the current is
        archived.

        Raises
        ------
        RequestError
            If there is none.
        """
        if not self.previous:
            raise RequestError(
                f"model {self.name!r}: no version was in production before; promote one"
            )
        *earlier, version = self.previous
        return replace(
            self.changed(version, "production", now_ms), previous=tuple(earlier[-_PREVIOUS:])
        )

    def _next(
        self, versions: Sequence[VersionState], now_ms: int, previous: tuple[int, ...]
    ) -> ModelStates:
        rest = SHARES - sum(end - start for version in versions for start, end in version.slots)
        after = tuple(
            replace(
                version,
                traffic=rest
                if version.state == "production"
                else sum(end - start for start, end in version.slots),
            )
            for version in versions
        )
        return replace(
            self,
            serial=self.serial + 1,
            changed_at_ms=now_ms,
            versions=after,
            previous=previous[-_PREVIOUS:],
        )

    # -- JSON ------------------------------------------------------------------------------

    def to_document(self) -> dict[str, Any]:
        """Return the states in JSON values."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> ModelStates:
        """Return the states of a document; ModelError for one that is none."""
        try:
            return typed(cls, document)
        except ModelError:
            raise
        except ValueError as error:
            raise ModelError(f"these are no states of a model: {error}") from error


def _slots(
    own: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]], count: int
) -> tuple[tuple[int, int], ...] | None:
    """Return ``count`` slots in ascending ranges: as many of the own as there are, then free ones.

    >>> _slots([(0, 100)], [(100, 200)], 150)
    ((0, 100), (200, 250))
    >>> _slots([(0, 100)], [(100, 200)], 30)
    ((0, 30),)
    """
    occupied = sorted([*own, *others])
    edges = [0, *(edge for pair in occupied for edge in pair), SHARES]
    free = list(zip(edges[::2], edges[1::2], strict=True))
    ranges: list[tuple[int, int]] = []
    for start, end in [*sorted(own), *free]:
        end = min(end, start + count)
        if end > start:
            ranges.append((start, end))
            count -= end - start
    if count:
        return None
    ranges.sort()
    joined: list[tuple[int, int]] = []
    for start, end in ranges:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return tuple(joined)
