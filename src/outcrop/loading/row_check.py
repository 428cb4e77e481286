"""The last look at the rows of a mini-batch (``paranoid``): are they what the graph has, whatever they came through?

Each row is compared with its checksum (:mod:`outcrop.store.row_sums`) when the batch is ready for whoever uses it:
behind every cache, every record and every buffer. So nothing between the file and the consumer needs a check of its
own, and what is found has been somewhere between the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

import outcrop._core as _core
from outcrop.config import DeviceConfig
from outcrop.device import gpu_named
from outcrop.errors import CorruptionError
from outcrop.runtime import memory_tables
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import row_layout
from outcrop.store.graph import Graph
from outcrop.store.graph_types import RowFile, name_of
from outcrop.store.row_sums import open_row_sums, row_sums_folder

if TYPE_CHECKING:
    from outcrop.loading.transfer import BatchInTransfer
    from outcrop.store.batches import BatchGraph


class RowCheck:
    """Compares rows with the checksums of the rows of ``graph``, which are made where there are none.

    Args:
        device: Where batches go. From a GPU rows come back in pieces through ``buffer``.

    Attributes:
        buffer: uint8, held under the tag ``row-check``; empty for the CPU.

    Raises:
        ChecksumError, IoError: As :func:`outcrop.store.row_sums.open_row_sums`.
    """

    def __init__(self, graph: Graph, runtime: Runtime, device: DeviceConfig):
        self._graph, self._files, self._workers = graph, graph.row_files, runtime.workers
        self._row_bytes = [row_layout(graph.path / file.spec.file, file.spec)[1] for file in self._files]
        largest = max((file.row_bytes for file in self._files), default=0)
        pieces = memory_tables.ROW_CHECK.bytes_of(runtime.budget.limit_bytes)
        on_gpu = gpu_named(device.name) is not None
        self.buffer = runtime.budget.empty("row-check", max(pieces, largest) if on_gpu else 0)
        rehearsed = runtime.rehearsal is not None or runtime.measures
        self._sums = () if rehearsed else open_row_sums(graph, runtime)

    def compare(self, batch: BatchInTransfer, graph: BatchGraph, which: str) -> None:
        """Compares all rows of a batch.

        Args:
            which: What messages call it.

        Raises:
            CorruptionError: A row is another than that of the graph.
        """

        def see(number: int, first: int, rows: np.ndarray) -> None:
            ids = graph.section(self._files[number]).ids[first : first + len(rows)]
            self.compare_rows(number, ids, rows, which)

        batch.visit_rows(see, self.buffer)

    def comparing(self, file: RowFile, which: str) -> Callable[[np.ndarray, np.ndarray], None]:
        """Returns what compares rows of one row file, as :meth:`compare_rows` does."""
        number = self._files.index(file)
        return lambda ids, rows: self.compare_rows(number, ids, rows, which)

    def compare_rows(self, number: int, ids: np.ndarray, rows: np.ndarray, which: str) -> None:
        """Compares ``rows``, uint8 [n, at least row_bytes], with those of ``ids``, int64 [n], of row file ``number``.

        Raises:
            CorruptionError: One is another.
        """
        seen = rows[:, : self._row_bytes[number]]
        at, count = _core.compare_rows(
            self._workers, seen, np.ascontiguousarray(ids, np.int64), self._sums[number]
        )
        if count:
            raise CorruptionError(self._explain(number, int(ids[at]), seen[at], count, len(ids), which))

    def _explain(self, number: int, row: int, found: np.ndarray, count: int, total: int, which: str) -> str:
        file, name = self._files[number], name_of(self._files[number])
        what = f"{'node' if file.kind == 'nodes' else 'edge'} {row}{f' of {name!r}' if name else ''}"
        return (
            f"{which}: {count} of {total} rows of {self._graph.path / file.spec.file} are not what the graph has, the "
            f"first of them that of {what}; {self._where(file, number, row, found)}"
        )

    def _where(self, file: RowFile, number: int, row: int, found: np.ndarray) -> str:
        """Says where it may have come from, and what to do: the file is read once more, past all caches of ours."""
        if not 0 <= row < file.num_rows:
            return (
                f"there are only {file.num_rows}: the list of nodes of the batch was damaged, in memory or in the "
                "run; load it again, and test the memory of the machine"
            )
        if self._graph.is_left(file):
            return (
                "the file itself lies in a store: it was damaged in the run (outcrop verify RUN/pack), in a cache or "
                "in a buffer; train again from the last checkpoint, and test the memory of the machine"
            )
        path, size = self._graph.path / file.spec.file, self._row_bytes[number]
        try:
            there = np.fromfile(path, np.uint8, size, offset=row * file.row_bytes)
        except OSError as error:
            return f"the file cannot be read again ({error.strerror}): make the graph again, or fetch it"
        if len(there) < size or _core.crc32c(there) != self._sums[number][row]:
            return (
                "the file has been changed since its rows got their checksums, or these are wrong: outcrop verify says "
                f"whether the graph is right. If it is, remove {row_sums_folder(self._graph)}, which is made anew, "
                "else copy the file anew or make the graph again"
            )
        bits = int(np.unpackbits(there ^ found).sum())
        return (
            f"{bits} bit{'s differ' if bits > 1 else ' differs'}. The file has the row right, so it was damaged on "
            "its way: in a cache or a buffer in memory, or in the records of the run (outcrop verify RUN/pack). Train "
            "again from the last checkpoint; where it comes back, test the memory of the machine"
        )
