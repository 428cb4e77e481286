"""Kills at any moment: the same command, run again until it is done, gives the bytes of an uninterrupted run."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from artifact_support import (
    child_environment,
    differences,
    fresh_runtime,
    leftovers,
    memory_folder,
    prepare,
    small_graph,
    tree,
)
from forked import LIGHT, python
from outcrop.api.graph import generate_graph, import_graph
from outcrop.config import BucketConfig, GenerateConfig
from outcrop.embed.prepare import prepare as prepare_buckets
from outcrop.store.graph import Graph

# Dies by SIGKILL at the n-th sign of progress, write of a manifest or journal, rename or removal.
DYING = """
import os, pathlib, shutil, sys
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests

class Doom:
    def __init__(self, after):
        self.left = after
    def step(self, *args):
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), 9)

doom = Doom(int(os.environ["DIE_AFTER"]))

class Progress:
    start = advance = finish = doom.step

def before_and_after(function):
    def call(*args, **kwargs):
        doom.step()
        result = function(*args, **kwargs)
        doom.step()
        return result
    return call

for owner, names in ((manifests, ["write_atomic", "sync_folder"]), (pathlib.Path, ["rename", "replace", "unlink"]),
                     (shutil, ["rmtree"])):
    for name in names:
        setattr(owner, name, before_and_after(getattr(owner, name)))
memory = os.environ["MEMORY"]
runtime = Runtime(memory, threads=1, progress=Progress())
"""
PREPARE = (
    DYING
    + """
from prepare_support import prepare
print("ready", flush=True)
prepare(sys.argv[1], sys.argv[2], fanouts=[3, 3], batch_size=15, memory=memory, gpu_memory="200KiB",
        epochs=2, runtime=runtime)
"""
)
# Of a graph with types; it says how many steps there were.
PREPARE_TYPED = (
    DYING
    + """
import json
from prepare_support import prepare
prepare(sys.argv[1], sys.argv[2], runtime=runtime, memory=memory, **json.loads(sys.argv[3]))
print(int(os.environ["DIE_AFTER"]) - doom.left)
"""
)
IMPORT = (
    DYING
    + """
from outcrop.importing.graph import import_graph
import_graph("arrays:" + sys.argv[1], sys.argv[2], runtime)
"""
)
READY_IMPORT = IMPORT.replace("\nimport_graph(", '\nprint("ready", flush=True)\nimport_graph(')
GENERATE = (
    DYING
    + """
from outcrop.importing.generate import generate_graph
generate_graph(sys.argv[2], runtime, nodes=3000, edges=20000, features=50, classes=4)
"""
)
EMBED = (
    DYING
    + """
from outcrop.config import BucketConfig
from outcrop.embed.prepare import prepare
prepare(sys.argv[1], sys.argv[2], BucketConfig(4, "degree", test_fraction=0.1), runtime)
"""
)
# Dies in the replacement of an artifact only.
REPLACE = GENERATE.replace(
    "generate_graph(sys.argv[2]",
    """
after, doom.left, replace = doom.left, 1 << 30, manifests._replace
def dying_replace(*folders):
    doom.left = after
    replace(*folders)
