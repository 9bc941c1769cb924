"""Limits of one request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paimon_features.core._arrow import is_arrow, pa, pc
from paimon_features.core.configuration.project_config import ServeConfig
from paimon_features.serving.http.http_errors import RequestRejected, invalid_request


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest request that is accepted; see ``ServeConfig``."""

    max_body_bytes: int
    max_entities: int
    max_features: int
    max_values: int
    max_text_bytes: int
    body_timeout_s: float

    @classmethod
    def of(cls, config: ServeConfig) -> Limits:
        """Return the limits of the configuration."""
        return cls(
            config.max_body_bytes,
            config.max_entities,
            config.max_features,
            config.max_values,
            config.max_text_bytes,
            config.body_timeout_ms / 1_000,
        )

    def check(self, entities: int, features: int) -> None:
        """Raise RequestRejected (413) for a request over a limit."""
        if entities > self.max_entities:
            raise _too_large("entities", entities, self.max_entities, "max_entities")
        if features > self.max_features:
            raise _too_large("features", features, self.max_features, "max_features")
        if entities * features > self.max_values:
            raise _too_large("values", entities * features, self.max_values, "max_values")

    def check_texts(self, what: str, columns: Mapping[str, object]) -> None:
        """Raise RequestRejected (422) for a column with a text over the limit.

        Reading an entity and hashing its keys costs in proportion to their bytes, in the event
        loop, which all other requests wait for.
        """
        for name, values in columns.items():
            if type(values) is list and str not in map(type, values):
                continue
            size = _longest_text(values, self.max_text_bytes)
            if size > self.max_text_bytes:
                raise invalid_request(
                    f"{what} {name[:80]!r} has a text of {size:,} bytes; expected at most "
                    f"{self.max_text_bytes:,} ([serve] max_text_bytes)"
                )


def _longest_text(values: Any, limit: int) -> int:
    """Return the bytes of a column's longest text in UTF-8.

    For shorter ones than the limit, less.
    """
    if is_arrow(values):
        if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
            return 0
        return pc.max(pc.binary_length(values)).as_py() or 0
    texts = values if isinstance(values, list) else (values,)
    # a character has up to four bytes
    long = [text for text in texts if type(text) is str and len(text) * 4 > limit]
    return max((len(text.encode("utf-8", "surrogatepass")) for text in long), default=0)


def _too_large(what: str, got: int, limit: int, setting: str) -> RequestRejected:
    return RequestRejected(
        "too_large",
        f"the request is for {got:,} {what}, at most {limit:,} are allowed; split it "
        f"([serve] {setting})",
    )
