"""Blocks of transformers: rotary embeddings, masked attention, SwiGLU, pre-norm.

Axes are named before each step: B rows, H heads, T tokens, D dimensions of a head.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class RotaryEmbedding(nn.Module):
    """Rotates pairs of dimensions by angles that grow with the position (Su et al. 2021, RoFormer).

    Dimension ``i`` of the first half and of the second are a pair, with the frequency
    ``base ** (-i / (D / 2))``: the dot product of two rotated vectors depends on the distance of
    their positions, not on the positions.

    >>> rotary = RotaryEmbedding(4, 8)
    >>> x = torch.ones(1, 1, 8, 4)
    >>> torch.equal(rotary(x)[0, 0, 0], x[0, 0, 0])  # position 0 is not rotated
    True
    """

    cosines: torch.Tensor
    sines: torch.Tensor

    def __init__(self, head_dim: int, max_tokens: int, base: float = 10_000.0) -> None:
        super().__init__()
        half = head_dim // 2
        frequencies = base ** (-torch.arange(half, dtype=torch.float64) / half)
        # index: (tokens, half)
        angles = torch.arange(max_tokens, dtype=torch.float64)[:, None] * frequencies
        self.register_buffer("cosines", angles.cos().float(), persistent=False)
        self.register_buffer("sines", angles.sin().float(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rotate tokens, shape (B, H, T, D)."""
        tokens = x.shape[2]
        cosines, sines = self.cosines[:tokens].to(x.dtype), self.sines[:tokens].to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        rotated = (first * cosines - second * sines, second * cosines + first * sines)
        return torch.cat(rotated, dim=-1)


class Attention(nn.Module):
    """Multi-head self-attention by torch's fused kernels, with rotary positions or without."""

    def __init__(
        self, dim: int, heads: int, dropout: float = 0.0, rotary: RotaryEmbedding | None = None
    ) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.joined = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.rotary = rotary

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Attend from each token to those that ``mask``, shape (B, 1, T, T), allows."""
        rows, tokens, dim = x.shape
        # index: (rows, tokens, 3, heads, head dim) -> (3, rows, heads, tokens, head dim)
        joined = self.joined(x).view(rows, tokens, 3, self.heads, dim // self.heads)
        query, key, value = joined.permute(2, 0, 3, 1, 4).unbind(0)
        if self.rotary is not None:
            query, key = self.rotary(query), self.rotary(key)
        dropout = self.dropout if self.training else 0.0
        attended = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout
        )
        merged: torch.Tensor = self.out(attended.transpose(1, 2).reshape(rows, tokens, dim))
        return merged


def attention_mask(valid: torch.Tensor) -> torch.Tensor:
    """Return which token may attend to which, shape (B, 1, T, T), from valid tokens, shape (B, T).

    A token attends to valid ones up to itself; and always to itself, so that no row of the softmax
    is empty.
    """
    tokens = valid.shape[1]
    before = torch.ones(tokens, tokens, dtype=torch.bool, device=valid.device).tril()
    allowed = valid[:, None, :].expand(-1, tokens, -1) & before
    self_too = allowed | torch.eye(tokens, dtype=torch.bool, device=valid.device)
    return self_too[:, None]


class SwiGLU(nn.Module):
    """A gated layer (Shazeer 2020): ``down(silu(gate(x)) * up(x))``, with 8/3 of the dimension."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        hidden = -(-dim * 8 // 3 // 8) * 8
        self.gate_and_up = nn.Linear(dim, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_and_up(x).chunk(2, dim=-1)
        out: torch.Tensor = self.down(functional.silu(gate) * up)
        return out


class TransformerBlock(nn.Module):
    """Attention and SwiGLU, each on normalised inputs and added to them (pre-norm)."""

    def __init__(
        self, dim: int, heads: int, dropout: float = 0.0, rotary: RotaryEmbedding | None = None
    ) -> None:
        super().__init__()
        self.norm_attention, self.norm_gated = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(dim, heads, dropout, rotary)
        self.gated = SwiGLU(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.norm_attention(x), mask))
        out: torch.Tensor = x + self.dropout(self.gated(self.norm_gated(x)))
        return out
