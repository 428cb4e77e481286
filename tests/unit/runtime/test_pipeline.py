"""The pipeline: order, bounds, the first error, and that it ends at once however the consumer leaves."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from outcrop.errors import BudgetError, CancelledError, IoError
from outcrop.runtime.pipeline import CancelEvent, Pipeline, Stage

PATIENCE_SECONDS = 120.0  # how long a test waits for what should happen at once


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.001)


def threads(name: str = "probe") -> list[str]:
    return sorted(t.name for t in threading.enumerate() if t.name.startswith(name))


def identity(item: object) -> object:
    return item


def stages(*depths: int, run: Callable = identity) -> list[Stage]:
    return [Stage(f"s{number}", run, depth) for number, depth in enumerate(depths)]


class Boom(Exception):
    pass


@pytest.mark.parametrize("depths", [(1,), (2,), (1, 1), (2, 1, 3), (1, 1, 1, 1)])
def test_items_pass_every_stage_in_order(depths):
    steps = [Stage(f"s{n}", lambda item, n=n: (*item, n), depth) for n, depth in enumerate(depths)]
    out = list(Pipeline(((i,) for i in range(100)), steps, name="probe"))
    assert out == [(i, *range(len(depths))) for i in range(100)]
    assert threads() == []


@pytest.mark.parametrize("source", [[], iter(()), [None], [None, False, 0]])
def test_short_and_falsy_sources(source):
    expected = list(source) if isinstance(source, list) else []
    assert list(Pipeline(source, stages(1, 1), name="probe")) == expected


def test_each_stage_has_a_thread_of_its_own_and_works_at_the_same_time():
    barrier = threading.Barrier(3, timeout=PATIENCE_SECONDS)
    seen: list[set[int]] = [set(), set(), set()]

    def meet(number: int) -> Callable:
        def run(item: int) -> int:
            if item in (2 - number, 12 - number):  # item 2 in stage 0 while 1 is in stage 1 and 0 in stage 2
                barrier.wait()
            seen[number].add(threading.get_ident())
            return item

        return run

    pipeline = Pipeline(range(20), [Stage(f"s{n}", meet(n)) for n in range(3)], name="probe")
    assert threads() == ["probe-s0", "probe-s1", "probe-s2"]
    assert list(pipeline) == list(range(20))
    assert [len(s) for s in seen] == [1, 1, 1]
    assert len(set.union(*seen)) == 3


@pytest.mark.parametrize("depths", [(1,), (2,), (5,), (1, 1), (2, 3), (1, 2, 1)])
def test_no_more_than_the_queues_hold_is_ever_ahead(depths):
    """Started but not taken: what waits in the queues, and one item in each stage's hands."""
    started = [0] * len(depths)

    def step(number: int) -> Callable:
        def run(item: int) -> int:
            started[number] += 1
            return item

        return run

    pipeline = Pipeline(range(1000), [Stage(f"s{n}", step(n), d) for n, d in enumerate(depths)], name="probe")
    for taken in range(1, 6):
        assert next(pipeline) == taken - 1
        expected = [taken + sum(depths[n:]) + len(depths) - n for n in range(len(depths))]
        until(lambda want=expected: started == want)
        time.sleep(0.01)  # and stays there
        assert started == expected
    pipeline.close()


@pytest.mark.parametrize(
    "error", [Boom("here"), IoError("disk"), KeyboardInterrupt(), SystemExit(3), CancelledError("own")]
)
@pytest.mark.parametrize("where", ["source", 0, 1, 2])
def test_an_error_anywhere_reaches_the_consumer_after_what_came_before_is_gone(error, where):
    def source() -> Iterator[int]:
        for i in range(50):
            if i == 10 and where == "source":
                raise error
            yield i

    def step(number: int) -> Callable:
        def run(item: int) -> int:
            if number == where and item == 10:
                raise error
            return item

        return run

    pipeline = Pipeline(source(), [Stage(f"s{n}", step(n), 1) for n in range(3)], name="probe")
    got = []
    with pytest.raises(type(error)) as caught:  # noqa: PT012
        for item in pipeline:
            got.append(item)
    assert caught.value is error
    assert got == list(range(len(got)))
    assert len(got) <= 10
    assert threads() == []
    with pytest.raises((StopIteration, type(error))):
        next(pipeline)


def test_the_first_of_several_errors_wins():
    first, release = threading.Event(), threading.Event()

    def early(item: int) -> int:
        if item == 3:
            release.wait(PATIENCE_SECONDS)
            raise Boom("second")
        return item

    def late(item: int) -> int:
        if item == 1:
            first.set()
            raise Boom("first")
        return item

    pipeline = Pipeline(range(9), [Stage("a", early, 4), Stage("b", late, 4)], name="probe")
    until(first.is_set)
    until(lambda: pipeline._state.error is not None)
    release.set()
    with pytest.raises(Boom, match="first"):
        list(pipeline)


