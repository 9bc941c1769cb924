"""Tensors go in and come out, with the numbers of NumPy; without tensors torch is not imported."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from paimon_features.core.errors import TransformError
from paimon_features.transformers import (
    ColumnTransformer,
    FrequencyEncoder,
    HashingEncoder,
    Imputer,
    OneHotEncoder,
    Pipeline,
    StandardScaler,
    TargetEncoder,
)
from tests.transformers.numeric import MAKERS

torch = pytest.importorskip("torch", reason="pip install 'paimon-features[torch]'")

ROWS = np.array([[1.0, 4.0], [2.0, np.nan], [np.nan, 1.0], [4.0, -1.0], [4.0, 3.0]])


@pytest.mark.parametrize("name", MAKERS)
def test_a_tensor_gives_the_numbers_of_an_array_as_a_tensor(name: str) -> None:
    tensor = torch.from_numpy(ROWS.copy())
    ours, theirs = MAKERS[name]().fit(tensor), MAKERS[name]().fit(ROWS)
    assert ours == theirs
    out = ours.transform(tensor)
    assert isinstance(out, torch.Tensor)
    assert (out.dtype, out.device) == (torch.float64, tensor.device)
    np.testing.assert_array_equal(out.numpy(), theirs.transform(ROWS))
    np.testing.assert_array_equal(tensor.numpy(), ROWS)  # it is not written to
    many = torch.from_numpy(np.tile(ROWS, (20_000, 1)))
    np.testing.assert_array_equal(
        ours.transform(many).numpy(), theirs.transform(np.tile(ROWS, (20_000, 1)))
    )


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "bfloat16", "int64", "int8", "uint8", "bool"]
)
def test_every_type_of_numbers_is_taken(dtype: str) -> None:
    tensor = torch.tensor([[0.0], [1.0], [1.0]]).to(getattr(torch, dtype))
    out = StandardScaler().fit_transform(tensor)
    expected = StandardScaler().fit_transform([[0.0], [1.0], [1.0]])
    assert out.tolist() == expected
    assert StandardScaler().fit_transform(tensor[:, 0]).shape == (3,)
    assert OneHotEncoder().fit_transform(tensor).tolist() == [[1, 0], [0, 1], [0, 1]]


def test_views_and_inverses_work_and_what_is_no_plain_tensor_is_refused() -> None:
    wide = torch.arange(24, dtype=torch.float32).reshape(6, 4)
    part = wide.T[1:3].T  # not contiguous
    scaler = StandardScaler().fit(part)
    assert torch.allclose(scaler.inverse_transform(scaler.transform(part)), part.double())
    for wrong, message in (
        (torch.ones(2, 2, requires_grad=True), r"requires grad, .* detach\(\) it"),
        (torch.ones(2, 2).to_sparse(), "a tensor that is not a plain array"),
        (torch.ones(2, 2, 2), "an array of 3 dimensions; expected 1 or 2"),
        (torch.ones(2, 2, dtype=torch.complex64), "got an array of complex64"),
        (torch.float32, "got torch.dtype; expected a Tensor"),
    ):
        with pytest.raises(TransformError, match=message):
            scaler.transform(wrong)
    flags = OneHotEncoder("ignore").fit(torch.tensor([[True], [False]]))
    with pytest.raises(TransformError, match="a tensor has no place for null or text"):
        flags.inverse_transform(torch.tensor([[0.0, 0.0]]))


def test_torch_is_imported_by_nobody_who_has_no_tensor() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np\n"
        "from paimon_features.transformers import *\n"
        "print(RobustScaler().fit_transform(np.array([[1.0], [2.0], [3.0]])).tolist())\n"
        "assert not {'pandas', 'polars', 'scipy', 'sklearn'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("[[-1.0], [0.0], [1.0]]\n", 0), done.stderr


def test_encoders_and_pipelines_take_tensors_too() -> None:
    tensor = torch.from_numpy(ROWS.copy())
    target = [0.5, 1.5, 0.0, 2.5, 1.0]
    inner = [("fill", Imputer()), ("scale", StandardScaler())]
    for made in (
        FrequencyEncoder(handle_unknown="null"),
        TargetEncoder(target_type="continuous", cv=2),
        HashingEncoder(3),
        Pipeline(inner),
        ColumnTransformer([("n", Pipeline(inner), [0]), ("hot", OneHotEncoder("ignore"), [1])]),
    ):
        if made.needs_target:
            trained = made.fit_transform(tensor, torch.tensor(target))
            expected = made.fit_transform(ROWS, target)
        else:
            trained, expected = made.fit_transform(tensor), made.fit_transform(ROWS)
        assert isinstance(trained, torch.Tensor)
        np.testing.assert_array_equal(trained.numpy(), expected)
        out = made.transform(tensor)
        assert isinstance(out, torch.Tensor)
        np.testing.assert_array_equal(out.numpy(), made.transform(ROWS))
        np.testing.assert_array_equal(tensor.numpy(), ROWS)  # it is not written to
