"""Networks: from encoded features to logits, one row of them per row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from trainer_bridge.models.blocks import RotaryEmbedding, TransformerBlock, attention_mask


@dataclass(frozen=True, slots=True)
class InputShapes:
    """What a network reads: see ``trainer_bridge.training.encoding``.

    ``groups`` are the columns of ``numbers`` of each feature. ``vocabularies`` are the numbers of
    codes of the lists of texts, ``value_lists`` the number of lists of numbers, ``length`` their
    items.
    """

    groups: tuple[tuple[int, ...], ...]
    vocabularies: tuple[int, ...] = ()
    value_lists: int = 0
    length: int = 0

    @property
    def width(self) -> int:
        """The columns of ``numbers``."""
        return sum(map(len, self.groups))


class Network(nn.Module):
    """Base of networks: ``forward`` takes the arrays that ``InputShapes`` describes.

    ``numbers`` float32 (rows, width); with lists ``codes`` int64 and ``values`` float32 (rows,
    lists, length), each if there are such. Returns logits (rows, outputs).
    """

    uses_lists = False
    """Whether it reads lists; others are refused."""
    label_mean: torch.Tensor
    label_scale: torch.Tensor

    def __init__(self, shapes: InputShapes, outputs: int) -> None:
        super().__init__()
        self.shapes, self.outputs = shapes, outputs

    def scale_labels(self, mean: float, scale: float) -> None:
        """Learn labels less ``mean``, over ``scale``: part of the weights of a regression."""
        self.register_buffer("label_mean", torch.tensor([mean]))
        self.register_buffer("label_scale", torch.tensor([scale]))

    def examples(self, rows: int = 2) -> dict[str, torch.Tensor]:
        """Return inputs of this number of rows by name, to trace the network with."""
        shapes = self.shapes
        inputs = {"numbers": torch.zeros(rows, shapes.width)}
        if self.uses_lists and shapes.vocabularies:
            lists = len(shapes.vocabularies)
            inputs["codes"] = torch.ones(rows, lists, shapes.length, dtype=torch.int64)
        if self.uses_lists and shapes.value_lists:
            inputs["values"] = torch.zeros(rows, shapes.value_lists, shapes.length)
        return inputs


class FeatureTokens(nn.Module):
    """A token for each feature: its columns of ``numbers`` by a matrix of their own, and a bias."""

    member: torch.Tensor

    def __init__(self, groups: Sequence[Sequence[int]], width: int, dim: int) -> None:
        super().__init__()
        member = torch.zeros(len(groups), width)
        for token, indices in enumerate(groups):
            member[token, list(indices)] = 1.0
        self.register_buffer("member", member, persistent=False)
        self.weight = nn.Parameter(torch.empty(width, dim))
        self.bias = nn.Parameter(torch.empty(len(groups), dim))
        nn.init.uniform_(self.weight, -(dim**-0.5), dim**-0.5)
        nn.init.uniform_(self.bias, -(dim**-0.5), dim**-0.5)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """Tokens, shape (rows, features, dim)."""
        # index: (rows, 1, width) * (features, width) -> (rows, features, width) @ (width, dim)
        return (numbers[:, None, :] * self.member) @ self.weight + self.bias


class TabularTransformerNetwork(Network):
    """A transformer over a token for each feature; the answer is read from a token of its own."""

    def __init__(
        self,
        shapes: InputShapes,
        outputs: int = 1,
        *,
        dim: int = 64,
        layers: int = 4,
        heads: int = 4,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(shapes, outputs)
        self.tokens = FeatureTokens(shapes.groups, shapes.width, dim)
        self.answer = nn.Parameter(torch.zeros(dim))
        self.blocks = nn.ModuleList(TransformerBlock(dim, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, outputs)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        tokens = self.tokens(numbers)
        answer = self.answer.expand(tokens.shape[0], 1, -1)
        x = torch.cat([answer, tokens], dim=1)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x[:, 0]))
        return logits


class SequenceTransformerNetwork(Network):
    """A causal transformer over the events of last-N lists, with rotary positions.

    Lists have the newest event first. Tokens are in the order of time: a first one from the other
    features, so that a row without events has one, too; what is not there is masked. The answer is
    read from the newest event.
    """

    uses_lists = True

    def __init__(
        self,
        shapes: InputShapes,
        outputs: int = 1,
        *,
        dim: int = 64,
        layers: int = 2,
        heads: int = 4,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(shapes, outputs)
        self.numbers = nn.Linear(shapes.width, dim)
        self.codes = nn.ModuleList(
            nn.Embedding(codes, dim, padding_idx=0) for codes in shapes.vocabularies
        )
        if shapes.value_lists:  # a value, and whether it is there
            self.values = nn.Linear(2 * shapes.value_lists, dim, bias=False)
        rotary = RotaryEmbedding(dim // heads, shapes.length + 1)
        self.blocks = nn.ModuleList(
            TransformerBlock(dim, heads, dropout, rotary) for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, outputs)

    def forward(
        self,
        numbers: torch.Tensor,
        codes: torch.Tensor | None = None,
        values: torch.Tensor | None = None,
    ) -> torch.Tensor:
        first = self.numbers(numbers)
        # index: (rows, events, dim), oldest first
        events, present = self._events(codes, values)
        x = torch.cat([first[:, None], events], dim=1)
        always = torch.ones_like(present[:, :1])
        mask = attention_mask(torch.cat([always, present], dim=1))
        for block in self.blocks:
            x = block(x, mask)
        # the newest event is the last token; without events it is padding, and the first one counts
        newest = torch.where(present[:, -1:], x[:, -1], x[:, 0])
        logits: torch.Tensor = self.head(self.norm(newest))
        return logits

    def _events(
        self, codes: torch.Tensor | None, values: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens of the events, oldest first, and whether each is there."""
        tokens: list[torch.Tensor] = []
        present: list[torch.Tensor] = []
        if codes is not None:
            codes = codes.flip(-1)
            tokens += [embed(codes[:, index]) for index, embed in enumerate(self.codes)]
            present.append((codes > 0).any(dim=1))
        if values is not None:
            values = values.flip(-1).transpose(1, 2)
            is_number = ~values.isnan()
            filled = torch.where(is_number, values, torch.zeros_like(values))
            tokens.append(self.values(torch.cat([filled, is_number.to(filled.dtype)], dim=-1)))
            present.append(is_number.any(dim=-1))
        total, any_there = tokens[0], present[0]
        for more in tokens[1:]:
            total = total + more
        for other in present[1:]:
            any_there = any_there | other
        return total, any_there


class WideAndDeepNetwork(Network):
    """A linear model and a deep one, added (Cheng et al. 2016)."""

    def __init__(
        self,
        shapes: InputShapes,
        outputs: int = 1,
        *,
        dim: int = 128,
        layers: int = 2,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(shapes, outputs)
        self.wide = nn.Linear(shapes.width, outputs)
        parts: list[nn.Module] = []
        width = shapes.width
        for _ in range(layers):
            parts += [nn.Linear(width, dim), nn.GELU(), nn.Dropout(dropout)]
            width = dim
        self.deep = nn.Sequential(*parts, nn.Linear(width, outputs))

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.wide(numbers) + self.deep(numbers)
        return logits
