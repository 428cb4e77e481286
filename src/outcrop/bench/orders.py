"""Benchmark ``orders``: states, bare swaps and modelled epochs of every order (Legend, tables 7 and 8)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from outcrop.bench.epoch import Log
from outcrop.embed.orders import ORDERS, least_states, make_order

PARTITIONS = (4, 6, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48, 56, 64)
BUFFERS = (3, 4, 5, 6, 7, 8)
_SHOWN = 3  # of the buffers, the one of the papers
_SWAP = 2.0  # time of a swap in those of a bucket, for the modelled epoch


def run(partitions: Sequence[int], buffers: Sequence[int], log: Log) -> dict[str, Any]:
    """Makes all orders for all pairs with more partitions than the buffer holds; each is verified when it is made."""
    cases = []
    for buffer in buffers:
        log(f"{buffer} partitions resident")
        for count in partitions:
            if count > buffer:
                orders = {name: _measured(name, count, buffer) for name in ORDERS}
                bound = least_states(count, buffer)
                cases.append({"partitions": count, "buffer": buffer, "bound": bound, "orders": orders})
    return {
        "experiment": "orders",
        "swap_in_buckets": _SWAP,
        "cases": cases,
        "columns": ["partitions", "bound", *ORDERS],
        "rows": [
            [str(c["partitions"]), str(c["bound"]), *(_cell(c["orders"][name]) for name in ORDERS)]
            for c in cases
            if c["buffer"] == _SHOWN
        ],
        "says": f"{_SHOWN} resident: states (swaps that nothing hides); cover exchanges several partitions a swap",
    }


def _measured(name: str, partitions: int, buffer: int) -> dict[str, Any]:
    begin = time.perf_counter()
    order = make_order(name, partitions, buffer)
    return {
        "seconds": time.perf_counter() - begin,
        "states": len(order.states),
        "loads": order.num_loads,
        "bare_swaps": len(order.exposed_swaps),
        "epoch_in_buckets": order.epoch_time(1, _SWAP),
    }


def _cell(case: dict[str, Any]) -> str:
    return f"{case['states']} ({case['bare_swaps']})"
