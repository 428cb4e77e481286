"""Plan: decide where each row lives, so that the hard limits hold and the most wanted rows are nearest.

Source: DiskGNN section 4 (four-level store by access frequency). Levels: device cache (hottest) > host cache >
packed, one copy per batch. The segmented disk cache would come between the last two. Everything is counted exactly:
the bytes a plan predicts are the bytes an epoch reads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outcrop.config import PlanConfig, format_bytes
from outcrop.errors import ArgumentError, BudgetError
from outcrop.rows import scratch_share
from outcrop.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store import record
from outcrop.store.arrays import ArrayWriter
from outcrop.store.graph import Graph
from outcrop.store.manifest import Manifest
from outcrop.store.placement import FORMAT, VERSION, find_sorted
from outcrop.store.samples import SampleSet

MIN_SLOTS, MAX_SLOTS = 2, 4
_BLOCK_NODES = 1 << 17
_MAX_IO_BUFFER_BYTES = 4 << 20
_FIXED_BYTES = 1 << 20


@dataclass(frozen=True)
class HostMemory:
    """How the host budget of loading is divided, bytes."""

    slots: int
    slot_rows_bytes: int
    slot_meta_bytes: int
    fixed_bytes: int
    cache_bytes: int


@dataclass
class _Levels:
    host_ids: np.ndarray
    device_ids: np.ndarray


def expected(graph: Graph, samples: SampleSet, config: PlanConfig) -> tuple[dict, dict[str, str]]:
    """Config and input digests of the artifact that :func:`plan` would write."""
    return manifests.plain(asdict(config)), {"graph": graph.digest(), "sample": samples.manifest.digest()}


def plan(graph: Graph, samples: SampleSet, config: PlanConfig, out: Path, runtime: Runtime) -> Manifest:
    """Counts, places and writes the plan to ``out``.

    Raises:
        BudgetError: The limits cannot be met; the message names the smallest that could.
        ArgumentError: The graph has no features.
    """
    if graph.feature_bytes == 0:
        raise ArgumentError(
            f"{graph.path} has no features to place: import features, or give them at least one column"
        )
    row_bytes = graph.spec("features").stride_bytes
    packed = packed_batches(samples, config)
    memory = divide_host_memory(samples, config, row_bytes)
    device_rows = _device_rows(samples, config, row_bytes)
    host_rows = min(memory.cache_bytes // row_bytes, graph.num_nodes)
    with runtime.trace.span("plan"):
        levels = _hottest(graph.num_nodes, samples, packed, device_rows, host_rows, runtime)
        per_hop, cached = _count_levels(samples, packed, levels, runtime)
    offsets, needed = _lay_out(samples, packed, per_hop, cached, row_bytes)
    predicted = _predict(samples, packed, per_hop, cached, offsets, needed, levels, row_bytes)
    _check_disk(config, predicted, graph)
    with manifests.publishing(out) as folder:
        arrays = {}
        tables = {
            "host_ids": levels.host_ids,
            "device_ids": levels.device_ids,
            "packed_batches": packed,
            "packed_per_hop": per_hop,
            "cached_rows": cached,
            "offsets": offsets,
        }
        for name, values in tables.items():
            writer = ArrayWriter(runtime, folder, name, "int64", values.shape[1:])
            writer.append(values.astype("<i8", copy=False))
            arrays[name] = writer.finish()
        attributes = {
            "row_bytes": row_bytes,
            "slots": memory.slots,
            "slot_rows_bytes": memory.slot_rows_bytes,
            "slot_meta_bytes": memory.slot_meta_bytes,
            "predicted": predicted,
            "memory": asdict(memory),
        }
        manifest = Manifest(
            FORMAT, VERSION, arrays, manifests.plain(attributes), *expected(graph, samples, config)
        )
        manifests.write(folder, manifest)
    return manifest


def packed_batches(samples: SampleSet, config: PlanConfig) -> np.ndarray:
    """Numbers of the batches that are packed, int64 [P]; the others are read row by row when they are needed."""
    groups = [samples.groups[s].all_batches() for s in config.packed_splits if s in samples.groups]
    return np.concatenate([np.arange(g.start, g.stop, dtype=np.int64) for g in groups])


def divide_host_memory(samples: SampleSet, config: PlanConfig, row_bytes: int) -> HostMemory:
    """Batch buffers first (2 to 4), then fixed costs, the rest caches the hottest rows.

    Raises:
        BudgetError: Not even two batch buffers fit; names the smallest budget that does.
    """
    rows_bytes = record.align_page(samples.max_nodes * row_bytes) + 2 * record.PAGE_BYTES
    # The record as read (its address table has 8 bytes per cached row), and its arrays decoded (ids widen to 64 bits).
    meta_bytes = record.align_page(samples.max_record_bytes + samples.max_nodes * 8)
    slot = rows_bytes + 2 * meta_bytes + samples.max_nodes * (8 - samples.id_bytes)
    # Indexes of batches and records, and the buffer through which graphs are read that are not packed.
    tables = samples.num_batches * (samples.hops + 6) * 32 + record.align_page(samples.max_record_bytes)
    limit = config.memory
    if limit is None:
        return HostMemory(config.slots or MAX_SLOTS, rows_bytes, meta_bytes, 0, 1 << 62)

    def fixed(total: int) -> int:
        # I/O bounce buffers and the scratch of row-by-row reading for what is not packed.
        return tables + min(_MAX_IO_BUFFER_BYTES, total // 16) + scratch_share(total) + _FIXED_BYTES

    slots = config.slots or max(
        (k for k in range(MIN_SLOTS, MAX_SLOTS + 1) if k * slot <= min(limit // 2, limit - fixed(limit))),
        default=MIN_SLOTS,
    )
    left = limit - slots * slot - fixed(limit)
    if left < 0:
        # What is left rises with the limit, so the smallest that does is found by bisection.
        smallest = bisect_left(
            range(2 * (slots * slot + tables + _FIXED_BYTES)),
            0,
            key=lambda total: total - slots * slot - fixed(total),
        )
        raise BudgetError(
            f"a memory budget of {format_bytes(limit)} cannot hold {slots} mini-batches of up to "
            f"{samples.max_nodes} rows of {row_bytes} bytes; the smallest budget that can is {smallest} bytes "
            f"({format_bytes(smallest)}), or lower --batch-size or --fanouts"
        )
    return HostMemory(slots, rows_bytes, meta_bytes, slots * (slot - rows_bytes) + fixed(limit), left)


def _device_rows(samples: SampleSet, config: PlanConfig, row_bytes: int) -> int:
    """Rows of the device cache: what two batches leave of the device budget."""
    if config.gpu_memory == 0:
        return 0
    batches = 2 * (samples.max_nodes * row_bytes + samples.max_record_bytes * 2)
    if config.gpu_memory < batches:
        raise BudgetError(
            f"a device memory budget of {config.gpu_memory} bytes cannot hold two mini-batches; the "
            f"smallest that can is {batches} bytes ({format_bytes(batches)})"
        )
    return (config.gpu_memory - batches) // row_bytes


def _node_ids(samples: SampleSet, packed: np.ndarray, runtime: Runtime) -> Iterator[np.ndarray]:
    buffer = runtime.budget.empty("plan", max(samples.max_nodes * samples.id_bytes, 1))
    for batch in packed:
        yield samples.read_node_ids(int(batch), buffer)


def _hottest(
    num_nodes: int, samples: SampleSet, packed: np.ndarray, device_rows: int, host_rows: int, runtime: Runtime
) -> _Levels:
    """The ``device_rows`` most wanted nodes and the ``host_rows`` after them (ties: lower id); only wanted ones."""
    if device_rows + host_rows == 0:
        return _Levels(np.zeros(0, np.int64), np.zeros(0, np.int64))
    counter = _Counter(num_nodes, samples, packed, runtime)
    histogram = np.zeros(len(packed) + 1, np.int64)
    for _, counts in counter.ranges():
        for start in range(0, len(counts), _BLOCK_NODES):
            histogram += np.bincount(counts[start : start + _BLOCK_NODES], minlength=len(histogram))
    histogram[0] = 0
    wanted = int(histogram.sum())
    device_rows = min(device_rows, wanted)
    total_rows = min(device_rows + host_rows, wanted)
    held = runtime.budget.reserve("plan", 16 * total_rows)
    both = counter.top(histogram, total_rows)
    device = counter.top(histogram, device_rows)
    host = both[~np.isin(both, device, assume_unique=True)] if len(device) else both
    held.release()
    return _Levels(host, device)


class _Counter:
    """How many batches want each node, over ranges of nodes whose counters fit in the budget."""

    def __init__(self, num_nodes: int, samples: SampleSet, packed: np.ndarray, runtime: Runtime):
        self._num_nodes, self._samples, self._packed, self._runtime = num_nodes, samples, packed, runtime
        available = max(runtime.budget.free_bytes // 3, 1 << 16)
        self._range_nodes = min(num_nodes, available // 4)
        self._counts = runtime.budget.empty("plan", self._range_nodes * 4).view(np.uint32)
        self._whole = False  # counts of the only range are there

    def ranges(self) -> Iterator[tuple[int, np.ndarray]]:
        """(first node, uint32 counts) of each range; one pass over the samples per range."""
        for first in range(0, self._num_nodes, self._range_nodes):
            counts = self._counts[: min(self._range_nodes, self._num_nodes - first)]
            single = len(counts) == self._num_nodes
            if not (single and self._whole):
                counts[:] = 0
                for ids in _node_ids(self._samples, self._packed, self._runtime):
                    inside = ids if single else ids[(ids >= first) & (ids < first + len(counts))] - first
                    counts[inside] += 1
                self._whole = single
            yield first, counts

    def top(self, histogram: np.ndarray, rows: int) -> np.ndarray:
        """int64 ids of the ``rows`` most wanted nodes, ascending."""
        if rows == 0:
            return np.zeros(0, np.int64)
        above = np.cumsum(histogram[::-1])[::-1]  # nodes wanted at least c times
        threshold = int(np.flatnonzero(above >= rows)[-1])
        ties = rows - int(above[threshold + 1] if threshold + 1 < len(above) else 0)
        parts = []
        for first, counts in self.ranges():
            for start in range(0, len(counts), _BLOCK_NODES):
                block = counts[start : start + _BLOCK_NODES]
                equal = np.flatnonzero(block == threshold)[:ties]
                ties -= len(equal)
                ids = np.concatenate([np.flatnonzero(block > threshold), equal])
                ids.sort()
                parts.append(ids + (first + start))
        return np.concatenate(parts).astype(np.int64)


def _count_levels(
    samples: SampleSet, packed: np.ndarray, levels: _Levels, runtime: Runtime
) -> tuple[np.ndarray, np.ndarray]:
    """Packed rows per batch and hop [P, hops + 1]; rows in host and device cache per batch [P, 2]."""
    per_hop = samples.nodes_per_hop[packed].copy()
    cached = np.zeros((len(packed), 2), np.int64)
    for p, ids in enumerate(_node_ids(samples, packed, runtime)):
        starts = np.cumsum(per_hop[p]) - per_hop[p]
        for column, table in enumerate((levels.host_ids, levels.device_ids)):
            positions, _ = find_sorted(table, ids)
            cached[p, column] = len(positions)
            hop = np.searchsorted(starts, positions, side="right") - 1
            # A hop without nodes shares its start with the next: side="right" picks the last, which holds the node.
            per_hop[p] -= np.bincount(hop, minlength=per_hop.shape[1])
    return per_hop, cached


def _lay_out(
    samples: SampleSet, packed: np.ndarray, per_hop: np.ndarray, cached: np.ndarray, row_bytes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Where each record starts [P + 1], and the bytes of it that a batch needs (no padding) [P]."""
    offsets, needed = np.zeros(len(packed) + 1, np.int64), np.zeros(len(packed), np.int64)
    for p, batch in enumerate(packed):
        nodes, rows = int(samples.num_nodes[batch]), int(per_hop[p].sum())
        meta = samples.meta_bytes(int(batch), int(cached[p].sum()))
        offsets[p + 1] = offsets[p] + record.align_page(meta) + record.rows_span_bytes(nodes, rows, row_bytes)
        needed[p] = meta + rows * row_bytes
    return offsets, needed


