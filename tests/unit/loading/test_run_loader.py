"""``Run.loader``: an object that loops, frameworks and ranks can hold; what it gives equals what the run holds."""

from __future__ import annotations

import gc
import importlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import outcrop
from artifact_support import memory_folder, prepare, small_graph
from forked import python
from outcrop.api.run import Run
from outcrop.errors import ArgumentError, ChecksumError, FormatError, OutcropWarning
from outcrop.loading.ranks import Ranks
from outcrop.pyg import NeighborLoader
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import open_graph
from outcrop.store.samples import open_samples
from outcrop.testing import write_graph

importlib.import_module(
    "torch_geometric"
)  # changes the environment when it is loaded, which is no leak of a test

EPOCHS, PER_EPOCH = 3, 4  # 60 training nodes in batches of 15


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    with memory_folder() as folder:
        prepare(small_graph(folder / "graph"), folder / "run", epochs=EPOCHS)
        yield folder


@pytest.fixture
def run(made: Path) -> Run:
    return Run(made / "run", memory="6MiB")


@pytest.fixture(scope="module")
def recorded(made: Path) -> list[list[np.ndarray]]:
    """``n_id`` of the training batches by epoch, read from the files of the sample stage."""
    runtime = Runtime(threads=1)
    samples = open_samples(runtime, made / "run" / "sample")
    buffer = np.zeros(samples.max_record_bytes, np.uint8)
    groups = [samples.group("train").batches(epoch) for epoch in range(EPOCHS)]
    return [[samples.read(batch, buffer).n_id for batch in group] for group in groups]


def split_of(made: Path, split: str) -> np.ndarray:
    count = open_graph(made / "graph").spec(split).shape[0]
    return np.fromfile(made / "graph" / f"{split}.bin", "<i8", count)


def nodes(batches: Any) -> list[list[int]]:
    return [batch.n_id.tolist() for batch in batches]


def as_lists(epoch: list[np.ndarray]) -> list[list[int]]:
    return [ids.tolist() for ids in epoch]


def content(batch: Any) -> tuple[bytes, ...]:
    return tuple(
        batch[name].contiguous().numpy().tobytes() for name in ("x", "edge_index", "n_id", "y", "input_id")
    )


def test_each_iteration_is_the_next_epoch_and_all_share_one_session(run, recorded, monkeypatch):
    opened: list[object] = []
    monkeypatch.setattr(
        "outcrop.loading.sources.Runtime", lambda memory: opened.append(memory) or Runtime(memory)
    )
    loader, valid = run.loader(), run.loader("valid")
    assert (len(loader), len(valid)) == (PER_EPOCH, 2)
    for epoch in range(EPOCHS):
        assert nodes(loader) == as_lists(recorded[epoch])
        assert len(nodes(valid)) == 2
    assert opened == ["6MiB"]  # six passes, one after another
    loader.set_epoch(1)
    assert nodes(loader) == nodes(loader) == as_lists(recorded[1])
    loader.set_epoch(None)
    assert nodes(run.loader(epoch=2)) == nodes(run.loader(2)) == as_lists(recorded[2])


def test_batches_say_which_they_are_and_where_their_seeds_stand(run, made):
    for split in ("train", "valid"):
        order = split_of(made, split)
        for number, batch in enumerate(run.loader(split)):
            assert batch.number == number
            assert np.array_equal(order[batch.input_id.numpy()], batch.n_id[: batch.batch_size].numpy())
    found = [batch.input_id.numpy() for batch in run.loader()]
    assert sorted(np.concatenate(found)) == list(range(60))


def test_next_goes_on_as_the_generator_of_the_first_edition(run, recorded):
    loader = run.loader(0)
    first = next(loader).n_id.tolist()
    rest = [batch.n_id.tolist() for batch in loader]
    assert [first, *rest] == as_lists(recorded[0])
    next(loader)
    loader.close()
    assert nodes(loader) == as_lists(recorded[0])  # opens again
    left = iter(loader)
    next(left)
    loader.close()
    assert list(left) == []


def test_replaying_is_said_once(run, recorded):
    loader = run.loader()
    for _ in range(EPOCHS):
        nodes(loader)  # warnings are errors here
    with pytest.warns(
        OutcropWarning, match=r"epoch 3 has the batches of epoch 0 again.*holds 3 different epochs.*epochs=N"
    ):
        assert nodes(loader) == as_lists(recorded[0])
    assert nodes(loader) == as_lists(recorded[1])
    valid = run.loader("valid")
    assert nodes(valid) == nodes(valid)


