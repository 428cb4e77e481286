"""Files as dgl.save_graphs writes them, from the format alone: DGL is not needed."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

PAIRS, BY_SOURCE, BY_TARGET = 1, 2, 3
_CODES = {"i": 0, "u": 1, "f": 2}


@dataclass
class Relation:
    """Edges of one type; ``form``: pairs, or lists by either end."""

    source: str
    name: str
    target: str
    edges: np.ndarray  # [E, 2]
    form: int = PAIRS
    columns: dict[str, np.ndarray] = field(default_factory=dict)


def number(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def text(value: str) -> bytes:
    return number(len(value.encode())) + value.encode()


def array(value: np.ndarray) -> bytes:
    value = np.ascontiguousarray(value.astype(np.uint8) if value.dtype == bool else value)
    head = number(0xDD5E40F096B4A13F, 0) + struct.pack("<iii", 1, 0, value.ndim)
    kind = struct.pack("<BBH", _CODES[value.dtype.kind], 8 * value.dtype.itemsize, 1)
    return head + kind + number(*value.shape, value.nbytes) + value.tobytes()


def columns(given: dict[str, np.ndarray]) -> bytes:
    return number(len(given)) + b"".join(text(name) + array(value) for name, value in given.items())


def lists(pairs: np.ndarray, rows: int, others: int) -> bytes:
    """Compressed rows of pairs [E, 2] (row, other), with the number of each edge."""
    order = np.argsort(pairs[:, 0], kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(pairs[:, 0], minlength=rows))]).astype(pairs.dtype)
    parts = (indptr, pairs[order, 1], order.astype(pairs.dtype))
    return number(0xDD6CD31205DFF127, others, rows) + b"".join(map(array, parts)) + b"\0"


def type_graph(pairs: list[tuple[int, int]], count: int) -> bytes:
    return number(0xDD3C5FFE20046ABF) + lists(np.array(pairs, np.int64).reshape(-1, 2), count, count)


def adjacency(relation: Relation, sizes: dict[str, int]) -> bytes:
    edges, source, target = relation.edges, sizes[relation.source], sizes[relation.target]
    same = relation.source == relation.target
    head = number(0xDD2E60F0F6B4A127, relation.form, 0) + type_graph(
        [(0, 0 if same else 1)], 1 if same else 2
    )
    if relation.form == BY_SOURCE:
        return head + lists(edges, source, target)
    if relation.form == BY_TARGET:
        return head + lists(edges[:, ::-1], target, source)
    parts = (edges[:, 0], edges[:, 1], np.zeros(0, np.int64))
    return head + number(0xDD61FFD305DFF127, target, source) + b"".join(map(array, parts)) + b"\0\0"


def graph(sizes: dict[str, int], nodes: dict[str, dict[str, np.ndarray]], relations: list[Relation]) -> bytes:
    names = list(sizes)
    pairs = [(names.index(relation.source), names.index(relation.target)) for relation in relations]
    return b"".join(
        (
            number(0xDD589FBE35224ABF),
            type_graph(pairs, len(names)),
            number(len(relations)),
            *(adjacency(relation, sizes) for relation in relations),
            number(len(names), *sizes.values()),
            number(len(names)),
            *(columns(nodes.get(name, {})) for name in names),
            number(len(relations)),
            *(columns(relation.columns) for relation in relations),
            number(len(names)),
            *(text(name) for name in names),
            number(len(relations)),
            *(text(relation.name) for relation in relations),
        )
    )


def write(path: Path, *graphs: bytes, labels: dict[str, np.ndarray] | None = None) -> Path:
    beside = columns(labels or {})
    begin = 4096 + 8 + len(beside)
    places = begin + np.concatenate([[0], np.cumsum([len(one) for one in graphs])])[:-1].astype(int)
    index = number(len(graphs), *places.tolist())
    page = number(0xDD2E4FF046B4A13F, 2, 2, len(graphs)).ljust(4096, b"\x55")
    end = number(len(index)) + index + number(len(index))
    path.write_bytes(page + number(begin) + beside + b"".join(graphs) + end)
    return path


def write_homogeneous(
    path: Path,
    edges: np.ndarray,
    nodes: dict[str, np.ndarray],
    count: int,
    form: int = PAIRS,
    **more: np.ndarray,
) -> Path:
    """A graph as DGL's data sets have it: one type of nodes, one of edges, columns of both."""
    return write(path, graph({"_N": count}, {"_N": nodes}, [Relation("_N", "_E", "_N", edges, form, more)]))
