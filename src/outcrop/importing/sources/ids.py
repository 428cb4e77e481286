"""From the ids of foreign files to 0 .. N - 1, and back by name."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.base import check_ids
from outcrop.importing.sources.tables import Place, Table, to_numpy
from outcrop.runtime.runtime import Runtime

# CPython: a short str object, an int and a slot of a dict; the text itself comes on top.
_ENTRY_BYTES = 200
_COLLECTED_IDS = 1 << 14
# Of ids that are alike but for a few, these few look like mistakes: at most one of so many, or a single one.
_FEW = 10
_COMPARED_NAMES = 20_000  # most names among which one that is nearly the same is looked for
_SHORTEST_ALIKE = 4  # letters: of shorter names too many differ in one


def is_text(array: pa.Array) -> bool:
    return is_text_type(array.type)


def is_text_type(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def is_integer(cell: object) -> bool:
    """Tells whether a cell of text is a whole number, as Arrow reads them."""
    digits = str(cell).strip().removeprefix("-")
    return digits.isascii() and digits.isdigit()


def few(odd: int, count: int) -> bool:
    """Tells whether ``odd`` of ``count`` ids are so few that they look like mistakes."""
    return 0 < odd <= max(1, count // _FEW) < count - odd


def odd_among_integers(block: pa.Array) -> int | None:
    """Returns the first cell of text that is no integer where nearly all of the block are; else None."""
    odd = [row for row, cell in enumerate(block.to_pylist()) if not is_integer(cell)]
    return odd[0] if few(len(odd), len(block)) else None


def integers(place: Place, block: pa.Array, first_row: int) -> np.ndarray:
    """Returns a block of ids as int64.

    Raises:
        ArgumentError: A cell is no integer; says which.
        FormatError: A cell is empty.
    """
    if is_text(block):
        cells = block.to_pylist()
        row = next((row for row, cell in enumerate(cells) if not is_integer(cell)), 0)
        raise ArgumentError(
            f"{place.at(first_row + row)}: {cells[row]!r} is text; integers are needed for the ids of nodes here: "
            "correct it, or convert the column"
        )
    ids = to_numpy(place, block, first_row)
    if ids.dtype.kind == "f" and len(ids):
        whole = np.isfinite(ids) & (ids == np.floor(ids))
        row = int(np.argmin(whole))
        raise ArgumentError(
            f"{place.at(first_row + row)}: {ids[row]} is a decimal number; integers are needed for the ids of nodes: "
            + ("write the column without decimal points" if whole.all() else "correct it")
        )
    return check_ids(str(place), ids, first_row)


class CollectedIds:
    """Collects int64 ids of many blocks in few arrays, under the budget; of 0, 1, 2 and so on it holds none.

    An array for each block, however small, would keep the memory around it from going back to the system.

    Attributes:
        count: Ids so far.
        plain: Whether they are 0 to ``count - 1``, in this order.
    """

    def __init__(self, runtime: Runtime):
        self._runtime = runtime
        self._parts: list[np.ndarray] = []
        self._held: list[Any] = []
        self._used = 0  # of the last part
        self.count, self.plain = 0, True

    def add(self, ids: np.ndarray) -> None:
        if self.plain and not np.array_equal(ids, np.arange(self.count, self.count + len(ids))):
            self.plain = False
            for begin in range(0, self.count, _COLLECTED_IDS):
                self._put(np.arange(begin, min(begin + _COLLECTED_IDS, self.count)))
        if not self.plain:
            self._put(ids)
        self.count += len(ids)

    def _put(self, ids: np.ndarray) -> None:
        while len(ids):
            if not self._parts or self._used == len(self._parts[-1]):
                count = max(_COLLECTED_IDS, len(ids))
                self._held.append(self._runtime.budget.reserve("node-ids", 8 * count))
                self._parts.append(np.empty(count, np.int64))
                self._used = 0
            taken = ids[: len(self._parts[-1]) - self._used]
            self._parts[-1][self._used :][: len(taken)] = taken
            self._used += len(taken)
            ids = ids[len(taken) :]

    def array(self) -> np.ndarray:
        """Returns all, in the order in which they came."""
        if self.plain:
            return np.arange(self.count)
        return np.concatenate([*self._parts[:-1], self._parts[-1][: self._used]])


class IdMap(Protocol):
    """Maps a block of foreign ids to int64 ids; ``first_row`` is where the block begins in the column at ``place``."""

    @property
    def num_nodes(self) -> int | None: ...
    def lookup(self, place: Place, block: pa.Array, first_row: int) -> np.ndarray: ...
    def names(self) -> Iterator[str] | None: ...


class PlainIds:
    """Ids are integers from 0 already.

    Args:
        num_nodes: Number of nodes; None = any id is one.
        listed: What tells the number, for messages.
    """

    def __init__(self, num_nodes: int | None = None, listed: str = "the graph"):
        self.num_nodes, self._listed = num_nodes, listed

    def lookup(self, place: Place, block: pa.Array, first_row: int) -> np.ndarray:
        ids = integers(place, block, first_row)
        if self.num_nodes is not None:
            wrong = (ids < 0) | (ids >= self.num_nodes)
            if wrong.any():
                row = int(np.argmax(wrong))
                raise ArgumentError(
                    f"{place.at(first_row + row)} names node {ids[row]}, but there are {self.num_nodes} nodes (0 to "
                    f"{self.num_nodes - 1}) in {self._listed}: correct it, or add the node there"
                )
        return ids

    def names(self) -> Iterator[str] | None:
        return None


class MappedIds:
    """Maps integers that are not ``0 .. N - 1``: node i is the i-th of the node table.

    Sorted arrays are held under the budget.
    """

    def __init__(self, runtime: Runtime, place: Place, ids: np.ndarray):
        self._held = runtime.budget.reserve("node-ids", 16 * len(ids))
        self._place, self.ids = place, ids
        self._order = np.argsort(ids, kind="stable")
        ranked = self.ids[self._order]
        repeated = np.flatnonzero(ranked[1:] == ranked[:-1])
        if len(repeated):
            first, second = self._order[repeated[0] : repeated[0] + 2].tolist()
            raise FormatError(_twice(place, quoted(ids[first]), first, second))
        self.num_nodes = len(ids)

    def is_permutation(self) -> bool:
        """Tells whether the ids are 0 .. N - 1 in another order."""
        return np.array_equal(self.ids[self._order], np.arange(len(self.ids)))

    def lookup(self, place: Place, block: pa.Array, first_row: int) -> np.ndarray:
        ids = integers(place, block, first_row)
        found = self.find(ids)
        wrong = found < 0
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ArgumentError(_unknown(place, first_row + row, ids[row], self._place, self._suspect()))
        return found

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Returns the nodes of int64 ``ids``; -1 where they are not known."""
        if not len(self._order):
            return np.full(len(ids), -1, np.int64)
        at = np.searchsorted(self.ids, ids, sorter=self._order)
        found = self._order[np.minimum(at, len(self._order) - 1)]
        return np.where(self.ids[found] == ids, found, -1)

    def _suspect(self) -> str | None:
        """Returns the first of few ids that lie outside 0 .. N - 1, in which the others are."""
        count = len(self.ids)
        outside = np.flatnonzero((self.ids < 0) | (self.ids >= count))
        if not few(len(outside), count):
            return None
        row = int(outside[0])
        return (
            f"{self._place.at(row)}: {self.ids[row]} is not in 0 to {count - 1}, unlike the other ids there"
        )

    def names(self) -> Iterator[str] | None:
        return (str(i) for i in self.ids)


