"""What a sweep searches: settings with several values, in the syntax of Hydra's sweeps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paimon_features.core.errors import ConfigurationError, MissingExtraError

MAX_VALUES = 10_000
"""Values of a setting, and combinations of a grid."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Values as they are written in overrides; ``step`` of integers in equal steps, otherwise 0."""

    values: tuple[str, ...]
    step: int = 0


@dataclass(frozen=True, slots=True)
class Interval:
    """Numbers from ``low`` to ``high``, both inclusive."""

    low: float
    high: float
    log: bool = False
    integer: bool = False


Dimension = Choice | Interval


@dataclass(frozen=True)
class SearchSpace:
    """The settings of a sweep: those that every trial has, and those that vary, by name.

    >>> space = SearchSpace.of({}, ["seed=1", "model.layers=1,2", "optimiser.lr=0.1,0.01"])
    >>> space.fixed, len(space.grid())
    (('seed=1',), 4)
    >>> space.grid()[1]
    {'model.layers': '1', 'optimiser.lr': '0.01'}
    """

    fixed: tuple[str, ...]
    dimensions: Mapping[str, Dimension]

    @classmethod
    def of(cls, sweep: Mapping[str, Any], overrides: Sequence[str]) -> SearchSpace:
        """Return the space of a file's ``sweep`` section and of overrides, which win.

        Raises
        ------
        ConfigurationError
            For what Hydra cannot parse, and for an empty or too large range.
        """
        try:
            from hydra.core.override_parser.overrides_parser import OverridesParser
            from hydra.errors import HydraException
        except ImportError as error:
            raise MissingExtraError.of("hydra-core", "train", "'paimon-features train'") from error
        fixed: list[str] = []
        dimensions: dict[str, Dimension] = {}
        parser = OverridesParser.create()
        texts = [_text(str(name), value) for name, value in sweep.items()]
        for source, lines in (("sweep in the file", texts), ("override", list(overrides))):
            for line in lines:
                try:
                    override = parser.parse_override(line)
                    dimension = _dimension(override) if override.is_sweep_override() else None
                except HydraException as error:
                    first = str(error).strip().splitlines()[0]
                    raise ConfigurationError(f"{source} {line[:200]!r}: {first}") from error
                name = override.get_key_element()
                if source == "override":
                    dimensions.pop(name, None)
                    fixed = [entry for entry in fixed if entry.split("=", 1)[0] != name]
                if dimension is None:
                    fixed.append(line)
                else:
                    dimensions[name] = dimension
        return cls(tuple(fixed), dimensions)

    def grid(self) -> list[dict[str, str]]:
        """Return every combination; ConfigurationError for an interval, and for too many."""
        count = 1
        for name, dimension in self.dimensions.items():
            if isinstance(dimension, Interval):
                raise ConfigurationError(
                    f"{name} is an interval, of which there is no list of values: say --trials, or "
                    f"give values, such as {name}={dimension.low:g},{dimension.high:g}"
                )
            count *= len(dimension.values)
        if count > MAX_VALUES:
            raise ConfigurationError(
                f"{count:,} combinations; expected at most {MAX_VALUES:,}: say --trials to try some"
            )
        values = (axis.values for axis in self.dimensions.values() if isinstance(axis, Choice))
        return [dict(zip(self.dimensions, combination, strict=True))
                for combination in itertools.product(*values)]  # fmt: skip

    def to_document(self) -> list[list[str]]:
        """Return the space in JSON values, for what depends on it."""
        return [[name, repr(dimension)] for name, dimension in self.dimensions.items()]


def _text(name: str, value: Any) -> str:
    if isinstance(value, list | tuple):
        words = ",".join(map(_word, value))
        # choice() takes no null, a list of words does; a list of one word is no sweep
        return f"{name}={words}" if None in value else f"{name}=choice({words})"
    return f"{name}={_word(value)}"


def _word(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _dimension(override: Any) -> Dimension:
    from hydra.core.override_parser.types import Glob, RangeSweep

    name, value = override.get_key_element(), override.value()
    if isinstance(value, Glob):
        raise ConfigurationError(f"{name}: glob() is not supported; give the choices")
    if override.is_interval_sweep():
        low, high, integer = value.start, value.end, isinstance(value.start, int)
        if not (low < high and math.isfinite(low) and math.isfinite(high)):
            raise ConfigurationError(
                f"{name}: an interval from {low} to {high}; expected low < high"
            )
        log = "log" in value.tags
        if log and low <= 0:
            raise ConfigurationError(f"{name}: a log interval from {low}; expected more than 0")
        return Interval(low, high, log, integer and isinstance(high, int))
    step = 0
    if isinstance(value, RangeSweep):
        bounds: tuple[Any, ...] = (value.start, value.stop, value.step)
        start, stop, by = bounds
        size = (stop - start) / by if by else math.inf
        if not 0 < size <= MAX_VALUES:
            raise ConfigurationError(
                f"{name}: range({start}, {stop}, {by}); expected 1 to {MAX_VALUES:,} values"
            )
        if all(isinstance(bound, int) for bound in bounds):
            step = max(0, by)
    values = tuple(dict.fromkeys(map(str, override.sweep_string_iterator())))
    if not 0 < len(values) <= MAX_VALUES:
        raise ConfigurationError(f"{name}: {len(values):,} values; expected 1 to {MAX_VALUES:,}")
    return Choice(values, step)
