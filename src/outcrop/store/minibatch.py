"""What a loader delivers: the graph of a mini-batch together with the rows and labels that it needs.

``x`` may lie in a buffer that the loader fills again once the tensor dies, so nothing may keep a batch, or a view of
its tensors, after the step that used it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from outcrop.store.batches import BatchGraph


@dataclass
class MiniBatch:
    """One mini-batch, ready to compute with.

    Attributes:
        graph: Structure, on the host.
        x: [num_nodes, D], the features of ``graph.n_id`` in the dtype of the store, on the device.
        y: int64 [num_seeds], labels of the seeds, -1 = none; of multi-label or regression targets float32
            [num_seeds] or [num_seeds, columns], NaN = unknown.
        degree: Number of in-neighbours other than itself that each node of ``graph.n_id`` has in the whole graph,
            integers [num_nodes] on the device; None where the loader does not know. Only GCN uses it.
    """

    graph: BatchGraph
    x: torch.Tensor
    y: torch.Tensor
    degree: torch.Tensor | None = None

    @cached_property
    def rowptr(self) -> torch.Tensor:
        """``graph.rowptr`` on the device of ``x``, int32; shares memory with it on the CPU."""
        return as_tensor(self.graph.rowptr, self.x.device)

    @cached_property
    def col(self) -> torch.Tensor:
        """``graph.col`` on the device of ``x``, int32; shares memory with it on the CPU."""
        return as_tensor(self.graph.col, self.x.device)


def as_tensor(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """``torch.tensor(array, device=device)``, without a copy where the array is writable and the device the CPU."""
    # torch has no read-only tensors and warns about them, so these few are copied.
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(device, non_blocking=True)
