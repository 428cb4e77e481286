"""``outcrop bench EXPERIMENT``."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outcrop.cli import common
from outcrop.config import format_bytes
from outcrop.errors import ArgumentError

if TYPE_CHECKING:
    from outcrop.bench.epoch import Setting

EXPERIMENTS = ("epoch", "loader", "prepare", "io")


def add_commands(app: typer.Typer) -> None:
    app.command(
        "bench",
        help="Measure: epoch, loader, prepare or io.\n\n"
        "Example: outcrop bench epoch --folder /data/bench --json epoch.json",
    )(bench)


def bench(
    experiment: Annotated[str, typer.Argument(help="epoch, loader, prepare or io.", metavar="EXPERIMENT")],
    folder: Annotated[Path, typer.Option("--folder", help="Where graphs and runs are kept.")] = Path(
        "bench-data"
    ),
    nodes: Annotated[
        int | None, typer.Option("--nodes", help="Smaller or larger than the standard 2,000,000.")
    ] = None,
    fanouts: common.Fanouts = "10,10",
    batch_size: Annotated[int, typer.Option("--batch-size")] = 1024,
    cap: Annotated[float, typer.Option("--cap", help="Budget as a share of the feature bytes.")] = 0.1,
    model: Annotated[str, typer.Option("--model")] = "sage",
    modes: Annotated[
        str, typer.Option("--modes", help="Which to compare.")
    ] = "packed,memory,online,ondisk,memmap",
    epochs: Annotated[int, typer.Option("--epochs", help="Per process, for packed and memory.")] = 5,
    rounds: Annotated[int, typer.Option("--rounds")] = 2,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw the result: an .svg or .html file.", metavar="FILE"),
    ] = None,
    json: common.Json = None,
    quiet: common.Quiet = False,
) -> None:
    if experiment not in EXPERIMENTS:
        raise ArgumentError(f"experiment {experiment!r} is unknown; known: {', '.join(EXPERIMENTS)}")
    from outcrop.advisor import machine
    from outcrop.bench import epoch, io
    from outcrop.config import GraphShape
    from outcrop.report import benches, page

    if plot is not None:
        benches.check_plot(plot)
    shape = GraphShape() if nodes is None else GraphShape(name=f"sbm-{nodes}", nodes=nodes, edges=15 * nodes)
    setting = epoch.Setting(shape, fanouts, batch_size, cap, model, epochs=epochs, rounds=rounds)
    folder.mkdir(parents=True, exist_ok=True)

    def say(text: str) -> None:
        if not quiet:
            common.console.print(text)

    names = modes.split(",")
    if experiment == "io":
        result = io.run(folder, size_bytes=2 << 30, seconds=5)
    elif experiment == "prepare":
        result = epoch.prepare(folder, setting, say)
    else:
        result = (epoch.epoch if experiment == "epoch" else epoch.loader)(folder, setting, names, say)
    result = {"experiment": experiment, "machine": machine.describe(), "revision": _revision(), **result}
    common.write_json(json, result)
    if plot is not None:
        page.write(plot, benches.plot(result, plot))
    if not quiet:
        _print(experiment, result, setting)


def _revision() -> str | None:
    """Git revision of the source tree, where this runs from one."""
    done = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or None


def _print(experiment: str, result: dict[str, Any], setting: Setting) -> None:
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
        common.print_table(
            ["mode", "epoch", "to memory", "waiting", "read", "read/needed", "held"], rows, cap
        )
        common.out.print(
            f"bare products of the same shapes: {result['bare_products_seconds']:.2f} s; memory is "
            f"{result['memory_against_bare'] or float('nan'):.2f}x; losses identical: "
            f"{result['first_20_losses_identical']}",
            highlight=False,
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
        common.print_table(["mode", "epoch", "delivered", "from disk", "of limit", "read"], rows, cap)
    elif experiment == "prepare":
        stages = result["result"]["stage_seconds"]
        common.print_facts(
            {
                "prepare": f"{result['result']['seconds']:.1f} s",
                **{k: f"{v:.1f} s" for k, v in stages.items()},
                "read": format_bytes(result["result"]["bytes_read"]),
                "written": format_bytes(result["result"]["bytes_written"]),
            }
        )
    else:
        rows = [
            [name, case["ours"], case["fio"], case["ratio"]]
            for name, case in result.items()
            if isinstance(case, dict) and "ratio" in case
        ]
        common.print_table(
            ["case", "outcrop", "fio", "ratio"],
            [[r[0], *(f"{v:.4g}" if v else "-" for v in r[1:])] for r in rows],
        )
