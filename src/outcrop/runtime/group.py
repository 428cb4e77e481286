"""The processes that train one model together: one alone, or the ranks of a process group of torch.distributed.

``torchrun`` starts ranks, and so does whatever has made a process group before. Each does the same in the same order:
they meet in :meth:`Group.agree`, after every step and around whatever may fail on one of them, and where one has
failed all end with an error that says which. Who has to wait for long work of another, such as preparing, does so
without a limit of time; else a rank that says nothing for ten minutes ends the others. One whose machine is gone, or
cannot be reached, ends them within a minute (:mod:`outcrop.runtime.connections`).
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from outcrop.errors import ArgumentError, OutcropError, RankError
from outcrop.runtime import sharing
from outcrop.runtime.connections import GONE_SECONDS, End, WatchedConnections, watch_port
from outcrop.runtime.parent import end_with_launcher

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

PATIENCE = timedelta(minutes=10)
_LONG_WORK = timedelta(days=30)
# Of sums, which all begin at once: gloo does not always hear of a connection that ends while much is sent.
_TRANSFER_SECONDS = GONE_SECONDS + 5
_SLOWEST_BYTES = 1e6  # a second over the network
_HEARING_SECONDS = 1.0
_ASKING_SECONDS = 0.01  # whether all have come
_SEEING_SECONDS = 10.0  # until a file that one machine has made is seen by another


class Handover:
    """Tells of a tensor on its way."""

    @property
    def done(self) -> bool:
        return True

    def wait(self) -> None:
        """Waits until it is there; RankError where a process is gone."""


class Group:
    """Stands for a process that trains alone, and says what ranks do beside it.

    Attributes:
        rank, world: Number of this process, and how many there are.
        local_rank, local_world: The same among the processes of this machine.
        alike: Whether all compute with the same bits. Where their processors differ they do not.
        processors: The kinds among them, as checkpoints name them.
    """

    rank, world, local_rank, local_world = 0, 1, 0, 1
    alike = True
    processors: Sequence[list[Any]] = ()

    @property
    def alone(self) -> bool:
        return self.world == 1

    @property
    def leads(self) -> bool:
        """Tells whether this process writes what is written once: checkpoints, reports."""
        return self.rank == 0

    @property
    def memory(self) -> sharing.SharedMemory | None:
        """Returns what the processes of this machine hold together; None where there is one."""
        return None

    def agree(
        self,
        where: str,
        numbers: Sequence[float] = (),
        error: Exception | None = None,
        *,
        patient: bool = False,
    ) -> np.ndarray:
        """Meets the other ranks: returns the ``numbers`` of all, float64 [world, len(numbers)], in the order of ranks.

        Args:
            where: What this is, the same in all ranks.
            numbers: What the others are told, equally many in all ranks.
            error: What this rank has failed by: it is raised here, and the others say it.
            patient: Whether a rank may take longer than others by any time.

        Raises:
            RankError: Another rank failed, or is gone, or is somewhere else.
        """
        if error is not None:
            raise error
        return np.array(numbers, np.float64).reshape(1, -1)

    @contextmanager
    def together(self, where: str, *, patient: bool = False) -> Iterator[None]:
        """Ends the block in all ranks by an error where it failed in one.

        Ranks meet at its end: within it they wait for each other by :meth:`pass_on` alone, and :meth:`check_others`.
        """
        yield

    def check_others(self) -> None:
        """Hears of the error of another rank, a second after it. Cheap: for long work within :meth:`together`.

        Raises:
            RankError: Another rank failed, or is gone.
        """

    def wait_for_others(self, meanwhile: Callable[[], None]) -> None:
        """Waits within :meth:`together` until all ranks have come here; calls ``meanwhile`` again and again.

        Raises:
            RankError: Another rank failed, or is gone.
        """

    def gather(self, value: T) -> list[T]:
        """Returns the ``value`` of every rank, in the order of ranks. Values are pickled."""
        return [value]

    def once_a_machine(self, work: Callable[[], T]) -> T | None:
        """Calls ``work`` in rank 0, then in the first rank of each other machine; returns what it gave here, or None.

        What it makes on disk is there once it is done, on a disk that machines share or on each of them: on the former
        ``work`` finds that it has nothing left to do.
        """
        return work()

    def sum_rows(self, own: np.ndarray, order: Sequence[tuple[int, int]]) -> np.ndarray:
        """Returns the sum of the rows of all ranks, one after another as ``order`` has them, on each of them.

        Equals ``sum(rows[rank][place] for rank, place in order)`` from left to right, to the last bit. All ranks come
        here at the same time: what is sent has a limit of time.

        Args:
            own: Rows of this rank, float32 or float64 [k, n]; n is the same on all ranks.
            order: Rank and place of each row, at least one; the same on all ranks.
        """
        total = own[order[0][1]].copy()
        for _, place in order[1:]:
            total += own[place]
        return total

    def begin_passing(self, nbytes: int) -> None:
        """Lets all ranks get ready for :meth:`pass_on` of so many bytes; all call it at the same time."""

    def pass_on(self, own: tuple[Tensor, int] | None, other: tuple[Tensor, int] | None) -> Handover:
        """Begins to send a tensor to another rank, or to this one, and to receive one.

        All ranks take part, each when it comes to it; nothing waits here.

        Args:
            own: Tensor that goes, and the rank that it goes to; None: this rank sends nothing.
            other: Tensor of the same size that is filled, and the rank that sends; None: it receives nothing.
        """
        if own is not None and other is not None:
            other[0].copy_(own[0])
        return Handover()

    def require_same(self, facts: Mapping[str, Any]) -> None:
        """Checks that all ranks have the same ``facts``, name -> plain value.

        Raises:
            ArgumentError: They differ; names each with the values of two ranks.
        """

    @property
    def first_of_machine(self) -> int:
        """Returns the rank that does for this machine's ranks what is done once."""
        return 0

    def sees_folder_of_first(self, folder: Path) -> bool:
        """Tells whether ``folder``, which is there, is the same one for this rank as for rank 0."""
        return True

    def require_shared(self, folder: Path) -> None:
        """Checks that all ranks see one and the same ``folder``, which is there.

        Raises:
            ArgumentError: It is another on another machine.
        """

    def follow(self, tensors: Iterable[Tensor]) -> None:
        """Gives ``tensors`` the values that they have in rank 0; those of all ranks are equally many and large."""

    def machine_sums(self, value: int) -> list[int]:
        """Returns the sum of ``value`` over the ranks of each machine."""
        return [value]

    def for_transfers(self, nbytes: int) -> Any:
        """Returns the process group for sums on the CPU, of which a rank sends and receives at most ``nbytes``."""


