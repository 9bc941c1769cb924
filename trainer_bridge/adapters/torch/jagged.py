"""Lists of any length as tensors: values and offsets, by column or keyed as torchrec has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import torch

from paimon_features.core.errors import ConfigurationError, MissingExtraError, RequestError
from paimon_features.core.types.array_types import Array
from trainer_bridge.adapters.torch.batch import Move
from trainer_bridge.batches.ragged import Ragged


class _Parts:
    """Tensors that belong together and are moved together."""

    def moved(self, move: Move) -> Self:
        """Return what ``move`` makes of each tensor in it."""
        values = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]
        return type(self)(*(_moved(value, move) for value in values))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        return self.moved(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        return self.moved(torch.Tensor.pin_memory)


def _moved(value: Any, move: Move) -> Any:
    if isinstance(value, torch.Tensor):
        return move(value)
    if isinstance(value, tuple):
        return tuple(_moved(part, move) for part in value)
    return value


@dataclass(frozen=True, slots=True, eq=False)
class Jagged(_Parts):
    """Rows of lists: all items, and where each level's lists end.

    Attributes
    ----------
    values
        Shape ``(items, *shape)``.
    offsets
        Per level of lists, outermost first, int64: list ``i`` contains what is from
        ``offsets[i]`` to ``offsets[i + 1]``, the end not included.
    mask
        Shape ``(rows,)``: False where the list of a row is null (and empty); None where
        none is.
    """

    values: torch.Tensor
    offsets: tuple[torch.Tensor, ...]
    mask: torch.Tensor | None = None

    @classmethod
    def of(cls, ragged: Ragged) -> Jagged:
        """Return the tensors of NumPy's side, without a copy."""
        return cls(
            torch.from_numpy(ragged.values),
            tuple(torch.from_numpy(level) for level in ragged.splits),
            None if ragged.mask is None else torch.from_numpy(ragged.mask),
        )

    def __len__(self) -> int:
        return len(self.offsets[0]) - 1

    @property
    def lengths(self) -> torch.Tensor:
        """How long the list of each row is, int64."""
        return self.offsets[0].diff()

    def nested(self) -> torch.Tensor:
        """Return a nested tensor of jagged layout, shape ``(rows, lengths, *shape)``; no copy.

        Raises
        ------
        RequestError
            For lists in lists, which torch's jagged layout does not have.
        """
        if len(self.offsets) != 1:
            raise RequestError(
                f"lists of depth {len(self.offsets)} are no nested tensor of jagged layout, which "
                "has one ragged dimension: read them with ragged='parts'"
            )
        return torch.nested.nested_tensor_from_jagged(self.values, self.offsets[0])


@dataclass(frozen=True, slots=True, eq=False)
class KeyedJagged(_Parts):
    """Lists of several keys in one: the parts of torchrec's ``KeyedJaggedTensor``.

    All lists of the first key come first, row by row, then those of the second: with ``K`` keys
    and ``B`` rows (stored rows, where rows are deduplicated) there are ``K * B`` lists.

    Attributes
    ----------
    keys
        Names.
    values
        All items, one after the other.
    lengths, offsets
        Of each list, int64: shapes ``(K * B,)`` and ``(K * B + 1,)``.
    weights
        A float32 for each item, or None.
    inverse_indices
        Deduplicated rows only: the keys, and int64 of shape ``(K, rows)``, which stored row
        each row is. None where rows are as they come.
    """

    keys: tuple[str, ...]
    values: torch.Tensor
    lengths: torch.Tensor
    offsets: torch.Tensor
    weights: torch.Tensor | None = None
    inverse_indices: tuple[tuple[str, ...], torch.Tensor] | None = None

    @property
    def stride(self) -> int:
        """Lists per key."""
        return len(self.lengths) // len(self.keys)

    def __getitem__(self, key: str) -> Jagged:
        """Return the lists of one key; no copy."""
        place, stride = self.keys.index(key), self.stride
        ends = self.offsets[place * stride : (place + 1) * stride + 1]
        first, stop = int(ends[0]), int(ends[-1])
        return Jagged(self.values[first:stop], (ends - first,))

    def to_kjt(self) -> Any:
        """torchrec's ``KeyedJaggedTensor`` of these tensors.

        Raises
        ------
        MissingExtraError
            Where torchrec is not installed.
        """
        try:
            from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
        except ModuleNotFoundError as error:
            if error.name != "torchrec":
                raise  # it is there, and lacks something
            raise MissingExtraError(
                "to_kjt() makes a KeyedJaggedTensor of torchrec, which is not installed: "
                "pip install torchrec, or use keys, values, lengths and offsets as they are"
            ) from error
        inverse = self.inverse_indices
        return KeyedJaggedTensor(
            keys=list(self.keys),
            values=self.values,
            weights=self.weights,
            lengths=self.lengths,
            offsets=self.offsets,
            # stored rows are fewer than rows: torchrec calls that a variable batch per key
            stride_per_key_per_rank=None if inverse is None else [[self.stride]] * len(self.keys),
            inverse_indices=None if inverse is None else (list(inverse[0]), inverse[1]),
        )


