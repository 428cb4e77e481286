"""Sums of the gradients of several processes whose bits do not depend on how many there are.

An all-reduce adds each part of a tensor in another order of the processes, so that three of them give other last bits
than one that adds up three batches. Here each process adds one part of all gradients, in the order of their batches,
and everybody gets all parts: of W processes each sends ``(W - 1) / W`` times the bytes of a gradient for each of its
batches, and once more for the sum; with one batch each, as much as in a ring.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, distributed
from torch.futures import Future

if TYPE_CHECKING:
    from torch.distributed import GradBucket, ProcessGroup, Work  # pyright: ignore[reportPrivateImportUsage]

# Tags of messages, which no others of a user's group have.
_PIECES, _TOTALS = 21_317, 21_318


def ordered_sum(own: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Returns the sum over all processes, ``((g_0 + g_1) + g_2) + ...`` in the order of ranks, on each of them.

    Args:
        own: What this process adds, float [n], on a device that the group's backend takes; of the same n on all.
        group: Process group; None: the default one.
    """
    world = distributed.get_world_size(group)
    return ordered_sum_of(own.reshape(1, -1), [(rank, 0) for rank in range(world)], group)


def ordered_sum_of(
    own: Tensor, order: Sequence[tuple[int, int]], group: ProcessGroup | None = None
) -> Tensor:
    """Returns the sum of the rows of all processes, one after another as ``order`` has them, on each of them.

    Equals ``sum(rows[rank][place] for rank, place in order)`` from left to right.

    Args:
        own: Rows of this process, float [k, n], k of its own and n of all, on a device that the backend takes.
        order: Rank and place of each row that counts, at least one; the same on all ranks. Rows that it does not name
            are left out.
    """
    world, rank = distributed.get_world_size(group), distributed.get_rank(group)
    used: list[list[int]] = [[] for _ in range(world)]
    for owner, place in order:
        used[owner].append(place)
    counts, count = [len(places) for places in used], own.shape[1]
    size = -(-count // world)
    padded = F.pad(own[used[rank]], (0, world * size - count))
    pieces = padded.view(counts[rank], world, size).transpose(0, 1).reshape(-1)  # those of each rank together
    parts = torch.empty(sum(counts) * size, dtype=own.dtype, device=own.device)
    found = torch.empty(world * size, dtype=own.dtype, device=own.device)
    of_rank = parts.split([n * size for n in counts])
    exchange = _Messages if own.device.type == "cpu" else _Collectives
    under_way = exchange(pieces.split([counts[rank] * size] * world), of_rank, found, group)
    total: Tensor | None = None
    for owner, place in order:
        under_way.wait_for(owner)
        row = of_rank[owner].view(-1, size)[used[owner].index(place)]
        total = row.clone() if total is None else total.add_(row)
    assert total is not None
    under_way.gather(total)
    return found[:count]


class _Messages:
    """Exchanges tensors on the CPU: each process sends its own to each other, and all of them at once.

    It asks for everything that it will receive before it sends anything. Two ranks of gloo have one connection, over
    which one says that it is ready to receive a tensor; only then the other sends it. Said later, that waits behind
    what goes the same way, and the ranks take turns: so do gloo's collectives, which need 1.5 times as long
    (torch 2.13; docs/measured.md, two machines on a wire). Tensors are held by this object alone, not by a thread of
    gloo (:func:`wait_until_let_go`).

    Args:
        pieces: What goes to each rank.
        parts: What each rank sends to this one; filled once :meth:`wait_for` has returned for it.
        found: What :meth:`gather` fills, of equal parts for each rank.
        group: Process group; None: the default one.
    """

    def __init__(
        self, pieces: Sequence[Tensor], parts: Sequence[Tensor], found: Tensor, group: ProcessGroup | None
    ):
        self._group = group
        self._rank, self._world = distributed.get_rank(group), distributed.get_world_size(group)
        self._totals = found.chunk(self._world)
        self._coming = self._receive(parts, _PIECES)
        self._coming_totals = self._receive(self._totals, _TOTALS)
        self._going = self._send(pieces, _PIECES)
        parts[self._rank].copy_(pieces[self._rank])

    def wait_for(self, rank: int) -> None:
        """Waits until what ``rank`` sends to this one is there."""
        if (work := self._coming.pop(rank, None)) is not None:
            work.wait()

    def gather(self, total: Tensor) -> None:
        """Sends ``total`` to all, and waits for theirs, and until all is sent."""
        self._going += self._send([total] * self._world, _TOTALS)
        self._totals[self._rank].copy_(total)
        for work in (*self._coming_totals.values(), *self._going):
            work.wait()

    @property
    def _others(self) -> list[int]:
        """Lists the other ranks, so that not all send to the same one at first."""
        return [(self._rank + step) % self._world for step in range(1, self._world)]

    def _receive(self, into: Sequence[Tensor], tag: int) -> dict[int, Work]:
        started = {
            rank: distributed.irecv(into[rank], group=self._group, tag=tag, group_src=rank)
            for rank in self._others
            if into[rank].numel()
        }
        return {rank: work for rank, work in started.items() if work is not None}

    def _send(self, tensors: Sequence[Tensor], tag: int) -> list[Work]:
        started = [
            distributed.isend(tensors[rank], group=self._group, tag=tag, group_dst=rank)
            for rank in self._others
            if tensors[rank].numel()
        ]
        return [work for work in started if work is not None]


class _Collectives:
    """Does what :class:`_Messages` does by collectives, which NCCL has for tensors on a device."""

    def __init__(
        self, pieces: Sequence[Tensor], parts: Sequence[Tensor], found: Tensor, group: ProcessGroup | None
    ):
        self._found, self._group = found, group
        distributed.all_to_all(list(parts), list(pieces), group=group)

    def wait_for(self, rank: int) -> None:
        """Does nothing: all parts are there."""

    def gather(self, total: Tensor) -> None:
        gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
        gather(self._found, total, group=self._group)


def sent_bytes(elements: int, element_bytes: int, rows: int, world: int) -> int:
    """Counts the bytes that a process sends in :func:`ordered_sum_of`.

    Args:
        elements: Values of a row, each of ``element_bytes``.
        rows: Rows of this process that count.
        world: Processes.
    """
    return (world - 1) * -(-elements // world) * element_bytes * (rows + 1)


def wait_until_let_go(*tensors: Tensor) -> None:
    """Waits, a second at the most, until no thread of the backend holds ``tensors``, of which there are no views yet.

    A thread of gloo lets go of what it has sent and received a moment after a collective has returned, and takes the
    lock of the interpreter for it: where Python has begun to end by then, as it may after the last step, the whole
    process is aborted (torch 2.13).
    """
    deadline = time.monotonic() + 1
    for tensor in tensors:
        count = getattr(tensor, "_use_count", None)
        while count is not None and count() > 1 and time.monotonic() < deadline:
            time.sleep(0)  # lets the other thread have the lock


def ordered_hook(group: ProcessGroup | None, bucket: GradBucket) -> Future[Tensor]:
    """Gives ``DistributedDataParallel`` the mean of the gradients of all processes, added up in the order of ranks.

    ``model.register_comm_hook(None, oc.ordered_hook)``: with one batch for each rank and step, of
    ``run.loader(rank=, world=)``, parameters then have the bits of one process that calls ``backward`` for one batch
    after the other and divides by their number (``TrainConfig.accumulate``), for any number of ranks. Without it they
    do for two ranks alone.

    Args:
        group: Process group; None: the default one.
        bucket: Gradients, as ``DistributedDataParallel`` gathers them.
    """
    done: Future[Tensor] = Future()
    done.set_result(ordered_sum(bucket.buffer(), group).div_(distributed.get_world_size(group)))
    return done


# What register_comm_hook asks of a hook: the type, not its name.
ordered_hook.__annotations__["return"] = Future[Tensor]
ordered_hook.__annotations__["bucket"] = distributed.GradBucket  # pyright: ignore[reportPrivateImportUsage]
