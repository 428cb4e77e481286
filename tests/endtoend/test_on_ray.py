"""``outcrop prepare --ray``: a cluster gives the files of one process, whoever is killed. Raylets of this machine."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import outcrop as oc
from artifact_support import differences, leftovers
from artifact_support import tree as every_file
from namespaces import descendants
from outcrop.runtime.runtime import Runtime
from outcrop.store.placement import open_placement
from prepare_support import prepare
from raylets import Cluster, environment

OPTIONS: dict[str, Any] = {"fanouts": (5, 5), "batch_size": 100, "epochs": 2, "memory": "16MiB", "parts": 3}
FLAGS = ["--fanouts", "5,5", "--batch-size", "100", "--epochs", "2", "--memory", "16MiB", "--parts", "3"]
pytestmark = pytest.mark.slow


def tree(run: Path) -> dict[str, bytes]:
    """All files but the one that says where the graph lies."""
    return {name: data for name, data in every_file(run).items() if name != "run.json"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster(3)
    yield made
    made.close()


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """51 MB of features, some 17 chunks."""
    config = oc.GenerateConfig(nodes=100_000, edges=800_000, features=128, train_fraction=0.02)
    return oc.generate_graph(tmp_path_factory.mktemp("ray") / "g.oc", config, progress=False).path


@pytest.fixture(scope="module")
def want(graph: Path) -> dict[str, bytes]:
    prepare(graph, graph.parent / "want.run", **OPTIONS)
    return tree(graph.parent / "want.run")


def command(graph: Path, run: Path, address: str, *more: str) -> list[str]:
    return [sys.executable, "-m", "outcrop", "prepare", str(graph), str(run), *FLAGS, "--ray", address, *more]


def done(graph: Path, run: Path, address: str, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(graph, run, address, *more), env=environment(), capture_output=True, text=True, timeout=300
    )


def ray_processes(cluster: Cluster, *names: str) -> list[int]:
    """Processes of the cluster that do work called ``names``; those of other clusters on this machine are not ours."""
    found = []
    for process in descendants(cluster.process.pid):
        try:
            title = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if title.startswith("ray::") and any(name in title for name in names):
            found.append(process.pid)
    return found


@contextmanager
def killing(cluster: Cluster, *names: str, most: int, seed: int) -> Iterator[list[int]]:
    """Kills processes that work, one after another, at moments of their own."""
    chance, killed, ending = random.Random(seed), [], threading.Event()

    def kill() -> None:
        while not ending.wait(chance.uniform(0.05, 0.6)) and len(killed) < most:
            if found := ray_processes(cluster, *names):
                victim = chance.choice(found)
                try:
                    os.kill(victim, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                killed.append(victim)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        ending.set()
        thread.join()


def rows_bytes(run: Path) -> int:
    """All rows that are written, by the plan."""
    with Runtime() as runtime:
        rows = open_placement(runtime, run / "plan").files[0]
        return (int(rows.num_packed.sum()) + len(rows.host_ids) + len(rows.device_ids)) * rows.row_bytes


def test_one_machine_sends_nothing(graph: Path, want: dict[str, bytes], tmp_path: Path) -> None:
    run, out = tmp_path / "g.run", tmp_path / "report.json"
    found = done(graph, run, "local", "--json", str(out))
    assert found.returncode == 0, found.stderr
    assert differences(tree(run), want) == []
    none = {"machines": 1, "rows_bytes_sent": 0, "ids_bytes_sent": 0, "spilled_bytes": 0}
    assert json.loads(out.read_text())["cluster"] == none


def test_spilled_bytes_are_those_of_the_files(cluster: Cluster) -> None:
    """Of half as much again as an object store holds: Ray writes them below its temporary folder, with short heads."""
    code = """
