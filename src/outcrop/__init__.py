"""Outcrop: exact out-of-core training of graph neural networks and graph embeddings.

The names below are imported when first used, so that ``import outcrop`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outcrop.api.embed import (
        embed_eval,
        embed_export,
        embed_neighbors,
        embed_neighbours,
        embed_prepare,
        embed_train,
    )
    from outcrop.api.graph import generate_graph, import_graph, import_triples
    from outcrop.api.infer import InferReport, infer
    from outcrop.api.predict import predict
    from outcrop.api.prepare import PrepareReport
    from outcrop.api.run import Run
    from outcrop.api.shortcuts import open_run, prepare
    from outcrop.api.train import TrainReport, train
    from outcrop.checkpoint import load_model
    from outcrop.runtime import Runtime
    from outcrop.store.graph import Graph, open_graph
    from outcrop.training.callbacks import Callback

__version__ = "0.1.0"  # the only place: the package's metadata and `outcrop --version` read it

_HOME = {
    "Callback": "outcrop.training.callbacks",
    "Graph": "outcrop.store.graph",
    "InferReport": "outcrop.api.infer",
    "PrepareReport": "outcrop.api.prepare",
    "Run": "outcrop.api.run",
    "Runtime": "outcrop.runtime",
    "TrainReport": "outcrop.api.train",
    "embed_eval": "outcrop.api.embed",
    "embed_export": "outcrop.api.embed",
    "embed_neighbors": "outcrop.api.embed",
    "embed_neighbours": "outcrop.api.embed",
    "embed_prepare": "outcrop.api.embed",
    "embed_train": "outcrop.api.embed",
    "generate_graph": "outcrop.api.graph",
    "import_graph": "outcrop.api.graph",
    "import_triples": "outcrop.api.graph",
    "infer": "outcrop.api.infer",
    "load_model": "outcrop.checkpoint",
    "open_graph": "outcrop.store.graph",
    "open_run": "outcrop.api.shortcuts",
    "predict": "outcrop.api.predict",
    "prepare": "outcrop.api.shortcuts",
    "train": "outcrop.api.train",
}

__all__ = [
    "Callback",
    "Graph",
    "InferReport",
    "PrepareReport",
    "Run",
    "Runtime",
    "TrainReport",
    "embed_eval",
    "embed_export",
    "embed_neighbors",
    "embed_neighbours",
    "embed_prepare",
    "embed_train",
    "generate_graph",
    "import_graph",
    "import_triples",
    "infer",
    "load_model",
    "open_graph",
    "open_run",
    "predict",
    "prepare",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "pyg":
        return import_module("outcrop.pyg")  # sets the name, so that this is called once
    if name not in _HOME:
        raise AttributeError(f"module 'outcrop' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
