"""Ranks of held-out edges, against brute force over all scores, and against PyKEEN's evaluator."""

from __future__ import annotations

import json
import re
import warnings
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from embed_support import buckets_of, fit, knowledge_graph, random_triples
from outcrop.cli.main import app
from outcrop.config import EmbedConfig
from outcrop.embed import evaluate as evaluation
from outcrop.embed.evaluate import Metrics, Ranks, evaluate
from outcrop.embed.export import export
from outcrop.embed.model import open_model
from outcrop.embed.neighbors import find_node, neighbors
from outcrop.embed.orders import make_order
from outcrop.errors import ArgumentError, BudgetError, IoError, OutcropError

CONFIG = EmbedConfig(dim=8, epochs=4, negatives=20, chunk=32, batch=64, start=0.3)


@pytest.fixture
def splits():
    train, valid, test = (random_triples(70, 3, n, seed) for n, seed in ((900, 1), (60, 2), (90, 3)))
    return {"train": train, "valid": valid, "test": test}


def trained_on(tmp_path, runtime, splits, partitions=1, name="run", **options):
    source = tmp_path / "kg"
    if not source.exists():
        source = knowledge_graph(tmp_path, runtime, **splits)
    buckets = buckets_of(source, tmp_path / name, runtime, partitions)
    fit(buckets, tmp_path / name, replace(CONFIG, **options), runtime)
    return open_model(tmp_path / name, runtime)


def by_node(trained):
    """float64 vectors by node id, and node ids of each split."""
    numbering = trained.buckets.numbering(trained.runtime)
    vectors = trained.vectors(numbering.rows(np.arange(trained.num_nodes))).astype(np.float64)
    from embed_support import named_edges

    entities = trained.buckets.names(trained.runtime, "entity")
    relations = trained.buckets.names(trained.runtime, "relation") if trained.buckets.num_relations else []
    node = {name: i for i, name in enumerate(entities)}
    relation = {name: i for i, name in enumerate(relations)}

    def ids(edge):
        return (node[edge[0]], relation[edge[1]] if len(edge) == 3 else 0, node[edge[-1]])

    return torch.from_numpy(vectors), {
        split: [ids(e) for e in edges]
        for split, edges in named_edges(trained.buckets, trained.runtime).items()
    }


def all_scores(trained, vectors, edge, side):
    """float64 [nodes]: of all candidates for one end, from the score of whole edges."""
    s, r, t = edge
    n, score = len(vectors), trained.score
    relation = None
    if trained.relations is not None:
        number = r + len(trained.relations) // 2 if trained.config.reciprocal and side == "source" else r
        relation = torch.from_numpy(trained.relations[number]).double()[None].expand(n, -1)
    reciprocal = trained.config.reciprocal and side == "source"
    if side == "target":
        query = score.query(vectors[s][None].expand(n, -1), relation, "target")
        return score.compare.pairs(query, vectors)
    if reciprocal:
        return score.compare.pairs(score.query(vectors[t][None].expand(n, -1), relation, "target"), vectors)
    return score.compare.pairs(score.query(vectors, relation, "target"), vectors[t][None].expand(n, -1))


def brute_force(trained, split, filtered, candidates=None):
    vectors, edges = by_node(trained)
    known = {e for found in edges.values() for e in found} if filtered else set()
    ranks = {"target": [], "source": []}
    for edge in edges[split]:
        for side, at in (("target", 2), ("source", 0)):
            scores = all_scores(trained, vectors, edge, side)
            mine = scores[edge[at]]
            others = range(len(vectors)) if candidates is None else candidates
            higher = equal = 0
            for c in others:
                other = (*edge[:at], c, *edge[at + 1 :])
                if c == edge[at] or other in known:
                    continue
                if abs(scores[c] - mine) <= 1e-9:
                    equal += 1
                elif scores[c] > mine:
                    higher += 1
            ranks[side].append(1 + higher + equal / 2)
    return ranks


def check(found: Metrics, ranks):
    every = np.concatenate([ranks["target"], ranks["source"]])
    for part, expected in ((found, every), *((found.sides[s], np.array(ranks[s])) for s in ranks)):
        assert part.edges == len(expected)
        assert part.mrr == pytest.approx((1 / expected).mean(), abs=1e-9)
        assert part.mean_rank == pytest.approx(expected.mean(), abs=1e-9)
        assert part.hits == pytest.approx({k: (expected <= k).mean() for k in (1, 3, 10)}, abs=1e-12)


