"""The memory of packing: buffers and tables of a pass over the features, and whether a budget holds them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outcrop.runtime import memory_tables
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.store import record
from outcrop.store.arrays import SequentialRows
from outcrop.store.graph_types import RowFile
from outcrop.store.manifest import ArraySpec
from outcrop.store.samples import BatchSizes, SectionSizes


@dataclass(frozen=True)
class FeatureChunks:
    """Chunk c is pages ``starts[c]:starts[c + 1]`` of the feature file; rows that end in it belong to it."""

    starts: np.ndarray
    first_rows: np.ndarray
    stride: int


@dataclass(frozen=True)
class PackBuffers:
    """Has the sizes of the working memory of a pass, bytes; worked out once, from what the budget has left."""

    chunk_pages: int
    headroom: int
    ids_buffer: int
    out_buffer: int
    widths: tuple[int, ...]
    table_bytes: int

    def has_room_for(self, tail_bytes: int, row_bytes: int, per_batch: int) -> bool:
        """Tells whether streams can have tails, each batch of an episode taking ``per_batch`` bytes of the tables."""
        return per_batch <= self.table_bytes and tail_bytes + PAGE_BYTES + row_bytes <= self.out_buffer


def divide_memory(features: SequentialRows, id_bytes: int, has_caches: bool, free: int) -> PackBuffers:
    stride = features.spec.stride_bytes
    headroom = record.align_page(stride)
    pages = -(-features.spec.file_bytes // PAGE_BYTES)
    # A chunk's rows also need 8 bytes of id each.
    widest = max(memory_tables.PACK_IDS.bytes_of(free) // 8 * stride // PAGE_BYTES, 1)
    chunk = min(max(memory_tables.PACK_CHUNK.bytes_of(free) // PAGE_BYTES, 1), widest, max(pages, 1))
    ids_buffer = max((chunk * PAGE_BYTES // stride + 2) * 8, PAGE_BYTES)
    out_buffer = memory_tables.PACK_OUT.bytes_of(free, least=features.row_bytes)
    widths = tuple(sorted({id_bytes, 8} if has_caches else {id_bytes}))
    used = 2 * (headroom + chunk * PAGE_BYTES) + 2 * len(widths) * (ids_buffer + out_buffer)
    tables = memory_tables.PACK_TABLES.bytes_of(free - used, least=1)
    return PackBuffers(chunk, headroom, ids_buffer, out_buffer, widths, tables)


def shared_bytes(section: SectionSizes, row_bytes: int, block_rows: int) -> int:
    """Counts the bytes that finding and ordering the rows of a disk cache takes; 0 where there is none."""
    if not block_rows:
        return 0
    return 2 * block_rows * (row_bytes + section.id_bytes + 8) + 16 * section.max_rows + 8 * PAGE_BYTES


def fits(
    features: SequentialRows,
    samples: BatchSizes,
    rows: RowFile,
    memory_rows: int,
    block_rows: int,
    free: int,
) -> bool:
    """Tells whether packing can do with ``free`` bytes, whatever the plan finds.

    Args:
        samples: Batches, all of which are packed.
        rows: The row file that is packed.
        memory_rows: Rows of the caches in memory, at the most.
        block_rows: Rows of the disk cache that are put in order at a time; 0: there is none.
    """
    section = samples.section(rows)
    hops, packed = section.num_runs, samples.num_batches
    tables = packed * (8 * (hops + 6) + 16) + 8 * memory_rows + 16 * PAGE_BYTES
    free -= tables
    size = divide_memory(features, section.id_bytes, memory_rows > 0, free)
    chunks = -(-features.spec.data_bytes // (size.chunk_pages * PAGE_BYTES)) + 1
    ids = max(section.max_rows, block_rows) * section.id_bytes + 2 * PAGE_BYTES
    return (
        free > samples.max_record_bytes + shared_bytes(section, features.row_bytes, block_rows) + PAGE_BYTES
        and hops * (chunks * 4 + 64) + hops * PAGE_BYTES <= size.table_bytes
        and ids <= size.table_bytes
    )


def cut_features(spec: ArraySpec, chunk_pages: int) -> FeatureChunks:
    """Cuts a row file into chunks of ``chunk_pages`` pages."""
    pages = -(-spec.data_bytes // PAGE_BYTES)
    starts = np.append(np.arange(0, pages, chunk_pages, dtype=np.int64), pages)
    first_rows = starts * PAGE_BYTES // spec.stride_bytes
    first_rows[-1] = spec.shape[0]
    return FeatureChunks(starts, first_rows, spec.stride_bytes)
