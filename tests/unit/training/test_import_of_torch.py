"""Training begins without torch: what it needs is described, checked and prepared while torch is imported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import outcrop as oc
from artifact_support import child_environment, small_graph
from support import HANGS_SECONDS

GRAPH = Path(__file__).parents[2] / "golden" / "checkpoint-0.1" / "graph.oc"
GO_ON = "interrupted; nothing finished is lost: run the same command again to go on\n"
OPTIONS = {"sampling": oc.SampleConfig(fanouts=(3, 2)), "model": oc.ModelConfig("sage", hidden=4)}
COMMAND = ("--fanouts", "3,2", "--hidden", "4", "--quiet")

# The import of torch does not go on before the batches are prepared: were it needed for that, this would not end.
GATED = """
import json, sys, threading
from importlib.util import find_spec
prepared = threading.Event()
class Gate:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(Gate)
        spec = find_spec(name)
        execute = spec.loader.exec_module
        def wait_and_execute(module):
            assert prepared.wait({seconds}), "torch is waited for before the batches are prepared"
            execute(module)
        spec.loader.exec_module = wait_and_execute
        return spec
sys.meta_path.insert(0, Gate)
import outcrop as oc
from outcrop.training import run
prepare = run.{supplies}
def then_open(*arguments):
    supply = prepare(*arguments)
    assert "torch_geometric" not in sys.modules and supply.report is not None
    prepared.set()
    return supply
run.{supplies} = then_open
report = oc.train(
    sys.argv[1],
    sampling=oc.SampleConfig(fanouts=(3, 2)),
    model=oc.ModelConfig("sage", hidden=4),
    loading="packed",
    memory="4MiB",
    training=oc.TrainConfig(epochs=2, trace_losses=True),
    run={run},
)
print(json.dumps([report.batch_losses, report.test_accuracy]))
"""


def linked(tmp_path: Path) -> Path:
    """The graph in a folder of its own, where what is prepared lies beside it."""
    graph = tmp_path / "g"
    graph.mkdir()
    for file in GRAPH.iterdir():
        os.link(file, graph / file.name)
    return graph


@pytest.mark.parametrize(
    ("run", "supplies"),
    [("None", "supply_within_disk"), ("oc.Refresh(1)", "prepare_supply")],
    ids=["run", "pools"],
)
def test_batches_are_prepared_while_torch_is_imported(tmp_path: Path, run: str, supplies: str) -> None:
    """The first batch trains on what was prepared meanwhile, with the losses of a training after the import."""
    code = GATED.format(seconds=HANGS_SECONDS, run=run, supplies=supplies)
    (tmp_path / "other").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code, linked(tmp_path / "other")],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = oc.train(
        linked(tmp_path),
        **OPTIONS,
        loading="memory",
        training=oc.TrainConfig(epochs=2, trace_losses=True),
        observer=oc.Observer(progress=False),
    )
    assert len(expected.batch_losses) == 2 * len(expected.batch_losses[::2])
    assert json.loads(done.stdout) == [expected.batch_losses, expected.test_accuracy]


def outcrop_with_torch(
    tmp_path: Path, torch: str, *command: str | Path, program: Sequence[str] = ("-m", "outcrop")
) -> subprocess.CompletedProcess[str]:
    """Runs a command with another torch."""
    (tmp_path / "torch.py").write_text(torch)
    environment = child_environment()
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])
    return subprocess.run(
        [sys.executable, *program, *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANGS_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_interrupted_while_a_thread_imports_torch(tmp_path: Path, name: str) -> None:
    """The command ends as at any other time; Python waits for the import, which nothing can end in good order."""
    torch = (
        f"import os, signal, threading\nos.kill(os.getpid(), signal.{name})\nthreading.main_thread().join()\n"
        "print('imported', flush=True)\nraise OSError('too late')\n"
    )
    ended = outcrop_with_torch(tmp_path, torch, "train", linked(tmp_path), "--mode", "packed", *COMMAND)
    status = 128 + signal.Signals[name]
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, "imported\n", GO_ON)


def test_an_error_of_importing_torch_ends_the_command(tmp_path: Path) -> None:
    """What was prepared meanwhile stays, for the next time."""
    graph = linked(tmp_path)
    ended = outcrop_with_torch(tmp_path, "raise OSError('libgomp is missing')\n", "train", graph, *COMMAND)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "error: libgomp is missing\n")
    assert (tmp_path / "g.run" / "run.json").is_file()


def test_a_dry_run_does_without_torch(tmp_path: Path) -> None:
    ended = outcrop_with_torch(tmp_path, "raise OSError\n", "train", linked(tmp_path), "--dry-run", *COMMAND)
    assert (ended.returncode, ended.stderr) == (0, "")


CHOOSING = """
from outcrop.cli.start import run
from outcrop.runtime.hardware import Disk, Hardware
from outcrop.training import request, spool
request._SMALL_BYTES = spool.LEAST_BYTES = 0
spool.WORTH_MEASURING = 0.0, 1.0  # of a small graph nothing takes seconds
spool.auto.missing_share = lambda *_: 1.0  # as of a graph larger than memory
spool.machine.rough_hardware = lambda _: Hardware("here", Disk("here", ((4096, {seeks}), (1 << 20, 1e4))))
run()
"""


@pytest.mark.parametrize(("seeks", "needs_torch"), [("1", False), ("1e9", True)])
def test_choosing_the_mode_measures_a_step_where_it_may_matter_alone(
    tmp_path: Path, seeks: str, needs_torch: bool
) -> None:
    """Where reading rows directly cannot be sooner done, torch comes while batches are prepared."""
    graph = small_graph(tmp_path / "g").path
    options = ("--memory", "4MiB", "--dry-run", "--json", "-", *COMMAND)
    program = ("-c", CHOOSING.format(seeks=seeks))
    torch = "raise OSError('torch is loaded')\n"
    ended = outcrop_with_torch(tmp_path, torch, "train", graph, *options, program=program)
    if needs_torch:
        assert (ended.returncode, ended.stderr) == (1, "error: torch is loaded\n")
    else:
        assert json.loads(ended.stdout)["mode"] == "packed", ended.stderr