@pytest.mark.parametrize("filtered", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"reciprocal": True}, {"model": "transe-l1"}, {"model": "rotate"}, {"model": "dot"}]
)
def test_ranks_are_those_of_brute_force(tmp_path, make_runtime, splits, options, filtered, monkeypatch):
    monkeypatch.setattr(evaluation, "_CANDIDATES", 23)
    monkeypatch.setattr(evaluation, "_EDGES", 17)
    monkeypatch.setattr(evaluation, "_SCAN_EDGES", 100)
    trained = trained_on(tmp_path, make_runtime(), splits, 4, **options)
    check(evaluate(trained, "test", filtered=filtered), brute_force(trained, "test", filtered))
    check(evaluate(trained, "val", filtered=filtered), brute_force(trained, "valid", filtered))
    trained.close()


def test_plain_edges(tmp_path, make_runtime):
    splits = {"train": random_triples(50, 0, 400, 1), "test": random_triples(50, 0, 50, 2)}
    trained = trained_on(tmp_path, make_runtime(), splits, 3, model="dot")
    check(evaluate(trained, "test"), brute_force(trained, "test", True))
    with pytest.raises(ArgumentError, match=r"holds no valid edges.*--valid-fraction"):
        evaluate(trained, "valid")
    with pytest.raises(ArgumentError, match="split 'train' cannot be evaluated"):
        evaluate(trained, "train")
    trained.close()


@pytest.mark.parametrize("by_degree", [False, True])
def test_drawn_candidates_are_the_same_for_every_division(tmp_path, make_runtime, splits, by_degree):
    runtime = make_runtime()
    values = []
    for p in (1, 5):
        trained = trained_on(tmp_path, runtime, splits, p, f"run{p}", epochs=1, learning_rate=1e-30)
        drawn = evaluation._draw(trained, 40, by_degree, 3)
        nodes = trained.buckets.numbering(runtime).nodes(drawn)
        found = evaluate(trained, "test", candidates=40, by_degree=by_degree, seed=3)
        check(found, brute_force(trained, "test", True, nodes.tolist()))
        assert found.protocol == f"filtered, among 40 nodes drawn {'by degree' if by_degree else 'uniformly'}"
        values.append((sorted(nodes), found.mrr, found.mean_rank))
        trained.close()
    assert values[0] == values[1]


def test_the_same_value_for_every_division_and_budget(tmp_path, make_runtime, splits):
    runtime = make_runtime()
    found = []
    for p, memory in ((1, None), (3, "200KiB"), (10, "150KiB"), (70, None)):
        run = tmp_path / f"run{p}"
        trained_on(tmp_path, runtime, splits, p, run.name, epochs=1, learning_rate=1e-30).close()
        small = make_runtime(memory)
        trained = open_model(run, small)
        found.append(evaluate(trained, "test"))
        trained.close()
        assert small.budget.peak_bytes <= small.budget.limit_bytes
    assert all(f == found[0] for f in found)
    trained = open_model(tmp_path / "run1", make_runtime("20KiB"))
    with pytest.raises(BudgetError, match="one slice of the table takes"):
        evaluate(trained, "test")
    trained.close()


def ranks_of(scores: torch.Tensor, truth: torch.Tensor) -> np.ndarray:
    found = Ranks.none(len(scores))
    true = scores.gather(1, truth[:, None])[:, 0]
    for begin in range(0, scores.shape[1], 7):
        found.add(slice(0, len(scores)), scores[:, begin : begin + 7], true)
    found.take_out(np.arange(len(scores)), true.numpy(), true.numpy())
    return found.rank


# What RankBasedEvaluator of PyKEEN 1.11.1 says of the scores below, both sides alike ("both.realistic").
PYKEEN = {
    "inverse_harmonic_mean_rank": 0.09557192772626877,
    "arithmetic_mean_rank": 20.674999237060547,
    "hits_at_1": 0.015,
    "hits_at_3": 0.06,
    "hits_at_10": 0.23,
}


