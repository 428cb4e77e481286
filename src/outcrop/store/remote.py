"""Folders in object stores: what is at a URI, its files, ranges of them, and what went wrong with which.

URIs are those of pyarrow.fs: ``s3://bucket/path?region=..&endpoint_override=..``, ``gs://``, ``abfs://``, ``hdfs://``
and ``file:///path``. Who may read and write is what the libraries of these stores find in the environment.
"""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from outcrop.errors import ArgumentError, FormatError, IoError, OutcropError

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

T = TypeVar("T")
SMALL_BYTES = 64 << 20  # of manifests and the like
_WITH_FOLDERS = ("local", "hdfs", "abfs")  # others have names with slashes
_COPY_BYTES = 8 << 20
_TRIES, _FIRST_WAIT_S = 4, 0.2
# What stands before the last @ of a host; and a key that should have its slashes as %2F.
_KEYS = re.compile(r"//(?:[^/]*@|[^/:@]*:(?!\d*/)[^@]*@)")
_OPEN_OPTIONS = ("blob_storage_authority", "dfs_storage_authority", "enable_tls", "credential_kind")


class FileState(NamedTuple):
    """Tells one state of a file from another: its bytes, and when it was changed."""

    size: int
    changed_ns: int


class FileRange(NamedTuple):
    """Names bytes of a file of this machine: ``size`` from ``offset`` on."""

    path: Path
    offset: int
    size: int

    @classmethod
    def whole(cls, path: Path) -> FileRange:
        return cls(path, 0, path.stat().st_size)

    def chunks(self) -> Iterator[bytes]:
        """Yields the bytes, some MiB at a time.

        Raises:
            FormatError: The file ends before.
        """
        left = self.size
        with self.path.open("rb") as file:
            file.seek(self.offset)
            while left:
                content = file.read(min(_COPY_BYTES, left))
                if not content:
                    raise FormatError(f"{self.path} ends {left} bytes early: it was cut short")
                left -= len(content)
                yield content


