"""Files of NumPy: ``.npy`` through a memory map, read in blocks."""

from __future__ import annotations

import mmap
import tokenize
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from outcrop.errors import FormatError, IoError
from outcrop.runtime.mapping import map_file
from outcrop.runtime.runtime import Runtime

# What NumPy raises for a header that is none; the last two where it tries to read it as Python 2 wrote it.
DAMAGED = (ValueError, EOFError, SyntaxError, tokenize.TokenError)


def open_npy(path: Path) -> np.ndarray:
    """Opens a read-only map of a ``.npy`` file; equals ``numpy.load(path)``.

    Raises:
        FormatError: No ``.npy`` file, truncated, or of Python objects.
    """
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read_header = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }
            if version not in read_header:
                raise FormatError(
                    f"{path}: .npy version {version} is not supported: save it again with numpy.save"
                )
            shape, fortran, dtype = read_header[version](file)
            offset, size = file.tell(), path.stat().st_size
    except FormatError:
        raise
    except DAMAGED as error:
        raise FormatError(f"{path} is no .npy file or is torn: {error}") from None
    except OSError as error:
        raise IoError(error.errno, f"{path} cannot be read: {error.strerror}") from None
    if dtype.hasobject:
        raise FormatError(f"{path} holds Python objects, which are never loaded: save numbers instead")
    if any(length < 0 for length in shape):
        raise FormatError(f"{path} has the shape {shape} in its header: the file is damaged, save it again")
    count = int(np.prod(shape, dtype=object))
    if size < offset + count * dtype.itemsize:
        raise FormatError(
            f"{path} is truncated: it has {size} bytes, its header promises {offset + count * dtype.itemsize}"
        )
    if count == 0 or dtype.itemsize == 0:
        return np.zeros(shape, dtype)
    return map_file(path, dtype, shape=shape, offset=offset, order="F" if fortran else "C")


def forget_pages(array: np.ndarray) -> None:
    """Lets go of the pages of a memory map that were read, so that reading a large file stays small."""
    while isinstance(array, np.ndarray) and not isinstance(array, np.memmap) and array.base is not None:
        array = array.base
    mapped = getattr(array, "_mmap", None)
    if mapped is not None:
        mapped.madvise(mmap.MADV_DONTNEED)


def array_blocks(runtime: Runtime, array: np.ndarray, rows: int) -> Iterator[np.ndarray]:
    """Yields ``array[i:i + rows]`` as copies in memory that the budget knows of."""
    row_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    if len(array) == 0:
        return
    with runtime.budget.reserve("import", min(rows, len(array)) * row_bytes):
        for start in range(0, len(array), rows):
            yield np.array(array[start : start + rows])
            forget_pages(array)
