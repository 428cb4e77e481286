"""Manifests: what an artifact folder holds, and its atomic publication.

An artifact is a folder of plain little-endian arrays and one ``manifest.json``, written last. A folder without a
manifest is not there. Stages build in a hidden sibling folder and publish by rename, so readers see all or nothing.
Manifests hold no times and no host names: the same inputs give the same bytes.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shlex
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from outcrop.errors import ArgumentError, ChecksumError, FormatError, IoError, OutcropError, naming_files
from outcrop.runtime.parsing import parse_json
from outcrop.store.elsewhere import read_elsewhere
from outcrop.store.lock import only_process_in

MANIFEST = "manifest.json"
_SCRATCH, _SCRATCH_BEFORE = ".scratch-", ".next-use-"  # the latter of earlier releases
Versions = int | tuple[int, ...]  # of a format that are read
# What names the source of an import, and no place on disk.
_SOURCE = re.compile(
    r"(arrays|edges|npz|scipy|mat|musae|graphbolt|igb|mag240m|ogb|pyg|dgl|tables|ntriples|triples):"
)
CHECKSUM = "sha256"  # of what a manifest says besides
# Array "x_page_crc" has a CRC-32C for each page of the file of array "x".
PAGE_SUMS = "_page_crc"
# Attribute of an artifact whose records lie in several files (store/parts.py): how many.
PARTS = "parts"
_OF_PART = re.compile(r"(batches|records)\.([0-9]{1,4})")
_EDGE_LISTS = (".parquet", ".csv", ".tsv", ".txt")  # of any file that ``edges:FILE`` imports
EDGE_ENDINGS = (
    ".npy",
    ".npz",
    *_EDGE_LISTS,
)  # of a file called edges in a folder that ``arrays:DIR`` imports


@dataclass(frozen=True)
class ArraySpec:
    """Describes one array in a file of its own, opened by ``numpy.memmap(file, dtype, shape=shape)``.

    Attributes:
        file: File name inside the artifact's folder.
        dtype: ``float32``, ``int64``, ``bfloat16`` (stored as its 16 raw bits), ...
        shape: Rows first.
        stride_bytes: Distance between the starts of neighbouring rows.
        crc32c: CRC-32C of the ``shape[0] * stride_bytes`` data bytes; the zero padding after them is not counted.
        file_bytes: Size of the file: data padded with zeros to a multiple of 4096.
    """

    file: str
    dtype: str
    shape: tuple[int, ...]
    stride_bytes: int
    crc32c: int
    file_bytes: int

    @property
    def data_bytes(self) -> int:
        return self.shape[0] * self.stride_bytes


@dataclass(frozen=True)
class Manifest:
    """Describes an artifact: ``config`` is what the caller asked for, ``inputs`` the digests of what it was made of."""

    format: str
    version: int
    arrays: dict[str, ArraySpec] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return _text_of(asdict(self))

    def part_of(self, name: str) -> int | None:
        """Returns the part that array ``name`` is, of an artifact with parts; None: all machines have it."""
        found = _OF_PART.fullmatch(name) if self.attributes.get(PARTS, 1) != 1 else None
        return None if found is None else int(found[2])

    def digest(self) -> str:
        """Returns the SHA-256 of the manifest: it names the content, because the manifest holds every checksum.

        Checksums of pages are left out: they follow from the content, so adding them to an artifact changes no name.
        """
        content = {name: spec for name, spec in self.arrays.items() if not name.endswith(PAGE_SUMS)}
        return hashlib.sha256(replace(self, arrays=content).to_json().encode()).hexdigest()


def _text_of(told: dict[str, Any]) -> str:
    return json.dumps(told, indent=1, sort_keys=True) + "\n"


def checksum_of(told: dict[str, Any]) -> str:
    """Returns the SHA-256, as hexadecimal digits, of what a file of JSON says besides."""
    return hashlib.sha256(_text_of(told).encode()).hexdigest()


def is_as_written(told: dict[str, Any]) -> bool:
    """Takes the checksum out of what a file of JSON says, and tells whether it is that of the rest; files of earlier
    versions have none.
    """
    if CHECKSUM not in told:
        return True
    written = told.pop(CHECKSUM)
    try:
        return bool(written == checksum_of(told))
    except RecursionError:
        return False


def _require_as_written(place: str, raw: dict[str, Any]) -> None:
    """Takes the checksum out of what a manifest says, and compares it; those of earlier versions have none.

    Raises:
        FormatError: There is a field that no version has written: of the checksum, perhaps, the name was damaged.
        ChecksumError: It says other than was written.
    """
    same = is_as_written(raw)
    if strange := sorted(raw.keys() - Manifest.__dataclass_fields__.keys()):
        raise FormatError(
            f"{place} has a field {strange[0]!r}, which is unknown: it was made by a newer Outcrop, or damaged"
        )
    if not same:
        raise ChecksumError(
            f"{place} says other than was written: the file was damaged, or changed by hand; make the artifact again"
        )


def exists(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def format_of(folder: Path) -> str | None:
    """Returns the format that the manifest of ``folder`` names; None where there is none that can be read."""
    try:
        found = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    name = found.get("format") if isinstance(found, dict) else None
    return name if isinstance(name, str) else None


def read(folder: Path, format: str, versions: Versions) -> Manifest:
    """Reads and checks the manifest of an artifact of the given format.

    Args:
        versions: The version of the format, or those that the caller reads.

    Raises:
        FormatError: No manifest, not JSON, another format or version, or a listed file missing (other than a part) or
            of the wrong size.
    """
    path = folder / MANIFEST
    raw = _read_json(path)
    found = (raw.get("format"), raw.get("version"))
    if found[0] != format:
        known = " (outcrop embed prepare takes it)" if found[0] == "outcrop.triples" else ""
        raise FormatError(
            f"{folder} is {found[0]!r}, not {format!r}: pass the folder of the right kind{known}"
        )
    known = (versions,) if isinstance(versions, int) else versions
    if not isinstance(found[1], int) or found[1] not in known:
        numbers = " and ".join(map(str, known))
        raise FormatError(
            f"{path} has version {found[1]!r}, this Outcrop reads version {numbers}: make it again"
        )
    return _checked(folder, raw, format, found[1])


def read_any(folder: Path) -> Manifest:
    """Reads and checks the manifest of an artifact of any format and version, as :func:`read` does."""
    raw = _read_json(folder / MANIFEST)
    if not isinstance(raw.get("format"), str) or not isinstance(raw.get("version"), int):
        raise FormatError(f"{folder / MANIFEST} has no format and version: not an Outcrop manifest")
    return _checked(folder, raw, raw["format"], raw["version"])


def _checked(folder: Path, raw: dict[str, Any], format: str, version: int) -> Manifest:
    manifest = _parsed(str(folder / MANIFEST), raw, format, version)
    for name, spec in arrays_here(folder, manifest).items():
        _check_file(folder, name, spec)
    return manifest


def _is_there(path: Path) -> bool:
    """Tells whether ``path`` is there, or cannot be asked for: whoever opens it says why."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return True


