"""Puts the tables of docs/measured.md and README.md where their markers are, from the JSON of ``outcrop bench``;
and README without relative links into docs/package-index.md.

    python scripts/tables.py           writes them
    python scripts/tables.py --check   says what would change, and ends with status 1

A marker is a line ``<!-- table: NAME -->``; what follows it down to ``<!-- end -->`` is replaced. So no number of these
pages is typed by hand, and none can differ from what was measured (tests/docs/test_measured.py).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
MACHINE = "epyc-2core"  # of results that name no folder
PAGES = (ROOT / "docs" / "measured.md", ROOT / "README.md")
_EPOCH = "outcrop bench epoch --modes "
_CURVE = "outcrop bench memory-curve --batch-size 64"
INDEX = ROOT / "docs" / "package-index.md"  # the long description of the package
REFERENCE = "xeon-2core/epoch.json"  # other results say so where they are of another revision than this one
Result = dict[str, Any]
Rows = tuple[Sequence[str], Sequence[Sequence[str]]]

_MODES = {
    "memory": "everything in memory",
    "packed": "prepared once (`packed`)",
    "online": "nothing prepared (`online`)",
    "memory-fresh": "everything in memory, new batches in every epoch",
    "packed-fresh": "prepared (`packed`), new batches in every epoch",
    "fresh": "nothing prepared (`online`), new batches in every epoch",
    "refresh": "prepared anew for every epoch",
    "direct": "`online`, rows read as batches are drawn",
    "dynamic": "a cache of rows (`dynamic`)",
    "belady": "the best possible cache (`belady`)",
    "ondisk": "one read for each row (`ondisk`)",
    "memmap": "`numpy.memmap`",
}

MEMORY_FRESH = "memory-fresh"
# README's rows, and what is said of them: by whether new batches in every epoch were also drawn in memory.
_FIRST = {
    True: (MEMORY_FRESH, "packed-fresh", "fresh", "ondisk"),
    False: ("memory", "packed", "online", "ondisk"),
}
_SAID = {
    True: "The last row replays the batches of one epoch.",
    False: "All rows train on the same batches, those of one epoch replayed, and have the same losses, bit for bit.",
}


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit in ("B", "KiB") or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def given(result: Result) -> Rows:
    """The table that the benchmark prints itself."""
    return result["columns"], result["rows"]


def modes(result: Result, only: Sequence[str] | None = None) -> Rows:
    found = result["modes"]
    names = [m for m in (only or [*_MODES, *found]) if m in found]
    rows = [
        [
            _MODES.get(mode, f"`{mode}`"),
            f"{found[mode]['seconds']:.2f} s",
            f"{found[mode]['against_memory']:.2f}x",
            size(found[mode]["bytes_read"]),
            "-" if found[mode]["read_amplification"] is None else f"{found[mode]['read_amplification']:.2f}",
            size(found[mode]["peak_host_bytes"]),
        ]
        for mode in dict.fromkeys(names)
    ]
    return ("rows come from", "epoch", "against memory", "read", "read / needed", "memory held"), rows


def first(result: Result) -> Rows:
    """README's table: epoch, ratio and memory of four modes."""
    columns, rows = modes(result, _FIRST[MEMORY_FRESH in result["modes"]])
    picked = (0, 1, 2, 5)
    return [columns[i] for i in picked], [[row[i] for i in picked] for row in rows]


def loader(result: Result) -> Rows:
    rows = [
        [f"`{mode}`", f"{r['seconds']:.2f} s", size(r["bytes_read"]), f"{r['of_limit']:.2f}"]
        for mode, r in result["modes"].items()
    ]
    return ("mode", "epoch", "read", "share of what disk and memory could deliver"), rows


def io(result: Result) -> Rows:
    def row(name: str, r: Result, other: str, say: Callable[[float], str]) -> list[str]:
        return [name, say(r["ours"]), f"{say(r[other])} ({other})", f"{r['ratio']:.2f}", f"{r['cores']:.2f}"]

    def ops(value: float) -> str:
        return f"{value:,.0f}/s"

    rows = [
        row("4 KiB, random", result["random_4k"], "fio", ops),
        row("1 MiB, sequential", result["sequential_1m"], "fio", lambda value: f"{size(value)}/s"),
        row("4 KiB, random, through rings (`--io gpu`)", result["rings_4k"], "engine", ops),
    ]
    return ("requests", "Outcrop", "against", "ratio", "cores busy"), rows


def demo(result: Result) -> Rows:
    return ("", *result["columns"]), result["rows"]


def embeddings(result: Result) -> Rows:
    listed = result.get("graphs") or result["rows"]
    rows = []
    for r in listed:
        name = r["graph"] + (f", {r['partitions']} partitions" if "partitions" in r else "")
        scores = [f"{r[k]['mean']:.3f} ± {r[k]['deviation']:.3f}" for k in ("mrr", "hits@1", "hits@10")]
        rows.append([name, *scores, r["protocol"], str(r["seeds"]), f"{r['train_seconds']:.0f} s"])
    return ("graph", "MRR", "Hits@1", "Hits@10", "ranks", "seeds", "training"), rows


def embedding_speed(result: Result) -> Rows:
    rows = [
        [
            case,
            f"{r['edges']:,}",
            *(f"{r[kind]['seconds']:.2f} s" for kind in ("resident", "swapping", "not overlapped")),
            f"{r['against_resident']:.2f}x",
            f"{r['resident']['seconds'] / r['bare_seconds']:.2f}x",
            "yes" if r["identical_losses"] else "NO",
        ]
        for case, r in result["cases"].items()
    ]
    part = f"{result['buffer']} of {result['partitions']} in memory"
    return (
        "case", "edges", "all in memory", part, "the same, not overlapped", "part against all",
        "all against bare products", "same losses",
    ), rows  # fmt: skip


