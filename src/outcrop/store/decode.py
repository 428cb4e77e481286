"""Rows that are bytes on disk as tensors: decoded on the device where they are, by the core on the CPU, by torch
elsewhere.
"""

from __future__ import annotations

import weakref

import numpy as np
import torch

import outcrop._core as _core
from outcrop.store.quantised import Quantisation, QuantisedDecoder
from outcrop.store.row_decoder import RowDecoder
from outcrop.store.sparse_rows import SparseDecoder

_CHUNK_VALUES = 1 << 22  # that a device decodes at a time: each takes 16 bytes meanwhile
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # of values, by their bytes


def decode(
    decoder: RowDecoder,
    rows: torch.Tensor,
    workers: _core.WorkerPool | None = None,
    room: np.ndarray | None = None,
) -> torch.Tensor:
    """Returns the values of ``rows``, [n, columns] of the decoder's dtype, a tensor on their device.

    Equals :meth:`outcrop.store.row_decoder.RowDecoder.values` on every device, bit for bit. On the CPU the rows live as
    long as the values do: who lends the memory of a batch sees by its rows whether the batch is still used.

    Args:
        rows: uint8 [n, row_bytes], contiguous.
        workers: Threads that share the work on the CPU; None: the calling one does it.
        room: Memory for the values on the CPU, as :meth:`outcrop.store.row_decoder.RowDecoder.values` wants it; None:
            new memory, as everywhere else.
    """
    if rows.device.type == "cpu":
        values = decoder.values(rows.numpy(), workers or _core.WorkerPool(1), room).view(np.uint8)
        weakref.finalize(values, _let_go, rows).atexit = False
        return torch.from_numpy(values).view(getattr(torch, decoder.dtype))
    return _on_device(decoder, rows)


def _let_go(rows: torch.Tensor) -> None:
    """Does nothing: what it is handed is no longer kept."""


def _on_device(decoder: RowDecoder, rows: torch.Tensor) -> torch.Tensor:
    if isinstance(decoder, SparseDecoder):
        return _scatter(decoder, rows)
    assert isinstance(decoder, QuantisedDecoder)
    return _dequantise(decoder, decoder.quantisation, rows)


def _dequantise(decoder: QuantisedDecoder, how: Quantisation, rows: torch.Tensor) -> torch.Tensor:
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


def _scatter(decoder: SparseDecoder, rows: torch.Tensor) -> torch.Tensor:
    """Decodes sparse rows; a row that no import writes becomes NaN, for nobody waits to look at it, or, where its type
    has none, is refused.
    """
    layout, dtype = decoder.layout, getattr(torch, decoder.dtype)
    bits = _BITS[layout.value_bytes]
    # What is not to be written goes to the one value behind the last row.
    held = torch.empty(len(rows) * layout.columns + 1, dtype=bits, device=rows.device).zero_()
    out, width = held[:-1].view(dtype).view(len(rows), layout.columns), layout.column_dtype.itemsize
    common = None
    if layout.common is not None:
        raw = list(layout.common.to_bytes(layout.value_bytes, "little"))
        common = torch.tensor(raw, dtype=torch.uint8).view(bits).to(rows.device)
    steps = torch.arange(layout.stored).to(rows.device)
    step = max(_CHUNK_VALUES // layout.stored, 1)
    for first in range(0, len(rows), step):
        part = rows[first : first + step]
        head = part[:, : layout.values_at].reshape(len(part), -1, width).long()
        head = sum((head[:, :, byte] * 256**byte for byte in range(1, width)), head[:, :, 0])
        count, columns = head[:, :1], head[:, 1:]
        used = steps < count
        wrong = (count[:, 0] > layout.stored) | ((columns >= layout.columns) & used).any(1)
        wrong |= ((columns[:, 1:] <= columns[:, :-1]) & used[:, 1:]).any(1)
        row = torch.arange(first, first + len(part)).to(rows.device)[:, None]
        place = (row * layout.columns + columns).masked_fill_(~used | wrong[:, None], len(held) - 1)
        if common is None:
            # A copy begins where values of any size may; one row alone would be taken as it lies.
            values = part[:, layout.values_at :].clone(memory_format=torch.contiguous_format).view(bits)
        else:
            values = common.expand(place.shape)
        held.index_put_((place,), values)
        if dtype.is_floating_point:
            out[first : first + step].masked_fill_(wrong[:, None], torch.nan)
        elif bool(wrong.any()):
            raise decoder.refusal(part[int(wrong.long().argmax())].cpu().numpy())
    return out
