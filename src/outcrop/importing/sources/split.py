"""Division of nodes into train, valid and test: checked when given, keyed and reproducible when made."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

import outcrop._core as _core
from outcrop.config.sampling import SPLITS
from outcrop.errors import ArgumentError
from outcrop.importing.sources.base import NodeSource
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import ArrayWriter
from outcrop.store.manifest import ArraySpec

Splits = dict[str, np.ndarray]  # node ids by split
TRAIN_PER_CLASS, VALID_PER_CLASS = 20, 30  # Shchur et al. 2018, section 4
PLANETOID_VALID, PLANETOID_TEST = 500, 1000  # Yang et al. 2016


def check_splits(source: NodeSource, splits: Splits, runtime: Runtime, num_nodes: int) -> Splits:
    """Returns the same splits, each ascending.

    Args:
        source: Source of the splits: its name and its ``split_rows`` are for messages.
        splits: Node ids by split, int64 [M] each.
        runtime: Runtime whose budget holds what the check needs.
        num_nodes: Number of nodes of the graph.

    Raises:
        ArgumentError: An id is out of range, listed twice, or in two splits.
    """
    with runtime.budget.reserve("splits", num_nodes + 16 * sum(len(ids) for ids in splits.values())):
        wrong = _first_wrong(splits, num_nodes)
    if wrong is not None:
        raise ArgumentError(_wrong_node(source, wrong, num_nodes))
    return {split: np.sort(ids) for split, ids in splits.items()}


def _first_wrong(splits: Splits, num_nodes: int) -> tuple[int, str, str | None] | None:
    """Finds a node that must not be where it is: the node, the split, and the split that has it already, if any."""
    owner = np.full(num_nodes, -1, np.int8)
    for number, (split, ids) in enumerate(splits.items()):
        outside = (ids < 0) | (ids >= num_nodes)
        if outside.any():
            return int(ids[np.argmax(outside)]), split, None
        ranked = np.sort(ids)
        twice = ranked[1:][ranked[1:] == ranked[:-1]]
        if len(twice):
            return int(twice[0]), split, split
        taken = ranked[owner[ranked] >= 0]
        if len(taken):
            return int(taken[0]), split, list(splits)[owner[taken[0]]]
        owner[ranked] = number
    return None


def _wrong_node(source: NodeSource, wrong: tuple[int, str, str | None], num_nodes: int) -> str:
    """Returns the message for what :func:`_first_wrong` found, with the rows where the source can tell them."""
    node, split, other = wrong
    listed = source.split_rows(node) if source.split_rows else []
    where, name = (listed[-1].where, listed[-1].node) if listed else (source.name, str(node))
    if other is None:
        meant = ""
        if source.integer_names:
            meant = "; if it is an id, list ids in a table 'splits' with the columns 'id' and 'split' instead"
        return (
            f"{where}: split {split} lists node {name}, but there are {num_nodes} nodes (0 to {num_nodes - 1}): "
            f"correct it, or remove it there{meant}"
        )
    first, second = (listed[0].split, listed[-1].split) if listed else (other, split)
    said = f"node {name} is in split {first} and in split {second}"
    if first == second:
        said = f"split {split} lists node {name} twice"
    seen = f", first in {listed[0].where}" if len(listed) > 1 else ""
    return f"{where}: {said}{seen}: keep one of them"


class Splitter:
    """Gives each split exactly ``round(fraction * count)`` of ``count`` nodes, by a keyed permutation that
    needs no memory.
    """

    def __init__(self, seed: int, count: int, fractions: tuple[float, float, float]):
        ends = np.minimum(np.round(np.cumsum(fractions) * count), count).astype(np.int64)
        self._bounds = list(zip(SPLITS, [0, *ends[:-1].tolist()], ends.tolist(), strict=True))
        self._permutation = _core.Permutation(seed & ((1 << 64) - 1), max(count, 1))

    def write(self, blocks: Iterable[np.ndarray], runtime: Runtime, work: Path) -> dict[str, ArraySpec]:
        """Writes one array per split from blocks of ascending node ids."""
        writers = {split: ArrayWriter(runtime, work, split, "int64") for split in SPLITS}
        first = 0
        for ids in blocks:
            place = np.empty(len(ids), np.int64)
            self._permutation.forward(first, place)
            first += len(ids)
            for split, start, stop in self._bounds:
                writers[split].append(ids[(place >= start) & (place < stop)])
        return {split: writer.finish() for split, writer in writers.items()}


def per_class_splits(
    labels: np.ndarray, seed: int, planetoid: bool, runtime: Runtime
) -> dict[str, np.ndarray]:
    """Divides the labelled nodes: 20 of each class train; then 30 of each class (500 in all for ``planetoid``) validate
    and the rest (1000) test.
    """
    with runtime.budget.reserve("splits", 48 * len(labels)):
        labelled = np.flatnonzero(labels >= 0)
        order = np.empty(len(labelled), np.int64)
        _core.Permutation(seed & ((1 << 64) - 1), max(len(labelled), 1)).forward(0, order)
        shuffled = labelled[order]
        classes = labels[shuffled]
        by_class = np.argsort(classes, kind="stable")
        sizes = np.bincount(classes) if len(classes) else np.zeros(0, np.int64)
        place = np.empty_like(order)  # among the nodes of the same class
        place[by_class] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        train = place < TRAIN_PER_CLASS
        if planetoid:
            rest = shuffled[~train]
            valid, test = rest[:PLANETOID_VALID], rest[PLANETOID_VALID : PLANETOID_VALID + PLANETOID_TEST]
        else:
            second = ~train & (place < TRAIN_PER_CLASS + VALID_PER_CLASS)
            valid, test = shuffled[second], shuffled[~train & ~second]
        return {"train": np.sort(shuffled[train]), "valid": np.sort(valid), "test": np.sort(test)}
