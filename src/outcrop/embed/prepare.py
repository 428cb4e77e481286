"""From edges to buckets: nodes are numbered and divided into partitions, edges sorted into p x p buckets on disk.

Source: Legend, section 3 (partitions and buckets), as Marius and PyTorch-BigGraph have them. The sort is external and
keeps to the budget; nothing else grows with the number of edges, and with numbering ``random`` or ``id`` nothing with
the number of nodes but one partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

import outcrop._core as _core
from outcrop.config import BucketConfig, exact_bytes, least_bytes
from outcrop.embed.buckets import FOLDER, FORMAT, VERSION, Buckets, open_buckets
from outcrop.embed.numbering import (
    ById,
    Division,
    ListedOrder,
    NodeNumbering,
    Random,
    by_degree,
    default_slices,
)
from outcrop.embed.sources import EdgeSource, open_source
from outcrop.errors import ArgumentError, BudgetError
from outcrop.runtime import memory_tables
from outcrop.runtime.keyed_random import key_of, mix64
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store.arrays import ArrayWriter, DiskArray
from outcrop.store.lock import only_process_in
from outcrop.store.manifest import ArraySpec, Manifest

HELD_OUT = ("valid", "test")
_RECORD_BYTES, _WRITTEN = 16, 1 << 14  # bytes of a sorted edge; edges written at a time
_TAG = "buckets"


def prepare(
    source: Path | str, run: Path | str, config: BucketConfig, runtime: Runtime, *, overwrite: bool = True
) -> Buckets:
    """Makes ``run/buckets`` from the graph at ``source``; does nothing where it is there already.

    Args:
        config: How; a number of partitions that is left open is one.
        overwrite: Replace buckets of another source or other options, as long as nothing was trained on them.

    Raises:
        ArgumentError: More partitions than nodes, no edges, or ``run`` is something else, or holds other buckets.
        BudgetError: The budget is too small to sort with.
        IoError: Another process prepares or trains in ``run``, or the system refuses a file.
    """
    edges, run = open_source(source), Path(run)
    config = replace(config, partitions=config.count)
    _check(edges, config)
    _check_place(run)
    inputs = {"source": edges.manifest.digest()}
    with only_process_in(run):
        if manifests.exists(run / FOLDER):
            buckets = open_buckets(run)
            if (buckets.manifest.config, buckets.manifest.inputs) == (asdict(config), inputs):
                manifests.remove_leftovers(run / FOLDER)
                return buckets
            if _others(run):
                raise ArgumentError(
                    f"{run} holds embeddings of other buckets: remove it, or choose another place for these"
                )
            manifests.require_overwrite(run, "buckets", _differing(buckets, config, inputs), overwrite)
        with manifests.publishing(run / FOLDER) as work, runtime.trace.span("buckets", source=str(source)):
            manifest = _Prepare(edges, config, runtime, work).run(inputs)
            manifests.write(work, manifest)
        return open_buckets(run)


def _differing(buckets: Buckets, config: BucketConfig, inputs: dict[str, str]) -> list[str]:
    """Returns the options in which buckets that are there differ from those to be made, each with both values."""
    have, wanted = buckets.manifest.config, manifests.plain(asdict(config))
    differing = [
        f"{n} (there {have.get(n)!r}, now {wanted[n]!r})" for n in wanted if have.get(n) != wanted[n]
    ]
    return differing + (["the graph that they were made from"] if buckets.manifest.inputs != inputs else [])


def _check_place(run: Path) -> None:
    if run.exists() and (not run.is_dir() or (not (run / FOLDER).is_dir() and _others(run))):
        raise ArgumentError(f"{run} is in the way and no embedding run: remove it or choose another place")


def _others(run: Path) -> list[Path]:
    """Gives what ``run`` holds beside buckets: those that are there, or that a killed call was making or replacing."""
    return [found for found in run.iterdir() if found not in manifests.versions_of(run / FOLDER)]


def _check(edges: EdgeSource, config: BucketConfig) -> None:
    if not edges.count("train"):
        raise ArgumentError(f"{edges.path} has no edges to train on")
    slices = config.count * (config.slices or 1)
    if slices > edges.num_nodes:
        raise ArgumentError(
            f"{config.count} partitions, {slices} slices in all, of {edges.num_nodes} nodes: there can be one a "
            "node at most"
        )
    there = [split for split in HELD_OUT if edges.count(split)]
    if there and (config.valid_fraction or config.test_fraction):
        raise ArgumentError(
            f"{edges.path} has {' and '.join(there)} edges of its own: leave the fractions out"
        )


class _Prepare:
    def __init__(self, edges: EdgeSource, config: BucketConfig, runtime: Runtime, work: Path):
        self.edges, self.config, self.runtime, self.work = edges, config, runtime, work
        self.slices = config.slices or default_slices(config.count, edges.num_nodes)
        self.division = Division(edges.num_nodes, config.count * self.slices)
        self.block_bytes = memory_tables.BUCKET_BLOCK.bytes_of(runtime.budget.free_bytes)
        self.arrays: dict[str, ArraySpec] = {}

    def run(self, inputs: dict[str, str]) -> Manifest:
        for source, name in self.edges.text_arrays.items():
            if source in self.edges.manifest.arrays:
                self._copy(self.edges.manifest.arrays[source], name)
        numbering = self._numbering()
        starts = self._sort(numbering)
        self._degrees(starts)
        attributes = {
            "num_nodes": self.edges.num_nodes,
            "num_relations": self.edges.num_relations,
            "partitions": self.config.partitions,
            "slices": self.slices,
        }
        if self.edges.manifest.attributes.get("integer_names"):  # of earlier runs nothing says so
            attributes["integer_names"] = True
        return Manifest(FORMAT, VERSION, self.arrays, attributes, asdict(self.config), inputs)

    def _writer(self, name: str, dtype: str, row_shape: tuple[int, ...] = ()) -> ArrayWriter:
        return ArrayWriter(self.runtime, self.work, name, dtype, row_shape)

    def _copy(self, spec: ArraySpec, name: str) -> None:
        array, writer = DiskArray(self.runtime, self.edges.path, spec), self._writer(name, spec.dtype)
        rows = max(self.block_bytes // spec.stride_bytes, 1)
        for start in range(0, array.num_rows, rows):
            writer.append(array.read(_TAG, start, min(start + rows, array.num_rows)))
        array.close()
        self.arrays[name] = writer.finish()

    def _numbering(self) -> NodeNumbering:
        if self.config.numbering != "degree":
            return ById() if self.config.numbering == "id" else self._random()
        nodes = self.edges.num_nodes
        with self.runtime.budget.reserve("numbering", 32 * nodes):
            degrees = np.zeros(nodes, np.int64)
            with self.runtime.task("count edges", self.edges.count("train"), "edges"):
                for block, held_out in self._train_blocks():
                    for ids in (block[held_out == 0, 0], block[held_out == 0, -1]):
                        seen, counts = np.unique(ids, return_counts=True)
                        degrees[seen] += counts
                    self.runtime.progress.advance("count edges", len(block))
            order = by_degree(degrees, self.division)
        writer = self._writer("order", "int64")
        writer.append(order)
        self.arrays["order"] = writer.finish()
        return ListedOrder(order, self.runtime)

    def _random(self) -> Random:
        return Random(self.edges.num_nodes, self.config.seed, self.runtime)

    def _train_blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields training edges, and for each if it is held out: uint8, 1 for valid, 2 for test, by a keyed hash."""
        first = 0
        key = key_of(self.config.seed, 1)
        bounds = np.cumsum([self.config.test_fraction, self.config.valid_fraction])
        for block in self.edges.blocks(self.runtime, "train", self.block_bytes):
            if bounds[-1]:
                numbers = np.arange(first, first + len(block), dtype=np.uint64)
                chance = (mix64(mix64(numbers) ^ key) >> np.uint64(11)) * 2.0**-53
                held_out = np.where(chance < bounds[0], 2, np.where(chance < bounds[1], 1, 0)).astype(
                    np.uint8
                )
            else:
                held_out = np.zeros(len(block), np.uint8)
            yield block, held_out
            first += len(block)

    def _sort(self, numbering: NodeNumbering) -> np.ndarray:
        """Writes ``edges``, ``starts`` and what is held out; the starts."""
        edges, width = self.edges, 3 if self.edges.num_relations else 2
        writers = {split: self._writer(split, "int64", (width,)) for split in HELD_OUT}
        sorter = self._sorter()
        with self.runtime.task("bucket edges", edges.count("train"), "edges"):
            for block, held_out in self._train_blocks():
                rows = self._rows(block, numbering)
                columns = np.ascontiguousarray(rows[held_out == 0].T)
                sorter.add(columns[0], columns[1] if width == 3 else None, columns[-1])
                for number, split in enumerate(HELD_OUT, 1):
                    writers[split].append(rows[held_out == number])
                self.runtime.progress.advance("bucket edges", len(block))
        for split, writer in writers.items():
            if edges.count(split):
                for block in edges.blocks(self.runtime, split, self.block_bytes):
                    writer.append(self._rows(block, numbering))
            spec = writer.finish()
            if spec.shape[0]:
                self.arrays[split] = spec
            else:
                (self.work / spec.file).unlink()
        starts = np.concatenate([[0], np.cumsum(np.array(sorter.counts, np.int64))]).astype(np.int64)
        if not starts[-1]:
            raise ArgumentError("all edges are held out: lower the fractions")
        self._write_edges(sorter, int(starts[-1]), [1, 2, 3] if width == 3 else [1, 3])
        writer = self._writer("starts", "int64")
        writer.append(starts)
        self.arrays["starts"] = writer.finish()
        return starts

    def _sorter(self) -> _core.BucketSorter:
        edges, runtime = self.edges, self.runtime
        least = _core.BucketSorter.MIN_MEMORY_BYTES
        most = memory_tables.BUCKET_SORT.bytes_of(runtime.budget.free_bytes)
        memory = min(most, edges.count("train") * 2 * _RECORD_BYTES + least)
        if memory < least:
            free = runtime.budget.free_bytes
            needed = -(-least // memory_tables.BUCKET_SORT.fraction)
            raise BudgetError(
                f"sorting edges takes {least_bytes(needed)}, {exact_bytes(free)} of the memory budget are free: raise "
                f"it to at least {least_bytes(runtime.budget.limit_bytes - free + needed)}"
            )
        return _core.BucketSorter(
            runtime.io, runtime.budget, runtime.workers, str(self.work), memory, edges.num_nodes,
            self.division.parts, max(edges.num_relations, 1),
        )  # fmt: skip

    def _write_edges(self, sorter: _core.BucketSorter, count: int, columns: list[int]) -> None:
        out = self._writer("edges", "uint32", (len(columns),))
        with self.runtime.task("write buckets", count, "edges"):

            def write(records: np.ndarray) -> None:
                for at in range(0, len(records), _WRITTEN):
                    out.append(np.ascontiguousarray(records[at : at + _WRITTEN, columns]))
                self.runtime.progress.advance("write buckets", len(records))

            sorter.finish(write)
        self.arrays["edges"] = out.finish()

    def _rows(self, block: np.ndarray, numbering: NodeNumbering) -> np.ndarray:
        """Returns the block with rows instead of nodes."""
        if len(block) and not 0 <= block[:, [0, -1]].min() <= block[:, [0, -1]].max() < self.edges.num_nodes:
            raise ArgumentError(
                f"{self.edges.path}: an edge leads out of its nodes, it was damaged: import it again"
            )
        rows = block.copy()
        for column in (0, -1):
            rows[:, column] = numbering.rows(np.ascontiguousarray(block[:, column]))
        return rows

    def _degrees(self, starts: np.ndarray) -> None:
        """Writes ``degrees``, a partition at a time, from the buckets that have it on either side."""
        parts = self.division.parts
        edges = DiskArray(self.runtime, self.work, self.arrays["edges"])
        writer = self._writer("degrees", "uint32")
        block_edges = max(self.block_bytes // (4 * edges.spec.shape[1]), 1)
        with self.runtime.task("degrees", parts, "partitions"):
            for part in range(parts):
                size = self.division.size(part)
                with self.runtime.budget.reserve(_TAG, 16 * size):
                    degrees = np.zeros(size, np.int64)
                    sides = [(part * parts + other, 0) for other in range(parts)]
                    sides += [(other * parts + part, -1) for other in range(parts)]
                    for bucket, column in sides:
                        for at in range(int(starts[bucket]), int(starts[bucket + 1]), block_edges):
                            stop = min(at + block_edges, int(starts[bucket + 1]))
                            degrees += np.bincount(edges.read(_TAG, at, stop)[:, column], minlength=size)
                    writer.append(np.minimum(degrees, 2**32 - 1).astype(np.uint32))
                self.runtime.progress.advance("degrees", 1)
        edges.close()
        self.arrays["degrees"] = writer.finish()
