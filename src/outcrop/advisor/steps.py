"""What computing takes: training steps timed on batches of the right shape, and what loading beside them adds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F

from outcrop import _core
from outcrop.models import build_model, settle_allocator
from outcrop.runtime import Runtime
from outcrop.store.batches import BatchGraph
from outcrop.store.minibatch import MiniBatch

_MOST_STALL = 2.0  # what moves memory beside a product can cost it more than its own time
_WARM_STEPS, _LEAST_STEPS = 8, 18
_PATIENCE = 4  # times what was asked for, on a machine too slow for so many steps
CLASSES = 47
_BUS_BYTES = 256 << 20
_MOVED_BYTES = 8 << 20


def synthetic_batch(
    seeds: int = 1024,
    fanouts: tuple[int, ...] = (10, 10),
    dim: int = 128,
    num_classes: int = 47,
    pool: int = 75_000,
    seed: int = 0,
) -> MiniBatch:
    """A random batch with the shape of a sampled one: 1024 seeds, about 11,000 targets, 67,000 nodes, 113,000 edges.

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
    graph = BatchGraph(
        np.arange(sum(nodes)), rowptr, np.concatenate(cols), tuple(nodes), tuple(edges), labels
    )
    x = rng.standard_normal((sum(nodes), dim), dtype=np.float32)
    return MiniBatch(graph, torch.from_numpy(x).clone(), torch.from_numpy(labels))


def training_step(
    batch: MiniBatch,
    name: str = "sage",
    hidden: int | None = None,
    num_classes: int = 47,
    *,
    device: str = "cpu",
) -> Callable[[], None]:
    """One call is a whole step: blocks, forward, loss, backward, Adam."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build_model(name, batch.x.shape[1], hidden, num_classes, batch.graph.hops)
    model = model.to(device)
    if device != "cpu":
        degree = None if batch.degree is None else batch.degree.to(device)
        batch = MiniBatch(batch.graph, batch.x.to(device), batch.y.to(device), degree)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def run() -> None:
        fresh = MiniBatch(
            batch.graph, batch.x, batch.y, batch.degree
        )  # nothing that the step before worked out
        loss = F.cross_entropy(model(fresh), batch.y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        loss.item()  # as training does; a GPU has finished then
        optimizer.step()

    return run


def batch_of(graph: BatchGraph, in_dim: int, num_classes: int, seed: int = 0) -> MiniBatch:
    """``graph`` with random features and, where it lacks them, labels: as much work as the real ones."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((graph.num_nodes, in_dim), dtype=np.float32)
    labels = rng.integers(0, max(num_classes, 1), graph.num_seeds)
    degree = None if graph.degree is None else torch.from_numpy(np.array(graph.degree))
    # Copied, because torch aligns what it allocates, as loaders do: models copy in every step what is not aligned.
    return MiniBatch(graph, torch.from_numpy(x).clone(), torch.from_numpy(labels), degree)


def step_seconds(
    batches: Sequence[MiniBatch],
    name: str,
    hidden: int | None,
    num_classes: int,
    *,
    seconds: float = 1.0,
    device: str = "cpu",
) -> list[float]:
    """Median time of a training step on each of ``batches``, with nothing beside it; takes about ``seconds``.

    Batches take turns, so that caches are as cold as they are between the batches of an epoch. The first steps of a
    process take several times as long (its allocator grows, threads start), so the first half does not count.

    Args:
        seconds: 0 takes as few steps as there can be.
    """
    settle_allocator()
    steps = [training_step(batch, name, hidden, num_classes, device=device) for batch in batches]
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


def stall(step: Callable[[], None], runtime: Runtime, seconds: float = 1.0) -> float:
    """Seconds by which steps get longer for each CPU second of loading beside them.

    Steps alone and steps beside a thread that moves rows as assembling does take turns; what the thread took is its own
    CPU time. Half the turns have it, and it rests as long as it works, so that both sides have a say.
    """
    alone: list[float] = []
    beside: list[tuple[float, float]] = []
    for _ in range(_WARM_STEPS):
        step()
    begun = time.perf_counter()
    while len(beside) < 3 or time.perf_counter() - begun < seconds:
        begin = time.perf_counter()
        step()
        alone.append(time.perf_counter() - begin)
        with _Mover(runtime) as mover:
            begin, cpu = time.perf_counter(), mover.cpu_s
            step()
            beside.append((time.perf_counter() - begin, mover.cpu_s - cpu))
    worked = median(cpu for _, cpu in beside)
    longer = median(took - before for (took, _), before in zip(beside, alone, strict=True))
    return min(max(longer / worked, 0.0), _MOST_STALL) if worked > 0 else 0.0


class _Mover:
    """A thread that moves rows within a buffer, works half of the time, and says how long it worked."""

    def __init__(self, runtime: Runtime):
        self._workers = _core.WorkerPool(1)
        self._buffer = runtime.budget.empty("measure", _MOVED_BYTES)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outcrop-measure", daemon=True)
        self.cpu_s = 0.0

    def _run(self) -> None:
        rows = _MOVED_BYTES // 512
        cached = np.arange(0, rows, 16, dtype=np.int64)
        while not self._stop.is_set():
            begin = time.perf_counter()
            before = time.thread_time()
            _core.expand_rows(self._workers, self._buffer, rows, 512, cached)
            self.cpu_s += time.thread_time() - before
            self._stop.wait(time.perf_counter() - begin)

    def __enter__(self) -> _Mover:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()


def bus_rate(rounds: int = 5) -> float:
    """Bytes per second of copies from pinned memory to the GPU."""
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
    """Bytes of the first GPU."""
    return int(torch.cuda.get_device_properties(0).total_memory)
