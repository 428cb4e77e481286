"""What all commands share: --json -, text of the data as text, signals whenever they arrive, errors of one line."""

from __future__ import annotations

import errno
import importlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from safetensors.numpy import save_file
from typer.testing import CliRunner

from artifact_support import child_environment, memory_folder, prepare, small_graph
from forked import python
from outcrop.cli import printing
from outcrop.cli.describing import describe_all
from outcrop.cli.main import app
from outcrop.errors import ArgumentError, FormatError, IoError
from outcrop.store.tensors import write_tensors

importlib.import_module(
    "torch_geometric"
)  # changes the environment when it is loaded, which is no leak of a test

RUN = "from outcrop.cli.main import run; import sys; sys.argv[0] = 'outcrop'; run()"


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    with memory_folder() as folder:
        prepare(small_graph(folder / "g"), folder / "run")
        yield folder


def commands(
    group: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All that ``--help`` lists."""
    if isinstance(group, click.Group) or hasattr(group, "commands"):
        for name, command in group.commands.items():  # type: ignore[attr-defined]
            yield from commands(command, (*path, name))
    elif not group.hidden:
        yield path, group


def test_every_command_has_json() -> None:
    found = dict(commands(typer.main.get_command(app)))
    assert {("train",), ("embed", "export"), ("info",), ("bench",)} <= set(found)
    lacking = [path for path, one in found.items() if "--json" not in {o for p in one.params for o in p.opts}]
    assert lacking == []


@pytest.mark.parametrize(
    ("command", "key", "says"),
    [
        (["info", "g"], "digest", "size on disk"),
        (["verify", "g"], "arrays", "every checksum"),
        (["embed", "orders", "--partitions", "5"], "states", "all hidden"),
        (["doctor", "--no-measure"], "cpu", "I/O engine"),
    ],
)
def test_json_on_standard_output(made: Path, command: list[str], key: str, says: str) -> None:
    """Nothing else is there; what people read goes to standard error, or nowhere."""
    command = [str(made / word) if word == "g" else word for word in command]
    done = CliRunner().invoke(app, [*command, "--json", "-"], catch_exceptions=False)
    assert key in json.loads(done.stdout)
    assert says in done.stderr
    quiet = CliRunner().invoke(app, [*command, "--json", "-", "--quiet"], catch_exceptions=False)
    assert (json.loads(quiet.stdout).keys(), quiet.stderr) == (json.loads(done.stdout).keys(), "")
    assert says in CliRunner().invoke(app, command, catch_exceptions=False).stdout
    assert not Path("-").exists()


def test_json_has_a_folder_before_anything_begins(made: Path) -> None:
    status, message = outcrop("generate", made / "new", "--json", made / "none" / "a.json")
    assert (status, "none is no folder" in message, (made / "new").exists()) == (1, True, False)


def outcrop(*arguments: object) -> tuple[int, str]:
    """Exit status and standard error as one line."""
    ended = python(RUN, *arguments)
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.returncode, " ".join(ended.stderr.split())


HOSTILE = "a\x1b]0;owned\x07[red]b[/]\r\u202ec\ud800\x9bd\n\u2028"
SHOWN = "a\\x1b]0;owned\\x07[red]b[/]\\r\\u202ec\\ud800\\x9bd\\n\\u2028"


def test_control_characters_are_shown() -> None:
    assert printing.printable(HOSTILE) == SHOWN
    for text in ("Zürich", "पानी", "می\u200cخواهم", "👩\u200d🔬", "a b\u00a0c", "名前"):
        assert printing.printable(text) == text


def test_names_of_the_data_steer_no_terminal(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from outcrop.api import embed

    found = [(1, HOSTILE, 0.25), (2, None, 0.5)]
    monkeypatch.setattr(embed, "embed_neighbors", lambda *_, **__: found)
    monkeypatch.setenv("COLUMNS", "200")
    done = CliRunner().invoke(app, ["embed", "neighbors", "run", HOSTILE], catch_exceptions=False)
    assert done.stdout.count(SHOWN) == 2
    assert not set(done.stdout) & (set(HOSTILE) - set("a]0;ownedred[b/]cdabcd\n"))


INTERRUPTED_IN_A_FINALIZER = """
import signal, sys
from outcrop.loading import buffers
from outcrop.cli.main import run
give_back, number, sent = buffers.BufferPool.give_back, int(sys.argv.pop()), []
def interrupted(self, *arguments):
    give_back(self, *arguments)
    if not sent:
        sent.append(True)
        signal.raise_signal(number)
buffers.BufferPool.give_back = interrupted
sys.argv[0] = "outcrop"
run()
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_within_a_finalizer_are_not_lost(made: Path, number: int, status: int) -> None:
    """The buffer of a batch comes back in a finalizer, where Python drops what is raised."""
    options = ["--run", made / "run", "--epochs", 2000, "--hidden", 4, number]
    ended = python(INTERRUPTED_IN_A_FINALIZER, "train", made / "g", *options)
    assert (ended.returncode, ended.stdout) == (status, "")
    assert "run the same command again to go on" in ended.stderr
    assert "ignored" not in ended.stderr


def test_a_second_interruption_shows_no_traceback() -> None:
    """At the end of Python, where nothing can catch it."""
    code = "import atexit, signal; atexit.register(signal.raise_signal, signal.SIGINT)\n" + RUN
    ended = python(code, "--version")
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


def test_what_starts_over_does_not_claim_to_go_on() -> None:
    code = (
        "from outcrop.cli import data\ndef stop(*_): raise KeyboardInterrupt\ndata.describe_all = stop\n"
        + RUN
    )
    ended = python(code, "info", "g")
    assert (ended.returncode, ended.stderr) == (130, "interrupted; the same command starts over\n")


IMPORTING = """
import signal, sys, time
from outcrop.cli import data, interruptions
def describe(path):
    interruptions._LONGEST_IMPORT_SECONDS = {seconds}
    import library
    time.sleep(5)
    return []
data.describe_all = describe
from outcrop.cli.main import run
sys.argv[0] = "outcrop"
run()
"""
DROPPING = "import signal\ntry:\n    signal.raise_signal(signal.{0})\nexcept BaseException:\n    pass\n"
HANGING = (
    "import signal, time, os\nsignal.raise_signal(signal.{0})\ntime.sleep(0.1)\n{1}\ntime.sleep(5)\n"
    "print('it went on', flush=True)\n"
)


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGINT", 130)])
@pytest.mark.parametrize(
    ("library", "longest"),
    [
        (DROPPING, 10.0),
        (HANGING.replace("{1}", "pass"), 0.05),
        (HANGING.replace("{1}", "signal.raise_signal(signal.{0})"), 10.0),
    ],
    ids=["dropped", "too long", "a second time"],
)
def test_signals_while_a_library_is_imported_are_not_lost(
    tmp_path: Path, library: str, longest: float, name: str, status: int
) -> None:
    """Libraries drop what is raised while they import others; an import that does not end is interrupted."""
    (tmp_path / "library.py").write_text(library.format(name))
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n" + IMPORTING.replace(
        "{seconds}", str(longest)
    )
    ended = python(code, "info", "g")
    said = ("", "interrupted; the same command starts over\n")
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, *said)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_that_was_put_off_until_after_the_end_is_dropped(tmp_path: Path, name: str) -> None:
    """The command did what was asked, and Python is ending: an exception has nowhere to go there."""
    (tmp_path / "library.py").write_text(f"import signal; signal.raise_signal(signal.{name})")
    code = (
        f"import sys, time; sys.path.insert(0, {str(tmp_path)!r})\nfrom outcrop.cli import interruptions\n"
        "interruptions.install()\nimport library\ninterruptions.end_at_once()\ntime.sleep(0.1)\nprint('over')"
    )
    ended = python(code)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "over\n", "")


