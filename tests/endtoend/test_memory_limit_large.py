"""Ten million nodes under the kernel's own memory limit: drawing, planning, packing and training in one process."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator

import pytest

from artifact_support import child_environment
from cgroup import memory_limited
from outcrop.api.graph import generate_graph
from outcrop.config import ALLOWANCE_BYTES, parse_size
from outcrop.store.graph import Graph

pytestmark = pytest.mark.slow
MEMORY = "160MiB"
EPOCHS = 2
MOST_FAULTS = 1_000  # 6 were seen; thrashing reads the libraries' pages (20,000) again and again
TRAIN = """
import json, sys
from outcrop.advisor.cost import Disk, Hardware
from outcrop.api import spool
from outcrop.api.train import train
if sys.argv[2] == "spooled":  # whatever this disk does: random reads are slow
    spool.machine.rough_hardware = lambda path: Hardware("here", Disk("here", ((4096, 2e4), (1 << 20, 1e3))))
report = train(sys.argv[1], mode="online", memory=sys.argv[3] or None, fanouts=[10, 10], batch_size=1024, epochs=2,
               disk_space=None if sys.argv[2] == "spooled" else 0)
print(json.dumps({"losses": [e["loss"] for e in report.epochs], "spooled": report.spooled_epochs}))
"""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Graph]:
    """Features of 960 MB, six times the budget; 80 MB for each table of a number per node."""
    folder = tmp_path_factory.mktemp("large")
    yield generate_graph(
        folder / "graph", nodes=10_000_000, edges=40_000_000, features=24, train_fraction=0.01,
        valid_fraction=0.0001, test_fraction=0.0001, memory="2GiB",
    )  # fmt: skip
    shutil.rmtree(folder)


def train(graph: Graph, how: str, limit: int | None) -> tuple[dict, int]:
    """What the child prints, and pages that had to be read when they were used."""
    command = [sys.executable, "-c", TRAIN, graph.path, how, MEMORY if limit else ""]
    ended = memory_limited(command, limit or 8 << 30, env=child_environment(GOMP_SPINCOUNT="20000"))
    assert not ended.oom_killed, f"killed at {ended.peak_bytes} bytes"
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1]), ended.major_faults


def test_preparing_and_training_in_one_process(graph: Graph) -> None:
    """Mode ``online`` spools: it ends, with the losses that it has without a limit, and does not thrash."""
    limit = parse_size(MEMORY) + ALLOWANCE_BYTES
    free, _ = train(graph, "online", None)
    spooled, faults = train(graph, "spooled", limit)
    assert spooled == {"losses": free["losses"], "spooled": EPOCHS}
    assert faults <= MOST_FAULTS