def arrays_here(folder: Path, manifest: Manifest) -> dict[str, ArraySpec]:
    """Returns the arrays of an artifact without those that lie elsewhere: parts of a run, row files in a store."""
    left = read_elsewhere(folder).files
    return {
        name: spec
        for name, spec in manifest.arrays.items()
        if (manifest.part_of(name) is None and spec.file not in left) or _is_there(folder / spec.file)
    }


def parse(place: str, content: bytes) -> Manifest:
    """Reads the manifest of an artifact whose files are elsewhere; they are not looked at.

    Args:
        place: Where it is from, for messages.

    Raises:
        FormatError: It is no manifest, or names files outside its folder, or impossible sizes.
    """
    try:
        raw = parse_json(content)
    except ValueError as error:
        raise FormatError(f"{place} is no Outcrop manifest: {error}") from None
    if not isinstance(raw, dict):
        raise FormatError(f"{place} is no Outcrop manifest")
    _require_as_written(place, raw)
    if not isinstance(raw.get("format"), str) or not isinstance(raw.get("version"), int):
        raise FormatError(f"{place} has no format and version: not an Outcrop manifest")
    return _parsed(place, raw, raw["format"], raw["version"])


def _parsed(path: str, raw: dict[str, Any], format: str, version: int) -> Manifest:
    try:
        arrays = {
            name: ArraySpec(**{**spec, "shape": tuple(spec["shape"])}) for name, spec in raw["arrays"].items()
        }
        manifest = Manifest(format, version, arrays, raw["attributes"], raw["config"], raw["inputs"])
        for name in ("attributes", "config", "inputs"):
            if not isinstance(raw[name], dict):
                raise TypeError(f"{name} is no table")
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(
            f"{path} lacks or garbles a field ({error}): the file was changed by hand or is torn"
        ) from None
    for name, spec in arrays.items():
        _check_spec(path, name, spec)
    return manifest


