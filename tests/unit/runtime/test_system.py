"""What the operating system is told and asked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from artifact_support import child_environment
from outcrop.api.graph import generate_graph
from outcrop.config import GenerateConfig
from outcrop.runtime import system

MIB = 1 << 20
HOLES = """
import sys
import numpy as np
from outcrop.runtime import system

def resident():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))

def leave_holes():  # 96 MiB are freed between smaller blocks that stay, as temporaries of a stage are
    np.empty(31 << 20, np.uint8)  # glibc takes what is smaller from its heap from now on, as training wants it
    large, small = [], []
    for _ in range(96):
        large.append(np.ones(1 << 20, np.uint8))
        small.append(np.ones(100 << 10, np.uint8))
    return small
"""
RETURNED = (
    HOLES
    + """
start = resident()
held = leave_holes()
kept = resident() - start
system.return_freed_memory()
print(kept, resident() - start)
"""
)
PREPARED = (
    HOLES
    + """
from prepare_support import prepare
from outcrop.preparation import prepare as preparing
plan, held, seen = preparing.planning.plan, [], []

def wasteful(*args):
    manifest = plan(*args)
    seen.append(resident())
    held.append(leave_holes())
    seen.append(resident())
    return manifest

preparing.planning.plan = wasteful
prepare(sys.argv[1], sys.argv[2], fanouts=[2], batch_size=10, epochs=1, memory="16MiB")
print(seen[1] - seen[0], resident() - seen[0])
"""
)


def child(code: str, *arguments: object) -> list[int]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_what_was_freed_is_returned() -> None:
    kept, left = child(RETURNED)
    if kept < 80 * MIB:
        pytest.skip("this C library returns what is freed at once")
    assert left < 32 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_a_stage_leaves_nothing_to_the_next(tmp_path: Path) -> None:
    """Preparing in the process that trains: what a stage freed is not on top of what training holds."""
    generate_graph(tmp_path / "graph", GenerateConfig(nodes=500, edges=2000, features=4, train_fraction=0.2))
    kept, left = child(PREPARED, tmp_path / "graph", tmp_path / "run")
    if kept < 80 * MIB:
        pytest.skip("this C library returns what is freed at once")
    assert left < 32 * MIB


def test_bytes_of_files_that_others_write_and_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "kept").mkdir()
    (tmp_path / "left out").mkdir()
    for name, size in (("a", 10), ("kept/b", 200), ("kept/renamed", 3000), ("left out/c", 40_000)):
        (tmp_path / name).write_bytes(bytes(size))
    (tmp_path / "link").symlink_to(tmp_path / "left out")
    assert system.bytes_of_files(tmp_path) == 43_210
    assert system.bytes_of_files(tmp_path, but=tmp_path / "left out") == 3_210
    assert system.bytes_of_files(tmp_path / "nowhere") == 0
    stat = Path.stat

    def renamed_before(path: Path, **options: bool) -> object:
        if path.name == "renamed":
            path.unlink()
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", renamed_before)
    assert system.bytes_of_files(tmp_path, but=tmp_path / "left out") == 210
