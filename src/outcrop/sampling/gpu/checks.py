"""What no device draws, refused in the words of core/sampling: sampler.cpp, batch_builder.cpp, topology.cpp."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outcrop.config import exact_bytes
from outcrop.errors import ArgumentError, FormatError
from outcrop.sampling.topology import Topology

SAMPLERS = ("neighbor", "labor", "shadow")


def check_options(
    topology: Topology, fanouts: Sequence[int], replace: bool, sampler: str, dependency: int = 1
) -> None:
    if dependency != 1:
        raise ArgumentError(
            f"batches that depend on each other (by {dependency}) are not drawn on a GPU: sample on the CPU"
        )
    if sampler not in SAMPLERS:
        raise ArgumentError(
            f"sampler {sampler!r} is not drawn on a GPU, only {', '.join(SAMPLERS)}: sample on the CPU"
        )
    if topology.indptr is None or topology.indices is None:
        refuse_pages(topology)
    if not fanouts:
        raise ArgumentError("no fanouts given")
    for fanout in fanouts:
        if fanout < -1 or fanout == 0 or (fanout == -1 and replace):
            raise ArgumentError(f"fanout {fanout} is not possible here")
    if replace and sampler == "labor":
        raise ArgumentError("labor and weighted sampling are without replacement")


def check_seeds(seeds: np.ndarray, num_nodes: int) -> None:
    outside = seeds[(seeds < 0) | (seeds >= num_nodes)]
    if len(outside):
        raise ArgumentError(f"seed node {outside[0]} is not in 0..{num_nodes - 1}")
    ids, counts = np.unique(seeds, return_counts=True)
    if len(ids) < len(seeds):
        raise ArgumentError(f"seed node {ids[counts > 1][0]} stands twice in one mini-batch")


def refuse_pages(topology: Topology) -> None:
    files = topology.files[:2]
    needed = exact_bytes(sum(file.spec.data_bytes for file in files))
    of = f"{files[0].path.parent}: its" if files else "the"
    raise ArgumentError(
        f"{of} topology ({needed}) is read by pages from disk, where a GPU cannot sample: raise "
        "--memory until the topology is held, copy it to the GPU with --topology map, or sample on the CPU "
        "(--sample-on cpu)"
    )


def refuse_size(edges: int) -> None:
    raise ArgumentError(
        f"a mini-batch of {edges} edges is too large (2^31 is the limit); lower batch size or fanouts"
    )


def refuse_list(topology: Topology, node: int) -> None:
    begin, end = (int(x[0]) for x in topology.ranges(np.array([node])))
    raise FormatError(
        f"the topology is damaged: the neighbours of node {node} are said to lie at {begin}..{end} of "
        f"{topology.num_edges}; run outcrop verify"
    )


def refuse_neighbor(neighbor: int, num_nodes: int) -> None:
    raise FormatError(
        f"the topology is damaged: neighbour {neighbor} in a graph of {num_nodes} nodes; run outcrop verify"
    )
