"""Trainings of embeddings by one or several processes, and what came of them: what tests of these share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embed_support import table_of
from outcrop.runtime.runtime import Runtime

ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    "PYTHONPATH": str(Path(__file__).parent),
}
LEARN = (
    *("--dim", "8", "--epochs", "3", "--negatives", "20", "--chunk", "16", "--batch", "64", "--start", "0.1"),
    *("--reciprocal", "--seed", "5", "--quiet"),
)
GROUPS = 4
SCRIPT = Path(__file__).parent / "embed_ranks_script.py"


def torchrun(world: int, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"),
        *more,
    ]


def ended(command: Sequence[str], **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=ENVIRONMENT | variables, capture_output=True, text=True, timeout=200)


def trained(world: int, run: Path, *options: str, groups: int | None = GROUPS) -> dict[str, Any]:
    """What ``outcrop embed train`` reports, with the table that it has made."""
    start = [sys.executable] if world == 1 else torchrun(world)
    more = () if groups is None else ("--groups", str(groups))
    report = run / "report.json"
    done = ended(
        [
            *start,
            "-m",
            "outcrop",
            "--",
            "embed",
            "train",
            str(run),
            "--json",
            str(report),
            *LEARN,
            *more,
            *options,
        ]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    report.unlink()
    return found | dict(zip(("nodes", "relations"), table_of(run, Runtime()), strict=True))


def scripted(world: int, run: Path, units: int = 0, *options: str, groups: int = GROUPS, **variables: str):
    """What came of the training of :mod:`embed_ranks_script`, which is that of ``LEARN``."""
    start = torchrun(world, *options) if world > 1 else [sys.executable]
    return ended([*start, str(SCRIPT), str(run), str(groups), str(units)], **variables)


def stopped(world: int, run: Path, units: int, **variables: str) -> None:
    """Has the training of :func:`scripted` end by itself before a process trains more than so many units."""
    done = scripted(world, run, units, **variables)
    assert "stopped on purpose" in done.stderr, done.stderr  # all of it: what else it ended by


def assert_equal(found: dict[str, Any], want: dict[str, Any]) -> None:
    np.testing.assert_array_equal(found["nodes"], want["nodes"])
    np.testing.assert_array_equal(found["relations"], want["relations"])
    assert [e["loss"] for e in found["epochs"]] == [e["loss"] for e in want["epochs"]]
