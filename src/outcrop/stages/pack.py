"""Pack: write every level in one sequential pass over the features, within the memory budget.

Source: DiskGNN section 5.2 (batched packing). The feature file is read once in large chunks; from each chunk
every mini-batch takes its rows. The caches are filled in the same pass, as special mini-batches. If the
tables of all batches do not fit in the budget, batches are packed in episodes, one pass each.

Resumable: after each chunk what was written is synced and a journal notes where to go on. Writing a chunk
again writes the same bytes to the same places, so a kill at any moment leaves a run that continues to byte-
identical files.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from outcrop import _core
from outcrop.errors import BudgetError
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
    """One per (packed batch, hop), or one for a cache: what is to be appended where (core/pack/scatter.h)."""

    ids_file: int
    out_file: int
    ids_start: np.ndarray  # byte in the ids file where the stream's ids begin
    bounds: np.ndarray  # [streams, chunks + 1] ids before each chunk
    out_start: np.ndarray
    id_bytes: int
    filtered: bool  # rows that are cached are left out
    crc: np.ndarray
    out_offset: np.ndarray


@dataclass(frozen=True)
class _Chunks:
    """Chunk c is pages ``starts[c]:starts[c + 1]`` of the feature file; rows that end in it belong to it."""

    starts: np.ndarray
    first_rows: np.ndarray
    stride: int


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
        free = runtime.budget.free_bytes
        headroom = record.align_page(self._stride)
        pages = -(-self._features.spec.file_bytes // PAGE)
        # A chunk's rows also need 8 bytes of id each, in up to four buffers.
        widest = max(free // 256 * self._stride // PAGE, 1)
        chunk = min(max(free // 5 // PAGE, 1), widest, _MAX_CHUNK_BYTES // PAGE, max(pages, 1))
        self._headroom = headroom
        self._chunks = _cut(self._features, chunk)
        self._buffers = [runtime.budget.empty("pack-chunk", headroom + chunk * PAGE) for _ in range(2)]
        rows_per_chunk = chunk * PAGE // self._stride + 2
        ids_buffer = max(rows_per_chunk * 8, PAGE)
        out_buffer = max(min(free // 16, 32 << 20), self._row_bytes)
        self._scatters = {
            width: _core.Scatter(
                runtime.io, runtime.budget, self._row_bytes, self._stride, width, ids_buffer, out_buffer
            )
            for width in sorted({samples.id_bytes, 8} if self._has_caches() else {samples.id_bytes})
        }
        self._table_bytes = max(runtime.budget.free_bytes // 2, 1)
        self._skip = np.zeros(rows_per_chunk, np.uint8)

    def _has_caches(self) -> bool:
        return bool(len(self._placement.host_ids) or len(self._placement.device_ids))

    def run(self, folder: Path) -> Manifest:
        config, inputs = expected(self._graph, self._samples, self._placement)
        placement = self._placement
        streams = len(placement.packed_batches) * (self._samples.hops + 1)
        episodes = list(self._episodes())
        geometry = f"{len(self._chunks.starts)}-{self._chunks.starts[1]}-{len(episodes)}"
        key = ",".join([*inputs.values(), geometry])
        journal = _Journal(folder / _JOURNAL, key, streams, len(placement.packed_batches))
        if not (self._has_output_files(folder) and journal.load()):
            _clear(folder)
        self._runtime.progress.start("pack", len(episodes) * self._features.spec.data_bytes, "bytes")
        files = _OutputFiles(self._runtime, folder, placement, self._features)
        try:
            if not journal.meta_done:
                self._write_meta(files, journal)
            for number, batches in enumerate(episodes):
                if number >= journal.episode:
                    self._run_episode(files, journal, number, batches)
                else:
                    self._runtime.progress.advance("pack", self._features.spec.data_bytes)
            specs = files.finish(self._record_crcs(journal))
        finally:
            files.close()
        crc = ArrayWriter(self._runtime, folder, "rows_crc", "uint32")
        crc.append(self._rows_crc(journal))
        specs["rows_crc"] = crc.finish()
        journal.remove()
        manifest = Manifest(FORMAT, VERSION, specs, {"episodes": len(episodes)}, config, inputs)
        manifests.write(folder, manifest)
        self._runtime.progress.finish("pack")
        return manifest

    def _output_sizes(self) -> dict[str, int]:
        """Bytes of each output file."""
        caches = {
            "host_cache": len(self._placement.host_ids),
            "device_cache": len(self._placement.device_ids),
        }
        return {"records": int(self._placement.offsets[-1])} | {
            name: record.align_page(rows * self._row_bytes) for name, rows in caches.items()
        }

    def _has_output_files(self, folder: Path) -> bool:
        files = {folder / f"{name}.bin": size for name, size in self._output_sizes().items()}
        return all(path.is_file() and path.stat().st_size == size for path, size in files.items())

    def _episodes(self) -> Iterator[range]:
        """Packed batches by the episode in which they are packed: the tables of an episode fit in the budget."""
        per_batch = (self._samples.hops + 1) * ((len(self._chunks.first_rows)) * 4 + 64)
        fit = self._table_bytes // per_batch
        if fit == 0:
            raise BudgetError(
                f"packing needs {2 * per_batch} bytes for its tables and has {self._table_bytes}; raise "
                f"--memory by {2 * per_batch} bytes"
            )
        count = len(self._placement.packed_batches)
        for first in range(0, max(count, 1), fit):
            yield range(first, min(first + fit, count))

    def _write_meta(self, files: _OutputFiles, journal: _Journal) -> None:
        """Writes the meta part of every record: the sampled graph and the address table."""
        samples, placement = self._samples, self._placement
        buffer = self._runtime.budget.empty("pack-meta", samples.max_record_bytes)
        for p, batch in enumerate(placement.packed_batches):
            graph = samples.read(int(batch), buffer)
            blob = record.encode(graph, placement.lookup(graph.n_id), samples.id_bytes)
            self._runtime.io.write(files.records, int(placement.offsets[p]), blob)
            journal.meta_crc[p] = _core.crc32c(blob)
        self._runtime.io.sync(files.records)
        journal.meta_done = True
        journal.save()

    def _run_episode(self, files: _OutputFiles, journal: _Journal, number: int, batches: range) -> None:
        groups = [self._batch_streams(files, journal, batches)]
        if number == 0:
            groups += self._cache_streams(files, journal)
        start = journal.chunk if number == journal.episode else 0
        for group in groups:
            group.out_offset[:] = group.out_start + self._appended(group, start)
        self._runtime.progress.advance("pack", int(self._chunks.first_rows[start]) * self._stride)
        unsynced = 0
        for chunk, data, first, rows in self._read_chunks(start):
            with self._runtime.trace.span("pack-chunk", episode=number, chunk=chunk):
                for group in groups:
                    self._scatter(group, chunk, data, first, rows)
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

    def _scatter(self, group: _Streams, chunk: int, data: np.ndarray, first: int, rows: int) -> None:
        skip = self._skip[:rows]
        skip[:] = 0
        if group.filtered:
            for ids in (self._placement.host_ids, self._placement.device_ids):
                low, high = np.searchsorted(ids, [first, first + rows])
                skip[ids[low:high] - first] = 1
        before = group.bounds[:, chunk].astype(np.int64)
        counts = group.bounds[:, chunk + 1] - before
        self._scatters[group.id_bytes].run(
            data,
            first,
            rows,
            self._stride,
            skip,
            group.ids_file,
            group.out_file,
            group.ids_start + before * group.id_bytes,
            counts,
            group.out_offset,
            group.crc,
        )

    def _appended(self, group: _Streams, chunk: int) -> np.ndarray:
        """Bytes that chunks before ``chunk`` have appended to each stream."""
        if chunk == 0:
            return np.zeros(len(group.ids_start), np.int64)
        if not group.filtered:
            return group.bounds[:, chunk].astype(np.int64) * self._row_bytes
        cached = self._cached_before(group, chunk)
        return (group.bounds[:, chunk].astype(np.int64) - cached) * self._row_bytes

    def _cached_before(self, group: _Streams, chunk: int) -> np.ndarray:
        """Cached rows of each stream among the ids before ``chunk``: counted again on resuming."""
        counts = np.zeros(len(group.ids_start), np.int64)
        buffer = self._runtime.budget.empty(
            "pack-meta", max(self._samples.max_nodes * self._samples.id_bytes, 1)
        )
        for s in range(len(counts)):
            ids = buffer[: int(group.bounds[s, chunk]) * group.id_bytes]
            if len(ids):
                self._runtime.io.read(group.ids_file, int(group.ids_start[s]), ids)
                table = self._placement.lookup(ids.view(f"<i{group.id_bytes}"))
                counts[s] = table.num_cached
        return counts

    def _batch_streams(self, files: _OutputFiles, journal: _Journal, batches: range) -> _Streams:
        samples, placement, hops = self._samples, self._placement, self._samples.hops + 1
        count = len(batches) * hops
        held = self._runtime.budget.empty("pack-tables", max(count * len(self._chunks.first_rows) * 4, 1))
        bounds = held[: count * len(self._chunks.first_rows) * 4].view(np.int32).reshape(count, -1)
        ids_start, out_start = np.zeros(count, np.int64), np.zeros(count, np.int64)
        buffer = self._runtime.budget.empty("pack-meta", max(samples.max_nodes * samples.id_bytes, 1))
        for i, p in enumerate(batches):
            batch = int(placement.packed_batches[p])
            ids = samples.read_node_ids(batch, buffer)
            begin, _ = record.node_ids_range(int(samples.offsets[batch]), len(ids), samples.id_bytes)
            cuts = np.concatenate([[0], np.cumsum(samples.nodes_per_hop[batch])])
            out = (
                int(placement.offsets[p])
                + placement.meta_span_bytes(p, samples)
                + record.shift_bytes(len(ids), int(placement.num_packed[p]), self._row_bytes)
            )
            out_of_hop = (
                out + (np.cumsum(placement.packed_per_hop[p]) - placement.packed_per_hop[p]) * self._row_bytes
            )
            for hop in range(hops):
                s = i * hops + hop
                bounds[s] = np.searchsorted(ids[cuts[hop] : cuts[hop + 1]], self._chunks.first_rows)
                ids_start[s] = begin + cuts[hop] * samples.id_bytes
                out_start[s] = out_of_hop[hop]
        crc = journal.crc[batches.start * hops : batches.stop * hops]
        return _Streams(
            samples.file.file,
            files.records,
            ids_start,
            bounds,
            out_start,
            samples.id_bytes,
            True,
            crc,
            out_start.copy(),
        )

    def _cache_streams(self, files: _OutputFiles, journal: _Journal) -> list[_Streams]:
        groups = []
        for k, (ids, id_file, out_file) in enumerate(
            (
                (self._placement.host_ids, files.host_ids, files.host_cache),
                (self._placement.device_ids, files.device_ids, files.device_cache),
            )
        ):
            if len(ids):
                bounds = np.searchsorted(ids, self._chunks.first_rows)[None, :]
                zero = np.zeros(1, np.int64)
                groups.append(
                    _Streams(
                        id_file,
                        out_file,
                        zero,
                        bounds,
                        zero,
                        8,
                        False,
                        journal.cache_crc[k : k + 1],
                        zero.copy(),
                    )
                )
        return groups

    def _read_chunks(self, start: int) -> Iterator[tuple[int, np.ndarray, int, int]]:
        """(chunk, its bytes from the first row on, first row, rows); the next chunk is read meanwhile."""
        chunks, file = self._chunks, self._features
        count = len(chunks.starts) - 1

        def submit(chunk: int) -> _core.IoJob:
            begin, end = int(chunks.starts[chunk]) * PAGE, int(chunks.starts[chunk + 1]) * PAGE
            return self._runtime.io.submit_reads(
                file.file,
                np.array([begin]),
                np.array([end - begin]),
                self._buffers[chunk % 2],
                np.array([self._headroom]),
            )

        if start == count:
            return
        carry, job = self._carry_before(start), submit(start)
        for chunk in range(start, count):
            job.wait()
            buffer = self._buffers[chunk % 2]
            begin, end = int(chunks.starts[chunk]) * PAGE, int(chunks.starts[chunk + 1]) * PAGE
            first, stop = int(chunks.first_rows[chunk]), int(chunks.first_rows[chunk + 1])
            at = self._headroom - len(carry)
            buffer[at : self._headroom] = carry
            used = (stop - first) * self._stride
            carry = buffer[at + used : self._headroom + end - begin].copy()
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


class _OutputFiles:
    """The files being written, and the id lists that are read for the caches."""

    def __init__(self, runtime: Runtime, folder: Path, placement: Placement, features: DiskArray):
        self._io, self._placement, self._features = runtime.io, placement, features
        update, read = _core.OpenMode.update, _core.OpenMode.read
        self.records = self._io.open(str(folder / "records.bin"), update)
        self.host_cache = self._io.open(str(folder / "host_cache.bin"), update)
        self.device_cache = self._io.open(str(folder / "device_cache.bin"), update)
        self.host_ids = self._io.open(str(placement.path / placement.manifest.arrays["host_ids"].file), read)
        self.device_ids = self._io.open(
            str(placement.path / placement.manifest.arrays["device_ids"].file), read
        )
        self._rows = {"host_cache": len(placement.host_ids), "device_cache": len(placement.device_ids)}
        self._io.resize(self.records, int(placement.offsets[-1]))
        for name, rows in self._rows.items():
            self._io.resize(getattr(self, name), record.align_page(rows * features.row_bytes))

    def sync(self) -> None:
        for file in (self.records, self.host_cache, self.device_cache):
            self._io.sync(file)

    def finish(self, crcs: dict[str, int]) -> dict[str, ArraySpec]:
        for file in (self.records, self.host_cache, self.device_cache):
            self._io.drop_cache(file)
        total, width, row = (
            int(self._placement.offsets[-1]),
            self._features.spec.shape[1:],
            self._features.row_bytes,
        )
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
        return specs

    def close(self) -> None:
        for file in (self.records, self.host_cache, self.device_cache, self.host_ids, self.device_ids):
            self._io.close(file)


class _Journal:
    """Where an interrupted packing goes on, and the checksums so far."""

    def __init__(self, path: Path, key: str, streams: int, batches: int):
        self._path, self._key = path, key
        self.episode = self.chunk = 0
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
                found = {name: saved[name] for name in ("crc", "meta_crc", "cache_crc", "episode", "chunk")}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return False
        self.crc, self.meta_crc, self.cache_crc = found["crc"], found["meta_crc"], found["cache_crc"]
        self.episode, self.chunk = int(found["episode"]), int(found["chunk"])
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
        )
        manifests.write_atomic(self._path, out.getvalue())

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
