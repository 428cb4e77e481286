"""Benchmark ``gpu``: rows fetched by the GPU from host memory, against what PCIe can carry and against the CPU's way.

Source: PyTorch-Direct, section 5.2 (microbenchmark) and Figures 6 to 8. Everything is measured in turns in one run and
given as the median; bytes are those of the rows. Where there is no GPU it is refused.

- ``ceiling``: a copy of as many bytes from pinned memory, which is what the bus carries.
- ``gather``: the aligned kernel, in place. ``naive``: torch's own indexing of the same memory, in place.
- ``copy``: rows gathered by the CPU, then copied (what training scripts do).

``sampling``: mini-batches drawn by the kernels, from a topology in device memory (``device``) and in the host's (``in
place``), left on the GPU, against the C++ sampler with all threads, copied there (``cpu``). All are compared first.

``fused``: the softmax loss of embeddings with its gradients, in one pass of kernels, against torch (Legend, section 6).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from outcrop.api.run import open_session
from outcrop.api.train import train
from outcrop.bench.epoch import Say, ensure_graph
from outcrop.bench.graphs import GraphShape
from outcrop.config import DeviceConfig, SampleConfig
from outcrop.device import resolve
from outcrop.device.gpu import Gpu, gpu_of
from outcrop.device_sampling import DeviceSampler, Drawn
from outcrop.embed import fused
from outcrop.errors import DeviceError
from outcrop.feeders import SampledGraphs
from outcrop.rows import open_rows
from outcrop.runtime import Runtime
from outcrop.sampling import SPLIT_CODES, BatchSampler, epoch_seeds, split_ids
from outcrop.stages import load
from outcrop.store.graph import open_graph
from outcrop.store.minibatch import as_tensor
from outcrop.store.topology import load_topology
from outcrop.unified import gather, in_place
from outcrop.unified.memory import host_memory

WIDTHS = tuple(256 << i for i in range(7))  # bytes, 256 to 16 KiB
MISALIGNED = tuple(range(2048, 2080, 4))


def run(
    folder: Path,
    shape: GraphShape,
    rounds: int,
    say: Say,
    *,
    device_name: str = "cuda",
    batch_bytes: int = 64 << 20,
) -> dict[str, Any]:
    """``shape``: of the graph to train on. ``batch_bytes``: of the rows fetched at a time."""
    device = resolve(device_name)
    gpu = gpu_of(device)
    if gpu is None:
        raise DeviceError("bench gpu measures a GPU: --device cuda")
    device = torch.device(device.type, gpu.current() if device.index is None else device.index)
    gathers = [_gather(gpu, device, width, rounds, batch_bytes, say) for width in (*WIDTHS, *MISALIGNED)]
    fused_scores = _fused(gpu, device, rounds, say)
    path = ensure_graph(folder, shape, say)
    sampling = _sampling(gpu, device, path, rounds, say)
    epochs = _epochs(gpu, device, path, rounds, say)
    return {
        "experiment": "gpu",
        "device": str(device),
        "gathers": gathers,
        "fused": fused_scores,
        "sampling": sampling,
        "epochs": epochs,
        "columns": [
            "row",
            "ceiling",
            "gather",
            "naive",
            "copy",
            "of the ceiling",
            "against naive",
            "against copy",
        ],
        "rows": [
            [
                f"{g['row_bytes']} B",
                *(f"{g['gigabytes_per_s'][way]:.2f} GB/s" for way in ("ceiling", "gather", "naive", "copy")),
                f"{g['of_ceiling']:.3f}",
                f"{g['against_naive']:.2f}x",
                f"{g['against_copy']:.2f}x",
            ]
            for g in gathers
        ],
    }


def _gather(
    gpu: Gpu, device: torch.device, width: int, rounds: int, batch_bytes: int, say: Say
) -> dict[str, Any]:
    say(f"rows of {width} bytes")
    count = max(1, batch_bytes // width)
    rows = 8 * count  # so that the rows of a batch lie far apart
    random = np.random.default_rng(width)
    plain = torch.from_numpy(random.integers(0, 1 << 30, (rows, width // 4), dtype=np.int32)).view(
        torch.float32
    )
    table = in_place(plain)
    ids = torch.from_numpy(random.integers(0, rows, count))
    there = ids.to(device)
    in_unified = table.as_subclass(torch.Tensor)
    seen = host_memory().on_gpu(in_unified, device.index)
    pinned = in_place(torch.empty(count, width // 4)).as_subclass(torch.Tensor)
    target = torch.empty(count, width // 4, device=device)

    def copied() -> None:
        torch.index_select(plain, 0, ids, out=pinned)
        target.copy_(pinned, non_blocking=True)

    ways: dict[str, Callable[[], Any]] = {
        "ceiling": lambda: target.copy_(pinned, non_blocking=True),
        "gather": lambda: gather(in_unified, there),
        "naive": lambda: seen[there],
        "copy": copied,
    }
    found = ways["gather"]()
    if not torch.equal(found.cpu().view(torch.int32), plain[ids].view(torch.int32)):
        raise DeviceError(f"the gather kernel gave wrong rows of {width} bytes")
    seconds = _in_turns(gpu, device, ways, rounds)
    rate = {name: count * width / s / 1e9 for name, s in seconds.items()}
    return {
        "row_bytes": width,
        "rows": count,
        "seconds": seconds,
        "gigabytes_per_s": rate,
        "of_ceiling": rate["gather"] / rate["ceiling"],
        "against_naive": rate["gather"] / rate["naive"],
        "against_copy": rate["gather"] / rate["copy"],
    }


def _fused(gpu: Gpu, device: torch.device, rounds: int, say: Say) -> dict[str, Any]:
    """Seconds of a batch's scores, loss and gradients; TF32 on both sides."""
    if not fused.usable(device):
        return {}
    n, k, dim = 100_000, 1_000, 100
    say(f"softmax of {n:,} queries, {k:,} negatives, {dim} floats")
    queries, candidates = (torch.randn(rows, dim, device=device) / dim for rows in (n, k))
    positive, ids = torch.randn(n, device=device), torch.arange(k, device=device)
    wanted = torch.randint(0, 10 * k, (n,), device=device)

    def plain() -> tuple[torch.Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in (queries, positive, candidates)]
        scores = (leaves[0] @ leaves[2].T).masked_fill(wanted[:, None] == ids, -torch.inf)
        loss = torch.cat([leaves[1][:, None], scores], 1).logsumexp(1).sum() - leaves[1].sum()
        return loss.detach(), *torch.autograd.grad(loss, leaves)

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        ways = {"fused": lambda: fused.softmax(queries, positive, candidates, wanted, ids), "plain": plain}
        differences = [
            float((a - b).abs().max() / b.abs().max().clamp_min(1e-30))
            for a, b in zip(ways["fused"](), plain(), strict=True)
        ]
        seconds = _in_turns(gpu, device, ways, max(rounds, 5))
    finally:
        torch.set_float32_matmul_precision(before)
    products = 2 * n * k * dim * 3
    return {
        "shape": [n, k, dim],
        "seconds": seconds,
        "speed_up": seconds["plain"] / seconds["fused"],
        "useful_teraflops": {name: products / s / 1e12 for name, s in seconds.items()},
        "relative_differences": dict(
            zip(("loss", "queries", "positive", "candidates"), differences, strict=True)
        ),
    }


