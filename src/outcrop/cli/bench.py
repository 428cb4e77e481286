"""``outcrop bench EXPERIMENT``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from outcrop.bench.graphs import TYPED, GraphShape
from outcrop.cli import common, printing
from outcrop.config import ClusterConfig, format_bytes
from outcrop.errors import ArgumentError

if TYPE_CHECKING:
    from outcrop.bench.epoch import Setting

N = TypeVar("N", int, float)
EXPERIMENTS = (
    "epoch",
    "loader",
    "prepare",
    "small-batches",
    "new-batches",
    "infer",
    "regimes",
    "layout",
    "pipeline",
    "memory-curve",
    "scale",
    "scale-out",
    "papers100m",
    "quality",
    "io",
    "cost-model",
    "checks",
    "paranoid",
    "orders",
    "embed",
    "embed-large",
    "typed-models",
    "typed-sampling",
    "gpu",
)


def add_commands(app: typer.Typer) -> None:
    app.command(
        "bench",
        help="Measure: " + ", ".join(EXPERIMENTS) + " (docs/benchmarks.md).\n\n"
        "Example: outcrop bench epoch --folder /data/bench --json epoch.json",
    )(bench)


def bench(
    experiment: Annotated[str, typer.Argument(help="What to measure.", metavar="EXPERIMENT")],
    folder: Annotated[Path, typer.Option("--folder", help="Where graphs and runs are kept.")] = Path(
        "bench-data"
    ),
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", help="Smaller or larger than the standard 2,000,000 (papers100m: 111,059,956)."
        ),
    ] = None,
    fanouts: common.Fanouts = "10,10",
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", help="Seeds of a batch: 1024; scale-out: 256.")
    ] = None,
    sampler: common.Sampler = "neighbor",
    batch_dependency: common.BatchDependency = 1,
    cap: Annotated[
        float | None,
        typer.Option("--cap", help="Budget as a share of the feature bytes: 0.1; scale-out: 0.5."),
    ] = None,
    model: Annotated[str, typer.Option("--model")] = "sage",
    modes: Annotated[
        str, typer.Option("--modes", help="Which to compare.")
    ] = "packed,memory,online,ondisk,memmap",
    epochs: Annotated[int, typer.Option("--epochs", help="Per process, for packed and memory.")] = 5,
    rounds: Annotated[int, typer.Option("--rounds")] = 2,
    skew: Annotated[
        float | None, typer.Option("--skew", help="How uneven degrees are: 0 flat, the standard graph 0.67.")
    ] = None,
    caps: Annotated[
        str, typer.Option("--caps", help="memory-curve: budgets as shares of the features.")
    ] = "0.01,0.05,0.1,0.2,0.3,0.5",
    kind: Annotated[
        str, typer.Option("--kind", help="sbm, or typed: a graph with types; as of outcrop generate.")
    ] = "sbm",
    no_rows: Annotated[
        str | None, typer.Option("--no-rows", help="typed: for nodes without features; as of outcrop train.")
    ] = None,
    edge_rows: Annotated[
        bool,
        typer.Option(
            "--edge-rows", help="typed: batches have the features of their edges, whatever the model."
        ),
    ] = False,
    sizes: Annotated[
        str, typer.Option("--sizes", help="scale: numbers of nodes.")
    ] = "500000,1000000,2000000,4000000",
    cells: Annotated[int, typer.Option("--cells", help="regimes: how many cells of the grid.")] = 20,
    machines: Annotated[
        str, typer.Option("--machines", help="scale-out: numbers of machines.")
    ] = "1,2,4,8,16",
    network: Annotated[
        str, typer.Option("--network", help="scale-out: what a machine sends, such as 25Gbit/s.")
    ] = "25Gbit/s",
    graph: Annotated[
        list[Path] | None,
        typer.Option("--graph", help="quality, embed: imported graphs, one option for each."),
    ] = None,
    feature_dtypes: Annotated[
        str,
        typer.Option(
            "--feature-dtypes",
            help="quality: also with features in few bits, such as int8:column,int8:row,uint4:column,uint4:row.",
        ),
    ] = "",
    name: Annotated[
        str | None,
        typer.Option("--name", help="gpu: which figure or table (docs/gpu-benchmarks.md)."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw the result: an .svg or .html file.", metavar="FILE"),
    ] = None,
    json: common.Json = None,
    quiet: common.Quiet = False,
) -> None:
    if experiment not in EXPERIMENTS:
        raise ArgumentError(f"experiment {experiment!r} is unknown; known: {', '.join(EXPERIMENTS)}")
    from outcrop.bench import (
        checks,
        cost_model,
        curves,
        embed,
        epoch,
        gpu_figures,
        infer,
        io,
        layout,
        new_batches,
        orders,
        origin,
        papers100m,
        paranoid,
        pipeline,
        prepare,
        quality,
        regimes,
        scale_out,
        small_batches,
        typed_models,
        typed_quality,
        typed_sampling,
    )
    from outcrop.report import benches, page

    if plot is not None:
        benches.check_plot(plot)
    setting = epoch.Setting(
        _shape(nodes, skew, kind),
        fanouts,
        batch_size or 1024,
        0.1 if cap is None else cap,
        model,
        epochs=epochs,
        rounds=rounds,
        sampler=sampler,
        dependency=batch_dependency,
        no_rows=no_rows or ("random:64" if kind == "typed" else None),
        edge_rows=edge_rows,
    )
    folder.mkdir(parents=True, exist_ok=True)

    def say(text: str) -> None:
        if not quiet:
            printing.console.print(text)

    names = modes.split(",")
    run: dict[str, Callable[[], dict[str, Any]]] = {
        "epoch": lambda: epoch.epoch(folder, setting, names, say),
        "loader": lambda: epoch.loader(folder, setting, names, say),
        "prepare": lambda: prepare.run(folder, setting, say),
        "regimes": lambda: regimes.run(folder, cells, rounds, say),
        "small-batches": lambda: small_batches.run(folder, setting, say),
        "new-batches": lambda: new_batches.run(
            folder, setting, new_batches.CAPS if cap is None else (cap,), say
        ),
        "infer": lambda: infer.run(folder, setting, say),
        "layout": lambda: layout.run(folder, setting, say),
        "pipeline": lambda: pipeline.run(folder, setting, names, say),
        "memory-curve": lambda: curves.memory_curve(folder, setting, names, _numbers(caps, float), say),
        "scale": lambda: curves.scale(folder, setting, _numbers(sizes, int), say),
        "scale-out": lambda: scale_out.run(
            folder,
            scale_out.ScaleOut(
                replace(
                    setting,
                    shape=scale_out.shape_of(nodes),
                    batch_size=batch_size or scale_out.BATCH_SIZE,
                    cap=scale_out.CAP if cap is None else cap,
                ),
                tuple(_numbers(machines, int)),
                ClusterConfig(network=network),
            ),
            say,
        ),
        "papers100m": lambda: papers100m.run(
            folder,
            papers100m.Size(nodes or papers100m.NODES, fanouts, setting.batch_size),
            say,
        ),
        "quality": lambda: (
            typed_quality.run(folder, setting, say)
            if kind == "typed" and not graph
            else quality.run(
                graph or [], folder, names, setting, say, [one for one in feature_dtypes.split(",") if one]
            )
        ),
        "cost-model": lambda: cost_model.run(folder, setting, say),
        "checks": lambda: checks.run(folder, setting, say),
        "paranoid": lambda: paranoid.run(folder, setting, say),
        "io": lambda: io.run(folder, size_bytes=2 << 30, seconds=5),
        "orders": lambda: orders.run(orders.PARTITIONS, orders.BUFFERS, say),
        "embed": lambda: embed.run(folder, nodes or 1_000_000, graph or [], rounds, say),
        "embed-large": lambda: embed.large(folder, embed.Large(nodes or 10_000_000), say),
        "typed-models": lambda: typed_models.run(
            folder, replace(setting, shape=_shape(nodes, skew, "typed"), no_rows=no_rows or "random:64"), say
        ),
        "typed-sampling": lambda: typed_sampling.run(
            folder, replace(setting, shape=_shape(nodes, skew, "typed")), say
        ),
        "gpu": lambda: gpu_figures.run(
            name,
            folder,
            rounds,
            say,
            sizes=gpu_figures.Sizes(graph=_shape(nodes, skew)),
            path=None if json == common.STANDARD_OUTPUT else json,
        ),
    }
    result = run[experiment]()
    result = {**origin.origin(experiment), **result}
    common.write_json(json, result)
    if plot is not None:
        page.write(plot, benches.plot(result, plot))
    if not quiet:
        _print(experiment, result, setting)


def _shape(nodes: int | None, skew: float | None, kind: str = "sbm") -> GraphShape:
    if kind == "typed":
        return (
            TYPED
            if nodes is None
            else replace(TYPED, name=f"{TYPED.name}-{nodes}", nodes=nodes, edges=9 * nodes)
        )
    if kind != "sbm":
        raise ArgumentError(f"kind {kind!r} is unknown here; known: sbm, typed")
    shape = GraphShape() if nodes is None else GraphShape(name=f"sbm-{nodes}", nodes=nodes, edges=15 * nodes)
    return shape if skew is None else replace(shape, name=f"{shape.name}-skew{skew:g}", skew=skew)


def _numbers(text: str, kind: type[N]) -> list[N]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentError(f"{text!r} is no list of numbers, such as 1,2,3") from None


def _print(experiment: str, result: dict[str, Any], setting: Setting) -> None:
    if "columns" in result:
        printing.print_table(result["columns"], result["rows"], experiment)
        if "says" in result:
            printing.print_line(result["says"])
        return
    cap = f"cap {setting.cap:.0%} = {format_bytes(setting.memory)}, fanouts {setting.fanouts}"
    if experiment == "epoch":
        rows = [
            [
                mode,
                f"{r['seconds']:.2f} s",
                f"{r['against_memory']:.2f}x" if r["against_memory"] else "-",
                f"{r['load_seconds']:.2f} s",
                format_bytes(r["bytes_read"]),
                "-" if r["read_amplification"] is None else f"{r['read_amplification']:.3f}",
                format_bytes(r["peak_host_bytes"]),
            ]
            for mode, r in result["modes"].items()
        ]
        printing.print_table(
            ["mode", "epoch", "to memory", "waiting", "read", "read/needed", "held"], rows, cap
        )
        _print_row_files(result["modes"])
        same = f"losses identical: {result['first_20_losses_identical']}"
        if (bare := result["bare_products_seconds"]) is None:
            printing.print_line(same)
            return
        printing.print_line(
            f"bare products of the same shapes: {bare:.2f} s; memory is "
            f"{result['memory_against_bare'] or float('nan'):.2f}x; {same}"
        )
    elif experiment == "loader":
        rows = [
            [
                mode,
                f"{r['seconds']:.3f} s",
                f"{r['delivered_bytes_per_s'] / 1e9:.2f} GB/s",
                f"{r['bytes_read'] / r['seconds'] / 1e9:.2f} GB/s",
                f"{r['of_limit']:.2f}",
                format_bytes(r["bytes_read"]),
            ]
            for mode, r in result["modes"].items()
        ]
        printing.print_table(["mode", "epoch", "delivered", "from disk", "of limit", "read"], rows, cap)
    else:
        rows = [
            [name, case["ours"], case.get("fio", case.get("engine")), case["ratio"], case["cores"]]
            for name, case in result.items()
            if isinstance(case, dict) and "ratio" in case
        ]
        printing.print_table(
            ["case", "outcrop", "fio (rings: engine)", "ratio", "cores"],
            [[r[0], *(f"{v:.4g}" if v else "-" for v in r[1:])] for r in rows],
        )


def _print_row_files(modes: dict[str, dict[str, Any]]) -> None:
    """Prints what mode packed read of each row file, where there are several."""
    files = modes["packed"]["row_files"] if "packed" in modes else []
    if len(files) > 1:
        rows = [
            [
                of["of"],
                format_bytes(of["bytes_needed"]),
                format_bytes(of["bytes_predicted"]),
                "-" if of["read_amplification"] is None else f"{of['read_amplification']:.3f}",
            ]
            for of in files
        ]
        printing.print_table(
            ["rows of", "needed", "read, as predicted", "read/needed"], rows, "packed, by row file"
        )
