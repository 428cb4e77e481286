"""The code in README runs as it is written, on a new user's own Parquet edges and NumPy features."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from foreign_mag import faithful_mag, write_mag
from outcrop import _core
from support import REPOSITORY, script

README = (REPOSITORY / "README.md").read_text()
quickstart = script("quickstart")


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """An empty folder with ``mydata``, whose labels show in the neighbourhood."""
    run([sys.executable, "-m", "outcrop.testing", "mydata"], tmp_path)
    return tmp_path


def blocks(language: str) -> list[str]:
    return quickstart.blocks(README, language)


def run(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(_core.__file__).parents[1])}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_python_blocks(workplace: Path) -> None:
    first, own_loop, prepared = blocks("python")
    printed = run([sys.executable, "-W", "error::RuntimeWarning", "-c", first], workplace).strip()
    again = run([sys.executable, "-c", first], workplace).strip()  # as people do: nothing is trained anew
    assert again.partition(" accuracy")[2][:5] == printed.partition(" accuracy")[2][:5]
    assert (workplace / "my.oc.run").is_dir()
    (promised,) = blocks("text")
    number = r"\b\d\.\d+|\d+(?= MiB)"  # accuracy, and what is held
    assert re.sub(number, "N", printed) == re.sub(number, "N", promised.strip())
    for found, said, off in zip(
        re.findall(number, printed), re.findall(number, promised), (0.03, 8), strict=True
    ):
        assert float(found) == pytest.approx(float(said), abs=off)
    assert (workplace / "ckpt" / "best.safetensors").is_file()
    assert (workplace / "scores.npy").is_file()
    loops = f"{own_loop}\n{prepared}\nprint(loss.item(), tuple(out.shape))"
    loss, shape = run([sys.executable, "-c", loops], workplace).split(maxsplit=1)
    assert float(loss) < 1
    assert shape.strip().endswith(", 4)")


def test_every_link_leads_somewhere() -> None:
    top = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")
    for page in (*(REPOSITORY / name for name in top), *(REPOSITORY / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if "://" not in target:
                file, _, anchor = target.partition("#")
                linked = (page.parent / file).resolve() if file else page
                assert linked.exists(), f"{page.name}: {target}"
                assert not anchor or anchor in anchors(linked.read_text()), f"{page.name}: {target}"


def anchors(text: str) -> set[str]:
    """Of the headings of a page, as GitHub names them."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def commands() -> list[str]:
    return [line for block in blocks("") for line in block.splitlines() if line.startswith("outcrop ")]


def is_about_embeddings(line: str) -> bool:
    return "embed" in line or "triples:" in line


def is_about_mag(line: str) -> bool:
    return " mag.oc " in line


def is_about_planning(line: str) -> bool:
    """Measures the machine first: tests/unit/advisor/test_advisor.py has these."""
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
    assert "nearest to /m/0f8l9c" in printed["neighbors"]
    assert (tmp_path / "fb.emb" / "export" / "entities.parquet").is_file()


@pytest.mark.slow
def test_commands_of_ogbn_mag(tmp_path: Path) -> None:
    """On a small one of the same form; tests/endtoend/test_ogb_mag.py looks at what they make."""
    write_mag(tmp_path / "dataset" / "ogbn_mag", faithful_mag())
    bring, train = (line for line in commands() if is_about_mag(line))
    assert "8 classes" in run([sys.executable, "-m", *shlex.split(bring, comments=True)], tmp_path)
    printed = run([sys.executable, "-m", *shlex.split(train)], tmp_path)
    assert float(printed.partition("test accuracy")[2].split()[0]) > 0.65  # 0.125 is chance


def test_commands(workplace: Path) -> None:
    lines = [line for line in commands() if not is_about_embeddings(line) and not is_about_mag(line)]
    assert sum(map(is_about_planning, lines)) == 4
    lines = [line for line in lines if not is_about_planning(line)]
    assert len(lines) == 5
    printed = {}
    for line in lines:
        printed[shlex.split(line)[1]] = run([sys.executable, "-m", *shlex.split(line)], workplace)
    assert "test accuracy" in printed["train"]
    assert (workplace / "scores.npy").is_file()
    assert (workplace / "report.html").is_file()
    assert (workplace / "trained" / "last.safetensors").is_file()
