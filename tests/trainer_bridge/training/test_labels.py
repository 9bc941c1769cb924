"""Labels: one spelling of a class, and what is no label."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import ConfigurationError
from trainer_bridge.training.labels import LabelCodec, class_texts, sample_weights

CLASSES = {
    "bool": pa.array([True, False, True]),
    "float": pa.array([1.0, 0.0, 1.0]),
    "int": pa.array([1, 0, 1], pa.int8()),
    "decimal": pa.array([Decimal("1.00"), Decimal("0.00"), Decimal("1.00")]),
    "text": pa.array(["b", "a", "b"]),
    "large text": pa.array(["b", "a", "b"], pa.large_string()),
    "dictionary": pa.array(["b", "a", "b"]).dictionary_encode(),
}


@pytest.mark.parametrize("kind", CLASSES)
def test_classes_of_a_version_are_found_again_in_later_rows(kind: str) -> None:
    column = pa.chunked_array([CLASSES[kind]])
    labels = LabelCodec.of("multiclass", column)
    assert len(labels.classes) == 2
    # a round has the classes of the manifest alone
    later = LabelCodec("multiclass", labels.classes)
    assert later.known(column).all()
    assert later.apply(column).tolist() == [1, 0, 1]


def test_a_number_that_is_an_integer_is_the_same_class_in_every_type() -> None:
    expected = ["1", "0", "1"]
    for kind in ("float", "int", "decimal"):
        assert class_texts(CLASSES[kind]).to_pylist() == expected
    assert class_texts(CLASSES["bool"]).to_pylist() == ["true", "false", "true"]


@pytest.mark.parametrize(
    ("task", "column", "known"),
    [
        ("regression", pa.array([1.0, None, np.nan, np.inf]), [True, False, False, False]),
        ("binary", pa.array([1.0, 0.0, 2.0, np.nan]), [True, True, False, False]),
        ("binary", pa.array([True, None]), [True, False]),
        ("multiclass", pa.array([1.0, np.nan, 3.0]), [True, False, False]),
    ],
)
def test_rows_of_no_label_are_known_and_refused(task: str, column: Any, known: list[bool]) -> None:
    labels = LabelCodec(task, ("0", "1") if task == "multiclass" else ())
    assert labels.known(column).tolist() == known
    with pytest.raises(ConfigurationError, match=f"{known.count(False)} of {len(known)} labels"):
        labels.apply(column)


@pytest.mark.parametrize(
    ("task", "column", "message"),
    [
        ("multiclass", pa.array(["a", "a"]), "1 class in the training rows"),
        ("multiclass", pa.array([[1], [2]]), "takes texts, numbers and truth values"),
        ("binary", pa.array([0.0, 0.0]), "0 in all training rows"),
        ("binary", pa.array(["x", "y"]), "objective=binary takes numbers"),
        ("regression", pa.array([], pa.float64()), "no training row has a label"),
    ],
)
def test_labels_that_do_not_fit_the_task_are_explained(
    task: str, column: Any, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        LabelCodec.of(task, column)


def test_a_network_learns_scaled_values() -> None:
    column = pa.array([200_000.0, 300_000.0])
    labels = LabelCodec.of("regression", column)
    assert labels.targets(column).tolist() == [-1.0, 1.0]
    assert labels.apply(column).tolist() == [200_000.0, 300_000.0]
    constant = LabelCodec.of("regression", pa.array([7.0, 7.0]))
    assert constant.targets(pa.array([7.0])).tolist() == [0.0]
    assert sample_weights(pa.table({"w": [1, 2]}), "w").tolist() == [1.0, 2.0]  # type: ignore[union-attr]
    assert sample_weights(pa.table({"w": [1, 2]}), None) is None
