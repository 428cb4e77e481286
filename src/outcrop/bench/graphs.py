"""Shapes of the graphs that benchmarks generate."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GraphShape:
    """Says how large a generated benchmark graph is; the default is the standard graph of docs/benchmarks.md."""

    name: str = "standard"
    nodes: int = 2_000_000
    edges: int = 30_000_000
    features: int = 128
    train_fraction: float = 0.01
    eval_fraction: float = 0.005
    skew: float = 0.67

    @property
    def feature_bytes(self) -> int:
        return self.nodes * self.features * 4

    def arguments(self) -> list[str]:
        """Returns the options of ``outcrop generate``."""
        return [
            "--nodes",
            str(self.nodes),
            "--edges",
            str(self.edges),
            "--features",
            str(self.features),
            "--train-fraction",
            str(self.train_fraction),
            "--valid-fraction",
            str(self.eval_fraction),
            "--test-fraction",
            str(self.eval_fraction),
            "--skew",
            str(self.skew),
        ]
