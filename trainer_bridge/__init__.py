"""From the lake to the trainer and back: readers, samplers, feedback, difficulty.

The public names (``__init__.pyi`` lists them) are imported when they are first used. Nothing here
imports a training framework: only ``trainer_bridge.adapters`` does.
"""

from paimon_features.core._lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
