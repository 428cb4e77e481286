"""Budgets that embeddings are refused: what training names is exact, what others name leads to one that works."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import outcrop as oc
from embed_support import buckets_of, knowledge_graph, random_triples
from outcrop.config import EmbedConfig
from outcrop.embed.buckets import open_buckets
from outcrop.embed.needs import EmbeddingNeeds
from outcrop.runtime.group import Group
from outcrop.runtime.runtime import Runtime

CONFIG = EmbedConfig(dim=8, epochs=2, negatives=20, chunk=16, batch=64, start=0.1)
WIDE = oc.EmbedConfig("dot", dim=64, epochs=1, batch=64)


def trains(run, config, memory, **options) -> None:
    shutil.rmtree(run / "tables", ignore_errors=True)
    oc.embed_train(run, config, memory=memory, observer=oc.Observer(progress=False), **options)


@pytest.mark.parametrize(
    ("nodes", "triples", "prepared", "trained", "options"),
    [
        (90, 5000, {"partitions": 1}, {}, {}),
        (90, 5000, {"partitions": 6}, {}, {}),
        (3000, 5000, {"partitions": 6}, {}, {"resident": True}),
        (90, 5000, {"partitions": 6, "numbering": "degree"}, {"by_degree": 0.5, "reciprocal": True},
         {"resident": False}),
        (3000, 5000, {"partitions": 5, "slices": 2}, {"sweeps": 3, "by_degree": 0.5, "batch": 32}, {}),
        (3000, 5000, {"partitions": 4}, {"model": "dot", "negatives": 200, "optimizer": "adam", "dim": 40}, {}),
        (3000, 5000, {"partitions": 5, "slices": 4}, {"order": "slices", "by_degree": 0.5}, {"resident": False}),
        (90, 150, {"partitions": 7, "slices": 1}, {"buffer": 2, "order": "cover", "chunk": 1, "batch": 1}, {}),
    ],
)  # fmt: skip
def test_the_smallest_budget_is_named_and_exact(
    nodes, triples, prepared, trained, options, tmp_path, make_runtime
):
    runtime = make_runtime()
    source = knowledge_graph(tmp_path, runtime, train=random_triples(nodes, 4, triples))
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


@pytest.mark.parametrize(
    ("prepared", "options"),
    [
        ({"partitions": 1}, {}),
        ({"partitions": 8, "numbering": "degree"}, {"candidates": 50, "by_degree": True}),
        ({"partitions": 8}, {"filtered": False}),
        ({"partitions": 8}, {"split": "valid", "candidates": 50, "filtered": False}),
    ],
)
def test_the_smallest_budget_to_rank_edges_is_named_and_exact(prepared, options, tmp_path, make_runtime):
    triples = random_triples(4000, 4, 40_000)
    source = knowledge_graph(
        tmp_path, make_runtime(), train=triples, valid=triples[:900], test=triples[900:2000]
    )
    run = tmp_path / "run"
    buckets_of(source, run, make_runtime(), **prepared)
    oc.embed_train(run, WIDE, observer=oc.Observer(progress=False))
    options = {"split": "test", "progress": False, **options}
    with pytest.raises(
        oc.BudgetError, match="cannot rank these edges; the smallest budget that can"
    ) as refused:
        oc.embed_eval(run, memory=1, **options)
    least = refused.value.smallest or 0
    for other in (least // 2, least - 1):
        with pytest.raises(oc.BudgetError) as again:
            oc.embed_eval(run, memory=other, **options)
        assert again.value.smallest == least
    assert oc.embed_eval(run, memory=least, **options) == oc.embed_eval(run, **options)


def test_ranking_while_training_has_room_from_the_start(tmp_path, make_runtime):
    """Where ranking takes more than training, that is refused before anything is trained."""
    triples = random_triples(4000, 4, 40_000)
    source = knowledge_graph(tmp_path, make_runtime(), train=triples, valid=triples[:20_000])
    run, small = tmp_path / "run", oc.EmbedConfig("dot", dim=8, epochs=2, negatives=5, chunk=4, batch=4)
    buckets_of(source, run, make_runtime(), partitions=8)
    ranked = replace(small, evaluate_every=1)
    with pytest.raises(oc.BudgetError, match="smallest budget") as alone:
        trains(run, small, 1)
    with pytest.raises(oc.BudgetError, match="smallest budget") as refused:
        trains(run, ranked, alone.value.smallest or 0)
    assert not (run / "tables").exists()
    least = refused.value.smallest or 0
    with pytest.raises(oc.BudgetError):
        trains(run, ranked, least - 1)
    trains(run, ranked, least)
    assert len(list(run.glob("best-*"))) == 1


def prepare(folder: Path, memory: int) -> None:
    oc.embed_prepare(folder / "kg", folder / "new", partitions=8, memory=memory)


def export(folder: Path, memory: int) -> None:
    oc.embed_train(folder / "run", WIDE)
    oc.embed_export(folder / "run", memory=memory)


def refusal(call: Callable[[Path, int], None], folder: Path, memory: int) -> str:
    """The message of a refused budget; empty where it was not refused."""
    try:
        call(folder, memory)
    except oc.BudgetError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("call", "steps"), [(prepare, ["sorting"]), (export, [])])
def test_a_refused_budget_leads_to_one_that_works(
    tmp_path: Path, make_runtime: Callable[..., Runtime], call: Callable[[Path, int], None], steps: list[str]
) -> None:
    """What is named is always more than what was refused, and enough for the step that was."""
    source = knowledge_graph(tmp_path, make_runtime(), train=random_triples(500, 4, 9_000))
    buckets_of(source, tmp_path / "run", make_runtime(), 8)
    budgets, messages = [1], []
    while message := refusal(call, tmp_path, budgets[-1]):
        named = re.search(r"at least (\d+) bytes", message)
        assert named, message
        assert int(named[1]) > budgets[-1], message
        budgets.append(int(named[1]))
        messages.append(message)
    assert 1 < len(budgets) < 40
    assert [step for step in steps if not any(step in message for message in messages)] == []


@pytest.mark.parametrize("skewed", [False, True])
def test_as_few_partitions_as_training_fits_in(
    tmp_path: Path, make_runtime: Callable[..., Runtime], skewed: bool
) -> None:
    """Half as many do not fit, but for graphs of which a few nodes have most edges; those that are there stay."""
    count, dim = 120_000, 64
    random = np.random.default_rng(0)
    triples = np.stack(
        [random.integers(0, 10_000, count), random.integers(0, 4, count), random.integers(0, 10_000, count)],
        1,
    )
    triples[:10_000, 0] = np.arange(10_000)
    if skewed:
        triples[20_000:, [0, 2]] = random.integers(0, 3, (count - 20_000, 2))
    source = knowledge_graph(tmp_path, make_runtime(), train=triples)
    five = oc.embed_prepare(source, tmp_path / "five.emb", oc.BucketConfig(partitions=5), progress=False)
    needs = EmbeddingNeeds(five, EmbedConfig(dim=dim), None, Group())
    too_small = next(
        x for x in range(34, 24, -1) if not needs.fits(x << 20)
    )  # MiB; files read by pread take less
    made = []
    for memory in (x << 20 for x in ((too_small, 35, 36, 40) if skewed else (26, 28, 32, 34))):
        run = tmp_path / f"{memory}.emb"
        buckets = oc.embed_prepare(source, run, dim=dim, memory=memory, progress=False)
        made.append(buckets.partitions)
        assert EmbeddingNeeds(buckets, EmbedConfig(dim=dim), None, Group()).fits(memory)
        again = oc.embed_prepare(source, run, dim=dim, memory=memory, progress=False)
        assert again.partitions == buckets.partitions
        if not skewed and buckets.partitions > 6:
            half = oc.BucketConfig(partitions=buckets.partitions // 2)
            fewer = oc.embed_prepare(source, tmp_path / f"{memory}.half", half, progress=False)
            assert not EmbeddingNeeds(fewer, EmbedConfig(dim=dim), None, Group()).fits(memory)
    # buckets that somebody has made and that do not fit are not replaced unasked
    with pytest.raises(oc.OutcropError, match="overwrite"):
        oc.embed_prepare(source, tmp_path / "five.emb", dim=dim, memory=too_small << 20, progress=False)
    assert open_buckets(tmp_path / "five.emb").partitions == five.partitions
    assert made == sorted(made, reverse=True)
    assert made[0] > 6, made
    assert oc.embed_prepare(source, run, dim=dim, memory="1GiB", progress=False).partitions == made[-1]
