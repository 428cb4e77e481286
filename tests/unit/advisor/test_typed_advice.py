"""Advice about graphs with types: what is counted is what training reads, and what is chosen trains within limits."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import outcrop as oc
from advisor_support import a_profile
from outcrop.advisor import auto, counting, shapes, steps
from outcrop.api import advise as advising
from outcrop.cli.main import app
from outcrop.errors import ArgumentError, BudgetError
from outcrop.nn.models import build_model
from outcrop.nn.schema import GraphSchema, NodeSchema
from outcrop.store.graph import Graph
from outcrop.store.run import read as read_run
from prepare_support import prepare
from typed_reference import TypedGraph
from typed_store import write_typed

QUIET = oc.Observer(progress=False)
SAMPLING = oc.SampleConfig(fanouts=(3, 2), batch_size=16, seed=3)
MODEL = oc.ModelConfig("rsage", hidden=8, no_rows="random:4")
MODELS = ("rgcn", "rsage", "rgat", "hgt")


@pytest.fixture(autouse=True)
def no_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = a_profile({}, steps={"sage": 0.02, "gat": 0.05})
    monkeypatch.setattr(advising.machine, "profile_of", lambda folder, path=None: profile)
    monkeypatch.setattr(counting, "compute_seconds", lambda task, samples, runtime: 0.05)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    path = tmp_path_factory.mktemp("typed") / "g.oc"
    config = oc.GenerateConfig(nodes=4000, edges=60_000, kind="typed", train_fraction=0.3)
    return oc.generate_graph(path, config, progress=False)


def trained(graph: Graph, run: Path, mode: str, memory: int) -> Any:
    """Trains two epochs of a prepared run; topology is mapped, so that all that is read is rows: in the first epoch to
    fill caches, too.
    """
    return oc.train(
        graph,
        model=MODEL,
        loading=oc.Online(topology="map") if mode == "online" else mode,
        run=run,
        memory=memory,
        training=oc.TrainConfig(test=False),
        epochs=2,
        observer=QUIET,
    )


def check_counts(graph: Graph, run: Path, memory: int) -> None:
    """Compares what is predicted of each mode with epochs that are trained within ``memory``."""
    sampling = read_run(run).sample
    task = counting.Task(graph, MODEL, sampling, oc.Limits(memory).in_bytes(1), run=run, topology="map")
    counted = counting.count(task)
    assert list(counted.works) == ["packed", "online"]
    for mode, work in counted.works.items():
        found = trained(graph, run, mode, memory)
        epoch = found.epochs[-1]
        assert work.disk_bytes == epoch["bytes_read"]
        assert found.peak_host_bytes <= memory
        levels = [of.rows_by_level for of in counted.files[mode]]
        for level, rows in epoch["rows_by_level"].items():
            assert rows == sum(of.get(level, 0) for of in levels)
        if len(levels) > 1:
            seen, wanted = (
                [{k: v for k, v in of.items() if v} for of in x] for x in (epoch["rows_by_file"], levels)
            )
            assert seen == wanted


@pytest.mark.parametrize("memory", [2100 << 10, pytest.param(3 << 20, marks=pytest.mark.slow), 1 << 30])
def test_advice_counts_exactly_what_training_reads(graph: Graph, tmp_path: Path, memory: int) -> None:
    advice = oc.advise(graph, model=MODEL, sampling=SAMPLING, memory=memory)
    run = tmp_path / "r"
    limits = {"memory": memory, "epochs": 1, "fanouts": (3, 2), "batch_size": 16, "seed": 3}
    report = prepare(graph, run, **limits)
    assert {p["mode"] for p in advice["predictions"]} == {"packed", "online"}
    check_counts(graph, run, memory)
    on_disk = sum(f.stat().st_size for f in run.rglob("*") if f.is_file() and "history" not in f.parts)
    assert on_disk <= advice["run_disk_bytes"]
    assert report.predicted["disk_bytes"] == advice["run_disk_bytes"]
    assert [rows["of"] for rows in advice["row_files"]] == ["paper", "author", "topic"]
    json.loads(json.dumps(advice, allow_nan=False))
    packed = advice["by_file"]["packed"]
    meta = advice["predictions"][0]["bytes_read"] - sum(of["bytes_read"] for of in packed)
    assert 0 < meta < advice["predictions"][0]["bytes_read"]
    assert oc.advise(graph, model=MODEL, run=run)["by_file"]["packed"] == packed


@st.composite
def typed_graphs(draw: st.DrawFn) -> dict[str, Any]:
    """Describes node types with sizes and widths, edge types and their rows, and what is trained."""
    types = draw(st.integers(1, 3))
    ends = st.tuples(st.integers(0, types - 1), st.integers(0, types - 1))
    others = draw(st.lists(ends, max_size=3))
    return {
        "sizes": [draw(st.integers(60, 200)), *(draw(st.integers(1, 200)) for _ in range(types - 1))],
        "widths": [draw(st.sampled_from([1, 30, 400, 1200])) for _ in range(types)],
        "dtypes": [draw(st.sampled_from(["float32", "float16", "int8"])) for _ in range(types)],
        "ends": [(t, 0) for t in range(types)] + [(0, t) for t in range(1, types)] + others,
        "edge_rows": draw(st.sampled_from([None, 4, 90])),
        "seed": draw(st.integers(0, 1 << 30)),
        "memory": draw(st.integers(300, 1500)) << 10,
    }


def written(about: dict[str, Any], path: Path) -> Graph:
    rng = np.random.default_rng(about["seed"])
    sizes, ends = about["sizes"], tuple(about["ends"])
    lists = tuple(
        tuple(tuple(sorted(rng.integers(0, sizes[s], rng.integers(0, 8)).tolist())) for _ in range(sizes[t]))
        for s, t in ends
    )
    parts: dict[str, np.ndarray] = {
        f"n{t}.features": (rng.standard_normal((sizes[t], width)) * 9).astype(dtype)
        for t, (width, dtype) in enumerate(zip(about["widths"], about["dtypes"], strict=True))
    }
    if about["edge_rows"]:
        rows = sum(map(len, lists[0]))
        parts["e0.features"] = rng.standard_normal((rows, about["edge_rows"])).astype(np.float32)
    parts["n0.labels"] = rng.integers(0, 3, sizes[0])
    parts["n0.train"] = np.sort(rng.permutation(sizes[0])[: sizes[0] // 2]).astype(np.int64)
    return write_typed(path, TypedGraph(tuple(sizes), ends, lists), parts, {0: 3})


@settings(
    max_examples=12,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(typed_graphs())
@example(  # has rows of edges, which the batches do not want
    {"sizes": [138], "widths": [1], "dtypes": ["int8"], "ends": [(0, 0), (0, 0)], "edge_rows": 90, "seed": 2729162,
     "memory": 1419264}
)  # fmt: skip
def test_what_advice_gives_for_a_budget_trains_within_it(about: dict[str, Any]) -> None:
    with TemporaryDirectory() as folder:
        graph = written(about, Path(folder) / "g.oc")
        sampling, memory = oc.SampleConfig(fanouts=(3, 2), batch_size=16, seed=1), about["memory"]
        try:
            oc.advise(graph, model=MODEL, sampling=sampling, memory=memory)
        except BudgetError:  # then preparing does not fit either
            with pytest.raises(BudgetError):
                prepare(graph, Path(folder) / "r", memory=memory, epochs=1, sampling=sampling)
            return
        prepare(graph, Path(folder) / "r", memory=memory, epochs=1, sampling=sampling)
        check_counts(graph, Path(folder) / "r", memory)


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> int:
    available = 600 << 20
    monkeypatch.setattr(auto.machine, "profile_of", lambda folder, path=None: a_profile({}))
    monkeypatch.setattr(auto.system, "available_memory", lambda: available)
    return available


@pytest.mark.parametrize("loading", [None, "online", "packed"])
def test_memory_auto_trains_graphs_with_types(
    graph: Graph, tmp_path: Path, little_memory: int, loading: str | None
) -> None:
    (tmp_path / "g.oc").symlink_to(graph.path)
    mine = oc.open_graph(tmp_path / "g.oc")
    options = {} if loading is None else {"loading": loading}
    found = oc.train(mine, model=MODEL, sampling=SAMPLING, memory="auto", epochs=1, observer=QUIET, **options)
    assert found.mode in ("packed", "online")
    assert found.budget["memory"] == auto.choose.memory_within(little_memory)
    assert found.peak_host_bytes <= found.budget["memory"]
    assert "predicted" in found.chosen


def test_memory_auto_prepares_graphs_with_types(graph: Graph, tmp_path: Path, little_memory: int) -> None:
    made = prepare(graph, tmp_path / "r", memory="auto", fanouts=(4, 4), batch_size=32)
    assert "packed" in made.chosen
    again = prepare(graph, tmp_path / "r", memory="auto", fanouts=(4, 4), batch_size=32)
    assert again.skipped == ["sample", "plan", "pack"]


def test_models_of_other_graphs_are_refused(graph: Graph, little_memory: int) -> None:
    for model, message in (("sage", "for model 'sage' choose rgcn"), ("rsage", "'institution' has no rows")):
        with pytest.raises(ArgumentError, match=message):
            oc.advise(graph, model=model, sampling=SAMPLING)
        with pytest.raises(ArgumentError, match=message):
            oc.train(graph, model=model, sampling=SAMPLING, memory="auto", observer=QUIET)


def test_spooling_is_decided_for_graphs_with_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mode online times a training step of the model of the graph before it decides."""
    from outcrop.training import spool

    monkeypatch.setattr(spool, "LEAST_BYTES", 0)
    config = oc.GenerateConfig(nodes=4000, edges=60_000, kind="typed", train_fraction=0.3)
    mine = oc.generate_graph(tmp_path / "g.oc", config, progress=False)
    found = oc.train(
        mine, model=MODEL, sampling=SAMPLING, loading="online", memory="2MiB", epochs=1, observer=QUIET
    )
    assert "rows are read as batches are drawn" in found.chosen or "spooled to disk" in found.chosen


