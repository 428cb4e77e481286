"""Leaving loaders early, in every way: no thread, descriptor or reservation stays, and the process ends at once."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from artifact_support import fresh_runtime, memory_folder, prepare, small_graph
from artifact_support import python as started
from forked import python
from outcrop.api.run import Run
from outcrop.errors import ArgumentError, BudgetError
from outcrop.loading.open import open_session
from outcrop.loading.session import LoadSession
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import open_graph

importlib.import_module(
    "torch_geometric"
)  # changes the environment when it is loaded, which is no leak of a test

MEMORY = "6MiB"
MODES = ["packed", "online", "memory", "memmap", "ondisk", "dynamic", "belady", "partition"]


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    with memory_folder() as folder:
        prepare(small_graph(folder / "graph"), folder / "run")
        yield folder


def take_first(session: LoadSession) -> None:
    for batch in session.batches("train"):
        assert len(batch.x)
        break


def raise_within(session: LoadSession) -> None:
    def work() -> None:
        for batch in session.batches("train"):
            raise ZeroDivisionError(len(batch.x))

    with pytest.raises(ZeroDivisionError):
        work()


def interrupt_within(session: LoadSession) -> None:
    def work() -> None:
        for _ in session.batches("train"):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)  # the signal arrives here

    with pytest.raises(KeyboardInterrupt):
        work()


def drop_unused(session: LoadSession) -> None:
    loader = session.batches("train")
    del loader


def close_between(session: LoadSession) -> None:
    loader = session.batches("train")
    next(loader)
    loader.close()
    loader.close()
    assert list(loader) == []


def ask_after_the_end(session: LoadSession) -> None:
    loader = session.batches("train")
    assert sum(1 for _ in loader) >= 4  # mode partition has more, and smaller ones
    assert list(loader) == []


def keep_a_batch(session: LoadSession) -> None:
    loader = session.batches("train")
    batch = next(loader)
    del loader
    assert float(batch.x.abs().sum()) > 0


def many_after_another(session: LoadSession) -> None:
    for epoch in range(30):
        for number, _ in enumerate(session.batches("train", epoch)):
            if number == epoch % 3:
                break


def unknown_split(session: LoadSession) -> None:
    with pytest.raises((ArgumentError, KeyError)):
        list(session.batches("holdout"))


WAYS = [take_first, raise_within, interrupt_within, drop_unused, close_between, keep_a_batch, many_after_another,
        ask_after_the_end, unknown_split]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_leaving_a_loader(made: Path, mode: str, way: Callable[[LoadSession], None]) -> None:
    """The guards of conftest.py look for threads and descriptors, fresh_runtime for reservations."""

    def leave(runtime: Runtime) -> None:
        with open_session(open_graph(made / "graph"), runtime, mode, run_folder=made / "run") as session:
            way(session)
            gc.collect()
            assert [t.name for t in threading.enumerate() if t.name.startswith("outcrop-")] == []

    with fresh_runtime(MEMORY) as runtime:
        leave(runtime)


@pytest.mark.parametrize("mode", MODES)
def test_a_session_goes_on_after_each_way(made: Path, mode: str) -> None:
    def use(runtime: Runtime) -> None:
        with open_session(open_graph(made / "graph"), runtime, mode, run_folder=made / "run") as session:
            want = [batch.x.clone() for batch in session.batches("train")]
            for way in (take_first, raise_within, close_between, drop_unused):
                way(session)
                got = [batch.x.clone() for batch in session.batches("train")]
                assert len(got) == len(want)
                assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))

    with fresh_runtime(MEMORY) as runtime:
        use(runtime)


def test_keeping_every_batch_is_an_error_not_a_hang(made: Path) -> None:
    def keep(runtime: Runtime) -> None:
        with (
            open_session(open_graph(made / "graph"), runtime, "ondisk", run_folder=made / "run") as session,
            pytest.raises(BudgetError, match="held by the caller"),
        ):
            list(session.batches("train"))

    with fresh_runtime(MEMORY) as runtime:
        keep(runtime)


def test_the_generator_of_a_run(made: Path) -> None:
    run = Run(made / "run")
    closed = run.loader()
    next(closed)
    closed.close()
    dropped = run.loader()
    next(dropped)
    del dropped
    never_started = run.loader()
    del never_started
    for _ in run.loader(1):
        break
    assert len(list(run.loader(split="valid", mode="online"))) == 2


def test_two_loaders_of_one_run(made: Path) -> None:
    run = Run(made / "run", memory=MEMORY)
    for mode in MODES[:-1]:  # mode partition draws other batches
        pairs = zip(run.loader(0), run.loader(0, mode=mode), strict=True)
        assert [np.array_equal(a.x, b.x) for a, b in pairs] == [True] * 4


SCRIPT = """
import gc, sys
gc.unfreeze()  # it ends as if it had imported everything itself
from outcrop.api.run import Run
run = Run(sys.argv[1], memory="6MiB")
"""
ENDINGS = {
    "break": "for batch in run.loader(mode=mode):\n    break\n",
    "loader kept": "loader = run.loader(mode=mode)\nnext(loader)\n",
    "loader and batch kept": "loader = run.loader(mode=mode)\nbatch = next(loader)\n",
    "kept in a cycle": "class Box: pass\nbox = Box(); box.me = box\nbox.loader = run.loader(mode=mode)\n"
                       "next(box.loader)\n",
    "two kept": "loaders = [run.loader(mode=mode) for _ in range(2)]\nfor l in loaders: next(l)\n",
    "exception": "for batch in run.loader(mode=mode):\n    raise SystemExit(0)\n",
    "from a function": "def main():\n    loader = run.loader(mode=mode)\n    next(loader)\n    sys.exit(0)\n"
                       "main()\n",
    "in a thread": "import threading, torch_geometric\ndef work():\n    for batch in run.loader(mode=mode):\n        pass\n"  # noqa: E501
                   "thread = threading.Thread(target=work)\nthread.start()\n",
}  # fmt: skip


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("mode", ["packed", pytest.param("online", marks=pytest.mark.slow)])
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_process_ends(made: Path, ending: str, mode: str) -> None:
    ended = python(SCRIPT + f"mode = {mode!r}\n" + ENDINGS[ending], made / "run")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""


def test_control_c_ends_a_process_that_loads(made: Path) -> None:
    code = SCRIPT + (
        "import os, signal\nfor number, batch in enumerate(run.loader()):\n    os.kill(os.getpid(), signal.SIGINT)\n"
    )
    ended = started(code, made / "run")
    # Python ends by the signal, or with 1 where torch_geometric has imported pandas.
    assert ended.returncode in (-signal.SIGINT, 1)
    assert "KeyboardInterrupt" in ended.stderr


# A child made by fork has no threads but its own: whatever it does with what it inherited, it must end.
FORK = """
import gc, os, signal, sys
gc.unfreeze()
from outcrop.loading.open import open_session
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import open_graph
from pathlib import Path
folder = Path(sys.argv[1])
runtime = Runtime("6MiB", threads=3)
session = open_session(open_graph(folder / "graph"), runtime, "online", run_folder=folder / "run")
loader = session.batches("train")
batch = next(loader)
child = os.fork()
if child == 0:
    signal.alarm(20)
    CHILD
_, status = os.waitpid(child, 0)
del batch
assert status == 0, f"the child ended with status {status}"
count = 1 + sum(1 for _ in loader)
assert count == 4, count
"""
CHILDREN = {
    "ends at once": "os._exit(0)",
    "ends as usual": "sys.exit(0)",
    "drops everything": "del batch, loader; session = None; runtime = None; gc.collect(); os._exit(0)",
    "closes everything": "del batch; loader.close(); session.close(); runtime.close(); del loader, session, runtime; "
                         "gc.collect(); sys.exit(0)",
}  # fmt: skip


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("child", CHILDREN)
def test_fork(made: Path, child: str) -> None:
    ended = python(FORK.replace("CHILD", CHILDREN[child]), made)
    assert ended.returncode == 0, ended.stderr
