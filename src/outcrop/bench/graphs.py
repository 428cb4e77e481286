"""Shapes of the graphs that benchmarks generate."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GraphShape:
    """Says how large a generated benchmark graph is; the default is the standard graph of docs/benchmarks.md.

    Attributes:
        kind: As of ``outcrop generate``: ``sbm``, or ``typed`` for papers, authors, topics and institutions.
    """

    name: str = "standard"
    nodes: int = 2_000_000
    edges: int = 30_000_000
    features: int = 128
    train_fraction: float = 0.01
    eval_fraction: float = 0.005
    skew: float = 0.67
    kind: str = "sbm"

    @property
    def feature_bytes(self) -> int:
        if self.kind == "typed":
            authors, topics, institutions = (self.nodes * share // 223 for share in (100, 2, 1))
            papers = self.nodes - authors - topics - institutions
            width = (
                self.features
            )  # float32 of papers; half as many float16 of authors, a quarter int8 of topics
            return papers * width * 4 + authors * (width // 2) * 2 + topics * (width // 4)
        return self.nodes * self.features * 4

    def arguments(self) -> list[str]:
        """Returns the options of ``outcrop generate``."""
        drawn = ["--kind", self.kind] if self.kind == "typed" else ["--skew", str(self.skew)]
        return [
            *drawn,
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
        ]


TYPED = GraphShape("typed", nodes=2_230_000, edges=19_400_000, kind="typed")  # before each edge's reverse
