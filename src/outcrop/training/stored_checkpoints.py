"""Checkpoints at a URI: written in a folder of this machine, and copied to the store whenever they are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from outcrop.config import Checkpoints
from outcrop.config.places import is_uri
from outcrop.errors import renaming
from outcrop.nn.checkpoint_meta import BEST, LAST
from outcrop.runtime.group import Group
from outcrop.runtime.system import cache_folder
from outcrop.store.lock import only_process_in
from outcrop.store.mirror import FolderMirror
from outcrop.store.remote import without_keys

_FILES = (LAST, BEST)


@dataclass(frozen=True)
class StoredCheckpoints(Checkpoints):
    """Says where checkpoints at a URI go, and where on this machine they are written.

    Attributes:
        uri: Where they go.
    """

    uri: str = ""

    @property
    def place(self) -> str:
        return without_keys(self.uri)

    @property
    def mirror(self) -> FolderMirror:
        return FolderMirror(self.uri, self.path, _FILES)

    def begin(self, leads: bool) -> None:
        """Makes the folder of this machine what the store has; the other way round where this machine was the one that
        trained, and the store failed.

        Args:
            leads: Whether this process writes checkpoints.
        """
        mirror = self.mirror
        if not self.resume:
            if leads:
                mirror.start_over()
        elif leads and mirror.is_ahead():
            from outcrop.nn import checkpoint as checkpoints  # brings torch

            with only_process_in(self.path):
                checkpoints.renew_best(self.path, checkpoints.read(self.path / LAST, "last"))
                mirror.push()
        else:
            mirror.pull()

    def push(self) -> None:
        """Copies what was written to the store."""
        self.mirror.push()


def place_of(kept: Checkpoints) -> str:
    """Returns what was named for checkpoints."""
    return kept.place if isinstance(kept, StoredCheckpoints) else str(kept.folder)


def facts_of(kept: Checkpoints) -> dict[str, Any]:
    """Returns what all processes have in common: folders of machines may have other names, URIs may not."""
    facts = asdict(replace(kept, folder=""))
    return facts | {"uri": kept.place} if isinstance(kept, StoredCheckpoints) else facts


def model_file_of(kept: Checkpoints) -> str:
    """Returns what has the trained model: a file, or the URI that :func:`outcrop.load_model` takes."""
    return kept.place if isinstance(kept, StoredCheckpoints) else str(kept.path / BEST)


def with_folder(kept: Checkpoints | None) -> Checkpoints | None:
    """Returns checkpoints as they are; those at a URI with the folder of this machine, in the user's cache folder."""
    if kept is None or not is_uri(kept.folder):
        return kept
    uri = str(kept.folder)
    given = {field.name: getattr(kept, field.name) for field in fields(kept)}
    folder = cache_folder() / "checkpoints" / hashlib.sha256(uri.encode()).hexdigest()[:32]
    return StoredCheckpoints(**given | {"folder": folder, "uri": uri})


@contextmanager
def begun(kept: Checkpoints | None, group: Group) -> Iterator[None]:
    """Reads the checkpoints of a store, on every machine, before the block; errors in it name the URI."""
    if not isinstance(kept, StoredCheckpoints):
        yield
        return
    with renaming(str(kept.folder), kept.place):
        group.once_a_machine(lambda: kept.begin(group.leads))
        yield
