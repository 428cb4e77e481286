"""Under the kernel's own memory limit: the budget and a fixed allowance are enough, whatever the size of the data.

The limit counts everything: Python, torch, the model, NumPy's temporaries, and the page cache.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from artifact_support import child_environment, differences, tree
from cgroup import LimitedRun, memory_limited
from outcrop.api.graph import generate_graph
from outcrop.config import ALLOWANCE_BYTES, GenerateConfig, parse_size
from outcrop.store.graph import Graph, open_graph

MIB = 1 << 20
MEMORY = "28MiB"
WITHOUT_TORCH = 64 * MIB  # what Python, NumPy and Arrow take
WITH_ARROW_CSV = 96 * MIB  # and Arrow's CSV reader with its allocator

PREPARE = """
import json, sys
from prepare_support import prepare
from outcrop.runtime.runtime import Runtime
memory = sys.argv[3]
topology = sys.argv[4] if sys.argv[4:] else "automatic"
runtime = Runtime(memory)
report = prepare(sys.argv[1], sys.argv[2], fanouts=[10, 10], batch_size=200, epochs=1, memory=memory, runtime=runtime,
                 topology=topology)
print(json.dumps({"peak": runtime.budget.peak_bytes, "disk": report.disk_bytes}))
"""
TRAIN = """
import json, sys
from outcrop.api.train import train
epochs = 1 if sys.argv[4] == "memmap" else 2  # which reads for twenty seconds an epoch
report = train(sys.argv[1], run=sys.argv[2], memory=sys.argv[3], mode=sys.argv[4], model=sys.argv[5], epochs=epochs,
               topology=sys.argv[6] if sys.argv[6:] else "automatic")
print(json.dumps({"peak": report.peak_host_bytes, "losses": [e["loss"] for e in report.epochs],
                  "compiler": "torch._dynamo" in sys.modules}))
"""
PREPARE_TYPED = """
import json, sys
from prepare_support import prepare
from outcrop.runtime.runtime import Runtime
runtime = Runtime(sys.argv[3])
report = prepare(sys.argv[1], sys.argv[2], fanouts=[5, 5], batch_size=60, epochs=1, memory=sys.argv[3], runtime=runtime,
                 edge_rows=True)
print(json.dumps({"peak": runtime.budget.peak_bytes, "disk": report.disk_bytes}))
"""
TRAIN_TYPED = """
import json, sys
import outcrop as oc
report = oc.train(sys.argv[1], run=sys.argv[2], memory=sys.argv[3], loading=sys.argv[4], epochs=2,
                  model=oc.ModelConfig("rgcn", hidden=32, no_rows="random:16"), observer=oc.Observer(progress=False))
