"""What the tools of the MCP server answer: documents of JSON values, each of bounded size."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paimon_features.core.configuration.project_config import FILE_NAME, find_root
from paimon_features.core.errors import RequestError, UnknownNameError, unknown_name
from paimon_features.core.times.clock import now_ms
from paimon_features.core.types.schema import DataType
from paimon_features.integrations.mcp.bounded import bounded
from paimon_features.project import Project
from paimon_features.project.lineage import describe, describe_all
from paimon_features.project.status import StatusReader
from paimon_features.serving.http.access.access import ANYBODY, Rights
from paimon_features.serving.http.access.quotas import Quotas
from paimon_features.serving.http.bodies.request_body import ParsedRequest
from paimon_features.serving.http.definitions.definition_set import DefinitionSet
from paimon_features.serving.http.definitions.definition_source import Stamp, stamp_of
from paimon_features.serving.http.endpoints.catalogue import catalogue
from paimon_features.serving.http.limits import Limits
from paimon_features.serving.reading.explain import explain
from paimon_features.serving.replies.plain_values import plain_values

Document = dict[str, Any]
MAX_PAGE = 200
"""Definitions of one page of ``list``."""
MAX_ENTITIES = 100
"""Entities of one lookup."""
MAX_VALUES = 5_000
"""Entities times features of one lookup."""

_KINDS = {
    "services": "service",
    "views": "feature_view",
    "interactions": "interaction",
    "transformed": "transformed",
    "entities": "entity",
}
"""The kind of each list of a catalogue."""


class FeatureTools:
    """Read-only questions about the project in ``path`` or the nearest folder above it.

    The definitions are loaded again when their file or the configuration changes. Every method
    takes the rights of its caller, by default all; whoever may read some services only sees their
    features. Safe to share between threads.

    Raises
    ------
    ConfigurationError
        If there is no project.
    """

    def __init__(self, path: str | Path = ".") -> None:
        self.root = find_root(Path(path))
        self._lock = threading.Lock()
        self._quotas = Quotas()
        self._loaded: tuple[object, _Loaded] | None = None

    def admit(self, rights: Rights) -> None:
        """Count a request of a caller; the rows of ``lookup`` and ``explain`` are counted there.

        Raises
        ------
        RequestRejected
            429 if the caller is over its quota.
        """
        rights.usage.requests += 1
        if rights.quota is not None:
            self._quotas.take_request(rights)

    def _note_rows(self, rights: Rights, rows: int) -> None:
        rights.usage.rows += rows
        if rights.quota is not None:
            self._quotas.take_rows(rights, rows)

    @property
    def project(self) -> Project:
        """The project as its files are now."""
        return self._current().project

    def list(
        self,
        kind: str | None = None,
        search: str | None = None,
        offset: int = 0,
        limit: int = 50,
        *,
        rights: Rights = ANYBODY,
    ) -> Document:
        """Return definitions from ``offset`` on: kind, name, state, description, owner, tags.

        ``search`` is looked for in names, descriptions, owners and tags, in any case. The result
        has ``definitions``, ``total``, and ``next_offset`` (null at the end). The protocol has
        checked the page: an offset of 0 or more, a limit of 1 to ``MAX_PAGE``.

        Raises
        ------
        RequestError
            For an unknown kind.
        """
        definitions = self._definitions(rights)
        kinds = list(dict.fromkeys(one["kind"] for one in definitions))
        if kind is not None and kind not in kinds:
            raise RequestError(unknown_name("kind of definition", kind, kinds))
        wanted = (search or "").lower()
        definitions = [
            one
            for one in definitions
            if kind in (None, one["kind"]) and (not wanted or wanted in _searched(one))
        ]
        page = definitions[offset : offset + limit]
        end = offset + len(page)
        return bounded(
            {
                "project": self.project.name,
                "definitions": page,
                "total": len(definitions),
                "next_offset": end if end < len(definitions) else None,
            }
        )

    def describe(self, name: str, *, rights: Rights = ANYBODY) -> Document:
        """Return the definitions of that name: features with types and windows, lineage, versions.

        Raises
        ------
        UnknownNameError
            If there is none, or none that the rights cover.
        """
        current = self._current()
        if rights.grants.reads_everything:
            project = current.project
            return bounded({"definitions": describe(project.definitions, project.lake, name)})
        served = catalogue(current.definitions, rights)
        entries = [
            {"kind": kind, **one}
            for group, kind in _KINDS.items()
            for one in served[group]
            if one["name"] == name
        ]
        if not entries:
            names = [one["name"] for one in self._definitions(rights)]
            raise UnknownNameError.of("definition", name, dict.fromkeys(names))
        return bounded({"definitions": entries})

    def lookup(
        self,
        features: Sequence[str],
        entities: Mapping[str, Sequence[Any]],
        as_of: str | int | None = None,
        request: Mapping[str, Any] | None = None,
        *,
        rights: Rights = ANYBODY,
    ) -> Document:
        """Return online features of entities: ``rows``, ``statuses`` and ``freshness`` by view.

        ``features`` are names of services, views, interactions, or ``view:feature``; ``entities``
        maps each key to its values, all of one length; ``as_of`` is UTC ms or an ISO 8601 time.

        Raises
        ------
        RequestError, UnknownNameError, RequestRejected
            For names, keys or values that are wrong, or too many of them.
        StoreNotReadyError, OnlineStoreError
            If the store cannot be read.
        """
        current = self._current()
        defined = current.definitions
        if not features:
            raise RequestError("features is empty; expected names of services, views or features")
        items = [
            str(item)
            for text in features
            for item in current.project.definitions.resolve(text)
        ]  # fmt: skip
        plan = defined.plan(None, tuple(dict.fromkeys(items)))
        defined.check_rights(plan, rights)
        columns = {name: list(values) for name, values in entities.items()}
        parsed = ParsedRequest(columns, dict(request or {}), (), None, False, _time_ms(as_of))
        query, _ = defined.query(parsed, plan, current.limits)
        as_of_ms = now_ms() if query.as_of_ms is None else query.as_of_ms
        self._note_rows(rights, max(map(len, columns.values()), default=1))
        response = defined.fetcher.get(
            plan.selection.outputs, query.entities, as_of_ms, query.inputs
        )
        batch = response.batch
        kinds = {**plan.keys, **dict(zip(batch.selection.names, batch.types, strict=True))}
        return bounded(
            {
                "as_of_ms": response.as_of_ms,
                "rows": [_plain_row(row, kinds) for row in response.to_pylist()],
                "statuses": response.status_rows(),
                "freshness": {view: asdict(f) for view, f in response.freshness.items()},
            }
        )

    def explain(
        self,
        view: str,
        entity: Mapping[str, Any],
        features: Sequence[str] | None = None,
        as_of: str | int | None = None,
        *,
        rights: Rights = ANYBODY,
    ) -> Document:
        """Return what an entity's features of a view are computed from, see ``serving.explain``.

        Raises
        ------
        RequestError, UnknownNameError, StoreNotReadyError, OnlineStoreError
            As ``lookup`` does.
        """
        if not rights.grants.explain:
            raise RequestError(f"the token {rights.client!r} may not explain features")
        current = self._current()
        granted = current.definitions.granted(rights)
        if granted is not None:
            # before anything says whether the view exists
            readable = [n.partition(":")[2] for n in sorted(granted) if n.startswith(f"{view}:")]
            beyond = sorted(set(features or readable) - set(readable))
            if beyond or not readable:
                raise RequestError(
                    f"the token {rights.client!r} may not read {', '.join(beyond) or view}"
                )
            features = features or readable
        for name in features or ():
            current.project.refs(f"{view}:{name}")
        self._note_rows(rights, 1)
        at_ms = _time_ms(as_of)
        at_ms = now_ms() if at_ms is None else at_ms
        return bounded(explain(current.definitions.fetcher, view, entity, at_ms, features))

    def plan(self, *, rights: Rights = ANYBODY) -> Document:
        """Return what ``paimon-features apply`` would change: ``changes`` and ``is_empty``.

        Raises
        ------
        RequestError
            For rights to some services only.
        """
        _check_all(rights, "plan")
        plan = self.project.plan()
        changes = [asdict(change) for change in plan.changes if change.action != "same"]
        return bounded({"is_empty": plan.is_empty, "changes": changes})

    def status(self, *, rights: Rights = ANYBODY) -> Document:
        """Return jobs, freshness, sizes, leases and what needs attention, as ``status --json``.

        Raises
        ------
        RequestError
            For rights to some services only.
        """
        _check_all(rights, "status")
        current = self._current()
        with self._lock:
            return bounded(current.status.read().document())

    def _definitions(self, rights: Rights) -> Sequence[Document]:
        current = self._current()
        if rights.grants.reads_everything:
            return describe_all(current.project.definitions, current.project.lake)
        served = catalogue(current.definitions, rights)
        about = ("name", "description", "owner", "tags")
        return [
            {"kind": kind, **{key: one[key] for key in about}}
            for group, kind in _KINDS.items()
            for one in served[group]
        ]

    def _current(self) -> _Loaded:
        with self._lock:
            project = None if self._loaded is None else self._loaded[1].project
            stamp = _stamp(self.root, project)
            if self._loaded is None or self._loaded[0] != stamp:
                fresh = _Loaded(Project.open(self.root))
                if self._loaded is not None:
                    self._loaded[1].status.close()
                self._loaded = (_stamp(self.root, fresh.project), fresh)
            return self._loaded[1]


class _Loaded:
    """A project with one state of its definitions."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.definitions = DefinitionSet(
            project.name, project.definitions, project.store, now_ms()
        )  # fmt: skip
        limits = Limits.of(project.config.serve)
        self.limits = Limits(
            limits.max_body_bytes,
            MAX_ENTITIES,
            limits.max_features,
            MAX_VALUES,
            limits.max_text_bytes,
            limits.body_timeout_s,
        )
        self.status = StatusReader(project)


