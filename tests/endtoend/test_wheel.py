"""What is published: the files of wheel and sdist, and what they say of themselves. Nothing is compiled here."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

import outcrop
from support import REPOSITORY

pytest.importorskip("scikit_build_core", reason="no build tools here")
BUILD = """
import sys
from scikit_build_core import build
print(build.build_sdist(sys.argv[1]))
print(build.build_wheel(sys.argv[1], {"wheel.cmake": "false", "wheel.py-api": "py3"}))
"""


def tracked(*places: str) -> set[str]:
    """Files under version control below ``places``."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *places], cwd=REPOSITORY, capture_output=True, check=False, text=True
    )
    if listed.returncode != 0:
        pytest.skip("no checkout of git here")
    return {name for name in listed.stdout.split("\0") if (REPOSITORY / name).is_file()}


@pytest.mark.slow
def test_wheel_and_sdist_hold_what_they_should(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(tmp_path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]

    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        files = set(wheel.namelist())
        (about,) = (name for name in files if name.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(wheel.read(about).decode())
        folder = about.rpartition("/")[0]
        assert b"outcrop.cli.start:run" in wheel.read(f"{folder}/entry_points.txt")
        stated = {name for name in files if not name.startswith(folder)}
    expected = {name.removeprefix("src/") for name in tracked("src/outcrop")}
    assert stated - {"outcrop/_core.pyi"} == expected  # the stub is made by building
    assert "outcrop/py.typed" in stated
    assert {f"{folder}/licenses/LICENSE", f"{folder}/licenses/THIRD-PARTY.txt"} <= files

    assert (metadata["Name"], metadata["Version"]) == ("outcrop", outcrop.__version__)
    assert metadata["License-Expression"] == "Apache-2.0 AND MIT AND BSD-3-Clause"
    for field in ("Summary", "Keywords", "Author", "Requires-Python"):
        assert metadata[field], field
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    text = metadata.get_payload()
    assert isinstance(text, str)
    assert "pip install" in text
    assert "](docs/" not in text  # what is relative leads nowhere on an index
    assert "](ARCHITECTURE" not in text

    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as sdist:
        inside = {name.partition("/")[2] for name in sdist.getnames()}
    needed = tracked(
        "src", "tests", "scripts", "docs", "CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE"
    )
    assert needed <= inside
    hidden = [
        name for name in inside if name.startswith(".") or "__pycache__" in name or name.endswith(".so")
    ]
    assert hidden == []
    assert not any(name.startswith("benchmarks/results") for name in inside)
