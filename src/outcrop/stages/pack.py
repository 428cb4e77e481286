"""Pack: write every level in one sequential pass over the features, within the memory budget.

Source: DiskGNN section 5.2 (batched packing). The feature file is read once in large chunks; from each chunk
every mini-batch takes its rows. The caches are filled in the same pass, as special mini-batches; so is the disk cache,
block by block, each block by ascending node at first and put in its own order at the end. If the tables of all of them
do not fit in the budget, they are packed in episodes, one pass each.

Resumable: after each chunk what was written is synced and a journal notes where to go on. Writing a chunk
again writes the same bytes to the same places, so a kill at any moment leaves a run that continues to byte-
identical files. A block of the disk cache is first written further back than its place, by the size of a block: putting
it in order reads there and writes to its place, and leaves what it read as it was until the next block is done.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from outcrop import _core
from outcrop.errors import BudgetError, FormatError
from outcrop.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store import record
from outcrop.store.arrays import ArrayWriter, DiskArray
from outcrop.store.graph import Graph
from outcrop.store.manifest import ArraySpec, Manifest
from outcrop.store.packed import FORMAT, VERSION
from outcrop.store.placement import Placement
from outcrop.store.samples import SampleSet

PAGE = record.PAGE_BYTES
_MAX_CHUNK_BYTES = 256 << 20
_JOURNAL = "journal.npz"
_JOURNAL_EVERY_BYTES = 256 << 20


def expected(graph: Graph, samples: SampleSet, placement: Placement) -> tuple[dict, dict[str, str]]:
    """Config and input digests of the artifact that :func:`pack` would write."""
    return {}, {
        "graph": graph.digest(),
        "sample": samples.manifest.digest(),
        "plan": placement.manifest.digest(),
    }


@dataclass
class _Streams:
    """One per (packed batch, hop), block of the disk cache, or cache in memory: what is to be appended where.

    See core/pack/scatter.h.
    """

    ids_file: int
    out_file: int
    ids_start: np.ndarray  # byte in the ids file where the stream's ids begin
    bounds: np.ndarray  # [streams, chunks + 1] ids before each chunk
    out_start: np.ndarray
    id_bytes: int
    crc: np.ndarray


@dataclass(frozen=True)
class _Chunks:
    """Chunk c is pages ``starts[c]:starts[c + 1]`` of the feature file; rows that end in it belong to it."""

    starts: np.ndarray
    first_rows: np.ndarray
    stride: int


@dataclass(frozen=True)
class _Episode:
    """What one pass over the features fills. ``caches``: those in memory too."""

    caches: bool
    blocks: range
    batches: range


@dataclass(frozen=True)
class _Geometry:
    """Sizes of the working memory of a pass, bytes; worked out once, from what the budget has left."""

    chunk_pages: int
    headroom: int
    ids_buffer: int
    out_buffer: int
    widths: tuple[int, ...]
    table_bytes: int


def _geometry(
    features: DiskArray, id_bytes: int, placement: Placement, has_caches: bool, free: int
) -> _Geometry:
    stride = features.spec.stride_bytes
    headroom = record.align_page(stride)
    pages = -(-features.spec.file_bytes // PAGE)
    # A chunk's rows also need 8 bytes of id each, in up to four buffers.
    widest = max(free // 256 * stride // PAGE, 1)
    chunk = min(max(free // 5 // PAGE, 1), widest, _MAX_CHUNK_BYTES // PAGE, max(pages, 1))
    ids_buffer = max((chunk * PAGE // stride + 2) * 8, PAGE)
    out_buffer = max(min(free // 16, 32 << 20), features.row_bytes)
    widths = tuple(sorted({id_bytes, 8} if has_caches else {id_bytes}))
    used = 2 * (headroom + chunk * PAGE) + 2 * len(widths) * (ids_buffer + out_buffer)
    return _Geometry(chunk, headroom, ids_buffer, out_buffer, widths, max((free - used) // 2, 1))


def pack(graph: Graph, samples: SampleSet, placement: Placement, out: Path, runtime: Runtime) -> Manifest:
    """Writes records and caches of ``placement`` to ``out``.

    Raises:
        BudgetError: The budget cannot hold even the smallest working buffers.
    """
    packer = _Packer(graph, samples, placement, runtime)
    with manifests.publishing(out, resume=True) as folder:
        manifest = packer.run(folder)
    return manifest


class _Packer:
    def __init__(self, graph: Graph, samples: SampleSet, placement: Placement, runtime: Runtime):
        self._graph, self._samples, self._placement, self._runtime = graph, samples, placement, runtime
        self._features = graph.array(runtime, "features")
        self._stride = self._features.spec.stride_bytes
        self._row_bytes = self._features.row_bytes
        self._has_caches = bool(len(placement.host_ids) or len(placement.device_ids))
        self._geometry = _geometry(
            self._features, samples.id_bytes, placement, self._has_caches, runtime.budget.free_bytes
        )
        self._chunks = _cut(self._features, self._geometry.chunk_pages)
        self._num_blocks = len(placement.disk_blocks) - 1

    def run(self, folder: Path) -> Manifest:
        config, inputs = expected(self._graph, self._samples, self._placement)
        placement = self._placement
        streams = len(placement.packed_batches) * (self._samples.hops + 1)
        episodes = list(self._episodes())
        geometry = f"{len(self._chunks.starts)}-{self._chunks.starts[1]}-{len(episodes)}"
        key = ",".join([*inputs.values(), geometry])
        journal = _Journal(folder / _JOURNAL, key, streams, len(placement.packed_batches))
        files = _OutputFiles(self._runtime, folder, placement, self._samples, self._features)
        if not (files.are_there() and journal.load()):
            _clear(folder)
        passes = len(episodes) * self._features.spec.data_bytes
        self._runtime.progress.start("pack", passes + placement.num_disk_rows * self._row_bytes, "bytes")
        try:
            files.open()
            if not journal.meta_done:
                self._write_meta(files, journal)
            if journal.episode < len(episodes):
                self._fill(files, journal, episodes)
            self._order_disk_cache(files, journal)
            specs = files.finish(self._record_crcs(journal))
        finally:
            files.close()
        crc = ArrayWriter(self._runtime, folder, "rows_crc", "uint32")
        crc.append(self._rows_crc(journal))
        specs["rows_crc"] = crc.finish()
        files.packed_ids_path.unlink()
        journal.remove()
        manifest = Manifest(FORMAT, VERSION, specs, {"episodes": len(episodes)}, config, inputs)
        manifests.write(folder, manifest)
        self._runtime.progress.finish("pack")
        return manifest

    def _episodes(self) -> Iterator[_Episode]:
        """Cuts the blocks of the disk cache, then the packed batches, so that the tables of an episode fit."""
        per_stream = len(self._chunks.first_rows) * 4 + 64
        per_batch, room = (self._samples.hops + 1) * per_stream, self._geometry.table_bytes
        if room < per_batch:
            raise BudgetError(
                f"packing needs {2 * per_batch} bytes for its tables and has {room}; raise "
                f"--memory by {2 * per_batch} bytes"
            )
        blocks, batches = self._num_blocks, len(self._placement.packed_batches)
        block = batch = 0
        while True:
            more_blocks = min(room // per_stream, blocks - block)
            more = min((room - more_blocks * per_stream) // per_batch, batches - batch)
            yield _Episode(block == batch == 0, range(block, block + more_blocks), range(batch, batch + more))
            block, batch = block + more_blocks, batch + more
            if block == blocks and batch == batches:
                return

    def _write_meta(self, files: _OutputFiles, journal: _Journal) -> None:
        """Writes the meta part of every record, and which nodes' rows are packed, for the passes to read."""
        samples, placement = self._samples, self._placement
        buffer = self._runtime.budget.empty("pack-meta", samples.max_record_bytes)
        shared = _SharedRows(samples, placement, self._runtime)
        for p, disk in shared.by_batch():
            graph = samples.read(int(placement.packed_batches[p]), buffer)
            table = placement.lookup(graph.n_id, disk)
            blob = record.encode(graph, table, samples.id_bytes)
            self._runtime.io.write(files.records, int(placement.offsets[p]), blob)
            journal.meta_crc[p] = _core.crc32c(blob)
            packed = np.delete(graph.n_id, table.cached_positions()).astype(f"<i{samples.id_bytes}")
            if len(packed) != placement.num_packed[p]:
                raise FormatError(
                    f"{placement.path}: mini-batch {placement.packed_batches[p]} has {len(packed)} rows to pack, the "
                    f"plan says {placement.num_packed[p]}; remove the folder and prepare the run again"
                )
            if len(packed):
                self._runtime.io.write(files.packed_ids, files.packed_ids_at(p), packed.view(np.uint8))
        shared.close()
        files.sync()
        journal.meta_done = True
        journal.save()

    def _fill(self, files: _OutputFiles, journal: _Journal, episodes: list[_Episode]) -> None:
        """The passes over the features."""
        size, runtime = self._geometry, self._runtime
        chunk_bytes = size.headroom + size.chunk_pages * PAGE
        buffers = [runtime.budget.empty("pack-chunk", chunk_bytes) for _ in range(2)]
        scatters = {
            width: _core.Scatter(
                runtime.io,
                runtime.budget,
                self._row_bytes,
                self._stride,
                width,
                size.ids_buffer,
                size.out_buffer,
            )
            for width in size.widths
        }
        for number, episode in enumerate(episodes):
            if number < journal.episode:
                runtime.progress.advance("pack", self._features.spec.data_bytes)
                continue
            groups = [
                self._batch_streams(files, journal, episode.batches),
                self._block_streams(files, episode.blocks),
            ]
            if episode.caches:
                groups += self._cache_streams(files, journal)
            self._run_episode(files, journal, number, groups, buffers, scatters)

    def _run_episode(
        self,
        files: _OutputFiles,
        journal: _Journal,
        number: int,
        groups: list[_Streams],
        buffers: list[np.ndarray],
        scatters: dict[int, _core.Scatter],
    ) -> None:
        start = journal.chunk if number == journal.episode else 0
        self._runtime.progress.advance("pack", int(self._chunks.first_rows[start]) * self._stride)
        unsynced = 0
        for chunk, data, first, rows in self._read_chunks(start, buffers):
            with self._runtime.trace.span("pack-chunk", episode=number, chunk=chunk):
                for group in groups:
                    self._scatter(scatters[group.id_bytes], group, chunk, data, first, rows)
            unsynced += len(data)
            self._runtime.progress.advance("pack", len(data))
            if unsynced >= min(_JOURNAL_EVERY_BYTES, self._features.spec.data_bytes // 8):
                files.sync()
                journal.episode, journal.chunk = number, chunk + 1
                journal.save()
                unsynced = 0
        files.sync()
        journal.episode, journal.chunk = number + 1, 0
        journal.save()

    def _scatter(
        self, scatter: _core.Scatter, group: _Streams, chunk: int, data: np.ndarray, first: int, rows: int
    ) -> None:
        before = group.bounds[:, chunk].astype(np.int64)
        counts = group.bounds[:, chunk + 1] - before
        scatter.run(
            data,
            first,
            rows,
            self._stride,
            group.ids_file,
            group.out_file,
            group.ids_start + before * group.id_bytes,
            counts,
            group.out_start + before * self._row_bytes,
            group.crc,
        )

    def _bounds(self, streams: int) -> np.ndarray:
        width = len(self._chunks.first_rows)
        held = self._runtime.budget.empty("pack-tables", max(streams * width * 4, 1))
        return held[: streams * width * 4].view(np.int32).reshape(streams, width)

    def _batch_streams(self, files: _OutputFiles, journal: _Journal, batches: range) -> _Streams:
        samples, placement, hops = self._samples, self._placement, self._samples.hops + 1
        count = len(batches) * hops
        bounds = self._bounds(count)
        ids_start, out_start = np.zeros(count, np.int64), np.zeros(count, np.int64)
        buffer = self._runtime.budget.empty("pack-meta", max(samples.max_nodes * samples.id_bytes, 1))
        for i, p in enumerate(batches):
            batch, packed = int(placement.packed_batches[p]), int(placement.num_packed[p])
            begin = files.packed_ids_at(p)
            part = buffer[: packed * samples.id_bytes]
            if packed:
                self._runtime.io.read(files.packed_ids, begin, part)
            ids = part.view(f"<i{samples.id_bytes}")
            cuts = np.concatenate([[0], np.cumsum(placement.packed_per_hop[p])])
            shift = record.shift_bytes(int(samples.num_nodes[batch]), packed, self._row_bytes)
            rows_at = int(placement.offsets[p]) + placement.meta_span_bytes(p, samples) + shift
            for hop in range(hops):
                s = i * hops + hop
                bounds[s] = np.searchsorted(ids[cuts[hop] : cuts[hop + 1]], self._chunks.first_rows)
                ids_start[s] = begin + cuts[hop] * samples.id_bytes
                out_start[s] = rows_at + cuts[hop] * self._row_bytes
        crc = journal.crc[batches.start * hops : batches.stop * hops]
        return _Streams(files.packed_ids, files.records, ids_start, bounds, out_start, samples.id_bytes, crc)

    def _block_streams(self, files: _OutputFiles, blocks: range) -> _Streams:
        """Blocks of the disk cache, by ascending node; :meth:`_order_disk_cache` comes later."""
        id_bytes, starts = self._samples.id_bytes, self._placement.disk_blocks
        first = starts[blocks.start : blocks.stop].astype(np.int64)
        bounds = self._bounds(len(blocks))
        buffer = self._runtime.budget.empty("pack-meta", max(self._placement.max_block_rows * id_bytes, 1))
        for i, k in enumerate(blocks):
            part = buffer[: int(starts[k + 1] - starts[k]) * id_bytes]
            self._runtime.io.read(files.disk_ids, int(starts[k]) * id_bytes, part)
            bounds[i] = np.searchsorted(part.view(f"<i{id_bytes}"), self._chunks.first_rows)
        return _Streams(
            files.disk_ids,
            files.disk_cache,
            first * id_bytes,
            bounds,
            files.spare_bytes + first * self._row_bytes,
            id_bytes,
            np.zeros(len(blocks), np.uint32),
        )

    def _cache_streams(self, files: _OutputFiles, journal: _Journal) -> list[_Streams]:
        levels = (
            (self._placement.host_ids, files.host_ids, files.host_cache),
            (self._placement.device_ids, files.device_ids, files.device_cache),
        )
        zero = np.zeros(1, np.int64)
        return [
            _Streams(
                id_file,
                out_file,
                zero,
                np.searchsorted(ids, self._chunks.first_rows)[None, :],
                zero,
                8,
                journal.cache_crc[k : k + 1],
            )
            for k, (ids, id_file, out_file) in enumerate(levels)
            if len(ids)
        ]

    def _order_disk_cache(self, files: _OutputFiles, journal: _Journal) -> None:
        """Puts the rows of each block in their order, a block's size further to the front of the file."""
        starts, row, budget = self._placement.disk_blocks, self._row_bytes, self._runtime.budget
        if journal.ordered == self._num_blocks:
            return
        sums = _PageSums(files, self._runtime, int(starts[journal.ordered]) * row)
        most = self._placement.max_block_rows
        source, target = (budget.empty("pack-block", most * row) for _ in range(2))
        rank, counting = (budget.empty("pack-block", most * 4).view("<i4") for _ in range(2))
        counting[:] = np.arange(most)
        for k in range(journal.ordered, self._num_blocks):
            first, count = int(starts[k]), int(starts[k + 1] - starts[k])
            data, out = source[: count * row], target[: count * row]
            self._runtime.io.read(files.disk_cache, files.spare_bytes + first * row, data)
            self._runtime.io.read(files.disk_rank, first * 4, rank[:count].view(np.uint8))
            _core.fill_rows(out, count, row, rank[:count], counting[:count], data, row)
            self._runtime.io.write(files.disk_cache, first * row, out)
            sums.add(out, last=k + 1 == self._num_blocks)
            journal.disk_crc = _core.crc32c(out, journal.disk_crc)
            journal.ordered = k + 1
            self._runtime.progress.advance("pack", len(out))
            # The next block may overwrite what this one was made of.
            files.sync()
            journal.save()

    def _read_chunks(
        self, start: int, buffers: list[np.ndarray]
    ) -> Iterator[tuple[int, np.ndarray, int, int]]:
        """(chunk, its bytes from the first row on, first row, rows); the next chunk is read meanwhile."""
        chunks, file, headroom = self._chunks, self._features, self._geometry.headroom
        count = len(chunks.starts) - 1

        def submit(chunk: int) -> _core.IoJob:
            begin, end = int(chunks.starts[chunk]) * PAGE, int(chunks.starts[chunk + 1]) * PAGE
            return self._runtime.io.submit_reads(
                file.file,
                np.array([begin]),
                np.array([end - begin]),
                buffers[chunk % 2],
                np.array([headroom]),
            )

        if start == count:
            return
        carry, job = self._carry_before(start), submit(start)
        for chunk in range(start, count):
            job.wait()
            buffer = buffers[chunk % 2]
            begin, end = int(chunks.starts[chunk]) * PAGE, int(chunks.starts[chunk + 1]) * PAGE
            first, stop = int(chunks.first_rows[chunk]), int(chunks.first_rows[chunk + 1])
            at = headroom - len(carry)
            buffer[at:headroom] = carry
            used = (stop - first) * self._stride
            carry = buffer[at + used : headroom + end - begin].copy()
            if chunk + 1 < count:
                job = submit(chunk + 1)
            yield chunk, buffer[at : at + used], first, stop - first

    def _carry_before(self, chunk: int) -> np.ndarray:
        """The bytes of a row that begins before ``chunk`` and ends in it."""
        begin = int(self._chunks.starts[chunk]) * PAGE
        count = begin - int(self._chunks.first_rows[chunk]) * self._stride
        out = np.zeros(count, np.uint8)
        if count:
            self._features.read_bytes(begin - count, out)
        return out

    def _rows_crc(self, journal: _Journal) -> np.ndarray:
        """CRC of the packed rows of each record, from those of its hops."""
        hops = self._samples.hops + 1
        out = np.zeros(len(self._placement.packed_batches), np.uint32)
        for p in range(len(out)):
            crc = 0
            for hop, rows in enumerate(self._placement.packed_per_hop[p]):
                crc = _core.crc32c_combine(crc, int(journal.crc[p * hops + hop]), int(rows) * self._row_bytes)
            out[p] = crc
        return out

    def _record_crcs(self, journal: _Journal) -> dict[str, int]:
        """Checksums of the whole files, put together from those of their parts."""
        rows_crc, whole = self._rows_crc(journal), 0
        placement, samples = self._placement, self._samples
        for p, batch in enumerate(placement.packed_batches):
            nodes, packed = int(samples.num_nodes[batch]), int(placement.num_packed[p])
            shift = record.shift_bytes(nodes, packed, self._row_bytes) if packed else 0
            span = record.rows_span_bytes(nodes, packed, self._row_bytes)
            rows = packed * self._row_bytes
            for crc, count in (
                (int(journal.meta_crc[p]), placement.meta_span_bytes(p, samples)),
                (_zeros_crc(shift), shift),
                (int(rows_crc[p]), rows),
                (_zeros_crc(span - shift - rows), span - shift - rows),
            ):
                whole = _core.crc32c_combine(whole, crc, count)
        return {
            "records": whole,
            "host_cache": int(journal.cache_crc[0]),
            "device_cache": int(journal.cache_crc[1]),
            "disk_cache": journal.disk_crc,
        }


def _clear(folder: Path) -> None:
    """Removes what other work left: its bytes would stay where this work writes none, in the padding."""
    for path in folder.iterdir():
        path.unlink()


def _zeros_crc(count: int) -> int:
    return _core.crc32c(np.zeros(max(count, 0), np.uint8))


def _cut(features: DiskArray, chunk_pages: int) -> _Chunks:
    pages = -(-features.spec.data_bytes // PAGE)
    starts = np.append(np.arange(0, pages, chunk_pages, dtype=np.int64), pages)
    first_rows = starts * PAGE // features.spec.stride_bytes
    first_rows[-1] = features.num_rows
    return _Chunks(starts, first_rows, features.spec.stride_bytes)


class _PageSums:
    """Writes the checksum of each page of the disk cache, as it comes in order, ``at`` bytes being there already."""

    def __init__(self, files: _OutputFiles, runtime: Runtime, at: int):
        self._files, self._runtime = files, runtime
        self._page = at // PAGE
        self._rest = np.zeros(at % PAGE, np.uint8)  # of the page that is not whole yet
        if len(self._rest):
            runtime.io.read(files.disk_cache, self._page * PAGE, self._rest)

    def add(self, data: np.ndarray, *, last: bool) -> None:
        if len(self._rest):
            head = data[: PAGE - len(self._rest)]
            self._rest, data = np.concatenate([self._rest, head]), data[len(head) :]
            if len(self._rest) == PAGE:
                self._write(self._rest)
                self._rest = self._rest[:0]
        whole = len(data) // PAGE * PAGE
        self._write(data[:whole])
        self._rest = np.concatenate([self._rest, data[whole:]])
        if last and len(self._rest):
            self._write(np.concatenate([self._rest, np.zeros(PAGE - len(self._rest), np.uint8)]))

    def _write(self, pages: np.ndarray) -> None:
        if len(pages):
            sums = np.zeros(len(pages) // PAGE, np.uint32)
            _core.crc32c_pages(pages, sums)
            self._runtime.io.write(self._files.page_crc, self._page * 4, sums.view(np.uint8))
            self._page += len(sums)


class _SharedRows:
    """Which rows of the disk cache each packed batch reads, and where they go: looked up in the plan's lists."""

    def __init__(self, samples: SampleSet, placement: Placement, runtime: Runtime):
        self._samples, self._placement = samples, placement
        self._loaded: tuple[int, int] | None = None
        self._range = -1
        if placement.num_disk_rows == 0:
            return
        budget, block = runtime.budget, placement.max_block_rows
        self._ids, self._rank = placement.disk_array("disk_ids"), placement.disk_array("disk_rank")
        for array in (self._ids, self._rank):
            array.verify()
        self._table = _core.SegmentTable(budget, int(np.diff(placement.range_starts).max()))
        self._block = budget.empty("pack-meta", block * (samples.id_bytes + 4))
        self._nodes = budget.empty("pack-meta", max(samples.max_nodes * samples.id_bytes, 1))
        self._rows = budget.empty("pack-meta", max(samples.max_nodes * 4, 4)).view(np.int32)
        # With several ranges each is loaded for as many batches as there is room for their tables.
        single = len(placement.range_starts) == 2
        self._group = 1 if single else max(int(budget.free_bytes // 4 // (max(samples.max_nodes, 1) * 16)), 1)
        self._held = budget.reserve("pack-meta", self._group * samples.max_nodes * 16)

    def by_batch(self) -> Iterator[tuple[int, tuple[np.ndarray, np.ndarray] | None]]:
        """(packed batch, (positions, rows)), rows ascending; None where nothing is shared."""
        placement = self._placement
        if placement.num_disk_rows == 0:
            for p in range(len(placement.packed_batches)):
                yield p, None
            return
        for segment in range(placement.num_segments):
            batches = placement.segment(segment)
            for first in range(batches.start, batches.stop, self._group):
                group = range(first, min(first + self._group, batches.stop))
                found: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {p: [] for p in group}
                for number in range(len(placement.range_starts) - 1):
                    self._load(number, segment)
                    for p in group:
                        found[p].append(self._look_up(p))
                for p in group:
                    positions, rows = zip(*found.pop(p), strict=True)
                    yield p, (np.concatenate(positions), np.concatenate(rows))

    def _look_up(self, p: int) -> tuple[np.ndarray, np.ndarray]:
        ids = self._samples.read_node_ids(int(self._placement.packed_batches[p]), self._nodes)
        rows = self._rows[: len(ids)]
        self._table.look_up(ids, rows)
        positions = np.flatnonzero(rows >= 0)
        order = np.argsort(rows[positions], kind="stable")
        return positions[order].astype(np.int32), rows[positions[order]]

    def _load(self, number: int, segment: int) -> None:
        if self._loaded == (number, segment):
            return
        if self._loaded is not None and self._range == number:
            for ids, _ in self._blocks(*self._loaded):
                self._table.clear(ids)
        else:
            first, stop = (int(v) for v in self._placement.range_starts[number : number + 2])
            self._table.begin_range(first, stop - first, np.zeros(0, np.int64))
            self._range = number
        for ids, rows in self._blocks(number, segment):
            self._table.assign(ids, rows)
        self._loaded = (number, segment)

    def _blocks(self, number: int, segment: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        region, width = self._placement.region(number, segment), self._samples.id_bytes
        for first in range(region.start, region.stop, self._placement.block_rows):
            count = min(self._placement.block_rows, region.stop - first)
            ids, rank = self._block[: count * width], self._block[count * width : count * (width + 4)]
            self._ids.read_bytes(first * width, ids)
            self._rank.read_bytes(first * 4, rank)
            yield ids.view(f"<i{width}"), rank.view("<i4") + np.int32(first)

    def close(self) -> None:
        if self._placement.num_disk_rows:
            self._ids.close()
            self._rank.close()


class _OutputFiles:
    """The files being written, and the id lists that are read for the caches.

    ``packed_ids`` lists, batch by batch, the nodes whose rows are packed; it goes when packing is over.
    """

    _NAMES = ("records", "host_cache", "device_cache", "disk_cache")

    def __init__(
        self, runtime: Runtime, folder: Path, placement: Placement, samples: SampleSet, features: DiskArray
    ):
        self._io, self._placement, self._features, self._folder = runtime.io, placement, features, folder
        self._row_bytes = features.row_bytes
        self._open: list[int] = []
        self._id_bytes = samples.id_bytes
        self._packed_before = np.concatenate([[0], np.cumsum(placement.num_packed)])
        self._rows = {
            "host_cache": len(placement.host_ids),
            "device_cache": len(placement.device_ids),
            "disk_cache": placement.num_disk_rows,
        }
        self._num_pages = record.align_page(placement.num_disk_rows * self._row_bytes) // PAGE
        self.spare_bytes = placement.max_block_rows * self._row_bytes
        self.packed_ids_path = folder / "packed_ids.bin"

    def packed_ids_at(self, p: int) -> int:
        """Where the ids of packed batch ``p`` begin."""
        return int(self._packed_before[p]) * self._id_bytes

    def _sizes(self) -> dict[str, int]:
        """Bytes of each file while it is written."""
        sizes = {"records": int(self._placement.offsets[-1])}
        sizes |= {name: record.align_page(rows * self._row_bytes) for name, rows in self._rows.items()}
        sizes["disk_cache"] += record.align_page(self.spare_bytes)
        sizes["page_crc"] = record.align_page(self._num_pages * 4)
        sizes["packed_ids"] = record.align_page(int(self._packed_before[-1]) * self._id_bytes)
        return sizes

    def are_there(self) -> bool:
        paths = {self._folder / f"{name}.bin": size for name, size in self._sizes().items()}
        return all(path.is_file() and path.stat().st_size == size for path, size in paths.items())

    def open(self) -> None:
        update, read = _core.OpenMode.update, _core.OpenMode.read
        for name, size in self._sizes().items():
            file = self._add(self._folder / f"{name}.bin", update)
            setattr(self, name, file)
            self._io.resize(file, size)
        for name in ("host_ids", "device_ids", "disk_ids", "disk_rank"):
            path = self._placement.path / self._placement.manifest.arrays[name].file
            setattr(self, name, self._add(path, read))

    records: int
    host_cache: int
    device_cache: int
    disk_cache: int
    page_crc: int
    packed_ids: int
    host_ids: int
    device_ids: int
    disk_ids: int
    disk_rank: int

    def _add(self, path: Path, mode: _core.OpenMode) -> int:
        file = self._io.open(str(path), mode)
        self._open.append(file)
        return file

    def sync(self) -> None:
        for name in (*self._NAMES, "page_crc", "packed_ids"):
            self._io.sync(getattr(self, name))

    def finish(self, crcs: dict[str, int]) -> dict[str, ArraySpec]:
        used = self._rows["disk_cache"] * self._row_bytes
        self._io.resize(self.disk_cache, used)
        self._io.resize(self.disk_cache, record.align_page(used))  # zeros up to the page
        for name in self._NAMES:
            self._io.drop_cache(getattr(self, name))
        page_crc, sums = 0, np.zeros(min(self._num_pages, 1 << 16), np.uint32)
        for first in range(0, self._num_pages, 1 << 16):
            part = sums[: self._num_pages - first].view(np.uint8)
            self._io.read(self.page_crc, first * 4, part)
            page_crc = _core.crc32c(part, page_crc)
        total, width, row = int(self._placement.offsets[-1]), self._features.spec.shape[1:], self._row_bytes
        specs = {"records": ArraySpec("records.bin", "uint8", (total,), 1, crcs["records"], total)}
        for name, rows in self._rows.items():
            specs[name] = ArraySpec(
                f"{name}.bin",
                self._features.spec.dtype,
                (rows, *width),
                row,
                crcs[name],
                record.align_page(rows * row),
            )
        pages, size = self._num_pages, record.align_page(self._num_pages * 4)
        specs["page_crc"] = ArraySpec("page_crc.bin", "uint32", (pages,), 4, page_crc, size)
        return specs

    def close(self) -> None:
        while self._open:
            self._io.close(self._open.pop())


class _Journal:
    """Where an interrupted packing goes on, and the checksums so far."""

    def __init__(self, path: Path, key: str, streams: int, batches: int):
        self._path, self._key = path, key
        self.episode = self.chunk = self.ordered = self.disk_crc = 0
        self.meta_done = False
        self.crc = np.zeros(streams, np.uint32)
        self.meta_crc = np.zeros(batches, np.uint32)
        self.cache_crc = np.zeros(2, np.uint32)

    def load(self) -> bool:
        """Takes over an earlier journal of the same work; false where there is none or it cannot be read."""
        try:
            with self._path.open("rb") as file, np.load(file, allow_pickle=False) as saved:
                if str(saved["key"]) != self._key or saved["crc"].shape != self.crc.shape:
                    return False
                names = ("crc", "meta_crc", "cache_crc", "episode", "chunk", "ordered", "disk_crc")
                found = {name: saved[name] for name in names}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return False
        self.crc, self.meta_crc, self.cache_crc = found["crc"], found["meta_crc"], found["cache_crc"]
        self.episode, self.chunk = int(found["episode"]), int(found["chunk"])
        self.ordered, self.disk_crc = int(found["ordered"]), int(found["disk_crc"])
        self.meta_done = True
        return True

    def save(self) -> None:
        out = io.BytesIO()
        np.savez(
            out,
            key=np.str_(self._key),
            crc=self.crc,
            meta_crc=self.meta_crc,
            cache_crc=self.cache_crc,
            episode=self.episode,
            chunk=self.chunk,
            ordered=self.ordered,
            disk_crc=self.disk_crc,
        )
        manifests.write_atomic(self._path, out.getvalue())

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
