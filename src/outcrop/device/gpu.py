"""What is asked of a kind of GPU: pinning host memory, streams, kernels. CUDA is one; tests bring another."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import outcrop._core as _core
from outcrop.device.launch import BLOCK_THREADS, cuda_module, launch
from outcrop.errors import DeviceError

if TYPE_CHECKING:
    import torch

_PORTABLE, _MAPPED = 1, 2  # cudaHostRegister: for every context, and in the address space of the GPU
ADVICE = tuple(
    f"{how}{what}" for how in ("Set", "Unset") for what in ("ReadMostly", "PreferredLocation", "AccessedBy")
)


class Gpu(Protocol):
    """Describes a kind of GPU. Numbers of devices are those of torch."""

    type: str  # of its torch devices
    dlpack: int  # its number in DLPack

    def register(self, address: int, num_bytes: int) -> None:
        """Lets the GPU read and write this host memory, no byte of which is registered.

        Raises:
            DeviceError: It cannot. No later call fails for it.
        """
        ...

    def unregister(self, address: int) -> None: ...

    def managed(self, num_bytes: int) -> int:
        """Returns the address of new memory that the driver may move between host and GPU."""
        ...

    def free_managed(self, address: int) -> None: ...

    def advise(self, address: int, num_bytes: int, advice: str, device: torch.device) -> int:
        """Advises the driver about memory; returns CUDA's error code."""
        ...

    def current(self) -> int: ...

    def count(self) -> int: ...

    def memory(self, device: int) -> tuple[int, int]:
        """Returns the bytes of the device that are free, and all."""
        ...

    def peak_bytes(self, device: int) -> int:
        """Counts the most bytes that tensors of this process had there at a time."""
        ...

    def new_stream(self, device: int, *, low_priority: bool = False, high_priority: bool = False) -> Any:
        """Makes a stream of its own.

        Args:
            low_priority: Its kernels get processors when streams of the usual priority leave them some, where there is
                a lower one: CUDA's usual one is its lowest.
            high_priority: Its kernels get the next processors that are free, before what waits in other streams.
        """
        ...

    def on_stream(self, stream: Any) -> AbstractContextManager[Any]:
        """Has what is launched within go to ``stream``."""
        ...

    def wait(self, stream: Any, fence: Fence) -> None:
        """Has what ``stream`` is given from now on run after ``fence`` has passed; the calling thread goes on."""
        ...

    def record(self, tensor: torch.Tensor, stream: Any) -> None:
        """Has memory of ``tensor`` handed out again only when ``stream`` has done all it has been given until the
        tensor is freed: ``Tensor.record_stream``, for tensors that another stream than the allocating one uses.
        """
        ...

    def stream(self, device: int) -> Any:
        """Returns the stream that what is launched on ``device`` now is launched on: hashable."""
        ...

    def launch(
        self,
        name: str,
        entry: str,
        device: torch.device,
        warps: int,
        arguments: list[int],
        most_blocks: int = 0,
        block_threads: int = BLOCK_THREADS,
    ) -> None:
        """Launches kernels: see :func:`outcrop.device.launch.launch`."""
        ...

    def fence(self, stream: Any) -> Fence:
        """Makes a fence that is passed when everything is done that ``stream`` has been given by now."""
        ...


class Fence(Protocol):
    def query(self) -> bool: ...

    def synchronize(self) -> None: ...


