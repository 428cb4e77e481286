"""The demo: train from disk in a tenth of the features' memory, train in memory, put both side by side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from outcrop.bench.process import CommandResult, outcrop
from outcrop.config import ALLOWANCE_BYTES, format_bytes

FEATURES = 128


def run(folder: Path, *, nodes: int, epochs: int, quiet: bool, log: Callable[[str], None]) -> dict[str, Any]:
    """Makes graph and run in ``folder``, trains both ways in processes of their own.

    Returns:
        ``columns``, ``rows``, ``title`` and ``verdict`` for people; ``identical_losses``, ``packed``, ``memory`` (the
        ``--json`` of ``outcrop train``) and ``prepare`` for programs.
    """
    feature_bytes = nodes * FEATURES * 4
    memory = feature_bytes // 10
    graph, prepared = folder / "demo.oc", folder / "demo.run"
    log(
        f"[bold]1/4[/] A graph of {nodes:,} nodes and {15 * nodes:,} edges, {format_bytes(feature_bytes)} of features"
    )
    outcrop(
        [
            "generate",
            graph,
            "--nodes",
            str(nodes),
            "--edges",
            str(15 * nodes),
            "--features",
            str(FEATURES),
            "--train-fraction",
            "0.02",
            "--valid-fraction",
            "0.005",
            "--test-fraction",
            "0.005",
            "--overwrite",
        ],
        quiet=quiet,
    )
    log(f"[bold]2/4[/] Prepare it for training in {format_bytes(memory)}: sample, plan, pack")
    limit = memory + ALLOWANCE_BYTES
    preparation = outcrop(
        # One epoch's batches, replayed in both columns: the demo is to be over soon.
        [
            "prepare",
            graph,
            prepared,
            "--memory",
            str(memory),
            "--batch-size",
            "512",
            "--fanouts",
            "10,10",
            "--epochs",
            "1",
        ],
        limit_bytes=limit,
        quiet=quiet,
    )
    common = ["train", graph, "--run", prepared, "--epochs", str(epochs), "--trace-losses"]
    log(f"[bold]3/4[/] Train GraphSAGE from disk, in {format_bytes(memory)}")
    packed = outcrop([*common, "--mode", "packed", "--memory", str(memory)], limit_bytes=limit, quiet=quiet)
    log("[bold]4/4[/] Train it with everything in memory")
    in_memory = outcrop([*common, "--mode", "memory", "--memory", "1TiB"], quiet=quiet)
    return _compare(preparation, packed, in_memory, feature_bytes, memory)


def _compare(
    preparation: CommandResult,
    packed: CommandResult,
    in_memory: CommandResult,
    feature_bytes: int,
    memory: int,
) -> dict[str, Any]:
    a, b = packed.result, in_memory.result
    identical = a["batch_losses"] == b["batch_losses"] and a["test_accuracy"] == b["test_accuracy"]
    times = [median(e["seconds"] for e in r["epochs"]) for r in (a, b)]
    rows = [
        ["test accuracy", *(f"{r['test_accuracy']:.4f}" for r in (a, b))],
        ["last loss", *(f"{r['batch_losses'][-1]:.6f}" for r in (a, b))],
        ["epoch (median)", *(f"{t:.2f} s" for t in times)],
        ["waiting for data", *(f"{median(e['load_seconds'] for e in r['epochs']):.2f} s" for r in (a, b))],
        ["read per epoch", *(format_bytes(r["epochs"][-1]["bytes_read"]) for r in (a, b))],
        [
            "read / needed",
            f"{a['epochs'][-1]['bytes_read'] / max(a['epochs'][-1]['bytes_needed_from_disk'], 1):.3f}",
            "-",
        ],
        ["memory budget", format_bytes(memory), "none"],
        ["held by Outcrop", *(format_bytes(r["peak_host_bytes"]) for r in (a, b))],
        ["whole process", *(format_bytes(r["peak_process_bytes"]) for r in (a, b))],
    ]
    limited = (
        f"The kernel enforced {format_bytes(packed.limit_bytes)} on the whole process, page cache included."
        if packed.limit_bytes
        else "No kernel limit could be set here (needs root); the budget was counted."
    )
    verdict = (
        f"{'Identical' if identical else 'DIFFERENT'}: {len(a['batch_losses'])} batch losses and the accuracy, bit "
        f"for bit. Epoch time from disk is {times[0] / times[1]:.2f}x of in memory. {limited}"
    )
    return {
        "title": f"GraphSAGE, {format_bytes(feature_bytes)} of features; every epoch replays the same batches",
        "columns": ["from disk", "in memory"],
        "rows": rows,
        "verdict": verdict,
        "identical_losses": identical,
        "packed": a,
        "memory": b,
        "prepare": preparation.result,
        "epoch_ratio": times[0] / times[1],
        "limit_bytes": packed.limit_bytes,
        "peak_group_bytes": packed.peak_group_bytes,
    }
