"""Which memory budgets are enough to train embeddings, and to rank edges, worked out when one was refused.

A rehearsal reserves what :class:`outcrop.embed.training.EmbeddingTrainer` does, in the same order, from a budget whose
memory is never touched; nothing is read, and no table is made.
"""

from __future__ import annotations

from outcrop.config import EmbedConfig
from outcrop.embed.buckets import Buckets
from outcrop.embed.edges import TrainingEdges
from outcrop.embed.evaluate import reserve
from outcrop.embed.moves import moving_bytes
from outcrop.embed.negatives import degree_bytes
from outcrop.embed.schedules import make_schedule
from outcrop.embed.step import TAG, batch_bytes, stride
from outcrop.embed.tables import slab_rows
from outcrop.embed.training import UNIT_EDGE_BYTES, fits_in_memory, largest_unit, relation_shape
from outcrop.errors import BudgetError
from outcrop.runtime.group import Group
from outcrop.runtime.runtime import UNCOUNTED, Runtime


class EmbeddingNeeds:
    """Counts what a training of ``config.epochs`` holds, in all processes of a machine.

    Args:
        resident: As the trainer has it.
        group: The processes.
    """

    def __init__(self, buckets: Buckets, config: EmbedConfig, resident: bool | None, group: Group):
        self._buckets, self._config, self._group = buckets, config, group
        self._resident = resident if group.alone else False
        with Runtime() as runtime:
            schedule = make_schedule(buckets, config, buckets.starts(runtime))
        self._edges = largest_unit(schedule, range(config.epochs))
        self._swapped = schedule.most_resident

    def fits(self, limit: int) -> bool:
        """Tells whether ``limit`` bytes are enough."""
        try:
            with Runtime(limit // self._group.local_world, rehearsal=UNCOUNTED) as runtime:
                self._hold(runtime)
        except BudgetError:
            return False
        return True

    def _hold(self, runtime: Runtime) -> None:
        buckets, config, budget = self._buckets, self._config, runtime.budget
        held = [buckets.array(runtime, "starts").read("bucket-starts")]
        if shape := relation_shape(buckets.num_relations, config):
            held.append(budget.empty("relations", 4 * shape[0] * shape[1]))
        batch = budget.reserve(TAG, batch_bytes(config))
        order = buckets.reserve_numbering(runtime)
        resident = self._resident
        if resident is None:
            resident = fits_in_memory(buckets, config, budget.free_bytes)
        slots = buckets.division.parts if resident else self._swapped
        floats = stride(config, config.dim)
        slab_bytes = 4 * slab_rows(buckets.division, floats) * floats
        if not self._group.alone:
            held.append(budget.empty("moving-slices", moving_bytes(slab_bytes)))
        held.append(budget.empty("partitions", slots * slab_bytes))
        if config.by_degree:
            held.append(budget.empty("degrees", degree_bytes(buckets.division, self._swapped)))
        edges = TrainingEdges(buckets, runtime)
        budget.reserve("edges", edges.bytes_of(self._edges) + UNIT_EDGE_BYTES * self._edges)
        del batch, order


class RankingNeeds:
    """Counts what ranking the edges of ``split`` holds (:func:`outcrop.embed.evaluate.evaluate`), on a machine.

    Args:
        config: Of the vectors.
        filtered, by_degree: As ``evaluate`` has them; ``by_degree`` where candidates are drawn.
        group: The processes.
    """

    def __init__(
        self,
        buckets: Buckets,
        config: EmbedConfig,
        group: Group,
        split: str = "valid",
        *,
        filtered: bool = True,
        by_degree: bool = False,
    ):
        self._buckets, self._group = buckets, group
        self._split, self._filtered, self._by_degree = split, filtered, by_degree
        floats = stride(config, config.dim)
        self._slab_bytes = 4 * slab_rows(buckets.division, floats) * floats

    def require(self, limit: int | None) -> None:
        """Raises BudgetError where ``limit`` bytes are not enough; None: there is no limit."""
        if limit is None:
            return
        with Runtime(limit // self._group.local_world, rehearsal=UNCOUNTED) as runtime:
            reserve(self._buckets, self._split, self._filtered, self._by_degree, self._slab_bytes, runtime)

    def fits(self, limit: int) -> bool:
        """Tells whether ``limit`` bytes are enough."""
        try:
            self.require(limit)
        except BudgetError:
            return False
        return True