def _sampling(gpu: Gpu, device: torch.device, path: Path, rounds: int, say: Say) -> dict[str, Any]:
    """Seconds of drawing (up to) 32 batches, which are in device memory then."""
    graph, config = open_graph(path), SampleConfig(fanouts=(10, 10, 10), batch_size=1024)
    options = {"fanouts": config.fanouts, "seed": config.seed}
    with Runtime() as runtime:
        say("drawing batches")
        seeds = epoch_seeds(split_ids(graph, runtime, "train"), config, "train", 0)[: 32 * config.batch_size]
        offsets = np.minimum(np.arange(0, len(seeds) + config.batch_size, config.batch_size), len(seeds))
        what = (seeds, offsets, SPLIT_CODES["train"], 0, 0)
        topology = load_topology(graph, runtime)
        core = topology.sampler(runtime, runtime.workers, len(offsets) - 1, **options)
        samplers = {
            "device": DeviceSampler(topology, device, **options),
            "in place": DeviceSampler(topology, device, in_place=True, **options),
        }
        wanted = core.sample(*what)
        for name, sampler in samplers.items():
            for found, batch in zip(sampler.sample(*what), wanted, strict=True):
                if not all(np.array_equal(a, b) for a, b in zip(found, batch, strict=True)):
                    raise DeviceError(
                        f"the sampling kernels ({name}) gave another batch than the C++ sampler"
                    )

        def on_gpu(sampler: DeviceSampler) -> list[Drawn]:
            ends = range(len(offsets) - 1)
            return [sampler.draw(seeds[offsets[i] : offsets[i + 1]], what[2], 0, i) for i in ends]

        ways: dict[str, Callable[[], Any]] = {
            "cpu": lambda: [[as_tensor(x, device) for x in batch[:3]] for batch in core.sample(*what)],
            **{name: partial(on_gpu, sampler) for name, sampler in samplers.items()},
        }
        seconds = _in_turns(gpu, device, ways, rounds)
    edges = sum(len(batch[2]) for batch in wanted)
    return {
        "batches": len(wanted),
        "edges": edges,
        "seconds": seconds,
        "edges_per_s": {name: edges / s for name, s in seconds.items()},
        "speed_up": {name: seconds["cpu"] / seconds[name] for name in samplers},
    }


