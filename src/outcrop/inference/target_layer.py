"""What one layer of a model computes for the nodes of one type, as inference layer by layer asks for it.

:class:`ConvLayer` is a layer of a model of graphs without types; :mod:`outcrop.inference.typed_sums` has those of
models of graphs with types.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

from torch import Tensor

from outcrop.inference import layer_sums
from outcrop.inference.column_sums import ColumnSums, column_sums
from outcrop.inference.layer_sums import AccumulatorBytes, LayerSums
from outcrop.nn.models import Model


class TargetLayer(ABC):
    """Computes rows of targets from their own rows and from those of their sources.

    Attributes:
        out_dim: Columns of the output.
        cost: What accumulating takes.
        entered_dim: Columns of what :meth:`enter` makes of a row; 0 where it gives the row itself.
        drops_loops, targets_first, targets_last: As of :class:`outcrop.inference.layer_sums.LayerSums`.
        uses_degrees: Whether rows are scaled by the degrees of their nodes.
        uses_counts: Whether parts say how many edges each target has (``Part.inverse``).
    """

    out_dim: int
    cost: AccumulatorBytes
    entered_dim = 0
    drops_loops = False
    targets_first, targets_last = False, True
    uses_degrees = uses_counts = False

    @property
    def columns(self) -> ColumnSums | None:
        """Returns what computes the layer column by column; None: its columns need each other."""
        return None

    @abstractmethod
    def sums(self, targets: int, step: int) -> LayerSums:
        """Returns accumulators for ``targets`` targets (:func:`outcrop.inference.layer_sums.layer_sums`)."""

    def enter(self, node_type: int, rows: Tensor) -> Tensor:
        """Returns what the layer takes for rows of a node type, float32 [n, columns]."""
        return rows

    def activate(self, out: Tensor) -> Tensor:
        """Applies what follows the layer, in place where it can be."""
        return out


@final
class ConvLayer(TargetLayer):
    """Computes layer ``index`` of a model of graphs without types."""

    def __init__(self, model: Model, index: int):
        self._model, self._index, self._conv = model, index, model.convs[index]
        self.out_dim, self.cost = layer_sums.widths(self._conv)[1], layer_sums.cost(self._conv)
        kind = layer_sums.sums_of(self._conv)
        self.drops_loops = kind.drops_loops
        self.targets_first, self.targets_last = kind.targets_first, kind.targets_last
        self.uses_degrees = model.uses_degrees
        self._columns = column_sums(self._conv)

    @property
    def columns(self) -> ColumnSums | None:
        return self._columns

    def sums(self, targets: int, step: int) -> LayerSums:
        return layer_sums.layer_sums(self._conv, targets, step)

    def activate(self, out: Tensor) -> Tensor:
        return self._model.activate(self._index, out)
