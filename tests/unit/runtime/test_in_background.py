"""Functions that run in the background: one at a time, waited for, and their errors reach who asked for them."""

from __future__ import annotations

import threading

import pytest

from outcrop.runtime.in_background import InBackground
from support import HANGS_SECONDS


def test_work_goes_on_beside_who_asked_and_the_next_waits_for_it():
    gate, done = threading.Event(), []

    def first() -> None:
        assert gate.wait(HANGS_SECONDS)
        done.append(1)

    with InBackground("outcrop-test") as background:
        background.begin(first)
        assert done == []  # it waits for the gate, and this thread goes on
        gate.set()
        background.begin(lambda: done.append(2))
        assert done[0] == 1
        background.wait()
        assert done == [1, 2]
        background.begin(lambda: done.append(3))
    assert done == [1, 2, 3]
    assert not [thread for thread in threading.enumerate() if thread.name == "outcrop-test"]


def test_an_error_reaches_who_waits_once():
    def fails() -> None:
        raise ValueError("of the work")

    with InBackground("outcrop-test") as background:
        background.begin(fails)
        with pytest.raises(ValueError, match="of the work"):
            background.begin(lambda: None)
        background.wait()  # nothing has begun since
        background.begin(fails)
        with pytest.raises(ValueError, match="of the work"):
            background.wait()


def test_where_the_system_refuses_a_thread_work_is_done_at_once(monkeypatch: pytest.MonkeyPatch):
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with InBackground("outcrop-test") as background:
        done: list[int] = []
        background.begin(lambda: done.append(1))
        assert done == [1]
        background.begin(lambda: done.remove(2))
        with pytest.raises(ValueError, match="not in list"):
            background.wait()
