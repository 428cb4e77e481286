"""The files of examples/cluster: manifests hold to their schemas, and every command in them has options that exist."""

from __future__ import annotations

import copy
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import manifests
from manifests import CLUSTER, MANIFESTS
from outcrop.cli.main import app
from outcrop.config.sizes import parse_size
from support import REPOSITORY

SCRIPTS = ("one_machine.sh", "slurm.sbatch")
# Maps of Kubernetes with keys of one's own.
FREE = {"labels", "matchLabels", "limits", "rayStartParams"}
PROCESS_BYTES = 1 << 30  # of Python, torch and a model beside what --memory divides
EVERY = [(name, number) for name in MANIFESTS for number in range(2 if name == "trainjob.yaml" else 1)]


@pytest.mark.parametrize(("name", "number"), EVERY)
def test_a_manifest_is_what_its_schema_says(name: str, number: int) -> None:
    manifests.check(manifests.documents(name)[number])


def paths(found: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there is a key whose name is not one's own."""
    entries = (
        found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    )
    for key, value in entries:
        if isinstance(found, dict) and not (before and before[-1] in FREE):
            yield (*before, key)
        yield from paths(value, (*before, key))


@pytest.mark.parametrize(("name", "number"), [case for case in EVERY if case[0] != "ray-machines.yaml"])
def test_every_misspelt_field_is_refused(name: str, number: int) -> None:
    document = manifests.documents(name)[number]
    manifests.check(document)  # which skips where there are no schemas
    where = [path for path in paths(document) if path != ("kind",)]
    assert len(where) > 8
    for *within, key in where:
        wrong = copy.deepcopy(document)
        place = wrong
        for step in within:
            place = place[step]
        place[f"{key}s"] = place.pop(key)
        if within == ["metadata"] and document["kind"] == "RayJob":
            continue  # of which a class is nowhere
        with pytest.raises((ValueError, KeyError, AttributeError)):
            manifests.check(wrong)


def test_a_misspelt_field_of_a_cluster_of_machines_is_refused() -> None:
    (document,) = manifests.documents("ray-machines.yaml")
    for where, wrong in (((), "worker_start_commands"), (("auth",), "user")):
        changed = copy.deepcopy(document)
        place = changed
        for step in where:
            place = place[step]
        place[wrong] = "no"
        with pytest.raises(ValueError, match=wrong):
            manifests.check(changed)


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_shell(name: str) -> None:
    done = subprocess.run(["bash", "-n", str(CLUSTER / name)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


RECORD = '#!/bin/bash\n{ printf "%%s\\0" "%s" "$@"; printf "\\0"; } >>"$SAID"\n%s'


@pytest.fixture
def recorded(tmp_path: Path) -> dict[str, str]:
    """Variables under which commands of a cluster write their words to a file, and do nothing else."""
    (tmp_path / "bin").mkdir()
    for name, then in (
        ("outcrop", ""),
        ("torchrun", ""),
        ("ray", ""),
        ("scontrol", "echo node0"),
        # Words from the first on that is no option are a command.
        ("srun", 'while [[ $1 == -* ]]; do shift; done\n"$@"'),
        ("nvidia-smi", 'printf "GPU 0: one\\nGPU 1: two\\n"'),
    ):
        (tmp_path / "bin" / name).write_text(RECORD % (name, then))
        (tmp_path / "bin" / name).chmod(0o755)
    return {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "SAID": str(tmp_path / "said"),
        "SLURM_NNODES": "2",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node[0-1]",
        "JOB_COMPLETION_INDEX": "1",
        "RAY_HEAD_IP": "10.0.0.1",
    }


def words_of(command: list[str], environment: dict[str, str]) -> list[list[str]]:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    said = Path(environment["SAID"])
    lines = said.read_text().split("\0\0")[:-1]
    said.unlink()
    return [line.split("\0") for line in lines]


def commands_of(name: str, environment: dict[str, str]) -> list[list[str]]:
    """Words of all commands that a file starts."""
    if name in SCRIPTS:
        arguments = ["my.oc", "my.run", "ckpt", "--epochs", "20"] if name == "one_machine.sh" else []
        return words_of(["bash", str(CLUSTER / name), *arguments], environment)
    found = []
    for document in manifests.documents(name):
        spec = document.get("spec", {})
        starts = [container.words for container in manifests.containers(document) if container.words]
        starts += [shlex.split(spec["entrypoint"])] if "entrypoint" in spec else []
        trainer = spec.get("trainer", {})
        starts += [[*trainer["command"], *trainer["args"]]] if trainer else []
        for key in ("head_start_ray_commands", "worker_start_ray_commands"):
            starts += [
                ["bash", "-ec", line.replace("/opt/outcrop/bin/", "")] for line in document.get(key, ())
            ]
        for words in starts:
            found += words_of(words, environment)
    return found


def parse(words: list[str]) -> None:
    """Has a command's own parser read its words."""
    program, *rest = words
    if program == "outcrop":
        command = get_command(app)
        name, *options = rest
        command.commands[name].make_context(name, options)  # pyright: ignore[reportAttributeAccessIssue]
    elif program == "torchrun":
        from torch.distributed.run import get_args_parser

        known = get_args_parser().parse_args(rest)
        assert known.training_script == "outcrop"
        assert known.module
        assert "--" in rest
        parse(["outcrop", *(word for word in known.training_script_args if word != "--")])


STARTS = {
    "one_machine.sh": ["outcrop prepare", "torchrun --standalone"],
    "slurm.sbatch": ["outcrop prepare", "outcrop fetch", "outcrop fetch", "torchrun --nnodes=2"],
    "jobset.yaml": ["outcrop prepare", "outcrop fetch", "outcrop fetch", "torchrun --nnodes=2"],
    "trainjob.yaml": ["outcrop fetch", "outcrop fetch", "torchrun -m"],
    "rayjob.yaml": ["outcrop prepare"],
    "ray-machines.yaml": ["ray stop", "ray start", "ray stop", "ray start"],
}


@pytest.mark.parametrize("name", [*SCRIPTS, *MANIFESTS])
def test_commands_have_options_that_exist(name: str, recorded: dict[str, str]) -> None:
    found = [words for words in commands_of(name, recorded) if words[0] in ("outcrop", "torchrun", "ray")]
    assert [" ".join(words[:2]) for words in found] == STARTS[name]
    for words in found:
        parse(words)


def test_an_option_that_does_not_exist_is_found() -> None:
    with pytest.raises(Exception, match="--fanout-sizes"):
        parse(["outcrop", "prepare", "a", "b", "--fanout-sizes", "3"])
    with pytest.raises(Exception, match="--checkpoints"):
        parse(["torchrun", "--nnodes=2", "-m", "outcrop", "--", "train", "a", "--checkpoints", "c"])


def test_processes_and_devices_of_one_machine_are_its_gpus(recorded: dict[str, str]) -> None:
    prepare, train = [words for words in commands_of("one_machine.sh", recorded) if words[0] != "nvidia-smi"]
    assert prepare[prepare.index("--processes") + 1] == "2"
    assert "--nproc-per-node=2" in train
    assert train[train.index("--device") + 1] == "cuda"


@pytest.mark.parametrize("name", ["slurm.sbatch", "jobset.yaml", "trainjob.yaml", "rayjob.yaml"])
def test_memory_of_a_machine_holds_what_its_processes_take(name: str, recorded: dict[str, str]) -> None:
    """``--memory`` is divided among the processes of a machine; each takes something beside, and Ray its objects."""
    text = (CLUSTER / name).read_text()
    asked = {
        parse_size(words[words.index("--memory") + 1])
        for words in commands_of(name, recorded)
        if "--memory" in words
    }
    limits = {parse_size(f"{found}iB") for found in re.findall(r"(?:memory: |--mem=)(\d+G)i?", text)}
    stores = {int(found) for found in re.findall(r'object-store-memory: "(\d+)"', text)}
    shared = {parse_size(f"{found}B") for found in re.findall(r"sizeLimit: (\d+Gi)", text)}
    assert len(asked) == len(limits) == 1
    assert max(asked) + 2 * PROCESS_BYTES + max(stores, default=0) + max(shared, default=0) <= min(limits)


def test_every_container_runs_the_image_that_the_dockerfile_makes() -> None:
    made = re.findall(r"--tag (\S+)", (CLUSTER / "Dockerfile").read_text())
    every = {word for name in MANIFESTS for word in re.findall(r"image: (\S+)", (CLUSTER / name).read_text())}
    assert every == set(made)
    for extra in re.findall(r"'outcrop\[(\w+)\]'", (CLUSTER / "Dockerfile").read_text()):
        assert f"\n{extra} = [" in (REPOSITORY / "pyproject.toml").read_text()


@pytest.mark.parametrize("name", [*SCRIPTS, "jobset.yaml", "trainjob.yaml"])
def test_processes_that_are_started_again_find_each_other(name: str) -> None:
    assert re.search(r'TORCH_DISABLE_SHARE_RDZV_TCP_STORE(=|, value: ")1', (CLUSTER / name).read_text())


def test_the_page_names_every_file() -> None:
    page = (REPOSITORY / "docs" / "clusters.md").read_text()
    for path in CLUSTER.iterdir():
        assert f"../examples/cluster/{path.name}" in page, path.name