def pykeen_metrics(scores: torch.Tensor, truth: torch.Tensor) -> dict[str, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rank_based = pytest.importorskip("pykeen.evaluation.rank_based_evaluator")
        evaluator = rank_based.RankBasedEvaluator()
        for side in ("tail", "head"):
            edges, true = torch.stack([truth, truth, truth], 1), scores.gather(1, truth[:, None])
            evaluator.process_scores_(hrt_batch=edges, target=side, scores=scores.clone(), true_scores=true)
        result = evaluator.finalize()
        return {name: result.get_metric(f"both.realistic.{name}") for name in PYKEEN}


@pytest.mark.leaks("env", reason="PyKEEN's dependencies set variables for OpenMP")
@pytest.mark.parametrize("source", ["recorded", "installed"])
def test_ranks_and_metrics_are_pykeens_ties_included(source):
    random = np.random.default_rng(0)
    scores = random.integers(-3, 4, (200, 40)).astype(float)  # many ties
    scores[100:] = random.standard_normal((100, 40))
    truth = random.integers(0, 40, 200)
    tensors = torch.from_numpy(scores), torch.from_numpy(truth)
    expected = PYKEEN if source == "recorded" else pykeen_metrics(*tensors)
    found = Metrics.of("", ranks_of(*tensors))
    assert found.mrr == pytest.approx(expected["inverse_harmonic_mean_rank"], abs=1e-6)
    assert found.mean_rank == pytest.approx(expected["arithmetic_mean_rank"], rel=1e-6)
    for k in (1, 3, 10):
        assert found.hits[k] == pytest.approx(expected[f"hits_at_{k}"], abs=1e-6)


def test_ranks_of_small_cases():
    scores = torch.tensor([[1.0, 2, 3], [2, 2, 2], [3, 1, 1]], dtype=torch.float64)
    np.testing.assert_array_equal(ranks_of(scores, torch.tensor([2, 0, 1])), [1, 2, 2.5])
    assert np.isnan(Metrics.of("", np.zeros(0)).mrr)


@pytest.mark.parametrize("memory", [None, "100KiB"])
@pytest.mark.parametrize("format", ["npy", "parquet", "safetensors"])
def test_exported_vectors_are_those_of_the_table_in_order_of_ids(
    tmp_path, make_runtime, splits, format, memory
):
    runtime = make_runtime()
    trained_on(tmp_path, runtime, splits, 5, reciprocal=True).close()
    trained = open_model(tmp_path / "run", make_runtime(memory))
    expected = by_node(trained)[0].numpy().astype(np.float32)
    entities = trained.buckets.names(runtime, "entity")
    relations = trained.buckets.names(runtime, "relation")
    relations += [f"inverse of {name}" for name in relations]
    out = tmp_path / "out"
    made = export(trained, format, out)
    assert all(path.is_file() for path in made)
    if format == "npy":
        vectors, others = np.load(out / "entities.npy"), np.load(out / "relations.npy")
    elif format == "safetensors":
        from safetensors.numpy import load_file

        both = load_file(out / "embeddings.safetensors")
        vectors, others = both["entities"], both["relations"]
    else:
        import pyarrow.parquet as pq

        tables = [pq.read_table(out / f"{kind}.parquet") for kind in ("entities", "relations")]
        vectors, others = (np.array(t["vector"].to_pylist(), np.float32) for t in tables)
        assert tables[0]["name"].to_pylist() == entities
        assert tables[1]["name"].to_pylist() == relations
        assert tables[0]["id"].to_pylist() == list(range(70))
    if format != "parquet":
        assert (out / "entities.txt").read_text().splitlines() == entities
        assert (out / "relations.txt").read_text().splitlines() == relations
    np.testing.assert_array_equal(vectors, expected)
    np.testing.assert_array_equal(others, trained.relations)
    with pytest.raises(ArgumentError, match="known: npy, parquet, safetensors, features"):
        export(trained, "csv", out)
    with pytest.raises(IoError, match="is a file"):
        export(trained, format, made[0])
    trained.close()


def test_an_export_touches_no_file_that_it_does_not_write(tmp_path, make_runtime, splits, monkeypatch):
    """Names of entities are also what data files of knowledge graphs are called."""
    trained_on(tmp_path, make_runtime(), splits, 2).close()
    out = tmp_path / "out"
    out.mkdir()
    (out / "entities.txt").write_text("of a data set")
    with closing(open_model(tmp_path / "run", make_runtime())) as trained:
        monkeypatch.setattr(trained.buckets, "has", lambda name: False)  # nodes without names
        with pytest.raises(
            ArgumentError, match=r"holds entities.txt, which these vectors have not: remove it"
        ):
            export(trained, "npy", out)
        assert [path.name for path in out.iterdir()] == ["entities.txt"]
        assert (out / "entities.txt").read_text() == "of a data set"


@pytest.mark.parametrize("before", [False, True])
def test_an_export_that_fails_leaves_what_was_there(tmp_path, make_runtime, splits, before):
    """Vectors are written before the names, which are damaged: new vectors must not stand beside old names."""
    trained_on(tmp_path, make_runtime(), splits, 2).close()
    out = tmp_path / "new" / "out"
    if before:
        with closing(open_model(tmp_path / "run", make_runtime())) as trained:
            export(trained, "npy", out)
        for path in out.iterdir():
            path.write_bytes(b"of another training")
    (names,) = (tmp_path / "run").rglob("entity_names.bin")
    names.write_bytes(bytes(byte ^ 1 for byte in names.read_bytes()))
    with closing(open_model(tmp_path / "run", make_runtime())) as trained, pytest.raises(OutcropError):
        export(trained, "npy", out)
    if before:
        assert {path.read_bytes() for path in out.iterdir()} == {b"of another training"}
        assert len(list(out.iterdir())) == 4
    else:
        assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
def test_neighbours_are_those_of_brute_force(tmp_path, make_runtime, splits, metric):
    pytest.importorskip("usearch")
    trained = trained_on(tmp_path, make_runtime(), splits, 4)
    vectors = by_node(trained)[0]
    node = find_node(trained, "n7")
    assert trained.buckets.names(trained.runtime, "entity")[node] == "n7"
    q = vectors[node]
    distance = {
        "cosine": 1 - torch.cosine_similarity(q[None], vectors),
        "dot": 1 - vectors @ q,
        "euclidean": ((vectors - q) ** 2).sum(1),
    }[metric]
    distance[node] = torch.inf
    expected = distance.argsort()[:6].tolist()
    found = neighbors(trained, node, 6, metric)
    assert [n for n, _, _ in found] == expected
    np.testing.assert_allclose([d for _, _, d in found], distance[expected], atol=1e-3)
    with pytest.raises(ArgumentError, match=r"node 'n' is not in .*there are n"):
        find_node(trained, "n")
    assert find_node(trained, node) == node  # as it was found
    for wrong in (-1, trained.num_nodes):
        with pytest.raises(ArgumentError, match=rf"node {wrong} is not in .*pass an id from 0 to"):
            find_node(trained, wrong)
    with pytest.raises(ArgumentError, match="known: cosine"):
        neighbors(trained, node, 6, "x")
    trained.close()


def test_the_commands(tmp_path, make_runtime, splits):
    pytest.importorskip("usearch")
    source = knowledge_graph(tmp_path, make_runtime(), **splits)
    run = str(tmp_path / "run")

    def outcrop(*arguments):
        return CliRunner().invoke(app, ["embed", *map(str, arguments)], catch_exceptions=False)

    assert re.search(
        r"slices\s+2\b", outcrop("prepare", source, run, "--partitions", 4, "--slices", 2).stdout
    )
    done = outcrop(
        "train", run, "--dim", 8, "--epochs", 2, "--swapping", "--chunk", 64, "--batch", 128, "--sweeps", 2
    )
    assert done.exit_code == 0
    assert "3 of 4" in done.stdout
    assert "filtered, among all nodes" in outcrop("eval", run).stdout
    page = tmp_path / "report.html"
    CliRunner().invoke(app, ["report", run, "--out", str(page)], catch_exceptions=False)
    text = page.read_text()
    swaps = json.loads((tmp_path / "run" / "tables" / "timeline.json").read_text())["swaps"]
    assert f"The {len(swaps)} swaps of epoch 1 made training wait" in text
    assert len(swaps) == 2 * len(make_order("best", 4, 3).swaps)
    for swap in swaps[:12]:
        assert len(swap["evicted"]) == len(swap["loaded"]) == 2  # slices
        assert "{}, {} out, {}, {} in".format(*swap["evicted"], *swap["loaded"]) in text
    assert "entities.npy" in outcrop("export", run).stdout.replace("\n", "")
    assert "distance" in outcrop("neighbours", run, "n3", "--count", 3).stdout
