"""``outcrop prepare --workers``: several processes give the files of one, killed or not."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcrop as oc
from artifact_support import child_environment, differences, leftovers, mounted_memory, small_graph, tree
from outcrop.errors import ArgumentError, CancelledError, ChecksumError, IoError
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from prepare_support import prepare as prepare_run

OPTIONS: dict[str, Any] = {
    "fanouts": (4, 4),
    "batch_size": 40,
    "epochs": 2,
    "memory": "2300KiB",  # of loading: most rows are packed, or in the disk cache
    "gpu_memory": "620KiB",
    "layout": "6,1",
}
STAGES = ("sample", "plan", "pack")


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    order = np.random.default_rng(0).permutation(6000)
    splits = {"train": order[:400], "valid": order[400:450], "test": order[450:500]}
    return small_graph(tmp_path / "graph", splits=splits)


def prepare(
    graph: Graph, out: Path, *, memory_now: str = "100MiB", progress: Any = None, **options: Any
) -> Any:
    """Prepares with more memory than loading is to have."""
    with Runtime(memory_now, threads=1, progress=progress) as runtime:
        return prepare_run(graph, out, runtime=runtime, **options)


def files(run: Path) -> dict[str, bytes]:
    return {f"{stage}/{name}": data for stage in STAGES for name, data in tree(run / stage).items()}


@pytest.mark.parametrize("layout", ["packed", "6,1"])
@pytest.mark.parametrize("parts", [1, 3])
def test_files_are_those_of_one_process(graph: Graph, tmp_path: Path, layout: str, parts: int) -> None:
    options = {**OPTIONS, "layout": layout}
    one = prepare(graph, tmp_path / "one.run", parts=parts, **options)
    for cache in ("host_cache", "device_cache", *(["disk_cache"] if layout == "6,1" else [])):
        assert (tmp_path / "one.run" / "pack" / f"{cache}.bin").stat().st_size > 30_000, cache
    wanted = one.predicted["epochs"]["train"][0]["rows_by_level"]
    assert wanted["packed"] > 200
    for workers in (2, 5):
        out = tmp_path / f"{workers}.run"
        report = prepare(graph, out, parts=parts, workers=workers, **options)
        assert differences(tree(out), tree(tmp_path / "one.run")) == []
        assert leftovers(out) == []
        made = sum(path.stat().st_size for path in (out / "pack").glob("*_cache.bin"))
        made += sum(path.stat().st_size for path in (out / "pack").glob("records*.bin"))
        assert 0.9 * made < report.stages["pack"]["bytes_written"] < 2 * made  # padding is not written
        again = prepare(graph, out, parts=parts, workers=workers, **options)
        assert again.skipped == list(STAGES)


def test_graphs_with_types(tmp_path: Path) -> None:
    config = oc.GenerateConfig(nodes=600, edges=9000, kind="typed", features=16, train_fraction=0.3)
    graph = oc.generate_graph(tmp_path / "g.oc", config, progress=False)
    for workers in (1, 2):
        prepare(graph, tmp_path / f"{workers}.run", workers=workers, parts=2, **OPTIONS)
    assert differences(tree(tmp_path / "2.run"), tree(tmp_path / "1.run")) == []


def children() -> list[int]:
    """Processes that this one has started, but for those that only count resources."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        found += [int(pid) for pid in (task / "children").read_text().split()]
    return [pid for pid in found if b"spawn_main" in (Path("/proc") / str(pid) / "cmdline").read_bytes()]


class Killer:
    """Kills a process that packs each time that a chunk is done, as long as there are any left to kill."""

    def __init__(self, most: int):
        self.left = most

    def start(self, task: str, total: int, unit: str) -> None: ...
    def note(self, task: str, text: str) -> None: ...
    def finish(self, task: str) -> None: ...
    def advance(self, task: str, amount: int) -> None:
        if task == "pack" and self.left and (found := children()):
            self.left -= 1
            os.kill(found[-1], signal.SIGKILL)


def test_processes_that_are_killed_are_replaced(graph: Graph, tmp_path: Path) -> None:
    prepare(graph, tmp_path / "one.run", **OPTIONS)
    killer = Killer(2)
    prepare(graph, tmp_path / "found.run", workers=2, progress=killer, **OPTIONS)
    assert (
        killer.left < 2
    )  # on a busy machine the other process may have done all chunks before the second could
    assert differences(tree(tmp_path / "found.run"), tree(tmp_path / "one.run")) == []
    assert children() == []


