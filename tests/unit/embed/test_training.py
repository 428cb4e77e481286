"""Training of embeddings: what is in memory, interruptions and damage change nothing, or say so."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import outcrop._core as _core
from embed_support import buckets_of, fit, knowledge_graph, random_triples, table_of
from outcrop.api.embed import embed_prepare, embed_train
from outcrop.config import EmbedConfig, SwapConfig
from outcrop.embed import schedule as schedules
from outcrop.embed.checkpoint import CHECKPOINT, FOLDER
from outcrop.embed.edges import TrainingEdges
from outcrop.embed.model import open_model
from outcrop.embed.sizing import fewest_partitions
from outcrop.embed.sources import open_source
from outcrop.embed.tables import Move
from outcrop.embed.training import EmbeddingTrainer
from outcrop.errors import ArgumentError, BudgetError, ChecksumError, FormatError, IoError, NumericError
from outcrop.runtime import memory_tables

CONFIG = EmbedConfig(dim=8, epochs=3, negatives=20, chunk=16, batch=64, start=0.1)


@pytest.fixture
def source(tmp_path, make_runtime):
    return knowledge_graph(tmp_path, make_runtime(), train=random_triples(90, 4, 1500))


def same(a, b):
    for x, y in zip(a, b, strict=True):
        if x is None:
            assert y is None
        else:
            np.testing.assert_array_equal(x, y)


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize(
    ("partitions", "options"),
    [
        (8, {"decay": 0.7}),
        (8, {"order": "legend", "optimizer": "adam", "learning_rate": 0.01}),
        (5, {"order": "beta", "reciprocal": True, "n3": 0.01, "by_degree": 0.5}),
        (9, {"order": "cover", "model": "distmult", "optimizer": "sgd", "learning_rate": 0.01}),
        (6, {"buffer": 2, "model": "rotate", "loss": "margin"}),
        (7, {"buffer": 4, "model": "transe-l2", "loss": "logistic"}),
        (4, {"model": "dot", "negatives": 200}),
        (40, {"buffer": 8}),
        (6, {"slices": 3}),
        (5, {"slices": 4, "sweeps": 3, "by_degree": 0.5}),
        (5, {"slices": 2, "order": "slices"}),
        (6, {"slices": 3, "order": "slices", "sweeps": 2, "by_degree": 0.5, "decay": 0.5}),
    ],
)
def test_swapping_gives_the_same_as_holding_everything(tmp_path, make_runtime, source, partitions, options):
    slices = options.pop("slices", 1)
    runtime, config = make_runtime(), replace(CONFIG, epochs=2, **options)
    tables, losses = [], []
    for resident in (True, False):
        run = tmp_path / f"run-{resident}"
        buckets = buckets_of(source, run, runtime, partitions, slices=slices)
        trained = fit(buckets, run, config, runtime, resident=resident)
        assert trained.result.resident == resident
        tables.append(table_of(run, runtime))
        losses.append([record.loss for record in trained.records])
        starts = buckets.starts(runtime)
        assert len(starts) == (partitions * slices) ** 2 + 1
        np.testing.assert_array_equal(
            trained.result.edges_of_bucket, config.epochs * np.diff(starts)
        )  # every bucket once an epoch
    same(*tables)
    assert losses[0] == losses[1]
    # Two epochs of random triples teach little: nothing to SGD, or where every batch mixes edges of three sweeps.
    assert losses[0][-1] < losses[0][0] or options.get("optimizer") == "sgd" or "sweeps" in options


class Notes:
    """Progress that keeps what is said beside the bar."""

    def __init__(self):
        self.notes: list[str] = []

    def start(self, task, total, unit): ...
    def advance(self, task, amount): ...
    def finish(self, task): ...
    def note(self, task, text):
        self.notes.append(text)


def test_the_loss_and_the_waits_are_seen_beside_the_bar(tmp_path, make_runtime, source):
    progress = Notes()
    runtime = make_runtime(progress=progress)
    trained = fit(
        buckets_of(source, tmp_path / "run", runtime, 4), tmp_path / "run", CONFIG, runtime, resident=False
    )
    said = re.compile(r"epoch (\d+), loss (\S+), waited \S+ s for (\d+) swaps")
    first, last = said.fullmatch(progress.notes[0]), said.fullmatch(progress.notes[-1])
    assert first
    assert last
    assert (int(first[1]), int(last[1])) == (0, CONFIG.epochs - 1)
    assert float(last[2]) == pytest.approx(trained.records[-1].loss, abs=1e-4)
    assert int(last[3]) > int(first[3])


def test_the_first_vectors_do_not_depend_on_the_partitions(tmp_path, make_runtime, source):
    runtime, config = make_runtime(), replace(CONFIG, epochs=1, learning_rate=1e-30)
    tables = []
    for p, numbering in ((1, "random"), (4, "random"), (7, "degree"), (3, "id")):
        run = tmp_path / f"run{p}"
        fit(buckets_of(source, run, runtime, p, numbering=numbering), run, config, runtime)
        tables.append(table_of(run, runtime)[0][:, :8])
    for table in tables[1:]:
        np.testing.assert_array_equal(table, tables[0])
    assert tables[0].std() == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("order", ["best", "slices"])
@pytest.mark.parametrize("resident", [True, False])
def test_going_on_equals_no_interruption(tmp_path, make_runtime, source, resident, order, monkeypatch):
    monkeypatch.setattr(schedules, "UNIT_EDGES", 80)
    runtime, config = make_runtime(), replace(CONFIG, sweeps=2, decay=0.6, order=order)
    whole = tmp_path / "whole"
    buckets = buckets_of(source, whole, runtime, 6, slices=2)
    expected = fit(buckets, whole, config, runtime, resident=resident)
    units = len(list(expected.schedule.units(0)))
    run = tmp_path / "run"
    buckets = buckets_of(source, run, runtime, 6, slices=2)
    seen = 0
    for stop_at in (3, units // 2, 5, units + 7):  # units from where each try begins

        def stop(epoch, unit, loss, stop_at=stop_at):
            nonlocal seen
            seen += 1
            if seen == stop_at:
                raise Stop

        seen = 0
        with pytest.raises(Stop):
            fit(buckets, run, config, runtime, resident=resident, checkpoint_seconds=0, on_unit=stop)
    again = fit(buckets, run, config, runtime, resident=resident)
    assert again.resumed is not None
    assert [r.loss for r in again.records] == pytest.approx([r.loss for r in expected.records], rel=1e-12)
    same(table_of(run, runtime), table_of(whole, runtime))


@pytest.mark.parametrize("decay", [0.0, 0.4, 1.0])
def test_learning_rates_fall_over_the_share_at_the_end(tmp_path, make_runtime, source, decay, monkeypatch):
    """Both of them, by the edges that lie behind, in every batch; what a step does with them is the step's."""
    rates, real = [], _core.step_rows

    def step_rows(table, width, ids, gradients, options, workers):
        rates.append(options.rate)
        return real(table, width, ids, gradients, options, workers)

    monkeypatch.setattr(_core, "step_rows", step_rows)
    runtime, config = (
        make_runtime(),
        replace(CONFIG, epochs=4, decay=decay, learning_rate=0.2, relation_learning_rate=0.05),
    )
    run = tmp_path / "run"
    buckets = buckets_of(source, run, runtime, 5, slices=2)
    trained = fit(buckets, run, config, runtime, resident=False)
    behind = []
    for epoch in range(4):
        for unit in trained.schedule.units(epoch):
            behind += [
                epoch * 1500 + sum(behind_of(trained, epoch, unit)) + at
                for at in range(0, unit.num_edges, 64)
            ]
    progress = np.array(behind) / 6000
    want = np.minimum((1 - progress) / decay, 1.0) if decay else np.ones(len(behind))
    np.testing.assert_allclose(rates[0::2], 0.2 * want, rtol=1e-6)
    np.testing.assert_allclose(rates[1::2], 0.05 * want, rtol=1e-6)
    assert (min(rates) < 0.05 * 0.1) == (decay > 0)


