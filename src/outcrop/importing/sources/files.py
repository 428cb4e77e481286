"""Which files an import reads: what an import that is repeated compares."""

from __future__ import annotations

from pathlib import Path

from outcrop.config.sampling import SPLITS
from outcrop.errors import IoError
from outcrop.importing.sources.folder import FILES
from outcrop.importing.sources.graphbolt_metadata import named_files
from outcrop.importing.sources.ntriples import files_of_ntriples
from outcrop.importing.sources.ogb_files import folder_of
from outcrop.importing.sources.table_files import TABLE_SUFFIXES
from outcrop.importing.sources.tables_folder import files_of_tables
from outcrop.importing.sources.typed_folder import GRAPH_TOML, files_of_types

# Of sources that are folders; other kinds are one file.
_NAMES = {
    "arrays": tuple(f"{stem}{suffix}" for stem, (_, suffixes) in FILES.items() for suffix in suffixes),
    "triples": tuple(f"{split}{suffix}" for split in SPLITS for suffix in TABLE_SUFFIXES),
    "musae": ("*_edges.csv", "*_target.csv", "*.json"),
    "igb": ("processed/paper/*.npy", "processed/paper__cites__paper/edge_index.npy"),
    "mag240m": ("*.pt", "processed/paper/*.npy", "processed/*/edge_index.npy"),
    "ogb": (
        "raw/*",
        "raw/relations/*/*",
        "raw/node-feat/*/*",
        "raw/node-label/*/*",
        "split/*/*",
        "split/*/*/*",
    ),
}


_NAMES_OF_ALL = {"igb": ("processed/*/*.npy",)}  # with all types


def place_of(kind: str, where: str) -> Path:
    """Returns the file or folder that ``kind:where`` names."""
    return folder_of(Path(where)) if kind == "ogb" else Path(where)


def source_files(kind: str, where: Path, *, all_types: bool = False) -> list[Path]:
    """Lists the files that importing ``kind:where``, perhaps with all types, looks at; empty where there are none.

    Raises:
        IoError: The system does not say which there are: a graph would be kept as made of fewer files than it is.
    """
    names = (_NAMES_OF_ALL if all_types and kind in _NAMES_OF_ALL else _NAMES).get(kind)
    try:
        if kind == "graphbolt":
            return named_files(where)
        if kind == "arrays" and (where / GRAPH_TOML).is_file():
            return files_of_types(where)
        if kind == "ntriples":
            return files_of_ntriples(where)
        if kind == "tables":
            return files_of_tables(where)
        if names is None:
            return [where] if where.is_file() else []
        return [path for name in names for path in where.glob(name) if path.is_file()]
    except (FileNotFoundError, NotADirectoryError):  # the import itself says what is missing
        return []
    except OSError as error:
        if isinstance(error, IoError):
            raise
        raise IoError(
            error.errno or 0, f"{error.filename or where} cannot be read: {error.strerror or error}"
        ) from None
