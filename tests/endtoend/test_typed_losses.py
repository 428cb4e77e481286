"""Losses and weights of graphs with types: the same bits after kills, with any number of threads, however rows come.

Rows of institutions are learned and there is dropout, so that all that a training keeps between batches takes part.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import outcrop as oc
from forked import python
from outcrop.advisor.choose import SpoolDecision
from outcrop.nn import checkpoint as checkpoints
from outcrop.store.graph import Graph
from outcrop.training import spool
from typed_training_support import BATCHES, EPOCHS, OPTIONS

DYING = """
import sys
from typed_training_support import train_and_die
train_and_die(*sys.argv[1:4], int(sys.argv[4]))
"""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    config = oc.GenerateConfig(nodes=600, edges=9000, kind="typed", features=16, train_fraction=0.3)
    return oc.generate_graph(tmp_path_factory.mktemp("losses") / "g.oc", config, progress=False)


@contextmanager
def quick() -> Iterator[None]:
    """Has one thread, because a second only waits on matrices this small, and no fsync, because no power fails here."""
    before, threads = os.fsync, torch.get_num_threads()
    torch.set_num_threads(1)
    os.fsync = lambda _: None
    try:
        yield
    finally:
        os.fsync = before
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class Trained:
    """Holds what must not depend on how a training went: losses, scores, and all tensors of its last checkpoint."""

    losses: list[float]
    scores: list[float | None]
    tensors: dict[str, torch.Tensor]


def kept_in(folder: Path) -> Trained:
    last = checkpoints.read(folder / checkpoints.LAST, "last")
    parts = {"model": last.model, "best": last.best, "optimizer": last.optimizer}
    tensors = {f"{part}.{name}": value for part, held in parts.items() for name, value in held.items()}
    return Trained(last.meta.batch_losses, [epoch["valid_metric"] for epoch in last.meta.history], tensors)


def differences(found: Trained, wanted: Trained) -> list[str]:
    names, none = sorted(found.tensors.keys() | wanted.tensors.keys()), torch.empty(0)
    pairs = [(found.tensors.get(name, none), wanted.tensors.get(name, none)) for name in names]
    unlike = [name for name, both in zip(names, pairs, strict=True) if not torch.equal(*both)]
    unlike += ["losses"] * (found.losses != wanted.losses)
    return unlike + ["scores"] * (found.scores != wanted.scores)


def trained(graph: Graph, folder: Path, **options: Any) -> tuple[Trained, Any]:
    quiet = oc.Observer(progress=False)
    with quick():
        report = oc.train(graph, checkpoint=folder, **{**OPTIONS, "observer": quiet, **options})
    return kept_in(folder), report


@pytest.fixture(scope="module")
def undisturbed(graph: Graph, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    found, _ = trained(graph, tmp_path_factory.mktemp("undisturbed") / "ckpt", loading="memory")
    assert len(found.losses) == EPOCHS * BATCHES == len({*found.losses})
    assert {"optimizer.rows.3.exp_avg_sq", "model.learned.3"} <= found.tensors.keys()
    return found


@pytest.mark.slow
def test_killed_training_goes_on_to_the_same_bits(graph: Graph, undisturbed: Trained, tmp_path: Path) -> None:
    """Killed within an epoch and between two, again where it went on, in another mode each time."""
    kept, done = tmp_path / "ckpt", 0
    for mode, after in (("online", 3), ("memory", 2), ("packed", 6), ("ondisk", 4)):
        ended = python(DYING, graph.path, kept, mode, after)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        losses = checkpoints.read(kept / checkpoints.LAST, "last").meta.batch_losses
        assert done < len(losses) < EPOCHS * BATCHES
        assert losses == undisturbed.losses[: len(losses)]
        done = len(losses)
    found, report = trained(graph, kept, loading="dynamic")
    assert report.resumed_from is not None
    assert differences(found, undisturbed) == []


def spools(_: Graph, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Has two epochs at a time written to disk as a pass reads them."""
    monkeypatch.setattr(spool, "decide_spooling", lambda *_: SpoolDecision(2, None, "as the test says"))
    return {"loading": "online"}


def refreshes(_: Graph, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Has the next two epochs prepared while these train."""
    return {"loading": "packed", "run": oc.Refresh(2, folder=folder / "pools")}


def knows_what_comes(graph: Graph, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Has all epochs recorded, which mode belady needs."""
    options = {name: OPTIONS[name] for name in ("sampling", "memory", "epochs")}
    oc.prepare(graph, folder / "run", observer=oc.Observer(progress=False), **options)
    return {"loading": "belady", "run": folder / "run", "sampling": None}


@pytest.mark.parametrize("ways", [spools, refreshes, knows_what_comes])
def test_losses_do_not_depend_on_how_rows_come(
    graph: Graph, undisturbed: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ways: Any
) -> None:
    found, report = trained(graph, tmp_path / "ckpt", **ways(graph, tmp_path, monkeypatch))
    assert differences(found, undisturbed) == []
    first_of_pools = [pool["first_epoch"] for pool in report.pools or []]
    assert first_of_pools == ([] if ways is knows_what_comes else [0, 2])
    assert report.spooled_epochs == (2 if ways is spools else 0)
    assert not list(graph.path.parent.glob("*.spool-*"))


THREADS = """
import sys
from typed_training_support import train_with_threads
train_with_threads(*sys.argv[1:4], int(sys.argv[4]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["packed", "online"])
def test_losses_do_not_depend_on_threads(
    graph: Graph, undisturbed: Trained, tmp_path: Path, mode: str
) -> None:
    """Workers are as many as there are cores to use, threads of torch as many as it is told."""
    for threads in (1, 2):
        kept = tmp_path / f"{threads}"
        ended = python(THREADS, graph.path, kept, mode, threads)
        assert ended.returncode == 0, ended.stderr
        workers = min(threads, len(os.sched_getaffinity(0)))
        assert ended.stdout.split() == [f"{workers}", f"{threads}"]
        assert differences(kept_in(kept), undisturbed) == []
