"""The code in README runs as it is written, on a new user's own Parquet edges and NumPy features."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outcrop import _core
from support import REPOSITORY

README = (REPOSITORY / "README.md").read_text()
NODES, CLASSES = 3000, 4


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """An empty folder with ``mydata``, whose labels show in the neighbourhood."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, NODES)
    src = rng.integers(0, NODES, 40_000)
    same = np.argsort(labels, kind="stable")
    dst = np.where(rng.random(len(src)) < 0.8, same[np.searchsorted(labels[same], labels[src])], 0)
    dst = (dst + rng.integers(0, NODES // CLASSES // 2, len(src))) % NODES
    data = tmp_path / "mydata"
    data.mkdir()
    pq.write_table(pa.table({"src": src, "dst": dst}), data / "edges.parquet")
    features = rng.standard_normal((NODES, 100), np.float32)
    features[:, :CLASSES] += 4 * np.eye(CLASSES, dtype=np.float32)[labels]
    np.save(data / "features.npy", features)
    np.save(data / "labels.npy", labels)
    order = rng.permutation(NODES)
    for name, part in zip(("train", "valid", "test"), np.split(order, [1500, 2200]), strict=True):
        np.save(data / f"{name}.npy", part)
    return tmp_path


def blocks(language: str) -> list[str]:
    return [text for name, text in re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL) if name == language]


def run(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(_core.__file__).parents[1])}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_python_blocks(workplace: Path) -> None:
    first, own_loop = blocks("python")
    printed = run([sys.executable, "-W", "error::RuntimeWarning", "-c", first], workplace)
    accuracy, peak = printed.split()
    assert float(accuracy) > 0.8
    assert 0 < int(peak) <= 64 << 20
    assert (workplace / "my.oc" / "manifest.json").is_file()
    run([sys.executable, "-c", own_loop + "\nprint(loss.item())"], workplace)
    assert (workplace / "my.run" / "pack" / "manifest.json").is_file()


def commands() -> list[str]:
    return [line for block in blocks("") for line in block.splitlines() if line.startswith("outcrop ")]


def is_about_embeddings(line: str) -> bool:
    return "embed" in line or "triples:" in line


def is_about_planning(line: str) -> bool:
    """Measures the machine first: tests/unit/test_advisor.py has these."""
    return "doctor" in line or "advise" in line or "auto" in line


def test_commands_of_embeddings(tmp_path: Path) -> None:
    folder = tmp_path / "FB15k-237"
    folder.mkdir()
    edges = [f"/m/{i}\tnext\t/m/{(i + 1) % 40}\n/m/0f8l9c\tknows\t/m/{i}\n" for i in range(40)]
    (folder / "train.txt").write_text("".join(edges))
    (folder / "test.txt").write_text("/m/3\tnext\t/m/9\n")
    lines = [line for line in commands() if is_about_embeddings(line)]
    assert len(lines) == 6
    printed = {}
    for line in lines:
        words = shlex.split(line, comments=True)
        printed[words[2]] = run([sys.executable, "-m", *words], tmp_path)
    assert "MRR" in printed["eval"]
    assert "nearest to /m/0f8l9c" in printed["neighbours"]
    assert (tmp_path / "fb.emb" / "export" / "entities.parquet").is_file()


def test_commands(workplace: Path) -> None:
    lines = [line for line in commands() if not is_about_embeddings(line)]
    assert sum(map(is_about_planning, lines)) == 4
    lines = [line for line in lines if not is_about_planning(line)]
    assert len(lines) == 3
    for line in lines:
        printed = run([sys.executable, "-m", *shlex.split(line)], workplace)
    assert "test accuracy" in printed
    assert (workplace / "ckpt" / "last.safetensors").is_file()
