"""Inference, out of core: layer by layer for all nodes, or in sampled mini-batches, written as one file.

:func:`outcrop.inference.task.checked_task` refuses what cannot work, :func:`run` computes it.
"""

from __future__ import annotations

import errno
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from outcrop.config import CPU, DeviceConfig, SampleConfig, format_bytes, format_use
from outcrop.errors import BudgetError, IoError
from outcrop.inference import activations, division, edge_counts
from outcrop.inference import export as exporting
from outcrop.inference import layerwise as inferring
from outcrop.inference.column_layer import ColumnLayer
from outcrop.inference.input_cut import cut_blocks
from outcrop.inference.inputs import InputRows, MadeRows, StoredRows
from outcrop.inference.predicted import predicted_bytes
from outcrop.inference.steps import Step
from outcrop.inference.task import InferTask
from outcrop.inference.ways import Ways, ways_of
from outcrop.inference.whole import WholeModel
from outcrop.loading import session as load
from outcrop.loading.feeders import SampledStructures
from outcrop.loading.needs import CountedBatches
from outcrop.loading.row_check import RowCheck
from outcrop.nn.typed import TypedModel
from outcrop.rows import disk_rows
from outcrop.runtime import memory_tables, system
from outcrop.runtime.progress import Progress
from outcrop.runtime.runtime import Runtime
from outcrop.runtime.smallest_budget import SMALLER_BATCHES, naming_smallest
from outcrop.sampling.sampler import BatchSampler, Ids
from outcrop.store import identity, record
from outcrop.store import manifest as manifests
from outcrop.store.lock import only_process_in
from outcrop.store.minibatch import MiniBatch

_WHAT = {"layerwise": "compute one part of a layer", "sampled": "score mini-batches"}
_ADVICE = {
    "layerwise": "--method sampled --batch-size 1 with low --fanouts needs less, and samples the neighbours",
    "sampled": SMALLER_BATCHES,
}


@dataclass
class InferReport:
    """Tells what :func:`outcrop.infer` did; ``as_dict`` is what ``--json`` writes.

    Attributes:
        rows, columns: Size of the output.
        layers: Per layer that this call computed: rows, spans, parts, edges, bytes, seconds, rows by level.
        resumed_layers: Layers that an interrupted call had finished.
        predicted_bytes_written: What the layers of a whole, layer-wise run write, exactly.
        predicted_bytes_read: What they read, exactly, where all of them are computed by columns; else None.
        export_bytes_read: Bytes that were read of the last layer to write the output.
        metrics: Of each split all of whose nodes are written: metrics of the kind of labels by name, all but ``auc``,
            and ``labels``, how many are known. With method ``layerwise`` they are those of all neighbours.
    """

    method: str
    output: str
    rows: int
    columns: int
    seconds: float = 0.0
    bytes_read: int = 0
    bytes_written: int = 0
    predicted_bytes_written: int | None = None
    predicted_bytes_read: int | None = None
    export_bytes_read: int = 0
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    layers: list[dict[str, Any]] = field(default_factory=list)
    resumed_layers: int = 0
    peak_host_bytes: int = 0
    peak_process_bytes: int = 0
    budget: dict[str, int | None] = field(default_factory=dict)
    io_backend: str = ""

    def __repr__(self) -> str:
        memory = format_use(self.peak_host_bytes, self.budget.get("memory"))
        return (
            f"InferReport({self.rows} rows x {self.columns} of {self.output}, {self.method}, {self.seconds:.1f} s, "
            f"peak memory {memory})"
        )

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def run(
    task: InferTask,
    config: SampleConfig | None,
    limit: int,
    *,
    seen: exporting.Seen | None = None,
    trace_path: str | Path | None = None,
    progress: Progress | bool | None = None,
) -> InferReport:
    """Computes ``task`` within ``limit`` bytes and writes it.

    Killed at any moment, the same call goes on with the first layer that was not finished.

    Args:
        config: How mini-batches are drawn; None: layer by layer (:func:`sampling_of`).
        seen: Is given what is written, before scores become probabilities.

    Raises:
        BudgetError: The budget cannot hold one part of a layer; names the smallest that can.
        IoError: The disk is full or refuses, or another process writes to the same place.
    """
    graph, scored, output = task.graph, task.scored, task.output
    method, work = scored.method, _work_folder(task.out)
    with (
        naming_what_is_enough(task, config, limit, progress),
        _alone_in(work),
        Runtime(limit, trace_path=trace_path, progress=progress) as runtime,
    ):
        held = runtime.budget.reserve("infer-ids", task.id_bytes)
        report = InferReport(method, output, task.num_rows, task.out_dim)
        for left in work.iterdir():
            if task.resumable:
                manifests.remove_headless(left)  # what could not be removed whole
            else:
                activations.remove(left)
        if config is None:
            result = _layerwise(task, work, report, runtime)
        else:
            result = _sampled(task, work, config, report, runtime)
        runtime.progress.start("export", task.num_rows, "rows")
        rows, before = activations.open_rows(result, runtime), runtime.io.counters.read_bytes
        try:
            named = task.out.suffix == ".parquet" and graph.has_names_of(task.node_type)
            with graph.open_names(runtime, task.node_type.name) if named else nullcontext() as names:
                asked = exporting.ExportRequest(
                    output,
                    scored.kind,
                    task.nodes,
                    task.row_numbers(rows.num_rows),
                    names,
                    scored.class_names,
                    seen,
                )
                exporting.export(rows, asked, task.out, runtime)
        finally:
            rows.close()
        runtime.progress.finish("export")
        activations.remove(work)
        held.release()
        report.bytes_read = runtime.io.counters.read_bytes
        report.export_bytes_read = report.bytes_read - before
        report.bytes_written = runtime.io.counters.write_bytes
        report.peak_host_bytes = runtime.budget.peak_bytes
        report.peak_process_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        report.budget = {"memory": limit}
        report.io_backend = runtime.io.backend_name
        return report


