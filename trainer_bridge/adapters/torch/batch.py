"""A batch of tensors that is moved block by block, whatever the number of its columns."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch

Move = Callable[[torch.Tensor], torch.Tensor]
View = tuple[str, tuple[int, ...], tuple[int, ...], int]
"""Of a block: its name, then size, stride and offset of the part that is shown."""


class TensorBatch(dict[str, Any]):
    """Tensors by name: a dict like any other.

    Most values are columns of a few contiguous blocks. What moves the batch (:meth:`to`,
    :meth:`pin_memory`, the way from a worker process to the trainer) moves each block once and
    shows the columns again, which for 200 columns is one copy instead of 200.

    Attributes
    ----------
    blocks
        One tensor of shape ``(rows, columns of that dtype)`` per dtype name.
    num_padding
        How many rows at the end repeat others, to fill the last batch of the epoch.
    """

    def __init__(
        self,
        values: Mapping[str, Any] | None = None,
        blocks: Mapping[str, torch.Tensor] | None = None,
        num_padding: int = 0,
    ) -> None:
        super().__init__(values or {})
        self.blocks = dict(blocks or {})
        self.num_padding = num_padding

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """Return the batch on a device; ``non_blocking`` copies behind the caller's back where the
        batch is in pinned memory."""
        return self.moved(functools.partial(_to, device=device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """Return the batch in memory that a GPU reads by itself; needs one."""
        return self.moved(torch.Tensor.pin_memory)

    def moved(self, move: Move) -> Self:
        """Return a batch of what ``move`` makes of each block, and of each other tensor."""
        blocks = {name: move(block) for name, block in self.blocks.items()}
        values = {}
        for name, value in self.items():
            view = self._view(value)
            values[name] = moved(value, move) if view is None else _show(blocks, view)
        return type(self)(values, blocks, self.num_padding)

    def _view(self, value: Any) -> View | None:
        """Return which part of a block a value shows; None if it is something of its own."""
        if type(value) is not torch.Tensor or value.is_nested or not value.numel():
            return None
        place = value.untyped_storage().data_ptr()
        for name, block in self.blocks.items():
            if block.untyped_storage().data_ptr() == place and block.dtype == value.dtype:
                offset = value.storage_offset() - block.storage_offset()
                return name, tuple(value.size()), value.stride(), offset
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        # Each block travels once. Nested tensors do not travel well, their parts do.
        values = {name: self._view(value) or _Other(value) for name, value in self.items()}
        return _rebuilt, (type(self), values, self.blocks, self.num_padding)


class _Other:
    """A value that is no view of a block; nested tensors travel as their parts."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        if isinstance(self.value, torch.Tensor) and self.value.is_nested:
            return _nested, (self.value.values(), self.value.offsets())
        return _Other, (self.value,)


def _nested(values: torch.Tensor, offsets: torch.Tensor) -> _Other:
    return _Other(torch.nested.nested_tensor_from_jagged(values, offsets))


def _rebuilt(
    kind: type[TensorBatch],
    values: dict[str, Any],
    blocks: dict[str, torch.Tensor],
    num_padding: int,
) -> TensorBatch:
    shown = {
        name: value.value if isinstance(value, _Other) else _show(blocks, value)
        for name, value in values.items()
    }
    return kind(shown, blocks, num_padding)


def moved(value: Any, move: Move) -> Any:
    """Return what ``move`` makes of a tensor, or of the tensors that a value consists of."""
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            parts = move(value.values()), move(value.offsets())
            return torch.nested.nested_tensor_from_jagged(*parts)
        return move(value)
    return value.moved(move) if hasattr(value, "moved") else value


def _show(blocks: Mapping[str, torch.Tensor], view: View) -> torch.Tensor:
    name, size, stride, offset = view
    block = blocks[name]
    return block.as_strided(size, stride, block.storage_offset() + offset)


def _to(tensor: torch.Tensor, device: torch.device | str, non_blocking: bool) -> torch.Tensor:
    return tensor.to(device, non_blocking=non_blocking)
