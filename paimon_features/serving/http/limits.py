"""Limits of one request."""

from __future__ import annotations

from dataclasses import dataclass

from paimon_features.config import ServeConfig
from paimon_features.serving.http.http_errors import RequestRejected


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest request that is accepted; see ``ServeConfig``."""

    max_body_bytes: int
    max_entities: int
    max_features: int
    max_values: int
    body_timeout_s: float

    @classmethod
    def of(cls, config: ServeConfig) -> Limits:
        """The limits of the configuration."""
        return cls(
            config.max_body_bytes,
            config.max_entities,
            config.max_features,
            config.max_values,
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


def _too_large(what: str, got: int, limit: int, setting: str) -> RequestRejected:
    return RequestRejected(
        413,
        "too_large",
        f"the request is for {got:,} {what}, at most {limit:,} are allowed; split it "
        f"([serve] {setting})",
    )
