"""``outcrop embed``: graph embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outcrop.cli import common

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
    bare = len(made.bare_swaps)
    common.print_facts(
        {
            "order": f"{made.name}, {partitions} partitions, {buffer} resident; verified: every bucket once",
            "states": f"{len(made.states)} (with one load a swap at least {least_states(partitions, buffer)})",
            "loads": f"{made.num_loads} partitions, {made.num_loads / partitions:.2f} times the table",
            "swaps": f"{len(made.swaps)}, {'all hidden' if not bare else f'{bare} with nothing to train meanwhile'}",
        }
    )
    common.print_table(
        ["state", "resident", "trained before the swap", "during it", "out", "in"], _rows(made)
    )


def as_json(order: Order) -> dict[str, Any]:
    """``states``: ids; ``buckets``: per state, in sequence; ``overlapped``: those trained during each swap."""
    return {
        "order": order.name,
        "partitions": order.partitions,
        "buffer": order.buffer,
        "states": order.states,
        "buckets": order.buckets,
        "overlapped": order.overlapped,
        "loads": order.num_loads,
        "bare_swaps": order.bare_swaps,
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
