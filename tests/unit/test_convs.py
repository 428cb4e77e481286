"""The stand-in for torch's compiler, which is there only while torch_geometric is imported."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

from outcrop import convs


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
    with convs._compiler_deferred():
        stand_in = sys.modules["torch._dynamo"]
        assert stand_in is not real
    assert "torch._dynamo" not in sys.modules
    with convs._compiler_deferred():
        assert sys.modules["torch._dynamo"].OptimizedModule is int
        assert sys.modules["torch._dynamo"] is real
    assert sys.modules["torch._dynamo"] is real
    assert stand_in.OptimizedModule is int  # for whoever kept it; found again, not loaded twice


def test_a_compiler_that_is_there_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ModuleType("torch._dynamo")
    monkeypatch.setitem(sys.modules, "torch._dynamo", real)
    with convs._compiler_deferred():
        assert sys.modules["torch._dynamo"] is real
    assert sys.modules["torch._dynamo"] is real
