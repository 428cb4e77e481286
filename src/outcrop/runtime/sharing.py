"""Memory that the processes of one machine hold once: what each of them would read into memory for itself.

Several ranks of a training need the same cache, the same neighbour lists. One of them reads, the others map what it has
read. Where N of them share C bytes, each has C / N of them in its budget, so that their budgets add up to what is held.

The memory is a file without a name (``memfd_create``), which the others open as ``/proc/<process>/fd/<number>``: it is
gone with the last process that has it, also when all are killed, and no limit of ``/dev/shm`` holds for it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np

from outcrop.errors import IoError

_SHARED_TAGS = ("topology", "host_cache", "features")  # large, read whole, and the same in every rank


def may_be_shared(tag: str) -> bool:
    """Tells whether what is held under ``tag`` is the same in every rank."""
    return tag.rpartition(".")[2] in _SHARED_TAGS


class Sharers(Protocol):
    """Says how many processes of this machine hold something together; a rehearsal asks no more."""

    @property
    def processes(self) -> int: ...


@runtime_checkable
class SharedMemory(Sharers, Protocol):
    """Gives all processes of a machine the same memory."""

    def array(self, nbytes: int, fill: Callable[[np.ndarray], None]) -> np.ndarray:
        """Returns the same uint8 [nbytes] in every process, which one of them has filled.

        All processes call it in the same order.

        Args:
            fill: Writes the bytes into an array of zeros; called in one process.

        Raises:
            RankError: It raised there.
        """
        ...


class Among:
    """Counts the processes that would share, for a rehearsal."""

    def __init__(self, processes: int):
        self._processes = processes

    @property
    def processes(self) -> int:
        return self._processes


def share_of(nbytes: int, sharing: Sharers | None) -> int:
    """Counts the bytes of ``nbytes`` that are shared which one process has in its budget."""
    return nbytes if sharing is None else -(-nbytes // sharing.processes)


def make_file(nbytes: int) -> tuple[int, np.ndarray]:
    """Makes memory without a name: its descriptor, and a uint8 [nbytes] of zeros over it."""
    handle = os.memfd_create("outcrop", os.MFD_CLOEXEC)
    os.ftruncate(handle, nbytes)
    return handle, np.frombuffer(mmap.mmap(handle, nbytes), np.uint8)


def map_file(process: int, handle: int, nbytes: int) -> np.ndarray:
    """Maps memory that another process has made: uint8 [nbytes], of which changes are seen by nobody else.

    Raises:
        IoError: It is not open to this process.
    """
    path = f"/proc/{process}/fd/{handle}"
    try:
        own = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise IoError(
            error.errno,
            f"{path}: {error.strerror}; the processes of one machine share caches through it: start them as one user, "
            "in one container",
        ) from None
    try:
        return np.frombuffer(mmap.mmap(own, nbytes, access=mmap.ACCESS_COPY), np.uint8)
    finally:
        os.close(own)
