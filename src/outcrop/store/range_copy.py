"""Files of an object store copied to a folder in ranges, several at a time, noted in a journal, and gone on with.

The journal ``.fetched`` begins with what is copied; if that is something else, what lies in the folder is removed. Each
range that has come is noted with its checksum, and copied again after an interruption only where the bytes on disk are
others.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

import outcrop._core as _core
from outcrop.errors import IoError, naming_files
from outcrop.runtime import system
from outcrop.runtime.parsing import parse_json
from outcrop.runtime.progress import Progress
from outcrop.store import manifest as manifests
from outcrop.store.remote import RemoteFolder

RANGE_BYTES = 8 << 20
READERS = 8  # ranges under way
JOURNAL = ".fetched"
TASK = "fetch"


class FileSize(NamedTuple):
    """Bytes of a file, and how many of them are data; those behind them fill it up."""

    whole: int
    data: int


@dataclass
class CopyCounts:
    """Counts the bytes that came now, and that an earlier call had copied."""

    bytes: int = 0
    resumed_bytes: int = 0


class _Range(NamedTuple):
    file: str
    offset: int
    size: int


class RangeCopy:
    """Copies files to the folder ``work``.

    Args:
        of: What is copied, as plain values: what an interrupted call has copied of something else is of no use.
        files: Name -> size; a name may have slashes.
    """

    def __init__(
        self, folder: RemoteFolder, work: Path, of: Mapping[str, Any], files: Mapping[str, FileSize]
    ):
        self._folder, self._work, self._files = folder, work, files
        self._journal = work / JOURNAL
        head = dict(of)
        lines = self._journal.read_text().splitlines() if self._journal.is_file() else []
        if not lines or parsed(lines[0]) != head:
            for path in work.iterdir():
                manifests.remove(path)
            self._journal.write_text(json.dumps(head) + "\n")
        for path in work.rglob(
            "*"
        ):  # of a call that wanted more of it: whoever finds a file takes it for whole
            name = path.relative_to(work).as_posix()
            if path.is_file() and name not in files and path != self._journal:
                path.unlink()

    def run(self, progress: Progress) -> tuple[dict[str, int], CopyCounts]:
        """Copies what is missing; returns the checksum of the data of each file, and what was copied.

        Raises:
            FormatError: A file is gone, or ends before its size.
            IoError: The store or the disk failed, or has no room; names the file.
        """
        work, total, counts = self._work, sum(size.whole for size in self._files.values()), CopyCounts()
        free = shutil.disk_usage(work).free
        there = system.bytes_of_files(work)
        if total - there > free:
            raise IoError(
                errno.ENOSPC, f"{work} has room for {free} bytes, {total - there} are to come: free some"
            )
        progress.start(TASK, total, "bytes")
        crcs = self._journaled(counts, progress)
        with naming_files(work), self._journal.open("a") as journal:
            for name, size in self._files.items():
                (work / name).parent.mkdir(parents=True, exist_ok=True)
                with self._opened(name) as handle:
                    if size.whole:
                        os.posix_fallocate(handle, 0, size.whole)
            missing = [one for name in self._files for one in self._ranges(name) if one not in crcs]
            self._fetch_all(missing, crcs, journal, counts, progress)
            for name in self._files:
                with self._opened(name) as handle:
                    os.fsync(handle)
        progress.finish(TASK)
        return {name: self._crc(name, crcs) for name in self._files}, counts

    def forget(self, name: str) -> None:
        """Takes a file out of the journal, so that the next call copies it again."""
        kept = [line for line in self._journal.read_text().splitlines(True) if not _is_of(line, name)]
        manifests.write_atomic(self._journal, "".join(kept).encode())

    def finish(self) -> None:
        """Removes the journal: the files are what they should be."""
        self._journal.unlink(missing_ok=True)

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        handle = os.open(self._work / name, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            yield handle
        finally:
            os.close(handle)

    def _ranges(self, name: str) -> Iterator[_Range]:
        whole = self._files[name].whole
        for offset in range(0, whole, RANGE_BYTES):
            yield _Range(name, offset, min(RANGE_BYTES, whole - offset))

    def _data_crc(self, one: _Range, content: bytes) -> int:
        """Returns the checksum of what of a range are data."""
        return _core.crc32c(as_array(content)[: max(self._files[one.file].data - one.offset, 0)])

    def _crc(self, name: str, crcs: dict[_Range, int]) -> int:
        crc = 0
        for one in self._ranges(name):
            count = max(min(one.size, self._files[name].data - one.offset), 0)
            crc = _core.crc32c_combine(crc, crcs[one], count)
        return crc

    def _journaled(self, counts: CopyCounts, progress: Progress) -> dict[_Range, int]:
        """Returns the ranges that are there, with the checksums of their data."""
        found: dict[_Range, int] = {}
        for line in self._journal.read_text().splitlines()[1:]:
            noted = parsed(line)
            if not (isinstance(noted, list) and len(noted) == 4 and noted[0] in self._files):
                continue  # torn by a kill
            one, crc = _Range(str(noted[0]), int(noted[1]), int(noted[2])), int(noted[3])
            with (self._work / one.file).open("rb") as file:
                file.seek(one.offset)
                content = file.read(one.size)
            if len(content) == one.size and self._data_crc(one, content) == crc:
                found[one] = crc
                progress.advance(TASK, one.size)
                counts.resumed_bytes += one.size
        return found

    def _fetch_all(
        self,
        ranges: Iterable[_Range],
        crcs: dict[_Range, int],
        journal: TextIO,
        counts: CopyCounts,
        progress: Progress,
    ) -> None:
        """Fetches ``ranges``, a few at a time; notes each in the journal, and its checksum in ``crcs``."""

        def one_range(one: _Range) -> None:
            content = self._folder.read_range(one.file, one.offset, one.size)
            with self._opened(one.file) as handle:
                written = os.pwrite(handle, content, one.offset)
            if written != one.size:
                raise IoError(errno.ENOSPC, f"{self._work}: {one.file} could not be written whole")
            crc = self._data_crc(one, content)
            with writing:
                crcs[one] = crc
                journal.write(json.dumps([*one, crc]) + "\n")
                journal.flush()
                progress.advance(TASK, one.size)
                counts.bytes += one.size

        left, writing = iter(ranges), threading.Lock()
        with ThreadPoolExecutor(READERS, "outcrop-fetch") as readers:
            under_way = {readers.submit(one_range, one) for one in islice(left, READERS)}
            try:
                while under_way:
                    done, under_way = wait(under_way, return_when="FIRST_COMPLETED")
                    for ended in done:
                        ended.result()
                    under_way |= {readers.submit(one_range, one) for one in islice(left, len(done))}
            except BaseException:
                readers.shutdown(wait=False, cancel_futures=True)
                raise


def as_array(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)


def _is_of(line: str, file: str) -> bool:
    """Tells whether a line of the journal is of ``file``."""
    noted = parsed(line)
    return isinstance(noted, list) and noted[:1] == [file]


def parsed(text: str) -> Any:
    """Returns the JSON of a line; None where it is none."""
    try:
        return parse_json(text)
    except ValueError:
        return None
