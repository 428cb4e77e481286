"""How a layer is computed by columns: how many columns are in memory at a time, and what that reads and writes.

Neighbor lists are gone over in order, with columns of what all sources give in memory. Where all columns fit, a layer
reads its input once and its lists once, and writes its output. Where they do not, the input is read once and written
again, cut into columns (``columns.bin``); for each cut the lists are read once and the sums of all targets written
(``sums.bin``), which are read in the end to make the output. The layer before may cut its output at once
(:mod:`outcrop.inference.input_cut`): what it gives is then not written as rows and read again. Every byte of that
follows from the sizes of the arrays: :func:`plan_columns` counts them before anything is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from outcrop.inference.column_sums import ColumnSums
from outcrop.inference.in_order import PIECE_EDGES, topology_bytes
from outcrop.inference.inputs import InputShape
from outcrop.inference.steps import Step
from outcrop.runtime import memory_tables
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.store.record import align_page

_FLOAT = 4  # bytes
UNIT_ROWS = 1024  # of float32, in any number of columns, are whole pages
_BLOCK_ROWS = (4 * UNIT_ROWS, 2 * UNIT_ROWS, UNIT_ROWS)
READ_AHEAD = 4  # blocks in memory: two that are being read, one that waits, one in use
_IN_FLIGHT = 3  # what a thread makes: one in the making, one that waits, one in use
_LIST_BYTES = 16  # of a target, where its list begins: read, cut and computed with
_EDGE_BYTES = 16  # of an edge while its list is cut
SCORE_BLOCKS = 8  # of targets that are summed up together, whose scores are read at a time
_SUM_BLOCKS = 4  # blocks that are summed up at a time, where their outputs are not made at once
_MOST_NODES = (1 << 31) - 1


class OwnRows(Enum):
    """Says where a target finds what it keeps of its own row."""

    NONE = "nothing is kept"
    SOURCE = "among what sources give"
    HELD = "in memory"
    STORED = "in columns.bin"
    INPUT = "in the input, which is read again"
    CUTS = "in columns.bin, whose cuts together are the input"


@dataclass(frozen=True)
class CutAhead:
    """Counts what a layer needs more where its output is cut for the next one, in place of a file of rows.

    Attributes:
        memory_bytes: Bytes that cutting works with.
        bytes_read: Bytes that it reads: what rows are scaled by.
        disk_bytes: Bytes of the ``columns.bin`` that it writes.
    """

    memory_bytes: int
    bytes_read: int
    disk_bytes: int


@dataclass(frozen=True)
class ColumnPlan:
    """Says how the columns of a layer are cut.

    Attributes:
        cuts: The columns (begin, end) of each pass over the lists.
        own: Where targets find what they keep of their own rows.
        widths: Columns of what ``columns.bin`` has of each block, one after the other: cuts with the scores of their
            heads, scores as targets, own rows. Empty where there is no such file.
        rows, sum_rows: Nodes of a block, and of one while sums are made, a multiple.
        edges: Edges of a piece of lists.
        chunk_bytes: Bytes of lists that are read at a time.
        fill_bytes, sum_bytes, end_bytes: What is worked with while the input is read, while sums are made, and while
            the output is made of them; read buffers not counted.
        memory_bytes: Bytes of everything together, at the most.
        bytes_read, bytes_written: What the layer reads and writes, exactly.
        disk_bytes: Bytes of files that are there until the layer is done, its output not counted, nor what the layer
            before has written.
        cut: What the layer before needs more, where it has cut the input of this one; None: the input is rows.
    """

    cuts: tuple[tuple[int, int], ...]
    own: OwnRows
    widths: tuple[int, ...]
    rows: int
    sum_rows: int
    edges: int
    chunk_bytes: int
    fill_bytes: int
    sum_bytes: int
    end_bytes: int
    memory_bytes: int
    bytes_read: int
    bytes_written: int
    disk_bytes: int
    cut: CutAhead | None = None

    @property
    def passes(self) -> int:
        """Counts the passes over the lists."""
        return len(self.cuts)

    def rows_gone_over(self, nodes: int) -> int:
        """Counts the rows of the input, and the targets of all passes, that are gone over: what progress shows."""
        return nodes * (self.passes + (self.cut is None))

    @property
    def moved_bytes(self) -> int:
        """Counts what the layer reads and writes."""
        return self.bytes_read + self.bytes_written


def padded(nodes: int) -> int:
    """Returns the rows that ``nodes`` nodes have in files of columns."""
    return -(-nodes // UNIT_ROWS) * UNIT_ROWS


def blocks_of(step: Step, rows: int) -> list[tuple[int, int]]:
    """Returns the ranges of nodes, ``rows`` at a time, in which some are wanted."""
    nodes = step.to.target.num_nodes
    starts = np.arange(0, nodes, rows) if step.wanted is None else np.unique(step.wanted // rows) * rows
    return [(int(start), min(int(start) + rows, nodes)) for start in starts]


def plan_columns(
    step: Step,
    memory: int,
    held_bytes: int = 0,
    *,
    cut_before: bool = False,
    ahead: CutAhead | None = None,
) -> ColumnPlan | None:
    """Returns how ``step`` is computed by columns within ``memory`` bytes, of which ``held_bytes`` are taken.

    None where it cannot be: not one column of all sources fits, or columns need each other, or there are types of nodes
    or edges.

    Args:
        cut_before: Whether the layer before cuts the input.
        ahead: What cutting the output for the next layer needs; None: the output is written as rows.
    """
    sums = step.layer.columns
    if sums is None or step.graph.is_typed or step.to.target.num_nodes > _MOST_NODES:
        return None
    (shape,) = step.inputs.values()
    total = memory - held_bytes - _fixed_bytes(memory)
    if not (shape.stored and shape.gapless) or total <= 0:
        return None
    layer = _Layer(step, sums, shape, cut_before, ahead)
    for one_pass in (True, False):
        found = layer.plans(total, one_pass)
        if not one_pass:
            return next(found, None)
        # Own rows may fit beside the columns, if blocks are small enough.
        if (least := min(found, key=lambda one: one.moved_bytes, default=None)) is not None:
            return least
    return None


@dataclass(frozen=True)
class _Layer:
    """Holds what plans of a layer depend on; those of :func:`plan_columns`."""

    step: Step
    sums: ColumnSums
    shape: InputShape
    cut_before: bool
    ahead: CutAhead | None

    @property
    def nodes(self) -> int:
        return self.step.to.target.num_nodes

    def plans(self, total: int, one_pass: bool) -> Iterator[ColumnPlan]:
        """Yields the plans that fit ``total`` bytes, those with larger blocks first."""
        chunk_bytes = memory_tables.LIST_CHUNK.bytes_of(total)
        most_edges = max(self.step.num_edges, default=0)
        edges = max(min(memory_tables.COLUMN_EDGES.bytes_of(total) // _EDGE_BYTES, most_edges), PIECE_EDGES)
        allowed = [rows for rows in _BLOCK_ROWS if rows * self.shape.row_bytes % PAGE_BYTES == 0]
        # A quarter, or what more the smallest blocks need.
        for most_beside in (memory_tables.COLUMN_BLOCKS.bytes_of(total), total // 2, total):
            for rows in allowed:
                work = _WorkBytes.of(self, rows, edges, chunk_bytes, one_pass, total)
                apart = max(work.while_filling, work.while_ending)
                beside = max(work.while_summing, apart if one_pass else 0)
                if beside > most_beside or apart > total:
                    continue
                if (cut := self._cut(total - beside, one_pass)) is None:
                    continue
                cuts, own, held = cut
                yield ColumnPlan(
                    cuts,
                    own,
                    self._widths(cuts, own),
                    rows,
                    rows if one_pass else _SUM_BLOCKS * rows,
                    edges,
                    chunk_bytes,
                    work.fill,
                    work.sum,
                    work.end,
                    max(held + beside, apart),
                    *self._moved(cuts, own, rows),
                    self._cut_needs(cuts, own, rows, work.fill) if self.cut_before else None,
                )

    def _cut(self, resident: int, one_pass: bool) -> tuple[tuple[tuple[int, int], ...], OwnRows, int] | None:
        """Chooses as few cuts as ``resident`` bytes allow, one where ``one_pass``, and where own rows are found; gives
        the bytes that are held, too. None: they do not fit.
        """
        sums, nodes = self.sums, padded(self.nodes)
        always = _FLOAT * nodes * self.step.layer.uses_degrees
        of_column = _FLOAT * max(nodes, 1)

        def bytes_of(cuts: tuple[tuple[int, int], ...]) -> int:
            targets = sums.heads if one_pass else 0  # scores as targets, which else are read as they are used
            return always + of_column * (targets + max(self._row_width(a, b) for a, b in cuts))

        most = sums.width if one_pass else min(max(resident - always, 0) // of_column, sums.width - 1)
        while most and bytes_of(sums.cuts(most)) > resident:
            most = 0 if one_pass else most - 1
        if not most:
            return None
        cuts = sums.cuts(most)
        held = bytes_of(cuts)
        if (
            one_pass
            and not self.cut_before
            and sums.own_width
            and not (sums.own_is_input and sums.gives_input)
        ):
            of_own = of_column * sums.own_width
            if held + of_own <= resident:
                return cuts, OwnRows.HELD, held + of_own
        return cuts, self._own_rows(one_pass), held

    def _row_width(self, begin: int, end: int) -> int:
        """Counts what a row of a cut has: its columns, and a score for each of their heads."""
        return end - begin + len(self.sums.heads_of(begin, end))

    def _own_rows(self, one_pass: bool) -> OwnRows:
        """Says where own rows are found that are not held in memory by themselves."""
        sums, is_source = self.sums, self.sums.own_is_input and self.sums.gives_input
        if not sums.own_width:
            return OwnRows.NONE
        if one_pass and is_source:
            return OwnRows.SOURCE
        if self.cut_before:
            return OwnRows.CUTS if is_source else OwnRows.STORED
        if not sums.own_is_input and 2 * _FLOAT * sums.own_width < self.shape.row_bytes:
            return OwnRows.STORED
        return OwnRows.INPUT

    def _widths(self, cuts: Sequence[tuple[int, int]], own: OwnRows) -> tuple[int, ...]:
        """Returns what :attr:`ColumnPlan.widths` says."""
        given: list[int] = []
        if len(cuts) > 1 or self.cut_before:
            given = [self._row_width(begin, end) for begin, end in cuts] + [1] * self.sums.heads
        return (*given, *([self.sums.own_width] if own is OwnRows.STORED else []))

    def _cut_needs(self, cuts: Sequence[tuple[int, int]], own: OwnRows, rows: int, fill: int) -> CutAhead:
        """Counts what the layer before needs to cut the input: a block of it, and what rows are scaled by."""
        scales, held = self.step.layer.uses_degrees, _FLOAT * padded(self.nodes)
        return CutAhead(
            rows * self.shape.row_bytes + fill + held * scales,
            align_page(_FLOAT * self.nodes) * scales,
            held * sum(self._widths(cuts, own)),
        )

    def _moved(self, cuts: tuple[tuple[int, int], ...], own: OwnRows, rows: int) -> tuple[int, int, int]:
        """Counts (bytes read, bytes written, bytes of files that this layer writes and that go when it is done)."""
        step, sums, shape, nodes = self.step, self.sums, self.shape, self.nodes
        blocks = blocks_of(step, rows)
        in_blocks = sum(padded(stop - start) for start, stop in blocks)  # rows of the blocks that are wanted
        read = len(cuts) * topology_bytes(step.graph)
        if not self.cut_before:
            read += align_page(nodes * shape.row_bytes)
        if self.ahead is not None:
            read += self.ahead.bytes_read
        if step.layer.uses_degrees:
            read += align_page(_FLOAT * nodes)
        if len(cuts) > 1 or self.cut_before:
            taken = sum(self._row_width(a, b) + len(sums.heads_of(a, b)) for a, b in cuts)
            read += _FLOAT * padded(nodes) * taken
        if len(cuts) > 1:
            read += _FLOAT * in_blocks * sums.width
        if own in (OwnRows.STORED, OwnRows.CUTS):
            read += _FLOAT * in_blocks * sums.own_width
        elif own is OwnRows.INPUT:
            read += sum(align_page((stop - start) * shape.row_bytes) for start, stop in blocks)
        columns = 0 if self.cut_before else sum(self._widths(cuts, own))
        disk = _FLOAT * padded(nodes) * (columns + (sums.width if len(cuts) > 1 else 0))
        return read, disk + (step.output_bytes if self.ahead is None else self.ahead.disk_bytes), disk


@dataclass(frozen=True)
class _WorkBytes:
    """Counts what the three parts of a layer work with, without read buffers and with them."""

    fill: int
    sum: int
    end: int
    while_filling: int
    while_summing: int
    while_ending: int

    @classmethod
    def of(
        cls, layer: _Layer, rows: int, edges: int, chunk_bytes: int, one_pass: bool, total: int
    ) -> _WorkBytes:
        step, sums, shape = layer.step, layer.sums, layer.shape
        width, own, out = sums.width, sums.own_width, step.layer.out_dim
        # Of several cuts each has at most what is there for one column of every node, as often as it fits.
        cut = width if one_pass else min(total // (_FLOAT * max(padded(layer.nodes), 1)) + 1, width)
        own_rooms = READ_AHEAD * rows * max(shape.row_bytes, _FLOAT * own) if own else 0
        # Behind each cut are scores of its heads, which several cuts may share.
        scores = 0 if not sums.heads else sums.heads + (sums.heads if one_pass else width)
        given = width + scores + own
        copies = _IN_FLIGHT + (2 if sums.heads else 1)  # scores are put behind columns
        fill = rows * (shape.widened_bytes + _FLOAT * given * copies)
        end = rows * (
            step.layer.cost.row + shape.widened_bytes + _FLOAT * (width + own + out * (_IN_FLIGHT + 1))
        )
        adding = edges * _EDGE_BYTES
        adding += (rows if one_pass else _SUM_BLOCKS * rows) * (
            _LIST_BYTES * _IN_FLIGHT + _FLOAT * ((3 + _IN_FLIGHT) * cut + 8 * sums.heads)
        )
        summing = adding + (end if one_pass else 0)
        of_targets = 0 if one_pass else SCORE_BLOCKS * _SUM_BLOCKS * rows * _FLOAT * sums.heads
        ahead = 0 if layer.ahead is None else layer.ahead.memory_bytes  # while outputs are made
        return cls(
            fill,
            summing,
            end,
            0 if layer.cut_before else READ_AHEAD * rows * shape.row_bytes + fill,
            4 * chunk_bytes + (own_rooms + ahead if one_pass else of_targets) + summing,
            READ_AHEAD * rows * _FLOAT * width + own_rooms + end + ahead,
        )


def _fixed_bytes(memory: int) -> int:
    return (
        memory_tables.INFER_IO_BUFFERS.bytes_of(memory)
        + 2 * memory_tables.INFER_WRITE_BUFFER.bytes_of(memory)
        + memory_tables.SMALL_TABLES_OF_A_LAYER.least
    )