def _in_turns(
    gpu: Gpu, device: torch.device, ways: dict[str, Callable[[], Any]], rounds: int
) -> dict[str, float]:
    """Median seconds of each, done by the GPU; the first turn is not counted."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            _wait(gpu, device)
            begin = time.perf_counter()
            way()
            _wait(gpu, device)
            if turn:
                times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(t) for name, t in times.items()}


def _wait(gpu: Gpu, device: torch.device) -> None:
    gpu.fence(gpu.stream(device.index)).synchronize()


def _epochs(gpu: Gpu, device: torch.device, path: Path, rounds: int, say: Say) -> dict[str, Any]:
    """Seconds of loading an epoch, rows read in place and gathered by the CPU; and of training one, in every mode."""
    graph, to = open_graph(path), DeviceConfig(str(device))
    config = SampleConfig(fanouts=(10, 10), batch_size=1024)
    loading: dict[str, list[float]] = {"in place": [], "copy": []}
    for _ in range(rounds):
        for way, seconds in loading.items():
            say(f"loading, {way}")
            with Runtime() as runtime:
                session = (
                    open_session(graph, runtime, "memory", config=config, to=to)
                    if way == "in place"
                    else _copying(graph, runtime, config, to)
                )
                with session:
                    begin = time.perf_counter()
                    for batch in session.batches("train"):
                        del batch
                    _wait(gpu, device)
                    seconds.append(time.perf_counter() - begin)
    losses, training = {}, {}
    options = {
        "fanouts": (10, 10),
        "batch_size": 1024,
        "epochs": rounds + 1,
        "sample_epochs": 1,
        "trace_losses": True,
        "test": False,
    }
    for mode in ("memory", "packed", "online"):
        say(f"training, {mode}")
        report = train(graph, mode=mode, **options, device=str(device), evaluate_every=rounds + 1)
        losses[mode] = report.batch_losses
        training[mode] = statistics.median(epoch["seconds"] for epoch in report.epochs[1:])
    return {
        "load_seconds": {way: statistics.median(seconds) for way, seconds in loading.items()},
        "train_seconds": training,
        "losses_equal": losses["memory"] == losses["online"],
        "largest_loss_difference": max(
            abs(a - b) for a, b in zip(losses["memory"], losses["online"], strict=True)
        ),
    }


def _copying(graph: Any, runtime: Runtime, config: SampleConfig, to: DeviceConfig) -> load.LoadSession:
    """Mode ``memory`` as it would be without unified memory."""
    pool = load.make_pool(graph, runtime, slots=2, max_nodes=0, to=to)
    rows = open_rows(graph, runtime, "memory")
    graphs = SampledGraphs(BatchSampler(graph, config, runtime, share=0.25))
    return load.row_session(graph, graphs, rows, pool, runtime, to)