class Cuda:
    """Does what :class:`Gpu` says by torch's CUDA runtime and, for managed memory, cuda-python."""

    type, dlpack = "cuda", 2

    def register(self, address: int, num_bytes: int) -> None:
        import torch

        runtime: Any = torch.cuda.cudart()
        error = int(runtime.cudaHostRegister(address, num_bytes, _PORTABLE | _MAPPED))
        if error != 0:
            _clear_error()
            raise DeviceError(
                f"{num_bytes} bytes of host memory cannot be pinned for the GPU (CUDA error {error}); use less, "
                "raise the limit on locked memory (ulimit -l), or copy what is mapped for reading only"
            )

    def unregister(self, address: int) -> None:
        import torch

        runtime: Any = torch.cuda.cudart()
        if int(runtime.cudaHostUnregister(address)) != 0:
            _clear_error()

    def managed(self, num_bytes: int) -> int:
        runtime = cuda_module("bindings.runtime")
        error, address = runtime.cudaMallocManaged(num_bytes, runtime.cudaMemAttachGlobal)
        if int(error) != 0:
            raise DeviceError(f"{num_bytes} bytes of managed memory cannot be had ({error})")
        return int(address)

    def free_managed(self, address: int) -> None:
        cuda_module("bindings.runtime").cudaFree(address)

    def advise(self, address: int, num_bytes: int, advice: str, device: torch.device) -> int:
        runtime = cuda_module("bindings.runtime")
        number = self.current() if device.index is None else device.index
        if int(cuda_module("bindings").__version__.split(".")[0]) >= 13:
            place: Any = runtime.cudaMemLocation()
            kinds = runtime.cudaMemLocationType
            on_gpu = device.type == self.type
            place.type = kinds.cudaMemLocationTypeDevice if on_gpu else kinds.cudaMemLocationTypeHost
            place.id = number if on_gpu else 0
        else:
            place = number if device.type == self.type else -1  # cudaCpuDeviceId
        (error,) = runtime.cudaMemAdvise(
            address, num_bytes, getattr(runtime.cudaMemoryAdvise, f"cudaMemAdvise{advice}"), place
        )
        return int(error)

    def current(self) -> int:
        import torch

        return torch.cuda.current_device()

    def count(self) -> int:
        import torch

        return torch.cuda.device_count()

    def memory(self, device: int) -> tuple[int, int]:
        import torch

        return torch.cuda.mem_get_info(device)

    def peak_bytes(self, device: int) -> int:
        import torch

        return int(torch.cuda.max_memory_allocated(device))

    def new_stream(self, device: int, *, low_priority: bool = False, high_priority: bool = False) -> Any:
        import torch

        return torch.cuda.Stream(device, priority=-1 if high_priority else int(low_priority))

    def on_stream(self, stream: Any) -> AbstractContextManager[Any]:
        import torch

        return torch.cuda.stream(stream)

    def wait(self, stream: Any, fence: Fence) -> None:
        stream.wait_event(fence)

    def record(self, tensor: torch.Tensor, stream: Any) -> None:
        tensor.record_stream(stream)

    def stream(self, device: int) -> Any:
        import torch

        return torch.cuda.current_stream(device)

    launch = staticmethod(launch)

    def fence(self, stream: Any) -> Fence:
        return stream.record_event()


def _clear_error() -> None:
    """Forgets the error that the last call of torch's CUDA runtime has left in this thread.

    The runtime keeps it until it is asked, which torch does when it next launches a kernel: that launch fails,
    whoever's it is, and the error is gone. So here is one. torch does not offer cudaGetLastError, and cuda-python has a
    runtime of its own, which knows nothing of this error. One that stays (of a kernel that read a wrong address) stays.
    """
    import torch

    with contextlib.suppress(RuntimeError):
        torch.empty(1, device="cuda").fill_(0)


def _cuda() -> Gpu | None:
    import torch

    if torch.cuda._is_in_bad_fork() or not torch.cuda.is_available():
        return None
    return Cuda()


KINDS: dict[str, Callable[[], Gpu | None]] = {"cuda": _cuda}
"""By the type of their torch devices; None where this process cannot use it, as after a fork."""


def usable() -> Gpu | None:
    """Finds the GPU of this process, of the first kind that there is."""
    return next((gpu for kind in KINDS.values() if (gpu := kind()) is not None), None)


def gpu_of(device: torch.device) -> Gpu | None:
    """Returns the kind that ``device`` is one of; None for the CPU."""
    return KINDS[device.type]() if device.type in KINDS else None


def seen_by(gpu: Gpu, tensor: torch.Tensor, device: int, *, keeping: Any = None) -> torch.Tensor:
    """Returns the memory of ``tensor`` as a tensor of GPU ``device``, without a copy; keeps ``keeping`` (it) alive.

    Args:
        tensor: Strided, in memory of the device, or of the host that is registered with, or managed by, CUDA.
    """
    keeping = tensor if keeping is None else keeping
    return tensor_over(tensor.data_ptr(), tensor, gpu.dlpack, device, keeping)


def tensor_over(
    address: int, like: torch.Tensor, device_type: int, device: int, keeping: Any
) -> torch.Tensor:
    """Returns a tensor of the shape, strides and dtype of ``like`` over memory at ``address``; keeps ``keeping`` alive.

    Args:
        device_type: A number of DLPack.
    """
    import torch

    dtype = like.dtype
    kind = 5 if dtype.is_complex else 2 if dtype.is_floating_point else 0 if dtype.is_signed else 1
    kind = {torch.bfloat16: 4, torch.bool: 6}.get(dtype, kind)
    if kind == 2 and dtype.itemsize == 1:
        # Not every torch can exchange these floats: as bytes, and back.
        return tensor_over(address, like.detach().view(torch.uint8), device_type, device, keeping).view(dtype)
    shape, strides = list(like.shape), list(like.stride())
    return torch.from_dlpack(
        _core.memory_as(address, shape, strides, kind, 8 * dtype.itemsize, device_type, device, keeping)
    )