class TextIds:
    """Keeps a dictionary of names. ``fixed`` after a node table was read; else names are added as they appear.

    Attributes:
        fixed_by: What fixed the names; None = they are not fixed.
        place: Column that listed them, in the order of the nodes; None = they are not from one column.
    """

    def __init__(self, runtime: Runtime):
        self._runtime = runtime
        self._ids: dict[str, int] = {}
        self._held: list[Any] = []
        self._bytes_left = 0
        self.fixed_by: str | None = None
        self.place: Place | None = None

    @property
    def num_nodes(self) -> int | None:
        return len(self._ids) if self.fixed_by else None

    def _add(self, name: str) -> int:
        need = _ENTRY_BYTES + len(name)
        if need > self._bytes_left:
            step = max(256 << 10, need)
            self._held.append(self._runtime.budget.reserve("node-names", step))
            self._bytes_left += step
        self._bytes_left -= need
        return self._ids.setdefault(name, len(self._ids))

    def add_all(self, place: Place, block: pa.Array) -> None:
        """Adds the next rows of the column that lists the nodes.

        Raises:
            FormatError: A cell is empty, or a node is listed twice.
        """
        self.place = place
        for name in block.to_pylist():
            row = len(self._ids)
            if not name:
                raise FormatError(_empty(place, row))
            if name in self._ids:
                raise FormatError(_twice(place, quoted(name), self._ids[name], row))
            self._add(name)

    def lookup(self, place: Place, block: pa.Array, first_row: int) -> np.ndarray:
        return self.lookup_rows((place,), (block,), first_row)[0]

    def lookup_rows(
        self, places: Sequence[Place], blocks: Sequence[pa.Array], first_row: int
    ) -> tuple[np.ndarray, ...]:
        """Returns ids of columns that stand side by side, int64 [rows] of each.

        New names are numbered row by row, and from left to right in a row, so that numbers do not depend on how many
        rows a block has: ``pandas.factorize(np.stack(columns, axis=1).ravel())[0]`` of all blocks together.
        """
        columns, new = [], []
        for side, (place, block) in enumerate(zip(places, blocks, strict=True)):
            if block.null_count:
                to_numpy(place, block, first_row)
            words, of_row = _distinct(block)
            used, rows = np.unique(of_row, return_index=True)
            new += [
                (row, side, words[word])
                for word, row in zip(used.tolist(), rows.tolist(), strict=True)
                if words[word] not in self._ids
            ]
            columns.append((words, of_row))
        for row, side, word in sorted(new):
            if not word:
                raise FormatError(_empty(places[side], first_row + row))
            if self.fixed_by:
                listed = self.place or Place(self.fixed_by)
                raise ArgumentError(
                    _unknown(places[side], first_row + row, word, listed, self._suspect(word))
                )
            if word not in self._ids:  # it may be new in two columns
                self._add(word)
        return tuple(
            np.array([self._ids.get(w, -1) for w in words], np.int64)[of_row] for words, of_row in columns
        )

    def _suspect(self, wanted: str) -> str | None:
        """Returns the first of few names that are no integers, as the others are; else one that is nearly the same."""
        if self.place is None:
            return None
        odd = [(row, name) for row, name in enumerate(self._ids) if not is_integer(name)]
        if few(len(odd), len(self._ids)):
            row, name = odd[0]
            return f"{self.place.at(row)}: {name!r} is no integer, unlike the other ids there"
        trimmed = wanted.strip()
        if trimmed in self._ids:
            return f"{self.place.at(self._ids[trimmed])}: {trimmed!r} is the same but for blanks"
        names = itertools.islice(self._ids, _COMPARED_NAMES)
        near = next(
            (name for name in difflib.get_close_matches(wanted, names, 3, 0.8) if _alike(name, wanted)), None
        )
        return None if near is None else f"{self.place.at(self._ids[near])}: {near!r} is nearly the same"

    def find(self, block: pa.Array) -> np.ndarray:
        """Returns int64 ids of a block of names; -1 where they are not known."""
        words, of_row = _distinct(block)
        return np.array([self._ids.get(word, -1) for word in words], np.int64)[of_row]

    def names(self) -> Iterator[str]:
        return iter(self._ids)