def behind_of(trained, epoch, unit):
    return [other.num_edges for other in trained.schedule.units(epoch) if other.number < unit.number]


def test_a_decay_is_a_share(tmp_path):
    for wrong in (-0.1, 1.5, float("nan")):
        with pytest.raises(ArgumentError, match="decay"):
            replace(CONFIG, decay=wrong)
    assert "decay" not in CONFIG.as_stored()  # checkpoints of before there was any go on
    assert EmbedConfig.from_stored(replace(CONFIG, decay=0.5).as_stored()).decay == 0.5


class Stop(Exception):
    pass


def stop_after(units):
    def on_unit(epoch, unit, loss):
        if (epoch, unit.number) == units:
            raise Stop

    return on_unit


def test_starting_over_forgets_what_was_there(tmp_path, make_runtime, source):
    runtime, run = make_runtime(), tmp_path / "run"
    buckets = buckets_of(source, run, runtime, 4)
    fit(buckets, run, CONFIG, runtime)
    with pytest.raises(Stop):
        fit(buckets, run, CONFIG, runtime, fresh=True, on_unit=stop_after((0, 2)))
    again = fit(buckets, run, CONFIG, runtime)
    assert again.resumed is None
    assert len(again.records) == 3


def test_going_on_where_swaps_are_put_off(tmp_path, make_runtime, source):
    runtime, whole = make_runtime(), tmp_path / "whole"
    options = {"resident": False, "swaps": SwapConfig(prefetch=False), "checkpoint_seconds": 0}
    units = list(
        fit(buckets_of(source, whole, runtime, 6), whole, CONFIG, runtime, **options).schedule.units(0)
    )
    for stop_at in (u.number for u in units if u.swap and not u.exposed and not u.last):
        run = tmp_path / f"run{stop_at}"
        buckets = buckets_of(source, run, runtime, 6)
        with pytest.raises(Stop):
            fit(buckets, run, CONFIG, runtime, on_unit=stop_after((0, stop_at + 1)), **options)
        fit(buckets, run, CONFIG, runtime, **options)
        same(table_of(run, runtime), table_of(whole, runtime))


