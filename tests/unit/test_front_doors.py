"""What Python users see first: the version, the types, what objects print as."""

from __future__ import annotations

import ast
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import outcrop as oc
from artifact_support import memory_folder, small_graph
from outcrop.api.prepare import prepare as prepare_with_report
from outcrop.cli.main import app
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
