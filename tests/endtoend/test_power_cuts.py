"""The power of a machine goes while commands write (scripts/power_cuts.py): a share here, all in ``make soak``.

What a disk may hold then is made by tests/logged_disk.py; that it loses what is not synced is shown first.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import logged_disk
from artifact_support import script_output

KINDS = {"ext4": 64 << 20, "xfs": 320 << 20}
LOOSE = {"ext4": "data=writeback,noauto_da_alloc,commit=300", "xfs": logged_disk.XFS_OPTIONS}
OLD, NEW = b"old" * 1000, b"new" * 10_000


def write(path: Path, content: bytes, *, sync: bool) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


class Disks:
    """Runs something on a disk that holds ``file`` with OLD, and says what may be left of that file."""

    def __init__(self, folder: Path, kind: str):
        self._folder, self._kind = folder, kind
        self._mount, self._image = folder / "mount", folder / "image"
        self._mount.mkdir()
        logged_disk.make_image(self._image, KINDS[kind], kind)
        with logged_disk.loop(self._image) as device, logged_disk.mounted(device, self._mount, ""):
            write(self._mount / "file", OLD, sync=True)

    def left(self, act: Callable[[Path], None], tries: int = 0) -> list[bytes]:
        """Returns the file with all lost that was not flushed, and ``tries`` times with parts of it kept."""
        after, log = self._folder / "after", self._folder / "log"
        shutil.copy(self._image, after)
        disk = logged_disk.logged(after, log, self._folder / "fuse")
        with disk as device, logged_disk.mounted(device, self._mount, LOOSE[self._kind]):
            act(self._mount)
            entries = logged_disk.read_log(log)
        found = list[bytes]()
        for lost in (None, *map(random.Random, range(tries))):
            shutil.copy(self._image, after)
            logged_disk.write_crashed(after, entries, lost)
            with (
                logged_disk.loop(after) as device,
                logged_disk.mounted(device, self._mount, LOOSE[self._kind]),
            ):
                found.append((self._mount / "file").read_bytes())
        return found


@pytest.fixture(params=KINDS)
def disks(request: pytest.FixtureRequest, tmp_path: Path) -> Disks:
    if reason := logged_disk.why_not(request.param):
        pytest.skip(reason)
    return Disks(tmp_path, request.param)


def test_what_is_synced_is_there_whatever_is_lost(disks: Disks) -> None:
    def replace(folder: Path) -> None:
        write(folder / "other", NEW, sync=True)
        (folder / "other").rename(folder / "file")
        sync_folder(folder)

    assert disks.left(replace, tries=3) == [NEW] * 4


def test_a_name_that_is_not_synced_is_lost(disks: Disks) -> None:
    def replace(folder: Path) -> None:
        write(folder / "other", NEW, sync=True)
        (folder / "other").rename(folder / "file")

    assert disks.left(replace) == [OLD]


def test_contents_that_are_not_synced_are_lost(disks: Disks) -> None:
    """Though the name is there: what a rename without a sync before it leaves."""

    def replace(folder: Path) -> None:
        write(folder / "other", NEW, sync=False)
        (folder / "other").rename(folder / "file")
        sync_folder(folder)

    assert disks.left(replace)[0] not in (OLD, NEW)


def test_some_blocks_may_be_there_and_others_not(tmp_path: Path) -> None:
    """By the contents of the image: three blocks written after a flush, one of which is written over one before it."""
    image, block = tmp_path / "image", logged_disk.BLOCK
    write_of = logged_disk.Entry
    entries = [
        write_of(0, b"a" * block),
        write_of(0, None),
        write_of(0, b"b" * 2 * block),
        write_of(block, b"c" * block),
    ]
    seen = set[bytes]()
    for seed in range(100):
        image.write_bytes(bytes(2 * block))
        logged_disk.write_crashed(image, entries, random.Random(seed))
        content = image.read_bytes()
        assert len(set(content[:block])) == len(set(content[block:])) == 1
        seen.add(content[::block])
    assert seen == {first + second for first in (b"a", b"b") for second in (b"\0", b"b", b"c")}


@pytest.mark.slow
def test_every_command_goes_on_after_the_power_went() -> None:
    if reason := logged_disk.why_not():
        pytest.skip(reason)
    assert " 0 wrong" in script_output("power_cuts", "--every", "60", "--parts", "1")[-1]
