"""The public names of the package; see ``paimon_features.core._lazy``."""

from trainer_bridge.batches.forms import Batch as Batch
from trainer_bridge.batches.ragged import Ragged as Ragged
from trainer_bridge.batches.vocabulary import Vocabulary as Vocabulary
from trainer_bridge.feedback.difficulty import Difficulty as Difficulty
from trainer_bridge.feedback.difficulty import difficulty_view as difficulty_view
from trainer_bridge.feedback.difficulty import read_difficulty as read_difficulty
from trainer_bridge.feedback.difficulty import scores_from_features as scores_from_features
from trainer_bridge.feedback.feedback_drain import FeedbackDrain as FeedbackDrain
from trainer_bridge.feedback.writer import FeedbackWriter as FeedbackWriter
from trainer_bridge.order.global_order import GlobalOrder as GlobalOrder
from trainer_bridge.readers.mixed_reader import MixedReader as MixedReader
from trainer_bridge.readers.mixed_reader import mix as mix
from trainer_bridge.readers.score_schedule import ScoreSchedule as ScoreSchedule
from trainer_bridge.readers.score_schedule import scheduled_batches as scheduled_batches
from trainer_bridge.readers.snapshot_reader import SnapshotReader as SnapshotReader
from trainer_bridge.streams.following_reader import FollowingReader as FollowingReader
