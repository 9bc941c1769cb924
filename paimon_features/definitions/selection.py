"""The outputs of a read: features as they are, interactions of them, and both transformed.

Online and offline reads both compute their outputs here, and nowhere else, so that an
interaction or a transformed feature is computed by the same steps on both.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paimon_features.core._arrow import pa
from paimon_features.core.columns.column import Column
from paimon_features.core.errors import RequestError
from paimon_features.core.expressions.evaluate import Program, without_overflow
from paimon_features.core.repeated_items import duplicates
from paimon_features.core.types.schema import DataType
from paimon_features.core.types.statuses import Status
from paimon_features.definitions.interaction import CompiledInteraction
from paimon_features.definitions.metadata import name_conflict
from paimon_features.definitions.reference import FeatureRef
from paimon_features.definitions.transformed import CompiledTransformed

Computation = CompiledInteraction | CompiledTransformed
"""An output that is computed from the features that are read."""
Output = FeatureRef | Computation
"""One column of a result."""

Codes = npt.NDArray[np.int8]


def all_present(codes: Codes) -> bool:
    """Return True if each status is PRESENT. Of a few, ``any`` of NumPy takes seven times as long.

    >>> all_present(np.array([0, 0], np.int8)), all_present(np.array([0, 3], np.int8))
    (True, False)
    """
    return codes.tobytes().count(0) == len(codes)


@dataclass(frozen=True, slots=True)
class Computed:
    """Computed values of every row, and where a step left its type (null there)."""

    values: pa.Array
    overflown: npt.NDArray[np.bool_] | None


class Selection:
    """The outputs of a read, the features it reads, and how the others are computed.

    ``outputs`` are in the order of the request, and ``names`` are the names of their columns: their
    own, or ``<view>__<feature>`` for a feature if another output has that name, too.
    ``refs`` are all features that are read, each once; ``inputs`` all request inputs, by name.

    Raises
    ------
    RequestError
        For no output, one that is named twice, two of one name, or a request input of two types.
    """

    def __init__(self, outputs: Sequence[Output]) -> None:
        self.outputs = tuple(outputs)
        self.interactions = tuple(o for o in outputs if isinstance(o, CompiledInteraction))
        self.transformed = tuple(o for o in outputs if isinstance(o, CompiledTransformed))
        self.computed: tuple[Computation, ...] = (*self.interactions, *self.transformed)
        hidden = [p for t in self.transformed for p in t.parts if not isinstance(p, FeatureRef)]
        self._steps = tuple(dict.fromkeys([*self.interactions, *hidden]))
        plain = [output for output in outputs if isinstance(output, FeatureRef)]
        self.names = _names(self.outputs)
        needed = [ref for computation in self.computed for ref in computation.refs]
        self.refs = tuple(dict.fromkeys([*plain, *needed]))
        self.inputs: dict[str, DataType] = {}
        for computation in self.computed:
            for name, kind in computation.inputs.items():
                if self.inputs.setdefault(name, kind) != kind:
                    raise RequestError(
                        f"the request input {name!r} is {self.inputs[name]!r} for one interaction "
                        f"and {kind!r} for {computation.name!r}; one name has one type"
                    )
        if not self.refs:
            raise RequestError(
                f"{', '.join(self.names)} is computed from request inputs only; name a feature, too"
            )

    @staticmethod
    def of(outputs: Sequence[Output]) -> Selection:
        """Return the selection of these outputs; equal ones are computed once."""
        return _selection(tuple(outputs))

    @functools.cached_property
    def columns(self) -> Mapping[Output, str]:
        """The name of each output's column."""
        return dict(zip(self.outputs, self.names, strict=True))

    @functools.cached_property
    def places(self) -> Mapping[str, int]:
        """Which output each is, by its name in requests: ``view:feature``, or its own."""
        return {str(output): place for place, output in enumerate(self.outputs)}

    @functools.cached_property
    def _program(self) -> Program:
        guards = [i.guard for i in self._steps if i.guard is not None]
        return Program([*(i.expression for i in self._steps), *guards])

    def compute(
        self, values: Mapping[FeatureRef, pa.Array], inputs: Mapping[str, pa.Array], rows: int
    ) -> dict[Computation, Computed]:
        """Compute the interactions and transformed features on ``rows`` rows.

        ``values`` are the features of ``refs`` and ``inputs`` the request inputs, as arrays of
        their types. A value that leaves its type (an integer beyond int64, a float
        that becomes infinite) is null, and so is one that a transformer cannot transform.
        """
        needed = {ref for computation in self.computed for ref in computation.refs}
        columns = {ref: Column.from_arrow(values[ref]) for ref in needed}
        given = {name: Column.from_arrow(array) for name, array in inputs.items()}
        results = self.columns_of(columns, given, rows)
        return {
            computation: Computed(
                results[computation][0].to_arrow(computation.type.arrow), results[computation][1]
            )
            for computation in self.computed
        }

    def columns_of(
        self, values: Mapping[FeatureRef, Column], inputs: Mapping[str, Column], rows: int
    ) -> dict[Computation, tuple[Column, npt.NDArray[np.bool_] | None]]:
        """Compute the same from columns: values, and where a step left its type.

        Interactions that are only inputs of a transformed feature are included.
        """
        if not self.computed:
            return {}
        out: dict[Computation, tuple[Column, npt.NDArray[np.bool_] | None]] = {}
        if self._steps:
            columns = {str(ref): column for ref, column in values.items()} | dict(inputs)
            results = self._program.run(columns, rows)
            guards = iter(results[len(self._steps) :])
            for interaction, column in zip(self._steps, results, strict=False):
                guard = None if interaction.guard is None else next(guards)
                out[interaction] = without_overflow(interaction.type, column, guard)
        for transformed in self.transformed:
            parts = [
                (values[part], None) if isinstance(part, FeatureRef) else out[part]
                for part in transformed.parts
            ]
            result, failed = transformed.apply([column for column, _ in parts])
            for _, overflown in parts:
                if overflown is not None:
                    failed = overflown if failed is None else failed | overflown
            out[transformed] = result, failed
        return out

    @staticmethod
    def worst(
        computation: Computation,
        overflown: npt.NDArray[np.bool_] | None,
        codes: Mapping[FeatureRef, Codes],
        rows: int,
    ) -> Codes:
        """Return the status of a computed output, row by row: the worst of its inputs'.

        ``codes`` contains the status of each feature (``Status``). Rows that are ``overflown``, or
        that cannot be transformed, are ILL_CONDITIONED.
        """
        out = np.zeros(rows, np.int8)
        for ref in computation.refs:
            out = np.maximum(out, codes[ref])
        if overflown is not None:
            out[overflown] = Status.ILL_CONDITIONED
        return out


@functools.lru_cache(maxsize=256)
def _selection(outputs: tuple[Output, ...]) -> Selection:
    return Selection(outputs)


def _names(outputs: Sequence[Output]) -> tuple[str, ...]:
    if not outputs:
        raise RequestError(
            "the request names no feature; name some as 'view:feature', or a service"
        )
    double = sorted(map(str, duplicates(outputs)))
    if double:
        raise RequestError(f"the request names {', '.join(double)} twice")
    short = [o.feature if isinstance(o, FeatureRef) else o.name for o in outputs]
    ambiguous = set(duplicates(short))
    names = tuple(
        f"{output.view}__{name}" if isinstance(output, FeatureRef) and name in ambiguous else name
        for output, name in zip(outputs, short, strict=True)
    )
    repeated = sorted(duplicates(names))
    if repeated:
        raise RequestError(f"two outputs are named {repeated[0]!r}; rename an interaction")
    if conflict := name_conflict(names):
        raise RequestError(conflict)
    return names
