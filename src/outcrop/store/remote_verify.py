"""Verify in an object store: streams every file of a graph or a run, and compares it with its checksum."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import outcrop._core as _core
from outcrop.errors import ChecksumError, FormatError
from outcrop.runtime.progress import Progress
from outcrop.store import manifest as manifests
from outcrop.store.manifest import ArraySpec, Manifest
from outcrop.store.range_copy import RANGE_BYTES, READERS, as_array
from outcrop.store.remote import RemoteFolder
from outcrop.store.run import RUN_FILE, STAGES
from outcrop.store.transport import files_of

_TASK = "verify"


def verify_stored(uri: str, progress: Progress) -> dict[str, dict[str, Any]]:
    """Compares every file of the artifact at ``uri``, or of the stages of a run, with its checksum in the manifest.

    Returns:
        Artifact -> what :func:`outcrop.store.verify.verify_artifact` says of it. The structure of graphs is not looked
        at: files that are as they were written are those of a graph.

    Raises:
        FormatError: There is no artifact, or a file is missing or of the wrong size.
        ChecksumError: Bytes differ from those that were written.
        IoError: The store failed several times.
    """
    folder = RemoteFolder(uri)
    is_run = folder.size(RUN_FILE) is not None
    candidates = [folder.within(name) for name in STAGES] if is_run else [folder]
    artifacts = [one for one in candidates if one.size(manifests.MANIFEST) is not None]
    if not artifacts:
        raise FormatError(
            f"{folder.uri} holds no graph and no finished run: no {manifests.MANIFEST} is there"
        )
    return {one.uri: _verify(one, progress) for one in artifacts}


def _verify(folder: RemoteFolder, progress: Progress) -> dict[str, Any]:
    place = f"{folder.uri}/{manifests.MANIFEST}"
    manifest = manifests.parse(place, folder.read(manifests.MANIFEST))
    files = files_of(place, manifest)
    here = {name: spec for name, spec in files.items() if _is_there(folder, manifest, spec)}
    total = sum(spec.data_bytes for spec in here.values())
    progress.start(_TASK, total, "bytes")
    with ThreadPoolExecutor(READERS, "outcrop-verify") as readers:
        try:
            for spec in here.values():
                _verify_file(folder, spec, readers, partial(progress.advance, _TASK))
        except BaseException:
            readers.shutdown(wait=False, cancel_futures=True)
            raise
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
    def crc_of(offset: int) -> int:
        count = min(RANGE_BYTES, spec.data_bytes - offset)
        return _core.crc32c(as_array(folder.read_range(spec.file, offset, count)))

    crc, offsets = 0, range(0, spec.data_bytes, RANGE_BYTES)
    for offset, own in zip(offsets, readers.map(crc_of, offsets), strict=True):
        count = min(RANGE_BYTES, spec.data_bytes - offset)
        crc = _core.crc32c_combine(crc, own, count)
        advance(count)
    if crc != spec.crc32c:
        raise ChecksumError(
            f"{folder.uri}/{spec.file}: checksum is {crc:08x}, the manifest says {spec.crc32c:08x}: it was damaged "
            "there or on the way; upload it again"
        )
