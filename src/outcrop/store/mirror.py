"""A few files in an object store, with a copy in a folder that work is done in: checkpoints at a URI.

``index.json`` in the store says which object is which file, with its bytes and SHA-256. Objects are named by their
content and never replaced; the index is written when all that it names are there, and objects that it no longer names
are removed after that. So a reader has the files of one moment, and a writer that is killed leaves those of before.

The folder notes in ``.index.json`` the index that it follows. Files that differ from it there were made since and not
copied, as where a store failed: :meth:`FolderMirror.pull` copies them, unless another has written to the store since.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from outcrop.errors import ArgumentError, ChecksumError, FormatError, renaming
from outcrop.runtime.parsing import parse_json
from outcrop.store.lock import only_process_in
from outcrop.store.manifest import sync_folder, write_atomic
from outcrop.store.remote import RemoteFolder

INDEX, _FOLLOWS = "index.json", ".index.json"
_FORMAT, _VERSION = "outcrop.mirror", 1
_RANGE_BYTES = 8 << 20
_TRIES = 4  # of readers, from under whom a writer removes what they were about to read
_DIGEST = r"[0-9a-f]{64}"


@dataclass(frozen=True)
class _Entry:
    """Says where in the store a file is."""

    object: str
    bytes: int
    sha256: str


class FolderMirror:
    """Keeps the files ``names`` of a folder at a URI.

    Args:
        uri: Where they are kept.
        folder: The copy, made where it is missing.
        names: Files of it, those that others are made from last.
    """

    def __init__(self, uri: str, folder: Path, names: Sequence[str]):
        self._remote, self._folder, self._names = RemoteFolder(uri), folder, tuple(names)

    def pull(self, names: Sequence[str] | None = None) -> None:
        """Makes the folder what the store has.

        Args:
            names: Files that are wanted; None: all.

        Raises:
            FormatError: The store has files of something else, or not those of its index.
            ChecksumError: A file came otherwise than it was written.
            IoError: The store failed several times; names the file.
        """
        with only_process_in(self._folder):
            self._fetch(self._names if names is None else names)

    def is_ahead(self) -> bool:
        """Tells whether files in the folder were made since the store's, by whoever wrote those."""
        follows = self._follows()
        if follows is None or follows != self._index():
            return False
        entries = self._entries(follows)
        here = [name for name in self._names if (self._folder / name).is_file()]
        return any(name not in entries or not self._is_same(name, entries[name]) for name in here)

    def start_over(self) -> None:
        """Forgets the files in the folder; those of the store are there until others are pushed."""
        with only_process_in(self._folder):
            for name in self._names:
                (self._folder / name).unlink(missing_ok=True)
            write_atomic(self._folder / _FOLLOWS, self._index())

    def push(self) -> None:
        """Copies the files of the folder to the store, where all of them are there at once.

        Raises:
            ArgumentError: Another process has written to the store since.
            IoError: The store failed several times; names the file.
        """
        before = self._index()
        if before != self._follows():
            raise ArgumentError(
                f"{self._remote.uri} was written by another process since this one has read it: let one train there, "
                "or give each a place of its own"
            )
        old, entries = self._entries(before), dict[str, _Entry]()
        for name in self._names:
            path = self._folder / name
            if not path.is_file():
                continue
            digest, stem, suffix = _sha256(path), Path(name).stem, Path(name).suffix
            entries[name] = _Entry(f"{stem}-{digest}{suffix}", path.stat().st_size, digest)
            if old.get(name) != entries[name]:
                self._remote.send(entries[name].object, path)
        files = {name: asdict(entry) for name, entry in entries.items()}
        index = json.dumps({"format": _FORMAT, "version": _VERSION, "files": files}, indent=1).encode()
        self._remote.write(INDEX, index)
        write_atomic(self._folder / _FOLLOWS, index)
        self._remove_others({entry.object for entry in entries.values()})

    def _remove_others(self, kept: set[str]) -> None:
        """Removes objects of before, also those that were sent by a process that was killed."""
        ours = re.compile(
            "|".join(rf"{Path(n).stem}-{_DIGEST}{re.escape(Path(n).suffix)}" for n in self._names)
        )
        for name in self._remote.sizes():
            if ours.fullmatch(name) and name not in kept:
                self._remote.remove(name)

    def _fetch(self, names: Sequence[str]) -> None:
        for left in reversed(range(_TRIES)):
            content = self._index()
            entries = self._entries(content)
            try:
                for name in names:
                    if name not in entries:
                        (self._folder / name).unlink(missing_ok=True)
                    elif not self._is_same(name, entries[name]):
                        self._fetch_file(name, entries[name])
            except FormatError:
                if not left or self._index() == content:  # nobody has replaced what was read
                    raise
                continue
            sync_folder(self._folder)
            write_atomic(self._folder / _FOLLOWS, content)
            return

    def _fetch_file(self, name: str, entry: _Entry) -> None:
        sha = hashlib.sha256()
        handle, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=self._folder)
        try:
            with os.fdopen(handle, "wb") as file:
                for offset in range(0, entry.bytes, _RANGE_BYTES):
                    count = min(_RANGE_BYTES, entry.bytes - offset)
                    content = self._remote.read_range(entry.object, offset, count)
                    sha.update(content)
                    file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if sha.hexdigest() != entry.sha256 or self._remote.size(entry.object) != entry.bytes:
                raise ChecksumError(
                    f"{self._remote.uri}/{entry.object} is not what {INDEX} there says: it was damaged or replaced; "
                    "remove the folder there, and begin anew"
                )
            os.replace(temporary, self._folder / name)
        finally:
            Path(temporary).unlink(missing_ok=True)

    def _is_same(self, name: str, entry: _Entry) -> bool:
        path = self._folder / name
        return path.is_file() and path.stat().st_size == entry.bytes and _sha256(path) == entry.sha256

    def _follows(self) -> bytes | None:
        """Returns the index that the folder follows; None: it was never compared with the store."""
        path = self._folder / _FOLLOWS
        return path.read_bytes() if path.is_file() else None

    def _index(self) -> bytes:
        """Returns the index of the store; empty where there is none."""
        return b"" if self._remote.size(INDEX) is None else self._remote.read(INDEX)

    def _entries(self, content: bytes) -> dict[str, _Entry]:
        if not content:
            return {}
        place = f"{self._remote.uri}/{INDEX}"
        try:
            found = parse_json(content)
            if (found["format"], found["version"]) != (_FORMAT, _VERSION):
                raise ValueError(f"format {found['format']!r}, version {found['version']!r}")
            entries = {name: _Entry(**entry) for name, entry in found["files"].items()}
            for name, entry in entries.items():
                if (
                    not re.fullmatch(rf"[a-z]+-{_DIGEST}\.[a-z]+", entry.object)
                    or type(entry.bytes) is not int
                ):
                    raise ValueError(f"{name!a} lies in {entry.object!a}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FormatError(f"{place} is not what Outcrop writes ({error}): name another place") from None
        return entries


@contextmanager
def fetched(uri: str, *names: str) -> Iterator[Path]:
    """Yields a folder, for the block, with the first of the files ``names`` that are kept at ``uri``.

    Errors of the block name the URI in place of the folder.

    Raises:
        FormatError: There are none of them.
    """
    with tempfile.TemporaryDirectory(prefix="outcrop-") as temporary:
        folder = Path(temporary)
        mirror = FolderMirror(uri, folder, names)
        for name in names:
            mirror.pull([name])
            if (folder / name).is_file():
                break
        else:
            raise FormatError(
                f"{RemoteFolder(uri).uri} holds none of {', '.join(names)}: train with that place first"
            )
        with renaming(str(folder), RemoteFolder(uri).uri):
            yield folder


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