def naming_what_is_enough(
    task: InferTask,
    config: SampleConfig | None,
    limit: int,
    progress: Progress | bool | None = None,
) -> AbstractContextManager[None]:
    """Names the smallest budget that would do where ``limit`` bytes are not enough for ``task``."""
    method = task.scored.method
    return naming_smallest(limit, lambda: _needs(task, config, progress), _WHAT[method], _ADVICE[method])


def _work_folder(out: Path) -> Path:
    """Tells where what later layers read lies until the output is there."""
    return out.with_name(f".{out.name}.infer")


@contextmanager
def _alone_in(work: Path) -> Iterator[None]:
    """Locks the folder of an output: two calls would read each other's layers. It goes where nothing is left in it."""
    with only_process_in(work):
        try:
            yield
        finally:
            with suppress(OSError):
                work.rmdir()


def _layerwise(task: InferTask, work: Path, report: InferReport, runtime: Runtime) -> Path:
    """Computes the layers that are missing; returns where the last one lies."""
    graph, steps, ways = task.graph, task.steps, ways_of(task, division.memory_of(runtime))
    predicted = predicted_bytes(task, ways)
    report.predicted_bytes_read, report.predicted_bytes_written = predicted.read, predicted.written
    counts = work / "counts"
    done = _finished(task, ways, work)
    with manifests.naming_files(work):
        work.mkdir(exist_ok=True)
    _check_space(task.out, predicted.on_disk, work)
    missing = [step for layer in steps for step in layer if step not in done]
    if ways.counts is not None and missing and not edge_counts.are_there(graph, counts, ways.counts):
        edge_counts.count_edges(graph, counts, runtime, ways.counts, task.id_bytes)
    report.resumed_layers = len(done)
    runtime.progress.start("infer", sum(map(ways.rows_gone_over, ways.steps)), "rows")
    runtime.progress.advance("infer", sum(map(ways.rows_gone_over, done)))
    for index, layer in enumerate(steps):
        for step in layer:
            if step in missing:
                opened = None if ways.counts is None else edge_counts.open_counts(counts)
                _run_step(task, work, step, ways, opened, report, runtime)
        if index and layer[-1] in missing:
            for step in steps[index - 1]:
                activations.remove(work / step.name)
    runtime.progress.finish("infer")
    return work / steps[-1][-1].name


