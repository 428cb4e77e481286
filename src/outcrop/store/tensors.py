"""Safetensors files with a header that says what they are: replaced atomically, checked when read. No pickle.

Header entry ``outcrop``: JSON with format, version, the SHA-256 of all tensors, and what whoever writes has to say. It
begins with ``header_sha256``, the SHA-256 of the rest of this JSON; in files of earlier versions it does not.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from outcrop.errors import ArgumentError, ChecksumError, FormatError, IoError
from outcrop.runtime.parsing import parse_json
from outcrop.store import identity
from outcrop.store.manifest import sync_folder, write_atomic

_CHECKSUM = "header_sha256"
_SEALED = re.compile(
    rf'\{{"(.{{{len(_CHECKSUM)}}})": "([^"]{{64}})", '
)  # how a header with a checksum begins
AGAIN = "train again, or point to another checkpoint folder"

State = dict[str, torch.Tensor]


def write_tensors(path: Path, format: str, version: int, tensors: State, meta: dict[str, Any]) -> None:
    """Replaces ``path`` atomically by a safetensors file whose header says what it is; ``meta`` must be JSON."""
    tensors = {name: value.detach().to("cpu").contiguous().clone() for name, value in tensors.items()}
    header = {"format": format, "version": version, "sha256": _digest(tensors), **meta}
    text = json.dumps(header, sort_keys=True)
    sealed = f'{{"{_CHECKSUM}": "{_digest_of_header(text)}", {text[1:]}'
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, save(tensors, {"outcrop": sealed}))
    sync_folder(path.parent)


def read_tensors(
    path: Path, format: str, version: int, *, oldest: int | None = None
) -> tuple[State, dict[str, Any]]:
    """Reads tensors, on the CPU, and header of :func:`write_tensors`, and checks them.

    Args:
        oldest: First version that can still be read; None: only ``version``.

    Raises:
        FormatError: Missing, foreign, truncated, or of another format or version.
        ChecksumError: The tensors, or what the header says, differ from what was written.
    """
    tensors, header = _open(path)
    if header.get("format") != format:
        raise FormatError(f"{path} is a safetensors file, but no checkpoint of Outcrop ({format}): {AGAIN}")
    if header.get("version") not in range(oldest or version, version + 1):
        reads = f"version {version}" if oldest is None else f"versions {oldest} to {version}"
        raise FormatError(
            f"{path} has version {header.get('version')!r}, this Outcrop reads {reads}: {AGAIN}"
        )
    if header.get("sha256") != _digest(tensors):
        raise ChecksumError(
            f"{path}: its tensors differ from those that were written, the file was damaged: {AGAIN}"
        )
    return tensors, header


def require_equal(path: Path, have: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Checks that what ``path`` was made with is what is wanted; fields that are missing are None.

    Raises:
        ArgumentError: Names every field that differs.
    """
    refuse(path, identity.differences(have, wanted, 0, {}), "fresh=True")


def refuse(path: Path, differing: list[str], anew: str) -> None:
    """Raises ArgumentError where ``differing`` names fields in which ``path`` differs from what is wanted.

    Args:
        anew: Argument by which Python starts over; the command's is ``--fresh``.
    """
    if differing:
        raise ArgumentError(
            f"{path} comes from another training, it differs in {', '.join(differing)}: go on with "
            f"the same values, or start over (--fresh, in Python {anew})"
        )


def digest(state: State) -> str:
    """Returns the SHA-256 of names, shapes, dtypes and bytes of ``state``."""
    return _digest({name: value.detach().cpu() for name, value in state.items()})


@contextmanager
def open_tensors(path: Path, framework: str = "pt") -> Iterator[Any]:
    """Opens a file as ``safetensors.safe_open`` does, which tells in several ways that there is no memory to map it.

    Raises:
        IoError: It cannot be mapped.
    """
    try:
        with safe_open(path, framework=framework) as file:
            yield file
    except (MemoryError, RuntimeError) as error:
        why = f"{path} cannot be mapped into memory: {error}"
        raise IoError(
            errno.ENOMEM, f"{why}; free some, or raise the limit on address space (ulimit -v)"
        ) from None


def _open(path: Path) -> tuple[State, dict[str, Any]]:
    if not path.is_file():
        raise FormatError(f"{path} is missing: train with a checkpoint folder first")
    try:
        with open_tensors(path) as file:
            header = header_of(path, (file.metadata() or {}).get("outcrop", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (IoError, ChecksumError):
        raise
    except (SafetensorError, OSError, ValueError) as error:
        raise FormatError(f"{path} is truncated, damaged or no safetensors file ({error}): {AGAIN}") from None
    if not isinstance(header, dict):
        raise FormatError(f"{path} is a safetensors file, but no checkpoint of Outcrop: {AGAIN}")
    return tensors, header


def header_of(path: Path, text: str) -> Any:
    """Reads what a header says, and compares it with its checksum where it has one.

    Raises:
        ChecksumError: It says other than was written.
        ValueError: It is no JSON.
    """
    sealed = _SEALED.match(text)
    if sealed is None:
        return parse_json(text)
    text = "{" + text[sealed.end() :]
    if sealed[1] != _CHECKSUM or sealed[2] != _digest_of_header(text):
        raise ChecksumError(
            f"{path}: what its header says differs from what was written, the file was damaged: {AGAIN}"
        )
    return parse_json(text)


def _digest_of_header(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _digest(tensors: State) -> str:
    sha = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name]
        sha.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        sha.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()