@pytest.mark.parametrize("mode", ["packed", "online", "ondisk"])
def test_resumed_within_an_epoch_equals_never_interrupted(run, mode):
    whole = run.loader(mode=mode)
    expected = [content(batch) for _ in range(2) for batch in whole]
    for stop in range(1, 2 * PER_EPOCH):
        loader, found = run.loader(mode=mode), []
        while len(found) < stop:
            for batch in loader:
                found.append(content(batch))
                if len(found) == stop:
                    break
        state = json.loads(json.dumps(loader.state_dict()))
        del batch, loader
        again = run.loader(mode=mode)
        again.load_state_dict(state)
        while len(found) < len(expected):
            found += [content(batch) for batch in again]
        assert found == expected, stop


def test_a_state_and_epochs_that_are_set(run, recorded):
    loader = run.loader()
    for number, _ in enumerate(loader):
        if number == 2:
            break
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (0, 3)
    for epoch, expected in ((0, recorded[0][3:]), (1, recorded[1])):  # as loops do that call set_epoch
        loader.load_state_dict(state)
        loader.set_epoch(epoch)
        assert nodes(loader) == as_lists(expected)
    nodes(loader)
    assert loader.state_dict()["epoch"] == 2
    for name, value in (("split", "valid"), ("world", 2), ("run", "0")):
        with pytest.raises(ArgumentError, match=name):
            loader.load_state_dict({**state, name: value})
    with pytest.raises(ArgumentError, match="position"):
        loader.load_state_dict({**state, "position": PER_EPOCH + 1})


def brute_force(count: int, world: int, accumulate: int, uneven: str) -> list[list[int]]:
    shares: list[list[int]] = [[] for _ in range(world)]
    for start in range(0, count, accumulate):
        for j, n in enumerate(range(start, min(start + accumulate, count))):
            shares[j % world].append(n)
    if uneven == "drop":
        least = min(map(len, shares))
        return [share[:least] for share in shares]
    if uneven == "wrap":
        most = max(map(len, shares))
        for share in shares:
            own = share.copy() or list(range(count))  # of fewer batches than ranks, any
            while len(share) < most:
                share.append(own[0])
                own.append(own.pop(0))
    return shares


@pytest.mark.parametrize("uneven", ["wrap", "drop", "short"])
def test_ranks_divide_steps(uneven):
    for count in range(1, 20):
        for world in range(1, 5):
            for accumulate in (world, 2 * world, 3 * world):
                found = [list(Ranks(r, world, accumulate, uneven).batches(count)) for r in range(world)]
                assert found == brute_force(count, world, accumulate, uneven)
    assert [list(Ranks(r, 3, 4, "short").batches(6)) for r in range(3)] == [[0, 3, 4], [1, 5], [2]]
    for options in ({"rank": 2, "world": 2}, {"world": 3, "accumulate": 2}, {"world": 3, "accumulate": 4}):
        with pytest.raises(ArgumentError, match=r"rank 2|processes"):
            Ranks(**{"rank": 0, "accumulate": 2, **options})


@pytest.mark.parametrize("mode", ["packed", "online", "ondisk"])
def test_ranks_read_their_own_batches(run, recorded, mode):
    found = {}
    for rank in range(2):
        loader = run.loader(rank=rank, world=2, mode=mode, epoch=1)
        found |= {batch.number: batch.n_id.tolist() for batch in loader}
        assert len(loader) == 2
    assert [found[n] for n in range(PER_EPOCH)] == as_lists(recorded[1])


def test_any_nodes_can_be_asked_for(run, made):
    """Every node once, in the order given unless shuffled, with its own features."""
    graph = open_graph(made / "graph")
    features = np.fromfile(made / "graph" / "features.bin", "<f4", graph.num_nodes * graph.feature_dim)
    features = features.reshape(graph.num_nodes, -1)
    wanted = np.array([5900, 30, 77, 4000, 12] * 7) - np.repeat(np.arange(7), 5)
    for ids, options in (
        (wanted, {}),
        (torch.from_numpy(wanted), {"mode": "memory"}),
        (wanted, {"shuffle": True}),
    ):
        loader, seen = run.loader(ids, **options), []
        assert len(loader) == 3
        for batch in loader:
            seeds = batch.n_id[: batch.batch_size].numpy()
            assert np.array_equal(wanted[batch.input_id.numpy()], seeds)
            assert np.array_equal(batch.x.numpy(), features[batch.n_id.numpy()])
            seen += batch.input_id.tolist()
        assert (seen == list(range(35))) == (not options.get("shuffle", False))
        assert sorted(seen) == list(range(35))
    mask = np.zeros(graph.num_nodes, bool)
    mask[wanted] = True
    assert np.array_equal(
        np.concatenate([b.n_id[: b.batch_size] for b in run.loader(mask)]), np.flatnonzero(mask)
    )
    everything = run.loader("all", mode="memory")
    assert len(everything) == 400
    assert nodes(run.loader(wanted)) == nodes(run.loader(wanted))  # the same ones every time