import sys, time
from pathlib import Path
import numpy as np
import ray
from outcrop.preparation.cluster.on_ray import spilled_bytes

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
session = Path(ray._private.worker.global_worker.node.get_session_dir_path())
few = [ray.put(np.zeros(1 << 20, np.uint8)) for _ in range(3)]
time.sleep(1)
none = spilled_bytes(few)
every = few + [ray.put(np.full(10 << 20, i, np.uint8)) for i in range(12)]
found, on_disk, until = 0, -1, time.monotonic() + 60
while not 0 < found <= on_disk <= found + 4096 * len(every) and time.monotonic() < until:
    time.sleep(0.2)  # Ray goes on writing, and tells of it later
    files = [path for path in session.glob("ray_spilled_objects*/**/*") if path.is_file()]
    found, on_disk = spilled_bytes(every), sum(path.stat().st_size for path in files)
print(none, found, on_disk, len(every), flush=True)
"""
    found = subprocess.run(
        [sys.executable, "-c", code, cluster.address],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    none, counted, on_disk, objects = map(int, found.stdout.split())
    assert none == 0, found.stderr
    assert 10 << 20 <= counted <= on_disk <= counted + 4096 * objects


def test_files_are_those_of_one_process(
    cluster: Cluster, graph: Path, want: dict[str, bytes], tmp_path: Path
) -> None:
    run = tmp_path / "g.run"
    found = done(graph, run, cluster.address, "--json", str(tmp_path / "report.json"))
    assert found.returncode == 0, found.stderr
    assert differences(tree(run), want) == []
    assert leftovers(run) == []
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["stages"]["pack"]["bytes_read"] >= 100_000 * 512
    moved, row_bytes, id_bytes = report["cluster"], 512, 8
    assert moved["machines"] == 3
    assert moved["spilled_bytes"] == 0
    # Owners and chunks are dealt to the machines in turn: two thirds of the rows go to another one.
    assert moved["rows_bytes_sent"] == pytest.approx(rows_bytes(run) * 2 / 3, rel=0.1)
    assert moved["ids_bytes_sent"] * row_bytes == moved["rows_bytes_sent"] * id_bytes
    again = done(graph, run, cluster.address, "--json", str(tmp_path / "again.json"))
    assert json.loads((tmp_path / "again.json").read_text())["cluster"] is None
    assert "already there sample, plan, pack" in " ".join(again.stdout.split()), again.stdout


def test_features_stay_in_a_store(
    cluster: Cluster, graph: Path, want: dict[str, bytes], tmp_path: Path
) -> None:
    """Tasks read their chunks there."""
    uri, quiet = f"file://{tmp_path}/store/g.oc", oc.Observer(progress=False)
    oc.upload(graph, uri, observer=quiet)
    oc.fetch(uri, tmp_path / "lean.oc", leave_features=True, observer=quiet)
    found = done(tmp_path / "lean.oc", tmp_path / "g.run", cluster.address)
    assert found.returncode == 0, found.stderr
    assert differences(tree(tmp_path / "g.run"), want) == []
    assert not (tmp_path / "lean.oc" / "features.bin").exists()


def test_a_segmented_disk_cache_and_types(cluster: Cluster, tmp_path: Path) -> None:
    config = oc.GenerateConfig(nodes=600, edges=9000, kind="typed", features=16, train_fraction=0.3)
    graph = oc.generate_graph(tmp_path / "g.oc", config, progress=False).path
    prepare(graph, tmp_path / "want.run", **OPTIONS, layout="4,1")
    found = done(graph, tmp_path / "g.run", cluster.address, "--layout", "4,1")
    assert found.returncode == 0, found.stderr
    assert differences(tree(tmp_path / "g.run"), tree(tmp_path / "want.run")) == []


@pytest.mark.parametrize("seed", [0, 1])
def test_tasks_and_owners_that_are_killed_are_started_again(
    cluster: Cluster, graph: Path, want: dict[str, bytes], tmp_path: Path, seed: int
) -> None:
    with killing(cluster, "_read_chunk", "PieceOwner", most=6, seed=seed) as killed:
        found = done(graph, tmp_path / "g.run", cluster.address)
    assert found.returncode == 0, found.stderr
    assert len(killed) >= 2
    assert differences(tree(tmp_path / "g.run"), want) == []


def test_a_machine_is_lost(graph: Path, want: dict[str, bytes], tmp_path: Path) -> None:
    cluster = Cluster(3)
    try:
        started = subprocess.Popen(
            command(graph, tmp_path / "g.run", cluster.address),
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        while not ray_processes(cluster, "PieceOwner") and started.poll() is None:
            time.sleep(0.05)
        cluster.tell("remove 0")
        _, said = started.communicate(timeout=300)
        assert started.returncode == 0, said
        assert differences(tree(tmp_path / "g.run"), want) == []
    finally:
        cluster.close()


def test_a_machine_that_is_gone_need_not_see_the_folder(tmp_path: Path) -> None:
    """Ray lists it as alive for some seconds: it is asked, and its answer never comes."""
    code = """
