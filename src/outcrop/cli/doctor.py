"""``outcrop doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outcrop.cli import common
from outcrop.config import format_bytes


def add_commands(app: typer.Typer) -> None:
    app.command(
        "doctor",
        help="Say what this machine offers and what is missing.\n\nExample: outcrop doctor --folder /data",
    )(doctor)


def doctor(
    folder: Annotated[Path, typer.Option("--folder", help="Measure the disk under this folder.")] = Path(),
    measure: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Measure read rates (about 5 s).")
    ] = True,
    json: common.Json = None,
    quiet: common.Quiet = False,
) -> None:
    from outcrop.advisor import machine

    about = machine.describe()
    if measure:
        about["disk"] = machine.measure_disk(folder)
    common.write_json(json, about)
    if quiet:
        return
    facts: dict[str, object] = {
        "cpu": f"{about['cpu']}, {about['cores']} cores",
        "memory": format_bytes(about["memory_bytes"]),
        "kernel": about["kernel"],
        "I/O engine": about["io_backend"],
        "GPU": ", ".join(about["gpus"]) or "none",
        "versions": ", ".join(f"{k} {v or 'missing'}" for k, v in about["versions"].items()),
    }
    if measure:
        disk = about["disk"]
        facts["disk, sequential"] = f"{disk['sequential_bytes_per_s'] / 1e9:.2f} GB/s"
        facts["disk, random 4 KiB"] = f"{disk['random_ops_per_s'] / 1e3:.1f} k reads/s"
        facts["O_DIRECT"] = "yes" if disk["direct"] else "no"
    common.print_facts(facts)
    for advice in _advice(about):
        common.out.print(f"- {advice}", highlight=False)


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
