"""Where an epoch's time goes, stages one after another: loading and training, rows read in place and copied by the CPU.

PyTorch-Direct, Figures 3 (the share of loading, and the load of the CPU, where the CPU gathers) and 8 (both ways; once
more with the stages overlapped, as Outcrop trains).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

from outcrop.bench.epoch import ensure_graph
from outcrop.bench.gpu_figures.measure import Case, Setup, Watch, mean
from outcrop.bench.gpu_figures.result import Benchmark, Cases
from outcrop.config import DeviceConfig, ModelConfig, SampleConfig, TrainConfig
from outcrop.loading import session as load
from outcrop.loading.feeders import SampledStructures
from outcrop.loading.open import open_session
from outcrop.rows import HostRows
from outcrop.runtime import memory_tables
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.sampler import BatchSampler
from outcrop.store.graph import Graph, open_graph
from outcrop.training import loop as training
from outcrop.training.evaluate import evaluate
from outcrop.training.learning import LearningTask

_SAMPLING = SampleConfig(fanouts=(10, 10), batch_size=1024)
COPY, IN_PLACE, OVERLAPPED = "copy", "in place", "in place, overlapped"


def _copying(graph: Graph, runtime: Runtime, device: DeviceConfig) -> load.LoadSession:
    """Opens mode ``memory`` as it would be without unified memory."""
    pool = load.make_pool(graph, runtime, buffers=2, device=device)
    rows = HostRows(graph.open_rows(runtime, graph.row_file), runtime)
    structures = SampledStructures(
        BatchSampler(graph, _SAMPLING, runtime, memory_fraction=memory_tables.GROWING_SAMPLER.fraction)
    )
    return load.row_session(graph, structures, (rows,), pool, runtime, device)


class _Epochs:
    """Holds epochs of batches; ``loading``: seconds until each batch was on the device, with the device idle before."""

    def __init__(self, setup: Setup, session: load.LoadSession, overlapped: bool):
        self._setup, self._session, self._overlapped = setup, session, overlapped
        self.loading = 0.0

    def batches(self, epoch: int) -> Iterator[Any]:
        loader = self._session.batches("train", epoch, overlapped=self._overlapped)
        return loader if self._overlapped else self._timed(loader)

    def _timed(self, loader: Any) -> Iterator[Any]:
        batches = iter(loader)
        try:
            while (batch := self._next(batches)) is not None:
                yield batch
                del batch  # its buffer is wanted for the next
        finally:
            loader.close()

    def _next(self, batches: Iterator[Any]) -> Any:
        self._setup.wait()
        begin = time.perf_counter()
        batch = next(batches, None)
        self._setup.wait()
        self.loading += time.perf_counter() - begin
        return batch


def _train(setup: Setup, graph: Graph, model: str, way: str) -> dict[str, Any]:
    """Returns seconds of the epochs after the first, and of loading in them; busy cores; watts."""
    device = DeviceConfig(str(setup.device))
    learning = LearningTask(
        ModelConfig(model, layers=2),
        TrainConfig(epochs=setup.sizes.epochs, device=str(setup.device)),
        graph.feature_dim,
        graph.num_classes,
    )
    with Runtime() as runtime, Watch(setup.device) as watch:
        opened = (
            _copying(graph, runtime, device)
            if way == COPY
            else open_session(graph, runtime, "memory", config=_SAMPLING, device=device)
        )
        with opened as session:
            epochs = _Epochs(setup, session, way == OVERLAPPED)
            marks: list[tuple[float, float, float]] = []

            def counters() -> dict[str, Any]:
                setup.wait()
                marks.append((time.perf_counter(), time.process_time(), epochs.loading))
                return {}

            result = training.train(
                epochs.batches,
                None,
                learning,
                runtime,
                evaluate=evaluate,
                counters=counters,
            )
    clock, busy, loading = ([b - a for a, b in pairwise(of)] for of in zip(*marks, strict=True))
    return {
        "seconds": [record.seconds for record in result.epochs[1:]],
        "loading": loading,
        "cores": [b / c for b, c in zip(busy, clock, strict=True)],
        "watts": watch.samples()[1],
    }


def _breakdown(setup: Setup, model: str, ways: tuple[str, ...]) -> Case:
    graph = open_graph(ensure_graph(setup.folder, setup.sizes.graph, setup.log))
    trained = {way: _train(setup, graph, model, way) for way in ways}
    seconds = {way: median(of["seconds"]) for way, of in trained.items()}
    loading = {way: median(of["loading"]) for way, of in trained.items() if way != OVERLAPPED}
    figures: dict[str, float | None] = {}
    for way, of in trained.items():
        if way in loading:
            figures[f"{way}: loading_seconds"] = loading[way]
            figures[f"{way}: share_of_loading"] = loading[way] / seconds[way]
        figures[f"{way}: cores"] = median(of["cores"])
        figures[f"{way}: watts"] = mean(of["watts"])
    if IN_PLACE in ways:
        figures["speed_up"] = seconds[COPY] / seconds[IN_PLACE]
        figures["less_loading"] = 1 - loading[IN_PLACE] / loading[COPY]
    return Case({"model": model}, seconds, {way: of["seconds"] for way, of in trained.items()}, figures)


def _models(ways: tuple[str, ...], setup: Setup) -> Cases:
    for model in ("sage", "gat"):
        yield model, partial(_breakdown, setup, model, ways)


BENCHMARKS = {
    "pytorch-direct-figure-3": Benchmark("PyTorch-Direct, Figure 3", partial(_models, (COPY,))),
    "pytorch-direct-figure-8": Benchmark(
        "PyTorch-Direct, Figure 8", partial(_models, (COPY, IN_PLACE, OVERLAPPED))
    ),
}
