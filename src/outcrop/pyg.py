"""Outcrop for programs that are written for torch_geometric."""

from __future__ import annotations

from outcrop.loading.pyg import to_pyg

__all__ = ["to_pyg"]
