"""Tensors in host memory that a GPU reads in place: PyTorch-Direct on stock PyTorch.

``features = unified.to_unified(features)`` and ``features[gpu_ids]`` are all that a training script needs; where an
operation is computed and what its result is follow the paper's table 3 (placement.py). Without CUDA all of it works,
on the CPU. ``unified.enable()`` lets torch's own functions take ``"unified"`` as a device.
"""

from __future__ import annotations

from typing import Any, TypeVar, overload

import numpy as np
import torch

from outcrop.errors import ArgumentError
from outcrop.unified.bad_ids import bad_ids
from outcrop.unified.gather import gather
from outcrop.unified.memory import host_memory
from outcrop.unified.mode import UnifiedMode, enable
from outcrop.unified.tensor import (
    UnifiedDevice,
    UnifiedTensor,
    copy_to_unified,
    in_unified_memory,
    replacing_parameters,
)

__all__ = [
    "UnifiedDevice",
    "UnifiedMode",
    "UnifiedTensor",
    "check_ids",
    "device",
    "empty",
    "empty_cache",
    "enable",
    "gather",
    "in_place",
    "is_unified",
    "synchronize",
    "to_unified",
]

device = UnifiedDevice
Module = TypeVar("Module", bound=torch.nn.Module)


@overload
def to_unified(x: torch.Tensor, device: UnifiedDevice | None = ...) -> UnifiedTensor: ...
@overload
def to_unified(x: Module, device: UnifiedDevice | None = ...) -> Module: ...
def to_unified(x: Any, device: UnifiedDevice | None = None) -> Any:
    """Returns a copy of a tensor in memory that the GPU reads in place, or a module whose parameters and buffers are
    such.

    Args:
        x: Strided, on any device. autograd sees the copy.
        device: What it is created with: ``unified.device(propagatedToCUDA=True)`` prefers the GPU.

    Raises:
        DeviceError: So much memory cannot be pinned.
    """
    device = device or UnifiedDevice()
    if isinstance(x, torch.nn.Module):
        with replacing_parameters():
            return x._apply(lambda tensor: copy_to_unified(tensor, device))
    return copy_to_unified(x, device)


def empty(*size: int, dtype: torch.dtype | None = None, device: UnifiedDevice | None = None) -> UnifiedTensor:
    """Returns a tensor of unset values, as torch.empty makes."""
    return (device or UnifiedDevice()).empty(size, dtype)


def in_place(x: torch.Tensor | np.ndarray, *, propagatedToCUDA: bool = False) -> UnifiedTensor:
    """Returns a unified tensor over the memory of ``x``, which is pinned where it is, not copied.

    The memory stays pinned, and alive, as long as a tensor made of this one lives. Writing to one is writing to the
    other.

    Args:
        x: A CPU tensor, any strides and offset, or a writable array. All of the tensor's storage is pinned, or all of
            the array that ``x`` is a part of.

    Raises:
        ArgumentError: It is on a GPU, or cannot be written.
        DeviceError: Its memory cannot be pinned.
    """
    if isinstance(x, np.ndarray):
        if not x.flags.writeable:
            raise ArgumentError(
                "the array is read-only, as a file mapped for reading is: copy it with to_unified()"
            )
        x = _over_whole_array(x)
    if isinstance(x, UnifiedTensor):
        return x
    if not x.is_cpu or x.layout is not torch.strided:
        raise ArgumentError(
            f"only a strided tensor of the CPU has memory to use in place, not one on {x.device}"
        )
    return in_unified_memory(host_memory().adopt(x), propagatedToCUDA)


def _over_whole_array(x: np.ndarray) -> torch.Tensor:
    """Returns ``torch.from_numpy(x)`` with the storage of the array that ``x`` is a part of, where it is one."""
    whole = x
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    offset, odd = divmod(x.ctypes.data - whole.ctypes.data, x.itemsize)
    if (
        whole.base is not None
        or not whole.flags.c_contiguous
        or not whole.flags.writeable
        or odd
        or not x.size
    ):
        return torch.from_numpy(x)
    part = torch.from_numpy(x)
    storage = torch.from_numpy(whole.reshape(-1).view(np.uint8)).untyped_storage()
    return torch.empty(0, dtype=part.dtype).set_(storage, offset, part.shape, part.stride())


def synchronize(x: torch.Tensor | np.ndarray) -> None:
    """Blocks until GPUs are done with the memory of a unified tensor, all that were given work on it by now.

    Needed before memory of :func:`in_place` is read or written by its other name, the original tensor or array, and
    before an array of ``u.numpy()`` is, when the GPU has been given work on the tensor since. What goes by the name of
    a unified tensor waits by itself.

    Args:
        x: A unified tensor, or any tensor of the CPU or writable array that has memory in common with some.
    """
    host_memory().synchronize(torch.from_numpy(x) if isinstance(x, np.ndarray) else x)


def check_ids() -> None:
    """Waits for the gathers that GPUs were given so far, and looks whether their tables have all rows.

    Nothing waits for a gather, so that an error of one shows at a later one, or here.

    Raises:
        IndexError: An id is negative, or not below the number of rows.
    """
    gpu = host_memory().gpu
    if gpu is not None:
        bad_ids(gpu).check()


def empty_cache() -> None:
    """Gives unused memory of unified tensors back to the system, as ``torch.cuda.empty_cache`` does on the GPU.

    It waits for GPUs that still use what has been given back.
    """
    host_memory().collect(wait=True, release=True)


def is_unified(x: torch.Tensor) -> bool:
    """Tells whether ``x`` is a unified tensor."""
    return isinstance(x, UnifiedTensor)
