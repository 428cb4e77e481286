"""Plans of described graphs: estimates from a tenth against the whole graph, files against what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from advisor_support import a_profile
from outcrop.advisor.described import SHIPPED, read_description
from outcrop.api.describe import describe
from outcrop.cli.main import app
from outcrop.config import Limits
from outcrop.config.described import DescribedEdges, DescribedGraph, DescribedNodes
from outcrop.errors import ArgumentError, BudgetError
from outcrop.importing.described import generate_described
from outcrop.runtime.runtime import Runtime

TEXT = """
name = "small"
batch_size = 160
fanouts = [5, 4]
classes = 10

[[nodes]]
name = "paper"
num_nodes = 240_000
dtype = "float16"
width = 256
train = 8_000

[[nodes]]
name = "author"
num_nodes = 200_000
dtype = "float16"
width = 128

[[nodes]]
name = "institution"
num_nodes = 500

[[edges]]
source = "author"
relation = "writes"
target = "paper"
num_edges = 800_000
reverse = true

[[edges]]
source = "paper"
relation = "cites"
target = "paper"
num_edges = 2_400_000
reverse = true

[[edges]]
source = "author"
relation = "affiliated"
target = "institution"
num_edges = 90_000
reverse = true
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(TEXT)
    return path


def estimated(path: Path, scale: float, memory: str = "60MB", disk: str = "10GB") -> dict[str, Any]:
    return describe(
        path, hardware="workstation", limits=Limits(memory, disk_space=disk), scale=scale, folder=path.parent
    )


def way(result: dict[str, Any], mode: str) -> dict[str, Any]:
    (found,) = [one for one in result["ways"] if one["mode"] == mode]
    return found


def test_a_tenth_tells_what_the_whole_takes(small: Path) -> None:
    """Rows of a batch to 2 %, bytes read and written to 15 %; a full batch of a tenth would be wrong by far more."""
    whole, tenth = estimated(small, 1.0), estimated(small, 0.1)
    assert (whole["setting"]["share"], tenth["setting"]["share"]) == (1.0, 0.1)
    assert whole["batches"] == tenth["batches"] == 50
    for name, rows in whole["batch"]["rows"].items():
        assert tenth["batch"]["rows"][name] == pytest.approx(rows, rel=0.02)
    assert list(whole["batch"]["rows"]) == ["paper", "author"]
    assert whole["batch"]["bytes"] == sum(
        rows * width for rows, width in zip(whole["batch"]["rows"].values(), (512, 256), strict=True)
    )
    for mode in ("packed", "online"):
        seen, told = way(whole, mode), way(tenth, mode)
        for key in ("bytes_read", "disk_bytes", "epoch_seconds"):
            assert told[key] == pytest.approx(seen[key], rel=0.15), (mode, key)
    assert not list(small.parent.glob(".outcrop-describe-*"))


def test_what_fits_where(small: Path) -> None:
    plenty = estimated(small, 0.1, "4GB")
    assert [one["fits"] for one in plenty["ways"]] == [True, True, True]
    assert way(plenty, "memory")["bytes_read"] == 0
    needs = way(plenty, "memory")["memory"]
    assert needs > plenty["graph"]["feature_bytes"] + plenty["graph"]["topology_bytes"]
    little = estimated(small, 0.1)
    assert not way(little, "memory")["fits"]
    assert "of memory" in way(little, "memory")["why"]
    packed = way(little, "packed")
    # Batches share rows where the disk has room for some of them, and nothing is packed where it has none.
    room = packed["disk_bytes"] - 60_000_000
    shared = way(estimated(small, 0.1, disk=str(room)), "packed")
    assert shared["fits"]
    assert shared["why"] == "batches share rows on disk"
    assert shared["disk_bytes"] <= room
    assert shared["bytes_read"] > packed["bytes_read"]
    assert shared["prepare_seconds"] < packed["prepare_seconds"]  # what is shared is written once
    graph = little["graph"]["feature_bytes"] + little["graph"]["topology_bytes"]
    tight = estimated(small, 0.1, disk=str(graph + 1_000_000))
    assert not way(tight, "packed")["fits"]
    assert "do not fit" in way(tight, "packed")["why"]
    assert way(tight, "online")["fits"]
    none = estimated(small, 0.1, disk=str(graph - 1_000_000))
    assert [one["fits"] for one in none["ways"]] == [False, False, False]
    with pytest.raises(BudgetError):
        estimated(small, 0.1, memory="10MB")