GO_ON = "interrupted; nothing finished is lost: run the same command again to go on\n"


@pytest.mark.parametrize("how", [["-m", "outcrop"], ["-c", "from outcrop.cli.start import run; run()"]])
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "g"], GO_ON),
        (["embed", "prepare", "g"], GO_ON),
        (["info", "g"], "interrupted; the same command starts over\n"),
    ],
)
def test_interrupted_while_commands_are_imported(
    tmp_path: Path, how: list[str], words: list[str], says: str
) -> None:
    """The same line as later, whatever the library that is being imported would make of an exception."""
    (tmp_path / "typer.py").write_text(
        "import signal\ntry:\n    signal.raise_signal(signal.SIGINT)\nexcept BaseException:\n    pass\nraise OSError\n"
    )
    environment = child_environment() | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, *how, *words]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", says)


def test_an_interruption_that_is_ignored_stays_so() -> None:
    """As in what a shell starts in the background."""
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); from outcrop.cli import interruptions\n"
        "interruptions.end_with_a_line(); interruptions.install()\n"
        "sys.exit(signal.getsignal(signal.SIGINT) is not signal.SIG_IGN)"
    )
    assert python(code).returncode == 0


def test_interrupted_while_torch_is_imported(tmp_path: Path) -> None:
    """Something is said before, and the process ends there, whatever torch would make of an exception."""
    (tmp_path / "torch.py").write_text(
        "import signal\ntry:\n    signal.raise_signal(signal.SIGINT)\nexcept BaseException:\n    pass\nraise OSError\n"
    )
    environment = child_environment() | {"PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-m", "outcrop", "train", "g", "--mode", "memory"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "loading torch\n")


