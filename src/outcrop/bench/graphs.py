"""Shapes of the graphs that benchmarks generate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outcrop.config import GenerateConfig

_EDGES_OF_TYPED = (120, 40, 24, 10)  # shares of cites, writes, about, affiliated


@dataclass(frozen=True)
class GraphShape:
    """Says how large a generated benchmark graph is; the default is the standard graph of docs/benchmarks.md.

    Attributes:
        kind: As of ``outcrop generate``: ``sbm``, or ``typed`` for papers, authors, topics and institutions.
        edge_features: Columns of the rows of edges ``cites``, of kind ``typed``.
    """

    name: str = "standard"
    nodes: int = 2_000_000
    edges: int = 30_000_000
    features: int = 128
    train_fraction: float = 0.01
    eval_fraction: float = 0.005
    skew: float = 0.67
    kind: Literal["sbm", "typed"] = "sbm"
    edge_features: int = 0

    @property
    def feature_bytes(self) -> int:
        """Counts the bytes of the rows of all nodes."""
        if self.kind == "typed":
            authors, topics, institutions = (self.nodes * share // 223 for share in (100, 2, 1))
            papers, width = self.nodes - authors - topics - institutions, self.features
            # float32 of papers; half as many float16 of authors, a quarter int8 of topics
            return papers * width * 4 + authors * (width // 2) * 2 + topics * (width // 4)
        return self.nodes * self.features * 4

    @property
    def edge_row_bytes(self) -> int:
        """Counts the bytes of the rows of edges that are drawn; of these, repeated ones and loops are dropped."""
        other = sum(self.edges * share // sum(_EDGES_OF_TYPED) for share in _EDGES_OF_TYPED[1:])
        return 2 * (self.edges - other) * self.edge_features * 2  # float16, of each edge and its reverse

    @property
    def config(self) -> GenerateConfig:
        """Returns the options that generate it."""
        return GenerateConfig(
            kind=self.kind,
            nodes=self.nodes,
            edges=self.edges,
            features=self.features,
            train_fraction=self.train_fraction,
            valid_fraction=self.eval_fraction,
            test_fraction=self.eval_fraction,
            skew=self.skew,
            edge_features=self.edge_features,
        )


# Before each edge's reverse.
TYPED = GraphShape("typed-edge-rows", nodes=2_230_000, edges=19_400_000, kind="typed", edge_features=16)