def _stamp(root: Path, project: Project | None) -> Stamp:
    """Return a value that changes with the configuration or the definitions file."""
    files = [root / FILE_NAME]
    if project is not None:
        files.append(project.config.definitions)
    return tuple(stamp_of(file) for file in files)


def _check_all(rights: Rights, what: str) -> None:
    if not rights.grants.reads_everything:
        raise RequestError(
            f"the token {rights.client!r} may read some services only; {what} needs a token for "
            "all: 'paimon-features serve token --service \"*\"'"
        )


def _searched(definition: Document) -> str:
    tags = [f"{name}={value}" for name, value in definition["tags"].items()]
    texts = (definition["name"], definition["description"], definition["owner"], *tags)
    return "\n".join(filter(None, texts)).lower()


def _plain_row(row: Mapping[str, Any], kinds: Mapping[str, DataType]) -> Document:
    return {
        name: plain_values(kinds[name], [value], binary=False)[0] for name, value in row.items()
    }


def _time_ms(as_of: str | int | None) -> int | None:
    if as_of is None or isinstance(as_of, int):
        return as_of
    try:
        if as_of.isdecimal():
            return int(as_of)
        moment = dt.datetime.fromisoformat(as_of)
    except ValueError:
        raise RequestError(
            f"as_of={as_of[:80]!r}; expected UTC milliseconds, or a time such as "
            "2011-12-09T12:50:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)
