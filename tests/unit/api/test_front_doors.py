"""What Python users see first: the version, the types, what objects print as."""

from __future__ import annotations

import ast
import dataclasses
import importlib.metadata
import inspect
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import outcrop as oc
import outcrop.errors as errors_module
from artifact_support import memory_folder, small_graph
from outcrop import testing
from outcrop.cli.main import app
from outcrop.embed.buckets import open_buckets
from outcrop.embed.neighbors import METRICS, nearest_rows
from outcrop.errors import ArgumentError
from outcrop.store.triples import open_triples
from prepare_support import prepare
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


def test_made_up_data_tells_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    testing.main(["my data"])
    wrote, following = capsys.readouterr().out.splitlines()
    assert set(re.findall(r"\w+\.(?:npy|parquet)", wrote)) == {f.name for f in Path("my data").iterdir()}
    command = shlex.split(following.removeprefix("next: "))
    assert CliRunner().invoke(app, [*command[1:], "--quiet"]).exit_code == 0
    graph = oc.open_graph(command[-1])
    assert (graph.num_nodes, graph.num_classes) == (3000, 4)
    wrong = ([], "name one folder"), (["--help"], "name one folder"), (["my data"], "my data cannot be made")
    for arguments, message in wrong:
        with pytest.raises(SystemExit, match=message):
            testing.main(arguments)
    assert not Path("--help").exists()


def test_types_are_shipped() -> None:
    assert Path(oc.__file__).with_name("py.typed").is_file()


@pytest.fixture(scope="module")
def made() -> Iterator[dict[str, Any]]:
    with memory_folder() as folder:
        graph = small_graph(folder / "g")
        options: dict[str, Any] = {"fanouts": [3, 3], "batch_size": 30, "memory": "2MiB"}
        report = prepare(graph, folder / "run", **options)
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


def test_what_a_training_without_limit_or_test_nodes_prints(tmp_path: Path) -> None:
    graph = small_graph(tmp_path / "g", splits={"train": np.arange(60)})
    printed = repr(oc.train(graph, sampling=oc.SampleConfig(fanouts=(3,), batch_size=30), epochs=1))
    assert "mode packed: no test accuracy; 1 epoch, best 0, last loss" in printed
    assert re.search(r"peak memory [0-9.]+ [KM]iB, no limit;", printed)


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


