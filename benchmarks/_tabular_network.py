"""A tabular transformer of 12 numbers, 4 layers of 64 units, 200,000 weights, in torch only."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812  (the name that torch's own examples use)
from torch import Tensor, nn

FEATURES, UNITS, LAYERS, HEADS, HIDDEN = 12, 64, 4, 4, 172


class Norm(nn.Module):
    """Root mean square normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(UNITS))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.weight


class Block(nn.Module):
    """Attention and a gated layer, each after a normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Norm(), Norm()
        self.mixed = nn.Linear(UNITS, 3 * UNITS, bias=False)
        self.out = nn.Linear(UNITS, UNITS, bias=False)
        self.wide = nn.Linear(UNITS, 2 * HIDDEN, bias=False)
        self.narrow = nn.Linear(HIDDEN, UNITS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        # x: (rows, features, units)
        rows, features, _ = x.shape
        heads = self.mixed(self.first(x)).reshape(rows, features, 3, HEADS, UNITS // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(query, key, value)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, features, UNITS))
        gate, up = self.wide(self.second(x)).chunk(2, -1)
        return x + self.narrow(F.silu(gate) * up)


class Tabular(nn.Module):
    """From raw features, float64 of shape (rows, 1) each, to a probability."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(FEATURES, UNITS))
        self.shift = nn.Parameter(torch.randn(FEATURES, UNITS))
        self.null = nn.Parameter(torch.randn(FEATURES, UNITS))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(UNITS, 1)

    def forward(self, *columns: Tensor) -> Tensor:
        x = torch.cat(columns, 1)
        missing = torch.isnan(x)
        x = torch.where(missing, torch.zeros_like(x), x).float()
        x = (torch.sign(x) * torch.log1p(torch.abs(x))).unsqueeze(-1)
        x = torch.where(missing.unsqueeze(-1), self.null, x * self.scale + self.shift)
        for block in self.blocks:
            x = block(x)
        return torch.sigmoid(self.head(x.mean(1)))


def network() -> Tabular:
    """The network with weights that are the same everywhere."""
    torch.manual_seed(0)
    return Tabular().eval()


def export(path: Path, names: list[str]) -> None:
    """Write the network as ONNX, with these inputs."""
    axes = {name: {0: "rows"} for name in [*names, "probability"]}
    rows = tuple(torch.randn(3, 1, dtype=torch.float64) for _ in names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that there is another exporter
        torch.onnx.export(
            network(), rows, str(path), input_names=names, output_names=["probability"],
            dynamic_axes=axes, dynamo=False, opset_version=18,
        )  # fmt: skip
