"""Options from a TOML file: what is on the command line wins, what is unknown is named."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import outcrop
from embed_support import buckets_of, knowledge_graph, random_triples
from outcrop.cli.main import app
from outcrop.embed.checkpoint import CHECKPOINT, FOLDER, FORMAT, VERSION
from outcrop.errors import ArgumentError, IoError
from outcrop.store.tensors import read_tensors

EXAMPLES = Path(__file__).parents[3] / "examples" / "embed"


def train(run: Path, file: Path, *arguments: str):
    command = ["embed", "train", str(run), "--config", str(file), "--quiet", *arguments]
    result = CliRunner().invoke(app, command)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def run(tmp_path, make_runtime):
    runtime = make_runtime()
    source = knowledge_graph(tmp_path, runtime, train=random_triples(30, 2, 200))
    buckets_of(source, tmp_path / "run", runtime, 2)
    return tmp_path / "run"


def test_the_command_line_wins_over_the_file(run, tmp_path):
    file = tmp_path / "c.toml"
    file.write_text(
        'model = "distmult"\ndim = 6\nlr = 0.02\nreciprocal = true\nepochs = 3\nrelation-lr = 0.5\n'
    )
    assert train(run, file, "--epochs", "1", "--json", str(tmp_path / "r.json")).exit_code == 0
    assert len(json.loads((tmp_path / "r.json").read_text())["epochs"]) == 1
    identity = read_tensors(run / FOLDER / CHECKPOINT, FORMAT, VERSION)[1]["identity"]
    found = {
        key: identity[key] for key in ("model", "dim", "rate", "relation_rate", "reciprocal", "negatives")
    }
    assert found == {
        "model": "distmult", "dim": 6, "rate": 0.02, "relation_rate": 0.5, "reciprocal": True, "negatives": 1000,
    }  # fmt: skip


def test_what_a_file_may_not_say(run, tmp_path):
    file = tmp_path / "c.toml"
    file.write_text("learning = 1\n")
    with pytest.raises(ArgumentError, match=r"c.toml: 'learning' is no option .* lr, "):
        train(run, file)
    file.write_text("no-prefetch = true\n")
    with pytest.raises(ArgumentError, match="'no-prefetch' is no option"):
        train(run, file)
    file.write_text("lr =\n")
    with pytest.raises(ArgumentError, match=r"c.toml is no TOML file: .*line 1"):
        train(run, file)
    file.write_text('lr = "fast"\n')
    assert train(run, file).exit_code == 2
    with pytest.raises(IoError, match=r"--config .*none.toml cannot be read: No such file"):
        train(run, tmp_path / "none.toml")


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_example_is_understood(run, file):
    options = ["--epochs", "1", "--dim", "4", "--negatives", "5"]
    if tomllib.loads(file.read_text())["model"] == "dot":
        options += ["--model", "complex"]
    assert train(run, file, *options).exit_code == 0


COMMANDS = {
    "prepare": ["prepare", "g", "r", "--memory", "64MiB", "--replace"],
    "train": [
        "train",
        "g",
        "--lr",
        "0.5",
        "--stripe",
        "a b",
        "--stripe",
        'c"',
        "--refresh",
        "--memory",
        "1GiB",
    ],
    "import": ["import", "arrays:d", "g", "--reverse", "--train-fraction", "0.5"],
    "generate": ["generate", "g", "--nodes", "9", "--homophily", "0.25"],
    "infer": ["infer", "g", "--checkpoint", "c", "--out", "o.npy", "--nodes", "ids \\ é.csv"],
    "advise": [
        "advise",
        "g",
        "--machine",
        "machine-a",
        "--machine",
        "b.toml",
        "--budget",
        "10",
        "--fanouts",
        "5,5",
    ],
    "embed prepare": ["embed", "prepare", "g", "r", "--partitions", "6", "--seed", "3"],
    "embed eval": ["embed", "eval", "r", "--candidates", "9"],
    "embed export": ["embed", "export", "r", "--format", "parquet"],
    "embed train": ["embed", "train", "r", "--no-prefetch", "--n3", "1e-07"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_options_that_are_printed_are_read_back(tmp_path: Path, name: str) -> None:
    def printed(*arguments: str) -> str:
        result = CliRunner().invoke(app, [*arguments, "--print-config"], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    command = COMMANDS[name]
    file = tmp_path / "c.toml"
    file.write_text(printed(*command))
    found = tomllib.loads(file.read_text())
    given = [word.removeprefix("--") for word in command if word.startswith("--")]
    for option in {"learning-rate" if name == "lr" else name for name in given}:
        assert option.removeprefix("no-") in found, option
    if name == "train":
        assert found["stripe"] == ["a b", 'c"']
        assert (found["learning-rate"], found["refresh"], found["memory"]) == (0.5, True, "1GiB")
    if name == "advise":
        assert (found["machine"], found["budget"], found["fanouts"]) == (["machine-a", "b.toml"], 10.0, "5,5")
    bare = [word for word in command[: len(name.split()) + 2] if not word.startswith("--")]
    assert printed(*bare, "--config", str(file)) == file.read_text()
    option, value = {"import": ("split-seed", 9), "embed export": ("out", "f")}.get(name, ("seed", 9))
    assert tomllib.loads(printed(*bare, "--config", str(file), f"--{option}", str(value)))[option] == value


def test_a_training_from_a_file_is_that_of_the_command_line(tmp_path: Path) -> None:
    graph = str(tmp_path / "g.oc")
    outcrop.generate_graph(
        graph,
        outcrop.GenerateConfig(nodes=400, edges=3000, features=8, classes=3, train_fraction=0.2),
        progress=False,
    )
    file = tmp_path / "run.toml"
    file.write_text(
        'epochs = 2\nhidden = 8\nbatch-size = 20\nfanouts = "3,3"\nmode = "memory"\ntrace-losses = true\n'
    )
    given = ["--epochs", "2", "--hidden", "8", "--batch-size", "20", "--fanouts", "3,3", "--mode", "memory"]

    def losses(*options: str) -> list[float]:
        result = tmp_path / "r.json"
        command = ["train", graph, *options, "--json", str(result), "--quiet"]
        assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
        return json.loads(result.read_text())["batch_losses"]

    found = losses("--config", str(file))
    assert found == losses(*given, "--trace-losses")
    assert found != losses("--config", str(file), "--seed", "1")


def test_a_file_may_list_numbers(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("fanouts = [5, 4]\nclass-weights = [1, 2.5]\n")
    command = ["train", "g", "--config", str(file), "--print-config"]
    found = tomllib.loads(CliRunner().invoke(app, command, catch_exceptions=False).output)
    assert (found["fanouts"], found["class-weights"]) == ("5,4", "1,2.5")
