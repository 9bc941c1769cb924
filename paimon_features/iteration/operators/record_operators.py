"""Operators: apply a user function to batches of records.

An operator is copied for every instance of a function, opened, called with batches of one epoch,
and closed. Everything that has to survive a failure is in ``ctx.state``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paimon_features.core.errors import DefinitionError
from paimon_features.iteration.operators.context import NO_KEY, FunctionContext, OutBuffer

Keys = list[Any] | None


class FunctionOperator:
    """Base class: calls the optional methods of the user function."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def open(self, ctx: FunctionContext) -> None:
        """Open the function, before the first record and again after a restore."""
        self._call("open", ctx)

    def records(
        self, input_index: int, values: list[Any], keys: Keys, ctx: FunctionContext, out: OutBuffer
    ) -> None:
        """Process a batch of one epoch; ``keys`` are those of the values if the input is keyed."""
        raise NotImplementedError

    def watermark(self, epoch: int, ctx: FunctionContext, out: OutBuffer) -> None:
        """Notify the function that no more records of this or an earlier epoch arrive."""
        self._call("on_epoch_watermark_incremented", epoch, ctx, out)

    def terminated(self, ctx: FunctionContext, out: OutBuffer) -> None:
        """Notify the function that the iteration has ended."""
        self._call("on_iteration_terminated", ctx, out)

    def end_input(self, ctx: FunctionContext, out: OutBuffer) -> None:
        """Notify the function that its input has ended; timers fire after this call."""
        self._call("end_input", ctx, out)

    def timer(self, timestamp: int, ctx: FunctionContext, out: OutBuffer) -> None:
        """Call the function for a timer that is due."""
        self._call("on_timer", timestamp, ctx, out)

    def close(self) -> None:
        """Close the function, which is no longer used."""
        self._call("close")

    def _call(self, method: str, *args: Any) -> None:
        callback = getattr(self.function, method, None)
        if callback is not None:
            callback(*args)

    def _callable(self, *methods: str) -> Callable[..., Any]:
        """Return the function's method, or the function itself if it is a plain callable."""
        return bound(self.function, *methods)


def bound(function: Any, *methods: str) -> Callable[..., Any]:
    """Return the first of the methods that exists, otherwise the object if it is callable."""
    for method in methods:
        callback = getattr(function, method, None)
        if callable(callback):
            check_instance(function)
            return callback  # type: ignore[no-any-return]
    if callable(function):
        return function  # type: ignore[no-any-return]
    raise DefinitionError(
        f"a function is of type {type(function).__name__}; expected a callable or an object with "
        f"the method {' or '.join(methods)}"
    )


def check_instance(function: Any) -> None:
    """Reject a class with the methods of a function; an instance is expected."""
    if isinstance(function, type):
        name = function.__name__
        raise DefinitionError(f"a function is the class {name}; pass an instance: {name}()")


class _PerValueOperator(FunctionOperator):
    """An operator whose function is called for each value."""

    METHOD = ""

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        bound(function, self.METHOD)

    def open(self, ctx: FunctionContext) -> None:
        self.call = self._callable(self.METHOD)
        super().open(ctx)

    def records(
        self, input_index: int, values: list[Any], keys: Keys, ctx: FunctionContext, out: OutBuffer
    ) -> None:
        if keys is None:
            self.batch(values, out)
            return
        for ctx.current, value in zip(keys, values, strict=True):
            self.batch([value], out)
        ctx.current = NO_KEY

    def batch(self, values: list[Any], out: OutBuffer) -> None:
        raise NotImplementedError


class MapOperator(_PerValueOperator):
    METHOD = "map"

    def batch(self, values: list[Any], out: OutBuffer) -> None:
        out.values.extend(map(self.call, values))


class FlatMapOperator(_PerValueOperator):
    METHOD = "flat_map"

    def batch(self, values: list[Any], out: OutBuffer) -> None:
        for value in values:
            values_out = self.call(value)
            if values_out is not None:
                out.values.extend(values_out)


class FilterOperator(_PerValueOperator):
    METHOD = "filter"

    def batch(self, values: list[Any], out: OutBuffer) -> None:
        out.values.extend(filter(self.call, values))


class _ProcessElementOperator(FunctionOperator):
    """An operator whose function has a method ``(value, ctx, out)`` per input."""

    METHODS: tuple[str, ...] = ()

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        check_instance(function)
        for method in self.METHODS:
            if not callable(getattr(function, method, None)) and (
                len(self.METHODS) > 1 or not callable(function)
            ):
                raise DefinitionError(
                    f"missing method {method!r} of a function of type {type(function).__name__}"
                )

    def open(self, ctx: FunctionContext) -> None:
        self.calls = [self._callable(method) for method in self.METHODS]
        super().open(ctx)

    def records(
        self, input_index: int, values: list[Any], keys: Keys, ctx: FunctionContext, out: OutBuffer
    ) -> None:
        call = self.calls[input_index]
        if keys is None:
            for value in values:
                call(value, ctx, out)
            return
        for ctx.current, value in zip(keys, values, strict=True):
            call(value, ctx, out)
        ctx.current = NO_KEY


class ProcessOperator(_ProcessElementOperator):
    METHODS = ("process_element",)


class CoProcessOperator(_ProcessElementOperator):
    METHODS = ("process_element1", "process_element2")


class CoMapOperator(_ProcessElementOperator):
    METHODS = ("map1", "map2")

    def records(
        self, input_index: int, values: list[Any], keys: Keys, ctx: FunctionContext, out: OutBuffer
    ) -> None:
        call = self.calls[input_index]
        for number, value in enumerate(values):
            if keys is not None:
                ctx.current = keys[number]
            out.collect(call(value))
        ctx.current = NO_KEY


class ReduceOperator(FunctionOperator):
    """Running reduction of each key."""

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        bound(function, "reduce")

    def open(self, ctx: FunctionContext) -> None:
        self.reduce = self._callable("reduce")
        self.so_far = ctx.state.value("reduced")
        super().open(ctx)

    def records(
        self, input_index: int, values: list[Any], keys: Keys, ctx: FunctionContext, out: OutBuffer
    ) -> None:
        state, absent = self.so_far, object()
        for ctx.current, value in zip(keys or (), values, strict=True):
            before = state.value(absent)
            reduced = value if before is absent else self.reduce(before, value)
            state.update(reduced)
            out.collect(reduced)
        ctx.current = NO_KEY