def _needs(
    task: InferTask, config: SampleConfig | None, progress: Progress | bool | None
) -> Callable[[int], bool]:
    """Tells which budgets are enough: to compute layer by layer, or, with ``config``, in sampled batches."""
    if config is None:
        return partial(_fits, task)
    counted = CountedBatches(task.graph, config, [("infer", 0)], progress, {"infer": _seeds(task)})

    def fits(limit: int) -> bool:
        try:
            with (
                Runtime(limit, rehearsal=counted) as runtime,
                runtime.budget.reserve("infer-ids", task.id_bytes),
                _sampled_session(task, config, runtime) as session,
            ):
                session.make_room(counted.max_rows)
        except BudgetError:
            return False
        return True

    return fits


def _fits(task: InferTask, limit: int) -> bool:
    try:
        with Runtime(limit) as runtime, runtime.budget.reserve("infer-ids", task.id_bytes):
            ways_of(task, division.memory_of(runtime))
    except BudgetError:
        return False
    return True


def _expected(task: InferTask, step: Step, ways: Ways) -> tuple[dict, dict[str, str]]:
    last, what = step.index == task.depth - 1, step.what
    if (cut := ways.cut_for(step)) is not None:  # another budget cuts otherwise, and computes it again
        _, plan, _ = cut
        what = {"of": what, "widths": list(plan.widths), "block_rows": plan.rows}
    return activations.expected(task.graph, task.digest, what, task.targets() if last else "all")


def _finished(task: InferTask, ways: Ways, work: Path) -> list[Step]:
    """Returns the steps whose output is there, or is needed no more, as that of a later layer is there."""
    there = [
        [
            step
            for step in layer
            if manifests.is_current(
                work / step.name, activations.FORMAT, activations.VERSION, *_expected(task, step, ways)
            )
        ]
        for layer in task.steps
    ]
    whole = [index for index, layer in enumerate(task.steps) if len(there[index]) == len(layer)]
    first = whole[-1] + 1 if whole else 0
    done = [step for layer in task.steps[:first] for step in layer]
    return done + (there[first] if first < len(there) else [])


def _inputs(task: InferTask, work: Path, step: Step, runtime: Runtime) -> dict[int, InputRows]:
    """Opens the rows that ``step`` reads."""
    graph, found = task.graph, {}
    stored = any(shape.stored for shape in step.inputs.values())
    check = RowCheck(graph, runtime, CPU) if task.paranoid and stored and not step.index else None
    for number, shape in step.inputs.items():
        if step.index:
            (before,) = (one for one in task.steps[step.index - 1] if one.to.target.number == number)
            found[number] = StoredRows(activations.open_rows(work / before.name, runtime))
        elif shape.stored:
            (file,) = (one for one in graph.row_files if one.owner == graph.node_types[number])
            compare = None if check is None else check.comparing(file, f"layer 0 of {task.out.name}")
            found[number] = StoredRows(graph.open_rows(runtime, file), file, compare)
        else:
            assert isinstance(task.model, TypedModel)
            found[number] = MadeRows(task.model.make_rows, number, shape)
    return found


