"""A training of embeddings that tests start with torchrun: killed, stopped or made wrong as the environment asks."""

import os
import signal
import sys
import time
from pathlib import Path

import outcrop as oc
from outcrop.embed import checkpoint_copy, training
from outcrop.runtime import group
from outcrop.store.objects import IndexedObjects
from outcrop.store.remote import RemoteFolder

RUN, GROUPS, UNITS = sys.argv[1:]
RANK, WRONG = int(os.environ.get("RANK", "0")), os.environ.get("WRONG", "")
COPY = os.environ.get("COPY", "")
if "MACHINES" in os.environ:  # each process is taken for a machine
    os.environ["GROUP_RANK"] = str(RANK)
if WRONG == "slow":
    group._TRANSFER_SECONDS = 1
train, count = training.EmbeddingTrainer._train, 0


def stopping(self, epoch, unit, *more):
    """Ends the training before it trains a unit."""
    global count
    count += 1
    if count > int(UNITS) > 0:
        if "KILLED_RANK" not in os.environ:
            print(
                "stopped on purpose", file=sys.stderr, flush=True
            )  # torchrun may end it before it says what it raised
            raise RuntimeError("stopped on purpose")
        mark = Path(os.environ["KILLED_MARK"])
        if int(os.environ["KILLED_RANK"]) == RANK and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    if RANK == 1 and WRONG == "slow" and unit.key[0] == 0 and unit.key[2] == 1:
        for _ in range(20):
            time.sleep(0.1)
            self._moves.advance()
    if RANK == 1 and count == {"loss": 3, "late loss": 12}.get(WRONG):
        raise oc.errors.NumericError("epoch 0: the loss is nan")
    return train(self, epoch, unit, *more)


def killed_at(owner, name, number):
    """Lets the process be killed in place of a call, the ``number``-th of its own."""
    was, left = getattr(owner, name), number

    def call(*args):
        nonlocal left
        if (left := left - 1) < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return was(*args)

    setattr(owner, name, call)


training.EmbeddingTrainer._train = stopping
if WRONG == "folder" and RANK:  # another one has the name on the machine of this rank
    RemoteFolder.send = lambda self, name, source: None
# Such as "send 5": of a copy.
STEP, NUMBER = os.environ.get("KILLED_IN_COPY", " 0").split(" ")
places = {
    "send": (RemoteFolder, "send"),
    "publish": (IndexedObjects, "publish"),
    "note": (checkpoint_copy, "write_atomic"),
    "remove": (RemoteFolder, "remove"),
    "load": (IndexedObjects, "read_into"),
}
if STEP and int(os.environ.get("KILLED_RANK", "0")) == RANK:
    killed_at(*places[STEP], int(NUMBER))
oc.embed_train(
    RUN,
    oc.EmbedConfig(
        dim=8, epochs=3, negatives=20, chunk=16, batch=64 + (RANK if WRONG == "options" else 0), start=0.1,
        reciprocal=True, seed=5, groups=int(GROUPS) or None,
        checkpoint_copy=f"{COPY}{RANK}" if WRONG == "place" else COPY or None,
    ),
    checkpoint_seconds=0.0,
    observer=oc.Observer(progress=False),
)  # fmt: skip
