"""Gradients of several processes are added in the order of ranks: the bits of one process, for any number of them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import outcrop as oc

EXAMPLE = Path(__file__).parents[2] / "examples" / "several_processes.py"
SUMS = """
import sys, torch
from torch import distributed
from outcrop.runtime.ordered import ordered_sum, ordered_sum_of, sent_bytes

rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
distributed.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world)

def gradient(rank, count):
    generator = torch.Generator().manual_seed(100 * rank + count)
    return torch.randn(count, generator=generator) * 10.0 ** torch.randint(-6, 7, (count,), generator=generator)

for count in (1, 2, 3, 4, 5, 64, 1001):
    found = ordered_sum(gradient(rank, count))
    want = gradient(0, count)
    for other in range(1, world):
        want = want + gradient(other, count)
    assert torch.equal(found, want), (rank, count)
    assert torch.equal(ordered_sum(gradient(rank, count).view(1, -1)), want)

# In a group of some ranks, while a message of the user's own is awaited there.
some = list(range(1, world)) or [0]
part = distributed.new_group(some)
if rank in some:
    following, previous = some[rank % len(some)], some[(rank - 2) % len(some)]
    own, message = torch.full((3,), float(rank)), torch.zeros(3)
    if following != rank:
        awaited = distributed.irecv(message, previous, group=part)
    want = gradient(some[0], 11)
    for other in some[1:]:
        want = want + gradient(other, 11)
    assert torch.equal(ordered_sum(gradient(rank, 11), part), want)
    if following != rank:
        distributed.isend(own, following, group=part).wait()
        awaited.wait()
        assert message.tolist() == [float(previous)] * 3

sends, receives, given, said = distributed.isend, distributed.irecv, [], []

def sent(tensor, **to):
    assert to["group_dst"] != rank
    given.append(tensor.numel() * tensor.element_size())
    said.append("send")
    return sends(tensor, **to)

def received(tensor, **by):
    said.append("receive")
    return receives(tensor, **by)

distributed.isend, distributed.irecv = sent, received
for count in (1, 5, 64):
    for most in (1, 2, 3):
        order = [(r, place) for place in range(most) for r in range(world)][: world * most - 1] or [(0, 0)]
        given.clear(), said.clear()
        ordered_sum_of(torch.ones(most, count, dtype=torch.float64), order)
        rows = sum(r == rank for r, _ in order)
        assert sum(given) == sent_bytes(count, 8, rows, world), (rank, count, most)
        # What is asked for after something was sent comes after it: the ranks would take turns.
        assert said == sorted(said), (rank, count, most, said)
distributed.destroy_process_group()
print("equal")
"""
STEPS = """
import sys, torch
from torch import distributed
from outcrop.runtime.group import RankGroup
from outcrop.training.steps import BatchLoss, OrderedGradients, OwnGradients

rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
distributed.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world)
group = RankGroup()
assert (group.local_rank, group.local_world) == (rank, world)

def batch(parameters, number):
    # Sets the gradients of a batch; some batches have no labels, some parameters no gradient, some gradients are -0.0.
    generator = torch.Generator().manual_seed(number)
    if number % 5 == 3:
        return BatchLoss(0.0, 0)
    for place, parameter in enumerate(parameters):
        if (number + place) % 4 == 1 or place == 3:
            continue
        value = torch.randn(parameter.shape, generator=generator)
        value = value * 10.0 ** torch.randint(-6, 7, parameter.shape, generator=generator)
        value[value.abs() < 1e-5] = -0.0
        parameter.grad = value if parameter.grad is None else parameter.grad + value
    return BatchLoss(float(number) / 3, number % 7 + 1)

shapes = [(3, 5), (4,), (2, 2, 2), (6,)]
for most in range(world, 9):
    for k in range(1, most + 1):
        want = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
        own = OwnGradients(want)
        for number in range(10 * k, 11 * k):
            own.begin()
            own.add(batch(want, number))
        found = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
        ranks = OrderedGradients(group, found, most)
        for number in range(10 * k, 11 * k)[rank::world]:
            ranks.begin()
            ranks.add(batch(found, number))
        losses, told = ranks.finish(k, [float(rank), 7.0])
        assert losses == own.finish(k)[0], (most, k)
        assert told.tolist() == [[float(other), 7.0] for other in range(world)]
        for one, other in zip(found, want):
            if other.grad is None or not any(loss.labelled for loss in losses):
                assert one.grad is None, (most, k)
                continue
            assert torch.equal(one.grad.view(torch.int32), other.grad.view(torch.int32)), (most, k)
distributed.destroy_process_group()
print("equal")
"""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
def test_sums_are_in_the_order_of_ranks(tmp_path: Path, world: int) -> None:
    """Numbers of many sizes, whose sum depends on the order."""
    assert_equal_in_all(SUMS, world, tmp_path)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("world", [2, 3, 5])
def test_a_step_has_the_gradient_of_one_process(tmp_path: Path, world: int) -> None:
    """Steps of all numbers of batches, the last of an epoch too; the bits, and the sign of zeros."""
    assert_equal_in_all(STEPS, world, tmp_path)


def assert_equal_in_all(script: str, world: int, folder: Path) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(rank), str(world), str(folder / "store")],
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    for process in started:
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said
        assert "equal" in said


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eleven batches: no number of processes divides them."""
    folder, rng = tmp_path_factory.mktemp("ranks"), np.random.default_rng(0)
    parts = {
        "edges": rng.integers(0, 400, (3000, 2)),
        "features": rng.normal(size=(400, 12)).astype(np.float32),
        "labels": rng.integers(0, 3, 400),
    }
    splits = {"train": np.arange(212), "valid": np.arange(212, 250)}
    graph = oc.import_graph(parts, folder / "g.oc", splits=splits, progress=False)
    sampling = oc.SampleConfig(fanouts=(4, 3), batch_size=20)
    made = oc.prepare(
        graph, folder / "g.run", sampling=sampling, epochs=4, observer=oc.Observer(progress=False)
    )
    return made.path


def weights(
    run: Path, out: Path, *command: str, step: int | None = None, script: Path = EXAMPLE
) -> dict[str, torch.Tensor]:
    """Runs an example and returns what it has learned."""
    arguments = [str(script), str(run), str(out), *([] if step is None else [str(step)])]
    done = subprocess.run(
        [*command, *arguments], env=ENVIRONMENT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return torch.load(out, weights_only=True)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_any_number_of_processes_learns_the_same(run: Path, tmp_path: Path, world: int) -> None:
    """Stock ``DistributedDataParallel`` differs from three processes on."""
    one = weights(run, tmp_path / "one.pt", sys.executable, step=world)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    several = weights(run, tmp_path / "several.pt", *torchrun)
    assert one.keys() == several.keys()
    for name, value in one.items():
        assert torch.equal(value, several[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("script", ["several_processes_lightning.py", "several_processes_accelerate.py"])
@pytest.mark.parametrize("world", [2, 3])
def test_frameworks_learn_what_one_loop_does(run: Path, tmp_path: Path, script: str, world: int) -> None:
    """The loop written out, in one process, that takes as many batches a step."""
    framework = Path(script).stem.removeprefix("several_processes_")
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"no {framework}: scripts/setup.sh test installs it")
    one = weights(run, tmp_path / "one.pt", sys.executable, step=world)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    several = weights(run, tmp_path / "several.pt", *torchrun, script=EXAMPLE.with_name(script))
    assert one.keys() == several.keys()
    for name, value in one.items():
        assert torch.equal(value, several[name]), name
