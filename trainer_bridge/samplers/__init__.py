"""Samplers: which rows are drawn, how often and in which order. Independent of torch."""

from trainer_bridge.samplers.balanced import BalancedBatchSampler
from trainer_bridge.samplers.base import AdvancedSampler
from trainer_bridge.samplers.bins import BinnedDifficultySampler, bin_scores, score_bins
from trainer_bridge.samplers.curriculum import CurriculumSampler, sqrt_pace
from trainer_bridge.samplers.difficulty_weighted import DifficultyWeightedSampler
from trainer_bridge.samplers.hard import HardExampleMiningSampler
from trainer_bridge.samplers.poisson import PoissonSampler
from trainer_bridge.samplers.reservoir import WeightedReservoir
from trainer_bridge.samplers.stratified import StratifiedSampler
from trainer_bridge.samplers.weighted import WeightedRandomSampler

__all__ = [
    "AdvancedSampler",
    "BalancedBatchSampler",
    "BinnedDifficultySampler",
    "CurriculumSampler",
    "DifficultyWeightedSampler",
    "HardExampleMiningSampler",
    "PoissonSampler",
    "StratifiedSampler",
    "WeightedRandomSampler",
    "WeightedReservoir",
    "bin_scores",
    "score_bins",
    "sqrt_pace",
]
