"""Times two revisions of Outcrop in turn, old, new, new, old, and writes the ratios: is a change slower than what was?

    git worktree add ../before REVISION && make -C ../before build
    .venv/bin/python scripts/paired.py ../before . --graph my.oc --json benchmarks/results/MACHINE/paired.json

OLD and NEW are checkouts, each built by its own ``make build``. The same commands run in both on the same graph. The
ratio of a measure is the median over pairs of new / old; losses and peaks of memory are compared exactly.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from outcrop.bench.origin import origin

Facts = dict[str, Any]
SAMPLING = ("--fanouts", "10,10", "--batch-size", "512")


class Checkout:
    """Runs the commands of one revision.

    Args:
        folder: Root of a checkout with an environment in ``.venv``.
        work: Folder for what its commands make.
    """

    def __init__(self, folder: Path, work: Path):
        self.folder, self.work = folder.resolve(), work
        work.mkdir(parents=True)
        describe = ["git", "-C", str(self.folder), "describe", "--always", "--dirty"]
        self.revision = subprocess.run(describe, capture_output=True, text=True).stdout.strip()

    def seconds(self, *command: str) -> float:
        """Returns the wall time of a program of the environment, in seconds."""
        program, *arguments = command
        begin = time.perf_counter()
        subprocess.run(
            [str(self.folder / ".venv" / "bin" / program), *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self.work,
        )
        return time.perf_counter() - begin

    def outcrop(self, *arguments: str) -> tuple[float, Facts]:
        """Returns the wall time of an ``outcrop`` command, in seconds, and the JSON that it wrote."""
        out = self.work / "result.json"
        took = self.seconds("outcrop", *arguments, "--quiet", "--json", str(out))
        return took, json.loads(out.read_text())


def importing(checkout: Checkout, options: argparse.Namespace) -> Facts:
    return {
        "seconds": statistics.median(checkout.seconds("python", "-c", "import outcrop") for _ in range(9))
    }


def command_help(checkout: Checkout, options: argparse.Namespace) -> Facts:
    return {"seconds": checkout.seconds("outcrop", "train", "--help")}


def prepare(checkout: Checkout, options: argparse.Namespace) -> Facts:
    run = checkout.work / "run"
    shutil.rmtree(run, ignore_errors=True)
    command = (
        "prepare",
        str(options.graph),
        str(run),
        *SAMPLING,
        "--epochs",
        "2",
        "--memory",
        options.memory,
    )
    took, found = checkout.outcrop(*command)
    return {"seconds": took, "within_seconds": found["seconds"]}


def prepare_within(checkout: Checkout, options: argparse.Namespace) -> Facts:
    """What the command itself says that it took: without starting Python, which takes half a second."""
    return {"seconds": prepare(checkout, options)["within_seconds"]}


def _train(checkout: Checkout, options: argparse.Namespace, *where: str) -> Facts:
    command = (
        "train",
        str(options.graph),
        *where,
        "--memory",
        options.memory,
        "--epochs",
        str(options.epochs),
    )
    _, found = checkout.outcrop(*command, "--hidden", "32", "--evaluate-every", "1000")
    epochs = found["epochs"]
    return {
        "seconds": statistics.median(epoch["seconds"] for epoch in epochs[1:]),
        "losses": [epoch["loss"] for epoch in epochs],
        "peak_bytes": found["peak_host_bytes"],
    }


def packed(checkout: Checkout, options: argparse.Namespace) -> Facts:
    return _train(checkout, options, "--run", str(checkout.work / "run"))


def online(checkout: Checkout, options: argparse.Namespace) -> Facts:
    few = argparse.Namespace(**{**vars(options), "epochs": min(options.epochs, 3)})  # each reads at random
    return _train(checkout, few, "--mode", "online", *SAMPLING, "--disk-space", "0")


def embeddings(checkout: Checkout, options: argparse.Namespace) -> Facts:
    """Embeddings of 100 floats with all vectors in memory."""
    run = checkout.work / "embeddings"
    shutil.rmtree(run, ignore_errors=True)
    checkout.outcrop("embed", "prepare", str(options.graph), str(run))
    kind = ("--model", "dot", "--dim", "100", "--negatives", "100", "--resident")
    _, found = checkout.outcrop("embed", "train", str(run), *kind, "--epochs", str(min(options.epochs, 2)))
    epochs = found["epochs"]
    return {
        "seconds": epochs[-1]["seconds"],
        "losses": [epoch["loss"] for epoch in epochs],
        "peak_bytes": found["peak_host_bytes"],
    }


MEASURES: dict[str, Callable[[Checkout, argparse.Namespace], Facts]] = {
    "import outcrop": importing,
    "outcrop train --help": command_help,
    "prepare": prepare,
    "prepare, without starting Python": prepare_within,
    "an epoch, packed": packed,
    "an epoch, online": online,
    "an epoch of embeddings": embeddings,
}


def compare(old: list[Facts], new: list[Facts]) -> Facts:
    """Returns the times of both, the median ratio of pairs, and whether what must be equal is."""
    before, after = ([facts["seconds"] for facts in side] for side in (old, new))
    found: Facts = {
        "old_seconds": before,
        "new_seconds": after,
        "ratio": statistics.median(b / a for a, b in zip(before, after, strict=True)),
    }
    if "losses" in old[0]:
        found["losses_equal"] = all(facts["losses"] == old[0]["losses"] for facts in (*old, *new))
        peaks = [max(facts["peak_bytes"] for facts in side) for side in (old, new)]
        found["peak_bytes"] = {"old": peaks[0], "new": peaks[1]}
    return found


def run(options: argparse.Namespace, work: Path) -> Iterator[Facts]:
    """Measures everything ``options.pairs`` times in both checkouts, in turn: what is known after each pair."""
    sides = Checkout(options.old, work / "old"), Checkout(options.new, work / "new")
    facts: dict[str, tuple[list[Facts], list[Facts]]] = {name: ([], []) for name in options.measures}
    for pair in range(options.pairs):
        for name in options.measures:
            for side in (0, 1) if pair % 2 == 0 else (1, 0):
                facts[name][side].append(MEASURES[name](sides[side], options))
        yield {
            **origin("paired"),
            "old": sides[0].revision,
            "new": sides[1].revision,
            "pairs": pair + 1,
            "memory": options.memory,
            "measures": {name: compare(*facts[name]) for name in options.measures},
        }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--graph", type=Path, required=True)
    parser.add_argument("--memory", default="64MiB")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--measures", nargs="+", choices=MEASURES, default=list(MEASURES))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    options.graph = options.graph.resolve()
    with tempfile.TemporaryDirectory(dir=options.graph.parent) as work:
        for found in run(options, Path(work)):
            if options.json:
                options.json.write_text(json.dumps(found, indent=1) + "\n")
    for name, one in found["measures"].items():
        equal = "" if one.get("losses_equal", True) else ", LOSSES DIFFER"
        print(f"{name}: {one['ratio']:.3f} of {found['old']}{equal}")
    return 0 if all(one.get("losses_equal", True) for one in found["measures"].values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
