"""Rows that are derived from those of another type, against SciPy; killed, refused, and used in training."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import outcrop as oc
from artifact_support import leftovers
from forked import python
from infer_support import as_float
from outcrop.cli.main import app
from outcrop.errors import ArgumentError, BudgetError, IoError
from outcrop.inference import derive as deriving
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from outcrop.store.verify import verify_artifact
from typed_reference import TypedGraph, typed_graphs
from typed_store import write_typed


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    config = oc.GenerateConfig(nodes=6000, edges=60_000, kind="typed", train_fraction=0.3)
    return oc.generate_graph(tmp_path / "g.oc", config, progress=False)


def rows_of(graph: Graph, name: str) -> tuple[np.ndarray, str]:
    (file,) = (one for one in graph.row_files if one.owner.name == name)  # type: ignore[union-attr]
    with Runtime() as runtime:
        array = graph.open_rows(runtime, file)
        found = np.array(array.memmap())
        array.close()
    return found, file.spec.dtype


def means(graph: Graph, key: tuple[str, str, str]) -> np.ndarray:
    """In float64."""
    of = graph.edge_type(key)
    source, target = graph.edge_index(of)
    shape = of.target.num_nodes, of.source.num_nodes
    adjacency = sp.csr_array((np.ones(len(source)), (target, source)), shape)
    x = as_float(*rows_of(graph, key[0])).double().numpy()
    counts = np.bincount(target, minlength=shape[0])
    return (adjacency @ x) / np.maximum(counts, 1)[:, None]


def keys_to(graph: Graph, node_type: str) -> list[tuple[str, str, str]]:
    return [one.key for one in graph.edge_types if one.target.name == node_type]


@pytest.fixture
def wide(tmp_path: Path) -> Graph:
    """Of 5,000 nodes without rows one has more edges than a small budget holds, a tenth have none."""
    rng = np.random.default_rng(3)
    lists = [np.sort(rng.integers(0, 600, rng.integers(0, 9))).tolist() for _ in range(4500)]
    lists[7] = np.sort(rng.integers(0, 600, 9000)).tolist()
    drawn = TypedGraph((600, 5000), ((0, 1),), (tuple(map(tuple, lists)) + ((),) * 500,))
    rows = rng.standard_normal((600, 50)).astype(np.float16)
    return write_typed(tmp_path / "wide.oc", drawn, {"n0.features": rows})


@pytest.mark.parametrize("memory", [1 << 30, 1 << 20])
@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16"])
def test_equals_means_in_memory(wide: Graph, memory: int, dtype: str | None) -> None:
    want = means(wide, ("t0", "r0", "t1"))
    report = deriving.derive(deriving.checked_derivation(wide, "t1", "t0", "r0", dtype), memory)
    found, stored = rows_of(oc.open_graph(wide.path), "t1")
    assert stored == (dtype or "float16")
    digits = {"float32": 21, "float16": 11, "bfloat16": 8}[stored]
    np.testing.assert_allclose(as_float(found, stored).numpy(), want, rtol=2.0**-digits, atol=1e-6)
    assert report.bytes_written == report.predicted_bytes_written
    assert report.peak_host_bytes <= memory
    assert report.spans > 4 if memory == 1 << 20 else report.spans == 1
    with Runtime() as runtime:
        verify_artifact(wide.path, runtime)
    assert not (wide.path / ".derive").exists()
    assert leftovers(wide.path.parent) == []


@given(drawn=typed_graphs(), data=st.data())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_graph(tmp_path: Path, drawn: Any, data: Any) -> None:
    number = data.draw(st.sampled_from(range(len(drawn.edge_types))))
    source, target = drawn.edge_types[number]
    if source == target or not drawn.sizes[source]:
        return
    rows = np.random.default_rng(0).integers(-9, 9, (drawn.sizes[source], 3)).astype(np.int8)
    shutil.rmtree(tmp_path / "any", ignore_errors=True)
    graph = write_typed(tmp_path / "any", drawn, {f"n{source}.features": rows})
    key = graph.edge_types[number].key
    derived = oc.derive_rows(graph, key[2], mean=key[0], by=key[1], progress=False)
    found, stored = rows_of(derived, key[2])
    assert stored == "float32"
    np.testing.assert_allclose(found, means(graph, key), rtol=1e-6, atol=1e-7)


def test_again_it_is_there_and_other_rows_are_refused(graph: Graph) -> None:
    (key,) = keys_to(graph, "institution")
    derived = oc.derive_rows(graph, key[2], mean=key[0], by=key[1], progress=False)
    assert derived.digest() != graph.digest()
    again = oc.derive_rows(derived, key[2], mean=key[0], by=key[1], progress=False)
    assert again.digest() == derived.digest()
    with pytest.raises(ArgumentError, match="has rows already"):
        oc.derive_rows(derived, key[2], mean=key[0], by=key[1], dtype="float32", progress=False)
    config = oc.GenerateConfig(nodes=6000, edges=60_000, kind="typed", train_fraction=0.3)
    assert oc.generate_graph(graph.path, config, progress=False).digest() == derived.digest()


def test_a_model_is_trained_with_them(graph: Graph) -> None:
    (key,) = keys_to(graph, "institution")
    derived = oc.derive_rows(graph, key[2], mean=key[0], by=key[1], progress=False)
    sampling = oc.SampleConfig(fanouts=(4, 4), batch_size=64)
    quiet = oc.Observer(progress=False)
    model = oc.ModelConfig("rsage", hidden=16)
    result = oc.train(derived, model=model, sampling=sampling, loading="ondisk", epochs=1, observer=quiet)
    assert result.model.schema.node_types[3].made == ""
    assert oc.predict(derived, result.model, observer=quiet).shape[1] == graph.num_classes


def test_what_cannot_be_derived_is_refused(graph: Graph, tmp_path: Path) -> None:
    (key,) = keys_to(graph, "institution")
    for asked, message in (
        ({"mean": "author", "by": "nothing"}, "has no edge type 'author nothing institution'"),
        ({"mean": key[0], "by": key[1], "dtype": "int8"}, "dtype 'int8' is none of"),
    ):
        with pytest.raises(ArgumentError, match=message):
            oc.derive_rows(graph, "institution", progress=False, **asked)  # type: ignore[arg-type]
    (back,) = (one.key for one in graph.edge_types if one.source.name == "institution")
    with pytest.raises(ArgumentError, match=r"'institution' .* has no rows to average"):
        oc.derive_rows(graph, back[2], mean=back[0], by=back[1], progress=False)
    flat = oc.generate_graph(tmp_path / "flat.oc", oc.GenerateConfig(nodes=300, edges=2000), progress=False)
    with pytest.raises(ArgumentError, match="has no types of nodes"):
        oc.derive_rows(flat, "a", mean="b", by="c", progress=False)


@pytest.mark.parametrize(
    ("dtype", "value", "sources", "remedy"),
    [
        ("float16", 70_000, (2,), "--dtype float32"),
        ("bfloat16", 3.4e38, (2,), "--dtype float32"),
        ("float32", 2e38, (2, 3), "import smaller values"),  # their sum is too large, each of them is not
    ],
)
def test_means_that_are_too_large_are_refused(
    tmp_path: Path, dtype: str, value: float, sources: tuple[int, ...], remedy: str
) -> None:
    x = np.ones((4, 3), np.float32)
    x[2:, 1] = value
    made = TypedGraph((4, 3), ((0, 1),), (((0,), sources, ()),))
    graph = write_typed(tmp_path / "g.oc", made, {"n0.features": x})
    before = sorted(file.name for file in graph.path.iterdir())
    message = rf"column 1 of the mean of node 1 .* not finite as {dtype}: .*{remedy}"
    with pytest.raises(ArgumentError, match=message):
        oc.derive_rows(graph, "t1", mean="t0", by="r0", dtype=dtype, progress=False)
    assert sorted(file.name for file in graph.path.iterdir()) == before


def test_smallest_budget_named_is_enough(graph: Graph) -> None:
    (key,) = keys_to(graph, "institution")
    asked = deriving.checked_derivation(graph, key[2], key[0], key[1], None)
    with pytest.raises(BudgetError) as failed:
        deriving.derive(asked, 200 << 10)
    smallest = int(str(failed.value).split("the smallest budget that can is ")[1].split()[0])
    with pytest.raises(BudgetError):
        deriving.derive(asked, smallest - 1)
    assert deriving.derive(asked, smallest).peak_host_bytes <= smallest


def test_a_disk_that_is_too_small_is_refused_first(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    (key,) = keys_to(graph, "institution")
    usage = shutil.disk_usage(graph.path)
    monkeypatch.setattr(deriving.shutil, "disk_usage", lambda _: usage._replace(free=100))
    with pytest.raises(IoError, match="free some space"):
        oc.derive_rows(graph, key[2], mean=key[0], by=key[1], progress=False)
    assert oc.open_graph(graph.path).digest() == graph.digest()


DYING = """
import os, sys
import outcrop as oc
from outcrop.store import manifest as manifests
where = os.environ["DIE_AT"]
def dying(*a, **k): os.kill(os.getpid(), 9)
if where == "rows":
    from outcrop.inference import derive
    derive._narrowed = dying
