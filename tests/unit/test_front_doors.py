"""What Python users see first: the version, the types, what objects print as."""

from __future__ import annotations

import ast
import dataclasses
import importlib.metadata
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import outcrop as oc
from artifact_support import memory_folder, small_graph
from outcrop.api.prepare import prepare as prepare_with_report
from outcrop.cli.main import app
from outcrop.config import EmbedConfig
from outcrop.embed.buckets import open_buckets
from outcrop.embed.neighbours import METRICS, nearest_rows
from outcrop.errors import ArgumentError
from outcrop.stages.generate import GenerateConfig
from outcrop.store.triples import open_triples
from support import REPOSITORY


def test_one_version() -> None:
    written = ast.parse((REPOSITORY / "src/outcrop/__init__.py").read_text()).body
    version = next(
        ast.literal_eval(line.value)
        for line in written
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "__version__"
    )
    assert (oc.__version__, importlib.metadata.version("outcrop")) == (version, version)
    printed = CliRunner().invoke(app, ["--version"])
    assert (printed.exit_code, printed.stdout) == (0, f"outcrop {version}\n")


def test_types_are_shipped() -> None:
    assert Path(oc.__file__).with_name("py.typed").is_file()


@pytest.fixture(scope="module")
def made() -> Iterator[dict[str, Any]]:
    with memory_folder() as folder:
        graph = small_graph(folder / "g")
        options: dict[str, Any] = {"fanouts": [3, 3], "batch_size": 30, "memory": "2MiB"}
        report = prepare_with_report(graph, folder / "run", **options)
        trained = oc.train(
            graph, run=folder / "run", epochs=2, hidden=8, checkpoint=folder / "ckpt", trace_losses=True
        )
        inferred = oc.infer(graph, checkpoint=folder / "ckpt", out=folder / "out.npy", memory="4MiB")
        yield {
            "graph": graph,
            "report": report,
            "run": oc.open_run(folder / "run"),
            "trained": trained,
            "inferred": inferred,
        }


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("graph", ["Graph(nodes=6000, edges=", "features=6000x101 float32, classes=5, path='/"]),
        ("run", ["Run(path='/", "fanouts=[3, 3], batch_size=30, epochs=10, memory=2.0 MiB)"]),
        ("report", ["PrepareReport(sample ", "plan ", "pack ", "written "]),
        ("trained", ["(sage on cpu, mode packed: test accuracy ", "2 epochs, best ", " of 2.0 MiB)"]),
        ("inferred", ["InferReport(6000 rows x 5 of logits, layerwise", " of 4.0 MiB)"]),
    ],
)
def test_what_objects_print_as(made: dict[str, Any], what: str, says: list[str]) -> None:
    printed = repr(made[what])
    assert [text for text in says if text not in printed] == [], printed
    assert len(printed) < 400
    assert " object at 0x" not in printed


REPORTS = {"InferReport", "PrepareReport", "TrainReport", "Graph"}  # what functions return; not made by users


def public() -> list[str]:
    return [name for name in oc.__all__ if name not in REPORTS] + ["Run.loader"]


def arguments_of(name: str) -> tuple[list[inspect.Parameter], str]:
    """Parameters and docstring of a public name."""
    found: Any = oc
    for part in name.split("."):
        found = getattr(found, part)
    parameters = [p for p in inspect.signature(found).parameters.values() if p.name != "self"]
    return parameters, inspect.getdoc(found) or ""


@pytest.mark.parametrize("name", public())
def test_arguments_are_named_typed_and_documented(name: str) -> None:
    parameters, text = arguments_of(name)
    assert [p.name for p in parameters if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)] == []
    assert [p.name for p in parameters if p.annotation is p.empty] == []
    sections = re.split(r"^(\w+):\n", text, flags=re.MULTILINE)
    args = "".join(
        body for title, body in zip(sections[1::2], sections[2::2], strict=True) if title == "Args"
    )
    entries = re.findall(r"^    ([a-z_0-9, ]+):", args, re.MULTILINE)
    documented = {one for entry in entries for one in entry.split(", ")}
    assert {p.name for p in parameters} - documented == set()
    assert re.match(r"[A-Z]\w+", text), "begins with a sentence"


@pytest.mark.parametrize(
    ("function", "config", "renamed"),
    [
        (oc.generate_graph, GenerateConfig, {}),
        (oc.embed_train, EmbedConfig, {"rate": "learning_rate", "relation_rate": "relation_learning_rate"}),
    ],
)
def test_defaults_are_those_of_the_options(function: Any, config: type, renamed: dict[str, str]) -> None:
    parameters = inspect.signature(function).parameters
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        assert parameters[renamed.get(field.name, field.name)].default == field.default, field.name


