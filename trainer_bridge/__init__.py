"""From the lake to the trainer and back: readers, samplers, feedback, difficulty.

The public names are imported when they are first used. Nothing here imports a training
framework: that is what ``trainer_bridge.adapters`` is for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer_bridge.difficulty import (
        Difficulty,
        difficulty_view,
        read_difficulty,
        scores_from_features,
    )
    from trainer_bridge.feedback import FeedbackWriter
    from trainer_bridge.forms import Batch
    from trainer_bridge.order import GlobalOrder
    from trainer_bridge.reader import SnapshotReader

_HOMES = {
    "Batch": "forms",
    "Difficulty": "difficulty",
    "FeedbackWriter": "feedback",
    "GlobalOrder": "order",
    "SnapshotReader": "reader",
    "difficulty_view": "difficulty",
    "read_difficulty": "difficulty",
    "scores_from_features": "difficulty",
}

__all__ = [
    "Batch",
    "Difficulty",
    "FeedbackWriter",
    "GlobalOrder",
    "SnapshotReader",
    "difficulty_view",
    "read_difficulty",
    "scores_from_features",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
