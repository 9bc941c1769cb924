"""Networks over encoded features, built from the same blocks, behind one interface."""

from __future__ import annotations

from paimon_features.core.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtraError.of("torch", "torch", "trainer_bridge.models") from error

from trainer_bridge.models.blocks import (
    Attention,
    RotaryEmbedding,
    SwiGLU,
    TransformerBlock,
    attention_mask,
)
from trainer_bridge.models.networks import (
    InputShapes,
    Network,
    SequenceTransformerNetwork,
    TabularTransformerNetwork,
    WideAndDeepNetwork,
)

__all__ = [
    "Attention",
    "InputShapes",
    "Network",
    "RotaryEmbedding",
    "SequenceTransformerNetwork",
    "SwiGLU",
    "TabularTransformerNetwork",
    "TransformerBlock",
    "WideAndDeepNetwork",
    "attention_mask",
]
