"""Options from a TOML file: what is on the command line wins, what is unknown is named."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from embed_support import buckets_of, knowledge_graph, random_triples
from outcrop import checkpoint as checkpoints
from outcrop.cli.main import app
from outcrop.embed.fit import CHECKPOINT, FOLDER, FORMAT, VERSION
from outcrop.errors import ArgumentError

EXAMPLES = Path(__file__).parents[2] / "examples" / "embed"


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
    identity = checkpoints.read_tensors(run / FOLDER / CHECKPOINT, FORMAT, VERSION)[1]["identity"]
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
    with pytest.raises(FileNotFoundError):
        train(run, tmp_path / "none.toml")


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_example_is_understood(run, file):
    options = ["--epochs", "1", "--dim", "4", "--negatives", "5"]
    if tomllib.loads(file.read_text())["model"] == "dot":
        options += ["--model", "complex"]
    assert train(run, file, *options).exit_code == 0
