"""Verify in an object store: streams every file of a graph, a run or a copy of checkpoints, and compares it with its
checksum.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

import outcrop._core as _core
from outcrop.errors import ChecksumError, FormatError
from outcrop.runtime.progress import Progress
from outcrop.store import manifest as manifests
from outcrop.store import run as runs
from outcrop.store.manifest import ArraySpec, Manifest
from outcrop.store.objects import FORMAT, INDEX, Entry, IndexedObjects
from outcrop.store.range_copy import RANGE_BYTES, READERS, as_array
from outcrop.store.remote import RemoteFolder
from outcrop.store.transport import files_of

_TASK = "verify"


def verify_stored(uri: str, progress: Progress) -> dict[str, dict[str, Any]]:
    """Compares every file of the artifact at ``uri`` with its checksum: a graph, the stages of a run, or a copy of
    checkpoints, of embeddings too.

    Returns:
        Artifact -> what :func:`outcrop.store.verify.verify_artifact` says of it. The structure of graphs is not looked
        at: files that are as they were written are those of a graph. Of checkpoints each file is an array.

    Raises:
        FormatError: There is no artifact, a file is missing or of the wrong size, or stages do not belong together.
        ChecksumError: Bytes differ from those that were written.
        IoError: The store failed several times.
    """
    folder = RemoteFolder(uri)
    if folder.size(runs.RUN_FILE) is not None:
        return _verify_run(folder, progress)
    if folder.size(manifests.MANIFEST) is not None:
        return {folder.uri: _verify(folder, progress)}
    if folder.size(INDEX) is not None:
        return {folder.uri: _verify_objects(folder, progress)}
    raise FormatError(
        f"{folder.uri} holds no graph and no finished run, and no checkpoints: no {manifests.MANIFEST}, "
        f"{runs.RUN_FILE} or {INDEX} is there"
    )


def _verify_run(folder: RemoteFolder, progress: Progress) -> dict[str, dict[str, Any]]:
    there = [stage for stage in runs.STAGES if folder.within(stage).size(manifests.MANIFEST) is not None]
    wanted = runs.finished_stages(there, folder.uri, "prepare it, and upload it again")
    if missing := [stage for stage in wanted if stage not in there]:
        raise FormatError(
            f"{folder.uri}/{missing[0]}/{manifests.MANIFEST} is not there, though {there[-1]} was made of it: upload "
            "the run again"
        )
    stages = {stage: folder.within(stage) for stage in wanted}
    runs.check_made_of(
        {stage: _manifest_of(one)[0] for stage, one in stages.items()}, folder.uri, "upload the run again"
    )
    return {one.uri: _verify(one, progress) for one in stages.values()}


def _verify_objects(folder: RemoteFolder, progress: Progress) -> dict[str, Any]:
    """Compares the files of a copy with what its index says of each; a training may go on writing there."""
    objects = IndexedObjects(
        folder, (), "train again with the same arguments from where the checkpoint is whole"
    )

    def verify(index: bytes) -> dict[str, Any]:
        if not index:
            raise FormatError(f"{folder.uri}/{INDEX} is gone: somebody has removed the copy meanwhile")
        entries = objects.entries(index).values()
        total = sum(entry.bytes for entry in entries)
        progress.start(_TASK, total, "bytes")
        _read_all(objects, list(entries), partial(progress.advance, _TASK))
        progress.finish(_TASK)
        return {"format": FORMAT, "arrays": len(entries), "bytes": total}

    return objects.at_one_moment(verify)


def _read_all(objects: IndexedObjects, entries: Sequence[Entry], advance: Callable[[int], None]) -> None:
    """Reads contents whole, several at a time; where one is wrong the others are left."""
    stopped = threading.Event()

    def read(entry: Entry) -> None:
        try:
            for content in objects.chunks(entry):
                if stopped.is_set():
                    return
                advance(len(content))
        except BaseException:
            stopped.set()
            raise

    with _readers() as readers:
        try:
            for done in [readers.submit(read, entry) for entry in entries]:
                done.result()
        finally:
            stopped.set()


@contextmanager
def _readers() -> Iterator[ThreadPoolExecutor]:
    """Yields threads that begin nothing more where one has failed."""
    with ThreadPoolExecutor(READERS, "outcrop-verify") as readers:
        try:
            yield readers
        except BaseException:
            readers.shutdown(wait=False, cancel_futures=True)
            raise


def _manifest_of(folder: RemoteFolder) -> tuple[Manifest, str]:
    place = f"{folder.uri}/{manifests.MANIFEST}"
    return manifests.parse(place, folder.read(manifests.MANIFEST)), place


def _verify(folder: RemoteFolder, progress: Progress) -> dict[str, Any]:
    manifest, place = _manifest_of(folder)
    files = files_of(place, manifest)
    here = {name: spec for name, spec in files.items() if _is_there(folder, manifest, spec)}
    total = sum(spec.data_bytes for spec in here.values())
    progress.start(_TASK, total, "bytes")
    with _readers() as readers:
        for spec in here.values():
            _verify_file(folder, spec, readers, partial(progress.advance, _TASK))
    progress.finish(_TASK)
    found = {"format": manifest.format, "arrays": len(here), "bytes": total}
    return {**found, "elsewhere": len(files) - len(here)} if len(here) < len(files) else found


def _is_there(folder: RemoteFolder, manifest: Manifest, spec: ArraySpec) -> bool:
    """Tells whether a file is there; parts of a run may not be.

    Raises:
        FormatError: It is of the wrong size, or is missing and no part.
    """
    size = folder.size(spec.file)
    part = any(manifest.part_of(name) is not None for name, one in manifest.arrays.items() if one is spec)
    if size is None and part:
        return False
    if size != spec.file_bytes:
        what = "is not there" if size is None else f"has {size} bytes"
        raise FormatError(
            f"{folder.uri}/{spec.file} {what}, its manifest says {spec.file_bytes} bytes: upload it again"
        )
    return True


def _verify_file(
    folder: RemoteFolder, spec: ArraySpec, readers: ThreadPoolExecutor, advance: Callable[[int], None]
) -> None:
    def data_of(offset: int) -> int:
        return max(min(RANGE_BYTES, spec.data_bytes - offset), 0)

    def crc_of(offset: int) -> int:
        content = folder.read_range(spec.file, offset, min(RANGE_BYTES, spec.file_bytes - offset))
        data, padding = np.split(as_array(content), [data_of(offset)])
        if padding.any():
            at = max(offset, spec.data_bytes) + int(np.argmax(padding != 0))
            raise ChecksumError(
                f"{folder.uri}/{spec.file}: byte {at}, behind its rows, is not 0: it was damaged there or on the way; "
                "upload it again"
            )
        return _core.crc32c(data)

    crc, offsets = 0, range(0, spec.file_bytes, RANGE_BYTES)
    for offset, own in zip(offsets, readers.map(crc_of, offsets), strict=True):
        count = data_of(offset)
        crc = _core.crc32c_combine(crc, own, count)
        advance(count)
    if crc != spec.crc32c:
        raise ChecksumError(
            f"{folder.uri}/{spec.file}: checksum is {crc:08x}, the manifest says {spec.crc32c:08x}: it was damaged "
            "there or on the way; upload it again"
        )
