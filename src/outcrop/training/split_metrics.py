"""Metrics of the splits, added up while predictions are written."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from outcrop.config.sampling import SPLITS
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from outcrop.store.graph_types import NodeType
from outcrop.store.targets import open_targets
from outcrop.training.metrics import Tally, batch_tally, class_tally
from outcrop.training.objectives import METRICS, Objective

_PIECE_BYTES = 1 << 18  # of rows that are looked at at a time: what is computed of them is not in the budget


class SplitMetrics:
    """Compares predictions with labels, for each split of which every node is among those that are written.

    Labels and splits are mapped, so they take none of a memory budget.

    Args:
        graph: Graph that the nodes are of.
        node_type: Type of the nodes.
        kind: Kind of labels that was learned.
        columns: Scores of a node.
        written: How many nodes are written; larger splits are not looked for.

    Nothing is compared with labels of another kind, or with more classes or other columns than the scores have.
    """

    def __init__(self, graph: Graph, node_type: NodeType, kind: str, columns: int, written: int):
        self._kind, self._type, self._columns = kind, node_type, columns
        arrays, labels = graph.manifest.arrays, node_type.array("labels")
        sizes = {
            split: arrays[node_type.array(split)].shape[0]
            for split in SPLITS
            if node_type.array(split) in arrays
        }
        there = [split for split, size in sizes.items() if 0 < size <= written]
        if labels not in arrays or node_type.label_kind != kind:
            there = []
        elif kind == "class":
            there = there if columns >= node_type.num_classes else []
        elif columns != math.prod(arrays[labels].shape[1:]):
            there = []
        with Runtime() as runtime:
            self._ids = {
                split: graph.array(runtime, node_type.array(split)).memmap(check=True) for split in there
            }
            of_classes = there and kind == "class"
            self._classes = graph.array(runtime, labels).memmap(check=True) if of_classes else None
            self._targets = open_targets(graph, runtime) if there and not of_classes else None
        self._tallies = {split: Tally(Objective(kind)) for split in there}
        self._seen, self._known = dict.fromkeys(there, 0), dict.fromkeys(there, 0)

    def add(self, ids: np.ndarray, rows: np.ndarray) -> None:
        """Takes the next nodes.

        Args:
            ids: int64 [n].
            rows: Scores, float32 [n, columns], before they become probabilities; or classes, int64 [n, 1].
        """
        if not self._ids:
            return
        step = max(_PIECE_BYTES // max(rows.itemsize * rows.shape[1], 16), 1)
        for start in range(0, len(ids), step):
            piece = ids[start : start + step]
            for split, members in self._ids.items():
                places = np.minimum(np.searchsorted(members, piece), len(members) - 1)
                found = np.flatnonzero(members[places] == piece)
                if len(found):
                    self._add(split, piece[found], rows[start + found])

    def _add(self, split: str, ids: np.ndarray, rows: np.ndarray) -> None:
        self._seen[split] += len(ids)
        if self._classes is not None:
            y = torch.from_numpy(self._classes[ids].astype(np.int64))
            classes = torch.from_numpy(rows[:, 0] if rows.dtype.kind == "i" else rows.argmax(1))
            batch = class_tally(classes, y, self._columns)
        else:
            assert self._targets is not None
            y = torch.from_numpy(self._targets.of(self._type, ids))
            batch = batch_tally(self._tallies[split].objective, torch.from_numpy(rows), y)
        self._known[split] += batch.known
        self._tallies[split].add(batch)

    def values(self) -> dict[str, dict[str, Any]]:
        """Returns the metrics of each split by name, that of training first, and ``labels``: how many are known. Splits
        of which none is, or that were not written whole, are left out.
        """
        found = {}
        for split, tally in self._tallies.items():
            if self._known[split] and self._seen[split] == len(self._ids[split]):
                values = tally.values()
                found[split] = {name: values[name] for name in METRICS[self._kind] if name in values}
                found[split]["labels"] = self._known[split]
        return found
