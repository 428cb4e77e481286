#!/usr/bin/env python3
"""Measures what goes over a wire of 50 Mbit/s between two machines, which are network namespaces: only root makes them.

    scripts/wire.py --json wire.json [--work FOLDER]

Two processes train, and a Ray cluster of two machines prepares. Bytes of the wire are those that its devices count;
they are compared with the formulas (docs/several-processes.md), seconds of exchanging gradients with bytes by rate, and
with what gloo takes for the same bytes alone, in messages as they are exchanged and in collectives, which do not keep
both directions of the wire busy.
What Ray sends of itself is measured while it has nothing to do, and by preparing a run of almost no rows.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import outcrop as oc
from namespaces import Machine, two_machines
from outcrop.bench.origin import origin
from outcrop.config.cluster import parse_rate
from outcrop.nn.checkpoint import LAST
from outcrop.nn.checkpoint import read as read_checkpoint
from outcrop.runtime.ordered import sent_bytes
from outcrop.runtime.runtime import Runtime
from outcrop.store.placement import open_placement

RATE = "50Mbit/s"
QUIET = oc.Observer(progress=False)
EPOCHS, BATCHES, FEATURES, HIDDEN = 5, 10, 512, 1024
NODES, WIDTH, PARTS = 100_000, 128, 2
IDLE_SECONDS, PREPARINGS, STORE = 30, 3, 100_000_000


ALONE = """
import json, sys, time, torch
from torch import distributed

rank, address, count, steps, how = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
distributed.init_process_group("gloo", init_method=f"tcp://{address}:29501", rank=rank, world_size=2)
own, parts, total, found = torch.ones(2 * count), torch.empty(2 * count), torch.ones(count), torch.empty(2 * count)

def messages():
    other = 1 - rank
    coming = distributed.irecv(parts.chunk(2)[other], other)
    coming_total = distributed.irecv(found.chunk(2)[other], other)
    going = distributed.isend(own.chunk(2)[other], other)
    coming.wait()
    going_total = distributed.isend(total, other)
    for one in (coming_total, going, going_total):
        one.wait()

def collectives():
    distributed.all_to_all_single(parts, own, [count, count], [count, count])
    distributed.all_gather_into_tensor(found, total)

seconds = []
for _ in range(steps):
    distributed.barrier()
    begin = time.perf_counter()
    {"messages": messages, "collectives": collectives}[how]()
    seconds.append(time.perf_counter() - begin)
