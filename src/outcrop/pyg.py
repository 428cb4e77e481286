"""Outcrop for programs that are written for torch_geometric: its loaders from disk, and graphs as its stores."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import ArrayLike

from outcrop.config import SampleConfig, Size, as_fanouts
from outcrop.config.sampling import as_fanouts_by_type
from outcrop.errors import ArgumentError, OutcropWarning
from outcrop.loading.modes import Mode, mode_named
from outcrop.loading.pyg import to_pyg
from outcrop.loading.ranks import Ranks
from outcrop.loading.run_loader import RunLoader, Source
from outcrop.loading.sessions import Sessions
from outcrop.loading.sources import EVERY_EPOCH, SourceRequest, drawn_links, drawn_source
from outcrop.loading.stores import (
    DiskData,
    DiskFeatureStore,
    DiskGraphStore,
    DiskHeteroData,
    graph_of,
    open_data,
    stores,
)
from outcrop.nn.convs import Data
from outcrop.store.graph import Graph, split_name

__all__ = [
    "DiskData",
    "DiskFeatureStore",
    "DiskGraphStore",
    "DiskHeteroData",
    "LinkNeighborLoader",
    "NeighborLoader",
    "open_data",
    "stores",
    "to_pyg",
]

_ELSEWHERE = {
    "HGTLoader": "NeighborLoader draws batches of graphs with types, and the model may be hgt",
    "ImbalancedSampler": "class_weights of TrainConfig, or of your loss, weigh classes",
}


def __getattr__(name: str) -> Any:
    if name in _ELSEWHERE:
        raise ImportError(f"outcrop.pyg has no {name}: {_ELSEWHERE[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_NO_TIMES = "the graph has no times"
# What torch's DataLoader and torch_geometric's loaders take, too -> why it cannot be followed; "": it has no effect, or
# its own.
_OF_DATALOADER = {
    "sampler": "seeds are drawn by the loader: pass them as input_nodes, and weigh classes in your loss",
    "batch_sampler": "batches are divided by the loader: pass batch_size, shuffle and drop_last",
    "collate_fn": "use transform, which is called with each batch",
    "custom_cls": "batches are Data or HeteroData: use transform",
    "exclude_keys": "batches have what NeighborLoader says: use transform",
    **dict.fromkeys(
        ("generator", "worker_init_fn", "timeout", "multiprocessing_context", "pin_memory_device"), ""
    ),
}
_SUBGRAPHS = {"directional": "neighbor", "bidirectional": "neighbor", "induced": "shadow"}


class NeighborLoader(RunLoader):
    """torch_geometric's NeighborLoader on a graph that lies on disk, with nothing prepared.

    A script needs two other lines: this import, and ``data = open_data(path)``. Batches have NeighborLoader's fields
    (:class:`outcrop.loading.run_loader.RunLoader` says which; ``y`` is that of the seeds alone, so
    ``batch.y[:batch.batch_size]`` works as before), drawn by Outcrop's keyed sampler: the same ``seed`` gives the same
    batches, each iteration others. The seeds of a batch that was shuffled ascend: their order within it says nothing.
    Rows are read within ``memory``; what is hot stays in it, as in mode ``online``. The rows of a batch lie in a buffer
    that is used again when nobody refers to it any more: keep a copy (``x.clone()``) of what is to outlive a few
    batches, also for ``list(loader)``, which BudgetError would end. Several processes (``torch.distributed``) get all
    batches each: divide ``input_nodes`` among them, as torch_geometric's examples do. For many epochs,
    :func:`outcrop.prepare` and its :meth:`outcrop.Run.loader` read a fraction of the bytes.

    Args:
        data: What :func:`open_data`, :func:`outcrop.open_graph` or :func:`stores` gives, or the graph's folder.
        num_neighbors: Neighbours per hop, -1 = all; of a graph with types also a dict with a list for each edge type,
            or torch_geometric's ``NumNeighbors``.
        input_nodes: Seeds: distinct nodes int64 [n], their names text [n], a mask [num_nodes] of bool, ``"train"``,
            ``"valid"`` (or ``"val"``), ``"test"``; None = all nodes. Of a graph with types these are nodes of
            ``graph.seed_type``, or of any type: ``("paper", nodes)``.
        replace: Draw neighbours with replacement; not with ``weight_attr``.
        subgraph_type: ``directional``; ``bidirectional``: with each edge the one that leads back, of graphs with types
            then without ``edge_attr``, ``edge_weight`` and ``e_id``
            (:func:`outcrop.loading.bidirectional.both_ways`); ``induced``: all edges among the nodes that were reached,
            of graphs without types.
        directed: False is ``subgraph_type="induced"``.
        weight_attr: ``"edge_weight"`` draws neighbours in proportion to the graph's weights.
        transform: Called with each batch; gives the batch that the loop gets.
        batch_size, shuffle, drop_last: As of torch's DataLoader.
        memory: Budget of everything that this loader holds, bytes or text (``"4GiB"``); None: no limit.
        seed: Of all draws; None: drawn from torch's generator, as a DataLoader does: after ``torch.manual_seed`` the
            same again, but another for each loader. :meth:`load_state_dict` then takes that of the state.
        edge_ids: Batches get ``e_id``, positions of their edges in ``graph.edge_index()``, which is sorted:
            ``graph.edge_origins()[batch.e_id]`` are those in the source. They have it in any case where they have
            ``edge_attr``: where edges of the graph have features. Without these: pass
            ``graph.with_edge_rows(False)`` as ``data``.
        mode: Where rows come from: ``online``; ``memory`` where all features fit; or an object of
            :mod:`outcrop.loading.modes`, such as ``outcrop.Online(topology="paged")``.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        generator: That ``seed`` is drawn from, where it is None.
        num_workers, persistent_workers, prefetch_factor, pin_memory, is_sorted, filter_per_worker, worker_init_fn,
            timeout, multiprocessing_context: Without effect: loading has threads of its own, and graphs on disk are
            sorted.
        input_time, time_attr, temporal_strategy, disjoint, neighbor_sampler, transform_sampler_output: Refused.

    Raises:
        ArgumentError: An argument that Outcrop cannot follow, with the reason; bad node ids.
        FormatError: No graph is there.
    """

    def __init__(
        self,
        data: DiskData | DiskHeteroData | Graph | str | Path | tuple[DiskFeatureStore, DiskGraphStore],
        num_neighbors: Sequence[int],
        input_nodes: ArrayLike | str | None = None,
        input_time: None = None,
        replace: bool = False,
        subgraph_type: str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: None = None,
        weight_attr: str | None = None,
        transform: Callable[[Data], Data] | None = None,
        transform_sampler_output: None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: None = None,
        directed: bool = True,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        num_workers: int = 0,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
        pin_memory: bool = False,
        memory: Size | None = None,
        seed: int | None = None,
        edge_ids: bool = False,
        mode: str | Mode = "online",
        device: str = "cpu",
        **others: Any,
    ):
        seed_given = seed is not None
        seed = _seed(seed, others)
        _refuse(
            ("input_time", input_time is not None, _NO_TIMES),
            ("time_attr", time_attr is not None, _NO_TIMES),
            *_refused(temporal_strategy, disjoint, neighbor_sampler, transform_sampler_output),
        )
        graph = _graph_of(data)
        graph, input_nodes = _of_seed_type(graph, input_nodes)
        config = SampleConfig(
            **_hops(graph, num_neighbors),
            batch_size=batch_size,
            replace=replace,
            sampler=_sampler(graph, weight_attr, subgraph_type, directed, replace),
            **_epochs(seed, shuffle),
            edge_rows=graph.has_edge_rows,
        )
        asked = _request(graph, config, mode, device, memory, edge_ids)

        source = drawn_source(asked, "all" if input_nodes is None else input_nodes, drop_last=drop_last)
        _warn_of_processes(graph, "train", source, shuffle)
        transform = _with_ways_back(subgraph_type, transform)
        super().__init__(source, Sessions(), Ranks(), transform=transform, any_seed=not seed_given)


class LinkNeighborLoader(RunLoader):
    """torch_geometric's LinkNeighborLoader on a graph that lies on disk, with nothing prepared.

    Batches are drawn around both ends of edges that are to be predicted, and of negative ones. They have what those of
    :class:`NeighborLoader` have, but for ``y`` and ``batch_size``, and ``edge_label_index`` int64 [2, L] (local),
    ``edge_label`` [L] and ``input_id`` int64, which of the edges given the positive ones are; or, with triplets,
    ``src_index`` [n], ``dst_pos_index`` [n] and ``dst_neg_index`` [n] or [n, amount]. Of graphs with types these belong
    to the type of the edges, and of triplets to the types of their ends, as torch_geometric has it. Negative nodes are
    drawn uniformly and may hit an edge of the graph. Nothing of the graph is masked: edges to be predicted that the
    graph has are also drawn as neighbours, unless they were split off before (``RandomLinkSplit`` with
    ``disjoint_train_ratio``).

    Args:
        data: As of :class:`NeighborLoader`: the edges that messages go along.
        num_neighbors: As of :class:`NeighborLoader`.
        edge_label_index: Edges to be predicted, int [2, n] of (source, target), which need not be edges of the graph;
            the name of a split of edges that was imported with it (``"train"``, ``"valid"``, ``"test"``); None: all
            edges of the graph, in the order of ``graph.edge_index()``. Of a graph with types a pair of an edge type,
            (source, relation, target), and such edges, or an edge type alone. An array that is given is not copied, nor
            counted in ``memory``: do not change it while batches are drawn.
        edge_label: Labels of these edges, [n] or [n, columns] of any numbers; None: none.
        neg_sampling: ``"binary"``, ``"triplet"``, ``{"mode": "binary", "amount": 2.0}``, or torch_geometric's
            ``NegativeSampling``: negatives for each positive edge. With binary ones ``edge_label`` is 0 for negatives,
            and labels that are given and begin at 0 move up by one; without labels positive edges have 1.
        neg_sampling_ratio: Amount of binary negatives.
        replace, subgraph_type, directed, weight_attr, transform, batch_size, shuffle, drop_last, memory, seed,
            edge_ids, mode, device: As of :class:`NeighborLoader`; the batch size counts positive edges.
        num_workers, persistent_workers, prefetch_factor, pin_memory, is_sorted, filter_per_worker: Without effect.
        edge_label_time, time_attr, temporal_strategy, disjoint, neighbor_sampler, transform_sampler_output: Refused.

    Raises:
        ArgumentError: An argument that Outcrop cannot follow, with the reason; bad node ids.
        FormatError: No graph is there.
    """

    def __init__(
        self,
        data: DiskData | DiskHeteroData | Graph | str | Path | tuple[DiskFeatureStore, DiskGraphStore],
        num_neighbors: Sequence[int],
        edge_label_index: Any = None,
        edge_label: ArrayLike | None = None,
        edge_label_time: None = None,
        replace: bool = False,
        subgraph_type: str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        neg_sampling: Any = None,
        neg_sampling_ratio: float | None = None,
        time_attr: None = None,
        weight_attr: str | None = None,
        transform: Callable[[Data], Data] | None = None,
        transform_sampler_output: None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: None = None,
        directed: bool = True,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        num_workers: int = 0,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
        pin_memory: bool = False,
        memory: Size | None = None,
        seed: int | None = None,
        edge_ids: bool = False,
        mode: str | Mode = "online",
        device: str = "cpu",
        **others: Any,
    ):
        from outcrop.loading.links import LinkLabels, Negatives, chosen_edges

        seed_given = seed is not None
        seed = _seed(seed, others)
        _refuse(
            ("edge_label_time", edge_label_time is not None, _NO_TIMES),
            ("time_attr", time_attr is not None, _NO_TIMES),
            *_refused(temporal_strategy, disjoint, neighbor_sampler, transform_sampler_output),
        )
        negatives = Negatives.of(neg_sampling, neg_sampling_ratio)
        graph, edges = chosen_edges(_graph_of(data), edge_label_index)
        labels = LinkLabels(edges, edge_label, negatives)
        config = SampleConfig(
            **_hops(graph, num_neighbors),
            batch_size=batch_size,
            replace=replace,
            sampler=_sampler(graph, weight_attr, subgraph_type, directed, replace),
            **_epochs(seed, shuffle),
            edge_rows=graph.has_edge_rows,
            task="link",
            negatives=negatives.amount,
            negative_mode=negatives.mode or "binary",
        )
        asked = _request(graph, config, mode, device, memory, edge_ids)

        source = drawn_links(asked, edges, drop_last=drop_last)
        _warn_of_processes(graph, "train_edges", source, shuffle)
        made = _with_ways_back(subgraph_type, _after(labels, transform))
        super().__init__(source, Sessions(), Ranks(), transform=made, any_seed=not seed_given)


def _graph_of(data: Any) -> Graph:
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[1], DiskGraphStore):
        return data[1].graph
    if isinstance(data, DiskData | DiskHeteroData):
        return data.graph
    return graph_of(data)


def _name(subgraph_type: Any) -> str:
    return str(getattr(subgraph_type, "value", subgraph_type))


def _refused(
    temporal_strategy: str, disjoint: bool, neighbor_sampler: Any, transform_sampler_output: Any
) -> tuple[tuple[str, bool, str], ...]:
    return (
        ("temporal_strategy", temporal_strategy != "uniform", _NO_TIMES),
        ("disjoint", disjoint, "the seeds of a batch share one subgraph"),
        ("neighbor_sampler", neighbor_sampler is not None, "Outcrop draws from disk itself; pass the batches of "
         "another sampler to outcrop.prepare(batches=...)"),
        ("transform_sampler_output", transform_sampler_output is not None, "use transform"),
    )  # fmt: skip


def _sampler(graph: Graph, weight_attr: str | None, subgraph_type: Any, directed: bool, replace: bool) -> Any:
    """Returns the name of the sampler."""
    known, name = ", ".join(_SUBGRAPHS), _name(subgraph_type)
    induced = not directed or _SUBGRAPHS.get(name) == "shadow"
    _refuse(
        ("weight_attr", weight_attr not in (None, "edge_weight"), "weights of a graph are its 'edge_weight'"),
        ("weight_attr", weight_attr is not None and not graph.has("edge_weight"), f"{graph.path} holds no edge_weight: "
         "import the weights with the graph"),
        ("subgraph_type", name not in _SUBGRAPHS, f"known: {known}"),
        ("an induced subgraph", graph.is_typed and induced, "the graph has types, for which sampler "
         "'shadow' is not there yet: choose directional or bidirectional"),
    )  # fmt: skip
    if weight_attr is not None and replace:
        raise ArgumentError(
            "weight_attr with replace=True is not possible: weighted draws are without replacement"
        )
    if weight_attr is not None and induced:
        raise ArgumentError("weight_attr and an induced subgraph cannot both be had: leave one of them out")
    return "weighted" if weight_attr is not None else "shadow" if induced else "neighbor"


def _seed(seed: int | None, others: dict[str, Any]) -> int:
    """Returns the seed of all draws, and refuses what a DataLoader takes besides and this one cannot follow."""
    generator = others.get("generator")
    for name, value in others.items():
        if name not in _OF_DATALOADER:
            raise TypeError(f"unexpected keyword argument {name!r}")
        _refuse((name, value is not None and bool(_OF_DATALOADER[name]), _OF_DATALOADER[name]))
    if seed is not None:
        return seed
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator))


def _epochs(seed: int, shuffle: bool) -> dict[str, Any]:
    """Returns options of sampling: each iteration is an epoch of its own."""
    return {
        "epochs": EVERY_EPOCH,
        "seed": seed,
        "splits": ("train" if shuffle else "infer",),
    }


def _request(
    graph: Graph, config: SampleConfig, mode: str | Mode, device: str, memory: Size | None, edge_ids: bool
) -> SourceRequest:
    if memory == "auto":
        raise ArgumentError(
            "memory is 'auto', which trainings and runs choose (oc.train, oc.prepare): give a loader bytes, such as "
            "'4GiB'"
        )
    where = mode_named(mode)
    where.check(graph, device)
    return SourceRequest(graph, config, where, memory, where.device(device, 0), str(graph.path), edge_ids)


def _warn_of_processes(graph: Graph, split: str, source: Source, shuffle: bool) -> None:
    """Warns where each of several processes would train on all of a split, or of the graph."""
    distributed = torch.distributed
    if not shuffle or not distributed.is_available() or not distributed.is_initialized():
        return
    world, whole = distributed.get_world_size(), {graph.seed_type.num_nodes, graph.num_edges}
    if graph.has(split):
        whole.add(graph.spec(split).shape[0])
    if world > 1 and source.num_seeds in whole:
        warnings.warn(
            f"{world} processes train, and each goes over all of these seeds: divide them into parts of equal length "
            "(nodes[: len(nodes) // world_size * world_size].chunk(world_size)[rank]), or use the loader of a run "
            "(oc.prepare, run.loader()), which divides",
            OutcropWarning,
            stacklevel=3,
        )


def _with_ways_back(
    subgraph_type: Any, transform: Callable[[Any], Any] | None
) -> Callable[[Any], Any] | None:
    if _name(subgraph_type) != "bidirectional":
        return transform
    from outcrop.loading.bidirectional import both_ways

    return _after(both_ways, transform)


def _after(first: Callable[[Any], Any], transform: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    return first if transform is None else lambda batch: transform(first(batch))


def _hops(graph: Graph, num_neighbors: Any) -> dict[str, Any]:
    """Returns options of sampling: the fanouts of all edge types, and those of each one where they differ.

    Raises:
        ArgumentError: A dict does not name each edge type of the graph.
    """
    if hasattr(num_neighbors, "get_values"):  # torch_geometric.sampler.NumNeighbors
        try:
            num_neighbors = num_neighbors.get_values(
                [of.key for of in graph.edge_types] if graph.is_typed else None
            )
        except ValueError as error:
            raise ArgumentError(f"num_neighbors: {error}") from None
    if not isinstance(num_neighbors, Mapping):
        try:
            return {"fanouts": as_fanouts(num_neighbors)}
        except ArgumentError as error:
            raise ArgumentError(f"num_neighbors: {error}") from None
    if not graph.is_typed:
        raise ArgumentError("num_neighbors is a dict, and the graph has one type of edges: give a list")
    by_type = as_fanouts_by_type(num_neighbors)
    named = dict(by_type)
    missing = [name for name in (" ".join(one.key) for one in graph.edge_types) if name not in named]
    if missing:
        raise ArgumentError(
            f"num_neighbors names no fanouts for edge type {missing[0]!r}: give a list for each edge type, [0, 0] for "
            "one that is not followed"
        )
    return {"fanouts": (1,) * max(map(len, named.values())), "fanouts_by_type": by_type}


def _of_seed_type(graph: Graph, input_nodes: Any) -> tuple[Graph, Any]:
    """Returns the graph and the nodes of (node type, nodes), as torch_geometric has it; what names no type stays.

    Raises:
        ArgumentError: A tuple, or a text that is no split, names no node type.
    """
    types, name = [one.name for one in graph.node_types], input_nodes
    if isinstance(input_nodes, tuple):
        if not graph.is_typed:
            raise ArgumentError("input_nodes is a tuple, and the graph has one type of nodes: give ids alone")
        if len(input_nodes) != 2 or not isinstance(input_nodes[0], str) or input_nodes[0] not in types:
            raise ArgumentError(
                f"input_nodes is a tuple that begins with {input_nodes[:1]!r:.40}: give (node type, nodes), of "
                f"{', '.join(types)}"
            )
        return graph.with_seeds(input_nodes[0]), input_nodes[1]
    if not isinstance(name, str) or not graph.is_typed:
        return graph, input_nodes
    if name in types:
        return graph.with_seeds(name), None
    if name != "all" and not graph.has(split_name(name)):
        raise ArgumentError(
            f"input_nodes is {name!r}, no node type and no split: node types are {', '.join(types)}"
        )
    return graph, input_nodes


def _refuse(*arguments: tuple[str, bool, str]) -> None:
    """Raises ArgumentError for each (name, whether it was given, why it cannot be followed)."""
    given: Iterable[str] = [f"{name} is not possible: {why}" for name, is_given, why in arguments if is_given]
    if given := list(given):
        raise ArgumentError("; ".join(given))