def test_more_epochs_go_on_and_other_options_do_not(tmp_path, make_runtime, source):
    runtime, run = make_runtime(), tmp_path / "run"
    buckets = buckets_of(source, run, runtime, 4)
    fit(buckets, run, replace(CONFIG, epochs=1), runtime)
    assert len(fit(buckets, run, CONFIG, runtime).records) == 3
    whole = tmp_path / "whole"
    fit(buckets_of(source, whole, runtime, 4), whole, CONFIG, runtime)
    same(table_of(run, runtime), table_of(whole, runtime))
    with pytest.raises(ArgumentError, match=r"dim \(there 8, now 10\).*--fresh, in Python fresh=True"):
        fit(buckets, run, replace(CONFIG, dim=10), runtime)
    assert len(fit(buckets, run, replace(CONFIG, dim=10, epochs=1), runtime, fresh=True).records) == 1


KILLED = """
import sys
from pathlib import Path
from outcrop.config import EmbedConfig
from outcrop.embed.buckets import open_buckets
from outcrop.embed.training import EmbeddingTrainer
from outcrop.runtime.runtime import Runtime
run = Path(sys.argv[1])
config = EmbedConfig(dim=8, epochs=40, negatives=20, chunk=16, batch=64, start=0.1)
def on_unit(epoch, unit, loss):
    print("unit", flush=True)
options = dict(resident=False, checkpoint_seconds=0.01, on_unit=on_unit)
fit = EmbeddingTrainer(open_buckets(run), run, config, Runtime(), **options)
fit.run()
fit.close()
print("done", flush=True)
"""


