"""Files of ``torch.save``, read as data: neither torch nor anything that a file names is imported or called.

Both forms are read: a zip archive with ``data.pkl`` and the storages ``data/0``, ``data/1``, ..., and the older one
where pickles and storages follow each other. Tensors and arrays are views of a map of the file, wherever their bytes
lie there as they are; what has to be inflated or decoded first is held in the memory budget.
"""

from __future__ import annotations

import codecs
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from outcrop.errors import FormatError
from outcrop.importing.sources.file_map import MOST_AXES, is_size, map_of, strided
from outcrop.importing.sources.pickles import Blob, Made, Name, PickleReader, StorageKey
from outcrop.runtime.runtime import Runtime

_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # of the form without zip
_STORAGES = {
    "Double": "f8",
    "Float": "f4",
    "Half": "f2",
    "Long": "i8",
    "Int": "i4",
    "Short": "i2",
    "Char": "i1",
    "Byte": "u1",
    "Bool": "?",
    "BFloat16": "bf16",
    "Untyped": "u1",
}
_DTYPES = {
    **{f"float{bits}": f"f{bits // 8}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"u{bits // 8}" for bits in (8, 16, 32, 64)},
    "bool": "?",
    "bfloat16": "bf16",
}
_ZIP_END, _ZIP64_END, _ZIP64_PLACE = (
    re.compile(b"PK" + kind) for kind in (b"\x05\x06", b"\x06\x06", b"\x06\x07")
)
_IN_ZIP64 = (1 << 32) - 1
_NUMPY_TYPE = re.compile(r"(b1|[iu][1248]|f[248]|[SU]\d{1,4})")
_TENSORS = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3")
_MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
_FROM_BUFFER = ("numpy.core.numeric._frombuffer", "numpy._core.numeric._frombuffer")
_TABLE_PER_BYTE = 24  # what the table of members of a zip archive takes in memory, for each byte in the file
_ZIP_END_BYTES = (1 << 16) + 256  # at the end of an archive, which say where that table is
_DECODED_AT_ONCE = 1 << 16
_SCRATCH = 8 * _DECODED_AT_ONCE  # what decoding and inflating take for a moment

KNOWN = frozenset(
    (
        *(f"torch.{kind}Storage" for kind in _STORAGES),
        "torch.storage.UntypedStorage",
        "torch.storage._UntypedStorage",
        *(f"torch.{dtype}" for dtype in _DTYPES),
        *(f"torch._utils.{function}" for function in _TENSORS),
        "torch._utils._rebuild_parameter",
        "torch._utils._rebuild_sparse_tensor",
        "torch.serialization._get_layout",
        "torch.Size",
        *(f"{module}.{function}" for module in _MULTIARRAY for function in ("_reconstruct", "scalar")),
        *_FROM_BUFFER,
        "numpy.ndarray",
        "numpy.dtype",
        "_codecs.encode",
    )
)


@dataclass(frozen=True, eq=False)
class Unreadable:
    """Stands for a value that is understood, but that no import can take; ``why`` says what to do."""

    why: str


@dataclass(frozen=True, eq=False)
class Sparse:
    """Holds a sparse tensor: its layout as torch calls it, and the parts that torch keeps of it."""

    layout: str
    parts: tuple[Any, ...]


class TorchFile:
    """Has what ``torch.save`` wrote: ``root``, and the arrays of its values.

    Args:
        known: Full names of classes that may be named besides tensors and arrays.
        remedy: What to do about a class that is not known.
        held: Keeps the file and the budget of what is not read from its map.

    Raises:
        ArgumentError: There is no such file.
        FormatError: It is no file of ``torch.save``, is torn, or names what is not known.
        BudgetError: The memory budget has no room for what must be inflated, decoded or built.
    """

    def __init__(
        self,
        path: Path,
        known: frozenset[str],
        remedy: str,
        runtime: Runtime,
        held: ExitStack,
    ):
        self.path, self._runtime, self._held = path, runtime, held
        self._known, self._remedy = KNOWN | known, remedy
        self._bytes = map_of(path)
        self._storages: dict[str, np.ndarray] = {}
        self._order = "<"
        if self._bytes[:4].tobytes() == b"PK\x03\x04":
            self._members = self._zip_members()
            self.root = self._open_zip()
        else:
            self._members = {}
            self.root = self._open_old()

    def value(self, raw: Any, name: str) -> Any:
        """Returns a value of the file: an array of what was a tensor or an array, else what the pickle holds.

        Args:
            name: What messages call it.

        Raises:
            FormatError: It does not lie within the file, or is no array of plain numbers or text.
        """
        if not isinstance(raw, Made):
            return raw
        full = str(raw.by)
        try:
            return self._made(raw, full, raw.arguments, f"{self.path}: {name}")
        except FormatError:
            raise
        except (TypeError, ValueError, AttributeError, LookupError, OverflowError):
            raise FormatError(f"{self.path}: {name} is damaged: {full} has other values") from None

    def _made(self, raw: Made, full: str, arguments: Sequence[Any], name: str) -> Any:
        if full.startswith("torch._utils._rebuild_tensor"):
            return self._tensor(name, full, arguments)
        if full == "torch._utils._rebuild_parameter":
            inner = next(iter(arguments), None)
            if not isinstance(inner, Made) or "_rebuild_tensor" not in inner.by.name:
                raise FormatError(f"{name} is a parameter without a tensor: the file is damaged")
            return self._tensor(name, str(inner.by), inner.arguments)
        if full == "torch._utils._rebuild_sparse_tensor":
            layout, parts = arguments
            return Sparse(str(layout.arguments[0]), tuple(parts))
        if full == "torch.Size":
            return tuple(int(size) for size in arguments[0])
        if full.endswith("multiarray._reconstruct"):
            _, shape, dtype, fortran, data = raw.state
            return self._array(name, shape, dtype, bool(fortran), data)
        if full.endswith("multiarray.scalar"):
            return self._array(name, (), arguments[0], False, arguments[1])[()]
        if full in _FROM_BUFFER:
            data, dtype, shape, order = arguments
            return self._array(name, shape, dtype, order == "F", data)
        return raw

    # Tensors.

    def _tensor(self, name: str, full: str, arguments: Sequence[Any]) -> Any:
        stored, offset, sizes, strides = arguments[:4]
        if full.endswith("_v3"):
            dtype, metadata = _DTYPES[arguments[6].name], arguments[7:8]
        else:
            dtype, metadata = "", arguments[6:7]
        if any(metadata):
            return Unreadable(
                f"{name} is a view that is not plain: save it again with .resolve_neg().clone()"
            )
        kind, storage = self._storage(name, stored)
        dtype = dtype or kind
        if dtype == "bf16":
            return Unreadable(
                f"{name} is bfloat16, which NumPy does not know: save it as .view(torch.uint16) and import with "
                "ImportConfig(bfloat16_bits=True), or as .float()"
            )
        return strided(name, storage, np.dtype(self._order + dtype), offset, tuple(sizes), tuple(strides))

    def _storage_key(self, name: str, stored: Any) -> tuple[str, str, int, tuple[int, int] | None]:
        """Returns the type, key and length of a storage, and the part of it that a view takes (old files)."""
        fields: Any = stored.key if isinstance(stored, StorageKey) and isinstance(stored.key, tuple) else ()
        if len(fields) not in (5, 6) or fields[0] != "storage" or not isinstance(fields[1], Name):
            raise FormatError(f"{name} has no storage: the file is damaged")
        kind = _STORAGES.get(fields[1].name.lstrip("_").removesuffix("Storage"))
        if kind is None or not is_size(fields[4]):
            raise FormatError(f"{name} has a storage of {fields[1]} that is not known")
        view = fields[5] if len(fields) == 6 else None
        part = None if view is None else (view[1], view[2])
        if part and not all(is_size(size) for size in part):
            raise FormatError(f"{name} has a storage of a wrong size: the file is damaged")
        return kind, str(fields[2]), fields[4], part

    def _storage(self, name: str, stored: Any) -> tuple[str, np.ndarray]:
        """Returns the type and the bytes of a storage."""
        kind, key, count, view = self._storage_key(name, stored)
        if key not in self._storages:
            if f"data/{key}" not in self._members:
                raise FormatError(f"{name} lies in storage {key[:20]!r}, which the file does not have")
            self._storages[key] = self._member(f"data/{key}")
        storage, element = self._storages[key], _element_bytes(kind)
        begin, end = (0, count) if view is None else (view[0], sum(view))
        if len(storage) < element * max(count, end):
            raise FormatError(
                f"{name} lies in storage {key[:20]!r} of {element * max(count, end)} bytes, of which "
                f"{len(storage)} are there: the file is torn"
            )
        return kind, storage[element * begin : element * end]

    # NumPy arrays inside the pickle.

    def _array(self, name: str, shape: Any, dtype: Any, fortran: bool, data: Any) -> np.ndarray:
        element = self._dtype(name, dtype)
        sizes = tuple(shape)
        if len(sizes) > MOST_AXES or not all(is_size(size) for size in sizes):
            raise FormatError(f"{name} has the shape {sizes[:5]}: the file is damaged")
        content = self._content(name, data)
        if len(content) != prod(sizes) * element.itemsize:
            raise FormatError(
                f"{name} has {len(content)} bytes, its shape {sizes} of {element} needs "
                f"{prod(sizes) * element.itemsize}: the file is damaged"
            )
        if not len(content):
            return np.zeros(sizes, element)
        return np.ndarray(sizes, element, content, order="F" if fortran else "C")

    def _dtype(self, name: str, made: Any) -> np.dtype:
        if isinstance(made, Made) and str(made.by) == "numpy.dtype":
            code, state = made.arguments[0], made.state
            order = state[1] if state else "|"
            plain = state is None or not any(state[2:5])
            if plain and order in ("<", ">", "|", "=") and _NUMPY_TYPE.fullmatch(str(code)):
                return np.dtype(str(code)).newbyteorder("=" if order == "|" else order)
            if str(code).startswith("O"):
                raise FormatError(
                    f"{name} holds Python objects, which are never loaded: save numbers instead"
                )
        raise FormatError(f"{name} is an array of a type that is not read: save numbers or text instead")

    def _content(self, name: str, data: Any) -> np.ndarray:
        """Returns the bytes of an array, uint8 [n]; of the map where they lie in it as they are."""
        if isinstance(data, Made) and str(data.by) == "_codecs.encode":
            text, encoding = data.arguments
            if encoding != "latin1" or not (isinstance(text, str) or (isinstance(text, Blob) and text.text)):
                raise FormatError(f"{name} has bytes in an encoding that is not known: the file is damaged")
            return self._latin1(name, text)
        if isinstance(data, Blob) and not data.text:
            return data.data
        if isinstance(data, bytes):
            return np.frombuffer(data, np.uint8)
        raise FormatError(f"{name} has no bytes: the file is damaged, or holds Python objects")

    def _latin1(self, name: str, text: str | Blob) -> np.ndarray:
        """Returns bytes that a pickle of protocol 2 holds as text, a character each; in the memory budget."""
        if isinstance(text, str):
            return np.frombuffer(text.encode("latin-1"), np.uint8)
        steps = range(0, len(text.data), _DECODED_AT_ONCE)
        blocks = (text.data[at : at + _DECODED_AT_ONCE] for at in steps)
        with self._runtime.budget.reserve("import", _SCRATCH):
            count = sum(int(((block & 0xC0) != 0x80).sum()) for block in blocks)
            self._held.enter_context(self._runtime.budget.reserve("import", count))
            decoded, filled, decoder = np.empty(count, np.uint8), 0, codecs.getincrementaldecoder("utf-8")()
            for at in steps:
                block = text.data[at : at + _DECODED_AT_ONCE].tobytes()
                part = decoder.decode(block, at + _DECODED_AT_ONCE >= len(text.data)).encode("latin-1")
                decoded[filled : filled + len(part)] = np.frombuffer(part, np.uint8)
                filled += len(part)
        return decoded

    # The two forms.

    def _pickle(self, name: str, data: np.ndarray) -> PickleReader:
        return PickleReader(name, data, self._known, self._remedy, self._runtime, self._held)

    def _zip_members(self) -> dict[str, zipfile.ZipInfo]:
        """Lists the members by their name without the folder that all of them are in."""
        table = _zip_table_bytes(self._bytes)
        self._held.enter_context(self._runtime.budget.reserve("import", _TABLE_PER_BYTE * table))
        try:
            with zipfile.ZipFile(self.path) as archive:
                infos = archive.infolist()
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            raise FormatError(f"{self.path} is no file of torch.save or is torn: {error}") from None
        pickles = [info.filename for info in infos if info.filename.endswith("data.pkl")]
        if len(pickles) != 1:
            raise FormatError(
                f"{self.path} has {len(pickles)} members data.pkl; a file of torch.save has one"
            )
        folder = pickles[0].removesuffix("data.pkl")
        return {
            info.filename.removeprefix(folder): info for info in infos if info.filename.startswith(folder)
        }

    def _open_zip(self) -> Any:
        if "byteorder" in self._members:
            order = self._member("byteorder")[:16].tobytes().strip()
            if order not in (b"little", b"big"):
                raise FormatError(f"{self.path} has the byte order {order!r}; little or big is needed")
            self._order = ">" if order == b"big" else "<"
        return self._pickle(f"{self.path} data.pkl", self._member("data.pkl")).load()

    def _member(self, name: str) -> np.ndarray:
        """Returns the bytes of a member, uint8 [n]: of the map, or inflated into the memory budget."""
        info, where = self._members[name], f"{self.path} member {name!r}"
        header = self._bytes[info.header_offset : info.header_offset + 30].tobytes()
        if len(header) < 30 or header[:4] != b"PK\x03\x04" or info.flag_bits & 1:
            raise FormatError(f"{where} is torn or encrypted: save the file again")
        start = info.header_offset + 30 + sum(struct.unpack("<HH", header[26:]))
        packed = self._bytes[start : start + info.compress_size]
        if len(packed) < info.compress_size:
            raise FormatError(
                f"{where} is torn: {info.compress_size} bytes are promised, {len(packed)} are there"
            )
        if info.compress_type == zipfile.ZIP_STORED and info.compress_size == info.file_size:
            return packed
        if info.compress_type != zipfile.ZIP_DEFLATED:
            raise FormatError(f"{where} is compressed in a way that torch.save does not use: save it again")
        return self._inflated(where, packed, info.file_size)

    def _inflated(self, where: str, packed: np.ndarray, size: int) -> np.ndarray:
        self._held.enter_context(self._runtime.budget.reserve("import", size))
        data, filled = np.empty(size, np.uint8), 0
        with self._runtime.budget.reserve("import", _SCRATCH):
            for part in _inflated_blocks(where, packed):
                if filled + len(part) > size:
                    raise FormatError(f"{where} inflates to more than the {size} bytes that it promises")
                data[filled : filled + len(part)] = np.frombuffer(part, np.uint8)
                filled += len(part)
        if filled < size:
            raise FormatError(f"{where} is torn: it inflates to {filled} of {size} bytes")
        return data

    def _open_old(self) -> Any:
        pickles = self._pickle(str(self.path), self._bytes)
        if not self._begins_as_old():
            raise FormatError(
                f"{self.path} is no file of torch.save: save the graph with torch.save(data, {self.path.name!r})"
            )
        magic, protocol, system = (pickles.load() for _ in range(3))
        if magic != _MAGIC or protocol != _PROTOCOL or not isinstance(system, dict):
            raise FormatError(f"{self.path} is of a version of torch.save that is not read: save it again")
        root = pickles.load()
        stored, keys = list(pickles.stored), pickles.load()
        self._find_storages(stored, keys, pickles.position)
        return root

    def _begins_as_old(self) -> bool:
        """Tells whether the magic number is in front, in any protocol."""
        begin = self._bytes[:64].tobytes()
        return _MAGIC.to_bytes(10, "little") in begin or str(_MAGIC).encode() in begin

    def _find_storages(self, stored: list[StorageKey], keys: Any, position: int) -> None:
        sizes: dict[str, int] = {}
        for one in stored:
            kind, key, _, _ = self._storage_key(str(self.path), one)
            sizes[key] = _element_bytes(kind)
        for key in keys if isinstance(keys, list) else ():
            count = int.from_bytes(self._bytes[position : position + 8].tobytes(), "little", signed=True)
            end = position + 8 + count * sizes.get(str(key), 0)
            if str(key) not in sizes or count < 0 or end > len(self._bytes):
                raise FormatError(
                    f"{self.path}: storage {str(key)[:20]!r} at byte {position} is torn or not known: {count} elements"
                )
            self._storages[str(key)] = self._bytes[position + 8 : end]
            position = end


def _zip_table_bytes(data: np.ndarray) -> int:
    """Returns how long the table of members of a zip archive is, at the most, before anything reads it.

    Whatever may be the record that says so counts, in either form; readers differ in which one they take.
    """
    tail, sizes = data[-_ZIP_END_BYTES:].tobytes(), [0]
    sizes += [
        int.from_bytes(tail[m.start() + 12 : m.start() + 16], "little") for m in _ZIP_END.finditer(tail)
    ]
    records = [tail[m.start() : m.start() + 56] for m in _ZIP64_END.finditer(tail)]
    for m in _ZIP64_PLACE.finditer(tail):
        begin = int.from_bytes(tail[m.start() + 8 : m.start() + 16], "little")
        records.append(data[begin : begin + 56].tobytes())
    sizes += [int.from_bytes(record[40:48], "little") for record in records]
    return max(min(size, len(data)) for size in sizes if size != _IN_ZIP64)


def _inflated_blocks(where: str, packed: np.ndarray) -> Iterator[bytes]:
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        for at in range(0, len(packed), _DECODED_AT_ONCE):
            rest = packed[at : at + _DECODED_AT_ONCE].tobytes()
            while rest and not inflate.eof:
                yield inflate.decompress(rest, _DECODED_AT_ONCE)
                rest = inflate.unconsumed_tail
    except zlib.error as error:
        raise FormatError(f"{where} is torn: {error}") from None


def _element_bytes(kind: str) -> int:
    return 2 if kind == "bf16" else np.dtype(kind).itemsize
