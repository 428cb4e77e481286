"""Names of nodes or relations: the UTF-8 text of all, one after the other, and where each begins."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from outcrop.errors import FormatError
from outcrop.runtime import Runtime
from outcrop.store.arrays import ArrayWriter, DiskArray
from outcrop.store.graph import Graph
from outcrop.store.manifest import ArraySpec, Manifest

_BLOCK = 4096


def write_names(
    runtime: Runtime, folder: Path, names: Iterable[str], text_name: str, offsets_name: str
) -> tuple[dict[str, ArraySpec], int]:
    """Writes arrays ``text_name`` uint8 and ``offsets_name`` int64 [count + 1]; their specs, and how many names."""
    text = ArrayWriter(runtime, folder, text_name, "uint8")
    offsets = ArrayWriter(runtime, folder, offsets_name, "int64")
    offsets.append(np.zeros(1, np.int64))
    at, count, rest = 0, 0, iter(names)
    while block := [name.encode() for name in islice(rest, _BLOCK)]:
        ends = at + np.cumsum([len(name) for name in block], dtype=np.int64)
        text.append(np.frombuffer(b"".join(block), np.uint8))
        offsets.append(ends)
        at, count = int(ends[-1]), count + len(block)
    return {text_name: text.finish(), offsets_name: offsets.finish()}, count


def read_text(
    runtime: Runtime,
    path: Path,
    manifest: Manifest,
    arrays: tuple[str, str],
    start: int = 0,
    stop: int | None = None,
) -> list[str]:
    """Names ``start:stop`` of the ``arrays`` with text and offsets.

    Raises:
        FormatError: An array is missing or damaged.
    """
    missing = [name for name in arrays if name not in manifest.arrays]
    if missing:
        raise FormatError(f"{path} holds no {missing[0]}: import them with the graph")
    text, offsets = (DiskArray(runtime, path, manifest.arrays[name]) for name in arrays)
    stop = offsets.spec.shape[0] - 1 if stop is None else stop
    ends = offsets.read("names", start, stop + 1)
    if (np.diff(ends) < 0).any() or ends[0] < 0 or ends[-1] > text.spec.shape[0]:
        raise FormatError(f"{path}: {arrays[1]} do not ascend, or lead beyond the text: import it again")
    begin = int(ends[0])
    raw = text.read("names", begin, int(ends[-1])).tobytes()
    text.close()
    offsets.close()
    at = (ends - begin).tolist()
    return [raw[a:b].decode() for a, b in pairwise(at)]


def read_names(graph: Graph, runtime: Runtime, start: int = 0, stop: int | None = None) -> list[str]:
    """Names of nodes ``start:stop``. Raises FormatError where the graph has none."""
    return read_text(runtime, graph.path, graph.manifest, ("names", "name_offsets"), start, stop)
