"""Arrays of a topology where a device reads them: its own memory, or the host's, pinned where it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from outcrop.sampling.gpu.staged_copy import StagedCopy
from outcrop.unified import in_place
from outcrop.unified.memory import host_memory

_COPIED = 1 << 22  # elements at a time


class Resident:
    """Holds an array of the topology where the device reads it.

    Args:
        on_gpu: Whether ``device`` is one.
        stays: The array is pinned where it is; else a GPU gets a copy.
        staged: Copies it, by the time it is closed; None: it is copied at once, for arrays of an index.
    """

    def __init__(
        self,
        array: np.ndarray,
        device: torch.device,
        on_gpu: bool,
        stays: bool,
        staged: StagedCopy | None = None,
    ):
        self._device, self._pinned = device, on_gpu and stays
        words = array.view(np.int32) if array.itemsize == 4 else array  # torch hardly knows uint32
        self._held: Any = words
        if self._pinned:
            self._held = in_place(words).as_subclass(torch.Tensor)
        elif on_gpu:
            self._held = torch.empty(len(words), dtype=_dtype_of(words), device=device)
            if staged is not None:
                staged.copy(words, self._held)
                return
            for at in range(0, len(words), _COPIED):
                part = torch.from_numpy(words[at : at + _COPIED].copy())
                self._held[at : at + len(part)].copy_(part)

    def address(self) -> int:
        """Returns its address for what is launched now on the current stream."""
        if isinstance(self._held, np.ndarray):
            return self._held.ctypes.data
        if self._pinned and self._held.numel():
            return host_memory().on_gpu(self._held, self._device.index).data_ptr()
        return self._held.data_ptr()


def _dtype_of(array: np.ndarray) -> torch.dtype:
    return torch.int32 if array.itemsize == 4 else torch.int64