@contextmanager
def opening(folder: Path, format: str, versions: Versions) -> Iterator[Manifest]:
    """Yields the manifest of ``folder``; within the block, what is missing or odd in it becomes a FormatError that
    names it.

    Raises:
        FormatError: As :func:`read`, and for what the block finds.
    """
    manifest = read(folder, format, versions)
    try:
        yield manifest
    except OutcropError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise FormatError(
            f"{folder / MANIFEST} lacks or garbles a field ({type(error).__name__}: {error}): the file was "
            f"changed by hand or is torn; remove {folder} and make it again"
        ) from None


def kind(folder: Path) -> str:
    """Returns the ``format`` field of the manifest in ``folder``."""
    return str(_read_json(folder / MANIFEST).get("format"))


def how_to_import(path: Path) -> str:
    """Returns what to add to a message where ``path`` is something to import, not an artifact; else nothing."""
    if path.is_file() and path.suffix in _EDGE_LISTS:
        return f"; if it lists edges, make a graph of it: {shlex.join(['outcrop', 'import', f'edges:{path}', 'OUT'])}"
    if any((path / f"edges{ending}").is_file() for ending in EDGE_ENDINGS):
        command = shlex.join(["outcrop", "import", f"arrays:{path}", "OUT"])
        return f"; it holds a list of edges, so make a graph of it first: {command}"
    if any((path / f"train{ending}").is_file() for ending in _EDGE_LISTS):
        command = shlex.join(["outcrop", "import", f"triples:{path}", "OUT"])
        return f"; if it holds triples, make a knowledge graph of them first: {command}"
    return ""


def _what_is_missing(path: Path) -> str:
    """Says what to do where the manifest ``path`` is not there."""
    folder = path.parent
    if (folder.parent / "run.json").is_file():
        return f"{path} is missing: outcrop prepare, with the options of the run, makes what it lacks"
    if folder.exists():
        hint = how_to_import(folder)
        if (folder / "run.json").is_file():
            hint = "; it is a run: name its graph, and the run with --run"
        return f"{path} is missing: {folder} is no finished Outcrop artifact{hint}"
    if _SOURCE.match(str(folder)):
        command = shlex.join(["outcrop", "import", str(folder), "OUT"])
        return f"{folder} is a source, not a graph: import it first ({command}, or outcrop.import_graph)"
    if re.match(r"[A-Za-z][A-Za-z0-9]+:/", str(folder)):
        return f"{folder} is no folder of this machine: bring it here first, with outcrop fetch URI FOLDER"
    return f"{folder} does not exist: correct the path, or make a graph there first with outcrop import"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = parse_json(path.read_bytes())
    except FileNotFoundError:
        raise FormatError(_what_is_missing(path)) from None
    except NotADirectoryError:
        raise FormatError(
            f"{path.parent} is a file, not an Outcrop artifact folder{how_to_import(path.parent)}"
        ) from None
    except (ValueError, OSError) as error:
        raise FormatError(f"{path} cannot be read as a manifest: {error}") from None
    if not isinstance(raw, dict):
        raise FormatError(f"{path} is not an Outcrop manifest")
    _require_as_written(str(path), raw)
    return raw


