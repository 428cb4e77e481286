"""``ntriples:FILE.nt`` or ``.nt.gz``: RDF as N-Triples, a triple a line: a graph of entities with an edge type for each
relation, and the labels of ``trainingSet.tsv``, ``validationSet.tsv`` and ``testSet.tsv`` beside it.

Entities are nodes of one type, in the order of the first triple that names each; their names are what stands between
``<`` and ``>``, or blank nodes as ``_:b0``. Literals, text or numbers at which triples end, are left out unless they
are asked for; then they are nodes of the same type, called as they are written.
"""

from __future__ import annotations

import gzip
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import pyarrow as pa

from outcrop.config import ImportConfig, format_bytes
from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.base import (
    REVERSE,
    EdgeBlock,
    EdgeSource,
    LabelSource,
    NodeSource,
    TypedSource,
    block_bytes,
)
from outcrop.importing.sources.ids import TextIds, is_integer
from outcrop.importing.sources.npy import array_blocks
from outcrop.importing.sources.parts import Part, SplitParts
from outcrop.importing.sources.table_files import FileTable, TextForm, open_table
from outcrop.importing.sources.table_schema import type_name
from outcrop.importing.sources.tables import Place
from outcrop.runtime.runtime import Runtime

ENTITY = "entity"
SPLIT_FILES = {"trainingSet.tsv": "train", "validationSet.tsv": "valid", "testSet.tsv": "test"}
ENDINGS = (".nt", ".nt.gz")
_LINE = re.compile(
    rb"""\s*(<[^<>"\s]*>|_:[^\s<>"]+)\s*<([^<>"\s]*)>\s*"""
    rb"""(?:(<[^<>"\s]*>|_:[^\s<>"]*[^\s<>".])\s*\.\s*(?:\#.*)?|(".*))""",
    re.DOTALL,
)
_QUOTE = re.compile(rb'["\\]')
_AFTER_QUOTE = re.compile(rb"""(@[A-Za-z0-9-]+|\^\^<[^<>"\s]*>)?\s*\.\s*(?:\#.*)?""", re.DOTALL)
_ESCAPE = re.compile(r"\\u([0-9A-Fa-f]{4})|\\U([0-9A-Fa-f]{8})")
_LINES = 1 << 14  # at a time
_HELD_FACTOR = (
    8  # lines as bytes, their ends as text and as columns take so many times the bytes that are read
)
_SHOWN = 60  # characters of a line
_ROW_BYTES = 24  # of a triple: subject, relation, object
_TORN = (OSError, EOFError, zlib.error)


def open_ntriples(path: Path, runtime: Runtime, config: ImportConfig) -> TypedSource:
    """Opens the file, or the only one of a folder; reads it whole, and holds names and triples under the budget.

    Raises:
        ArgumentError: There is no such file, or a label is of something that no triple names.
        FormatError: A line is no triple, or the file is torn.
    """
    path = _file(path)
    triples = _Triples(path, runtime, literals=config.types == "all")
    triples.read()
    if not triples.relations:
        raise ArgumentError(f"{path} has no triples between entities: nothing to import")
    files = {split: f for name, split in SPLIT_FILES.items() if (f := path.parent / name).is_file()}
    labelled, count = _LabelFiles(files, triples.ids, runtime), triples.ids.count
    parts = SplitParts({s: Part(str(place), nodes) for s, (place, nodes) in labelled.nodes.items()}, count)
    nodes = NodeSource(
        f"{path}: {ENTITY}",
        count,
        None,
        labelled.labels() if files else None,
        parts.ids,
        split_rows=parts.rows,
        type_name=ENTITY,
        whose=f"node type {ENTITY!r} has",
        names=triples.ids.names,
    )
    return TypedSource(str(path), (nodes,), tuple(triples.edges()), tuple(triples.notes))


def files_of_ntriples(path: Path) -> list[Path]:
    """Lists the files that importing the triples at ``path`` looks at."""
    folder = path if path.is_dir() else path.parent
    found = _candidates(path) if path.is_dir() else [path]
    return [one for one in (*found, *(folder / name for name in SPLIT_FILES)) if one.is_file()]


def _candidates(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.endswith(ENDINGS) and path.is_file())


def _file(path: Path) -> Path:
    if path.is_file():
        return path
    found = _candidates(path) if path.is_dir() else []
    if len(found) != 1:
        there = f"has {len(found)} files *.nt, *.nt.gz" if path.is_dir() else "is not there"
        raise ArgumentError(f"{path} {there}: name the file, ntriples:FILE.nt or FILE.nt.gz")
    return found[0]


class _Names(TextIds):
    """Numbers names as they appear."""

    @property
    def count(self) -> int:
        """Counts the names so far."""
        return len(self._ids)


