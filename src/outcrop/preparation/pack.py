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

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import outcrop._core as _core
from outcrop.config import exact_bytes, least_bytes
from outcrop.errors import BudgetError, FormatError
from outcrop.preparation.pack_files import Journal, OutputFiles, PageSums, SharedRows
from outcrop.preparation.pack_memory import cut_features, divide_memory
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store import record
from outcrop.store.arrays import ArrayWriter
from outcrop.store.graph import Graph
from outcrop.store.manifest import Manifest
from outcrop.store.packed import FORMAT, VERSION
from outcrop.store.placement import Placement
from outcrop.store.samples import SampleSet

_JOURNAL = "journal.npz"
_JOURNAL_EVERY_BYTES = 256 << 20
_REREAD_SHARE = 16  # of what was written, one part at the most is read again because it left the page cache


def expected(graph: Graph, samples: SampleSet, placement: Placement) -> tuple[dict, dict[str, str]]:
    """Returns config and input digests of the artifact that :func:`pack` would write."""
    return {}, {
        "graph": graph.digest(),
        "sample": samples.manifest.digest(),
        "plan": placement.manifest.digest(),
    }


@dataclass
class _Streams:
    """Describes streams, one per (packed batch, hop), block of the disk cache, or cache in memory: what is to be
    appended where.

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
class _Episode:
    """Says what one pass over the features fills. ``caches``: those in memory too."""

    caches: bool
    blocks: range
    batches: range


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
        self._features = graph.open_rows(runtime, graph.row_file)
        self._stride = self._features.spec.stride_bytes
        self._row_bytes = self._features.row_bytes
        self._has_caches = bool(len(placement.host_ids) or len(placement.device_ids))
        self._geometry = divide_memory(
            self._features, samples.id_bytes, self._has_caches, runtime.budget.free_bytes
        )
        self._chunks = cut_features(self._features, self._geometry.chunk_pages)
        self._num_blocks = len(placement.disk_blocks) - 1

    def run(self, folder: Path) -> Manifest:
        config, inputs = expected(self._graph, self._samples, self._placement)
        placement = self._placement
        streams = len(placement.packed_batches) * (self._samples.hops + 1)
        episodes = list(self._episodes())
        geometry = f"{len(self._chunks.starts)}-{self._chunks.starts[1]}-{len(episodes)}"
        key = ",".join([*inputs.values(), geometry])
        journal = Journal(folder / _JOURNAL, key, streams, len(placement.packed_batches))
        files = OutputFiles(self._runtime, folder, placement, self._samples, self._features)
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
        try:
            self._graph.require_unchanged()
        except FormatError:
            _clear(folder)  # a graph without checksums of pages: what was packed may be of either
            raise
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
                f"packing needs {least_bytes(2 * per_batch)} for its tables and has {exact_bytes(room)}; raise "
                f"--memory by {least_bytes(2 * per_batch)}"
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

    def _write_meta(self, files: OutputFiles, journal: Journal) -> None:
        """Writes the meta part of every record, and which nodes' rows are packed, for the passes to read."""
        samples, placement = self._samples, self._placement
        buffer = self._runtime.budget.empty("pack-meta", samples.max_record_bytes)
        shared = SharedRows(samples, placement, self._runtime)
        for packed_batch, disk in shared.by_batch():
            graph = samples.read(int(placement.packed_batches[packed_batch]), buffer)
            table = placement.lookup(graph.n_id, disk)
            blob = record.encode(graph, table, samples.id_bytes)
            self._runtime.io.write(files.records, int(placement.offsets[packed_batch]), blob)
            journal.meta_crc[packed_batch] = _core.crc32c(blob)
            packed = np.delete(graph.n_id, table.cached_positions()).astype(f"<i{samples.id_bytes}")
            if len(packed) != placement.num_packed[packed_batch]:
                raise FormatError(
                    f"{placement.path}: mini-batch {placement.packed_batches[packed_batch]} has {len(packed)} rows to "
                    f"pack, the plan says {placement.num_packed[packed_batch]}; remove the folder and prepare the run "
                    "again"
                )
            if len(packed):
                self._runtime.io.write(
                    files.packed_ids, files.packed_ids_at(packed_batch), packed.view(np.uint8)
                )
        shared.close()
        files.sync()
        journal.meta_done = True
        journal.save()

    def _fill(self, files: OutputFiles, journal: Journal, episodes: list[_Episode]) -> None:
        """Makes the passes over the features."""
        size, runtime = self._geometry, self._runtime
        chunk_bytes = size.headroom + size.chunk_pages * PAGE_BYTES
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
        files: OutputFiles,
        journal: Journal,
        number: int,
        groups: list[_Streams],
        buffers: list[np.ndarray],
        scatters: dict[int, _core.Scatter],
    ) -> None:
        start = journal.chunk if number == journal.episode else 0
        self._runtime.progress.advance("pack", int(self._chunks.first_rows[start]) * self._stride)
        unsynced = written = 0
        # Pages that are read again to go on, if they are dropped.
        begun = PAGE_BYTES * sum(len(group.ids_start) for group in groups)
        for chunk, data, first, rows in self._read_chunks(start, buffers):
            with self._runtime.trace.span("pack-chunk", episode=number, chunk=chunk):
                for group in groups:
                    self._scatter(scatters[group.id_bytes], group, chunk, data, first, rows)
                    written += int(np.diff(group.bounds[:, chunk : chunk + 2]).sum()) * self._row_bytes
            unsynced += len(data)
            self._runtime.progress.advance("pack", len(data))
            if unsynced >= min(_JOURNAL_EVERY_BYTES, self._features.spec.data_bytes // 8):
                files.sync(drop=begun <= written // _REREAD_SHARE)
                journal.episode, journal.chunk = number, chunk + 1
                journal.save()
                unsynced = written = 0
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

    def _batch_streams(self, files: OutputFiles, journal: Journal, batches: range) -> _Streams:
        samples, placement, hops = self._samples, self._placement, self._samples.hops + 1
        count = len(batches) * hops
        bounds = self._bounds(count)
        ids_start, out_start = np.zeros(count, np.int64), np.zeros(count, np.int64)
        buffer = self._runtime.budget.empty("pack-meta", max(samples.max_nodes * samples.id_bytes, 1))
        for i, packed_batch in enumerate(batches):
            batch, packed = (
                int(placement.packed_batches[packed_batch]),
                int(placement.num_packed[packed_batch]),
            )
            begin = files.packed_ids_at(packed_batch)
            part = buffer[: packed * samples.id_bytes]
            if packed:
                self._runtime.io.read(files.packed_ids, begin, part)
            ids = part.view(f"<i{samples.id_bytes}")
            cuts = np.concatenate([[0], np.cumsum(placement.packed_per_hop[packed_batch])])
            shift = record.shift_bytes(int(samples.num_nodes[batch]), packed, self._row_bytes)
            rows_at = (
                int(placement.offsets[packed_batch])
                + placement.meta_span_bytes(packed_batch, samples)
                + shift
            )
            for hop in range(hops):
                s = i * hops + hop
                bounds[s] = np.searchsorted(ids[cuts[hop] : cuts[hop + 1]], self._chunks.first_rows)
                ids_start[s] = begin + cuts[hop] * samples.id_bytes
                out_start[s] = rows_at + cuts[hop] * self._row_bytes
        crc = journal.crc[batches.start * hops : batches.stop * hops]
        return _Streams(files.packed_ids, files.records, ids_start, bounds, out_start, samples.id_bytes, crc)

    def _block_streams(self, files: OutputFiles, blocks: range) -> _Streams:
        """Returns blocks of the disk cache, by ascending node; :meth:`_order_disk_cache` comes later."""
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

    def _cache_streams(self, files: OutputFiles, journal: Journal) -> list[_Streams]:
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

    def _order_disk_cache(self, files: OutputFiles, journal: Journal) -> None:
        """Puts the rows of each block in their order, a block's size further to the front of the file."""
        starts, row, budget = self._placement.disk_blocks, self._row_bytes, self._runtime.budget
        if journal.ordered == self._num_blocks:
            return
        sums = PageSums(files, self._runtime, int(starts[journal.ordered]) * row)
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
        """Yields (chunk, its bytes from the first row on, first row, rows); the next chunk is read meanwhile."""
        chunks, file, headroom = self._chunks, self._features, self._geometry.headroom
        count = len(chunks.starts) - 1

        def submit(chunk: int) -> _core.IoJob:
            begin, end = int(chunks.starts[chunk]) * PAGE_BYTES, int(chunks.starts[chunk + 1]) * PAGE_BYTES
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
            begin, end = int(chunks.starts[chunk]) * PAGE_BYTES, int(chunks.starts[chunk + 1]) * PAGE_BYTES
            first, stop = int(chunks.first_rows[chunk]), int(chunks.first_rows[chunk + 1])
            begin_of_rows = headroom - len(carry)
            buffer[begin_of_rows:headroom] = carry
            used = (stop - first) * self._stride
            carry = buffer[begin_of_rows + used : headroom + end - begin].copy()
            if chunk + 1 < count:
                job = submit(chunk + 1)
            if file.page_sums is not None:
                file.page_sums.check(int(chunks.starts[chunk]), buffer[headroom : headroom + end - begin])
            yield chunk, buffer[begin_of_rows : begin_of_rows + used], first, stop - first

    def _carry_before(self, chunk: int) -> np.ndarray:
        """Returns the bytes of a row that begins before ``chunk`` and ends in it."""
        begin = int(self._chunks.starts[chunk]) * PAGE_BYTES
        count = begin - int(self._chunks.first_rows[chunk]) * self._stride
        out = np.zeros(count, np.uint8)
        if count:
            self._features.read_bytes(begin - count, out)
        return out

    def _rows_crc(self, journal: Journal) -> np.ndarray:
        """Returns the CRC of the packed rows of each record, from those of its hops."""
        hops = self._samples.hops + 1
        out = np.zeros(len(self._placement.packed_batches), np.uint32)
        for p in range(len(out)):
            crc = 0
            for hop, rows in enumerate(self._placement.packed_per_hop[p]):
                crc = _core.crc32c_combine(crc, int(journal.crc[p * hops + hop]), int(rows) * self._row_bytes)
            out[p] = crc
        return out

    def _record_crcs(self, journal: Journal) -> dict[str, int]:
        """Returns checksums of the whole files, put together from those of their parts."""
        rows_crc, whole = self._rows_crc(journal), 0
        placement, samples = self._placement, self._samples
        for packed_batch, batch in enumerate(placement.packed_batches):
            nodes, packed = int(samples.num_nodes[batch]), int(placement.num_packed[packed_batch])
            shift = record.shift_bytes(nodes, packed, self._row_bytes) if packed else 0
            span = record.rows_span_bytes(nodes, packed, self._row_bytes)
            rows = packed * self._row_bytes
            for crc, count in (
                (int(journal.meta_crc[packed_batch]), placement.meta_span_bytes(packed_batch, samples)),
                (_zeros_crc(shift), shift),
                (int(rows_crc[packed_batch]), rows),
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
