"""Sparse products of mini-batches: one layer's bipartite graph as a CSR matrix, and products with it.

Every output row is a sum over one CSR row in stored order, taken by one thread: results do not depend on the number
of threads. On the CPU ``embedding_bag`` computes the product: it is the fastest fused gather-and-sum that torch has
(three times the rate of its CSR matrix product), takes int32 indices as they are on disk, and needs no matrix object.
"""

from __future__ import annotations

import errno
import mmap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

import outcrop._core as _core
from outcrop.errors import ArgumentError, IoError
from outcrop.store.minibatch import MiniBatch


@dataclass(frozen=True)
class Block:
    """Holds the edges of one layer, of one type: row t lists the sources of target t.

    Where sources and targets are of one node type, target t is also source t, and there are at least as many sources.

    Attributes:
        rowptr: int32 [num_targets + 1].
        col: int32 [num_edges], each in [0, num_sources).
        num_sources: How many sources there are to choose from.
        edge_rows: Features of the edges [num_edges, D], of any dtype; None: the layer takes none. They get no gradient.
        edge_weight: Weights of the edges, float [num_edges]; None: all count alike. They get no gradient either.
    """

    rowptr: Tensor
    col: Tensor
    num_sources: int
    edge_rows: Tensor | None = None
    edge_weight: Tensor | None = None

    @property
    def num_targets(self) -> int:
        return len(self.rowptr) - 1

    @property
    def num_edges(self) -> int:
        return len(self.col)

    @cached_property
    def counts(self) -> Tensor:
        """Returns int32 [num_targets]: edges per target. Equals ``np.diff(rowptr)``."""
        return self.rowptr.diff()

    @cached_property
    def row(self) -> Tensor:
        """Returns int32 [num_edges]: the target of each edge. Equals ``np.repeat(np.arange(num_targets), counts)``."""
        targets = torch.arange(self.num_targets, dtype=torch.int32, device=self.col.device)
        return torch.repeat_interleave(targets, self.counts, output_size=self.num_edges)

    @cached_property
    def by_edge(self) -> Block:
        """Returns the block whose source i is edge i: what sums over sources, sums over rows of the edges there."""
        each = torch.arange(self.num_edges, dtype=self.col.dtype, device=self.col.device)
        return Block(self.rowptr, each, self.num_edges)

    @cached_property
    def is_loop(self) -> Tensor:
        """Returns bool [num_edges]: edges from a node to itself."""
        return self.row == self.col

    @cached_property
    def transposed(self) -> tuple[Tensor, Tensor, Tensor]:
        """Gives (int32 rowptr [num_sources + 1], int32 targets [num_edges], int64 edge order [num_edges]) by source."""
        if self.col.device.type != "cpu":
            order = torch.argsort(self.col, stable=True)
            counts = torch.bincount(self.col, minlength=self.num_sources)
            return F.pad(counts.cumsum(0), (1, 0)).int(), self.row[order], order
        rowptr, row = torch.empty(self.num_sources + 1, dtype=torch.int32), torch.empty_like(self.col)
        order = torch.empty(self.num_edges, dtype=torch.int64)
        arrays = [array.numpy() for array in (self.rowptr, self.col.contiguous(), rowptr, row, order)]
        _core.transpose_csr(*arrays)
        return rowptr, row, order


def without_loops(block: Block) -> Tensor:
    """Returns int32 [num_targets]: edges per target that come from another node."""
    loop = block.is_loop
    if not bool(loop.any()):
        return block.counts
    return block.counts - torch.bincount(block.row[loop], minlength=block.num_targets).int()


def blocks_of(batch: MiniBatch, layers: int | None = None, *, weighted: bool = False) -> list[Block]:
    """Returns the graph of each layer, first layer first, each trimmed to what its layer needs (prefixes, nothing
    copied).

    Args:
        layers: How many, for whole batches; None = as many as hops.
        weighted: Edges have their weights.

    Raises:
        ArgumentError: The edges of the batch have no weights.
    """
    rows, weight = batch.edge_attr, require_weights(batch) if weighted else None
    return [
        Block(
            batch.rowptr[: targets + 1],
            batch.col[:edges],
            sources,
            None if rows is None else rows[:edges],
            None if weight is None else weight[:edges],
        )
        for sources, targets, edges in batch.graph.layer_sizes(layers)
    ]


