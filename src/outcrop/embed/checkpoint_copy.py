"""The copy of a training at a URI or in a folder: its checkpoint, and each slice of its table, from which it goes on
where a disk is lost, or on other machines.

Contents are there together or not at all (:mod:`outcrop.store.objects`): a process that is killed while it copies
leaves the copy of the checkpoint before. Every process copies those slices of its file that were written since the
last copy; the index, which names them and the checkpoint, comes last, from rank 0. The folder of each machine notes
which index its checkpoint was copied to, or taken from: so it can be told whether the copy or the machine is further.
"""

from __future__ import annotations

import enum
import tempfile
from pathlib import Path

import outcrop._core as _core
from outcrop.config import EmbedConfig
from outcrop.config.places import is_uri
from outcrop.embed.checkpoint import CHECKPOINT, FORMAT, VERSION, Checkpoint, newest
from outcrop.embed.files import TableState
from outcrop.embed.tables import Move, Table
from outcrop.errors import ChecksumError, FormatError, renaming
from outcrop.runtime.group import Group
from outcrop.runtime.runtime import Runtime
from outcrop.store.manifest import write_atomic
from outcrop.store.objects import FOLLOWS, Entry, IndexedObjects, sha256_of
from outcrop.store.range_copy import as_array
from outcrop.store.remote import FileRange, RemoteFolder
from outcrop.store.tensors import read_tensors

TAG = "fetching-slices"
_REMEDY = (
    "bring back the disks that hold the vectors, or train again with --fresh, which replaces what is there at its "
    "first checkpoint"
)


class _Origin(enum.Enum):
    """Says what a training goes on from."""

    NOTHING = "nothing"
    HERE = "a checkpoint of this machine, which the copy has not"
    BOTH = "a checkpoint of this machine, which is the one of the copy"
    COPY = "the copy"


