"""Contents at a URI, each under a name, that are all there or none: what copies of checkpoints are made of.

``index.json`` in the store says which object is which content, with its bytes and SHA-256. Objects are named by their
content and never replaced; the index is written when all that it names are there, and objects that it no longer names
are removed after that. So a reader has the contents of one moment, and a writer that is killed leaves those of before.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from outcrop.errors import ArgumentError, ChecksumError, FormatError
from outcrop.runtime.parsing import parse_json
from outcrop.store.remote import FileRange, RemoteFolder

INDEX = "index.json"
# Beside what follows a store: the index that it was made from, or that was made from it.
FOLLOWS = f".{INDEX}"
FORMAT, _VERSION = "outcrop.mirror", 1
_RANGE_BYTES = 8 << 20
_DIGEST = r"[0-9a-f]{64}"
_TRIES = 4  # of readers, from under whom a writer removes what they were about to read

T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """Says where in the store a content is."""

    object: str
    bytes: int
    sha256: str


class IndexedObjects:
    """Reads and writes contents at a URI.

    Args:
        remote: Where they are.
        names: Names of contents; of those of a kind, such as ``slice-7.bin``, one.
        remedy: What to do where a content is missing or damaged.
    """

    def __init__(self, remote: RemoteFolder, names: Sequence[str], remedy: str):
        self._remote, self._remedy = remote, remedy
        objects = (re.escape(_object(name, "?")).replace(r"\?", _DIGEST) for name in names)
        # Also those of which a killed process has written a part, in a folder of this machine.
        self._ours = re.compile(rf"\.?({'|'.join(objects)})(\.part)?")

    def read(self) -> bytes:
        """Returns the index; empty where there is none."""
        return b"" if self._remote.size(INDEX) is None else self._remote.read(INDEX)

    def entries(self, content: bytes) -> dict[str, Entry]:
        """Returns what an index says: name -> where it is.

        Raises:
            FormatError: It is none.
        """
        if not content:
            return {}
        place = f"{self._remote.uri}/{INDEX}"
        try:
            found = parse_json(content)
            if (found["format"], found["version"]) != (FORMAT, _VERSION):
                raise ValueError(f"format {found['format']!r}, version {found['version']!r}")
            entries = {name: Entry(**entry) for name, entry in found["files"].items()}
            for name, entry in entries.items():
                if (
                    not re.fullmatch(rf"[a-z]+-{_DIGEST}\.[a-z]+", entry.object)
                    or type(entry.bytes) is not int
                ):
                    raise ValueError(f"{name!a} lies in {entry.object!a}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FormatError(f"{place} is not what Outcrop writes ({error}): name another place") from None
        return entries

    def at_one_moment(self, use: Callable[[bytes], T]) -> T:
        """Returns what ``use`` makes of the index; it is called again where it fails and a writer has written another
        index meanwhile, and removed what the one before named.

        Raises:
            FormatError: The index is none, or names what is not there.
        """
        for left in reversed(range(_TRIES)):
            content = self.read()
            try:
                return use(content)
            except FormatError:
                if not left or self.read() == content:  # nobody has replaced what was read
                    raise
        raise AssertionError

    def require_unchanged(self, content: bytes, followed: bytes | None) -> None:
        """Checks that the index that is there is the one that this process knows.

        Raises:
            ArgumentError: Another process has written to the store since.
        """
        if content != followed:
            raise ArgumentError(
                f"{self._remote.uri} was written by another process since this one has read it: let one train there, "
                "or give each a place of its own"
            )

    def there(self) -> dict[str, int]:
        """Lists the objects, also those that no index names: name -> bytes."""
        return {name: size for name, size in self._remote.sizes().items() if self._ours.fullmatch(name)}

    def send(self, name: str, source: Path | FileRange, there: Mapping[str, int]) -> Entry:
        """Copies a content to the store, unless it is there; says where it is then.

        Args:
            there: Objects that are there: name -> bytes.

        Raises:
            IoError: The store failed several times; names the object.
        """
        source = FileRange.whole(source) if isinstance(source, Path) else source
        digest = sha256_of(source)
        entry = Entry(_object(name, digest), source.size, digest)
        if there.get(entry.object) != entry.bytes:
            self._remote.send(entry.object, source)
        return entry

    def publish(self, entries: Mapping[str, Entry]) -> bytes:
        """Writes the index of contents that are all there; returns it.

        Raises:
            IoError: The store failed several times.
        """
        files = {name: asdict(entry) for name, entry in entries.items()}
        content = json.dumps({"format": FORMAT, "version": _VERSION, "files": files}, indent=1).encode()
        self._remote.write(INDEX, content)
        return content

    def remove_others(self, entries: Mapping[str, Entry]) -> None:
        """Removes objects that the index does not name, also those that were sent by a process that was killed."""
        kept = {entry.object for entry in entries.values()}
        for name in self.there():
            if name not in kept:
                self._remote.remove(name)

    def chunks(self, entry: Entry) -> Iterator[bytes]:
        """Yields a content, some MiB at a time.

        Raises:
            ChecksumError: It is not what was written; after the last of it.
            FormatError: It is not there, or ends before.
            IoError: The store failed several times; names the object.
        """
        sha = hashlib.sha256()
        for offset in range(0, entry.bytes, _RANGE_BYTES):
            content = self._remote.read_range(entry.object, offset, min(_RANGE_BYTES, entry.bytes - offset))
            sha.update(content)
            yield content
        self._check(entry, sha.hexdigest())

    def read_into(self, entry: Entry, out: np.ndarray) -> None:
        """Fills the flat uint8 array ``out`` with a content of its size; raises as :meth:`chunks` does."""
        for offset in range(0, len(out), _RANGE_BYTES):
            self._remote.read_into(entry.object, offset, out[offset : offset + _RANGE_BYTES])
        self._check(entry, hashlib.sha256(out.data).hexdigest())

    def _check(self, entry: Entry, digest: str) -> None:
        if digest != entry.sha256 or self._remote.size(entry.object) != entry.bytes:
            raise ChecksumError(
                f"{self._remote.uri}/{entry.object} is not what {INDEX} there says: it was damaged or replaced; "
                f"{self._remedy}"
            )


def sha256_of(source: Path | FileRange) -> str:
    """Returns the SHA-256 of a file, or of some bytes of one, as hexadecimal digits."""
    if isinstance(source, Path):
        with source.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    sha = hashlib.sha256()
    for content in source.chunks():
        sha.update(content)
    return sha.hexdigest()


def _object(name: str, digest: str) -> str:
    """Returns the name of an object: the kind of its content, and what that is."""
    kind = name.partition(".")[0].partition("-")[0]
    return f"{kind}-{digest}{Path(name).suffix}"