def require_weights(batch: MiniBatch) -> Tensor:
    """Returns the weights of the edges of a batch.

    Raises:
        ArgumentError: It has none.
    """
    if batch.edge_weight is None:
        raise ArgumentError(
            "the model takes weights of edges, and the batch has none: load batches with edge_weights=True "
            "(--edge-weights), of a graph that has weights"
        )
    return batch.edge_weight


def block_of_edges(
    edge_index: Tensor,
    num_sources: int,
    num_targets: int,
    edge_attr: Tensor | None = None,
    edge_weight: Tensor | None = None,
) -> Block:
    """Returns edges as torch_geometric has them, int64 [2, num_edges], their features and weights, ordered by their
    targets.

    Raises:
        ArgumentError: They have another shape, or name a node that is not there.
    """
    if edge_index.ndim != 2 or len(edge_index) != 2:
        raise ArgumentError(f"edge_index has shape {list(edge_index.shape)}: give [2, num_edges]")
    for ends, count in zip(edge_index, (num_sources, num_targets), strict=True):
        if ends.numel() and not 0 <= int(ends.min()) <= int(ends.max()) < count:
            wrong = int(ends.min()) if int(ends.min()) < 0 else int(ends.max())
            raise ArgumentError(f"edge_index has node {wrong}, features have {count} rows")
    if edge_attr is not None and (edge_attr.ndim != 2 or len(edge_attr) != edge_index.shape[1]):
        raise ArgumentError(
            f"edge_attr has shape {list(edge_attr.shape)}: give [{edge_index.shape[1]}, D], a row for each edge"
        )
    if edge_weight is not None and edge_weight.shape != edge_index.shape[1:]:
        raise ArgumentError(
            f"edge_weight has shape {list(edge_weight.shape)}: give [{edge_index.shape[1]}], a number for each edge"
        )
    source, target = edge_index
    order = torch.argsort(target, stable=True)
    rowptr = F.pad(torch.bincount(target, minlength=num_targets).cumsum(0), (1, 0))
    rows = None if edge_attr is None else edge_attr[order]
    weight = None if edge_weight is None else edge_weight[order]
    return Block(rowptr.int(), source[order].int(), num_sources, rows, weight)


@dataclass(frozen=True)
class TypedLayer:
    """Holds the graph of one layer of a batch with node and edge types.

    Attributes:
        blocks: Edges of each edge type.
        num_targets: How many nodes of each node type the layer computes: the first ones.
    """

    blocks: tuple[Block, ...]
    num_targets: tuple[int, ...]


def typed_layers_of(
    batch: MiniBatch,
    ends: Sequence[tuple[int, int]],
    layers: int | None = None,
    edge_rows: Sequence[Tensor | None] | None = None,
) -> list[TypedLayer]:
    """Does what :func:`blocks_of` does, for a batch with node and edge types.

    Args:
        ends: Numbers of the node types (source, target) of each edge type.
        layers: How many, for untrimmed batches; None = as many as hops.
        edge_rows: Features of the edges of each edge type, [num_edges, D]; None: of none.
    """
    graph = batch.graph
    rows_of = edge_rows or [None] * len(ends)
    csr = [_csr(batch, number) for number in range(len(ends))]
    depth = (layers or graph.hops) if graph.untrimmed else graph.hops
    found = []
    for beyond in reversed(range(depth)):  # how many layers follow
        last = graph.hops if graph.untrimmed and beyond else beyond
        targets = tuple(sum(nodes.per_hop[: last + 1]) for nodes in graph.nodes)
        sources = [
            len(nodes.ids) if graph.untrimmed else sum(nodes.per_hop[: last + 2]) for nodes in graph.nodes
        ]
        blocks = []
        for edges, (rowptr, col), (source, target), rows in zip(graph.edges, csr, ends, rows_of, strict=True):
            count = int(edges.rowptr[targets[target]]) if graph.untrimmed else sum(edges.per_hop[: last + 1])
            taken = None if rows is None else rows[:count]
            blocks.append(Block(rowptr[: targets[target] + 1], col[:count], sources[source], taken))
        found.append(TypedLayer(tuple(blocks), targets))
    return found


