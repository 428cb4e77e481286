"""A GPU that is none: torch's PrivateUse1 device over host memory, computing by the CPU, strict where CUDA is.

Its memory is apart: an operation that mixes its tensors with CPU tensors (other than scalars) fails, and so does one
on host memory that was not registered, or no longer is. For a process of its own: the device type stays.
"""

from __future__ import annotations

import bisect
import threading
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from outcrop import _core
from outcrop.device.gpu import tensor_over

NAME = "fakecuda"
_DLPACK_EXTENSION, _DLPACK_CPU = 12, 1
_BYTES = 1 << 30
_DISPATCH_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_libraries: list[torch.library.Library] = []


class FakeFence:
    """What is asked of this GPU is done at once."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...


class FakeGpu:
    """outcrop.device.gpu.Gpu"""

    type, dlpack = NAME, _DLPACK_EXTENSION

    def __init__(self) -> None:
        self.pinned: dict[int, int] = {}
        self.managed_memory: dict[int, np.ndarray] = {}
        self.ran: list[str] = []  # operators

    def register(self, address: int, num_bytes: int) -> None:
        self.pinned[address] = num_bytes

    def unregister(self, address: int) -> None:
        del self.pinned[address]

    def managed(self, num_bytes: int) -> int:
        memory = np.zeros(num_bytes, np.uint8)
        address = memory.ctypes.data
        self.managed_memory[address] = memory
        self.register(address, num_bytes)
        return address

    def free_managed(self, address: int) -> None:
        self.unregister(address)
        del self.managed_memory[address]

    def advise(self, address: int, num_bytes: int, advice: str, device: torch.device) -> int:
        assert address in self.managed_memory
        return 0

    def current(self) -> int:
        return 0

    def count(self) -> int:
        return 1

    def memory(self, device: int) -> tuple[int, int]:
        return _BYTES - _allocated.now_bytes, _BYTES

    def peak_bytes(self, device: int) -> int:
        return _allocated.peak_bytes

    def new_stream(self, device: int, *, low_priority: bool = False) -> Any:
        return ("stream of its own", device)

    def on_stream(self, stream: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def wait(self, stream: Any, fence: Any) -> None: ...

    def record(self, tensor: torch.Tensor, stream: Any) -> None: ...

    def stream(self, device: int) -> Any:
        return ("stream", device)

    def fence(self, stream: Any) -> FakeFence:
        return FakeFence()

    def launch(
        self,
        name: str,
        entry: str,
        device: torch.device,
        warps: int,
        arguments: list[int],
        most_blocks: int = 0,
    ) -> None:
        """The twin of the kernel."""
        if name == "sample":
            return self._sample(entry, warps, arguments)
        if name == "io_queue":
            return self._io_queue(entry, warps, arguments)
        bad = {"gather": self._gather, "assemble": self._assemble}[name](entry, warps, arguments[:-1])
        self.check(arguments[-1])
        if bad >= 0:
            _bytes(arguments[-1], 8).view(np.int64)[0] = bad + 1

    def _sample(self, entry: str, warps: int, arguments: list[int]) -> None:
        pointers = {
            "sample_count": (0, *range(2, 5), *range(8, 12)),
            "sample_draw": (*range(1, 4), *range(6, 9)),
            "sample_labor": (*range(1, 4), *range(5, 9)),
            "sample_compact": (1, 2, 3, 5, 6),
            "sample_mark": range(2, 5),
            "sample_number": range(2, 10),
            "sample_relabel": range(2, 13),
            "sample_advance": range(7),
        }
        for at in pointers.get(entry, (0, *range(2, 5), *range(7, 13))):
            self.check(arguments[at])
        _core.twin_sample(entry, warps, arguments)

    def _io_queue(self, entry: str, warps: int, arguments: list[int]) -> None:
        for pointer in (*arguments[:4], arguments[5], arguments[6], arguments[8], arguments[10]):
            self.check(pointer)
        if entry == "io_submit":
            assert warps == 1  # one block, which rings once
            for pointer in (arguments[15], arguments[16], *filter(None, arguments[23:24])):
                self.check(pointer)
            _core.twin_io_submit(arguments)
        else:
            self.check(arguments[11])
            _core.twin_io_complete(arguments)

    def _assemble(self, entry: str, warps: int, arguments: list[int]) -> int:
        word = int(entry.split("_")[1])
        place, count, out, row, words = arguments[9:]
        assert row == words * word
        assert warps == count
        tables = []
        for at in range(0, 9, 3):
            address, stride, rows = arguments[at : at + 3]
            if rows:
                self.check(address)
            shape = (rows, row) if rows else (0, row)
            memory = _bytes(address, 1) if rows else np.zeros(1, np.uint8)
            tables.append(np.lib.stride_tricks.as_strided(memory, shape, (stride, 1)))
        self.check(place)
        self.check(out)
        target = _bytes(out, count * row).reshape(count, row)
        return _core.twin_assemble(tables, _bytes(place, 8 * count).view(np.uint64), target, word)

    def _gather(self, entry: str, warps: int, arguments: list[int]) -> int:
        word, index_bits = (int(part) for part in entry.split("_")[1:])
        table, stride, rows, index, count, out, row, words = arguments
        assert row == words * word
        assert warps == count
        for address in (table, index, out):
            self.check(address)
        source = np.lib.stride_tricks.as_strided(_bytes(table, 1), (rows, row), (stride, 1))
        ids = _bytes(index, count * index_bits // 8).view(f"i{index_bits // 8}")
        target = _bytes(out, count * row).reshape(count, row)
        return _core.twin_gather(source, ids, target, word)

    def check(self, address: int) -> None:
        """Whether this GPU could read here."""
        at = _allocated.containing(address)
        ours = any(start <= address < start + size for start, size in self.pinned.items())
        assert at or ours, "an address that this GPU cannot read"


def _bytes(address: int, count: int) -> np.ndarray:
    interface = {"shape": (count,), "typestr": "|u1", "data": (address, False), "version": 3}
    return np.asarray(SimpleNamespace(__array_interface__=interface))


class _Allocated:
    """Memory of the fake device."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.sizes: dict[int, int] = {}
        self.now_bytes = self.peak_bytes = 0
        self._turn = threading.RLock()  # finalizers run wherever the garbage collector does

    def add(self, memory: _DeviceMemory) -> None:
        with self._turn:
            self.now_bytes += memory.num_bytes
            self.peak_bytes = max(self.peak_bytes, self.now_bytes)
            bisect.insort(self.starts, memory.address)
            self.sizes[memory.address] = memory.num_bytes

    def remove(self, address: int) -> None:
        with self._turn:
            self.starts.remove(address)
            self.now_bytes -= self.sizes.pop(address)

    def containing(self, address: int) -> bool:
        with self._turn:
            at = bisect.bisect_right(self.starts, address) - 1
            return at >= 0 and address < self.starts[at] + self.sizes[self.starts[at]]


