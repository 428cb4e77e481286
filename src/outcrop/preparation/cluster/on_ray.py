"""Packing on a Ray cluster: the only module that imports Ray.

The run's folder, and the graph, are seen by all machines of the cluster under the same path, or each has its own
there (``own_disks``). Each part has an owner, an actor that writes its file and nothing else does; the caches have one
more. A task reads a chunk of a row file on any machine and takes out what each owner wants; rows go from there to the
owners, never through this process. What is on disk is noted in the owners' tables: so tasks and owners that die are
started again by Ray, and a command that was killed goes on with what is missing.
"""

from __future__ import annotations

import itertools
import os
import socket
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import ray  # pyright: ignore[reportMissingImports]
from ray.experimental import get_local_object_locations  # pyright: ignore[reportMissingImports]
from ray.util.scheduling_strategies import (  # pyright: ignore[reportMissingImports]
    NodeAffinitySchedulingStrategy,
)

from outcrop.errors import ArgumentError, CancelledError, OutcropError
from outcrop.preparation.cluster.move_pieces import ChunkReader, PieceOwner, WantedRows, owned_tables
from outcrop.preparation.cluster.own_disks import OwnDisks
from outcrop.preparation.cluster.pieces import (
    PieceSet,
    PieceTable,
    RowsToPack,
    TableHead,
    finish_pieces,
    open_pieces,
    prepare_pieces,
)
from outcrop.preparation.pack import CopiedBytes, KeepsPartsApart, MovedBytes, PackTask
from outcrop.preparation.pack_files import Journal, OutputFiles
from outcrop.runtime.pages import PAGE_BYTES

_MOST_CHUNK_BYTES = 256 << 20
_STORE_SHARE = 4  # of the smallest object store: a quarter for all pieces that are under way
_CHECK_SECONDS, _CONNECT_SECONDS = 60, 10

_readers: dict[tuple[RowsToPack, ...], ChunkReader] = {}


def _read_chunk(rows: tuple[RowsToPack, ...], number: int, chunk: int, *wanted: list[WantedRows]) -> Any:
    """Returns what each owner wants of a chunk; an object of Ray for each."""
    if rows not in _readers:
        _readers[rows] = ChunkReader(rows)
    parcels = _readers[rows].parcels(number, chunk, wanted, _here())
    return parcels if len(parcels) > 1 else parcels[0]


def _here() -> str:
    """Returns the machine that this runs on, as Ray names it."""
    return ray.get_runtime_context().get_node_id()


def _sees(path: str, content: str) -> bool:
    """Tells whether this machine sees the file ``path``, with this content."""
    try:
        return Path(path).read_text() == content
    except OSError:
        return False


def _call(function: Callable[..., Any], *given: Any) -> Any:
    """Calls ``function``."""
    return function(*given)


# What Ray runs elsewhere; a function that is not one of Ray's can be tested without it.
_CALL: Any = ray.remote(num_cpus=0, max_retries=-1)(_call)
_READ: Any = ray.remote(num_cpus=1, max_retries=-1)(_read_chunk)
# An owner asks for memory, so that it starts where it is told to: Ray starts what asks for nothing anywhere.
_OWNER: Any = ray.remote(num_cpus=0, memory=1 << 20, max_restarts=-1, max_task_retries=-1)(PieceOwner)
_SEES: Any = ray.remote(num_cpus=0)(_sees)


class RayWorkers:
    """Has tasks and actors of a Ray cluster write the rows; what they write is what one process would.

    Args:
        address: Of the cluster; ``auto``: the one that this machine is part of, ``local``: one on this machine alone.

    Raises:
        ArgumentError: Nobody answers there.
    """

    def __init__(self, address: str):
        _check_answers(address)
        self.address = address

    def __call__(self, packing: PackTask, files: OutputFiles, journal: Journal) -> CopiedBytes:
        if packing.is_filled(journal):
            return CopiedBytes()
        with _cluster(self.address):
            _check_seen(files.folder)
            room = _room()
            pieces = _fitting_pieces(packing, files, room)
            copied = _Work(pieces, room, packing).run()
        finish_pieces(pieces, packing, journal)
        return copied


