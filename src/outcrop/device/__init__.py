"""The only module that knows CUDA. Nothing here touches it before a function is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outcrop.device.gpu import KINDS, Gpu, gpu_of
from outcrop.errors import ArgumentError, DeviceError

if TYPE_CHECKING:
    import torch


def gpu_named(name: str) -> Gpu | None:
    """Returns the kind of GPU that the device called ``name`` is; None for the CPU. Raises as :func:`resolve`.

    For the CPU torch is not imported.
    """
    return None if name == "cpu" else gpu_of(resolve(name))


def resolve(name: str) -> torch.device:
    """Returns the torch device called ``name`` (``cpu``, ``cuda``, ``cuda:1``).

    Raises:
        DeviceError: It is not there; the message says what is missing.
    """
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        raise ArgumentError(f"device {name!r} is unknown; write cpu or cuda") from None
    if device.type in KINDS:
        gpu = gpu_of(device)
        if gpu is None:
            why = (
                "this torch is a CPU build"
                if torch.version.cuda is None
                else "no CUDA driver or device was found"
            )
            raise DeviceError(
                f"device {name!r} is not usable: {why}; use --device cpu, or install a CUDA build of torch"
            )
        if device.index is not None and device.index >= gpu.count():
            raise DeviceError(f"device {name!r} is not there: this machine has {gpu.count()}")
    elif device.type != "cpu":
        raise DeviceError(f"device {name!r} is not supported; use cpu or cuda")
    return device
