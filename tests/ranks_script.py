"""A training that tests start with torchrun: killed, stopped or made wrong as the environment asks."""

import os
import signal
import sys
from pathlib import Path

import outcrop as oc
from outcrop.runtime import group
from outcrop.training import loop, steps
from outcrop.training import run as training_run

GRAPH, RUN, CHECKPOINT, UPDATES = sys.argv[1:]
RANK, WRONG = int(os.environ["RANK"]), os.environ.get("WRONG", "")
finish = steps.OrderedGradients.finish
count = 0


def stopping(self, batches, numbers=()):
    """Ends the training before it exchanges the gradients of a step."""
    global count
    count += 1
    if count > int(UPDATES) > 0:
        if "KILLED_RANK" not in os.environ:
            print(
                "stopped on purpose", file=sys.stderr, flush=True
            )  # torchrun may end it before it says more
            raise RuntimeError("stopped on purpose")
        mark = Path(os.environ["KILLED_MARK"])
        if int(os.environ["KILLED_RANK"]) == RANK and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    if WRONG in ("processor", "bits") and RANK == 1 and count == 3:
        print("moved in rank 1")
        next(iter(self._parameters)).data.add_(0.5)
    if WRONG == "loss" and RANK == 1:
        self.fail(loop.NumericError("epoch 0, batch 1: the loss is nan"))
    return finish(self, batches, numbers)


class Failing(oc.Callback):
    def on_epoch(self, epoch, values):
        raise ValueError("of a callback")


class Ending(oc.Callback):
    def on_epoch(self, epoch, values):
        return epoch == 1


steps.OrderedGradients.finish = stopping
if WRONG == "stale" and RANK == 1:
    loop._Run.restore = lambda self: None
if WRONG == "processor" and RANK == 1:
    training_run.processor_kind = lambda: "another"
folder = Path(CHECKPOINT + ("-1" if WRONG == "folder" and RANK else ""))
if WRONG == "folder":
    group._SEEING_SECONDS = 0.5  # the wait for what never comes
report = oc.train(
    GRAPH,
    run=RUN,
    model=oc.ModelConfig("sage", hidden=16, dropout=0.3),
    training=oc.TrainConfig(
        epochs=3,
        seed=5,
        trace_losses=True,
        accumulate=1 if WRONG == "steps" else 4,
        evaluate_every=1 + RANK if WRONG == "evaluations" else 1,
        weight_decay=0.1 * RANK if WRONG == "options" else 0.0,
    ),
    loading=oc.Belady() if WRONG == "mode" else None,
    checkpoint=oc.Checkpoints(folder, steps=int(os.environ["STEPS"]))
    if "STEPS" in os.environ
    else oc.Checkpoints(folder, minutes=0.0),
    callbacks={"callback": [Failing()], "ending": [Ending()]}.get(WRONG, []),
    observer=oc.Observer(progress=False, on_choice=print),
)
if WRONG == "ending":
    print(f"rank {RANK} trained {len(report.epochs)} epochs, ended early: {report.stopped_early}")