distributed.barrier()
distributed.destroy_process_group()
print(json.dumps(seconds))
"""


def gloo_alone(machines: Sequence[Machine], elements: int, steps: int, how: str) -> float:
    """Returns the median seconds of what a step exchanges, one batch of each process, and nothing else.

    Args:
        how: ``messages``, as :func:`outcrop.runtime.ordered.ordered_sum_of` has them, or ``collectives``.
    """
    running = [
        subprocess.Popen(
            machine.command(
                *(sys.executable, "-W", "ignore", "-c", ALONE),
                *(str(rank), machines[0].address, str(-(-elements // 2)), str(steps), how),
            ),
            env={**os.environ, "GLOO_SOCKET_IFNAME": machine.device, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, machine in enumerate(machines)
    ]
    found = [json.loads(process.communicate(timeout=300)[0]) for process in running]
    return median(map(min, zip(*found, strict=True)))


def sent(machines: Sequence[Machine]) -> list[int]:
    return [machine.sent_bytes() for machine in machines]


def ended(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        said, _ = process.communicate(timeout=600)
        if process.returncode != 0:
            raise SystemExit(f"{process.args}\n{said}")


def started(command: list[str], **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def train(machines: Sequence[Machine], folder: Path) -> dict[str, Any]:
    """Trains a model whose gradients take far longer than its batches."""
    rng, seeds = np.random.default_rng(0), 20 * BATCHES
    parts = {
        "edges": rng.integers(0, 900, (8000, 2)),
        "features": rng.normal(size=(900, FEATURES)).astype(np.float32),
        "labels": rng.integers(0, 3, 900),
    }
    splits = {"train": np.arange(seeds), "valid": np.zeros(0, np.int64), "test": np.zeros(0, np.int64)}
    graph = oc.import_graph(parts, folder / "train.oc", splits=splits, progress=False).path
    sampling = oc.SampleConfig(fanouts=(2, 2), batch_size=20)
    oc.prepare(graph, folder / "train.run", sampling=sampling, epochs=1, memory="16MiB", observer=QUIET)
    learn = [
        "train",
        str(graph),
        "--run",
        str(folder / "train.run"),
        "--hidden",
        str(HIDDEN),
        "--accumulate",
        "2",
    ]
    learn += [
        "--epochs",
        str(EPOCHS),
        "--checkpoint",
        str(folder / "ckpt"),
        "--json",
        str(folder / "train.json"),
    ]
    before, first = sent(machines), machines[0].address
    ended(
        [
            started(
                machine.command(
                    *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={number}"),
                    *("--nproc-per-node=1", f"--master-addr={first}", "--master-port=29500"),
                    *("-m", "outcrop", "--", *learn),
                ),
                OMP_NUM_THREADS="1",
                GLOO_SOCKET_IFNAME=machine.device,
                TMPDIR=str(folder),
            )
            for number, machine in enumerate(machines)
        ]
    )
    wire = [after - was for after, was in zip(sent(machines), before, strict=True)]
    elements = sum(value.numel() for value in read_checkpoint(folder / "ckpt" / LAST).model.values())
    steps = BATCHES // 2
    alone = {
        how: steps * gloo_alone(machines, elements, 3 * steps, how) for how in ("messages", "collectives")
    }
    epoch_bytes, rate = steps * sent_bytes(elements, 4, 1, 2), parse_rate(RATE)
    ranks = [
        epoch["ranks"]["exchange_seconds"]
        for epoch in json.loads((folder / "train.json").read_text())["epochs"]
    ]
    # Of the process that comes last to most steps: the other one waits for it, too.
    exchange = median(min(seconds) for seconds in ranks)
    return {
        "gradient_bytes": 4 * elements,
        "epochs": EPOCHS,
        "steps": steps,
        "formula_bytes": EPOCHS * epoch_bytes,
        "wire_bytes": wire,
        "wire_of_formula": [count / (EPOCHS * epoch_bytes) for count in wire],
        "exchange_seconds": ranks,
        "median_exchange_seconds": exchange,
        "formula_seconds": epoch_bytes / rate,
        "gloo_alone_seconds": alone,
        "seconds_of_formula": exchange * rate / epoch_bytes,
        "seconds_of_wire": exchange * rate * EPOCHS / max(wire),
    }


@contextmanager
def ray_cluster(machines: Sequence[Machine], folder: Path) -> Iterator[dict[str, str]]:
    """Starts Ray on both machines; yields the variables of commands that use it."""
    beside = Path(sys.prefix) / "beside-ray"
    variables = {
        "PYTHONPATH": os.pathsep.join(
            [*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(beside)]
        ).strip(":"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_TMPDIR": str(folder),
        "HOME": str(folder),
    }
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--num-cpus", "1", "--block"]
    start += ["--object-store-memory", str(STORE)]
    running = []
    try:
        head = [*start, "--head", "--node-ip-address", machines[0].address, "--port", "6379"]
        running.append(started(machines[0].command(*head, "--include-dashboard", "false"), **variables))
        until(running[0], "Ray runtime started")
        other = ["--address", f"{machines[0].address}:6379", "--node-ip-address", machines[1].address]
        running.append(started(machines[1].command(*start, *other), **variables))
        until(running[1], "Ray runtime started")
        yield variables
    finally:
        for process in reversed(running):
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            assert process.stdout is not None
            process.stdout.close()


def until(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout is not None
    if not any(words in line for line in process.stdout):
        raise SystemExit(f"Ray ended with {process.wait()}")


def prepare(machines: Sequence[Machine], folder: Path) -> dict[str, Any]:
    """Prepares a run, and one of hardly any rows, each several times."""
    large = oc.GenerateConfig(nodes=NODES, edges=8 * NODES, features=WIDTH, train_fraction=0.04)
    small = oc.GenerateConfig(nodes=2000, edges=8000, features=8, train_fraction=0.02)
    graphs = {
        name: oc.generate_graph(folder / f"{name}.oc", config, progress=False).path
        for name, config in (("large", large), ("small", small))
    }
    found: dict[str, list[dict[str, Any]]] = {"large": [], "small": []}
    with (
        tempfile.TemporaryDirectory(prefix="oc-ray-", dir="/tmp", ignore_cleanup_errors=True) as home,
        ray_cluster(machines, Path(home)) as variables,
    ):
        time.sleep(10)  # what it has to tell at first
        before = sent(machines)
        time.sleep(IDLE_SECONDS)
        idle = [(after - was) / IDLE_SECONDS for after, was in zip(sent(machines), before, strict=True)]
        for turn in range(PREPARINGS):
            for name, graph in graphs.items():
                found[name].append(prepared(machines, graph, folder / f"{name}{turn}", variables))
    for one in found["large"] + found["small"]:
        quiet = sum(idle) * one["seconds"]
        one["wire_beside_idle"] = sum(one["wire_bytes"]) - quiet
    own = median(one["wire_beside_idle"] - one["moved_bytes"] for one in found["small"])
    for one in found["large"]:
        one["wire_of_moved"] = one["wire_beside_idle"] / one["moved_bytes"]
        one["wire_beside_own"] = one["wire_beside_idle"] - own
        one["wire_of_moved_without_own"] = one["wire_beside_own"] / one["moved_bytes"]
        one["rows_of_formula"] = one["rows_bytes_sent"] / one["formula_bytes"]
    names = ("wire_of_moved", "wire_of_moved_without_own", "rows_of_formula")
    return {
        "idle_bytes_per_s": idle,
        "own_bytes": own,
        **{name: median(one[name] for one in found["large"]) for name in names},
        "runs": found,
    }


def prepared(
    machines: Sequence[Machine], graph: Path, run: Path, variables: dict[str, str]
) -> dict[str, Any]:
    """Prepares one run on the cluster; counts what went over the wire meanwhile, and what the report says."""
    before, begin = sent(machines), time.monotonic()
    command = [
        sys.executable,
        "-m",
        "outcrop",
        "prepare",
        str(graph),
        str(run),
        "--fanouts",
        "5,5",
        "--batch-size",
    ]
    command += [
        "100",
        "--epochs",
        "2",
        "--memory",
        "16MiB",
        "--parts",
        str(PARTS),
        "--quiet",
        "--json",
        f"{run}.json",
    ]
    ended([started(machines[0].command(*command, "--ray", f"{machines[0].address}:6379"), **variables)])
    seconds = time.monotonic() - begin
    report = json.loads(Path(f"{run}.json").read_text())
    with Runtime() as runtime:
        (rows,) = open_placement(runtime, run / "plan").files
        every = (int(rows.num_packed.sum()) + len(rows.host_ids)) * rows.row_bytes
    moved = report["cluster"]
    return {
        "seconds": seconds,
        "pack_seconds": report["stage_seconds"]["pack"],
        "wire_bytes": [after - was for after, was in zip(sent(machines), before, strict=True)],
        "moved_bytes": moved["rows_bytes_sent"] + moved["ids_bytes_sent"],
        **moved,
        "rows_bytes": every,
        "formula_bytes": every // 2,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--work", type=Path, help="where graphs and runs lie; a folder that goes")
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=asked.work) as folder,
        two_machines(RATE.removesuffix("/s").lower()) as machines,
    ):
        print("training", flush=True)
        trained = train(machines, Path(folder))
        print("preparing on Ray", flush=True)
        done = prepare(machines, Path(folder))
    large = sorted(done["runs"]["large"], key=lambda one: one["wire_of_moved"])[PREPARINGS // 2]
    wire, exchange = max(trained["wire_bytes"]), trained["median_exchange_seconds"]
    alone = trained["gloo_alone_seconds"]
    formula = {name: large[f"{name}_bytes"] for name in ("formula", "moved")}
    compared = (
        ("training: bytes of a process", trained["formula_bytes"], wire, ",.0f"),
        ("training: seconds of exchange in an epoch", trained["formula_seconds"], exchange, ".2f"),
        ("the same, of the bytes on the wire", wire / EPOCHS / parse_rate(RATE), exchange, ".2f"),
        ("the same, of messages of gloo alone", alone["messages"], exchange, ".2f"),
        ("the same, of collectives of gloo alone", alone["collectives"], exchange, ".2f"),
        ("preparing: rows between machines", formula["formula"], large["rows_bytes_sent"], ",.0f"),
        ("preparing: rows and ids, on the wire", formula["moved"], large["wire_beside_idle"], ",.0f"),
        ("the same, less what Ray sends for few rows", formula["moved"], large["wire_beside_own"], ",.0f"),
    )
    result = {
        **origin("wire"),
        "rate": RATE,
        "train": trained,
        "prepare": done,
        "columns": ["", "formula", "measured", "measured / formula"],
        "rows": [
            [what, format(said, kind), format(found, kind), f"{found / said:.3f}"]
            for what, said, found, kind in compared
        ],
    }
    asked.json.write_text(json.dumps(result, indent=1))
    for row in result["rows"]:
        print("  ".join(row))


if __name__ == "__main__":
    main()
