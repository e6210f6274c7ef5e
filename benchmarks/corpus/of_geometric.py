"""Networks of PyTorch Geometric: every node is a sample."""

# a network is a line of its table

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch_geometric.nn as gnn
from case import Case, mark
from torch import Tensor, nn

N = 8
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 0, 2], [1, 2, 3, 4, 5, 6, 7, 0, 4, 6]])


def graph() -> Any:
    """A ring of eight nodes with two shortcuts."""
    g = torch.Generator().manual_seed(1)
    return {"x": torch.randn(N, 6, generator=g, dtype=torch.float64), "edge_index": EDGES.clone()}, torch.arange(N) % 5


class Deep(nn.Module):
    """A stack of DeepGCN layers, or of any convolution with a skip."""

    def __init__(self, block: str, layers: int = 4, wide: int = 12) -> None:
        super().__init__()
        self.block = block
        self.stem, self.head = nn.Linear(6, wide), nn.Linear(wide, 5)

        def layer(i: int) -> nn.Module:
            if block == "GCNII":
                return gnn.GCN2Conv(wide, 0.1, 0.5, i + 1)
            if block == "GIN":
                return gnn.GINConv(nn.Sequential(nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, wide)))
            if block == "GAT":
                return gnn.GATConv(wide, wide)
            if block == "SAGE":
                return gnn.SAGEConv(wide, wide)
            conv = gnn.GENConv(wide, wide) if block in ("res+", "res") else gnn.GCNConv(wide, wide)
            return (
                gnn.DeepGCNLayer(conv, nn.LayerNorm(wide), nn.ReLU(), block=block) if block in ("res+", "res") else conv
            )

        self.layers = nn.ModuleList(layer(i) for i in range(layers))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return logits of every node."""
        h = first = self.stem(x)
        mark(h)
        for layer in self.layers:
            if self.block == "GCNII":
                h = torch.relu(layer(h, first, edge_index))
            elif self.block in ("res+", "res"):
                h = layer(h, edge_index)
            elif self.block == "GIN":
                h = h + layer(h, edge_index)
            elif self.block == "plain":
                h = torch.relu(layer(h, edge_index))
            else:
                h = h + torch.relu(layer(h, edge_index))
            mark(h)
        return self.head(h)


def cases() -> Iterator[Case]:
    """Yield the networks."""
    for block in ("res+", "res", "GIN", "GCNII", "GAT", "SAGE", "GCN"):
        yield Case(f"deep {block}", "torch-geometric", lambda block=block: Deep(block), graph)
