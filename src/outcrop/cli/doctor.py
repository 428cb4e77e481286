"""``outcrop doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from outcrop.cli import common, printing
from outcrop.config import format_bytes
from outcrop.errors import ArgumentError

if TYPE_CHECKING:
    from outcrop.store.graph import Graph
    from outcrop.store.profile import Profile


def add_commands(app: typer.Typer) -> None:
    app.command(
        "doctor",
        help="Say what this machine offers and what is missing.\n\nExample: outcrop doctor --folder /data",
    )(doctor)


def doctor(
    folder: Annotated[
        Path,
        typer.Option(
            "--folder", help="Measure the disk under this folder; of a graph with types, say what it takes."
        ),
    ] = Path(),
    measure: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Measure disk, memory, computing (about 15 s).")
    ] = True,
    save: Annotated[
        Path | None,
        typer.Option("--save", help="Write the profile here, not where Outcrop keeps it.", metavar="FILE"),
    ] = None,
    json: common.Json = None,
    quiet: common.Quiet = False,
) -> None:
    from outcrop.runtime import machine

    if save is not None and not measure:
        raise ArgumentError("--save keeps what is measured: leave --no-measure out")
    if measure and not folder.is_dir():
        raise ArgumentError(f"--folder {folder} is no folder: name one on the disk that is to be measured")
    about = machine.describe()
    found = _measure(about, folder, save, quiet) if measure else None
    if (graph := _typed_graph(folder)) is not None:
        from outcrop.api.describe import describe_graph

        if found is not None and not quiet:
            _say(f"counting batches of a graph with the shape of {folder}, smaller where it is large")
        about["graph"] = describe_graph(graph, found)
    common.write_json(json, about)
    if not quiet:
        _print(about, found)


def _typed_graph(folder: Path) -> Graph | None:
    """Opens the graph in ``folder``; None: there is none, or one without types."""
    from outcrop.store import manifest as manifests
    from outcrop.store.graph import FORMAT, open_graph

    if not manifests.exists(folder) or manifests.kind(folder) != FORMAT:
        return None
    graph = open_graph(folder)
    return graph if graph.is_typed else None


def _print(about: dict[str, Any], found: Profile | None) -> None:
    """Prints what :func:`doctor` found."""
    facts: dict[str, object] = {
        "cpu": f"{about['cpu']}, {about['cores']} cores",
        "memory": format_bytes(about["memory_bytes"]),
        "kernel": about["kernel"],
        "I/O engine": about["io_backend"],
        "GPU": ", ".join(about["gpus"]) or "none",
        "versions": ", ".join(f"{k} {v or 'missing'}" for k, v in about["versions"].items()),
    }
    if found is not None:
        disk = about["disk"]
        facts["disk, sequential"] = f"{disk['sequential_bytes_per_s'] / 1e9:.2f} GB/s"
        facts["disk, random 4 KiB"] = f"{disk['random_ops_per_s'] / 1e3:.1f} k reads/s"
        if about["gpus"]:
            facts["rings for a GPU"] = _rings(found)
        facts["O_DIRECT"] = "yes" if disk["direct"] else "no"
        facts["memory, moved and picked"] = (
            f"{found.copy_bytes_per_s / 1e9:.1f} and {found.gather_bytes_per_s / 1e9:.1f} GB/s"
        )
        facts["training step"] = ", ".join(f"{k} {1e3 * v:.0f} ms" for k, v in found.steps.items())
        facts["profile"] = about["profile_path"] or "not kept: its folder cannot be written"
    printing.print_facts(facts)
    for advice in _advice(about):
        printing.print_line(f"- {advice}")
    if "graph" in about:
        _print_graph(about["graph"])


def _print_graph(graph: dict[str, Any]) -> None:
    """Prints what a graph with types holds, whether memory holds it here, and what training it would take."""
    from outcrop.cli.advise import summarize_described

    facts = {of["name"]: f"{of['num_nodes']:,} nodes, {_rows_in_words(of)}" for of in graph["node_types"]}
    facts |= {
        of["name"]: f"{of['num_edges']:,} edges in {of['num_lists']:,} neighbor lists, {_rows_in_words(of)}"
        for of in graph["edge_types"]
    }
    printing.print_line("")
    printing.print_facts(facts)
    fits = {True: "fit", False: "do not fit"}
    printing.print_line(
        f"rows {format_bytes(graph['feature_bytes'])} {fits[graph['fits']['rows']]}, neighbor lists "
        f"{format_bytes(graph['topology_bytes'])} {fits[graph['fits']['lists']]} the "
        f"{format_bytes(graph['memory'])} of memory that training may hold here"
    )
    if graph["training"] is None:
        printing.print_line(f"what training takes is not said: {graph['why']}")
    else:
        summarize_described(graph["training"])
        printing.print_line(f"outcrop advise {graph['path']} counts on the graph itself")


def _rows_in_words(of: dict[str, Any]) -> str:
    return f"rows of {of['row_bytes']:,} bytes: {format_bytes(of['bytes'])}" if of["row_bytes"] else "no rows"


def _rings(profile: Profile) -> str:
    """Says what keeps this disk busy where kernels ask for rows (``--io gpu``)."""
    from outcrop.rows.rings.sizing import (
        block_threads,
        commands_under_way,
        disks_of,
        submitting_threads,
    )

    disks, bus = disks_of(profile)
    commands, threads = commands_under_way(disks, bus), submitting_threads(disks, bus)
    return (
        f"{commands} commands of {disks.op_bytes} bytes under way, put there by {threads} threads "
        f"(Hyperion, Equation 2; launched: {block_threads(disks, bus)})"
    )


def _measure(about: dict[str, Any], folder: Path, save: Path | None, quiet: bool) -> Profile:
    """Adds the profile, and the rates of the disk by themselves; keeps the profile and returns it."""
    from outcrop.advisor import machine
    from outcrop.store import profile as profiles

    found = machine.measure_profile(folder, say=(lambda text: None) if quiet else _say)
    path = save or profiles.default_path(found.key)
    try:
        profiles.write(path, found)
        about["profile_path"] = str(path)
    except OSError:
        if save is not None:
            raise
        about["profile_path"] = None
    about["profile"] = found.to_json()
    rates = dict(found.reads)
    about["disk"] = {
        "sequential_bytes_per_s": found.hardware().disk.bytes_per_s,
        "random_ops_per_s": rates[min(rates)],
        "backend": about["io_backend"],
        "direct": machine.direct_works(folder),
    }
    return found


def _say(text: str) -> None:
    """Writes a line at once, also where standard error is a file."""
    printing.console.print(Text(printing.printable(text)), soft_wrap=True, highlight=False)


def _advice(about: dict) -> list[str]:
    advice = []
    if about["io_backend"] != "io_uring":
        advice.append(
            "io_uring is not in use (forbidden here, or liburing was missing when Outcrop was built: "
            "apt-get install liburing-dev, then install Outcrop again); the pread threads do the same, slower"
        )
    if "disk" in about and not about["disk"]["direct"]:
        advice.append("this file system has no O_DIRECT: reads go through the page cache")
    if not about["gpus"]:
        advice.append("no CUDA device: training runs on the CPU (--device cpu)")
    return advice
