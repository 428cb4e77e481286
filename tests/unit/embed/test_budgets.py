"""The smallest memory budget that a refused training of embeddings names: it works, and a byte less does not."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

import outcrop as oc
from embed_support import buckets_of, knowledge_graph, random_triples
from outcrop.config import EmbedConfig

CONFIG = EmbedConfig(dim=8, epochs=2, negatives=20, chunk=16, batch=64, start=0.1)


def trains(run, config, memory, **options) -> None:
    shutil.rmtree(run / "tables", ignore_errors=True)
    oc.embed_train(run, config, memory=memory, observer=oc.Observer(progress=False), **options)


@pytest.mark.parametrize(
    ("prepared", "trained", "options"),
    [
        ({"partitions": 1}, {}, {}),
        ({"partitions": 6}, {}, {}),
        ({"partitions": 6}, {}, {"resident": True}),
        ({"partitions": 6, "numbering": "degree"}, {"by_degree": 0.5, "reciprocal": True}, {"resident": False}),
        ({"partitions": 5, "slices": 2}, {"sweeps": 3, "by_degree": 0.5, "batch": 32}, {}),
        ({"partitions": 4}, {"model": "dot", "negatives": 200, "optimizer": "adam", "dim": 40}, {}),
        ({"partitions": 7, "slices": 1}, {"buffer": 2, "order": "cover", "chunk": 1, "batch": 1}, {}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("nodes", [90, 3000])
def test_the_smallest_budget_is_named_and_exact(prepared, trained, options, nodes, tmp_path, make_runtime):
    runtime = make_runtime()
    source = knowledge_graph(tmp_path, runtime, train=random_triples(nodes, 4, 5000))
    run, config = tmp_path / "run", replace(CONFIG, **trained)
    buckets_of(source, run, runtime, **prepared)
    with pytest.raises(oc.BudgetError, match="the smallest budget that can is") as refused:
        trains(run, config, 1, **options)
    least = refused.value.smallest or 0
    assert least
    assert not (run / "tables").exists()
    for other in (16384, least // 2, least - 1):
        with pytest.raises(oc.BudgetError) as again:
            trains(run, config, other, **options)
        assert again.value.smallest == least
        assert not (run / "tables").exists()
    trains(run, config, least, **options)
