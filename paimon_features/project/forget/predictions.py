"""Rows of logged predictions and of their outcomes that belong to an entity."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.types.array_types import Bools
from paimon_features.project.forget.entities import EntitySet
from paimon_features.project.forget.request_log import HASH, as_logged
from paimon_features.serving.request_log.log_rows import EntityText

COLUMNS = ("entity",)


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
        """Which rows are theirs."""
        texts = rows.column("entity").to_pylist()
        return np.array([self._is_theirs(text) for text in texts], np.bool_)

    def _is_theirs(self, entity: str) -> bool:
        if entity.startswith(HASH):
            ours = self._prefix is not None and entity.startswith(self._prefix)
            self.hidden += not ours
            return entity in self._texts
        values = json.loads(entity)
        return tuple(values[place] for place in self._columns) in self._wanted
