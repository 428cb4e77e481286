"""`outcrop bench gpu` runs, and finds right rows; its figures say nothing here."""

from __future__ import annotations

from device_under_test import NAME as GPU

from outcrop.bench import gpu as bench
from outcrop.bench.graphs import GraphShape


def test_bench_gpu(tmp_path, gpu):
    shape = GraphShape(name="small", nodes=2000, edges=10_000, features=20)
    result = bench.run(tmp_path, shape, 1, print, device_name=GPU, batch_bytes=32 << 10)
    assert [g["row_bytes"] for g in result["gathers"]] == [*bench.WIDTHS, *bench.MISALIGNED]
    assert all(set(g["seconds"]) == {"ceiling", "gather", "naive", "copy"} for g in result["gathers"])
    assert result["sampling"]["batches"] >= 1  # the same by CPU and GPU: the benchmark compares them
    assert set(result["sampling"]["seconds"]) == {"cpu", "device", "in place"}
    assert result["epochs"]["losses_equal"]
    assert set(result["epochs"]["train_seconds"]) == {"memory", "packed", "online"}
    assert len(result["rows"][0]) == len(result["columns"])
