"""Trains the configurations of this folder with several seeds and prints how well held-out edges are ranked.

    python examples/embed/quality.py DATA --work FOLDER [--only FB15k-237] [--seeds 5] [--json quality.json]
    python examples/embed/quality.py DATA --work FOLDER --only FB15k-237+small --partitions 1 8 12 [--sweeps 16]
    python examples/embed/quality.py DATA --only FB15k-237+decay --partitions 8 12 --sweeps 1 --order slices --slices 16
    python examples/embed/quality.py DATA --work FOLDER --only FB15k-237+small --partitions 8 --groups 1 2 4

DATA holds a folder for each graph: train.txt, valid.txt and test.txt, or one edge list, whose edges are then held out
by `outcrop embed prepare`. What was trained already is not trained again, so that the script can be stopped any time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Any

from outcrop.bench.origin import origin

HERE = Path(__file__).parent
HELD_OUT = ["--valid-fraction", "0.05", "--test-fraction", "0.05"]  # of an edge list
CANDIDATES = ["--candidates", "10000"]  # for graphs with more nodes than are worth ranking


def outcrop(*arguments: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "outcrop", *map(str, arguments)], check=True)


BUFFER = 3  # partitions in memory


@dataclass(frozen=True)
class Case:
    """A configuration, with the partitions that are swapped from disk where there is more than one."""

    config: Path
    partitions: int
    sweeps: int
    groups: int
    order: str = "best"
    slices: int | None = None

    @property
    def name(self) -> str:
        if self.partitions == 1:
            return self.config.stem
        groups = "" if self.groups == 1 else f"-{self.groups}-groups"
        order = "" if self.order == "best" else f"-{self.order}"
        order += "" if self.slices is None else f"-{self.slices}-slices"
        return f"{self.config.stem}-{self.partitions}-partitions-{self.sweeps}-sweeps{groups}{order}"

    @property
    def resident(self) -> int:
        """Partitions in memory, of each group: it has two blocks of them in a round."""
        return BUFFER if self.groups == 1 else min(BUFFER, self.partitions // self.groups)

    def swapping(self) -> list[str]:
        """Options of training from disk: batches in proportion to what is resident, so that one step meets a node as
        often as it does with one partition."""
        if self.partitions == 1:
            return []
        of_config = tomllib.loads(self.config.read_text())
        scaled = {
            f"--{name}": str(round(of_config[name] * self.resident / self.partitions))
            for name in ("batch", "chunk")
        }
        buffer = ["--swapping", "--buffer", str(BUFFER), "--sweeps", str(self.sweeps)]
        groups = [] if self.groups == 1 else ["--groups", str(self.groups)]
        order = [] if self.order == "best" else ["--order", self.order]
        return [*buffer, *groups, *order, *chain.from_iterable(scaled.items())]


def one_seed(case: Case, folder: Path, work: Path, seed: int) -> dict[str, Any]:
    """Imports, prepares, trains and ranks; the metrics that `outcrop embed eval --json` writes, and the time taken."""
    result = work / f"{case.name}-{seed}.json"
    if result.exists():
        return json.loads(result.read_text())
    triples = (folder / "train.txt").exists()
    graph, run = work / f"{folder.name}.oc", work / f"{case.name}-{seed}"
    if not graph.exists():
        source = f"triples:{folder}" if triples else f"edges:{folder / (folder.name + '.txt')}"
        outcrop("import", source, graph)
    prepare = ["--seed", str(seed), "--partitions", str(case.partitions), *([] if triples else HELD_OUT)]
    if case.slices and case.partitions > 1:
        prepare += ["--slices", str(case.slices)]
    outcrop("embed", "prepare", graph, run, *prepare)
    begin = time.monotonic()
    outcrop("embed", "train", run, "--config", case.config, "--seed", str(seed), *case.swapping())
    seconds = time.monotonic() - begin
    outcrop("embed", "eval", run, "--split", "test", "--json", result, *([] if triples else CANDIDATES))
    found = {**json.loads(result.read_text()), "seed": seed, "train_seconds": seconds}
    result.write_text(json.dumps(found))
    return found


def summary(case: Case, found: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over seeds."""
    values = {"mrr": [f["mrr"] for f in found]} | {
        f"hits@{k}": [f["hits"][k] for f in found] for k in found[0]["hits"]
    }
    return {
        "graph": case.config.stem,
        "partitions": case.partitions,
        "sweeps": case.sweeps if case.partitions > 1 else 1,
        **({"groups": case.groups} if case.groups > 1 else {}),
        **({"order": case.order} if case.order != "best" else {}),
        **({"slices": case.slices} if case.slices else {}),
        "protocol": found[0]["protocol"],
        "seeds": len(found),
        "train_seconds": min(f["train_seconds"] for f in found),
        **{key: {"mean": statistics.mean(v), "deviation": statistics.pstdev(v)} for key, v in values.items()},
    }


def show(row: dict[str, Any]) -> None:
    print(
        f"{row['graph']}, {row['partitions']} partitions, {row.get('groups', 1)} groups: "
        f"MRR {row['mrr']['mean']:.4f} ± {row['mrr']['deviation']:.4f}, "
        f"Hits@10 {row['hits@10']['mean']:.3f} ({row['protocol']}; {row['seeds']} seeds, "
        f"{row['train_seconds']:.0f} s each at best)",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, default=Path("embed-quality"))
    parser.add_argument("--only", nargs="*", help="names of configurations")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--partitions", type=int, nargs="*", default=[1], help=f"{BUFFER} of them in memory")
    parser.add_argument("--sweeps", type=int, default=16, help="of an epoch over more than one partition")
    parser.add_argument("--groups", type=int, nargs="*", default=[1], help="that partitions are trained in")
    parser.add_argument("--order", default="best", help="in which partitions are in memory, or slices")
    parser.add_argument("--slices", type=int, help="of each partition")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    rows = []
    for config in sorted(HERE.glob("*.toml")):
        folder = options.data / config.stem.partition("+")[0]  # NAME+VARIANT.toml
        if (options.only and config.stem not in options.only) or not folder.is_dir():
            continue
        for partitions, groups in product(options.partitions, options.groups):
            case = Case(config, partitions, options.sweeps, groups, options.order, options.slices)
            rows.append(
                summary(case, [one_seed(case, folder, options.work, s) for s in range(options.seeds)])
            )
            show(rows[-1])
            if options.json:
                options.json.write_text(json.dumps({**origin("embed-quality"), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
