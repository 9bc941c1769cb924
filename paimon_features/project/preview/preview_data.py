"""What a preview found: the events of an entity, its windows, and their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paimon_features.core.types.statuses import Status
from paimon_features.core.windows import Window
from paimon_features.definitions import FeatureView


@dataclass(frozen=True, slots=True)
class PreviewEvent:
    """One event of the entity. ``left_out`` says why it is in no feature, None if it may be.

    ``tile_ms`` is the start of its tile (UTC ms).
    """

    time_ms: int
    tile_ms: int
    left_out: str | None


@dataclass(frozen=True, slots=True)
class PreviewWindow:
    """One window as of the read: ``start_ms`` (inclusive) to ``end_ms`` (exclusive), UTC ms.

    ``events`` is the number of events in it; ``values`` are the features over it. ``before_ms`` and
    ``after_ms`` are the nearest events outside, ``first_ms`` and ``last_ms`` the outermost ones
    inside; None: there is none.
    """

    window: Window
    start_ms: int
    end_ms: int
    events: int
    before_ms: int | None
    first_ms: int | None
    last_ms: int | None
    after_ms: int | None
    values: Mapping[str, Any]


@dataclass(frozen=True)
class PreviewData:
    """The fields of a preview, see ``Preview``: what pictures of it are drawn from."""

    view: FeatureView
    entity: Mapping[str, Any]
    as_of_ms: int
    status: Status
    events: tuple[PreviewEvent, ...]
    windows: tuple[PreviewWindow, ...]
    samples: Mapping[str, Sequence[Any]]

    @property
    def values(self) -> dict[str, Any]:
        """The value of each feature, in the order of the view."""
        values = {name: value for window in self.windows for name, value in window.values.items()}
        return {feature.name: values[feature.name] for feature in self.view.compiled.features}
