"""What is done with the batches of a training, once they are there: this module brings torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outcrop.loading.passes import Passes
from outcrop.runtime.group import Group
from outcrop.runtime.runtime import Runtime
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
        tested = evaluation.evaluate(result.model, batches, objective, group)
    return result, tested
