"""Runs of machines that share no folder: each part of the records stays on the disk of the machine that writes it.

The run's folder has the same path on all machines. One of them, the first, draws, plans and knows all pieces; the
others get what their parts need before rows are written: tables, ids and the parts of records that are no rows. All
that, sent in slices, is the same whenever it is sent, so that what a kill has cut short is sent once more. A machine
notes a part (:func:`note`) when all of that is on its disk. When the first machine has its manifests, each machine gets
the files that all need, and puts its parts beside them (:func:`publish`): then it has a run in which parts of others
are elsewhere, as ``outcrop fetch --parts`` makes one.

Nothing here knows what carries calls from machine to machine (``on_ray``): :class:`OwnDisks` says what is called where.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import outcrop._core as _core
from outcrop.errors import ArgumentError, CancelledError, ChecksumError, IoError, naming_files
from outcrop.preparation.cluster.pieces import FOLDER, PieceSet, PieceTable, TableHead, finish_pieces
from outcrop.preparation.pack import CopiedBytes, PackTask
from outcrop.preparation.pack_files import Journal, OutputFiles
from outcrop.store import manifest as manifests
from outcrop.store.graph import open_graph
from outcrop.store.manifest import ArraySpec, Manifest
from outcrop.store.parts import names_of
from outcrop.store.run import RUN_FILE, STAGES

_SLICE_BYTES, _MOST_PLACES = 8 << 20, 4096
_MARKS, _ELSEWHERE = ".machine-", "elsewhere.json"


@dataclass(frozen=True)
class FileSlice:
    """Holds bytes of a file of a run, for another machine.

    Attributes:
        name: The file, seen from the run's folder.
        file_bytes: Bytes of the whole file.
        starts, lengths: Where they belong: int64 [n] each.
        data: The bytes, those of one place after those of another: uint8.
        crc: Their CRC-32C.
    """

    name: str
    file_bytes: int
    starts: np.ndarray
    lengths: np.ndarray
    data: np.ndarray
    crc: int


def machine_of(part: int, machines: int, processes: int) -> int:
    """Returns the machine whose processes train with ``part``.

    Part j belongs to rank ``j mod W`` of W, and machine m has the ranks from ``m * processes`` on.

    Args:
        processes: Ranks of a machine.
    """
    return part % (machines * processes) // processes


def slices_of(
    run: Path, name: str, starts: np.ndarray | None = None, lengths: np.ndarray | None = None
) -> Iterator[FileSlice]:
    """Yields the bytes of a file of ``run``, or what lies at ``starts``, int64 [n], ``lengths`` bytes each.

    Raises:
        IoError: The file cannot be read, or is shorter than that.
    """
    path = run / name
    with naming_files(path), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if starts is None or lengths is None:
            starts, lengths = np.zeros(1, np.int64), np.array([size], np.int64)
        yielded = False
        for cut_starts, cut_lengths in _cut(starts, lengths):
            data = np.empty(int(cut_lengths.sum()), np.uint8)
            ends = np.cumsum(cut_lengths).tolist()
            for start, length, end in zip(cut_starts.tolist(), cut_lengths.tolist(), ends, strict=True):
                file.seek(start)
                if file.readinto(data[end - length : end].data) != length:
                    raise IoError(errno.EIO, f"{path} ends before byte {start + length}: it was cut short")
            yielded = True
            yield FileSlice(name, size, cut_starts, cut_lengths, data, _core.crc32c(data))
        if not yielded:
            none = np.zeros(0, np.int64)
            yield FileSlice(name, size, none, none, np.zeros(0, np.uint8), 0)


def _cut(starts: np.ndarray, lengths: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields places together that make up a slice; a long one in several pieces."""
    cut: list[tuple[int, int]] = []
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        while length:
            held = sum(count for _, count in cut)
            take = min(length, _SLICE_BYTES - held)
            cut.append((start, take))
            start, length = start + take, length - take
            if held + take == _SLICE_BYTES or len(cut) == _MOST_PLACES:
                yield _arrays(cut)
                cut = []
    if cut:
        yield _arrays(cut)