def test_former_names_of_rates(tmp_path: Path) -> None:
    with (
        pytest.warns(FutureWarning, match="rate is called learning_rate"),
        pytest.raises(ArgumentError) as caught,
    ):
        oc.embed_train(tmp_path, rate=-1.0)
    assert str(caught.value) == "learning rate -1.0 is not a positive number"
    for option in ("--lr", "--learning-rate"):
        done = CliRunner().invoke(app, ["embed", "train", str(tmp_path), option, "0"])
        assert "learning rate 0.0 is not" in str(done.exception)


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
def test_nearest_without_usearch(metric: str) -> None:
    """The same nodes as usearch finds, the same distances as float64 arithmetic gives."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((40_000, 6)).astype(np.float32)
    query = vectors[17]
    wide, q = vectors.astype(np.float64), query.astype(np.float64)
    exact = {
        "cosine": 1 - wide @ q / np.linalg.norm(wide, axis=1) / np.linalg.norm(q),
        "dot": 1 - wide @ q,
        "euclidean": ((wide - q) ** 2).sum(1),
    }[metric]
    distances, rows = nearest_rows(vectors, query, 5, metric)
    np.testing.assert_array_equal(rows, np.argsort(exact)[:5])
    np.testing.assert_allclose(distances, np.sort(exact)[:5], rtol=1e-4, atol=1e-5)
    from usearch.index import search  # after torch: imported before it, importing torch does not end

    found = search(vectors, query, 5, METRICS[metric], exact=True)
    np.testing.assert_array_equal(rows, found.keys)


def test_nothing_finished_is_replaced_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused with what is there, before the source is read; ``overwrite`` replaces."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    np.save("in/edges.npy", np.array([[0, 1], [1, 2]]))
    (tmp_path / "text").mkdir()
    Path("text/train.txt").write_text("a\tlikes\tb\n")
    sizes = {"nodes": 30, "edges": 90, "features": 2, "classes": 2}
    flags = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    oc.generate_graph("g", **sizes)
    oc.import_triples("text", "kg")
    makes: list[tuple[str, Any, list[str]]] = [
        ("g", lambda **more: oc.generate_graph("g", seed=1, **sizes, **more), ["generate", "g", *flags]),
        ("g", lambda **more: oc.import_graph("arrays:in", "g", **more), ["import", "arrays:in", "g"]),
        ("kg", lambda **more: oc.import_triples("text", "kg", **more), ["import", "triples:text", "kg"]),
        ("kg", lambda **more: oc.import_graph("arrays:in", "kg", **more), ["import", "arrays:in", "kg"]),
    ]
    for place, make, command in makes:
        before = {path.name: path.read_bytes() for path in Path(place).iterdir()}
        there = repr((oc.open_graph if (Path(place) / "indptr.bin").exists() else open_triples)(Path(place)))
        for refused in (make, lambda command=command: invoke(command)):
            with pytest.raises(ArgumentError, match="--overwrite") as error:
                refused()
            assert there in str(error.value)
        assert {path.name: path.read_bytes() for path in Path(place).iterdir()} == before
        make(overwrite=True)
        invoke([*command, "--overwrite", "--quiet"])
    with pytest.raises(ArgumentError, match="--overwrite"):
        oc.import_graph("arrays:nowhere", "g")


def test_buckets_are_replaced_when_asked(tmp_path: Path) -> None:
    """The same call again keeps them, other options are refused by name, also on the command line."""
    graph = oc.generate_graph(tmp_path / "g", nodes=60, edges=400, features=1, classes=2)
    run = tmp_path / "run"
    oc.embed_prepare(graph.path, run, partitions=2, progress=False)
    made = (run / "buckets" / "edges.bin").stat().st_mtime_ns
    oc.embed_prepare(graph.path, run, partitions=2, progress=False)
    assert (run / "buckets" / "edges.bin").stat().st_mtime_ns == made
    command = ["embed", "prepare", str(graph.path), str(run), "--partitions", "3", "--quiet"]
    for refused in (lambda: oc.embed_prepare(graph.path, run, partitions=3), lambda: invoke(command)):
        with pytest.raises(ArgumentError, match=r"partitions \(there 2, now 3\).*--overwrite"):
            refused()
    assert (run / "buckets" / "edges.bin").stat().st_mtime_ns == made
    invoke([*command, "--overwrite"])
    assert open_buckets(run).partitions == 3


def invoke(command: list[str]) -> None:
    """A command in this process; what it raises is raised."""
    CliRunner().invoke(app, command, catch_exceptions=False)