@pytest.mark.parametrize("spelling", ["val", "validation"])
def test_validation_nodes_by_either_spelling(run, made, spelling):
    """Recorded batches, batches that are drawn, and those of torch_geometric's loader."""
    want = split_of(made, "valid")
    drawn = NeighborLoader(str(made / "graph"), num_neighbors=[2, 2], input_nodes=spelling)
    for loader in (
        run.loader(spelling),
        run.loader(split=spelling),
        run.loader(spelling, shuffle=True),
        drawn,
    ):
        seeds = np.concatenate([b.n_id[: b.batch_size].numpy() for b in loader])
        assert sorted(seeds) == want.tolist()
        loader.close()
    state = run.loader("valid").state_dict()
    run.loader(spelling).load_state_dict(state)


def test_shuffled_otherwise_than_the_run(run, made):
    in_order = np.concatenate([b.n_id[: b.batch_size] for b in run.loader("train", shuffle=False)])
    assert np.array_equal(in_order, split_of(made, "train"))
    loader = run.loader("valid", shuffle=True)
    one, other = ([i for b in loader for i in b.input_id.tolist()] for _ in range(2))
    assert sorted(one) == sorted(other) == list(range(20))
    assert one != other


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 6000], "the first 6000, are not in 0 to 5999"),
        ([-1], "the first -1"),
        ([4, 5, 4], "node 4 is there more than once"),
        ([0.5], "no node ids"),
        ([], "no node ids"),
        ("holdout", "holds no batches of split 'holdout', only of test, train, valid"),
    ],
)
def test_bad_nodes_are_named(run, ids, message):
    with pytest.raises(ArgumentError, match=message):
        run.loader(ids)


class _Wrapped(torch.utils.data.IterableDataset):
    def __init__(self, loader: Any):
        self.loader = loader

    def __iter__(self) -> Iterator[int]:
        return (batch.number for batch in self.loader)


def test_data_loaders_get_an_answer_instead_of_batches_twice(run):
    with pytest.raises(ArgumentError, match="instead of wrapping it"):
        next(iter(torch.utils.data.DataLoader(run.loader())))
    wrapped = torch.utils.data.DataLoader(_Wrapped(run.loader()), batch_size=None)
    assert [int(n) for n in wrapped] == list(range(PER_EPOCH))


FORK = """
import os, signal, sys
from outcrop.api.run import Run
from outcrop.errors import CancelledError
loader = Run(sys.argv[1], memory="6MiB").loader()
under_way = iter(loader)
next(under_way)
child = os.fork()
if child == 0:
    signal.alarm(20)
    try:
        next(under_way)
    except CancelledError as error:
        good = "forked" in str(error)
        loader.set_epoch(0)
        good = good and [batch.number for batch in loader] == [0, 1, 2, 3]  # opens a session of its own
        os._exit(0 if good else 3)
    os._exit(4)
assert os.waitpid(child, 0)[1] == 0
assert [batch.number for batch in under_way] == [1, 2, 3]
"""


def test_a_fork_within_an_epoch_is_an_error_not_a_hang(made):
    ended = python(FORK, made / "run", timeout=60)
    assert ended.returncode == 0, ended.stderr


WORKERS = """
import sys, torch
from outcrop.api.run import Run
class Wrapped(torch.utils.data.IterableDataset):
    def __init__(self, loader):
        self.loader = loader
    def __iter__(self):
        return iter(self.loader)
try:
    next(iter(torch.utils.data.DataLoader(Wrapped(Run(sys.argv[1]).loader()), batch_size=None, num_workers=1)))
except Exception as error:
    assert "every worker process" in str(error), error
    print("refused")
"""


def test_worker_processes_are_refused(made):
    ended = python(WORKERS, made / "run", timeout=60)
    assert "refused" in ended.stdout, ended.stderr


