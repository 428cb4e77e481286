"""Rows of a mini-batch from several tables at once, each read where it lies: the GPU level of the feature store.

The kernel is kernels/assemble.h: device cache, host cache (read in place over PCIe) and staged rows in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from outcrop.device.gpu import Gpu
from outcrop.errors import ArgumentError
from outcrop.unified.gather import word_bytes
from outcrop.unified.memory import host_memory

TABLES = 3
_ROW_BITS = 56


def places(table: int, rows: np.ndarray) -> np.ndarray:
    """``rows`` of the table with that number, as :func:`assemble` wants them, uint64."""
    return np.uint64(table << _ROW_BITS) | rows.astype(np.uint64)


def assemble(gpu: Gpu, tables: Sequence[torch.Tensor], place: torch.Tensor, out: torch.Tensor) -> None:
    """``out[i] = tables[place[i] >> 56][place[i] & (1 << 56) - 1]``, on the current stream.

    Args:
        tables: At most three, uint8 [n, row bytes], of the GPU or in unified memory.
        place: int64 [len(out)] on the GPU, the bits of :func:`places`.
        out: uint8 [len(place), row bytes], on the GPU, contiguous.

    Raises:
        ArgumentError: A place is none. It is read when the kernel is done, which is waited for.
    """
    if not len(place):
        return
    number = out.get_device()
    seen = [table if table.device == out.device else host_memory().on_gpu(table, number) for table in tables]
    arguments = [x for table in seen for x in (table.data_ptr(), table.stride(0), len(table))]
    arguments += [0] * (3 * (TABLES - len(seen)))
    row = out.shape[1]
    word = word_bytes(row, out.data_ptr(), *(x for i, x in enumerate(arguments) if i % 3 < 2))
    wrong = torch.zeros(1, dtype=torch.int64, device=out.device)
    arguments += [place.data_ptr(), len(place), out.data_ptr(), row, row // word, wrong.data_ptr()]
    gpu.launch("assemble", f"assemble_{word}", out.device, len(place), arguments)
    at = int(wrong) - 1
    if at >= 0:
        raise ArgumentError(f"row {at} of the batch is at no place: {int(place[at]):#x}")
