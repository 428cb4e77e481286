"""The commands of docs/several-processes.md: those of one machine run, those of several are read by the shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import outcrop as oc
from support import REPOSITORY

PAGE = (REPOSITORY / "docs" / "several-processes.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "MASTER_PORT": "29517",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made, rng = tmp_path_factory.mktemp("page"), np.random.default_rng(0)
    parts = {
        "edges": rng.integers(0, 300, (2000, 2)),
        "features": rng.normal(size=(300, 8)).astype(np.float32),
        "labels": rng.integers(0, 3, 300),
    }
    oc.import_graph(parts, made / "my.oc", splits={"train": np.arange(150)}, progress=False)
    return made


def shell(text: str, folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-e", "-c", text], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_commands_of_one_machine_and_of_stores_run(folder: Path) -> None:
    (train,) = (block for block in BLOCKS if "--processes 2" in block)
    said = shell(train.replace("--nproc-per-node=2", "--standalone --nproc-per-node=2"), folder)
    assert "best epoch" in said
    assert (folder / "ckpt" / "best.safetensors").is_file()
    (copy,) = (block for block in BLOCKS if "outcrop upload my.oc" in block)
    assert "s3://bucket" in copy
    shell(copy.replace("s3://bucket", f"file://{folder}/store").replace("/data/", f"{folder}/data/"), folder)
    assert oc.open_run(folder / "data" / "my.run").graph.digest() == oc.open_graph(folder / "my.oc").digest()


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_every_block_is_shell(block: str) -> None:
    done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_options_of_commands_are_there() -> None:
    """Of ``outcrop`` and of ``torchrun``."""
    helps = {
        name: subprocess.run(
            [sys.executable, "-m", *command, "--help"], capture_output=True, text=True
        ).stdout
        for name, command in (
            ("train", ("outcrop", "train")),
            ("prepare", ("outcrop", "prepare")),
            ("fetch", ("outcrop", "fetch")),
            ("embed train", ("outcrop", "embed", "train")),
            ("embed eval", ("outcrop", "embed", "eval")),
            ("torchrun", ("torch.distributed.run",)),
        )
    }
    known = "".join(helps.values())
    used = {
        option
        for block in BLOCKS
        for line in block.splitlines()
        if not line.startswith("#")
        for option in re.findall(r"--[a-z][a-z-]+", line)
    }
    assert len(used) > 8
    assert [option for option in sorted(used) if option not in known] == []