def test_the_smaller_graph_has_the_shape_that_is_described(tmp_path: Path) -> None:
    described = DescribedGraph(
        "g",
        (DescribedNodes("p", 30_000, "float32", 8, train=900), DescribedNodes("a", 2_000, skew=0.0)),
        (DescribedEdges("a", "writes", "p", 80_000, True), DescribedEdges("p", "cites", "p", 50_000)),
    )
    with Runtime("64MiB") as runtime:
        graph = generate_described(tmp_path / "g.oc", described.scaled(0.1), runtime)
        assert runtime.budget.peak_bytes <= 64 << 20
    assert [(one.name, one.num_nodes) for one in graph.node_types] == [("p", 3000), ("a", 200)]
    counts = {one.key: one.num_edges for one in graph.edge_types}
    assert counts == {("a", "writes", "p"): 8000, ("p", "cites", "p"): 5000, ("p", "rev_writes", "a"): 8000}
    assert graph.feature_bytes == described.scaled(0.1).feature_bytes == 3000 * 32
    assert graph.spec("train").shape[0] == 90
    writes = graph.edge_index(("a", "writes", "p"))
    often = [np.sort(np.bincount(ids, minlength=size)) for ids, size in zip(writes, (200, 3000), strict=True)]
    assert often[0].max() < 3 * often[0].mean()  # evenly
    assert often[1][-30:].sum() == pytest.approx(0.1 * 8000, rel=0.15)  # a hundredth has a tenth: the root
    assert np.argmax(np.bincount(writes[1])) != 0  # ranks lie anywhere
    with Runtime() as runtime:
        indptr = graph.array(runtime, "indptr").read("t")
    assert indptr.nbytes + 4 * graph.num_edges == described.scaled(0.1).topology_bytes
    rows = graph.path / graph.row_files[0].spec.file
    assert rows.stat().st_blocks * 512 < rows.stat().st_size  # a hole


def test_a_description_is_checked_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(
        'fanouts = "x"\nmore = 1\nnear = 1.5\n[[nodes]]\nname = "p"\nnum_nodes = 0\nwidth = 4\nskew = 2\ntrain = 7\n'
        '[[nodes]]\nname = "p"\nnum_nodes = 5\ndtype = "text"\nwidth = 1\n'
        '[[edges]]\nsource = "p"\nrelation = "r"\ntarget = "q"\nnum_edges = 4\nreverse = 3\n'
    )
    with pytest.raises(ArgumentError) as caught:
        read_description(path)
    said = str(caught.value)
    for what in (
        "fanouts = 'x'", "more is unknown", "near = 1.5: above 1", "num_nodes = 0: below 1", "dtype is missing",
        "skew = 2",
        "dtype = 'text': none of int8", "stands twice", "between node types that are not there", "reverse = 3",
        "7 of 1 nodes 'p' train", str(path),
    ):  # fmt: skip
        assert what in said, what
    path.write_text("nodes = 3\n")
    with pytest.raises(ArgumentError, match=r"nodes is no list of tables.*no \[\[edges\]\].*exactly one"):
        read_description(path)
    with pytest.raises(
        ArgumentError, match="nor one of the examples that ship with Outcrop: igbh-full, mag240m"
    ):
        read_description("none")


def test_those_that_ship_have_the_published_sizes() -> None:
    assert {path.stem for path in SHIPPED.glob("*.toml")} == {"mag240m", "igbh-full"}
    mag, igb = read_description("mag240m"), read_description("igbh-full")
    assert sum(of.num_edges for of in mag.graph.edges) == 1_728_364_232
    assert mag.graph.num_edges == 3_456_728_464
    assert mag.graph.num_nodes == 121_751_666 + 122_383_112 + 25_721
    assert -(-mag.train // mag.sampling.batch_size) == 1087
    assert sum(of.num_edges for of in igb.graph.edges) == 5_812_005_639
    assert igb.graph.num_nodes == 547_306_935
    assert igb.graph.feature_bytes == pytest.approx(1.12e12, rel=0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "sage"}, "for graphs without types: choose rgcn"),
        ({"scale": 0.0}, "scale 0.0 is not above 0"),
        ({"folder": "none"}, "none is no folder"),
        ({"hardware": "none"}, "none is no file"),
    ],
)
def test_what_cannot_be_described(small: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        describe(small, **{"hardware": "workstation", **options})


def test_without_a_machine_it_is_this_one(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = a_profile({}, steps={"sage": 0.02})
    monkeypatch.setattr("outcrop.api.describe.machine.profile_of", lambda folder: profile)
    monkeypatch.setattr("outcrop.api.describe.system.available_memory", lambda: 600 << 20)
    found = describe(small, scale=0.1, folder=small.parent)
    assert found["setting"]["hardware"] == "here"
    assert found["setting"]["memory"] < 600 << 20
    assert found["setting"]["disk_bytes"] > 0
    assert any("the profile's step of sage" in line for line in found["assumptions"])
    assert not any("loading takes no time" in line for line in found["assumptions"])
    there = estimated(small, 0.1)["assumptions"]
    assert any("loading takes no time of the processor of workstation" in line for line in there)


def test_the_command_says_what_fits_and_what_it_assumes(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(small.parent)
    arguments = ["advise", "--describe", "small.toml", "--machine", "workstation", "--scale", "0.1"]
    arguments += ["--memory", "60MB", "--model", "rgcn", "--json", "out.json"]
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    said, result = " ".join(done.stdout.split()), json.loads(Path("out.json").read_text())
    assert result["setting"]["model"] == "rgcn"
    assert "an epoch has 50 batches" in said
    for mode, fits in (("memory", "no"), ("packed", "yes"), ("online", "yes")):
        assert f"│ {mode} │ {fits} │" in said or f"{mode} {fits}" in said
    for line in result["assumptions"]:
        assert f"assumed: {line}" in said
    both = CliRunner().invoke(app, ["advise", "g.oc", "--describe", "small.toml"])
    assert "takes no GRAPH" in both.output or "takes no GRAPH" in str(both.exception)
    neither = CliRunner().invoke(app, ["advise"])
    assert "name a GRAPH" in neither.output or "name a GRAPH" in str(neither.exception)
