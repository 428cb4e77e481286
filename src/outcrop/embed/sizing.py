"""How much a training holds, and how few partitions make it fit into a budget."""

from __future__ import annotations

import math

from outcrop.config import EmbedConfig, exact_bytes, least_bytes
from outcrop.embed.negatives import degree_bytes
from outcrop.embed.numbering import Division, default_slices
from outcrop.embed.schedule import UNIT_EDGES
from outcrop.embed.step import batch_bytes, stride
from outcrop.embed.tables import slab_rows
from outcrop.embed.training import READ_EDGE_BYTES, UNIT_EDGE_BYTES, relation_shape
from outcrop.errors import BudgetError

MOST_PARTITIONS = 128  # orders of more take long to find
UNEVEN = 1.5  # of random partitions, where no few nodes have most of the edges


def training_bytes(
    num_nodes: int,
    num_edges: int,
    num_relations: int,
    partitions: int,
    config: EmbedConfig,
    uneven: float = UNEVEN,
) -> int:
    """Returns what :class:`outcrop.embed.training.EmbeddingTrainer` holds at most, with so many partitions.

    At most ``config.buffer`` of them are in memory.

    Args:
        uneven: How many times the mean number of edges lie between those that are in memory first, at most.
    """
    slices = default_slices(partitions, num_nodes)
    division = Division(num_nodes, partitions * slices)
    floats = stride(config, config.dim)
    resident = min(config.buffer, partitions) * slices
    table = resident * slab_rows(division, floats) * floats * 4
    relations = 4 * math.prod(relation_shape(num_relations, config) or (0,))
    # Of the edges, as many as lie between the partitions that are in memory first.
    among = min(1.0, uneven * (config.buffer / partitions) ** 2)
    unit = min(math.ceil(num_edges * among), UNIT_EDGES) * (READ_EDGE_BYTES + UNIT_EDGE_BYTES)
    degrees = degree_bytes(division, resident) if config.by_degree else 0
    return table + relations + batch_bytes(config) + unit + degrees + 16 * (division.parts**2 + 1)


def fewest_partitions(
    num_nodes: int,
    num_edges: int,
    num_relations: int,
    config: EmbedConfig,
    free_bytes: int,
    uneven: float = UNEVEN,
) -> int:
    """Returns the fewest partitions with which a training fits into ``free_bytes``: one where the whole table does.

    Raises:
        BudgetError: Not even ``MOST_PARTITIONS`` would do.
    """
    limit = min(MOST_PARTITIONS, num_nodes)
    need = 0
    for partitions in (1, *range(config.buffer + 1, limit + 1)):
        need = training_bytes(num_nodes, num_edges, num_relations, partitions, config, uneven)
        if need <= free_bytes:
            return partitions
    raise BudgetError(
        f"{config.buffer} of {limit} partitions of {num_nodes} nodes with vectors of {config.dim} floats, and a batch, "
        f"take {least_bytes(need)}, {exact_bytes(free_bytes)} of the memory budget are free: raise --memory, "
        "or lower --dim; or say --partitions yourself, and train with a smaller --batch, --chunk or --negatives than "
        "usual"
    )