import os, signal, sys
from pathlib import Path
import ray
from namespaces import descendants
from outcrop.preparation.cluster import on_ray

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
raylets = [
    one.pid
    for one in descendants(int(sys.argv[2]))
    if "raylet/raylet" in Path(f"/proc/{one.pid}/cmdline").read_text()
]
own = ray.get_runtime_context().get_node_id()
for pid in raylets:  # but for the one that this process works with, and the head
    if own not in (said := Path(f"/proc/{pid}/cmdline").read_text()) and "--head" not in said:
        os.kill(pid, signal.SIGKILL)
        break
listed = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
on_ray._check_seen(Path(sys.argv[3]))
left = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
print(len(listed), len(left), own in left)
"""
    cluster = Cluster(2)
    try:
        asked = [cluster.address, str(cluster.process.pid), str(tmp_path)]
        found = subprocess.run(
            [sys.executable, "-c", code, *asked],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=200,
        )
    finally:
        cluster.close()
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1] == "2 1 True", found.stdout[-2000:]
    assert list(tmp_path.iterdir()) == []


def test_the_command_is_killed_and_goes_on(
    cluster: Cluster, graph: Path, want: dict[str, bytes], tmp_path: Path
) -> None:
    """Owners and tasks of a command end with it."""
    run, chance = tmp_path / "g.run", random.Random(3)
    for _ in range(3):
        started = subprocess.Popen(command(graph, run, cluster.address, "--quiet"), env=environment())
        while not ray_processes(cluster, "PieceOwner") and started.poll() is None:
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 1.0))
        started.kill()
        started.wait()
        deadline = time.monotonic() + 30
        while ray_processes(cluster, "PieceOwner", "_read_chunk") and time.monotonic() < deadline:
            time.sleep(0.1)
        assert ray_processes(cluster, "PieceOwner", "_read_chunk") == []
    found = done(graph, run, cluster.address)
    assert found.returncode == 0, found.stderr
    assert differences(tree(run), want) == []


def test_damage_ends_it_and_is_named(
    cluster: Cluster, graph: Path, want: dict[str, bytes], tmp_path: Path
) -> None:
    file = graph / "features.bin"
    good = file.read_bytes()
    try:
        file.write_bytes(good[:20_000_000] + bytes([good[20_000_000] ^ 1]) + good[20_000_001:])
        found = done(graph, tmp_path / "g.run", cluster.address)
    finally:
        file.write_bytes(good)
    assert found.returncode != 0
    assert "features.bin" in found.stderr
    assert "Traceback" not in found.stderr
    assert done(graph, tmp_path / "g.run", cluster.address).returncode == 0
    assert differences(tree(tmp_path / "g.run"), want) == []


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", "no Ray cluster answers at '127.0.0.1:1'"),
        ("ray://127.0.0.1:1", "'ray://127.0.0.1:1' is no address of a Ray cluster"),
        ("there", "'there' is no address of a Ray cluster"),
    ],
)
def test_no_cluster_answers(graph: Path, tmp_path: Path, address: str, said: str) -> None:
    found = done(graph, tmp_path / "g.run", address)
    assert found.returncode != 0
    assert said in " ".join(found.stderr.split()), found.stderr
    assert not (tmp_path / "g.run" / "pack").exists()


@pytest.mark.usefixtures("cluster")
def test_the_cluster_of_this_machine(graph: Path, want: dict[str, bytes], tmp_path: Path) -> None:
    """One that ``ray start`` has started, found by itself."""
    with tempfile.TemporaryDirectory(prefix="outcrop-ray-", ignore_cleanup_errors=True) as folder:
        variables = {**environment(), "RAY_TMPDIR": folder, "HOME": folder}  # where it keeps a token
        options = [
            "--head",
            "--block",
            "--port",
            "0",
            "--num-cpus",
            "2",
            "--object-store-memory",
            str(80 << 20),
        ]
        with subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "start", *options, "--include-dashboard", "false"],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as head:
            try:
                assert head.stdout is not None
                assert any("Ray runtime started" in line for line in head.stdout)
                found = subprocess.run(
                    command(graph, tmp_path / "g.run", "auto"),
                    env=variables,
                    capture_output=True,
                    text=True,
                    timeout=300,
                )
            finally:
                head.terminate()
                head.wait(60)
    assert found.returncode == 0, found.stderr
    assert differences(tree(tmp_path / "g.run"), want) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces")
@pytest.mark.skipif(shutil.which("ip") is None, reason="no ip: install iproute2")
@pytest.mark.usefixtures("cluster")
def test_two_machines_prepare_and_train(tmp_path: Path) -> None:
    """The example of the README: nothing of it is left running."""
    variables = environment()
    variables["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), variables["PATH"]])
    config = oc.GenerateConfig(nodes=20_000, edges=200_000)
    oc.generate_graph(tmp_path / "my.oc", config, progress=False)
    script = Path(__file__).parents[2] / "examples" / "two_machines.sh"
    found = subprocess.run(
        [str(script), str(tmp_path / "my.oc"), str(tmp_path / "work")],
        env=variables,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "equal: every file, " in found.stdout
    for machine in (0, 1):
        (records,) = (tmp_path / "work" / f"disk{machine}" / "my.run" / "pack").glob("records.*")
        assert records.name == f"records.{machine}.bin"
    named = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True)
    assert "outcrop-" not in named.stdout


@pytest.mark.usefixtures("cluster")
def test_ray_train_learns_what_one_process_does(tmp_path: Path) -> None:
    config = oc.GenerateConfig(nodes=5000, edges=40_000, features=16)
    graph = oc.generate_graph(tmp_path / "my.oc", config, progress=False)
    run = tmp_path / "my.run"
    prepare(graph, run, fanouts=(5, 5), batch_size=500, epochs=3)
    script = Path(__file__).parents[2] / "examples" / "several_processes_ray.py"
    found = subprocess.run(
        [sys.executable, str(script), str(graph.path), str(run), str(tmp_path / "several"), "2"],
        env={**environment(), "OMP_NUM_THREADS": "1", "RAY_ADDRESS": "local"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    code = """