@contextmanager
def joined(device: str) -> Iterator[Group]:
    """Joins the process group that there is, or that the environment asks for (``RANK``, ``WORLD_SIZE``).

    Args:
        device: What is trained on, ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        ArgumentError: The environment is garbled.
        RankError: The other processes did not come.
    """
    if "torch" not in sys.modules and _number("WORLD_SIZE", 1) == 1:
        yield Group()  # nobody has made a process group
        return
    import torch

    distributed = torch.distributed if torch.distributed.is_available() else None
    there = distributed is not None and distributed.is_initialized()
    if there and distributed is not None and distributed.get_world_size() > 1:
        yield RankGroup()
        return
    if there or distributed is None or _number("WORLD_SIZE", 1) == 1:
        yield Group()
        return
    end_with_launcher()
    with ExitStack() as closing:
        backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
        try:
            with WatchedConnections().opening():
                distributed.init_process_group(backend, timeout=PATIENCE)
        except (RuntimeError, ValueError) as error:
            raise RankError(
                f"the processes of this training did not find each other ({_first_line(error)}){_store_hint()}"
            ) from error
        closing.callback(distributed.destroy_process_group)
        yield RankGroup()


def _number(name: str, otherwise: int) -> int:
    text = os.environ.get(name, str(otherwise))
    try:
        return int(text)
    except ValueError:
        raise ArgumentError(f"{name}={text!r} in the environment is no number: torchrun sets it") from None


def _store_hint() -> str:
    name = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
    if _number("TORCHELASTIC_RESTART_COUNT", 0) and name not in os.environ:
        return (
            f": set {name}=1 before torchrun, which else hands processes that it restarts the old addresses"
        )
    return ": look at MASTER_ADDR and MASTER_PORT, and at GLOO_SOCKET_IFNAME where a machine has several networks"


