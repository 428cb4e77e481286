"""Faults while a run is prepared: the right error, nothing half-made published, and a rerun that works."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from artifact_support import (
    OPTIONS,
    differences,
    fault_plan,
    fresh_runtime,
    leftovers,
    memory_folder,
    mounted_memory,
    prepare,
    small_graph,
    tree,
)
from outcrop.errors import IoError
from outcrop.store.graph import Graph

STAGES = ("sample", "plan", "pack")


@pytest.fixture(scope="module")
def problem() -> Iterator[tuple[Graph, dict[str, bytes], int, int]]:
    """A graph, the bytes of its run, and how many operations and written bytes making that takes."""
    with memory_folder() as folder:
        graph = small_graph(folder / "graph")
        with fresh_runtime(OPTIONS["memory"], faults=fault_plan()) as runtime:
            prepare(graph, folder / "want", runtime)
            counters = runtime.io.counters
        yield graph, tree(folder / "want"), counters.read_ops + counters.write_ops, counters.write_bytes


def fails_then_recovers(graph: Graph, want: dict[str, bytes], number: int, **faults: Any) -> str:
    """Preparing under ``faults`` gives an IoError; what is published is whole; without faults it goes on."""
    out = graph.path.parent / "run"
    with fresh_runtime(OPTIONS["memory"], faults=fault_plan(**faults)) as runtime:
        with pytest.raises(IoError) as caught:
            prepare(graph, out, runtime)
        message, code = str(caught.value), caught.value.errno
        del caught
    assert code == number, message
    assert str(graph.path.parent) in message, f"names no file: {message}"
    assert "\n" not in message
    published = {name: content for name, content in tree(out).items() if not name.startswith(".")}
    assert published.items() <= want.items()
    assert not (out / "pack").exists()
    assert [name for name in leftovers(out) if not name.startswith(".pack.partial")] == []
    prepare(graph, out)
    assert differences(tree(out), want) == []
    for name in sorted(out.rglob("*"), reverse=True):
        name.rmdir() if name.is_dir() else name.unlink()
    out.rmdir()
    return message


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.soak)])
def test_every_operation_can_fail(problem: tuple[Graph, dict[str, bytes], int, int], step: int) -> None:
    graph, want, operations, _ = problem
    assert operations > 300
    named = set()
    for k in range(0, operations, step):
        message = fails_then_recovers(graph, want, errno.EIO, fail_at_op=k, error_number=errno.EIO)
        named |= set(re.findall(r"(?:\w+|\.\w+\.partial)/\w+\.bin", message))
    stages = {name.split("/")[0].strip(".").removesuffix(".partial") for name in named}
    assert stages >= {"graph", "sample", "plan", "pack"}, f"only operations on {named} failed"


@pytest.mark.parametrize("share", [0.0, 0.003, 0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 0.95, 0.9999])
def test_disk_full_after(problem: tuple[Graph, dict[str, bytes], int, int], share: float) -> None:
    graph, want, _, written = problem
    message = fails_then_recovers(graph, want, errno.ENOSPC, disk_full_after_bytes=int(share * written))
    assert "No space left" in message


@pytest.mark.soak
def test_disk_full_after_any_page(problem: tuple[Graph, dict[str, bytes], int, int]) -> None:
    graph, want, _, written = problem
    for limit in range(1, written, 4096):
        fails_then_recovers(graph, want, errno.ENOSPC, disk_full_after_bytes=limit)


@pytest.mark.parametrize("seed", range(3))
def test_storms_change_nothing(
    problem: tuple[Graph, dict[str, bytes], int, int], tmp_path: Path, seed: int
) -> None:
    graph, want, _, _ = problem
    out = graph.path.parent / f"storm-{seed}"
    faults = fault_plan(short_probability=0.7, eagain_probability=0.7, seed=seed)
    with fresh_runtime(OPTIONS["memory"], faults=faults) as runtime:
        prepare(graph, out, runtime)
        counters = runtime.io.counters
        assert counters.retries > 20
        assert counters.short_reads > 20
    assert differences(tree(out), want) == []


def test_faults_again_and_again(problem: tuple[Graph, dict[str, bytes], int, int]) -> None:
    """Each try fails a little later; in the end it is done, and the bytes are the same."""
    graph, want, operations, _ = problem
    out, failures = graph.path.parent / "stubborn", 0
    for k in range(1, 2 * operations, 7):
        with fresh_runtime(
            OPTIONS["memory"], faults=fault_plan(fail_at_op=k, error_number=errno.EIO)
        ) as runtime:
            try:
                prepare(graph, out, runtime)
                break
            except IoError:
                failures += 1
    assert failures > 5
    assert differences(tree(out), want) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 1 MiB."""
    with mounted_memory(tmp_path / "disk", "1m") as folder:
        yield folder


@pytest.mark.parametrize("free_pages", [0, 1, 2, 5, 10, 20, 30, 35, 38, 40, 41])
def test_real_full_disk(small_disk: Path, tmp_path: Path, free_pages: int) -> None:
    """Nothing is injected here: opening, allocating and renaming meet the full disk too."""
    graph = small_graph(tmp_path / "graph")
    prepare(graph, tmp_path / "want")
    (small_disk / "run").mkdir()
    ballast = small_disk / "ballast"
    available = os.statvfs(small_disk).f_bavail
    ballast.write_bytes(b"x" * 4096 * (available - free_pages))
    with fresh_runtime(OPTIONS["memory"]) as runtime:
        with pytest.raises(IoError) as caught:
            prepare(graph, small_disk / "run", runtime)
        message, code = str(caught.value), caught.value.errno
        del caught
    assert code == errno.ENOSPC
    assert str(small_disk) in message
    assert not (small_disk / "run" / "pack").exists()
    ballast.unlink()
    prepare(graph, small_disk / "run")
    want = tree(tmp_path / "want")
    found = tree(small_disk / "run")
    want.pop("run.json"), found.pop("run.json")  # says where the graph lies
    assert differences(found, want) == []
