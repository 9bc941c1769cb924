"""From the lake to the trainer and back: readers, samplers, feedback, difficulty.

The public names are imported when they are first used. Nothing here imports a training
framework: that is what ``trainer_bridge.adapters`` is for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer_bridge.batches.forms import Batch as Batch
    from trainer_bridge.batches.ragged import Ragged as Ragged
    from trainer_bridge.batches.vocabulary import Vocabulary as Vocabulary
    from trainer_bridge.feedback.difficulty import Difficulty as Difficulty
    from trainer_bridge.feedback.difficulty import difficulty_view as difficulty_view
    from trainer_bridge.feedback.difficulty import read_difficulty as read_difficulty
    from trainer_bridge.feedback.difficulty import scores_from_features as scores_from_features
    from trainer_bridge.feedback.queue import FeedbackDrain as FeedbackDrain
    from trainer_bridge.feedback.score_schedule import ScoreSchedule as ScoreSchedule
    from trainer_bridge.feedback.score_schedule import scheduled_batches as scheduled_batches
    from trainer_bridge.feedback.writer import FeedbackWriter as FeedbackWriter
    from trainer_bridge.order.global_order import GlobalOrder as GlobalOrder
    from trainer_bridge.readers.mixed_reader import MixedReader as MixedReader
    from trainer_bridge.readers.mixed_reader import mix as mix
    from trainer_bridge.readers.snapshot_reader import SnapshotReader as SnapshotReader
    from trainer_bridge.streams.following_reader import FollowingReader as FollowingReader

_HOMES = {
    "Batch": "batches.forms",
    "Difficulty": "feedback.difficulty",
    "FeedbackDrain": "feedback.queue",
    "FeedbackWriter": "feedback.writer",
    "FollowingReader": "streams.following_reader",
    "GlobalOrder": "order.global_order",
    "MixedReader": "readers.mixed_reader",
    "Ragged": "batches.ragged",
    "ScoreSchedule": "feedback.score_schedule",
    "SnapshotReader": "readers.snapshot_reader",
    "Vocabulary": "batches.vocabulary",
    "difficulty_view": "feedback.difficulty",
    "mix": "readers.mixed_reader",
    "read_difficulty": "feedback.difficulty",
    "scheduled_batches": "feedback.score_schedule",
    "scores_from_features": "feedback.difficulty",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
