"""Ten million nodes under the kernel's own memory limit: drawing, planning, packing and training in one process."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator

import pytest

from artifact_support import child_environment
from cgroup import LimitedRun, memory_limited
from outcrop.api.graph import generate_graph
from outcrop.config import GenerateConfig, parse_size
from outcrop.store.graph import Graph

pytestmark = pytest.mark.slow
MEMORY = "160MiB"
BESIDE_BYTES = 300 << 20  # less than what users are told to leave (outcrop.config.ALLOWANCE_BYTES)
EPOCHS = 2
# 6 and 353 were seen; thrashing reads the libraries' pages (20,000) again and again, and meets the limit for each.
MOST_FAULTS, MOST_HITS = 1_000, 10_000
MOST_SECONDS = 500  # 20 where nothing else runs
TRAIN = """
import json, sys
from outcrop.runtime.hardware import Disk, Hardware
from outcrop.training import spool
from outcrop.api.train import train
path, mode, limited, options = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
if limited:  # whatever this disk does: random reads are slow
    spool.machine.rough_hardware = lambda path: Hardware("here", Disk("here", ((4096, 2e4), (1 << 20, 1e3))))
report = train(path, mode=mode, memory=limited or None, fanouts=[10, 10], batch_size=1024, epochs=2, **options)
print(json.dumps({"losses": [e["loss"] for e in report.epochs], "spooled": report.spooled_epochs}))
"""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Graph]:
    """Features of 960 MB, six times the budget; 80 MB for each table of a number per node."""
    folder = tmp_path_factory.mktemp("large")
    yield generate_graph(
        folder / "graph",
        GenerateConfig(
            nodes=10_000_000,
            edges=40_000_000,
            features=24,
            train_fraction=0.01,
            valid_fraction=0.0001,
            test_fraction=0.0001,
        ),
        memory="2GiB",
    )
    shutil.rmtree(folder)


def train(graph: Graph, mode: str, limit: int | None, **options: object) -> tuple[dict, LimitedRun]:
    """What the child prints, and how it ended; without ``limit`` within 8 GiB and without a budget."""
    command = [sys.executable, "-c", TRAIN, graph.path, mode, MEMORY if limit else "", json.dumps(options)]
    ended = memory_limited(
        command, limit or 8 << 30, env=child_environment(GOMP_SPINCOUNT="20000"), timeout_seconds=MOST_SECONDS
    )
    assert not ended.oom_killed, f"killed at {ended.peak_bytes} bytes"
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1]), ended


@pytest.fixture(scope="module")
def losses(graph: Graph) -> list[float]:
    """Of training without a limit, straight from the graph."""
    return train(graph, "online", None, disk_space=0)[0]["losses"]


@pytest.mark.parametrize(("mode", "spooled"), [("online", EPOCHS), ("packed", 0)])
def test_preparing_and_training_in_one_process(
    graph: Graph, losses: list[float], mode: str, spooled: int
) -> None:
    """It ends, with the losses that it has without a limit, and does not thrash."""
    found, ended = train(graph, mode, parse_size(MEMORY) + BESIDE_BYTES, refresh=True)
    assert found == {"losses": losses, "spooled": spooled}
    assert ended.major_faults <= MOST_FAULTS
    assert ended.limit_hits <= MOST_HITS
