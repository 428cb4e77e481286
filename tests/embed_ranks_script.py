"""A training of embeddings that tests start with torchrun: killed, stopped or made wrong as the environment asks."""

import os
import signal
import sys
from pathlib import Path

import outcrop as oc
from outcrop.embed import training

RUN, GROUPS, UNITS = sys.argv[1:]
RANK, WRONG = int(os.environ.get("RANK", "0")), os.environ.get("WRONG", "")
train, count = training.EmbeddingTrainer._train, 0


def stopping(self, epoch, unit, *more):
    """Ends the training before it trains a unit."""
    global count
    count += 1
    if count > int(UNITS) > 0:
        if "KILLED_RANK" not in os.environ:
            raise RuntimeError("stopped on purpose")
        mark = Path(os.environ["KILLED_MARK"])
        if int(os.environ["KILLED_RANK"]) == RANK and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    if RANK == 1 and count == {"loss": 3, "late loss": 12}.get(WRONG):
        raise oc.errors.NumericError("epoch 0: the loss is nan")
    return train(self, epoch, unit, *more)


training.EmbeddingTrainer._train = stopping
oc.embed_train(
    RUN,
    oc.EmbedConfig(
        dim=8, epochs=3, negatives=20, chunk=16, batch=64 + (RANK if WRONG == "options" else 0), start=0.1,
        reciprocal=True, seed=5, groups=int(GROUPS) or None,
    ),
    checkpoint_seconds=0.0,
    observer=oc.Observer(progress=False),
)  # fmt: skip