@dataclass(frozen=True)
class Table:
    """``command``: of results that do not name theirs. ``brief``: one line about its origin, with a link."""

    file: str
    command: str
    rows: Callable[[Result], Rows] = given
    brief: bool = False


TABLES = {
    "first": Table(REFERENCE, f"{_EPOCH}packed,memory,online,fresh,direct,ondisk --epochs 10", first, True),
    "epoch": Table(REFERENCE, f"{_EPOCH}packed,memory,online,fresh,direct,ondisk --epochs 10", modes),
    "demo": Table("demo.json", "outcrop demo", demo),
    "epoch-baselines": Table("epoch-baselines.json", "outcrop bench epoch --rounds 1 (topology by pages)", modes),
    "epoch-memmap": Table("epoch-memmap.json", f"{_EPOCH}packed,memory,online,ondisk,memmap", modes),
    "epoch-10m": Table("epoch-10m.json", "outcrop bench epoch --nodes 10000000 --cap 0.21", modes),
    "loader": Table("loader.json", "outcrop bench loader", loader),
    "prepare": Table("prepare.json", "outcrop bench prepare"),
    "memory-curve": Table("memory-curve.json", _CURVE),
    "memory-curve-packed": Table("memory-curve-packed.json", f"{_CURVE} --modes packed"),
    "memory-curve-online": Table("memory-curve-online.json", f"{_CURVE} --modes online,fresh"),
    "memory-curve-partition": Table("memory-curve-partition.json", f"{_CURVE} --modes packed,partition"),
    "scale": Table("scale.json", "outcrop bench scale"),
    "cost-model": Table("cost-model.json", "outcrop bench cost-model"),
    "layout": Table("layout.json", "outcrop bench layout"),
    "pipeline": Table("pipeline.json", "outcrop bench pipeline"),
    "pipeline-gat": Table("pipeline-gat.json", "outcrop bench pipeline --model gat"),
    "pipeline-gat-online": Table("pipeline-gat-online.json", "outcrop bench pipeline --model gat"),
    "io": Table("io.json", "outcrop bench io", io),
    "quality": Table("quality.json", "outcrop bench quality"),
    "embed-quality": Table("embed-quality.json", "python examples/embed/quality.py", embeddings),
    "embed-partitions": Table("embed-partitions.json", "python examples/embed/quality.py", embeddings),
    "embed": Table("embed.json", "outcrop bench embed", embedding_speed),
    "embed-large": Table("embed-large.json", "outcrop bench embed-large"),
    "orders": Table("orders.json", "outcrop bench orders"),
}  # fmt: skip


def path_of(file: str) -> Path:
    """Where a result lies: ``<machine>/<file>``, or a file of :data:`MACHINE`."""
    return RESULTS / file if "/" in file else RESULTS / MACHINE / file


def read(file: str) -> Result:
    return json.loads(path_of(file).read_text())


def machine_of(result: Result) -> str:
    about = result.get("machine") or read("epoch.json")["machine"]
    kernel = about["kernel"].split("-")[0]
    return (
        f"{about['cpu']}, {about['cores']} cores, {size(about['memory_bytes'])}, Linux {kernel}, "
        f"{about['io_backend']}, a virtual disk that others share"
    )


def origin(result: Result, table: Table) -> list[str]:
    """Lines below a table: how it was made, where, of which source."""
    revision, newest = str(result.get("revision") or "not recorded"), str(read(REFERENCE)["revision"])
    made = f"`{result.get('command') or table.command}` on {machine_of(result)}."
    if table.brief:
        return [f"{_SAID[MEMORY_FRESH in result['modes']]} {made}"]
    source = f"Revision {revision}"
    if "dirty" in revision:
        source += ", **with changes that were not committed**"
    if table.file != REFERENCE and revision != newest:
        source += f", another than that of the first table ({newest})"
    said = [f"{str(result['says'])[:1].upper()}{str(result['says'])[1:]}."] if result.get("says") else []
    link = f"[{table.file}](../benchmarks/results/{path_of(table.file).relative_to(RESULTS)})"
    return [*said, made, f"{source}; {link}."]


def render(name: str) -> str:
    """The Markdown of table ``name``."""
    table = TABLES[name]
    result = read(table.file)
    columns, rows = table.rows(result)
    lines = [columns, ["---"] * len(columns), *rows]
    text = [f"| {' | '.join(map(str, line))} |" for line in lines]
    return "\n".join([*text, "", "\n".join(origin(result, table))])


def filled(page: str) -> str:
    """``page`` with every table as it is now."""

    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}\n{render(match[2])}\n{match[3]}"

    return re.sub(r"(<!-- table: (\S+) -->)\n.*?(<!-- end -->)", fill, page, flags=re.DOTALL)


def for_an_index(readme: str) -> str:
    """What a package index shows: README without the links and markers that mean nothing there."""
    text = re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]*\)", r"\1", readme)
    return re.sub(r"<!--.*?-->\n", "", text)


def wanted() -> dict[Path, str]:
    """What each page should hold."""
    pages = {page: filled(page.read_text()) for page in PAGES}
    return {**pages, INDEX: for_an_index(pages[PAGES[1]])}


def main(arguments: list[str]) -> int:
    pages = wanted()
    stale = [page for page in pages if not page.is_file() or page.read_text() != pages[page]]
    for page in stale:
        if "--check" not in arguments:
            page.write_text(pages[page])
        print(f"{page.relative_to(ROOT)}: its tables {'differ' if '--check' in arguments else 'are new'}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
