"""Plans the graphs that ship as descriptions, and says how unevenly nodes of graphs as uneven as they are wanted.

    python scripts/described.py --json benchmarks/results/described.json

The table of docs/advise.md is made of it (scripts/tables.py). It takes some minutes, and 3 GB of disk where it runs.
Nothing of the plans is measured but for what drawing a batch takes of the processor.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from outcrop.advisor.described import read_description
from outcrop.api.describe import describe
from outcrop.bench.origin import origin
from outcrop.config import Limits, SampleConfig
from outcrop.config.described import DescribedEdges, DescribedGraph, DescribedNodes
from outcrop.importing.described import generate_described
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.sampler import BatchSampler

MEMORY, MACHINE, SCALE = "44GB", "workstation", 0.01
FANOUTS = (10, 8, 5)  # along each of two directions: 20, 15 and 10 neighbors in all, as the paper has
RANKS = (0.01, 0.05, 0.1)
# Table 2 of the DiskGNN paper: nodes, edges of both directions, training nodes. Table 3: share of the rows wanted that
# the first ranks of the nodes have. The share of the graph that is generated.
PUBLISHED = {
    "mag240m": ((244_000_000, 3_400_000_000, 1_112_392), (0.564, 0.887, 0.960), 1 / 256),
    "igbh-full": ((269_000_000, 3_900_000_000, 13_627_851), (0.225, 0.525, 0.733), 1 / 1024),
}


def wanted_by_ranks(name: str, near: float, skew: float, folder: Path) -> dict[str, Any]:
    """Says how unevenly nodes of a graph without types are wanted that has the sizes of table 2.

    Returns:
        ``wanted``: share of the rows of an epoch that the first ``RANKS`` of the nodes have; ``rows`` of a batch.
    """
    (num_nodes, num_edges, train), _, share = PUBLISHED[name]
    nodes = DescribedNodes("n", num_nodes, train=train, skew=skew)
    graph = DescribedGraph(name, (nodes,), (DescribedEdges("n", "e", "n", num_edges // 2, True),), near)
    sampling = SampleConfig(FANOUTS, round(1024 * share), splits=("train",))
    with TemporaryDirectory(dir=folder) as made, Runtime(2 << 30) as runtime:
        small = generate_described(Path(made) / "graph.oc", graph.scaled(share), runtime)
        often = np.zeros(small.num_nodes, np.int64)
        batches = 0
        for batch in BatchSampler(small, sampling, runtime).epoch("train", 0):
            batches += 1
            often[np.asarray(batch.nodes[0].ids).astype(np.int64)] += 1
    held = np.cumsum(np.sort(often)[::-1]) / often.sum()
    return {
        "near": near,
        "skew": skew,
        "wanted": [round(float(held[round(len(held) * rank) - 1]), 4) for rank in RANKS],
        "rows": round(float(often.sum()) / batches / share),
    }


def columns_and_rows(plans: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Returns the table of docs/advise.md: a column for each plan."""
    facts = [_facts(plan) for plan in plans]
    return ["", *(f"`{plan['described']}`" for plan in plans)], [
        [key, *(of[key] for of in facts)] for key in facts[0]
    ]


def _facts(plan: dict[str, Any]) -> dict[str, str]:
    graph, batch, count = plan["graph"], plan["batch"], plan["batches"]
    ways = {way["mode"]: way for way in plan["ways"]}
    packed, online = ways["packed"], ways["online"]
    rows = ", ".join(f"{wanted:,} {name}" for name, wanted in batch["rows"].items())
    return {
        "nodes; edges with their reverses": f"{graph['nodes']:,}; {graph['edges']:,}",
        "features; neighbor lists": f"{_gb(graph['feature_bytes'])}; {_gb(graph['topology_bytes'])}",
        "batches of an epoch": f"{count:,}",
        "rows that a batch wants": f"{rows}: {batch['bytes'] / 1e6:,.0f} MB",
        "an epoch wants": f"{sum(batch['rows'].values()) * count / 1e6:,.0f} M rows, {_gb(batch['bytes'] * count)}",
        "all in memory": f"{_fits(ways['memory'])}: {_gb(ways['memory']['memory'])}",
        "packed": f"{_fits(packed)}: {_gb(packed['run_bytes'])} on disk beside the graph"
        + (f"; {packed['why']}" if packed["why"] else ""),
        "packed, to prepare": _minutes(packed["prepare_seconds"]),
        "packed, rows from the cache": f"{packed['cached_share']:.1%}",
        "packed, an epoch": _epoch(packed),
        "online": _fits(online),
        "online, rows from the cache": f"{online['cached_share']:.1%}",
        "online, an epoch": _epoch(online),
    }


def _fits(way: dict[str, Any]) -> str:
    return "fits" if way["fits"] else "does not fit"


def _epoch(way: dict[str, Any]) -> str:
    return f"{_gb(way['bytes_read'])} read, {_minutes(way['epoch_seconds'])}, bound by {way['bound']}"


def _gb(count: float) -> str:
    return f"{count / 1e9:,.0f} GB" if count >= 1e10 else f"{count / 1e9:.1f} GB"


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, required=True, help="file to write")
    to = parser.parse_args().json
    plans, fits, here = [], {}, Path()
    for name, (_, published, _) in PUBLISHED.items():
        plan = describe(name, limits=Limits(MEMORY), hardware=MACHINE, scale=SCALE, folder=here)
        plans.append(plan)
        graph = read_description(name).graph
        (skew,) = {of.skew for of in graph.nodes}
        tried = {
            "as it ships": (graph.near, skew),
            "a step more uneven": (graph.near, round(skew + 0.05, 2)),
            "training nodes anywhere": (1.0, 0.5),
        }
        fits[name] = {
            "ranks": RANKS,
            "published": published,
            "generated": [
                {"of": of, **wanted_by_ranks(name, near, uneven, here)}
                for of, (near, uneven) in tried.items()
            ],
        }
    columns, rows = columns_and_rows(plans)
    says = (
        "estimated: nothing of it was measured but for the drawing of batches, and the disk is a description"
    )
    result = {
        **origin("described"),
        "command": "python scripts/described.py",
        "says": says,
        "plans": plans,
        "unevenness": fits,
        "columns": columns,
        "rows": rows,
    }
    to.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
