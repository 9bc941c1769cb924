"""The query of ``GET /explain``, parsed from its URL.

::

    /explain?view=spend&entity=customer_id%3D12346&as_of=1323432000000&feature=count_7d
    /explain?view=spend&service=fraud_v1&event=%7B%22customer_id%22%3A12346%2C...%7D
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl

from paimon_features.core.documents.unambiguous_json import parse_event_json
from paimon_features.core.errors import RequestError, unknown_name
from paimon_features.core.types.schema import DataType

_FIELDS = ("view", "entity", "as_of", "feature", "service", "event")


@dataclass(frozen=True, slots=True)
class ExplainQuery:
    """Features of one entity of a view, to be explained; None as ``as_of_ms`` is the clock.

    With an ``event``, it has the entity and the time, and ``service`` says how it is read.
    """

    view: str
    entity: Mapping[str, str]
    as_of_ms: int | None
    feature: str | None
    service: str | None = None
    event: Mapping[str, object] | None = None

    @classmethod
    def of(cls, query: str) -> ExplainQuery:
        """Parse ``view``, ``entity`` as ``key=value`` for each key, ``as_of`` and ``feature``; or
        ``service`` and ``event``, a JSON object, for ``entity`` and ``as_of``.

        >>> ExplainQuery.of("view=spend&entity=user%3D7&entity=shop%3Da%3Db").entity
        {'user': '7', 'shop': 'a=b'}
        >>> ExplainQuery.of("view=spend&service=fraud&event=%7B%22user%22%3A7%7D").event
        {'user': 7}

        Raises
        ------
        RequestError
            For a field that is missing, unknown, repeated or malformed.
        """
        try:
            pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=100)
        except ValueError as error:
            raise RequestError(f"the query cannot be read: {error}") from error
        fields: dict[str, str] = {}
        entity: dict[str, str] = {}
        for name, text in pairs:
            into = entity if name == "entity" else fields
            key = name
            if name == "entity":
                key, equals, text = text.partition("=")
                if not equals:
                    raise RequestError(f"entity={key[:80]!r}; expected key=value")
            elif name not in _FIELDS:
                raise RequestError(
                    f"the query has an unknown field {name[:80]!r}; expected: {', '.join(_FIELDS)}"
                )
            if key in into:
                raise RequestError(f"the query has {key[:80]!r} twice")
            into[key] = text
        if "event" in fields or "service" in fields:
            if not {"view", "service", "event"} <= fields.keys() or entity or "as_of" in fields:
                raise RequestError(
                    "the query of an event needs view=NAME, service=NAME and event=JSON, without "
                    "entity and as_of: they are those of the event"
                )
            event = parse_event_json("event", fields["event"])
            return cls(fields["view"], {}, None, fields.get("feature"), fields["service"], event)
        if "view" not in fields or not entity:
            raise RequestError("the query needs view=NAME and entity=KEY=VALUE for each key")
        return cls(fields["view"], entity, _time(fields.get("as_of")), fields.get("feature"))

    def typed(self, keys: Mapping[str, DataType]) -> dict[str, object]:
        """Return the entity's keys as values of their types.

        >>> from paimon_features.core.types.schema import Int64
        >>> ExplainQuery.of("view=spend&entity=user%3D7").typed({"user": Int64})
        {'user': 7}

        Raises
        ------
        RequestError
            For a key that the view does not have, or a text that is not a value of its type.
        """
        out: dict[str, object] = {}
        for name, text in self.entity.items():
            if name not in keys:
                view = f"feature view {self.view!r}"
                raise RequestError(unknown_name("entity key", name, keys, view))
            try:
                out[name] = _READERS[keys[name].text](text)
            except (ValueError, KeyError):
                raise RequestError(
                    f"entity key {name!r}: {text[:80]!r} is not a valid {keys[name]!r}"
                ) from None
        return out


def _integer(text: str) -> int:
    """Return an integer as JSON writes it: ``int`` would take spaces, underscores and any
    digits."""
    if not re.fullmatch(r"-?[0-9]{1,19}", text):
        raise ValueError(text)
    return int(text)


_READERS: Mapping[str, Callable[[str], object]] = {
    "int32": _integer,
    "int64": _integer,
    "string": str,
    "bool": lambda text: {"true": True, "false": False}[text.lower()],
    "date": dt.date.fromisoformat,
}


def _time(text: str | None) -> int | None:
    try:
        return None if text is None else _integer(text)
    except ValueError:
        raise RequestError(f"as_of={text!r}; expected UTC milliseconds") from None
