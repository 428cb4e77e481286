"""A knowledge graph: edges with relations, and the names of entities and relations.

Arrays: ``train``, ``valid``, ``test`` uint32 [n, 3] (source, relation, target), in the order of their files; of a
plain edge list [n, 2] (source, target). ``entity_names`` uint8 and ``entity_name_offsets`` int64 [N + 1],
``relation_names`` and ``relation_name_offsets`` likewise: UTF-8 text of all names, in the order of the ids.
Attributes: num_entities, num_relations (0: a plain edge list), skipped_valid, skipped_test (triples of entities or
relations that the training triples do not have).
"""

from __future__ import annotations

from pathlib import Path

from outcrop.config.sampling import SPLITS
from outcrop.errors import FormatError
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store.arrays import DiskArray
from outcrop.store.manifest import Manifest
from outcrop.store.names import read_text

FORMAT, VERSION = "outcrop.triples", 1
KINDS = ("entity", "relation")


class Triples:
    """Opens a knowledge graph on disk: the manifest is read at once, arrays as they are asked for.

    Attributes:
        notes: What an import had to say of it, a sentence each; empty where it was opened from disk.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, path: Path, manifest: Manifest):
        self.path, self.manifest = path, manifest
        try:
            self.num_entities: int = manifest.attributes["num_entities"]
            self.num_relations: int = manifest.attributes["num_relations"]
        except KeyError as error:
            raise FormatError(f"{path}: its manifest lacks attribute {error}") from None
        self.width = 3 if self.num_relations else 2
        for split in SPLITS:
            spec = manifest.arrays.get(split)
            if spec is None and split == "train":
                raise FormatError(f"{path}: array 'train' is missing")
            if spec is not None and (len(spec.shape) != 2 or spec.shape[1] != self.width):
                raise FormatError(f"{path}: array {split!r} has shape {spec.shape}, not [n, {self.width}]")

    def __repr__(self) -> str:
        splits = "".join(f", {split}={self.count(split)}" for split in SPLITS)
        counts = f"entities={self.num_entities}, relations={self.num_relations}{splits}"
        return f"Triples({counts}, path={str(self.path)!r})"

    def count(self, split: str) -> int:
        """Triples of ``split``; 0 where there are none."""
        spec = self.manifest.arrays.get(split)
        return spec.shape[0] if spec else 0

    def array(self, runtime: Runtime, split: str) -> DiskArray:
        """Opens uint32 [n, width] of ``split`` for reading. Raises FormatError where there are none."""
        if split not in self.manifest.arrays:
            raise FormatError(f"{self.path} holds no {split} triples")
        return DiskArray(runtime, self.path, self.manifest.arrays[split])

    def names(self, runtime: Runtime, kind: str, start: int = 0, stop: int | None = None) -> list[str]:
        """Reads the names of ``entity`` or ``relation`` ids ``start:stop``."""
        arrays = (f"{kind}_names", f"{kind}_name_offsets")
        return read_text(runtime, self.path, self.manifest, arrays, start, stop)

    def digest(self) -> str:
        return self.manifest.digest()


def open_triples(path: Path | str) -> Triples:
    """Opens the knowledge graph at ``path``.

    Raises:
        FormatError: Missing, foreign, of another version, or truncated.
    """
    path = Path(path)
    with manifests.opening(path, FORMAT, VERSION) as manifest:
        return Triples(path, manifest)
