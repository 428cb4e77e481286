"""Outcrop: exact out-of-core training of graph neural networks and graph embeddings.

The names below are imported when first used, so that ``import outcrop`` costs nothing.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec

# What type checkers take for true. Not of `typing`, which takes four times as long to import as all that is here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from outcrop.advisor.market import Market
    from outcrop.api.advise import advise
    from outcrop.api.derive import derive_rows
    from outcrop.api.embed import (
        EmbedReport,
        embed_eval,
        embed_export,
        embed_neighbors,
        embed_prepare,
        embed_train,
    )
    from outcrop.api.embed import embed_neighbours as embed_neighbours
    from outcrop.api.graph import generate_graph, import_graph, import_triples, stripe_features
    from outcrop.api.infer import infer
    from outcrop.api.predict import predict
    from outcrop.api.prepare import open_run, prepare
    from outcrop.api.results import InferReport, PrepareReport, TrainReport
    from outcrop.api.run import Run
    from outcrop.api.train import train
    from outcrop.api.transport import TransportReport, fetch, upload
    from outcrop.config import (
        BucketConfig,
        Checkpoints,
        ClusterConfig,
        EmbedConfig,
        GenerateConfig,
        ImportConfig,
        InferSampling,
        Limits,
        ModelConfig,
        PackConfig,
        Refresh,
        Replay,
        SampleConfig,
        TrainConfig,
    )
    from outcrop.errors import (
        ArgumentError,
        BudgetError,
        CancelledError,
        ChecksumError,
        CorruptionError,
        DeviceError,
        FormatError,
        IoError,
        NumericError,
        OutcropError,
        OutcropWarning,
        RankError,
    )
    from outcrop.loading.modes import (
        Belady,
        Dynamic,
        InMemory,
        Memmap,
        OnDisk,
        Online,
        Packed,
        Partition,
    )
    from outcrop.nn.checkpoint import load_model
    from outcrop.runtime.observer import Observer
    from outcrop.runtime.ordered import ordered_hook
    from outcrop.runtime.runtime import Runtime
    from outcrop.store.graph import Graph, open_graph
    from outcrop.training.callbacks import Callback

__version__ = "0.1.0"  # the only place: the package's metadata and `outcrop --version` read it

_HOME = {
    "ArgumentError": "outcrop.errors",
    "Belady": "outcrop.loading.modes",
    "BucketConfig": "outcrop.config",
    "BudgetError": "outcrop.errors",
    "Callback": "outcrop.training.callbacks",
    "CancelledError": "outcrop.errors",
    "Checkpoints": "outcrop.config",
    "ClusterConfig": "outcrop.config",
    "ChecksumError": "outcrop.errors",
    "CorruptionError": "outcrop.errors",
    "DeviceError": "outcrop.errors",
    "Dynamic": "outcrop.loading.modes",
    "EmbedConfig": "outcrop.config",
    "EmbedReport": "outcrop.api.embed",
    "FormatError": "outcrop.errors",
    "GenerateConfig": "outcrop.config",
    "Graph": "outcrop.store.graph",
    "ImportConfig": "outcrop.config",
    "InMemory": "outcrop.loading.modes",
    "InferReport": "outcrop.api.results",
    "InferSampling": "outcrop.config",
    "IoError": "outcrop.errors",
    "Limits": "outcrop.config",
    "Market": "outcrop.advisor.market",
    "Memmap": "outcrop.loading.modes",
    "ModelConfig": "outcrop.config",
    "NumericError": "outcrop.errors",
    "Observer": "outcrop.runtime.observer",
    "OnDisk": "outcrop.loading.modes",
    "Online": "outcrop.loading.modes",
    "OutcropError": "outcrop.errors",
    "OutcropWarning": "outcrop.errors",
    "PackConfig": "outcrop.config",
    "Packed": "outcrop.loading.modes",
    "Partition": "outcrop.loading.modes",
    "PrepareReport": "outcrop.api.results",
    "RankError": "outcrop.errors",
    "Refresh": "outcrop.config",
    "Replay": "outcrop.config",
    "Run": "outcrop.api.run",
    "Runtime": "outcrop.runtime.runtime",
    "SampleConfig": "outcrop.config",
    "TrainConfig": "outcrop.config",
    "TrainReport": "outcrop.api.results",
    "TransportReport": "outcrop.api.transport",
    "advise": "outcrop.api.advise",
    "derive_rows": "outcrop.api.derive",
    "embed_eval": "outcrop.api.embed",
    "embed_export": "outcrop.api.embed",
    "embed_neighbors": "outcrop.api.embed",
    "embed_neighbours": "outcrop.api.embed",
    "embed_prepare": "outcrop.api.embed",
    "embed_train": "outcrop.api.embed",
    "fetch": "outcrop.api.transport",
    "generate_graph": "outcrop.api.graph",
    "import_graph": "outcrop.api.graph",
    "import_triples": "outcrop.api.graph",
    "infer": "outcrop.api.infer",
    "load_model": "outcrop.nn.checkpoint",
    "open_graph": "outcrop.store.graph",
    "open_run": "outcrop.api.prepare",
    "ordered_hook": "outcrop.runtime.ordered",
    "predict": "outcrop.api.predict",
    "prepare": "outcrop.api.prepare",
    "stripe_features": "outcrop.api.graph",
    "train": "outcrop.api.train",
    "upload": "outcrop.api.transport",
}

__all__ = [
    "ArgumentError",
    "Belady",
    "BucketConfig",
    "BudgetError",
    "Callback",
    "CancelledError",
    "Checkpoints",
    "ChecksumError",
    "ClusterConfig",
    "CorruptionError",
    "DeviceError",
    "Dynamic",
    "EmbedConfig",
    "EmbedReport",
    "FormatError",
    "GenerateConfig",
    "Graph",
    "ImportConfig",
    "InMemory",
    "InferReport",
    "InferSampling",
    "IoError",
    "Limits",
    "Market",
    "Memmap",
    "ModelConfig",
    "NumericError",
    "Observer",
    "OnDisk",
    "Online",
    "OutcropError",
    "OutcropWarning",
    "PackConfig",
    "Packed",
    "Partition",
    "PrepareReport",
    "RankError",
    "Refresh",
    "Replay",
    "Run",
    "Runtime",
    "SampleConfig",
    "TrainConfig",
    "TrainReport",
    "TransportReport",
    "advise",
    "derive_rows",
    "embed_eval",
    "embed_export",
    "embed_neighbors",
    "embed_prepare",
    "embed_train",
    "fetch",
    "generate_graph",
    "import_graph",
    "import_triples",
    "infer",
    "load_model",
    "open_graph",
    "open_run",
    "ordered_hook",
    "predict",
    "prepare",
    "stripe_features",
    "train",
    "upload",
]

# Names that changed their spelling: these warn, and go with the next release.
_RENAMED = {"embed_neighbours": "embed_neighbors"}

# Modules that documentation named, under the paths they had: these warn, and go with the next release.
_MOVED = {
    "outcrop.api.auto": "outcrop.advisor.auto",
    "outcrop.api.counting": "outcrop.advisor.counting",
    "outcrop.api.epochs": "outcrop.advisor.epochs_at_a_time",
    "outcrop.api.import_budget": "outcrop.importing.import_budget",
    "outcrop.api.pools": "outcrop.training.pools",
    "outcrop.api.shortcuts": "outcrop.api.prepare",
    "outcrop.api.spool": "outcrop.training.spool",
    "outcrop.api.supply": "outcrop.training.supply",
    "outcrop.checkpoint": "outcrop.nn.checkpoint",
    "outcrop.foreign": "outcrop.sampling.external",
    "outcrop.gpuio": "outcrop.rows.rings",
    "outcrop.models": "outcrop.nn.models",
    "outcrop.progress": "outcrop.runtime.progress",
    "outcrop.tiers": "outcrop.loading.online.cache_plan",
}


def _new_name(name: str) -> str | None:
    """The path that a module or its package has moved to; None: it has not."""
    for old, new in _MOVED.items():
        if name == old or name.startswith(old + "."):
            return new + name[len(old) :]
    return None


class _MovedModules:
    """Imports a module that has moved, asked for by its old path: the same module, with a warning."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, cls) if _new_name(name) is not None else None  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        """None: Python makes a module, whose place the one that moved takes."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        new = _new_name(module.__name__)
        assert new is not None
        warnings.warn(f"{module.__name__} has moved: import {new}", DeprecationWarning, stacklevel=2)
        sys.modules[module.__name__] = import_module(new)


# First: a submodule of a package that moved would be found, and loaded once more, by its path.
sys.meta_path.insert(0, _MovedModules)


def __getattr__(name: str) -> Any:
    if name == "pyg":
        return import_module("outcrop.pyg")  # sets the name, so that this is called once
    if name in _RENAMED:
        warnings.warn(f"outcrop.{name} is called {_RENAMED[name]} now", DeprecationWarning, stacklevel=2)
    if name not in _HOME:
        raise AttributeError(f"module 'outcrop' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