def _predict(
    samples: SampleSet,
    packed: np.ndarray,
    per_hop: np.ndarray,
    cached: np.ndarray,
    offsets: np.ndarray,
    needed: np.ndarray,
    levels: _Levels,
    row_bytes: int,
) -> dict[str, Any]:
    spans, rows = np.diff(offsets), per_hop.sum(axis=1)
    number = {int(b): p for p, b in enumerate(packed)}
    groups: dict[str, list[dict[str, Any]]] = {}
    for split, group in samples.groups.items():
        if group.first not in number:
            continue
        groups[split] = []
        for epoch in range(group.epochs):
            at = [number[b] for b in group.batches(epoch)]
            groups[split].append(
                {
                    "bytes_read": int(spans[at].sum()),
                    "bytes_needed": int(needed[at].sum()),
                    "rows_by_level": {
                        "device": int(cached[at, 1].sum()),
                        "host": int(cached[at, 0].sum()),
                        "disk_cache": 0,
                        "packed": int(rows[at].sum()),
                    },
                }
            )
    caches = {"host": len(levels.host_ids) * row_bytes, "device": len(levels.device_ids) * row_bytes}
    records = int(offsets[-1])
    total = (
        records
        + sum(record.align_page(c) for c in caches.values())
        + sum(spec.file_bytes for spec in samples.manifest.arrays.values())
        + _small_files_bytes(samples, len(packed), levels)
    )
    return {
        "epochs": groups,
        "cache_bytes": caches,
        "record_bytes": records,
        "disk_bytes": total,
        "read_amplification": float(spans.sum() / needed.sum()) if needed.sum() else 1.0,
    }


