"""Commands are imported when they are asked for, and nobody sees it: help, completion and errors are those of all."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import outcrop.cli
from artifact_support import child_environment
from outcrop.cli.commands import MODULES
from outcrop.cli.main import app, options

LISTING = """
import atexit, json, sys
def listed():
    print(json.dumps([name for name in sys.modules if name.startswith("outcrop.cli.")]), file=sys.stderr)
atexit.register(listed)
from outcrop.cli.main import run
sys.argv[0] = "outcrop"
run()
"""


def modules_with_commands() -> set[str]:
    folder = Path(outcrop.cli.__file__).parent
    return {path.stem for path in folder.glob("*.py") if "\ndef add_commands(" in path.read_text()}


@pytest.fixture(scope="module")
def whole() -> typer.Typer:
    """The same commands, as typer has them where all modules add theirs."""
    made = typer.Typer(
        name="outcrop", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich"
    )
    made.info.help = app.info.help
    for module in dict.fromkeys(MODULES.values()):
        import_module(f"outcrop.cli.{module}").add_commands(made)
    made.callback()(options)
    return made


def test_every_command_is_listed_with_its_module_in_the_order_of_the_help(whole: typer.Typer) -> None:
    assert set(MODULES.values()) == modules_with_commands()
    assert list(typer.main.get_command(whole).commands) == list(MODULES)  # type: ignore[attr-defined]


def answered(of: typer.Typer, arguments: list[str], **environment: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(of, arguments, env=environment, prog_name="outcrop")
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["--help"], 0, "Say what this machine offers"),
        ([], 2, "Say what this machine offers"),
        (["train", "--help"], 0, "--trace-losses"),
        (["embed", "--help"], 0, "neighbors"),
        (["prepare-pool", "--help"], 0, "--parent"),
        (["trian"], 2, "trian"),
        (["train", "--trace-loses"], 2, "--trace-losses"),
        (["--nothing"], 2, "No such option: --nothing"),
    ],
)
def test_help_and_errors_are_those_of_all_commands(
    whole: typer.Typer, arguments: list[str], status: int, says: str
) -> None:
    found = answered(app, arguments, TERM="dumb")
    assert found[0] == status
    assert says in found[1] + found[2]
    assert found == answered(whole, arguments, TERM="dumb")


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("outcrop ", "prepare"),
        ("outcrop tr", "train"),
        ("outcrop train --trace-l", "--trace-losses"),
        ("outcrop embed n", "neighbors"),
    ],
)
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_is_that_of_all_commands(
    whole: typer.Typer, line: str, completed: str, shell: str
) -> None:
    environment = {
        "_OUTCROP_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": line,
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
    }
    found = answered(app, [], **environment)
    assert completed in found[1]
    assert found == answered(whole, [], **environment)


@pytest.mark.parametrize(
    ("command", "modules"),
    [
        ("train --help", {"train"}),
        ("info --help", {"data"}),
        ("embed train --help", {"embed"}),
        ("prepare-pool --help", {"prepare"}),
        ("--version", set()),
        ("--help", None),
    ],
)
def test_no_other_command_is_imported(command: str, modules: set[str] | None) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LISTING, *command.split()],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {name.removeprefix("outcrop.cli.") for name in json.loads(done.stderr)}
    assert loaded & modules_with_commands() == (modules_with_commands() if modules is None else modules)