class CheckpointCopy:
    """Keeps the checkpoints of a training at a place of their own. All processes call the same.

    Args:
        place: URI, or a folder that all machines see.
        folder: Folder of the tables of this machine.
    """

    def __init__(self, place: str | Path, folder: Path, group: Group):
        uri = str(place) if is_uri(place) else Path(place).absolute().as_uri()
        remote = RemoteFolder(uri)
        self.uri, self._folder, self._group = remote.uri, folder, group
        self._objects = IndexedObjects(remote, ("slice.bin", CHECKPOINT), _REMEDY)
        self._index = b""
        self._entries: dict[str, Entry] = {}
        # By slice that is in the file of this process as the copy has it: which file, and where in it.
        self._copied: dict[int, tuple[str, int]] = {}
        self._origin: _Origin | None = None
        self._found: Checkpoint | None = None

    # Going on

    def newest(self) -> Checkpoint | None:
        """Returns the checkpoint that training goes on from, of the machines or of the copy; None: there is none.

        Raises:
            FormatError, ChecksumError: One is damaged.
            IoError: The store failed several times.
        """
        if self._origin is None:
            self._read_index()
            self._origin, self._found = self._choose()
        return self._found

    @property
    def has_vectors(self) -> bool:
        """Tells whether slices that no process sees are in the copy."""
        return self._origin in (_Origin.BOTH, _Origin.COPY)

    @property
    def is_origin(self) -> bool:
        """Tells whether training goes on from the copy alone: files of this machine do not count."""
        return self._origin is _Origin.COPY

    def take_over(self, state: TableState | None) -> TableState | None:
        """Returns where slices are that a checkpoint has at ``state``: where all are in the copy, in no file that
        anybody has. The checkpoint of this machine, which then is none any more, goes.
        """
        if not self.is_origin or state is None:
            return state
        with self._group.together("removing the checkpoint of before"):
            if self._group.local_rank == 0:
                (self._folder / CHECKPOINT).unlink(missing_ok=True)
        return TableState(state.places, state.checksums, ["tables-copied"], [0] * len(state.places))

    def load(self, part: int, table: Table, checksum: int, runtime: Runtime) -> None:
        """Brings a slice of the copy into the file of this process.

        Raises:
            ChecksumError: It is not what was written.
            FormatError: It is not there, or of another size.
            IoError: The store or the disk failed.
        """
        entry = self._entries.get(_name(part))
        if entry is None or entry.bytes != table.slab_bytes:
            what = "has no" if entry is None else f"has {entry.bytes} bytes, not {table.slab_bytes}, of"
            raise FormatError(f"{self.uri} {what} slice {part}, which its checkpoint names: {_REMEDY}")
        slab = runtime.budget.empty(TAG, table.slab_bytes)
        try:
            self._objects.read_into(entry, slab)
        except ChecksumError:
            raise
        except FormatError as error:
            raise FormatError(f"slice {part} of the copy is missing: {error}; {_REMEDY}") from None
        table.exchange([Move(slab, part, None)]).wait()
        if table.checksums[part] != checksum:
            raise ChecksumError(
                f"{self.uri}/{entry.object}: slice {part} has checksum {table.checksums[part]:08x}, {checksum:08x} was "
                f"written: it was damaged before it was copied; {_REMEDY}"
            )

    def begin(self, table: Table, *, fresh: bool, fetched: bool) -> bool:
        """Begins to follow the copy, with the slices of this process where training goes on.

        Args:
            fresh: Whether nothing is gone on from.
            fetched: Whether slices came from the copy.

        Returns:
            Whether a checkpoint is to be written before anything is trained: there is none here that names the slices
            where they are, or none in the copy.
        """
        if fresh:
            self._read_index()
            self._entries, self._origin = {}, _Origin.NOTHING
        due = fetched or self._origin in (_Origin.HERE, _Origin.COPY)
        if self.has_vectors:
            # Where the next checkpoint is not of what is here now, slices are written over places that none names.
            self._copied = {
                part: place for part, place in _kept_in(table).items() if due or table.is_kept(part)
            }
        self._follow()
        return due

    def _read_index(self) -> None:
        group = self._group
        with group.together("reading the index of the copy", patient=True):
            index = self._objects.read() if group.leads else b""
        self._index = group.gather(index)[0]
        self._entries = self._objects.entries(self._index)

    def _choose(self) -> tuple[_Origin, Checkpoint | None]:
        group, path = self._group, self._folder / CHECKPOINT
        here = newest(path, group)
        entry = self._entries.get(CHECKPOINT)
        if entry is None:
            return (_Origin.NOTHING if here is None else _Origin.HERE), here
        there = self._checkpoint_there(entry)
        if here is None:
            return _Origin.COPY, there
        with group.together("comparing checkpoints"):
            own = self._state_of(here)
        digests, notes = zip(*(state for state in group.gather(own) if state is not None), strict=True)
        named, seen = self._files_of(here)
        if entry.sha256 in digests:
            # One that was to be fetched, and of which a part has come, is not taken for what it was before.
            return (_Origin.BOTH, here) if named & seen or not named else (_Origin.COPY, there)
        # A folder that was never compared with the copy may have been trained before there was one.
        unknown = all(note is None for note in notes) and here.progress > there.progress
        if (self._index in notes or unknown) and named <= seen:
            return _Origin.HERE, here
        return _Origin.COPY, there

    def _state_of(self, found: Checkpoint) -> tuple[str, bytes | None] | None:
        """Returns the SHA-256 of the checkpoint file of this machine and the index that it follows; None where it has
        none, or one of before ``found``.
        """
        path, note = self._folder / CHECKPOINT, self._folder / FOLLOWS
        if not path.exists():
            return None
        if Checkpoint(*read_tensors(path, FORMAT, VERSION)).progress != found.progress:
            return None
        return sha256_of(path), note.read_bytes() if note.is_file() else None

    def _checkpoint_there(self, entry: Entry) -> Checkpoint:
        """Returns the checkpoint of the copy, which rank 0 reads for all."""
        found: Checkpoint | None = None
        with self._group.together("reading the checkpoint of the copy", patient=True):
            if self._group.leads:
                with tempfile.TemporaryDirectory(prefix="outcrop-") as temporary:
                    path = Path(temporary) / CHECKPOINT
                    with path.open("wb") as file:
                        file.writelines(self._objects.chunks(entry))
                    with renaming(temporary, self.uri):
                        found = Checkpoint(*read_tensors(path, FORMAT, VERSION))
        first = self._group.gather(found)[0]
        assert first is not None
        return first

    def _files_of(self, found: Checkpoint) -> tuple[set[str], set[str]]:
        """Returns the files that have slices of a checkpoint of the machines, and those that any of them sees."""
        state = TableState.of_checkpoint(found, self._folder / CHECKPOINT)
        named = {state.files[number] for number in state.used}
        seen = self._group.gather({name for name in named if (self._folder / name).is_file()})
        return named, set().union(*seen)

    def _follow(self) -> None:
        """Notes on every machine which index its checkpoint was copied to, or is gone on from."""
        self._group.once_a_machine(lambda: write_atomic(self._folder / FOLLOWS, self._index))

    # Copying

    def push(self, table: Table) -> None:
        """Copies the checkpoint, and the slices that were written since the last copy.

        Args:
            table: The one of this process, synced, of which the checkpoint names what was written last.

        Raises:
            ArgumentError: Another training has written to the copy since.
            ChecksumError: A slice is not what was written.
            IoError: The store or the disk failed.
        """
        group, objects = self._group, self._objects
        own: dict[str, Entry] = {}
        written = _kept_in(table)
        with group.together("copying vectors", patient=True):
            there = {entry.object: entry.bytes for entry in self._entries.values()}
            if not self._copied:  # what an interrupted copy has sent is not sent again
                there |= objects.there()
            for part, place in written.items():
                if self._copied.get(part) != place:
                    own[_name(part)] = objects.send(_name(part), self._checked(table, part), there)
        for entries in group.gather(own):
            self._entries |= entries
        with group.together("completing the copy", patient=True):
            index = self._publish() if group.leads else b""
        self._index, self._copied = group.gather(index)[0], written
        self._follow()
        with group.together("removing the copy of before", patient=True):
            if group.leads:
                objects.remove_others(self._entries)

    def _checked(self, table: Table, part: int) -> FileRange:
        """Returns where a slice is in the file, if it is what was written."""
        found, crc = table.stored_at(part), 0
        for content in found.chunks():
            crc = _core.crc32c(as_array(content), crc)
        if crc != table.checksums[part]:
            raise ChecksumError(
                f"{found.path}: slice {part} has checksum {crc:08x}, {table.checksums[part]:08x} was written: the file "
                "was damaged before it was copied; remove it, and training goes on from the checkpoint of the copy"
            )
        return found

    def _publish(self) -> bytes:
        objects = self._objects
        objects.require_unchanged(objects.read(), self._index)
        self._entries[CHECKPOINT] = objects.send(CHECKPOINT, self._folder / CHECKPOINT, {})
        there = objects.there()
        for name, entry in self._entries.items():
            if there.get(entry.object) != entry.bytes:
                raise FormatError(
                    f"{self.uri}/{entry.object} is not there, though a process has copied {name} to it: name a place "
                    "that all machines see"
                )
        return objects.publish(self._entries)


def copy_of(config: EmbedConfig, folder: Path, group: Group) -> CheckpointCopy | None:
    """Returns the copy of checkpoints that the processes keep; None: none.

    Args:
        folder: Folder of the tables of this machine.

    Raises:
        ArgumentError: They do not name the same place, or one that is none.
    """
    place = config.checkpoint_copy
    found = None if place is None else CheckpointCopy(place, folder, group)
    if not group.alone:
        group.require_same({"checkpoint_copy": None if found is None else found.uri})
    return found


def _name(part: int) -> str:
    return f"slice-{part}.bin"


def _kept_in(table: Table) -> dict[int, tuple[str, int]]:
    """Returns the file and the place in it of every slice that is in the file of this process."""
    return {part: (table.path.name, place) for part, place in enumerate(table.places) if place >= 0}
