"""What packing works with: its output files, its journal, and which rows of the disk cache a batch reads.

See preparation/pack.py for how they are used.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

import outcrop._core as _core
from outcrop.runtime import memory_tables
from outcrop.runtime.in_background import InBackground
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store import record
from outcrop.store.arrays import SequentialRows
from outcrop.store.manifest import ArraySpec
from outcrop.store.parts import names_of
from outcrop.store.placement import PlacedRows, Placement
from outcrop.store.samples import SampleSection


class JoinedWrites:
    """Writes pieces of files, those that follow one another in a file together: a write takes long whatever it writes.

    Args:
        most_bytes: What is written together at the most; 0: each piece is written at once.
    """

    def __init__(self, runtime: Runtime, most_bytes: int):
        self._io, self._buffer = runtime.io, runtime.budget.empty("pack-meta", most_bytes)
        self._file = self._at = self._held = 0

    def write(self, file: int, offset: int, data: np.ndarray) -> None:
        """Writes ``data``, flat uint8, to ``file`` at ``offset``: now, or with what comes next, or in :meth:`flush`."""
        follows = (file, offset) == (self._file, self._at + self._held)
        if not follows or self._held + len(data) > len(self._buffer):
            self.flush()
            self._file, self._at = file, offset
        if len(data) > len(self._buffer):
            self._io.write(file, offset, data)
            self._at += len(data)
            return
        self._buffer[self._held : self._held + len(data)] = data
        self._held += len(data)

    def flush(self) -> None:
        if self._held:
            self._io.write(self._file, self._at, self._buffer[: self._held])
        self._at, self._held = self._at + self._held, 0


class PageSums:
    """Writes the checksum of each page of the disk cache, as it comes in order, ``at`` bytes being there already."""

    def __init__(self, files: RowsFiles, runtime: Runtime, at: int):
        self._files, self._runtime = files, runtime
        self._page = at // PAGE_BYTES
        self._rest = np.zeros(at % PAGE_BYTES, np.uint8)  # of the page that is not whole yet
        if len(self._rest):
            runtime.io.read(files.disk_cache, self._page * PAGE_BYTES, self._rest)

    def add(self, data: np.ndarray, *, last: bool) -> None:
        if len(self._rest):
            head = data[: PAGE_BYTES - len(self._rest)]
            self._rest, data = np.concatenate([self._rest, head]), data[len(head) :]
            if len(self._rest) == PAGE_BYTES:
                self._write(self._rest)
                self._rest = self._rest[:0]
        whole = len(data) // PAGE_BYTES * PAGE_BYTES
        self._write(data[:whole])
        self._rest = np.concatenate([self._rest, data[whole:]])
        if last and len(self._rest):
            self._write(np.concatenate([self._rest, np.zeros(PAGE_BYTES - len(self._rest), np.uint8)]))

    def _write(self, pages: np.ndarray) -> None:
        if len(pages):
            sums = np.zeros(len(pages) // PAGE_BYTES, np.uint32)
            _core.crc32c_pages(pages, sums)
            self._runtime.io.write(self._files.page_crc, self._page * 4, sums.view(np.uint8))
            self._page += len(sums)


class SharedRows:
    """Finds which rows of a disk cache each packed batch reads, and where they go: looked up in the plan's lists."""

    def __init__(self, section: SampleSection, placement: Placement, rows: PlacedRows, runtime: Runtime):
        self._section, self._batches, self._placement = section, placement, rows
        self._loaded: tuple[int, int] | None = None
        self._range = -1
        if rows.num_disk_rows == 0:
            return
        budget, block = runtime.budget, rows.max_block_rows
        self._ids, self._rank = rows.disk_array("disk_ids"), rows.disk_array("disk_rank")
        for array in (self._ids, self._rank):
            array.verify()
        self._table = _core.SegmentTable(budget, int(np.diff(rows.range_starts).max()))
        self._block = budget.empty("pack-meta", block * (section.id_bytes + 4))
        self._nodes = budget.empty("pack-meta", section.buffer_bytes)
        self._rows = budget.empty("pack-meta", max(section.max_rows * 4, 4)).view(np.int32)
        # With several ranges each is loaded for as many batches as there is room for their tables.
        single = len(rows.range_starts) == 2
        room = memory_tables.DISK_CACHE_GROUP.bytes_of(budget.free_bytes)
        self._group = 1 if single else max(room // (max(section.max_rows, 1) * 16), 1)
        self._held = budget.reserve("pack-meta", self._group * section.max_rows * 16)

    def by_batch(self) -> Iterator[tuple[int, tuple[np.ndarray, np.ndarray] | None]]:
        """Yields (packed batch, (positions, rows)), rows ascending; None where nothing is shared."""
        placement, every = self._placement, self._batches
        if placement.num_disk_rows == 0:
            for packed_batch in range(len(every.packed_batches)):
                yield packed_batch, None
            return
        for segment in range(every.num_segments):
            batches = every.segment(segment)
            for first in range(batches.start, batches.stop, self._group):
                group = range(first, min(first + self._group, batches.stop))
                hits: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {p: [] for p in group}
                for number in range(len(placement.range_starts) - 1):
                    self._load(number, segment)
                    for packed_batch in group:
                        hits[packed_batch].append(self._look_up(packed_batch))
                for packed_batch in group:
                    positions, rows = zip(*hits.pop(packed_batch), strict=True)
                    yield packed_batch, (np.concatenate(positions), np.concatenate(rows))

    def _look_up(self, p: int) -> tuple[np.ndarray, np.ndarray]:
        ids = self._section.read_ids(int(self._batches.packed_batches[p]), self._nodes)
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
        region, width = self._placement.region(number, segment), self._section.id_bytes
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


class OutputFiles:
    """Holds the files of records, one for each part, while they are written, and the files of each row file.

    Args:
        spare_bytes: How much longer each file of records is meanwhile.
    """

    def __init__(
        self,
        runtime: Runtime,
        folder: Path,
        placement: Placement,
        files: Sequence[RowsFiles],
        spare_bytes: Sequence[int] = (),
    ):
        self._io, self._placement, self.folder, self.files = runtime.io, placement, folder, files
        self._names = names_of("records", placement.num_parts)
        self._part = placement.part
        self._spare_bytes = spare_bytes or [0] * placement.num_parts
        self._records: list[int] = []
        self._record_pages: list[int] = []  # the same, past the page cache

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.bin"

    def _sizes(self) -> dict[str, int]:
        """Returns the bytes of each file of records while it is written."""
        both = zip(self._placement.part_bytes(), self._spare_bytes, strict=True)
        return {name: size + spare for name, (size, spare) in zip(self._names, both, strict=True)}

    def are_there(self) -> bool:
        """Tells whether all are there, as they are while they are written, or as they are at the end."""
        sizes = zip(self._names, self._placement.part_bytes(), self._sizes().values(), strict=True)
        return all(
            (path := self._path(name)).is_file() and path.stat().st_size in both for name, *both in sizes
        ) and all(files.are_there() for files in self.files)

    def open(self) -> None:
        for name, size in self._sizes().items():
            self._records.append(self._io.open(str(self._path(name)), _core.OpenMode.update))
            self._io.resize(self._records[-1], size)
            self._record_pages.append(self._io.open(str(self._path(name)), _core.OpenMode.pages))
        for files in self.files:
            files.open()

    def path_of(self, number: int) -> Path:
        """Returns the path of a file that is open, by the engine's number of it."""
        for name, file in zip(self._names, self._records, strict=True):
            if file == number:
                return self._path(name)
        return next(path for files in self.files if (path := files.path_of(number)) is not None)

    def record_file(self, packed_batch: int) -> int:
        """Returns the file that the record of a packed batch lies in."""
        return self._records[self._part[packed_batch]]

    def record_pages(self, packed_batch: int) -> int:
        """Returns the same file opened for whole pages that go past the page cache."""
        return self._record_pages[self._part[packed_batch]]

    def sync(self, *which: RowsFiles, drop: bool = True) -> None:
        """Writes everything out, of the row files ``which``.

        Args:
            drop: What was packed leaves the page cache, where it would push out what is in use (libraries, too).
        """
        self.sync_records(drop=drop)
        for files in which:
            files.sync(drop=drop)

    def sync_records(self, parts: Iterable[int] | None = None, *, drop: bool = True) -> None:
        """Writes the records out, as :meth:`sync` does: those of ``parts``, None: all."""
        for part in range(len(self._records)) if parts is None else parts:
            (self._io.drop_cache if drop else self._io.sync)(self._records[part])

    def finish(self, crcs: Sequence[int], parts: Sequence[Mapping[str, int]]) -> dict[str, ArraySpec]:
        """Returns the arrays that were written.

        Args:
            crcs: Checksum of each file of records.
            parts: Checksums of the other files, by their names, for each row file.
        """
        specs = {}
        for name, records, size, crc in zip(
            self._names, self._records, self._placement.part_bytes(), crcs, strict=True
        ):
            if any(self._spare_bytes):
                self._io.resize(records, size)
            self._io.drop_cache(records)
            specs[name] = ArraySpec(self._path(name).name, "uint8", (size,), 1, crc, size)
        for files, own in zip(self.files, parts, strict=True):
            specs |= files.finish(own)
        return specs

    def close(self) -> None:
        for opened in (self._records, self._record_pages):
            while opened:
                self._io.close(opened.pop())
        for files in self.files:
            files.close()


class RowsFiles:
    """Holds the files of one row file while they are written, and the id lists that are read for the caches.

    ``packed_ids`` lists, batch by batch, the ids whose rows are packed; it goes when packing is over.
    """

    _NAMES = ("host_cache", "device_cache", "disk_cache")
    host_cache: int
    device_cache: int
    disk_cache: int
    page_crc: int
    packed_ids: int
    host_ids: int
    device_ids: int
    disk_ids: int
    disk_rank: int

    def __init__(
        self,
        runtime: Runtime,
        folder: Path,
        rows: PlacedRows,
        section: SampleSection,
        features: SequentialRows,
    ):
        self._io, self._placed, self._features, self._folder = runtime.io, rows, features, folder
        self._row_bytes, self._id_bytes = features.row_bytes, section.id_bytes
        self._open: dict[int, Path] = {}
        self._packed_before = np.concatenate([[0], np.cumsum(rows.num_packed)])
        self._rows = {
            "host_cache": len(rows.host_ids),
            "device_cache": len(rows.device_ids),
            "disk_cache": rows.num_disk_rows,
        }
        self._num_pages = record.align_page(rows.num_disk_rows * self._row_bytes) // PAGE_BYTES
        self.spare_bytes = rows.max_block_rows * self._row_bytes

    def _path(self, name: str) -> Path:
        return self._folder / f"{self._placed.prefix}{name}.bin"

    def path_of(self, number: int) -> Path | None:
        """Returns the path of a file that is open, by the engine's number of it; None: it is none of these."""
        return self._open.get(number)

    def packed_ids_at(self, p: int) -> int:
        """Tells where the ids of packed batch ``p`` begin."""
        return int(self._packed_before[p]) * self._id_bytes

    def _sizes(self) -> dict[str, int]:
        """Returns the bytes of each file while it is written."""
        sizes = {name: record.align_page(rows * self._row_bytes) for name, rows in self._rows.items()}
        sizes["disk_cache"] += record.align_page(self.spare_bytes)
        sizes["page_crc"] = record.align_page(self._num_pages * 4)
        sizes["packed_ids"] = record.align_page(int(self._packed_before[-1]) * self._id_bytes)
        return sizes

    def are_there(self) -> bool:
        """Tells whether all are there, as they are while they are written, or as they are at the end."""
        for name, size in self._sizes().items():
            path, sizes = self._path(name), [size]
            if name in self._rows:
                end = self._rows[name] * self._row_bytes
                sizes += [end, record.align_page(end)]
            if not path.is_file() or path.stat().st_size not in sizes:
                return False
        return True

    def open(self) -> None:
        update, read = _core.OpenMode.update, _core.OpenMode.read
        for name, size in self._sizes().items():
            file = self._add(self._path(name), update)
            setattr(self, name, file)
            self._io.resize(file, size)
        for name in ("host_ids", "device_ids", "disk_ids", "disk_rank"):
            setattr(self, name, self._add(self._placed.file_of(name), read))

    def _add(self, path: Path, mode: _core.OpenMode) -> int:
        file = self._io.open(str(path), mode)
        self._open[file] = path
        return file

    def sync(self, *, drop: bool) -> None:
        """Writes everything out, as :meth:`OutputFiles.sync` does."""
        for name in self._NAMES:
            (self._io.drop_cache if drop else self._io.sync)(getattr(self, name))
        for name in ("page_crc", "packed_ids"):
            self._io.sync(getattr(self, name))

    def finish(self, crcs: Mapping[str, int]) -> dict[str, ArraySpec]:
        """Returns the arrays that were written, and takes back the room that was needed meanwhile."""
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
        width, row, prefix = self._features.spec.shape[1:], self._row_bytes, self._placed.prefix
        specs = {
            prefix + name: ArraySpec(
                self._path(name).name,
                self._features.spec.dtype,
                (rows, *width),
                row,
                crcs[name],
                record.align_page(rows * row),
            )
            for name, rows in self._rows.items()
        }
        pages, size = self._num_pages, record.align_page(self._num_pages * 4)
        path = self._path("page_crc")
        specs[f"{prefix}page_crc"] = ArraySpec(path.name, "uint32", (pages,), 4, page_crc, size)
        return specs

    def close(self) -> None:
        while self._open:
            self._io.close(self._open.popitem()[0])


class RowsJournal:
    """Holds the checksums of one row file so far. ``ordered``: blocks of its disk cache that are in order."""

    def __init__(self, streams: int):
        self.crc = np.zeros(streams, np.uint32)
        self.cache_crc = np.zeros(2, np.uint32)
        self.disk_crc = self.ordered = 0


class Journal:
    """Notes where an interrupted packing goes on, and the checksums so far.

    Attributes:
        files: What is noted of each row file.
        file, episode, chunk: The row file that is passed over, and where that goes on.
        groups: Groups of batches whose records were made of the log, where there is one (preparation/pack_log.py).
    """

    def __init__(self, path: Path, key: str, streams: Sequence[int], batches: int):
        self._path, self._key = path, key
        self.file = self.episode = self.chunk = self.groups = 0
        self.meta_done = False
        self.meta_crc = np.zeros(batches, np.uint32)
        self.files = [RowsJournal(count) for count in streams]

    @staticmethod
    def key_in(path: Path) -> str:
        """Returns the key of a journal; empty where there is none or it cannot be read."""
        return str(_saved(path).get("key", ""))

    def load(self) -> bool:
        """Takes over an earlier journal of the same work; false where there is none or it cannot be read."""
        lengths, found = [len(rows.crc) for rows in self.files], _saved(self._path)
        names = {"key", "crc", "meta_crc", "cache_crc", "episode", "chunk", "ordered", "disk_crc"}
        if (
            not names <= found.keys()
            or str(found["key"]) != self._key
            or found["crc"].shape != (sum(lengths),)
        ):
            return False
        crcs = np.split(found["crc"], np.cumsum(lengths)[:-1])
        cached = found["cache_crc"].reshape(len(lengths), 2)
        ordered, disk = (np.atleast_1d(found[name]).tolist() for name in ("ordered", "disk_crc"))
        for rows, crc, cache_crc, blocks, disk_crc in zip(
            self.files, crcs, cached, ordered, disk, strict=True
        ):
            rows.crc, rows.cache_crc, rows.ordered, rows.disk_crc = crc, cache_crc, blocks, disk_crc
        self.meta_crc = found["meta_crc"]
        self.file, self.groups = int(found.get("row_file", 0)), int(found.get("groups", 0))
        self.episode, self.chunk = int(found["episode"]), int(found["chunk"])
        self.meta_done = True
        return True

    def restart(self) -> None:
        """Forgets that rows were written, but not what the meta parts are: they are written once more."""
        self.file = self.episode = self.chunk = self.groups = 0
        for rows in self.files:
            rows.ordered = rows.disk_crc = 0
        self.save()

    def save(self) -> None:
        self.write(self.content())

    def write(self, content: bytes) -> None:
        """Writes what :meth:`content` gave, in place of what the journal said before, and has it on disk: what it says
        that is done with may be overwritten next.
        """
        manifests.write_atomic(self._path, content)
        manifests.sync_folder(self._path.parent)

    def content(self) -> bytes:
        """Returns what the journal says now."""
        out = io.BytesIO()
        np.savez(
            out,
            key=np.str_(self._key),
            crc=np.concatenate([rows.crc for rows in self.files]),
            meta_crc=self.meta_crc,
            cache_crc=np.concatenate([rows.cache_crc for rows in self.files]),
            row_file=self.file,
            episode=self.episode,
            chunk=self.chunk,
            groups=self.groups,
            ordered=[rows.ordered for rows in self.files],
            disk_crc=[rows.disk_crc for rows in self.files],
        )
        return out.getvalue()


def _saved(path: Path) -> dict[str, np.ndarray]:
    """Returns what a journal says; nothing where there is none or it cannot be read."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as saved:
            return dict(saved)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return {}


class SyncInBackground(InBackground):
    """Writes out what was packed, and notes it in the journal, while packing goes on; use it as a context."""

    def __init__(self, journal: Journal):
        super().__init__("outcrop-sync")
        self._journal = journal

    def begin(self, work: Callable[[], None]) -> None:
        """Begins ``work``, after which what the journal says now holds; waits for the one before it."""
        content = self._journal.content()

        def sync() -> None:
            work()
            self._journal.write(content)

        super().begin(sync)
