"""Files of torch.save as tests need them: damaged, hostile, or of classes that are not installed."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch


class Call:
    """Is pickled as a call of ``function`` with ``arguments``; ``state`` is set on what it returns."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None):
        self.function, self.arguments, self.state = function, arguments, state

    def __reduce__(self) -> tuple[Any, ...]:
        made = (self.function, self.arguments)
        return made if self.state is None else (*made, self.state)


class Storage:
    """Is pickled as a storage of torch, whatever is claimed of it."""

    def __init__(self, *fields: Any):
        self.fields = fields


def foreign(module: str, name: str, **members: Any) -> type:
    """A class that is pickled by a name which nobody can import here."""
    return type(name, (), {"__module__": module, "__qualname__": name, **members})


_PythonPickler: Any = pickle._Pickler


class _Pickler(_PythonPickler):
    """Writes the names of classes without looking whether they are there."""

    def persistent_id(self, obj: Any) -> Any:
        return ("storage", *obj.fields) if isinstance(obj, Storage) else None

    def save_global(self, obj: Any, name: str | None = None) -> None:
        self.write(b"c" + f"{obj.__module__}\n{name or obj.__qualname__}\n".encode())
        self.memoize(obj)

    def save_type(self, obj: type) -> None:
        self.save_global(obj)

    dispatch: ClassVar = {**_PythonPickler.dispatch, type: save_type}


def pickled(root: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file, 2).dump(root)
    return file.getvalue()


def write_zip(
    path: Path,
    data_pkl: bytes,
    storages: dict[str, bytes] | None = None,
    compression: int = zipfile.ZIP_STORED,
) -> Path:
    """Writes the zip form of torch.save, of a pickle and the bytes of storages."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("g/data.pkl", data_pkl)
        for key, data in (storages or {}).items():
            archive.writestr(f"g/data/{key}", data)
    return path


def rewritten(path: Path, out: Path, compression: int, swap: bool = False) -> Path:
    """Writes the zip form again: deflated, or (``swap``: all storages int64) as a machine of big endian writes it."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w", compression) as new:
        for info in old.infolist():
            data = old.read(info)
            if swap and "/data/" in info.filename:
                data = np.frombuffer(data, np.int64).byteswap().tobytes()
            new.writestr(info.filename, b"big" if swap and info.filename.endswith("byteorder") else data)
    return out


def tensor_call(fields: tuple[Any, ...], offset: Any = 0, size: Any = (4,), stride: Any = (1,)) -> Call:
    return Call(torch._utils._rebuild_tensor_v2, Storage(*fields), offset, size, stride, False, {})
