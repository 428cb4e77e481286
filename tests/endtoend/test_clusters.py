"""The files of examples/cluster do what they say, on one machine: what they learn is what one process learns.

Slurm is played by commands of its names over two network namespaces with names of their own, pods by processes that
have the variables of pods, machines of Ray by raylets.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import manifests
import outcrop as oc
from artifact_support import tree
from machines import Jobs, Machine, ending_all, eventually, ip, two_machines
from manifests import CLUSTER
from outcrop.nn import checkpoint as checkpoints
from outcrop.store.tensors import digest
from raylets import Cluster, environment

pytestmark = pytest.mark.slow
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "OMP_NUM_THREADS": "2",  # so that ranks and one process take as many, on any machine
    "GLOO_SOCKET_IFNAME": "lo",
}
BATCHES, EPOCHS = 6, 2


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    with ending_all(tmp_path) as made:
        yield made


@pytest.fixture
def machines() -> Iterator[tuple[Machine, Machine]]:
    with two_machines() as made:
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all machines see, with six batches an epoch of the size that is usual."""
    folder, rng = tmp_path_factory.mktemp("shared"), np.random.default_rng(0)
    labels = rng.integers(0, 3, 9000)
    features = rng.normal(size=(9000, 16)).astype(np.float32)
    parts = {"edges": rng.integers(0, 9000, (30000, 2)), "features": features, "labels": labels}
    splits = {"train": np.arange(6000), "valid": np.arange(6000, 7000), "test": np.arange(7000, 8000)}
    oc.import_graph(parts, folder / "my.oc", splits=splits, progress=False)
    return folder


def found_in(checkpoint: Path) -> dict[str, Any]:
    last = checkpoints.read(checkpoint / checkpoints.LAST)
    assert last.meta.epochs_done == EPOCHS
    losses = [record["loss"] for record in last.meta.history]
    return {"weights": digest(last.model), "optimizer": digest(last.optimizer), "losses": losses}


def ended(command: list[str], **variables: str) -> None:
    done = subprocess.run(command, env=ENVIRONMENT | variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def want(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What one process learns with the batches a step of two processes, and of four."""
    folder = tmp_path_factory.mktemp("one")
    ended(["outcrop", "prepare", str(shared / "my.oc"), str(folder / "my.run"), "--fanouts", "10,10"])
    learn = ["outcrop", "train", str(shared / "my.oc"), "--run", str(folder / "my.run"), "--epochs", "2"]
    for steps in ("2", "4"):
        ended([*learn, "--accumulate", steps, "--checkpoint", str(folder / steps)])
    return {steps: found_in(folder / steps) for steps in ("2", "4")}


def test_one_machine_trains_what_one_process_does(
    shared: Path, tmp_path: Path, want: dict[str, dict[str, Any]]
) -> None:
    run, ckpt = tmp_path / "my.run", tmp_path / "ckpt"
    script = ["bash", str(CLUSTER / "one_machine.sh"), str(shared / "my.oc"), str(run), str(ckpt)]
    ended([*script, "--epochs", "2"], CUDA_VISIBLE_DEVICES="")
    assert found_in(ckpt) == want["2"]


def placed(text: str, shared: Path, local: Path) -> str:
    """What a file says, with folders of this test, on the CPU, and two epochs long."""
    for said, here in (
        (r"/shared\b", str(shared)),
        (r"/local\b", str(local)),
        (r"\bcuda\b", "cpu"),
        (r"--epochs 20", f"--epochs {EPOCHS}"),
        (r"--checkpoint-minutes 10", "--checkpoint-minutes 0"),
    ):
        text = re.sub(said, here, text)
    return text


def view(folder: Path, shared: Path) -> Path:
    """A folder beside others that has the same graph."""
    folder.mkdir()
    (folder / "my.oc").symlink_to(shared / "my.oc")
    return folder


PODS = {
    "jobset.yaml": ("JOB_COMPLETION_INDEX", {}),
    "trainjob.yaml": (
        "PET_NODE_RANK",
        {
            "PET_NNODES": "2",
            "PET_NPROC_PER_NODE": "2",
            "PET_MASTER_ADDR": "127.0.0.1",
            "PET_MASTER_PORT": "29411",
        },
    ),
}


@pytest.mark.parametrize("name", list(PODS))
def test_pods_train_what_one_process_does(
    shared: Path,
    tmp_path: Path,
    jobs: Jobs,
    want: dict[str, dict[str, Any]],
    name: str,
) -> None:
    """Containers in their order, the last in two pods at a time; their disk is the same."""
    common, (index, given) = view(tmp_path / "shared", shared), PODS[name]
    documents = manifests.documents(name)
    every = [one for document in documents for one in manifests.containers(document)]
    *first, train = every
    words = train.words
    if not words:  # the job has them
        assert train.name == "node"
        trainer = documents[-1]["spec"]["trainer"]
        words = [*trainer["command"], *trainer["args"]]
    if name == "trainjob.yaml":
        ended(["outcrop", "prepare", str(common / "my.oc"), str(common / "my.run"), "--fanouts", "10,10"])

    def start(words: list[str]) -> list[str]:
        line = placed(shlex.join(words), common, tmp_path / "local")
        return shlex.split(line.replace("outcrop-node-0-0.outcrop", "127.0.0.1").replace("29400", "29410"))

    for container in first:
        ended(start(container.words))
    pods = [
        jobs.start(
            f"pod{pod}",
            start(words),
            **(ENVIRONMENT | train.env | given | {index: str(pod)}),
        )
        for pod in (0, 1)
    ]
    for pod in pods:
        jobs.wait(pod)
    assert found_in(common / "checkpoint") == want["4"]


SRUN = """#!/bin/bash
# Plays srun: runs a command on all nodes at once, or on one; a node is a network namespace with a name of its own.
nodes=2
while [[ $1 == -* ]]; do
  case $1 in --nodes=*) nodes=${1#*=} ;; --ntasks=* | --kill-on-bad-exit=1) ;; *) exit 64 ;; esac
  shift
done
on() {
  # shellcheck disable=SC2016
  GLOO_SOCKET_IFNAME=$3 exec ip netns exec "$2" unshare --uts --mount sh -c '
    hostname "$0" && mount --bind "$PLAY/hosts" /etc/hosts && mkdir -p "$PLAY/local" "$PLAY/disk-$0" &&
    mount --bind "$PLAY/disk-$0" "$PLAY/local" && exec "$@"' "$1" "${@:4}"
}
status=0 steps=()
on node0 "$NODE0" "$WIRE0" "$@" & steps+=($!)
[[ $nodes == 1 ]] || { on node1 "$NODE1" "$WIRE1" "$@" & steps+=($!); }
trap 'kill -9 "${steps[@]}" 2>/dev/null' TERM
for step in "${steps[@]}"; do wait "$step" || status=$?; done
exit $status
"""
SCONTROL = """#!/bin/bash
case $1 in
  show) [[ $2 == hostnames && $3 == "node[0-1]" ]] && printf 'node0\\nnode1\\n' ;;
  requeue) echo "$2" >>"$PLAY/requeued" ;;
  *) exit 64 ;;
