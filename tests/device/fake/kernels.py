"""Kernels of the fake GPU: those of the CPU, given what memory they touch."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from fake.streams import Span, Work
from outcrop import _core

_SAMPLE_POINTERS = {
    "sample_count": (0, *range(2, 7), *range(10, 14)),
    "sample_draw": (*range(1, 4), *range(6, 9)),
    "sample_labor": (*range(1, 4), *range(5, 9)),
    "sample_compact": (1, 2, 3, 5, 6),
    "sample_mark": range(2, 5),
    "sample_number": range(2, 10),
    "sample_relabel": range(2, 13),
    "sample_advance": range(7),
    "sample_look_up": (0, 1, *range(3, 7)),
    "sample_list_missing": range(1, 7),
}


def work_of(name: str, entry: str, warps: int, arguments: list[int]) -> Work:
    """What is queued for a launch."""
    spans, run = {"gather": _gather, "assemble": _assemble, "sample": _sample, "io_queue": _io_queue}[name](
        entry, warps, list(arguments)
    )
    return Work(entry, run, tuple(span for span in spans if span.num_bytes))


_QUEUE = (*range(4), 5, 6, 8, *range(10, 13))
_QUEUE_POINTERS: dict[str, tuple[tuple[int, ...], Callable[..., object]]] = {
    "io_submit": ((*_QUEUE, 17, 18, 25, 29), _core.cpu_io_submit),
    "io_complete": ((*_QUEUE, 13), _core.cpu_io_complete),
}

Launch = tuple[list[Span], Callable[[], object]]


def _pointers(addresses: list[int]) -> list[Span]:
    """Of unknown length."""
    return [Span(address, 1) for address in addresses]


def _sample(entry: str, warps: int, arguments: list[int]) -> Launch:
    pointers = _SAMPLE_POINTERS.get(entry, (0, 2, *range(4, 7), *range(9, 15)))
    there = [arguments[at] for at in pointers if arguments[at]]  # caches may be nowhere
    return _pointers(there), lambda: _core.cpu_sample(entry, warps, arguments)


def _io_queue(entry: str, warps: int, arguments: list[int]) -> Launch:
    table, fetched, queues, *rest = arguments
    words = _core.SUBMIT_WORDS if entry == "io_submit" else _core.COMPLETE_WORDS
    pointers, run = _QUEUE_POINTERS[entry]
    if entry == "io_submit":
        assert warps % queues == 0  # a block for each, which rings once
    rows = bytes_at(table, 8 * queues * words).view(np.int64).reshape(queues, words)
    there = [int(row[at]) for row in rows for at in pointers if row[at]]  # places and spaces may be nowhere
    spans = [Span(table, rows.nbytes), Span(fetched, rows.nbytes), *_pointers(there)]
    return spans, lambda: run(table, queues, *rest)


def _assemble(entry: str, warps: int, arguments: list[int]) -> Launch:
    word = int(entry.split("_")[1])
    place, count, out, row, words, wrong = arguments[9:]
    assert row == words * word
    assert warps == count
    given = [arguments[at : at + 3] for at in range(0, 9, 3)]
    spans = [Span(address, (rows - 1) * stride + row) for address, stride, rows in given if rows]

    def run() -> None:
        tables = [_rows(address, stride, rows, row) for address, stride, rows in given]
        target = bytes_at(out, count * row).reshape(count, row)
        bad = _core.cpu_assemble(tables, bytes_at(place, 8 * count).view(np.uint64), target, word)
        _flag(wrong, bad)

    return [*spans, Span(place, 8 * count), Span(out, count * row), Span(wrong, 8)], run


def _gather(entry: str, warps: int, arguments: list[int]) -> Launch:
    word, index_bits = (int(part) for part in entry.split("_")[1:])
    table, stride, rows, index, count, out, row, words, wrong = arguments
    assert row == words * word
    assert warps == count
    index_bytes = count * index_bits // 8

    def run() -> None:
        ids = bytes_at(index, index_bytes).view(f"i{index_bits // 8}")
        target = bytes_at(out, count * row).reshape(count, row)
        _flag(wrong, _core.cpu_gather(_rows(table, stride, rows, row), ids, target, word))

    spans = [Span(table, (rows - 1) * stride + row), Span(index, index_bytes), Span(out, count * row)]
    return [*spans, Span(wrong, 8)], run


def _rows(address: int, stride: int, rows: int, row_bytes: int) -> np.ndarray:
    if not rows:
        return np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (0, row_bytes), (stride, 1))
    return np.lib.stride_tricks.as_strided(bytes_at(address, 1), (rows, row_bytes), (stride, 1))


def _flag(wrong: int, bad: int) -> None:
    if bad >= 0:
        bytes_at(wrong, 8).view(np.int64)[0] = bad + 1


def bytes_at(address: int, count: int) -> np.ndarray:
    interface = {"shape": (count,), "typestr": "|u1", "data": (address, False), "version": 3}
    return np.asarray(SimpleNamespace(__array_interface__=interface))