def keyed_jagged(
    columns: Mapping[str, Ragged | Array],
    weights: Mapping[str, Ragged] | None = None,
    inverse: Array | Sequence[Array] | None = None,
) -> KeyedJagged:
    """Return the lists of several columns as one :class:`KeyedJagged`; the items are copied once.

    Parameters
    ----------
    columns
        Ragged columns of one level, or arrays of shape ``(rows,)`` (a list of one item each),
        all of as many rows.
    weights
        A weight for each item, for every key, or for none.
    inverse
        Where the rows are stored ones: which of them each row is, shape ``(rows,)`` for all
        keys, or one such array per key.

    Raises
    ------
    ConfigurationError
        For columns that do not go together, named.

    Examples
    --------
    >>> keyed = keyed_jagged({"a": Ragged(np.array([7, 8]), (np.array([0, 2, 2]),)),
    ...                       "b": np.array([5, 6])})
    >>> keyed.keys, keyed.values.tolist(), keyed.lengths.tolist()
    (('a', 'b'), [7, 8, 5, 6], [2, 0, 1, 1])
    """
    keys = tuple(columns)
    if not keys:
        raise ConfigurationError("a keyed jagged tensor of no columns")
    lists = [as_ragged(column) for column in columns.values()]
    first = lists[0]
    for key, column in zip(keys, lists, strict=True):
        if column.ragged_rank != 1:
            raise ConfigurationError(
                f"column {key!r} has lists of depth {column.ragged_rank}; keys take depth 1"
            )
        if (column.dtype, column.shape) != (first.dtype, first.shape):
            raise ConfigurationError(
                f"column {key!r} has items of {column.dtype}{list(column.shape)}, column "
                f"{keys[0]!r} of {first.dtype}{list(first.shape)}; expected one type"
            )
        if len(column) != len(first):
            raise ConfigurationError(
                f"column {key!r} has {len(column)} rows, column {keys[0]!r} {len(first)}"
            )
    lengths = np.concatenate([column.lengths for column in lists])
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return KeyedJagged(
        keys,
        torch.from_numpy(np.concatenate([column.values for column in lists])),
        torch.from_numpy(lengths),
        torch.from_numpy(offsets),
        None if weights is None else _weights(keys, lists, weights),
        None if inverse is None else (keys, _inverse(keys, inverse)),
    )


def _weights(
    keys: Sequence[str], lists: Sequence[Ragged], weights: Mapping[str, Ragged]
) -> torch.Tensor:
    if set(weights) != set(keys):
        raise ConfigurationError(
            f"weights of {', '.join(sorted(weights))}; expected one for every key: "
            f"{', '.join(keys)}"
        )
    for key, column in zip(keys, lists, strict=True):
        if not np.array_equal(as_ragged(weights[key]).splits[0], column.splits[0]):
            raise ConfigurationError(
                f"key {key!r}: the lists of its weights are not as long as its lists of items"
            )
    parts = [as_ragged(weights[key]).values for key in keys]
    return torch.from_numpy(np.concatenate(parts).astype(np.float32, copy=False))


def _inverse(keys: Sequence[str], inverse: Array | Sequence[Array]) -> torch.Tensor:
    one = isinstance(inverse, np.ndarray) and inverse.ndim == 1
    rows = np.stack([inverse] * len(keys) if one else list(inverse))
    if len(rows) != len(keys):
        raise ConfigurationError(f"{len(rows)} inverse indices for {len(keys)} keys")
    return torch.from_numpy(rows.astype(np.int64, copy=False))


def as_ragged(column: Ragged | Array) -> Ragged:
    """Return the column itself, or each of its items as a list of one."""
    if isinstance(column, Ragged):
        return column
    return Ragged(np.ascontiguousarray(column), (np.arange(len(column) + 1, dtype=np.int64),))
