"""``outcrop generate``, ``import``, ``stripe``, ``info`` and ``verify``."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outcrop.cli import common, printing
from outcrop.cli.describing import describe_all
from outcrop.cli.options import Fields, with_options
from outcrop.config import GenerateConfig, ImportConfig, format_bytes
from outcrop.config.places import is_uri
from outcrop.errors import ArgumentError
from outcrop.runtime.progress import shown
from outcrop.store import manifest as manifests
from outcrop.store.remote import without_keys

if TYPE_CHECKING:
    from outcrop.importing.once import ImportReport

_SHOWN_CLASSES = 10
OutArg = Annotated[Path, typer.Argument(help="Folder of the graph to make.", metavar="OUT")]
PathArg = Annotated[Path, typer.Argument(help="A graph, a run, or a stage folder of a run.", metavar="PATH")]

_IMPORTED = [field.name for field in fields(ImportConfig)]
_FLAGS = {
    "keep_duplicates": ("--keep-duplicates/--drop-duplicates",),
    "keep_self_loops": ("--keep-self-loops/--drop-self-loops",),
    "reverse": ("--reverse/--no-reverse",),
    "split_protocol": ("--split",),
}
_OF_TRIPLES = {"reverse": False, "keep_duplicates": True, "keep_self_loops": True}  # what they are anyway
_GENERATED = (
    "kind", "nodes", "edges", "features", "classes", "dtype", "train_fraction", "valid_fraction", "test_fraction",
    "skew", "homophily", "seed", "edge_features", "scale",
)  # fmt: skip


def add_commands(app: typer.Typer) -> None:
    app.command(
        "generate",
        help="Make a synthetic graph, streamed.\n\nExample: outcrop generate big.oc --nodes 2000000 "
        "--edges 30000000 --features 128 --train-fraction 0.01",
    )(common.with_config(with_options(generate, config=(GenerateConfig, Fields(_GENERATED)))))
    app.command(
        "import",
        help="Import a graph.\n\nSources: arrays:DIR (edges, nodes, features, labels, splits as .npy, .parquet, .csv "
        "or .tsv; with a graph.toml, of several types), edges:FILE (such a list of edges alone), npz:FILE (published "
        "archives, scipy.sparse.save_npz), "
        "mat:FILE (MATLAB), musae:DIR, graphbolt:DIR (DGL), igb:DIR (Illinois Graph Benchmark), "
        "mag240m:DIR, ogb:DIR (Open Graph "
        "Benchmark), pyg:FILE (PyTorch Geometric, by torch.save), dgl:FILE (by dgl.save_graphs), tables:DIR (of a "
        "database: CSV, Parquet or SQLite, with keys), ntriples:FILE (RDF), "
        "triples:DIR. DIR and FILE may be URIs, such as s3://bucket/folder. docs/sources.md lists every file and "
        "column.\n\n"
        "Example: outcrop import arrays:mydata my.oc --reverse --memory 2GiB",
    )(common.with_config(with_options(import_, config=(ImportConfig, Fields(_IMPORTED, _FLAGS)))))
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
        help="Check every byte of an artifact against its checksums, also in an object store.\n\n"
        "Example: outcrop verify my.oc",
    )(verify)


def generate(
    path: OutArg,
    *,
    config: GenerateConfig,
    memory: common.Memory = None,
    overwrite: common.Overwrite = False,
    json: common.Json = None,
    quiet: common.Quiet = False,
) -> None:
    from outcrop.importing import once
    from outcrop.store.verify import describe

    started = time.monotonic()
    with common.progress_bars(quiet) as progress:
        done = once.generate_graph(path, config, memory, overwrite, progress)
    _report(describe(path), started, done, json, quiet)


def import_(
    source: Annotated[
        str,
        typer.Argument(
            help="arrays:DIR, edges:FILE, npz:FILE, scipy:FILE, mat:FILE, musae:DIR, graphbolt:DIR, igb:DIR, "
            "mag240m:DIR, ogb:DIR, pyg:FILE, dgl:FILE, tables:DIR, ntriples:FILE or triples:DIR.",
            metavar="SOURCE",
        ),
    ],
    path: Annotated[
        str, typer.Argument(help="Folder of the graph to make, or a URI that it goes to.", metavar="OUT")
    ],
    *,
    config: ImportConfig,
    unknown: Annotated[
        str,
        typer.Option("--unknown", help="Triples of names that no training triple has: skip or error."),
    ] = "skip",
    memory: common.Memory = None,
    overwrite: common.Overwrite = False,
    json: common.Json = None,
    quiet: common.Quiet = False,
) -> None:
    from outcrop.importing import once
    from outcrop.importing.staging import made_for
    from outcrop.store.verify import describe

    started = time.monotonic()
    kind, _, where = source.partition(":")
    if where and not is_uri(source):
        _require_fitting(kind, config, unknown)
    with common.progress_bars(quiet) as progress, ExitStack() as closing:
        out = closing.enter_context(made_for(path, overwrite, progress)) if is_uri(path) else Path(path)
        if kind == "triples" and where:
            done = once.import_triples(where, out, unknown, memory, overwrite, progress)
        else:
            done = once.import_graph(source, out, config, memory, overwrite, progress)
        about = describe(out)
    _report(
        {**about, "path": without_keys(path) if is_uri(path) else about["path"]}, started, done, json, quiet
    )


def _require_fitting(kind: str, config: ImportConfig, unknown: str) -> None:
    """Raises ArgumentError where options are given that imports of this kind do not have."""
    if kind != "triples" and unknown != "skip":
        raise ArgumentError(f"--unknown is about triples, and {kind}: has none: leave it out")
    usual = ImportConfig()
    given = [
        _FLAGS.get(one.name, (f"--{one.name.replace('_', '-')}",))[0].partition("/")[0]
        for one in fields(config)
        if getattr(config, one.name) not in (getattr(usual, one.name), _OF_TRIPLES.get(one.name))
    ]
    if kind == "triples" and given:
        raise ArgumentError(
            f"{', '.join(given)}: what graphs have, and triples are imported as they are: leave it out (outcrop embed "
            "prepare --valid-fraction and --test-fraction hold triples out)"
        )


def _report(
    about: dict[str, Any], started: float, done: ImportReport, json: Path | None, quiet: bool
) -> None:
    seconds = time.monotonic() - started
    common.write_json(json, {**about, "seconds": seconds, **asdict(done)})
    if not quiet:
        printing.print_facts({**_facts(about), "took": f"{seconds:.1f} s"})
        for note in done.notes:
            printing.print_line(f"note: {note}")


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
    for one in about.get("graph", {}).get("node_types", ()):
        facts[f"nodes {one['name']!r}"] = _nodes_in_words(one)
    for one in about.get("graph", {}).get("edge_types", ()):
        key = " ".join(str(one.get(part)) for part in ("source", "relation", "target"))
        facts[f"edges {key!r}"] = one.get("num_edges")
    facts |= _coding_in_words(about.get("attributes", {}))
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
        facts[_array_in_words(name, about.get("graph", {}))] = (
            f"{array['dtype']} {shape}  {format_bytes(array['bytes'])}"
        )
    for name, array in about.get("tensors", {}).items() if about["version"] is None else ():
        facts[name] = f"{array['dtype']} {' x '.join(str(n) for n in array['shape'])}"
    if not about.get("graph", {}).get("page_checksums", True):
        facts["page checksums"] = f"none: outcrop verify {about['path']} --add-checksums"
    if elsewhere := about.get("elsewhere"):
        facts["in a store"] = f"{', '.join(elsewhere['files'])} in {elsewhere['uri']}"
    facts["size on disk"] = format_bytes(about["bytes"])
    return facts


def _coding_in_words(attributes: dict[str, Any]) -> dict[str, object]:
    """Says how features are stored that are bytes on disk."""
    if isinstance(few := attributes.get("quantised"), dict):
        return {"features in few bits": f"{few.get('dtype')}, a scale for each {few.get('scale')}"}
    if isinstance(sparse := attributes.get("sparse"), dict):
        most = f"up to {sparse.get('stored')} of {sparse.get('columns')} values in a row"
        return {"sparse features": f"{sparse.get('dtype')}, {most}"}
    return {}


def _array_in_words(name: str, graph: dict[str, Any]) -> str:
    """Returns the name of an array, with that of its type in place of the type's number: n0.features, e2.features."""
    of, _, rest = name.partition(".")
    kind, number = of[:1], of[1:]
    if not rest or kind not in ("n", "e") or not number.isdigit():
        return name
    types = graph.get("node_types" if kind == "n" else "edge_types", ())
    if int(number) >= len(types):  # of a graph without types
        return f"{rest} of edges" if kind == "e" else name
    key = [str(types[int(number)].get(part)) for part in ("source", "relation", "target", "name")]
    return f"{rest} of {' '.join(key[:3]) if kind == 'e' else key[3]!r}"