class RayDisks(KeepsPartsApart):
    """Has machines of a Ray cluster write their parts to disks of their own.

    Args:
        address: As of :class:`RayWorkers`.
        graph: Folder of the graph, which all machines have there.
        digest: What names its content.
        out: Folder of the run.
        parts, processes: As of :class:`OwnDisks`.

    Raises:
        ArgumentError: Nobody answers there; in the block: see :meth:`OwnDisks.check`.
    """

    _disks: OwnDisks
    _closing: ExitStack

    def __init__(self, address: str, graph: tuple[Path, str], out: Path, parts: int, processes: int):
        _check_answers(address)
        self._address, self._graph, self._out = address, graph, out
        self._parts, self._processes = parts, processes

    def __enter__(self) -> RayDisks:
        """Joins the cluster, and checks that its machines have the graph, and folders of their own."""
        with ExitStack() as closing:
            closing.enter_context(_cluster(self._address))
            disks = OwnDisks(_RayMachines(), self._out, self._parts, self._processes)
            disks.check(*self._graph)
            self._disks, self._closing = disks, closing.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        self._closing.close()

    @property
    def sent_bytes(self) -> int:
        """Counts the bytes of files that were sent to machines, beside rows."""
        return self._disks.sent_bytes

    def __call__(self, packing: PackTask, files: OutputFiles, journal: Journal) -> CopiedBytes:
        room = _room()

        def write(pieces: PieceSet, homes: Mapping[str, str]) -> CopiedBytes:
            with _Work.on_disks(pieces, room, packing, homes) as work:
                return work.run()

        return self._disks.fill(packing, files, journal, lambda: _fitting_pieces(packing, files, room), write)

    def lost_parts(self) -> list[int]:
        """Returns the parts of the run, which is prepared, that no machine has."""
        return self._disks.lost_parts()

    def hand_out(self) -> dict[str, list[int]]:
        """Makes the run on each machine that is to train with a part of it; returns the parts of each."""
        return self._disks.hand_out()


class _RayMachines:
    """Calls functions on machines of the cluster."""

    _AT_ONCE = 4

    def names(self) -> list[str]:
        here = _here()
        nodes = sorted(_working_machines(), key=lambda node: (node["NodeManagerAddress"], node["NodeID"]))
        return [here, *(node["NodeID"] for node in nodes if node["NodeID"] != here)]

    def address(self, machine: str) -> str:
        nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
        return nodes.get(machine, machine)

    def _begun(self, machine: str, function: Callable[..., Any], given: Sequence[Any]) -> Any:
        return _CALL.options(scheduling_strategy=_on(machine, soft=False)).remote(function, *given)

    def call(self, machine: str, function: Callable[..., Any], *given: Any) -> Any:
        if machine == _here():
            return function(*given)
        return self._result(machine, self._begun(machine, function, given))

    def _result(self, machine: str, begun: Any) -> Any:
        try:
            return ray.get(begun)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, OutcropError):
                raise error.cause from None
            raise
        except ray.exceptions.RayError:
            raise CancelledError(
                f"the machine {self.address(machine)} has left the Ray cluster: the same command goes on where it was, "
                "once that is back, or with those that are left"
            ) from None

    def call_each(self, machine: str, function: Callable[..., Any], each: Iterable[tuple[Any, ...]]) -> None:
        under_way = list[Any]()
        for given in each:
            if len(under_way) == self._AT_ONCE:
                self._result(machine, under_way.pop(0))
            under_way.append(self._begun(machine, function, given))
        for one in under_way:
            self._result(machine, one)