manifests._replace = dying_replace
generate_graph(sys.argv[2]""",
)
FOREVER = 1 << 30
ROWS_STEPS = 900  # of the 917 that importing rows of edges takes here


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return small_graph(tmp_path / "graph")


def survives(code: str, *arguments: object, after: int, memory: str = "1700KiB") -> bool:
    """Runs ``code``, which is killed after so many steps; true if it came to its end before."""
    ended = python(code, *arguments, imports=LIGHT, DIE_AFTER=str(after), MEMORY=memory)
    assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
    return ended.returncode == 0


def test_killed_while_preparing(graph: Graph, tmp_path: Path) -> None:
    prepare(graph, tmp_path / "want")
    for after in (30, 40, 25, 20):  # each goes on where the one before was killed
        assert not survives(PREPARE, graph.path, tmp_path / "run", after=after)
    prepare(graph, tmp_path / "run")
    assert differences(tree(tmp_path / "run"), tree(tmp_path / "want")) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", [0, 1])
def test_killed_at_every_step(graph: Graph, tmp_path: Path, first: int) -> None:
    """One run per step: killed there, then let be."""
    prepare(graph, tmp_path / "want")
    want = tree(tmp_path / "want")
    kills = 0
    for after in range(first, 1000, 2):
        out = tmp_path / f"run-{after}"
        if survives(PREPARE, graph.path, out, after=after):
            break
        kills += 1
        prepare(graph, out, overwrite=True)  # with a little less memory than what was killed
        assert differences(tree(out), want) == []
    assert kills >= 15


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_thirty_times_by_the_clock(graph: Graph, tmp_path: Path) -> None:
    """Kills from outside, at moments that nothing announces."""
    prepare(graph, tmp_path / "want")
    want = tree(tmp_path / "want")
    rng = np.random.default_rng(1)
    environment = child_environment(DIE_AFTER=str(FOREVER), MEMORY="1700KiB")
    kills = tries = 0
    while kills < 30:
        tries += 1
        assert tries < 100
        out = tmp_path / f"run-{tries}"
        for _ in range(3):
            child = subprocess.Popen(
                [sys.executable, "-c", PREPARE, str(graph.path), str(out)],
                env=environment,
                stdout=subprocess.PIPE,
            )
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(rng.uniform(0, 0.1))
            child.kill()
            child.stdout.close()
            kills += child.wait() == -signal.SIGKILL
        prepare(graph, out, overwrite=True)  # with a little less memory than what was killed
        assert differences(tree(out), want) == []


@pytest.mark.parametrize("kills", [4, pytest.param(12, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
def test_killed_while_preparing_a_graph_with_types(tmp_path: Path, kills: int) -> None:
    """Killed at steps of sampling, planning and packing several row files, then run again with the same options."""
    made = GenerateConfig(nodes=2000, edges=16_000, kind="typed", train_fraction=0.1, edge_features=16)
    graph = generate_graph(tmp_path / "graph", made)
    options = {"fanouts": [3, 3], "batch_size": 15, "epochs": 2, "layout": "6,1", "edge_rows": True}

    def prepared(name: str, after: int) -> subprocess.CompletedProcess[str]:
        arguments = (graph.path, tmp_path / name, json.dumps(options))
        return python(PREPARE_TYPED, *arguments, imports=LIGHT, DIE_AFTER=str(after), MEMORY="2400KiB")

    whole = prepared("want", FOREVER)
    assert whole.returncode == 0, whole.stderr
    want, steps = tree(tmp_path / "want"), int(whole.stdout)
    assert all(want[f"pack/r{k}.disk_cache.bin"] for k in range(5))
    packing = 0
    for after in np.linspace(1, steps - 1, kills).astype(int).tolist():
        out = f"run-{after}"
        assert prepared(out, after).returncode == -signal.SIGKILL
        packing += (tmp_path / out / ".pack.partial" / "journal.npz").exists()
        again = prepared(out, FOREVER)
        assert again.returncode == 0, again.stderr
        assert differences(tree(tmp_path / out), want) == []
    assert packing >= 2
    assert leftovers(tmp_path) == []


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    folder = tmp_path / "in"
    folder.mkdir()
    np.save(folder / "edges.npy", rng.integers(0, 5000, (200_000, 2)))
    np.save(folder / "features.npy", rng.random((5000, 40), np.float32))
    np.save(folder / "labels.npy", rng.integers(0, 3, 5000))
    np.save(folder / "train.npy", np.arange(500))
    return folder


@pytest.mark.parametrize(("code", "steps"), [(IMPORT, 36), (GENERATE, 24)], ids=["import", "generate"])
@pytest.mark.parametrize("kills", [3, pytest.param(18, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
def test_killed_making_a_graph(source: Path, tmp_path: Path, code: str, steps: int, kills: int) -> None:
    out = tmp_path / "graph"
    if code == IMPORT:
        import_graph(f"arrays:{source}", tmp_path / "want")
    else:
        generate_graph(tmp_path / "want", GenerateConfig(nodes=3000, edges=20000, features=50, classes=4))
    killed = 0
    for after in np.linspace(1, steps, kills):
        killed += not survives(code, source, out, after=int(after), memory="4MiB")
        assert not out.exists() or differences(tree(out), tree(tmp_path / "want")) == []
    assert killed >= 3
    assert survives(code, source, out, after=FOREVER, memory="4MiB")
    assert differences(tree(out), tree(tmp_path / "want")) == []
    assert leftovers(tmp_path) == []


@pytest.fixture
def rows_of_edges(tmp_path: Path) -> Path:
    """Rows of 25 times as many bytes as there is memory for, which are put in order in several buckets."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "in"
    folder.mkdir()
    np.save(folder / "edges.npy", rng.integers(0, 5000, (100_000, 2)))
    np.save(folder / "edge_features.npy", rng.random((100_000, 130), np.float32))
    return folder


@pytest.mark.parametrize("kills", [4, pytest.param(30, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_killed_importing_rows_of_edges(rows_of_edges: Path, tmp_path: Path, kills: int) -> None:
    """Killed at every kind of step there is, and from outside; then there is no graph, or all of it."""
    out, rng, memory = tmp_path / "graph", np.random.default_rng(1), "2MiB"
    import_graph(f"arrays:{rows_of_edges}", tmp_path / "want")
    want = tree(tmp_path / "want")
    environment = child_environment(DIE_AFTER=str(FOREVER), MEMORY=memory)
    killed = 0
    for after in np.linspace(1, ROWS_STEPS, kills):
        killed += not survives(IMPORT, rows_of_edges, out, after=int(after), memory=memory)
        assert not out.exists() or differences(tree(out), want) == []
    assert killed == kills
    began = time.monotonic()
    assert survives(IMPORT, rows_of_edges, out, after=FOREVER, memory=memory)
    takes = time.monotonic() - began
    assert differences(tree(out), want) == []
    assert leftovers(tmp_path) == []
    for _ in range(kills):
        child = subprocess.Popen(
            [sys.executable, "-c", READY_IMPORT, str(rows_of_edges), str(tmp_path / "other")],
            env=environment,
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(rng.uniform(0, takes))
        child.kill()
        child.stdout.close()
        child.wait()
        if (tmp_path / "other").exists():  # the import was faster
            assert differences(tree(tmp_path / "other"), want) == []
            shutil.rmtree(tmp_path / "other")
    assert survives(IMPORT, rows_of_edges, tmp_path / "other", after=FOREVER, memory=memory)
    assert differences(tree(tmp_path / "other"), want) == []
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("after", range(6))
def test_killed_while_replacing_keeps_the_old_or_the_new(tmp_path: Path, after: int) -> None:
    """Also in the moment between the two renames; the next command tidies up."""
    out = tmp_path / "graph"
    generate_graph(out, GenerateConfig(nodes=3000, edges=20000, features=50, classes=4, seed=7))
    old = tree(out)
    generate_graph(tmp_path / "want", GenerateConfig(nodes=3000, edges=20000, features=50, classes=4))
    want = tree(tmp_path / "want")
    assert not survives(REPLACE, "-", out, after=after, memory="4MiB")
    held = [tree(folder) for folder in (out, tmp_path / ".graph.old") if folder.exists()]
    assert old in held or want in held
    with pytest.raises(MemoryError):  # fails after what was there has been put back
        generate_graph(
            out,
            GenerateConfig(nodes=3000, edges=20000, features=50, classes=4),
            memory="20KiB",
            overwrite=True,
        )
    assert tree(out) in (old, want)
    assert survives(GENERATE, "-", out, after=FOREVER, memory="4MiB")
    assert differences(tree(out), want) == []
    assert leftovers(tmp_path) == []


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("after", [46, 50, 68, 90, 99])
def test_other_options_after_a_kill(graph: Graph, tmp_path: Path, after: int) -> None:
    """What a killed run left is not taken for work under other options."""
    assert not survives(PREPARE, graph.path, tmp_path / "run", after=after)
    killed = tree(tmp_path / "run")
    changes: list[dict[str, Any]] = [
        {"seed": 1},
        {"memory": "2MiB"},
        {"batch_size": 14},
        {"memory": None},
        {},
    ]
    for number, change in enumerate(changes):
        out, want = tmp_path / f"run-{number}", tmp_path / f"want-{number}"
        for name, content in killed.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_bytes(content)
        prepare(graph, out, **change, overwrite=True)
        prepare(graph, want, **change)
        assert differences(tree(out), tree(want)) == [], change


def test_another_graph_after_a_kill(tmp_path: Path) -> None:
    graph = small_graph(tmp_path / "graph")
    assert not survives(PREPARE, graph.path, tmp_path / "run", after=80)
    graph = small_graph(tmp_path / "graph", seed=5)
    prepare(graph, tmp_path / "run")
    prepare(graph, tmp_path / "want")
    assert differences(tree(tmp_path / "run"), tree(tmp_path / "want")) == []


def buckets(graph: Path, run: Path, partitions: int = 4) -> dict[str, bytes]:
    with fresh_runtime("4MiB") as runtime:
        prepare_buckets(graph, run, BucketConfig(partitions, "degree", test_fraction=0.1), runtime)
    return tree(run)


@pytest.mark.parametrize("before", [None, 2], ids=["first", "replacing"])
@pytest.mark.parametrize("step", [17, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
def test_killed_making_buckets(before: int | None, step: int) -> None:
    """Killed where it makes its first buckets or takes others in their place, the same command goes on."""
    with memory_folder() as folder:
        generate_graph(folder / "graph", GenerateConfig(nodes=600, edges=4000, features=1, classes=2))
        want = buckets(folder / "graph", folder / "want")
        old = buckets(folder / "graph", folder / "old", before) if before else {}
        killed = 0
        for after in range(0, 1000, step):
            run = folder / f"run-{after}"
            if before:
                shutil.copytree(folder / "old", run)
            if survives(EMBED, folder / "graph", run, after=after, memory="4MiB"):
                break
            killed += 1
            published = {name: data for name, data in tree(run).items() if name.startswith("buckets/")}
            assert published in ({}, old, want)
            assert differences(buckets(folder / "graph", run), want) == []
            assert leftovers(run) == []
        assert killed >= 40 // step


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


@pytest.mark.parametrize("name", ["journal.npz", "records.bin", "host_cache.bin"])
@pytest.mark.parametrize("spoil", [cut, lambda content: b"", lambda content: b"not what it was"])
def test_damaged_work_in_progress_is_not_taken_over(
    graph: Graph, tmp_path: Path, name: str, spoil: Any
) -> None:
    assert not survives(PREPARE, graph.path, tmp_path / "run", after=80)
    damaged = tmp_path / "run" / ".pack.partial" / name
    damaged.write_bytes(spoil(damaged.read_bytes()))
    prepare(graph, tmp_path / "run")
    prepare(graph, tmp_path / "want")
    assert differences(tree(tmp_path / "run"), tree(tmp_path / "want")) == []


INTERRUPTED = """
import os, sys
from contextlib import contextmanager
import outcrop.cli.common as common
from outcrop.runtime.progress import SilentProgress

class Progress(SilentProgress):
    left = 14
    def advance(self, task, amount):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), 2)

@contextmanager
def progress_bars(quiet):
    yield Progress()

common.progress_bars = progress_bars
from outcrop.cli.main import run
sys.argv = ["outcrop", *sys.argv[1:]]
run()
"""


def test_control_c_says_how_to_go_on(graph: Graph, tmp_path: Path) -> None:
    out = tmp_path / "run"
    ended = python(
        INTERRUPTED,
        "prepare",
        graph.path,
        out,
        "--fanouts",
        "3,3",
        "--batch-size",
        "15",
        "--memory",
        "1700KiB",
        "--gpu-memory",
        "200KiB",
        "--epochs",
        "2",
    )
    assert ended.returncode == 130, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "run the same command again" in " ".join(ended.stderr.split())
    assert (out / "sample" / "manifest.json").is_file()
    assert not (out / "pack").exists()
    report = prepare(graph, out)
    assert "sample" in report.skipped
    prepare(graph, tmp_path / "want")
    assert differences(tree(out), tree(tmp_path / "want")) == []
