"""fetch and upload: graphs and runs to and from object stores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from outcrop.config.declared import checks_arguments
from outcrop.runtime.observer import Observer
from outcrop.store import transport
from outcrop.store.transport import TransportReport


@checks_arguments
def fetch(
    uri: str,
    out: str | Path,
    *,
    graph: str | Path | None = None,
    parts: Sequence[int] | None = None,
    leave_features: bool = False,
    overwrite: bool = False,
    observer: Observer | None = None,
) -> TransportReport:
    """Copies a graph or a run from an object store to the folder ``out``, and compares every byte with its checksum.

    Interrupted at any moment, the same call goes on where it was; what is there already is left alone.

    Args:
        uri: Where it lies: ``s3://bucket/my.oc``, ``gs://``, ``abfs://``, ``hdfs://`` or ``file:///path``, with options
            behind a ``?`` as pyarrow.fs has them (``region``, ``endpoint_override``).
        out: Folder to make; for a run, its folder.
        graph: Of a run: the folder of its graph here. None: it lies where the run says, seen from ``out``.
        parts: Of a run whose batches lie in parts (:class:`outcrop.PackConfig`): those that are wanted here, beside
            those that are here already. None: all.
        leave_features: Of a graph: leave its features in the store, where :func:`outcrop.prepare` reads them, once and
            in large ranges. What needs rows one by one says that they are not here; the same call without this brings
            them. Keys in ``uri`` are not kept: the environment must have the rights.
        overwrite: Replace another artifact in ``out``; without it that is an error.
        observer: Progress (:class:`outcrop.Observer`).

    Raises:
        FormatError: There is nothing at ``uri``, or a file there is not as large as its manifest says.
        ChecksumError: Bytes that came differ from those that were written.
        IoError: The store or the disk failed; names the file.
        ArgumentError: Something else is in the way, or the graph of a run is not known.
    """
    with (observer or Observer()).watching() as progress:
        home = None if graph is None else Path(graph)
        request = transport.FetchRequest(Path(out), home, parts, leave_features, overwrite)
        return transport.fetch(uri, request, progress)


@checks_arguments
def upload(
    folder: str | Path, uri: str, *, overwrite: bool = False, observer: Observer | None = None
) -> TransportReport:
    """Copies a graph or a run to an object store; it is there when its manifest is, which is written last.

    Every byte is compared with its checksum on the way. Interrupted, the same call goes on with the file it was at.

    Args:
        folder: The graph or the run.
        uri: Where to, as for :func:`fetch`.
        overwrite: Replace another artifact at ``uri``; without it that is an error.
        observer: Progress (:class:`outcrop.Observer`).

    Raises:
        FormatError: ``folder`` is neither, or not finished.
        ChecksumError: A file was damaged after it was written.
        IoError: The store failed; names the file.
        ArgumentError: Another artifact is there.
    """
    with (observer or Observer()).watching() as progress:
        return transport.upload(Path(folder), uri, overwrite=overwrite, progress=progress)