class _DeviceMemory:
    def __init__(self, num_bytes: int):
        self.num_bytes = max(num_bytes, 1)
        self.memory = np.empty(self.num_bytes, np.uint8)
        self.address = self.memory.ctypes.data
        _allocated.add(self)

    def __del__(self) -> None:
        _allocated.remove(self.address)


_allocated = _Allocated()
gpu = FakeGpu()


def is_fake(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.device.type == NAME


def _new(shape: Any, dtype: torch.dtype | None, strides: Any = None) -> torch.Tensor:
    dtype = dtype or torch.get_default_dtype()
    like = torch.empty(tuple(shape), dtype=dtype, device="meta")
    if strides is not None:
        like = torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype, device="meta")
    elements = (
        1 + sum((n - 1) * s for n, s in zip(like.shape, like.stride(), strict=True)) if like.numel() else 0
    )
    memory = _DeviceMemory(elements * dtype.itemsize)
    return tensor_over(memory.address, like, _DLPACK_EXTENSION, 0, memory)


def _on_cpu(x: torch.Tensor) -> torch.Tensor:
    if not x.numel():
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    gpu.check(x.data_ptr())
    return tensor_over(x.data_ptr(), x, _DLPACK_CPU, 0, x)


def _copy(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    source, into = (_on_cpu(x) if is_fake(x) else x for x in (source, target))
    into.copy_(source)
    return target


def _as_strided(x: torch.Tensor, size: Any, stride: Any, offset: int | None = None) -> torch.Tensor:
    return torch.ops.aten.as_strided.default.redispatch(_DISPATCH_CPU, x, size, stride, offset)


def _returned(x: torch.Tensor, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """A result of the CPU on the device: an operand, a view of one, or new. ``pairs``: operands there, and here."""
    for ours, original in pairs:
        if x is ours:
            if x.shape != original.shape:  # out= of another size
                fresh = _returned(x.clone(), [])
                original.set_(fresh.untyped_storage(), 0, x.shape, x.stride())
            return original
    for ours, original in pairs:
        if x.numel() and ours.numel() and x.untyped_storage().data_ptr() == ours.untyped_storage().data_ptr():
            offset = (x.data_ptr() - original.untyped_storage().data_ptr()) // x.element_size()
            return _as_strided(original, x.shape, x.stride(), offset)
    out = _new(x.shape, x.dtype, x.stride())
    _on_cpu(out).copy_(x)
    return out


def _run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """``op`` by the CPU on the same memory; what comes out in new memory of the device, or in that of an operand."""
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []  # ours, and the original

    def there(x: Any) -> Any:
        if is_fake(x):
            pairs.append((_on_cpu(x), x))
            return pairs[-1][0]
        if isinstance(x, torch.Tensor) and x.dim() > 0:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found {NAME} and {x.device} in {op}"
            )
        return torch.device("cpu") if isinstance(x, torch.device) else x

    def back(x: Any) -> Any:
        return _returned(x, pairs) if isinstance(x, torch.Tensor) else x

    gpu.ran.append(str(op))
    args, kwargs = tree_map(there, (list(args), kwargs))
    return tree_map(back, op(*args, **kwargs))


def install() -> None:
    """Registers the device with torch, for as long as the process lives."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(NAME)
    aten = torch.library.Library("aten", "IMPL")
    rest = torch.library.Library("_", "IMPL")
    _libraries.extend([aten, rest])
    key = "PrivateUse1"

    def empty(size: Any, *, dtype: Any = None, **_: Any) -> torch.Tensor:
        return _new(size, dtype)

    def empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> torch.Tensor:
        return _new(size, dtype, stride)

    aten.impl("empty.memory_format", empty, key)
    aten.impl("empty_strided", empty_strided, key)
    aten.impl("_copy_from", _copy, key)
    aten.impl("_copy_from_and_resize", lambda source, target: _copy(source, target), key)
    aten.impl("as_strided", _as_strided, key)
    aten.impl("_local_scalar_dense", lambda x: _on_cpu(x).item(), key)
    for name in ("view", "_reshape_alias", "unfold", "set_.source_Storage_storage_offset"):
        base, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, base), overload or "default")
        aten.impl(name, partial(op.redispatch, _DISPATCH_CPU), key)
    rest.fallback(_run, key)
    # Structured operators have a kernel that a fallback does not replace.
    for full in torch._C._dispatch_get_registrations_for_dispatch_key(
        "CompositeExplicitAutogradNonFunctional"
    ):
        base, _, overload = full.removeprefix("aten::").partition(".")
        op = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
        if full.startswith("aten::") and op is not None:
            try:
                aten.impl(full.removeprefix("aten::"), partial(_run, op), key)
            except RuntimeError:  # one of ours above
                continue
