"""Tables of a TOML file that describes a graph: ``graph.toml`` of arrays and ``tables.toml`` of tables."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outcrop.errors import ArgumentError, FormatError, IoError
from outcrop.importing.sources.base import REVERSE
from outcrop.store.graph_manifest import MOST_NODES

OBJECTS_PER_BYTE = 100  # what text of TOML takes as Python objects
_NOT_IN_NAMES = ",=:"  # what stands between names on the command line and in other formats


def read_toml(path: Path, known: Mapping[str, str]) -> dict[str, Any]:
    """Reads a TOML file.

    Args:
        path: The file.
        known: What the file may hold at its top level, each as a message calls it.

    Raises:
        FormatError: It is no TOML, or holds something else.
        IoError: It cannot be read.
    """
    try:
        root = tomllib.loads(path.read_bytes().decode())
    except (ValueError, RecursionError) as error:  # of TOML and of UTF-8
        raise FormatError(f"{path} is no TOML: {' '.join(str(error).split())}: correct it") from None
    except OSError as error:
        raise IoError(error.errno or 0, f"{path} cannot be read: {error.strerror}") from None
    unknown = [key for key in root if key not in known]
    if unknown:
        said = list(known.values())
        listed = " and ".join([", ".join(said[:-1]), said[-1]] if said[1:] else said)
        raise FormatError(f"{path}: {unknown[0]!r} is unknown there; it has {listed}, a table for each type")
    return root


def entries_of(root: dict[str, Any], path: Path, kind: str, known: tuple[str, ...]) -> list[Entry]:
    """Returns the tables ``[[kind]]``, none where there are none.

    Raises:
        FormatError: They are no tables, or have a key that is not in ``known``.
    """
    tables = root.get(kind, [])
    if not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
        raise FormatError(
            f"{path} has no [[{kind}]] but {kind} = {str(tables)[:40]}: write a table [[{kind}]] for each type"
        )
    entries = [Entry(path, f"[[{kind}]] {number}", one) for number, one in enumerate(tables)]
    for entry in entries:
        entry.require_known(known)
    return entries


def require_distinct_types(path: Path | str, what: str, names: list[str]) -> None:
    """Raises ArgumentError where two types have one name."""
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise ArgumentError(f"{path} lists {what} {twice!r} twice: give each a name of its own")


@dataclass(frozen=True)
class Entry:
    """Is a table of the file.

    Attributes:
        path: The file.
        name: What messages call the table.
        given: Its keys.
    """

    path: Path
    name: str
    given: dict[str, Any]

    @property
    def at(self) -> str:
        """Returns what messages call it, with the file."""
        return f"{self.path}: {self.name}"

    def require_known(self, known: tuple[str, ...]) -> None:
        """Raises FormatError where it has a key that is not in ``known``."""
        unknown = [key for key in self.given if key not in known]
        if unknown:
            raise FormatError(f"{self.at}: {unknown[0]!r} is unknown; known: {', '.join(known)}")

    def word(self, key: str) -> str:
        """Returns the name of a type or relation."""
        word = self.given.get(key)
        if key not in self.given:
            raise FormatError(f"{self.at} has no {key!r}: add it")
        if not isinstance(word, str) or not word:
            raise FormatError(f"{self.at}: {key} is {word!r}, text is needed")
        if not is_type_name(word):
            raise FormatError(
                f"{self.at}: {key} is {word!r}; names have no blanks and none of {' '.join(_NOT_IN_NAMES)}"
            )
        return word

    def text(self, key: str) -> str | None:
        """Returns text, such as the name of a column; None where it is not given."""
        return self._checked(key, lambda value: isinstance(value, str) and value, "text")

    def flag(self, key: str) -> bool | None:
        """Returns true or false; None where it is not given."""
        return self._checked(key, lambda value: isinstance(value, bool), "true or false")

    def texts(self, key: str) -> tuple[str, ...] | None:
        """Returns a list of text, such as names of columns; None where it is not given."""

        def listed(value: Any) -> bool:
            return isinstance(value, list) and all(isinstance(one, str) for one in value)

        found = self._checked(key, listed, "a list of text")
        return None if found is None else tuple(found)

    def _checked(self, key: str, fits: Callable[[Any], Any], what: str) -> Any:
        value = self.given.get(key)
        if value is not None and not fits(value):
            raise FormatError(f"{self.at}: {key} is {value!r}, {what} is needed")
        return value

    def count(self, key: str) -> int | None:
        """Returns a number of nodes; None where it is not given."""
        count = self.given.get(key)
        if count is None:
            return None
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MOST_NODES:
            raise FormatError(f"{self.at}: {key} is {count!r}, a whole number of 0 to {MOST_NODES} is needed")
        return count

    def below(self, key: str, known: tuple[str, ...]) -> Entry | None:
        """Returns the table that a key holds; None where it is not given."""
        given = self._checked(key, lambda value: isinstance(value, dict), "a table")
        if given is None:
            return None
        entry = Entry(self.path, f"{self.name}, {key}", given)
        entry.require_known(known)
        return entry

    def file(self, key: str) -> Path:
        """Returns the file that a key names, in the folder of the TOML file."""
        named = self.given[key]
        if not isinstance(named, str) or not named:
            raise FormatError(f"{self.at}: {key} is {named!r}, the name of a file is needed")
        if Path(named).is_absolute() or ".." in Path(named).parts:
            raise FormatError(
                f"{self.at}: {key} is {named!r}, outside the folder: put the file, or a link to it, beside "
                f"{self.path.name}"
            )
        path = self.path.parent / named
        try:
            there = path.is_file()
        except ValueError:  # a NUL in the name
            there = False
        if not there:
            raise ArgumentError(
                f"{self.at}: {key} names {str(path)!a}, which is no file: correct it, or put it there"
            )
        return path

    def reverse(self, relation: str, default: bool) -> str | None:
        """Returns the name of the relation that leads back; None where there is none."""
        given = self.given.get("reverse", default)
        if isinstance(given, bool):
            return REVERSE + relation if given else None
        return self.word("reverse")


def is_type_name(word: str) -> bool:
    """Tells whether a type or relation may be called so."""
    return bool(word) and word.isprintable() and not any(c.isspace() or c in _NOT_IN_NAMES for c in word)
