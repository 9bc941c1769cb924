"""Rows of the request log, of logged predictions and of their outcomes that belong to an entity."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.types.array_types import Bools
from paimon_features.lake import Lake, iter_batches
from paimon_features.project.forget.entities import EntitySet
from paimon_features.serving.request_log.log_rows import COMPUTED, EntityText

LOGGED_COLUMNS = ("request_id", "worker", "number", "row", "view", "entity")
PREDICTED_COLUMNS = ("entity",)
HASH = "blake2:"


class LoggedEntities:
    """Finds rows of the log: of a view by their entity, of computed features by their request.

    ``keys`` are the key columns of each view, ``known`` the complete keys of entities to delete by
    view, by which hashed rows are found with the servers' ``salt``. ``hidden`` counts the hashed
    rows that can only be found with another salt.
    """

    def __init__(
        self,
        entities: EntitySet,
        keys: Mapping[str, Sequence[str]],
        known: Mapping[str, Sequence[tuple[Any, ...]]],
        salt: bytes | None,
    ) -> None:
        self._entities, self._keys = entities, keys
        hashed = EntityText(salt)
        self._prefix = hashed.prefix or None
        self._texts = {
            view: {hashed([*map(as_logged, key)]) for key in of} for view, of in known.items()
        }
        self._wanted = {tuple(map(as_logged, key)) for key in entities.keys}
        self._requests: set[tuple[Any, ...]] = set()
        self.hidden = 0

    def scan(self, lake: Lake, table: str, snapshot: str | None) -> None:
        """Note the requests of the entities, before ``mask`` is used."""
        for batch in iter_batches(lake, table, LOGGED_COLUMNS, snapshot):
            for *request, view, entity in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                if view == COMPUTED or view not in self._keys:
                    continue
                if entity.startswith(HASH) and not (
                    self._prefix and entity.startswith(self._prefix)
                ):
                    self.hidden += self._entities.are_keys_of(self._keys[view])
                elif self._is_theirs(view, entity):
                    self._requests.add(tuple(request))

    def mask(self, rows: pa.Table) -> Bools:
        """Return which rows of the log are theirs."""
        columns = [rows.column(name).to_pylist() for name in LOGGED_COLUMNS]
        return np.array(
            [
                tuple(request) in self._requests
                and (view == COMPUTED or self._is_theirs(view, entity))
                for *request, view, entity in zip(*columns, strict=True)
            ],
            np.bool_,
        )

    def _is_theirs(self, view: str, entity: str) -> bool:
        if entity.startswith(HASH):
            return entity in self._texts.get(view, ())
        names = self._keys.get(view, ())
        if not self._entities.are_keys_of(names):
            return False
        try:
            values = json.loads(entity)
        except ValueError:
            return False
        key = dict(zip(names, values, strict=False))
        return tuple(key.get(column) for column in self._entities.columns) in self._wanted


class PredictedEntities:
    """Finds rows by their entity, a text in clear or hashed with the servers' ``salt``.

    ``keys`` are those of the model, in its order, and ``known`` the complete keys of entities to
    delete in that order. ``hidden`` counts the rows that can only be found with another salt.
    """

    def __init__(
        self,
        entities: EntitySet,
        keys: Sequence[str],
        known: Collection[tuple[Any, ...]],
        salt: bytes | None,
    ) -> None:
        self._columns = [keys.index(column) for column in entities.columns]
        self._wanted = {tuple(map(as_logged, key)) for key in entities.keys}
        hashed = EntityText(salt)
        self._prefix = hashed.prefix or None
        self._texts = {hashed([*map(as_logged, key)]) for key in known}
        self.hidden = 0

    def mask(self, rows: pa.Table) -> Bools:
        """Return which rows are theirs."""
        texts = rows.column("entity").to_pylist()
        return np.array([self._is_theirs(text) for text in texts], np.bool_)

    def _is_theirs(self, entity: str) -> bool:
        if entity.startswith(HASH):
            ours = self._prefix is not None and entity.startswith(self._prefix)
            self.hidden += not ours
            return entity in self._texts
        values = json.loads(entity)
        return tuple(values[place] for place in self._columns) in self._wanted


def as_logged(value: Any) -> Any:
    """Return a key as the log has it: dates as days since 1970."""
    return (value - dt.date(1970, 1, 1)).days if isinstance(value, dt.date) else value
