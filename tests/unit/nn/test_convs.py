"""The stand-ins for torch's compiler and for datasets, which are there only while torch_geometric is imported."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from outcrop.nn import convs
from outcrop.runtime.runtime import Runtime
from run_support import a_graph

LOOP = """
import sys
from outcrop.pyg import NeighborLoader
nodes = sum(len(batch.y) for batch in NeighborLoader(sys.argv[1], [3, 3], batch_size=30, memory="64MiB"))
print(nodes, *(name in sys.modules for name in ("torch._dynamo", "torch_geometric.datasets", "pandas")))
"""
DATASETS = """
import sys
{before}
from outcrop.nn import convs
import torch_geometric
named = torch_geometric.datasets.FakeDataset
from torch_geometric.datasets import FakeDataset
import torch_geometric.datasets as module
print(named is FakeDataset is module.FakeDataset, "KarateClub" in dir(torch_geometric.datasets))
print(sys.modules["torch_geometric.datasets"] is module is torch_geometric.datasets)
"""


def test_the_stand_in_loads_the_compiler_when_something_of_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = ModuleType("torch._dynamo")
    real.OptimizedModule = int  # type: ignore[attr-defined]

    def load(name: str) -> ModuleType:
        return sys.modules.setdefault(name, real)

    monkeypatch.setitem(sys.modules, "torch._dynamo", real)  # given back at the end
    del sys.modules["torch._dynamo"]
    monkeypatch.setattr(importlib, "import_module", load)
    with convs._deferred("torch._dynamo"):
        stand_in = sys.modules["torch._dynamo"]
        assert stand_in is not real
    assert "torch._dynamo" not in sys.modules
    with convs._deferred("torch._dynamo"):
        assert sys.modules["torch._dynamo"].OptimizedModule is int
        assert sys.modules["torch._dynamo"] is real
    assert sys.modules["torch._dynamo"] is real
    assert stand_in.OptimizedModule is int  # for whoever kept it; found again, not loaded twice


def test_a_compiler_that_is_there_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ModuleType("torch._dynamo")
    monkeypatch.setitem(sys.modules, "torch._dynamo", real)
    with convs._deferred("torch._dynamo"):
        assert sys.modules["torch._dynamo"] is real
    assert sys.modules["torch._dynamo"] is real


def test_a_loop_over_batches_does_without_the_compiler(tmp_path: Path, runtime: Runtime) -> None:
    a_graph(tmp_path / "graph", runtime, nodes=600)
    command = [sys.executable, "-c", LOOP, str(tmp_path / "graph")]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["600", "False", "False", "False"]


@pytest.mark.parametrize("before", ["", "import torch_geometric", "import torch_geometric.datasets"])
def test_datasets_are_there_for_who_names_them(before: str) -> None:
    command = [sys.executable, "-c", DATASETS.format(before=before)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["True"] * 3
