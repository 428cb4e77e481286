"""What computing takes: training steps timed on batches of the right shape, and what loading beside them adds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import outcrop._core as _core
from outcrop.advisor.shapes import Network
from outcrop.nn.adam import Adam
from outcrop.nn.models import build_model, warm_allocator
from outcrop.runtime import threads
from outcrop.runtime.runtime import Runtime
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import Graph
from outcrop.store.graph_types import RowFile
from outcrop.store.minibatch import MiniBatch

_MOST_STALL = 2.0  # what moves memory beside a product can cost it more than its own time
_MOST_STRETCH = 3.0  # as far as traces of training showed: loading seldom begins just when a step does
_WARM_STEPS, _LEAST_STEPS = 8, 18
_PATIENCE = 4  # times what was asked for, on a machine too slow for so many steps
_BUS_BYTES = 256 << 20
_MOVED_BYTES, _TABLE_BYTES = 64 << 20, 256 << 20  # of a batch, of a cache: more than processors keep
_MOVED_ROW_BYTES = 512


def synthetic_batch(
    seeds: int = 1024,
    fanouts: tuple[int, ...] = (10, 10),
    dim: int = 128,
    num_classes: int = 47,
    pool: int = 75_000,
    seed: int = 0,
) -> MiniBatch:
    """Makes a random batch with the shape of a sampled one: 1024 seeds, about 11,000 targets, 67,000 nodes, 113,000
    edges.

    Args:
        pool: How many nodes a hop draws its neighbours from; smaller gives more repeated sources.
    """
    rng = np.random.default_rng(seed)
    nodes, edges, frontier = [seeds], [], seeds
    rows, cols = [], []
    for fanout in fanouts:
        known = sum(nodes)
        draws = rng.integers(0, pool if frontier * fanout > pool // 2 else 100 * pool, frontier * fanout)
        unique, local = np.unique(draws, return_inverse=True)
        cols.append((known + local).astype(np.int32))
        rows.append(np.full(frontier, fanout))
        edges.append(frontier * fanout)
        nodes.append(len(unique))
        frontier = len(unique)
    rowptr = np.concatenate([[0], np.cumsum(np.concatenate(rows))]).astype(np.int32)
    labels = rng.integers(0, num_classes, seeds)
    graph = BatchGraph.of_one_type(
        np.arange(sum(nodes)), rowptr, np.concatenate(cols), tuple(nodes), tuple(edges), labels
    )
    x = rng.standard_normal((sum(nodes), dim), dtype=np.float32)
    return MiniBatch(graph, (torch.from_numpy(x).clone(),), torch.from_numpy(labels))


def _model_of(network: Network, layers: int) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build_model(
            network.model, network.inputs, network.hidden, network.classes, layers, heads=network.heads
        )


def gradient_bytes(network: Network, layers: int) -> int:
    """Counts the bytes of the gradients of a model; it is built."""
    parameters = _model_of(network, layers).parameters()
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters)


def training_step(
    batch: MiniBatch,
    network: Network,
    *,
    device: str = "cpu",
) -> Callable[[], None]:
    """One call is a whole step: blocks, forward, loss, backward, Adam."""
    model = _model_of(network, batch.graph.hops).to(device)
    if device != "cpu":
        degree = None if batch.degree is None else batch.degree.to(device)
        rows = tuple(of_file.to(device) for of_file in batch.rows)
        batch = MiniBatch(batch.graph, rows, batch.y.to(device), degree)
    optimizer = Adam(model.parameters())

    def run() -> None:
        # Nothing that the step before worked out.
        fresh = MiniBatch(batch.graph, batch.rows, batch.y, batch.degree)
        loss = F.cross_entropy(model(fresh), batch.y)
        optimizer.zero_grad()
        loss.backward()
        loss.item()  # as training does; a GPU has finished then
        optimizer.step(1e-3)

    return run


def batch_of(batch: BatchGraph, graph: Graph, seed: int = 0) -> MiniBatch:
    """Returns a batch of ``graph`` with random rows and, where it lacks them, labels: as much work as the real ones."""
    rng = np.random.default_rng(seed)
    if graph.is_typed:
        counts = batch.num_rows(graph.row_files)
        rows = tuple(_random_rows(rng, count, of) for count, of in zip(counts, graph.row_files, strict=True))
    else:
        x = rng.standard_normal((batch.num_nodes, graph.feature_dim), dtype=np.float32)
        # Copied, because torch aligns what it allocates, as loaders do: models copy in every step what is not aligned.
        rows = (torch.from_numpy(x).clone(),)
    labels = rng.integers(0, max(graph.num_classes, 1), batch.num_seeds)
    degree = None if batch.degree is None else torch.from_numpy(np.array(batch.degree))
    return MiniBatch(batch, rows, torch.from_numpy(labels), degree)


def _random_rows(rng: np.random.Generator, count: int, of: RowFile) -> torch.Tensor:
    """Returns ``count`` random rows in the dtype that a row file is delivered in."""
    values = rng.standard_normal((count, of.width), dtype=np.float32)
    return torch.from_numpy(values).to(getattr(torch, of.dtype), copy=True)


def step_seconds(
    batches: Sequence[MiniBatch],
    network: Network,
    *,
    seconds: float = 1.0,
    device: str = "cpu",
) -> list[float]:
    """Returns the median time of a training step on each of ``batches``, with nothing beside it; takes about
    ``seconds``.

    Batches take turns, so that caches are as cold as they are between the batches of an epoch. The first steps of a
    process take several times as long (its allocator grows, threads start), so the first half does not count.

    Args:
        seconds: 0 takes as few steps as there can be.
    """
    warm_allocator()
    steps = [training_step(batch, network, device=device) for batch in batches]
    times: list[list[float]] = [[] for _ in steps]
    least = -(-_LEAST_STEPS // len(steps)) if seconds else 2
    begun = time.perf_counter()
    while (elapsed := time.perf_counter() - begun) < seconds or len(times[-1]) < least:
        if elapsed > _PATIENCE * seconds and len(times[-1]) > 1 and seconds:
            break
        for step, found in zip(steps, times, strict=True):
            begin = time.perf_counter()
            step()
            found.append(time.perf_counter() - begin)
    return [median(found[len(found) // 2 :]) for found in times]


def measure_concurrent(step: Callable[[], None], runtime: Runtime, seconds: float = 1.0) -> dict[str, float]:
    """Returns what steps and loading cost each other on the same cores.

    Steps alone, steps beside a thread that fills in cached rows (it rests as long as it works, so that both sides have
    a say), and steps at whose beginning all cores are asked to move a batch's rows to their places, take turns.

    Returns:
        ``stall``: seconds by which steps get longer for each CPU second of a thread beside them; ``stretch``: how many
        times as long as alone moving rows takes beside a step.
    """
    for _ in range(_WARM_STEPS):
        step()
    mover = _Mover(runtime)
    own = median(mover.expand() for _ in range(_WARM_STEPS))
    longer: list[float] = []
    worked: list[float] = []
    moves: list[float] = []
    begun = time.perf_counter()
    while len(moves) < 3 or time.perf_counter() - begun < seconds:
        alone = _timed(step)
        with mover.filling():
            before = mover.cpu_s
            longer.append(_timed(step) - alone)
            worked.append(mover.cpu_s - before)
        with ThreadPoolExecutor(1) as thread:
            move = thread.submit(mover.expand)
            step()
            moves.append(move.result())
    cpu = median(worked)
    return {
        "stall": min(max(median(longer) / cpu, 0.0), _MOST_STALL) if cpu > 0 else 0.0,
        "stretch": min(max(median(moves) / own, 1.0), _MOST_STRETCH),
    }


def _timed(step: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


class _Mover:
    """Moves rows as assembling does: packed rows to their places with all cores, cached rows between them with one."""

    def __init__(self, runtime: Runtime):
        self._workers = runtime.workers
        self._buffer = runtime.budget.empty("measure", _MOVED_BYTES)
        self._table = runtime.budget.empty("measure", _TABLE_BYTES)
        self._table[:], self._buffer[:] = 1, 1
        self._rows = _MOVED_BYTES // _MOVED_ROW_BYTES
        self._cached = np.arange(0, self._rows, 8, dtype=np.int32)
        held = np.random.default_rng(5).integers(0, _TABLE_BYTES // _MOVED_ROW_BYTES, len(self._cached))
        self._held = held.astype(np.int32)
        self.cpu_s = 0.0  # of filling

    def expand(self) -> float:
        cached = self._cached.astype(np.int64)
        return _timed(
            lambda: _core.expand_rows(self._workers, self._buffer, self._rows, _MOVED_ROW_BYTES, cached)
        )

    def _fill(self) -> None:
        width = _MOVED_ROW_BYTES
        _core.fill_rows(self._buffer, self._rows, width, self._cached, self._held, self._table, width)

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            before = time.thread_time()
            took = _timed(self._fill)
            self.cpu_s += time.thread_time() - before
            stop.wait(took)

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Lets a thread fill rows in within the block, half of the time."""
        stop = threading.Event()
        thread = threading.Thread(target=self._run, args=(stop,), name="outcrop-measure", daemon=True)
        threads.start([thread])
        try:
            yield
        finally:
            stop.set()
            thread.join()


def bus_rate(rounds: int = 5) -> float:
    """Returns bytes per second of copies from pinned memory to the GPU."""
    source, target = torch.empty(_BUS_BYTES, dtype=torch.uint8).pin_memory(), None
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        target = source.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    del target
    return _BUS_BYTES / min(times)


def gpu_memory() -> int:
    """Returns bytes of the first GPU."""
    return int(torch.cuda.get_device_properties(0).total_memory)
