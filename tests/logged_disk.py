"""A disk that keeps a log of what is written to it and when it was flushed, and the contents that it may have after
the power went.

``logged`` serves one file by FUSE, in a process of its own that speaks the kernel's protocol (``linux/fuse.h``), and
puts a loop device on it; a file system on that device writes to the log (as with ``log-writes`` of the device mapper).
After a crash what came between two flushes may be there in any part and order; what came before a flush is there.
Only root makes such disks.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

BLOCK = 4096  # what a disk writes whole or not at all
_ENTRY = struct.Struct("<qq")  # where and how many bytes; -1: flushed
_REQUEST, _REPLY = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")
_WRITE_BYTES = 1 << 20
_ROOT, _DISK = 1, 2
# Copies of an image have its UUID, and the last one stays mounted where a mount namespace was begun meanwhile.
XFS_OPTIONS = "nouuid"


class _Asked(IntEnum):
    """Is what the kernel asks: ``enum fuse_opcode``."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    DESTROY = 38
    BATCH_FORGET = 42


class NoDisks(Exception):
    """Says why none can be made here."""


@dataclass(frozen=True)
class Entry:
    """Is one write, or a flush (``data`` is None) of all before it."""

    offset: int
    data: bytes | None


def read_log(log: Path, up_to: int | None = None) -> list[Entry]:
    """Returns what came in the first ``up_to`` bytes of a log."""
    found, at = list[Entry](), 0
    content = memoryview(log.read_bytes())[:up_to]
    while at < len(content):
        offset, size = _ENTRY.unpack_from(content, at)
        at += _ENTRY.size
        if offset < 0:
            found.append(Entry(0, None))
            continue
        found.append(Entry(offset, bytes(content[at : at + size])))
        at += size
    return found


def write_crashed(image: Path, entries: list[Entry], lost: random.Random | None) -> None:
    """Writes to a copy of the image as it was before what it may hold where power is lost after ``entries``.

    What was not flushed is gone, or, with ``lost``, each of its blocks with a chance of one half: so a write may be
    there in part, and one that came later without one that came before.
    """
    flushed = max((k for k, entry in enumerate(entries) if entry.data is None), default=-1)
    with image.open("r+b") as file:
        for number, entry in enumerate(entries):
            if entry.data is None:
                continue
            for at in range(0, len(entry.data), BLOCK) if number > flushed else (0,):
                if number > flushed and (lost is None or lost.random() < 0.5):
                    continue
                file.seek(entry.offset + at)
                file.write(entry.data if number <= flushed else entry.data[at : at + BLOCK])


