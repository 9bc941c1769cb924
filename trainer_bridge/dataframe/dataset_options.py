"""The keywords of ``Dataset``, checked: which pieces are read, and how columns become arrays."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from paimon_features.core.errors import ConfigurationError
from paimon_features.core.repeated_items import duplicates
from trainer_bridge.batches.vocabulary import Vocabulary
from trainer_bridge.dataframe.frame import Field, Pad

FieldMap = Callable[[list[Field | str]], Iterable[Field | str]]


class DatasetKeywords(TypedDict, total=False):
    """Keywords that :class:`trainer_bridge.dataframe.Dataset` takes of every source; documented
    there."""

    num_parallel_reads: int | None
    field_ignore_case: bool
    field_map_fn: FieldMap | None
    key_idx_field_names: Sequence[str] | None
    value_field_names: Sequence[Sequence[str]] | None
    restore: bool
    fill: Mapping[str, Any] | None
    masks: Collection[str]
    item_masks: Collection[str]
    codes: Mapping[str, Vocabulary | Sequence[str]] | None
    scaled: Collection[str]


@dataclass(frozen=True)
class DatasetOptions:
    """The arguments of ``Dataset.from_parquet`` and ``from_table`` that concern neither the source
    nor its fields.

    >>> list(DatasetOptions(partition_count=4, partition_index=1).pieces(10))
    [1, 5, 9]
    """

    partition_count: int = 1
    partition_index: int = 0
    to_dense: Pad | Mapping[str, Pad] = False
    num_parallel_reads: int | None = None
    field_ignore_case: bool = False
    field_map_fn: FieldMap | None = None
    key_idx_field_names: Sequence[str] | None = None
    value_field_names: Sequence[Sequence[str]] | None = None
    restore: bool = True
    fill: Mapping[str, Any] | None = None
    masks: Collection[str] = ()
    item_masks: Collection[str] = ()
    codes: Mapping[str, Vocabulary | Sequence[str]] | None = None
    scaled: Collection[str] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.partition_index < self.partition_count:
            raise ConfigurationError(
                f"partition_index={self.partition_index} of "
                f"partition_count={self.partition_count}: "
                "expected 0 <= partition_index < partition_count"
            )
        if self.num_parallel_reads is not None:
            check_size("num_parallel_reads", self.num_parallel_reads)

    @property
    def threads(self) -> int:
        return self.num_parallel_reads or 1

    def pieces(self, count: int) -> range:
        """Return the numbers of the pieces to read, of a source of this many."""
        return range(self.partition_index, count, self.partition_count)

    def iter_named_fields(self) -> Iterator[tuple[str, str]]:
        """Yield (option, field) for each field that is named by an option for its values."""
        named: dict[str, Iterable[str]] = {
            "fill": self.fill or (),
            "masks": self.masks,
            "item_masks": self.item_masks,
            "codes": self.codes or (),
            "scaled": self.scaled,
        }
        for option, names in named.items():
            for name in names:
                yield option, name

    def vocabulary(self, name: str) -> Vocabulary | None:
        """Return the vocabulary that was declared for a field."""
        words = (self.codes or {}).get(name)
        if words is None or isinstance(words, Vocabulary):
            return words
        return Vocabulary.of(words)


@dataclass(frozen=True)
class DeduplicatedColumns:
    """The deduplicated columns: one group of value columns per index column."""

    values: Mapping[str, tuple[str, ...]]
    """Value columns by index column."""

    @classmethod
    def of(cls, options: DatasetOptions) -> DeduplicatedColumns:
        keys = list(options.key_idx_field_names or ())
        values = list(options.value_field_names or ())
        if len(keys) != len(values) or len(set(keys)) != len(keys):
            raise ConfigurationError(
                f"key_idx_field_names={keys} and value_field_names={values}: expected one list of "
                "value fields per index field"
            )
        named = [name for group in values for name in group]
        repeated = duplicates(named) or not set(keys).isdisjoint(named)
        if repeated or any(isinstance(group, str) for group in values):
            raise ConfigurationError(
                f"value_field_names={values}: expected lists of distinct names, none of "
                "them an index field"
            )
        return cls({key: tuple(group) for key, group in zip(keys, values, strict=True)})

    @property
    def columns(self) -> list[str]:
        """Index and value columns."""
        return [name for key, group in self.values.items() for name in (key, *group)]


def check_size(what: str, size: int) -> None:
    """Raise ConfigurationError for a size below 1."""
    if size < 1:
        raise ConfigurationError(f"{what}={size}: expected at least 1")
