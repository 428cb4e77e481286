"""Which files an import reads: what an import that is repeated compares."""

from __future__ import annotations

from pathlib import Path

from outcrop.config.sampling import SPLITS
from outcrop.importing.sources.folder import FILES
from outcrop.importing.sources.graphbolt_metadata import named_files
from outcrop.importing.sources.table_files import TABLE_SUFFIXES
from outcrop.importing.sources.typed_folder import GRAPH_TOML, files_of_types

# Of sources that are folders; other kinds are one file.
_NAMES = {
    "arrays": tuple(f"{stem}{suffix}" for stem, (_, suffixes) in FILES.items() for suffix in suffixes),
    "triples": tuple(f"{split}{suffix}" for split in SPLITS for suffix in TABLE_SUFFIXES),
    "musae": ("*_edges.csv", "*_target.csv", "*.json"),
    "igb": ("processed/paper/*.npy", "processed/paper__cites__paper/edge_index.npy"),
    "mag240m": ("*.pt", "processed/paper/*.npy", "processed/*/edge_index.npy"),
    "ogb": ("raw/*", "split/*/*"),
}


def source_files(kind: str, where: Path) -> list[Path]:
    """Lists the files that importing ``kind:where`` looks at; empty where there are none."""
    try:
        if kind == "graphbolt":
            return named_files(where)
        if kind == "arrays" and (where / GRAPH_TOML).is_file():
            return files_of_types(where)
        if kind not in _NAMES:
            return [where] if where.is_file() else []
        return [path for name in _NAMES[kind] for path in where.glob(name) if path.is_file()]
    except OSError:  # the import itself says what cannot be read
        return []