def _small_files_bytes(samples: SampleSet, packed: int, levels: _Levels) -> int:
    """At most what tables, manifests and the journal of packing take: arrays to the byte, text generously."""
    columns = samples.hops + 1
    tables = [
        8 * len(levels.host_ids),
        8 * len(levels.device_ids),
        8 * packed,
        8 * packed * columns,
        16 * packed,
        8 * (packed + 1),
        4 * packed,
    ]  # the plan's, then the checksums of the rows
    journal = 2 * (4 * packed * (columns + 1) + record.PAGE_BYTES)  # old and new, while it is replaced
    epochs = sum(group.epochs for group in samples.groups.values())
    text = 5 * record.PAGE_BYTES + 512 * epochs  # run.json and four manifests; the plan's tells every epoch
    return sum(map(record.align_page, tables)) + journal + text


def _check_disk(config: PlanConfig, predicted: dict[str, Any], graph: Graph) -> None:
    if config.disk_space is not None and predicted["disk_bytes"] > config.disk_space:
        needed = predicted["disk_bytes"]
        raise BudgetError(
            f"the run needs {needed} bytes of disk ({needed / graph.feature_bytes:.2f}x the features), the limit is "
            f"{config.disk_space}; the smallest --disk-space that does is {needed}, or sample fewer epochs (--epochs), "
            "or raise --memory so that more rows are cached"
        )
