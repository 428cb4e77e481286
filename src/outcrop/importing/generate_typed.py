"""Generate a graph with types: papers, authors, topics and institutions, with labels that need several edge types.

A paper's class has two parts. The first shows in the papers that cite it and in what it is about, the second in its
authors: a paper is cited by papers, and written by authors, of its own kind with probability ``homophily``. Rows show
the kind of the node, through noise; papers show the first part alone. So who sees single papers, or citations alone,
cannot tell the class. Edges ``cites`` may have rows, which are noise: the i-th edge that is drawn has row i of its
stream.

Everything is made in blocks of a fixed size, each a pure function of the seed and its number, from integers and
products that are the same on every machine; the import sorts and writes it. So the artifact is the same for any budget
and thread count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import outcrop._core as _core
from outcrop.config import GenerateConfig, ImportConfig
from outcrop.errors import ArgumentError
from outcrop.importing.sources.base import (
    REVERSE,
    EdgeBlock,
    EdgeSource,
    FeatureSource,
    LabelSource,
    NodeSource,
    TypedSource,
)
from outcrop.importing.typed_graph import TypedImport
from outcrop.runtime.runtime import Runtime

# Shares of the nodes and of the edges, in the order of the types; what rounding leaves is the first type's.
_NODES = {"paper": 1_200_000, "author": 1_000_000, "topic": 20_000, "institution": 10_000}
_EDGES = {
    ("paper", "cites", "paper"): 12_000_000,
    ("author", "writes", "paper"): 4_000_000,
    ("paper", "about", "topic"): 2_400_000,
    ("author", "affiliated", "institution"): 1_000_000,
}
_EDGE_BLOCK = 1 << 14  # edges of a block
_BLOCK_NUMBERS = 1 << 16  # numbers of a block of rows
_BLOCK_BYTES = 4 << 20  # what making a block takes, at the most
_BYTES_OF_A_NUMBER = 64  # what making a number of a row takes
_SIGNAL_SHARE = 0.72  # as of single rows in importing/generate.py
_NOISE = 37837  # standard deviation of the noise, in steps of 2^-15
_MASK = (1 << 64) - 1


def write_typed(config: GenerateConfig, runtime: Runtime, work: Path) -> None:
    """Writes the arrays and the manifest of the graph of ``config`` into ``work``.

    Raises:
        ArgumentError: An impossible graph: fewer papers than classes, more edges than pairs of nodes, ...
        BudgetError: The memory budget is too small.
    """
    source = typed_source(config, runtime)
    fractions = (config.train_fraction, config.valid_fraction, config.test_fraction)
    options = ImportConfig(
        False,
        False,
        True,
        None,
        False,
        False,
        None,
        *fractions,
        split_seed=config.seed,
        feature_storage="dense" if config.features else None,
    )
    widest = max(config.features, config.edge_features)
    with runtime.budget.reserve("generate", max(_BLOCK_BYTES, _BYTES_OF_A_NUMBER * widest)):
        importing = TypedImport(source, options, runtime)
        importing.write(work)
    importing.write_manifest(work, config.stored())


def typed_source(config: GenerateConfig, runtime: Runtime) -> TypedSource:
    """Returns the graph of ``config`` as the import reads it: edges and rows in the order in which they are drawn."""
    return _Graph(config, runtime).source()


@dataclass(frozen=True)
class _Nodes:
    """Describes the nodes of a type. The kind of a node is its rank modulo ``kinds``.

    Attributes:
        count: How many there are.
        kinds: How many kinds of them there are.
        key: Of the permutation from ranks to ids, and of rows.
        ids: That permutation.
    """

    count: int
    kinds: int
    key: int
    ids: _core.Permutation

    def kind(self, ranks: np.ndarray) -> np.ndarray:
        return ranks % self.kinds


class _Graph:
    def __init__(self, config: GenerateConfig, runtime: Runtime):
        self._config, self._runtime = config, runtime
        self._seed = config.seed & _MASK
        classes = config.classes
        if classes < 1:
            raise ArgumentError(f"cannot generate this graph: {classes} classes, at least 1 is needed")
        self._second = math.isqrt(classes - 1) + 1  # kinds of authors
        self._first = -(-classes // self._second)  # kinds of papers that show in their rows
        counts = _shares(config.nodes, list(_NODES.values()))
        kinds = (classes, self._second, self._first, self._second)
        if counts[0] < classes or min(counts) < 1 or counts[1] < self._second:
            least = "papers, authors, topics and institutions are 120 : 100 : 2 : 1"
            raise ArgumentError(
                f"cannot generate this graph: {config.nodes} nodes are too few for {classes} classes ({least}, and "
                "each class needs a paper): give more nodes"
            )
        self._nodes = {
            name: _Nodes(count, min(kind, count), number, _core.Permutation(self._key(number), count))
            for number, (name, count, kind) in enumerate(zip(_NODES, counts, kinds, strict=True))
        }

    def _key(self, number: int) -> int:
        return int(self._raw(1000 + number, 0, 1)[0])

    def source(self) -> TypedSource:
        config, widths = self._config, self._widths()
        nodes = tuple(
            NodeSource(
                f"generated {name}s",
                one.count,
                self._features(name, *widths[name]) if name in widths else None,
                self._labels() if name == "paper" else None,
                type_name=name,
                whose=f"node type {name!r} has",
            )
            for name, one in self._nodes.items()
        )
        counts = _shares(config.edges, list(_EDGES.values()))
        edges = tuple(
            self._edges(number, key, count)
            for number, (key, count) in enumerate(zip(_EDGES, counts, strict=True))
        )
        return TypedSource("generated graph", nodes, edges)

    def _widths(self) -> dict[str, tuple[int, np.dtype]]:
        """Returns columns and type of the rows of the node types that have some."""
        config = self._config
        if not config.features:
            return {}
        if config.dtype == "bfloat16":
            raise ArgumentError(
                "cannot generate this graph: papers have rows of float32, float16 or int8 here"
            )
        dim = config.features
        return {
            "paper": (dim, np.dtype(config.dtype)),
            "author": (max(dim // 2, 1), np.dtype(np.float16)),
            "topic": (max(dim // 4, 1), np.dtype(np.int8)),
        }

    def _raw(self, stream: int, block: int, count: int) -> np.ndarray:
        """Draws uint64 [count] that belong to a block of a stream."""
        counter, key = np.array([0, 0, 0, block], np.uint64), np.array([self._seed, stream], np.uint64)
        return np.random.Philox(counter=counter, key=key).random_raw(count)

    def _ids(self, of: _Nodes, ranks: np.ndarray, inverse: bool = False) -> np.ndarray:
        out = np.empty(len(ranks), np.int64)
        of.ids.map(np.ascontiguousarray(ranks, np.int64), out, inverse, self._runtime.workers)
        return out

    def _labels(self) -> LabelSource:
        papers = self._nodes["paper"]

        def blocks(num_nodes: int) -> Iterator[np.ndarray]:
            for first in range(0, num_nodes, _EDGE_BLOCK):
                ids = np.arange(first, min(first + _EDGE_BLOCK, num_nodes))
                yield papers.kind(self._ids(papers, ids, inverse=True))

        return LabelSource("generated labels", papers.count, blocks)

    def _features(self, name: str, dim: int, dtype: np.dtype) -> FeatureSource:
        of = self._nodes[name]
        means = self._means(name, dim)

        def shift(ids: np.ndarray) -> np.ndarray:
            return means[self._shown(name, of.kind(self._ids(of, ids, inverse=True)))]

        return self._rows(f"generated rows of {name}s", dtype, of.count, dim, 20 + of.key, shift)

    def _edge_features(self, number: int, key: tuple[str, str, str], count: int) -> FeatureSource | None:
        """Returns the rows of edge type ``number``, in the order in which its edges are drawn; None: it has none."""
        dim = self._config.edge_features
        if not dim or key[1] != "cites":
            return None
        name = f"generated rows of edges {' '.join(key)!r}"
        return self._rows(name, np.dtype(np.float16), count, dim, 80 + number, lambda ids: 0)

    def _rows(
        self,
        name: str,
        dtype: np.dtype,
        count: int,
        dim: int,
        stream: int,
        shift: Callable[[np.ndarray], np.ndarray | int],
    ) -> FeatureSource:
        """Returns ``count`` rows of noise, near normal, with what ``shift`` gives for their ids added, in steps of
        2^-15.
        """
        rows_of_block = max(1, _BLOCK_NUMBERS // dim)

        def block(number: int) -> np.ndarray:
            first = number * rows_of_block
            ids = np.arange(first, min(first + rows_of_block, count))
            # Sums of four uniform 16-bit numbers less their mean.
            raw = self._raw(stream, number, len(ids) * dim).view(np.uint16).reshape(len(ids), dim, 4)
            return _stored(raw.sum(axis=2, dtype=np.int32) - 131070 + shift(ids), dtype)

        def blocks(rows: int) -> Iterator[np.ndarray]:
            for number in range(-(-count // rows_of_block)):
                made = block(number)
                for start in range(0, len(made), rows):
                    yield made[start : start + rows]

        return FeatureSource(name, dtype, count, dim, blocks)

    def _shown(self, name: str, kinds: np.ndarray) -> np.ndarray:
        """Returns the kind that rows show: of papers, the first part of the class alone."""
        return kinds // self._second if name == "paper" else kinds

    def _means(self, name: str, dim: int) -> np.ndarray:
        """Returns int32 [kinds, dim]: the mean row of each kind, of the same length, in random directions."""
        kinds = self._first if name == "paper" else self._nodes[name].kinds
        automatic = max(1.0, _SIGNAL_SHARE * math.sqrt(2 * math.log(max(kinds, 2))))
        signal = automatic if self._config.signal is None else self._config.signal
        size = round(signal / math.sqrt(dim) * _NOISE)
        bits = self._raw(40 + self._nodes[name].key, 0, kinds * dim).reshape(kinds, dim) >> np.uint64(63)
        return np.where(bits, size, -size).astype(np.int32)

    def _edges(self, number: int, key: tuple[str, str, str], count: int) -> EdgeSource:
        source, target = self._nodes[key[0]], self._nodes[key[2]]
        pairs = source.count * (target.count - (source is target))
        if count > pairs:
            raise ArgumentError(
                f"cannot generate this graph: {count} edges {' '.join(key)!r} do not fit {pairs} pairs of nodes: give "
                "more nodes, or fewer edges"
            )
        alike = self._alike(key)

        def blocks() -> Iterator[EdgeBlock]:
            for block in range(-(-count // _EDGE_BLOCK)):
                size = min(_EDGE_BLOCK, count - block * _EDGE_BLOCK)
                raw = self._raw(60 + number, block, 4 * _EDGE_BLOCK).reshape(_EDGE_BLOCK, 4)[:size]
                unit = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
                targets = np.minimum((unit[:, 0] * target.count).astype(np.int64), target.count - 1)
                # Density falls with the square root of the rank: some sources have many edges.
                sources = (unit[:, 1] * unit[:, 1] * source.count).astype(np.int64)
                sources = np.minimum(sources, source.count - 1)
                same = unit[:, 2] < self._config.homophily
                chosen = alike(sources[same], targets[same], unit[same, 3])
                sources[same] = np.where(chosen < source.count, chosen, sources[same])
                yield self._ids(source, sources), self._ids(target, targets)

        return EdgeSource(
            f"generated edges {' '.join(key)!r}",
            key,
            blocks,
            count,
            reverse=REVERSE + key[1],
            features=self._edge_features(number, key, count),
        )

    def _alike(self, key: tuple[str, str, str]) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
        """Returns what gives sources near their rank that fit their targets: (ranks of sources, of targets, a number
        from 0 to 1) -> ranks of sources, some of which may be beyond the last.
        """
        source, target, second = self._nodes[key[0]], self._nodes[key[2]], self._second
        if key[1] in ("cites", "about"):  # by the first part of the class; the second is any

            def paper(ranks: np.ndarray, targets: np.ndarray, unit: np.ndarray) -> np.ndarray:
                first = self._shown(key[2], target.kind(targets))
                room = np.minimum(second, source.kinds - first * second)
                return ranks - ranks % source.kinds + first * second + (unit * room).astype(np.int64)

            return paper

        def author(ranks: np.ndarray, targets: np.ndarray, unit: np.ndarray) -> np.ndarray:
            wanted = target.kind(targets) % second
            return ranks - ranks % source.kinds + wanted

        return author


def _stored(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Returns steps of 2^-15 as ``dtype``; int8 in steps of a half: values are of like size in all types."""
    if dtype == np.int8:
        return np.clip((values + (1 << 13)) >> 14, -127, 127).astype(np.int8)
    return (values.astype(np.float32) * np.float32(2.0**-15)).astype(dtype)


def _shares(total: int, shares: list[int]) -> list[int]:
    """Divides ``total`` in proportion to ``shares``, rounded down but for the first, which has the rest."""
    parts = [total * share // sum(shares) for share in shares]
    return [total - sum(parts[1:]), *parts[1:]]