@pytest.mark.slow
def test_a_kill_at_any_time_loses_nothing_that_a_checkpoint_had(tmp_path, make_runtime, source):
    runtime, config = make_runtime(), replace(CONFIG, epochs=40)
    whole, run = tmp_path / "whole", tmp_path / "run"
    fit(buckets_of(source, whole, runtime, 6), whole, config, runtime)
    buckets_of(source, run, runtime, 6)
    random = np.random.default_rng(0)
    for units in random.integers(1, 40, 6):  # of what is trained before the kill
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(run)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(units)] == ["unit\n"] * units
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert "done" not in process.stdout.read()
        process.stdout.close()
    fit(buckets_of(source, run, runtime, 6), run, config, runtime)
    same(table_of(run, runtime), table_of(whole, runtime))


@pytest.mark.parametrize("fault", ["disk_full", "error"])
def test_a_write_that_fails_ends_training_and_the_checkpoint_stays(tmp_path, make_runtime, source, fault):
    runtime, run = make_runtime(), tmp_path / "run"
    buckets = buckets_of(source, run, runtime, 6)
    fit(buckets, run, replace(CONFIG, epochs=1), runtime)
    before = table_of(run, runtime)
    plan = _core.FaultPlan()
    if fault == "disk_full":
        plan.disk_full_after_bytes = 30_000
    else:
        plan.fail_at_op = 20
    with pytest.raises(IoError, match=r"tables\.bin|edges\.bin"):
        fit(buckets, run, CONFIG, make_runtime(faults=plan), resident=False)
    same(table_of(run, runtime), before)
    whole = tmp_path / "whole"
    fit(buckets_of(source, whole, runtime, 6), whole, CONFIG, runtime)
    fit(buckets, run, CONFIG, runtime)
    same(table_of(run, runtime), table_of(whole, runtime))


def test_damage_is_found(tmp_path, make_runtime, source):
    runtime, run = make_runtime(), tmp_path / "run"
    buckets = buckets_of(source, run, runtime, 4)
    with pytest.raises(FormatError, match="holds no trained embeddings"):
        open_model(run, runtime)
    fit(buckets, run, replace(CONFIG, epochs=1), runtime)
    path = run / FOLDER / "tables.bin"
    whole = path.read_bytes()
    torn = bytearray(whole)
    for at in range(0, len(torn), 4096):
        torn[at] ^= 1
    path.write_bytes(torn)
    with pytest.raises(ChecksumError, match=r"tables\.bin: slice \d"):
        table_of(run, runtime)
    with pytest.raises(ChecksumError, match="--fresh"):
        fit(buckets, run, CONFIG, runtime)
    path.write_bytes(whole[:4096])
    with pytest.raises(FormatError, match="is truncated"):
        table_of(run, runtime)
    path.unlink()
    with pytest.raises(FormatError, match=r"tables\.bin is missing"):
        table_of(run, runtime)
    checkpoint = run / FOLDER / CHECKPOINT
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    with pytest.raises(FormatError, match="truncated, damaged"):
        fit(buckets, run, CONFIG, runtime)


def test_the_budget_holds(tmp_path, make_runtime):
    setup = make_runtime()
    source = knowledge_graph(tmp_path, setup, train=random_triples(3000, 4, 6000))
    run = tmp_path / "run"
    config = replace(CONFIG, dim=64, epochs=1)
    buckets = buckets_of(source, run, setup, 10)
    runtime = make_runtime("1MiB")  # the table takes 1.5 MiB, three of its partitions 0.5 MiB
    trained = fit(buckets, run, config, runtime)
    assert not trained.result.resident
    assert runtime.budget.peak_bytes <= 1 << 20
    assert fit(buckets, run, config, make_runtime("4MiB"), fresh=True).result.resident
    before = table_of(run, setup)
    with pytest.raises(
        BudgetError,
        match=r"10 slices of .* raise --memory to at least \d+ bytes .*, prepare with more partitions, or lower",
    ):
        fit(buckets, run, config, make_runtime("1MiB"), resident=True, fresh=True)
    with pytest.raises(BudgetError, match=r"'embed-batch'.*lower --batch, --chunk, --negatives or --dim"):
        fit(buckets, run, replace(config, batch=100_000), make_runtime("1MiB"), fresh=True)
    same(table_of(run, setup), before)  # starting over begins when it can


