"""Key bytes are fixed, canonical, and different for different entities."""

from __future__ import annotations

import datetime as dt
import random

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import RequestError
from paimon_features.core.types.schema import Bool, Date, Int32, Int64, String
from paimon_features.online.store.keys import ViewKeys, entity_bytes, key_arrays, new_epoch


def test_keys_are_pinned() -> None:
    # other bytes would orphan what is stored: change them only with the format
    keys = ViewKeys("shop", "spend")
    bucket = keys.bucket("1a2b3c4d", 7)
    entity = entity_bytes([Int64], [pa.array([12346])])[0]
    assert keys.state == b"pf:{shop:spend}#state"
    assert bucket.record_stem + entity == b"pf:{shop:spend:1a2b3c4d:7}:12346"
    assert bucket.marker == b"pf:{shop:spend:1a2b3c4d:7}#marker"
    assert bucket.lease == b"pf:{shop:spend:1a2b3c4d:7}#lease"
    assert keys.epoch_of(bucket.marker) == "1a2b3c4d"
    assert bucket.marker.startswith(keys.all_epochs)
    assert not keys.state.startswith(keys.all_epochs)


def test_entity_bytes_are_pinned() -> None:
    columns = [
        pa.array([-5, 2**31 - 1], pa.int32()),
        pa.array([-(2**63), 0]),
        pa.array(["a|b\\c", "ü{}:\n\x00"]),
        pa.array([True, False]),
        pa.array([dt.date(1969, 12, 31), dt.date(2011, 12, 9)]),
    ]
    assert entity_bytes([Int32, Int64, String, Bool, Date], columns) == [
        b"-5|-9223372036854775808|a\\|b\\\\c|t|-1",
        b"2147483647|0|\xc3\xbc{}:\n\x00|f|15317",
    ]


def test_different_composite_keys_have_different_bytes() -> None:
    rng = random.Random(0)
    texts = ["".join(rng.choices("ab|\\:}", k=rng.randrange(4))) for _ in range(3000)]
    pairs = {(texts[i], texts[i + 1]) for i in range(0, 3000, 2)}
    left, right = zip(*sorted(pairs), strict=True)
    encoded = entity_bytes([String, String], [pa.array(left), pa.array(right)])
    assert len(set(encoded)) == len(pairs)


def test_a_bucket_and_its_marker_share_their_hash_tag() -> None:
    bucket = ViewKeys("shop", "spend").bucket("1a2b3c4d", 7)
    record = bucket.record_stem + entity_bytes([String], [pa.array(["}{x"])])[0]

    def tag(key: bytes) -> bytes:
        return key[key.index(b"{") + 1 : key.index(b"}")]

    assert tag(record) == tag(bucket.marker) == tag(bucket.lease)


def test_epoch_names_are_unique() -> None:
    assert len({new_epoch() for _ in range(1000)}) == 1000


@pytest.mark.parametrize(
    "values",
    [
        [1, 2],
        (1, 2),
        np.array([1, 2], np.int32),
        pa.array([1, 2], pa.int16()),
        pa.chunked_array([[1], [2]]),
        range(1, 3),
        [np.int64(1), 2],
    ],
)
def test_entities_may_be_any_sequence(values: object) -> None:
    assert key_arrays({"id": Int64}, {"id": values})[0].to_pylist() == [1, 2]


def test_strings_and_dates_are_accepted() -> None:
    keys = {"word": String, "day": Date}
    days = [dt.date(2011, 1, 1)] * 2
    arrays = key_arrays(keys, {"word": np.array(["a", ""], object), "day": days})
    assert entity_bytes([String, Date], arrays) == [b"a|14975", b"|14975"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, None], "null in row 1"),
        (["1"], "Int64"),
        ([1.5], "1.5"),
        ([1.0], "1.0"),
        ([True], "bool"),
        (np.array([1.5]), "double"),
        ([2**63], "Int64"),
        ("12346", "expected a sequence"),
        (7, "Int64"),
    ],
)
def test_values_of_another_type_are_rejected_never_rounded(values: object, message: str) -> None:
    with pytest.raises(RequestError, match="entity key 'id'.*" + message):
        key_arrays({"id": Int64}, {"id": values})


def test_missing_keys_and_different_lengths_are_rejected() -> None:
    with pytest.raises(RequestError, match="missing entity key 'shop'; got: user"):
        key_arrays({"user": Int64, "shop": String}, {"user": [1]})
    with pytest.raises(RequestError, match="different lengths"):
        key_arrays({"user": Int64, "shop": String}, {"user": [1], "shop": ["a", "b"]})
