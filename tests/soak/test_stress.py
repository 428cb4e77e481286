"""The stress driver itself: seeds draw alike, failures shrink, planted defects are found, files replay."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from artifact_support import child_environment
from outcrop.loading.modes import MODES
from support import REPOSITORY

from .operations import BUILD, COMMANDS, ERRORS, KINDS, SIGNALS, Operation, draw
from .shrink import shrunk
from .world import State, damage

# Cuts what infer has written by a byte, where a run lies in the folder: alone it has none.
PLANTED = """
import atexit, os, sys
@atexit.register
def cut():
    if sys.argv[1:2] == ["infer"] and os.path.isdir("g.run") and os.path.isfile("out.npy"):
        os.truncate("out.npy", os.path.getsize("out.npy") - 1)
"""


def test_a_seed_draws_the_same_sequence() -> None:
    assert draw("a", 40) == draw("a", 40)
    assert draw("a", 40) != draw("b", 40)
    assert draw("a", 40)[:20] == draw("a", 20)


def test_which_damage_must_be_found() -> None:
    def found(**damaged: str) -> bool:
        return State(damaged={name.replace("_", "/"): held for name, held in damaged.items()}).must_be_found

    assert found(**{"manifest.json": "x"})
    assert found(**{"best.safetensors": ""})
    assert found(**{"last.safetensors": "x"})
    assert not found(**{"last.safetensors": ""})
    assert not found(**{"run.json": "x", "tables_tables.bin": "x"})
    assert found(**{"run.json": "x", "indices.bin": "x"})


def test_sequences_have_all_that_there_is() -> None:
    drawn = [one for number in range(400) for one in draw(f"all {number}", 25)]
    assert {one.name for one in drawn} == {"damage", "remove", *COMMANDS}
    assert {one.signal for one in drawn} == {"", *SIGNALS}
    assert {(one.kind, one.error) for one in drawn if one.error} == {
        (kind, error) for kind in KINDS for error in ERRORS[kind]
    }
    assert any(one.beside for one in drawn)
    assert [draw("x", 25)[at].name in ("damage", BUILD[at]) for at in range(3)]


def test_models_of_finished_epochs_are_what_a_training_leaves() -> None:
    steps = COMMANDS["train longer"].steps()
    assert [step.arguments[step.arguments.index("--epochs") + 1] for step in steps] == ["1", "2"]
    assert steps[1].alike == COMMANDS["train packed"].alike
    assert COMMANDS["train partition"].alike != COMMANDS["train packed"].alike
    assert not any(COMMANDS[name].steps() for name in ("import", "prepare", "infer", "verify run"))


def test_every_mode_and_layout_is_there() -> None:
    arguments = [command.arguments for command in COMMANDS.values()]
    modes = {one[one.index("--mode") + 1] for one in arguments if "--mode" in one}
    assert {"packed", *modes} == {mode.name for mode in MODES}
    for option in ("--refresh", "--run", "--layout", "--parts", "--disk-space"):
        assert any(option in one for one in arguments)
    assert any(one[0] == "train" and not {"--mode", "--run", "--refresh"} & set(one) for one in arguments)


def test_operations_come_back_from_json() -> None:
    for one in draw("json", 200):
        told = json.loads(json.dumps(one.as_dict()))
        assert Operation.from_dict(told) == one
        assert str(one)
    with pytest.raises(ValueError, match="no command 'mine'"):
        Operation.from_dict({"name": "mine"})
    with pytest.raises(ValueError, match=r"has no \['kin'\]"):
        Operation.from_dict({"name": "import", "kin": "read"})


def test_a_failure_shrinks_to_what_it_needs() -> None:
    needed = Operation("prepare", signal="SIGKILL", at=0.5), Operation("infer")
    noise = draw("noise", 40)
    operations = [*noise[:11], needed[0], *noise[11:30], Operation("infer", signal="SIGINT"), *noise[30:]]

    def fails(some: Sequence[Operation]) -> bool:
        left = iter(some)
        return any(one == needed[0] for one in left) and any(one.name == "infer" for one in left)

    assert fails(operations)
    assert shrunk(operations, fails) == list(needed)
    tried = 0

    def counted(some: Sequence[Operation]) -> bool:
        nonlocal tried
        tried += 1
        return fails(some)

    assert fails(shrunk(operations, counted, tries=10))
    assert tried <= 10


@pytest.mark.parametrize("how", ["flip", "cut", "remove"])
def test_damage_changes_a_file(tmp_path: Path, how: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(100))
    damage(file, how, 0.5)
    if how == "remove":
        assert not file.exists()
    else:
        left = file.read_bytes()
        assert len(left) == (50 if how == "cut" else 100)
        assert sum(map(int.bit_count, left)) == (how == "flip")


def soak(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.soak", *map(str, arguments)],
        cwd=REPOSITORY,
        env=child_environment(**variables),
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_sequences_of_fixed_seeds(tmp_path: Path) -> None:
    ended = soak("--sequences", 1, "--seed", "ci", "--length", 14, "--failures", tmp_path)
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
    assert "1 sequences, 0 failed" in ended.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_planted_defect_is_found_shrunk_and_replayed(tmp_path: Path) -> None:
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "sitecustomize.py").write_text(PLANTED)
    path = f"{tmp_path / 'planted'}:{child_environment()['PYTHONPATH']}"
    names = ("import", "prepare", "infer", "verify run")
    given, found = tmp_path / "given.json", tmp_path / "found"
    given.write_text(json.dumps({"operations": [{"name": name} for name in names]}))
    ended = soak("--replay", given, "--failures", found, PYTHONPATH=path)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    told = json.loads((found / "given.json").read_text())
    assert "infer" in told["wrong"]
    assert 0 < len(told["operations"]) < len(names)
    assert (found / "given.sh").read_text().startswith("outcrop ")
    assert soak("--replay", found / "given.json", "--failures", tmp_path, PYTHONPATH=path).returncode == 1
    assert soak("--replay", found / "given.json", "--failures", tmp_path).returncode == 0


@pytest.mark.slow
def test_what_was_done_before_damage_was_met_may_stay(tmp_path: Path) -> None:
    """Damage of features is met when rows are packed: batches and plan are there by then, and are gone on with."""
    sequence = [
        {"name": "import"},
        {"name": "damage", "artifact": "g.oc", "how": "flip", "place": [0.056, 0.61]},
        {"name": "prepare"},
    ]
    given = tmp_path / "given.json"
    given.write_text(json.dumps({"operations": sequence}))
    ended = soak("--replay", given, "--failures", tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert '"status 1": 1' in ended.stdout, "the damage is met"
