"""Rows of a mini-batch from several tables at once, each read where it lies: the GPU level of the feature store.

The kernel is kernels/assemble.h: device cache, host cache (read in place over PCIe) and staged rows in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from outcrop.device.gpu import Gpu
from outcrop.unified.gather import BUS_BLOCKS, word_bytes
from outcrop.unified.memory import host_memory

TABLES = 3
_ROW_BITS = 56


def row_addresses(table: int, rows: np.ndarray) -> np.ndarray:
    """Returns the addresses of ``rows`` of the table with that number, as :func:`assemble` wants them, uint64."""
    return np.uint64(table << _ROW_BITS) | rows.astype(np.uint64)


def assemble(
    gpu: Gpu, tables: Sequence[torch.Tensor], place: torch.Tensor, out: torch.Tensor, wrong: int
) -> None:
    """Does ``out[i] = tables[place[i] >> 56][place[i] & (1 << 56) - 1]`` on the current stream; nothing is waited for.

    Args:
        tables: At most three, uint8 [n, row bytes], of the GPU or in unified memory.
        place: int64 [len(out)] on the GPU, the bits of :func:`row_addresses`.
        out: uint8 [len(place), row bytes], on the GPU, contiguous.
        wrong: Address of an int64 that the GPU can write, which becomes 1 + i for some i whose place is none; such
            rows of ``out`` stay as they are.
    """
    if not len(place):
        return
    number = out.get_device()
    in_host = any(len(table) and table.device != out.device for table in tables)
    seen = [table if table.device == out.device else host_memory().on_gpu(table, number) for table in tables]
    arguments = [x for table in seen for x in (table.data_ptr(), table.stride(0), len(table))]
    arguments += [0] * (3 * (TABLES - len(seen)))
    row = out.shape[1]
    word = word_bytes(row, out.data_ptr(), *(x for i, x in enumerate(arguments) if i % 3 < 2))
    arguments += [place.data_ptr(), len(place), out.data_ptr(), row, row // word, wrong]
    most = BUS_BLOCKS if in_host else 0
    gpu.launch("assemble", f"assemble_{word}", out.device, len(place), arguments, most)