def _check_spec(path: str, name: str, spec: ArraySpec) -> None:
    if not isinstance(spec.file, str) or Path(spec.file).name != spec.file or spec.file in ("", ".", ".."):
        raise FormatError(f"{path}: array {name!r} points outside its folder ({spec.file!r})")
    sizes = [*spec.shape, spec.stride_bytes, spec.file_bytes, spec.crc32c]
    if not spec.shape or any(type(n) is not int or n < 0 for n in sizes) or spec.file_bytes < spec.data_bytes:
        raise FormatError(f"{path}: array {name!r} has an impossible shape or size")
    if not isinstance(spec.dtype, str):
        raise FormatError(f"{path}: array {name!r} has dtype {spec.dtype!r}, which is none")


def _check_file(folder: Path, name: str, spec: ArraySpec) -> None:
    path = folder / spec.file
    try:
        found = path.stat()
    except (OSError, ValueError) as error:  # the latter for names with a NUL or a surrogate
        why = error.strerror if isinstance(error, OSError) else error
        raise FormatError(
            f"{str(path)!a} (array {name!r}) cannot be opened: {why}; remove {folder} and make it again"
        ) from None
    if not stat.S_ISREG(found.st_mode):
        raise FormatError(f"{path} (array {name!r}) is no regular file")
    size = found.st_size
    if size != spec.file_bytes:
        raise FormatError(
            f"{path} has {size} bytes, its manifest says {spec.file_bytes}: truncated or overwritten; remove "
            f"{folder} and make it again"
        )


def partial_folder(final: Path) -> Path:
    """Returns the hidden sibling in which ``final`` is built; of a link, that of the folder it leads to."""
    final = _behind_link(final)
    return final.parent / f".{final.name}.partial"


def _behind_link(final: Path) -> Path:
    """Returns where a symbolic link leads, whether or not something is there; any other path itself."""
    return Path(os.path.realpath(final)) if final.is_symlink() else final


def versions_of(final: Path) -> tuple[Path, Path, Path]:
    """Returns where ``final`` may lie: itself, and what a kill leaves while it is being built or replaced."""
    return final, partial_folder(final), _replaced_folder(final)


def remove(path: Path) -> None:
    """Removes a file, or a folder with all below it.

    Raises:
        IoError: It names ``path``; the system names what lies below a folder without its place.
    """
    try:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    except OSError as error:
        what = f"{error.strerror or error} ({error.filename})" if error.filename else error
        raise IoError(error.errno or 0, f"{path} cannot be removed: {what}; remove it by hand") from error


def remove_leftovers(final: Path) -> None:
    """Removes what killed calls have left beside ``final``, which is whole: they were to make or to replace it."""
    for left in versions_of(final)[1:]:
        shutil.rmtree(left, ignore_errors=True)


def scratch_file(folder: Path) -> Path:
    """Returns a name that nobody else has, for a file that loses its name as soon as it is open."""
    return folder / f"{_SCRATCH}{uuid.uuid4().hex}.tmp"


def remove_scratch(folder: Path) -> None:
    """Removes scratch files that killed processes have left in ``folder``; who has one open keeps it."""
    for name in (_SCRATCH, _SCRATCH_BEFORE):
        for left in folder.glob(f"{name}*.tmp"):
            with suppress(OSError):
                left.unlink()


def remove_headless(folder: Path) -> None:
    """Removes a stage or layer whose manifest is gone: it is worth nothing, and would be in the way."""
    if folder.is_dir() and not exists(folder) and all(file.suffix == ".bin" for file in folder.iterdir()):
        remove(folder)


def check_destination(final: Path) -> None:
    """Raises ArgumentError where something that is no artifact is in the way of ``final``."""
    if final.exists() and not exists(final):
        raise ArgumentError(
            f"{final} is in the way and no Outcrop artifact: remove it or choose another place"
        )


