"""Modules imported by the paths they had: the same objects, with a warning that says the new path."""

from __future__ import annotations

import importlib
import sys

import pytest

import outcrop
from outcrop.runtime import runtime

MOVED = {
    "outcrop.api.auto": ("outcrop.advisor.auto", "choose_limits"),
    "outcrop.api.counting": ("outcrop.advisor.counting", "count"),
    "outcrop.api.epochs": ("outcrop.advisor.epochs_at_a_time", "for_training"),
    "outcrop.api.import_budget": ("outcrop.importing.import_budget", "runtime_of_import"),
    "outcrop.api.pools": ("outcrop.training.pools", "Pools"),
    "outcrop.api.shortcuts": ("outcrop.api.prepare", "open_run"),
    "outcrop.api.spool": ("outcrop.training.spool", "supply"),
    "outcrop.api.supply": ("outcrop.training.supply", "BatchSupply"),
    "outcrop.checkpoint": ("outcrop.nn.checkpoint", "load_model"),
    "outcrop.foreign": ("outcrop.sampling.external", "ExternalBatches"),
    "outcrop.gpuio": ("outcrop.rows.rings", "GpuDiskRows"),
    "outcrop.gpuio.queue": ("outcrop.rows.rings.queue", "RowQueue"),
    "outcrop.models": ("outcrop.nn.models", "Model"),
    "outcrop.progress": ("outcrop.runtime.progress", "Progress"),
    "outcrop.tiers": ("outcrop.loading.online.cache_plan", "place"),
}


@pytest.mark.parametrize("old", MOVED)
def test_an_old_path_gives_the_same_objects_and_warns(
    old: str, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    new, name = MOVED[old]
    moved = next(path for path in outcrop._MOVED if old == path or old.startswith(f"{path}."))
    for known in {old, moved} & sys.modules.keys():
        monkeypatch.delitem(sys.modules, known)
    exec(compile(f"import {old}", "user.py", "exec"), {})
    said = [str(warning.message) for warning in recwarn if warning.filename == "user.py"]
    assert f"{old} has moved: import {new}" in said
    module = sys.modules[old]
    assert getattr(module, name) is getattr(importlib.import_module(new), name)
    assert module.__name__ == module.__spec__.name == new
    package, _, last = moved.rpartition(".")
    monkeypatch.delattr(sys.modules[package], last)


def test_a_path_that_never_was_is_unknown() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"outcrop\.slots"):
        importlib.import_module("outcrop.slots")


def test_a_name_that_is_spelled_otherwise_now_warns() -> None:
    with pytest.warns(DeprecationWarning, match=r"outcrop\.embed_neighbours is called embed_neighbors now"):
        found = outcrop.embed_neighbours
    assert found is outcrop.embed_neighbors
    assert not outcrop._RENAMED.keys() & set(outcrop.__all__)  # import * asks for none of them


def test_the_runtime_has_its_old_path_too() -> None:
    with pytest.warns(DeprecationWarning, match=r"use outcrop\.Runtime"):
        from outcrop.runtime import Runtime
    assert Runtime is runtime.Runtime
    with pytest.raises(ImportError, match="nothing"):
        from outcrop.runtime import nothing  # noqa: F401
