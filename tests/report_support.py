"""Records of history made up for tests of reports: a training whose every number is known."""

from __future__ import annotations

from typing import Any

STAGES = ("draw", "lease", "submit", "read", "assemble", "transfer", "compute")
MIB = 1 << 20


def a_training(
    *,
    number: int = 1,
    epochs: int = 4,
    batches: int = 30,
    mode: str = "packed",
    seconds: float = 2.0,
    waiting: float = 0.02,
    busy: dict[str, float] | None = None,
    bytes_read: int = 400 * MIB,
    bytes_needed: int = 390 * MIB,
    rows: dict[str, int] | None = None,
    limit: float | None = 1000.0 * MIB,
    **fields: Any,
) -> dict[str, Any]:
    """A record of a training; ``busy``: seconds of an epoch in which each stage worked."""
    busy = {"draw": 0.001, "submit": 0.1, "lease": 0.08, "read": 0.5, "assemble": 0.2, "transfer": 0.05} | (
        busy or {}
    )
    busy = {"compute": seconds - waiting, **busy}
    rows = {"device": 0, "host": 20_000, "disk_cache": 0, "packed": 80_000} if rows is None else rows
    records = [
        {
            "epoch": e,
            "seconds": seconds,
            "load_seconds": waiting,
            "loss": 2.0 / (e + 1),
            "valid_accuracy": 0.5 + 0.1 * min(e, 3),
            "bytes_read": bytes_read,
            "read_ops": 400,
            "bytes_needed_from_disk": bytes_needed,
            "rows_by_level": rows,
            "stage_seconds": busy,
        }
        for e in range(epochs)
    ]
    record = {
        "format": "outcrop.history",
        "version": 1,
        "kind": "train",
        "number": number,
        "started_at": "2026-01-02T03:04:05+00:00",
        "command": "outcrop train g.oc --run g.run",
        "machine": a_machine(),
        "budget_bytes": 100 * MIB,
        "graph": {
            "path": "g.oc",
            "nodes": 1000,
            "edges": 15000,
            "classes": 4,
            "feature_dim": 128,
            "feature_dtype": "float32",
            "feature_bytes": 512_000,
        },
        "mode": mode,
        "sampling": {"fanouts": [10, 10], "batch_size": 64},
        "training": {"model": "sage", "device": "cpu", "epochs": epochs, "hidden": None},
        "plan": None,
        "report": {
            "best_epoch": min(epochs - 1, 3),
            "test_accuracy": 0.75,
            "peak_host_bytes": 90 * MIB,
            "peak_by_tag": {"batch-rows": 70 * MIB, "host_cache": 20 * MIB},
        },
        "batch_losses": [],
        "disk": None if limit is None else {"sequential_bytes_per_s": limit, "random_ops_per_s": 50_000.0},
        "epochs": records,
        "spans": some_spans(epochs, batches, seconds),
        "samples": some_samples(epochs * seconds, bytes_read * epochs),
    }
    return record | fields


def a_machine() -> dict[str, Any]:
    return {
        "cpu": "A processor <with> brackets & more",
        "cores": 2,
        "memory_bytes": 8 << 30,
        "kernel": "6.1",
        "python": "3.11",
        "versions": {"outcrop": "0.1.0", "torch": None},
        "io_backend": "io_uring",
    }


def some_spans(epochs: int, batches: int, seconds: float) -> dict[str, Any]:
    """Every batch passes through all stages in turn; validation has spans too, which pictures of training leave out."""
    columns: dict[str, list[int]] = {
        key: [] for key in ("name", "split", "epoch", "batch", "start_us", "end_us")
    }
    step = int(seconds * 1e6 / batches)
    for epoch in range(epochs):
        for split in (1, 2):
            for batch in range(batches):
                start = epoch * int(seconds * 1e6) + batch * step
                for order in range(len(STAGES)):
                    row = (
                        order,
                        split,
                        epoch,
                        batch,
                        start + order * step // 8,
                        start + (order + 1) * step // 8,
                    )
                    for key, value in zip(columns, row, strict=True):
                        columns[key].append(value)
    return {"names": list(STAGES), "splits": ["", "train", "valid"], "seen": len(columns["name"]), **columns}


def some_samples(seconds: float, bytes_read: int, count: int = 50) -> dict[str, Any]:
    times = [int(seconds * 1000 * i / (count - 1)) for i in range(count)]
    tags = {
        "batch-rows": [min(70, 10 * i) * MIB for i in range(count)],
        "host_cache": [20 * MIB if i > 2 else 0 for i in range(count)],
        "never": [0] * count,
    }
    return {
        "t_ms": times,
        "bytes_by_tag": tags,
        "process_bytes": [400 * MIB] * count,
        "read_bytes": [bytes_read * i // (count - 1) for i in range(count)],
        "written_bytes": [0] * count,
    }


def alternatives(count: int = 6) -> list[dict[str, Any]]:
    return [
        {
            "segment": 2**i,
            "threshold": i % 3 + 1,
            "disk_bytes": (900 - 100 * i) * MIB,
            "bytes_read": (400 + 50 * i) * MIB,
            "read_ops": 400 * (i + 1),
            "seconds": 0.5 + 0.1 * i,
            "chosen": i == 2,
        }
        for i in range(count)
    ]