@contextmanager
def publishing(final: Path, *, resume: bool = False) -> Iterator[Path]:
    """Yields the folder to build ``final`` in; renames it into place if the block ends well.

    Of a symbolic link the folder that it leads to is replaced, and the link stays. The block must call :func:`write`
    last. With ``resume`` what an earlier, killed run left there is kept; an error in the block then leaves it too.
    Otherwise it starts empty, and is removed on error.

    Raises:
        IoError: The operating system refused; names the file. Or another process builds ``final``, or has built it
            while this one waited.
    """
    final = _behind_link(final)
    work, was_there = partial_folder(final), final.exists()
    with only_process_in(work):
        if final.exists() and not was_there:
            shutil.rmtree(work, ignore_errors=True)
            raise IoError(
                errno.EEXIST,
                f"{final} has just been made by another process: use it, or choose another place",
            )
        try:
            with naming_files(work):
                _put_back(final)
                if not resume:
                    _empty(work)
                yield work
                if not exists(work):
                    raise AssertionError(f"{work} was not given a manifest")
                sync_folder(work)
                _replace(final, work)
                sync_folder(final.parent)
        except BaseException:
            if not resume:
                shutil.rmtree(work, ignore_errors=True)
            raise


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        remove(path)


def _replace(final: Path, work: Path) -> None:
    if not final.exists():
        work.rename(final)
        return
    check_destination(final)
    old = _replaced_folder(final)
    final.rename(old)
    try:
        work.rename(final)
    except BaseException:
        _put_back(final)
        raise
    remove(old)


def _replaced_folder(final: Path) -> Path:
    """Returns where what ``final`` held lies for the moment in which it is replaced."""
    final = _behind_link(final)
    return final.parent / f".{final.name}.old"


def _put_back(final: Path) -> None:
    """Undoes a replacement that was killed halfway."""
    old = _replaced_folder(final)
    if exists(old) and not final.exists():
        old.rename(final)
    if old.is_symlink():  # left by versions that moved the link instead of what it leads to
        old.unlink()
    shutil.rmtree(old, ignore_errors=True)


def write(folder: Path, manifest: Manifest) -> None:
    """Writes ``manifest`` into ``folder`` by temporary file, fsync and rename, with a checksum of what it says."""
    told = json.loads(manifest.to_json())
    told[CHECKSUM] = checksum_of(told)
    write_atomic(folder / MANIFEST, _text_of(told).encode())


def write_atomic(path: Path, content: bytes) -> None:
    """Replaces ``path`` by ``content``: after a crash the old or the new bytes are there, never a mixture."""
    temporary = temporary_file(path)
    with naming_files(path):
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def require_overwrite(path: Path, what: str, differing: list[str] | None, overwrite: bool) -> None:
    """Raises ArgumentError where ``path`` holds ``what``, it would be replaced, and nobody asked for that.

    Args:
        differing: The options that differ, each with both values; empty: nothing is replaced; None: it is replaced
            whatever it was made with.
    """
    if differing != [] and not overwrite:
        how = f" that differs in {', '.join(differing)}" if differing else ""
        raise ArgumentError(
            f"{path} holds {what}{how}: choose another place, or replace it with --overwrite (overwrite=True)"
        )


def temporary_file(path: Path) -> Path:
    """Returns what a kill may leave behind while :func:`write_atomic` replaces ``path``."""
    return path.with_name(f".{path.name}.tmp")


def sync_folder(folder: Path) -> None:
    """Makes the names in ``folder`` durable, as files were created, renamed or removed there.

    Raises:
        IoError: The operating system refused; names the folder.
    """
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise IoError(
            error.errno or 0,
            f"{folder.absolute()}: {error.strerror or error}, so what was written there may not outlast a crash",
        ) from error


def plain(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns ``fields`` as they come back from JSON (tuples as lists), so that stored and wanted compare equal."""
    return json.loads(json.dumps(fields))


def is_current(
    folder: Path, format: str, versions: Versions, config: dict[str, Any], inputs: dict[str, str]
) -> bool:
    """Tells whether ``folder`` is a whole artifact made with this config from these inputs."""
    if not exists(folder):
        return False
    try:
        manifest = read(folder, format, versions)
    except FormatError:
        return False
    return manifest.config == config and manifest.inputs == inputs
