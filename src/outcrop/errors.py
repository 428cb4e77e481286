"""Errors of Outcrop: one small tree whose members are also the matching builtin.

Every message answers three questions: what failed (path, offset, bytes), with which value, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class OutcropError(Exception):
    """Base of all errors that Outcrop raises on purpose."""


class ArgumentError(OutcropError, ValueError):
    """A value given by the caller is out of range or contradicts another."""


class FormatError(OutcropError, ValueError):
    """A file or folder is not what it should be: foreign, truncated, of another version."""


class ChecksumError(FormatError):
    """Bytes on disk differ from those that were written."""


class CorruptionError(OutcropError, RuntimeError):
    """Bytes in memory differ from those on disk that they were read from (``paranoid``)."""


class BudgetError(OutcropError, MemoryError):
    """A memory, device-memory or disk-space limit cannot hold what was asked.

    Attributes:
        smallest: The smallest budget that can, bytes; None where it was not worked out.
        limit: Which limit: ``memory``, ``device``, ``disk``, or ``buffers`` (the caller keeps all of them).
    """

    def __init__(self, message: str = "", smallest: int | None = None, limit: str = "memory"):
        super().__init__(message)
        self.smallest, self.limit = smallest, limit


class IoError(OutcropError, OSError):
    """The operating system refused a read, a write or another file operation."""

    def __str__(self) -> str:
        # Stores and libraries fail without a number of the system.
        return str(self.strerror) if self.errno == 0 else super().__str__()


class DeviceError(OutcropError, RuntimeError):
    """A device that was asked for is not there or not usable."""


class CancelledError(OutcropError, RuntimeError):
    """Work was given up because something else failed or the caller left."""


class RankError(OutcropError, RuntimeError):
    """Another process of a training failed, was lost, or does not do the same."""


class NumericError(OutcropError, ArithmeticError):
    """A computation gave a value that is infinite or not a number."""


class OutcropWarning(UserWarning):
    """Something beside the result went wrong, and the result stands."""


@contextmanager
def naming_files(place: Path) -> Iterator[None]:
    """Turns the system's errors into IoError that name a file: that of the error, else ``place``."""
    try:
        yield
    except OSError as error:
        if isinstance(error, OutcropError):
            raise
        where = error.filename2 or error.filename or place
        raise IoError(
            error.errno or 0, f"{where}: {error.strerror or error}, so {place} was not finished"
        ) from error


@contextmanager
def renaming(place: str, name: str) -> Iterator[None]:
    """Lets errors of Outcrop say ``name`` where they name ``place``, as of a copy that nobody has asked for."""
    try:
        yield
    except OutcropError as error:
        error.args = tuple(one.replace(place, name) if isinstance(one, str) else one for one in error.args)
        if isinstance(error, OSError) and error.strerror:
            error.strerror = error.strerror.replace(place, name)
        raise
