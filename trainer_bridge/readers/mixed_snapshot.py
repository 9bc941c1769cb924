"""The snapshots of several readers as one: their blocks, numbered through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from paimon_features.core.errors import ConfigurationError
from trainer_bridge.batches.forms import ArrowForm, Form
from trainer_bridge.batches.numpy_form import NumpyForm
from trainer_bridge.blocks.layout import Block, Layout
from trainer_bridge.blocks.row_selection import RowSelection
from trainer_bridge.readers.opened_snapshot import OpenedSnapshot


@dataclass(frozen=True)
class MixedLayout(Layout):
    """The blocks of several layouts, numbered through."""

    parts: tuple[Layout, ...] = ()

    @classmethod
    def of(cls, parts: Sequence[Layout]) -> MixedLayout:
        blocks: list[Block] = []
        for part in parts:
            first = blocks[-1].first_row + blocks[-1].rows if blocks else 0
            blocks += [replace(block, first_row=first + block.first_row) for block in part.blocks]
        selection = RowSelection()
        for part in parts:
            selection.add(part.selection)
        left_out = {path: wrong for part in parts for path, wrong in part.left_out.items()}
        return cls(
            " + ".join(part.table for part in parts),
            0,
            tuple(blocks),
            parts[0].selector,
            selection,
            left_out=left_out,
            parts=tuple(parts),
        )

    @property
    def where(self) -> str | None:
        """The conditions of the parts, each with its table; None if there are none."""
        conditions = [f"{part.table}: {part.where}" for part in self.parts if part.where]
        return "; ".join(conditions) or None

    def has_groups(self, number: int) -> bool:
        return False

    def decode(self, number: int, schema: pa.Schema) -> pa.Table:
        own_number = number
        for part in self.parts:
            if own_number < len(part.blocks):
                # each from its own storage, with the retries that it needs
                rows = part.storage.repeated(lambda: part.decode(own_number, schema))  # noqa: B023
                if own_number in part.replaced:
                    self.replaced[number] = part.replaced[own_number]
                return rows
            own_number -= len(part.blocks)
        raise IndexError(number)


def mixed_snapshot(sources: Sequence[OpenedSnapshot]) -> OpenedSnapshot:
    """Return one snapshot of the rows of several; the form is that of the first."""
    layout = MixedLayout.of([source.layout for source in sources])
    return replace(sources[0], table=layout.table, layout=layout)


def check_same_columns(first: OpenedSnapshot, other: OpenedSnapshot) -> None:
    """Raise ConfigurationError if batches cannot have rows of both."""
    mine, its = _columns(first.form), _columns(other.form)
    for name in {**mine, **its}:
        if mine.get(name) != its.get(name):
            raise ConfigurationError(
                f"the readers of {first.table!r} and {other.table!r} differ in column {name!r}: "
                f"{mine.get(name)} and {its.get(name)}; read the same columns, with the same "
                "output, fill, masks, item_masks, float_dtype, shapes, codes (one vocabulary) and "
                "scaled"
            )
    if list(mine) != list(its):
        raise ConfigurationError(
            f"the readers of {first.table!r} and {other.table!r} have their columns in different "
            f"order: {', '.join(mine)} and {', '.join(its)}; give both columns="
        )


def _columns(form: Form) -> dict[str, Any]:
    if isinstance(form, NumpyForm):
        plans = {name: replace(plan, where="") for name, plan in form.plans.items()}
        return {name: plans.get(name, spec) for name, spec in form.specs.items()}
    return (
        {column.name: str(column.type) for column in form.schema}
        if isinstance(form, ArrowForm)
        else {}
    )
