"""Rows fetched from host memory by the GPU, against what the bus carries and against the CPU's way.

PyTorch-Direct, section 5.2: sizes (Figure 6) and alignment (Figure 7). All tables are views of one block, which begins
at a page, so that widths are compared and not where a table happens to lie.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from statistics import geometric_mean
from typing import Any

import torch

from outcrop import unified
from outcrop.bench.gpu_figures.measure import Case, Setup, in_turns
from outcrop.bench.gpu_figures.result import Bar, Benchmark, Cases
from outcrop.device.gpu import seen_by
from outcrop.errors import DeviceError

MISALIGNED = tuple(range(2048, 2080, 4))
_MOST_ROWS = 4 << 20  # the paper's items
_LEAST_BAR_BYTES = 512


class Table:
    """Holds host memory that the GPU reads in place, as tables of any width; it is made when it is first wanted."""

    def __init__(self, setup: Setup):
        self._setup = setup

    @cached_property
    def words(self) -> torch.Tensor:
        """Returns the memory as int32, counting."""
        setup = self._setup
        most = max(setup.sizes.row_bytes[-1], MISALIGNED[-1])
        count = max(setup.sizes.table_bytes, most) // 4
        setup.log(f"{4 * count:,} bytes of host memory for the GPU to read")
        made = unified.empty(count, dtype=torch.int32).as_subclass(torch.Tensor)
        step = 64 << 20
        for begin in range(0, count, step):
            end = min(begin + step, count)
            made[begin:end] = torch.arange(begin, end, dtype=torch.int64).to(torch.int32)
        return made

    def of(self, row_bytes: int) -> torch.Tensor:
        """Returns float32 [rows, row_bytes / 4]."""
        width = row_bytes // 4
        rows = min(len(self.words) // width, _MOST_ROWS)
        return self.words[: rows * width].view(torch.float32).view(rows, width)


def _gather(setup: Setup, table: Table, row_bytes: int, count: int) -> Case:
    rows = table.of(row_bytes)
    ids = torch.randint(0, len(rows), (count,), generator=torch.Generator().manual_seed(row_bytes))
    device_ids = ids.to(setup.device)
    seen = seen_by(setup.gpu, rows, setup.index)
    pinned = unified.empty(count, row_bytes // 4).as_subclass(torch.Tensor)
    target = torch.empty(count, row_bytes // 4, device=setup.device)
    copied: list[Any] = []  # the fence of the copy out of ``pinned``

    def copy() -> None:
        while copied:
            copied.pop().synchronize()
        torch.index_select(rows, 0, ids, out=pinned)
        target.copy_(pinned, non_blocking=True)
        copied.append(setup.gpu.fence(setup.gpu.stream(setup.index)))

    ways: dict[str, Callable[[], Any]] = {
        "ceiling": lambda: target.copy_(pinned, non_blocking=True),
        "gather": lambda: unified.gather(rows, device_ids),
        "naive": lambda: seen[device_ids],
        "copy": copy,
        "pageable": lambda: rows[ids].to(setup.device),
    }
    expected = rows[ids].view(torch.int32)
    for way in ("gather", "naive"):
        if not torch.equal(ways[way]().cpu().view(torch.int32), expected):
            raise DeviceError(f"{way} gave wrong rows of {row_bytes} bytes")
    timed = in_turns(setup, ways)
    seconds, size = timed.seconds, count * row_bytes
    return Case(
        {"row_bytes": row_bytes, "rows": count, "table_rows": len(rows), "bytes": size},
        seconds,
        timed.samples,
        {
            "gather_gigabytes_per_s": size / seconds["gather"] / 1e9,
            "ceiling_gigabytes_per_s": size / seconds["ceiling"] / 1e9,
            "of_ceiling": seconds["ceiling"] / seconds["gather"],
            "against_naive": seconds["naive"] / seconds["gather"],
            "against_copy": seconds["copy"] / seconds["gather"],
            "against_pageable": seconds["pageable"] / seconds["gather"],
            "gather_cores": timed.cores["gather"],
            "copy_cores": timed.cores["copy"],
        },
    )


def _sizes(setup: Setup) -> Cases:
    table = Table(setup)
    for row_bytes in setup.sizes.row_bytes:
        for count in setup.sizes.counts:
            yield f"{count} rows of {row_bytes} B", partial(_gather, setup, table, row_bytes, count)


def _alignment(setup: Setup) -> Cases:
    table, count = Table(setup), setup.sizes.counts[-2:][0]
    for row_bytes in MISALIGNED:
        yield f"{row_bytes} B", partial(_gather, setup, table, row_bytes, count)


def bars(cases: dict[str, Case]) -> list[Bar]:
    """Returns the figures of the most rows at a time: small transfers are all launching."""
    most = max(case.parameters["rows"] for case in cases.values())
    wide = [
        case.figures
        for case in cases.values()
        if case.parameters["row_bytes"] >= _LEAST_BAR_BYTES and case.parameters["rows"] == most
    ]
    ceiling = [f["of_ceiling"] or 0.0 for f in wide]
    copy = [f["against_copy"] or 0.0 for f in wide]
    return [
        Bar("zero-copy gather against the measured ceiling of the bus, least", min(ceiling), least=0.95),
        Bar(
            "zero-copy gather against gathering by the CPU and a copy, mean", geometric_mean(copy), least=1.9
        ),
    ]


BENCHMARKS = {
    "pytorch-direct-figure-6": Benchmark("PyTorch-Direct, Figure 6", _sizes, bars),
    "pytorch-direct-figure-7": Benchmark("PyTorch-Direct, Figure 7", _alignment, bars),
}
