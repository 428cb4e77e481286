"""The memory that a plan divides: batch buffers and fixed parts of loading, what they leave for caches."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import outcrop._core as _core
from outcrop.config import PlanConfig, exact_bytes, least_bytes
from outcrop.errors import BudgetError
from outcrop.loading.buffers import device_batch_bytes, values_bytes
from outcrop.runtime import memory_tables
from outcrop.runtime.memory_plan import MemoryPlan, divide
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import UNLIMITED
from outcrop.store import record
from outcrop.store.graph import Graph
from outcrop.store.graph_types import RowFile
from outcrop.store.manifest import Manifest
from outcrop.store.samples import BatchSizes
from outcrop.store.targets import target_bytes


@dataclass(frozen=True)
class HostMemory:
    """Says how the host budget of loading is divided, bytes.

    Attributes:
        slot_rows_bytes: Of a batch buffer, for the rows of each row file as they lie on disk.
        slot_values_bytes: Of a batch buffer, for the values of rows that are decoded.
        shared_scratch_bytes: For reading the disk cache.
    """

    slots: int
    slot_rows_bytes: tuple[int, ...]
    slot_values_bytes: int
    slot_meta_bytes: int
    shared_scratch_bytes: int
    fixed_bytes: int
    cache_bytes: int


def divide_host_memory(samples: BatchSizes, config: PlanConfig, files: Sequence[RowFile]) -> HostMemory:
    """Gives memory to batch buffers first (2 to 4), then fixed costs, the rest caches the hottest rows.

    Several processes have equal parts of it, and one cache together: what is said of buffers is of each of them.

    Raises:
        BudgetError: Not even two batch buffers fit; names the smallest budget that does.
    """
    sections = [(samples.section(rows), rows.row_bytes) for rows in files]
    rows_bytes = tuple(record.align_page(one.max_rows * row) + 2 * PAGE_BYTES for one, row in sections)
    most_rows = sum(one.max_rows for one, _ in sections)
    # The record as read (address tables have 8 bytes per cached row), and its arrays decoded (ids widen to 64 bits).
    meta_bytes = record.align_page(samples.max_record_bytes + most_rows * 8 + 24 * (len(files) - 1))
    values = sum(values_bytes(one.max_rows, of) for (one, _), of in zip(sections, files, strict=True))
    slot = sum(rows_bytes) + values + 2 * meta_bytes + samples.decoded_bytes
    # Indexes of batches and records, and the buffer through which graphs are read that are not packed.
    of_files = sum(8 * (one.num_runs + 4) + 12 for one, _ in sections)
    of_batch = max((samples.hops + 6) * 32, 8 * (samples.columns + 5) + of_files)
    tables = samples.num_batches * of_batch + record.align_page(samples.max_record_bytes)
    if config.disk_space is not None:  # checksums of the pages of the disk cache, as large as it may become
        wanted = sum(int(one.num_rows.sum()) * row for one, row in sections)
        largest_cache = min(config.disk_space, wanted)
        tables += record.align_page(largest_cache // PAGE_BYTES * 5)
    processes = config.processes or 1
    limit = None if config.memory is None else config.memory // processes
    if limit is None:
        return HostMemory(
            config.slots or memory_tables.MOST_BATCH_BUFFERS,
            rows_bytes,
            values,
            meta_bytes,
            memory_tables.READ_SCRATCH.bytes_of(1 << 62),
            0,
            1 << 62,
        )

    def shared_scratch(total: int) -> int:
        least = max(_core.RowReader.min_scratch_bytes(row) for _, row in sections)
        return 0 if config.disk_space is None else memory_tables.DISK_CACHE_SCRATCH.bytes_of(total, least)

    def fixed(total: int) -> int:
        # I/O bounce buffers and the scratch of row-by-row reading, for what is not packed and for the disk cache.
        scratch = memory_tables.READ_SCRATCH.bytes_of(total) + shared_scratch(total)
        return tables + memory_tables.IO_BUFFERS.bytes_of(total) + scratch + memory_tables.SMALL_TABLES.least

    room = min(memory_tables.PACKED_BATCHES.bytes_of(limit), limit - fixed(limit))
    fewest, most_slots = memory_tables.BATCH_BUFFERS, memory_tables.MOST_BATCH_BUFFERS
    slots = config.slots or max(
        (k for k in range(fewest, most_slots + 1) if k * slot <= room), default=fewest
    )
    left = limit - slots * slot - fixed(limit)
    if left < 0:
        # What is left rises with the limit, so the smallest that does is found by bisection.
        smallest = bisect_left(
            range(2 * (slots * slot + tables + memory_tables.SMALL_TABLES.least)),
            0,
            key=lambda total: total - slots * slot - fixed(total),
        )
        of_each = f" for each of {processes} processes" if processes > 1 else ""
        rows_of = " and ".join(
            f"{one.max_rows} rows of {exact_bytes(of.row_bytes)}"
            + (f" and their values of {exact_bytes(of.decoded_bytes)}" if of.decoded_bytes else "")
            for (one, _), of in zip(sections, files, strict=True)
        )
        raise BudgetError(
            f"a memory budget of {exact_bytes(limit)}{of_each} cannot hold {slots} mini-batches of up to {rows_of}; "
            f"the smallest budget that can is {least_bytes(smallest)}{of_each}, or lower --batch-size or --fanouts"
        )
    overhead = slots * (slot - sum(rows_bytes) - values) + fixed(limit)
    return HostMemory(
        slots, rows_bytes, values, meta_bytes, shared_scratch(limit), overhead, left * processes
    )


def memory_plan(manifest: Manifest) -> MemoryPlan | None:
    """Returns what each part has of the budget that the plan of ``manifest`` was made for, in each of the processes
    that it was made for; None: it was made for no limit.
    """
    memory_of_all: int | None = manifest.config["memory"]
    if memory_of_all is None:
        return None
    limit = memory_of_all // manifest.config.get("processes", 1)
    memory = manifest.attributes["memory"]
    fixed = (
        memory_tables.IO_BUFFERS.bytes_of(limit)
        + memory_tables.READ_SCRATCH.bytes_of(limit)
        + memory["shared_scratch_bytes"]
        + memory_tables.SMALL_TABLES.least
    )
    of_slot = int(np.sum(memory["slot_rows_bytes"])) + memory.get("slot_values_bytes", 0)
    needs = {
        memory_tables.DISK_CACHE_SCRATCH.name: memory["shared_scratch_bytes"],
        memory_tables.BATCH_INDEX.name: memory["fixed_bytes"] - fixed,
        memory_tables.PACKED_BATCHES.name: memory["slots"] * of_slot,
    }
    return divide(memory_tables.ACTIVITIES["loading packed"], limit, needs)


def device_cache_bytes(graph: Graph, samples: BatchSizes, config: PlanConfig) -> int:
    """Returns bytes of the device cache: what the batches on a device leave of its budget."""
    if config.gpu_memory == 0 or len(graph.row_files) > 1:  # rows of several are cached in host memory
        return 0
    rows_bytes = sum(samples.section(rows).max_rows * rows.batch_row_bytes for rows in graph.row_files)
    targets = target_bytes(graph, samples.max_seeds)
    batch = device_batch_bytes(rows_bytes, samples.max_record_bytes, targets)
    batches = memory_tables.DEVICE_BATCHES * batch
    if config.gpu_memory < batches:
        raise BudgetError(
            f"a device memory budget of {exact_bytes(config.gpu_memory)} cannot hold two mini-batches; the "
            f"smallest that can is {least_bytes(batches)}",
            limit="device",
        )
    return config.gpu_memory - batches


def block_rows(config: PlanConfig, row_bytes: int) -> int:
    """Returns rows of the disk cache that are put in order at a time, in memory."""
    limit = UNLIMITED if config.memory is None else config.memory
    return max(memory_tables.DISK_CACHE_BLOCK.bytes_of(limit) // row_bytes, 1)