def _alike(name: str, other: str) -> bool:
    """Tells whether two names that differ in a few letters may be meant to be one: of ids with numbers, such as p12 and
    p13, only those with the same number.
    """
    digits, others = ([c for c in text if c.isdigit()] for text in (name, other))
    return digits == others and min(len(name), len(other)) >= _SHORTEST_ALIKE


def _unknown(place: Place, row: int, node: object, listed: Place, suspect: str | None) -> str:
    """Returns the message for a node that the table at ``listed`` lacks."""
    said = (
        f"{place.at(row)} names node {quoted(node)}, which {listed.name} does not list: correct it, or add the node "
        "there"
    )
    return said if suspect is None else f"{said}; or is the mistake in {suspect}?"


def _empty(place: Place, row: int) -> str:
    return f"{place.at(row)} is empty; every row needs an id: fill it, or remove the row"


def quoted(node: object) -> str:
    """Returns what a node is called, for messages: text in quotes, so that a blank at its end is seen."""
    return repr(node) if isinstance(node, str) else str(node)


def _twice(place: Place, node: str, first: int, second: int) -> str:
    return f"{place.at(second)}: node {node} is listed twice, first in {place.row_name(first)}: correct one of them"


def names_of(ids: IdMap, nodes: np.ndarray) -> str:
    """Returns what the given nodes (ascending) are called, for messages."""
    names = ids.names()
    if names is None:
        return ", ".join(map(str, nodes))
    wanted = set(nodes.tolist())
    listed = enumerate(itertools.islice(names, int(nodes.max()) + 1))
    return ", ".join(repr(name) for node, name in listed if node in wanted)


def require_once(place: Place, nodes: np.ndarray, ids: IdMap) -> None:
    """Raises FormatError where two rows of the column at ``place`` are of the same node; ``nodes`` int64 by row."""
    counts = np.bincount(nodes, minlength=1)
    if counts.max() > 1:
        node = int(nodes[np.argmax(counts[nodes] > 1)])
        first, second = np.flatnonzero(nodes == node)[:2].tolist()
        raise FormatError(_twice(place, names_of(ids, np.array([node])), first, second))


def lookup_edges(
    ids: IdMap, ends: tuple[Place, Place], blocks: Sequence[pa.Array], first_row: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids of sources and targets, int64 [rows] of each; the same whatever number of rows a block has."""
    if isinstance(ids, TextIds):
        source, target = ids.lookup_rows(ends, blocks, first_row)
    else:
        source, target = (
            ids.lookup(place, block, first_row) for place, block in zip(ends, blocks, strict=True)
        )
    return source, target


def _distinct(block: pa.Array) -> tuple[list[str], np.ndarray]:
    """Returns the distinct cells of a block, as text, and by row which of them it is."""
    block = block if is_text(block) else block.cast(pa.string())
    encoded = block if isinstance(block, pa.DictionaryArray) else block.dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False)


def ids_of_table(runtime: Runtime, table: Table, column: str) -> IdMap:
    """Returns the map that a node table fixes: node i is its row i.

    Raises:
        FormatError: A node is listed twice, or an id is missing.
    """
    place = Place(table, column)
    text: TextIds | None = None
    numbers, row = CollectedIds(runtime), 0
    for (block,) in table.blocks(runtime, [column]):
        if is_text(block):
            text = text or TextIds(runtime)
            text.add_all(place, block)
        else:
            numbers.add(integers(place, block, row))
        row += len(block)
    if text:
        text.fixed_by = table.name
        return text
    return PlainIds(row, table.name) if numbers.plain else MappedIds(runtime, place, numbers.array())
