"""What a loader delivers: the graph of a mini-batch together with the rows and labels that it needs.

``x`` may lie in a buffer that the loader fills again once the tensor dies, so nothing may keep a batch, or a view of
its tensors, after the step that used it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from outcrop.device.gpu import gpu_of
from outcrop.errors import ArgumentError
from outcrop.store.batches import BatchGraph


@dataclass
class MiniBatch:
    """Holds one mini-batch, ready to compute with.

    Attributes:
        graph: Structure, on the host.
        rows: What the batch wants of each row file of the graph (:attr:`outcrop.Graph.row_files`), in their order and
            in the dtype of the store, float32 of rows in few bits, on the device: a row for each id of
            :meth:`BatchGraph.section`. Rows of edges are each there once: :meth:`edge_rows` has them in the order of
            the edges.
        y: int64 [num_seeds], labels of the seeds, -1 = none; of multi-label or regression targets float32
            [num_seeds] or [num_seeds, columns], NaN = unknown.
        degree: Number of in-neighbours other than itself that each node of ``graph.n_id`` has in the whole graph,
            integers [num_nodes] on the device; None where the loader does not know. Only GCN uses it.
        arrays: Arrays of ``graph``, and what else was asked for, that came to a GPU with the rows, by their names.
    """

    graph: BatchGraph
    rows: tuple[torch.Tensor, ...]
    y: torch.Tensor
    degree: torch.Tensor | None = None
    arrays: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def x(self) -> torch.Tensor:
        """Returns the features of ``graph.n_id``, [num_nodes, D], of a batch of a graph without types."""
        self._require_one_type()
        return self.rows[0]

    def edge_rows(self, edge_type: int, place: int) -> torch.Tensor:
        """Returns the features of the edges of a type, [num_edges, D] on the device: ``rows[place]``, or of edges that
        were drawn several times, or that are in another order, a new tensor ``rows[place][index]``.

        Args:
            edge_type: Its number.
            place: Where in ``rows`` its row file is.
        """
        distinct = self.graph.edges[edge_type].distinct
        if distinct is None:
            return self.rows[place]
        return self.rows[place].index_select(0, self.array(f"e{edge_type}.index", distinct.index))

    @cached_property
    def edge_attr(self) -> torch.Tensor | None:
        """Returns the features of the edges, [num_edges, D], of a batch of a graph without types; None: it has none."""
        self._require_one_type()
        return self.edge_rows(0, 1) if len(self.rows) == 2 else None

    def _require_one_type(self) -> None:
        if len(self.graph.nodes) != 1 or len(self.graph.edges) != 1 or not 1 <= len(self.rows) <= 2:
            raise ArgumentError(
                f"a mini-batch of {len(self.graph.nodes)} node types, {len(self.graph.edges)} edge types and rows of "
                f"{len(self.rows)} row files has no x of its own: use rows, one for each row file of the graph"
            )

    @property
    def device(self) -> torch.device:
        """Returns where the batch is."""
        return self.y.device

    @cached_property
    def rowptr(self) -> torch.Tensor:
        """Returns ``graph.rowptr`` on the device of the batch, int32; it shares memory with it on the CPU."""
        return self.array("rowptr", self.graph.rowptr)

    @cached_property
    def col(self) -> torch.Tensor:
        """Returns ``graph.col`` on the device of the batch, int32; it shares memory with it on the CPU."""
        return self.array("col", self.graph.col)

    @cached_property
    def edge_weight(self) -> torch.Tensor | None:
        """Returns ``graph.edge_weight`` on the device of the batch, float32 [num_edges]; None: it has none."""
        weight = self.graph.edge_weight
        return None if weight is None else self.array("edge_weight", weight)

    @cached_property
    def weight_sums(self) -> torch.Tensor | None:
        """Returns ``graph.weight_sums`` on the device of the batch, float64 [num_nodes, 2]; None: it has none."""
        sums = self.graph.weight_sums
        return None if sums is None else self.array("weight_sums", sums)

    @cached_property
    def edge_index(self) -> torch.Tensor:
        """Returns int64 [2, num_edges] on the device of the batch: ``graph.edge_index()``, on a GPU computed there."""
        if "rowptr" not in self.arrays:
            return as_tensor(self.graph.edge_index(), self.device)
        nodes = torch.arange(len(self.rowptr) - 1, device=self.device)
        targets = torch.repeat_interleave(nodes, self.rowptr.diff(), output_size=self.graph.num_edges)
        return torch.stack([self.col.long(), targets])

    def record_stream(self, stream: Any) -> None:
        """Does as ``Tensor.record_stream`` for all its tensors, of batches on a GPU that another stream uses than the
        one on which they were taken: their memory is written again when ``stream`` has done what it was given until
        they die.
        """
        gpu = gpu_of(self.device)
        if gpu is not None:
            for rows in self.rows:  # and the buffer that the others lie in, too
                rows.record_stream(stream)
            gpu.record(self.y, stream)

    def array(self, name: str, on_host: np.ndarray) -> torch.Tensor:
        """Returns ``on_host`` on the device of the batch: what came with the rows under ``name``, or as
        :func:`as_tensor` does.
        """
        found = self.arrays.get(name)
        return as_tensor(on_host, self.device) if found is None else found


def as_tensor(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """Returns ``torch.tensor(array, device=device)``, without a copy where the array is writable and the device the
    CPU.
    """
    # torch has no read-only tensors and warns about them, so these few are copied.
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(device, non_blocking=True)
