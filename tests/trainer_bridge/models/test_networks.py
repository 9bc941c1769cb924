"""Blocks against plain references; networks that mask what is not there and can overfit."""

from __future__ import annotations

import cmath
import math
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="pip install torch")

from tests.long_cases import quick_cases  # noqa: E402
from trainer_bridge.models import (  # noqa: E402
    Attention,
    InputShapes,
    Network,
    RotaryEmbedding,
    SequenceTransformerNetwork,
    SwiGLU,
    TabularTransformerNetwork,
    TransformerBlock,
    WideAndDeepNetwork,
    attention_mask,
)

pytestmark = pytest.mark.torch

GROUPS = ((0,), (1, 2), (3, 4, 5))
TABLE = InputShapes(GROUPS)
LISTS = InputShapes(GROUPS, (5, 7), 1, 6)
SMALL: dict[str, Any] = {"dim": 16, "layers": 1, "heads": 2, "dropout": 0.0}


@pytest.fixture(autouse=True)
def _seeded(one_torch_thread: None) -> None:
    torch.manual_seed(0)


def networks() -> list[Network]:
    return [
        TabularTransformerNetwork(TABLE, **SMALL),
        SequenceTransformerNetwork(LISTS, **SMALL),
        WideAndDeepNetwork(TABLE, dim=16, dropout=0.0),
    ]


def test_rotary_embeddings_are_complex_rotations() -> None:
    x = torch.randn(2, 3, 5, 8)
    found = RotaryEmbedding(8, 10)(x)
    for position in range(5):
        for pair in range(4):
            angle = position * 10_000 ** (-pair / 4)
            number = complex(x[1, 2, position, pair], x[1, 2, position, pair + 4])
            wanted = number * cmath.exp(1j * angle)
            assert found[1, 2, position, pair] == pytest.approx(wanted.real, abs=1e-5)
            assert found[1, 2, position, pair + 4] == pytest.approx(wanted.imag, abs=1e-5)


def test_rotated_products_depend_on_the_distance_alone() -> None:
    rotary = RotaryEmbedding(8, 32)
    query, key = torch.randn(8), torch.randn(8)
    many = rotary(query.expand(1, 1, 32, 8)), rotary(key.expand(1, 1, 32, 8))
    products = many[0][0, 0] @ many[1][0, 0].T
    for distance in range(5):
        diagonal = products.diagonal(distance)
        assert torch.allclose(diagonal, diagonal[0].expand_as(diagonal), atol=1e-4)


def test_attention_is_a_weighted_mean_of_allowed_tokens() -> None:
    attention = Attention(4, 2).eval()
    x = torch.randn(2, 3, 4)
    valid = torch.tensor([[True, True, True], [True, False, True]])
    found = attention(x, attention_mask(valid)).detach()
    joined = attention.joined(x).detach()
    for row in range(2):
        for token in range(3):
            heads = []
            for head in range(2):
                place = slice(2 * head, 2 * head + 2)
                query, key, value = (joined[row, :, 4 * i : 4 * i + 4][:, place] for i in range(3))
                allowed = [t for t in range(token + 1) if valid[row, t] or t == token]
                scores = [float(query[token] @ key[t]) / math.sqrt(2) for t in allowed]
                weights = [math.exp(score) for score in scores]
                heads.append(
                    sum(w / sum(weights) * value[t] for w, t in zip(weights, allowed, strict=True))
                )
            wanted = attention.out(torch.cat(heads))
            assert torch.allclose(found[row, token], wanted, atol=1e-5)


def test_the_gated_layer_is_its_formula() -> None:
    layer = SwiGLU(6)
    x = torch.randn(3, 6)
    weight = layer.gate_and_up.weight
    half = len(weight) // 2
    gate, up = x @ weight[:half].T, x @ weight[half:].T
    wanted = (gate / (1 + torch.exp(-gate)) * up) @ layer.down.weight.T
    assert torch.allclose(layer(x), wanted, atol=1e-6)


def test_gradients_are_those_of_finite_differences() -> None:
    block = TransformerBlock(4, 2, rotary=RotaryEmbedding(2, 4)).double()
    mask = attention_mask(torch.tensor([[True, False, True]]))
    x = torch.randn(1, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda value: block(value, mask), x)


def sequences(rows: int) -> dict[str, Any]:
    values = torch.randn(rows, 1, 6)
    codes = torch.randint(2, 5, (rows, 2, 6))
    for row in range(rows):  # shorter ones are padded at their end
        length = row % 7
        codes[row, :, length:], values[row, :, length:] = 0, float("nan")
    return {"numbers": torch.randn(rows, 6), "codes": codes, "values": values}


@pytest.mark.parametrize("missing", ["codes", "values"])
def test_lists_of_one_kind_are_enough(missing: str) -> None:
    shapes = replace(LISTS, **({"vocabularies": ()} if missing == "codes" else {"value_lists": 0}))
    network = SequenceTransformerNetwork(shapes, **SMALL).eval()
    rows = sequences(14)
    del rows[missing]
    found = network(**rows)
    assert torch.isfinite(found).all()
    alone = network(**{name: tensor[3:4] for name, tensor in rows.items()})
    assert torch.allclose(alone, found[3:4], atol=1e-6)
    # the lists count: other events, another answer
    other = {**rows, **{name: rows[name].flip(0) for name in rows if name != "numbers"}}
    assert not torch.allclose(network(**other)[3], found[3], atol=1e-6)


def test_rows_are_independent_and_those_without_events_have_an_answer() -> None:
    network = SequenceTransformerNetwork(LISTS, **SMALL).eval()
    rows = sequences(14)
    found = network(**rows)
    assert torch.isfinite(found).all()
    # other rows of the batch change nothing
    alone = network(**{name: tensor[3:4] for name, tensor in rows.items()})
    assert torch.allclose(alone, found[3:4], atol=1e-6)


def test_older_events_do_not_see_newer_ones() -> None:
    network = SequenceTransformerNetwork(LISTS, **SMALL).eval()
    rows = sequences(7)
    seen: list[Any] = []
    handle = network.blocks[-1].register_forward_hook(lambda m, i, out: seen.append(out))
    network(**rows)
    changed = {**rows, "codes": rows["codes"].clone()}
    changed["codes"][:, :, 0] = torch.where(rows["codes"][:, :, 0] > 0, 4, 0)  # the newest
    network(**changed)
    handle.remove()
    assert torch.equal(seen[0][:, :-1], seen[1][:, :-1])
    assert not torch.equal(seen[0][:, -1], seen[1][:, -1])


@pytest.mark.parametrize("index", range(3))
def test_networks_overfit_64_rows(index: int) -> None:
    network = networks()[index]
    rows = sequences(64)
    inputs = {name: rows[name] for name in network.examples()}
    labels = torch.randint(0, 2, (64, 1)).float()
    optimiser = torch.optim.AdamW(network.parameters(), lr=0.01)
    for _ in range(300):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(network(**inputs), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if loss < 0.02:
            break
    assert loss < 0.02


@pytest.mark.parametrize("index", quick_cases([0, 1], 0))
def test_networks_are_one_graph(index: int) -> None:
    network = networks()[index]
    explained = torch._dynamo.explain(network)(**network.examples())
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)
