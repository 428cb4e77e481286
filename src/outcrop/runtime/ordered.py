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
    from torch.distributed import GradBucket, ProcessGroup  # pyright: ignore[reportPrivateImportUsage]


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
    exchange = _exchange_at_once if own.device.type == "cpu" else _exchange_together
    exchange(pieces.split([counts[rank] * size] * world), parts.split([n * size for n in counts]), group)
    first = [sum(counts[:owner]) for owner in range(world)]
    rows = iter(parts.view(-1, size)[first[owner] + used[owner].index(place)] for owner, place in order)
    total = next(rows).clone()
    for row in rows:
        total += row
    found = torch.empty(world * size, dtype=own.dtype, device=own.device)
    exchange([total] * world, found.split(size), group)
    return found[:count]


def _exchange_at_once(going: Sequence[Tensor], coming: Sequence[Tensor], group: ProcessGroup | None) -> None:
    """Sends ``going[r]`` to each rank r, and receives what it sends into ``coming[r]``; all at once.

    The collectives of gloo take 1.6 times as long over a slow wire: they do not keep both its directions busy (torch
    2.13, scripts/wire.py).
    """
    world, rank = distributed.get_world_size(group), distributed.get_rank(group)
    others = [(rank + step) % world for step in range(1, world)]  # not all to the same one at first
    of = [other if group is None else distributed.get_global_rank(group, other) for other in range(world)]
    work = [distributed.irecv(coming[r], of[r], group=group) for r in others if coming[r].numel()]
    work += [distributed.isend(going[r], of[r], group=group) for r in others if going[r].numel()]
    coming[rank].copy_(going[rank])
    for one in work:
        assert one is not None
        one.wait()


def _exchange_together(going: Sequence[Tensor], coming: Sequence[Tensor], group: ProcessGroup | None) -> None:
    """Does what :func:`_exchange_at_once` does with a collective, which NCCL has for tensors on a device."""
    distributed.all_to_all(list(coming), list(going), group=group)


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