class RemoteFolder:
    """Gives access to the files of a folder in an object store.

    Args:
        uri: Where it is; what follows a ``?`` are options of the store.

    Attributes:
        uri: The same without options, and without the keys that a URI may hold: what messages say.
    """

    def __init__(self, uri: str):
        from pyarrow import ArrowInvalid
        from pyarrow.fs import FileSystem

        try:
            self._system: FileSystem
            self._system, path = FileSystem.from_uri(uri)
        except (ArrowInvalid, ValueError) as error:
            why = _first_line(error).replace(uri, without_keys(uri))
            raise ArgumentError(
                f"{without_keys(uri)} cannot be used: {why}; known are s3://, gs://, abfs://, hdfs:// and file://, "
                "with %20 for a space, and %2F for a slash in a key"
            ) from None
        except OSError as error:
            raise IoError(error.errno or 0, f"{without_keys(uri)}: {_first_line(error)}") from None
        self._path, self.uri = path.rstrip("/"), without_keys(uri)
        if not self._path:
            raise ArgumentError(f"{without_keys(uri)} cannot be used: it names no folder")

    def within(self, name: str) -> RemoteFolder:
        """Returns a folder of this one."""
        found = object.__new__(RemoteFolder)
        found._system = self._system
        found._path, found.uri = f"{self._path}/{name}", f"{self.uri}/{name}"
        return found

    def size(self, name: str) -> int | None:
        """Returns the bytes of a file; None where there is none."""
        from pyarrow.fs import FileType

        info = self._persistently(name, lambda: self._system.get_file_info(f"{self._path}/{name}"))
        return info.size if info.type == FileType.File else None

    def sizes(self) -> dict[str, int]:
        """Lists the files of this folder, without those of folders in it: name -> bytes, by name."""
        return {info.base_name: info.size for info in sorted(self._listed(), key=lambda one: one.base_name)}

    def all_files(self) -> dict[str, FileState]:
        """Lists the files of this folder and of those in it: name, seen from here and with slashes -> state.

        Raises:
            FormatError: A name would lead out of the folder.
        """
        found = {
            info.path.removeprefix(self._path).lstrip("/"): FileState(info.size, info.mtime_ns or 0)
            for info in self._listed(recursive=True)
        }
        for name in found:
            if {"", ".", ".."}.intersection(name.split("/")) or "\0" in name:
                raise FormatError(f"{self.uri} holds {name!a}, which cannot be copied to a folder")
        return dict(sorted(found.items()))

    def _listed(self, *, recursive: bool = False) -> list[FileInfo]:
        """Returns what the store says of the files here; nothing where there is no folder.

        Of a folder of this machine that comes or goes meanwhile, Arrow says that it is not there, though that is
        allowed: it asks whether there is one when it could not open it, and then there is. It is asked again, as
        stores are which say so.
        """
        from pyarrow.fs import FileSelector, FileType

        selector = FileSelector(self._path, allow_not_found=True, recursive=recursive)

        def attempt() -> list[FileInfo]:
            try:
                return self._system.get_file_info(selector)
            except FileNotFoundError as error:
                why = f"the folder came or went while it was listed ({_first_line(error)})"
                raise BlockingIOError(errno.EAGAIN, why) from error

        return [info for info in self._persistently("", attempt) if info.type == FileType.File]

    def as_file(self) -> FileState | None:
        """Returns the state of what is here, if that is a file and no folder."""
        from pyarrow.fs import FileType

        info = self._persistently("", lambda: self._system.get_file_info(self._path))
        return FileState(info.size, info.mtime_ns or 0) if info.type == FileType.File else None

    def parent(self) -> tuple[RemoteFolder, str]:
        """Returns the folder that this is in, and its name there."""
        found = object.__new__(RemoteFolder)
        found._system = self._system
        found._path, _, name = self._path.rpartition("/")
        found.uri = self.uri.rpartition("/")[0]
        return found, name

    def read(self, name: str) -> bytes:
        """Reads a small file whole.

        Raises:
            FormatError: It is not there, or is large.
        """
        size = self.size(name)
        if size is None:
            raise FormatError(f"{self.uri}/{name} is not there")
        if size > SMALL_BYTES:
            raise FormatError(f"{self.uri}/{name} has {size} bytes, which is no {name}")
        return self.read_range(name, 0, size)

    def read_range(self, name: str, offset: int, count: int) -> bytes:
        """Reads bytes ``offset:offset + count`` of a file; tries again where the store fails.

        Raises:
            IoError: The store failed several times; names file and offset.
            FormatError: The file ends before.
        """

        def attempt() -> bytes:
            with self._system.open_input_file(f"{self._path}/{name}") as file:
                return file.read_at(count, offset)

        found = self._persistently(f"{name} at byte {offset}", attempt)
        if len(found) != count:
            raise self._ends(name, offset + len(found), offset + count)
        return found

    def read_into(self, name: str, offset: int, out: np.ndarray) -> None:
        """Fills the flat uint8 array ``out`` from byte ``offset`` of a file; tries again where the store fails.

        Raises:
            IoError: The store failed several times; names file and offset.
            FormatError: The file ends before.
        """

        def attempt() -> int:
            count, view = 0, out.data
            with self._system.open_input_file(f"{self._path}/{name}") as file:
                file.seek(offset)
                while count < len(view) and (came := file.readinto(view[count:])):
                    count += came
            return count

        found = self._persistently(f"{name} at byte {offset}", attempt)
        if found != len(out):
            raise self._ends(name, offset + found, offset + len(out))

    def _ends(self, name: str, found: int, wanted: int) -> FormatError:
        return FormatError(
            f"{self.uri}/{name} ends at byte {found}, {wanted} were wanted: it was replaced or cut short while it was "
            "read"
        )

    @contextmanager
    def writing(self, name: str) -> Iterator[Callable[[bytes | memoryview], Any]]:
        """Yields what appends to a file, which is there as a whole when the block ends well.

        A folder of this machine would show what has been written of it: there it gets its name at the end.
        """
        local = self._system.type_name == "local"
        place = f"{self._path}/{name}"
        written = f"{self._path}/.{name}.part" if local else place
        with self._naming(name):
            if self._system.type_name in _WITH_FOLDERS:
                self._system.create_dir(self._path, recursive=True)
            stream = self._system.open_output_stream(written)
        try:
            with self._naming(name):
                yield stream.write
                stream.close()
                if local:
                    self._system.move(written, place)
        except BaseException:
            # A stream that is dropped is completed by some stores: what is there then has no manifest.
            del stream
            if local:
                with suppress(OSError):
                    self._system.delete_file(written)
            raise

    def write(self, name: str, content: bytes) -> None:
        """Writes a small file; tries again where the store fails."""

        def attempt() -> None:
            with self.writing(name) as append:
                append(content)

        self._persistently(name, attempt)

    def send(self, name: str, source: Path | FileRange) -> None:
        """Copies a file, or some bytes of one; tries again where the store fails."""
        source = FileRange.whole(source) if isinstance(source, Path) else source

        def attempt() -> None:
            with self.writing(name) as append:
                for content in source.chunks():
                    append(content)

        self._persistently(name, attempt)

    def remove(self, name: str) -> None:
        """Removes a file, if it is there."""
        if self.size(name) is not None:
            with self._naming(name):
                self._system.delete_file(f"{self._path}/{name}")

    def _persistently(self, what: str, attempt: Callable[[], T]) -> T:
        for left in reversed(range(_TRIES)):
            try:
                return attempt()
            except FileNotFoundError:
                raise FormatError(f"{self._place_of(what)}: the file is not there") from None
            except OSError as error:
                if not left:
                    place = self._place_of(what)
                    raise IoError(
                        error.errno or 0,
                        f"{place}: {_reason(error, place)} (tried {_TRIES} times); run the same command again to go on",
                    ) from error
            time.sleep(_FIRST_WAIT_S * 2 ** (_TRIES - 1 - left))
        raise AssertionError

    def _place_of(self, what: str) -> str:
        return f"{self.uri}/{what}".rstrip("/")

    @contextmanager
    def _naming(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, OutcropError):
                raise
            raise IoError(error.errno or 0, f"{self.uri}/{name}: {_first_line(error)}") from error


