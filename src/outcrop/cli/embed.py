"""``outcrop embed``: graph embeddings."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outcrop.cli import common, printing
from outcrop.cli.options import Fields, with_options
from outcrop.config import BucketConfig, EmbedConfig, Limits, format_bytes
from outcrop.runtime.observer import Observer

if TYPE_CHECKING:
    from outcrop.embed.orders import Order

Partitions = Annotated[
    int, typer.Option("--partitions", min=1, help="Parts that the nodes are divided into.")
]
Buffer = Annotated[int, typer.Option("--buffer", help="Partitions that are resident at a time.")]
OrderName = Annotated[str, typer.Option("--order", help="best, legend, beta or cover.")]


def add_commands(app: typer.Typer) -> None:
    embed = typer.Typer(no_args_is_help=True, help="Train graph embeddings larger than memory.")
    embed.command(
        "orders",
        help="Print an order: which partitions are resident when, what is trained, and what hides each swap.\n\n"
        "Example: outcrop embed orders --partitions 12 --buffer 3 --order best",
    )(orders)
    embed.command(
        "prepare",
        help="Sort the edges of an imported graph into buckets of partitions.\n\n"
        "Example: outcrop embed prepare fb15k.kg fb15k.emb --partitions 8",
    )(common.with_config(with_options(prepare, config=(BucketConfig, Fields(_BUCKETS)))))
    embed.command(
        "train",
        help="Train embeddings; goes on from the last checkpoint.\n\n"
        "Example: outcrop embed train fb15k.emb --model complex --dim 100 --epochs 30 --memory 2GiB",
    )(
        common.with_config(
            with_options(
                train,
                config=(EmbedConfig, Fields(_CONFIG, _FLAGS)),
                limits=(Limits, Fields(("memory", "gpu_memory"))),
            )
        )
    )
    embed.command(
        "eval",
        help="Rank held-out edges: MRR, mean rank, Hits@1/3/10.\n\nExample: outcrop embed eval fb15k.emb --split test",
    )(common.with_config(evaluate))
    embed.command(
        "export",
        help="Write vectors, with the names of the source, for other programs.\n\n"
        "Example: outcrop embed export fb15k.emb --format parquet --out vectors",
    )(common.with_config(export))
    for name, hidden in (("neighbors", False), ("neighbours", True)):
        embed.command(
            name,
            hidden=hidden,
            help="Show the nodes nearest to one.\n\nExample: outcrop embed neighbors fb15k.emb /m/0f8l9c",
        )(neighbors)
    app.add_typer(embed, name="embed")


def orders(
    partitions: Partitions = 12,
    buffer: Buffer = 3,
    order: OrderName = "best",
    defer: Annotated[
        bool | None,
        typer.Option(
            "--defer/--eager",
            help="Keep buckets back for the swaps that need them; default: for best only, as in the papers.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw the order: an .svg or .html file.", metavar="FILE")
    ] = None,
    json: common.Json = None,
    quiet: common.Quiet = False,
) -> None:
    from outcrop.embed.orders import least_states, make_order
    from outcrop.report import benches
    from outcrop.report import orders as drawings
    from outcrop.report import page as pages

    if plot is not None:
        benches.check_plot(plot)
    made = make_order(order, partitions, buffer, defer=defer)
    if plot is not None:
        pages.write(plot, drawings.draw(made) if plot.suffix == ".svg" else drawings.page(made))
    common.write_json(json, as_json(made))
    if quiet:
        return
    bare = len(made.exposed_swaps)
    printing.print_facts(
        {
            "order": f"{made.name}, {partitions} partitions, {buffer} resident; verified: every bucket once",
            "states": f"{len(made.states)} (with one load a swap at least {least_states(partitions, buffer)})",
            "loads": f"{made.num_loads} partitions, {made.num_loads / partitions:.2f} times the table",
            "swaps": f"{len(made.swaps)}, {'all hidden' if not bare else f'{bare} with nothing to train meanwhile'}",
        }
    )
    printing.print_table(
        ["state", "resident", "trained before the swap", "during it", "out", "in"], _rows(made)
    )


def as_json(order: Order) -> dict[str, Any]:
    """Returns an order as plain values. ``states``: ids; ``buckets``: per state, in sequence; ``overlapped``: those
    trained during each swap.
    """
    return {
        "order": order.name,
        "partitions": order.partitions,
        "buffer": order.buffer,
        "states": order.states,
        "buckets": order.buckets,
        "overlapped": order.overlapped,
        "loads": order.num_loads,
        "bare_swaps": order.exposed_swaps,
    }


def _rows(order: Order) -> list[list[str]]:
    rows = []
    for s, (state, buckets) in enumerate(zip(order.states, order.buckets, strict=True)):
        last = s == len(order.swaps)
        meanwhile = () if last else order.overlapped[s]
        evicted, loaded = ((), ()) if last else order.swaps[s]
        before = buckets[: len(buckets) - len(meanwhile)]
        rows.append(
            [
                str(s),
                _ids(state),
                _buckets(before),
                "" if last else _buckets(meanwhile) or "nothing",
                _ids(evicted),
                _ids(loaded),
            ]
        )
    return rows


def _ids(partitions: tuple[int, ...]) -> str:
    return " ".join(map(str, sorted(partitions)))


def _buckets(buckets: tuple[tuple[int, int], ...]) -> str:
    return " ".join(f"{i}>{j}" for i, j in buckets)


Epoch = Annotated[
    str,
    typer.Option(
        "--epoch", help="Whose vectors: best (by its validation edges, where training ranked them) or last."
    ),
]
RunFolder = Annotated[
    Path, typer.Argument(help="Embedding run, made by outcrop embed prepare.", metavar="RUN")
]


def prepare(
    graph: Annotated[
        Path, typer.Argument(help="Graph or knowledge graph, made by outcrop import.", metavar="GRAPH")
    ],
    run: Annotated[Path, typer.Argument(help="Folder of the run to make.", metavar="RUN")],
    *,
    config: BucketConfig,
    dim: Annotated[int, typer.Option("--dim", help="Floats of a vector, where --memory decides.")] = 100,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace buckets of other options that nothing was trained on."),
    ] = False,
    memory: common.Memory = None,
    json: common.Json = None,
    quiet: common.Quiet = False,
) -> None:
    common.load_torch(quiet)
    from outcrop.api.embed import embed_prepare

    with common.progress_bars(quiet) as progress:
        made = embed_prepare(
            graph, run, config, dim=dim, memory=memory, overwrite=overwrite, progress=progress
        )
    facts = {
        "nodes": made.num_nodes,
        "relations": made.num_relations,
        "partitions": made.partitions,
        "slices": made.slices,
        "train": made.num_edges,
        "valid": made.count("valid"),
        "test": made.count("test"),
    }
    common.write_json(json, facts)
    if not quiet:
        printing.print_facts({name: f"{value:,}" for name, value in facts.items()})


_BUCKETS = ("partitions", "slices", "numbering", "valid_fraction", "test_fraction", "seed")
_CONFIG = [field.name for field in fields(EmbedConfig)]
_FLAGS = {
    "learning_rate": ("--learning-rate", "--lr"),
    "relation_learning_rate": ("--relation-learning-rate", "--relation-lr"),
    "keep_best": ("--keep-best/--no-keep-best",),
}


def train(
    run: RunFolder,
    *,
    config: EmbedConfig,
    resident: Annotated[
        bool | None,
        typer.Option(
            "--resident/--swapping",
            help="All partitions in memory, or --buffer of them; default: all where --memory has room.",
        ),
    ] = None,
    prefetch: Annotated[
        bool, typer.Option("--prefetch/--no-prefetch", help="Swap while training goes on, or after it.")
    ] = True,
    limits: Limits,
    device: common.Device = "cpu",
    io: Annotated[
        str, typer.Option("--io", help="Of a GPU, who moves partitions from and to disk: engine or gpu.")
    ] = "engine",
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over.")] = False,
    checkpoint_minutes: Annotated[
        float,
        typer.Option("--checkpoint-minutes", help="Between checkpoints within an epoch; each ends with one."),
    ] = 5.0,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Write spans of all stages to this JSONL file.")
    ] = None,
    json: common.Json = None,
    quiet: common.Quiet = False,
) -> None:
    leads = _leads()
    quiet = quiet or not leads
    common.load_torch(quiet)
    from outcrop.api.embed import embed_train

    with common.progress_bars(quiet) as progress:
        report = embed_train(
            run,
            config,
            limits=limits,
            resident=resident,
            fresh=fresh,
            checkpoint_seconds=60 * checkpoint_minutes,
            prefetch=prefetch,
            device=device,
            io=io,
            observer=Observer(progress, trace),
        )
    if leads:
        common.write_json(json, report.as_dict())
    if quiet:
        return
    mrr = {ranking["epoch"]: f"{ranking['mrr']:.4f}" for ranking in report.rankings}
    rows = [
        [
            str(e["epoch"]),
            f"{e['loss']:.4f}",
            *([mrr.get(e["epoch"], "")] if mrr else []),
            f"{e['seconds']:.2f} s",
            f"{e['edges_per_s']:,.0f}",
            f"{sum(e['waits']):.2f} s",
            format_bytes(e["bytes_read"]),
            format_bytes(e["bytes_written"]),
        ]
        for e in report.epochs
    ]
    ranked = ["valid MRR"] if mrr else []
    printing.print_table(["epoch", "loss", *ranked, "time", "edges/s", "waiting", "read", "written"], rows)
    held = "all" if report.resident else f"{report.buffer} of {report.partitions}"
    facts: dict[str, object] = {
        "partitions in memory": held,
        "peak memory": format_bytes(report.peak_host_bytes),
    }
    if report.best_epoch is not None:
        kept = "" if report.best_kept else "; its vectors are not kept"
        facts["best epoch"] = (
            f"{report.best_epoch}, MRR {mrr[report.best_epoch]} on the validation edges{kept}"
        )
    if report.stopped_early:
        facts["stopped early"] = "validation got no better for as long as --patience asks"
    elif report.resumed_epoch is not None:
        facts["training"] = _resumed(report.resumed_epoch, len(report.epochs))
    printing.print_facts(facts)


def _leads() -> bool:
    """Tells whether this is the process that says what came out, of those that torchrun has started."""
    return os.environ.get("RANK", "0") == "0"


def _resumed(before: int, epochs: int) -> str:
    """Says what the checkpoint had, and whether anything was trained now."""
    if before < epochs:
        return f"went on from epoch {before} of the checkpoint"
    return f"already trained {epochs} epochs: nothing was left to do; more with --epochs, anew with --fresh"


def evaluate(
    run: RunFolder,
    split: Annotated[str, typer.Option("--split", help="valid or test.")] = "test",
    filtered: Annotated[
        bool, typer.Option("--filtered/--raw", help="Leave out candidates that make another known edge.")
    ] = True,
    candidates: Annotated[
        int | None, typer.Option("--candidates", help="Rank among so many nodes drawn; default: all nodes.")
    ] = None,
    by_degree: Annotated[
        bool, typer.Option("--by-degree", help="Draw them in proportion to degree.")
    ] = False,
    epoch: Epoch = "best",
    memory: common.Memory = None,
    seed: common.Seed = 0,
    json: common.Json = None,
    quiet: common.Quiet = False,
) -> None:
    from dataclasses import asdict

    leads = _leads()
    quiet = quiet or not leads
    common.load_torch(quiet)
    from outcrop.api.embed import embed_eval

    with common.progress_bars(quiet) as progress:
        found = embed_eval(
            run,
            split,
            filtered=filtered,
            candidates=candidates,
            by_degree=by_degree,
            seed=seed,
            epoch=epoch,
            memory=memory,
            progress=progress,
        )
    if leads:
        common.write_json(json, asdict(found))
    if quiet:
        return
    rows = [
        [name, f"{m.mrr:.4f}", f"{m.mean_rank:.1f}", *(f"{hits:.4f}" for hits in m.hits.values())]
        for name, m in {"both": found, **found.sides}.items()
    ]
    printing.print_table(["end looked for", "MRR", "mean rank", *(f"Hits@{k}" for k in found.hits)], rows)
    printing.print_facts(
        {
            "ranks": found.protocol,
            "edges": f"{found.edges:,}",
            "vectors": f"{'within' if found.within_epoch else 'of'} epoch {found.epoch}",
        }
    )


def export(
    run: RunFolder,
    format: Annotated[
        str, typer.Option("--format", help="npy, parquet, safetensors, or features (of an import).")
    ] = "npy",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for the files; default: RUN/export.", metavar="FOLDER"),
    ] = None,
    epoch: Epoch = "best",
    memory: common.Memory = None,
    json: common.Json = None,
    quiet: common.Quiet = False,
) -> None:
    common.load_torch(quiet)
    from outcrop.api.embed import embed_export

    with common.progress_bars(quiet) as progress:
        made = embed_export(run, format, out, epoch=epoch, memory=memory, progress=progress)
    common.write_json(json, {"files": {str(path): path.stat().st_size for path in made}})
    if not quiet:
        printing.print_facts({str(path): format_bytes(path.stat().st_size) for path in made})


def neighbors(
    run: RunFolder,
    name: Annotated[
        str, typer.Argument(help="Name of a node, or its id where nodes have none.", metavar="NAME")
    ],
    count: Annotated[int, typer.Option("--count", min=1)] = 10,
    metric: Annotated[str, typer.Option("--metric", help="cosine, dot or euclidean.")] = "cosine",
    epoch: Epoch = "best",
    memory: common.Memory = None,
    json: common.Json = None,
    quiet: common.Quiet = False,
) -> None:
    common.load_torch(quiet)
    from outcrop.api.embed import embed_neighbors

    found = embed_neighbors(run, name, count=count, metric=metric, epoch=epoch, memory=memory)
    common.write_json(
        json, {"node": name, "neighbours": [{"id": i, "name": n, "distance": d} for i, n, d in found]}
    )
    if not quiet:
        rows = [[str(i) if n is None else n, f"{d:.4f}"] for i, n, d in found]
        printing.print_table([f"nearest to {name}", "distance"], rows)
