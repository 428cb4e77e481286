"""What is done with the batches of a training, once they are there: this module brings torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from outcrop.loading.passes import Passes
from outcrop.runtime.group import Group
from outcrop.runtime.progress import Progress
from outcrop.runtime.runtime import Runtime
from outcrop.store.minibatch import MiniBatch
from outcrop.training import evaluate as evaluation
from outcrop.training.loop import TrainResult, train
from outcrop.training.request import TrainRequest
from outcrop.training.weights import class_weights


def learn(
    request: TrainRequest,
    passes: Passes,
    runtime: Runtime,
    callbacks: Sequence[Any],
    group: Group,
) -> tuple[TrainResult, evaluation.EvalResult | None]:
    """Trains, and returns what the loop learned and how the best model does on the test nodes."""
    graph, learning = request.graph, request.learning
    objective = learning.objective
    splits = request.batches.sampling.splits
    with group.together("weighing the classes"):
        weights = class_weights(graph, learning.training.class_weights, runtime)
    result = train(
        lambda epoch, first=0: passes.start("train", epoch, first),
        (lambda: passes.start("valid", 0)) if graph.has_nodes_of("valid") and "valid" in splits else None,
        learning,
        runtime,
        evaluate=lambda model, batches: evaluation.evaluate(model, batches, objective, group),
        kept=request.checkpoints,
        counters=passes.counters,
        class_weights=weights,
        callbacks=callbacks,
        num_batches=request.batches_of("train"),
        group=group,
    )
    tested = None
    if request.training.test and graph.has_nodes_of("test") and "test" in splits:
        with group.together("beginning to test"):
            batches = passes.start("test", 0)
        count = -(-(request.batches_of("test") or 1) // group.world)  # of this process
        shown = _ShownBatches(batches, runtime.progress, count)
        tested = evaluation.evaluate(result.model, shown, objective, group)
    return result, tested


class _ShownBatches:
    """Goes over the batches of the test nodes, and says how far it is: no epoch does, and there may be many."""

    _TASK = "score the test nodes"

    def __init__(self, batches: Iterable[MiniBatch], progress: Progress, count: int):
        self._batches, self._progress, self._taken = iter(batches), progress, 0
        progress.start(self._TASK, count, "batches")

    def __iter__(self) -> Iterator[MiniBatch]:
        return self

    def __next__(self) -> MiniBatch:
        self._progress.advance(self._TASK, min(self._taken, 1))  # the one before is done
        self._taken += 1
        return next(self._batches)

    def close(self) -> None:
        self._progress.finish(self._TASK)
        if (close := getattr(self._batches, "close", None)) is not None:
            close()
