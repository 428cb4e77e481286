"""The only module that knows CUDA. Nothing here touches it before a function is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from outcrop.errors import ArgumentError, DeviceError

if TYPE_CHECKING:
    import torch


def resolve(name: str) -> torch.device:
    """The torch device called ``name`` (``cpu``, ``cuda``, ``cuda:1``).

    Raises:
        DeviceError: It is not there; the message says what is missing.
    """
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        raise ArgumentError(f"device {name!r} is unknown; write cpu or cuda") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            why = (
                "this torch is a CPU build"
                if torch.version.cuda is None
                else "no CUDA driver or device was found"
            )
            raise DeviceError(
                f"device {name!r} is not usable: {why}; use --device cpu, or install a CUDA build of torch"
            )
        if device.index is not None and device.index >= torch.cuda.device_count():
            raise DeviceError(f"device {name!r} is not there: this machine has {torch.cuda.device_count()}")
    elif device.type != "cpu":
        raise DeviceError(f"device {name!r} is not supported; use cpu or cuda")
    return device


class HostRegistration:
    """Pins the memory of an array in place, so that copies to the device run asynchronously."""

    def __init__(self, array: np.ndarray):
        import torch

        self._address = array.ctypes.data
        self._runtime: Any = torch.cuda.cudart()
        error = self._runtime.cudaHostRegister(self._address, array.nbytes, 0)
        if int(error) != 0:
            raise DeviceError(
                f"cannot pin {array.nbytes} bytes of host memory for the device (CUDA error {int(error)}); "
                "lower --memory or raise the limit on locked memory (ulimit -l)"
            )

    def release(self) -> None:
        self._runtime.cudaHostUnregister(self._address)
