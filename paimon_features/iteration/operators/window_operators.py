"""Count windows, and windows and joins at the end of the input."""

from __future__ import annotations

from typing import Any

from paimon_features.core.configuration.arguments import checked_integer
from paimon_features.iteration.named_state import ListState
from paimon_features.iteration.operators.context import FunctionContext, OutBuffer
from paimon_features.iteration.operators.record_operators import FunctionOperator, Keys, bound


class CountWindowOperator(FunctionOperator):
    """One value per ``size`` values."""

    def __init__(self, function: Any, size: int) -> None:
        super().__init__(function)
        bound(function, "apply")
        self.size = checked_integer("the size of a count window", size)

    def open(self, ctx: FunctionContext) -> None:
        self.apply = self._callable("apply")
        self.open_window = ctx.state.value("window")
        super().open(ctx)

    def records(
        self, input_index: int, values: list[Any], keys: Keys, ctx: FunctionContext, out: OutBuffer
    ) -> None:
        buffered = self.open_window.value([]) + values
        full = len(buffered) - len(buffered) % self.size
        for start in range(0, full, self.size):
            out.collect(self.apply(buffered[start : start + self.size]))
        self.open_window.update(buffered[full:])


class EndWindowOperator(FunctionOperator):
    """All values of the subtask, or of each key, at the end of the input."""

    def __init__(self, function: Any, keyed: bool = False) -> None:
        super().__init__(function)
        bound(function, "apply")
        self.keyed = keyed

    def open(self, ctx: FunctionContext) -> None:
        self.apply = self._callable("apply")
        self.buffered = ctx.state.union_list("window")
        super().open(ctx)

    def records(
        self, input_index: int, values: list[Any], keys: Keys, ctx: FunctionContext, out: OutBuffer
    ) -> None:
        self.buffered.add((keys, values))

    def end_input(self, ctx: FunctionContext, out: OutBuffer) -> None:
        if self.keyed:
            for key, values in _by_key(self.buffered).items():
                out.values.extend(self.apply(key, values))
        elif values := [value for _, batch in self.buffered.get() for value in batch]:
            out.values.extend(self.apply(values))
        super().end_input(ctx, out)


class EndJoinOperator(FunctionOperator):
    """``function(left, right)`` for every pair with equal keys, at the end of the input."""

    def open(self, ctx: FunctionContext) -> None:
        self.apply = self._callable("join")
        self.sides = (ctx.state.union_list("left"), ctx.state.union_list("right"))
        super().open(ctx)

    def records(
        self, input_index: int, values: list[Any], keys: Keys, ctx: FunctionContext, out: OutBuffer
    ) -> None:
        self.sides[input_index].add((keys, values))

    def end_input(self, ctx: FunctionContext, out: OutBuffer) -> None:
        right = _by_key(self.sides[1])
        for key, lefts in _by_key(self.sides[0]).items():
            for other in right.get(key, ()):
                out.values.extend(self.apply(left, other) for left in lefts)
        super().end_input(ctx, out)


def _by_key(batches: ListState) -> dict[Any, list[Any]]:
    """Return the values of each key, with keys in the order of their first value."""
    groups: dict[Any, list[Any]] = {}
    for keys, values in batches.get():
        for key, value in zip(keys, values, strict=True):
            groups.setdefault(key, []).append(value)
    return groups
