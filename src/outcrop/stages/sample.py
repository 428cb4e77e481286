"""Sample: draw the mini-batches of several epochs, and of the evaluation splits, ahead of training.

Source: DiskGNN section 3 (offline sampling).
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np

from outcrop.config import SampleConfig
from outcrop.errors import ArgumentError
from outcrop.runtime import Runtime
from outcrop.sampling import BatchSampler, epoch_seeds, split_ids
from outcrop.store import manifest as manifests
from outcrop.store import record
from outcrop.store.arrays import ArrayWriter
from outcrop.store.graph import Graph
from outcrop.store.manifest import Manifest
from outcrop.store.samples import FORMAT, VERSION


def expected(graph: Graph, config: SampleConfig) -> tuple[dict, dict[str, str]]:
    """Config and input digests of the artifact that :func:`sample` would write: equal means nothing to do."""
    return manifests.plain(asdict(config)), {"graph": graph.digest()}


def sample(graph: Graph, config: SampleConfig, out: Path, runtime: Runtime) -> Manifest:
    """Writes the batches of ``config.epochs`` training epochs and of the evaluation splits to ``out``.

    Raises:
        ArgumentError: The graph has no training nodes.
        BudgetError: One batch does not fit in its share of the budget.
    """
    ids = {split: split_ids(graph, runtime, split) for split in config.splits}
    if "train" in ids and not len(ids["train"]):
        raise ArgumentError(
            f"{graph.path} has no training nodes: import a train split, or use --train-fraction"
        )
    sampler = BatchSampler(graph, config, runtime)
    epochs = {split: config.epochs if split == "train" else 1 for split in ids if len(ids[split])}
    total = sum(-(-len(ids[s]) // config.batch_size) * e for s, e in epochs.items())
    runtime.progress.start("sample", total, "batches")
    id_bytes = record.id_bytes_for(graph.num_nodes)
    offsets, shape, groups = [0], [], {}
    with manifests.publishing(out) as folder:
        writer = ArrayWriter(runtime, folder, "batches", "uint8")
        for split, count in epochs.items():
            first = len(shape)
            for epoch in range(count):
                with runtime.trace.span("sample-epoch", split=split, epoch=epoch):
                    number = epoch + config.first_epoch if split == "train" else epoch
                    seeds = epoch_seeds(ids[split], config, split, number)
                    for batch in sampler.batches(split, number, seeds):
                        blob = record.encode(batch, record.AddressTable(), id_bytes)
                        writer.append(blob)
                        offsets.append(offsets[-1] + len(blob))
                        shape.append([*batch.nodes_per_hop, len(batch.rowptr) - 1, batch.num_edges])
                        runtime.progress.advance("sample", 1)
            groups[split] = {"first": first, "epochs": count, "per_epoch": (len(shape) - first) // count}
        arrays = {"batches": writer.finish()}
        for name, values in (("offsets", offsets), ("shape", shape)):
            table = ArrayWriter(runtime, folder, name, "int64", np.shape(values)[1:])
            table.append(np.asarray(values, "<i8"))
            arrays[name] = table.finish()
        config_fields, inputs = expected(graph, config)
        attributes = {
            "groups": groups,
            "id_bytes": id_bytes,
            "hops": len(config.fanouts),
            "degrees": config.degrees,
            "num_nodes": graph.num_nodes,
        }
        manifest = Manifest(FORMAT, VERSION, arrays, attributes, config_fields, inputs)
        manifests.write(folder, manifest)
    runtime.progress.finish("sample")
    return manifest