def endless() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


def test_break_and_close():
    pipeline = Pipeline(endless(), stages(2, 2), name="probe")
    for item in pipeline:
        if item == 5:
            break
    pipeline.close()
    assert threads() == []
    pipeline.close()
    with pytest.raises(StopIteration):
        next(pipeline)


def test_close_wakes_what_stages_wait_for():
    stopped, waiting = threading.Event(), threading.Event()

    def wait(item: int) -> int:
        waiting.set()
        stopped.wait()
        raise CancelledError("stopped")

    pipeline = Pipeline(endless(), [Stage("wait", wait)], name="probe", on_cancel=stopped.set)
    until(waiting.is_set)
    pipeline.close()
    assert threads() == []


def test_dropping_the_iterator_ends_the_threads():
    pipeline = Pipeline(endless(), stages(1, 1), name="probe")
    next(pipeline)
    assert len(threads()) == 2
    del pipeline
    assert threads() == []


def test_dropping_it_in_a_cycle_ends_the_threads_when_it_is_collected():
    class Node:
        pass

    node = Node()
    node.pipeline, node.me = Pipeline(endless(), stages(1, 1), name="probe"), node
    next(node.pipeline)
    del node
    gc.collect()
    assert threads() == []


def test_an_exception_of_the_consumer_ends_the_threads():
    def consume() -> None:
        for item in Pipeline(endless(), stages(1, 1), name="probe"):
            if item == 3:
                raise Boom

    with pytest.raises(Boom):
        consume()
    sys.exc_info()
    gc.collect()
    assert threads() == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, BudgetError])
def test_an_interrupt_while_waiting_ends_the_threads(error):
    never = threading.Event()

    def stuck(item: int) -> int:
        never.wait()
        raise CancelledError("ended")

    def interrupt() -> None:
        raise error

    pipeline = Pipeline(
        endless(), [Stage("stuck", stuck)], name="probe", while_waiting=interrupt, on_cancel=never.set
    )
    with pytest.raises(error):
        next(pipeline)
    assert threads() == []


def test_what_was_under_way_is_let_go():
    """After the end nothing of the pipeline keeps an item alive, also not the error it ended with."""

    class Item:
        pass

    made: list[weakref.ref] = []

    def source() -> Iterator[Item]:
        while True:
            item = Item()
            made.append(weakref.ref(item))
            yield item
            del item

    pipeline = Pipeline(source(), stages(2, 2), name="probe")
    until(lambda: len(made) >= 6)
    pipeline.close()
    assert [ref for ref in made if ref() is not None] == []


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_error_does_not_keep_the_items_that_were_under_way(failing):
    """Items carry leases on buffers: if the error kept them, the next pass would have too few, or wait for ever."""

    class Item:
        def __init__(self, number: int):
            self.number = number

    made: list[weakref.ref] = []

    def source() -> Iterator[Item]:
        for number in range(20):
            item = Item(number)
            made.append(weakref.ref(item))
            yield item
            del item

    def step(stage: int) -> Callable:
        def run(item: Item) -> Item:
            if stage == failing and item.number == 4:
                raise Boom
            return item

        return run

    gc.disable()
    try:
        pipeline = Pipeline(source(), [Stage(f"s{n}", step(n)) for n in range(3)], name="probe")
        with pytest.raises(Boom) as caught:  # noqa: PT012
            for item in pipeline:
                del item
        assert isinstance(caught.value, Boom)
        assert [ref().number for ref in made if ref() is not None] == []
    finally:
        gc.enable()


def test_a_slow_consumer_loses_nothing():
    pipeline = Pipeline(range(12), stages(1, 2), name="probe")
    got = []
    for item in pipeline:
        time.sleep(0.005)
        got.append(item)
    assert got == list(range(12))


def test_several_pipelines_at_once_do_not_meet():
    pipelines = [Pipeline(range(n, n + 50), stages(2, 1), name="probe") for n in range(4)]
    assert [list(part) for part in zip(*pipelines, strict=True)] == [
        [i, i + 1, i + 2, i + 3] for i in range(50)
    ]


def test_cancelled():
    event = CancelEvent()
    event.check()
    event.set()
    with pytest.raises(CancelledError):
        event.check()


@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_a_thread_that_the_system_refuses_is_said_and_the_others_end(
    allowed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, begun, cancelled = threading.Thread.start, list[str](), list[bool]()

    def start(thread: threading.Thread) -> None:
        if len(begun) == allowed:
            raise RuntimeError("can't start new thread")
        begun.append(thread.name)
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(IoError, match=r"ulimit -u, or pids\.max of the container: can't start new thread"):
        Pipeline(iter(int, 1), stages(1, 1, 1), name="probe", on_cancel=lambda: cancelled.append(True))
    assert len(begun) == allowed
    assert cancelled == [True]
    assert threads() == []