import sys
import outcrop as oc

graph, run, one, several = sys.argv[1:]
model, training = oc.ModelConfig("sage", hidden=32, dropout=0.3), oc.TrainConfig(epochs=3, accumulate=2)
oc.train(graph, run=run, model=model, training=training, checkpoint=one, observer=oc.Observer(progress=False))
ours, theirs = (oc.load_model(folder).state_dict() for folder in (one, several))
print(ours.keys() == theirs.keys() and all(value.equal(theirs[name]) for name, value in ours.items()))
"""
    alone = subprocess.run(
        [
            sys.executable,
            "-c",
            code,
            str(graph.path),
            str(run),
            str(tmp_path / "one"),
            str(tmp_path / "several"),
        ],
        env={**environment(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert alone.stdout.strip() == "True", alone.stderr
    assert "test accuracy" in found.stdout + found.stderr


def test_ray_is_loaded_where_it_is_asked_for(tmp_path: Path) -> None:
    """It, and what starts processes of torch, are not where one machine works."""
    code = """
import sys
import outcrop as oc

graph = oc.generate_graph(sys.argv[1] + "/g", oc.GenerateConfig(nodes=500, edges=3000, features=8), progress=False)
quiet = oc.Observer(progress=False)
run = oc.prepare(graph, sys.argv[1] + "/run", sampling=oc.SampleConfig(fanouts=(3,)), epochs=1, observer=quiet)
oc.train(graph, run=run.path, training=oc.TrainConfig(epochs=1), observer=quiet)
import importlib.util
assert importlib.util.find_spec("ray") is not None
print([name for name in ("ray", "torch.distributed.run") if name in sys.modules])
"""
    found = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.stdout.strip() == "[]", found.stderr
