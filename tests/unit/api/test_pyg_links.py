"""``outcrop.pyg.LinkNeighborLoader`` against torch_geometric's LinkLoader over a sampler of dicts and loops.

Every neighbour is taken, so batches must be equal. Negatives are random: torch_geometric is given those that ours drew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkLoader
from torch_geometric.sampler import BaseSampler, HeteroSamplerOutput, NegativeSampling, SamplerOutput
from torch_geometric.sampler.neighbor_sampler import edge_sample

import outcrop
from artifact_support import memory_folder
from outcrop.errors import ArgumentError
from outcrop.pyg import LinkNeighborLoader
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from outcrop.testing import write_graph
from sampling_support import RARE
from typed_reference import TypedGraph, sample
from typed_store import names_of, write_typed

NODES, HOPS = 120, 2
SIZES = (70, 40, 9)  # t0, t1, t2
ENDS = ((0, 0), (1, 0), (0, 1), (2, 1))
KEYS = names_of(TypedGraph(SIZES, ENDS, ()))[1]


def lists_of(sizes: tuple[int, ...], ends: tuple[tuple[int, int], ...]) -> TypedGraph:
    rng = np.random.default_rng(0)
    return TypedGraph(
        sizes,
        ends,
        tuple(
            tuple(tuple(sorted(set(rng.integers(0, sizes[s], 1 + v % 4).tolist()))) for v in range(sizes[t]))
            for s, t in ends
        ),
    )


FLAT, TYPED = lists_of((NODES,), ((0, 0),)), lists_of(SIZES, ENDS)


def edge_index(lists: TypedGraph, number: int) -> np.ndarray:
    """By target, then by source, as positions count."""
    rows = lists.lists[number]
    return np.array([(u, v) for v, row in enumerate(rows) for u in row], np.int64).T


def features(size: int) -> np.ndarray:
    return np.random.default_rng(size).standard_normal((size, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def flat() -> Iterator[Graph]:
    with memory_folder() as folder:
        yield write_graph(
            folder / "flat",
            edge_index(FLAT, 0),
            NODES,
            Runtime(threads=1),
            features=features(NODES),
            edge_splits={"train": np.array([[3, 4], [5, 6], [7, 7]]), "valid": np.array([[1, 2]])},
        )


@pytest.fixture(scope="module")
def typed() -> Iterator[Graph]:
    with memory_folder() as folder:
        parts = {f"n{t}.features": features(size) for t, size in enumerate(SIZES)}
        yield write_typed(folder / "typed", TYPED, parts)


def chosen(sizes: tuple[int, int], count: int = 53) -> torch.Tensor:
    """Edges to be predicted: most are none of the graph, one stands twice, one leads from a node to itself."""
    rng = np.random.default_rng(7)
    edges = np.stack([rng.integers(0, size, count) for size in sizes])
    edges[:, 11] = edges[:, 2]
    edges[:, 3] = 5
    return torch.from_numpy(edges)


class Everything(BaseSampler):
    """Takes all neighbours in two hops."""

    edge_permutation = None

    def __init__(self, lists: TypedGraph, negatives: Callable[[], list[torch.Tensor]] | None = None):
        self._lists, self._negatives = lists, negatives
        self._names, self._keys = names_of(lists)

    def sample_from_nodes(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    def sample_from_edges(self, inputs: Any, neg_sampling: NegativeSampling | None = None) -> Any:
        flat = len(self._lists.sizes) == 1
        sizes = self._lists.sizes[0] if flat else dict(zip(self._names, self._lists.sizes, strict=True))
        if neg_sampling is not None:
            assert self._negatives is not None
            drawn = iter(self._negatives())  # those of sources first, of triplets only targets
            neg_sampling.sample = lambda *_: next(drawn)  # type: ignore[method-assign]
        take = self._flat if flat else self._typed
        return edge_sample(inputs, take, sizes, disjoint=False, neg_sampling=neg_sampling)

    def _flat(self, seed: torch.Tensor, _: Any) -> SamplerOutput:
        found = sample(self._lists, {0: seed.tolist()}, HOPS)
        row, col, edge = _coo(found.rows[0])
        return SamplerOutput(
            node=torch.tensor(found.nodes[0]),
            row=row,
            col=col,
            edge=edge,
            num_sampled_nodes=list(found.nodes_per_hop[0]),
            num_sampled_edges=list(found.edges_per_hop[0]),
        )

    def _typed(self, seeds: dict[str, torch.Tensor], _: Any) -> HeteroSamplerOutput:
        given = {self._names.index(name): ids.tolist() for name, ids in seeds.items()}
        found = sample(self._lists, given, HOPS)
        coo = {key: _coo(rows) for key, rows in zip(self._keys, found.rows, strict=True)}
        return HeteroSamplerOutput(
            node={
                name: torch.tensor(ids, dtype=torch.long)
                for name, ids in zip(self._names, found.nodes, strict=True)
            },
            row={key: one[0] for key, one in coo.items()},
            col={key: one[1] for key, one in coo.items()},
            edge={key: one[2] for key, one in coo.items()},
            num_sampled_nodes=dict(zip(self._names, map(list, found.nodes_per_hop), strict=True)),
            num_sampled_edges=dict(zip(self._keys, map(list, found.edges_per_hop), strict=True)),
        )


def _coo(rows: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    found = [(u, v, at) for v, row in enumerate(rows) for u, at in row]
    return tuple(torch.tensor(found, dtype=torch.long).reshape(-1, 3).T)  # type: ignore[return-value]


def in_memory(lists: TypedGraph) -> Data | HeteroData:
    if len(lists.sizes) == 1:
        return Data(x=torch.from_numpy(features(NODES)), edge_index=torch.from_numpy(edge_index(lists, 0)))
    data, (names, keys) = HeteroData(), names_of(lists)
    for name, size in zip(names, lists.sizes, strict=True):
        data[name].x = torch.from_numpy(features(size))
    for number, key in enumerate(keys):
        data[key].edge_index = torch.from_numpy(edge_index(lists, number))
    return data


def drawn_in(batch: Any, key: Any, triplets: bool) -> list[torch.Tensor]:
    """The negatives of a batch of ours, as torch_geometric would have drawn them."""
    if key is None:
        source = target = store = batch
    else:
        source, target, store = batch[key[0]], batch[key[2]], batch[key]
    if triplets:
        return [target.n_id[target.dst_neg_index.reshape(-1)]]
    index = store.edge_label_index[:, len(store.input_id) :]
    return [source.n_id[index[0]], target.n_id[index[1]]]


def same_store(ours: Any, theirs: Any, where: str, but: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    skipped = {"y", "batch_size", "number"} | but
    for name in (set(ours.keys()) | set(theirs.keys())) - skipped:
        assert name in ours, (where, name)
        assert name in theirs, (where, name)
        if isinstance(theirs[name], torch.Tensor):
            assert ours[name].dtype == theirs[name].dtype, (where, name)
            assert torch.equal(ours[name], theirs[name]), (where, name)
        else:
            assert list(ours[name]) == list(theirs[name]), (where, name)


LABELS = {
    None: None,
    "classes": torch.arange(53) % 3,
    "from one": torch.arange(53) % 3 + 1,
    "columns": torch.arange(106, dtype=torch.float32).reshape(53, 2) + 1,
}


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize(
    "negatives", [None, ("binary", 1.0), ("binary", 0.3), ("triplet", 1), ("triplet", 3)]
)
@pytest.mark.parametrize("kind", ["flat", "all edges", 0, 1, 3, "all of 1"])
def test_batches_are_those_of_torch_geometric(flat, typed, kind, negatives, labels):
    of_types = kind not in ("flat", "all edges")
    number = 1 if kind == "all of 1" else kind if of_types else 0
    lists, graph = (TYPED, typed) if of_types else (FLAT, flat)
    key = KEYS[number] if of_types else None
    whole = isinstance(kind, str) and kind.startswith("all")
    edges = (
        torch.from_numpy(edge_index(lists, number))
        if whole
        else chosen(tuple(lists.sizes[end] for end in lists.edge_types[number]))
    )
    label = LABELS[labels]
    label = label if label is None or not whole else label[torch.arange(edges.shape[1]) % 53]
    given = None if whole and not of_types else (key if whole else (key, edges)) if of_types else edges
    triplets = negatives is not None and negatives[0] == "triplet"
    options = {
        "edge_label": label,
        "batch_size": 20,
        "neg_sampling": negatives and NegativeSampling(*negatives),
    }
    if triplets and label is not None:
        with pytest.raises(ArgumentError, match="leave edge_label out"):
            LinkNeighborLoader(graph, [-1] * HOPS, given, **options)
        return
    ours = LinkNeighborLoader(graph, [-1] * HOPS, given, edge_ids=True, memory="32MiB", **options)
    last: list[Any] = []
    options["neg_sampling"] = negatives and NegativeSampling(*negatives)
    reference = LinkLoader(
        in_memory(lists),
        Everything(lists, lambda: drawn_in(last[-1], key, triplets)),
        (key, edges) if of_types else edges,
        **options,
    )
    theirs = iter(reference)
    assert len(ours) == len(reference) == -(-edges.shape[1] // 20)
    for batch in ours:
        last[:] = [batch]
        other = next(theirs)
        assert batch.validate()
        if not of_types:
            same_store(batch, other, "batch")
            continue
        for name in batch.node_types:
            same_store(batch[name], other[name], name)
        for name in batch.edge_types:
            same_store(batch[name], other[name], str(name))
    assert next(theirs, None) is None


def test_shuffled_edges_come_once_an_epoch(typed):
    edges, key = chosen(SIZES[1::-1]), KEYS[1]
    loader = LinkNeighborLoader(
        typed, [2, 2], (key, edges), shuffle=True, batch_size=8, neg_sampling_ratio=0.5
    )
    epochs = []
    for _ in range(3):
        seen = []
        for batch in loader:
            store, count = batch[key], len(batch[key].input_id)
            ends = [batch[end].n_id[at] for end, at in zip(key[::2], store.edge_label_index, strict=True)]
            assert torch.equal(torch.stack(ends)[:, :count], edges[:, store.input_id])
            assert store.edge_label.tolist() == [1] * count + [0] * int(np.ceil(count / 2))
            seen += store.input_id.tolist()
        assert sorted(seen) == list(range(53))
        epochs.append(seen)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    dropped = LinkNeighborLoader(typed, [2], (key, edges), batch_size=8, drop_last=True)
    assert [len(batch[key].input_id) for batch in dropped] == [8] * 6 == [8] * len(dropped)


def test_negative_nodes_are_uniform_within_their_types(typed):
    key = ("t2", "r3", "t1")
    edges = torch.tensor([[8], [39]])
    options = {"neg_sampling": {"mode": "binary", "amount": 2000}, "seed": 3}
    (batch,) = LinkNeighborLoader(typed, [1], (key, edges), **options)
    for ids, size in zip(drawn_in(batch, key, triplets=False), (9, 40), strict=True):
        assert stats.chisquare(np.bincount(ids, minlength=size)).pvalue > RARE
    (batch,) = LinkNeighborLoader(typed, [1], (key, edges), neg_sampling=NegativeSampling("triplet", 2000))
    (ids,) = drawn_in(batch, key, triplets=True)
    assert stats.chisquare(np.bincount(ids, minlength=40)).pvalue > RARE
    assert batch["t2"].n_id[batch["t2"].src_index].tolist() == [8]


def test_the_same_batches_from_everywhere(typed, flat):
    def told(graph: Graph, edges: Any, **options: Any) -> list[Any]:
        asked = {"neg_sampling": "binary", "shuffle": True, "seed": 5, "batch_size": 16, **options}
        loader = LinkNeighborLoader(graph, [3, 2], edges, **asked)
        return [
            [
                value.tolist() if isinstance(value, torch.Tensor) else value
                for _, value in sorted(store.items())
            ]
            for batch in loader
            for store in batch.stores
        ]

    for graph, edges in ((flat, chosen((NODES, NODES))), (typed, (KEYS[2], chosen(SIZES[:2]))), (flat, None)):
        expected = told(graph, edges)
        assert expected != told(graph, edges, seed=6)
        for mode in ("memory", outcrop.Online(topology="paged"), outcrop.Online(topology="map")):
            assert told(graph, edges, mode=mode) == expected
        assert told(graph, edges, memory="3MiB") == expected


def test_a_state_goes_on_where_it_was_taken(flat):
    edges = chosen((NODES, NODES))
    options = {"batch_size": 10, "shuffle": True, "neg_sampling_ratio": 1.0, "seed": 1}
    whole = [batch.input_id.tolist() for batch in LinkNeighborLoader(flat, [2], edges, **options)]
    loader = LinkNeighborLoader(flat, [2], edges, **options)
    batches = iter(loader)
    assert [next(batches).input_id.tolist() for _ in range(2)] == whole[:2]
    state = loader.state_dict()
    again = LinkNeighborLoader(flat, [2], edges, **options)
    again.load_state_dict(state)
    assert [batch.input_id.tolist() for batch in again] == whole[2:]
    with pytest.raises(ArgumentError, match="edges"):
        LinkNeighborLoader(flat, [2], edges[:, 1:], **options).load_state_dict(state)


def test_listed_edges_and_edges_that_lead_back(flat):
    (batch,) = LinkNeighborLoader(flat, [2], "train", batch_size=4)
    assert batch.n_id[batch.edge_label_index].T.tolist() == [[3, 4], [5, 6], [7, 7]]
    (valid,) = LinkNeighborLoader(flat, [2], "val", batch_size=4)
    assert valid.n_id[valid.edge_label_index].T.tolist() == [[1, 2]]
    (both,) = LinkNeighborLoader(flat, [2], "train", batch_size=4, subgraph_type="bidirectional", seed=1)
    ends = set(zip(*both.n_id[both.edge_index].tolist(), strict=True))
    assert ends == {(v, u) for u, v in ends}
    assert both.input_id.tolist() == [0, 1, 2]


def test_splits_of_edges_are_found_by_the_names_that_splits_of_nodes_have(tmp_path):
    edges, held = np.array([[0, 1], [1, 2], [2, 0], [3, 1]]), np.array([[0, 2, 3], [3, 3, 0]])
    folder = tmp_path / "in"
    folder.mkdir()
    np.save(folder / "edges.npy", edges)
    np.save(folder / "val_edges.npy", held)  # [2, M], as torch_geometric has them
    np.save(folder / "test_edges.npy", np.zeros((0, 2), np.int64))
    np.save(folder / "valid_edges_neg.npy", held)
    graph = outcrop.import_graph(f"arrays:{folder}", tmp_path / "g.oc", progress=False)
    assert any("not read: valid_edges_neg.npy" in note for note in graph.notes)
    named = outcrop.import_graph(
        {"edges": edges, "validation_edges": held}, tmp_path / "h.oc", progress=False
    )
    for one in (graph, named):
        (batch,) = LinkNeighborLoader(one, [1], "valid", batch_size=9)
        assert np.array_equal(batch.n_id[batch.edge_label_index].numpy(), held)
    with pytest.raises(ArgumentError, match=r"the test_edges of .* are none: pass edges"):
        LinkNeighborLoader(graph, [1], "test")


def test_the_smallest_budget_that_is_named_holds_listed_edges(tmp_path):
    """They are more than all else: 6 MB where an array of theirs would be the caller's."""
    rng = np.random.default_rng(0)
    parts = {
        "edges": rng.integers(0, 2000, (9000, 2)),
        "features": rng.random((2000, 64), np.float32),
        "train_edges": rng.integers(0, 2000, (400_000, 2)),
    }
    graph = outcrop.import_graph(parts, tmp_path / "g", progress=False)

    def three(memory: int) -> None:
        loader = LinkNeighborLoader(
            graph, [3], "train", neg_sampling="binary", batch_size=64, shuffle=True, memory=memory, seed=1
        )
        with loader:
            batches = iter(loader)
            for _ in range(3):
                next(batches)

    with pytest.raises(outcrop.BudgetError, match="the smallest budget that can is") as refused:
        three(1 << 20)
    least = refused.value.smallest
    assert least is not None
    assert least > 6_400_000
    three(least)
    three(least + (1 << 20))