def test_every_error_is_public(tmp_path: Path) -> None:
    """Whatever users may want to catch has its name in ``outcrop``, which still loads nothing by itself."""
    defined = {
        node.name
        for node in ast.parse((REPOSITORY / "src/outcrop/errors.py").read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    assert defined - set(oc.__all__) == set()
    assert {name for name in defined if getattr(oc, name) is not getattr(errors_module, name)} == set()
    with pytest.raises(oc.BudgetError) as refused:
        oc.generate_graph(tmp_path / "g", memory=1)
    assert refused.value.limit == "memory"
    script = "import sys, outcrop; print([n for n in sys.modules if n.startswith('outcrop')])"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ast.literal_eval(loaded.stdout) == ["outcrop"]


REPORTS = {"InferReport", "PrepareReport", "TrainReport", "Graph"}  # what functions return; not made by users


def public() -> list[str]:
    errors = {name for name, value in vars(errors_module).items() if isinstance(value, type)}
    return [name for name in oc.__all__ if name not in REPORTS | errors] + ["Run.loader"]


def arguments_of(name: str) -> tuple[list[inspect.Parameter], str]:
    """Parameters and docstring of a public name."""
    found: Any = oc
    for part in name.split("."):
        found = getattr(found, part)
    parameters = [p for p in inspect.signature(found).parameters.values() if p.name != "self"]
    # A dataclass says of its fields what they are, and so does the one that it extends.
    above = (
        [of for of in found.__mro__[1:] if dataclasses.is_dataclass(of)] if isinstance(found, type) else []
    )
    return parameters, "\n\n".join(inspect.getdoc(of) or "" for of in (found, *above))


@pytest.mark.parametrize("name", public())
def test_arguments_are_named_typed_and_documented(name: str) -> None:
    parameters, text = arguments_of(name)
    assert [p.name for p in parameters if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)] == []
    assert [p.name for p in parameters if p.annotation is p.empty] == []
    sections = re.split(r"^(\w+):\n", text, flags=re.MULTILINE)
    args = "".join(
        body
        for title, body in zip(sections[1::2], sections[2::2], strict=True)
        if title in ("Args", "Attributes")
    )
    entries = re.findall(r"^    ([a-z_0-9, ]+):", args, re.MULTILINE)
    documented = {one for entry in entries for one in entry.split(", ")}
    assert {p.name for p in parameters} - documented == set()
    assert re.match(r"[A-Z]\w+", text), "begins with a sentence"


def test_former_names_of_rates(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError) as caught:
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
    oc.generate_graph("g", oc.GenerateConfig(**sizes))
    oc.import_triples("text", "kg")
    makes: list[tuple[str, Any, list[str]]] = [
        (
            "g",
            lambda **more: oc.generate_graph("g", oc.GenerateConfig(seed=1, **sizes), **more),
            ["generate", "g", *flags, "--seed", "2"],
        ),
        ("g", lambda **more: oc.import_graph("arrays:in", "g", **more), ["import", "arrays:in", "g"]),
        (
            "kg",
            lambda **more: oc.import_triples("text", "kg", unknown="error", **more),
            ["import", "triples:text", "kg", "--unknown", "error"],
        ),
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


def test_the_same_import_again_keeps_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written, a note says so; what changed, in files or options, is an error that names it."""
    folder = tmp_path / "in"
    folder.mkdir()
    np.save(folder / "edges.npy", np.array([[0, 1], [1, 2]]))
    np.save(folder / "labels.npy", np.array([0, 1, 1]))
    source, out = f"arrays:{folder}", tmp_path / "g"
    monkeypatch.setenv("OUTCROP_PROGRESS", "1")

    def stamps() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in out.iterdir()}

    first = oc.import_graph(source, out)
    before = stamps()
    (folder / "scores.npy").write_bytes(b"nothing that an import reads")
    capsys.readouterr()
    again = oc.import_graph(source, out, memory="1MiB")
    assert (again.digest(), stamps()) == (first.digest(), before)
    assert "is kept" in capsys.readouterr().err
    invoke(["import", source, str(out)])
    assert stamps() == before

    with pytest.raises(ArgumentError, match=r"differs in reverse \(there None, now True\).*--overwrite"):
        oc.import_graph(source, out, oc.ImportConfig(reverse=True))
    shutil.copytree(folder, tmp_path / "other")
    with pytest.raises(ArgumentError, match=r"the source \(there arrays:.*/in, now arrays:.*/other\)"):
        oc.import_graph(f"arrays:{tmp_path / 'other'}", out)
    with pytest.raises(ArgumentError, match="objects in memory cannot be compared") as refused:
        oc.import_graph(np.array([[0, 1], [1, 2]]), out)
    remedy = re.findall(r"outcrop\.open_graph\('(.*)'\)", str(refused.value))
    assert oc.open_graph(remedy[0]).digest() == first.digest()
    np.save(folder / "labels.npy", np.array([1, 0, 1]))  # as many bytes as before
    np.save(folder / "train.npy", np.array([0]))
    with pytest.raises(ArgumentError, match=r"labels.npy \(which changed\), train.npy \(which is new\)"):
        oc.import_graph(source, out)
    assert stamps() == before
    assert oc.import_graph(source, out, overwrite=True).digest() != first.digest()
    (folder / "train.npy").unlink()
    with pytest.raises(ArgumentError, match=r"train.npy \(which is gone\)"):
        oc.import_graph(source, out)
    (out / "imported.json").write_text("[]")
    with pytest.raises(ArgumentError, match="--overwrite"):
        oc.import_graph(source, out)


def test_the_same_triples_and_options_again_keep_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    train = tmp_path / "text" / "train.txt"
    train.write_text("a\tlikes\tb\n")
    sizes = {"nodes": 30, "edges": 90, "features": 2, "classes": 2}

    def make_both(**options: Any) -> list[int]:
        oc.import_triples(tmp_path / "text", tmp_path / "kg")
        oc.generate_graph(tmp_path / "g", oc.GenerateConfig(**sizes, **options))
        return [(tmp_path / name / "manifest.json").stat().st_mtime_ns for name in ("kg", "g")]

    assert make_both() == make_both()
    source = f"triples:{tmp_path / 'text'}"  # as the command takes it
    assert repr(oc.import_triples(source, tmp_path / "kg")) == repr(open_triples(tmp_path / "kg"))
    with pytest.raises(ArgumentError, match=rf"outcrop\.import_triples\('{tmp_path / 'text'}', OUT\)"):
        oc.import_graph(source, tmp_path / "other")
    with pytest.raises(ArgumentError, match="--overwrite"):
        make_both(seed=1)
    train.write_text("a\tlikes\tc\n")
    with pytest.raises(ArgumentError, match=r"train.txt \(which changed\)"):
        make_both()


def test_buckets_are_replaced_when_asked(tmp_path: Path) -> None:
    """The same call again keeps them, other options are refused by name, also on the command line."""
    graph = oc.generate_graph(tmp_path / "g", oc.GenerateConfig(nodes=60, edges=400, features=1, classes=2))
    run = tmp_path / "run"
    oc.embed_prepare(graph.path, run, oc.BucketConfig(partitions=2), progress=False)
    made = (run / "buckets" / "edges.bin").stat().st_mtime_ns
    oc.embed_prepare(graph.path, run, oc.BucketConfig(partitions=2), progress=False)
    assert (run / "buckets" / "edges.bin").stat().st_mtime_ns == made
    command = ["embed", "prepare", str(graph.path), str(run), "--partitions", "3", "--quiet"]
    for refused in (
        lambda: oc.embed_prepare(graph.path, run, oc.BucketConfig(partitions=3)),
        lambda: invoke(command),
    ):
        with pytest.raises(ArgumentError, match=r"partitions \(there 2, now 3\).*--overwrite"):
            refused()
    assert (run / "buckets" / "edges.bin").stat().st_mtime_ns == made
    invoke([*command, "--overwrite"])
    assert open_buckets(run).partitions == 3


def invoke(command: list[str]) -> None:
    """A command in this process; what it raises is raised."""
    CliRunner().invoke(app, command, catch_exceptions=False)
