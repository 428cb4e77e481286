"""Models against torch_geometric's own layers and message passing, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, GINConv, GINEConv, GraphSAGE, SAGEConv, TransformerConv
from torch_geometric.utils import trim_to_layer

from batch_reference import deliver, loopless_degrees, random_adjacency, sample, symmetric
from outcrop.config.models import EDGE_ROW_MODELS, wants_degrees
from outcrop.device import resolve
from outcrop.errors import ArgumentError, DeviceError
from outcrop.nn import edge_layers, layers, sparse
from outcrop.nn.models import MODELS, Model, build_model
from outcrop.nn.sparse import Block, blocks_of
from outcrop.store.batches import BatchGraph
from outcrop.store.minibatch import MiniBatch

TIGHT = {"rtol": 1e-10, "atol": 1e-12}
NUM_NODES, DIM, EDGE_DIM = 60, 7, 5


def features(dim: int = DIM, seed: int = 0) -> torch.Tensor:
    return torch.randn(NUM_NODES, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def a_batch(fanouts=(4, 3), seed: int = 0, *, loops: bool = True, dim: int = DIM) -> MiniBatch:
    adjacency = random_adjacency(NUM_NODES, 5, seed, loops=loops)
    seeds = [3, 17, 58, 20, 41, 9]
    return deliver(sample(adjacency, seeds, fanouts, seed, [v % 3 for v in range(NUM_NODES)]), features(dim))


def new_model(name: str, layers: int = 2, edge_dim: int | None = None, **kwargs) -> Model:
    torch.manual_seed(1)
    inputs = DIM if edge_dim is None else (DIM, edge_dim)
    model = build_model(name, inputs, 8, 3, layers, **kwargs).double()
    for parameter in model.parameters():  # torch_geometric starts biases at zero, which would hide mistakes
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def with_edge_rows(batch: MiniBatch, seed: int = 4) -> MiniBatch:
    """The batch with features of its edges."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(batch.graph.num_edges, EDGE_DIM, dtype=torch.float64, generator=generator)
    return MiniBatch(batch.graph, (batch.x, rows), batch.y)


def edge_index_of(block: Block) -> torch.Tensor:
    return torch.stack([block.col.long(), block.row.long()])


def pyg_layer(conv: torch.nn.Module, x: torch.Tensor, block: Block) -> torch.Tensor:
    """torch_geometric's message passing on the block."""
    if isinstance(conv, GCNConv):
        return conv(x, edge_index_of(block))[: block.num_targets]
    return conv((x, x[: block.num_targets]), edge_index_of(block), **edge_attr_of(conv, block.edge_rows))


def edge_attr_of(conv: torch.nn.Module, rows: torch.Tensor | None) -> dict[str, torch.Tensor]:
    takes = isinstance(conv, GINEConv) or getattr(conv, "edge_dim", None) is not None
    return {"edge_attr": rows} if takes and rows is not None else {}


def pyg_forward(model: Model, batch: MiniBatch) -> torch.Tensor:
    """The same stack by ``trim_to_layer`` and torch_geometric's layers on whole node sets."""
    x, edge_index, edge_attr = batch.x, torch.from_numpy(batch.graph.edge_index()), batch.edge_attr
    for index, conv in enumerate(model.convs):
        x, edge_index, edge_attr = trim_to_layer(
            index,
            list(batch.graph.nodes_per_hop),
            list(batch.graph.edges_per_hop),
            x,
            edge_index,
            edge_attr,
        )
        x = conv(x, edge_index, **edge_attr_of(conv, edge_attr))
        if index < model.num_layers - 1:
            x = F.elu(x) if isinstance(conv, GATConv) else F.relu(x)
    return x[: batch.graph.num_seeds]


def gradients(output: torch.Tensor, wanted: list[torch.Tensor]) -> list[torch.Tensor]:
    weights = torch.randn(output.shape, dtype=output.dtype, generator=torch.Generator().manual_seed(5))
    return list(torch.autograd.grad((output * weights).sum(), wanted))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("fanouts", [(4,), (4, 3), (-1, -1), (2, 3, 2)])
