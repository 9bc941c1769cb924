"""An entity: the subject of a feature, identified by one or more keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paimon_features.core.errors import DefinitionError
from paimon_features.core.types.schema import DataType, check_name
from paimon_features.definitions.checks import check_types
from paimon_features.definitions.metadata import check_metadata, metadata, shown

EVERYTHING = "everything"
"""The name of the entity without keys."""


@dataclass(frozen=True, eq=False)
class Entity:
    """A named set of key columns, for example a customer identified by ``customer_id``.

    The source has the key columns under the same names. Keys may be integers, strings,
    booleans or dates: equal values must have equal bytes, which floats do not guarantee. Only the
    entity ``everything`` has no key: its views aggregate all events.

    >>> from paimon_features.core.types.schema import Int64
    >>> list(Entity("customer", keys={"customer_id": Int64}).keys)
    ['customer_id']
    """

    name: str
    keys: Mapping[str, DataType]
    description: str = ""
    owner: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_types(f"entity {self.name!r}: keys", self.keys)
        check_metadata("entity", self)
        if not self.keys and self.name != EVERYTHING:
            raise DefinitionError(f"entity {self.name!r} has no keys; expected at least one column")
        for key, kind in self.keys.items():
            check_name(f"entity {self.name!r}: key", key)
            if key.startswith("p_") or key in ("tile_day", "tile_start", "event_time_ms"):
                raise DefinitionError(
                    f"entity {self.name!r}: the key name {key!r} is reserved by the tile table, "
                    "like all names that begin with 'p_', tile_day, tile_start and event_time_ms"
                )
            if not kind.is_key:
                raise DefinitionError(
                    f"entity {self.name!r}: key {key!r} is {kind!r}; "
                    "a key is Int32, Int64, String, Bool or Date"
                )

    def _repr_html_(self) -> str:
        from paimon_features.core.notebook.markup import card, facts, table

        keys = table(((name, kind.text) for name, kind in self.keys.items()), ("key", "type"))
        return card(f"Entity {self.name}", keys, facts(shown(self)), note=self.description)

    def to_document(self) -> dict[str, object]:
        """Return the canonical JSON form, as in the registry."""
        keys = {name: kind.text for name, kind in self.keys.items()}
        return {"kind": "entity", "name": self.name, "keys": keys, **metadata(self)}
