"""Keys of tables: which row is whose, and which rows of another table a column refers to.

In text a key column is one of integers where every cell is written as an integer, ``7`` and not ``007``; else its
cells are text. That does not depend on how much is read at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa
from pyarrow import compute

from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.arrow_errors import arrow_errors
from outcrop.importing.sources.ids import (
    CollectedIds,
    IdMap,
    MappedIds,
    PlainIds,
    TextIds,
    is_integer,
    is_text,
)
from outcrop.importing.sources.table_files import FileTable
from outcrop.importing.sources.tables import Place, Table, require_filled, trimmed
from outcrop.runtime.runtime import Runtime

_MERGED_IDS = 1 << 20  # at least, at a time
KeyForm = Literal["numbered", "integers", "text"]  # "numbered": 0 to N - 1, in this order


def is_written(table: Table) -> bool:
    """Tells whether the cells of a table are text, of which it has to be said what they mean."""
    return isinstance(table, FileTable) and not table.is_parquet


def text_type(table: Table) -> pa.DataType | None:
    """Returns the type by which cells are read as they are written; None where they have types."""
    return pa.string() if is_written(table) else None


def keys_of(runtime: Runtime, table: Table, column: str) -> IdMap:
    """Returns the map from the keys in ``column`` to rows of ``table``.

    Raises:
        FormatError: A key is listed twice, or a cell is empty.
        ArgumentError: The column holds neither integers nor text.
    """
    place = Place(table, column)
    return _integer_keys(runtime, table, place) or _text_keys(runtime, table, place)


def _integer_keys(runtime: Runtime, table: Table, place: Place) -> IdMap | None:
    """Returns the map of a column of integers; None where some are none."""
    numbers, row = CollectedIds(runtime), 0
    for (block,) in table.blocks(runtime, [place.column or ""], dtype=text_type(table)):
        if is_text(block) and not _all_integers(block):
            return None
        ids = _whole(place, block, row)
        require_filled(place, ids, row)
        numbers.add(ids.to_numpy(zero_copy_only=False))
        row += len(ids)
    return PlainIds(row, table.name) if numbers.plain else MappedIds(runtime, place, numbers.array())


def _text_keys(runtime: Runtime, table: Table, place: Place) -> IdMap:
    text = TextIds(runtime)
    for (block,) in table.blocks(runtime, [place.column or ""], dtype=text_type(table)):
        text.add_all(place, block)
    text.fixed_by = table.name
    return text


def form_of_keys(runtime: Runtime, table: Table, column: str) -> KeyForm:
    """Returns what the keys of a table are, and holds none of them.

    Raises:
        FormatError: A cell is empty.
        ArgumentError: The column holds neither integers nor text.
    """
    place, row, numbered = Place(table, column), 0, True
    form: KeyForm = "integers"
    for (block,) in table.blocks(runtime, [column], dtype=text_type(table)):
        if is_text(block):
            require_filled(place, _filled(block), row)
            if not _all_integers(block):
                form = "text"
        if form == "integers":
            ids = _whole(place, block, row)
            require_filled(place, ids, row)
            found = ids.to_numpy(zero_copy_only=False)
            numbered = numbered and np.array_equal(found, np.arange(row, row + len(found)))
        row += len(block)
    return "numbered" if form == "integers" and numbered else form


def distinct_keys(runtime: Runtime, places: Sequence[Place]) -> pa.Array:
    """Returns the distinct cells of columns, which are held under the budget: integers ascending, or text in the order
    of the columns and of the first row that has each.

    Raises:
        ArgumentError: A column holds neither integers nor text.
    """
    found = _distinct_integers(runtime, places)
    if found is not None:
        return pa.array(found)
    text = TextIds(runtime)
    for place, row, cells in _cells_of(runtime, places):
        text.lookup(place, _filled(cells).drop_null(), row)
    return pa.array(list(text.names()), pa.string())


def _distinct_integers(runtime: Runtime, places: Sequence[Place]) -> np.ndarray | None:
    """Returns the distinct integers of columns; None where they hold something else."""
    known, new, held = np.zeros(0, np.int64), CollectedIds(runtime), None
    for place, row, cells in _cells_of(runtime, places):
        if is_text(cells) and not _all_integers(_filled(cells)):
            return None
        new.add(np.unique(_whole(place, cells, row).drop_null().to_numpy(zero_copy_only=False)))
        if new.count >= max(
            len(known), _MERGED_IDS
        ):  # each is sorted few times, however many blocks there are
            known, new = np.union1d(known, new.array()), CollectedIds(runtime)
            if held is not None:
                held.release()
            held = runtime.budget.reserve("node-ids", 2 * known.nbytes)
    return np.union1d(known, new.array())


def _cells_of(runtime: Runtime, places: Sequence[Place]) -> Iterator[tuple[Place, int, pa.Array]]:
    for place in places:
        row = 0
        assert isinstance(place.source, Table)
        for (cells,) in place.source.blocks(runtime, [place.column or ""], dtype=text_type(place.source)):
            yield place, row, cells
            row += len(cells)


def _filled(cells: pa.Array) -> pa.Array:
    """Returns cells as text with empty ones as null."""
    cells = cells.cast(pa.string())
    given = compute.call_function("not_equal", [cells, pa.scalar("", cells.type)])
    return compute.call_function("if_else", [given, cells, pa.scalar(None, cells.type)])


def _all_integers(cells: pa.Array) -> bool:
    """Tells whether cells of text are all integers as they are printed; empty ones are left to the caller."""
    cells = cells.cast(pa.string()).drop_null()
    try:
        return bool(
            compute.call_function("equal", [cells.cast(pa.int64()).cast(pa.string()), cells]).true_count
            == len(cells)
        )
    except pa.ArrowInvalid:
        return False


def _whole(place: Place, cells: pa.Array, first_row: int) -> pa.Array:
    """Returns cells as int64 with empty ones as null: integers, whole floats, or text of either.

    Raises:
        ArgumentError: A cell is something else; says which.
    """
    cells = cells.cast(cells.type.value_type) if pa.types.is_dictionary(cells.type) else cells
    if is_text(cells):
        cells = _filled(trimmed(cells.cast(pa.string())))
        # "5.0" is 5 without becoming a float, which would round other keys.
        point = compute.ReplaceSubstringOptions(r"^\+?(-?[0-9]+)(\.0*)?$", r"\1")
        cells = compute.call_function("replace_substring_regex", [cells], point)
        try:
            return cells.cast(pa.int64())
        except pa.ArrowInvalid:
            cells = _as_floats(place, cells, first_row)
    if pa.types.is_floating(cells.type):
        _require_exact(place, cells, first_row)
        missing = compute.call_function("is_nan", [cells])
        cells = compute.call_function("if_else", [missing, pa.scalar(None, cells.type), cells])
    try:
        if (
            pa.types.is_integer(cells.type)
            or pa.types.is_floating(cells.type)
            or pa.types.is_null(cells.type)
        ):
            return cells.cast(pa.int64())
    except pa.ArrowInvalid:
        pass
    row = next((row for row, cell in enumerate(cells.to_pylist()) if not _is_whole(cell)), 0)
    raise ArgumentError(
        f"{place.at(first_row + row)}: {cells[row].as_py()!r} is no integer and no text, as keys are: correct it"
    )


def _require_exact(place: Place, cells: pa.Array, first_row: int) -> None:
    """Raises ArgumentError where a float is so large that it may be a rounded integer."""
    large = np.abs(cells.to_numpy(zero_copy_only=False).astype(np.float64)) > 2**53
    if large.any():
        row = int(np.argmax(large))
        raise ArgumentError(
            f"{place.at(first_row + row)}: {cells[row].as_py()!r} is beyond 2^53, where floats are rounded, so that "
            "keys may be confused: store keys as integers or text"
        )


def _is_whole(cell: object) -> bool:
    return (
        cell is None
        or isinstance(cell, int)
        or (isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**63)
    )


def _as_floats(place: Place, cells: pa.Array, first_row: int) -> pa.Array:
    try:
        return cells.cast(pa.float64())
    except pa.ArrowInvalid:
        words = cells.to_pylist()
        row = next((row for row, word in enumerate(words) if word is not None and not is_integer(word)), 0)
        raise ArgumentError(
            f"{place.at(first_row + row)}: {words[row]!r} is text, and the keys that it refers to are integers: "
            "correct it"
        ) from None


@dataclass(frozen=True)
class _ChosenRows(Place):
    """Says where cells of some of the rows are: cell i is in row ``rows[i]``."""

    rows: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def row_name(self, row: int) -> str:
        return super().row_name(int(self.rows[row]))

    def cell(self, row: int) -> str:
        return super().cell(int(self.rows[row]))


@dataclass(frozen=True)
class Reference:
    """Reads a column whose cells are keys of a table, as rows of that table.

    Attributes:
        place: The column.
        keys: Keys of the table to which it refers.
        drop_unknown: Whether keys that the table does not list count as none; else they are refused.
    """

    place: Place
    keys: IdMap
    drop_unknown: bool = False

    def rows(self, cells: pa.Array, first_row: int) -> np.ndarray:
        """Returns for each cell the row of the other table, int64 [n]; -1 where it is empty.

        Raises:
            ArgumentError: A key is one that the table does not list.
        """
        if isinstance(self.keys, TextIds):
            held = f"{self.place} holds {cells.type}; keys are text or integers"
            with arrow_errors(lambda _: ArgumentError(held)):
                keys = _filled(cells)
        else:
            keys = _whole(self.place, cells, first_row)
        given = np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False))
        keys = keys.drop_null()
        found = self._find(keys)
        if (found < 0).any() and not self.drop_unknown:
            chosen = _ChosenRows(self.place.source, self.place.column, first_row + given)
            try:
                self.keys.lookup(chosen, keys, 0)
            except ArgumentError as error:
                raise ArgumentError(
                    f'{error} (unknown_keys = "none" in tables.toml takes such keys for none)'
                ) from None
        rows = np.full(len(cells), -1, np.int64)
        rows[given] = found
        return rows

    def _find(self, keys: pa.Array) -> np.ndarray:
        if isinstance(self.keys, TextIds):
            return self.keys.find(keys)
        ids = keys.to_numpy(zero_copy_only=False)
        if isinstance(self.keys, MappedIds):
            return self.keys.find(ids)
        return np.where((ids >= 0) & (ids < (self.keys.num_nodes or 0)), ids, -1)


class WrittenIds:
    """Maps keys as a table of the keys' own does, whether another table has them as numbers or as text."""

    def __init__(self, keys: IdMap):
        self._keys = keys

    @property
    def num_nodes(self) -> int | None:
        return self._keys.num_nodes

    def lookup(self, place: Place, block: pa.Array, first_row: int) -> np.ndarray:
        """Returns the row of each key, int64 [n]. Raises FormatError for an empty cell, else as its keys do."""
        rows = Reference(place, self._keys).rows(block, first_row)
        if (rows < 0).any():
            row = first_row + int(np.argmax(rows < 0))
            raise FormatError(f"{place.at(row)} is empty; every row needs a key: fill it, or remove the row")
        return rows

    def names(self) -> Iterator[str] | None:
        return self._keys.names()


def key_names(runtime: Runtime, table: Table, column: str) -> Iterator[str]:
    """Yields the keys of the rows, as text, in order."""
    for (block,) in table.blocks(runtime, [column], dtype=text_type(table)):
        for cell in block.to_pylist():
            yield str(cell)
