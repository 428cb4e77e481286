"""Labels on their way into a graph: which kind they are, and the array that is stored.

=============  =============================  =====================================  ========================
label kind     the source has                 stored as ``labels``                   unknown
=============  =============================  =====================================  ========================
class          integers, whole floats, text   int64 [N], classes 0 .. C - 1          -1 (from NaN, -1, "")
multilabel     0 and 1, [N, C]                uint8 [N, C]                           255 (from NaN, -1, 255)
regression     numbers, [N] or [N, T]         float32 [N] or [N, T]                  NaN
=============  =============================  =====================================  ========================

Where nothing is said, one column of integers, whole floats or text are classes, one column with fractions is a target
of regression; several columns of nothing but 0 and 1 are multi-label, several columns of floats are targets. Class ids
that are not 0 .. C - 1 are numbered in ascending order, and their old values are kept as ``class_names``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from outcrop.config import LABEL_KINDS, LabelKind
from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.base import LabelSource, block_bytes
from outcrop.importing.sources.ids import IdMap, few, is_text, require_once
from outcrop.importing.sources.npy import array_blocks
from outcrop.importing.sources.table_files import is_number
from outcrop.importing.sources.tables import NO_VALUE_WORDS, Place, Table
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import ArrayWriter
from outcrop.store.graph import UNKNOWN_MULTILABEL
from outcrop.store.manifest import ArraySpec

# More different values than this are hardly classes, and their names would not fit a manifest: they are not collected.
MAX_NAMED_CLASSES = 1 << 20
_SHOWN = 6
# A class of one node among classes of so many, of which half are at least as large, looks like a mistyped label.
_MANY_NODES = 10
_SHOWN_LONE = 3
_COMPARED_CLASSES = 20_000  # most classes among which one that is nearly the same is looked for


@dataclass(frozen=True)
class StoredLabels:
    """Says what was written: the array, the graph's attributes that belong to it, and what the user should know."""

    spec: ArraySpec
    attributes: dict[str, Any]
    notes: list[str] = field(default_factory=list)


@dataclass
class _Survey:
    """Says what one pass over the labels finds; it decides the kind."""

    columns: int | None = None
    text: bool = False
    dtype: np.dtype = field(default_factory=lambda: np.dtype(np.int64))
    gaps: bool = False
    whole: bool = True
    binary: bool = True
    words: set[str] = field(default_factory=set)
    values: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    rows: int = 0
    longest: int = 0
    largest: int = -1

    def add(self, name: str, block: np.ndarray, runtime: Runtime) -> None:
        """Takes note of a block, ``[n]`` or ``[n, T]``."""
        if block.dtype.kind in "OUS":
            if block.ndim != 1:
                raise FormatError(
                    f"{name} holds text in {block.shape[1]} columns; several columns are numbers"
                )
            self.text = True
            self.words.update(str(word) for word in np.unique(block.astype(str)))
            return
        if block.dtype.kind not in "fiub":
            raise FormatError(f"{name} holds {block.dtype}; labels are numbers or text")
        self.dtype = block.dtype
        self.rows += len(block)
        if block.ndim == 2:
            self.columns = block.shape[1]
        known = block[~np.isnan(block)] if block.dtype.kind == "f" else block
        self.gaps = self.gaps or len(known) < len(block)
        self.binary = self.binary and bool(np.isin(known, (-1, 0, 1, UNKNOWN_MULTILABEL)).all())
        if block.dtype.kind == "f":
            self.whole = self.whole and bool((known == np.floor(known)).all())
        self.longest = max(self.longest, len(block))
        if block.ndim == 1 and self.whole:
            # Counted such that larger blocks, as a larger budget has, never take less.
            with runtime.budget.reserve("labels", 16 * self.longest):
                found = np.unique(known)
                exact = found.astype(np.int64) if found.dtype.kind != "f" else _exact(found)
                self.largest = max(self.largest, int(exact.max(initial=-1)))
                if len(self.values) <= MAX_NAMED_CLASSES:
                    with runtime.budget.reserve("labels", 32 * (len(self.values) + len(exact))):
                        self.values = np.union1d(self.values, exact[exact >= 0])

    def kind(self, name: str, wanted: LabelKind | None) -> LabelKind:
        """Returns the kind that is meant. Raises ArgumentError where that cannot be, or is not clear."""
        if wanted is None:
            return self._guess(name)
        if wanted == "class" and self.columns is not None:
            raise ArgumentError(
                f"{name} has {self.columns} columns; classes need one: take the argmax, or label kind multilabel"
            )
        if wanted != "class" and self.text:
            raise ArgumentError(f"{name} holds text, which cannot be of label kind {wanted}")
        if wanted == "multilabel" and not self.binary:
            raise ArgumentError(
                f"{name} has other values than 0, 1 and none; label kind multilabel needs these"
            )
        return wanted

    def _guess(self, name: str) -> LabelKind:
        if self.columns is None:
            return "class" if self.text or self.whole else "regression"
        if self.binary:
            return "multilabel"
        if self.dtype.kind == "f":
            return "regression"
        raise ArgumentError(
            f"{name} has {self.columns} columns of {self.dtype} with other values than 0 and 1: give label kind "
            "regression (--label-kind), or one column of class ids"
        )


