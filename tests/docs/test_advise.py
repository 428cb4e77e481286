"""The files that docs/advise.md shows are read, and whatever is built in is on the page and in the command's help."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from artifact_support import small_graph
from outcrop.advisor import hardware
from outcrop.advisor.described import SHIPPED, read_description
from outcrop.cli.advise import MEANINGS
from outcrop.cli.main import app
from support import REPOSITORY, script

PAGE = (REPOSITORY / "docs" / "advise.md").read_text()


def test_the_files_on_the_page_are_read(tmp_path: Path) -> None:
    texts = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    for text in texts:
        name = text.splitlines()[0].removeprefix("# ")
        (tmp_path / name).write_text(text)
    machine = hardware.read_machine(tmp_path / "server.toml")
    assert machine.gpu is not None
    assert (machine.memory_bytes, machine.disks, machine.most_disks) == (128 * 2**30, 2, 8)
    assert (machine.disk.name, machine.gpu.name, machine.gpu.memory_bytes) == ("nvme", "rtx", 24 * 10**9)
    prices = hardware.read_prices(tmp_path / "shop.toml")
    assert (prices.currency, prices.of("disk", "nvme"), prices.of("gpu", "rtx")) == ("EUR", 150, 1800)
    described = read_description(tmp_path / "shop.graph.toml")
    assert (described.graph.name, described.train, described.sampling.fanouts) == (
        "shop.graph",
        1_000_000,
        (15, 10),
    )
    assert [of.skew for of in described.graph.nodes] == [0.5, 0.3]
    assert described.graph.near == 0.3


def test_the_call_on_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small_graph(tmp_path / "my.oc")
    machine_text, *_ = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    Path("server.toml").write_text(machine_text)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(code, {})
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert rows == [[name, mode] for name in ("here", "server", "A") for mode in ("packed", "online")]


def test_what_is_built_in_is_named() -> None:
    built_in = {path.stem for path in hardware.EXAMPLES.glob("*.toml")}
    assert built_in == {"machine-a", "machine-a-980pro", "machine-b", "machine-c", "prices", "workstation"}
    said = " ".join(CliRunner().invoke(app, ["advise", "--help"]).stdout.replace("│", " ").split())
    described = {path.stem for path in SHIPPED.glob("*.toml")}
    for name in built_in | described:
        assert f"`{name}`" in PAGE or f"--prices {name}" in PAGE
        assert name in said


def test_options_on_the_page_exist() -> None:
    said = CliRunner().invoke(app, ["advise", "--help"], env={"COLUMNS": "200"}).stdout
    lines = [line for line in PAGE.splitlines() if line.startswith("outcrop advise")]
    assert lines
    for line in lines:
        for word in shlex.split(line, comments=True):
            assert not word.startswith("--") or f"{word} " in said, word


def test_columns_are_explained_on_the_page_and_in_the_output(tmp_path: Path) -> None:
    on_page = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE, re.MULTILINE))
    assert on_page == MEANINGS
    graph = small_graph(tmp_path / "g")
    command = ["advise", str(graph.path), "--fanouts", "3,3", "--machine", "machine-a", "--prices", "prices"]
    told = re.sub("[│┃]", " ", CliRunner().invoke(app, command).stdout)
    headings = next(line for line in told.splitlines() if line.split()[:1] == ["machine"]).split()
    said = " ".join(told.split())  # lines are broken where the terminal ends
    assert set(MEANINGS) == set(headings) - {"machine", "mode"}
    for name, meaning in MEANINGS.items():
        assert f"{name} {meaning}" in said
    assert "with 1 disk a unit of money trains on most nodes" in said


def test_plans_on_the_page_are_of_what_ships() -> None:
    """The table is that of the plans, and these are of the descriptions as they are now."""
    result = json.loads((REPOSITORY / "benchmarks" / "results" / "described.json").read_text())
    made = script("described")
    assert (result["columns"], result["rows"]) == made.columns_and_rows(result["plans"])
    for plan in result["plans"]:
        of = read_description(plan["described"])
        assert plan["graph"]["edges"] == of.graph.num_edges
        assert plan["setting"]["fanouts"] == list(of.sampling.fanouts)
        tried = result["unevenness"][plan["described"]]["generated"][0]
        assert tried["near"] == of.graph.near
        assert {tried["skew"]} == {one.skew for one in of.graph.nodes}