def _arrays(places: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    starts, lengths = np.array(places, np.int64).T
    return starts, lengths


def slices_for_part(
    part: int, pieces: PieceSet, packing: PackTask, files: OutputFiles
) -> Iterator[FileSlice]:
    """Yields what the owner of ``part`` needs: its tables, the ids of its rows, and what of its records is no row."""
    placement, run = packing.placement, pieces.folder.parent.parent
    first, stop = placement.part_bounds[part : part + 2].tolist()
    records = names_of("records", placement.num_parts)[part]
    draft = pieces.folder.parent.name
    sizes = np.diff(packing.starts[first:stop, :2], axis=1)[:, 0]
    yield from slices_of(run, f"{draft}/{records}.bin", packing.starts[first:stop, 0], sizes)
    for heads, own in zip(pieces.tables, files.files, strict=True):
        for head in heads:
            if head.output == records:
                for path in PieceTable.paths(pieces.folder, head):
                    yield from slices_of(run, f"{draft}/{FOLDER}/{path.name}")
                ids = np.array([own.packed_ids_at(first)]), np.array([own.packed_ids_at(stop)])
                yield from slices_of(run, os.path.normpath(f"{draft}/{head.ids}"), ids[0], ids[1] - ids[0])


def receive(run: Path, sent: FileSlice) -> None:
    """Writes what another machine has sent where it belongs, and has it on disk; once more does no harm.

    Raises:
        ChecksumError: It was damaged on its way.
        IoError: The system refuses the file.
    """
    path = run / sent.name
    if _core.crc32c(sent.data) != sent.crc:
        raise ChecksumError(f"{path}: what another machine has sent was damaged on its way here")
    with naming_files(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if os.fstat(file).st_size != sent.file_bytes:
                os.ftruncate(file, sent.file_bytes)
            ends = np.cumsum(sent.lengths).tolist()
            for start, length, end in zip(sent.starts.tolist(), sent.lengths.tolist(), ends, strict=True):
                left = sent.data[end - length : end]
                while len(left):
                    count = os.pwrite(file, left.data, start)
                    left, start = left[count:], start + count
            os.fsync(file)
        finally:
            os.close(file)


def forget(run: Path, part: int) -> None:
    """Forgets that ``part`` was noted: what comes now is of something else."""
    _note_of(manifests.partial_folder(run / "pack"), part).unlink(missing_ok=True)


def note(run: Path, part: int, key: str, heads: Sequence[Sequence[TableHead]]) -> None:
    """Notes that all that the owner of ``part`` needs is on this disk.

    Args:
        key: Says of what the pieces are made.
        heads: Tables of the part, of each row file.
    """
    folder = manifests.partial_folder(run / "pack")
    for path in (folder, folder / FOLDER):
        path.mkdir(parents=True, exist_ok=True)
        manifests.sync_folder(path)
    content = {"key": key, "tables": [[asdict(head) for head in own] for own in heads]}
    manifests.write_atomic(_note_of(folder, part), json.dumps(content).encode())


def _note_of(draft: Path, part: int) -> Path:
    return draft / FOLDER / f"part-{part}.json"


def begun_parts(run: Path, key: str, parts: int) -> list[int]:
    """Returns the parts that this machine has begun to write pieces of, made of ``key``."""
    folder = manifests.partial_folder(run / "pack")
    return [part for part in range(parts) if _noted(folder, part, key) is not None]


def _noted(draft: Path, part: int, key: str) -> list[list[TableHead]] | None:
    try:
        content = json.loads(_note_of(draft, part).read_bytes())
        if content["key"] != key and not content["key"].startswith(f"{key} "):
            return None
        heads = [[TableHead(**head) for head in own] for own in content["tables"]]
        for head in (head for own in heads for head in own):
            PieceTable(draft / FOLDER, head, "r")
        return heads
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None


def whole_parts(run: Path, manifest: bytes, key: str) -> list[int]:
    """Returns the parts of which this machine has all rows, published or only written.

    Args:
        manifest: The manifest of packing, which is on this machine or not yet.
        key: Says of what the pieces are made, or is what that begins with.
    """
    of, final, found = _parsed(run, manifest), run / "pack", []
    for folder in (final, manifests.partial_folder(final)):
        for name in _parted(of):
            part = of.part_of(name)
            assert part is not None
            if _is_whole(folder, of.arrays[name]) and (
                _has(folder, manifest) or part in written_parts(run, key, [part])
            ):
                found.append(part)
    return sorted(set(found))


def _is_whole(folder: Path, spec: ArraySpec) -> bool:
    path = folder / spec.file
    return path.is_file() and path.stat().st_size == spec.file_bytes


def written_parts(run: Path, key: str, parts: Iterable[int]) -> list[int]:
    """Returns those of ``parts`` all rows of which this machine has written, made of ``key``."""
    draft = manifests.partial_folder(run / "pack")
    noted = {part: _noted(draft, part, key) for part in parts}
    return [
        part
        for part, heads in noted.items()
        if heads is not None
        and all(PieceTable(draft / FOLDER, head, "r").done.all() for own in heads for head in own)
    ]


def _parsed(run: Path, manifest: bytes) -> Manifest:
    return manifests.parse(str(run), manifest)


def _has(folder: Path, manifest: bytes) -> bool:
    with suppress(OSError):
        return (folder / manifests.MANIFEST).read_bytes() == manifest
    return False


def lacking(run: Path, stage: str, manifest: bytes, parts: Sequence[int]) -> list[str] | None:
    """Returns the files of a stage that this machine is to be sent; None: it has the whole stage.

    Args:
        manifest: The stage's manifest.
        parts: Parts that this machine is to have, but for those that it has written and not published.
    """
    of, final = _parsed(run, manifest), run / stage
    wanted = [spec for name, spec in of.arrays.items() if of.part_of(name) in (None, *parts)]
    if not _has(final, manifest):
        return [spec.file for spec in wanted]
    return [spec.file for spec in wanted if not _is_whole(final, spec)] or None


def _parted(of: Manifest) -> list[str]:
    return [name for name in of.arrays if of.part_of(name) is not None]


def read_slice(run: Path, file: str, start: int, length: int) -> FileSlice:
    """Returns bytes of a file of packing, which is published or only written.

    Raises:
        IoError: The file cannot be read, or is shorter than that.
    """
    final = run / "pack"
    folder = final if (final / file).is_file() else manifests.partial_folder(final)
    place = np.array([start]), np.array([length])
    return next(slices_of(run, f"{folder.name}/{file}", *place))


def publish(run: Path, stage: str, manifest: bytes, sent: Sequence[str]) -> None:
    """Makes a stage of what has come, of the parts that were written here, and of what was there.

    Args:
        sent: Files that have come.

    Raises:
        IoError: Another process works in the folder, or the system refuses.
    """
    final, of = run / stage, _parsed(run, manifest)
    whole = {spec.file for name, spec in of.arrays.items() if of.part_of(name) is None}.union(sent)
    if stage == "pack":
        parts = whole_parts(run, manifest, _key_of(of))
        whole.update(of.arrays[name].file for name in _parted(of) if of.part_of(name) in parts)
    manifests.remove_headless(final)
    with manifests.publishing(final, resume=True) as folder:
        if _has(final, manifest):
            for spec in of.arrays.values():
                if spec.file not in sent and _is_whole(final, spec):
                    (folder / spec.file).unlink(missing_ok=True)
                    os.link(final / spec.file, folder / spec.file)
                    whole.add(spec.file)
        for name in _parted(of):  # of which this machine has only begun some
            if of.arrays[name].file not in whole:
                (folder / of.arrays[name].file).unlink(missing_ok=True)
        manifests.write_atomic(folder / manifests.MANIFEST, manifest)  # from now on parts need no note
        for path in folder.iterdir():
            if path.name not in {manifests.MANIFEST, *whole}:
                manifests.remove(path)


def _key_of(packed: Manifest) -> str:
    """Returns what pieces that the manifest of packing is made of are known by."""
    return ",".join(packed.inputs[name] for name in ("graph", "sample", "plan"))


def mark(run: Path, machine: str) -> None:
    """Leaves a file by which :func:`marks` tells machines apart."""
    with naming_files(run):
        run.mkdir(parents=True, exist_ok=True)
        (run / f"{_MARKS}{machine}").touch()


def marks(run: Path) -> list[str]:
    """Returns the machines that have left a mark in the folder that this machine sees."""
    return sorted(path.name.removeprefix(_MARKS) for path in run.glob(f"{_MARKS}*"))


def unmark(run: Path, machine: str) -> None:
    (run / f"{_MARKS}{machine}").unlink(missing_ok=True)


def graph_digest(path: Path) -> str:
    """Returns the digest of the graph that this machine has at ``path``; what is wrong with it where it has none."""
    try:
        return open_graph(path).digest()
    except (OSError, ValueError) as error:
        return str(error)


class Machines(Protocol):
    """Calls functions on machines that have disks of their own."""

    def names(self) -> list[str]:
        """Returns the machines that are there, this one first, the others in an order that stays."""
        ...

    def address(self, machine: str) -> str:
        """Returns what people call the machine."""
        ...

    def call(self, machine: str, function: Callable[..., Any], *given: Any) -> Any:
        """Calls ``function`` there, and returns or raises what it does."""
        ...

    def call_each(self, machine: str, function: Callable[..., Any], each: Iterable[tuple[Any, ...]]) -> None:
        """Calls ``function`` there with each of ``each``, a few at a time."""
        ...


class OwnDisks:
    """Has each part of a run on the disk of the machine that trains with it.

    Args:
        machines: What calls other machines.
        run: The run's folder, which has the same path on all.
        parts: Parts of the run, at least two.
        processes: Ranks that train on each machine.

    Attributes:
        sent_bytes: Bytes of files that were sent; rows are counted elsewhere.
    """

    def __init__(self, machines: Machines, run: Path, parts: int, processes: int):
        self._machines, self._run, self._parts, self._processes = machines, run.absolute(), parts, processes
        self.sent_bytes = 0

    def check(self, graph: Path, digest: str) -> None:
        """Checks that machines have the graph, and folders of their own.

        Raises:
            ArgumentError: One has another graph, or none, or sees the folder of another.
        """
        machines, path = self._machines.names(), graph.absolute()
        for machine in machines[1:]:
            found = self._machines.call(machine, graph_digest, path)
            if found != digest:
                why = "another graph" if "/" not in found else f"no graph ({found})"
                raise ArgumentError(
                    f"the machine {self._machines.address(machine)} has {why} at {path}: each machine reads its own "
                    "copy, which outcrop fetch URI brings (with --leave-features only the small part of it)"
                )
        try:
            for machine in machines:
                self._machines.call(machine, mark, self._run, machine)
            for machine in machines:
                if others := [m for m in self._machines.call(machine, marks, self._run) if m != machine]:
                    raise ArgumentError(
                        f"{self._run} of the machine {self._machines.address(machine)} is the folder of "
                        f"{', '.join(map(self._machines.address, others))}, too: leave --own-disks out "
                        "(PackConfig.own_disks) where machines share a folder"
                    )
        finally:
            for machine in machines:
                self._machines.call(machine, unmark, self._run, machine)

    def fill(
        self,
        packing: PackTask,
        files: OutputFiles,
        journal: Journal,
        cut: Callable[[], PieceSet],
        write: Callable[[PieceSet, Mapping[str, str]], CopiedBytes],
    ) -> CopiedBytes:
        """Has all rows written; parts of a machine that is lost meanwhile are written by others.

        Args:
            cut: Makes the pieces, or opens those of an interrupted call.
            write: Writes all that is missing, each part by the machine that the mapping gives for its array.
        """
        if packing.is_filled(journal):
            elsewhere = self._elsewhere(files)
            if self._are_written(elsewhere, packing.key):
                return CopiedBytes(elsewhere=elsewhere)
            journal.restart()
        pieces, names = cut(), names_of("records", self._parts)
        while True:
            machines = self._machines.names()
            try:
                homes = self.homes(pieces.key)
                self._send_parts(homes, pieces, packing, files)
                copied = write(pieces, dict(zip(names, homes, strict=True)))
                break
            except CancelledError:
                if set(machines).issubset(self._machines.names()):
                    raise
                packing.runtime.progress.note("pack", "a machine was lost: others write its parts")
        finish_pieces(pieces, packing, journal)
        return replace(copied, elsewhere=self._elsewhere(files))

    def homes(self, key: str) -> list[str]:
        """Returns the machine of each part: one that has begun it, or else the one that is to train with it."""
        machines, begun = self._machines.names(), self._begun(key)
        found = []
        for part in range(self._parts):
            dealt = machines[machine_of(part, len(machines), self._processes)]
            able = [machine for machine in machines if part in begun[machine]]
            found.append(dealt if dealt in able or not able else able[0])
        return found

    def _begun(self, key: str) -> dict[str, list[int]]:
        call, names = self._machines.call, self._machines.names()
        return {machine: call(machine, begun_parts, self._run, key, self._parts) for machine in names}

    def _send_parts(
        self, homes: Sequence[str], pieces: PieceSet, packing: PackTask, files: OutputFiles
    ) -> None:
        """Brings each machine what its parts need, unless that is there already.

        The tables of this machine tell what is on its own disk of parts that it has noted; of others they are copies.
        """
        begun, here = self._begun(pieces.key), self._machines.names()[0]
        names = names_of("records", self._parts)
        for part, home in enumerate(homes):
            if home != here:
                forget(self._run, part)
            if part in begun[home]:
                continue
            heads = [[head for head in own if head.output == names[part]] for own in pieces.tables]
            self._machines.call(home, forget, self._run, part)
            for head in (head for own in heads for head in own):
                PieceTable(pieces.folder, head).restart()
            if home != here:
                self._send(home, slices_for_part(part, pieces, packing, files))
            self._machines.call(home, note, self._run, part, pieces.key, heads)
        content = [names[part] for part, home in enumerate(homes) if home != here]
        manifests.write_atomic(files.folder / _ELSEWHERE, json.dumps(content).encode())

    def _elsewhere(self, files: OutputFiles) -> tuple[str, ...]:
        """Returns the arrays that other machines write, once parts were sent to them."""
        try:
            return tuple(json.loads((files.folder / _ELSEWHERE).read_bytes()))
        except (OSError, ValueError):
            return ()

    def _are_written(self, arrays: Sequence[str], key: str) -> bool:
        """Tells whether other machines have all rows of these arrays."""
        names = names_of("records", self._parts)
        written = {
            names[part]
            for machine in self._machines.names()[1:]
            for part in self._machines.call(machine, written_parts, self._run, key, range(self._parts))
        }
        return written.issuperset(arrays)

    def lost_parts(self) -> list[int]:
        """Returns the parts of the run, which is prepared, that no machine has."""
        _, having = self._having()
        return sorted(set(range(self._parts)).difference(*having.values()))

    def _having(self) -> tuple[bytes, dict[str, list[int]]]:
        """Returns the manifest of packing, and the parts that each machine has."""
        manifest = (self._run / "pack" / manifests.MANIFEST).read_bytes()
        key = _key_of(_parsed(self._run, manifest))
        names = self._machines.names()
        return manifest, {m: self._machines.call(m, whole_parts, self._run, manifest, key) for m in names}

    def hand_out(self) -> dict[str, list[int]]:
        """Makes the run on each machine that is to train with a part of it.

        Returns:
            The parts of each machine, by what people call it, in the order of the ranks that train with them.
        """
        _, having = self._having()
        here, *others = machines = self._machines.names()
        dealt: dict[str, list[int]] = {machine: [] for machine in machines}
        for part in range(self._parts):
            dealt[machines[machine_of(part, len(machines), self._processes)]].append(part)
        for machine in (*others, here):
            if dealt[machine]:
                self._make_run(machine, dealt[machine], having)
        return {self._machines.address(machine): own for machine, own in dealt.items()}

    def _make_run(self, machine: str, parts: Sequence[int], having: Mapping[str, Sequence[int]]) -> None:
        """Brings a machine what it lacks of the run, from this one, or from one that has written it."""
        here = self._machines.names()[0]
        description = (self._run / RUN_FILE).read_bytes()
        for stage in STAGES:
            folder = self._run / stage
            manifest = (folder / manifests.MANIFEST).read_bytes()
            of = _parsed(self._run, manifest)
            files = self._machines.call(machine, lacking, self._run, stage, manifest, parts)
            if files is None or (machine == here and stage != "pack"):
                continue
            giver = dict.fromkeys(files, here)
            if stage == "pack":
                for name in _parted(of):
                    able = [one for one in (here, *having) if of.part_of(name) in having.get(one, ())]
                    giver |= {of.arrays[name].file: able[0]} if of.arrays[name].file in giver else {}
                    if machine in able:  # it has written that, and not published it yet
                        giver.pop(of.arrays[name].file, None)
            for file, source in giver.items():
                name = f"{manifests.partial_folder(folder).name}/{file}"
                slices = (
                    slices_of(self._run, f"{stage}/{file}")
                    if source == here
                    else self._slices(source, file, of)
                )
                self._send(machine, (replace(one, name=name) for one in slices))
            self._machines.call(machine, publish, self._run, stage, manifest, list(giver))
        if machine != here:
            self._machines.call(machine, manifests.write_atomic, self._run / RUN_FILE, description)

    def _slices(self, machine: str, file: str, of: Manifest) -> Iterator[FileSlice]:
        """Yields the bytes of a file of packing that another machine has written."""
        (size,) = (spec.file_bytes for spec in of.arrays.values() if spec.file == file)
        for start in range(0, max(size, 1), _SLICE_BYTES):
            count = min(_SLICE_BYTES, size - start)
            yield self._machines.call(machine, read_slice, self._run, file, start, count)

    def _send(self, machine: str, slices: Iterable[FileSlice]) -> None:
        def counted() -> Iterator[tuple[Path, FileSlice]]:
            for one in slices:
                self.sent_bytes += len(one.data)
                yield self._run, one

        self._machines.call_each(machine, receive, counted())