def _nodes_in_words(of: dict[str, Any]) -> str:
    """Says what nodes of a type have, beside their arrays."""
    classes = [f"{of['num_classes']} classes or targets"] if of["num_classes"] else []
    return ", ".join([str(of["num_nodes"]), *classes])


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
    path: Annotated[
        str,
        typer.Argument(
            help="A graph, a run, a stage folder of a run, an embedding run, or a checkpoint or its folder; or the URI "
            "of a graph, a run, checkpoints, or a copy of embeddings.",
            metavar="PATH",
        ),
    ],
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
    from outcrop.cli.verifying import verify_all
    from outcrop.store.remote_verify import verify_stored
    from outcrop.store.verify import add_page_sums

    results: dict[str, dict[str, Any]] = {}
    if is_uri(path):
        if add_checksums:
            raise ArgumentError(
                f"{without_keys(path)} is in a store: add checksums here, and upload it again"
            )
        with common.progress_bars(quiet) as progress:
            results = verify_stored(path, shown(progress))
    else:
        with common.runtime_for(memory, quiet) as runtime:
            if add_checksums:
                add_page_sums(path, runtime)
            results = verify_all(Path(path), runtime)
    common.write_json(json, next(iter(results.values())) if len(results) == 1 else {"artifacts": results})
    if not quiet:
        for name, result in results.items():
            size, count = format_bytes(result["bytes"]), result["arrays"]
            printing.print_line(f"verified {name}: {count} arrays, {size}, every checksum right")
