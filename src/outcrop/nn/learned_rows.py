"""Rows of nodes whose type has none, learned with the model: a table for each type, one update a batch for each node.

Row-wise Adam, as tables of embeddings have it (core/embed/row_update.h): the mean of the gradients for each value, one
mean square for each row. A row that no batch took since stays as it is, and so do its means. A table, its means and the
best model's copy of it take 12 bytes for each value.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from outcrop.nn.made_rows import random_rows
from outcrop.nn.schema import GraphSchema

STATE = "rows."  # what the names of the state of learned rows begin with, in a checkpoint
_BLOCK = 1 << 14
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8


class LearnedRows(nn.Module):
    """Holds a table of rows, float32 [num_nodes, width], for each node type whose rows are learned.

    A table is a buffer: gradients go to the rows that a batch took, not to the table. At first it has the rows that
    ``random:D`` gives.
    """

    def __init__(self, schema: GraphSchema):
        super().__init__()
        self._taken: list[tuple[int, Tensor, Tensor]] = []
        for number, node in enumerate(schema.node_types):
            if node.is_learned:
                table = torch.empty(node.num_nodes, node.width)
                for start in range(0, node.num_nodes, _BLOCK) if table.device.type != "meta" else ():
                    ids = np.arange(start, min(start + _BLOCK, node.num_nodes))
                    table[start : start + _BLOCK] = random_rows(schema.row_seed, number, ids, node.width)
                self.register_buffer(str(number), table)

    def table(self, number: int) -> Tensor:
        """Returns the table of a node type; changes to it are changes to the model."""
        return self.get_buffer(str(number))

    def begin(self) -> None:
        """Forgets the rows that were taken before, as a new batch begins."""
        self._taken = []

    def take(self, number: int, ids: np.ndarray) -> Tensor:
        """Returns rows ``ids``, int64, distinct, of a node type. While gradients are recorded they get one."""
        places = torch.from_numpy(np.ascontiguousarray(ids, np.int64))
        rows = self.table(number).index_select(0, places)
        if self.training and torch.is_grad_enabled():
            rows.requires_grad_()
            self._taken.append((number, places, rows))
        return rows

    def gradients(self) -> list[tuple[int, Tensor, Tensor]]:
        """Returns (node type, ids, gradient [ids, width]) of the rows that the last batch took, and forgets them."""
        found = [
            (number, places, torch.zeros_like(rows) if rows.grad is None else rows.grad)
            for number, places, rows in self._taken
        ]
        self._taken = []
        return found


class RowAdam:
    """Updates the rows that a batch took, once each.

    Equals ``outcrop.embed.gpu.stepped`` with Adam, of these rows.

    Args:
        rows: The tables; None: there are none, and nothing is done.
    """

    def __init__(self, rows: LearnedRows | None):
        self._rows = rows
        self._state: dict[str, Tensor] = {}
        for name, table in () if rows is None else rows.named_buffers():
            self._state[f"{name}.exp_avg"] = torch.zeros_like(table)
            self._state[f"{name}.exp_avg_sq"] = torch.zeros(len(table))

    @torch.no_grad()
    def step(self, learning_rate: float, step: int) -> None:
        """Makes one update; ``step`` counts those of the whole training, from 1."""
        if self._rows is None:
            return
        first, second = 1 - _BETA1**step, 1 - _BETA2**step
        for number, places, gradient in self._rows.gradients():
            table = self._rows.table(number)
            means, squares = self._state[f"{number}.exp_avg"], self._state[f"{number}.exp_avg_sq"]
            mean = means.index_select(0, places).mul_(_BETA1).add_(gradient, alpha=1 - _BETA1)
            square = squares.index_select(0, places).mul_(_BETA2)
            square.add_(gradient.square().mean(1), alpha=1 - _BETA2)
            rate = (square / second).sqrt_().add_(_EPSILON).reciprocal_().mul_(learning_rate / first)
            means.index_copy_(0, places, mean)
            squares.index_copy_(0, places, square)
            rows = table.index_select(0, places)
            table.index_copy_(0, places, rows.addcmul_(mean, rate.unsqueeze(1), value=-1))

    def state(self) -> dict[str, Tensor]:
        """Returns the means, ``"rows.<node type>.<name>"`` -> tensor."""
        return {STATE + name: value for name, value in self._state.items()}

    def restore(self, flat: Mapping[str, Tensor]) -> None:
        """Puts back what :meth:`state` returned.

        Raises:
            ValueError: Something is missing, or of another shape.
        """
        found = {name.removeprefix(STATE): value for name, value in flat.items() if name.startswith(STATE)}
        shapes = {name: value.shape for name, value in found.items()}
        if shapes != {name: value.shape for name, value in self._state.items()}:
            raise ValueError(f"means of learned rows are {shapes}")
        self._state = found
