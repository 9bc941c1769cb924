"""What a read gives: features as they are and interactions of them, in the order of the request.

The online and the offline read put their answers together here, and nowhere else, so that an
interaction is computed by the same steps on both.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paimon_features.columns import Column
from paimon_features.definitions.interaction import CompiledInteraction
from paimon_features.definitions.reference import FeatureRef
from paimon_features.errors import RequestError
from paimon_features.expressions.evaluate import Program, without_overflow
from paimon_features.schema import DataType

Output = FeatureRef | CompiledInteraction
"""One column of an answer."""

Codes = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Computed:
    """An interaction on every row: its values, and where a step left its type (null there)."""

    values: pa.Array
    overflown: npt.NDArray[np.bool_] | None


class Selection:
    """The outputs of a read, what is read for them, and how interactions are computed.

    ``outputs`` are in the order of the request, and ``names`` what their columns are called: like
    themselves, or a feature ``<view>__<feature>`` where another output has that name, too.
    ``refs`` are all features that are read, each once; ``inputs`` all request inputs, by name.

    Raises
    ------
    RequestError
        For no output, one that is named twice, two of one name, or a request input of two types.
    """

    def __init__(self, outputs: Sequence[Output]) -> None:
        self.outputs = tuple(outputs)
        self.interactions = tuple(o for o in outputs if isinstance(o, CompiledInteraction))
        plain = [output for output in outputs if isinstance(output, FeatureRef)]
        self.names = _names(self.outputs)
        needed = [ref for interaction in self.interactions for ref in interaction.refs]
        self.refs = tuple(dict.fromkeys([*plain, *needed]))
        self.inputs: dict[str, DataType] = {}
        for interaction in self.interactions:
            for name, kind in interaction.inputs.items():
                if self.inputs.setdefault(name, kind) != kind:
                    raise RequestError(
                        f"the request input {name!r} is {self.inputs[name]!r} for one interaction "
                        f"and {kind!r} for {interaction.name!r}; one name has one type"
                    )
        if not self.refs:
            raise RequestError(
                f"{', '.join(self.names)} is made of request inputs only; name a feature besides"
            )

    @staticmethod
    def of(outputs: Sequence[Output]) -> Selection:
        """The selection of these outputs; equal ones are worked out once."""
        return _selection(tuple(outputs))

    @functools.cached_property
    def columns(self) -> Mapping[Output, str]:
        """The name of each output's column."""
        return dict(zip(self.outputs, self.names, strict=True))

    @functools.cached_property
    def _program(self) -> Program:
        guards = [i.guard for i in self.interactions if i.guard is not None]
        return Program([*(i.expression for i in self.interactions), *guards])

    def compute(
        self, values: Mapping[FeatureRef, pa.Array], inputs: Mapping[str, pa.Array], rows: int
    ) -> dict[CompiledInteraction, Computed]:
        """The interactions on ``rows`` rows.

        ``values`` are the features of ``refs`` and ``inputs`` those of ``inputs``, as arrays of
        their types. A value that leaves its type on the way (an integer beyond int64, a float
        that becomes infinite) is null.
        """
        needed = {ref for interaction in self.interactions for ref in interaction.refs}
        columns = {ref: Column.from_arrow(values[ref]) for ref in needed}
        given = {name: Column.from_arrow(array) for name, array in inputs.items()}
        return {
            interaction: Computed(column.to_arrow(interaction.type.arrow), overflown)
            for interaction, (column, overflown) in self.columns_of(columns, given, rows).items()
        }

    def columns_of(
        self, values: Mapping[FeatureRef, Column], inputs: Mapping[str, Column], rows: int
    ) -> dict[CompiledInteraction, tuple[Column, npt.NDArray[np.bool_] | None]]:
        """The same of columns: each interaction's values, and where a step left its type."""
        if not self.interactions:
            return {}
        columns = {str(ref): column for ref, column in values.items()} | dict(inputs)
        results = self._program.run(columns, rows)
        guards = iter(results[len(self.interactions) :])
        out = {}
        for interaction, column in zip(self.interactions, results, strict=False):
            guard = None if interaction.guard is None else next(guards)
            out[interaction] = without_overflow(interaction.type, column, guard)
        return out

    @staticmethod
    def worst(
        interaction: CompiledInteraction,
        overflown: npt.NDArray[np.bool_] | None,
        codes: Mapping[FeatureRef, Codes],
        ill_conditioned: int,
        rows: int,
    ) -> Codes:
        """The status of an interaction on each row: the worst of the features it is made of.

        ``codes`` have the status of each feature, a greater number being worse, 0 being best; where
        the interaction itself is ``overflown`` (None: nowhere) it is ``ill_conditioned``.
        """
        out = np.zeros(rows, np.int8)
        for ref in interaction.refs:
            out = np.maximum(out, codes[ref])
        if overflown is not None:
            out[overflown] = ill_conditioned
        return out


@functools.lru_cache(maxsize=256)
def _selection(outputs: tuple[Output, ...]) -> Selection:
    return Selection(outputs)


def _names(outputs: Sequence[Output]) -> tuple[str, ...]:
    if not outputs:
        raise RequestError(
            "the request names no feature; name some as 'view:feature', or a service"
        )
    double = sorted({str(output) for output in outputs if outputs.count(output) > 1})
    if double:
        raise RequestError(f"the request names {', '.join(double)} twice")
    short = [o.feature if isinstance(o, FeatureRef) else o.name for o in outputs]
    names = tuple(
        f"{output.view}__{name}"
        if isinstance(output, FeatureRef) and short.count(name) > 1
        else name
        for output, name in zip(outputs, short, strict=True)
    )
    taken = sorted({name for name in names if names.count(name) > 1})
    if taken:
        raise RequestError(f"two outputs are called {taken[0]!r}; rename an interaction")
    return names
