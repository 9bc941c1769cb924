"""From a batch of NumPy's side to tensors, without copies where there need be none."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch

from paimon_features.core.errors import ConfigurationError, UnknownNameError
from trainer_bridge.adapters.torch.batch import TensorBatch
from trainer_bridge.adapters.torch.jagged import Jagged, keyed_jagged
from trainer_bridge.batches.forms import Batch
from trainer_bridge.batches.ragged import Ragged
from trainer_bridge.batches.stacks import cast_matrix, check_stacks
from trainer_bridge.readers.snapshot_reader import SnapshotReader
from trainer_bridge.streams.following_reader import FollowingReader

RaggedAs = Literal["nested", "parts"]
StackDtype = Literal["float32", "float64"]


class TensorForm:
    """What the tensors of a batch look like; see :func:`~.loader` for the parameters."""

    def __init__(
        self,
        reader: SnapshotReader | FollowingReader,
        stack: Mapping[str, Sequence[str]],
        keyed: Mapping[str, Sequence[str] | Mapping[str, str]],
        ragged: RaggedAs,
        row_numbers: bool,
        stack_dtype: StackDtype | None = None,
    ) -> None:
        if ragged not in ("nested", "parts"):
            raise ConfigurationError(f"ragged={ragged!r}: expected 'nested' or 'parts'")
        self.stack = {name: list(columns) for name, columns in stack.items()}
        self.keyed = {name: _weights_by_key(columns) for name, columns in keyed.items()}
        self.ragged, self.row_numbers, self.stack_dtype = ragged, row_numbers, stack_dtype
        specs = reader.column_specs()
        check_stacks(self.stack, specs, stack_dtype)
        for name, weights in self.keyed.items():
            columns = [*weights, *(weight for weight in weights.values() if weight)]
            for column in columns:
                _known(column, specs)
            _check_name(f"keyed {name!r}", name, specs, columns)
        self._taken = {
            *(column for columns in self.stack.values() for column in columns),
            *(column for keys in self.keyed.values() for column in keys),
            *(weight for keys in self.keyed.values() for weight in keys.values() if weight),
        }

    def __call__(self, batch: Batch) -> TensorBatch:
        blocks = {dtype: torch.from_numpy(block) for dtype, block in batch.blocks.items()}
        column = functools.partial(_column, batch, blocks, {})
        values: dict[str, Any] = {}
        for name in batch.columns:
            if name not in self._taken:
                values[name] = column(name)
        for name, lists in batch.ragged.items():
            if name not in self._taken:
                values[name] = self._lists(lists)
        for name, columns in self.stack.items():
            if self.stack_dtype is None:
                values[name] = _matrix(batch, blocks, column, columns)
            else:
                values[name] = self._cast(batch, blocks, columns, self.stack_dtype)
        for name, weights in self.keyed.items():
            values[name] = keyed_jagged(
                {key: batch[key] for key in weights},
                {key: batch[w] for key, w in weights.items() if w} or None,
            )
        if self.stack_dtype is not None:  # what was cast is moved as the matrix alone
            shown = {
                kind
                for kind, names in batch.names.items()
                if kind == self.stack_dtype or not self._taken.issuperset(names)
            }
            blocks = {k: block for k, block in blocks.items() if k in shown or k not in batch.names}
        if self.row_numbers:
            values["row_number"] = torch.from_numpy(batch.row_numbers)
        return TensorBatch(values, blocks, batch.num_padding)

    def _cast(
        self, batch: Batch, blocks: dict[str, torch.Tensor], columns: Sequence[str], dtype: str
    ) -> torch.Tensor:
        """Return the columns side by side as floats: a block of its own, unless it is one
        already."""
        names = batch.names.get(dtype, ())
        if all(column in names for column in columns):
            return _matrix(batch, blocks, functools.partial(_column, batch, blocks, {}), columns)
        matrix = torch.from_numpy(cast_matrix(batch, columns, dtype))
        blocks[f"{dtype} stack {len(blocks)}"] = matrix  # so that it is moved as one
        return matrix

    def _lists(self, lists: Ragged) -> Jagged | torch.Tensor:
        jagged = Jagged.of(lists)
        whole = self.ragged == "parts" or len(jagged.offsets) != 1
        return jagged if whole else jagged.nested()


def _column(
    batch: Batch,
    blocks: Mapping[str, torch.Tensor],
    shown: dict[str, torch.Tensor],
    name: str,
) -> torch.Tensor:
    """Return a column as a view of its block, if it is in one; ``shown`` keeps what was made."""
    if name not in shown:
        for dtype, names in batch.names.items():
            if name in names:
                # all columns of a block in one call, which is a tenth of a call for each
                shown.update(zip(names, blocks[dtype].unbind(1), strict=True))
                return shown[name]
        shown[name] = torch.from_numpy(batch.columns[name])
    return shown[name]


def _matrix(
    batch: Batch,
    blocks: Mapping[str, torch.Tensor],
    column: Callable[[str], torch.Tensor],
    columns: Sequence[str],
) -> torch.Tensor:
    """Return the columns side by side: a view where they are so in a block."""
    for dtype, names in batch.names.items():
        if columns[0] in names:
            first = names.index(columns[0])
            if list(names[first : first + len(columns)]) == list(columns):
                return blocks[dtype][:, first : first + len(columns)]
    return torch.stack([column(name) for name in columns], dim=1)


def _weights_by_key(columns: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    if isinstance(columns, Mapping):
        return dict(columns)
    return dict.fromkeys(columns, "")


def _known(column: str, specs: Mapping[str, Any]) -> Any:
    if column not in specs:
        raise UnknownNameError.of("column read", column, specs)
    return specs[column]


def _check_name(what: str, name: str, specs: Mapping[str, Any], columns: Sequence[str]) -> None:
    if name in specs and name not in columns:
        raise ConfigurationError(f"{what} is called like another column")
