"""The commands of docs/object-stores.md run, one after another, with a folder and with an S3 server as the store."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import outcrop as oc
from store_support import Store
from support import REPOSITORY

PAGE = (REPOSITORY / "docs" / "object-stores.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
pytestmark = pytest.mark.leaks("thread", "fd", reason="the library of S3 keeps a thread and connections")


@pytest.mark.slow
def test_the_page_runs(store: Store, tmp_path: Path) -> None:
    from outcrop.store.remote import RemoteFolder

    rng, data = np.random.default_rng(0), tmp_path / "data"
    data.mkdir()
    np.save(data / "edges.npy", rng.integers(0, 300, (2000, 2)))
    np.save(data / "features.npy", rng.normal(size=(300, 8)).astype(np.float32))
    np.save(data / "labels.npy", rng.integers(0, 3, 300))
    np.save(data / "train.npy", np.arange(150))
    np.save(data / "test.npy", np.arange(150, 200))
    for path in data.iterdir():
        RemoteFolder(store("data")).send(path.name, path)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OUTCROP_CACHE": str(tmp_path / "cache"),
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }
    work = tmp_path / "work"
    work.mkdir()
    said = []
    for block in BLOCKS:
        text = re.sub(r"(arrays:)?s3://bucket/(\S+)", lambda m: f"'{m[1] or ''}{store(m[2])}'", block)
        done = subprocess.run(
            ["bash", "-e", "-c", text], cwd=work, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        said.append(" ".join((done.stdout + done.stderr).split()))
    digests = {oc.open_graph(work / name).digest() for name in ("my.oc", "here/my.oc", "lean/my.oc")}
    assert len(digests) == 1
    assert "the test nodes are not scored" in said[2]
    assert "went on after 2 epochs of the checkpoint" in said[3]
    assert "every checksum right" in said[4]
    assert len(np.load(work / "predictions.npy")) == 300
    oc.fetch(store("copy.oc"), work / "copy.oc", observer=oc.Observer(progress=False))
    assert oc.open_graph(work / "copy.oc").digest() in digests


def test_options_on_the_page_are_those_of_the_commands() -> None:
    used = {
        (command, flag)
        for block in BLOCKS
        for command, rest in re.findall(r"outcrop (\w+)([^\n]*)", block)
        for flag in re.findall(r"(--[a-z-]+)", rest)
    }
    assert len(used) > 6
    for command in sorted({command for command, _ in used}):
        done = subprocess.run(
            [sys.executable, "-m", "outcrop", command, "--help"],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "COLUMNS": "200"},
        )
        missing = [flag for of, flag in used if of == command and flag not in done.stdout]
        assert missing == [], command
