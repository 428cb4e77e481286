"""``outcrop generate``, ``import``, ``stripe``, ``info`` and ``verify``."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from outcrop.cli import common, printing
from outcrop.cli.describing import describe_all
from outcrop.config import format_bytes
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store.run import RUN_FILE

_SHOWN_CLASSES = 10
OutArg = Annotated[Path, typer.Argument(help="Folder of the graph to make.", metavar="OUT")]
PathArg = Annotated[Path, typer.Argument(help="A graph, a run, or a stage folder of a run.", metavar="PATH")]


def add_commands(app: typer.Typer) -> None:
    app.command(
        "generate",
        help="Make a synthetic graph, streamed.\n\nExample: outcrop generate big.oc --nodes 2000000 "
        "--edges 30000000 --features 128 --train-fraction 0.01",
    )(common.with_config(generate))
    app.command(
        "import",
        help="Import a graph.\n\nSources: arrays:DIR (edges, nodes, features, labels, splits as .npy, .parquet, .csv "
        "or .tsv), edges:FILE (such a list of edges alone), npz:FILE (published archives, scipy.sparse.save_npz), "
        "mat:FILE (MATLAB), musae:DIR, triples:DIR. docs/sources.md lists every file and column.\n\n"
        "Example: outcrop import arrays:mydata my.oc --reverse --memory 2GiB",
    )(common.with_config(import_))
    app.command(
        "stripe",
        help="Copy shares of a graph's feature rows to other disks, which train --io gpu reads at the same time.\n\n"
        "One folder gets half of the rows, two get a third each; the graph stays as it is. A RAID 0 or striped LVM "
        "volume does the same for every mode, without copies.\n\nExample: outcrop stripe my.oc /disk2/my.stripe",
    )(stripe)
    app.command(
        "info", help="Say what a graph, run, embedding run or checkpoint is.\n\nExample: outcrop info my.oc"
    )(info)
    app.command(
        "verify",
        help="Check every byte of an artifact against its checksums.\n\nExample: outcrop verify my.oc",
    )(verify)


def generate(
    path: OutArg,
    kind: Annotated[str, typer.Option("--kind", help="sbm (labels that a GNN learns) or rmat.")] = "sbm",
    nodes: Annotated[int, typer.Option("--nodes")] = 100_000,
    edges: Annotated[int, typer.Option("--edges")] = 1_500_000,
    features: Annotated[int, typer.Option("--features", help="Columns.")] = 128,
    classes: Annotated[int, typer.Option("--classes")] = 16,
    dtype: Annotated[str, typer.Option("--dtype", help="float32, float16, bfloat16 or int8.")] = "float32",
    train_fraction: Annotated[float, typer.Option("--train-fraction")] = 0.1,
    valid_fraction: Annotated[float, typer.Option("--valid-fraction")] = 0.05,
    test_fraction: Annotated[float, typer.Option("--test-fraction")] = 0.1,
    skew: Annotated[float | None, typer.Option("--skew", help="sbm: how uneven the degrees are.")] = None,
    homophily: Annotated[
        float | None, typer.Option("--homophily", help="sbm: chance of an edge within a class.")
    ] = None,
    seed: common.Seed = 0,
    memory: common.Memory = None,
    overwrite: common.Overwrite = False,
    json: common.Json = None,
    quiet: common.Quiet = False,
) -> None:
    from outcrop.api.graph import is_generated
    from outcrop.importing.generate import GenerateConfig, generate_graph

    optional: dict[str, float] = {
        name: value for name, value in (("skew", skew), ("homophily", homophily)) if value is not None
    }
    started = time.monotonic()
    config = GenerateConfig(
        kind=kind,  # type: ignore[arg-type]
        nodes=nodes,
        edges=edges,
        features=features,
        classes=classes,
        dtype=dtype,
        train_fraction=train_fraction,
        valid_fraction=valid_fraction,
        test_fraction=test_fraction,
        seed=seed,
        **optional,
    )
    kept = is_generated(path, config, overwrite)
    with common.runtime_for(memory, quiet) as runtime:
        if not kept:
            generate_graph(path, runtime, config)
        written = runtime.io.counters.write_bytes
    notes = (
        [f"{path} is kept: it is the graph of these options (--overwrite generates it again)"] if kept else []
    )
    result = {"seconds": time.monotonic() - started, "bytes_written": written, "notes": notes}
    _report(path, result, json, quiet)


def import_(
    source: Annotated[
        str,
        typer.Argument(
            help="arrays:DIR, edges:FILE, npz:FILE, scipy:FILE, mat:FILE, musae:DIR or triples:DIR.",
            metavar="SOURCE",
        ),
    ],
    path: OutArg,
    keep_duplicates: Annotated[
        bool, typer.Option("--keep-duplicates", help="Keep edges listed more than once.")
    ] = False,
    self_loops: Annotated[
        bool | None,
        typer.Option("--keep-self-loops/--drop-self-loops", help="Default: as is usual for the source."),
    ] = None,
    reverse: Annotated[
        bool | None,
        typer.Option(
            "--reverse/--no-reverse",
            help="Add the reverse of every edge: for undirected graphs that list each edge once.",
        ),
    ] = None,
    feature_dtype: Annotated[
        str | None, typer.Option("--feature-dtype", help="Convert features, e.g. float16.")
    ] = None,
    bfloat16_bits: Annotated[
        bool, typer.Option("--bfloat16-bits", help="uint16 features are bfloat16 bits.")
    ] = False,
    allow_nonfinite: Annotated[
        bool, typer.Option("--allow-nonfinite", help="Accept NaN and infinity.")
    ] = False,
    split_protocol: Annotated[
        str | None,
        typer.Option(
            "--split", help="fractions, per-class, planetoid or none, where the source has no splits."
        ),
    ] = None,
    train_fraction: Annotated[float | None, typer.Option("--train-fraction")] = None,
    valid_fraction: Annotated[float | None, typer.Option("--valid-fraction")] = None,
    test_fraction: Annotated[float | None, typer.Option("--test-fraction")] = None,
    split_seed: Annotated[int, typer.Option("--split-seed")] = 0,
    split_index: Annotated[
        int, typer.Option("--split-index", help="Which of several splits of the source.")
    ] = 0,
    label_kind: Annotated[
        str | None,
        typer.Option("--label-kind", help="class, multilabel or regression. Default: as the labels look."),
    ] = None,
    num_nodes: Annotated[
        int | None,
        typer.Option("--num-nodes", help="Default: the rows of features or labels, else the largest id + 1."),
    ] = None,
    unknown: Annotated[
        str,
        typer.Option("--unknown", help="Triples of names that no training triple has: skip or error."),
    ] = "skip",
    memory: common.Memory = None,
    overwrite: common.Overwrite = False,
    json: common.Json = None,
    quiet: common.Quiet = False,
) -> None:
    from outcrop.api.graph import is_imported, kept_note
    from outcrop.importing import graph
    from outcrop.importing import triples as ingest_triples
    from outcrop.importing.import_budget import runtime_of_import, runtime_of_triples

    config = graph.ImportConfig(
        keep_duplicates=keep_duplicates,
        keep_self_loops=self_loops,
        reverse=reverse,
        feature_dtype=feature_dtype,
        bfloat16_bits=bfloat16_bits,
        allow_nonfinite=allow_nonfinite,
        split_protocol=split_protocol,  # type: ignore[arg-type]
        train_fraction=train_fraction,
        valid_fraction=valid_fraction,
        test_fraction=test_fraction,
        split_seed=split_seed,
        split_index=split_index,
        label_kind=label_kind,  # type: ignore[arg-type]
        num_nodes=num_nodes,
    )
    started = time.monotonic()
    notes: tuple[str, ...] = ()
    kind, _, where = source.partition(":")
    triples = kind == "triples" and bool(where)
    record = ingest_triples.import_record(where, unknown) if triples else graph.import_record(source, config)
    kept = is_imported(path, record, overwrite)
    with common.progress_bars(quiet) as progress, ExitStack() as closing:
        if kept:
            runtime = closing.enter_context(Runtime())
            notes = (kept_note(path),)
        elif triples:
            runtime = closing.enter_context(runtime_of_triples(where, memory, progress))
            ingest_triples.import_triples(where, path, runtime, unknown=unknown)
        else:
            runtime = closing.enter_context(runtime_of_import(source, config, memory, progress))
            notes = graph.import_graph(source, path, runtime, config).notes
        written, peak = runtime.io.counters.write_bytes, runtime.budget.peak_bytes
    _report(
        path,
        {
            "seconds": time.monotonic() - started,
            "bytes_written": written,
            "peak_host_bytes": peak,
            "notes": list(notes),
        },
        json,
        quiet,
    )


def _report(path: Path, result: dict[str, Any], json: Path | None, quiet: bool) -> None:
    from outcrop.store.verify import describe

    about = describe(path)
    common.write_json(json, {**about, **result})
    if not quiet:
        printing.print_facts({**_facts(about), "took": f"{result['seconds']:.1f} s"})
        for note in result.get("notes", ()):
            printing.print_line(f"note: {note}")


def _artifacts(path: Path) -> list[Path]:
    """The artifacts at ``path``: itself, or the finished stages of a run."""
    if not (path / RUN_FILE).is_file():
        return [path]
    return [path / stage for stage in ("sample", "plan", "pack") if manifests.exists(path / stage)]


def info(path: PathArg, json: common.Json = None, quiet: common.Quiet = False) -> None:
    about = describe_all(path)
    common.write_json(json, about[0] if len(about) == 1 else {"path": str(path), "artifacts": about})
    if not quiet:
        for one in about:
            printing.print_facts(_facts(one))
            printing.print_line("")


def _facts(about: dict[str, Any]) -> dict[str, object]:
    facts: dict[str, object] = {
        "path": about["path"],
        "format": about["format"] + (f" version {about['version']}" if about["version"] is not None else ""),
    }
    facts |= {
        name: value
        for name, value in about.get("attributes", {}).items()
        if isinstance(value, (int, float, str)) and name not in facts
    }
    names = about.get("attributes", {}).get("class_names")
    if names:
        shown = [
            *map(_quoted_if_unclear, names[:_SHOWN_CLASSES]),
            *(["..."] if names[_SHOWN_CLASSES:] else []),
        ]
        facts["class_names"] = ", ".join(shown)
    for name, array in about.get("arrays", {}).items():
        if name.endswith(manifests.PAGE_SUMS):
            continue
        shape = " x ".join(str(n) for n in array["shape"])
        facts[name] = f"{array['dtype']} {shape}  {format_bytes(array['bytes'])}"
    for name, array in about.get("tensors", {}).items() if about["version"] is None else ():
        facts[name] = f"{array['dtype']} {' x '.join(str(n) for n in array['shape'])}"
    if not about.get("graph", {}).get("page_checksums", True):
        facts["page checksums"] = f"none: outcrop verify {about['path']} --add-checksums"
    facts["size on disk"] = format_bytes(about["bytes"])
    return facts


def _quoted_if_unclear(name: str) -> str:
    """Returns a name as it stands in a list with commas: in quotes where its ends would not be seen."""
    unclear = "," in name or name != name.strip() or name in ("", "...") or name[0] in "'\""
    return repr(name) if unclear else name


def stripe(
    path: Annotated[Path, typer.Argument(help="The graph.", metavar="GRAPH")],
    folders: Annotated[
        list[Path], typer.Argument(help="A folder to make on each of the other disks.", metavar="FOLDER...")
    ],
    memory: common.Memory = None,
    overwrite: common.Overwrite = False,
    json: common.Json = None,
    quiet: common.Quiet = False,
) -> None:
    from outcrop.importing.stripe import stripe_features
    from outcrop.store.graph import open_graph

    with common.runtime_for(memory, quiet) as runtime:
        made = stripe_features(open_graph(path), folders, runtime, overwrite=overwrite)
    sizes = {str(one.path): one.manifest.arrays["features"].file_bytes for one in made}
    common.write_json(json, {"stripes": sizes})
    if not quiet:
        for name, size in sizes.items():
            printing.print_line(f"made {name}: {format_bytes(size)}")


def verify(
    path: PathArg,
    add_checksums: Annotated[
        bool,
        typer.Option(
            "--add-checksums",
            help="Of a graph made by an older Outcrop: add the checksums of its pages, so that damage is seen where "
            "parts of it are read.",
        ),
    ] = False,
    memory: common.Memory = None,
    json: common.Json = None,
    quiet: common.Quiet = False,
) -> None:
    from outcrop.store.verify import add_page_sums, verify_artifact

    results = {}
    with common.runtime_for(memory, quiet) as runtime:
        if add_checksums:
            add_page_sums(path, runtime)
        for artifact in _artifacts(path):
            results[str(artifact)] = verify_artifact(artifact, runtime)
    common.write_json(json, next(iter(results.values())) if len(results) == 1 else {"artifacts": results})
    if not quiet:
        for name, result in results.items():
            size, count = format_bytes(result["bytes"]), result["arrays"]
            printing.print_line(f"verified {name}: {count} arrays, {size}, every checksum right")
