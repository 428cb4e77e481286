"""The gradient of a step: the sum over its batches, in their order, whichever processes computed them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from outcrop.runtime.group import Group
from outcrop.runtime.ordered import ordered_sum_of

_STEP = "a step"


class BatchLoss(NamedTuple):
    """Says what a batch came to: the mean loss of its labelled seeds, and how many there are."""

    loss: float
    labelled: int


class StepGradients(Protocol):
    """Adds up the gradients of a step's batches in the parameters.

    Attributes:
        exchange_seconds: Time spent with other processes since it was set.
    """

    exchange_seconds: float

    def begin(self) -> None:
        """Prepares the parameters for the next backward pass."""
        ...

    def add(self, batch: BatchLoss) -> None:
        """Takes the gradients of a batch, which are in the parameters; of one without labels nothing is there."""
        ...

    def finish(self, batches: int, numbers: Sequence[float] = ()) -> tuple[list[BatchLoss], np.ndarray]:
        """Ends the step: the parameters have the sum of its gradients, or none where no batch had labels.

        Args:
            batches: Batches of the step, of all processes.
            numbers: What all processes are told, too.

        Returns:
            What each batch came to, in their order; and the numbers of all processes.
        """
        ...

    def fail(self, error: Exception) -> None:
        """Raises ``error``, in other processes what it says."""
        ...


class OwnGradients:
    """Adds up as ``loss.backward()`` does, in one process."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]):
        self._parameters = list(parameters)
        self._losses: list[BatchLoss] = []
        self.exchange_seconds = 0.0

    def begin(self) -> None:
        if not any(one.labelled for one in self._losses):
            for parameter in self._parameters:
                parameter.grad = None

    def add(self, batch: BatchLoss) -> None:
        self._losses.append(batch)

    def finish(self, batches: int, numbers: Sequence[float] = ()) -> tuple[list[BatchLoss], np.ndarray]:
        done, self._losses = self._losses, []
        return done, np.array([numbers], np.float64)

    def fail(self, error: Exception) -> None:
        raise error


class OrderedGradients:
    """Adds up what several processes have computed.

    Equals :class:`OwnGradients` in a process that computes all batches, to the bit. A parameter that a batch has no
    gradient for counts as -0.0 there, which changes no sum.

    Args:
        parameters: On one device, of one dtype.
        accumulate: Batches of a step, at most.
    """

    def __init__(self, group: Group, parameters: Iterable[torch.nn.Parameter], accumulate: int):
        self._group, self._parameters = group, list(parameters)
        self._most = -(-accumulate // group.world)
        nbytes = sum(parameter.nbytes for parameter in self._parameters)
        on_cpu = all(parameter.is_cpu for parameter in self._parameters)
        self._by = group.for_transfers(nbytes * (accumulate + 1)) if on_cpu else None
        self._rows: list[Tensor] = []
        self._said: list[list[float]] = []
        self.exchange_seconds = 0.0

    def begin(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def add(self, batch: BatchLoss) -> None:
        there = [batch.labelled > 0 and parameter.grad is not None for parameter in self._parameters]
        if batch.labelled:
            self._rows.append(torch.cat([_flat(parameter) for parameter in self._parameters]))
        self._said.append([batch.loss, float(batch.labelled), *map(float, there)])

    def finish(self, batches: int, numbers: Sequence[float] = ()) -> tuple[list[BatchLoss], np.ndarray]:
        started, width = time.perf_counter(), 2 + len(self._parameters)
        own = np.zeros((self._most, width))
        own[: len(self._said)] = np.array(self._said, np.float64).reshape(-1, width)
        found = self._group.agree(_STEP, [len(self._said), *numbers, *own.reshape(-1)])
        told, said = found[:, 1 : 1 + len(numbers)], found[:, 1 + len(numbers) :]
        said = said.reshape(self._group.world, self._most, width)
        places = [(n % self._group.world, n // self._group.world) for n in range(batches)]
        every = [said[place] for place in places]
        done = [BatchLoss(float(one[0]), int(one[1])) for one in every]
        self._sum(places, done, np.logical_or.reduce([one[2:] > 0 for one in every]))
        self._rows, self._said = [], []
        self.exchange_seconds += time.perf_counter() - started
        return done, told

    def _sum(self, places: Sequence[tuple[int, int]], done: Sequence[BatchLoss], there: np.ndarray) -> None:
        """Puts the sum of the rows of labelled batches into the parameters that had a gradient."""
        order, rows_of = [], [0] * self._group.world
        for (rank, _), batch in zip(places, done, strict=True):
            if batch.labelled:
                order.append((rank, rows_of[rank]))
                rows_of[rank] += 1
        self.begin()
        if not order:
            return
        sizes = [parameter.numel() for parameter in self._parameters]
        first = self._parameters[0]
        own = torch.stack(self._rows) if self._rows else first.new_empty((0, sum(sizes)))
        total = ordered_sum_of(own, order, self._by)
        for parameter, part, has in zip(self._parameters, total.split(sizes), there, strict=True):
            if has:
                parameter.grad = part.view_as(parameter).clone()

    def fail(self, error: Exception) -> None:
        self._group.agree(_STEP, error=error)
        raise error


def _flat(parameter: torch.nn.Parameter) -> Tensor:
    if parameter.grad is None:
        return torch.full_like(parameter, -0.0).reshape(-1)
    return parameter.grad.reshape(-1)
