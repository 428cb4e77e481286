"""Which seeds a batch has: the nodes of a split, in the order of an epoch, and their labels.

Epoch e of split s always has the same seeds in the same batches for the same seed of the sampling.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outcrop.config import SampleConfig
from outcrop.errors import FormatError
from outcrop.runtime.keyed_random import mix64
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.link_seeds import ChosenEdges, LinkBatch
from outcrop.store.graph import Graph

Ids = np.ndarray | range
Chosen = Ids | ChosenEdges  # what batches of a split are drawn around, in place of what the graph has
SPLIT_CODES = {"train": 0, "valid": 1, "test": 2, "infer": 3}


def split_ids(graph: Graph, runtime: Runtime, split: str) -> np.ndarray:
    """Opens the node ids of ``split``; empty where the graph has none."""
    return graph.split(runtime, split) if graph.has(split) else np.zeros(0, np.int64)


def epoch_seeds(ids: Ids, config: SampleConfig, split: str, epoch: int) -> np.ndarray:
    """Orders the seeds of all batches of one epoch, int64: shuffled for training, ascending within a batch.

    The shuffle is keyed by (seed, epoch, node): ``ids[argsort(hash(seed, epoch, ids))]``.
    """
    if split != "train":
        return np.ascontiguousarray(ids, np.int64)
    with np.errstate(over="ignore"):
        key = mix64(mix64(np.array([config.seed], np.uint64)) ^ np.uint64(epoch))
        nodes = np.asarray(ids, np.int64)
        order = np.argsort(mix64(mix64(nodes.astype(np.uint64)) ^ key), kind="stable")
    seeds = np.ascontiguousarray(nodes[order], np.int64)
    for start in range(0, len(seeds), config.batch_size):
        seeds[start : start + config.batch_size].sort()
    return seeds


@dataclass(frozen=True)
class Seeds:
    """Says what a batch is drawn from: ``nodes`` int64, within the type of the seeds; ``split`` as the key has it;
    ``link`` where edges are predicted, whose ends the ``nodes`` are then, in the numbering of all nodes.
    """

    split: int
    epoch: int
    batch: int
    nodes: np.ndarray
    link: LinkBatch | None = None


def seed_labels(graph: Graph, labels: np.ndarray | None, seeds: np.ndarray) -> np.ndarray:
    """Reads, int64, classes of ``seeds``, -1 where there are none and for labels of other kinds.

    Raises:
        FormatError: A label is no class.
    """
    if labels is None or graph.label_kind != "class":
        return np.full(len(seeds), -1, np.int64)
    found = labels[seeds].astype(np.int64)
    if len(found) and not -1 <= found.min() <= found.max() < graph.num_classes:
        raise FormatError(
            f"{graph.path}: labels from {found.min()} to {found.max()} were read, there are "
            f"{graph.num_classes} classes; run outcrop verify"
        )
    return found