def _fitting_pieces(packing: PackTask, files: OutputFiles, room: int) -> PieceSet:
    """Cuts chunks so that what is wanted of each fits half of ``room``: a row may be wanted by hundreds of batches."""
    sizes = [min(_MOST_CHUNK_BYTES, max(room // 8, PAGE_BYTES))]
    while sizes[-1] > PAGE_BYTES:
        sizes.append(max(sizes[-1] // 2, PAGE_BYTES))
    for size in sizes:  # those of an interrupted call
        if (found := open_pieces(packing, files, size)) is not None:
            return found
    for size in sizes[:-1]:
        pieces = prepare_pieces(packing, files, size)
        most = max((pieces.wanted_bytes(*chunk) for chunk in pieces.all_chunks()), default=0)
        if most <= room // 2:
            return pieces
    return prepare_pieces(packing, files, sizes[-1])


class _Work:
    """Has all chunks made, with no more under way than there is room for.

    Who works where is said here: by itself Ray has chunks read where this process is as long as that machine can, so
    that all rows leave by its network alone.
    """

    def __init__(
        self,
        pieces: PieceSet,
        room: int,
        packing: PackTask,
        homes: Mapping[str, str] | None = None,
    ):
        self._pieces, self._room, self._progress = pieces, room, packing.runtime.progress
        self._tables, self._apart = owned_tables(pieces, packing.placement.num_parts), homes is not None
        machines = itertools.cycle(_working_machines())
        self._owners = [
            _OWNER.options(
                scheduling_strategy=_on(next(machines)["NodeID"], soft=True)
                if homes is None
                else _on(homes.get(_output(own), _here()), soft=False)
            ).remote(pieces, own, _here)
            for own in self._tables
        ]
        self._turn, self._reading = 0, dict[tuple[int, int], str]()  # on which machine
        self._under_way: dict[Any, tuple[tuple[int, int], int, Any]] = {}
        self._left: dict[tuple[int, int], int] = {}  # owners that have a chunk to write
        self._wanted: dict[tuple[int, int], list[Any]] = {}  # of a chunk that nobody has pieces of yet
        self._bytes = self._written = self._read = 0
        self._rows_sent = self._ids_sent = self._spilled = 0

    @classmethod
    @contextmanager
    def on_disks(
        cls, pieces: PieceSet, room: int, packing: PackTask, homes: Mapping[str, str]
    ) -> Iterator[_Work]:
        """Yields work whose owners write to disks that others do not see, and ends them.

        Args:
            homes: The machine of each output file; those that it does not name are written here.
        """
        work = cls(pieces, room, packing, homes)
        try:
            yield work
        finally:
            for owner in work._owners:  # before others take their place
                ray.kill(owner)

    def _missing(self) -> list[tuple[int, int]]:
        """Returns the chunks of which pieces are not on disk: what owners have noted is the truth."""
        if self._apart:
            for owner, own in zip(self._owners, self._tables, strict=True):
                for number, heads in enumerate(own):
                    for head, noted in zip(heads, _result(owner.noted.remote(number)), strict=True):
                        PieceTable(self._pieces.folder, head).take_over(*noted)
        return self._pieces.missing()

    def run(self) -> CopiedBytes:
        """Has all made that is missing."""
        pieces, missing = self._pieces, self._missing()
        there = set(pieces.all_chunks()).difference(missing)
        self._progress.advance("pack", sum(pieces.chunk_bytes(*chunk) for chunk in there))
        while missing:
            for chunk in missing:
                size = pieces.wanted_bytes(*chunk)
                while self._under_way and self._bytes + size > self._room:
                    self._wait()
                self._begin(chunk, size)
            while self._under_way:
                self._wait()
            missing = self._missing()
        moved = MovedBytes(len(_machines()), self._rows_sent, self._ids_sent, self._spilled)
        return CopiedBytes(self._read, self._written, moved)

    def _begin(self, chunk: tuple[int, int], size: int) -> None:
        wanted = [owner.wanted.remote(*chunk) for owner in self._owners]
        count = len(self._owners)
        machine = self._reading[chunk] = self._next_reader()
        found = _READ.options(num_returns=count, scheduling_strategy=_on(machine, soft=True)).remote(
            self._pieces.rows, *chunk, *wanted
        )
        each = size // count
        for owner, parcel in zip(self._owners, found if count > 1 else [found], strict=True):
            self._under_way[owner.receive.remote(*chunk, parcel)] = chunk, each, parcel
            self._bytes += each
        self._left[chunk], self._wanted[chunk] = count, wanted

    def _next_reader(self) -> str:
        """Returns the machine that reads the next chunk: each in turn, but for one that has twice its share to do."""
        machines, busy = [node["NodeID"] for node in _working_machines()], Counter(self._reading.values())
        most = 2 * (len(self._reading) // len(machines) + 1)
        for _ in machines:
            self._turn += 1
            if busy[machines[self._turn % len(machines)]] < most:
                break
        return machines[self._turn % len(machines)]

    def _wait(self) -> None:
        (done,), _ = ray.wait(list(self._under_way), num_returns=1)
        chunk, size, parcel = self._under_way.pop(done)
        received = _result(done)
        self._spilled += spilled_bytes([parcel, *self._wanted.pop(chunk, ())])
        self._written += received.written
        self._rows_sent += received.rows_sent
        self._ids_sent += received.ids_sent
        self._bytes -= size
        self._left[chunk] -= 1
        if not self._left[chunk]:
            del self._reading[chunk]
            self._read += self._pieces.chunk_bytes(*chunk)
            self._progress.advance("pack", self._pieces.chunk_bytes(*chunk))


def _output(tables: Sequence[Sequence[TableHead]]) -> str:
    """Returns an output file of an owner: the only one, where it has a part."""
    return next(head.output for heads in tables for head in heads)


def _result(reference: Any) -> Any:
    """Returns what a task has returned.

    Raises:
        OutcropError: What it raised.
        CancelledError: It was lost.
    """
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, OutcropError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        raise CancelledError(
            f"Ray lost work that packs ({error}): the same command goes on where it was"
        ) from None


_START = (
    "Start a cluster with ray start --head and name it with --ray HOST:6379 on one of its machines, or have Ray start "
    "one on this machine with --ray local"
)


def _check_answers(address: str) -> None:
    """Asks whether anybody is there before anything is prepared: Ray tries for minutes."""
    if address in ("auto", "local"):
        return
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or "/" in host:
        raise ArgumentError(
            f"{address!r} is no address of a Ray cluster, which is HOST:PORT, auto or local. {_START}"
        )
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise ArgumentError(f"no Ray cluster answers at {address!r}: {error}. {_START}") from None


@contextmanager
def _cluster(address: str) -> Iterator[None]:
    """Joins the cluster at ``address`` for the block, unless this process is part of one already.

    Raises:
        ArgumentError: There is none, or it has no processors.
    """
    joined = not ray.is_initialized()
    if joined:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault(
            "RAY_IGNORE_UNHANDLED_ERRORS", "1"
        )  # of work that is left: the first error is told
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as error:
            raise ArgumentError(f"no Ray cluster answers at {address!r}: {error}. {_START}") from None
    try:
        if ray.cluster_resources().get("CPU", 0) < 1:
            raise ArgumentError(
                f"the Ray cluster at {address!r} has no CPUs, so that no task would ever begin"
            )
        yield
    finally:
        if joined:
            ray.shutdown()


def _check_seen(folder: Path) -> None:
    """Checks that all machines see ``folder``, but for one that has left by the time that it is asked.

    Raises:
        ArgumentError: One does not; names it.
    """
    mark, content = folder / "seen", uuid.uuid4().hex
    mark.write_text(content)
    try:
        asked = {
            _SEES.options(scheduling_strategy=_on(node["NodeID"], soft=False)).remote(
                str(mark.absolute()), content
            ): node
            for node in _machines()
        }
        _, late = ray.wait(list(asked), num_returns=len(asked), timeout=_CHECK_SECONDS)
        # Ray lists a machine for some seconds after it is gone.
        there = {node["NodeID"] for node in _machines()}
        blind = [
            node["NodeManagerAddress"]
            for one, node in asked.items()
            if node["NodeID"] in there and (one in late or not _result(one))
        ]
    finally:
        mark.unlink()
    if blind:
        raise ArgumentError(
            f"{folder.parent} is not seen by the machine {blind[0]} of the Ray cluster: put the run in a folder that "
            "all machines share, and bring its parts to their disks with outcrop fetch"
        )


def _room() -> int:
    """Returns the bytes that pieces may have that are under way, so that Ray spills none."""
    stores = [node["Resources"].get("object_store_memory", 0) for node in _machines()]
    return int(min(stores)) // _STORE_SHARE


def _working_machines() -> list[dict[str, Any]]:
    """Returns the machines that are there for work: a head may have no processor for it."""
    machines = _machines()
    return [node for node in machines if node["Resources"].get("CPU", 0) >= 1] or machines


def _on(machine: str, *, soft: bool) -> NodeAffinitySchedulingStrategy:
    """Says on which machine something is to run; ``soft``: elsewhere where that is lost."""
    return NodeAffinitySchedulingStrategy(machine, soft=soft)


def _machines() -> list[dict[str, Any]]:
    """Returns what Ray says of each machine that is there."""
    return [node for node in ray.nodes() if node["Alive"]]


def spilled_bytes(objects: Sequence[Any]) -> int:
    """Counts the bytes of those of ``objects``, which this process has had made, that a raylet has written to disk.

    Their owner is told so by the raylet, and knows it as long as it holds them; nobody else is asked.
    """
    places = get_local_object_locations(list(objects)).values()
    return sum(place["object_size"] for place in places if place.get("did_spill"))
