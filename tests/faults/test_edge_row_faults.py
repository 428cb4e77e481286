"""Faults while rows of edges are imported: a clear error, no artifact and no scratch; then the same bytes as ever."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from artifact_support import differences, fault_plan, fresh_runtime, memory_folder, mounted_memory, tree
from outcrop import _core
from outcrop.errors import IoError
from outcrop.importing import edge_rows
from outcrop.importing.graph import import_graph
from outcrop.runtime.progress import SilentProgress
from outcrop.runtime.runtime import Runtime
from outcrop.store.verify import verify_artifact

EDGES, WIDTH, NODES = 32_000, 25, 500
MEMORY = "2MiB"  # the rows go into several buckets, and their numbers are sorted in several runs
TYPES = """
[[nodes]]
name = "a"
num_nodes = 500
[[edges]]
source = "a"
relation = "r"
target = "a"
file = "e.npy"
features = "x.npy"
"""


class Problem(NamedTuple):
    """Where rows of edges are, the bytes of their graph, and what importing them takes."""

    source: Path
    want: dict[str, bytes]
    operations: int
    written: int

    @property
    def folder(self) -> Path:
        return self.source.parent


def write_source(folder: Path, *, typed: bool) -> Path:
    rng = np.random.default_rng(0)
    folder.mkdir()
    names = ("e.npy", "x.npy") if typed else ("edges.npy", "edge_features.npy")
    np.save(folder / names[0], rng.integers(0, NODES, (EDGES, 2)))
    np.save(folder / names[1], rng.standard_normal((EDGES, WIDTH)).astype(np.float32))
    if typed:
        (folder / "graph.toml").write_text(TYPES)
    return folder


def rows_in_order(source: Path, *, typed: bool) -> np.ndarray:
    edges = np.load(source / ("e.npy" if typed else "edges.npy"))
    rows = np.load(source / ("x.npy" if typed else "edge_features.npy"))
    return rows[np.lexsort((np.arange(EDGES), edges[:, 0], edges[:, 1]))]


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "typed"])
def problem(request: pytest.FixtureRequest) -> Iterator[Problem]:
    with memory_folder() as folder:
        source = write_source(folder / "in", typed=request.param)
        with fresh_runtime(MEMORY, faults=fault_plan()) as runtime:
            import_graph(f"arrays:{source}", folder / "want.oc", runtime)
            counters = runtime.io.counters
        want = tree(folder / "want.oc")
        assert {name.removesuffix(".bin").removesuffix("_page_crc") for name in want} == {
            "manifest.json",
            "imported.json",
            "indptr",
            "indices",
            "e0.features",
        }
        rows = np.frombuffer(want["e0.features.bin"], np.float32, EDGES * WIDTH).reshape(EDGES, WIDTH)
        assert np.array_equal(rows, rows_in_order(source, typed=request.param))
        shutil.rmtree(folder / "want.oc")
        yield Problem(source, want, counters.read_ops + counters.write_ops, counters.write_bytes)


def is_imported_whole(problem: Problem, out: Path) -> None:
    with fresh_runtime(MEMORY) as runtime:
        import_graph(f"arrays:{problem.source}", out, runtime)
        verify_artifact(out, runtime)
    assert differences(tree(out), problem.want) == []
    shutil.rmtree(out)
    assert list(out.parent.glob(".*")) == []


def fails(problem: Problem, out: Path, number: int, **faults: Any) -> str:
    """Importing ends in an error of the disk and leaves nothing; returns the message."""
    beside = {path for path in out.parent.iterdir() if not path.name.startswith(".")}
    with fresh_runtime(MEMORY, faults=fault_plan(**faults)) as runtime:
        with pytest.raises(IoError) as caught:
            import_graph(f"arrays:{problem.source}", out, runtime)
        message, code = str(caught.value), caught.value.errno
        del caught
    assert code == number, message
    assert str(out.parent) in message, f"names no file: {message}"
    assert "\n" not in message
    assert set(out.parent.iterdir()) == beside
    return message


def test_the_problem_needs_several_buckets_and_runs(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else these tests would not test much of what they are about."""
    seen: list[tuple[int, int]] = []
    real = _core.RowPermuter

    class Watched:
        least_memory, most_memory = real.least_memory, real.most_memory

        def __init__(self, *args: Any, **options: Any):
            self.real = real(*args, **options)
            self.add = self.real.add

        def finish(self, path: str) -> Any:
            seen.append((self.real.stats.buckets, self.real.stats.sort.runs))
            return self.real.finish(path)

    monkeypatch.setattr(edge_rows._core, "RowPermuter", Watched)
    is_imported_whole(problem, problem.folder / "g.oc")
    assert [(buckets > 2, runs > 1) for buckets, runs in seen] == [(True, True)]


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.soak)])
def test_every_operation_can_fail(problem: Problem, step: int) -> None:
    assert problem.operations > 200
    for operation in range(0, problem.operations, step):
        fails(problem, problem.folder / "g.oc", errno.EIO, fail_at_op=operation, error_number=errno.EIO)
        is_imported_whole(problem, problem.folder / "g.oc")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.9999])
def test_the_disk_fills(problem: Problem, share: float) -> None:
    full = int(share * problem.written)
    message = fails(problem, problem.folder / "g.oc", errno.ENOSPC, disk_full_after_bytes=full)
    assert "No space left" in message
    is_imported_whole(problem, problem.folder / "g.oc")


@pytest.mark.parametrize("seed", range(3))
def test_storms_change_nothing(problem: Problem, seed: int) -> None:
    faults = fault_plan(short_probability=0.7, eagain_probability=0.7, seed=seed)
    out = problem.folder / "g.oc"
    with fresh_runtime(MEMORY, faults=faults) as runtime:
        import_graph(f"arrays:{problem.source}", out, runtime)
        assert runtime.io.counters.retries > 20
        assert runtime.io.counters.short_reads > 20
    assert differences(tree(out), problem.want) == []
    shutil.rmtree(out)


@pytest.mark.parametrize("free_kib", [0, 4, 100, 500, 1000, 2000, 3000, 4000, 5000, 6000])
def test_a_disk_that_is_full(problem: Problem, tmp_path: Path, free_kib: int) -> None:
    """Nothing is injected: scratch files without a name meet the full disk, too."""
    with mounted_memory(tmp_path / "disk", "10m") as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(4096 * os.statvfs(disk).f_bavail - (free_kib << 10)))
        fails(problem, disk / "g.oc", errno.ENOSPC)
        available = os.statvfs(disk).f_bavail
        assert available * 4096 >= free_kib << 10  # no scratch file without a name is left either
        ballast.unlink()
        is_imported_whole(problem, disk / "g.oc")


class _Stop(SilentProgress):
    """Raises at the n-th sign of progress with rows of edges."""

    def __init__(self, after: int):
        self.left = after

    def advance(self, task: str, amount: int) -> None:
        self.left -= task == "edge rows"
        if self.left < 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("after", [0, 1, 30])
def test_an_interruption_leaves_nothing(problem: Problem, after: int) -> None:
    out = problem.folder / "g.oc"
    runtime = Runtime(MEMORY, threads=1, progress=_Stop(after))
    with pytest.raises(KeyboardInterrupt):
        import_graph(f"arrays:{problem.source}", out, runtime)
    runtime.close()
    assert [path.name for path in problem.folder.iterdir()] == ["in"]
    is_imported_whole(problem, out)
