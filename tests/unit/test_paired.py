"""scripts/paired.py: two revisions timed in turn."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from artifact_support import small_graph
from support import REPOSITORY

SCRIPT = REPOSITORY / "scripts" / "paired.py"


def facts(seconds: float, losses: list[float], peak: int) -> dict[str, object]:
    return {"seconds": seconds, "losses": losses, "peak_bytes": peak}


def test_ratio_is_the_median_over_pairs_and_losses_are_compared():
    compare = runpy.run_path(str(SCRIPT))["compare"]
    old = [facts(1.0, [0.5], 7), facts(2.0, [0.5], 9), facts(4.0, [0.5], 8)]
    new = [facts(1.5, [0.5], 5), facts(1.0, [0.5], 6), facts(4.0, [0.5], 4)]
    found = compare(old, new)
    assert found["ratio"] == 1.0  # of 1.5, 0.5 and 1.0
    assert found["losses_equal"]
    assert found["peak_bytes"] == {"old": 9, "new": 6}
    new[1]["losses"] = [0.25]
    assert not compare(old, new)["losses_equal"]


@pytest.mark.slow
def test_a_revision_against_itself(tmp_path: Path):
    """The environment that runs this test stands for both checkouts."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / ".venv").symlink_to(sys.prefix)
    graph, out = small_graph(tmp_path / "graph"), tmp_path / "paired.json"
    command = [sys.executable, str(SCRIPT), str(checkout), str(checkout), "--graph", str(graph.path)]
    said = subprocess.run(
        [*command, "--pairs", "1", "--epochs", "2", "--json", str(out)], capture_output=True, text=True
    )
    assert said.returncode == 0, said.stdout + said.stderr
    found = json.loads(out.read_text())
    assert set(found["measures"]) == set(runpy.run_path(str(SCRIPT))["MEASURES"])
    for name in ("an epoch, packed", "an epoch, online"):
        assert found["measures"][name]["losses_equal"]
        assert found["measures"][name]["peak_bytes"]["old"] == found["measures"][name]["peak_bytes"]["new"]
    assert not list(tmp_path.glob("tmp*"))  # what it made is gone
