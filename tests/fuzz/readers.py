"""Fuzzes what reads files in Python, guided by coverage: a valid file is changed, and must be read or refused.

    python tests/fuzz/readers.py READER [OPTIONS OF LIBFUZZER] [CORPUS...]

A reader takes the folder in which its file lies. What it raises must be an error of Outcrop in one line that names that
folder, or nothing; every other exception is a defect, as is taking 20 seconds or 2 GiB.
"""

from __future__ import annotations

import contextlib
import copy
import csv
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import atheris
import instrumented  # noqa: F401, before what it instruments
import numpy as np
import scipy.sparse
import torch
from torch_geometric.data import HeteroData

# isort: split

import dgl_files
import outcrop as oc
from outcrop.errors import OutcropError
from outcrop.importing.graph import import_graph
from outcrop.nn.checkpoint import load_model
from outcrop.pyg import NeighborLoader
from outcrop.store import manifest, tensors
from outcrop.store.run import read as read_run

# Or whatever is changed would end at these checksums.
tensors._digest_of_header = manifest._checksum_of = lambda told: ""

EDGES = np.array([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])


@dataclass(frozen=True)
class Reader:
    """Makes a valid file in a folder, says which it is, and reads the folder."""

    make: Callable[[Path], Any]
    file: str
    read: Callable[[Path], Any]

    @property
    def is_json(self) -> bool:
        return self.file.endswith(".json")


VALUES = (
    None,
    True,
    -1,
    0,
    1,
    2,
    5,
    7,
    1 << 31,
    1 << 63,
    1 << 70,
    0.5,
    1e300,
    float("nan"),
    "",
    "../x",
    "features",
    [],
    {},
    [0],
    "a\nb",
)


def changed(data: bytes, max_size: int, seed: int) -> bytes:
    """Changes values of a JSON file, drops some or takes them from elsewhere in it; or its bytes, as libFuzzer does."""
    draw = random.Random(seed)
    try:
        root = json.loads(data)
    except ValueError:
        return atheris.Mutate(data, max_size)
    places = places_in(root)
    if not places or draw.random() < 0.05:
        return atheris.Mutate(data, max_size)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        (holder, key), (other, name) = draw.choice(places), draw.choice(places)
        with contextlib.suppress(KeyError, IndexError):
            how = draw.randrange(4)
            if how == 0:
                del holder[key]
            else:
                holder[key] = copy.deepcopy(other[name]) if how == 1 else draw.choice(VALUES)
    return json.dumps(root).encode()[:max_size]


def places_in(root: Any) -> list[tuple[Any, Any]]:
    """Every dict and list of a JSON document with each of its keys."""
    places: list[tuple[Any, Any]] = []
    waiting = [root]
    while waiting:
        one = waiting.pop()
        keys = one if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ()
        places += [(one, key) for key in keys]
        waiting += [one[key] for key in keys]
    return places


