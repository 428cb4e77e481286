"""Names of nodes or relations: the UTF-8 text of all, one after the other, and where each begins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from outcrop.errors import FormatError
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import ArrayWriter, DiskArray
from outcrop.store.manifest import ArraySpec, Manifest

if TYPE_CHECKING:
    import pyarrow as pa

NAME_ARRAYS = ("names", "name_offsets")  # of a graph: text and offsets
_BLOCK = 4096
_FOUND_BYTES = 4 << 20  # read at a time where names are looked for
_TAG = "names"


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
    with _Names(runtime, path, manifest, arrays) as names:
        text, offsets = names.between(start, len(names) if stop is None else stop)
    raw = text.tobytes()
    return [raw[begin:end].decode() for begin, end in pairwise(offsets.tolist())]


class _Names:
    """Reads the arrays of names; a context manager."""

    def __init__(self, runtime: Runtime, path: Path, manifest: Manifest, arrays: tuple[str, str]):
        missing = [name for name in arrays if name not in manifest.arrays]
        if missing:
            raise FormatError(f"{path} holds no {missing[0]}: import them with the graph")
        self._wrong = f"{path}: {arrays[1]} do not ascend, or lead beyond the text: import it again"
        self._text, self._offsets = (DiskArray(runtime, path, manifest.arrays[name]) for name in arrays)

    def __len__(self) -> int:
        return self._offsets.num_rows - 1

    def __enter__(self) -> _Names:
        return self

    def __exit__(self, *exc: object) -> None:
        self._text.close()
        self._offsets.close()

    def text_bytes(self) -> int:
        """Counts the bytes of all names together."""
        return self._text.num_rows

    def between(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Reads the text uint8 of names ``start:stop`` in one piece, and returns it with int64 [stop - start + 1],
        where each begins.
        """
        ends = self._offsets.read(_TAG, start, stop + 1)
        self._check(ends[:-1], ends[1:])
        return self._text.read(_TAG, int(ends[0]), int(ends[-1])), ends - ends[0]

    def of(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Reads the same of the names of ``nodes`` int64 [n], in their order."""
        if not len(nodes):
            return np.zeros(0, np.uint8), np.zeros(1, np.int64)
        if nodes[-1] - nodes[0] == len(nodes) - 1 and (np.diff(nodes) == 1).all():
            return self.between(int(nodes[0]), int(nodes[-1]) + 1)
        begins, ends = self._offsets.read_ranges(_TAG, nodes, nodes + 2).reshape(-1, 2).T
        self._check(begins, ends)
        filled = ends > begins
        text = self._text.read_ranges(_TAG, begins[filled], ends[filled])
        return text, np.concatenate([[0], np.cumsum(ends - begins)])

    def _check(self, begins: np.ndarray, ends: np.ndarray) -> None:
        if (ends < begins).any() or (begins < 0).any() or (ends > self._text.num_rows).any():
            raise FormatError(self._wrong)


def _strings(text: np.ndarray, offsets: np.ndarray) -> pa.LargeStringArray:
    """Returns an Arrow array over ``text`` uint8, cut at ``offsets`` int64 [n + 1], without a copy of the text."""
    import pyarrow as pa

    ends = np.ascontiguousarray(offsets, np.int64)
    return pa.LargeStringArray.from_buffers(len(ends) - 1, pa.py_buffer(ends), pa.py_buffer(text))


class NodeNames:
    """Reads what the nodes of a graph are called in its source: their ids there, text or integers.

    Nothing is held between calls. A context manager, which closes the files.

    Args:
        runtime: Runtime whose budget the names that are read count in.
        path: Folder of the graph.
        manifest: Manifest of the graph, with the arrays of its names.
        integers: Whether the names are integers written as text.
        prefix: What the names of their arrays begin with: that of their node type.

    Raises:
        FormatError: The graph has none.
    """

    def __init__(self, runtime: Runtime, path: Path, manifest: Manifest, integers: bool, prefix: str = ""):
        self._integers = integers
        text, offsets = NAME_ARRAYS
        self._names = _Names(runtime, path, manifest, (prefix + text, prefix + offsets))

    def __enter__(self) -> NodeNames:
        return self

    def __exit__(self, *exc: object) -> None:
        self._names.__exit__(*exc)

    def bytes_per_name(self) -> int:
        """Counts the bytes that reading one name takes, on average, rounded up."""
        return 8 + -(-self._names.text_bytes() // max(len(self._names), 1))

    def of(self, nodes: np.ndarray) -> pa.Array:
        """Reads the names of ``nodes`` int64 [n] as an Arrow array [n]: text, or int64 where the source had those."""
        import pyarrow as pa

        found = _strings(*self._names.of(nodes))
        return found.cast(pa.int64()) if self._integers else found

    def find(self, names: Sequence[str]) -> np.ndarray:
        """Returns the node of each of ``names`` as int64 [n], the first where two have one name; -1 where there is
        none.

        Reads all names of the graph once, a block at a time.
        """
        import pyarrow as pa
        from pyarrow import compute

        distinct = {name: place for place, name in enumerate(dict.fromkeys(names))}
        wanted = compute.SetLookupOptions(value_set=pa.array(list(distinct), pa.large_string()))
        found = np.full(len(distinct), -1, np.int64)
        step = max(_FOUND_BYTES // self.bytes_per_name(), 1)
        for start in range(0, len(self._names), step):
            block = _strings(*self._names.between(start, min(start + step, len(self._names))))
            places = compute.call_function("index_in", [block], wanted)
            known = places.is_valid().to_numpy(zero_copy_only=False)
            at, rows = places.drop_null().to_numpy(), start + np.flatnonzero(known)
            new = found[at] < 0
            found[at[new][::-1]] = rows[new][::-1]
        return found[[distinct[name] for name in names]]
