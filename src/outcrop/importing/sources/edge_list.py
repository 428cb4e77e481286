"""Edge lists as arrays or tables, part of ``arrays:DIR`` or by themselves: ``edges:FILE``.

``.npy`` ``[E, 2]`` (source, target) or ``[2, E]``; of shape ``[2, 2]`` the rows are edges. Or Parquet, or text with or
without a header, cells separated by commas, tabs or blanks, such as the lists of SNAP and KONECT (lines at the top that
begin with ``#`` or ``%`` are skipped): columns ``src``/``source`` and ``dst``/``target``, else the first two, and for
weights ``weight`` or ``edge_weight``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources import tables
from outcrop.importing.sources.base import EdgeBlock, GraphSource, block_bytes, check_ids
from outcrop.importing.sources.ids import (
    IdMap,
    PlainIds,
    TextIds,
    is_text_type,
    lookup_edges,
    odd_among_integers,
)
from outcrop.importing.sources.npy import array_blocks, forget_pages, open_npy
from outcrop.importing.sources.table_files import is_number, open_table
from outcrop.importing.sources.tables import Place, Table
from outcrop.runtime.runtime import Runtime

ROW_NUMBERS = ("", "Unnamed: 0", "__index_level_0__")  # what pandas writes unless it is told not to
SOURCE_COLUMNS = ("src", "source", "from", "head", "fromnodeid", "id_1")
TARGET_COLUMNS = ("dst", "target", "to", "tail", "tonodeid", "id_2")
WEIGHT_COLUMNS = ("weight", "edge_weight")


def open_edge_list(path: Path, runtime: Runtime) -> GraphSource:
    """Opens ``edges:FILE``. Ids are integers 0 .. N - 1, or text in the order of first appearance.

    Raises:
        ArgumentError: No such file.
        FormatError: It is no edge list, or torn.
    """
    if not path.is_file():
        raise ArgumentError(f"{path} is no file: edges:FILE needs a .npy, .parquet, .csv, .tsv or .txt file")
    if path.suffix == ".npy":
        edges, num_edges = array_edges(runtime, str(path), open_npy(path), PlainIds())
        return GraphSource(str(path), edges, None, num_edges, edge_at=edge_of(str(path)))
    table = open_table(path)
    ids = TextIds(runtime) if text_columns(runtime, table) else PlainIds()
    names = (lambda: ids.names() or iter(())) if isinstance(ids, TextIds) else None
    weight = table.column(*WEIGHT_COLUMNS)
    used = [*edge_columns(table), weight] if table.columns else []
    left = [column for column in table.columns if column not in used]
    return GraphSource(
        str(path),
        table_edges(runtime, table, ids),
        None,
        table.num_rows,
        names=names,
        weighted=weight is not None,
        notes=_notes(table, left),
        edge_at=Place(table).at,
        weight_at=Place(table, weight).at,
    )


def edge_of(name: str) -> Callable[[int], str]:
    """Returns what says where an edge of an array is, whichever of its axes counts the edges."""
    return lambda edge: f"{name}, edge {edge} (the first is 0)"


def array_edges(
    runtime: Runtime,
    name: str,
    array: np.ndarray,
    ids: IdMap,
    weights_name: str = "",
    weights: np.ndarray | None = None,
) -> tuple[Callable[[], Iterator[EdgeBlock]], int]:
    """Returns what yields the edges of an array ``[E, 2]`` or ``[2, E]``, with ``weights`` ``[E]``, and their number.

    Raises:
        FormatError: Another shape, or weights that are no numbers.
        ArgumentError: Ids that are no integers.
    """
    if array.ndim != 2 or 2 not in array.shape:
        raise FormatError(f"{name} has shape {array.shape}; [edges, 2] or [2, edges] is needed")
    check_ids(name, array[:0])
    pairs = array if array.shape[1] == 2 else array.T
    if weights is not None and (weights.shape != (len(pairs),) or weights.dtype.kind not in "fiub"):
        raise FormatError(
            f"{weights_name} has shape {weights.shape} of {weights.dtype}; one number for each of {len(pairs)} edges "
            "is needed"
        )

    def blocks() -> Iterator[EdgeBlock]:
        import pyarrow as pa

        row, rows = 0, max(1024, block_bytes(runtime) // 64)
        for block in array_blocks(runtime, pairs, rows):
            src, dst = (check_ids(name, block[:, i], row) for i in (0, 1))
            if not isinstance(ids, PlainIds):
                src, dst = lookup_edges(
                    ids, (Place(name), Place(name)), [pa.array(p) for p in (src, dst)], row
                )
            if weights is None:
                yield src, dst
            else:
                yield src, dst, np.array(weights[row : row + len(block)], np.float32)
                forget_pages(weights)
            row += len(block)

    return blocks, len(pairs)


def edge_columns(table: Table) -> list[str]:
    """Returns the columns of source and target. Raises FormatError where there are not two."""
    if len(table.columns) < 2:
        raise FormatError(
            f"{table.name} has {len(table.columns)} columns; an edge list needs source and target"
        )
    source = table.column(*SOURCE_COLUMNS)
    target = table.column(*TARGET_COLUMNS)
    weight = table.column(*WEIGHT_COLUMNS)
    others = [c for c in table.columns if c != weight and c not in ROW_NUMBERS]
    ends = [source, target] if source and target else others[:2]
    if len(ends) < 2:
        raise FormatError(f"{table.name} has one column besides the weights; source and target are needed")
    return ends


def _notes(table: Table, left: list[str]) -> tuple[str, ...]:
    """Says which columns are left out, and which are taken for source and target though no name says so."""
    if not left:
        return ()
    notes = [f"columns of {table.name} that are not imported: {', '.join(left)}"]
    ends = edge_columns(table)
    if ends != [table.column(*SOURCE_COLUMNS), table.column(*TARGET_COLUMNS)]:
        notes.append(
            f"{' and '.join(map(repr, ends))} are taken for source and target, as the first columns of several: call "
            "the right ones src and dst if it is others"
        )
    return tuple(notes)


def text_columns(runtime: Runtime, table: Table) -> bool:
    if not table.columns:
        return False
    return any(is_text_type(kind) for kind in table.types(runtime, edge_columns(table)))


def odd_text(runtime: Runtime, table: Table) -> str | None:
    """Tells where the first id is that is no integer, and what it is, where nearly all others of its column are."""
    columns = edge_columns(table)
    block = next(table.blocks(runtime, columns), [])
    for column, cells in zip(columns, block, strict=False):
        row = odd_among_integers(cells) if is_text_type(cells.type) else None
        if row is not None:
            return f"{Place(table, column).at(row)}: {cells[row].as_py()!r} is no integer, unlike the other ids there"
    return None


def table_edges(runtime: Runtime, table: Table, ids: IdMap) -> Callable[[], Iterator[EdgeBlock]]:
    def blocks() -> Iterator[EdgeBlock]:
        if not table.columns:
            return
        row, columns = 0, edge_columns(table)
        weight = table.column(*WEIGHT_COLUMNS)
        first, second, third = (Place(table, column) for column in (*columns, weight))
        for source, target, *rest in table.blocks(runtime, columns + ([weight] if weight else [])):
            ends = lookup_edges(ids, (first, second), (source, target), row)
            if rest:
                numbers = tables.to_numpy(third, rest[0], row)
                if numbers.dtype.kind not in "fiub":
                    odd = next((i for i, cell in enumerate(numbers) if not is_number(str(cell))), 0)
                    raise FormatError(
                        f"{third.at(row + odd)}: {str(numbers[odd])!r} is no number; weights are numbers: correct it"
                    )
                yield *ends, np.ascontiguousarray(numbers, np.float32)
            else:
                yield ends
            row += len(source)

    return blocks
