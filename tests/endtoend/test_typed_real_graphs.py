"""Accuracy on real graphs with types, five seeds: that published for the model, and the same in every mode.

The published figures are in SOURCE.txt beside the files. AIFB: 95.83 % (Schlichtkrull et al. 2018, of ten runs, error
0.62), 94.4 % (mini-batches of another library). ACM and DBLP, 60 labels a class: HAN 85.7 % and 90.2 % (20 labels),
HeCo 88.7 % and 92.0 %. DBLP four-area: MAGNN 93.1 to 94.1 %.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import HeteroData

import outcrop as oc
from outcrop.store.graph import Graph
from support import shared_path

QUIET = oc.Observer(progress=False)
SEEDS = 5
TABLES = Path(__file__).parents[2] / "examples" / "dblp_four_area.toml"
MODES = ("packed", "online", "ondisk", "memmap", "dynamic", "belady")
OF_ROWS = ("packed", "belady")  # modes that a graph without features has nothing for


def matrix(path: Path) -> torch.Tensor:
    try:
        return torch.from_numpy(scipy.sparse.load_npz(path).toarray().astype(np.float32))
    except (ValueError, AttributeError, TypeError):  # an array, whatever its name says
        return torch.from_numpy(np.load(path).astype(np.float32))


def heco(folder: Path, seeds: str, others: dict[str, str], features: dict[str, str]) -> HeteroData:
    """Reads a graph of HeCo: ``others`` and ``features`` give the letter of the file for a node type."""
    data = HeteroData()
    for name, letter in features.items():
        data[name].x = matrix(folder / f"{letter}_feat.npz")
    data[seeds].y = torch.from_numpy(np.load(folder / "labels.npy").astype(np.int64))
    for split in ("train", "val", "test"):
        mask = torch.zeros(len(data[seeds].y), dtype=torch.bool)
        mask[torch.from_numpy(np.load(folder / f"{split}_60.npy").astype(np.int64))] = True
        data[seeds][f"{split}_mask"] = mask
    for name, letter in others.items():
        ends = torch.from_numpy(np.loadtxt(folder / f"p{letter}.txt", dtype=np.int64).T)
        data["paper", "has", name].edge_index = ends
        if name not in features:
            data[name].num_nodes = int(ends[1].max()) + 1
    return data


def acm(_: Path, path: Path) -> Graph:
    others, features = {"author": "a", "subject": "s"}, {"paper": "p", "author": "a"}
    data = heco(shared_path("heco-acm"), "paper", others, features)
    return oc.import_graph(data, path, oc.ImportConfig(reverse=True), progress=False)


def dblp(_: Path, path: Path) -> Graph:
    others = {"author": "a", "term": "t", "conference": "c"}
    features = {"paper": "p", "author": "a", "term": "t"}
    data = heco(shared_path("heco-dblp"), "author", others, features)
    return oc.import_graph(data, path, oc.ImportConfig(reverse=True), progress=False)


def four_area(folder: Path, path: Path) -> Graph:
    shutil.copytree(shared_path("dblp-four-area"), folder / "tables", copy_function=shutil.copyfile)
    (folder / "tables").chmod(0o755)
    shutil.copyfile(TABLES, folder / "tables" / "tables.toml")
    shares = oc.ImportConfig(train_fraction=0.1, valid_fraction=0.1, test_fraction=0.8)
    return oc.import_graph(f"tables:{folder / 'tables'}", path, shares, progress=False)


def aifb(_: Path, path: Path) -> Graph:
    file = shared_path("aifb") / "aifb_stripped.nt.gz"
    return oc.import_graph(f"ntriples:{file}", path, oc.ImportConfig(types="all"), progress=False)


@dataclass(frozen=True)
class Case:
    """Says how a graph is made and learned, and what the mean accuracy over the seeds must be within."""

    make: Callable[[Path, Path], Graph]
    network: dict[str, Any]
    fanouts: tuple[int, int]
    batch_size: int
    epochs: int
    accuracy: tuple[float, float]
    learning_rate: float = 0.005
    weight_decay: float = 0.0


# Ranges are narrow: the mean over five seeds moves by half a point only, of AIFB, which tests 36 people, by a point.
CASES = {
    # Between HAN (85.7) and HeCo (88.7).
    "heco-acm": Case(
        acm, {"no_rows": "random:32", "dropout": 0.5, "hidden": 64}, (10, 10), 32, 10, (0.852, 0.890)
    ),
    # From HeCo (92.0) to the best of MAGNN for the same authors (94.1).
    "heco-dblp": Case(
        dblp, {"no_rows": "random:32", "dropout": 0.5, "hidden": 64}, (10, 10), 64, 10, (0.920, 0.945)
    ),
    # From two errors of the mean below R-GCN by mini-batches (94.4) to R-GCN by its authors (95.83, error 0.62).
    "aifb": Case(
        aifb, {"no_rows": "random:128", "hidden": 64}, (-1, -1), 140, 20, (0.920, 0.965), 0.01, 5e-4
    ),
    # From HeCo's on these authors (92.0) to the best of MAGNN (94.1); a tenth of the labels train here, a fifth there.
    "four-area": Case(
        four_area, {"no_rows": "random:64", "dropout": 0.3, "hidden": 64}, (10, 20), 64, 15, (0.917, 0.941)
    ),
}


@pytest.fixture
def one_thread() -> Iterator[None]:
    """A second thread only waits on matrices this small: of AIFB's 90 edge types it takes five times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("one_thread")
def test_accuracy_is_that_published_and_the_same_in_every_mode(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    graph = case.make(tmp_path, tmp_path / "g.oc")

    def trained(seed: int, mode: str) -> tuple[float | None, list[float]]:
        sampling = oc.SampleConfig(fanouts=case.fanouts, batch_size=case.batch_size, seed=seed)
        run = None
        if mode == "belady":  # which does not prepare by itself
            out, epochs = tmp_path / f"{seed}.run", case.epochs
            run = oc.prepare(
                graph, out, sampling=sampling, epochs=epochs, memory="512MiB", observer=QUIET
            ).path
        report = oc.train(
            graph,
            model=oc.ModelConfig("rgcn", **case.network),
            sampling=None if run else sampling,
            run=run,
            training=oc.TrainConfig(
                learning_rate=case.learning_rate,
                weight_decay=case.weight_decay,
                seed=seed,
                evaluate_every=1 if run else case.epochs,
                trace_losses=True,
            ),
            loading=mode,
            memory="512MiB",
            epochs=case.epochs,
            observer=QUIET,
        )
        return report.test_accuracy, report.batch_losses

    found = [trained(seed, "memory") for seed in range(SEEDS)]
    accuracies = [accuracy or 0.0 for accuracy, _ in found]
    low, high = case.accuracy
    assert low <= np.mean(accuracies) <= high, accuracies
    for number, mode in enumerate(mode for mode in MODES if graph.row_files or mode not in OF_ROWS):
        accuracy, losses = trained(number % SEEDS, mode)
        assert losses == found[number % SEEDS][1], mode
        if mode != "belady":  # which tests the best epoch, not the last
            assert accuracy == found[number % SEEDS][0], mode