def _boot_id() -> str:
    """Returns what tells machines of one name apart."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text() if path.exists() else ""


def _flat(facts: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (name, value), of a value that is a table its entries: ``sampling fanouts``."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{within}{name} ")
        else:
            yield within + name, value


def _first_line(error: BaseException) -> str:
    """Returns what an error says, without what gloo adds for those who look for errors in it."""
    return str(error).strip().partition("\n")[0].partition(". This is typically")[0]


class RankGroup(Group):
    """Trains with other processes, which the default process group of torch.distributed names."""

    def __init__(self):
        import torch
        from torch import distributed

        self._distributed, self._torch = distributed, torch
        self.rank, self.world = distributed.get_rank(), distributed.get_world_size()
        self._failed, self._waits = False, 0
        self._heard: RankError | None = None
        self._connections, self._ranks_of = WatchedConnections(), dict[End, int]()
        self._machines: list[str] = []
        # Messages go by the CPU, whatever gradients go by.
        self._said = self._new_group(PATIENCE)
        self._waiting = self._new_group(_LONG_WORK)
        self._passing: Any = None
        self._passed_bytes = 0
        self._transfers: dict[int, Any] = {}
        own = (socket.gethostname(), _boot_id(), os.environ.get("GROUP_RANK"))
        every, tokens = zip(*self.gather((own, secrets.token_hex(8))), strict=True)
        self._machines = [name for name, _, _ in every]
        # What processes of a group say to those who do not wait for them: the store by which they have met.
        self._store: Any = distributed.distributed_c10d._get_default_store()
        server = self._store
        while (below := getattr(server, "underlying_store", None)) is not None:
            server = below
        if (port := getattr(server, "port", None)) is not None:
            watch_port(port)
        self._alarm, self._checked = f"outcrop/{tokens[0]}", time.monotonic()
        near = [rank for rank, other in enumerate(every) if other == own]
        self.local_rank, self.local_world = near.index(self.rank), len(near)
        self._near = near
        self._memory = _MachineMemory(self) if len(near) > 1 else None

    def _new_group(self, timeout: timedelta) -> Any:
        """Makes a group of all ranks whose connections end where a machine is gone."""
        with self._losing():
            with self._connections.opening():
                made = self._distributed.new_group(backend="gloo", timeout=timeout)
            ends: list[Any] = [None] * self.world
            self._distributed.all_gather_object(ends, self._connections.own_ends, group=made)
        self._ranks_of = {end: rank for rank, own in enumerate(ends) for end in own}
        return made

    def for_transfers(self, nbytes: int) -> Any:
        seconds = _TRANSFER_SECONDS + int(nbytes / _SLOWEST_BYTES)
        if seconds not in self._transfers:
            self._transfers[seconds] = self._new_group(timedelta(seconds=seconds))
        return self._transfers[seconds]

    @property
    def memory(self) -> sharing.SharedMemory | None:
        return self._memory

    @property
    def first_of_machine(self) -> int:
        """Returns the rank that fills what this machine's ranks share."""
        return self._near[0]

    def agree(
        self,
        where: str,
        numbers: Sequence[float] = (),
        error: Exception | None = None,
        *,
        patient: bool = False,
    ) -> np.ndarray:
        place = zlib.crc32(where.encode())
        group = self._waiting if patient else self._said
        # What was heard of another rank is less than an error of one's own: that is what all say.
        failed = 0.0 if error is None else 0.5 if error is self._heard else 1.0
        found = self._gather_numbers([failed, float(place)], group)
        if (elsewhere := np.flatnonzero(found[:, 1] != place)).size:
            self._failed = True
            raise RankError(
                f"rank {self.rank} is at {where!r}, and rank {elsewhere[0]} is not: start all processes with the same "
                "command"
            )
        if found[:, 0].any():
            self._failed = True
            texts = self.gather(None if error is None else f"{type(error).__name__}: {error}")
            if error is not None:
                raise error
            rank = int(found[:, 0].argmax())
            raise RankError(self._text_of(rank, texts[rank] or ""))
        return self._gather_numbers(numbers, group)

    def _gather_numbers(self, numbers: Sequence[float], group: Any) -> np.ndarray:
        own = self._torch.tensor(list(numbers), dtype=self._torch.float64)
        rows = [self._torch.empty_like(own) for _ in range(self.world)]
        if len(numbers):
            with self._losing():
                self._distributed.all_gather(rows, own, group=group)
        return self._torch.stack(rows).numpy()

    @contextmanager
    def together(self, where: str, *, patient: bool = False) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not self._failed:
                if error is not self._heard:
                    self._store.set(self._alarm, self._text_of(self.rank, f"{type(error).__name__}: {error}"))
                self.agree(where, error=error, patient=patient)
            raise
        self.agree(where, patient=patient)

    def _text_of(self, rank: int, error: str) -> str:
        return f"rank {rank} of {self.world} failed, and training ended: {error}"

    def check_others(self) -> None:
        if time.monotonic() - self._checked < _HEARING_SECONDS:
            return
        self._checked = time.monotonic()
        with self._losing():
            if self._store.check([self._alarm]):
                self._heard = RankError(self._store.get(self._alarm).decode(errors="replace"))
                raise self._heard
            if self._connections.ended():
                raise RuntimeError("a connection has ended")

    def wait_for_others(self, meanwhile: Callable[[], None]) -> None:
        here, asked = f"{self._alarm}/here", 0.0
        self._waits += 1
        with self._losing():
            self._store.add(here, 1)
        while True:
            if time.monotonic() - asked > _ASKING_SECONDS:
                asked = time.monotonic()
                with self._losing():
                    if self._store.add(here, 0) >= self._waits * self.world:
                        return
            meanwhile()
            self.check_others()
            time.sleep(_ASKING_SECONDS / 20)

    def gather(self, value: T) -> list[T]:
        found: list[Any] = [None] * self.world
        with self._losing():
            self._distributed.all_gather_object(found, value, group=self._said)
        return found

    def sum_rows(self, own: np.ndarray, order: Sequence[tuple[int, int]]) -> np.ndarray:
        from outcrop.runtime.ordered import ordered_sum_of

        by = self.for_transfers((len(order) + 1) * own.shape[1] * own.itemsize)
        with self._losing():
            return ordered_sum_of(self._torch.from_numpy(own), order, by).numpy()

    def pass_on(self, own: tuple[Tensor, int] | None, other: tuple[Tensor, int] | None) -> Handover:
        (going, sent), (coming, received) = self._part(own), self._part(other)
        exchange = partial(
            self._distributed.all_to_all_single,
            *(coming, going, received, sent),
            group=self.for_transfers(self._passed_bytes),
            async_op=True,
        )
        here = self._torch.zeros(1)
        with self._losing():
            met = self._distributed.all_reduce(here, group=self._passing, async_op=True)
        return _Exchange(met, exchange, (here, coming, going), self._losing)

    def begin_passing(self, nbytes: int) -> None:
        self._passed_bytes = nbytes
        if self._passing is None:
            self._passing = self._new_group(_LONG_WORK)
        self.for_transfers(nbytes)

    def _part(self, tensor: tuple[Tensor, int] | None) -> tuple[Tensor, list[int]]:
        """Returns what is exchanged with all ranks, and how much of it with each."""
        sizes = [0] * self.world
        if tensor is None:
            return self._torch.empty(0, dtype=self._torch.uint8), sizes
        sizes[tensor[1]] = len(tensor[0])
        return tensor[0], sizes

    def once_a_machine(self, work: Callable[[], T]) -> T | None:
        made: T | None = None
        for turn, mine in enumerate((self.rank == 0, self.rank != 0 and self.local_rank == 0)):
            with self.together(f"work done once a machine, turn {turn}", patient=True):
                if mine:
                    made = work()
        return made

    def require_same(self, facts: Mapping[str, Any]) -> None:
        first, *others = self.gather(dict(_flat(facts)))
        for rank, other in enumerate(others, 1):
            names = [name for name in first if other.get(name) != first[name]]
            if names:
                said = ", ".join(f"{name} ({first[name]!r}, and {other.get(name)!r})" for name in names)
                self._failed = True  # in all of them
                raise ArgumentError(
                    f"ranks 0 and {rank} do not train the same: they differ in {said}; start all processes with the "
                    "same command, on the same graph and run"
                )

    def sees_folder_of_first(self, folder: Path) -> bool:
        # Of a name that nobody has looked for: file systems of a network remember for a while what was not there.
        path = folder / f".rank-0-{self.gather(secrets.token_hex(8))[0]}"
        with self.together("marking a folder"):
            if self.leads:
                path.touch()
        until = time.monotonic() + _SEEING_SECONDS
        while not (seen := path.exists()) and time.monotonic() < until:
            time.sleep(_SEEING_SECONDS / 100)
        self.gather(seen)  # all have looked
        if self.leads:
            path.unlink()
        return seen

    def require_shared(self, folder: Path) -> None:
        found = self.gather(self.sees_folder_of_first(folder))
        blind = [rank for rank, saw in enumerate(found) if not saw]
        if blind:
            self._failed = True
            raise ArgumentError(
                f"checkpoint folder {folder} is not the same folder for rank {blind[0]} as for rank 0: name one that "
                "all machines see, on a shared file system"
            )

    def follow(self, tensors: Iterable[Tensor]) -> None:
        with self._losing():
            for tensor in tensors:
                self._distributed.broadcast(tensor, 0, group=self._said if tensor.is_cpu else None)

    def machine_sums(self, value: int) -> list[int]:
        found: dict[int, int] = {}
        for first, one in self.gather((self.first_of_machine, value)):
            found[first] = found.get(first, 0) + one
        return list(found.values())

    @contextmanager
    def _losing(self) -> Iterator[None]:
        """Says what it means where another process is gone."""
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, OutcropError):
                raise
            self._failed = True
            raise RankError(
                f"rank {self.rank} of {self.world} lost a process that it trains with{self._lost()}: it ended, was "
                f"killed, or its machine or the network failed ({_first_line(error)}). Start again: training goes on "
                "from its last checkpoint"
            ) from error

    def _lost(self) -> str:
        """Names the ranks whose connections have ended, where that is known."""
        lost = {self._ranks_of[end] for end in self._connections.ended() if end in self._ranks_of}
        named = [
            f"rank {rank} on machine {self._machines[rank]}" if self._machines else f"rank {rank}"
            for rank in sorted(lost)
        ]
        return "".join(f", {name}" for name in named)


