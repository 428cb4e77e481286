"""Rows in few bits as tensors: decoded on the device where they are, by the core on the CPU, by torch elsewhere."""

from __future__ import annotations

import weakref

import numpy as np
import torch

import outcrop._core as _core
from outcrop.store.quantised import RowDecoder

_CHUNK_VALUES = 1 << 22  # that a device decodes at a time: each takes 16 bytes meanwhile


def decode(decoder: RowDecoder, rows: torch.Tensor, workers: _core.WorkerPool | None = None) -> torch.Tensor:
    """Returns the values of ``rows``, float32 [n, columns], a new tensor on their device.

    Equals :meth:`outcrop.store.quantised.RowDecoder.values` on every device, bit for bit. On the CPU the rows live as
    long as the values do: who lends the memory of a batch sees by its rows whether the batch is still used.

    Args:
        rows: uint8 [n, row_bytes], contiguous.
        workers: Threads that share the work on the CPU; None: the calling one does it.
    """
    if rows.device.type == "cpu":
        values = decoder.values(rows.numpy(), workers or _core.WorkerPool(1))
        weakref.finalize(values, _let_go, rows).atexit = False
        return torch.from_numpy(values)
    return _on_device(decoder, rows)


def _let_go(rows: torch.Tensor) -> None:
    """Does nothing: what it is handed is no longer kept."""


def _on_device(decoder: RowDecoder, rows: torch.Tensor) -> torch.Tensor:
    how = decoder.quantisation
    out = torch.empty(len(rows), how.columns, device=rows.device)
    scale = offset = None
    if how.scale == "column":
        scale, offset = torch.from_numpy(decoder.scales.astype(np.float64)).to(rows.device)
    low, shift = torch.tensor([15, 4], dtype=torch.uint8).to(rows.device)
    step = max(_CHUNK_VALUES // how.columns, 1)
    for first in range(0, len(rows), step):
        part = rows[first : first + step]
        if scale is None or offset is None:
            own = part[:, : how.head_bytes].contiguous().view(torch.float32).double()
            by, beyond = own[:, :1], own[:, 1:]
        else:
            by, beyond = scale, offset
        codes = part[:, how.head_bytes :]
        if how.bits == 4:
            codes = torch.stack([codes & low, codes >> shift], 2).flatten(1)[:, : how.columns]
        out[first : first + step] = codes.double().mul_(by).add_(beyond)
    return out
