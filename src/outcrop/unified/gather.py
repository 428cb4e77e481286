"""``outcrop::gather(table, index)``: rows of a table, on the device of the index, read where they lie.

Equals ``table[index]``, bit for bit. With the index on a GPU, the table may be in its memory, or in host memory that it
can read (pinned or registered); the kernel is kernels/gather.h. autograd and torch.compile know it.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from outcrop.device.gpu import Gpu
from outcrop.errors import ArgumentError
from outcrop.unified.bad_ids import bad_ids
from outcrop.unified.memory import host_memory

_WIDEST = 16
# Of a kernel that reads host memory: 16 do not keep the bus busy, 64 are no faster, and most processors are left.
BUS_BLOCKS = 32


@torch.library.custom_op("outcrop::gather", mutates_args=())
def gather(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Returns rows ``index`` of ``table``.

    Args:
        table: [n, ...], any strides, any dtype; read in place.
        index: int64 or int32, any shape.

    Returns:
        [*index.shape, ...], contiguous, on the device of ``index``.

    Raises:
        IndexError: An id is negative, or not below n. A GPU is not waited for: its rows are then unset, and a later
            call raises this, or :func:`outcrop.unified.check_ids`.
        ArgumentError: ``index`` holds no integers, or ``table`` no rows.
    """
    check(table, index)
    gpu = host_memory().gpu
    if gpu is not None and index.device.type == gpu.type:
        return _on_gpu(gpu, table, index)
    host_memory().wait(table)
    host_memory().wait(index)
    flat = index.reshape(-1)
    if flat.numel() and not 0 <= int(flat.min()) <= int(flat.max()) < len(table):
        raise IndexError(f"rows {int(flat.min())} to {int(flat.max())} asked for, the table has {len(table)}")
    return table.index_select(0, flat).reshape(*index.shape, *table.shape[1:])


@gather.register_fake
def _(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return table.new_empty((*index.shape, *table.shape[1:]), device=index.device)


def _setup(ctx: Any, inputs: tuple[torch.Tensor, torch.Tensor], output: torch.Tensor) -> None:
    table, index = inputs
    ctx.save_for_backward(index)
    ctx.shape, ctx.device = table.shape, table.device


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
    """Sums the gradients of rows that were taken several times; where the table is, there is its gradient."""
    (index,) = ctx.saved_tensors
    rows = gradient.reshape(-1, *ctx.shape[1:]).to(ctx.device)
    out = torch.zeros(ctx.shape, dtype=gradient.dtype, device=ctx.device)
    return out.index_add(0, index.reshape(-1).to(ctx.device), rows), None


gather.register_autograd(_backward, setup_context=_setup)


def check(table: torch.Tensor, index: torch.Tensor) -> None:
    if index.dtype not in (torch.int64, torch.int32):
        raise ArgumentError(f"an index is int64 or int32, not {index.dtype}")
    if table.dim() == 0:
        raise ArgumentError("a tensor without dimensions has no rows to gather")


def _on_gpu(gpu: Gpu, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    out = torch.empty((*index.shape, *table.shape[1:]), dtype=table.dtype, device=index.device)
    if not out.numel():
        return out
    if not len(table):
        raise IndexError("the table has no rows")
    if not table[0].is_contiguous():  # rows with gaps inside are no rows that a warp can copy
        host_memory().wait(table)
        table = (
            host_memory().empty(tuple(table.shape), table.dtype).copy_(table)
            if table.is_cpu
            else table.contiguous()
        )
    in_host, held = table.is_cpu, None
    if host_memory().owns(table):
        table = host_memory().on_gpu(table, index.get_device())
    elif in_host:
        if not table.is_pinned():
            raise ArgumentError(
                "the GPU cannot read a table in pageable memory in place: outcrop.unified.in_place(table) lets it"
            )
        held = table  # torch does not know that it is read
    flat = index.contiguous()
    row = table[0].numel() * table.element_size()
    stride = table.stride(0) * table.element_size()
    width = word_bytes(table.data_ptr(), stride, out.data_ptr(), row)
    word, wrong = bad_ids(gpu).take()
    source = [table.data_ptr(), stride, len(table), flat.data_ptr(), flat.numel()]
    target = [out.data_ptr(), row, row // width, wrong]
    entry = f"gather_{width}_{8 * flat.element_size()}"
    most = BUS_BLOCKS if in_host else 0
    gpu.launch("gather", entry, index.device, flat.numel(), [*source, *target], most)
    bad_ids(gpu).launched(gpu, word, flat, len(table), held)
    return out


def word_bytes(*numbers: int) -> int:
    """Returns the bytes of the widest access that suits addresses, strides and widths: 1, 2, 4, 8 or 16."""
    return math.gcd(_WIDEST, *numbers)
