"""What the names of an input's columns say, and the names that they get as a source's columns.

Words are those of English, German and Spanish; a word ends at an underscore.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from paimon_features.core.types.schema import CONSTANTS

_TIME_WORDS = {
    "ts", "day", "at", "when", "created", "occurred", "epoch", "ms", "zeit", "datum", "fecha",
}  # fmt: skip
_KEY_WORDS = {
    "id", "ids", "key", "uid", "uuid", "guid", "user", "customer", "client", "account", "device",
    "member", "visitor", "session", "person", "patient", "player", "driver", "seller", "merchant",
    "store", "shop", "card", "host", "sensor", "vehicle", "machine", "product", "item", "sku",
    "email", "phone", "ip", "nr", "no", "number", "code", "kunde", "kundennr",
}  # fmt: skip
_ENTITY_PREFIXES = (
    "user", "customer", "client", "account", "member", "visitor", "person", "patient", "player",
    "device", "driver", "card", "kunde",
)  # fmt: skip
_RESERVED = {"event_day", "ingest_time_ms", "tile_day", "tile_start", *CONSTANTS}


def has_time_word(name: str) -> bool:
    """Return True for a name with a word for times, or with "time" or "date" in it.

    >>> has_time_word("created_at"), has_time_word("lastUpdate"), has_time_word("attempts")
    (True, True, False)
    """
    lower = name.lower()
    return "time" in lower or "date" in lower or not _TIME_WORDS.isdisjoint(lower.split("_"))


def has_key_word(name: str) -> bool:
    """Return True for a name with a word for identifiers, or for what they identify.

    >>> has_key_word("user_id"), has_key_word("kunde"), has_key_word("idle_s")
    (True, True, False)
    """
    return not _KEY_WORDS.isdisjoint(name.lower().split("_"))


def names_key(name: str) -> bool:
    """Return True for a name of keys: ``has_key_word``, and it is no time.

    >>> names_key("session_id"), names_key("session_time")
    (True, False)
    """
    return has_key_word(name) and not has_time_word(name)


def names_entity(name: str) -> bool:
    """Return True for a name of whom or what features are likely to describe.

    >>> names_entity("customer_id"), names_entity("order_id")
    (True, False)
    """
    return any(word.startswith(_ENTITY_PREFIXES) for word in name.split("_"))


def source_names(fields: Sequence[str]) -> dict[str, str]:
    """Return a unique name that a source's column may have, by field.

    >>> source_names(["TotalPrice", "Ünïcode", "total price", "event_day"])
    {'TotalPrice': 'total_price', 'Ünïcode': 'unicode', 'total price': 'total_price_2',
     'event_day': 'event_day_value'}
    """
    names: dict[str, str] = {}
    for field in fields:
        name = _plain(field)
        if name in _RESERVED or name.startswith("p_"):
            name = f"{name}_value" if name in _RESERVED else f"c_{name}"
        stem, number = name, 2
        while name in names.values():
            name, number = f"{stem}_{number}", number + 1
        names[field] = name
    return names


def _plain(name: str) -> str:
    """Return a name in plain letters: Ünïcode is unicode, TotalPrice total_price."""
    letters = "".join(
        c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c)
    )
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", letters.replace("ß", "ss"))
    plain = re.sub(r"[^a-z0-9]+", "_", spaced.lower()).strip("_")
    return plain if plain[:1].isalpha() else f"c_{plain}".rstrip("_")