def test_a_run_that_was_moved(tmp_path, made):
    shutil.copytree(made / "run", tmp_path / "elsewhere" / "run")
    moved = tmp_path / "elsewhere" / "run"
    with pytest.raises(FormatError, match=r"graph of run .*elsewhere/run is not at .*graph=\.\.\."):
        outcrop.open_run(moved)
    run = outcrop.open_run(moved, graph=made / "graph")
    assert nodes(run.loader()) == nodes(Run(made / "run").loader())
    other = small_graph(tmp_path / "other", seed=1)
    with pytest.raises(FormatError, match="not the graph that"):
        outcrop.open_run(moved, graph=other.path)


def test_memory_is_given_back(run, monkeypatch):
    """By dropping a loader with a pass under way, and by closing one."""
    budgets = []

    def counted(memory: Any) -> Runtime:
        runtime = Runtime(memory)
        budgets.append(runtime.budget)
        return runtime

    monkeypatch.setattr("outcrop.loading.sources.Runtime", counted)

    def use(loader: Any) -> None:
        next(iter(loader))
        half = iter(loader)
        next(half)

    use(run.loader())
    with run.loader() as kept:
        use(kept)
    gc.collect()
    assert [budget.now_bytes for budget in budgets] == [0, 0]


@pytest.mark.parametrize("mode", ["packed", "online"])
def test_edges_have_their_weights_and_ids(tmp_path, mode):
    """Of every edge of a batch, against a dictionary of the graph's edges."""
    rng = np.random.default_rng(3)
    edges = np.unique(rng.integers(0, 900, (2, 9000)), axis=1)
    weights = rng.random(edges.shape[1]).astype(np.float32)
    weight_of = {(int(u), int(v)): float(w) for u, v, w in zip(*edges, weights, strict=True)}
    graph = write_graph(
        tmp_path / "graph",
        edges,
        1000,  # the last ones have no edges
        Runtime(threads=1),
        features=rng.standard_normal((1000, 5)).astype(np.float32),
        splits={"train": np.arange(0, 1000, 7), "valid": np.arange(1, 1000, 70)},
        edge_weight=weights,
    )
    run = outcrop.prepare(graph, tmp_path / "run", fanouts=(4, 3), batch_size=50, memory="4MiB")
    every = graph.edge_index()
    assert sorted(map(tuple, every.T.tolist()), key=lambda edge: edge[::-1]) == list(
        map(tuple, every.T.tolist())
    )
    assert set(map(tuple, every.T.tolist())) == set(weight_of)
    loaders = [run.loader(split, mode=mode, edge_ids=True) for split in ("train", "valid", "all")]
    count = 0
    for batch in (batch for loader in loaders for batch in loader):
        ends = batch.n_id[batch.edge_index].numpy()
        assert batch.edge_weight.tolist() == [weight_of[u, v] for u, v in ends.T.tolist()]
        assert np.array_equal(every[:, batch.e_id.numpy()], ends)
        count += batch.num_edges
    assert count > 10_000
    assert "e_id" not in next(iter(run.loader(mode=mode)))
    with (graph.path / "edge_weight.bin").open("r+b") as file:
        file.seek(100)
        file.write(b"\x7f")
    with pytest.raises(ChecksumError, match=r"edge_weight\.bin"):
        next(iter(run.loader(mode=mode)))


@pytest.mark.filterwarnings("ignore:epoch .* again")
def test_a_pass_that_another_ended_says_so(run):
    """A look at one batch within a loop must not make the epoch shorter in silence."""
    loader = run.loader("train", mode="online")
    batches = iter(loader)
    next(batches)
    peek = next(iter(loader))
    assert peek.number == 0
    del peek
    with pytest.raises(ArgumentError, match=r"batch 1 of this pass .* was iterated anew.* make two loaders"):
        next(batches)
    first, second = iter(loader), iter(loader)
    with pytest.raises(ArgumentError, match="batch 0 of this pass"):
        next(first)
    assert len(list(_numbers(second))) == len(loader)
    with pytest.raises(StopIteration):
        next(second)
    over = iter(loader)
    assert len(list(_numbers(over))) == len(loader)
    next(iter(loader))
    with pytest.raises(StopIteration):  # it had no more
        next(over)
    loader.close()


def test_a_pass_whose_loader_is_given_a_state_says_so(run):
    loader = run.loader("train", mode="online")
    state = loader.state_dict()
    batches = iter(loader)
    next(batches)
    loader.load_state_dict(state)
    with pytest.raises(ArgumentError, match=r"batch 1 of this pass .* was given a state within it"):
        next(batches)
    over = iter(loader)
    assert len(list(_numbers(over))) == len(loader)
    loader.load_state_dict(state)
    with pytest.raises(StopIteration):  # it had no more
        next(over)
    loader.close()


def _numbers(batches):
    for batch in batches:
        yield batch.number
        del batch
