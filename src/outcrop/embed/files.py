"""Which files the slices of a table are in: one file where one process trains, else one of each process.

The files of several processes have names that never come again, so that one which another process has left on another
machine is not taken for it. A checkpoint names the files, and which slice is in which; any process that sees a file can
read it, so that other processes, or fewer, go on from it.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from outcrop.embed.checkpoint import Checkpoint
from outcrop.embed.moves import SliceMoves, Transfer
from outcrop.embed.tables import ELSEWHERE, FILE, NOWHERE, RowShape, Table
from outcrop.errors import FormatError
from outcrop.runtime.group import Group
from outcrop.runtime.runtime import Runtime

_OWN = "tables-"  # how names of files of one of several processes begin


@dataclass(frozen=True)
class TableState:
    """Says where a checkpoint has the slices of a table: what is stored in it.

    Attributes:
        places, checksums: By slice.
        files: Names.
        file_of: Number of the file of each slice.
    """

    places: list[int]
    checksums: list[int]
    files: list[str]
    file_of: list[int]

    @classmethod
    def of_stored(cls, stored: dict[str, Any]) -> TableState:
        """Takes what :meth:`stored` returned, from the checkpoint of whoever."""
        places, checksums = list(stored["places"]), list(stored["checksums"])
        files = [str(name) for name in stored.get("files", [FILE])]
        file_of = list(stored.get("file_of", [0] * len(places)))
        if len(file_of) != len(places) or not set(file_of) <= set(range(len(files))):
            raise ValueError("files of slices")
        if any("/" in name or not name.startswith("tables") for name in files):
            raise ValueError("names of files")
        return cls(places, checksums, files, file_of)

    @classmethod
    def of_checkpoint(cls, found: Checkpoint, path: Path) -> TableState:
        """Takes what the checkpoint in the file ``path`` has.

        Raises:
            FormatError: It lacks that, or garbles it.
        """
        try:
            return cls.of_stored(found.meta["table"])
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(
                f"{path} lacks or garbles a field ({error}): train again with --fresh"
            ) from None

    def stored(self) -> dict[str, Any]:
        """Returns plain values; of one file only those that there were before there could be several."""
        fields = dict(vars(self))
        if self.files == [FILE]:
            del fields["files"], fields["file_of"]
        return fields

    def of_file(self, number: int) -> dict[str, Any]:
        """Returns what :meth:`outcrop.embed.tables.Table.restore` takes, of one file."""
        places = [
            place if file == number or place == NOWHERE else ELSEWHERE
            for place, file in zip(self.places, self.file_of, strict=True)
        ]
        return {"places": places, "checksums": self.checksums}

    @property
    def used(self) -> set[int]:
        """Returns the numbers of files that slices are in."""
        return {file for place, file in zip(self.places, self.file_of, strict=True) if place != NOWHERE}


def merged(name: str, table: Table, group: Group) -> TableState:
    """Returns where the slices of the tables of all processes are; each is with one of them."""
    found = group.gather((name, table.state()))
    files = [name for name, _ in found]
    places, checksums, file_of = [], [], []
    for part in range(table.division.parts):
        (owner,) = (rank for rank, (_, state) in enumerate(found) if state["places"][part] != ELSEWHERE)
        places.append(found[owner][1]["places"][part])
        checksums.append(found[owner][1]["checksums"][part])
        file_of.append(owner)
    return TableState(places, checksums, files, file_of)


@dataclass(frozen=True)
class Arrangement:
    """Says who has which file of a checkpoint.

    Attributes:
        name: File of this process.
        number: Number of it in the checkpoint; -1: it is a new one.
        readers: Rank that reads each file; -1: none sees it, its slices are in a copy, or it has none.
    """

    name: str
    number: int
    readers: list[int]


def arrange(folder: Path, state: TableState | None, group: Group, *, copied: bool = False) -> Arrangement:
    """Gives every process a file, and every file of a checkpoint a process that reads it.

    Args:
        copied: Whether the slices of a file that none sees are in a copy.

    Raises:
        FormatError: None sees a file that has slices, and they are in no copy.
    """
    names = [] if state is None else state.files
    seen = group.gather({number for number, name in enumerate(names) if (folder / name).is_file()})
    owner: dict[int, int] = {}  # rank -> file
    for number, name in enumerate(names):
        if group.alone and name == FILE:
            owner[0] = number
        elif not group.alone and name.startswith(_OWN):
            # A rank keeps its number where it can: then nothing moves.
            ranks = [number, *range(group.world)]
            rank = next((r for r in ranks if r < group.world and r not in owner and number in seen[r]), None)
            if rank is not None:
                owner[rank] = number
    file_owner = {number: rank for rank, number in owner.items()}
    readers = []
    for number, name in enumerate(names):
        reader = file_owner.get(number, next((r for r in range(group.world) if number in seen[r]), -1))
        if reader < 0 and not copied and state is not None and number in state.used:
            raise FormatError(
                f"{folder / name} is missing, which has a part of the vectors: bring it back from the machine that "
                "trained with it, or train again with --fresh"
            )
        readers.append(reader)
    number = owner.get(group.rank, -1)
    fresh = FILE if group.alone else f"{_OWN}{secrets.token_hex(8)}.bin"
    return Arrangement(fresh if number < 0 else names[number], number, readers)


def remove_others(folder: Path, keep: Iterable[str]) -> None:
    """Removes files of tables that are not among ``keep``: those of a checkpoint before, and of killed processes."""
    kept = set(keep)
    for path in [*folder.glob(f"{_OWN}*.bin"), folder / FILE]:
        if path.name not in kept:
            path.unlink(missing_ok=True)


class SplitTable:
    """Reads slices that lie in several files.

    Args:
        open_file: Returns the table of a file that is to be read.

    Raises:
        FormatError: A file is missing, or another than the checkpoint says.
    """

    def __init__(self, folder: Path, state: TableState, open_file: Callable[[Path], Table]):
        self.folder, self._state = folder, state
        self._tables: dict[int, Table] = {}
        try:
            for number in sorted(state.used or {0}):
                path = folder / state.files[number]
                if not path.is_file():
                    raise FormatError(
                        f"{path} is missing: bring it from the machine that trained with it, or train again with "
                        "--fresh"
                    )
                table = self._tables[number] = open_file(path)
                table.restore(state.of_file(number))
        except BaseException:
            self.close()
            raise
        first = self._first = next(iter(self._tables.values()))
        self.division, self.slab_bytes = first.division, first.slab_bytes
        self.shape: RowShape = first.shape
        self.rows_of = first.rows_of

    @property
    def files(self) -> list[Table]:
        """Returns the table of each file that has slices."""
        return list(self._tables.values())

    def of(self, part: int) -> Table:
        """Returns the table that has a slice."""
        return self._tables.get(self._state.file_of[part], self._first)

    def load(self, part: int, slab: np.ndarray) -> None:
        """Does what :meth:`outcrop.embed.tables.Table.load` does."""
        self.of(part).load(part, slab)

    def close(self) -> None:
        for table in self._tables.values():
            table.close()


class SliceCopy(Protocol):
    """Has slices in a place of their own (:class:`outcrop.embed.checkpoint_copy.CheckpointCopy`)."""

    @property
    def has_vectors(self) -> bool:
        """Tells whether slices that no process sees are there."""
        ...

    def load(self, part: int, table: Table, checksum: int, runtime: Runtime) -> None:
        """Brings a slice into the file of ``table``."""
        ...


class ProcessTable:
    """Keeps the table of one of the processes that train, in a file of its own.

    Args:
        state: What the checkpoint says that is gone on from; None: there is none.
        open_file: Returns the table of a file, made where it is not there; of one that is there, to be read only, where
            its second argument says so.
        refused: Told how to undo what is made here.
        copy: Where slices come from whose file no process sees; None: from nowhere.

    Attributes:
        fetched: Whether slices of any process came from the copy.
    """

    def __init__(
        self,
        folder: Path,
        state: TableState | None,
        open_file: Callable[[Path, bool], Table],
        group: Group,
        refused: ExitStack,
        copy: SliceCopy | None = None,
    ):
        self._folder, self._group, self._open, self._state = folder, group, open_file, state
        self._copy, self.fetched = copy, False
        with group.together("making the folder of vectors"):
            made = not folder.exists()
            folder.mkdir(parents=True, exist_ok=True)
            if made:
                refused.callback(shutil.rmtree, folder, ignore_errors=True)
        copied = copy is not None and copy.has_vectors
        own = self._own = arrange(folder, state, group, copied=copied)
        if state is not None:
            self._remove_others(state.files)
        path = folder / own.name
        with group.together("opening the vectors", patient=True):
            new = not path.exists()
            self.table = open_file(path, False)
            refused.callback(self.table.close)
            if new and not made:
                refused.callback(path.unlink, missing_ok=True)
            if state is not None and own.number < 0:
                self.table.clear()
            elif state is not None:
                self.table.restore(state.of_file(own.number))

    def _remove_others(self, kept: Sequence[str]) -> None:
        names = {*kept, *self._group.gather(self._own.name)}
        with self._group.together("removing vectors of before"):
            if self._group.local_rank == 0:
                remove_others(self._folder, names)

    def begin(self, checkpoint: Path, holders: np.ndarray, runtime: Runtime) -> None:
        """Makes the table have the slices that this process trains first, or none of them, where nothing is gone on
        from; a ``checkpoint`` that is not gone on from goes.

        Args:
            holders: int64 by slice: rank of the process that has it.
        """
        if self._state is None:
            with self._group.together("starting over"):
                checkpoint.unlink(missing_ok=True)
            self._remove_others(())
            with self._group.together("taking room for vectors", patient=True):
                self.table.clear()
            self.table.hold_only(np.flatnonzero(holders == self._group.rank).tolist())
        else:
            self._bring(self._state, holders, runtime)

    def _bring(self, state: TableState, holders: np.ndarray, runtime: Runtime) -> None:
        """Brings every slice of a checkpoint into the file of the process that trains it."""
        numbers = self._group.gather(self._own.number)
        transfers = [
            Transfer(part, self._own.readers[state.file_of[part]], int(holders[part]))
            for part, place in enumerate(state.places)
            if place != NOWHERE
            and numbers[int(holders[part])] != state.file_of[part]
            and self._own.readers[state.file_of[part]] >= 0
        ]
        never = {part for part, place in enumerate(state.places) if place == NOWHERE}
        if transfers:
            others: dict[int, Table] = {}

            def source(part: int) -> Table:
                number = state.file_of[part]
                if number == self._own.number:
                    return self.table
                if number not in others:
                    others[number] = self._open(self._folder / state.files[number], True)
                    others[number].restore(state.of_file(number))
                return others[number]

            with self._group.together("taking memory for slices"):
                moves = SliceMoves(self.table, runtime, source)
            moves.begin()
            try:
                with self._group.together("bringing slices to who trains them", patient=True):
                    moves.expect(transfers)
                    moves.offer(one.part for one in transfers if one.source == self._group.rank)
                    moves.finish()
            finally:
                for table in others.values():
                    table.close()
        self._fetch(state, holders, runtime)
        for part in range(self.table.division.parts):
            if holders[part] != self._group.rank:
                self.table.give_away(part)
            elif part in never:
                self.table.forget(part)

    def _fetch(self, state: TableState, holders: np.ndarray, runtime: Runtime) -> None:
        """Brings slices from the copy whose files no process sees."""
        if self._copy is None:
            return
        lost = [
            part
            for part, place in enumerate(state.places)
            if place != NOWHERE and self._own.readers[state.file_of[part]] < 0
        ]
        with self._group.together("fetching slices from the copy", patient=True):
            for part in lost:
                if holders[part] == self._group.rank:
                    self._copy.load(part, self.table, state.checksums[part], runtime)
        self.fetched = bool(lost)

    def state(self) -> TableState:
        """Returns where the slices of all processes are now."""
        return merged(self._own.name, self.table, self._group)

    def keep(self, state: TableState) -> None:
        """Lets a checkpoint name ``state`` from now on; files that it does not name go."""
        self.table.keep()
        before = set() if self._state is None else set(self._state.files)
        self._state = state
        if before - set(state.files):
            self._remove_others(state.files)
