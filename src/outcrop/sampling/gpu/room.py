"""How large a mini-batch can be while it is drawn, and the device memory that takes.

With numbers as fanouts both follow from the seeds, so that a batch is drawn without the host knowing how large it
becomes. How much whole lists (fanout -1, LABOR, the induced subgraph of ShaDow) hold only the device can tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST = 2**31 - 1  # nodes, and edges, of a batch
_ROW_BYTES = 4 * 8  # start, degree, counts and their sums, of a node of the frontier
# Of an id that is sorted: itself, sorted, its place, twice both while torch sorts (CUB), marks, their sums.
_SORTED_BYTES = 9 * 8
_RUN_BYTES = 2 * 8  # ids and local numbers of the nodes that are known
_WHOLE_BYTES = 4 * 8  # of a neighbour in a whole list of which some are kept: itself, flags, their sums
_PACKED = 2  # the batch, and its copy on the way to the host


@dataclass(frozen=True)
class Room:
    """Bounds what there can be of a batch.

    Attributes:
        rows: Nodes of the frontier.
        nodes: Nodes of the batch so far.
        edges: Edges of the batch so far.
    """

    rows: int
    nodes: int
    edges: int = 0

    def after(self, drawn: int, num_nodes: int) -> Room:
        """Returns the room after a hop of at most ``drawn`` edges in a graph of ``num_nodes``."""
        return Room(
            min(drawn, num_nodes), min(self.nodes + drawn, max(num_nodes, self.nodes)), self.edges + drawn
        )

    def batch_bytes(self) -> int:
        """Counts the bytes of a batch with so many nodes and edges: ``n_id``, ``rowptr`` (of all nodes) and ``col``."""
        return 12 * self.nodes + 4 * self.edges + 4

    def hop_bytes(self, drawn: int, num_nodes: int, whole: int = 0) -> int:
        """Counts the bytes of the device while a hop of at most ``drawn`` edges, kept of ``whole`` in whole lists, is
        drawn.
        """
        after = self.after(drawn, num_nodes)
        held = _PACKED * after.batch_bytes() + _RUN_BYTES * (self.nodes + after.nodes)
        return (
            held + _ROW_BYTES * (self.rows + 1) + _SORTED_BYTES * (self.nodes + drawn) + _WHOLE_BYTES * whole
        )


def most_drawn(rows: int, fanout: int, replace: bool, num_edges: int) -> int:
    """Counts the edges that a hop from ``rows`` nodes draws at the most; at least 1, so that no array is empty."""
    most = rows * fanout
    return max(most if replace else min(most, num_edges), 1)


def drawing_bytes(
    seeds: int, fanouts: Sequence[int], replace: bool, num_nodes: int, num_edges: int
) -> int | None:
    """Counts the device memory that drawing a batch of ``seeds`` takes at the most; None where only the device can
    tell.

    Args:
        fanouts: Numbers of neighbours.
    """
    room, most = Room(seeds, seeds), 0
    for fanout in fanouts:
        drawn = most_drawn(room.rows, fanout, replace, num_edges)
        if fanout == -1 or room.edges + drawn > MOST or room.nodes + drawn > MOST:
            return None
        most = max(most, room.hop_bytes(drawn, num_nodes))
        room = room.after(drawn, num_nodes)
    return most
