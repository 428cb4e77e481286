"""What the tests of kills, faults and damage share: a small prepared problem, its bytes, and children to kill."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import support
from outcrop import _core
from outcrop.preparation.prepare import PrepareReport
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from outcrop.testing import write_graph
from prepare_support import prepare as prepare_run

NODES, EDGES, DIM, CLASSES = 6000, 40000, 101, 5
MEMORY = "1640KiB"
OPTIONS: dict[str, Any] = {
    "fanouts": [3, 3],
    "batch_size": 15,
    "memory": MEMORY,
    "gpu_memory": "200KiB",
    "epochs": 2,
    "layout": "6,1",
}


def small_graph(path: Path, **changes: Any) -> Graph:
    """6000 nodes with a few hubs, rows of 404 bytes: pages are shared and rows cross them."""
    rng = np.random.default_rng(changes.pop("seed", 0))
    edges = np.stack([(rng.random(EDGES) ** 3 * NODES).astype(np.int64), rng.integers(0, NODES, EDGES)])
    columns: dict[str, Any] = {
        "features": rng.standard_normal((NODES, DIM)).astype(np.float32),
        "labels": rng.integers(0, CLASSES, NODES),
        "splits": {
            "train": rng.choice(NODES, 60, replace=False),
            "valid": np.arange(20),
            "test": np.arange(200, 230),
        },
    }
    with fresh_runtime() as runtime:
        return write_graph(path, edges, NODES, runtime, **{**columns, **changes})


@contextmanager
def fresh_runtime(memory: int | str | None = None, **options: Any) -> Iterator[Runtime]:
    """A runtime that is gone afterwards; asserts that it holds nothing but what it held at first."""
    options = {"threads": 1, **options}
    runtime = Runtime(**support.runtime_options("fresh", memory, options))
    at_first = runtime.budget.now_bytes
    yield runtime
    if runtime.budget.now_bytes != at_first:
        gc.collect()
    held = {tag: usage.now_bytes for tag, usage in runtime.budget.by_tag.items() if usage.now_bytes}
    assert runtime.budget.now_bytes == at_first, held
    runtime.close()


def fault_plan(**fields: Any) -> _core.FaultPlan:
    """Faults that the I/O engine of a runtime makes up."""
    faults = _core.FaultPlan()
    for name, value in fields.items():
        setattr(faults, name, value)
    return faults


@contextmanager
def mounted_memory(folder: Path, size: str) -> Iterator[Path]:
    """A real file system that holds no more than ``size``; skips the test where none can be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no small file system can be mounted here: {error}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def prepare(graph: Graph, out: Path, runtime: Runtime | None = None, **changes: Any) -> PrepareReport:
    options = {**OPTIONS, **changes}
    if runtime is not None:
        return prepare_run(graph, out, runtime=runtime, **options)
    with fresh_runtime(options["memory"]) as own:
        return prepare_run(graph, out, runtime=own, **options)


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A folder where waiting for the disk takes no time, where there is one: for tests that make hundreds of runs."""
    shared = Path("/dev/shm")
    folder = Path(
        tempfile.mkdtemp(prefix="outcrop-test-", dir=shared if os.access(shared, os.W_OK) else None)
    )
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def manifest_at(path: Path) -> dict[str, Any]:
    """What a manifest says, without its checksum: as somebody who lies, or an earlier version, would write it."""
    told = json.loads(path.read_text())
    told.pop("sha256", None)
    return told


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below ``folder``, hidden ones too, by its path; not the history of a run, which holds times."""
    found = {str(f.relative_to(folder)): f for f in sorted(folder.rglob("*")) if f.is_file()}
    return {name: f.read_bytes() for name, f in found.items() if "history" not in Path(name).parts}


def differences(found: dict[str, bytes], wanted: dict[str, bytes]) -> list[str]:
    """Names of files that are missing, extra or differ: what an assertion should show instead of bytes."""
    return sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))


def leftovers(folder: Path) -> list[str]:
    """Hidden files and folders: work in progress."""
    return sorted(str(f.relative_to(folder)) for f in folder.rglob(".*"))


def child_environment(**variables: str) -> dict[str, str]:
    """For a Python child that finds this Outcrop and these helpers."""
    package = str(Path(_core.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([package, str(Path(__file__).parent)]), **variables}


def script_output(name: str, *arguments: str) -> list[str]:
    """Lines that ``scripts/<name>.py`` prints, which must end well."""
    ended = subprocess.run(
        [sys.executable, support.REPOSITORY / "scripts" / f"{name}.py", *arguments],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-2000:]
    return ended.stdout.splitlines()


def python(
    code: str, *arguments: object, timeout: float = support.HANGS_SECONDS, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs ``code`` in a Python of its own to its end."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=child_environment(**variables),
        check=False,
    )
