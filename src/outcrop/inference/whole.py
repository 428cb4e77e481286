"""Calls any torch module on sampled batches, as a loop over NeighborLoader would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from outcrop.errors import ArgumentError
from outcrop.nn.sparse import as_input
from outcrop.store.minibatch import MiniBatch

_EXAMPLE = "model(x, edge_index) must give float [num_nodes or num_seeds, columns]"


class WholeModel(nn.Module):
    """Calls a module with all of a batch at once: ``module(x, edge_index)``.

    Args:
        in_dim: Columns of the features.

    Raises:
        ArgumentError: It cannot be called so, or gives no rows.
    """

    uses_degrees = False

    def __init__(self, module: nn.Module, in_dim: int):
        super().__init__()
        self.module = module
        tensors = [p for p in module.parameters() if p.is_floating_point()]
        self.dtype = tensors[0].dtype if tensors else torch.float32
        self.device = tensors[0].device if tensors else torch.device("cpu")
        self.out_dim = self._probe(in_dim)

    def _probe(self, in_dim: int) -> int:
        """Returns columns of the output, from two nodes that are neighbours of each other."""
        x = torch.zeros(2, in_dim, dtype=self.dtype, device=self.device)
        edges = torch.tensor([[0, 1], [1, 0]], device=self.device)
        try:
            with self.scoring():
                out = self.module(x, edges)
        except (TypeError, RuntimeError, ValueError, IndexError) as error:
            raise ArgumentError(
                f"{type(self.module).__name__} cannot be called with features [2, {in_dim}] and edges [2, 2] "
                f"({type(error).__name__}: {error}): {_EXAMPLE}"
            ) from error
        if not isinstance(out, Tensor) or out.dim() != 2 or not out.is_floating_point():
            raise ArgumentError(f"{type(self.module).__name__} gave no float matrix: {_EXAMPLE}")
        return out.shape[1]

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Sets eval mode without gradients within the block; every submodule has its mode back after it."""
        modes = [(part, part.training) for part in self.module.modules()]
        self.module.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for part, training in modes:
                part.training = training

    def scores(self, batch: MiniBatch) -> Tensor:
        """Returns scores of the seeds, float32 [num_seeds, out_dim]."""
        edges = torch.from_numpy(batch.graph.edge_index()).to(batch.x.device)
        out = self.module(as_input(batch.x, self.dtype), edges)
        return out[: batch.graph.num_seeds].float()
