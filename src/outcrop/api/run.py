"""A prepared run, opened: its batches in every mode, and as torch_geometric data."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path

from numpy.typing import ArrayLike

from outcrop.config import Size, format_bytes, parse_size
from outcrop.errors import ArgumentError, FormatError
from outcrop.loading.modes import Mode, Online, Packed, mode_named
from outcrop.loading.ranks import process_ranks
from outcrop.loading.run_loader import RunLoader, Source
from outcrop.loading.sessions import Sessions
from outcrop.loading.sources import EVERY_EPOCH, SourceRequest, drawn_source, recorded_source
from outcrop.store import manifest as manifests
from outcrop.store import run
from outcrop.store.graph import Graph, open_graph, split_name


class Run:
    """Opens a prepared run on disk.

    Args:
        path: Folder made by :func:`outcrop.prepare`.
        memory: Budget of loading; None takes the one the run was planned for (mode ``memory``: none).
        graph: Where the graph is now; None: where it was, seen from the run, when the run was prepared.

    Raises:
        FormatError: There is no finished run, its graph is not there, or ``graph`` is another one.
    """

    def __init__(
        self, path: str | Path, *, memory: Size | None = None, graph: str | Path | Graph | None = None
    ):
        self.path = Path(path)
        self.info = run.read(self.path)
        self.graph = _graph_of(self.path, self.info, graph)
        self.memory = self.info.plan.memory if memory is None else memory
        self._whole = (
            memory is None
        )  # mode ``memory`` has all features in memory, whatever the run was made for
        self._shared: weakref.ref[Sessions] | None = None

    def __repr__(self) -> str:
        sample = self.info.sample
        memory = "no limit" if self.memory is None else format_bytes(parse_size(self.memory))
        return (
            f"Run(path={str(self.path)!r}, graph={str(self.graph.path)!r}, fanouts={list(sample.fanouts)}, "
            f"batch_size={sample.batch_size}, epochs={sample.epochs}, memory={memory})"
        )

    def loader(
        self,
        what: int | str | ArrayLike | None = None,
        /,
        *,
        split: str | ArrayLike = "train",
        epoch: int | None = None,
        shuffle: bool | None = None,
        rank: int | None = None,
        world: int | None = None,
        accumulate: int | None = None,
        uneven: str = "wrap",
        edge_ids: bool = False,
        mode: str | Mode = "packed",
        device: str = "cpu",
    ) -> RunLoader:
        """Loads the run's mini-batches: iterate over it once an epoch (:class:`outcrop.loading.run_loader.RunLoader`).

        ``for batch in run.loader(): ...`` trains for an epoch; keep the loader for many.

        Args:
            what: A split, or an epoch, without its name.
            split: ``train``, ``valid`` (or ``val``) or ``test``; ``all`` nodes of the graph; or nodes int64 [n], their
                names text [n], or a mask [num_nodes] of bool. Batches of other nodes than those of a split are drawn as
                they are needed, with the run's fanouts and batch size, the same ones every time.
            epoch: Which epoch every iteration is; None: each is the next one.
            shuffle: None: ``train`` is shuffled, nothing else. Otherwise batches are drawn as they are needed.
            rank, world: Of the process; None: of the process group of torch.distributed, if there is one.
            accumulate: Batches of a step, of all processes together: batch n belongs to rank
                ``n % accumulate % world``. None: ``world``.
            uneven: Where batches do not divide evenly: ``wrap`` gives a rank its first ones once more (one that has
                none, those of others), ``drop`` leaves the last ones out, ``short`` gives some ranks fewer.
            edge_ids: Batches get ``e_id``, positions of their edges in ``run.graph.edge_index()``. They have it, and
                ``edge_attr``, in any case where the run was prepared with features of edges (``edge_rows``).
            mode: Where rows come from: a mode, or its name (:mod:`outcrop.loading.modes`). Batches that are drawn come
                from ``online`` where it says ``packed``.
            device: ``cpu``, ``cuda`` or ``cuda:N``.

        Raises:
            ArgumentError: Values out of range; a split that the run has no batches of; batches that would have to be
                drawn where they came from elsewhere, or for edges.
        """
        if isinstance(what, int):
            epoch = what
        elif what is not None:
            split = what
        if isinstance(split, str):
            split = split_name(split)
        ranks = process_ranks(rank, world, accumulate, uneven)
        where = mode_named(mode)
        where.check(self.graph, device)
        to = where.device(device, self.info.plan.gpu_memory)
        memory = self.memory if where.takes_run_budget or not self._whole else None
        asked = SourceRequest(self.graph, self.info.sample, where, memory, to, str(self.path), edge_ids)
        return RunLoader(self._source(split, shuffle, asked), self._sessions(), ranks, epoch)

    def _sessions(self) -> Sessions:
        """Returns what the loaders of this run share as long as there are any."""
        shared = self._shared() if self._shared is not None else None
        if shared is None:
            shared = Sessions()
            self._shared = weakref.ref(shared)
        return shared

    def _source(self, split: str | ArrayLike, shuffle: bool | None, asked: SourceRequest) -> Source:
        drawn = not isinstance(split, str) or split == "all"
        if not drawn and (shuffle is None or shuffle == (split == "train")):
            return recorded_source(asked, self.path, str(split))
        if asked.config.task == "link":
            raise ArgumentError(
                f"{self.path} was prepared for edges: only its splits train, valid and test have batches"
            )
        config = replace(
            asked.config,
            splits=("train" if shuffle else "infer",),
            epochs=EVERY_EPOCH if shuffle else 1,
            first_epoch=0,
            task="node",
        )
        mode = Online(**asked.mode.common) if isinstance(asked.mode, Packed) else asked.mode
        return drawn_source(replace(asked, config=config, mode=mode), split)


def _graph_of(path: Path, info: run.RunInfo, given: str | Path | Graph | None) -> Graph:
    """Opens the graph of a run.

    Raises:
        FormatError: It is not there, or another one.
    """
    place = info.graph_path(path) if given is None else given
    try:
        graph = (place if isinstance(place, Graph) else open_graph(place)).with_seeds(info.sample.node_type)
    except FormatError as error:
        if given is not None or manifests.exists(Path(str(place))):
            raise
        raise FormatError(
            f"the graph of run {path} is not at {place}: if it was moved, say where it is now: "
            f"open_run({str(path)!r}, graph=...)"
        ) from error
    if given is not None and graph.digest() != info.graph_digest:
        raise FormatError(f"{graph.path} is not the graph that {path} was prepared from, or in another state")
    return graph
