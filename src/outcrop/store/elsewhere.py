"""Row files of a graph that were left in an object store, whose other files are here: where they are.

``elsewhere.json`` in the folder of the graph names them. Preparing reads them there, one chunk after another.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from outcrop.errors import FormatError
from outcrop.runtime.parsing import parse_json

ELSEWHERE = "elsewhere.json"


@dataclass(frozen=True)
class Elsewhere:
    """Names the files of an artifact that are not in its folder.

    Attributes:
        uri: Folder in a store that has them, with options of the store and without keys.
        files: Their names.
    """

    uri: str = ""
    files: tuple[str, ...] = ()

    def to_json(self) -> bytes:
        return (json.dumps(asdict(self), indent=1) + "\n").encode()


def read_elsewhere(folder: Path) -> Elsewhere:
    """Reads what is said of files that are not in ``folder``: of none, where nothing is.

    Raises:
        FormatError: It cannot be read.
    """
    path = folder / ELSEWHERE
    try:
        raw = parse_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return Elsewhere()
    except (ValueError, OSError) as error:
        raise FormatError(f"{path} cannot be read: {error}") from None
    files = raw.get("files") if isinstance(raw, dict) else None
    uri = raw.get("uri") if isinstance(raw, dict) else None
    if not isinstance(uri, str) or not isinstance(files, list) or not all(isinstance(f, str) for f in files):
        raise FormatError(f"{path} lacks or garbles a field: fetch the graph again")
    return Elsewhere(uri, tuple(files))
