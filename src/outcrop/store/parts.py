"""Records of batches that lie in several files: of K parts, part k has batches k, K + k, 2 K + k, ... of each epoch.

So each of several machines needs only the parts of the batches that it trains with. Array ``records`` of an artifact
with parts is ``records.0``, ``records.1``, ..., a file each, and its attribute ``parts`` says how many there are. Files
of parts may lie elsewhere; all other files of an artifact must be there. With one part nothing differs from an artifact
without.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from outcrop.config.packing import MOST_PARTS
from outcrop.errors import FormatError
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import DiskArray
from outcrop.store.manifest import PARTS, Manifest


def names_of(name: str, parts: int) -> list[str]:
    """Returns the names of the arrays that have the parts of array ``name``."""
    return [name] if parts == 1 else [f"{name}.{part}" for part in range(parts)]


def count_of(manifest: Manifest, where: object) -> int:
    """Returns how many parts an artifact has.

    Args:
        where: What it is called in messages.

    Raises:
        FormatError: The manifest says something that no artifact has.
    """
    found = manifest.attributes.get(PARTS, 1)
    if type(found) is not int or not 1 <= found <= MOST_PARTS:
        raise FormatError(f"{where} has {found!r} parts, which no run has: its manifest was changed by hand")
    return found


def attributes_of(parts: int) -> dict[str, int]:
    """Returns what the manifest of an artifact says of its parts; nothing where there is one."""
    return {} if parts == 1 else {PARTS: parts}


def deal(passes: Iterable[tuple[int, int]], num_batches: int, parts: int) -> np.ndarray:
    """Returns the part that each batch belongs to: int64 [num_batches].

    Args:
        passes: The first batch of each epoch, and its batches.
    """
    found = np.zeros(num_batches, np.int64)
    for first, count in passes:
        found[first : first + count] = np.arange(count) % parts
    return found


class RecordFiles:
    """Opens the files that records lie in, those that are here.

    Args:
        name: The array, or what the names of its parts begin with.
        sizes: Bytes of each record: int64 [n].
        part: The part of each record: int64 [n]; within a part records lie in their order.

    Attributes:
        starts: Where each record begins in its file: int64 [n].
    """

    def __init__(
        self,
        runtime: Runtime,
        folder: Path,
        manifest: Manifest,
        name: str,
        sizes: np.ndarray,
        part: np.ndarray,
    ):
        self._folder, self._part, self._io = folder, part, runtime.io
        names = names_of(name, count_of(manifest, folder))
        if int(part.max(initial=0)) >= len(names):
            raise FormatError(
                f"{folder}: it has {len(names)} parts, the run has more; remove the folder and prepare the run again"
            )
        self._specs = [manifest.arrays[one] for one in names]
        self.starts = np.zeros(len(sizes), np.int64)
        self._files: list[DiskArray | None] = []
        for number, spec in enumerate(self._specs):
            own = np.flatnonzero(part == number)
            ends = np.cumsum(sizes[own])
            self.starts[own] = ends - sizes[own]
            if spec.data_bytes != int(sizes[own].sum()):
                raise FormatError(
                    f"{folder}: array {names[number]!r} has {spec.data_bytes} bytes, its records come to "
                    f"{int(sizes[own].sum())}; remove the folder and prepare the run again"
                )
            there = len(names) == 1 or (folder / spec.file).is_file()
            self._files.append(DiskArray(runtime, folder, spec) if there else None)

    def path_of(self, record: int) -> Path:
        return self._folder / self._specs[self._part[record]].file

    def groups(self, records: Sequence[int], sizes: np.ndarray, room: int) -> Iterator[list[int]]:
        """Yields ``records`` in order, as many at a time as lie in one file and come to ``room`` bytes; one at least.

        Args:
            sizes: Bytes that are read of each record of the files: int64 [n].
        """
        group: list[int] = []
        left = room
        for record in map(int, records):
            size = int(sizes[record])
            if group and (size > left or self._part[record] != self._part[group[0]]):
                yield group
                group, left = [], room
            group.append(record)
            left -= size
        if group:
            yield group

    def in_turn(
        self, records: Sequence[int], starts: np.ndarray, sizes: np.ndarray, buffer: np.ndarray
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yields (record, bytes that were read of it) for ``records`` in order; bytes hold until the next is asked for.

        Small pieces are read several at a time, for a read takes as long whatever it reads.

        Args:
            starts, sizes: The piece of each record of the files, by where it begins in its file: int64 [n].
            buffer: uint8, at least as large as the largest piece.
        """
        for group in self.groups(records, sizes, len(buffer)):
            lengths = sizes[group]
            ends = np.cumsum(lengths)
            file = self.of(group[0]).file
            self._io.submit_reads(file, starts[group], lengths, buffer, ends - lengths).wait()
            for record, end, length in zip(group, ends.tolist(), lengths.tolist(), strict=True):
                yield record, buffer[end - length : end]

    def of(self, record: int) -> DiskArray:
        """Returns the file that ``record`` lies in.

        Raises:
            FormatError: It is not on this machine.
        """
        number = int(self._part[record])
        file = self._files[number]
        if file is None:
            raise FormatError(
                f"{self.path_of(record)} is not on this machine: it is part {number} of {len(self._files)} of the run. "
                f"Copy it from where the run was uploaded to: outcrop fetch URI {self._folder.parent} --parts {number}"
            )
        return file

    def close(self) -> None:
        for file in self._files:
            if file is not None:
                file.close()
