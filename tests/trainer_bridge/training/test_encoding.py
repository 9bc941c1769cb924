"""Encoded features: the same by NumPy and as ONNX, for every kind and odd value."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import ConfigurationError, RequestError
from paimon_features.models import check_network
from paimon_features.testing.sizes import every_seed
from trainer_bridge.training.encoding import (
    NULL_TEXT,
    FeatureEncoder,
    InputFeature,
    feeds_of,
)

onnxruntime = pytest.importorskip("onnxruntime", reason="pip install onnxruntime")

FEATURES = [
    InputFeature("v:count", "count", "int64", "number"),
    InputFeature("v:country", "country", "string", "text"),
    InputFeature("v:words", "words", "list(string)", "text_list", 4),
    InputFeature("v:amount", "amount", "float64", "number"),
    InputFeature("v:nothing", "nothing", "float64", "number"),
    InputFeature("v:is_new", "is_new", "bool", "number"),
    InputFeature("v:amounts", "amounts", "list(float64)", "number_list", 2),
    InputFeature("v:vector", "vector", "list(float64, 2)", "vector", 2),
    InputFeature("v:items", "items", "list(int64)", "text_list", 3),
]


def rows(dice: random.Random, count: int) -> pa.Table:
    def maybe(value: Any) -> Any:
        return None if dice.random() < 0.2 else value

    def items(made: Any) -> Any:
        return maybe([maybe(made()) for _ in range(dice.randrange(6))])

    return pa.table(
        {
            "count": pa.array([maybe(dice.randrange(2**40)) for _ in range(count)], pa.int64()),
            "country": pa.array([maybe(dice.choice(["DE", "", "ü", "FR"])) for _ in range(count)]),
            "words": pa.array([items(lambda: dice.choice("abcdefg")) for _ in range(count)],
                              pa.list_(pa.string())),
            "amount": pa.array([maybe(dice.gauss(1e6, 10)) for _ in range(count)], pa.float64()),
            "nothing": pa.nulls(count, pa.float64()),
            "is_new": pa.array([maybe(dice.random() < 0.5) for _ in range(count)], pa.bool_()),
            "amounts": pa.array([items(lambda: dice.gauss(5, 2)) for _ in range(count)],
                                pa.list_(pa.float64())),
            "vector": pa.array([maybe([dice.random(), dice.random()]) for _ in range(count)],
                               pa.list_(pa.float64())),
            "items": pa.array([items(lambda: dice.randrange(9)) for _ in range(count)],
                              pa.list_(pa.int64())),
        }
    )  # fmt: skip


@every_seed(4)
def test_onnx_computes_the_same_arrays(seed: int) -> None:
    dice = random.Random(seed)
    fitted = FeatureEncoder.fit(
        rows(dice, 60), FEATURES, numbers=("standard", "quantile")[seed % 2], max_categories=3,
        max_items=4,
    )  # fmt: skip
    encoder = FeatureEncoder.from_document(json.loads(fitted.to_text()))
    assert encoder.to_text() == fitted.to_text()
    data = encoder.front().SerializeToString()
    check_network(data)
    session = onnxruntime.InferenceSession(data)
    for table in (rows(dice, 40), rows(dice, 1)):
        found = session.run(
            None, feeds_of(encoder.inputs(), {name: table[name] for name in table.column_names})
        )
        wanted = encoder.apply(table)
        assert list(wanted) == list(encoder.array_names)
        for array, name in zip(found, encoder.array_names, strict=True):
            assert array.dtype == wanted[name].dtype
            np.testing.assert_allclose(array, wanted[name], rtol=1e-6, atol=1e-7)


def test_groups_are_all_columns_each_once() -> None:
    encoder = FeatureEncoder.fit(rows(random.Random(0), 60), FEATURES, max_categories=3)
    indices = sorted(index for group in encoder.groups for index in group.indices)
    assert indices == list(range(encoder.width))
    assert encoder.apply(rows(random.Random(1), 5))["numbers"].shape == (5, encoder.width)
    counts = {group.output: len(group.indices) for group in encoder.groups}
    assert counts == {"v:count": 2, "v:country": 3, "v:amount": 2, "v:nothing": 2, "v:is_new": 2,
                      "v:vector": 2}  # fmt: skip


def test_lists_are_cut_padded_and_coded() -> None:
    features = [FEATURES[0], FEATURES[2], FEATURES[6]]
    table = pa.table(
        {
            "count": [1, 2, 3],
            "words": [["a", "b", "a", "c", "a"], [None, "b"], None],
            "amounts": [[1.0, 3.0, 9.0], [], [None, 5.0]],
        }
    )
    encoder = FeatureEncoder.fit(table, features, max_items=2)
    found = encoder.apply(table)
    # a is the most frequent, then b; c is unknown
    assert found["codes"][:, 0].tolist() == [[2, 3, 2, 1], [0, 3, 0, 0], [0, 0, 0, 0]]
    scale = encoder.scales["amounts"]
    wanted = (np.array([[1.0, 3.0], [np.nan] * 2, [np.nan, 5.0]]) - scale.mean) / scale.scale
    np.testing.assert_allclose(found["values"][:, 0, :2], wanted, rtol=1e-6)
    assert np.isnan(found["values"][:, 0, 2:]).all()


def test_vectors_alone_are_encoded_the_same_by_onnx() -> None:
    table = rows(random.Random(2), 30).select(["vector"])
    encoder = FeatureEncoder.from_text(FeatureEncoder.fit(table, [FEATURES[7]]).to_text())
    wanted = encoder.apply(table)["numbers"]
    assert wanted.shape == (30, encoder.width)
    session = onnxruntime.InferenceSession(encoder.front().SerializeToString())
    found = session.run(None, feeds_of(encoder.inputs(), {"vector": table["vector"]}))
    np.testing.assert_allclose(found[0], wanted, rtol=1e-6, atol=1e-7)


def test_what_cannot_be_encoded_is_refused() -> None:
    table = pa.table({"country": ["DE", NULL_TEXT], "words": [["a"], ["b"]]})
    with pytest.raises(ConfigurationError, match="stands for null"):
        FeatureEncoder.fit(table, [FEATURES[1]])
    with pytest.raises(ConfigurationError, match="reads no number, text or vector"):
        FeatureEncoder.fit(table, [FEATURES[2]])
    for document in ({}, {"features": [{}], "scalars": None, "words": {}, "scales": {}}):
        with pytest.raises(RequestError, match="not an encoder of features"):
            FeatureEncoder.from_document(document)
    for text in ("", "{", "[" * 100_000):
        with pytest.raises(RequestError, match="this is not an encoder of features"):
            FeatureEncoder.from_text(text)