elif where == "move":
    from outcrop.inference import derive
    derive.manifests.sync_folder = dying
else:
    manifests.write = dying
oc.derive_rows(sys.argv[1], "institution", mean=sys.argv[2], by=sys.argv[3], progress=False)
"""


def test_killed_and_run_again(graph: Graph) -> None:
    (key,) = keys_to(graph, "institution")
    for where in ("rows", "move", "manifest"):
        ended = python(DYING, graph.path, key[0], key[1], DIE_AT=where)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        assert oc.open_graph(graph.path).digest() == graph.digest()
    derived = oc.derive_rows(graph, key[2], mean=key[0], by=key[1], progress=False)
    found, stored = rows_of(derived, "institution")
    np.testing.assert_allclose(as_float(found, stored).numpy(), means(graph, key), rtol=1e-2, atol=1e-3)
    assert not (graph.path / ".derive").exists()


def test_command(graph: Graph, tmp_path: Path) -> None:
    (key,) = keys_to(graph, "institution")
    arguments = ["derive", str(graph.path), "institution", "--mean", key[0], "--by", key[1]]
    done = CliRunner().invoke(app, [*arguments, "--memory", "2MiB", "--json", str(tmp_path / "r.json")])
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["bytes_written"] == report["predicted_bytes_written"] > 0
    assert "n3.features" in done.output