print(json.dumps({"peak": report.peak_host_bytes, "losses": [e["loss"] for e in report.epochs]}))
"""
GROWTH = """
import json, sys
from pathlib import Path
from outcrop.api.train import train
held = []
class Held:
    def on_epoch(self, epoch, values):
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        held.append(next(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:")))
report = train(sys.argv[1], run=sys.argv[2], memory=sys.argv[3], mode="packed", model="sage", epochs=20, hidden=16,
               evaluate_every=20, test=False, callbacks=[Held()])
print(json.dumps({"peak": report.peak_host_bytes, "held": held}))
"""
SPOOL = """
import json, sys
from outcrop.runtime.hardware import Disk, Hardware
from outcrop.training import spool
from outcrop.api.train import train
spool.machine.rough_hardware = lambda path: Hardware("here", Disk("here", ((4096, 2e4), (1 << 20, 1e3))))
report = train(sys.argv[1], mode="online", refresh=True, memory=sys.argv[2], fanouts=[10, 10], batch_size=200, epochs=4,
               disk_space=sys.argv[3])
print(json.dumps({"peak": report.peak_host_bytes, "losses": [e["loss"] for e in report.epochs],
                  "spooled": report.spooled_epochs, "beside": [p["beside"] for p in report.pools]}))
"""
EMBED = """
import json, sys
from outcrop.api.embed import embed_eval, embed_export, embed_prepare, embed_train
from outcrop.config import BucketConfig
graph, run, memory = sys.argv[1:]
embed_prepare(graph, run, BucketConfig(20, valid_fraction=0.001, test_fraction=0.001), memory=memory)
report = embed_train(run, model="dot", dim=64, epochs=1, negatives=20, batch=1000, memory=memory)
found = embed_eval(run, candidates=1000, memory=memory)
embed_export(run, "parquet", memory=memory)
print(json.dumps({"peak": report.peak_host_bytes, "resident": report.resident, "mrr": found.mrr}))
"""
IMPORT = """
import json, sys
from outcrop.importing.graph import import_graph
from outcrop.runtime.runtime import Runtime
runtime = Runtime(sys.argv[3])
import_graph("arrays:" + sys.argv[1], sys.argv[2], runtime)
print(json.dumps({"peak": runtime.budget.peak_bytes}))
"""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Graph]:
    """Rows of 1 KiB, 200 MiB of them: seven times the budget."""
    folder = tmp_path_factory.mktemp("limited")
    yield generate_graph(
        folder / "graph",
        GenerateConfig(
            nodes=200_000,
            edges=2_000_000,
            features=256,
            classes=16,
            train_fraction=0.02,
            valid_fraction=0.005,
            test_fraction=0.005,
        ),
        memory="64MiB",
    )
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def prepared(graph: Graph) -> Path:
    """A run that was prepared within the limit, for tests that only read it."""
    folder = graph.path.parent / "prepared"
    limit = parse_size(MEMORY) + WITHOUT_TORCH
    made = succeeds(PREPARE, graph.path, folder, MEMORY, limit=limit)
    assert made["disk"] > 5 * parse_size(MEMORY)
    return folder


def run(code: str, *arguments: object, limit: int) -> LimitedRun:
    # As the command sets it: threads of torch that spin at barriers take all there is where others compute, too.
    environment = child_environment(GOMP_SPINCOUNT="20000")
    return memory_limited([sys.executable, "-c", code, *map(str, arguments)], limit, env=environment)


def succeeds(code: str, *arguments: object, memory: str = MEMORY, limit: int) -> dict:
    """Runs under ``limit``; the budget was kept. What the child prints."""
    ended = run(code, *arguments, limit=limit)
    assert not ended.oom_killed, f"killed at {ended.peak_bytes} bytes"
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout.splitlines()[-1])
    assert result["peak"] <= parse_size(memory)
    return result


@pytest.mark.parametrize("model", ["sage", pytest.param("gat", marks=pytest.mark.slow)])
def test_prepare_and_train_packed(graph: Graph, prepared: Path, model: str) -> None:
    budget, out = parse_size(MEMORY), prepared
    assert graph.feature_bytes > 5 * budget
    trained = succeeds(TRAIN, graph.path, out, MEMORY, "packed", model, limit=budget + ALLOWANCE_BYTES)
    assert trained["losses"][1] < trained["losses"][0]
    assert not trained["compiler"]  # 70 MiB that nothing needs
    refused = run(TRAIN, graph.path, out, MEMORY, "memory", "sage", limit=budget + ALLOWANCE_BYTES)
    assert refused.returncode != 0
    assert refused.oom_killed or "BudgetError" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["online", "ondisk", "memmap", "dynamic", "belady", "partition"])
def test_other_modes(graph: Graph, prepared: Path, mode: str) -> None:
    budget = parse_size(MEMORY)
    succeeds(TRAIN, graph.path, prepared, MEMORY, mode, "sage", limit=budget + ALLOWANCE_BYTES)


@pytest.mark.slow
def test_graphs_with_types_and_rows_of_edges(tmp_path: Path) -> None:
    """175 MiB of rows of three node types and two edge types, six times the budget; prepared, packed and drawn."""
    shape = GenerateConfig(
        kind="typed",
        nodes=150_000,
        edges=1_500_000,
        features=256,
        edge_features=32,
        train_fraction=0.02,
        valid_fraction=0.002,
        test_fraction=0.002,
    )
    graph = generate_graph(tmp_path / "typed", shape, memory="64MiB")
    budget = parse_size(MEMORY)
    assert graph.feature_bytes > 6 * budget
    prepared = succeeds(PREPARE_TYPED, graph.path, tmp_path / "run", MEMORY, limit=budget + WITHOUT_TORCH)
    assert prepared["disk"] > 2 * budget
    limit = budget + ALLOWANCE_BYTES
    packed, drawn = (
        succeeds(TRAIN_TYPED, graph.path, tmp_path / "run", MEMORY, mode, limit=limit)
        for mode in ("packed", "online")
    )
    assert packed["losses"] == drawn["losses"]
    assert packed["losses"][1] < packed["losses"][0]
    shutil.rmtree(tmp_path)


@pytest.mark.slow
def test_epochs_add_nothing(graph: Graph, prepared: Path) -> None:
    """3 MiB were seen from epoch 5 to 19; heaps settle in the first ones."""
    limit = parse_size(MEMORY) + ALLOWANCE_BYTES
    held = succeeds(GROWTH, graph.path, prepared, MEMORY, limit=limit)["held"]
    assert max(held[5:19]) - held[4] <= 8 * MIB  # the last one scores the validation nodes


@pytest.mark.slow
def test_online_spools(graph: Graph) -> None:
    """Looking at batches, timing a step, packing and training: all of it within the limit."""
    limit = parse_size(MEMORY) + ALLOWANCE_BYTES
    spooled, direct = (succeeds(SPOOL, graph.path, MEMORY, space, limit=limit) for space in ("4GiB", "0"))
    assert 1 <= spooled["spooled"] < 4
    assert spooled["beside"] == [False] * len(spooled["beside"])
    assert (direct["spooled"], direct["losses"]) == (0, spooled["losses"])
    assert [path.name for path in graph.path.parent.iterdir() if "spool" in path.name] == []


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["paged", "map"])
def test_topology_on_disk(graph: Graph, prepared: Path, tmp_path: Path, topology: str) -> None:
    """10 MiB of neighbour lists, none of which are held, and the same batches."""
    budget, run_folder = parse_size(MEMORY), tmp_path / "run"
    limit = budget + WITHOUT_TORCH
    succeeds(PREPARE, graph.path, run_folder, MEMORY, topology, limit=limit)
    assert differences(tree(run_folder), tree(prepared)) in ([], ["run.json"])  # which may say how
    limit = budget + ALLOWANCE_BYTES
    trained = succeeds(TRAIN, graph.path, run_folder, MEMORY, "online", "sage", topology, limit=limit)
    assert (
        trained["losses"]
        == succeeds(TRAIN, graph.path, run_folder, MEMORY, "packed", "sage", limit=limit)["losses"]
    )
    shutil.rmtree(run_folder)


@pytest.mark.slow
def test_embeddings(graph: Graph, tmp_path: Path) -> None:
    """98 MiB of vectors and state, 3 of 16 partitions in memory; preparing, ranking and exporting, too."""
    assert graph.num_nodes * 64 * 8 > 3 * parse_size(MEMORY)
    limit = parse_size(MEMORY) + ALLOWANCE_BYTES
    trained = succeeds(EMBED, graph.path, tmp_path / "run", MEMORY, limit=limit)
    assert not trained["resident"]
    assert trained["mrr"] > 0.02  # 0.0075 by chance
    shutil.rmtree(tmp_path / "run")


@pytest.mark.parametrize(
    ("edges", "allowance"),
    [("npy", WITHOUT_TORCH), pytest.param("csv", WITH_ARROW_CSV, marks=pytest.mark.slow)],
)
def test_import(tmp_path: Path, edges: str, allowance: int) -> None:
    """Edges and features, 128 MiB each, through a budget of 12 MiB."""
    rng = np.random.default_rng(0)
    source = tmp_path / "in"
    source.mkdir()
    count = 8 * MIB
    listed = np.lib.format.open_memmap(source / "edges.npy", "w+", np.int64, (count, 2))
    for start in range(0, count, MIB):
        listed[start : start + MIB] = rng.integers(0, 500_000, (MIB, 2))
    if edges == "csv":
        np.savetxt(source / "edges.csv", listed[: count // 4], "%d", ",", header="src,dst", comments="")
        (source / "edges.npy").unlink()
    del listed
    np.save(source / "features.npy", np.ones((500_000, 64), np.float32))
    succeeds(IMPORT, source, tmp_path / "graph", "12MiB", memory="12MiB", limit=12 * MIB + allowance)
    assert open_graph(tmp_path / "graph").num_nodes == 500_000
    shutil.rmtree(tmp_path / "graph")
    shutil.rmtree(source)


@pytest.mark.parametrize("typed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_import_of_rows_of_edges(tmp_path: Path, typed: bool) -> None:
    """240 MiB of rows, in which each row says which edge it is of, through a budget of 12 MiB."""
    count, width = MIB, 60
    edges = np.random.default_rng(0).integers(0, 50_000, (count, 2))
    source = tmp_path / "in"
    source.mkdir()
    names = ("e.npy", "x.npy") if typed else ("edges.npy", "edge_features.npy")
    np.save(source / names[0], edges)
    rows = np.lib.format.open_memmap(source / names[1], "w+", np.float32, (count, width))
    rows[:] = np.arange(count)[:, None]
    del rows
    if typed:
        (source / "graph.toml").write_text(
            '[[nodes]]\nname = "a"\nnum_nodes = 50000\n[[edges]]\nsource = "a"\nrelation = "r"\n'
            'target = "a"\nfile = "e.npy"\nfeatures = "x.npy"\n'
        )
    succeeds(IMPORT, source, tmp_path / "graph", "12MiB", memory="12MiB", limit=12 * MIB + WITHOUT_TORCH)
    found = np.memmap(tmp_path / "graph" / "e0.features.bin", np.float32, "r", shape=(count, width))
    order = np.lexsort((np.arange(count), edges[:, 0], edges[:, 1]))
    assert np.array_equal(found, np.broadcast_to(order[:, None], found.shape))
    shutil.rmtree(tmp_path / "graph")
    shutil.rmtree(source)
