"""Maps files into memory, with errors that name them: mmap itself says only that there is no memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from outcrop.errors import IoError


@contextmanager
def mapping(path: Path) -> Iterator[None]:
    """Has errors of mapping ``path`` in the block name it.

    Raises:
        IoError: It cannot be mapped.
    """
    try:
        yield
    except (OSError, MemoryError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        number, why = getattr(error, "errno", None), getattr(error, "strerror", None)
        raise IoError(
            number or 0,
            f"{path} cannot be mapped into memory: {why or error}; free some, or raise the limit on address space "
            "(ulimit -v)",
        ) from None


def map_file(
    path: Path,
    dtype: Any,
    *,
    shape: tuple[int, ...] | None = None,
    offset: int = 0,
    order: Literal["C", "F"] = "C",
) -> np.ndarray:
    """Maps a file for reading: ``np.memmap(path, dtype, "r", offset, shape, order)``.

    Args:
        shape: Of the array; None: one dimension, as long as the file from ``offset`` (bytes) on.

    Raises:
        IoError: It cannot be mapped.
    """
    with mapping(path):
        return np.memmap(path, dtype, "r", offset, shape, order)