@pytest.mark.parametrize("loops", [True, False])
def test_outputs_and_gradients_equal_torch_geometric(name, fanouts, loops):
    batch, model = a_batch(fanouts, loops=loops), new_model(name, len(fanouts))
    batch.x.requires_grad_()
    wanted = [batch.x, *model.parameters()]
    ours, theirs = model(batch), pyg_forward(model, batch)
    torch.testing.assert_close(ours, theirs, **TIGHT)
    for mine, reference in zip(gradients(ours, wanted), gradients(theirs, wanted), strict=True):
        torch.testing.assert_close(mine, reference, **TIGHT)


@pytest.mark.parametrize("name", ["gat", *EDGE_ROW_MODELS])
@pytest.mark.parametrize("fanouts", [(4,), (4, 3), (-1, -1), (2, 3, 2)])
@pytest.mark.parametrize("loops", [True, False])
def test_with_rows_of_edges_they_equal_torch_geometric(name, fanouts, loops):
    batch = with_edge_rows(a_batch(fanouts, loops=loops))
    model = new_model(name, len(fanouts), edge_dim=EDGE_DIM, heads=2)
    batch.x.requires_grad_()
    wanted = [batch.x, *model.parameters()]
    ours, theirs = model(batch), pyg_forward(model, batch)
    torch.testing.assert_close(ours, theirs, **TIGHT)
    for mine, reference in zip(gradients(ours, wanted), gradients(theirs, wanted), strict=True):
        torch.testing.assert_close(mine, reference, **TIGHT)


def test_a_transformer_does_without_rows_of_edges():
    batch, model = a_batch(), new_model("transformer", heads=2)
    torch.testing.assert_close(model(batch), pyg_forward(model, batch), **TIGHT)


@pytest.mark.parametrize("name", ["gat", *EDGE_ROW_MODELS])
def test_called_with_edge_attr_it_is_a_model_of_torch_geometric(name):
    batch = with_edge_rows(a_batch((-1, -1)))
    model = new_model(name, edge_dim=EDGE_DIM, heads=2)
    order = torch.randperm(batch.graph.num_edges, generator=torch.Generator().manual_seed(6))
    index, rows = torch.from_numpy(batch.graph.edge_index())[:, order], batch.edge_attr[order]
    x = batch.x
    for number, conv in enumerate(model.convs):
        x = conv(x, index, edge_attr=rows)
        if number == 0:
            x = F.elu(x) if name == "gat" else F.relu(x)
    torch.testing.assert_close(model(batch.x, index, rows), x, **TIGHT)


def test_rows_of_edges_that_do_not_fit_are_refused():
    batch, model = a_batch(), new_model("gine", edge_dim=EDGE_DIM)
    with pytest.raises(
        ArgumentError, match=r"takes features of edges, \[\d+, 5\] for this batch, and was given none"
    ):
        model(batch)
    index = torch.from_numpy(batch.graph.edge_index())
    with pytest.raises(ArgumentError, match=r"edge_attr has shape \[3, 5\]"):
        model(batch.x, index, torch.zeros(3, EDGE_DIM))
    with pytest.raises(ArgumentError, match=r"takes features of edges, .*given \[\d+, 2\]"):
        model(batch.x, index, torch.zeros(index.shape[1], 2))
    with pytest.raises(ArgumentError, match="model 'gine' needs features of edges"):
        build_model("gine", DIM, 8, 3, 2)
    with pytest.raises(ArgumentError, match="model 'sage' takes no features of edges"):
        build_model("sage", (DIM, EDGE_DIM), 8, 3, 2)


@pytest.mark.parametrize("targets", [False, True])
@pytest.mark.parametrize("kind", ["gat", "transformer", "transformer mean", "gine", "gin"])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("chunk", [3, 4096])
def test_layers_with_rows_of_edges_equal_torch_geometric(kind, targets, first, chunk, monkeypatch):
    """Between two types of nodes, too, whichever product is taken first, however many edges are taken at a time."""
    monkeypatch.setattr(layers, "aggregate_first", lambda *_: first)
    monkeypatch.setattr(edge_layers, "aggregate_first", lambda *_: first)
    monkeypatch.setattr(edge_layers, "_CHUNK_EDGES", chunk)
    torch.manual_seed(2)
    block = blocks_of(with_edge_rows(a_batch()))[0]
    width = (DIM, DIM + targets * (kind[:3] != "gin"))
    network = torch.nn.Sequential(torch.nn.Linear(DIM, 8), torch.nn.ReLU(), torch.nn.Linear(8, 6))
    conv, ours = {
        "gat": (
            GATConv(width if targets else DIM, 3, 2, edge_dim=EDGE_DIM, add_self_loops=not targets),
            layers.gat,
        ),
        "transformer": (TransformerConv(width, 3, 2, edge_dim=EDGE_DIM), edge_layers.transformer),
        "transformer mean": (TransformerConv(width, 3, 2, concat=False), edge_layers.transformer),
        "gine": (GINEConv(network, train_eps=True, edge_dim=EDGE_DIM), edge_layers.gine),
        "gin": (GINConv(network, eps=0.3), edge_layers.gine),
    }[kind]
    conv = conv.double()
    x = features(seed=3)[: block.num_sources].clone().requires_grad_()
    other = features(width[1], seed=4).requires_grad_() if targets else None
    wanted = [x, *conv.parameters()] + ([other] if targets else [])
    out = ours(conv, x, block, other)
    own = (other if targets else x)[: block.num_targets]
    reference = conv((x, own), edge_index_of(block), **edge_attr_of(conv, block.edge_rows))
    torch.testing.assert_close(out, reference, **TIGHT)
    for mine, theirs in zip(gradients(out, wanted), gradients(reference, wanted), strict=True):
        torch.testing.assert_close(mine, theirs, **TIGHT)


