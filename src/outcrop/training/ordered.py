"""Sums of the gradients of several processes whose bits do not depend on how many there are.

An all-reduce adds each part of a tensor in another order of the processes, so that three of them give other last bits
than one that adds up three batches. Here each process adds one part of all gradients, in the order of the ranks, and
everybody gets all parts: of W processes each sends ``2 (W - 1) / W`` times the bytes of a gradient, as in a ring.
"""

from __future__ import annotations

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
    world, count = distributed.get_world_size(group), own.numel()
    size = -(-count // world)
    padded = F.pad(own.reshape(-1), (0, world * size - count))
    parts, found = torch.empty_like(padded), torch.empty_like(padded)
    distributed.all_to_all_single(parts, padded, group=group)  # row r: part of this rank, of rank r
    rows = parts.view(world, size)
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
    gather(found, total, group=group)
    return found[:count]


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
