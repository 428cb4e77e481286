"""The pipeline: stages in threads of their own. A single thing beside another runs in :mod:`.in_background`.

Items pass through stages in order, each stage in a thread of its own, over bounded queues. The first error ends
everything and reaches the consumer; leaving early (break, exception, garbage collection) ends the threads at once.
Work inside a stage is C++ or I/O that releases the GIL.
"""

from __future__ import annotations

import os
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from outcrop.errors import CancelledError, IoError, OutcropError
from outcrop.runtime import threads

T = TypeVar("T")
_POLL_SECONDS = 0.05
_END = object()


class CancelEvent(threading.Event):
    """Tells stages that wait when a pipeline ends: it is set then."""

    def check(self) -> None:
        if self.is_set():
            raise CancelledError("the pipeline was closed")


@dataclass(frozen=True)
class Stage:
    """Describes a stage: ``run(item)`` gives the item for the next one. ``depth``: how many results may wait."""

    name: str
    run: Callable[[Any], Any]
    depth: int = 2


class _Queue:
    """Passes items on in order, a bounded number of them; waits end on cancellation."""

    def __init__(self, depth: int, cancelled: CancelEvent):
        self._items: deque[Any] = deque()
        self._depth, self._cancelled = depth, cancelled
        self._changed = threading.Condition()

    def put(self, item: Any) -> None:
        with self._changed:
            while len(self._items) >= self._depth:
                self._cancelled.check()
                self._changed.wait()
            self._cancelled.check()
            self._items.append(item)
            self._changed.notify_all()

    def get(self, while_waiting: Callable[[], None] | None = None) -> Any:
        with self._changed:
            while not self._items:
                self._cancelled.check()
                if while_waiting is None:
                    self._changed.wait()
                else:
                    self._changed.wait(_POLL_SECONDS)
                    if not self._items:
                        while_waiting()
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def clear(self) -> None:
        with self._changed:
            self._items.clear()
            self._changed.notify_all()


class _State:
    """Holds what the threads share; it does not refer to the Pipeline, so that dropping the Pipeline can end them."""

    def __init__(self, source: Iterable[Any], stages: list[Stage]):
        self.cancelled = CancelEvent()
        self.queues = [_Queue(s.depth, self.cancelled) for s in stages]
        self.source, self.stages = source, stages
        self.error: BaseException | None = None
        self.process = os.getpid()
        self._lock = threading.Lock()

    def fail(self, error: BaseException) -> None:
        with self._lock:
            if self.error is None and not self.cancelled.is_set():
                self.error = error
        self.cancel()

    def cancel(self) -> None:
        self.cancelled.set()
        for queue in self.queues:
            queue.clear()

    def run_stage(self, number: int) -> None:
        try:
            self._pass_items(number)
        except CancelledError as error:
            if not self.cancelled.is_set():
                self.fail(error)
        except BaseException as error:  # every error of a worker must reach the consumer, whatever it is
            _forget_locals(error)
            self.fail(error)

    def _pass_items(self, number: int) -> None:
        stage, out = self.stages[number], self.queues[number]
        if number == 0:
            for item in self.source:
                out.put(stage.run(item))
                del item
        else:
            before = self.queues[number - 1]
            while (item := before.get()) is not _END:
                out.put(stage.run(item))
                del item
        out.put(_END)


def _forget_locals(error: BaseException) -> None:
    """Lets go of what the frames of ``error`` hold: the items under way, and the buffers that they lease."""
    found, seen = [error], set[int]()
    while found:
        one = found.pop()
        if id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            found += [e for e in (one.__cause__, one.__context__) if e is not None]


class Pipeline(Generic[T]):
    """Iterates over the results of the last stage, in order.

    Args:
        source: Items for the first stage; iterated in its thread.
        stages: At least one.
        while_waiting: Called now and then while the consumer waits; may raise to end the pipeline.
        on_cancel: Called when the pipeline ends, to wake stages that wait for something else.
    """

    def __init__(
        self,
        source: Iterable[Any],
        stages: list[Stage],
        *,
        name: str = "outcrop",
        while_waiting: Callable[[], None] | None = None,
        on_cancel: Callable[[], None] | None = None,
    ):
        self._state = _State(source, stages)
        self._while_waiting = while_waiting or (lambda: None)
        self._threads = [
            threading.Thread(
                target=self._state.run_stage, args=(n,), name=f"{name}-{stage.name}", daemon=True
            )
            for n, stage in enumerate(stages)
        ]
        self._finish = weakref.finalize(self, _end, self._state, self._threads, on_cancel)
        try:
            threads.start(self._threads)
        except IoError:
            self._finish()
            raise

    def __iter__(self) -> Iterator[T]:
        return self

    @property
    def running(self) -> bool:
        """Tells whether it is neither exhausted nor closed nor failed."""
        return self._finish.alive

    def __next__(self) -> T:
        if not self.running:
            raise StopIteration
        if self._state.process != os.getpid():
            raise CancelledError(
                f"this pass was begun by process {self._state.process}, and its threads are not in process "
                f"{os.getpid()}, which was forked from it: begin a pass of your own after the fork"
            )
        try:
            item = self._state.queues[-1].get(self._while_waiting)
        except CancelledError:
            self.close()
            if self._state.error is not None:
                raise self._state.error from None
            raise StopIteration from None
        except (OutcropError, KeyboardInterrupt):
            self.close()
            raise
        if item is _END:
            self.close()
            raise StopIteration
        return item

    def close(self) -> None:
        """Ends the threads and waits for them; drops what was under way. Safe to call again."""
        self._finish()


class SerialPipeline(Generic[T]):
    """Runs the same stages one after another in the caller's thread: what overlapping is compared with."""

    def __init__(self, source: Iterable[Any], stages: list[Stage]):
        self._items, self._stages = iter(source), stages
        self.running = True

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if not self.running:
            raise StopIteration
        try:
            item = next(self._items)
            for stage in self._stages:
                item = stage.run(item)
        except BaseException:
            self.close()
            raise
        return item

    def close(self) -> None:
        self.running = False
        self._items = iter(())


def _end(state: _State, threads: list[threading.Thread], on_cancel: Callable[[], None] | None) -> None:
    if (
        state.process != os.getpid()
    ):  # a fork: the threads are not here, and what they held locked stays locked
        return
    state.cancel()
    if on_cancel is not None:
        on_cancel()
    for thread in threads:
        if thread is not threading.current_thread() and thread.ident is not None:
            thread.join()
    state.queues.clear()
    state.source = ()
