"""Batch buffers: held by what the caller keeps, and by nothing else; too many kept is an error, never a hang."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from outcrop.config import PlanConfig
from outcrop.errors import ArgumentError, BudgetError, CancelledError, ChecksumError
from outcrop.loading.buffers import host_pool
from outcrop.loading.open import open_session
from outcrop.loading.session import LoadSession, packed_session
from outcrop.loading.transfer import ToCpu
from outcrop.rows import disk_rows
from outcrop.runtime.runtime import Runtime
from outcrop.store.minibatch import MiniBatch
from prepare_support import prepare
from run_support import a_graph, as_rows, packed_run, random_features

Make = Callable[..., Runtime]
WIDTH = 16


@pytest.fixture(params=["packed", "memory", "ondisk", "online", "memmap", "dynamic", "belady", "partition"])
def session(request: pytest.FixtureRequest, tmp_path: Path, make_runtime: Make) -> Iterator[LoadSession]:
    graph = a_graph(tmp_path / "g", make_runtime(threads=1), width=WIDTH, train=200)
    prepare(
        graph, tmp_path / "run", fanouts=(3, 3), batch_size=10, memory="3MiB", runtime=make_runtime(threads=1)
    )
    with open_session(graph, make_runtime(threads=1), request.param, run_folder=tmp_path / "run") as session:
        yield session


@pytest.fixture
def packed(tmp_path: Path, make_runtime: Make) -> Callable[[int], LoadSession]:
    graph = a_graph(tmp_path / "g", make_runtime(threads=1), width=WIDTH, train=200)

    def make(buffers: int) -> LoadSession:
        runtime = make_runtime(threads=1)
        run = packed_run(
            graph,
            tmp_path / f"run-{buffers}",
            runtime,
            PlanConfig(memory=4 << 20, slots=buffers),
            batch_size=10,
        )
        return packed_session(
            graph,
            run.samples,
            run.records,
            [disk_rows(graph, runtime, graph.row_file, merge=False)],
            runtime,
        )

    return make


FEATURES = as_rows(random_features(600, WIDTH, "float32"))


def right(batch: MiniBatch) -> bool:
    return np.array_equal(as_rows(batch.x.numpy()), FEATURES[batch.graph.n_id])


def test_keeping_every_batch_is_an_error_not_a_hang(session):
    kept = []
    with pytest.raises(BudgetError, match=r"all \d batch buffers .* are held by the caller"):  # noqa: PT012
        for batch in session.batches("train"):
            kept.append(batch)
    assert len(kept) == session.buffers
    assert all(map(right, kept))
    kept.clear()
    del batch
    assert sum(right(b) for b in letting_go(session.batches("train"))) == 20


def letting_go(batches: Iterator[MiniBatch]) -> Iterator[MiniBatch]:
    for batch in batches:
        yield batch
        del batch


@pytest.mark.parametrize("buffers", [2, 3, 5])
def test_all_but_one_may_be_kept(packed, buffers):
    with packed(buffers) as session:
        kept: list[MiniBatch] = []
        count = 0
        for batch in session.batches("train"):
            kept = [*kept, batch][-(buffers - 1) :]
            del batch
            assert all(map(right, kept))
            count += 1
        assert count == 20


def test_copies_do_not_count(packed):
    with packed(2) as session:
        copies = []
        for batch in session.batches("train"):
            copies.append((batch.graph.n_id, batch.x.clone(), batch.y, batch.rowptr, batch.col))
            del batch
        assert len(copies) == 20
        for n_id, x, *_ in copies:
            assert np.array_equal(as_rows(x.numpy()), FEATURES[n_id])


def mean_of_squares(x: torch.Tensor) -> object:
    weight = torch.ones(WIDTH, 2, requires_grad=True)
    return (x @ weight).square().sum()  # its backward graph saves x


VIEWS: dict[str, Callable[[torch.Tensor], object]] = {
    "slice": lambda x: x[:2],
    "row": lambda x: x[-1],
    "view": lambda x: x.view(torch.uint8),
    "reshape": lambda x: x.reshape(-1),
    "transpose": lambda x: x.T,
    "detach": lambda x: x.detach(),
    "numpy": lambda x: x.numpy(),
    "numpy-view": lambda x: x.numpy()[1:2].view(np.uint8),
    "storage": lambda x: x.untyped_storage(),
    "autograd": mean_of_squares,
    "tuple": lambda x: [x, {"x": x[0]}],
    "memoryview": lambda x: memoryview(x.numpy()),
}


@pytest.mark.parametrize("view", VIEWS)
def test_any_view_keeps_the_buffer_and_only_as_long_as_it_lives(packed, view):
    with packed(2) as session:
        batches = session.batches("train")
        batch = next(batches)
        kept, expected, n_id = VIEWS[view](batch.x), batch.x.clone(), batch.graph.n_id
        address = batch.x.data_ptr()
        del batch
        for _ in range(5):  # the other buffer serves them all
            batch = next(batches)
            assert batch.x.data_ptr() // 4096 != address // 4096
            assert right(batch)
            del batch
        assert np.array_equal(as_rows(expected.numpy()), FEATURES[n_id])
        assert session._pool._handed == 1
        batch = next(batches)
        with pytest.raises(BudgetError):
            next(batches)
        del kept, batch
        gc.collect()
        assert session._pool._handed == 0
        assert sum(right(b) for b in letting_go(session.batches("train"))) == 20


def test_autograd_sees_the_rows_it_saved(packed):
    with packed(2) as session:
        batches = session.batches("train")
        batch = next(batches)
        weight = torch.ones(WIDTH, 2, requires_grad=True)
        loss, expected = (batch.x @ weight).sum(), batch.x.sum(0)
        del batch
        for _ in range(3):
            next(batches)
        loss.backward()
        torch.testing.assert_close(weight.grad, expected[:, None].expand(-1, 2))
        batches.close()


def test_a_batch_kept_by_a_cycle_is_found(packed):
    """The caller let go of it, the garbage collector has not noticed yet: no error."""
    gc.disable()
    try:
        with packed(2) as session:
            count = 0
            for batch in session.batches("train"):
                knot = [batch]
                knot.append(knot)
                del knot, batch
                count += 1
            assert count == 20
    finally:
        gc.enable()


def test_the_session_may_close_while_rows_are_kept(session):
    batches = session.batches("train")
    kept = next(batches)
    x, n_id = kept.x[3:], kept.graph.n_id
    del kept
    session.close()
    batches.close()
    gc.collect()
    assert np.array_equal(as_rows(x.numpy()), FEATURES[n_id[3:]])


def test_a_closed_session_says_so(session):
    batches = session.batches("train")
    next(batches)
    session.close()
    session.close()
    with pytest.raises(CancelledError, match="session was closed"):
        next(batches)
    with pytest.raises(ArgumentError, match="session was closed"):
        session.batches("train")


def test_leaving_a_pass_early_gives_the_buffers_back(session):
    for _ in range(4):
        for batch in session.batches("train"):
            del batch
            break
    assert sum(right(b) for b in letting_go(session.batches("train"))) == 20


@pytest.mark.parametrize("buffers", [2, 4])
def test_a_pass_after_a_failed_one_works(packed, tmp_path, buffers):
    """A damaged record ends the pass; what it had under way must come back at once."""
    gc.disable()
    try:
        with packed(buffers) as session:
            path = tmp_path / f"run-{buffers}" / "pack" / "records.bin"
            whole = path.read_bytes()
            path.write_bytes(bytes(len(whole)))
            with pytest.raises(Exception, match="mini-batch") as caught:
                list(session.batches("train"))
            assert isinstance(caught.value, ValueError)
            assert not isinstance(caught.value, BudgetError)
            path.write_bytes(whole)
            assert sum(right(b) for b in letting_go(session.batches("train"))) == 20
    finally:
        gc.enable()


def test_damaged_rows_are_noticed(packed, tmp_path):
    with packed(2) as session:
        path = tmp_path / "run-2" / "pack" / "records.bin"
        data = np.fromfile(path, np.uint8)
        feeder = session._feeder._packed
        last = feeder.placement.offsets[1] - 1
        while data[last] == 0:
            last -= 1
        data[last] ^= 1
        data.tofile(path)
        batches = session.batches("train")
        with pytest.raises(ChecksumError, match="record 0"):
            next(batches)


@pytest.mark.parametrize("buffers", [2, 4])
def test_a_new_pass_ends_the_one_before(packed, buffers):
    """What the first has under way must not take the buffers that the second waits for."""
    with packed(buffers) as session:
        first = session.batches("train", 0)
        assert right(next(first))
        second = session.batches("train", 1)
        assert sum(right(b) for b in letting_go(second)) == 20
        with pytest.raises(CancelledError, match="started another pass"):
            next(first)
        assert list(second) == []  # over, not ended
        session.batches("train")
        assert list(second) == []


def test_pool_leases(make_runtime):
    runtime = make_runtime(threads=1)
    before = runtime.budget.now_bytes
    pool, stopped = host_pool(runtime, 2, (8192,), 4096), threading.Event()
    assert runtime.budget.now_bytes - before == 2 * (8192 + 4096)
    first, second = pool.lease(stopped), pool.lease(stopped)
    assert first.buffer is not second.buffer
    assert first.buffer.x.ctypes.data % 4096 == 0
    pool.check_not_starved()  # leased is not handed out: they come back by themselves
    del first
    third = pool.lease(stopped)
    array = third.buffer.x[:100]
    third.hand_over(array)
    third.hand_over(array)  # once only
    second.hand_over(other := second.buffer.x[:5])
    pool.check_not_starved()  # on their way
    for lease in (third, second, third):
        lease.mark_taken()
    del third, lease
    with pytest.raises(BudgetError):
        pool.check_not_starved()
    del other, second
    pool.check_not_starved()
    assert pool._handed == 1
    del array
    assert pool._handed == 0
    stopped.set()
    with pytest.raises(CancelledError):
        pool.lease(stopped)
    pool.close()
    del pool
    gc.collect()
    assert runtime.budget.now_bytes == before


def test_a_buffer_is_kept_by_the_rows_of_any_row_file(make_runtime):
    runtime = make_runtime(threads=1)
    before = runtime.budget.now_bytes
    pool, stopped = host_pool(runtime, 1, (8192, 4096, 0), 0), threading.Event()
    assert runtime.budget.now_bytes - before == 8192 + 4096
    for last in range(3):
        lease = pool.lease(stopped)
        arrays = [rows.x[:10] for rows in lease.buffer.rows]
        assert [len(array) for array in arrays] == [10, 10, 0]
        lease.hand_over(*arrays)
        lease.mark_taken()
        del lease
        kept = arrays[last]
        del arrays
        with pytest.raises(BudgetError, match="are held by the caller"):
            pool.check_not_starved()
        del kept
        pool.check_not_starved()
    pool.close()


def test_a_waiting_lease_is_woken(make_runtime):
    pool, stopped = host_pool(make_runtime(threads=1), 1, (4096,), 0), threading.Event()
    lease, outcome = pool.lease(stopped), []

    def wait() -> None:
        try:
            pool.lease(stopped)
        except CancelledError as error:
            outcome.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    stopped.set()
    pool.wake()
    thread.join(20)
    assert len(outcome) == 1
    del lease
    pool.close()


def test_rows_grow_where_the_size_is_not_known(make_runtime):
    runtime = make_runtime(threads=1)
    pool = host_pool(runtime, 1, (0,), 0)
    lease = pool.lease(threading.Event())
    lease.buffer.rows[0].make_room(10000, 10)
    grown = lease.buffer.x
    assert len(grown) >= 10000
    lease.buffer.rows[0].make_room(5000, 5)
    assert lease.buffer.x is grown
    del grown, lease
    pool.close()


def test_the_rows_of_a_row_file_grow_by_themselves(make_runtime):
    runtime = make_runtime(threads=1)
    pool = host_pool(runtime, 2, (0, 4096, 8192), 0)
    lease = pool.lease(threading.Event())
    others = [rows.x for rows in lease.buffer.rows[:2]]
    before = runtime.budget.now_bytes
    lease.buffer.rows[2].make_room(3 * 4096, 3)
    assert runtime.budget.now_bytes - before == 2 * 4096  # one page more for each of the two
    assert len(lease.buffer.rows[2].x) == 3 * 4096
    assert all(rows.x is x for rows, x in zip(lease.buffer.rows, others, strict=False))
    del others, lease
    pool.close()


def test_a_slow_last_stage_is_not_mistaken_for_a_greedy_caller(packed, monkeypatch):
    """The caller keeps one of two buffers, as a for loop does; the other is filled but not in the queue yet."""
    deliver = ToCpu.deliver

    def slowly(self, *arguments):
        time.sleep(0.15)  # longer than the consumer waits before it looks whether it waits for itself
        return deliver(self, *arguments)

    monkeypatch.setattr(ToCpu, "deliver", slowly)
    with packed(2) as session:
        assert sum(right(b) for b in session.batches("valid")) == 3


def test_only_what_was_delivered_is_counted(packed):
    with packed(4) as session:
        batches = session.batches("train")
        rows = 0
        for count in range(1, 4):
            batch = next(batches)
            rows += batch.graph.num_nodes
            del batch
            assert batches.stats.batches == count
            assert sum(batches.stats.rows_by_level.values()) == rows
        batches.close()
