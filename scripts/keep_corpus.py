#!/usr/bin/env python3
"""Keeps what a fuzz target has found as a small corpus: of all inputs the few that reach the most.

    scripts/keep_corpus.py KEPT FOUND TARGET...

TARGET is a command that takes options of libFuzzer. Inputs of the folders KEPT and FOUND are looked at, each alone
(``-set_cover_merge=1`` of Clang 13 or newer writes down all that it reaches); then the input is taken that adds the
most, and so on, until nothing is added or there are MOST of them. KEPT has these alone afterwards, named by their
content.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

MOST = 16
MOST_BYTES = 2048  # of an input


def main() -> None:
    kept, found, *target = sys.argv[1:]
    with tempfile.TemporaryDirectory() as made:
        control, merged = Path(made) / "control", Path(made) / "merged"
        merged.mkdir()
        command = [*target, "-set_cover_merge=1", f"-merge_control_file={control}", str(merged), kept, found]
        subprocess.run(command, check=True)
        chosen = choose(*read_control(control.read_text()))
    contents = [path.read_bytes() for path in chosen]
    for old in Path(kept).iterdir():
        old.unlink()
    for content in contents:
        (Path(kept) / hashlib.sha1(content).hexdigest()[:12]).write_bytes(content)
    print(f"{kept}: {len(contents)} inputs, {sum(map(len, contents))} bytes")


def read_control(text: str) -> tuple[list[Path], list[set[int]]]:
    """Reads which files were looked at, and which features each has reached: the numbers in its line ``FT``."""
    lines = text.splitlines()
    count = int(lines[0])
    paths, reached = [Path(line) for line in lines[2 : 2 + count]], [set() for _ in range(count)]
    for line in lines[2 + count :]:
        kind, number, *features = line.split()
        if kind == "FT":
            reached[int(number)] = set(map(int, features))
    return paths, reached


def choose(paths: list[Path], reached: list[set[int]]) -> list[Path]:
    """Returns the inputs that add the most, one after the other; of equal ones the shortest, then the first by name."""
    left = [
        (path.stat().st_size, path, features)
        for path, features in zip(paths, reached, strict=True)
        if path.stat().st_size <= MOST_BYTES
    ]
    chosen: list[Path] = []
    have: set[int] = set()
    while len(chosen) < MOST and left:
        size, path, features = min(left, key=lambda one: (-len(one[2] - have), one[0], one[1].name))
        if not features - have:
            break
        have |= features
        chosen.append(path)
        left.remove((size, path, features))
    return chosen


if __name__ == "__main__":
    main()
