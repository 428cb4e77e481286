"""What Outcrop uses of torch_geometric, imported without torch's compiler. Nothing else of Outcrop imports it.

torch_geometric imports ``torch._dynamo`` only to recognise compiled modules: 70 MiB and a second for every process
that trains or loads batches. While torch_geometric is imported for the first time, a module stands in for the compiler
and loads it once anything of it is asked for; afterwards ``torch._dynamo`` is loaded as torch does it, at its first
use.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_COMPILER = "torch._dynamo"


@contextmanager
def _compiler_deferred() -> Iterator[None]:
    """Imports of ``torch._dynamo`` within the block load nothing, unless it is there already."""
    if _COMPILER in sys.modules:
        yield
        return
    stand_in = ModuleType(_COMPILER)

    def remove() -> None:
        if sys.modules.get(_COMPILER) is stand_in:
            del sys.modules[_COMPILER]

    def load(name: str) -> Any:
        remove()
        return getattr(importlib.import_module(_COMPILER), name)

    stand_in.__dict__["__getattr__"] = load
    sys.modules[_COMPILER] = stand_in
    try:
        yield
    finally:
        remove()


with _compiler_deferred():
    from torch_geometric.data import Data, EdgeAttr, FeatureStore, GraphStore, HeteroData, TensorAttr
    from torch_geometric.data.graph_store import EdgeLayout
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
