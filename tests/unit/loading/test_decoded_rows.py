"""Values of rows that are decoded lie in the batch buffers: the budget counts them before a batch is read, whatever the
mode, and a batch that is kept keeps its values.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcrop as oc
from outcrop.errors import BudgetError
from outcrop.loading.buffers import host_pool, values_bytes
from outcrop.loading.modes import MODES, Mode
from outcrop.loading.open import open_session
from outcrop.preparation.plan_memory import memory_plan
from outcrop.runtime import memory_tables
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from outcrop.store.placement import open_placement
from quantised_reference import dequantised
from run_support import skewed_edges
from sparse_reference import bag_of_words

NODES, WIDTH = 500, 700
SAMPLING: dict[str, Any] = {"fanouts": (3, 3), "batch_size": 12, "seed": 4}
Make = Callable[..., Runtime]


def few_bits(x: np.ndarray) -> tuple[dict[str, str], np.ndarray]:
    return {"feature_dtype": "uint4", "scale": "row"}, dequantised(x, "uint4", "row")


def sparse(x: np.ndarray) -> tuple[dict[str, str], np.ndarray]:
    return {"feature_storage": "sparse"}, x


@pytest.fixture(scope="module", params=[few_bits, sparse], ids=lambda how: how.__name__)
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Graph, np.ndarray]:
    """A graph whose rows are decoded to eight times their bytes or more, with a run, and the values."""
    folder, rng = tmp_path_factory.mktemp("made"), np.random.default_rng(3)
    x = bag_of_words(rng, NODES, WIDTH, 9)
    options, values = request.param(x)
    order = rng.permutation(NODES)
    graph = oc.import_graph(
        skewed_edges(NODES, 3000, 0),
        folder / "g.oc",
        features=x,
        labels=rng.integers(0, 4, NODES),
        splits={"train": order[:90], "valid": order[90:120], "test": order[120:160]},
        config=oc.ImportConfig(**options),
        progress=False,
    )
    assert graph.row_file.row_bytes * 7 < graph.row_file.decoded_bytes == 4 * WIDTH
    oc.prepare(graph, folder / "g.run", epochs=2, memory="6MiB", progress=False, **SAMPLING)
    return graph, values


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("with_run", [True, False])
def test_values_lie_in_buffers_that_the_budget_counts(
    made: tuple[Graph, np.ndarray], make_runtime: Make, mode: Mode, with_run: bool
) -> None:
    graph, values = made
    if mode.needs_run and not with_run:
        pytest.skip("needs a run")
    run = graph.path.with_suffix(".run") if with_run else None
    config = None if with_run else oc.SampleConfig(**SAMPLING)
    runtime = make_runtime("6MiB", threads=1)
    with open_session(graph, runtime, mode, run_folder=run, config=config) as opened:
        most, places, batches, kept = 0, set(), 0, None
        for split in ("train", "valid"):
            for batch in opened.batches(split, 0):
                if kept is not None:  # what the caller keeps is not written over
                    assert np.array_equal(kept[0].numpy(), kept[1])
                kept = batch.x, values[batch.graph.n_id]
                most = max(most, batch.x.nbytes)
                places.add(batch.x.data_ptr())
                batches += 1
                del batch
        assert kept is not None
        assert np.array_equal(kept[0].numpy(), kept[1])
        assert batches > 8
        assert 2 <= len(places) <= memory_tables.MOST_BATCH_BUFFERS  # nothing new for a batch
        assert runtime.budget.by_tag["decoded-rows"].now_bytes >= len(places) * most
        del kept


def test_a_plan_counts_the_values_in_its_buffers(
    made: tuple[Graph, np.ndarray], make_runtime: Make, tmp_path: Path
) -> None:
    graph, _ = made
    run = graph.path.with_suffix(".run")
    placement = open_placement(make_runtime(threads=1), run / "plan")
    plan = memory_plan(placement.manifest)
    assert plan is not None
    rows = max(len(batch.n_id) for split in ("train", "valid") for batch in oc.open_run(run).loader(split))
    assert plan[memory_tables.PACKED_BATCHES] >= placement.buffers * rows * (
        graph.row_file.row_bytes + 4 * WIDTH
    )
    assert sum(part.bytes for part in plan.parts) == 6 << 20
    # Two buffers without the values would fit.
    with pytest.raises(BudgetError) as refused:
        oc.prepare(
            graph, tmp_path / "run", epochs=2, memory=3 * rows * 4 * WIDTH // 2, progress=False, **SAMPLING
        )
    assert refused.value.smallest is not None
    assert refused.value.smallest > 2 * rows * 4 * WIDTH


def test_buffers_grow_with_their_values(made: tuple[Graph, np.ndarray], make_runtime: Make) -> None:
    (graph, _), runtime = made, make_runtime(threads=1)
    file, before = graph.row_file, runtime.budget.now_bytes
    pool = host_pool(runtime, 3, [0], 0, values=[(0, file)])
    (held,) = next(iter(pool._buffers)).rows
    assert len(held.values) == runtime.budget.now_bytes - before == 0
    for rows in (1, 50, 1000):
        held.make_room(rows * file.row_bytes + 2 * PAGE_BYTES, rows)
        assert rows * 4 * WIDTH <= len(held.values) <= rows * 4 * WIDTH * 9 / 8 + PAGE_BYTES
        assert runtime.budget.now_bytes - before == 3 * (len(held.x) + len(held.values))
    assert values_bytes(1000, None) == 0
    pool.close()


def test_room_that_is_refused_is_not_held(made: tuple[Graph, np.ndarray], make_runtime: Make) -> None:
    """Of rows and values both or nothing: who gives up what is cached and tries again counts nothing twice."""
    (graph, _), runtime = made, make_runtime("4MiB", threads=1)
    file = graph.row_file
    pool = host_pool(runtime, 2, [0], 0, values=[(0, file)])
    (held,) = next(iter(pool._buffers)).rows
    before, rows = runtime.budget.now_bytes, 1200  # the rows would fit
    assert 2 * rows * file.row_bytes < runtime.budget.free_bytes < 2 * rows * file.batch_row_bytes
    for _ in range(3):
        with pytest.raises(BudgetError, match="decoded-rows"):
            held.make_room(rows * file.row_bytes, rows)
        assert runtime.budget.now_bytes == before
    held.make_room(100 * file.row_bytes, 100)
    pool.close()
