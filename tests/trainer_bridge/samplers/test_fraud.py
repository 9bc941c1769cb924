"""The example of examples/fraud at 1 in 1,000: rare frauds are learnt with a sampler."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytestmark = pytest.mark.torch

FOLDER = Path(__file__).parents[3] / "examples" / "fraud"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    import torch

    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("fraud_run", FOLDER / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # data classes look their module up
    monkeypatch.setitem(__import__("sys").modules, "fraud_run", module)
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield module
    torch.set_num_threads(threads)


def test_with_a_sampler_most_frauds_are_caught_and_without_it_hardly_any(
    example: ModuleType, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    without, with_sampler = example.compare(
        tmp_path, rows=60_000, frauds=60, steps=200, batch_size=256, held_out_rows=60_000
    )
    # the same model, steps and rows; precision at least one half on payments never seen
    assert with_sampler.recall_at(0.5) > 0.5
    assert with_sampler.recall_at(0.5) > without.recall_at(0.5) + 0.4
    # half of every batch, against one in four batches
    assert with_sampler.frauds_seen == 200 * 128
    assert without.frauds_seen <= 60
    assert (tmp_path / "fraud.png").read_bytes().startswith(b"\x89PNG")


def test_payments_are_the_same_for_a_seed_and_have_the_frauds_requested(
    example: ModuleType,
) -> None:
    first, again, other = (example.transactions(5_000, 7, seed) for seed in (1, 1, 2))
    assert first.equals(again)
    assert not first.equals(other)
    assert first["is_fraud"].to_numpy().sum() == other["is_fraud"].to_numpy().sum() == 7
    for name in example.FEATURES:
        values = first[name].to_numpy()
        assert np.isfinite(values).all()
        assert values.min() >= 0
