"""What Outcrop uses of torch_geometric, imported without torch's compiler and without datasets. Nothing else of Outcrop
imports it.

torch_geometric imports ``torch._dynamo`` only to recognise compiled modules, and ``torch_geometric.datasets``, with it
pandas, so that one can name them: 70 and 80 MiB, a second and half a second, for every process that trains or loads
batches. While torch_geometric is imported for the first time, modules stand in for both and load them once anything of
them is asked for; afterwards they are loaded as ever, at their first use.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_COMPILER, _DATASETS = "torch._dynamo", "torch_geometric.datasets"


@contextmanager
def _deferred(module: str) -> Iterator[None]:
    """Imports of ``module`` within the block load nothing, unless it is there already."""
    if module in sys.modules:
        yield
        return
    stand_in = ModuleType(module)

    def remove() -> None:
        if sys.modules.get(module) is stand_in:
            del sys.modules[module]

    def load(name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # who looks through all modules, as inspect does
            raise AttributeError(name)
        remove()
        return getattr(importlib.import_module(module), name)

    stand_in.__dict__["__getattr__"] = load
    sys.modules[module] = stand_in
    try:
        yield
    finally:
        remove()


with _deferred(_COMPILER), _deferred(_DATASETS):
    import torch_geometric
    from torch_geometric.data import Data, EdgeAttr, FeatureStore, GraphStore, HeteroData, TensorAttr
    from torch_geometric.data.graph_store import EdgeLayout
    from torch_geometric.lazy_loader import LazyLoader
    from torch_geometric.nn import (
        GATConv,
        GCNConv,
        GINConv,
        GINEConv,
        HGTConv,
        Linear,
        SAGEConv,
        TransformerConv,
    )
    from torch_geometric.nn.models import GAT, GCN, GraphSAGE
    from torch_geometric.nn.module_dict import ModuleDict

if not hasattr(torch_geometric, "datasets"):  # for who names it without importing it
    _names = torch_geometric.__dict__
    _names["datasets"] = LazyLoader("datasets", _names, _DATASETS)

__all__ = [
    "GAT",
    "GCN",
    "Data",
    "EdgeAttr",
    "EdgeLayout",
    "FeatureStore",
    "GATConv",
    "GCNConv",
    "GINConv",
    "GINEConv",
    "GraphSAGE",
    "GraphStore",
    "HGTConv",
    "HeteroData",
    "Linear",
    "ModuleDict",
    "SAGEConv",
    "TensorAttr",
    "TransformerConv",
]
