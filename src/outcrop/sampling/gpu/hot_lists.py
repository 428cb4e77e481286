"""Neighbour lists in the memory of a device, so that sampling reads the hottest without the bus (Hyperion, III-B)."""

from __future__ import annotations

import numpy as np
import torch

from outcrop.device.budget import DeviceBudget
from outcrop.sampling.gpu.checks import refuse_list
from outcrop.sampling.gpu.resident import Resident
from outcrop.sampling.topology import Topology

_PIECE = 1 << 22  # neighbours that are copied at a time


class HotLists:
    """Copies of the lists of some nodes.

    Args:
        topology: In memory.
        blocks: Those of a ``_core.HotIndex`` whose lists are those of ``ids``.
        ids: int64, ascending.
        on_gpu: Whether ``device`` is one.
        budget: The device's: beginnings and neighbours are held under the tag ``list-cache``.

    Raises:
        BudgetError: They do not fit.
        FormatError: The topology is damaged.
    """

    def __init__(
        self,
        topology: Topology,
        blocks: Resident,
        ids: np.ndarray,
        device: torch.device,
        on_gpu: bool,
        budget: DeviceBudget | None,
    ):
        assert topology.indices is not None
        begin, end = topology.ranges(ids)
        if wrong := np.flatnonzero((begin < 0) | (end < begin) | (end > topology.num_edges)).tolist():
            refuse_list(topology, int(ids[wrong[0]]))
        first = np.concatenate([np.zeros(1, np.int64), np.cumsum(end - begin)])
        indices = topology.indices
        if budget is not None:
            self._held = budget.reserve("list-cache", first.nbytes + int(first[-1]) * indices.itemsize)
        self._blocks, self._first = blocks, Resident(first, device, on_gpu, False)
        words = indices.view(np.int32) if indices.itemsize == 4 else indices
        self._values = torch.empty(
            int(first[-1]), dtype=torch.from_numpy(words[:0].copy()).dtype, device=device
        )
        for at in range(0, int(first[-1]), _PIECE):
            places = np.arange(at, min(at + _PIECE, int(first[-1])))
            which = np.searchsorted(first, places, "right") - 1
            part = words[begin[which] + places - first[which]]
            self._values[at : at + len(part)].copy_(torch.from_numpy(part))

    def addresses(self) -> tuple[int, int, int]:
        """Returns the addresses of the blocks of the index, of where each list begins, and of the neighbours."""
        return self._blocks.address(), self._first.address(), self._values.data_ptr()