def test_what_was_not_foreseen_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from outcrop.cli import data\ndef fail(*_): raise {}\ndata.describe_all = fail\n" + RUN
    status, message = outcrop_with(code.format("ZeroDivisionError('a\\x1b b')"), "info", "g")
    assert status == 1
    assert message.startswith("error: ZeroDivisionError: a\\x1b b This was not foreseen")
    assert "outcrop --debug COMMAND" in message
    assert "Traceback" in python(code.format("ZeroDivisionError"), "--debug", "info", "g").stderr


def outcrop_with(code: str, *arguments: Any) -> tuple[int, str]:
    ended = python(code, *arguments)
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.returncode, " ".join(ended.stderr.split())


def test_a_folder_that_cannot_be_synced_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(IoError) as caught:
        write_tensors(tmp_path / "ckpt" / "a.safetensors", "test", 1, {}, {})
    assert f"{tmp_path / 'ckpt'}: Input/output error" in str(caught.value)
    assert caught.value.errno == errno.EIO


def test_doctor_says_what_it_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line before the measurement that it announces, none with --quiet."""
    from outcrop.advisor import machine

    happened: list[str] = []
    for name in ("disk", "memory", "computing"):

        def measure(*_: Any, name: str = name) -> dict[str, Any]:
            happened.append(name)
            if name == "computing":
                raise FormatError("far enough")
            return {}

        monkeypatch.setattr(machine, f"_profile_{name}", measure)
    monkeypatch.setattr(printing.console, "print", lambda text, **_: happened.append(str(text)))
    for quiet, said in (([], True), (["--quiet"], False)):
        happened.clear()
        with pytest.raises(FormatError, match="far enough"):
            CliRunner().invoke(app, ["doctor", "--folder", str(tmp_path), *quiet], catch_exceptions=False)
        lines = [f"measuring the disk under {tmp_path}", "measuring memory", "measuring training steps"]
        expected = [lines[0], "disk", lines[1], "memory", lines[2], "computing"]
        assert happened == (expected if said else expected[1::2])


def test_doctor_needs_a_folder_to_measure_under(tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, ["doctor", "--folder", str(tmp_path / "nope")])
    assert isinstance(ended.exception, ArgumentError)
    assert f"--folder {tmp_path / 'nope'} is no folder" in str(ended.exception)


def test_info_names_types_and_not_their_numbers(tmp_path: Path) -> None:
    import outcrop as oc

    config = oc.GenerateConfig(nodes=400, edges=2000, kind="typed", features=6, edge_features=2)
    graph = oc.generate_graph(tmp_path / "typed.oc", config, progress=False)
    said = CliRunner().invoke(app, ["info", str(graph.path)], catch_exceptions=False).stdout
    for rows in graph.row_files:
        of = rows.owner
        name = " ".join(of.key) if of in graph.edge_types else of.name
        assert re.search(rf"^features of '{name}' +\w+ {rows.num_rows} x \d", said, re.MULTILINE), name
    assert not re.search(r"^[ne]\d", said, re.MULTILINE)
    source = {"edges": np.array([[0, 1], [1, 2]]), "edge_features": np.ones((2, 3), np.float32)}
    flat = oc.import_graph(source, tmp_path / "flat.oc", progress=False)
    said = CliRunner().invoke(app, ["info", str(flat.path)], catch_exceptions=False).stdout
    assert re.search(r"^features of edges +float32 2 x 3", said, re.MULTILINE)


def test_info_of_exports_and_unfinished_runs(made: Path, tmp_path: Path) -> None:
    """Files for other programs in a line for each column; an embedding run; a run of which nothing is finished."""

    def info(path: Path) -> str:
        return CliRunner().invoke(app, ["info", str(path)], catch_exceptions=False).stdout

    np.save(tmp_path / "scores.npy", np.zeros((7, 3), np.float32))
    pq.write_table(pa.table({"id": pa.array(range(7), pa.int64())}), tmp_path / "scores.parquet")
    save_file({"entities": np.zeros((5, 2), np.float32)}, tmp_path / "embeddings.safetensors")
    for name, says in (
        ("scores.npy", r"scores +float32 7 x 3"),
        ("scores.parquet", r"id +int64 7"),
        ("embeddings.safetensors", r"entities +F32 5 x 2"),
    ):
        assert re.search(says, info(tmp_path / name)), name
    (tmp_path / "torn.npy").write_bytes(b"no array")
    with pytest.raises(FormatError, match=r"torn\.npy cannot be read as \.npy"):
        describe_all(tmp_path / "torn.npy")
    outcrop_embed = [
        "embed",
        "prepare",
        str(made / "g"),
        str(tmp_path / "emb"),
        "--partitions",
        "2",
        "--quiet",
    ]
    CliRunner().invoke(app, outcrop_embed, catch_exceptions=False)
    assert re.search(r"outcrop\.buckets version \d", info(tmp_path / "emb"))
    embed_train = [
        "embed",
        "train",
        str(tmp_path / "emb"),
        "--dim",
        "6",
        "--epochs",
        "2",
        "--quiet",
        "--json",
    ]
    done = CliRunner().invoke(app, [*embed_train, str(tmp_path / "e.json")], catch_exceptions=False)
    assert done.exit_code == 0
    loss = json.loads((tmp_path / "e.json").read_text())["epochs"][-1]["loss"]
    told = info(tmp_path / "emb")
    assert re.search(rf"dim +6\n.*loss +{loss}\n|loss +{loss}\n(.*\n)*dim +6\n", told), told
    assert "sha256" not in told
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_bytes((made / "run" / "run.json").read_bytes())
    assert re.search("stages +none is finished", info(tmp_path / "run"))


def test_info_of_everything(made: Path, tmp_path: Path) -> None:
    """Graph, run, checkpoint (file and folder); what is none is told what was looked for."""
    header = {
        "format": "outcrop.checkpoint",
        "version": 2,
        "epochs_done": 3,
        "config": {"model": "sage", "hidden": 64},
    }
    tensors = {"weight": np.zeros((4, 2), np.float32)}
    for name in ("last", "best"):
        save_file(tensors, tmp_path / f"{name}.safetensors", {"outcrop": json.dumps(header)})

    def info(path: Path) -> Any:
        return json.loads(
            CliRunner().invoke(app, ["info", str(path), "--json", "-"], catch_exceptions=False).stdout
        )

    assert info(made / "g")["format"] == "outcrop.graph"
    assert [Path(one["path"]).name for one in info(made / "run")["artifacts"]] == ["sample", "plan", "pack"]
    found = info(tmp_path / "last.safetensors")
    assert (found["format"], found["attributes"]) == (
        "outcrop.checkpoint",
        {"epochs_done": 3, "model": "sage", "hidden": 64},
    )
    assert found["tensors"] == {"weight": {"dtype": "F32", "shape": [4, 2]}}
    assert [Path(one["path"]).name for one in info(tmp_path)["artifacts"]] == [
        "last.safetensors",
        "best.safetensors",
    ]
    printed = CliRunner().invoke(app, ["info", str(tmp_path)], catch_exceptions=False).stdout
    assert "epochs_done" in printed
    (tmp_path / "other").mkdir()
    for path, says in (
        (tmp_path / "other", "nothing that Outcrop made.*run.json"),
        (tmp_path / "none", "does not exist"),
    ):
        with pytest.raises(FormatError, match=says):
            describe_all(path)


@pytest.mark.parametrize("flag", ["--checkpoint-minutes", "--checkpoint-steps"])
def test_checkpoints_within_an_epoch_need_a_folder(made: Path, flag: str) -> None:
    code, said = outcrop("train", made / "g", flag, 3)
    assert (code, said.strip()) == (
        1,
        f"error: {flag} needs a folder for checkpoints: name one with --checkpoint",
    )
