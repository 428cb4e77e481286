"""scripts/keep_corpus.py: of all inputs of a search the few that reach the most."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from support import REPOSITORY

# Stands for a target: reaches of an input what its bytes are.
TARGET = """#!{python}
import sys
from pathlib import Path
control = next(a.split("=")[1] for a in sys.argv if a.startswith("-merge_control_file="))
merged, *folders = sys.argv[-3:]
assert not list(Path(merged).iterdir())
files = sorted(path for folder in folders for path in Path(folder).iterdir())
lines = [str(len(files)), "0", *map(str, files)]
for number, path in enumerate(files):
    reached = sorted(set(path.read_bytes()))
    lines += [f"STARTED {{number}} 1", f"FT {{number}} " + " ".join(map(str, reached)), f"COV {{number}} 1"]
Path(control).write_text("\\n".join(lines) + "\\n")
"""


def keep(tmp_path: Path, old: list[bytes], new: list[bytes]) -> set[bytes]:
    kept, found, target = tmp_path / "kept", tmp_path / "found", tmp_path / "target"
    for folder, contents in ((kept, old), (found, new)):
        folder.mkdir()
        for number, content in enumerate(contents):
            (folder / f"input-{number}").write_bytes(content)
    target.write_text(TARGET.format(python=sys.executable))
    os.chmod(target, 0o755)
    script = REPOSITORY / "scripts" / "keep_corpus.py"
    subprocess.run([sys.executable, script, kept, found, target], check=True, capture_output=True)
    contents = {path.name: path.read_bytes() for path in kept.iterdir()}
    assert {hashlib.sha1(content).hexdigest()[:12] for content in contents.values()} == set(contents)
    return set(contents.values())


def test_what_adds_nothing_goes(tmp_path: Path) -> None:
    assert keep(tmp_path, [b"ab", b"a"], [b"abc", b"cd", b"ccc"]) == {b"abc", b"cd"}


def test_there_are_few_and_none_is_long(tmp_path: Path) -> None:
    many = [bytes([number, number + 1]) for number in range(0, 200, 2)]
    found = keep(tmp_path, [bytes(range(200, 256)) * 100], many)
    assert len(found) == 16
    assert found <= set(many)
