"""Benchmark ``scale-out``: what each of 1, 2, 4, ... machines does, counted on one, and the cost model's times of it.

Preparing: chunks are read, cut into pieces and written as on Ray, but nothing is sent (bench/machines.py). Training:
the batches of each machine's process are loaded, and the bytes of gradients follow from the model. The run has as many
parts as there are machines at the most, and a step as many batches: so files and parameters are the same for all.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from outcrop.advisor import machine
from outcrop.advisor.cluster_cost import Cluster, PreparedShare, PreparingWork, predict, preparing_seconds
from outcrop.advisor.cost import Workload
from outcrop.advisor.counting import Task, count
from outcrop.advisor.steps import gradient_bytes
from outcrop.bench.epoch import Log, Setting, ensure_graph, plain
from outcrop.bench.graphs import GraphShape
from outcrop.bench.machines import CountedMachines, PackedShare
from outcrop.config import ClusterConfig, Limits, ModelConfig, PackConfig, SampleConfig, format_bytes
from outcrop.config.cluster import parse_rate
from outcrop.errors import ArgumentError
from outcrop.loading.modes import Packed
from outcrop.loading.open import open_session
from outcrop.loading.ranks import Ranks
from outcrop.preparation.prepare import PrepareReport, PrepareRequest, prepare
from outcrop.runtime.hardware import Hardware
from outcrop.runtime.ordered import sent_bytes
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store.graph import Graph, open_graph
from outcrop.store.placement import open_placement
from outcrop.store.profile import Profile
from outcrop.store.samples import open_samples

SHAPE = GraphShape("scale-out", nodes=200_000, edges=3_000_000, features=64, train_fraction=0.1)
BATCH_SIZE, CAP = 256, 0.5  # so that every machine has several batches, and most rows are packed
_CHUNKS_OF_EACH = 4  # chunks that a machine has where there are most of them
_ID_BYTES = 8  # of an id that is sent


def shape_of(nodes: int | None) -> GraphShape:
    """Returns the shape of a graph of so many nodes; None: of the standard one."""
    if nodes is None:
        return SHAPE
    return replace(SHAPE, name=f"{SHAPE.name}-{nodes}", nodes=nodes, edges=15 * nodes)


@dataclass(frozen=True)
class ScaleOut:
    """Says what is counted.

    Attributes:
        machines: Numbers of machines.
        cluster: Its network, by which counts become times; how many machines there are it is told.
    """

    setting: Setting
    machines: tuple[int, ...] = (1, 2, 4, 8, 16)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)

    def __post_init__(self) -> None:
        if not self.machines or min(self.machines) < 1:
            raise ArgumentError(f"machines {self.machines} are none: name numbers such as 1,2,4")

    @property
    def parts(self) -> int:
        """Counts the parts of the run, and the batches of a step."""
        return max(self.machines)


@dataclass(frozen=True)
class _Sizes:
    """Holds what the plan says: bytes of the packed rows and of the caches in memory, and of a row."""

    packed: int
    cached: int
    row: int


@dataclass(frozen=True)
class _Rates:
    """Holds what times are made of: a machine, an epoch and preparing on it alone, and the bytes of gradients."""

    sizes: _Sizes
    hardware: Hardware
    epoch: Workload
    preparing: PreparingWork
    gradient_bytes: int


def run(folder: Path, asked: ScaleOut, log: Log) -> dict[str, Any]:
    """Counts for every number of machines.

    Raises:
        AssertionError: What was counted is not what the plan has, or files differ with the number of machines.
    """
    setting = asked.setting
    graph, out = open_graph(ensure_graph(folder, setting.shape, log)), folder / "scale-out.run"
    shutil.rmtree(out, ignore_errors=True)
    log("measuring the machine, where that is not known")
    profile, rates, digests = machine.profile_of(folder), None, set()
    cases: list[dict[str, Any]] = []
    for machines in asked.machines:
        log(f"{machines} machines: preparing")
        request, counted = _request(graph, out, asked, machines)
        with Runtime(setting.memory) as runtime:
            report = prepare(request, runtime)
        digests.add(manifests.read_any(out / "pack").digest())
        sizes = _sizes(out)
        _check_packed(counted.shares, sizes, graph)
        log(f"{machines} machines: loading")
        loaded = _loaded(graph, out, asked, machines)
        if rates is None:
            rates = _rates(request, report, profile, setting, sizes)
        cases.append(_case(asked, counted.shares, loaded, rates))
        shutil.rmtree(out / "pack")
    if len(digests) != 1:
        raise AssertionError(
            f"{len(digests)} runs differ that ought to be the same for any number of machines"
        )
    assert rates is not None
    return {
        "experiment": "scale-out",
        "setting": plain(setting),
        "parts": asked.parts,
        "network_bytes_per_s": parse_rate(asked.cluster.network),
        "feature_bytes": graph.feature_bytes,
        "packed_bytes": rates.sizes.packed,
        "cache_bytes": rates.sizes.cached,
        "batches": rates.epoch.batches,
        "gradient_bytes": rates.gradient_bytes,
        "draw_seconds": rates.preparing.draw_s,
        "disk_bytes_per_s": rates.hardware.disk.bytes_per_s,
        "write_bytes_per_s": rates.preparing.write_bytes_per_s,
        "cases": cases,
        "columns": [
            "machines",
            "features read, most",
            "rows sent, all",
            "of formula",
            "written, most",
            "most / mean",
            "records read, most",
            "gradients sent, most",
            "preparing",
            "epoch",
            "bound",
        ],
        "rows": [_row(case) for case in cases],
        "says": f"files equal for all; rows gathered {format_bytes(rates.sizes.packed + rates.sizes.cached)}, as the "
        "plan has them; seconds are of the cost model, at the rates of this machine",
    }


def _row(case: dict[str, Any]) -> list[str]:
    prepared, trained, share = case["prepare"], case["train"], case["rows_of_formula"]
    return [
        str(case["machines"]),
        format_bytes(prepared["most"]["bytes_read"]),
        format_bytes(case["rows_bytes_sent"]),
        "-" if share is None else f"{share:.3f}",
        format_bytes(prepared["most"]["bytes_written"]),
        f"{prepared['imbalance']['bytes_written']:.2f}",
        format_bytes(trained["most"]["bytes_read"]),
        format_bytes(trained["most"]["gradient_bytes_sent"]),
        f"{case['prepare_seconds']:.2f} s",
        f"{case['epoch_seconds']:.2f} s",
        case["bound"],
    ]


def _request(
    graph: Graph, out: Path, asked: ScaleOut, machines: int
) -> tuple[PrepareRequest, CountedMachines]:
    """Says what is prepared, and who packs it."""
    setting, data_bytes = asked.setting, graph.row_file.spec.data_bytes
    counted = CountedMachines(machines, max(data_bytes // (_CHUNKS_OF_EACH * asked.parts), PAGE_BYTES))
    fanouts = tuple(map(int, setting.fanouts.split(",")))
    sampling = SampleConfig(fanouts, setting.batch_size, epochs=1)
    limits = Limits(setting.memory).in_bytes(graph.feature_bytes, PackConfig(parts=asked.parts))
    return PrepareRequest(graph, out, sampling, limits, fill=counted), counted


def _sizes(run: Path) -> _Sizes:
    with Runtime() as runtime:
        (rows,) = open_placement(runtime, run / "plan").files
        cached = len(rows.host_ids) + len(rows.device_ids)
        return _Sizes(int(rows.num_packed.sum()) * rows.row_bytes, cached * rows.row_bytes, rows.row_bytes)


def _check_packed(shares: Sequence[PackedShare], sizes: _Sizes, graph: Graph) -> None:
    """Compares what was counted with the plan, to the byte."""
    total = {field.name: sum(getattr(one, field.name) for one in shares) for field in fields(PackedShare)}
    rows, ids = sizes.packed + sizes.cached, _ID_BYTES
    wanted = {
        "rows gathered": (total["rows_bytes_gathered"], rows),
        "rows written": (total["bytes_written"], rows),
        "rows kept and sent": (total["rows_bytes_kept"] + total["rows_bytes_sent"], rows),
        "rows received": (total["rows_bytes_received"], total["rows_bytes_sent"]),
        "ids received": (total["ids_bytes_received"] * sizes.row, total["rows_bytes_sent"] * ids),
        "ids sent": (total["ids_bytes_sent"], total["ids_bytes_received"]),
    }
    for what, (found, planned) in wanted.items():
        if found != planned:
            raise AssertionError(
                f"{len(shares)} machines: {what}: {found} bytes were counted, the plan has {planned}"
            )
    ends = 2 * PAGE_BYTES * total["chunks"]
    if not graph.feature_bytes <= total["bytes_read"] <= graph.feature_bytes + ends:
        raise AssertionError(f"{total['bytes_read']} bytes of {graph.feature_bytes} of features were read")


def _loaded(graph: Graph, run: Path, asked: ScaleOut, machines: int) -> list[dict[str, int]]:
    """Loads the batches of the process of each machine; returns what each has read."""
    found = []
    with (
        Runtime(asked.setting.memory) as runtime,
        open_session(graph, runtime, Packed.name, run_folder=run) as session,
    ):
        (predicted,) = open_placement(runtime, run / "plan").predicted["epochs"]["train"]
        batches = open_samples(runtime, run / "sample").group("train").per_epoch
        for own in _batches_of(asked, machines, batches):
            before = runtime.io.counters
            for batch in session.batches("train", 0, numbers=own):
                del batch
            after = runtime.io.counters
            read, reads = after.read_bytes - before.read_bytes, after.read_ops - before.read_ops
            found.append({"batches": len(own), "bytes_read": read, "reads": reads})
    read = sum(one["bytes_read"] for one in found)
    if read != predicted["bytes_read"]:
        raise AssertionError(
            f"{machines} processes read {read} bytes, the plan has {predicted['bytes_read']}"
        )
    return found


def _batches_of(asked: ScaleOut, machines: int, batches: int) -> list[Sequence[int]]:
    """Returns the batches of an epoch that the process of each machine has."""
    return [Ranks(rank, machines, asked.parts, "short").batches(batches) for rank in range(machines)]


def _rates(
    request: PrepareRequest, report: PrepareReport, profile: Profile, setting: Setting, sizes: _Sizes
) -> _Rates:
    """Counts and times an epoch on this machine."""
    model = ModelConfig(setting.model, setting.hidden)
    task = Task(request.graph, model, request.sampling, request.limits, run=request.out)
    counted, hardware = count(task, profile, online=False), profile.hardware()
    preparing = PreparingWork(
        request.graph.feature_bytes,
        sizes.packed + sizes.cached,
        report.stage_seconds["sample"],
        profile.write_bytes_per_s,
    )
    gradient = gradient_bytes(task.network, len(request.sampling.fanouts))
    return _Rates(sizes, hardware, counted.works[Packed.name], preparing, gradient)


def _case(
    asked: ScaleOut, shares: Sequence[PackedShare], loaded: list[dict[str, int]], rates: _Rates
) -> dict[str, Any]:
    """Returns what is reported of a number of machines."""
    machines, batches, sizes = len(shares), rates.epoch.batches, rates.sizes
    for one, own in zip(loaded, _batches_of(asked, machines, batches), strict=True):
        steps = [sum(n // asked.parts == step for n in own) for step in range(-(-batches // asked.parts))]
        sent = [sent_bytes(rates.gradient_bytes // 4, 4, rows, machines) for rows in steps]
        one |= {"gradient_bytes_sent": sum(sent), "gradient_bytes_of_a_step": max(sent)}
    prepared, trained = _together([vars(one) for one in shares]), _together(loaded)
    rows = sum(one.rows_bytes_sent for one in shares)
    formula = (sizes.packed + sizes.cached) * (1 - 1 / machines)
    cluster = Cluster(
        rates.hardware,
        machines,
        1,
        asked.parts,
        parse_rate(asked.cluster.network),
        asked.cluster.latency,
    )
    most = prepared["most"]
    share = PreparedShare(most["bytes_read"], most["bytes_written"], most["rows_bytes_sent"])
    epoch = predict(cluster, rates.epoch, rates.gradient_bytes)
    return {
        "machines": machines,
        "rows_bytes_sent": rows,
        "rows_bytes_of_formula": round(formula),
        "rows_of_formula": rows / formula if formula else None,
        "ids_bytes_sent": sum(one.ids_bytes_sent for one in shares),
        "ids_bytes_of_formula": round(formula * _ID_BYTES / sizes.row),
        "cache_bytes_copied": sizes.cached * (machines - 1),
        "gradient_bytes_sent": sum(one["gradient_bytes_sent"] for one in loaded),
        "prepare_seconds": preparing_seconds(cluster, rates.preparing, share),
        "prepare_seconds_if_even": preparing_seconds(cluster, rates.preparing),
        "epoch_seconds": epoch.epoch_s,
        "exchange_seconds": epoch.exchange_s,
        "bound": epoch.bound,
        "prepare": prepared,
        "train": trained,
    }


def _together(each: list[dict[str, int]]) -> dict[str, Any]:
    """Returns what every machine does, their mean, the most of one, and that against the mean."""
    mean = {name: fmean(one[name] for one in each) for name in each[0]}
    most = {name: max(one[name] for one in each) for name in each[0]}
    return {
        "most": most,
        "mean": mean,
        "imbalance": {name: most[name] / value if value else 1.0 for name, value in mean.items()},
        "each": each,
    }
