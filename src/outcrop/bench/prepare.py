"""Benchmark ``prepare``: batched packing against packing batch by batch (DiskGNN Figure 17), under the same cap.

Packing batch by batch reads the rows of each mini-batch by themselves and writes them together; it is given merged page
reads and a full queue, which is the best that can be done for it.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import outcrop._core as _core
from outcrop.bench.epoch import Log, Setting, ensure_graph, plain, prepared_run
from outcrop.config import format_bytes
from outcrop.rows import disk_rows
from outcrop.runtime.runtime import Runtime
from outcrop.store import record
from outcrop.store.graph import open_graph
from outcrop.store.placement import open_placement
from outcrop.store.samples import open_samples


def run(folder: Path, setting: Setting, log: Log) -> dict[str, Any]:
    """Prepares from nothing under the cap, and packs the same rows batch by batch, in turn."""
    graph, out = ensure_graph(folder, setting.shape, log), folder / "bench-prepare.run"
    results, naive = [], []
    for turn in range(setting.rounds):
        log(f"preparing, round {turn + 1}/{setting.rounds}")
        shutil.rmtree(out, ignore_errors=True)
        results.append(prepared_run(graph, out, setting))
        log("packing batch by batch")
        naive.append(_batch_by_batch(graph, out, setting.memory))
    shutil.rmtree(out, ignore_errors=True)
    typical = sorted(results, key=lambda r: r["seconds"])[len(results) // 2]
    pack = median(r["stage_seconds"]["pack"] for r in results)
    one_by_one = median(n["seconds"] for n in naive)
    cases = {
        "batched": {
            "seconds": pack,
            "bytes_read": typical["bytes_read"],
            "bytes_written": typical["bytes_written"],
        },
        "batch by batch": {**naive[-1], "seconds": one_by_one},
    }
    return {
        "experiment": "prepare",
        "setting": plain(setting),
        "result": typical,
        "all_seconds": [r["seconds"] for r in results],
        "feature_passes": typical["bytes_read"] / setting.shape.feature_bytes,
        "cases": cases,
        "speed_up": one_by_one / pack,
        "columns": ["packing", "time", "read", "written"],
        "rows": [
            [name, f"{c['seconds']:.2f} s", format_bytes(c["bytes_read"]), format_bytes(c["bytes_written"])]
            for name, c in cases.items()
        ],
        "says": f"batched packing is {one_by_one / pack:.1f}x as fast; preparing takes {typical['seconds']:.2f} s",
    }


def _batch_by_batch(graph_path: Path, run_folder: Path, memory: int) -> dict[str, Any]:
    """Writes the packed rows of each batch as they are read, a file of the size of the records."""
    graph = open_graph(graph_path)
    with Runtime(memory) as runtime:
        samples = open_samples(runtime, run_folder / "sample")
        placement = open_placement(runtime, run_folder / "plan")
        rows = disk_rows(graph, runtime, graph.row_file)
        (placed,) = placement.files
        section = placed.section(samples)
        held = np.concatenate([placed.host_ids, placed.device_ids])
        ids_buffer = runtime.budget.empty("bench", section.buffer_bytes)
        buffer = runtime.budget.empty("bench", record.align_page(section.max_rows * rows.row_bytes))
        path = run_folder / "batch-by-batch.bin"
        before, begin = runtime.io.counters, time.perf_counter()
        file = runtime.io.open(str(path), _core.OpenMode.create)
        offset = 0
        for batch in placement.packed_batches:
            ids = section.read_ids(int(batch), ids_buffer)
            wanted = ids[~np.isin(ids, held)].astype(np.int64)
            out = buffer[: len(wanted) * rows.row_bytes]
            rows.read_rows(wanted, out)
            runtime.io.write(file, offset, buffer[: record.align_page(len(out))])
            offset += record.align_page(len(out))
        runtime.io.sync(file)
        seconds, after = time.perf_counter() - begin, runtime.io.counters
        runtime.io.close(file)
        rows.close()
        return {
            "seconds": seconds,
            "bytes_read": after.read_bytes - before.read_bytes,
            "bytes_written": after.write_bytes - before.write_bytes,
        }
