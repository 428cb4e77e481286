"""Ids that a gather found no row for. No call waits for its kernel to learn of them.

Each launch has a word in pinned memory of the host, where the kernel writes where in the index such an id stands:
nothing crosses the bus where there is none. The host looks at the words of launches that are done when it comes to the
next one, and waits only where all words are taken.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import deque
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from outcrop.device.gpu import Fence, Gpu

_WORDS = 64


@dataclass(frozen=True)
class _Launch:
    """Remembers a launch. ``held``: what the kernel reads and is of no allocator that knows its stream."""

    word: int
    index: torch.Tensor
    num_rows: int
    fence: Fence
    held: Any


class BadIds:
    """Holds the words of this process that kernels write to where ids are bad."""

    def __init__(self, gpu: Gpu) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)  # zeros
        self._words = np.frombuffer(self._page, np.int64)
        self.address = self._words.ctypes.data
        gpu.register(self.address, mmap.PAGESIZE)  # for as long as the process lives
        self._free = list(range(_WORDS))
        self._launches: deque[_Launch] = deque()
        self._lock = threading.Lock()

    def take(self) -> tuple[int, int]:
        """Takes a word for the next launch, and its address.

        Raises:
            IndexError: As :meth:`check`, of launches that are done.
        """
        with self._lock:
            self._look(wait=False)
            if not self._free:
                self._launches[0].fence.synchronize()
                self._look(wait=False)
            word = self._free.pop()
        return word, self.address + 8 * word

    def launched(self, gpu: Gpu, word: int, index: torch.Tensor, num_rows: int, held: Any) -> None:
        """Notes that the kernel that writes ``word`` was given to the current stream of ``index``."""
        fence = gpu.fence(gpu.stream(index.get_device()))
        with self._lock:
            self._launches.append(_Launch(word, index, num_rows, fence, held))

    def check(self) -> None:
        """Waits for all launches so far.

        Raises:
            IndexError: One was asked for a row that its table does not have.
        """
        with self._lock:
            self._look(wait=True)

    def _look(self, *, wait: bool) -> None:
        """Looks in the order of launches, which of several streams need not be the one in which they end."""
        while self._launches:
            launch = self._launches[0]
            if not launch.fence.query():
                if not wait:
                    return
                launch.fence.synchronize()
            self._launches.popleft()
            self._free.append(launch.word)
            at, self._words[launch.word] = int(self._words[launch.word]) - 1, 0
            if at >= 0:
                raise IndexError(
                    f"row {int(launch.index.reshape(-1)[at])} asked for, the table has {launch.num_rows}: of a gather "
                    "some calls ago (outcrop.unified.check_ids() waits for gathers and looks)"
                )


def bad_ids(gpu: Gpu) -> BadIds:
    """Returns the words of this process."""
    return _bad_ids_of(gpu, os.getpid())


@cache
def _bad_ids_of(gpu: Gpu, process: int) -> BadIds:
    del process  # a forked child cannot use its parent's GPU
    return BadIds(gpu)
