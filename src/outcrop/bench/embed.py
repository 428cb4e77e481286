"""Benchmark ``embed``: partitions swapped from disk against all in memory, where computing can hide it and where not;
``embed-large``: a table four times the memory.

Theorem 4 of Legend: a swap is hidden when the two buckets that train meanwhile take longer than writing one partition
and reading another. The cases differ in edges per node, so that it holds for one and not for the other. Each training
is a process of its own; those that swap are under a control group that leaves no room for the table in the page cache.
The last epochs count. ``bare``: the three matrix products of every chunk and nothing else.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

from outcrop.bench.epoch import Log
from outcrop.bench.process import outcrop
from outcrop.config import ALLOWANCE_BYTES, EmbedConfig, format_bytes
from outcrop.embed.buckets import open_buckets

PARTITIONS, BUFFER, DIM, NEGATIVES = 8, 3, 100, 100
_EPOCHS = 3
_MODES = {
    "resident": ["--resident"],
    "swapping": ["--swapping"],
    "not overlapped": ["--swapping", "--no-prefetch"],
}


@dataclass(frozen=True)
class Case:
    """Describes a generated graph."""

    name: str
    nodes: int
    edges: int

    @property
    def slab_bytes(self) -> int:
        return -(-self.nodes // PARTITIONS) * DIM * 8


@dataclass(frozen=True)
class Large:
    """Describes a table of which a fourth fits in memory: 10 M nodes, 8 GB of vectors and state, 2 GiB."""

    nodes: int = 10_000_000
    edges_per_node: int = 2
    partitions: int = 16
    epochs: int = 2

    @property
    def memory_bytes(self) -> int:
        return max((self.nodes << 31) // 10_000_000, 48 << 20)


def cases(nodes: int) -> list[Case]:
    return [Case("many edges", nodes, 16 * nodes), Case("few edges", nodes, nodes // 2)]


def run(folder: Path, nodes: int, graphs: list[Path], rounds: int, log: Log) -> dict[str, Any]:
    """Runs the benchmark. ``graphs``: imported knowledge graphs that are trained and ranked, too."""
    results = {case.name: _compare(folder, case, rounds, log) for case in cases(nodes)}
    real = {path.stem: _real(folder, path, log) for path in graphs}
    return {
        "experiment": "embed",
        "partitions": PARTITIONS,
        "buffer": BUFFER,
        "cases": results,
        "graphs": real,
        "columns": [
            "case",
            "all in memory",
            f"{BUFFER} of {PARTITIONS}",
            "not overlapped",
            "bare",
            "swaps can hide",
        ],
        "rows": [
            [
                name,
                f"{r['resident']['seconds']:.2f} s",
                f"{r['swapping']['seconds']:.2f} s ({r['against_resident']:.3f}x)",
                f"{r['not overlapped']['seconds']:.2f} s",
                f"{r['bare_seconds']:.2f} s",
                "yes" if r["theorem_4"]["holds"] else "no",
            ]
            for name, r in results.items()
        ],
    }


def large(folder: Path, shape: Large, log: Log) -> dict[str, Any]:
    """Prepares and trains what does not fit, each under a control group of the budget and the usual allowance."""
    graph, run_folder = folder / f"embed-{shape.nodes}-{shape.edges_per_node}x.oc", folder / "bench-embed.run"
    memory = shape.memory_bytes
    if not (graph / "manifest.json").is_file():
        log(f"generating {shape.nodes:,} nodes, {shape.edges_per_node} edges each")
        sizes = [
            "--nodes",
            str(shape.nodes),
            "--edges",
            str(shape.nodes * shape.edges_per_node),
            "--features",
            "1",
        ]
        outcrop(["generate", graph, *sizes, "--memory", str(memory)])
    shutil.rmtree(run_folder, ignore_errors=True)
    limit = memory + ALLOWANCE_BYTES
    log("preparing")
    begin = time.perf_counter()
    command: list[str | Path] = ["embed", "prepare", graph, run_folder, "--partitions", str(shape.partitions)]
    prepared = outcrop([*command, "--memory", str(memory)], limit_bytes=limit)
    prepare_seconds = time.perf_counter() - begin
    log("training")
    command = [
        "embed",
        "train",
        run_folder,
        "--model",
        "dot",
        "--dim",
        str(DIM),
        "--negatives",
        str(NEGATIVES),
    ]
    command += ["--epochs", str(shape.epochs), "--swapping", "--buffer", str(BUFFER), "--memory", str(memory)]
    trained = outcrop(command, limit_bytes=limit)
    shutil.rmtree(run_folder, ignore_errors=True)
    epoch = trained.result["epochs"][-1]
    waited = sum(epoch["waits"])
    return {
        "experiment": "embed-large",
        "nodes": shape.nodes,
        "edges": epoch["edges"],
        "table_bytes": shape.nodes * DIM * 8,
        "memory_bytes": memory,
        "limit_bytes": trained.limit_bytes,
        "prepare_seconds": prepare_seconds,
        "prepare_peak_bytes": prepared.peak_group_bytes,
        "peak_host_bytes": trained.result["peak_host_bytes"],
        "peak_group_bytes": trained.peak_group_bytes,
        "epochs": trained.result["epochs"],
        "columns": [
            "nodes",
            "edges",
            "table",
            "budget",
            "held",
            "prepare",
            "epoch",
            "edges/s",
            "waiting",
            "swaps",
        ],
        "rows": [
            [
                f"{shape.nodes:,}",
                f"{epoch['edges']:,}",
                format_bytes(shape.nodes * DIM * 8),
                format_bytes(memory),
                format_bytes(trained.result["peak_host_bytes"]),
                f"{prepare_seconds:.1f} s",
                f"{epoch['seconds']:.1f} s",
                f"{epoch['edges_per_s']:,.0f}",
                f"{waited:.2f} s",
                str(len(epoch["waits"])),
            ]
        ],
    }


def _train(run_folder: Path, options: list[str], limit: int | None, memory: int | None) -> dict[str, Any]:
    command: list[str | Path] = ["embed", "train", run_folder, "--fresh", "--epochs", str(_EPOCHS), *options]
    if memory is not None:
        command += ["--memory", str(memory)]
    done = outcrop(command, limit_bytes=limit)
    epochs = done.result["epochs"][1:]
    return {
        "seconds": median(e["seconds"] for e in epochs),
        "edges_per_s": median(e["edges_per_s"] for e in epochs),
        "waits": [wait for e in epochs for wait in e["waits"]],
        "bytes_read": epochs[-1]["bytes_read"],
        "bytes_written": epochs[-1]["bytes_written"],
        "loss": epochs[-1]["loss"],
        "peak_host_bytes": done.result["peak_host_bytes"],
        "limit_bytes": done.limit_bytes,
    }


def _compare(folder: Path, case: Case, rounds: int, log: Log) -> dict[str, Any]:
    graph, run_folder = folder / f"embed-{case.nodes}-{case.edges}.oc", folder / "bench-embed.run"
    if not (graph / "manifest.json").is_file():
        log(f"generating {case.nodes:,} nodes, {case.edges:,} edges")
        outcrop(
            ["generate", graph, "--nodes", str(case.nodes), "--edges", str(case.edges), "--features", "1"]
        )
    shutil.rmtree(run_folder, ignore_errors=True)
    outcrop(["embed", "prepare", graph, run_folder, "--partitions", str(PARTITIONS)])
    edges = open_buckets(run_folder).num_edges
    base = ["--model", "dot", "--dim", str(DIM), "--negatives", str(NEGATIVES), "--buffer", str(BUFFER)]
    memory = (BUFFER * case.slab_bytes) + (64 << 20)
    records: dict[str, list[dict[str, Any]]] = {name: [] for name in _MODES}
    for _ in range(rounds):
        for name, options in _MODES.items():
            log(f"{case.name}: {name}")
            swapping = name != "resident"
            records[name].append(
                _train(
                    run_folder,
                    [*base, *options],
                    memory + ALLOWANCE_BYTES if swapping else None,
                    memory if swapping else None,
                )
            )
    shutil.rmtree(run_folder, ignore_errors=True)
    modes = {name: {**r[-1], "seconds": median(x["seconds"] for x in r)} for name, r in records.items()}
    resident, idle = modes["resident"]["seconds"], modes["not overlapped"]
    per_swap = fmean(idle["waits"])
    hiding = 2 * resident / PARTITIONS**2
    return {
        **modes,
        "edges": edges,
        "against_resident": modes["swapping"]["seconds"] / resident,
        "bare_seconds": bare_seconds(EmbedConfig(model="dot", dim=DIM, negatives=NEGATIVES), edges),
        "theorem_4": {"swap_seconds": per_swap, "two_buckets_seconds": hiding, "holds": hiding >= per_swap},
        "identical_losses": len({r["loss"] for rs in records.values() for r in rs}) == 1,
    }


def bare_seconds(config: EmbedConfig, edges: int, rounds: int = 50) -> float:
    """Returns seconds that the matrix products of all chunks of ``edges`` take: scores and both of their gradients."""
    queries, candidates = torch.randn(2 * config.chunk, config.dim), torch.randn(config.negatives, config.dim)
    scores = torch.empty(2 * config.chunk, config.negatives)
    to_queries, to_candidates = torch.empty_like(queries), torch.empty_like(candidates)
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        torch.mm(queries, candidates.T, out=scores)
        torch.mm(scores, candidates, out=to_queries)
        torch.mm(scores.T, queries, out=to_candidates)
        times.append(time.perf_counter() - begin)
    return median(times) * edges / config.chunk


def _real(folder: Path, graph: Path, log: Log) -> dict[str, Any]:
    """Trains ComplEx of 100 floats with 1000 negatives, as the other systems were measured with."""
    log(f"{graph.stem}: ComplEx, 30 epochs")
    run_folder = folder / "bench-embed.run"
    shutil.rmtree(run_folder, ignore_errors=True)
    outcrop(["embed", "prepare", graph, run_folder])
    done = outcrop(["embed", "train", run_folder, "--epochs", "30"]).result
    ranks = outcrop(["embed", "eval", run_folder]).result
    edges = open_buckets(run_folder).num_edges
    seconds = median(e["seconds"] for e in done["epochs"][1:])
    shutil.rmtree(run_folder, ignore_errors=True)
    return {
        "edges": edges,
        "seconds": seconds,
        "edges_per_s": edges / seconds,
        "edges_per_core_s": edges / seconds / torch.get_num_threads(),
        "bare_seconds": bare_seconds(EmbedConfig(), edges),
        "filtered_mrr": ranks["mrr"],
        "hits": ranks["hits"],
    }