class _Triples:
    """Reads a file of triples into numbers.

    Attributes:
        ids: Names of the entities.
        relations: Number of each relation, by its name in the file.
        notes: What was left out.
    """

    def __init__(self, path: Path, runtime: Runtime, *, literals: bool):
        self._path, self._runtime, self._literals = path, runtime, literals
        self.ids = _Names(runtime)
        self.relations: dict[bytes, int] = {}
        self.notes: list[str] = []
        self._left_out = 0
        self._rows = np.zeros((0, 3), np.int64)
        self._firsts = np.zeros(1, np.int64)

    def read(self) -> None:
        """Reads the file once; triples are put in the order of their relations."""
        held, parts, most = [], [], block_bytes(self._runtime)
        with (
            self._runtime.task("triples", 0, "lines"),
            self._runtime.budget.reserve("import", _HELD_FACTOR * most),
            closing(self._open()) as file,
        ):
            for first, lines in _chunks(self._path, file, most):
                if not parts:
                    lines = [line.removeprefix(BOM_UTF8) for line in lines[:1]] + [*lines[1:]]
                rows = self._numbered(first, lines)
                held.append(self._runtime.budget.reserve("triples", rows.nbytes))
                parts.append(rows)
                self._runtime.progress.advance("triples", len(lines))
        count = sum(map(len, parts))
        self._held = self._runtime.budget.reserve("triples", _ROW_BYTES * count)
        rows = np.concatenate([np.zeros((0, 3), np.int64), *parts])
        del parts
        for one in held:
            one.release()
        # The triples in order, what their order is, and what sorting takes.
        with self._runtime.budget.reserve("triples", 2 * _ROW_BYTES * count):
            self._rows = rows[np.argsort(rows[:, 1], kind="stable")]
            del rows
        self._firsts = np.searchsorted(self._rows[:, 1], np.arange(len(self.relations) + 1))
        if self._left_out:
            self.notes.append(
                f"{self._path}: {self._left_out} triples that end at literals (text, numbers) are left out; --types "
                "all (ImportConfig(types='all')) makes nodes of these"
            )

    def edges(self) -> Iterator[EdgeSource]:
        """Yields an edge type for each relation, those with the most triples first."""
        names = _relation_names(list(self.relations))
        counts = np.diff(self._firsts)
        for relation in np.argsort(-counts, kind="stable").tolist():
            rows = self._rows[self._firsts[relation] : self._firsts[relation + 1]]
            name = names[relation]
            key = (ENTITY, name, ENTITY)
            yield EdgeSource(
                f"{self._path}: {name}", key, self._blocks(rows), len(rows), reverse=REVERSE + name
            )

    def _blocks(self, rows: np.ndarray) -> Callable[[], Iterator[EdgeBlock]]:
        def blocks() -> Iterator[EdgeBlock]:
            for block in array_blocks(self._runtime, rows, _LINES):
                yield np.ascontiguousarray(block[:, 0]), np.ascontiguousarray(block[:, 2])

        return blocks

    def _open(self) -> BinaryIO:
        if self._path.name.endswith(".gz"):
            return cast(BinaryIO, gzip.open(self._path, "rb"))
        return self._path.open("rb")

    def _numbered(self, first: int, lines: Sequence[bytes]) -> np.ndarray:
        """Returns the triples of lines as numbers, int64 [n, 3]."""
        subjects, relations, objects = [], [], []
        for number, line in enumerate(lines, first):
            found = _LINE.fullmatch(line)
            if found is None:
                if line.strip() and not line.lstrip().startswith(b"#"):
                    raise _no_triple(self._path, number, line)
                continue
            subject, relation, entity, quoted = found.groups()
            literal = b"" if quoted is None else _literal(quoted)
            if literal is None:
                raise _no_triple(self._path, number, line)
            if entity is None and not self._literals:
                self._left_out += 1
                continue
            relations.append(self.relations.setdefault(relation, len(self.relations)))
            try:
                subjects.append(_name(subject))
                objects.append(literal.decode() if entity is None else _name(entity))
            except (UnicodeDecodeError, ValueError, OverflowError):
                raise _no_triple(self._path, number, line) from None
        place = Place(str(self._path))
        ends = self.ids.lookup_rows(
            (place, place), (pa.array(subjects, pa.string()), pa.array(objects, pa.string())), first
        )
        return np.stack([ends[0], np.array(relations, np.int64), ends[1]], axis=1)


