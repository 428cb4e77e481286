"""The last stage of loading: what was read for a mini-batch becomes tensors, on the device that trains.

On the CPU the tensors lie over the buffers. On a GPU the rows are put together there, on a stream of their own beside
the one that trains: cached rows come from the device cache, or from host memory that the GPU reads in place, the others
from the pinned buffer that they were read into (PyTorch-Direct 4.5; DiskGNN section 4 for the levels). That stream has
low priority, and kernels that read host memory take few processors (Hyperion III-B1). No thread waits for a batch to
arrive: the stream that uses it does (see device_buffers).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch

import outcrop._core as _core
from outcrop import device as devices
from outcrop.config import DeviceConfig
from outcrop.device.budget import DeviceBudget
from outcrop.device.gpu import Fence, Gpu, gpu_of
from outcrop.loading.buffers import BufferPool, HostBuffer, Lease
from outcrop.loading.device_buffers import DeviceBuffer, aligned
from outcrop.runtime import memory_tables
from outcrop.runtime.runtime import Runtime
from outcrop.store.address_table import AddressTable
from outcrop.store.batches import BatchGraph
from outcrop.store.decode import decode
from outcrop.store.graph_types import RowFile
from outcrop.store.minibatch import MiniBatch
from outcrop.unified import in_place
from outcrop.unified.assemble import assemble, row_addresses

_DEVICE, _HOST, _STAGED = range(3)  # tables of the kernel, as kernels/lookup.h numbers them too


@dataclass(frozen=True)
class LoadedBatch:
    """Holds a mini-batch as it was read.

    Attributes:
        lease: The right to the buffer that holds its rows.
        table: Which rows caches have; None where no cache has any, or a GPU has looked them up (``graph.on_device``).
    """

    graph: BatchGraph
    lease: Lease[HostBuffer]
    table: AddressTable | None


Arrays = Callable[[BatchGraph], Mapping[str, np.ndarray]]
"""What of a batch goes to the device beside its rows, labels, degrees, ``rowptr`` and ``col``."""


SeeRows = Callable[[int, int, np.ndarray], None]
"""Is shown rows: the number of their row file, the position of the first, and uint8 [n, row bytes]."""


class BatchInTransfer(Protocol):
    """Stands for a mini-batch whose transfer has begun."""

    def take(self) -> MiniBatch:
        """Takes the batch, in the thread that uses it, on whose current stream its tensors may be used at once."""
        ...

    def visit_rows(self, see: SeeRows, buffer: np.ndarray) -> None:
        """Shows all rows of the batch to ``see``; those on a GPU come back through ``buffer``, uint8, in pieces."""
        ...


class Transfer(Protocol):
    def deliver(
        self, batch: LoadedBatch, stopped: threading.Event, arrays: Arrays | None = None
    ) -> BatchInTransfer: ...

    def check(self) -> None:
        """Waits for what was begun; raises ArgumentError where a row of a batch was at no place."""
        ...

    def check_not_starved(self) -> None: ...

    def wake(self) -> None: ...

    def peak_by_tag(self) -> dict[str, int]:
        """Counts bytes on the device."""
        ...

    def close(self) -> None: ...


class _Rows:
    """Says how the rows of a row file are seen: ``row_bytes`` of each are in a buffer.

    Args:
        workers: Threads that decode rows in few bits.
    """

    def __init__(self, file: RowFile, row_bytes: int, workers: _core.WorkerPool):
        self.file, self.dtype, self.row_bytes = file, getattr(torch, file.spec.dtype), row_bytes
        self._workers = workers

    def ids(self, graph: BatchGraph) -> np.ndarray:
        """Returns the ids of the rows that ``graph`` wants, int64."""
        return graph.section(self.file).ids

    def num_bytes(self, graph: BatchGraph) -> int:
        """Counts the bytes of the rows that ``graph`` wants."""
        return len(self.ids(graph)) * self.row_bytes

    def typed(self, x: torch.Tensor) -> torch.Tensor:
        """Returns [n, width] over uint8 [n * row_bytes]."""
        return x.view(self.dtype).reshape(-1, self.row_bytes // self.dtype.itemsize)

    def delivered(self, rows: torch.Tensor, room: np.ndarray | None = None) -> torch.Tensor:
        """Returns what a batch has of ``rows``, typed: the same, or the values of rows that are decoded, which go to
        ``room`` on the CPU.
        """
        return rows if self.file.decoder is None else decode(self.file.decoder, rows, self._workers, room)


@dataclass(frozen=True)
class _OnCpu:
    """Stands for a batch whose rows lie in a buffer, with ``rooms`` of that for the values of rows that are decoded."""

    batch: MiniBatch
    rows: Sequence[_Rows]
    rooms: Sequence[np.ndarray]

    def take(self) -> MiniBatch:
        if all(one.file.decoder is None for one in self.rows):
            return self.batch
        taken = zip(self.rows, self.batch.rows, self.rooms, strict=True)
        return replace(self.batch, rows=tuple(one.delivered(rows, room) for one, rows, room in taken))

    def visit_rows(self, see: SeeRows, buffer: np.ndarray) -> None:
        for number, rows in enumerate(self.batch.rows):
            see(number, 0, _row_bytes_of(rows).numpy())


def _arrays_of(graph: BatchGraph) -> list[np.ndarray]:
    """Returns the arrays of a batch without rows, which may lie in the memory that its record was read to."""
    ids = [nodes.ids for nodes in graph.nodes]
    return [*ids, *(array for edges in graph.edges for array in (edges.rowptr, edges.col))]


class ToCpu:
    """Makes tensors over the buffers.

    Args:
        rows: The row files of the graph.
        device_cache: uint8, flat: rows of the only row file that a run planned for a device; None: no such level.
    """

    def __init__(self, rows: Sequence[_Rows], device_cache: np.ndarray | None = None):
        self._rows = tuple(rows)
        self._device_cache = device_cache

    def deliver(
        self, batch: LoadedBatch, stopped: threading.Event, arrays: Arrays | None = None
    ) -> BatchInTransfer:
        graph, held = batch.graph, batch.lease.buffer.rows
        # These arrays carry the lease: tensors over them keep it alive.
        data = [buffer.x[: rows.num_bytes(graph)] for rows, buffer in zip(self._rows, held, strict=True)]
        batch.lease.hand_over(*(data or _arrays_of(graph)))
        if batch.table is not None and self._device_cache is not None:
            self._fill(data[0], batch.table, self._device_cache)
        degree = None if graph.degree is None else torch.from_numpy(graph.degree)
        typed = tuple(rows.typed(torch.from_numpy(part)) for rows, part in zip(self._rows, data, strict=True))
        y = torch.from_numpy(graph.labels)
        rooms = [buffer.values for buffer in held]
        return _OnCpu(MiniBatch(graph=graph, rows=typed, y=y, degree=degree), self._rows, rooms)

    def _fill(self, data: np.ndarray, table: AddressTable, cache: np.ndarray) -> None:
        """Puts the rows that were planned for a device into their places."""
        row_bytes = self._rows[0].row_bytes
        _core.fill_rows(
            data,
            len(data) // row_bytes,
            row_bytes,
            table.device_positions,
            table.device_rows,
            cache,
            row_bytes,
        )

    def check(self) -> None: ...

    def check_not_starved(self) -> None: ...

    def wake(self) -> None: ...

    def peak_by_tag(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        self._device_cache = None


def rows_of(files: Sequence[RowFile], row_bytes: Sequence[int], runtime: Runtime) -> list[_Rows]:
    """Returns how the rows of row files are seen.

    Args:
        files: The row files of the graph.
        row_bytes: Bytes of a row of each in a buffer.
    """
    return [_Rows(file, count, runtime.workers) for file, count in zip(files, row_bytes, strict=True)]


def transfer_to(
    device: DeviceConfig,
    rows: Sequence[_Rows],
    *,
    batch_bytes: int = 0,
    device_cache: np.ndarray | tuple[torch.Tensor, Any] | None = None,
    host_cache: np.ndarray | None = None,
    table: torch.Tensor | None = None,
    budget: DeviceBudget | None = None,
) -> Transfer:
    """Makes a :class:`ToGpu` or a :class:`ToCpu`.

    Args:
        rows: The row files of the graph (:func:`rows_of`). Caches, and a table, are those of the only one.
        budget: The device's, where others hold memory of it too; None: one of ``device.memory_bytes``.

    Raises:
        DeviceError: The device is not there.
        BudgetError: It has less memory free than it may use, or needs.
    """
    there = devices.resolve(device.name)
    gpu = gpu_of(there)
    if gpu is None:
        assert not isinstance(device_cache, tuple)
        return ToCpu(rows, device_cache)
    budget = budget or DeviceBudget(gpu, there, device.memory_bytes)
    return ToGpu(
        gpu,
        there,
        rows,
        budget,
        batch_bytes=batch_bytes,
        device_cache=device_cache,
        host_cache=host_cache,
        table=table,
    )


def _row_bytes_of(rows: torch.Tensor) -> torch.Tensor:
    """Returns [n, width] as uint8 [n, row bytes]."""
    return rows.view(torch.uint8)


class _BufferToken:
    """Keeps a buffer of the device as long as the tensors over it have it."""


@dataclass(frozen=True)
class _OnGpu:
    """Stands for a batch on its way to ``buffer``; it is there for those who wait for ``arrived``."""

    gpu: Gpu
    stream_of: int  # the number of the GPU
    stream: Any  # on which it was put together
    buffer_lease: Lease[DeviceBuffer]
    arrived: Fence
    graph: BatchGraph
    rows: Sequence[_Rows]
    there: tuple[torch.Tensor, ...]  # the rows, as they lie on disk
    arrays: dict[str, torch.Tensor]

    def take(self) -> MiniBatch:
        stream, buffer, arrays = self.gpu.stream(self.stream_of), self.buffer_lease.buffer, dict(self.arrays)
        self.gpu.wait(stream, self.arrived)
        buffer.used_on(stream)
        self.buffer_lease.mark_taken()
        # torch's own does nothing for memory that it has from elsewhere.
        for tensor in (*self.there, *arrays.values()):
            setattr(tensor, "record_stream", buffer.used_on)  # noqa: B010 (torch's is a method)
        rows = tuple(one.delivered(found) for one, found in zip(self.rows, self.there, strict=True))
        for decoded, coded in zip(rows, self.there, strict=True):
            if decoded is not coded:
                setattr(decoded, "record_stream", _recording(decoded, buffer, self.gpu))  # noqa: B010
        # As long as the seeds: a loop may keep all of an epoch.
        y, degree = arrays.pop("y").clone(), arrays.pop("degree", None)
        return MiniBatch(graph=self.graph, rows=rows, y=y, degree=degree, arrays=arrays)

    def visit_rows(self, see: SeeRows, buffer: np.ndarray) -> None:
        self.arrived.synchronize()
        with self.gpu.on_stream(self.stream):  # not on that of who trains
            for number, rows in enumerate(map(_row_bytes_of, self.there)):
                step = max(len(buffer) // max(rows.shape[1], 1), 1)
                for first in range(0, len(rows), step):
                    part = rows[first : first + step]
                    held = buffer[: part.numel()].reshape(part.shape)
                    torch.from_numpy(held).copy_(part)
                    see(number, first, held)


def _recording(rows: torch.Tensor, buffer: DeviceBuffer, gpu: Gpu) -> Callable[[Any], None]:
    """Returns what ``record_stream`` of decoded ``rows`` does: for their memory, and for all else that a batch has."""
    own = weakref.ref(rows)

    def record(stream: Any) -> None:
        buffer.used_on(stream)
        if (decoded := own()) is not None:
            gpu.record(decoded, stream)

    return record


class ToGpu:
    """Puts rows together on the GPU.

    Args:
        rows: The row files of the graph. Rows of several are copied as they are in the buffers; those of one are put
            together where caches have some of them.
        batch_bytes: Bytes of a batch on the device; 0: not known ahead.
        budget: The device's.
        device_cache, host_cache: uint8, flat, rows of the caches that a batch's table names; the former is copied to
            the device, unless it is there already (with its reservation), the latter pinned where it is.
        table: uint8 [n, row_bytes] in unified memory: all rows. Batches then come without rows.
    """

    def __init__(
        self,
        gpu: Gpu,
        device: torch.device,
        rows: Sequence[_Rows],
        budget: DeviceBudget,
        *,
        batch_bytes: int = 0,
        device_cache: np.ndarray | tuple[torch.Tensor, Any] | None = None,
        host_cache: np.ndarray | None = None,
        table: torch.Tensor | None = None,
    ):
        self._gpu, self._number, self._rows, self._all = gpu, device.index or 0, tuple(rows), table
        row_bytes = rows[0].row_bytes
        self._stream = gpu.new_stream(self._number, low_priority=True)
        self._budget = budget
        self._buffers = [
            DeviceBuffer(gpu, device, budget, self._stream, batch_bytes)
            for _ in range(memory_tables.DEVICE_BATCHES)
        ]
        self._pool = BufferPool(self._buffers, "--gpu-memory")
        nothing = np.zeros(0, np.uint8)
        if isinstance(device_cache, tuple):
            there, self._held = device_cache
        else:
            cached = nothing if device_cache is None else device_cache
            with gpu.on_stream(self._stream):
                there, self._held = budget.empty("device-cache", len(cached))
                there.copy_(torch.from_numpy(cached))
        self._device_cache = there.view(-1, row_bytes)
        self._host_cache = in_place(nothing if host_cache is None else host_cache).view(-1, row_bytes)

    def deliver(
        self, batch: LoadedBatch, stopped: threading.Event, arrays: Arrays | None = None
    ) -> BatchInTransfer:
        graph, lease = batch.graph, batch.lease
        starts, sizes = self._parts(graph)
        buffer_lease = self._pool.lease(stopped)
        buffer = buffer_lease.buffer
        buffer.stage(starts[-1] + sizes[-1], self._arrays(batch, arrays), graph.on_device or {})
        graph = replace(graph, on_device=None)
        done, token = _BufferToken(), _BufferToken()
        with self._gpu.on_stream(self._stream):
            try:
                block, there = buffer.fill(token)
                parts = [block[start : start + size] for start, size in zip(starts, sizes, strict=True)]
                place = there.pop("row_addresses", None)
                if place is None:
                    self._copy_rows(batch, parts)
                else:
                    self._put_rows(batch, place, parts[0].view(-1, self._rows[0].row_bytes), buffer.wrong)
            finally:  # also what was queued before an error
                arrived = self._gpu.fence(self._stream)
                buffer.filled(arrived)
                lease.buffer.reading(arrived)
        buffer_lease.hand_over(token)
        lease.hand_over(done)  # free when this returns: who leases it waits for the fence
        typed = tuple(rows.typed(part) for rows, part in zip(self._rows, parts, strict=True))
        return _OnGpu(
            self._gpu, self._number, self._stream, buffer_lease, arrived, graph, self._rows, typed, there
        )

    def _parts(self, graph: BatchGraph) -> tuple[list[int], list[int]]:
        """Returns where in its block the rows of each row file begin, aligned, and their bytes."""
        sizes = [rows.num_bytes(graph) for rows in self._rows]
        return [0, *accumulate(aligned(size) for size in sizes[:-1])], sizes

    def _arrays(self, batch: LoadedBatch, more: Arrays | None) -> dict[str, np.ndarray]:
        graph = batch.graph
        found: dict[str, np.ndarray | None] = {
            "row_addresses": self._row_addresses(batch),
            "y": graph.labels,
            "degree": graph.degree,
            **(_lists_of(graph) if graph.on_device is None else {}),
            **({} if more is None else more(graph)),
        }
        return {name: array for name, array in found.items() if array is not None}

    def _row_addresses(self, batch: LoadedBatch) -> np.ndarray | None:
        """Finds where rows lie, as kernels want it: uint64 [num_rows], seen as int64.

        None: the GPU that drew the batch has found it (``on_device``), or rows are copied as they are.
        """
        if self._all is not None:
            found = row_addresses(0, self._rows[0].ids(batch.graph))
        elif batch.table is not None:
            found = _row_addresses(batch.table, len(self._rows[0].ids(batch.graph)))
        else:
            return None
        return found.view(np.int64)

    def _copy_rows(self, batch: LoadedBatch, parts: Sequence[torch.Tensor]) -> None:
        """Copies the rows of each row file as they are in the buffer."""
        for held, part in zip(batch.lease.buffer.rows, parts, strict=True):
            part.copy_(torch.from_numpy(held.x[: part.numel()]), non_blocking=True)

    def _put_rows(self, batch: LoadedBatch, place: torch.Tensor, out: torch.Tensor, wrong: int) -> None:
        """Puts the rows of the only row file together."""
        if self._all is not None:
            assemble(self._gpu, [self._all], place, out, wrong)
        else:
            pinned = batch.lease.buffer.rows[0].pinned
            assert pinned is not None
            staged = pinned[: out.numel()].view(-1, self._rows[0].row_bytes)
            assemble(self._gpu, [self._device_cache, self._host_cache, staged], place, out, wrong)

    def check(self) -> None:
        for buffer in self._buffers:
            buffer.check()

    def check_not_starved(self) -> None:
        self._pool.check_not_starved()

    def wake(self) -> None:
        self._pool.wake()

    def peak_by_tag(self) -> dict[str, int]:
        return self._budget.by_tag()

    def close(self) -> None:
        self._gpu.fence(self._stream).synchronize()  # it reads buffers of the host
        del self._device_cache, self._host_cache
        self._held = self._all = None
        self._buffers.clear()
        self._pool.close()


def _lists_of(graph: BatchGraph) -> dict[str, np.ndarray]:
    """Returns the neighbor lists of a batch, by the names under which a batch on a device has them."""
    indexes = {
        f"e{number}.index": edges.distinct.index
        for number, edges in enumerate(graph.edges)
        if edges.distinct is not None
    }
    if len(graph.edges) == 1:
        return {"rowptr": graph.rowptr, "col": graph.col, **indexes}
    return indexes | {
        f"e{number}.{name}": array
        for number, edges in enumerate(graph.edges)
        for name, array in (("rowptr", edges.rowptr), ("col", edges.col))
    }


def _row_addresses(table: AddressTable, count: int) -> np.ndarray:
    """Finds where each row of a packed batch lies: in a cache, or at its position in the buffer."""
    packed = np.ones(count, bool)
    packed[table.host_positions] = packed[table.device_positions] = False
    positions = np.flatnonzero(packed)
    out = np.empty(count, np.uint64)
    out[positions] = row_addresses(_STAGED, positions)
    out[table.host_positions] = row_addresses(_HOST, table.host_rows)
    out[table.device_positions] = row_addresses(_DEVICE, table.device_rows)
    return out
