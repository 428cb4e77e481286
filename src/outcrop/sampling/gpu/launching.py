"""The sampling kernels on a device, or those of the CPU, and what the host learns of the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import outcrop._core as _core
from outcrop.device.gpu import Gpu
from outcrop.unified.memory import host_memory

LANES = 32


class Kernels:
    """Launches kernels on the current stream of ``device``, and copies numbers there and back."""

    def __init__(self, gpu: Gpu | None, device: torch.device):
        self._gpu, self._device = gpu, device
        self._staged = {name: torch.empty(0, dtype=torch.int64) for name in ("there", "back")}

    def launch(self, entry: str, warps: int, *arguments: Any) -> None:
        """Launches a kernel on ``arguments``: numbers, and tensors whose addresses are meant."""
        plain = [x.data_ptr() if isinstance(x, torch.Tensor) else _signed(x) for x in arguments]
        if self._gpu is None:
            _core.cpu_sample(f"sample_{entry}", warps, plain)
        else:
            self._gpu.launch("sample", f"sample_{entry}", self._device, warps, plain)

    def each(self, entry: str, count: int, *arguments: Any) -> None:
        """Launches a kernel with a lane for each of ``count``."""
        self.launch(entry, -(-count // LANES), *arguments)

    def there(self, numbers: np.ndarray) -> torch.Tensor:
        """Copies int64 to the device. Not again before :meth:`read`: both use the same pinned memory."""
        if self._gpu is None:
            return torch.from_numpy(numbers.copy())
        staged = self._pinned("there", len(numbers))
        staged.numpy()[:] = numbers
        found = torch.empty(len(numbers), dtype=torch.int64, device=self._device)
        return found.copy_(staged, non_blocking=True)

    def read(self, numbers: torch.Tensor) -> list[int]:
        """Copies int64 of the device to the host: waits for all that the stream was given so far."""
        if self._gpu is None:
            return numbers.tolist()
        staged = self._pinned("back", len(numbers))
        staged.copy_(numbers, non_blocking=True)
        self.wait()
        return staged.tolist()

    def wait(self) -> None:
        """Waits until the stream has done what it was given."""
        if self._gpu is not None:
            self._gpu.fence(self._gpu.stream(self._device.index or 0)).synchronize()

    def _pinned(self, name: str, count: int) -> torch.Tensor:
        if len(self._staged[name]) < count:
            self._staged[name] = host_memory().empty((count,), torch.int64)
        return self._staged[name][:count]


def _signed(number: int) -> int:
    """Returns the int64 of the same bits."""
    return number - (1 << 64) if number >= 1 << 63 else number
