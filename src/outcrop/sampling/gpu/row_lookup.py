"""Where the rows of a mini-batch lie, found by the GPU that drew it: no node id goes back to the host for that.

Source: Hyperion, section III-B1. The kernels are kernels/lookup.h; the host finds the same with
``_core.HotIndex.find_rows``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from outcrop.sampling.gpu.batch import MISSING, Batch
from outcrop.sampling.gpu.launching import Kernels
from outcrop.sampling.gpu.resident import Resident


@dataclass(frozen=True)
class FoundRows:
    """Says where the rows of a mini-batch lie, on the device.

    Attributes:
        place: int64 [num_nodes], the bits that :func:`outcrop.unified.assemble.row_addresses` gives: tables 0
            and 1 are the caches of the device and of the host, table 2 has a row for each node of the batch.
        missing: int64 [rows that are read], their node ids, ascending.
        positions: int32, as long: the position of each in the batch.
        in_host: Rows that the cache of the host has.
    """

    place: torch.Tensor
    missing: torch.Tensor
    positions: torch.Tensor
    in_host: int = 0

    def of(self, num_nodes: int, missing: int, in_host: int) -> FoundRows:
        """Returns them without the room that is left."""
        return FoundRows(self.place[:num_nodes], self.missing[:missing], self.positions[:missing], in_host)

    @property
    def on_device(self) -> int:
        """Counts the rows that the cache of the device has."""
        return len(self.place) - len(self.missing) - self.in_host


class RowLookup:
    """Looks the nodes of a mini-batch up in the index of a static cache.

    Args:
        blocks: Blocks of the index; None where nothing is cached.
        tiers: int32 [cached rows], see :class:`outcrop.rows.StaticCache`; None: all of them are in host memory.
    """

    def __init__(self, kernels: Kernels, blocks: Resident | None, tiers: Resident | None):
        self._kernels, self._blocks, self._tiers = kernels, blocks, tiers

    def launch(self, batch: Batch) -> FoundRows:
        """Launches the lookup of all nodes drawn so far and waits for nothing: arrays have room for the most there can
        be, and ``batch`` learns how many rows there are of each kind when it is next read.
        """
        room, device = len(batch.known), batch.known.device
        place, marks, missing = torch.empty((3, room), dtype=torch.int64, device=device).unbind()
        positions = torch.empty(room, dtype=torch.int32, device=device)
        index = [0 if part is None else part.address() for part in (self._blocks, self._tiers)]
        nodes = (room, batch.known, batch.local)
        self._kernels.each("look_up", room, *index, *nodes, place, marks)
        sums = torch.cumsum(marks, 0)
        self._kernels.each("list_missing", room, *nodes, sums, missing, positions, batch.number(MISSING))
        return FoundRows(place, missing, positions)