@contextmanager
def logged(image: Path, log: Path, folder: Path) -> Iterator[Path]:
    """Gives a block device that is ``image``, with a log of its writes; ``folder`` is one to mount in, made here."""
    folder.mkdir()
    server = subprocess.Popen(
        [sys.executable, __file__, folder, image, log], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        if server.stdout.readline() != "mounted\n":
            raise NoDisks("a FUSE file system cannot be mounted")
        with loop(folder / "disk") as device:
            yield device
    finally:
        subprocess.run(["umount", folder], capture_output=True, check=False)
        server.send_signal(signal.SIGTERM)
        server.wait()
        server.stdout.close()
        folder.rmdir()


@contextmanager
def loop(image: Path) -> Iterator[Path]:
    """Gives a loop device on a file."""
    tool = _tool("losetup") or "losetup"
    found = subprocess.run([tool, "--find", "--show", image], capture_output=True, text=True, check=False)
    if found.returncode:
        raise NoDisks(f"losetup: {found.stderr.strip()}")
    device = Path(found.stdout.strip())
    try:
        yield device
    finally:
        subprocess.run([tool, "--detach", device], check=True)


@contextmanager
def mounted(device: Path, folder: Path, options: str) -> Iterator[Path]:
    """Mounts a device; by the end of the block nothing may use it."""
    command = ["mount", "-o", options, device, folder] if options else ["mount", device, folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoDisks(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def make_image(image: Path, size: int, kind: str) -> None:
    """Makes an empty file system of ``kind``, ext4 or xfs, in a sparse file."""
    tool = _tool(f"mkfs.{kind}")
    if tool is None:
        raise NoDisks(f"mkfs.{kind} is missing")
    with image.open("wb") as file:
        file.truncate(size)
    asked = {
        "ext4": ["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"],
        "xfs": ["-q", "-K"],
    }
    subprocess.run([tool, *asked[kind], image], check=True, capture_output=True)


def why_not(kind: str = "ext4") -> str:
    """Says why no such disks with a file system of ``kind`` can be made here; empty: they can."""
    if os.geteuid() != 0:
        return "only root makes block devices"
    for needed in ("/dev/fuse", "/dev/loop-control"):
        if not os.access(needed, os.R_OK | os.W_OK):
            return f"{needed} is missing"
    for tool in ("losetup", f"mkfs.{kind}"):
        if _tool(tool) is None:
            return f"{tool} is missing"
    known = Path("/proc/filesystems").read_text().split()
    return "" if kind in known else f"the kernel does not have {kind}"


def _tool(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class _Server:
    """Answers what the kernel asks of a file system with one file, ``disk``."""

    def __init__(self, fuse: int, image: int, log: int):
        self._fuse, self._image, self._log = fuse, image, log
        self._size = os.fstat(image).st_size

    def serve(self) -> None:
        while True:
            try:
                request = os.read(self._fuse, _WRITE_BYTES + 4096)
            except OSError as error:
                if error.errno == errno.ENODEV:  # unmounted
                    return
                continue
            _, kind, unique, node, *_ = _REQUEST.unpack_from(request)
            if kind in (_Asked.FORGET, _Asked.BATCH_FORGET):
                continue
            answer = self._answer(kind, node, memoryview(request)[_REQUEST.size :])
            error, data = (-answer, b"") if isinstance(answer, int) else (0, answer)
            os.write(self._fuse, _REPLY.pack(_REPLY.size + len(data), error, unique) + data)

    def _answer(self, kind: int, node: int, body: memoryview) -> bytes | int:
        """Returns what is answered, or the number of an error."""
        if kind == _Asked.INIT:
            major, minor, ahead, _ = struct.unpack_from("<IIII", body)
            big_writes, many_pages = 1 << 5, 1 << 22
            return struct.pack(
                "<IIIIHHIIHHI7I", major, min(minor, 31), ahead, big_writes | many_pages, 16, 12, _WRITE_BYTES, 1,
                _WRITE_BYTES // 4096, 0, 0, *[0] * 7,
            )  # fmt: skip
        if kind == _Asked.LOOKUP:
            if bytes(body).rstrip(b"\0") != b"disk":
                return errno.ENOENT
            return struct.pack("<QQQQII", _DISK, 0, 3600, 3600, 0, 0) + self._attributes(_DISK)
        if kind == _Asked.GETATTR:
            return struct.pack("<QII", 3600, 0, 0) + self._attributes(node)
        if kind == _Asked.OPEN:
            return struct.pack("<QII", 0, 0, 0)
        if kind == _Asked.READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            return os.pread(self._image, size, offset)
        if kind == _Asked.WRITE:
            _, offset, size = struct.unpack_from("<QQI", body)
            data = body[40 : 40 + size]
            os.pwrite(self._image, data, offset)
            os.writev(self._log, [_ENTRY.pack(offset, size), data])
            return struct.pack("<II", size, 0)
        if kind == _Asked.FSYNC:
            os.write(self._log, _ENTRY.pack(-1, 0))
            return b""
        if kind == _Asked.STATFS:
            return struct.pack("<QQQQQIIII6I", 0, 0, 0, 0, 0, BLOCK, 255, BLOCK, 0, *[0] * 6)
        return b"" if kind in (_Asked.RELEASE, _Asked.FLUSH, _Asked.DESTROY) else errno.ENOSYS

    def _attributes(self, node: int) -> bytes:
        mode, size = (0o40700, 0) if node == _ROOT else (0o100600, self._size)
        return struct.pack("<6Q10I", node, size, -(-size // 512), *[0] * 6, mode, 1, 0, 0, 0, BLOCK, 0)


def _serve(folder: str, image: str, log: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: ends with who made it
    fuse = os.open("/dev/fuse", os.O_RDWR)
    asked = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"logged", folder.encode(), b"fuse", ctypes.c_ulong(0), asked):
        print(f"mount: {os.strerror(ctypes.get_errno())}", flush=True)
        return
    print("mounted", flush=True)
    _Server(fuse, os.open(image, os.O_RDWR), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)).serve()


if __name__ == "__main__":
    _serve(*sys.argv[1:])