esac
"""


class Slurm:
    """Runs jobs as Slurm does, on two machines that a wire joins."""

    def __init__(self, folder: Path, nodes: tuple[Machine, Machine], jobs: Jobs, script: str):
        self._jobs, self._script, self._restarts = jobs, folder / "job.sh", 0
        self._script.write_text(script)
        (folder / "bin").mkdir()
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        (folder / "hosts").write_text(
            "127.0.0.1 localhost\n" + "".join(f"{node.address} node{n}\n" for n, node in enumerate(nodes))
        )
        self._variables = ENVIRONMENT | {
            "PATH": f"{folder / 'bin'}{os.pathsep}{ENVIRONMENT['PATH']}",
            "PLAY": str(folder),
            "SLURM_NNODES": "2",
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "node[0-1]",
            **{f"NODE{n}": node.name for n, node in enumerate(nodes)},
            **{f"WIRE{n}": node.device for n, node in enumerate(nodes)},
        }

    def begin(self) -> subprocess.Popen[bytes]:
        variables = self._variables | ({"SLURM_RESTART_COUNT": str(self._restarts)} if self._restarts else {})
        self._restarts += 1
        return self._jobs.start(f"job{self._restarts}", ["bash", str(self._script)], **variables)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces")
def test_slurm_trains_what_one_process_does_also_where_its_time_ends(
    shared: Path,
    tmp_path: Path,
    machines: tuple[Machine, Machine],
    jobs: Jobs,
    want: dict[str, dict[str, Any]],
) -> None:
    common = view(tmp_path / "shared", shared)
    script = placed((CLUSTER / "slurm.sbatch").read_text(), common, tmp_path / "local")
    slurm = Slurm(tmp_path, machines, jobs, script)
    job = slurm.begin()
    last = common / "checkpoint" / checkpoints.LAST
    eventually(lambda: last.exists() or job.poll() is not None, 200, "no checkpoint was written")
    assert job.poll() is None, jobs.said()
    os.kill(job.pid, signal.SIGUSR1)
    assert job.wait(20) == 128 + signal.SIGUSR1, jobs.said()
    assert (tmp_path / "requeued").read_text() == "7\n"
    for machine in machines:  # as Slurm ends a job before it starts it again
        for pid in ip("netns", "pids", machine.name).split():
            os.kill(int(pid), signal.SIGKILL)
    assert checkpoints.read(last).meta.epochs_done < EPOCHS
    jobs.wait(slurm.begin())
    assert found_in(common / "checkpoint") == want["4"]
    assert sorted(path.name for path in tmp_path.glob("disk-node*/*")) == [
        "my.oc",
        "my.oc",
        "my.run",
        "my.run",
    ]
    assert (tmp_path / "requeued").read_text() == "7\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster(3)
    yield made
    made.close()


@pytest.mark.parametrize("name", ["rayjob.yaml", "ray-machines.yaml"])
def test_machines_of_ray_prepare_what_one_process_does(
    shared: Path, tmp_path: Path, cluster: Cluster, name: str
) -> None:
    common = view(tmp_path / "shared", shared)
    (document,) = manifests.documents(name)
    if name == "rayjob.yaml":
        words = shlex.split(document["spec"]["entrypoint"])
    else:
        head = (CLUSTER / name).read_text()
        (said,) = re.findall(r"#     ray exec \S+ '([^']+)'", head)
        words = shlex.split(said.replace("#", " ").replace("/opt/outcrop/bin/", ""))
    words = shlex.split(placed(shlex.join(words), common, tmp_path / "local"))
    assert words[-2:] == ["--ray", "auto"]
    variables = environment() | {"PATH": ENVIRONMENT["PATH"]}
    done = subprocess.run(
        [*words[:-1], cluster.address], env=variables, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    alone = [str(tmp_path / "one.run") if word.endswith("my.run") else word for word in words[:-2]]
    ended(alone)
    several, one = tree(common / "my.run"), tree(tmp_path / "one.run")
    assert several.pop("run.json") != one.pop("run.json")  # which says where the graph is
    assert several == one