@given(
    st.lists(st.lists(st.integers(0, 39), unique=True), min_size=1, max_size=4),
    st.lists(st.lists(st.integers(0, 19), unique=True), min_size=4, max_size=4),
    st.integers(0, 2000),
)
def test_share_of_bytes_that_no_cache_holds(
    first: list[list[int]], second: list[list[int]], cache: int
) -> None:
    """Rows of two files, against a count by hand; of one file it is what rows of one file have."""
    wanted = [[np.array(b, np.int64) for b in first], [np.array(b, np.int64) for b in second[: len(first)]]]
    sizes = [(10, 40), (70, 20)]
    found = auto.missing_bytes(wanted, sizes, cache)
    if cache >= 1800:
        assert found == 0.0
        return
    times: dict[tuple[int, int], int] = {}
    for file, batches in enumerate(wanted):
        for node in np.concatenate([*batches[:-1], np.zeros(0, np.int64)]).astype(int).tolist():
            times[file, node] = times.get((file, node), 0) + 1
    held, used = set(), 0
    for row in sorted(times, key=lambda row: (-times[row], row)):
        used += sizes[row[0]][0]
        if used <= cache:
            held.add(row)
    last = [(file, int(node)) for file, batches in enumerate(wanted) for node in batches[-1]]
    total = sum(sizes[file][0] for file, _ in last)
    missed = sum(sizes[row[0]][0] for row in last if row not in held)
    seen = sum(sizes[file][0] for file, _ in times)
    room = max(cache - seen, 0) / max(1800 - seen, 1)
    assert found == pytest.approx(missed / total * (1 - room) if total else 0.0)
    # Of narrow rows that are never held, all are missing; of the others as many as if there were no narrow ones.
    narrow = 10 * len(wanted[0][-1])
    wide = auto.missing_bytes(wanted[1:], sizes[1:], cache) * 70 * len(wanted[1][-1])
    never = auto.missing_bytes(wanted, sizes, cache, 64)
    assert never == pytest.approx((narrow + wide) / total if total else 0.0)
    assert auto.missing_bytes(wanted, sizes, cache, 71) == (1.0 if total else 0.0)
    rows = auto.missing_rows(wanted[0], cache // 10, 40)
    assert auto.missing_bytes(wanted[:1], [(10, 40)], cache // 10 * 10) == pytest.approx(rows)


SCHEMA = GraphSchema(
    (NodeSchema("p", 12), NodeSchema("a", 5), NodeSchema("i", 3)),
    (
        ("p", "cites", "p"),
        ("a", "writes", "p"),
        ("p", "by", "a"),
        ("i", "has", "a"),
        ("a", "in", "i"),
        ("i", "of", "p"),
    ),
    "p",
    7,
)


@pytest.mark.parametrize("name", ["rgcn", "rgat", "hgt"])
def test_the_work_of_a_step_is_that_of_the_weights(name: str) -> None:
    """A batch of one node of each type takes as many products as the model has weights that it uses."""
    network = shapes.Network(name, 0, 16, 7, 4, SCHEMA)
    model = build_model(name, SCHEMA, 16, 7, 2, heads=4)
    one = shapes.TypedShape(((1, 0, 0),) * 3, ((0, 0),) * 6)
    operations, _ = shapes.step_work(network, one)
    weights = {key: w.numel() for key, w in model.named_parameters() if w.dim() > 1 and "att" not in key}
    if name == "hgt":
        entered = sum(n for key, n in weights.items() if key.startswith("lin_dict"))
        scores = weights["lin.weight"]
        first, second = (_used(weights, f"convs.{i}.", hgt=True, last=i == 1) for i in (0, 1))
        assert operations == 2 * (2 * entered + 3 * (first + second + scores))
        return
    first, second = (_used(weights, f"convs.{i}.", last=i == 1) for i in (0, 1))
    if name == "rgcn":
        first += _used(weights, "roots.0.")
        second += weights["roots.1.p.weight"]
    assert operations == 2 * (2 * first + 3 * second)


def _used(weights: dict[str, int], prefix: str, *, hgt: bool = False, last: bool = False) -> int:
    """Counts the weights of a layer; the last one computes papers alone. ``hgt`` has queries of the targets, keys and
    values of the sources.
    """
    if not hgt:
        needed = [k for k in weights if k.startswith(prefix) and (not last or "___p" in k or "roots" in k)]
        return sum(weights[key] for key in needed)
    d = 16
    if not last:
        return sum(n for key, n in weights.items() if key.startswith(prefix) and w_dim(key))
    return 2 * 3 * d * d + 2 * 3 * d * d // 4 + 2 * d * d  # of all types; of three edge types; of papers


def w_dim(key: str) -> bool:
    """Tells whether a parameter is a matrix of products: not the priors of edge types."""
    return "p_rel" not in key and "skip" not in key


def test_wider_and_larger_batches_take_longer() -> None:
    small = shapes.TypedShape(((8, 20, 90), (0, 10, 40), (0, 0, 5)), ((20, 90),) * 6)
    large = shapes.TypedShape(((8, 40, 180), (0, 20, 80), (0, 0, 10)), ((40, 180),) * 6)
    for name in MODELS:
        narrow, wide = (shapes.Network(name, 0, hidden, 7, 4, SCHEMA) for hidden in (16, 64))
        times = [shapes.scaled_step(0.02, *of) for of in ((narrow, small), (wide, small), (wide, large))]
        assert 0 < times[0] < times[1] < times[2]


def test_steps_are_timed_on_batches_with_types(graph: Graph) -> None:
    with auto.Runtime() as runtime:
        sampler = auto.BatchSampler(graph, SAMPLING, runtime)
        batch = steps.batch_of(next(iter(sampler.epoch("train", 0))), graph)
    assert [str(rows.dtype) for rows in batch.rows] == ["torch.float32", "torch.float16", "torch.int8"]
    assert [len(rows) for rows in batch.rows] == list(batch.graph.num_rows(graph.row_files))
    for name in MODELS:
        network = shapes.network_of(graph, oc.ModelConfig(name, 8, heads=2, no_rows="random:4"))
        assert steps.step_seconds([batch], network, seconds=0.0)[0] > 0


def test_the_command_advises_on_graphs_with_types(graph: Graph, tmp_path: Path) -> None:
    arguments = ["advise", str(graph.path), "--model", "rgcn", "--no-rows", "random:4", "--fanouts", "3,2"]
    arguments += [
        "--batch-size",
        "16",
        "--fanout",
        "paper cites paper=2,2",
        "--memory",
        "3MiB",
        "--json",
        str(tmp_path / "a.json"),
    ]
    done = CliRunner().invoke(app, [*arguments, "--machine", "machine-a"])
    assert done.exit_code == 0, done.output
    said = " ".join(done.stdout.split())
    for of in ("paper", "author", "topic"):
        assert f"rows of {of} an epoch, packed: " in said
    advice = json.loads((tmp_path / "a.json").read_text())
    assert advice["setting"]["fanouts_by_type"] == {"paper cites paper": [2, 2]}
    assert {row["mode"] for row in advice["predictions"]} == {"packed", "online"}
    assert [row["hardware"] for row in advice["predictions"]] == ["here", "here", "A", "A"]
