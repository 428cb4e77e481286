"""Puts the tables of docs/measured.md, docs/gpu-benchmarks.md, docs/advise.md and README.md where their markers are,
from the JSON of ``outcrop bench`` and scripts/described.py; and README with links that work on a package index into
docs/package-index.md.

    python scripts/tables.py           writes them
    python scripts/tables.py --check   says what would change, and ends with status 1

A marker is a line ``<!-- table: NAME -->``; what follows it down to ``<!-- end -->`` is replaced. So no number of these
pages is typed by hand, and none can differ from what was measured (tests/docs/test_measured.py).
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
MACHINE = "xeon-2core"  # the folder of the results
BEFORE = "epyc-2core"  # of results that were not measured again on that machine
GPU = "h200"  # of results on a GPU
PAGES = tuple(
    ROOT / page for page in ("docs/measured.md", "README.md", "docs/advise.md", "docs/gpu-benchmarks.md")
)
INDEX = ROOT / "docs" / "package-index.md"  # the long description of the package
REFERENCE = "epoch.json"  # other results say so where they are of another revision than this one
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
_PREPARING = "An epoch's time includes its part of what preparing took."
_SAID = {
    True: f"{_PREPARING} The last row trains on the batches of one epoch again and again, and is compared with memory "
    "doing the same. Measured by",
    False: f"{_PREPARING} All rows train on the batches of one epoch again and again, and have the same losses, bit "
    "for bit. Measured by",
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


def modes_and_products(result: Result) -> Rows:
    """The modes, and the dense and sparse products that an epoch cannot do without."""
    columns, rows = modes(result)
    share = f"{1 / result['memory_against_bare']:.2f}x"
    products = ["its dense and sparse products alone", f"{result['bare_products_seconds']:.2f} s", share]
    return columns, [*rows, [*products, *["-"] * (len(columns) - 3)]]


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
    rows = []
    for r in result.get("graphs") or result["rows"]:
        name = r["graph"] + (f", {r['partitions']} partitions" if r.get("partitions", 1) > 1 else "")
        name += f", {r['groups']} groups" if r.get("groups", 1) > 1 else ""
        name += f", {r['slices']} slices each" if r.get("slices") and r["partitions"] > 1 else ""
        scores = [f"{r[k]['mean']:.3f} ± {r[k]['deviation']:.3f}" for k in ("mrr", "hits@1", "hits@10")]
        rows.append([name, *scores, r["protocol"], str(r["seeds"])])
    return ("graph", "MRR", "Hits@1", "Hits@10", "ranks", "seeds"), rows


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


def gathers(result: Result) -> Rows:
    ways = ("ceiling", "gather", "naive", "copy", "pageable")
    rows = [
        [name, *(f"{case['parameters']['bytes'] / case['seconds'][way] / 1e9:.1f} GB/s" for way in ways),
         f"{case['figures']['of_ceiling']:.2f}"]
        for name, case in result["cases"].items()
    ]  # fmt: skip
    return ("row", "copy of the bus", "in place", "torch's indexing in place", "CPU gathers, copy",
            "the same, pageable", "in place / copy of the bus"), rows  # fmt: skip


def gradients(result: Result) -> Rows:
    rows = []
    for case in result["cases"].values():
        shape = " x ".join(f"{case['parameters'][of]:,}" for of in ("queries", "negatives", "dim"))
        seconds = case["seconds"]
        rows.append([
            shape, "TF32" if case["parameters"]["precision"] == "high" else "float32",
            *(f"{1e3 * seconds[way]:.2f} ms" for way in ("plain", "fused")), f"{case['figures']['speed_up']:.1f}x",
        ])  # fmt: skip
    return ("queries x negatives x floats", "torch's precision", "torch", "fused", "faster by"), rows


def rings(result: Result) -> Rows:
    ways = ("rings", "engine", "file")
    rows = [
        [f"{case['parameters']['row_bytes']:,} B",
         *(f"{case['parameters']['rows'] / case['seconds'][way]:,.0f}/s" for way in ways),
         f"{case['figures']['of_file']:.2f}", f"{case['figures']['rings_cores']:.1f}"]
        for case in result["cases"].values()
    ]  # fmt: skip
    return ("row", "rings", "engine and a copy", "engine alone", "rings / engine alone", "busy cores"), rows


def overlap(result: Result) -> Rows:
    rows = [
        [*(f"{1e3 * case['seconds'][way]:.0f} ms" for way in ("reading", "gradients", "both")),
         f"{case['figures']['overlap']:.2f}"]
        for case in result["cases"].values()
    ]  # fmt: skip
    return ("reading through rings", "gradients", "both at once", "of the shorter hidden"), rows


@dataclass(frozen=True)
class Table:
    """``rows``: columns and rows of the result in ``file``. ``brief``: one line about its origin, with a link.
    ``command``: of a result that does not name its own."""

    file: str
    rows: Callable[[Result], Rows] = given
    brief: bool = False
    command: str = ""


TABLES = {
    "first": Table(REFERENCE, first, brief=True),
    "epoch": Table(REFERENCE, modes),
    "new-batches": Table("new-batches.json"),
    "demo": Table("demo.json", demo),
    "epoch-baselines": Table("epoch-baselines.json", modes),
    "epoch-10m": Table("epoch-10m.json", modes, command="outcrop bench epoch --nodes 10000000 --cap 0.21"),
    "papers100m": Table("papers100m.json"),
    "infer": Table("infer.json"),
    "typed-epoch": Table("typed-epoch.json", modes_and_products),
    "typed-epoch-edge-rows": Table("typed-epoch-edge-rows.json", modes_and_products),
    "typed-models": Table("typed-models.json"),
    "typed-sampling": Table("typed-sampling.json"),
    "typed-quality": Table("typed-quality.json"),
    "loader": Table("loader.json", loader, command="outcrop bench loader"),
    "prepare": Table("prepare.json"),
    "regimes": Table("regimes.json"),
    "small-batches": Table("small-batches.json"),
    "checks": Table("checks.json"),
    "paranoid": Table("paranoid.json"),
    "memory-curve": Table("memory-curve.json"),
    "scale": Table("scale.json", command="outcrop bench scale"),
    "cost-model": Table("cost-model.json", command="outcrop bench cost-model"),
    "scale-out": Table("scale-out.json"),
    "wire": Table("wire.json"),
    "kills": Table("kills.json", command="scripts/kills.py 200"),
    "fail-calls": Table("fail-calls.json"),
    "kill-calls": Table("kill-calls.json"),
    "damage-files": Table("damage-files.json"),
    "compare-rows": Table("compare-rows.json"),
    "soak": Table("soak.json"),
    "power-cuts": Table("power_cuts.json", command="scripts/power_cuts.py"),
    "layout": Table("layout.json", command="outcrop bench layout"),
    "pipeline": Table("pipeline.json"),
    "pipeline-gat": Table("pipeline-gat.json", command="outcrop bench pipeline --model gat"),
    "io": Table("io.json", io),
    "quality": Table("quality.json", command="outcrop bench quality"),
    "quality-few-bits": Table("quality-few-bits.json", command="outcrop bench quality"),
    "embed-quality": Table("embed-quality.json", embeddings, command="python examples/embed/quality.py"),
    "embed-partitions": Table("embed-partitions.json", embeddings),
    "embed-groups": Table("embed-groups.json", embeddings),
    "embed-decay": Table("embed-decay.json", embeddings),
    "embed-slices": Table("embed-slices.json", embeddings),
    "embed": Table("embed.json", embedding_speed, command="outcrop bench embed"),
    "embed-large": Table("embed-large.json"),
    "orders": Table("orders.json"),
    "described": Table("described.json"),
    "gpu-gathers": Table("gpu-pytorch-direct-figure-7.json", gathers),
    "gpu-gradients": Table("gpu-legend-table-10.json", gradients),
    "gpu-rings": Table("gpu-hyperion-figure-12.json", rings),
    "gpu-overlap": Table("gpu-legend-figure-9.json", overlap),
}


def path_of(file: str) -> Path:
    """Where a result lies: in the folder of a machine, or beside these folders where it is an estimate."""
    return next(
        (RESULTS / at / file for at in (MACHINE, BEFORE, GPU, "") if (RESULTS / at / file).is_file()),
        RESULTS / MACHINE / file,
    )


def read(file: str) -> Result:
    return json.loads(path_of(file).read_text())


def machine_of(result: Result) -> str:
    about = result["machine"]
    kernel = about["kernel"].split("-")[0]
    gpus = "".join(f"{gpu}, " for gpu in about.get("gpus") or ())
    return (
        f"{gpus}{about['cpu']}, {about['cores']} cores, {size(about['memory_bytes'])}, Linux {kernel}, "
        f"{about['io_backend']}, a virtual disk that others share"
    )


def origin(result: Result, table: Table) -> list[str]:
    """Lines below a table: how it was made, where, of which source."""
    revision, newest = str(result["revision"]), str(read(REFERENCE)["revision"])
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


def for_an_index(readme: str, repository: str | None) -> str:
    """Returns what a package index shows: README with links that work there, and without markers.

    Args:
        repository: Address of the public repository, to whose files relative links then lead. None: they become the
            paths of these files, which a line at the top explains.
    """

    def absolute(match: re.Match[str]) -> str:
        text, target = match.groups()
        if repository is not None:
            return f"[{text}]({repository}/blob/main/{target})"
        path = target.partition("#")[0]
        return f"`{path}`" if text == path else f"{text} (`{path}`)"

    text = re.sub(r"\[([^\]]+)\]\((?!https?:)([^)]*)\)", absolute, readme)
    if repository is None:
        title, _, rest = text.partition("\n")
        paths = "Paths in this text, such as `docs/modes.md`, are those of files in the source repository."
        text = f"{title}\n\n{paths}\n{rest}"
    return re.sub(r"<!--.*?-->\n", "", text)


def repository_address() -> str | None:
    """Returns the address that pyproject.toml names, None where it names none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project.get("urls", {}).get("Repository")


def wanted() -> dict[Path, str]:
    """What each page should hold."""
    pages = {page: filled(page.read_text()) for page in PAGES}
    return {**pages, INDEX: for_an_index(pages[PAGES[1]], repository_address())}


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
