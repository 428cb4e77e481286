"""Sources in object stores: copied beside the graph that is made of them, imported from there, and removed. And graphs
that are made for a store: made in the user's cache folder, uploaded, and removed.

Files come in ranges into the hidden folder ``.NAME.source``; an interrupted copy goes on. What is at the source must
stay as it is meanwhile: sizes and times of all files are compared before and after.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outcrop.config.places import is_uri
from outcrop.errors import ArgumentError, FormatError, renaming
from outcrop.runtime.progress import Progress, shown
from outcrop.runtime.system import cache_folder
from outcrop.store import manifest as manifests
from outcrop.store.lock import only_process_in
from outcrop.store.range_copy import FileSize, RangeCopy
from outcrop.store.remote import FileState, RemoteFolder, with_options_only, without_keys
from outcrop.store.transport import upload


@dataclass(frozen=True)
class StoredSource:
    """Names a source in an object store.

    Attributes:
        kind: Kind of the source, such as ``arrays``; empty where it is to be guessed.
        uri: The folder or file.
    """

    kind: str
    uri: str

    def record(self, options: dict[str, Any]) -> dict[str, Any]:
        """Describes an import of it before anything is read, as :func:`outcrop.store.imported.record` does.

        Raises:
            FormatError: Nothing is there.
        """
        files = {name: [state.size, state.changed_ns, 0] for name, state in self._listed()[1].items()}
        source = ":".join(filter(None, (self.kind, without_keys(self.uri))))
        return {"source": source, "options": manifests.plain(options), "files": files}

    @contextmanager
    def staged(self, out: Path, progress: Progress | bool | None) -> Iterator[Path]:
        """Yields the copy, a folder or a file, for the block; errors in it name the URI.

        The copy is removed when the block ends well, and else is there for the next call.

        Raises:
            FormatError: Nothing is there, or it was changed while it was copied.
            IoError: The store or the disk failed, or has no room.
        """
        folder, files = self._listed()
        work = out.parent / f".{out.name}.source"
        with only_process_in(work):
            of = {
                "source": with_options_only(self.uri),
                "files": {name: list(state) for name, state in files.items()},
            }
            sizes = {name: FileSize(state.size, state.size) for name, state in files.items()}
            RangeCopy(folder, work, of, sizes).run(shown(progress))
            if self._listed()[1] != files:
                raise FormatError(f"{folder.uri} was changed while it was copied: import it again")
            copy = work / next(iter(files)) if folder.uri != without_keys(self.uri) else work
            with renaming(str(work), folder.uri):
                yield copy
            manifests.remove(work)

    def _listed(self) -> tuple[RemoteFolder, dict[str, FileState]]:
        """Returns the folder, that of a file included, and its files."""
        folder = RemoteFolder(self.uri)
        if (state := folder.as_file()) is not None:
            parent, name = folder.parent()
            return parent, {name: state}
        files = folder.all_files()
        if not files:
            raise FormatError(f"{folder.uri} is not there, or holds no files")
        return folder, files


@contextmanager
def made_for(uri: str, overwrite: bool, progress: Progress | bool | None) -> Iterator[Path]:
    """Yields a folder to make an artifact in, which goes to ``uri`` when the block ends well; then it is removed.

    What an interrupted call has made there is kept for the next.

    Raises:
        ArgumentError: Another artifact is at ``uri``, and ``overwrite`` does not replace it.
        IoError: The store failed.
    """
    remote = RemoteFolder(uri)
    folder = (
        cache_folder() / "outgoing" / hashlib.sha256(uri.encode()).hexdigest()[:32] / Path(remote.uri).name
    )
    if not overwrite and not folder.exists() and remote.size(manifests.MANIFEST) is not None:
        raise ArgumentError(
            f"{remote.uri} holds an artifact: choose another place, or replace it with --overwrite (overwrite=True)"
        )
    with renaming(str(folder), remote.uri):
        yield folder
    upload(folder, uri, overwrite=overwrite, progress=progress)
    manifests.remove(folder.parent)


def stored_source(source: Any) -> StoredSource | None:
    """Returns the source that ``source`` names in a store, such as ``arrays:s3://bucket/folder``; None: it names none.

    Raises:
        ArgumentError: It is a ``Path`` that has lost a slash.
    """
    if not isinstance(source, str):
        return None
    if is_uri(source):
        return StoredSource("", source)
    kind, _, where = source.partition(":")
    return StoredSource(kind, where) if is_uri(where) else None
