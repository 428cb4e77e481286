"""Plan: decide where each row lives, so that the hard limits hold and the most wanted rows are nearest.

Source: DiskGNN section 4 (four-level store by access frequency). Levels: device cache (hottest) > host cache > disk
cache, shared by the batches of a segment (preparation/segments.py) > packed, one copy per batch. Where the disk limit
allows it, everything that memory does not hold is packed; else the layout is searched (preparation/draft.py).
Everything is counted exactly: the bytes a plan predicts are the bytes an epoch reads.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from outcrop.config import PlanConfig
from outcrop.errors import ArgumentError
from outcrop.preparation.cached_rows import choose_cached_rows, count_levels
from outcrop.preparation.draft import Draft, RowsDraft
from outcrop.preparation.plan_memory import HostMemory, block_rows, device_cache_bytes, divide_host_memory
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store.arrays import ArrayWriter
from outcrop.store.graph import Graph
from outcrop.store.manifest import Manifest
from outcrop.store.placement import FORMAT, VERSIONS
from outcrop.store.samples import SampleSet


def expected(graph: Graph, samples: SampleSet, config: PlanConfig) -> tuple[dict, dict[str, str]]:
    """Returns config and input digests of the artifact that :func:`plan` would write."""
    return manifests.plain(config.as_stored()), {"graph": graph.digest(), "sample": samples.manifest.digest()}


def plan(graph: Graph, samples: SampleSet, config: PlanConfig, out: Path, runtime: Runtime) -> Manifest:
    """Counts, places and writes the plan to ``out``.

    Raises:
        BudgetError: The limits cannot be met; the message names the smallest that could.
        ArgumentError: The graph has no features.
    """
    if graph.feature_bytes == 0:
        raise ArgumentError(
            f"{graph.path} has no features to place: import features, or draw batches as they are needed (--mode "
            "online, loading='online'), for there is nothing to pack"
        )
    files, packed = graph.row_files, packed_batches(samples, config)
    memory = divide_host_memory(samples, config, files)
    device_bytes = device_cache_bytes(graph, samples, config)
    with runtime.trace.span("plan"):
        chosen = choose_cached_rows(files, samples, packed, device_bytes, memory.cache_bytes, runtime)
        drafts = []
        for rows, levels in zip(files, chosen, strict=True):
            section = samples.section(rows)
            counts = count_levels(section, packed, levels, rows.num_rows, runtime)
            drafts.append(
                RowsDraft(rows, section, packed, levels, counts, block_rows(config, rows.row_bytes))
            )
    draft = Draft(samples, packed, drafts)
    with manifests.publishing(out) as folder:
        draft.choose_layout(graph, config, folder, runtime)
        arrays = draft.written()
        for name, values in draft.tables().items():
            writer = ArrayWriter(runtime, folder, name, "int64", values.shape[1:])
            writer.append(values.astype("<i8", copy=False))
            arrays[name] = writer.finish()
        attributes = {
            **_described(drafts, memory),
            "slots": memory.slots,
            "slot_meta_bytes": memory.slot_meta_bytes,
            "shared_scratch_bytes": memory.shared_scratch_bytes,
            "predicted": draft.predicted(),
        }
        if samples.num_parts > 1:
            counts = np.bincount(samples.part[packed], minlength=samples.num_parts)
            attributes["part_batches"] = counts.tolist()
        attributes["layout"] = {**asdict(draft.layout), **attributes.pop("blocks")}
        version = VERSIONS["row_files" in attributes]
        manifest = Manifest(
            FORMAT, version, arrays, manifests.plain(attributes), *expected(graph, samples, config)
        )
        manifests.write(folder, manifest)
    return manifest


def _described(drafts: list[RowsDraft], memory: HostMemory) -> dict[str, Any]:
    """Returns the attributes that say what the row files are, and how memory is divided: of several, a list."""
    divided = asdict(memory)
    if not memory.slot_values_bytes:
        del divided["slot_values_bytes"]
    one, *others = drafts
    if not others and one.rows.kind == "nodes" and one.rows.owner.number == 0:
        (size,) = memory.slot_rows_bytes
        return {
            "row_bytes": one.row_bytes,
            "slot_rows_bytes": size,
            "memory": {**divided, "slot_rows_bytes": size},
            "blocks": {"block_rows": one.block_rows},
        }
    described = [
        {
            "kind": draft.rows.kind,
            "type": draft.rows.owner.number,
            "row_bytes": draft.row_bytes,
            "block_rows": draft.block_rows,
        }
        for draft in drafts
    ]
    return {
        "row_files": described,
        "slot_rows_bytes": list(memory.slot_rows_bytes),
        "memory": divided,
        "blocks": {},
    }


def packs_test(test_batches: int, train_batches: int) -> bool:
    """Tells whether batches of test nodes, which are needed once, are packed where no disk space is named.

    Reading their rows one by one takes several times as long as packing them with the others, but nobody asked for a
    disk full of them: they may be as many as the training batches of all epochs, and so take half of the run.
    """
    return 0 < test_batches <= train_batches


def packed_batches(samples: SampleSet, config: PlanConfig) -> np.ndarray:
    """Gives numbers of the batches that are packed, int64 [P], part after part; the others are read row by row when
    they are needed.
    """
    of = {split: group.all_batches() for split, group in samples.groups.items()}
    splits = [split for split in config.packed_splits if split in of]
    if (
        config.disk_space is None
        and config.packed_splits == PlanConfig().packed_splits
        and "train" in of
        and packs_test(len(of.get("test", ())), len(of["train"]))
    ):
        splits.append("test")
    groups = [of[split] for split in splits]
    every = np.concatenate([np.arange(g.start, g.stop, dtype=np.int64) for g in groups])
    return every[np.argsort(samples.part[every], kind="stable")]