class _Exchange(Handover):
    """Tells of a tensor that the ranks exchange in the background, once all of them have come to it.

    Coming to it may take any time; what is then sent has a limit, for gloo may not notice that a machine is gone amid
    it (:meth:`RankGroup.for_transfers`).
    """

    def __init__(
        self, met: Any, begin: Callable[[], Any], tensors: tuple[Tensor, ...], losing: Callable[[], Any]
    ):
        self._met: Any = met
        self._work: Any = None
        self._begin = begin
        self._tensors, self._losing = tensors, losing

    def _start(self) -> Any:
        if self._work is None:
            self._met.wait()
            self._work = self._begin()
        return self._work

    @property
    def done(self) -> bool:
        with self._losing():
            return (self._work is not None or self._met.is_completed()) and self._start().is_completed()

    def wait(self) -> None:
        from outcrop.runtime.ordered import wait_until_let_go

        with self._losing():
            self._start().wait()
        self._met = self._work = None
        wait_until_let_go(*self._tensors)


class _MachineMemory:
    """Memory that the ranks of one machine map; the first of them has made it."""

    def __init__(self, group: RankGroup):
        self._group = group

    @property
    def processes(self) -> int:
        return self._group.local_world

    def array(self, nbytes: int, fill: Callable[[np.ndarray], None]) -> np.ndarray:
        group, made = self._group, None
        with group.together(f"reading {nbytes} bytes for all", patient=True):
            if group.rank == group.first_of_machine:
                made = sharing.make_file(nbytes)
                fill(made[1])
        places = group.gather((os.getpid(), -1 if made is None else made[0]))
        try:
            with group.together(f"mapping {nbytes} bytes"):
                process, handle = places[group.first_of_machine]
                return made[1] if made is not None else sharing.map_file(process, handle, nbytes)
        finally:
            if made is not None:
                os.close(made[0])
