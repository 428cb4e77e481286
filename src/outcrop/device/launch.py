"""Kernels for a GPU: compiled by NVRTC through cuda.core when they are first used, kept in a cache.

Compiling needs neither a GPU nor a driver, so that it is tested everywhere; running needs both.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outcrop.device import kernels
from outcrop.errors import DeviceError
from outcrop.runtime.system import cache_folder

if TYPE_CHECKING:
    import torch

_STANDARD = "c++17"
_BLOCKS_A_PROCESSOR = 16
WARP, BLOCK_THREADS = 32, 256
_HOW = "pip install 'outcrop[gpu]' adds what compiles kernels"


def cuda_module(module: str) -> Any:
    """Imports a module of cuda-python, which is an extra."""
    return importlib.import_module(f"cuda.{module}")


def nvrtc_version() -> str:
    """Returns the version of NVRTC, such as ``13.0``.

    Raises:
        DeviceError: NVRTC or cuda.core is not there.
    """
    try:
        error, major, minor = cuda_module("bindings.nvrtc").nvrtcVersion()
    except (ImportError, RuntimeError, OSError) as problem:
        raise DeviceError(f"kernels cannot be compiled: {problem}; {_HOW}") from None
    if int(error) != 0:
        raise DeviceError(f"kernels cannot be compiled: NVRTC says {error}; {_HOW}")
    return f"{major}.{minor}"


def _cuda_core() -> Any:
    """Imports cuda.core; DeviceError where it is missing, or so old that it has its names in cuda.core.experimental."""
    try:
        core = cuda_module("core")
    except ImportError as problem:
        raise DeviceError(f"kernels cannot be compiled: {problem}; {_HOW}") from None
    if not hasattr(core, "Program"):
        raise DeviceError(
            f"kernels cannot be compiled: cuda-core {core.__version__} has no cuda.core.Program; {_HOW}"
        )
    return core


def compiled(name: str, arch: str) -> bytes:
    """Returns the cubin of the kernels ``name`` for ``arch`` (``sm_90``), from the cache where it is there.

    Raises:
        DeviceError: NVRTC or cuda.core is not there, or the compiler refuses.
    """
    path = (
        cache_folder() / "kernels" / f"{name}-{arch}-nvrtc{nvrtc_version()}-{kernels.digest(name)[:16]}.cubin"
    )
    try:
        return path.read_bytes()
    except OSError:
        code = compile_kernels(name, arch)
    _keep(path, code)
    return code


def compile_kernels(name: str, arch: str) -> bytes:
    """Does as :func:`compiled`, without the cache."""
    nvrtc_version()
    core = _cuda_core()
    options = core.ProgramOptions(std=_STANDARD, arch=arch, include_path=str(kernels.FOLDER.parent))
    try:
        code: Any = core.Program(kernels.source(name), "c++", options).compile("cubin").code
    except Exception as problem:  # cuda.core has a class of its own for each version
        raise DeviceError(f"kernels {name!r} cannot be compiled for {arch}: {problem}") from None
    return bytes(code)


def _keep(path: Path, code: bytes) -> None:
    """Keeps what was compiled: another process that compiles the same keeps the same; a cache that cannot be written is
    none.
    """
    made = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        made.write_bytes(code)
        made.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            made.unlink()


@cache
def _module(name: str, device: int) -> Any:
    core = cuda_module("core")
    capability = core.Device(device).compute_capability
    return core.ObjectCode.from_cubin(compiled(name, f"sm_{capability.major}{capability.minor}"))


def launch(
    name: str,
    entry: str,
    device: torch.device,
    warps: int,
    arguments: list[int],
    most_blocks: int = 0,
    block_threads: int = BLOCK_THREADS,
) -> None:
    """Runs the kernel ``entry`` of ``name`` on torch's current stream of ``device``.

    Args:
        warps: That have something to do; fewer run where the device has no room for all, and take turns.
        arguments: Addresses and int64 numbers.
        most_blocks: Blocks that run at a time; 0: as many as the device has room for. A kernel that waits for the bus
            needs few, and leaves the other processors to training.
        block_threads: Threads of a block, a multiple of 32.

    Raises:
        DeviceError: See :func:`compiled`.
    """
    import numpy as np
    import torch

    core = cuda_module("core")
    with torch.cuda.device(device):
        number = torch.cuda.current_device()
        room = most_blocks or _BLOCKS_A_PROCESSOR * _processors(number)
        blocks = min(-(-warps * WARP // block_threads), room)
        gpu = core.Device(number)
        gpu.set_current()  # torch's context, which cuda.core wants to hear of
        stream = gpu.create_stream(torch.cuda.current_stream())
        config = core.LaunchConfig(grid=max(blocks, 1), block=block_threads)
        core.launch(stream, config, _module(name, number).get_kernel(entry), *map(np.int64, arguments))


@cache
def _processors(device: int) -> int:
    import torch

    return torch.cuda.get_device_properties(device).multi_processor_count
