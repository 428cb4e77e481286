"""Runs what README tells a new user to do, on made-up data, with the ``outcrop`` of this Python: of an installed wheel.

    python quickstart.py README.md [--without-torch]

works in a new folder below the current one. Needs nothing but what Outcrop itself needs; without torch, graphs are
made, imported, prepared and verified.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

NODES, CLASSES = 3000, 4


def make_data(folder: Path) -> None:
    """Writes ``folder/mydata``: Parquet edges, features, labels that show in the neighbourhood, splits."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, NODES)
    src = rng.integers(0, NODES, 40_000)
    same = np.argsort(labels, kind="stable")
    dst = np.where(rng.random(len(src)) < 0.8, same[np.searchsorted(labels[same], labels[src])], 0)
    dst = (dst + rng.integers(0, NODES // CLASSES // 2, len(src))) % NODES
    data = folder / "mydata"
    data.mkdir()
    pq.write_table(pa.table({"src": src, "dst": dst}), data / "edges.parquet")
    features = rng.standard_normal((NODES, 100), np.float32)
    features[:, :CLASSES] += 4 * np.eye(CLASSES, dtype=np.float32)[labels]
    np.save(data / "features.npy", features)
    np.save(data / "labels.npy", labels)
    order = rng.permutation(NODES)
    for name, part in zip(("train", "valid", "test"), np.split(order, [1500, 2200]), strict=True):
        np.save(data / f"{name}.npy", part)


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of ``language`` in a Markdown text."""
    return [code for name, code in re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL) if name == language]


def main(readme: Path, torch: bool) -> None:
    import outcrop
    from outcrop import _core

    print(f"outcrop {outcrop.__version__} in {Path(outcrop.__file__).parent}, {Path(_core.__file__).name}")
    assert _core.built_with_uring, "this wheel was built without io_uring"
    folder = Path(tempfile.mkdtemp(dir=Path.cwd()))
    make_data(folder)
    commands = [
        "outcrop generate made.oc --nodes 20000 --edges 300000 --features 100",
        "outcrop import arrays:mydata imported.oc --memory 64MiB",
        "outcrop prepare imported.oc imported.run --fanouts 5,5 --batch-size 256 --epochs 2 --memory 64MiB",
        "outcrop verify imported.oc",
        "outcrop verify made.oc",
    ]
    if torch:
        for code in blocks(readme.read_text(), "python"):
            subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
        commands.append("outcrop infer my.oc --checkpoint ckpt --out scores.npy --memory 64MiB")
    for command in commands:
        subprocess.run(shlex.split(command), cwd=folder, check=True)
    print("the quick start works")


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--without-torch" not in sys.argv)