def _csr(batch: MiniBatch, number: int) -> tuple[Tensor, Tensor]:
    """Returns ``rowptr`` and ``col`` of an edge type on the device of the batch."""
    if len(batch.graph.edges) == 1:
        return batch.rowptr, batch.col
    edges = batch.graph.edges[number]
    return batch.array(f"e{number}.rowptr", edges.rowptr), batch.array(f"e{number}.col", edges.col)


_CODE_BYTES = 1 << 20


@cache
def _require_room_for_code() -> None:
    """Looks, once, whether the process may still map memory: what torch compiles for ``embedding_bag`` goes there.

    torch does not look itself, and ends the process by a signal where it gets none.

    Raises:
        IoError: It may not.
    """
    try:
        mmap.mmap(-1, _CODE_BYTES).close()
    except (OSError, MemoryError):
        raise IoError(
            errno.ENOMEM,
            f"out of memory: {_CODE_BYTES} bytes for the code of sparse products cannot be mapped; free some, or raise "
            "the limit on address space (ulimit -v)",
        ) from None


def bag_sum(x: Tensor, rowptr: Tensor, col: Tensor, weights: Tensor | None = None) -> Tensor:
    """Computes ``out[r] = sum(weights[i] * x[col[i]] for i in range(rowptr[r], rowptr[r + 1]))``, without autograd.

    Args:
        x: float [num_rows, D], contiguous.
        rowptr, col: int32, CSR.
        weights: float [len(col)]; None = ones.
    """
    if len(col) == 0:
        return x.new_zeros(len(rowptr) - 1, x.shape[1])
    if x.device.type == "cpu":
        _require_room_for_code()
    return F.embedding_bag(
        col, x.detach(), rowptr, mode="sum", include_last_offset=True, per_sample_weights=weights
    )


def spmm(block: Block, x: Tensor, weights: Tensor | None = None) -> Tensor:
    """Sums over sources: [num_sources, D] -> [num_targets, D]. Equals ``csr_array((w, col, rowptr)) @ x``."""
    return bag_sum(x, block.rowptr, block.col, weights)


def spmm_transposed(block: Block, x: Tensor, weights: Tensor | None = None) -> Tensor:
    """Sums over targets: [num_targets, D] -> [num_sources, D]. Equals ``csr_array((w, col, rowptr)).T @ x``."""
    rowptr, col, order = block.transposed
    return bag_sum(x, rowptr, col, None if weights is None else weights[order])


def sampled_dot(rowptr: Tensor, col: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Gives ``out[i] = left[row of i] @ right[col[i]]`` for every stored entry i of a CSR pattern, without autograd."""
    if len(col) == 0:
        return left.new_zeros(0)
    if len(col) > len(left) * len(
        right
    ):  # torch takes no pattern with more entries than the matrix has places
        row = torch.arange(len(left), device=col.device).repeat_interleave(rowptr.diff())
        return (left[row] * right[col]).sum(1)
    with warnings.catch_warnings():  # torch calls every CSR tensor a beta, once
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        pattern = torch.sparse_csr_tensor(
            rowptr, col, left.new_zeros(len(col)), (len(left), len(right)), check_invariants=False
        )
    return torch.sparse.sampled_addmm(pattern, left, right.t(), beta=0.0).values()


def as_input(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Returns features as a model computes with them: of its dtype, contiguous, 64-byte aligned.

    float16, bfloat16 and int8 are widened here, once, in every mode; rows in few bits come as float32. Alignment is
    kept because the rounding of a dense product may depend on it, and results must not depend on where a loader put
    the rows.
    """
    if x.dtype != dtype:
        return x.to(dtype, memory_format=torch.contiguous_format)
    if not x.is_contiguous():
        return x.contiguous()
    return x.clone() if x.data_ptr() % 64 else x


def check_block(block: Block, x: Tensor) -> None:
    if len(x) != block.num_sources:
        raise ArgumentError(f"{len(x)} source rows given for a layer of {block.num_sources} sources")