def imported(source: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        with oc.Runtime("16MiB", progress=False) as runtime:
            return import_graph(source.format(folder), folder / "out", runtime)

    return read


def graph_folder(folder: Path) -> None:
    with oc.Runtime(progress=False) as runtime:
        given = {"edges": EDGES.T, "features": np.ones((5, 3), np.float32), "labels": np.arange(5) % 2}
        import_graph(given, folder / "g", runtime, oc.ImportConfig(train_fraction=0.6))


def typed_description(folder: Path) -> None:
    np.save(folder / "x.npy", np.ones((5, 2), np.float32))
    np.save(folder / "e.npy", EDGES)
    (folder / "graph.toml").write_text(
        '[[nodes]]\nname = "a"\nfeatures = "x.npy"\nlabels = "y.npy"\n[[nodes]]\nname = "b"\nnum_nodes = 5\n'
        '[[edges]]\nsource = "a"\nrelation = "r"\ntarget = "b"\nfile = "e.npy"\nreverse = true\n'
    )
    np.save(folder / "y.npy", np.arange(5))


def table(folder: Path) -> None:
    with (folder / "edges.csv").open("w") as file:
        csv.writer(file).writerows([["src", "dst", "weight"], *((*pair, 0.5) for pair in EDGES.T.tolist())])


def pyg_file(folder: Path) -> None:
    data = HeteroData()
    data["a"].x, data["b"].num_nodes = torch.ones(5, 2), 5
    data["a", "r", "b"].edge_index = torch.from_numpy(EDGES)
    torch.save(data, folder / "data.pt")


def checkpoint(folder: Path) -> None:
    graph_folder(folder)
    oc.train(
        folder / "g",
        model=oc.ModelConfig("sage", hidden=4, layers=1),
        sampling=oc.SampleConfig([2], 2),
        epochs=1,
        checkpoint=folder / "c",
        loading="memory",
        observer=oc.Observer(progress=False),
    )


def run_file(folder: Path) -> None:
    graph_folder(folder)
    oc.prepare(
        folder / "g",
        folder / "r",
        sampling=oc.SampleConfig([2], 2),
        epochs=1,
        observer=oc.Observer(progress=False),
    )


def batches(folder: Path) -> None:
    for split in ("train", "all"):
        for _ in NeighborLoader(
            folder / "g", [2], input_nodes=split, batch_size=2, mode="ondisk", memory="8MiB"
        ):
            pass


READERS = {
    "graph": Reader(graph_folder, "g/manifest.json", batches),
    "run": Reader(run_file, "r/run.json", lambda folder: read_run(folder / "r")),
    "description": Reader(typed_description, "graph.toml", imported("arrays:{}")),
    "npy": Reader(typed_description, "e.npy", imported("arrays:{}")),
    "csv": Reader(table, "edges.csv", imported("edges:{}/edges.csv")),
    "npz": Reader(
        lambda folder: scipy.sparse.save_npz(
            folder / "g.npz", scipy.sparse.csr_array((np.ones(6), EDGES), (5, 5))
        ),
        "g.npz",
        imported("npz:{}/g.npz"),
    ),
    "pyg": Reader(pyg_file, "data.pt", imported("pyg:{}/data.pt")),
    "dgl": Reader(
        lambda folder: dgl_files.write_homogeneous(folder / "g.bin", EDGES.T, {}, 5),
        "g.bin",
        imported("dgl:{}/g.bin"),
    ),
    "ntriples": Reader(
        lambda folder: (folder / "g.nt").write_text(
            '<http://a> <http://b> <http://c> .\n<http://a> <http://d> "x"@en .\n'
        ),
        "g.nt",
        imported("ntriples:{}/g.nt"),
    ),
    "checkpoint": Reader(checkpoint, "c/last.safetensors", lambda folder: load_model(folder / "c")),
}


def main() -> None:
    name, *options = sys.argv[1:]
    if name not in READERS:
        raise SystemExit(f"error: no reader {name!r}: there are {', '.join(READERS)}")
    reader = READERS[name]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as made:
        good, here = Path(made) / "good", Path(made) / "here"
        good.mkdir()
        reader.make(good)
        seeds = Path(made) / "seeds"
        seeds.mkdir()
        shutil.copy(good / reader.file, seeds / "valid")

        def one(data: bytes) -> None:
            shutil.rmtree(here, ignore_errors=True)
            shutil.copytree(good, here)
            (here / reader.file).write_bytes(data)
            try:
                reader.read(here)
            except OutcropError as error:
                said = str(error)
                assert str(here) in said, f"the error does not name the folder: {said!r}"
                assert "\n" not in said, f"the error has several lines: {said!r}"

        # one()
        more = {"custom_mutator": changed} if reader.is_json else {}
        atheris.Setup([sys.argv[0], "-timeout=20", "-rss_limit_mb=4096", *options, str(seeds)], one, **more)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
