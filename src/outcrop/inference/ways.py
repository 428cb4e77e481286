"""Which way each layer is computed: by columns of all sources, or by spans of targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from outcrop.errors import BudgetError
from outcrop.inference.columns import ColumnPlan, CutAhead, plan_columns
from outcrop.inference.division import divide, transferred_bytes
from outcrop.inference.in_order import topology_bytes
from outcrop.inference.steps import Step
from outcrop.inference.task import InferTask
from outcrop.store.graph import Graph


@dataclass(frozen=True)
class Ways:
    """Says how each step is computed.

    Attributes:
        plans: Of each step, how its columns are cut; None: it is computed by spans of targets.
        counts: Whether edges are counted with the uses of each node; None: they are not counted.
    """

    plans: Mapping[Step, ColumnPlan | None]
    counts: bool | None

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(self.plans)

    def plan_of(self, step: Step) -> ColumnPlan | None:
        return self.plans[step]

    def rows_gone_over(self, step: Step) -> int:
        """Counts the rows that ``step`` reads in order, goes over and writes, which progress is shown in."""
        plan = self.plans[step]
        return step.num_rows + (0 if plan is None else plan.rows_gone_over(step.to.target.num_nodes))

    def disk_bytes(self, step: Step) -> int:
        """Counts the bytes of files that are there until ``step`` is done, its output not counted."""
        plan = self.plans[step]
        return 0 if plan is None else plan.disk_bytes

    def cut_for(self, step: Step) -> tuple[Step, ColumnPlan, CutAhead] | None:
        """Returns the step whose input the output of ``step`` is cut for, its plan, and what cutting needs; None: it is
        written as rows.
        """
        following = next(islice(self.plans.items(), self.steps.index(step) + 1, None), None)
        if following is None or following[1] is None or following[1].cut is None:
            return None
        return following[0], following[1], following[1].cut

    def output_bytes(self, step: Step) -> int:
        """Counts the bytes of the file that the output of ``step`` is written to."""
        cut = self.cut_for(step)
        return step.output_bytes if cut is None else cut[2].disk_bytes

    def bytes_read(self, graph: Graph) -> int | None:
        """Counts what all steps read, exactly, and counting edges; None where some are computed by spans: that depends
        on which sources each span wants.
        """
        plans = [plan for plan in self.plans.values() if plan is not None]
        if len(plans) < len(self.plans):
            return None
        counting = 0 if self.counts is None else topology_bytes(graph)
        return counting + sum(plan.bytes_read for plan in plans)


def ways_of(task: InferTask, memory: int) -> Ways:
    """Chooses, of each step, the way that moves fewer bytes within ``memory`` bytes.

    Raises:
        BudgetError: Not even one target with one source fits; names the smallest budget that does.
    """
    on_cpu = next(task.model.parameters()).device.type == "cpu"
    plans: dict[Step, ColumnPlan | None] = {}
    whole = True
    for step in (step for layer in task.steps for step in layer):
        plans[step] = _by_columns(step, memory, task.id_bytes) if on_cpu else None
        if plans[step] is None:
            whole = divide(step, memory, task.id_bytes).whole and whole
    _cut_ahead(plans, memory, task.id_bytes)
    degrees = any(step.layer.uses_degrees for step in plans)
    return Ways(plans, not whole if degrees or not whole else None)


def _cut_ahead(plans: dict[Step, ColumnPlan | None], memory: int, id_bytes: int) -> None:
    """Has layers cut their output for the next one, wherever both then move fewer bytes. Changes ``plans``, which are
    of steps one after the other: only steps of a graph without types are computed by columns.
    """
    steps, ahead = list(plans), None
    for before, step in zip(steps[-2::-1], steps[:0:-1], strict=True):
        apart, given = plans[before], plans[step]
        cut, ahead = plan_columns(step, memory, id_bytes, cut_before=True, ahead=ahead), None
        if apart is None or given is None or cut is None or cut.cut is None:
            continue
        giving = plan_columns(before, memory, id_bytes, ahead=cut.cut)
        if (
            giving is not None
            and giving.moved_bytes + cut.moved_bytes < apart.moved_bytes + given.moved_bytes
        ):
            plans[before], plans[step], ahead = giving, cut, cut.cut


def _by_columns(step: Step, memory: int, id_bytes: int) -> ColumnPlan | None:
    plan = plan_columns(step, memory, id_bytes)
    # For all nodes nothing moves less than one pass.
    if plan is None or (plan.passes == 1 and step.wanted is None):
        return plan
    try:
        by_spans = transferred_bytes(step, divide(step, memory, id_bytes))
    except BudgetError:
        return plan
    return plan if plan.moved_bytes <= by_spans else None