def test_processes_that_are_killed_at_once_end_it(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for ever: what kills them kills the next, too."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nif any('spawn_main' in a for a in sys.argv + sys.orig_argv): os.kill(os.getpid(), 9)\n"
    )
    with pytest.raises(
        CancelledError, match=r"processes that pack ended, killed perhaps.*fewer of them \(--workers\)"
    ):
        prepare(graph, tmp_path / "g.run", workers=2, **OPTIONS)
    monkeypatch.undo()
    prepare(graph, tmp_path / "g.run", workers=2, **OPTIONS)


DYING = """
import os, sys
from outcrop.runtime.runtime import Runtime
from prepare_support import prepare as made

class Progress:
    left = int(sys.argv[3])
    def step(self, *args):
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), 9)
    start = advance = finish = step
    def note(self, *args): ...

if __name__ == "__main__":
    with Runtime("100MiB", threads=1, progress=Progress()) as runtime:
        made(sys.argv[1], sys.argv[2], workers=2, runtime=runtime, **{options})
"""


def of_this_run(run: Path) -> list[int]:
    """Processes whose open or mapped files lie below ``run``."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and str(run) in (process / "maps").read_text():
                found.append(int(process.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2])
def test_the_command_is_killed_at_every_step(graph: Graph, tmp_path: Path, parts: int) -> None:
    """The same command goes on; processes that it has started end with it."""
    want = tmp_path / "want.run"
    prepare(graph, want, parts=parts, **OPTIONS)
    script = tmp_path / "dying.py"
    script.write_text(DYING.replace("{options}", repr({**OPTIONS, "parts": parts})))
    run, after = tmp_path / "g.run", 0
    while True:
        command = [sys.executable, str(script), str(graph.path), str(run), str(after)]
        done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, timeout=120)
        assert done.returncode in (0, -9), done.stderr
        deadline = time.monotonic() + 10
        while of_this_run(run) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert of_this_run(run) == []
        if after % 2:  # every other time from what is there, else anew
            prepare(graph, run, parts=parts, workers=2, **OPTIONS)
            assert differences(tree(run), tree(want)) == []
            shutil.rmtree(run)
        if done.returncode == 0:
            break
        after += 1
    assert after > 20


def test_a_damaged_row_file_is_named(graph: Graph, tmp_path: Path) -> None:
    file = graph.path / "features.bin"
    good = file.read_bytes()
    file.write_bytes(good[:50_000] + bytes([good[50_000] ^ 1]) + good[50_001:])
    with pytest.raises(ChecksumError, match=r"features\.bin"):
        prepare(graph, tmp_path / "g.run", workers=2, **OPTIONS)
    assert not (tmp_path / "g.run" / "pack").exists()
    file.write_bytes(good)
    prepare(graph, tmp_path / "g.run", workers=2, **OPTIONS)


def test_a_full_disk_is_named(graph: Graph, tmp_path: Path) -> None:
    """All but the last of it has room."""
    prepare(graph, tmp_path / "want.run", **OPTIONS)
    size = sum(map(len, tree(tmp_path / "want.run").values()))
    with mounted_memory(tmp_path / "disk", f"{size // 1024 - 100}k") as disk:
        with pytest.raises(IoError, match=rf"{disk}.*No space left"):
            prepare(graph, disk / "g.run", workers=2, **OPTIONS)
        assert not (disk / "g.run" / "pack").exists()


def test_too_little_memory_for_several(graph: Graph, tmp_path: Path) -> None:
    """One process does it all then, and says so."""

    class Heard:
        def __init__(self) -> None:
            self.notes: list[str] = []

        def start(self, task: str, total: int, unit: str) -> None: ...
        def advance(self, task: str, amount: int) -> None: ...
        def finish(self, task: str) -> None: ...
        def note(self, task: str, text: str) -> None:
            self.notes.append(text)

    heard = Heard()
    options = {**OPTIONS, "memory_now": "4MiB"}
    prepare(graph, tmp_path / "g.run", workers=2, progress=heard, **options)
    assert heard.notes == ["memory for one process, not for 2 beside it"]
    prepare(graph, tmp_path / "one.run", **options)
    assert differences(tree(tmp_path / "g.run"), tree(tmp_path / "one.run")) == []
    with pytest.raises(ArgumentError, match="0 workers cannot pack"):
        prepare(graph, tmp_path / "g.run", workers=0, **options)
