"""Groups of partitions: who trains what in which round, and what is passed on; a plain training to compare with."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch

from embed_support import buckets_of, fit, knowledge_graph, random_triples, table_of
from outcrop.config import EmbedConfig
from outcrop.embed import schedule as schedules
from outcrop.embed.moves import Transfer, in_steps
from outcrop.embed.negatives import Pool
from outcrop.embed.orders.between import between
from outcrop.embed.rounds import make_rounds, tournament
from outcrop.embed.schedule import Schedule, key_pair
from outcrop.embed.training import EmbeddingTrainer
from outcrop.errors import ArgumentError


@pytest.mark.parametrize("groups", range(1, 33))
def test_every_two_blocks_meet_once_and_a_group_passes_on_one(groups):
    rounds = tournament(groups)
    assert len(rounds) == 2 * groups - 1
    for pairs in rounds:
        assert sorted(block for pair in pairs for block in pair) == list(range(2 * groups))
    met = Counter(tuple(sorted(pair)) for pairs in rounds for pair in pairs)
    assert met == Counter(combinations(range(2 * groups), 2))
    for before, after in pairwise(rounds):
        for (keeps, passes_on), pair in zip(before, after, strict=True):
            assert keeps in pair
            assert passes_on not in pair


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize("buffer", range(2, 19))
def test_between_two_blocks(size, buffer):
    order = between(size, buffer)
    order.verify()
    wanted = {(a, b) for a in range(size) for b in range(size, 2 * size)}
    trained = Counter(bucket for state in order.buckets for bucket in state)
    assert trained == Counter(wanted | {(b, a) for a, b in wanted})
    assert max(map(len, order.states)) <= buffer
    if buffer >= size + 2:
        assert order.exposed_swaps == ()
        assert order.num_loads == 2 * size
        assert len(order.states[-1]) == size + 1  # all but one of those that go are on their way


def test_partitions_that_cannot_be_dealt_to_blocks():
    with pytest.raises(ArgumentError, match="--partitions 12, or another multiple of 6"):
        make_rounds("best", 8, 3, groups=3)
    with pytest.raises(ArgumentError, match="groups 0"):
        EmbedConfig(groups=0)


@pytest.mark.parametrize(
    ("groups", "p", "c", "slices", "sweeps"),
    [(2, 4, 2, 1, 1), (2, 8, 3, 3, 2), (3, 6, 8, 2, 2), (4, 16, 3, 1, 1), (4, 24, 5, 2, 1)],
)
def test_every_edge_is_trained_once_an_epoch_by_the_group_that_has_it(
    groups, p, c, slices, sweeps, monkeypatch
):
    monkeypatch.setattr(schedules, "UNIT_EDGES", 40)
    parts = p * slices
    counts = np.random.default_rng(p).integers(0, 60 // slices, parts * parts)
    starts = np.concatenate([[0], np.cumsum(counts)])
    schedule = Schedule(make_rounds("best", p, c, groups), slices, starts, seed=5, sweeps=sweeps)
    assert schedule.rounds == sweeps * (2 * groups - 1)
    keys = set()
    before = schedule.holders(0, 0)
    for epoch in range(3):
        trained = Counter()
        for turn in range(schedule.rounds):
            holders = schedule.holders(epoch, turn)
            assert (np.bincount(holders) == parts // groups).all()
            if turn % (2 * groups - 1) == 0:
                np.testing.assert_array_equal(holders, before)  # nothing moves between sweeps
            else:
                assert (holders != before).sum() == parts // 2  # one of two blocks of every group
            for group in range(groups):
                gone: set[int] = set()
                for unit in schedule.units(epoch, turn, group):
                    keys.add(unit.key)
                    assert len(unit.state) <= c * slices
                    assert {group} == {*holders[list(unit.state)].tolist()}
                    assert not gone & {*unit.state}
                    gone |= {*unit.leaving}
                    for source, target, first, stop in unit.pieces.tolist():
                        bucket = source * parts + target
                        assert starts[bucket] <= first < stop <= starts[bucket + 1]
                        assert {source, target} <= {*unit.state}
                        trained.update(range(first, stop))
            before = holders
        assert trained == Counter(range(starts[-1]))
    assert len(keys) == sum(1 for epoch in range(3) for _ in schedule.all_units(epoch))


def test_steps_have_one_slice_a_process_at_the_most():
    random = np.random.default_rng(0)
    ends = random.integers(0, 5, (60, 2)).tolist()
    transfers = [Transfer(part, source, target) for part, (source, target) in enumerate(ends)]
    steps = in_steps(transfers)
    assert sorted(one.part for step in steps for one in step) == list(range(60))
    for step in steps:
        for rank in range(5):
            assert sum(one.source == rank for one in step) <= 1
            assert sum(one.target == rank for one in step) <= 1
    around = [Transfer(part, part % 4, (part + 1) % 4) for part in range(12)]
    assert len(in_steps(around)) == 3


@pytest.mark.parametrize("groups", [2, 3])
def test_groups_learn_what_plain_torch_does(tmp_path, make_runtime, groups):
    """Every group begins a round with the same relations, of which all changes are added up; float64 and autograd."""
    runtime = make_runtime()
    source = knowledge_graph(tmp_path, runtime, train=random_triples(60, 5, 900))
    config = EmbedConfig(
        model="distmult", dim=6, epochs=2, negatives=15, chunk=16, batch=64, optimizer="sgd", learning_rate=0.02,
        start=0.3, groups=groups,
    )  # fmt: skip
    run = tmp_path / "run"
    buckets = buckets_of(source, run, runtime, 2 * groups, slices=2)
    nodes, relations = _plain(buckets, tmp_path / "start", config, runtime)
    fit(buckets, run, config, runtime)
    found, found_relations = table_of(run, runtime)
    assert found_relations is not None
    start, _ = table_of(tmp_path / "start", runtime)
    assert np.abs(nodes - start[:, :6]).max() > 0.05  # something was learned
    np.testing.assert_allclose(found[:, :6], nodes, atol=2e-5)
    np.testing.assert_allclose(found_relations, relations, atol=2e-5)


def _plain(buckets, run, config, runtime):
    """Trains with the batches and negatives of the schedule, from the first vectors of the trainer, by autograd."""
    run.mkdir()
    (run / "buckets").symlink_to(buckets.path)
    first = fit(buckets, run, replace(config, epochs=1, learning_rate=1e-30), runtime)
    nodes = torch.tensor(table_of(run, runtime)[0][:, :6], dtype=torch.float64)
    relations = torch.tensor(first.relations.rows[:, :6], dtype=torch.float64)
    numbering, division = buckets.numbering(runtime), buckets.division
    edges = buckets.array(runtime, "edges").read("test").astype(np.int64)
    for epoch in range(config.epochs):
        for turn in range(first.schedule.rounds):
            changed = torch.zeros_like(relations)
            for group in range(first.schedule.groups):
                own = relations.clone()
                for unit in first.schedule.units(epoch, turn, group):
                    if unit.num_edges:
                        _unit(unit, edges, division, numbering, config, nodes, own)
                changed += own - relations
            relations = relations + changed
    return nodes.numpy(), relations.numpy()


def _unit(unit, edges, division, numbering, config, nodes, relations):
    rows = np.concatenate([edges[a:b] for *_, a, b in unit.pieces])
    lengths = unit.pieces[:, 3] - unit.pieces[:, 2]
    source = numbering.nodes(rows[:, 0] + np.repeat(division.starts[unit.pieces[:, 0]], lengths))
    target = numbering.nodes(rows[:, 2] + np.repeat(division.starts[unit.pieces[:, 1]], lengths))
    order = np.random.Generator(np.random.Philox(key=key_pair(0, 4, *unit.key))).permutation(len(rows))
    pool = Pool(unit.pool, division)
    for number, at in enumerate(range(0, len(rows), config.batch)):
        batch = order[at : at + config.batch]
        x, r = nodes.clone().requires_grad_(), relations.clone().requires_grad_()
        loss = torch.zeros((), dtype=torch.float64)
        for chunk, begin in enumerate(range(0, len(batch), config.chunk)):
            part = batch[begin : begin + config.chunk]
            slices, row = pool.draw(
                config.negatives, tuple(key_pair(0, 5, *unit.key, number, chunk).tolist()), 0.0
            )
            others = numbering.nodes(division.starts[slices] + row)
            s, t, k = source[part], target[part], rows[part, 1]
            true = (x[s] * r[k] * x[t]).sum(1)
            for known, sought in ((s, t), (t, s)):
                scores = (x[known] * r[k]) @ x[others].T
                scores = scores.masked_fill(torch.from_numpy(sought[:, None] == others), -torch.inf)
                loss = loss + (torch.cat([true[:, None], scores], 1).logsumexp(1) - true).sum()
        loss.backward()
        nodes -= config.learning_rate * x.grad
        relations -= config.learning_rate * r.grad


def test_a_checkpoint_of_another_number_of_groups_is_refused(tmp_path, make_runtime):
    runtime = make_runtime()
    source = knowledge_graph(tmp_path, runtime, train=random_triples(60, 5, 900))
    config = EmbedConfig(dim=6, epochs=1, negatives=15, chunk=16, batch=64)
    buckets = buckets_of(source, tmp_path / "run", runtime, 8)
    fit(buckets, tmp_path / "run", config, runtime)
    with pytest.raises(ArgumentError, match="groups"):
        EmbeddingTrainer(buckets, tmp_path / "run", replace(config, groups=2), runtime)
