"""Epochs of graph embeddings on a GPU: where the table lies, in which order it is swapped, how busy the GPU is.

Legend, Tables 4 and 7 and Figure 8. The graph is generated; model Dot, as in the paper for graphs without relations.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from outcrop.api.embed import embed_prepare, embed_train
from outcrop.bench.epoch import ensure_graph
from outcrop.bench.gpu_figures.measure import Case, Setup, Watch, mean
from outcrop.bench.gpu_figures.result import Benchmark, Cases
from outcrop.bench.graphs import GraphShape
from outcrop.config import BucketConfig, EmbedConfig
from outcrop.runtime.observer import Observer

PARTITIONS, BUFFER = 8, 3
_COVER = (16, 4)  # the sizes that order takes


@dataclass(frozen=True)
class Way:
    """Says how a table is trained."""

    order: str = "best"
    resident: bool = False
    prefetch: bool = True
    on_gpu: bool = True
    rings: bool = False

    @property
    def sizes(self) -> tuple[int, int]:
        return _COVER if self.order == "cover" else (PARTITIONS, BUFFER)


WHERE = {
    "GPU, table on disk": Way(),
    "GPU, table in its memory": Way(resident=True),
    "CPU, table in memory": Way(resident=True, on_gpu=False),
}
ORDERS = {
    "beta": Way("beta"),
    "cover": Way("cover"),
    "legend, not overlapped": Way("legend", prefetch=False),
    "legend": Way("legend"),
    "best": Way("best"),
    "best, by rings": Way("best", rings=True),
}
BUSY = {
    "resident": Way(resident=True),
    "overlapped": Way(),
    "overlapped, by rings": Way(rings=True),
    "not overlapped": Way(prefetch=False),
}


def _epochs(setup: Setup, way: Way) -> tuple[list[dict[str, Any]], Watch]:
    """Returns epochs after the first."""
    sizes = setup.sizes
    shape = GraphShape(
        f"embed-{sizes.embed_nodes}-{sizes.embed_edges}", sizes.embed_nodes, sizes.embed_edges, 1
    )
    graph = ensure_graph(setup.folder, shape, setup.log)
    partitions, buffer = way.sizes
    run = setup.folder / f"{shape.name}-{partitions}.run"
    shutil.rmtree(run, ignore_errors=True)
    embed_prepare(graph, run, BucketConfig(partitions=partitions), progress=False)
    with Watch(setup.device) as watch:
        report = embed_train(
            run,
            EmbedConfig(
                model="dot",
                dim=sizes.dim,
                negatives=sizes.negatives,
                batch=max(sizes.queries // 2, 1),  # an edge asks for both of its ends
                chunk=min(1000, max(sizes.queries // 2, 1)),
                epochs=sizes.epochs,
                buffer=buffer,
                order=way.order,
            ),
            resident=way.resident,
            prefetch=way.prefetch,
            device=str(setup.device) if way.on_gpu else "cpu",
            io="gpu" if way.rings else "engine",
            fresh=True,
            observer=Observer(progress=False),
        )
    shutil.rmtree(run)
    return report.epochs[1:], watch


def _epoch(setup: Setup, way: Way) -> Case:
    epochs, watch = _epochs(setup, way)
    seconds = [epoch["seconds"] for epoch in epochs]
    utilization, power = watch.samples() if way.on_gpu else ([], [])
    idle = [float(percent == 0) for percent in utilization]
    return Case(
        {
            "order": way.order,
            "partitions": way.sizes[0],
            "buffer": way.sizes[1],
            "device": "gpu" if way.on_gpu else "cpu",
        },
        {"epoch": median(seconds)},
        {"epoch": seconds},
        {
            "edges_per_s": median(epoch["edges_per_s"] for epoch in epochs),
            "waited_seconds": median(sum(epoch["waits"]) for epoch in epochs),
            "swaps": float(len(epochs[-1]["waits"])),
            "loss": epochs[-1]["loss"],
            "mean_utilization": mean(utilization),
            "idle": mean(idle),
            "mean_watts": mean(power),
        },
        {"utilization": utilization, "watts": power},
    )


def _cases(ways: dict[str, Way], setup: Setup) -> Cases:
    for name, way in ways.items():
        yield name, partial(_epoch, setup, way)


BENCHMARKS = {
    "legend-table-4": Benchmark("Legend, Table 4", partial(_cases, WHERE)),
    "legend-table-7": Benchmark("Legend, Table 7", partial(_cases, ORDERS)),
    "legend-figure-8": Benchmark("Legend, Figure 8", partial(_cases, BUSY)),
}
