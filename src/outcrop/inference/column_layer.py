"""One layer computed by columns, as :mod:`outcrop.inference.columns` has planned it.

Three parts follow each other. The input is read in order, and what sources give is kept in memory or written in cuts of
its columns, unless the layer before has cut it (:mod:`outcrop.inference.input_cut`). For each cut the lists are read in
order and added up for the targets, a block of them at a time. Where there are several cuts their sums are written, and
read again block by block to make the output. In each part one thread reads, one computes, and the caller writes.

Dense products are taken of whole blocks, padded with zeros: results do not depend on how memory was divided.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from outcrop.inference.activations import COLUMNS
from outcrop.inference.column_sums import SourceColumns
from outcrop.inference.columns import READ_AHEAD, SCORE_BLOCKS, ColumnPlan, OwnRows, blocks_of, padded
from outcrop.inference.edge_counts import Counts
from outcrop.inference.in_order import PIECE_EDGES, Lists, lists_in_order
from outcrop.inference.input_cut import TAG, cut_rows, scale_of
from outcrop.inference.inputs import StoredRows
from outcrop.inference.layerwise import LayerStats
from outcrop.inference.steps import Step
from outcrop.nn.sparse import as_input
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.pipeline import Pipeline, Stage
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store.arrays import ArrayWriter, DiskArray, Reads
from outcrop.store.levels import Level
from outcrop.store.manifest import ArraySpec
from outcrop.store.record import align_page

T = TypeVar("T")
Block = tuple[int, int]  # nodes from the first to the one behind the last
Blocks = Generator[tuple[Block, np.ndarray], None, None]
_SUMS = "sums"
_READ_TAG = "infer-block"


def _held(scores: Tensor) -> Callable[[int, int], Tensor]:
    """Returns what gives scores [heads, num_nodes], which are in memory."""
    return lambda first, stop: scores[:, first:stop].contiguous()


class ColumnLayer:
    """Computes the layer of a step by columns.

    Args:
        rows: The rows that the step reads, closed by who opened them; the folder of ``columns.bin`` where the layer
            before has cut them.
        counts: None where the layer does not scale by degrees.
        scratch: Folder for files that are there until the layer is closed.
    """

    def __init__(
        self,
        step: Step,
        plan: ColumnPlan,
        rows: StoredRows | Path,
        counts: Counts | None,
        scratch: Path,
        runtime: Runtime,
    ):
        assert step.layer.columns is not None
        self.graph, self.plan, self._step, self._runtime = step.graph, plan, step, runtime
        self._sums, self._counts, self._scratch = step.layer.columns, counts, scratch
        self._rows = rows
        self._nodes, self._widths = step.to.target.num_nodes, plan.widths
        self.stats = LayerStats(step.index, spans=1, passes=plan.passes)

    @property
    def out_dim(self) -> int:
        return self._step.layer.out_dim

    def close(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)

    def outputs(self) -> Generator[np.ndarray, None, None]:
        """Yields float32 [n, out_dim], n nodes at a time, in order."""
        if self._nodes == 0:
            return
        with ExitStack() as stack:
            if self.plan.passes > 1 or (self._widths and self.plan.cut is None):
                with manifests.naming_files(self._scratch):
                    self._scratch.mkdir()
            scale = scale_of(self._step, self._counts, self._runtime)
            filled = None if self.plan.cut is not None else self._fill(scale)
            self.stats.rows_by_level[Level.DISK] = self._nodes
            columns = stack.enter_context(self._opened_columns()) if self._widths else None
            if self.plan.passes == 1:
                if filled is None:
                    assert columns is not None
                    filled = self._loaded(columns, 0, 0, self._sums.width, scale, None)[1], None
                yield from self._outputs_of_one_pass(columns, *filled)
                return
            assert columns is not None
            writer = ArrayWriter(self._runtime, self._scratch, _SUMS, "float32")
            room: Any = None
            for number, (begin, end) in enumerate(self.plan.cuts):
                room, of = self._loaded(columns, number, begin, end, scale, room)
                for block in self._pass(number, of, lambda block, sums: sums):
                    writer.append(block.numpy().reshape(-1))
                del of
            del room, scale
            writer.finish()
            with self._opened(_SUMS, self._sums.width) as sums:
                yield from self._outputs_of_sums(sums, columns)

    # What sources give.

    def _fill(self, scale: Tensor | None) -> tuple[SourceColumns, Tensor | None]:
        """Reads the input, and keeps or writes what sources give. Returns what is kept, and own rows."""
        sums, plan, rows = self._sums, self.plan, padded(self._nodes)
        of, scores = SourceColumns(torch.empty(0), self._runtime.workers), torch.empty(0)
        if plan.passes == 1:
            scores = self._floats(sums.heads, rows)
            columns = self._floats(rows, sums.width + sums.heads)
            of = SourceColumns(columns, self._runtime.workers, _held(scores) if sums.heads else None, scale)
        held = self._floats(rows, sums.own_width) if plan.own is OwnRows.HELD else None

        def give(item: tuple[Block, np.ndarray]) -> list[Tensor]:
            (start, _), read = item
            x = self._tensor(read)
            here = slice(start, start + len(x))
            by = None if scale is None else scale[here]
            if plan.passes == 1:
                (of.columns[here],) = sums.given(x, by, plan.cuts)
                scores[:, here] = sums.target_scores(x)
            if held is not None:
                held[here] = sums.own(x)
            written = cut_rows(self._step, plan, x, by)
            # They are copies: the buffer is read into again.
            return [part.clone(memory_format=torch.contiguous_format) for part in written]

        blocks = [(a, min(a + plan.rows, self._nodes)) for a in range(0, self._nodes, plan.rows)]
        writer = ArrayWriter(self._runtime, self._scratch, COLUMNS, "float32") if self._widths else None
        with self._runtime.budget.reserve("infer-part", plan.fill_bytes):
            parts_of = self._piped(self._input_blocks(blocks), give)
            for (start, stop), parts in zip(blocks, parts_of, strict=True):
                for part in parts:
                    assert writer is not None
                    writer.append(part.numpy().reshape(-1))
                self._runtime.progress.advance("infer", stop - start)
        if writer is not None:
            writer.finish()
        return of, held

    def _floats(self, rows: int, width: int) -> Tensor:
        held = self._runtime.budget.empty(TAG, 4 * rows * width)
        return torch.from_numpy(held.view(np.float32)).view(rows, width)

    def _loaded(
        self, file: DiskArray, number: int, begin: int, end: int, scale: Tensor | None, room: Any
    ) -> tuple[Any, SourceColumns]:
        """Reads a cut into ``room``, which is made for the widest."""
        rows, widths = padded(self._nodes), self._widths[: self.plan.passes]
        if room is None:
            room = self._runtime.budget.empty(TAG, 4 * rows * max(widths))
        out = room[: 4 * rows * widths[number]]
        self._read_group(file, number, 0, self._nodes, out).wait()
        columns = torch.from_numpy(out.view(np.float32)).view(rows, widths[number])
        heads, scores = self._sums.heads_of(begin, end), None
        if heads and self.plan.passes == 1:
            held = self._floats(len(heads), rows)
            self._read_scores(file, heads, 0, self._nodes, held)
            scores = _held(held)
        elif heads:
            scores = self._scores_by_blocks(file, heads)
        return room, SourceColumns(columns, self._runtime.workers, scores, scale)

    def _read_scores(self, file: DiskArray, heads: range, start: int, stop: int, out: Tensor) -> None:
        """Reads, float32 [heads, padded], the scores that nodes ``start:stop`` have as targets."""
        for head, of_head in zip(heads, out.numpy(), strict=True):
            group = self.plan.passes + head
            self._read_group(
                file, group, start, stop, of_head.view(np.uint8)[: 4 * padded(stop - start)]
            ).wait()

    def _scores_by_blocks(self, file: DiskArray, heads: range) -> Callable[[int, int], Tensor]:
        """Returns what gives scores as targets, which are read for many blocks of targets at a time."""
        size, there = SCORE_BLOCKS * self.plan.sum_rows, -1
        held = self._floats(len(heads), size)

        def scores(first: int, stop: int) -> Tensor:
            nonlocal there
            start = first // size * size
            if start != there:
                self._read_scores(file, heads, start, min(start + size, self._nodes), held)
                there = start
            return held[:, first - start : stop - start].contiguous()

        return scores

    def _read_group(self, file: DiskArray, group: int, start: int, stop: int, out: np.ndarray) -> Reads:
        """Begins to read what columns.bin has, in one group, of nodes ``start:stop``, padded; ``start`` begins a
        block.
        """
        before, every = sum(self._widths[:group]), sum(self._widths)
        width = self._widths[group]
        starts = np.arange(start, stop, self.plan.rows)
        rows = np.array([padded(min(int(a) + self.plan.rows, self._nodes) - int(a)) for a in starts])
        offsets, lengths = 4 * (starts * every + rows * before), 4 * rows * width
        positions = np.cumsum(lengths) - lengths
        return self._runtime.io.submit_reads(file.file, offsets, lengths, out, positions)

    # Sums of sources.

    def _pass(self, number: int, of: SourceColumns, end: Callable[[Block, Tensor], T]) -> Iterator[T]:
        """Goes over the lists once; yields for each block what ``end`` makes of the sums of its targets, float32
        [targets, padded, columns].
        """
        plan, sums, stats = self.plan, self._sums, self.stats
        state: dict[str, Any] = {}

        def add(lists: Lists) -> tuple[int, T | None]:
            targets = lists.stop - lists.first
            start = lists.first // plan.sum_rows * plan.sum_rows
            stop = min(start + plan.sum_rows, self._nodes)
            if lists.begins:
                state["sums"] = sums.begin(of, lists.first, targets)
            if len(lists.col):
                rowptr, col = torch.from_numpy(lists.rowptr), torch.from_numpy(lists.col)
                sums.add(state["sums"], of, lists.first, rowptr, col)
            stats.parts += 1
            stats.edges += 0 if number else len(lists.col)
            if not lists.ends:
                return 0, None
            found = sums.end(state.pop("sums"), of, lists.first)
            if lists.first == start:
                state["block"] = found.new_zeros(padded(stop - start), found.shape[1])
            state["block"][lists.first - start : lists.stop - start] = found
            return targets, None if lists.stop < stop else end((start, stop), state.pop("block"))

        with self._runtime.budget.reserve("infer-part", plan.sum_bytes):
            for targets, found in self._piped(self._lists(), add):
                self._runtime.progress.advance("infer", targets)
                if found is not None:
                    yield found

    def _lists(self) -> Iterator[Lists]:
        plan = self.plan
        # Sources are added in chunks that pieces are multiples of: results do not depend on how long those are.
        piece = plan.edges // PIECE_EDGES * PIECE_EDGES
        return lists_in_order(self.graph, self._runtime, plan.sum_rows, plan.edges, plan.chunk_bytes, piece)

    # Outputs.

    def _outputs_of_one_pass(
        self, columns: DiskArray | None, of: SourceColumns, held: Tensor | None
    ) -> Iterator[np.ndarray]:
        wanted = set(self._wanted_blocks())
        with self._own_rows(columns, of.columns, held) as own_of:

            def end(block: Block, sums: Tensor) -> np.ndarray | None:
                return self._output(block, sums, own_of()) if block in wanted else None

            for out in self._pass(0, of, end):
                if out is not None:
                    self.stats.rows += len(out)
                    yield out

    def _outputs_of_sums(self, file: DiskArray, columns: DiskArray) -> Iterator[np.ndarray]:
        with self._own_rows(columns, None, None) as own_of:

            def make(item: tuple[Block, np.ndarray]) -> np.ndarray:
                block, read = item
                return self._output(block, self._joined(block, read), own_of())

            with self._runtime.budget.reserve("infer-part", self.plan.end_bytes):
                for out in self._piped(self._sum_blocks(file), make):
                    self.stats.rows += len(out)
                    yield out

    def _joined(self, block: Block, read: np.ndarray) -> Tensor:
        """Returns the cuts of a block, uint8, one after the other, as float32 [n, padded, width]."""
        rows = padded(block[1] - block[0])
        flat, at, parts = torch.from_numpy(read.view(np.float32)), 0, []
        for begin, end in self.plan.cuts:
            parts.append(flat[at : at + rows * (end - begin)].view(rows, end - begin))
            at += rows * (end - begin)
        return torch.cat(parts, 1)

    def _output(self, block: Block, sums: Tensor, own: Tensor | None) -> np.ndarray:
        """Returns the output of the targets of a block that are wanted."""
        start, stop = block
        out = self._step.layer.activate(self._sums.finish(sums, own))[: stop - start].numpy()
        if (wanted := self._step.wanted) is None:
            return out
        first, last = np.searchsorted(wanted, [start, stop])
        return out[wanted[first:last] - start]

    def _wanted_blocks(self) -> list[Block]:
        return blocks_of(self._step, self.plan.rows)

    @contextmanager
    def _own_rows(
        self, columns: DiskArray | None, source: Tensor | None, held: Tensor | None
    ) -> Iterator[Callable[[], Tensor | None]]:
        """Gives, block after block of those that are wanted, what targets keep of their own rows."""
        blocks = self._wanted_blocks()
        if self.plan.own in (OwnRows.SOURCE, OwnRows.HELD):
            table = source if self.plan.own is OwnRows.SOURCE else held
            assert table is not None
            rows = iter([table[start : start + padded(stop - start)] for start, stop in blocks])
            yield lambda: next(rows)
        elif self.plan.own is OwnRows.INPUT:
            with closing(self._input_blocks(blocks)) as read:
                yield lambda: self._sums.own(self._tensor(next(read)[1]))
        elif self.plan.own is OwnRows.CUTS:
            assert columns is not None
            of_row = sum(self._widths)

            def submit_cuts(block: Block, room: np.ndarray) -> Reads:
                offset, length = 4 * block[0] * of_row, 4 * padded(block[1] - block[0]) * self._sums.width
                return columns.submit(offset, room[:length])

            with closing(self._ahead(blocks, 4 * self.plan.rows * self._sums.width, submit_cuts)) as stored:
                yield lambda: self._joined(*next(stored))
        elif self.plan.own is OwnRows.STORED:
            assert columns is not None
            width, last = self._sums.own_width, len(self._widths) - 1

            def submit(block: Block, room: np.ndarray) -> Reads:
                return self._read_group(columns, last, *block, room)

            def take() -> Tensor:
                (start, stop), room = next(stored)
                return torch.from_numpy(room.view(np.float32)).view(-1, width)[: padded(stop - start)]

            with closing(self._ahead(blocks, 4 * self.plan.rows * width, submit)) as stored:
                yield take
        else:
            yield lambda: None

    # Reading and threads.

    def _input_blocks(self, blocks: Sequence[Block]) -> Blocks:
        """Yields the input rows of blocks, uint8, with zeros to their padded ends."""
        array, row_bytes = self._input.array, self._input.shape.row_bytes

        def pages(block: Block, room: np.ndarray) -> np.ndarray:
            return room[: align_page((block[1] - block[0]) * row_bytes)]

        def submit(block: Block, room: np.ndarray) -> Reads:
            return array.submit(block[0] * row_bytes, pages(block, room))

        for (start, stop), room in self._ahead(blocks, self.plan.rows * row_bytes, submit):
            array.check_pages(start * row_bytes // PAGE_BYTES, pages((start, stop), room))
            self._input.compare(np.arange(start, stop), room[: (stop - start) * row_bytes])
            size = padded(stop - start) * row_bytes
            room[(stop - start) * row_bytes : size] = 0
            yield (start, stop), room[:size]

    def _sum_blocks(self, file: DiskArray) -> Iterator[tuple[Block, np.ndarray]]:
        """Yields the sums of blocks that are wanted, uint8: those of each cut, padded, one after the other."""
        every, widths = padded(self._nodes), np.array([end - begin for begin, end in self.plan.cuts])
        before = np.cumsum(widths) - widths

        def submit(block: Block, room: np.ndarray) -> Reads:
            rows = padded(block[1] - block[0])
            offsets, lengths = 4 * (every * before + block[0] * widths), 4 * rows * widths
            return self._runtime.io.submit_reads(file.file, offsets, lengths, room, 4 * rows * before)

        return self._ahead(self._wanted_blocks(), 4 * self.plan.rows * self._sums.width, submit)

    def _ahead(
        self, blocks: Sequence[Block], size: int, submit: Callable[[Block, np.ndarray], Reads]
    ) -> Blocks:
        """Yields each block and memory of ``size`` bytes that ``submit`` has begun to fill, when it is filled. Two are
        read at a time; the memory of a block is filled again two blocks after it was let go of.
        """
        rooms = [self._runtime.budget.empty(_READ_TAG, size) for _ in range(min(READ_AHEAD, len(blocks)))]
        coming: deque[tuple[Block, np.ndarray, Reads]] = deque()
        try:
            for number, block in enumerate(blocks):
                room = rooms[number % READ_AHEAD]
                coming.append((block, room, submit(block, room)))
                if len(coming) == 2:
                    yield self._come(coming)
            while coming:
                yield self._come(coming)
        finally:
            for *_, job in coming:
                job.wait()

    @staticmethod
    def _come(coming: deque[tuple[Block, np.ndarray, Reads]]) -> tuple[Block, np.ndarray]:
        block, room, job = coming[0]
        job.wait()
        coming.popleft()
        return block, room

    def _piped(self, source: Iterator[Any], compute: Callable[[Any], T]) -> Iterator[T]:
        """Yields what ``compute`` makes of each item, one thread reading, another computing."""

        @torch.no_grad()
        def run(item: Any) -> T:
            return compute(item)

        stages = [Stage("read", lambda item: item, depth=1), Stage("compute", run, depth=1)]
        with closing(Pipeline[T](source, stages, name="infer")) as pipeline:
            yield from pipeline

    @contextmanager
    def _opened(self, name: str, width: int, folder: Path | None = None) -> Iterator[DiskArray]:
        """Opens a file of ``width`` columns of all nodes, padded, in ``folder``, None: of this layer alone."""
        count = padded(self._nodes) * width
        array = DiskArray(
            self._runtime,
            folder or self._scratch,
            ArraySpec(f"{name}.bin", "float32", (count,), 4, 0, align_page(4 * count)),
        )
        try:
            yield array
        finally:
            array.close()

    def _opened_columns(self) -> AbstractContextManager[DiskArray]:
        """Opens ``columns.bin``, of this layer or of the one before."""
        folder = self._rows if isinstance(self._rows, Path) else None
        return self._opened(COLUMNS, sum(self._widths), folder)

    @property
    def _input(self) -> StoredRows:
        assert isinstance(self._rows, StoredRows)
        return self._rows

    def _tensor(self, rows: np.ndarray) -> Tensor:
        """Returns input rows, float32."""
        return as_input(self._input.values(rows, torch.device("cpu")))