def test_a_model_learns_from_a_loop_of_torch_geometric(tmp_path):
    """Links of two groups: what the loop in PyG's documentation learns tells held-out edges from others."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 2, 400)
    pairs = rng.integers(0, 400, (2, 6000))
    pairs = pairs[:, group[pairs[0]] == group[pairs[1]]]
    x = (np.eye(2)[group] + rng.normal(0, 1, (400, 2))).astype(np.float32)
    held_out, edges = pairs[:, :200], pairs[:, 200:]
    graph = outcrop.import_graph({"edges": edges.T, "features": x}, tmp_path / "g", progress=False)
    torch.manual_seed(0)
    layers = torch.nn.ModuleList([torch.nn.Linear(4, 16), torch.nn.Linear(32, 16)])
    optimizer = torch.optim.Adam(layers.parameters(), lr=0.02)

    def score(batch: Any) -> torch.Tensor:
        h = batch.x.float()
        for layer in layers:
            source, target = batch.edge_index
            total = torch.zeros_like(h).index_add(0, target, h[source])
            mean = total / torch.bincount(target, minlength=len(h)).clamp(min=1)[:, None]
            h = layer(torch.cat([h, mean], 1)).relu()
        a, b = batch.edge_label_index
        return (h[a] * h[b]).sum(1) - 1

    loader = LinkNeighborLoader(
        outcrop.pyg.open_data(graph.path),
        [8, 8],
        torch.from_numpy(edges),
        neg_sampling_ratio=1.0,
        batch_size=256,
        shuffle=True,
    )
    for _ in range(4):
        for batch in loader:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(score(batch), batch.edge_label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    apart = rng.integers(0, 400, (2, 1000))
    apart = apart[:, group[apart[0]] != group[apart[1]]][:, :200]
    index = torch.from_numpy(np.concatenate([held_out, apart], 1))
    label = torch.arange(index.shape[1]) < 200
    with torch.no_grad():
        (found,) = [
            (score(batch), batch.edge_label)
            for batch in LinkNeighborLoader(graph, [8, 8], index, label, batch_size=1000)
        ]
    assert torch.equal(found[1], label)
    better = found[0][label][:, None] > found[0][~label]
    assert better.float().mean() > 0.8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"edge_label_index": torch.tensor([[0], [NODES]])},
            f"1 targets, the first {NODES}, are not in 0 to",
        ),
        ({"edge_label_index": torch.tensor([[-1, 0], [0, 0]])}, "1 sources, the first -1"),
        ({"edge_label_index": torch.zeros(4, 2, dtype=torch.long)}, r"shape \[4, 2\], which are no edges"),
        ({"edge_label_index": torch.zeros(2, 0, dtype=torch.long)}, "one edge at least"),
        ({"edge_label_index": torch.zeros(2, 3)}, "float32 .* give integers"),
        ({"edge_label_index": "test"}, "'test'; it has train, valid"),
        ({"edge_label_index": (("a", "b", "c"), torch.zeros(2, 3))}, "has no types"),
        ({"edge_label": torch.zeros(3)}, r"shape \[3\], there are"),
        ({"edge_label": ["a"]}, "no array of numbers"),
        ({"neg_sampling": "some"}, "'some' is not understood"),
        ({"neg_sampling": {"mode": "triplet", "amount": 1.5}}, "integer"),
        ({"neg_sampling_ratio": -1.0}, "positive"),
        ({"neg_sampling": NegativeSampling("binary", 1, torch.ones(3))}, "uniformly"),
        ({"edge_label_time": torch.zeros(3), "time_attr": "t"}, "edge_label_time .*; time_attr"),
        ({"disjoint": True}, "disjoint is not possible"),
        ({"mode": "packed"}, "mode packed"),
    ],
)
def test_what_cannot_be_followed_is_named(flat, arguments, message):
    with pytest.raises(ArgumentError, match=message):
        LinkNeighborLoader(**{"data": flat, "num_neighbors": [2], **arguments})


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (None, r"\('t0', 'r0', 't0'\)"),
        (torch.zeros(2, 3, dtype=torch.long), "has types of edges"),
        (("t0", "r9", "t0"), "no edge type 't0 r9 t0'"),
        ((KEYS[3], torch.tensor([[9], [0]])), "1 sources, the first 9, are not in 0 to 8"),
        ((KEYS[3], "train"), "lists none to be predicted: give edges"),
    ],
)
def test_types_are_asked_for(typed, edges, message):
    with pytest.raises(ArgumentError, match=message):
        LinkNeighborLoader(typed, [2], edges)
