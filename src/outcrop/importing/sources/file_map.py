"""A file as one map, and the arrays that lie in it as views: nothing is read before it is used."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from outcrop.errors import ArgumentError, FormatError, IoError

MOST_AXES = 32


def map_of(path: Path) -> np.ndarray:
    """Returns a read-only map of a file, uint8 [n].

    Raises:
        ArgumentError: There is no such file.
        IoError: It cannot be read.
    """
    if not path.is_file():
        raise ArgumentError(f"{path} is no file")
    try:
        size = path.stat().st_size
        return np.memmap(path, np.uint8, "r") if size else np.zeros(0, np.uint8)
    except OSError as error:
        raise IoError(error.errno or 0, f"{path} cannot be read: {error.strerror}") from None


def strided(
    name: str,
    storage: np.ndarray,
    dtype: np.dtype,
    offset: Any,
    sizes: tuple[Any, ...],
    strides: tuple[Any, ...],
) -> np.ndarray:
    """Returns a tensor as a view of its storage; equals ``torch.as_strided(storage, sizes, strides, offset)``.

    Args:
        storage: Its bytes, uint8 [n].
        offset: Where it begins, in elements, as ``sizes`` and ``strides`` count them.

    Raises:
        FormatError: Numbers that are none, or a tensor that leaves its storage or has an element more than once.
    """
    if (
        len(sizes) != len(strides)
        or len(sizes) > MOST_AXES
        or not all(is_size(number) for number in (offset, *sizes, *strides))
    ):
        raise FormatError(
            f"{name} has the shape {sizes[:5]}, strides {strides[:5]} and offset {offset}: the file is damaged"
        )
    held = len(storage) // dtype.itemsize
    count = prod(sizes)
    if count == 0:
        try:
            return np.zeros(sizes, dtype)
        except ValueError:
            raise FormatError(f"{name} has the shape {sizes}: the file is damaged") from None
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if last >= held:
        raise FormatError(
            f"{name} of shape {sizes}, strides {strides}, from element {offset} on leaves its storage of {held} "
            "elements: the file is damaged"
        )
    if count > held:
        raise FormatError(
            f"{name} of shape {sizes} has {count} elements in a storage of {held}, some of them often: save it again "
            "with .contiguous()"
        )
    steps = [stride * dtype.itemsize for stride in strides]
    return np.ndarray(sizes, dtype, storage, offset * dtype.itemsize, steps)


def mask_of(name: str, value: Any) -> Any:
    """Returns a mask that was stored as numbers 0 and 1 of type uint8 as booleans, and other values as they are.

    Raises:
        FormatError: It has another number.
    """
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8:
        return value
    if value.size and value.max() > 1:
        raise FormatError(f"{name} has {value.max()}; a mask has 0 and 1")
    return value.view(np.bool_)


def is_size(value: Any) -> bool:
    """Tells whether a value of a file can be a size or a place: an integer, not negative, that fits 62 bits."""
    return type(value) is int and 0 <= value < 1 << 62
