"""From the ids of foreign files to 0 .. N - 1, and back by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from outcrop.errors import ArgumentError, FormatError
from outcrop.runtime import Runtime
from outcrop.sources.base import check_ids
from outcrop.sources.tables import Table, to_numpy

# CPython: a short str object, an int and a slot of a dict; the text itself comes on top.
_ENTRY_BYTES = 200


def is_text(array: pa.Array) -> bool:
    return is_text_type(array.type)


def is_text_type(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


class IdMap(Protocol):
    """Maps a block of foreign ids to int64 ids; ``first_row`` counts for messages."""

    @property
    def num_nodes(self) -> int | None: ...
    def lookup(self, name: str, block: pa.Array, first_row: int) -> np.ndarray: ...
    def names(self) -> Iterator[str] | None: ...


class PlainIds:
    """Ids are integers from 0 already."""

    def __init__(self, num_nodes: int | None = None):
        self.num_nodes = num_nodes

    def lookup(self, name: str, block: pa.Array, first_row: int) -> np.ndarray:
        if is_text(block):
            raise ArgumentError(
                f"{name}: ids are text, such as {block[0].as_py()!r}, but integers were expected"
            )
        return check_ids(name, to_numpy(name, block, first_row), first_row)

    def names(self) -> Iterator[str] | None:
        return None


class MappedIds:
    """Integers that are not 0 .. N - 1: node i is the i-th of the node table. Sorted arrays under the budget."""

    def __init__(self, runtime: Runtime, path: str, ids: np.ndarray):
        self._held = runtime.budget.reserve("node-ids", 16 * len(ids))
        self._path, self.ids = path, ids
        self._order = np.argsort(ids, kind="stable")
        ranked = self.ids[self._order]
        repeated = np.flatnonzero(ranked[1:] == ranked[:-1])
        if len(repeated):
            raise FormatError(f"{path}: node {ranked[repeated[0]]} is listed twice")
        self.num_nodes = len(ids)

    def is_permutation(self) -> bool:
        """True where the ids are 0 .. N - 1 in another order."""
        return np.array_equal(self.ids[self._order], np.arange(len(self.ids)))

    def lookup(self, name: str, block: pa.Array, first_row: int) -> np.ndarray:
        ids = PlainIds().lookup(name, block, first_row)
        at = np.searchsorted(self.ids, ids, sorter=self._order)
        found = self._order[np.minimum(at, max(len(self._order) - 1, 0))] if len(self._order) else at
        wrong = self.ids[found] != ids if len(self._order) else np.ones(len(ids), bool)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ArgumentError(
                f"{name}: row {first_row + row} names node {ids[row]}, which {self._path} does not list"
            )
        return found

    def names(self) -> Iterator[str] | None:
        return (str(i) for i in self.ids)


class TextIds:
    """A dictionary of names. ``fixed`` after a node table was read; else names are added as they appear."""

    def __init__(self, runtime: Runtime):
        self._runtime = runtime
        self._ids: dict[str, int] = {}
        self._held: list[Any] = []
        self._bytes_left = 0
        self.fixed_by: str | None = None

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

    def add_all(self, path: str, block: pa.Array) -> None:
        for name in block.to_pylist():
            if name in self._ids:
                raise FormatError(f"{path}: node {name!r} is listed twice")
            self._add(name)

    def lookup(self, name: str, block: pa.Array, first_row: int) -> np.ndarray:
        if block.null_count:
            to_numpy(name, block, first_row)
        words, of_row = _distinct(block)
        ids = np.empty(len(words), np.int64)
        for i, word in enumerate(words):
            known = self._ids.get(word)
            if known is None and self.fixed_by:
                row = first_row + int(np.argmax(of_row == i))
                raise ArgumentError(
                    f"{name}: row {row} names node {word!r}, which {self.fixed_by} does not list"
                )
            ids[i] = self._add(word) if known is None else known
        return ids[of_row]

    def find(self, block: pa.Array) -> np.ndarray:
        """int64 ids of a block of names; -1 where they are not known."""
        words, of_row = _distinct(block)
        return np.array([self._ids.get(word, -1) for word in words], np.int64)[of_row]

    def names(self) -> Iterator[str]:
        return iter(self._ids)


def _distinct(block: pa.Array) -> tuple[list[str], np.ndarray]:
    """The distinct cells of a block, as text, and by row which of them it is."""
    block = block if is_text(block) else block.cast(pa.string())
    encoded = block if isinstance(block, pa.DictionaryArray) else block.dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False)


def ids_of_table(runtime: Runtime, table: Table, column: str) -> IdMap:
    """The map that a node table fixes: node i is its row i.

    Raises:
        FormatError: A node is listed twice, or an id is missing.
    """
    name = f"{table.name} column {column!r}"
    text: TextIds | None = None
    numbers: list[np.ndarray] = []
    held: list[Any] = []
    plain, row = True, 0
    for (block,) in table.blocks(runtime, [column]):
        if is_text(block):
            text = text or TextIds(runtime)
            text.add_all(table.name, block)
        else:
            ids = PlainIds().lookup(name, block, row)
            if plain and not np.array_equal(ids, np.arange(row, row + len(ids))):
                plain = False
                numbers.append(np.arange(row))
            if not plain:
                held.append(runtime.budget.reserve("node-ids", ids.nbytes))
                numbers.append(ids)
        row += len(block)
    if text:
        text.fixed_by = table.name
        return text
    return PlainIds(row) if plain else MappedIds(runtime, table.name, np.concatenate(numbers))