def with_options_only(uri: str) -> str:
    """Returns a URI with the options of its store and without keys, as it may be written to disk.

    A name before ``@`` that has no key stays: the container of ``abfs://``, the user of ``hdfs://``.
    """
    plain, mark, options = uri.partition("?")
    named = re.match(r"([a-z]+://[^/@:]+)(:[^/@]*)?@(.*)", plain)
    if named and (named[2] is None or plain.startswith("abfs")):
        plain = f"{named[1]}@{named[3]}"
    else:
        plain = without_keys(plain)
    if plain.startswith(
        "abfs"
    ):  # whose options may be secrets: client_secret, all of a shared access signature
        kept = [one for one in options.split("&") if one.partition("=")[0] in _OPEN_OPTIONS]
        mark, options = mark if kept else "", "&".join(kept)
    return plain.rstrip("/") + mark + options


def without_keys(uri: str) -> str:
    """Returns a URI as messages say it: without options of the store, and without keys."""
    return _KEYS.sub("//", uri.partition("?")[0]).rstrip("/")


def _reason(error: OSError, place: str) -> str:
    """Returns what an error says, without the place where :meth:`RemoteFolder.writing` has put it in front."""
    text = error.strerror if isinstance(error, OutcropError) and error.strerror else str(error)
    return text.strip().partition("\n")[0].removeprefix(f"{place}: ")


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
