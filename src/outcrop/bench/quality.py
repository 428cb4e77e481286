"""Benchmark ``quality``: the test metric on real graphs, in every mode and with several seeds.

On the CPU no mode may differ from ``memory`` by a bit, but ``partition``, which learns something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import numpy as np

from outcrop.api.graph import import_graph
from outcrop.api.prepare import PrepareOptions
from outcrop.api.prepare import prepare_with_report as prepare
from outcrop.api.train import train
from outcrop.bench.epoch import Log, Setting, plain
from outcrop.config import ImportConfig, Limits, ModelConfig, SampleConfig, TrainConfig
from outcrop.config.models import wants_degrees
from outcrop.config.sampling import SPLITS
from outcrop.errors import ArgumentError
from outcrop.loading.modes import InMemory, mode_named
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph, open_graph
from outcrop.store.quantised import QuantisedDecoder
from outcrop.training.objectives import METRICS

SEEDS = 5


def quantised(graph: Graph, how: str, folder: Path, log: Log) -> Path:
    """Returns ``graph`` with features in few bits, imported into ``folder`` unless it is there.

    Args:
        how: A dtype and what has a scale: ``int8:column``, ``uint4:row``, ...

    Raises:
        ArgumentError: There is no such way, or the features are bfloat16 or in few bits already.
    """
    dtype, _, scale = how.partition(":")
    config = ImportConfig(
        keep_duplicates=True,
        keep_self_loops=True,
        feature_dtype=dtype,
        scale=scale or None,  # type: ignore[arg-type]
        label_kind=graph.label_kind,
    )
    decoder = graph.row_file.decoder
    if isinstance(decoder, QuantisedDecoder) or graph.row_file.dtype == "bfloat16":
        raise ArgumentError(
            f"{graph.path} has features that are {graph.row_file.stored_as}: import it as float32"
        )
    out = folder / f"{graph.path.stem}-{dtype}-{config.scale or 'column'}.oc"
    if not (out / "manifest.json").is_file():
        log(f"importing {out.name}")
        with Runtime() as runtime:
            rows: np.ndarray = graph.open_rows(runtime, graph.row_file).memmap()
            rows = rows if decoder is None else decoder.values(rows, runtime.workers)
            splits = {name: graph.split(runtime, name) for name in SPLITS if graph.has(name)}
            labels = graph.array(runtime, "labels").read("bench")
            import_graph(
                graph.edge_index(),
                out,
                features=rows,
                labels=labels,
                splits=splits,
                config=config,
                progress=False,
            )
    return out


def run(
    graphs: Sequence[Path],
    folder: Path,
    modes: Sequence[str],
    setting: Setting,
    log: Log,
    feature_dtypes: Sequence[str] = (),
) -> dict[str, Any]:
    """Trains on each imported graph in each mode with seeds 0 to 4, in a tenth of the features' memory or 16 MiB.

    Args:
        feature_dtypes: In what else than as they are features are stored (:func:`quantised`), each a graph of its own.

    Raises:
        ArgumentError: No graphs, or features cannot be stored so.
    """
    if not graphs:
        raise ArgumentError("quality needs graphs: name folders made by outcrop import with --graph")
    graphs_by_name = {}
    also = [quantised(open_graph(path), how, folder, log) for path in graphs for how in feature_dtypes]
    for path in sorted([*graphs, *also], key=lambda path: path.stem):
        graph = open_graph(path)
        memory = max(graph.feature_bytes // 10, 16 << 20)
        scores: dict[str, list[float]] = {mode: [] for mode in modes}
        metric = METRICS[graph.label_kind][0]
        identical = True
        for seed in range(SEEDS):
            log(f"{path.name}, seed {seed}")
            run_folder = folder / f"quality-{path.stem}-{seed}.run"
            asked = PrepareOptions(
                graph,
                run_folder,
                sampling=SampleConfig(
                    tuple(map(int, setting.fanouts.split(","))),
                    setting.batch_size,
                    seed=seed,
                    degrees=wants_degrees(setting.model),
                ),
                epochs=setting.epochs,
                limits=Limits(memory),
                overwrite=True,
            )
            prepare(asked)
            results = {
                mode: train(
                    graph,
                    run=run_folder,
                    loading=mode,
                    model=ModelConfig(setting.model, hidden=64, dropout=0.5, no_rows=setting.no_rows),
                    training=TrainConfig(
                        epochs=setting.epochs, learning_rate=0.01, seed=seed, trace_losses=True
                    ),
                    memory=memory if mode_named(mode).takes_run_budget else "1TiB",
                )
                for mode in modes
            }
            for mode, result in results.items():
                scores[mode].append(result.test_metric or 0.0)
                if InMemory.name in results and not mode_named(mode).batches_by_budget:
                    identical &= result.batch_losses == results[InMemory.name].batch_losses
                    identical &= result.test_metric == results[InMemory.name].test_metric
        graphs_by_name[path.stem] = {
            "metric": metric,
            "modes": {m: {f"test_{metric}": mean(s), "spread": pstdev(s)} for m, s in scores.items()},
            "identical": identical,
            "feature_bytes": graph.feature_bytes,
        }
    return {
        "experiment": "quality",
        "setting": plain(setting),
        "graphs": graphs_by_name,
        "columns": ["graph", "metric", *modes, "bit-equal to memory"],
        "rows": [
            [
                name,
                r["metric"],
                *("{:.4f} ± {:.4f}".format(*r["modes"][m].values()) for m in modes),
                "yes" if r["identical"] else "NO",
            ]
            for name, r in graphs_by_name.items()
        ],
    }