CONVS = {
    "sage": (layers.sage, lambda i, o: SAGEConv(i, o)),
    "gcn": (layers.gcn, lambda i, o: GCNConv(i, o)),
    "gat": (layers.gat, lambda i, o: GATConv(i, o // 2, heads=2)),
    "gat mean": (layers.gat, lambda i, o: GATConv(i, o, heads=3, concat=False)),
}


@pytest.mark.parametrize("kind", CONVS)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("wants_input", [True, False])
def test_both_orders_of_products_equal_torch_geometric(kind, first, wants_input, monkeypatch):
    monkeypatch.setattr(layers, "aggregate_first", lambda *_: first)
    ours, build = CONVS[kind]
    torch.manual_seed(2)
    conv, block = build(DIM, 6).double(), blocks_of(a_batch())[0]
    torch.nn.init.normal_(conv.lin_l.bias if kind == "sage" else conv.bias)
    x = features(seed=3)[: block.num_sources].clone().requires_grad_(wants_input)
    wanted = [*conv.parameters()] + [x] * wants_input
    out, reference = ours(conv, x, block), pyg_layer(conv, x, block)
    torch.testing.assert_close(out, reference, **TIGHT)
    for mine, theirs in zip(gradients(out, wanted), gradients(reference, wanted), strict=True):
        torch.testing.assert_close(mine, theirs, **TIGHT)


def test_the_order_of_products_follows_operation_counts():
    def block(targets: int, edges: int, sources: int) -> Block:
        return Block(
            torch.zeros(targets + 1, dtype=torch.int32), torch.zeros(edges, dtype=torch.int32), sources
        )

    sampled, full = block(11_000, 113_000, 67_000), block(2_708, 13_000, 2_708)
    assert layers.aggregate_first(sampled, 128, 256)
    assert layers.aggregate_first(sampled, 128, 128, heads=4)
    assert not layers.aggregate_first(full, 1433, 16)
    assert layers.aggregate_first(full, 16, 1433)
    # 8 * 2 * 3 + 1 * 3 * 5 = 63 against 8 * 2 * 5 + 4 * 3 * 5 = 140; with 5 heads 255 against 140.
    assert layers.aggregate_first(block(1, 2, 4), 3, 5)
    assert not layers.aggregate_first(block(1, 2, 4), 3, 5, heads=5)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("isolated", [True, False])
def test_targets_without_neighbours(name, isolated):
    """No edges at all, and edges for the last target only."""
    rowptr, col = ([0, 0, 0], []) if isolated else ([0, 0, 2], [2, 0])
    nodes = (2, 0) if isolated else (2, 1)
    graph = BatchGraph.of_one_type(
        np.arange(sum(nodes)),
        np.array(rowptr, np.int32),
        np.array(col, np.int32),
        nodes,
        (len(col),),
        np.zeros(2, np.int64),
    )
    batch = MiniBatch(
        graph, (features()[: sum(nodes)].clone().requires_grad_(),), torch.zeros(2, dtype=torch.int64)
    )
    model = new_model(name, 1)
    ours, theirs = model(batch), pyg_forward(model, batch)
    torch.testing.assert_close(ours, theirs, **TIGHT)
    wanted = [batch.x, *model.parameters()]
    # Without edges message passing leaves some parameters out of its graph; their gradient is zero.
    reference = torch.autograd.grad(theirs.sum(), wanted, allow_unused=True)
    for mine, other in zip(torch.autograd.grad(ours.sum(), wanted), reference, strict=True):
        torch.testing.assert_close(mine, torch.zeros_like(mine) if other is None else other, **TIGHT)


@pytest.mark.parametrize("name", MODELS)
def test_batches_have_degrees_for_models_that_normalise_by_them(name):
    assert wants_degrees(name) == new_model(name, heads=4).uses_degrees
    assert not wants_degrees(name, "shadow")


@pytest.mark.parametrize(("in_dim", "out_dim"), [(2, 9), (9, 2)])
def test_gcn_with_degrees_and_all_neighbours_is_gcnconv_on_the_whole_graph(in_dim, out_dim):
    adjacency = symmetric(random_adjacency(NUM_NODES, 3, 4))
    whole = torch.tensor([(u, v) for v, sources in enumerate(adjacency) for u in sources]).t()
    torch.manual_seed(0)
    model, x = build_model("gcn", in_dim, 5, out_dim, 2).double(), features(in_dim)
    batch = deliver(sample(adjacency, [5, 1, 33], (-1, -1)), x, loopless_degrees(adjacency))
    expected = model.convs[1](F.relu(model.convs[0](x, whole)), whole)[[5, 1, 33]]
    torch.testing.assert_close(model(batch), expected, **TIGHT)


def test_gcn_with_degrees_estimates_the_whole_graph_without_bias():
    """The mean over every possible sample of a node's neighbours is the sum over all of them."""
    adjacency = [[1, 2, 3, 4], [], [0], [0, 1], [2]]
    torch.manual_seed(0)
    model, x, degrees = build_model("gcn", 3, 5, 2, 1).double(), features(3)[:5], loopless_degrees(adjacency)
    outputs = []
    for left in range(1, 5):
        for right in range(left + 1, 5):
            reduced = [[left, right], *adjacency[1:]]
            outputs.append(model(deliver(sample(reduced, [0], (-1,)), x, degrees)))
    whole = model(deliver(sample(adjacency, [0], (-1,)), x, degrees))
    torch.testing.assert_close(torch.stack(outputs).mean(0), whole, **TIGHT)


def test_attention_survives_large_scores():
    model, batch = new_model("gat", 1), a_batch((4,))
    with torch.no_grad():
        model.convs[0].att_src.mul_(1e4)
    out = model(batch)
    assert torch.isfinite(out).all()
    torch.testing.assert_close(out, pyg_forward(model, batch), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("name", MODELS)
def test_narrow_features_are_widened_first(name, dtype):
    batch, model = a_batch(), new_model(name).float()
    narrow = (batch.x * 10).to(dtype)
    ours = model(MiniBatch(batch.graph, (narrow,), batch.y))
    assert ours.dtype == torch.float32
    assert torch.equal(ours, model(MiniBatch(batch.graph, (narrow.float(),), batch.y)))


@pytest.mark.parametrize("name", MODELS)
def test_results_do_not_depend_on_where_the_rows_lie(name):
    batch, model = a_batch(dim=DIM), new_model(name).float()
    x = batch.x.float()
    expected = model(MiniBatch(batch.graph, (x,), batch.y))
    for offset in (1, 4, 5):
        moved = torch.empty(x.numel() + 16)[offset : offset + x.numel()].view(x.shape).copy_(x)
        assert torch.equal(model(MiniBatch(batch.graph, (moved,), batch.y)), expected)
    strided = torch.empty(len(x), 2 * DIM)[:, :DIM].copy_(x)
    assert torch.equal(model(MiniBatch(batch.graph, (strided,), batch.y)), expected)


@pytest.mark.leaks("thread", reason="OpenMP keeps its threads once there are several")
@pytest.mark.parametrize("name", MODELS)
def test_results_do_not_depend_on_threads(name):
    batch, model = a_batch((-1, -1)), new_model(name).float()
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(sparse.spmm(blocks_of(batch)[0], batch.x.float()))
            results.append(model(batch))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[2])
    torch.testing.assert_close(results[1], results[3])


def test_sparse_products_equal_scipy():
    scipy_sparse = pytest.importorskip("scipy.sparse")
    block = blocks_of(a_batch())[0]
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(block.num_edges)
    matrix = scipy_sparse.csr_array(
        (weights, block.col.numpy(), block.rowptr.numpy()), shape=(block.num_targets, block.num_sources)
    )
    x, y = rng.standard_normal((block.num_sources, 5)), rng.standard_normal((block.num_targets, 5))
    np.testing.assert_allclose(
        sparse.spmm(block, torch.from_numpy(x), torch.from_numpy(weights)), matrix @ x, rtol=1e-12
    )
    np.testing.assert_allclose(
        sparse.spmm_transposed(block, torch.from_numpy(y), torch.from_numpy(weights)),
        matrix.T @ y,
        rtol=1e-12,
    )
    dots = sparse.sampled_dot(block.rowptr, block.col, torch.from_numpy(y), torch.from_numpy(x))
    np.testing.assert_allclose(dots, (y[block.row] * x[block.col]).sum(1), rtol=1e-12)


def test_dots_of_parallel_edges_in_a_small_block():
    """Drawn with replacement: more edges than there are pairs of nodes, which no sparse matrix of torch holds."""
    rng = np.random.default_rng(0)
    row, col = np.sort(rng.integers(0, 2, 40)), rng.integers(0, 3, 40)
    left, right = rng.standard_normal((2, 5)), rng.standard_normal((3, 5))
    rowptr = torch.from_numpy(np.searchsorted(row, [0, 1, 2]).astype(np.int32))
    sources = torch.from_numpy(col.astype(np.int32))
    dots = sparse.sampled_dot(rowptr, sources, torch.from_numpy(left), torch.from_numpy(right))
    np.testing.assert_allclose(dots, (left[row] * right[col]).sum(1), rtol=1e-12)


def test_state_dict_is_that_of_torch_geometric_layers():
    model = build_model("gat", 5, None, 3, 2)
    reference = torch.nn.ModuleList([GATConv(5, 32, heads=4), GATConv(128, 3, heads=1)])
    assert {f"convs.{name}": value.shape for name, value in reference.state_dict().items()} == {
        name: value.shape for name, value in model.state_dict().items()
    }
    sage = build_model("sage", 5, None, 3, 2)
    assert sage.convs[0].lin_l.weight.shape == (256, 5)
    GraphSAGE(5, 256, 2, 3).load_state_dict(sage.state_dict())


def test_impossible_models_are_refused_with_all_reasons():
    with pytest.raises(ArgumentError, match="known: sage, gat, gcn"):
        build_model("mlp", 1, 1, 1, 1)
    with pytest.raises(
        ArgumentError, match=r"num_classes 0 .*hidden 30 is no multiple of heads 4.*dropout 1.5"
    ):
        build_model("gat", 5, 30, 0, 2, dropout=1.5)


def test_batches_of_other_depth_are_refused():
    with pytest.raises(ArgumentError, match="the model has 3 layers, the batches 2 hops"):
        new_model("sage", 3)(a_batch())


def test_devices():
    assert resolve("cpu") == torch.device("cpu")
    with pytest.raises(ArgumentError, match="write cpu or cuda"):
        resolve("warp")
    with pytest.raises(DeviceError, match="use cpu or cuda"):
        resolve("meta")
    if not torch.cuda.is_available():
        with pytest.raises(DeviceError, match="--device cpu"):
            resolve("cuda")


@pytest.mark.parametrize("name", ["sage", "gcn", "gat"])
def test_called_with_edges_it_is_a_model_of_torch_geometric(name):
    """As a loaded model is used by people who have x and edge_index; self-loops and a lonely node included."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((30, 5)).astype(np.float32))
    edge_index = torch.from_numpy(rng.integers(0, 29, (2, 200)))
    edge_index = torch.unique(edge_index, dim=1)[:, torch.randperm(len(torch.unique(edge_index, dim=1)[0]))]
    model = build_model(name, 5, 8, 3, 2).eval()
    with torch.no_grad():
        expected = x
        for index, conv in enumerate(model.convs):
            expected = conv(expected, edge_index)
            if index == 0:
                expected = torch.nn.functional.elu(expected) if name == "gat" else expected.relu()
        torch.testing.assert_close(model(x, edge_index), expected, rtol=1e-5, atol=1e-6)
    for bad in (None, edge_index[0], edge_index + 29):
        with pytest.raises(ArgumentError, match="edge_index"):
            model(x, bad)
    with pytest.raises(ArgumentError, match="not with Data"):
        model(Data(x=x, edge_index=edge_index))
