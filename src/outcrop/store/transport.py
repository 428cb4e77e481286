"""Graphs and runs to and from object stores: copied whole, every byte checked, and gone on with after an interruption.

An artifact is there when its manifest is, here and there: so the manifest is written last. Files are fetched in ranges,
several at a time; each that has come is noted in a journal with its checksum, and fetched again after an interruption
only where the bytes on disk are others. What comes is compared with the checksums in the manifest before it is
published, and so is what goes before its manifest is written.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import outcrop._core as _core
from outcrop.errors import ArgumentError, ChecksumError, FormatError, naming_files
from outcrop.runtime.parsing import parse_json
from outcrop.runtime.progress import Progress, shown
from outcrop.store import manifest as manifests
from outcrop.store.elsewhere import ELSEWHERE, Elsewhere, read_elsewhere
from outcrop.store.graph import FORMAT as GRAPH_FORMAT
from outcrop.store.graph import open_graph
from outcrop.store.lock import make_folders, only_process_in
from outcrop.store.manifest import ArraySpec, Manifest
from outcrop.store.parts import count_of
from outcrop.store.range_copy import RANGE_BYTES, FileSize, RangeCopy, as_array, parsed
from outcrop.store.remote import RemoteFolder, with_options_only, without_keys
from outcrop.store.run import RUN_FILE, STAGES

_STAGES_IN_PARTS = ("sample", "pack")
_SENT = ".sent.json"  # beside what is being uploaded: which files are there
_BESIDE = ("imported.json",)  # small files of artifacts that no manifest lists
_ROWS = re.compile(r"(.+\.)?features")  # arrays of a graph that may stay in the store
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}\.bin")  # of an array
_UPLOAD = "upload"


@dataclass
class TransportReport:
    """Says what was copied.

    Attributes:
        bytes: Bytes that went over the network.
        files: Files of the artifacts.
        resumed_bytes: Bytes that an earlier call had copied.
        skipped: Artifacts that were there already.
        seconds: Time that it took.
    """

    bytes: int = 0
    files: int = 0
    resumed_bytes: int = 0
    skipped: int = 0
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class FetchRequest:
    """Says what of an artifact is to come, and where to.

    Attributes:
        out: Folder to make.
        graph: Of a run: the folder of its graph here; None: it lies where the run says, seen from ``out``.
        parts: Of a run whose batches lie in parts (store/parts.py): those that are wanted here, beside those that are
            here already; None: all.
        leave_features: Of a graph: whether features stay in the store, where preparing reads them.
        overwrite: Whether another artifact in ``out`` is replaced.
    """

    out: Path
    graph: Path | None = None
    parts: Sequence[int] | None = None
    leave_features: bool = False
    overwrite: bool = False


def fetch(uri: str, request: FetchRequest, progress: Progress | bool | None = None) -> TransportReport:
    """Copies a graph, the buckets of a graph, or a run from an object store to a folder.

    Interrupted, the same call goes on where it was. Takes 130 MiB of memory for what is under way.

    Raises:
        FormatError: There is nothing, or something else, or a file is not as large as its manifest says.
        ChecksumError: Bytes that came differ from those that were written; what is damaged is fetched again next time.
        IoError: The store or the disk failed; names the file.
        ArgumentError: Something else is in the way, or the graph of a run is not known.
    """
    started, folder, told = time.monotonic(), RemoteFolder(uri), shown(progress)
    report = TransportReport()
    if folder.size(RUN_FILE) is not None:
        if request.leave_features:
            raise ArgumentError(f"{folder.uri} is a run: --leave-features is for graphs")
        _fetch_run(folder, request, told, report)
    elif folder.size(manifests.MANIFEST) is not None:
        if request.graph is not None:
            raise ArgumentError(f"{folder.uri} is no run: --graph says where the graph of a run is")
        if request.parts is not None:
            raise ArgumentError(f"{folder.uri} is no run: --parts says which batches of a run are wanted")
        left_in = with_options_only(uri) if request.leave_features else None
        _Fetch(folder, request.out, told, report, left_in=left_in).artifact(request.overwrite)
    else:
        raise FormatError(
            f"{folder.uri} holds no graph and no run: neither {manifests.MANIFEST} nor {RUN_FILE} is there; an upload "
            "that was interrupted goes on with outcrop upload"
        )
    report.seconds = time.monotonic() - started
    return report


def _fetch_run(
    folder: RemoteFolder, request: FetchRequest, progress: Progress, report: TransportReport
) -> None:
    out, graph, overwrite = request.out, request.graph, request.overwrite
    place = f"{folder.uri}/{RUN_FILE}"
    try:
        raw = parse_json(folder.read(RUN_FILE))
        own, digest = out.resolve() / str(raw["graph"]), str(raw["graph_digest"])
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{place} cannot be read as a run: {error}") from None
    if graph is None and not _is_there(own):
        raise ArgumentError(
            f"{folder.uri} is a run of a graph that it looks for at {os.path.normpath(own)[:300]!a}, where none is: "
            "fetch the graph first, and name it (--graph PATH, graph=PATH)"
        )
    path = own if graph is None else graph
    found = open_graph(path).digest()
    if found != digest:
        raise FormatError(f"{folder.uri} is a run of another graph than {path}, or of another state of it")
    raw["graph"] = os.path.relpath(path.resolve(), out.resolve())
    there = [name for name in STAGES if folder.within(name).size(manifests.MANIFEST) is not None]
    if not there:
        raise FormatError(f"{folder.uri} is a run of which no stage is finished")
    with only_process_in(out):
        own_files = {*STAGES, RUN_FILE, "history"} | {
            manifests.partial_folder(out / name).name for name in STAGES
        }
        if strange := [found.name for found in out.iterdir() if found.name not in own_files]:
            raise ArgumentError(f"{out} holds {strange[0]} and so is no run: choose another place")
        _require_replaceable(folder, out, there, overwrite)
        for name in STAGES:
            if name not in there and manifests.exists(out / name):  # of another run
                manifests.remove(out / name)
        manifests.write_atomic(out / RUN_FILE, (json.dumps(raw, indent=1, sort_keys=True) + "\n").encode())
        for name in there:
            _Fetch(folder.within(name), out / name, progress, report, request.parts).artifact(overwrite)


def _is_there(graph: Path) -> bool:
    try:
        return manifests.exists(graph)
    except OSError:  # a run may name anything
        return False


def _require_replaceable(folder: RemoteFolder, out: Path, there: list[str], overwrite: bool) -> None:
    """Checks that no stage of another run is in ``out``, before anything is changed there.

    Raises:
        ArgumentError: One is, and may not be replaced.
    """
    for name in STAGES:
        if overwrite or not manifests.exists(out / name):
            continue
        remote = folder.within(name)
        place = f"{remote.uri}/{manifests.MANIFEST}"
        same = name in there and (
            manifests.parse(place, remote.read(manifests.MANIFEST)).digest()
            == manifests.read_any(out / name).digest()
        )
        if not same:
            manifests.require_overwrite(out, "another run", None, overwrite)


class _Fetch:
    """Fetches one artifact into ``out``."""

    def __init__(
        self,
        folder: RemoteFolder,
        out: Path,
        progress: Progress,
        report: TransportReport,
        parts: Sequence[int] | None = None,
        left_in: str | None = None,
    ):
        self._folder, self._out, self._progress, self._report = folder, out, progress, report
        self._parts, self._left_in = parts, left_in

    def artifact(self, overwrite: bool) -> None:
        folder, out = self._folder, self._out
        content = folder.read(manifests.MANIFEST)
        manifest = manifests.parse(f"{folder.uri}/{manifests.MANIFEST}", content)
        files = self._wanted(manifest, files_of(f"{folder.uri}/{manifests.MANIFEST}", manifest))
        left = self._left(manifest)
        files = {name: spec for name, spec in files.items() if name not in left}
        if manifests.exists(out):
            if manifests.read_any(out).digest() == manifest.digest():
                self._missing_parts(
                    content, {name: f for name, f in files.items() if not (out / name).exists()}
                )
                return
            manifests.require_overwrite(out, "another artifact", None, overwrite)
        manifests.check_destination(out)
        for spec in (*files.values(), *left.values()):
            self._check_size(spec)
        with naming_files(out):
            make_folders(out.parent)
        with manifests.publishing(out, resume=True) as work:
            copy = self._copy(work, content, files)
            for name in _BESIDE:
                if folder.size(name) is not None:
                    (work / name).write_bytes(folder.read(name))
            copy.finish()
            if left:
                elsewhere = Elsewhere(self._left_in or "", tuple(left))
                manifests.write_atomic(work / ELSEWHERE, elsewhere.to_json())
            manifests.write_atomic(work / manifests.MANIFEST, content)
        self._report.files += len(files)

    def _wanted(self, manifest: Manifest, files: dict[str, ArraySpec]) -> dict[str, ArraySpec]:
        """Returns the files without those of parts that are not wanted.

        Raises:
            ArgumentError: There is no such part.
        """
        count = count_of(manifest, self._folder.uri)
        if self._parts is None or self._out.name not in _STAGES_IN_PARTS:
            return files
        if beyond := [part for part in self._parts if not 0 <= part < count]:
            raise ArgumentError(
                f"{self._folder.uri} has {'no parts' if count == 1 else f'parts 0 to {count - 1}'}, and --parts names "
                f"{beyond[0]}: outcrop prepare --parts K makes a run in K parts"
            )
        part_of = {spec.file: manifest.part_of(name) for name, spec in manifest.arrays.items()}
        return {name: spec for name, spec in files.items() if part_of[name] in (None, *self._parts)}

    def _left(self, manifest: Manifest) -> dict[str, ArraySpec]:
        """Returns the files that stay in the store.

        Raises:
            ArgumentError: It is no graph, has no features, or no checksums of their pages.
        """
        if self._left_in is None:
            return {}
        place = self._folder.uri
        found = {name: spec for name, spec in manifest.arrays.items() if _ROWS.fullmatch(name)}
        if manifest.format != GRAPH_FORMAT or not found:
            raise ArgumentError(
                f"{place} has no features of a graph, which --leave-features would leave there"
            )
        if unchecked := [name for name in found if name + manifests.PAGE_SUMS not in manifest.arrays]:
            raise ArgumentError(
                f"{place}: {unchecked[0]} has no checksums of pages, by which what is read there could be checked: add "
                "them where the graph lies whole (outcrop verify GRAPH --add-checksums) and upload it again"
            )
        return {spec.file: spec for spec in found.values()}

    def _missing_parts(self, content: bytes, files: dict[str, ArraySpec]) -> None:
        """Adds files to an artifact that is there, parts or what was left in the store, when all of them have come."""
        if not files:
            self._report.skipped += 1
            return
        for spec in files.values():
            self._check_size(spec)
        work = manifests.partial_folder(self._out)
        with only_process_in(work):
            self._copy(work, content, files)
            for name in files:
                (work / name).rename(self._out / name)
            manifests.sync_folder(self._out)
            if all((self._out / name).exists() for name in read_elsewhere(self._out).files):
                (self._out / ELSEWHERE).unlink(missing_ok=True)
            manifests.remove(work)
        self._report.files += len(files)

    def _check_size(self, spec: ArraySpec) -> None:
        size = self._folder.size(spec.file)
        if size != spec.file_bytes:
            what = "is not there" if size is None else f"has {size} bytes"
            raise FormatError(
                f"{self._folder.uri}/{spec.file} {what}, and its manifest says {spec.file_bytes} bytes: it was cut "
                "short or replaced, or is a part that no machine that has it has uploaded; upload it again"
            )

    def _copy(self, work: Path, content: bytes, files: dict[str, ArraySpec]) -> RangeCopy:
        """Copies files of the artifact whose manifest is ``content`` to ``work``, and checks them."""
        sizes = {name: FileSize(spec.file_bytes, spec.data_bytes) for name, spec in files.items()}
        copy = RangeCopy(self._folder, work, {"manifest": _core.crc32c(as_array(content))}, sizes)
        crcs, counts = copy.run(self._progress)
        self._report.bytes += counts.bytes
        self._report.resumed_bytes += counts.resumed_bytes
        for name, spec in files.items():
            self._check(copy, spec, crcs[name])
        return copy

    def _check(self, copy: RangeCopy, spec: ArraySpec, crc: int) -> None:
        if crc != spec.crc32c:
            copy.forget(spec.file)
            raise ChecksumError(
                f"{self._folder.uri}/{spec.file}: checksum of what came is {crc:08x}, the manifest says "
                f"{spec.crc32c:08x}: it was damaged there or on the way; fetch again, and if that ends so, too, upload "
                "it again"
            )


def files_of(place: str, manifest: Manifest) -> dict[str, ArraySpec]:
    """Returns the files of an artifact by name.

    Raises:
        FormatError: A name is none that Outcrop gives a file, or several arrays have one file.
    """
    files: dict[str, ArraySpec] = {}
    for name, spec in manifest.arrays.items():
        if not _FILE.fullmatch(spec.file):
            raise FormatError(
                f"{place}: array {name!a} lies in {spec.file!a}, which is no name of a file of arrays"
            )
        if spec.file in files:
            raise FormatError(f"{place}: array {name!a} lies in {spec.file!a}, where another lies, too")
        files[spec.file] = spec
    return files


def upload(
    folder: Path, uri: str, *, overwrite: bool = False, progress: Progress | bool | None = None
) -> TransportReport:
    """Copies a graph, the buckets of a graph, or a run to an object store.

    Every byte is compared with its checksum on the way. Interrupted, the same call goes on with the file it was at.
    Of a run in parts those are sent that are here: each machine sends its own.

    Args:
        overwrite: Whether another artifact at ``uri`` is replaced.

    Raises:
        FormatError: ``folder`` is neither, or not finished.
        ChecksumError: A file was damaged after it was written; no manifest is written there then.
        IoError: The store failed; names the file.
        ArgumentError: Another artifact is there.
    """
    started, remote, told = time.monotonic(), RemoteFolder(uri), shown(progress)
    report = TransportReport()
    if (folder / RUN_FILE).is_file():
        stages = [name for name in STAGES if manifests.exists(folder / name)]
        if not stages:
            raise FormatError(f"{folder} is a run of which no stage is finished: run outcrop prepare")
        _make_room(remote, (folder / RUN_FILE).read_bytes(), overwrite)
        for name in stages:
            _upload_artifact(folder / name, remote.within(name), overwrite, told, report)
        remote.write(RUN_FILE, (folder / RUN_FILE).read_bytes())
    else:
        _upload_artifact(folder, remote, overwrite, told, report)
    report.seconds = time.monotonic() - started
    return report


def _make_room(remote: RemoteFolder, own: bytes, overwrite: bool) -> None:
    """Takes another run away that is at ``remote``: its stages would be taken for those of this one.

    Raises:
        ArgumentError: One is there, and may not be replaced.
    """
    if remote.size(RUN_FILE) is None or _is_of_run(remote.read(RUN_FILE), own):
        return
    if not overwrite:
        raise ArgumentError(
            f"{remote.uri} holds another run: choose another place, or replace it with --overwrite (overwrite=True)"
        )
    remote.remove(RUN_FILE)
    for name in STAGES:
        remote.within(name).remove(manifests.MANIFEST)


def _is_of_run(one: bytes, other: bytes) -> bool:
    """Tells whether two descriptions are of one run; where its graph lies does not count."""
    found = [parsed(text.decode(errors="replace")) for text in (one, other)]
    plain = [
        {k: v for k, v in run.items() if k != "graph"} if isinstance(run, dict) else run for run in found
    ]
    return plain[0] == plain[1]


def _require_whole(folder: Path) -> None:
    """Raises FormatError where an artifact has left files in a store."""
    elsewhere = read_elsewhere(folder)
    if left := [name for name in elsewhere.files if not (folder / name).exists()]:
        raise FormatError(
            f"{folder} has left {left[0]} in {without_keys(elsewhere.uri)}: fetch it first, to upload all of it"
        )


def _upload_artifact(
    folder: Path, remote: RemoteFolder, overwrite: bool, progress: Progress, report: TransportReport
) -> None:
    manifest = manifests.read_any(folder)
    _require_whole(folder)
    files = {spec.file: spec for spec in manifests.arrays_here(folder, manifest).values()}
    if remote.size(manifests.MANIFEST) is not None:
        there = manifests.parse(f"{remote.uri}/{manifests.MANIFEST}", remote.read(manifests.MANIFEST))
        same = there.digest() == manifest.digest()
        if not same and not overwrite:
            raise ArgumentError(
                f"{remote.uri} holds another artifact: choose another place, or replace it with --overwrite "
                "(overwrite=True)"
            )
        if not same:
            remote.remove(manifests.MANIFEST)
        else:  # but for parts that other machines had not
            files = {name: spec for name, spec in files.items() if not _is_sent(remote, spec, manifest)}
            if not files:
                report.skipped += 1
                return
    sent = _sent(remote, manifest)
    parts = [spec.file for name, spec in manifest.arrays.items() if manifest.part_of(name) is not None]
    progress.start(_UPLOAD, sum(spec.file_bytes for spec in files.values()), "bytes")
    for name, spec in files.items():
        if name in sent and remote.size(name) == spec.file_bytes:
            report.resumed_bytes += spec.file_bytes
            progress.advance(_UPLOAD, spec.file_bytes)
            continue
        if name in parts:
            _send_part(folder / name, spec, remote, progress, manifest.digest())
        else:
            _send(folder / name, spec, remote, progress)
        report.bytes += spec.file_bytes
        sent.append(name)
        remote.write(_SENT, json.dumps({"digest": manifest.digest(), "files": sent}).encode())
    for name in _BESIDE:
        if (folder / name).is_file():
            remote.write(name, (folder / name).read_bytes())
    remote.write(manifests.MANIFEST, (folder / manifests.MANIFEST).read_bytes())
    remote.remove(_SENT)
    progress.finish(_UPLOAD)
    report.files += len(files)


def _mark_of(file: str) -> str:
    """Returns what says beside the file of a part which artifact it is of: machines send parts at any time."""
    return f".{file}.of"


def _is_sent(remote: RemoteFolder, spec: ArraySpec, manifest: Manifest) -> bool:
    """Tells whether a file of an artifact whose manifest is there has come: all have, but for parts."""
    if all(manifest.part_of(name) is None for name, one in manifest.arrays.items() if one.file == spec.file):
        return True
    mark = _mark_of(spec.file)
    marked = remote.size(mark) is not None and remote.read(mark).decode(errors="replace") == manifest.digest()
    return marked and remote.size(spec.file) == spec.file_bytes


def _sent(remote: RemoteFolder, manifest: Manifest) -> list[str]:
    """Returns the files that an interrupted upload of the same artifact has sent."""
    if remote.size(_SENT) is None:
        return []
    noted = parsed(remote.read(_SENT).decode(errors="replace"))
    same = isinstance(noted, dict) and noted.get("digest") == manifest.digest()
    return [str(name) for name in noted["files"]] if same and isinstance(noted.get("files"), list) else []


def _send_part(path: Path, spec: ArraySpec, remote: RemoteFolder, progress: Progress, digest: str) -> None:
    """Sends the file of a part, and marks it as of the artifact ``digest``."""
    mark = _mark_of(spec.file)
    if remote.size(mark) is not None:  # of what is replaced now
        remote.remove(mark)
    _send(path, spec, remote, progress)
    remote.write(mark, digest.encode())


def _send(path: Path, spec: ArraySpec, remote: RemoteFolder, progress: Progress) -> None:
    crc, left = 0, spec.data_bytes
    with naming_files(path), path.open("rb") as file, remote.writing(spec.file) as append:
        while content := file.read(RANGE_BYTES):
            data = as_array(content)[:left]
            crc, left = _core.crc32c(data, crc), left - len(data)
            append(content)
            progress.advance(_UPLOAD, len(content))
        if crc != spec.crc32c:
            raise ChecksumError(
                f"{path}: checksum is {crc:08x}, the manifest says {spec.crc32c:08x}: the file was damaged after it "
                f"was written; remove {path.parent} and make it again"
            )
