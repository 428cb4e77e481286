"""Rows of nodes that are learned with the model, against NumPy and against the tables of embeddings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from outcrop import _core
from outcrop.errors import ArgumentError
from outcrop.nn.learned_rows import LearnedRows, RowAdam
from outcrop.nn.made_rows import random_rows
from outcrop.nn.models import build_model
from outcrop.nn.schema import GraphSchema, NodeSchema, learned_bytes
from outcrop.store.minibatch import MiniBatch
from typed_batches import deliver

SCHEMA = GraphSchema(
    (NodeSchema("paper", 6), NodeSchema("author", 4, made="learned:4", num_nodes=9)),
    (("author", "writes", "paper"), ("paper", "rev_writes", "author")),
    "paper",
    3,
    row_seed=7,
)


def test_they_begin_as_random_rows() -> None:
    table = LearnedRows(SCHEMA).table(1)
    assert torch.equal(table, random_rows(7, 1, np.arange(9), 4))
    assert learned_bytes(SCHEMA) == 9 * 4 * (3 * 4 + 1)
    assert learned_bytes(None) == 0


def test_updates_are_those_of_tables_of_embeddings() -> None:
    """core/embed/row_update.cpp, of the rows that each batch has."""
    rows = LearnedRows(SCHEMA)
    adam, rng = RowAdam(rows), np.random.default_rng(0)
    table = np.zeros((9, 9), np.float32)
    table[:, :4] = rows.table(1).numpy()
    workers = _core.WorkerPool(1)
    for step in range(1, 8):
        ids = rng.permutation(9)[: rng.integers(1, 6)]
        gradient = rng.standard_normal((len(ids), 4)).astype(np.float32)
        taken = rows.take(1, ids)
        taken.backward(torch.from_numpy(gradient))
        adam.step(0.1, step)
        options = _core.StepOptions()
        options.kind, options.rate, options.epsilon, options.step = _core.StepKind.adam, 0.1, 1e-8, step
        _core.step_rows(table, 4, ids, gradient, options, workers)
        np.testing.assert_allclose(rows.table(1).numpy(), table[:, :4], rtol=1e-5, atol=1e-6)
    state = adam.state()
    np.testing.assert_allclose(state["rows.1.exp_avg"].numpy(), table[:, 4:8], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state["rows.1.exp_avg_sq"].numpy(), table[:, 8], rtol=1e-5, atol=1e-7)


def a_batch() -> MiniBatch:
    from typed_batches import batch_graph
    from typed_reference import TypedGraph, pick_all, sample

    lists = ((0, 4), (4,), ()), tuple((i % 3,) for i in range(9))
    graph = TypedGraph((3, 9), ((1, 0), (0, 1)), lists)
    drawn = sample(graph, {0: [0, 1]}, 2, pick_all)
    batch = deliver(batch_graph(drawn, 0), SCHEMA, grad=False)
    return MiniBatch(batch.graph, tuple(rows.float() for rows in batch.rows), batch.y)


@pytest.mark.parametrize("name", ["rgcn", "rgat", "hgt"])
def test_gradients_are_those_of_a_dense_table(name: str) -> None:
    torch.manual_seed(0)
    model, batch = build_model(name, SCHEMA, 8, 3, 2, heads=2), a_batch()
    assert model.learned is not None
    assert {n for n, _ in model.named_parameters() if "learned" in n} == set()
    assert "learned.1" in model.state_dict()
    loss = model(batch).square().sum()
    loss.backward()
    ((number, places, gradient),) = model.learned.gradients()
    dense = model.learned.table(1).clone().requires_grad_()
    model.make_rows = lambda _, ids: dense[torch.from_numpy(ids)]
    again = model(batch).square().sum()
    again.backward()
    assert torch.equal(loss, again)
    assert number == 1
    assert dense.grad is not None
    want = dense.grad[places]
    assert sorted(places.tolist()) == [0, 4]
    torch.testing.assert_close(gradient, want)
    assert not dense.grad.index_fill(0, places, 0).any()


def test_nothing_is_kept_where_nothing_is_learned_from() -> None:
    model, batch = build_model("rgcn", SCHEMA, 8, 3, 2), a_batch()
    assert model.learned is not None
    with torch.no_grad():
        model(batch)
    assert model.learned.gradients() == []
    model.eval()(batch)
    assert model.learned.gradients() == []
    model.train()(batch)
    model(batch)
    assert len(model.learned.gradients()) == 1  # of the last batch alone


def test_a_schema_with_them_is_stored_and_read() -> None:
    stored = SCHEMA.as_stored()
    assert GraphSchema.from_stored(stored) == SCHEMA
    assert ["num_nodes" in node for node in stored["node_types"]] == [False, True]
    with pytest.raises(ArgumentError, match=r"write random:64 for 64 random values, or learned:64"):
        replace(SCHEMA, node_types=(NodeSchema("paper", 6), NodeSchema("author", 4, made="taught:4")))


def test_state_of_other_tables_is_refused() -> None:
    adam = RowAdam(LearnedRows(SCHEMA))
    with pytest.raises(ValueError, match="means of learned rows"):
        adam.restore({"rows.1.exp_avg": torch.zeros(3, 4), "rows.1.exp_avg_sq": torch.zeros(3)})
    adam.restore({"0.step": torch.zeros(()), **adam.state()})
