"""Tables of a Paimon REST catalog: its server creates and drops them, and makes their commits.

Reads stay what they are without one: the server writes the files of schemas and snapshots to the
warehouse, in the folders of the file-system catalog. Whatever changes a table is a request, and the
server decides which of two commits succeeds, those of Flink included.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from paimon_features.core.configuration.project_config import CatalogConfig
from paimon_features.core.errors import ConfigurationError, TableError
from paimon_features.lake.storage.commit_guard import guard_of

TOKEN_VARIABLE = "PAIMON_FEATURES_CATALOG_TOKEN"
TIMEOUTS_S = (10.0, 60.0)
"""For connecting to the server, and for a reply; pypaimon's own are three minutes each."""


@dataclass(frozen=True, slots=True)
class RestCatalog:
    """How to reach a catalog: ``warehouse`` is its name on the server, not an address of files.

    Hosts that only read need no ``token``.
    """

    uri: str
    warehouse: str
    token: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, config: CatalogConfig, environ: Mapping[str, str] = os.environ) -> RestCatalog:
        """Return the settings of ``[lake.catalog]`` and the environment."""
        return cls(config.uri, config.warehouse, environ.get(TOKEN_VARIABLE) or None)

    def options(self) -> dict[str, str]:
        """Return the options of Paimon's catalog in Java and Python; the token is among them.

        Raises
        ------
        ConfigurationError
            If there is no token.
        """
        if self.token is None:
            raise ConfigurationError(
                f"the REST catalog {self.uri} requires a token; set {TOKEN_VARIABLE} in the "
                "environment"
            )
        return {
            "metastore": "rest",
            "uri": self.uri,
            "warehouse": self.warehouse,
            "token.provider": "bear",
            "token": self.token,
        }


class RestTables:
    """The requests about the tables of one database, which exists after ``create``.

    ``catalog`` is pypaimon's.
    """

    def __init__(self, settings: RestCatalog, database: str) -> None:
        from pypaimon import CatalogFactory

        self.settings = settings
        self.database = database
        with self.errors("opening it"):
            self.catalog = CatalogFactory.create(settings.options())
        self.catalog.rest_api.client._timeout = TIMEOUTS_S

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Turn the errors of a request into those of this package.

        Raises
        ------
        ConfigurationError
            If the server does not accept the token, or does not know the warehouse.
        TableError
            If it cannot be reached, or refuses the request for another reason.
        """
        from pypaimon.api.rest_exception import (
            ForbiddenException,
            NoSuchResourceException,
            NotAuthorizedException,
            RESTException,
        )
        from pypaimon.catalog.catalog_exception import CatalogException

        where = f"the REST catalog {self.settings.uri}"
        try:
            yield
        except (NotAuthorizedException, ForbiddenException) as error:
            raise ConfigurationError(
                f"{where} does not accept the token of {TOKEN_VARIABLE} (while {doing}): {error}"
            ) from error
        except NoSuchResourceException as error:
            raise ConfigurationError(
                f"{where} does not have what [lake.catalog] warehouse = "
                f"{self.settings.warehouse!r} names (while {doing}): {error}"
            ) from error
        except (RESTException, CatalogException) as error:
            cause = error.__cause__ or error
            raise TableError(f"{where} failed while {doing}: {cause}") from error

    def create(self, name: str, schema: Any, path: str) -> None:
        """Create a table, which has to get the folder ``path``.

        Raises
        ------
        TableError
            If the server chose another folder; the table is dropped again.
        """
        with self.errors(f"creating table {name!r}"):
            # without properties there is a null, which Paimon's Java client does not read
            self.catalog.create_database(self.database, True, {})
            self.catalog.create_table(self._identifier(name), schema, False)
        try:
            self.uuid(name, path)
        except TableError:
            self.drop(name)
            raise

    def drop(self, name: str) -> None:
        """Drop a table with its files; does nothing if it does not exist."""
        with self.errors(f"dropping table {name!r}"):
            self.catalog.drop_table(self._identifier(name), True)

    def alter(self, name: str, changes: list[Any]) -> None:
        """Change the options of a table."""
        with self.errors(f"changing table {name!r}"):
            self.catalog.alter_table(self._identifier(name), changes)

    def roll_back(self, name: str, snapshot_id: int) -> None:
        """Make a snapshot, which exists, the newest one.

        Not through pypaimon's table: what that finds for a rollback it also uses to undo the
        commits of compactions that one of its own conflicts with.
        """
        from pypaimon.table.instant import Instant

        with self.errors(f"rolling back table {name!r}"):
            self.catalog.rollback_to(self._identifier(name), Instant.snapshot(snapshot_id))

    def uuid(self, name: str, path: str) -> str:
        """Return the server's id of a table.

        Raises
        ------
        TableError
            If the server does not know the table, or has it in another folder.
        """
        from pypaimon.api.rest_exception import NoSuchResourceException
        from pypaimon.common.identifier import Identifier

        with self.errors(f"opening table {name!r}"):
            try:
                identifier = Identifier.from_string(self._identifier(name))
                loaded = self.catalog.rest_api.get_table(identifier)
            except NoSuchResourceException as error:
                raise TableError(
                    f"table {name!r} is in {path}, but the REST catalog {self.settings.uri} does "
                    "not know it: it was created without the catalog. Register it there, or drop it"
                ) from error
        if _place(loaded.get_path()) != _place(path):
            raise TableError(
                f"table {name!r}: the REST catalog {self.settings.uri} has it in "
                f"{loaded.get_path()}; expected {path}. [lake] warehouse has to be where the "
                "server keeps its files, as WAREHOUSE/DATABASE.db/TABLE; servers that choose "
                "other folders are not supported"
            )
        return str(loaded.get_id())

    def _identifier(self, name: str) -> str:
        return f"{self.database}.{name}"


def attach(handle: Any, name: str, path: str, tables: Callable[[], RestTables]) -> None:
    """Let the commits of a table of pypaimon, which was opened by its files, be requests.

    The first of them requests the table from the server; until then ``tables`` is not called.
    """
    from pypaimon.catalog.catalog_environment import CatalogEnvironment

    class Environment(CatalogEnvironment):  # type: ignore[misc]
        uuid: str | None

        def snapshot_commit(self, snapshot_manager: Any) -> Any:
            if self.uuid is None:
                self.uuid = tables().uuid(name, path)
            return _commit(tables().catalog, self.identifier, self.uuid, path)

    environment = handle.catalog_environment
    handle.catalog_environment = Environment(handle.identifier, None, environment.catalog_loader)


def _commit(catalog: Any, identifier: Any, uuid: str, path: str) -> Any:
    from pypaimon.snapshot.catalog_snapshot_commit import CatalogSnapshotCommit

    class Commit(CatalogSnapshotCommit):  # type: ignore[misc]
        def commit(self, base: str | None, snapshot: Any, statistics: Any) -> bool:
            guard = guard_of(path)
            if guard is not None and not guard.admits(snapshot.id):
                return False
            done = bool(super().commit(base, snapshot, statistics))
            if done and guard is not None:
                guard.created(snapshot.id)
            return done

        def close(self) -> None:
            pass  # the catalog serves the next commit, too

    return Commit(catalog, identifier, uuid)


def _place(path: str) -> str:
    """Return a path without what differs between Java and Python: ``file:/a``, ``file:///a``,
    ``/a``."""
    parts = urlsplit(path)
    if parts.scheme in ("", "file"):
        return unquote(parts.path).rstrip("/")
    return path.rstrip("/")