@pytest.mark.parametrize(
    ("options", "least"),
    [
        ({}, 1400 << 10),
        ({"model": "rotate", "negatives": 90}, 1400 << 10),
        ({"by_degree": 0.5, "dim": 100}, 1700 << 10),
    ],
)
def test_partitions_follow_from_the_budget(tmp_path, make_runtime, options, least):
    setup = make_runtime()
    source = open_source(knowledge_graph(tmp_path, setup, train=random_triples(3000, 4, 6000)))
    config = replace(CONFIG, **{"dim": 64, "epochs": 1, **options})
    sizes = source.num_nodes, source.count("train"), source.num_relations
    found = []
    for memory in (least, least + (648 << 10), 3 << 20, 64 << 20):
        runtime = make_runtime(memory)
        p = fewest_partitions(*sizes, config, runtime.budget.free_bytes)
        run = tmp_path / f"run-{memory}"
        trained = fit(buckets_of(source.path, run, setup, p), run, config, runtime)
        assert len(trained.records) == 1
        assert p == 1 or not trained.result.resident
        assert runtime.budget.peak_bytes > (0.5 if p > 1 else 0) * memory  # and not many more than are needed
        found.append(p)
    assert found[0] > found[1] > found[-1] == 1
    with pytest.raises(BudgetError, match=r"128 partitions of .* raise --memory, or lower --dim"):
        fewest_partitions(*sizes, config, 100 << 10)


def test_edges_of_pieces(tmp_path, make_runtime, source, monkeypatch):
    """Those of the whole array, from memory and from disk; damaged ones are named."""
    runtime, run = make_runtime(), tmp_path / "run"
    buckets = buckets_of(source, run, runtime, 3)
    whole, starts = buckets.array(runtime, "edges").read("test"), buckets.starts(runtime)
    random, pieces = np.random.default_rng(0), []
    for bucket in random.permutation(9):
        first, stop = np.sort(random.integers(starts[bucket], starts[bucket + 1] + 1, 2))
        pieces.append((*divmod(int(bucket), 3), first, stop))
    expected = np.concatenate([whole[first:stop] for _, _, first, stop in pieces])
    for held in (8, 1 << 60):
        part = replace(memory_tables.HELD_EDGES, fraction=Fraction(1, held))
        monkeypatch.setattr(memory_tables, "HELD_EDGES", part)
        reader = TrainingEdges(buckets, runtime)
        read = runtime.io.counters.read_bytes
        np.testing.assert_array_equal(reader.read(np.array(pieces)), expected)
        assert (runtime.io.counters.read_bytes > read) == (held > 8)
        assert len(reader.read(np.empty((0, 4), np.int64))) == 0
        wrong = np.array([(0, 1, starts[1], starts[1] + 2), (2, 2, starts[1] + 2, starts[1] + 40)])
        buckets.division.__dict__["starts"] = np.array([0, 90, 180, 181])  # partition 2 of one row
        with pytest.raises(FormatError, match=r"an edge of bucket \(2, 2\) leads out of it"):
            TrainingEdges(buckets, runtime).read(wrong)
        del buckets.division.__dict__["starts"]
        reader.close()


def test_what_was_trained_is_only_read(tmp_path, make_runtime, source):
    runtime, run = make_runtime(), tmp_path / "run"
    fit(buckets_of(source, run, runtime, 3), run, CONFIG, runtime)
    trained = open_model(run, runtime)
    table = trained.table
    slab = runtime.budget.empty("slab", table.slab_bytes)
    table.load(1, slab)
    with pytest.raises(ArgumentError, match="opened for reading"):
        table.of(1).exchange([Move(slab, 1, None)]).wait()
    trained.close()


