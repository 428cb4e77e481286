"""Slices on their way from one process to another, while both train.

Every process knows from the schedule which slices move after which round. They go in steps, in each of which a process
sends one slice at the most and receives one; all processes take part in all steps, in the same order. A slice that is
to go is read from the file of its process once that is done with it, and written into the file of the other, where
training finds it as it finds any slice. Nothing waits but who needs a slice that has not come:
:meth:`SliceMoves.advance`, called now and then, does what can be done meanwhile.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

import outcrop._core as _core
from outcrop.embed.tables import NOWHERE, Move, Table
from outcrop.errors import ChecksumError
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime

TAG = "moving-slices"
_POLL_SECONDS = 0.0005


@dataclass(frozen=True)
class Transfer:
    """A slice goes from one rank to another."""

    part: int
    source: int
    target: int


def in_steps(transfers: Iterable[Transfer]) -> list[list[Transfer]]:
    """Returns ``transfers`` in as few steps as a greedy choice needs; in a step no rank sends or receives two."""
    steps: list[list[Transfer]] = []
    for one in transfers:
        free = (
            step
            for step in steps
            if all(one.source != other.source and one.target != other.target for other in step)
        )
        step = next(free, None)
        if step is None:
            step = []
            steps.append(step)
        step.append(one)
    return steps


def moving_bytes(slab_bytes: int) -> int:
    """Returns what :class:`SliceMoves` holds: a slice that goes and one that comes, each with its checksum."""
    return 2 * (slab_bytes + PAGE_BYTES)


class _Job(Protocol):
    @property
    def done(self) -> bool: ...

    def wait(self) -> None: ...


class _NoJob:
    """Stands for work that this process has no part in."""

    done = True

    def wait(self) -> None:
        pass


class SliceMoves:
    """Moves slices between the tables of all processes.

    Args:
        table: That of this process.
        source: Returns the table to read a slice from; None: ``table``.

    Attributes:
        bytes_sent: Bytes of slices that went to other processes, and of their checksums.
    """

    def __init__(self, table: Table, runtime: Runtime, source: Callable[[int], Table] | None = None):
        self._table, self._group = table, runtime.group
        self._source = source or (lambda part: table)
        staged = runtime.budget.empty(TAG, moving_bytes(table.slab_bytes)).reshape(2, -1)
        self._going, self._coming = staged[0], staged[1]
        self._steps: deque[list[Transfer]] = deque()
        self._offered: set[int] = set()
        self._awaited: set[int] = set()
        self._job: _Job | None = None
        self._stages: deque[Callable[[], _Job]] = deque()
        self._latest = 0
        self.bytes_sent = 0

    def begin(self) -> None:
        """Makes ready; all processes call it at the same time."""
        self._group.begin_passing(len(self._going))

    def expect(self, transfers: Sequence[Transfer]) -> None:
        """Adds what moves next; the same in all processes."""
        steps = in_steps(transfers)
        self._latest = len(steps)
        self._steps.extend(steps)
        self._awaited.update(one.part for one in transfers if one.target == self._group.rank)

    def offer(self, parts: Iterable[int]) -> None:
        """Lets slices go, which are in the file of this process and are not changed there any more."""
        self._offered.update(parts)
        self.advance()

    def advance(self) -> None:
        """Does what can be done without waiting for anything."""
        while self._turn(wait=False):
            pass

    def wait_for(self, parts: Iterable[int]) -> None:
        """Waits until none of ``parts`` is still to come.

        Raises:
            ChecksumError: One came that is not what was sent.
            RankError: Another process is gone.
        """
        wanted = set(parts)
        while self._awaited & wanted:
            moved = self._turn(wait=True)
            assert moved, (
                f"slices {sorted(self._awaited & wanted)} are waited for behind one that is not offered"
            )

    def finish(self, *, earlier: bool = False) -> None:
        """Waits until everything that was expected has moved.

        Args:
            earlier: Only what was expected before the last call of :meth:`expect`. Whoever waits for other processes
                in another way does this first: they may wait for this one to take part.
        """
        while len(self._steps) > (self._latest if earlier else 0):
            moved = self._turn(wait=True)
            assert moved, f"{self._steps[0]} is not offered"

    def _turn(self, *, wait: bool) -> bool:
        """Goes on with the first step; False where it has to wait for something, or for what is not offered yet."""
        if not self._steps:
            return False
        if self._job is None:
            own = self._own_transfers()
            if any(one.source == self._group.rank and one.part not in self._offered for one in own):
                return False
            self._stages = deque([self._read, self._send, self._write, self._end])
        else:
            while not self._job.done:
                if not wait:
                    return False
                self._group.check_others()
                time.sleep(_POLL_SECONDS)
            self._job.wait()
        self._job = self._stages.popleft()()
        if not self._stages:
            self._job = None
            self._steps.popleft()
        return True

    def _own_transfers(self) -> list[Transfer]:
        return [one for one in self._steps[0] if self._group.rank in (one.source, one.target)]

    @property
    def _leaving(self) -> Transfer | None:
        return next((one for one in self._steps[0] if one.source == self._group.rank), None)

    @property
    def _arriving(self) -> Transfer | None:
        return next((one for one in self._steps[0] if one.target == self._group.rank), None)

    def _read(self) -> _Job:
        if (one := self._leaving) is None:
            return _NoJob()
        return self._source(one.part).exchange([Move(self._slab(self._going), None, one.part)])

    def _send(self) -> _Job:
        one, other = self._leaving, self._arriving
        if one is not None:
            table = self._source(one.part)
            made = (
                table.places[one.part] == NOWHERE
            )  # its rows were made just now: there is no checksum of them yet
            checksum = _core.crc32c(self._slab(self._going)) if made else table.checksums[one.part]
            self._note(self._going)[:] = one.part, checksum
        return self._group.pass_on(
            None if one is None else (torch.from_numpy(self._going), one.target),
            None if other is None else (torch.from_numpy(self._coming), other.source),
        )

    def _write(self) -> _Job:
        if (one := self._leaving) is not None:
            self._offered.discard(one.part)
            if one.target != self._group.rank:
                self._table.give_away(one.part)
                self.bytes_sent += len(self._going)
        if (other := self._arriving) is None:
            return _NoJob()
        return self._table.exchange([Move(self._slab(self._coming), other.part, None)])

    def _end(self) -> _Job:
        if (one := self._arriving) is not None:
            part, checksum = self._note(self._coming).tolist()
            if (part, checksum) != (one.part, self._table.checksums[one.part]):
                raise ChecksumError(
                    f"slice {one.part} came damaged from rank {one.source}: start again, training goes on from its "
                    "last checkpoint"
                )
            self._awaited.discard(one.part)
        return _NoJob()

    def _slab(self, staged: np.ndarray) -> np.ndarray:
        return staged[: self._table.slab_bytes]

    def _note(self, staged: np.ndarray) -> np.ndarray:
        """Returns what comes behind a slab: its slice, and its checksum."""
        return staged[self._table.slab_bytes :].view(np.uint32)[:2]
