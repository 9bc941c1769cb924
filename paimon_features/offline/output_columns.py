"""Entity rows with their answers: features as they are read, interactions computed from them."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from paimon_features.core.types.statuses import STATUS_NAMES
from paimon_features.definitions import FeatureRef, Selection
from paimon_features.definitions.selection import Codes


def with_outputs(
    rows: pa.Table,
    selection: Selection,
    values: Mapping[FeatureRef, pa.Array],
    inputs: Mapping[str, pa.Array],
    codes: Mapping[FeatureRef, Codes] | None,
) -> pa.Table:
    """Return the rows with a column for each output, and one for its status where ``codes`` are
    given.

    ``values`` and ``codes`` (``Status``) are those of ``selection.refs`` on these
    rows, ``inputs`` what ``row_inputs`` finds in them. Rows do not depend on each other, so they
    may come in pieces.
    """
    computed = selection.compute(values, inputs, rows.num_rows)
    reported: dict[str, Codes] = {}
    count = rows.num_rows
    for output, name in selection.columns.items():
        if isinstance(output, FeatureRef):
            rows = rows.append_column(name, values[output])
            if codes is not None:
                reported[name] = codes[output]
        else:
            result = computed[output]
            rows = rows.append_column(name, result.values)
            if codes is not None:
                reported[name] = selection.worst(output, result.overflown, codes, count)
    for name, status in reported.items():
        array = pa.DictionaryArray.from_arrays(pa.array(status), pa.array(STATUS_NAMES))
        rows = rows.append_column(f"{name}__status", array)
    return rows