def test_prepare_asks_the_budget(tmp_path, make_runtime):
    source = knowledge_graph(tmp_path, make_runtime(), train=random_triples(90_000, 4, 100_000))
    alone = embed_prepare(source, tmp_path / "a")
    assert (alone.division.parts, alone.manifest.config["partitions"]) == (1, 1)
    made = embed_prepare(source, tmp_path / "b", memory="64MiB", dim=64)
    assert made.slices > 1
    divided = made.partitions
    assert divided > 1
    report = embed_train(tmp_path / "b", memory="64MiB", dim=64, epochs=1)
    assert not report.resident
    assert embed_prepare(source, tmp_path / "c", memory="64MiB", dim=100).partitions > divided


def test_impossible_requests(tmp_path, make_runtime, source):
    runtime, run = make_runtime(), tmp_path / "run"
    buckets = buckets_of(source, run, runtime, 4)
    with pytest.raises(ArgumentError, match="a buffer of 1 holds no two partitions"):
        EmbeddingTrainer(buckets, run, replace(CONFIG, buffer=1), runtime)
    with pytest.raises(ArgumentError, match="model dot has no relations"):
        EmbeddingTrainer(buckets, run, replace(CONFIG, model="dot", reciprocal=True), runtime)
    with pytest.raises(ArgumentError, match="order slices trains one group of slices, and 2 are asked for"):
        EmbeddingTrainer(buckets, run, replace(CONFIG, order="slices", groups=2), runtime)
    with pytest.raises(ArgumentError, match="order 'x' is unknown; known: best, legend, beta, cover, slices"):
        EmbeddingTrainer(buckets, run, replace(CONFIG, order="x"), runtime)
    with pytest.raises(NumericError, match="lower the learning rate"):
        fit(buckets, run, replace(CONFIG, optimizer="sgd", learning_rate=1e30), runtime)


def test_edges_without_relations_and_isolated_nodes(tmp_path, make_runtime):
    runtime = make_runtime()
    source = knowledge_graph(tmp_path, runtime, train=random_triples(40, 0, 300))
    for model in ("dot", "distmult", "complex"):
        run = tmp_path / model
        fit(buckets_of(source, run, runtime, 3), run, replace(CONFIG, model=model), runtime)
        table, relations = table_of(run, runtime)
        assert np.isfinite(table).all()
        assert (relations is None) == (model == "dot")


def test_learns_a_pattern_that_can_be_learned(tmp_path, make_runtime):
    """Relation k leads from node i to node i + k on a circle: held-out edges are ranked first."""
    from outcrop.embed.evaluate import evaluate

    runtime = make_runtime()
    every = np.array([(i, k, (i + k + 1) % 60) for i in range(60) for k in range(6)])
    np.random.default_rng(0).shuffle(every)
    source = knowledge_graph(tmp_path, runtime, train=every[:300], test=every[300:])
    values = []
    for p in (1, 6):
        run = tmp_path / f"run{p}"
        config = EmbedConfig(dim=32, epochs=60, negatives=60, chunk=50, batch=50, start=0.1, n3=1e-3)
        fit(buckets_of(source, run, runtime, p), run, config, runtime)
        trained = open_model(run, runtime)
        values.append(evaluate(trained, "test").mrr)
        trained.close()
    assert min(values) > 0.6, values


def test_paths_are_plain(tmp_path, make_runtime, source):
    run = tmp_path / "run"
    fit(buckets_of(source, run, make_runtime(), 2), run, replace(CONFIG, epochs=1), make_runtime())
    assert {p.name for p in run.iterdir()} == {"buckets", "tables"}
    assert {p.name for p in (run / "tables").iterdir()} == {
        "tables.bin", "checkpoint.safetensors", "timeline.json"
    }  # fmt: skip
    assert isinstance(run, Path)
