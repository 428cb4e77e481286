"""What a kernel takes of a GPU, read from a cubin: an ELF file whose sections `.nv.info` hold what ptxas decided."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_SECTION = struct.Struct(
    "<IIQQQQIIQQ"
)  # name, type, flags, address, offset, size, link, info, alignment, entry size
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOLS = 2  # type of a section
_SIZED = 4  # format of an attribute: a payload follows; others have none
_REGISTERS, _FRAME, _MOST_STACK = 0x2F, 0x11, 0x23


@dataclass(frozen=True)
class Resources:
    """Of one kernel: registers and bytes of stack of a thread (spilled registers lie there), bytes of static shared
    memory of a block."""

    registers: int
    stack_bytes: int
    shared_bytes: int


def resources(cubin: bytes) -> dict[str, Resources]:
    """By the name of the kernel.

    Raises:
        KeyError: A kernel without the attributes that every version of ptxas has written: the format changed.
    """
    sections = _sections(cubin)
    names = _symbols(cubin, sections)
    found: dict[int, dict[str, int]] = {}
    for name, (data, _, _) in sections.items():
        if name == ".nv.info":
            for attribute, payload in _attributes(data):
                if attribute in (_REGISTERS, _FRAME, _MOST_STACK):
                    symbol, value = struct.unpack("<II", payload)
                    found.setdefault(attribute, {})[names[symbol]] = value
    kernels = [name.removeprefix(".text.") for name in sections if name.startswith(".text.")]
    return {
        kernel: Resources(
            found[_REGISTERS][kernel],
            max(found[_FRAME][kernel], found.get(_MOST_STACK, {}).get(kernel, 0)),
            sections.get(f".nv.shared.{kernel}", (b"", 0, 0))[1],
        )
        for kernel in kernels
    }


def _sections(cubin: bytes) -> dict[str, tuple[bytes, int, int]]:
    """Contents, size and type by name; the size of what has no contents in the file is that in memory."""
    assert cubin[:5] == b"\x7fELF\x02", "no cubin"
    (start,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, of_names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [_SECTION.unpack_from(cubin, start + size * i) for i in range(count)]
    begin = headers[of_names][4]
    named = {}
    for name, kind, _, _, offset, num_bytes, *_ in headers:
        text = cubin[begin + name : cubin.index(b"\0", begin + name)].decode()
        named[text] = (cubin[offset : offset + num_bytes], num_bytes, kind)
    return named


def _symbols(cubin: bytes, sections: dict[str, tuple[bytes, int, int]]) -> list[str]:
    texts = sections[".strtab"][0]
    table = next(data for data, _, kind in sections.values() if kind == _SYMBOLS)
    return [texts[at : texts.index(b"\0", at)].decode() for at, *_ in _SYMBOL.iter_unpack(table)]


def _attributes(data: bytes) -> list[tuple[int, bytes]]:
    at, found = 0, []
    while at < len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == _SIZED:
            found.append((attribute, data[at : at + size]))
            at += size
    return found
