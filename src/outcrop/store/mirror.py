"""A few files in an object store, with a copy in a folder that work is done in: checkpoints at a URI.

They are there together or not at all (:mod:`outcrop.store.objects`). The folder notes in ``.index.json`` the index that
it follows. Files that differ from it there were made since and not copied, as where a store failed:
:meth:`FolderMirror.pull` copies them, unless another has written to the store since.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from outcrop.errors import FormatError, renaming
from outcrop.store.lock import only_process_in
from outcrop.store.manifest import sync_folder, write_atomic
from outcrop.store.objects import FOLLOWS, Entry, IndexedObjects, sha256_of
from outcrop.store.remote import RemoteFolder

_REMEDY = "remove the folder there, and begin anew"


class FolderMirror:
    """Keeps the files ``names`` of a folder at a URI.

    Args:
        uri: Where they are kept.
        folder: The copy, made where it is missing.
        names: Files of it, those that others are made from last.
    """

    def __init__(self, uri: str, folder: Path, names: Sequence[str]):
        self._remote, self._folder, self._names = RemoteFolder(uri), folder, tuple(names)
        self._objects = IndexedObjects(self._remote, names, _REMEDY)

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
        if follows is None or follows != self._objects.read():
            return False
        entries = self._objects.entries(follows)
        here = [name for name in self._names if (self._folder / name).is_file()]
        return any(name not in entries or not self._is_same(name, entries[name]) for name in here)

    def start_over(self) -> None:
        """Forgets the files in the folder; those of the store are there until others are pushed."""
        with only_process_in(self._folder):
            for name in self._names:
                (self._folder / name).unlink(missing_ok=True)
            write_atomic(self._folder / FOLLOWS, self._objects.read())

    def push(self) -> None:
        """Copies the files of the folder to the store, where all of them are there at once.

        Raises:
            ArgumentError: Another process has written to the store since.
            IoError: The store failed several times; names the file.
        """
        objects, before = self._objects, self._objects.read()
        objects.require_unchanged(before, self._follows())
        there = {entry.object: entry.bytes for entry in objects.entries(before).values()}
        entries = dict[str, Entry]()
        for name in self._names:
            path = self._folder / name
            if path.is_file():
                entries[name] = objects.send(name, path, there)
        write_atomic(self._folder / FOLLOWS, objects.publish(entries))
        objects.remove_others(entries)

    def _fetch(self, names: Sequence[str]) -> None:
        def fetch(index: bytes) -> bytes:
            entries = self._objects.entries(index)
            for name in names:
                if name not in entries:
                    (self._folder / name).unlink(missing_ok=True)
                elif not self._is_same(name, entries[name]):
                    self._fetch_file(name, entries[name])
            return index

        index = self._objects.at_one_moment(fetch)
        sync_folder(self._folder)
        write_atomic(self._folder / FOLLOWS, index)

    def _fetch_file(self, name: str, entry: Entry) -> None:
        handle, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=self._folder)
        try:
            with os.fdopen(handle, "wb") as file:
                for content in self._objects.chunks(entry):
                    file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._folder / name)
        finally:
            Path(temporary).unlink(missing_ok=True)

    def _is_same(self, name: str, entry: Entry) -> bool:
        path = self._folder / name
        return path.is_file() and path.stat().st_size == entry.bytes and sha256_of(path) == entry.sha256

    def _follows(self) -> bytes | None:
        """Returns the index that the folder follows; None: it was never compared with the store."""
        path = self._folder / FOLLOWS
        return path.read_bytes() if path.is_file() else None


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
