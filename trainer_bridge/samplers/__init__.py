"""Samplers: which rows come, how often, in which order. Plain classes, no torch."""

from trainer_bridge.samplers.base import AdvancedSampler
from trainer_bridge.samplers.difficulty import DifficultyWeightedSampler
from trainer_bridge.samplers.weighted import WeightedRandomSampler

__all__ = ["AdvancedSampler", "DifficultyWeightedSampler", "WeightedRandomSampler"]