def _chunks(path: Path, file: BinaryIO, most: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yields lines, some at a time, with the number of the first of them, from 1.

    Args:
        most: Bytes from which on no more lines are added, and that none may exceed.
    """
    first = 1
    try:
        while lines := _next_lines(path, file, first, most):
            yield first, lines
            first += len(lines)
    except _TORN as error:
        raise FormatError(
            f"{path} is torn, or is not what gzip compressed (after line {first - 1}): {error}"
        ) from None


def _next_lines(path: Path, file: BinaryIO, first: int, most: int) -> list[bytes]:
    lines, size = [], 0
    while len(lines) < _LINES and size < most and (line := file.readline(most + 1)):
        if len(line) > most:
            raise FormatError(
                f"{path}, line {first + len(lines)} is longer than the {format_bytes(most)} that are read at a time: "
                "leave the triple out, or give more memory (--memory), of which 1/32 is read at a time, at most 4 MiB"
            )
        lines.append(line)
        size += len(line)
    return lines


def _literal(quoted: bytes) -> bytes | None:
    """Returns the literal at the begin of what ends a line, with its language or type; None: it is no end of a triple.

    It goes from one backslash to the next, because a pattern that repeats takes many bytes of memory for each.
    """
    at = 1
    while (found := _QUOTE.search(quoted, at)) is not None and found[0] != b'"':
        at = found.end() + 1
    after = None if found is None else _AFTER_QUOTE.fullmatch(quoted, found.end())
    return None if after is None else quoted[: after.end(1) if after[1] else after.start()]


def _no_triple(path: Path, number: int, line: bytes) -> FormatError:
    shown = line.decode(errors="replace").strip()
    shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + " ..."
    return FormatError(
        f"{path}, line {number}: {shown!r} is no triple: '<subject> <relation> <object> .' is needed; correct it, or "
        "write the file as N-Triples"
    )


def _name(term: bytes) -> str:
    """Returns the name of an entity: what is between ``<`` and ``>``, or a blank node."""
    word = term.decode()
    word = word[1:-1] if word.startswith("<") else word
    if "\\" in word:
        word = _ESCAPE.sub(lambda found: chr(int(found[1] or found[2], 16)), word)
        word.encode()  # refuses halves of characters
    return word


def _relation_names(relations: Sequence[bytes]) -> list[str]:
    """Returns names for edge types: the end of each, or all of it where two would have one name."""
    words = [relation.decode(errors="replace") for relation in relations]
    short = [type_name(re.split(r"[/#]", word.rstrip("/#"))[-1] or word) for word in words]
    names = [
        name if short.count(name) == 1 else type_name(word) for name, word in zip(short, words, strict=True)
    ]
    return [name if names.count(name) == 1 else f"{name}_{number}" for number, name in enumerate(names)]


class _LabelFiles:
    """Reads who has which label, and in which split; both are held.

    Attributes:
        nodes: By split the column of the entities, and these, int64 [n].
    """

    def __init__(self, files: dict[str, Path], ids: TextIds, runtime: Runtime):
        self.nodes: dict[str, tuple[Place, np.ndarray]] = {}
        self._words: dict[int, str] = {}
        self._places: dict[int, tuple[Place, int]] = {}
        self._name = ", ".join(map(str, files.values()))
        for split, path in files.items():
            self._read(split, open_table(path, TextForm(header=True)), ids, runtime)

    def _read(self, split: str, table: FileTable, ids: TextIds, runtime: Runtime) -> None:
        label = next((column for column in table.columns if column.lower().startswith("label")), None)
        if label is None:
            raise FormatError(
                f"{table.name} has no column with labels, whose name begins with 'label' (it has "
                f"{', '.join(table.columns) or 'none'})"
            )
        others = [column for column in table.columns if column != label]
        blocks = list(table.blocks(runtime, [*others, label], dtype=pa.string()))
        best = max(range(len(others)), key=lambda i: _known(ids, blocks, i), default=None)
        if best is None or not blocks:
            raise FormatError(
                f"{table.name} has no rows, or nothing beside the labels: name an entity in each row"
            )
        place, row, parts = Place(table, others[best]), 0, []
        for block in blocks:
            found = ids.find(block[best])
            if (found < 0).any():
                wrong = int(np.argmax(found < 0))
                raise ArgumentError(
                    f"{place.at(row + wrong)} names {block[best][wrong].as_py()!r}, which no triple names: correct it, "
                    "or remove the row"
                )
            for number, (node, word) in enumerate(zip(found.tolist(), block[-1].to_pylist(), strict=True)):
                if node in self._words and self._words[node] != word:
                    first = self._places[node][0].at(self._places[node][1])
                    raise FormatError(
                        f"{place.at(row + number)} has label {word!r}, and {first} has {self._words[node]!r}: keep one"
                    )
                self._words[node], self._places[node] = word, (Place(table, label), row + number)
            parts.append(found)
            row += len(found)
        self.nodes[split] = place, np.concatenate(parts)

    def labels(self) -> LabelSource:
        """Returns the labels of the entities: integers where all are, else text."""
        whole = all(is_integer(word) for word in self._words.values() if word)

        def blocks(num_nodes: int) -> Iterator[np.ndarray]:
            for first in range(0, num_nodes, _LINES):
                words = [self._words.get(node, "") for node in range(first, min(first + _LINES, num_nodes))]
                if whole:
                    yield np.array([float(word) if word else np.nan for word in words])
                else:
                    yield np.array(words, object)

        return LabelSource(
            self._name, None, blocks, lambda node: self._places[node][0].at(self._places[node][1])
        )


def _known(ids: TextIds, blocks: Sequence[list[pa.Array]], column: int) -> int:
    return sum(int((ids.find(block[column]) >= 0).sum()) for block in blocks)
