"""Local numbers of the nodes of a mini-batch, by sorting (core/graph/batch_builder.h, order_new_nodes)."""

from __future__ import annotations

import torch


class Numbers:
    """The local numbers of the nodes met so far."""

    def __init__(self, seeds: torch.Tensor):
        self._ids, self._local = torch.sort(seeds)

    def find(self, ids: torch.Tensor) -> torch.Tensor:
        """int64: local numbers of ``ids``, -1 where a node was not met."""
        at = torch.searchsorted(self._ids, ids).clamp(max=len(self._ids) - 1)
        return torch.where(self._ids[at] == ids, self._local[at], -1)

    def add(self, neighbours: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The nodes among ``neighbours`` that are new, ascending, and the local numbers of all ``neighbours``."""
        if not len(neighbours):
            return neighbours, neighbours
        met, which = torch.unique(neighbours, return_inverse=True)
        local, known = self.find(met), len(self._ids)
        fresh = local < 0
        new = met[fresh]
        given = torch.arange(known, known + len(new), device=new.device)
        local = torch.where(fresh, known - 1 + fresh.cumsum(0), local)
        self._ids, order = torch.sort(torch.cat([self._ids, new]))
        self._local = torch.cat([self._local, given])[order]
        return new, local[which]


def running(counts: torch.Tensor) -> torch.Tensor:
    """int64 [n + 1]: 0 and the running sums of ``counts``."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def kept_of(kept: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """int64: how many of each row, which begins at ``first``, are kept."""
    before = running(kept.to(torch.int64))[first]
    return before[1:] - before[:-1]
