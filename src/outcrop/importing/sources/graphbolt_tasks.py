"""Tasks of ``graphbolt:DIR``: splits and labels of nodes, and edges to be predicted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.base import LabelSource, SplitRow, block_bytes, check_ids
from outcrop.importing.sources.graphbolt_metadata import DataFile, Task
from outcrop.importing.sources.labels import MAX_NAMED_CLASSES, array_labels, check_labels
from outcrop.importing.sources.npy import array_blocks, open_npy
from outcrop.importing.sources.tables import Place
from outcrop.importing.sources.torch_file import TorchFile, Unreadable
from outcrop.runtime.runtime import Runtime

_SEEDS = ("seeds", "seed_nodes", "node_pairs")  # what seeds are called, those of the first versions too
_ENDS = {"negative_srcs", "negative_dsts", "negative_node_pairs"}


class DataFiles:
    """Opens arrays of a data set, as maps of their files."""

    def __init__(self, runtime: Runtime, held: ExitStack):
        self._runtime, self._held = runtime, held

    def array(self, file: DataFile) -> np.ndarray:
        """Opens an array.

        Raises:
            ArgumentError: There is no such file.
            FormatError: It is torn, or holds something else.
        """
        path = file.path
        if not path.is_file():
            raise ArgumentError(f"{path} is missing, which metadata.yaml names for {file.name}")
        if file.format == "numpy":
            return open_npy(path)
        if file.format != "torch":
            raise FormatError(f"{path} is {file.format} in metadata.yaml; {file.name} needs numpy or torch")
        torch_file = TorchFile(path, frozenset(), "save a tensor with torch.save", self._runtime, self._held)
        found = torch_file.value(torch_file.root, file.name)
        if not isinstance(found, np.ndarray):
            raise FormatError(found.why if isinstance(found, Unreadable) else f"{path} holds no tensor")
        return found


@dataclass(frozen=True)
class SeedSet:
    """Has the seeds of a split and their labels (None: there are none), and the names of their files."""

    name: str
    seeds: np.ndarray
    label_name: str = ""
    labels: np.ndarray | None = None


class SeedTask:
    """Has the sets of a task by split, opened; ``left`` names data that have no place in a graph."""

    def __init__(self, task: Task, files: DataFiles):
        self.name, self.num_classes, self.left = task.name, task.num_classes, set[str]()
        self.sets: dict[str, SeedSet] = {}
        for split, data in task.sets.items():
            name = next((name for name in _SEEDS if name in data), None)
            if name is None:
                raise FormatError(
                    f"task {task.name!r} has no seeds for {split}; it has {', '.join(data) or 'nothing'}"
                )
            self.sets[split] = self._opened(data, name, files)
            self.left |= data.keys() - {name, "labels", "indexes"}

    @staticmethod
    def _opened(data: dict[str, DataFile], name: str, files: DataFiles) -> SeedSet:
        where, seeds = str(data[name].path), files.array(data[name])
        check_ids(where, np.zeros(0, seeds.dtype))
        if "labels" not in data:
            return SeedSet(where, seeds)
        label_name, labels = str(data["labels"].path), files.array(data["labels"])
        check_labels(label_name, labels.shape)
        if len(labels) != len(seeds) or labels.dtype.kind not in "fiub":
            raise FormatError(
                f"{label_name} has {len(labels)} labels of {labels.dtype}; a number for each of the {len(seeds)} seeds "
                f"in {where} is needed"
            )
        return SeedSet(where, seeds, label_name, labels)

    def axes(self) -> int:
        """Returns 1 where seeds are nodes, 2 where they are edges. Raises FormatError where they are neither."""
        shapes = {split: one.seeds.shape for split, one in self.sets.items()}
        for axes, tail in ((1, ()), (2, (2,))):
            if all(len(shape) == axes and shape[1:] == tail for shape in shapes.values()):
                return axes
        listed = ", ".join(f"{self.sets[split].name} {shape}" for split, shape in shapes.items())
        raise FormatError(f"seeds of task {self.name!r} are [nodes], or [edges, 2] in each set, not {listed}")


class NodeTask:
    """Makes splits and labels of nodes of a task."""

    def __init__(self, task: SeedTask, runtime: Runtime):
        self._task, self._runtime = task, runtime
        self._labelled = [one for one in task.sets.values() if one.labels is not None]

    def ids(self) -> dict[str, np.ndarray]:
        """Returns nodes by split, int64 each."""
        return {split: check_ids(one.name, one.seeds) for split, one in self._task.sets.items()}

    def rows(self, node: int) -> list[SplitRow]:
        """Returns every row that puts ``node`` into a split."""
        return [
            SplitRow(split, str(node), Place(one.name).at(row))
            for split, one in self._task.sets.items()
            for row in np.flatnonzero(one.seeds == node).tolist()
        ]

    @property
    def class_names(self) -> tuple[str, ...]:
        """Lists the classes by their numbers, whether or not each occurs; empty where labels are no such numbers."""
        count = self._task.num_classes
        whole = all(one.labels is not None and one.labels.dtype.kind in "iu" for one in self._labelled)
        if not count or count > MAX_NAMED_CLASSES or not whole or self._columns() is not None:
            return ()
        return tuple(str(number) for number in range(count))

    def _columns(self) -> int | None:
        shapes = {one.label_name: one.labels.shape[1:] for one in self._labelled if one.labels is not None}
        if len(set(shapes.values())) > 1:
            raise FormatError(f"labels of task {self._task.name!r} have different columns: {shapes}")
        (tail,) = set(shapes.values()) or {()}
        return tail[0] if tail else None

    def labels(self, num_nodes: int) -> LabelSource | None:
        """Returns labels of all nodes, in memory when they are read; those that are no seeds have none."""
        if not self._labelled:
            return None
        columns, name = self._columns(), f"labels of task {self._task.name!r}"

        def blocks(num_nodes: int) -> Iterator[np.ndarray]:
            longest = max(len(one.seeds) for one in self._labelled)
            held = 8 * num_nodes * (columns or 1) + 8 * longest * (2 + (columns or 1))
            with self._runtime.budget.reserve("labels", held):
                placed = np.full(num_nodes if columns is None else (num_nodes, columns), np.nan)
                for one in self._labelled:
                    placed[self._checked(one, num_nodes)] = one.labels
                yield from array_labels(self._runtime, name, placed).blocks(num_nodes)

        return LabelSource(name, num_nodes, blocks, self._place)

    def _checked(self, one: SeedSet, num_nodes: int) -> np.ndarray:
        """Returns the nodes of a set. Raises where a node does not exist, or a label is no class."""
        nodes = check_ids(one.name, one.seeds)
        bad = (nodes < 0) | (nodes >= num_nodes)
        if bad.any():
            row = int(np.argmax(bad))
            raise ArgumentError(
                f"{Place(one.name).at(row)} names node {nodes[row]}, but there are {num_nodes} nodes (0 to "
                f"{num_nodes - 1}): correct it, or remove it there"
            )
        if self.class_names and one.labels is not None:
            wrong = np.asarray(one.labels) >= len(self.class_names)
            if wrong.any():
                row = int(np.argmax(wrong))
                raise FormatError(
                    f"{Place(one.label_name).at(row)} is {one.labels[row]}; num_classes of task {self._task.name!r} is "
                    f"{len(self.class_names)}"
                )
        return nodes

    def _place(self, node: int) -> str:
        for one in self._labelled:
            rows = np.flatnonzero(one.seeds == node)
            if len(rows):
                return Place(one.label_name).at(int(rows[-1]))
        return f"labels of task {self._task.name!r}: node {node}"


class LinkTask:
    """Makes edges to be predicted of a task: its seeds, but for those that have label 0."""

    def __init__(self, task: SeedTask, runtime: Runtime, held: ExitStack):
        self._task, self._runtime, self._held = task, runtime, held
        self._positives = {split: self._count(one) for split, one in task.sets.items()}
        self.has_negatives = bool(task.left & _ENDS) or any(
            count < len(task.sets[split].seeds) for split, count in self._positives.items()
        )

    def _blocks(self, array: np.ndarray) -> Iterator[np.ndarray]:
        return array_blocks(self._runtime, array, max(1024, block_bytes(self._runtime) // 64))

    def _count(self, one: SeedSet) -> int:
        """Counts the positives. Raises ArgumentError for labels that say something else."""
        if one.labels is None:
            return len(one.seeds)
        count = row = 0
        for block in self._blocks(one.labels):
            odd = (block != 0) & (block != 1) | (block.ndim > 1)
            if odd.any():
                at = int(np.argmax(odd.reshape(len(odd), -1).any(axis=1)))
                raise ArgumentError(
                    f"{Place(one.label_name).at(row + at)} is {block[at]}; labels of edges are 1, or 0 for negatives: "
                    "classes of edges cannot be imported, so remove the task from metadata.yaml"
                )
            count += int(np.count_nonzero(block))
            row += len(block)
        return count

    def edges(self) -> dict[str, np.ndarray]:
        """Returns integers [M, 2] by split."""
        return {split: self._positive(one, self._positives[split]) for split, one in self._task.sets.items()}

    def _positive(self, one: SeedSet, count: int) -> np.ndarray:
        if one.labels is None or count == len(one.seeds):
            return one.seeds
        self._held.enter_context(self._runtime.budget.reserve("splits", 2 * count * one.seeds.itemsize))
        found, filled = np.empty((count, 2), one.seeds.dtype), 0
        for pairs, labels in zip(self._blocks(one.seeds), self._blocks(one.labels), strict=True):
            part = pairs[labels != 0]
            found[filled : filled + len(part)] = part
            filled += len(part)
        return found

    def place(self, split: str, row: int) -> str:
        """Says where an edge of :meth:`edges` is."""
        one = self._task.sets[split]
        if one.labels is not None:
            row = int(np.flatnonzero(one.labels)[row])
        return f"{one.name}, edge {row} (the first is 0)"
