"""The code of docs/tutorial.md runs as it is written, twice: a script is run again and again."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from outcrop import _core
from support import REPOSITORY, script

PAGE = (REPOSITORY / "docs" / "tutorial.md").read_text()


def run(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(_core.__file__).parents[1])}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_tutorial_runs_again_and_again(tmp_path: Path) -> None:
    quickstart = script("quickstart")
    (made,) = quickstart.blocks(PAGE, "")
    run([sys.executable, *shlex.split(made)[1:]], tmp_path)
    code = "\n".join(quickstart.blocks(PAGE, "python"))
    checks = "\nassert log.last_rate > 0\nassert best > 0.7\nprint(result.epochs[-1]['loss'])"
    first, second = (
        run([sys.executable, "-W", "error::UserWarning", "-c", code + checks], tmp_path) for _ in range(2)
    )
    # What was trained is not trained again: the same epochs, the same last loss.
    assert first.splitlines()[0] == second.splitlines()[0]
    assert first.splitlines()[-1] == second.splitlines()[-1]
    assert re.search(r"epoch 1: loss \d\.\d{3}, validation 0\.\d{3}", first)
    assert "training ended early" in first, "the page shows what patience does"
    # The table at the end names all that lies there.
    folders = set(re.findall(r"^\| `([\w.]+)` \|", PAGE, re.MULTILINE))
    assert folders == {path.name for path in tmp_path.iterdir() if path.is_dir()} - {"mydata"}
