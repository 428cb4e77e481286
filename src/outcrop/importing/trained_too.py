"""Held-out triples that are training triples, too: ranks of them say nothing about what was learned."""

from __future__ import annotations

import numpy as np

from outcrop.runtime.runtime import Runtime
from outcrop.store.triples import Triples

_ROW_BYTES = (
    96  # of a triple that is looked for, or looked at: its ids, keys of 8 bytes, and what sorting them takes
)
_MOST_ROWS = 1 << 18  # of the training triples, looked at at a time
_TAG = "import"


def count_trained_too(graph: Triples, split: str, runtime: Runtime) -> int:
    """Counts the triples of ``split`` that the training triples have, in passes over these:
    ``sum(triple in set(train) for triple in held_out)``.

    Memory: half of what is free, for both.
    """
    held, train = graph.array(runtime, split), graph.array(runtime, "train")
    room = max(runtime.budget.free_bytes // 4 // _ROW_BYTES, 1)
    found, step = 0, min(room, _MOST_ROWS)
    try:
        for begin in range(0, held.num_rows, room):
            with runtime.budget.reserve(_TAG, (_ROW_BYTES - 12) * (min(room, held.num_rows) + step)):
                wanted = _Search(held.read(_TAG, begin, min(begin + room, held.num_rows)))
                for at in range(0, train.num_rows, step):
                    wanted.look_at(train.read(_TAG, at, min(at + step, train.num_rows)))
                    runtime.progress.advance("compare", min(step, train.num_rows - at))
                found += wanted.found
    finally:
        held.close()
        train.close()
    return found


class _Search:
    """Looks for triples, uint32 [n, 3], or edges [n, 2], among others."""

    def __init__(self, triples: np.ndarray):
        self._ends, number = np.unique(_ends(triples), return_inverse=True)
        self._wanted, self._counts = np.unique(_keys(number, triples), return_counts=True)
        self._seen = np.zeros(len(self._wanted), bool)

    def look_at(self, triples: np.ndarray) -> None:
        number, same = _places(self._ends, _ends(triples))
        places, same = _places(self._wanted, _keys(number[same], triples[same]))
        self._seen[places[same]] = True

    @property
    def found(self) -> int:
        return int(self._counts[self._seen].sum())


def _ends(triples: np.ndarray) -> np.ndarray:
    return triples[:, 0].astype(np.uint64) << np.uint64(32) | triples[:, -1].astype(np.uint64)


def _keys(number: np.ndarray, triples: np.ndarray) -> np.ndarray:
    """Returns uint64: the number of the pair of ends and the relation, where there is one."""
    relations = triples[:, 1] if triples.shape[1] == 3 else np.zeros(len(triples), np.uint32)
    return number.astype(np.uint64) << np.uint64(32) | relations.astype(np.uint64)


def _places(ascending: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns where in ``ascending``, not empty, each of ``wanted`` would be, and whether it is there."""
    places = np.minimum(np.searchsorted(ascending, wanted), len(ascending) - 1)
    return places, ascending[places] == wanted
