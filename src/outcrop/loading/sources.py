"""What a loader goes over: batches that a run has, or batches around any nodes, drawn as they are needed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from outcrop.config import DeviceConfig, SampleConfig, Size, parse_size
from outcrop.config.sampling import EXTERNAL, SPLITS
from outcrop.errors import ArgumentError
from outcrop.loading.edges import EdgeLookup
from outcrop.loading.input_ids import InputIds, checked_ids
from outcrop.loading.modes import MODES, Mode, Online, names_of
from outcrop.loading.needs import SessionNeeds
from outcrop.loading.open import open_session
from outcrop.loading.run_loader import Source
from outcrop.loading.session import LoadSession
from outcrop.runtime.runtime import Runtime
from outcrop.runtime.smallest_budget import naming_smallest
from outcrop.sampling.link_seeds import ChosenEdges
from outcrop.sampling.seeds import Chosen, Ids
from outcrop.store import manifest as manifests
from outcrop.store import samples
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import Graph, split_name
from outcrop.store.seed_nodes import require_nodes

_HASHED = 1 << 20  # at a time
_ADVICE = "smaller batches, or fewer neighbors of each node, usually need less"
_COUNTED_EPOCHS = 3  # of those without end, to find the smallest budget that works
EVERY_EPOCH = (1 << 31) - 1  # as many as can be: epochs are drawn by their own numbers


@dataclass(frozen=True)
class SourceRequest:
    """Says how batches are loaded, wherever they come from.

    Attributes:
        config: How they are drawn, or were.
        memory: Budget of loading; None: no limit.
        home: Where they lie, for messages.
        edge_ids: They get positions of their edges in the graph.
    """

    graph: Graph
    config: SampleConfig
    mode: Mode
    memory: Size | None
    device: DeviceConfig
    home: str
    edge_ids: bool = False

    @property
    def limit(self) -> int | None:
        """Returns ``memory`` in bytes."""
        return None if self.memory is None else parse_size(self.memory)


def recorded_source(asked: SourceRequest, path: Path, split: str) -> Source:
    """Describes the batches of ``split`` that the run in ``path`` has.

    Raises:
        ArgumentError: It has none of this split, or edge ids were asked for of batches from elsewhere.
    """
    with manifests.opening(path / "sample", samples.FORMAT, samples.VERSIONS) as manifest:
        groups = samples.groups_of(manifest)
    if split not in groups:
        raise ArgumentError(
            f"{path} holds no batches of split {split!r}, only of {', '.join(sorted(groups))}; 'all' and "
            "node ids are drawn as they are needed"
        )
    group, graph, sample, mode = groups[split], asked.graph, asked.config, asked.mode
    limit = asked.limit

    def open_it() -> tuple[Runtime, LoadSession]:
        runtime = Runtime(asked.memory)
        return runtime, open_session(graph, runtime, mode, run_folder=path, device=asked.device)

    def refusing() -> AbstractContextManager[None]:
        epochs = range(group.first_epoch, group.first_epoch + group.epochs)
        passes = [(split, epoch) for epoch in epochs]
        needs = partial(SessionNeeds, graph, mode, sample, passes, run=path)
        return naming_smallest(limit, lambda: needs().fits, f"load mini-batches in mode {mode}")

    by_node = sample.task == "node" and sample.sampler != EXTERNAL
    return Source(
        name=split,
        graph=graph,
        split=split,
        count=None if mode.batches_by_budget and split == "train" else group.per_epoch,
        distinct=range(group.first_epoch, group.first_epoch + group.epochs if split == "train" else 0),
        key=("recorded", mode, asked.device),
        open=open_it,
        input_ids=(lambda runtime: _split_positions(graph, runtime, split)) if by_node else None,
        complete=_edge_lookup(asked),
        identity={"run": manifest.digest()},
        home=asked.home,
        refusing=refusing,
        num_seeds=graph.spec(graph.seed_type.array(split)).shape[0] if by_node else None,
    )


def drawn_source(asked: SourceRequest, split: str | ArrayLike, *, drop_last: bool = False) -> Source:
    """Describes batches of ``config`` around any nodes, drawn as they are needed: shuffled in every epoch if the only
    split of ``config`` is ``train``, in the order given if it is ``infer``; ``config.epochs`` different epochs.

    Raises:
        ArgumentError: Bad node ids, a split that the graph has not, or a mode that needs recorded batches.
    """
    home = asked.home
    _require_any_nodes(asked.mode)
    if asked.config.sampler == EXTERNAL:
        raise ArgumentError(f"{home}: its batches came from elsewhere: none can be drawn around other nodes")
    ids, name, of = _chosen_ids(asked.graph, split, home)
    return _drawn(asked, ids, name, {"nodes": of}, drop_last, InputIds(ids))


def drawn_links(asked: SourceRequest, edges: ChosenEdges, *, drop_last: bool = False) -> Source:
    """Describes batches of ``config``, whose task is ``link``, around ``edges``, drawn as they are needed, in the order
    that :func:`drawn_source` says. Batches know themselves which of ``edges`` they have.
    """
    _require_any_nodes(asked.mode)
    if edges.index is None:
        name = of = edges.listed or "all edges"
    else:
        name, of = f"{len(edges)} edges", _digest_of(edges.index)
    identity = {"edges": of, "edge_type": list(edges.edge_type.key)}
    return _drawn(asked, edges, name, identity, drop_last, None)


def _digest_of(index: np.ndarray) -> str:
    """Returns what names edges [2, n], whatever integers they are of, without a copy of all of them."""
    digest = hashlib.sha256()
    for ids in index:
        for first in range(0, len(ids), _HASHED):
            digest.update(np.ascontiguousarray(ids[first : first + _HASHED], np.int64).data)
    return digest.hexdigest()


def _require_any_nodes(mode: Mode) -> None:
    if not mode.any_nodes:
        others = names_of(tuple(other for other in MODES if other.any_nodes))
        raise ArgumentError(f"mode {mode} has no batches around nodes or edges of your choice: use {others}")


def _drawn(
    asked: SourceRequest,
    chosen: Chosen,
    name: str,
    identity: Mapping[str, Any],
    drop_last: bool,
    input_ids: InputIds | None,
) -> Source:
    """Describes batches around ``chosen``, which ``identity`` names."""
    graph, mode, config, home = asked.graph, asked.mode, _with_edge_ids(asked), asked.home
    (drawn_split,) = config.splits
    nodes, limit = {drawn_split: chosen}, asked.limit

    def open_it() -> tuple[Runtime, LoadSession]:
        runtime = Runtime(asked.memory)
        return runtime, open_session(graph, runtime, mode, config=config, device=asked.device, ids=nodes)

    def refusing() -> AbstractContextManager[None]:
        epochs = range(min(config.epochs, _COUNTED_EPOCHS))
        passes = [(drawn_split, epoch) for epoch in epochs]
        needs = partial(SessionNeeds, graph, mode, config, passes, ids=nodes)
        return naming_smallest(limit, lambda: needs().fits, f"load mini-batches in mode {mode}", _ADVICE)

    def reseeded(seed: int) -> Source:
        drawn = replace(asked, config=replace(asked.config, seed=seed))
        return _drawn(drawn, chosen, name, identity, drop_last, input_ids)

    sampling = manifests.plain(config.as_stored())
    return Source(
        name=name,
        graph=graph,
        split=drawn_split,
        count=len(chosen) // config.batch_size if drop_last else -(-len(chosen) // config.batch_size),
        all_batches=not drop_last,
        distinct=range(0),
        key=object(),
        open=open_it,
        input_ids=None if input_ids is None else lambda runtime: input_ids,
        complete=_edge_lookup(asked),
        identity={"graph": graph.digest(), **identity, "sampling": sampling},
        home=home,
        refusing=refusing,
        num_seeds=len(chosen),
        reseeded=reseeded,
    )


def _chosen_ids(graph: Graph, split: str | ArrayLike, home: str) -> tuple[Ids, str, str]:
    """Returns the nodes, what to call them, and what names them: equal for equal nodes."""
    if isinstance(split, str):
        require_nodes(graph)
        if split == "all":
            return range(graph.seed_type.num_nodes), "all", "all"
        split = split_name(split)
        if split not in SPLITS or not graph.has(split):
            known = ", ".join(["all", *(s for s in SPLITS if graph.has(s))])
            raise ArgumentError(f"{graph.path} has no split {split!r}; it has {known}, or pass node ids")
        with Runtime() as runtime:
            return graph.split(runtime, split), split, split
    ids = checked_ids(split, graph, home)
    return ids, f"{len(ids)} nodes", hashlib.sha256(ids.tobytes()).hexdigest()


def _with_edge_ids(asked: SourceRequest) -> SampleConfig:
    """Has edges drawn with their positions where these, or weights, are delivered, and what draws can tell them."""
    by_gpu = isinstance(asked.mode, Online) and asked.mode.sample_on == "gpu"
    told = asked.mode.loads_types and not by_gpu
    wanted = told and (asked.edge_ids or asked.graph.has("edge_weight"))
    return replace(asked.config, edge_ids=asked.config.edge_ids or wanted)


def _edge_lookup(asked: SourceRequest) -> Callable[[Runtime], Callable[[BatchGraph], BatchGraph]] | None:
    """Returns what adds edge weights, and ids where they are asked for; None where there is nothing to add.

    Raises:
        ArgumentError: Ids of batches from elsewhere, whose edges need not be the graph's.
    """
    graph, ids = asked.graph, asked.edge_ids or asked.config.edge_ids
    if asked.config.sampler == EXTERNAL:
        if ids:
            raise ArgumentError("batches from elsewhere have edges of their own, without ids in the graph")
        return None
    if not ids and not graph.has("edge_weight"):
        return None
    made: list[EdgeLookup] = []  # for all passes: it reads the topology once to check it

    def lookup(runtime: Runtime) -> EdgeLookup:
        if not made:
            made.append(EdgeLookup(graph, runtime, ids=ids, keep=asked.config.edge_rows))
        return made[0]

    return lookup


def _split_positions(graph: Graph, runtime: Runtime, split: str) -> InputIds:
    """Finds positions in a split of ``graph``, which stays on disk."""
    return InputIds(graph.array(runtime, split).memmap(check=True), ascending=True)