@contextmanager
def _computing_beside_reading() -> Iterator[None]:
    """Has torch compute with a thread less, for a layer by columns: blocks are small, and while its threads wait for
    each other at the end of every operation they leave no core to those that read and write.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(max(threads - 1, 1))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _run_step(
    task: InferTask,
    work: Path,
    step: Step,
    ways: Ways,
    counts: edge_counts.Counts | None,
    report: InferReport,
    runtime: Runtime,
) -> None:
    begin, before = time.monotonic(), runtime.io.counters
    plan = ways.plan_of(step)
    is_cut = plan is not None and plan.cut is not None
    rows = {} if is_cut else _inputs(task, work, step, runtime)
    try:
        layer: inferring.ComputedLayer
        if plan is None:
            device = next(task.model.parameters()).device
            layer = inferring.Layer(step, rows, counts, device, runtime, task.id_bytes)
        else:
            (stored,) = [work / task.steps[step.index - 1][0].name] if is_cut else rows.values()
            assert isinstance(stored, StoredRows | Path)
            layer = ColumnLayer(step, plan, stored, counts, work / f"{step.name}.columns", runtime)
        try:
            with (
                runtime.trace.span("infer-layer", layer=step.index),
                nullcontext() if plan is None else _computing_beside_reading(),
            ):
                out, expected = work / step.name, _expected(task, step, ways)
                if (cut := ways.cut_for(step)) is None:
                    inferring.run_layer(layer, out, *expected, runtime, step.classes)
                else:
                    with closing(layer.outputs()) as found:
                        blocks = cut_blocks(cut[0], cut[1], found, counts, runtime)
                        activations.write_columns(task.graph, blocks, out, *expected, runtime)
        finally:
            layer.close()
    finally:
        for source in rows.values():
            source.close()
    after = runtime.io.counters
    layer.stats.seconds = time.monotonic() - begin
    layer.stats.bytes_read = after.read_bytes - before.read_bytes
    layer.stats.output_bytes = layer.stats.rows * step.output.row_bytes
    layer.stats.bytes_written = after.write_bytes - before.write_bytes
    report.layers.append(layer.stats.as_dict())


def _check_space(out: Path, needed: int, work: Path) -> None:
    """Raises IoError where the disk cannot hold what will be written."""
    held = system.bytes_of_files(work)
    free = shutil.disk_usage(out.parent).free
    if needed - held > free:
        raise IoError(
            errno.ENOSPC,
            f"{out.parent} has {format_bytes(free)} free, {out} and the layers before it need up to "
            f"{format_bytes(needed - held)}: free some space, or choose another place for the output",
        )


def _compute(task: InferTask) -> Callable[[MiniBatch], torch.Tensor]:
    if isinstance(task.model, WholeModel):
        return task.model.scores
    if isinstance(task.model, TypedModel):
        return partial(task.model.compute_batch, depth=task.depth, scores=task.output != "embeddings")
    return partial(inferring.first_layers, task.model, task.depth)


def _sampled(
    task: InferTask, work: Path, config: SampleConfig, report: InferReport, runtime: Runtime
) -> Path:
    graph, folder = task.graph, work / "sampled"
    classes = task.output == "classes"
    _check_space(
        task.out,
        record.align_page(task.num_rows * (8 if classes else 4 * task.out_dim))
        + exporting.output_bytes(task.num_rows, task.out_dim, report.output, task.name_bytes),
        work,
    )
    what = {"sampled": identity.sampling_fields(config), **({"classes": True} if classes else {})}
    wanted, inputs = activations.expected(graph, task.digest, what, task.targets())
    if manifests.is_current(folder, activations.FORMAT, activations.VERSION, wanted, inputs):
        return folder
    with manifests.naming_files(work):
        work.mkdir(exist_ok=True)
    runtime.progress.start("infer", task.num_rows, "nodes")
    with (
        _sampled_session(task, config, runtime) as session,
        task.model.scoring() if isinstance(task.model, WholeModel) else nullcontext(),
    ):
        blocks = inferring.scores_of(_compute(task), session.batches("infer", 0))
        width = None if classes else task.out_dim
        activations.write_rows(graph, blocks, width, folder, wanted, inputs, runtime)
    runtime.progress.finish("infer")
    return folder


def _seeds(task: InferTask) -> Ids:
    return range(task.node_type.num_nodes) if task.wanted is None else task.wanted


def _sampled_session(task: InferTask, config: SampleConfig, runtime: Runtime) -> load.LoadSession:
    """Opens a session that loads batches around the nodes that are scored, drawn as they are needed."""
    graph, whole = task.graph, isinstance(task.model, WholeModel)
    device = DeviceConfig(str(task.model.device if whole else next(task.model.parameters()).device))
    check = RowCheck(graph, runtime, device) if task.paranoid else None
    pool = load.make_pool(graph, runtime, buffers=memory_tables.BATCH_BUFFERS, device=device)
    rows = [disk_rows(graph, runtime, file) for file in graph.row_files]
    sampler = BatchSampler(
        graph,
        config,
        runtime,
        memory_fraction=memory_tables.GROWING_SAMPLER.fraction,
        ids={"infer": _seeds(task)},
    )
    session = load.row_session(graph, SampledStructures(sampler), rows, pool, runtime, device)
    if check is not None:
        session.compare_rows(check)
    return session
