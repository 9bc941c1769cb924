"""Arrow types as the expression language has them, for conditions on rows."""

from __future__ import annotations

import pyarrow as pa

from paimon_features.core.types.schema import (
    Bool,
    Bytes,
    DataType,
    Date,
    Decimal,
    Float32,
    Float64,
    Int32,
    Int64,
    String,
    Timestamp,
)

_PLAIN = {
    **{t.arrow: t for t in (Bool, Int32, Int64, Float32, Float64, String, Bytes, Date)},
    **dict.fromkeys((pa.int8(), pa.int16(), pa.uint8(), pa.uint16()), Int32),
    pa.uint32(): Int64,
    pa.large_string(): String,
}


def data_type_of(kind: pa.DataType) -> DataType | None:
    """Return the type that expressions have for it; None if there is none.

    >>> data_type_of(pa.int16()) is Int32, data_type_of(pa.list_(pa.int8()))
    (True, None)
    """
    if pa.types.is_decimal(kind):
        return Decimal(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return Timestamp
    return _PLAIN.get(kind)
