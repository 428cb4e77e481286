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


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of ``language`` in a Markdown text."""
    return [code for name, code in re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL) if name == language]


def main(readme: Path, torch: bool) -> None:
    import outcrop
    from outcrop import _core, testing

    print(f"outcrop {outcrop.__version__} in {Path(outcrop.__file__).parent}, {Path(_core.__file__).name}")
    assert _core.built_with_uring, "this wheel was built without io_uring"
    folder = Path(tempfile.mkdtemp(dir=Path.cwd()))
    testing.write_mydata(folder / "mydata")
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
