"""Mini-batches drawn by kernels, left on the GPU, against the C++ sampler with all threads and a copy.

From no paper's figure: Hyperion and Legion sample on the GPU, which this compares with the CPU. All are compared first.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from outcrop.bench.epoch import ensure_graph
from outcrop.bench.gpu_figures.measure import Case, Setup, Ways, in_turns
from outcrop.bench.gpu_figures.result import Benchmark, Cases
from outcrop.config import SampleConfig
from outcrop.errors import DeviceError
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.gpu import DeviceSampler, Drawn
from outcrop.sampling.seeds import SPLIT_CODES, epoch_seeds, split_ids
from outcrop.sampling.topology import load_topology
from outcrop.store.graph import open_graph
from outcrop.store.minibatch import as_tensor

_BATCHES, _BATCH = 32, 1024


def _draw(setup: Setup, fanouts: tuple[int, ...]) -> Case:
    graph = open_graph(ensure_graph(setup.folder, setup.sizes.graph, setup.log))
    config = SampleConfig(fanouts=fanouts, batch_size=_BATCH)
    options: dict[str, Any] = {"fanouts": fanouts, "seed": config.seed}
    with Runtime() as runtime:
        seeds = epoch_seeds(split_ids(graph, runtime, "train"), config, "train", 0)[: _BATCHES * _BATCH]
        offsets = np.minimum(np.arange(0, len(seeds) + _BATCH, _BATCH), len(seeds))
        what = (seeds, offsets, SPLIT_CODES["train"], 0, 0)
        topology = load_topology(graph, runtime)
        core = topology.sampler(runtime, runtime.workers, len(offsets) - 1, **options)
        samplers = {
            "device": DeviceSampler(topology, setup.device, **options),
            "in place": DeviceSampler(topology, setup.device, in_place=True, **options),
        }
        expected = core.sample(*what)
        for name, sampler in samplers.items():
            for found, batch in zip(sampler.sample(*what), expected, strict=True):
                if not all(np.array_equal(a, b) for a, b in zip(found, batch, strict=True)):
                    raise DeviceError(
                        f"the sampling kernels ({name}) gave another batch than the C++ sampler"
                    )

        def on_gpu(sampler: DeviceSampler) -> list[Drawn]:
            numbers = range(len(offsets) - 1)
            return [sampler.draw(seeds[offsets[i] : offsets[i + 1]], what[2], 0, i) for i in numbers]

        ways: Ways = {
            "cpu": lambda: [[as_tensor(x, setup.device) for x in b[:3]] for b in core.sample(*what)]
        }
        ways |= {name: partial(on_gpu, sampler) for name, sampler in samplers.items()}
        timed = in_turns(setup, ways)
    edges = sum(len(batch[2]) for batch in expected)
    figures: dict[str, float | None] = {f"{way}_edges_per_s": edges / s for way, s in timed.seconds.items()}
    figures |= {f"{way}_speed_up": timed.seconds["cpu"] / timed.seconds[way] for way in samplers}
    return Case(
        {"fanouts": list(fanouts), "batches": len(expected), "edges": edges},
        timed.seconds,
        timed.samples,
        figures,
    )


def _cases(setup: Setup) -> Cases:
    for fanouts in ((10, 10), (10, 10, 10), (25, 10)):
        yield ",".join(map(str, fanouts)), partial(_draw, setup, fanouts)


BENCHMARKS = {"sampling": Benchmark("Hyperion, section III-B (no figure)", _cases)}
