"""Arrays inside ``.npz`` files, read from their beginning block by block: a deflated member is never inflated whole."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from outcrop.errors import ArgumentError, FormatError, OutcropError
from outcrop.importing.sources.file_map import is_size
from outcrop.importing.sources.npy import DAMAGED
from outcrop.runtime.runtime import Runtime

_KINDS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # how NumPy writes members


def read_header(where: str, file: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Reads the header of an array from the beginning of a member: shape, whether columns come first, and type.

    Args:
        where: What messages call the member.
        file: The member; afterwards it is where the data begin.
        size: Bytes of the member.

    Raises:
        FormatError: The header is of an unknown version, of Python objects, or promises other bytes than there are.
        ValueError, EOFError: It is no header.
    """
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
    else:
        raise FormatError(f"{where} has .npy version {version}, which is not supported")
    if dtype.hasobject:
        raise FormatError(f"{where} holds Python objects, which are never loaded: save numbers instead")
    data = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if file.tell() + data != size or any(length < 0 for length in shape):
        raise FormatError(f"{where} has {size} bytes, its header promises {file.tell() + data}")
    return shape, fortran, dtype


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Names the member in errors of whoever reads it."""
    try:
        yield
    except FileNotFoundError:
        raise ArgumentError(f"{where.partition(' member ')[0]} is missing") from None
    except (*DAMAGED, zipfile.BadZipFile, zlib.error, NotImplementedError, OSError) as error:
        if isinstance(error, OutcropError):
            raise
        raise FormatError(f"{where} is torn or no array: {error}") from None


def member_names(path: Path) -> set[str]:
    """Lists the arrays of a ``.npz`` file. Raises FormatError where it is none, ArgumentError where it is missing."""
    with naming(f"{path} member 'any'"), zipfile.ZipFile(path) as archive:
        return {name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")}


class NpzMember:
    """Streams one array of a ``.npz`` file.

    Attributes:
        name: What messages call it.
        shape: Its shape.
        fortran: Its columns come first.
        dtype: Its type.

    Raises:
        ArgumentError: There is no such file.
        FormatError: The file is no archive, has no such member, or one of another kind than NumPy writes.
    """

    def __init__(self, path: Path, member: str):
        self._path, self._member = path, f"{member}.npy"
        self.name = f"{path} member {member!r}"
        with naming(self.name), zipfile.ZipFile(path) as archive, self._open(archive) as (file, size):
            self.shape, self.fortran, self.dtype = read_header(self.name, file, size)

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    @contextmanager
    def _open(self, archive: zipfile.ZipFile) -> Iterator[tuple[IO[bytes], int]]:
        try:
            info = archive.getinfo(self._member)
        except KeyError:
            there = ", ".join(sorted(name.removesuffix(".npy") for name in archive.namelist())) or "none"
            raise FormatError(f"{self.name} is missing (it has {there})") from None
        if info.compress_type not in _KINDS or info.flag_bits & 1:
            raise FormatError(
                f"{self.name} is encrypted or compressed unlike NumPy does: save it with numpy.savez"
            )
        with archive.open(info) as file:
            yield file, info.file_size

    def rows(self, runtime: Runtime, count: int) -> Iterator[np.ndarray]:
        """Yields ``array[i : i + count]``.

        Raises:
            FormatError: The member is torn, or its columns come first.
        """
        if self.fortran and len(self.shape) > 1:
            raise FormatError(
                f"{self.name} of shape {self.shape} has its columns first and would have to be read whole: save it "
                "as numpy.ascontiguousarray gives it"
            )
        rows, width = len(self), int(np.prod(self.shape[1:], dtype=np.int64))
        for block in self.flat(runtime, count * width, 0, rows * width):
            yield block.reshape(-1, *self.shape[1:])

    def flat(self, runtime: Runtime, count: int, start: int, stop: int) -> Iterator[np.ndarray]:
        """Yields elements ``start`` to ``stop`` in the order of the file, ``count`` at a time; skips those before.

        Raises:
            FormatError: The member is torn.
        """
        size = self.dtype.itemsize
        count = max(1, min(count, stop - start))
        # A block, and the bytes that it is copied from.
        with (
            runtime.budget.reserve("import", 2 * count * size),
            naming(self.name),
            zipfile.ZipFile(self._path) as archive,
            self._open(archive) as (file, file_size),
        ):
            read_header(self.name, file, file_size)
            _skip(file, start * size, count * size)
            for first in range(start, stop, count):
                block = np.empty(min(count, stop - first), self.dtype)
                if file.readinto(block.view(np.uint8)) < block.nbytes:  # type: ignore[attr-defined]
                    raise FormatError(f"{self.name} is torn: it ends before element {first + len(block)}")
                yield block


def _skip(file: IO[bytes], size: int, step: int) -> None:
    while size > 0:
        read = len(file.read(min(size, step)))
        if not read:
            raise EOFError(f"it ends {size} bytes before what is wanted")
        size -= read


def read_integer(runtime: Runtime, member: NpzMember) -> int:
    """Returns the only number of a list that has one, how many nodes or edges the only graph of a data set has.

    Raises:
        ArgumentError: Its header tells of more or fewer numbers, which are not read.
        FormatError: It is no list of integers, or torn, or its number is negative.
    """
    if len(member.shape) != 1 or member.dtype.kind not in "iu":
        raise FormatError(f"{member.name} is {member.dtype}{member.shape}; a list of integers is needed")
    if len(member) != 1:
        raise ArgumentError(f"{member.name} lists {len(member)} graphs; a data set of one graph is needed")
    (block,) = member.rows(runtime, 1)
    if not is_size(int(block[0])):
        raise FormatError(f"{member.name} holds {block[0]}; it says how many there are of something")
    return int(block[0])