def _exact(values: np.ndarray) -> np.ndarray:
    """Gives whole floats that int64 holds unrounded; others are refused, with their row, when they are stored."""
    return values[np.abs(values) <= 2**53].astype(np.int64)


def array_labels(runtime: Runtime, name: str, array: np.ndarray) -> LabelSource:
    """Returns labels in an array, ``[N]`` or ``[N, T]``.

    Raises:
        FormatError: It has another shape.
    """
    columns = check_labels(name, array.shape)
    return LabelSource(
        name,
        len(array),
        lambda num_nodes: array_blocks(runtime, array, max(1, block_bytes(runtime) // (16 * columns))),
    )


def check_labels(name: str, shape: tuple[int, ...]) -> int:
    """Returns how many columns an array of labels has. Raises FormatError where none has this shape."""
    if len(shape) not in (1, 2) or 0 in shape[1:]:
        raise FormatError(f"{name} has shape {shape}; labels are [nodes], or [nodes, classes or targets]")
    return shape[1] if len(shape) == 2 else 1


def label_column(name: str, column: pa.Array) -> np.ndarray:
    """Returns a block of a column as labels: ``[n]``, or ``[n, T]`` of a column of lists; empty cells are NaN, or empty
    text.

    Raises:
        FormatError: Lists differ in length.
    """
    if column.null_count == len(column):
        return np.full(len(column), np.nan)
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        width = max((len(cell) for cell in column if cell.is_valid), default=0)
        column = column.cast(pa.list_(column.type.value_type, width))
    if pa.types.is_fixed_size_list(column.type):
        rows = np.full((len(column), column.type.list_size), np.nan)
        flat = column.flatten().to_numpy(zero_copy_only=False)  # without the empty rows
        if not column.null_count:
            return flat.reshape(rows.shape)
        given = column.is_valid().to_numpy(zero_copy_only=False)
        rows[given] = flat.reshape(-1, rows.shape[1])
        return rows
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if is_text(column):
        column = column.fill_null("")
    return column.to_numpy(zero_copy_only=False)


def table_labels(
    runtime: Runtime, table: Table, columns: list[str], dtype: pa.DataType | None = None
) -> LabelSource:
    """Returns labels in one column, which may hold lists, or in several of numbers; an empty cell means none.

    Args:
        dtype: How cells of text files are read; None = as they look.
    """

    def blocks(num_nodes: int) -> Iterator[np.ndarray]:
        for block in table.blocks(runtime, columns, dtype=dtype):
            parts = [label_column(table.name, column) for column in block]
            yield parts[0] if len(parts) == 1 else np.stack(parts, axis=1)

    place = Place(table, columns[0] if len(columns) == 1 else None)
    return LabelSource(_listed(table, columns), table.num_rows, blocks, place.at)


def _listed(table: Table, columns: list[str]) -> str:
    several = len(columns) > 1
    return f"{table.name} column{'s' * several} {', '.join(map(repr, columns))}"


def labels_by_id(
    runtime: Runtime, table: Table, columns: list[str], id_column: str, ids: IdMap
) -> LabelSource:
    """Returns labels of the nodes that a column names, in any order; the others have none.

    Held in memory under the budget.

    Raises (when read):
        FormatError: A node is listed twice.
        ArgumentError: A node does not exist.
    """
    name, place = _listed(table, columns), Place(table, id_column)
    read: list[np.ndarray] = []  # the node of each row, once it was read

    def where(node: int) -> str:
        return Place(table, columns[0] if len(columns) == 1 else None).at(int(np.argmax(read[0] == node)))

    def blocks(num_nodes: int) -> Iterator[np.ndarray]:
        parts, nodes, row = [], [], 0
        for id_block, *block in table.blocks(runtime, [id_column, *columns]):
            nodes.append(ids.lookup(place, id_block, row))
            cells = [label_column(table.name, column) for column in block]
            parts.append(cells[0] if len(cells) == 1 else np.stack(cells, axis=1))
            row += len(id_block)
        if not parts:
            yield np.full(num_nodes, np.nan)
            return
        width = max(part.shape[1] if part.ndim == 2 else 0 for part in parts)
        with runtime.budget.reserve("labels", 32 * num_nodes * max(width, 1)):
            parts = [np.repeat(p[:, None], width, axis=1) if width and p.ndim == 1 else p for p in parts]
            of_row = np.concatenate(nodes)
            read[:] = [of_row]
            _check_rows(place, of_row, num_nodes, ids)
            yield from array_labels(runtime, name, _placed(np.concatenate(parts), of_row, num_nodes)).blocks(
                num_nodes
            )

    return LabelSource(name, None, blocks, where)


def _check_rows(place: Place, nodes: np.ndarray, num_nodes: int, ids: IdMap) -> None:
    bad = (nodes < 0) | (nodes >= num_nodes)
    if bad.any():
        row = int(np.argmax(bad))
        raise ArgumentError(
            f"{place.at(row)} names node {nodes[row]}, but there are {num_nodes} nodes (0 to {num_nodes - 1}): "
            "correct it, or remove the row"
        )
    require_once(place, nodes, ids)


def _placed(values: np.ndarray, nodes: np.ndarray, num_nodes: int) -> np.ndarray:
    """Returns ``values[i]`` at ``nodes[i]``; the rest has no label."""
    if values.dtype.kind in "OUS":
        placed: np.ndarray = np.full(num_nodes, "", object)
    elif len(nodes) == num_nodes:
        placed = np.empty((num_nodes, *values.shape[1:]), values.dtype)
    else:
        placed = np.full((num_nodes, *values.shape[1:]), np.nan)
    placed[nodes] = values
    return placed


def write_labels(
    labels: LabelSource,
    num_nodes: int,
    runtime: Runtime,
    work: Path,
    wanted: LabelKind | None = None,
    class_names: tuple[str, ...] = (),
) -> StoredLabels:
    """Writes ``labels.bin`` into ``work``; reads the source twice.

    Args:
        wanted: The kind; None = as the values are (the head of this file).
        class_names: Names of the classes in the source: then integers index it, whether or not every class occurs.

    Raises:
        ArgumentError: The kind is not clear or contradicts the values.
        FormatError: A value is no class and no number.
    """
    if wanted not in (None, *LABEL_KINDS):
        raise ArgumentError(f"label kind {wanted!r} is none of {', '.join(LABEL_KINDS)}")
    survey = _Survey()
    for block in labels.blocks(num_nodes):
        survey.add(labels.name, _squeezed(block), runtime)
    kind = survey.kind(labels.name, wanted)
    if kind == "class":
        stored = _write_classes(labels, num_nodes, survey, runtime, work, class_names)
        if wanted is None and survey.dtype.kind == "f" and not survey.gaps:
            stored.notes.append(
                f"labels are whole numbers of type {survey.dtype}, and taken for classes: label kind regression "
                "(--label-kind regression, ImportConfig(label_kind='regression')) takes them for numbers"
            )
        return stored
    columns = survey.columns
    if kind == "multilabel" and columns is None:
        columns = 1
    writer = ArrayWriter(
        runtime,
        work,
        "labels",
        "uint8" if kind == "multilabel" else "float32",
        () if columns is None else (columns,),
    )
    row = 0
    for block in labels.blocks(num_nodes):
        block = _squeezed(block)
        if columns is not None:
            # One column of several: all of its rows are empty.
            block = block if block.ndim == 2 else np.repeat(block[:, None], columns, axis=1)
        writer.append(_multilabel(block) if kind == "multilabel" else _targets(labels.name, block, row))
        row += len(block)
    count = columns or 1
    attributes: dict[str, Any] = {"num_classes": count, "label_kind": kind}
    if class_names and len(class_names) == count:
        attributes["class_names"] = list(class_names)
    targets = (
        "regression, one target: batch.y is [n], not [n, 1]"
        if columns is None
        else f"regression, {count} targets"
    )
    what = f"multi-label, {count} classes" if kind == "multilabel" else targets
    return StoredLabels(writer.finish(), attributes, [f"labels are {what}"])


def labelled(block: np.ndarray, kind: LabelKind) -> np.ndarray:
    """Tells which rows of stored labels say anything: bool [n]."""
    if kind == "class":
        return block >= 0
    cells = block.reshape(len(block), -1)
    known = np.not_equal(cells, UNKNOWN_MULTILABEL) if kind == "multilabel" else ~np.isnan(cells)
    return np.any(known, axis=1)


def _squeezed(block: np.ndarray) -> np.ndarray:
    """Returns a column of one as a list."""
    return block[:, 0] if block.ndim == 2 and block.shape[1] == 1 else block


def _multilabel(block: np.ndarray) -> np.ndarray:
    unknown = np.isnan(block) if block.dtype.kind == "f" else (block != 0) & (block != 1)
    return np.where(unknown | (block < 0), UNKNOWN_MULTILABEL, block).astype(np.uint8)


def _targets(name: str, block: np.ndarray, first_row: int) -> np.ndarray:
    with np.errstate(over="ignore"):
        targets = block.astype(np.float32)
    bad = np.isinf(targets).reshape(len(targets), -1).any(axis=1)
    if bad.any():
        row = int(np.argmax(bad))
        raise FormatError(f"{name}: row {first_row + row} is {block[row]}, which is not finite as float32")
    return targets


def _write_classes(
    labels: LabelSource,
    num_nodes: int,
    survey: _Survey,
    runtime: Runtime,
    work: Path,
    class_names: tuple[str, ...],
) -> StoredLabels:
    words = {name: number for number, name in enumerate(sorted(survey.words - {""}))} if survey.text else None
    values = None if survey.text or class_names else _gapped(labels.name, survey)
    writer = ArrayWriter(runtime, work, "labels", "int64")
    row, largest, notes = 0, -1, []
    odd = None if words is None else _odd_word(words)
    sizes = np.zeros(len(words or ()), np.int64)
    for block in labels.blocks(num_nodes):
        if odd is not None and (found := np.flatnonzero(_squeezed(block).astype(str) == odd)).size:
            notes.append(
                f"{labels.at(row + int(found[0]))} is {odd!r}, unlike the other labels, which are numbers: all are "
                "taken for names of classes; correct it if it is a mistake"
            )
            odd = None
        numbers = _numbers(labels, _squeezed(block), words, row)
        if values is not None:
            numbers = np.where(numbers < 0, -1, np.searchsorted(values, numbers))
        largest = max(largest, int(numbers.max(initial=-1)))
        if words is not None:
            sizes += np.bincount(numbers[numbers >= 0], minlength=len(sizes))
        writer.append(numbers)
        row += len(block)
    if words is not None:
        names = list(words)
        if not runtime.measures:
            notes += _notes_of_lone(labels, num_nodes, names, sizes)
        notes += [
            f"{labels.name}: {name!r} is taken for the name of a class; leave the cells of nodes without a label empty"
            for name in names
            if name in NO_VALUE_WORDS
        ]
    elif values is not None:
        names = [str(value) for value in values]
        shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        notes = [f"labels are not 0 to {len(names) - 1}: {shown} are stored as classes 0 to {len(names) - 1}"]
    else:
        names = list(class_names)
    attributes: dict[str, Any] = {"num_classes": max(largest + 1, len(names))}
    if names:
        attributes["class_names"] = names
    return StoredLabels(writer.finish(), attributes, notes)


def _notes_of_lone(labels: LabelSource, num_nodes: int, names: list[str], sizes: np.ndarray) -> list[str]:
    """Returns a sentence for each of the first classes that have one node where most have many: a mistyped label.

    Args:
        labels: Source of the labels; it is read again where there is such a class.
        num_nodes: Number of nodes of the graph.
        names: Names of the classes.
        sizes: Number of nodes of each class, int64 [classes].
    """
    usual = int(np.median(sizes)) if len(sizes) else 0
    odd = _odd_word(names)
    lone = {names[number] for number in np.flatnonzero(sizes == 1)} - NO_VALUE_WORDS - {odd}
    if usual < _MANY_NODES or not lone:
        return []
    notes: list[str] = []
    row = 0
    for block in labels.blocks(num_nodes):
        words = _squeezed(block).astype(str)
        for at in np.flatnonzero(np.isin(words, list(lone)))[: _SHOWN_LONE - len(notes)].tolist():
            word = str(words[at])
            others = (name for name in names[:_COMPARED_CLASSES] if name != word)
            near = next(iter(difflib.get_close_matches(word, others, 1, 0.8)), None)
            notes.append(
                f"{labels.at(row + at)} is {word!r}, and no other node is of that class, while half of the classes "
                f"have {usual} nodes or more: correct it if it is a mistake"
                + (f"; {near!r} is nearly the same" if near else "")
            )
        row += len(block)
    if len(lone) > len(notes):
        notes[-1] += f" (classes of a single node: {len(lone)})"
    return notes


def _odd_word(words: Iterable[str]) -> str | None:
    """Returns the first of few words that are no numbers where all others are: one such cell makes all labels text."""
    listed = list(words)
    odd = [word for word in listed if not is_number(word)]
    return odd[0] if few(len(odd), len(listed)) else None


def _gapped(name: str, survey: _Survey) -> np.ndarray | None:
    """Returns the classes, ascending, where they have to be numbered anew; None where they are 0 .. C - 1."""
    values = survey.values
    if len(values) > MAX_NAMED_CLASSES:
        if survey.largest < survey.rows:
            return None
        raise ArgumentError(
            f"{name} has over {MAX_NAMED_CLASSES} different values up to {survey.largest}, too many for classes: give "
            "label kind regression (--label-kind) if they are targets"
        )
    return None if survey.largest == len(values) - 1 else values


def _numbers(
    labels: LabelSource, block: np.ndarray, names: dict[str, int] | None, first_row: int
) -> np.ndarray:
    """Returns int64 labels, -1 = none."""
    if names is not None:
        words, where = np.unique(block.astype(str), return_inverse=True)
        return np.asarray([names.get(str(word), -1) for word in words], np.int64)[where]
    if block.dtype.kind == "f":
        none = np.isnan(block)
        whole = np.where(none, -1, block)
        bad = ~np.isfinite(whole) | (whole != np.floor(whole)) | (np.abs(whole) > 2**53)
        if bad.any():
            row = int(np.argmax(bad))
            raise FormatError(
                f"{labels.at(first_row + row)} is {block[row]}; classes are whole numbers or text: correct it, or say "
                "that these are targets of regression (--label-kind regression, ImportConfig(label_kind='regression'))"
            )
        block = whole.astype(np.int64)
    numbers = block.astype(np.int64)
    bad = numbers < -1
    if bad.any():
        row = int(np.argmax(bad))
        raise FormatError(
            f"{labels.at(first_row + row)} is {block[row]}; classes count from 0, -1 means none: correct it, or say "
            "that these are targets of regression (--label-kind regression, ImportConfig(label_kind='regression'))"
        )
    return numbers
