"""``outcrop verify``: of graphs, runs, embedding runs and checkpoints, every byte that is another is found."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import outcrop as oc
from artifact_support import memory_folder, prepare, small_graph
from embed_support import random_triples, write_triples
from outcrop.cli.main import app
from outcrop.cli.verifying import verify_all
from outcrop.errors import ChecksumError, FormatError, IoError
from outcrop.store.lock import only_process_in

QUIET = oc.Observer(progress=False)


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    with memory_folder() as folder:
        graph = small_graph(folder / "g")
        prepare(graph, folder / "run")
        oc.train(
            folder / "g",
            model=oc.ModelConfig("sage", hidden=4),
            training=oc.TrainConfig(epochs=2),
            sampling=oc.SampleConfig(fanouts=(2, 2), batch_size=20),
            loading=oc.InMemory(),
            checkpoint=folder / "ckpt",
            observer=QUIET,
        )
        triples = random_triples(60, 4, 400)
        source = write_triples(folder / "triples", train=triples, valid=triples[:20], test=triples[20:40])
        oc.import_triples(source, folder / "t.kg", progress=False)
        oc.embed_prepare(folder / "t.kg", folder / "emb", oc.BucketConfig(3), progress=False)
        config = oc.EmbedConfig(dim=8, epochs=1, negatives=8, batch=50, chunk=10)
        oc.embed_train(folder / "emb", config=config, observer=QUIET)
        yield folder


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


def flipped(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def test_each_kind_is_verified(made: Path) -> None:
    wanted = {
        "g": ["g"],
        "run": ["run/sample", "run/plan", "run/pack"],
        "ckpt": ["ckpt/last.safetensors", "ckpt/best.safetensors"],
        "ckpt/best.safetensors": ["ckpt/best.safetensors"],
        "emb": ["emb/buckets", "emb/tables"],
    }
    for name, parts in wanted.items():
        ended = CliRunner().invoke(app, ["verify", str(made / name)])
        assert ended.exit_code == 0, ended.output
        said = ended.output.split()
        assert [said[at + 1] for at, word in enumerate(said) if word == "verified"] == [
            f"{made / part}:" for part in parts
        ]
        assert " ".join(said).count("every checksum right") == len(parts)


def test_bytes_of_vectors_are_those_of_their_rows(made: Path, make_runtime: Callable) -> None:
    found = verify_all(made / "emb", make_runtime())[str(made / "emb/tables")]
    assert (found["format"], found["bytes"]) == ("outcrop.embedding", 60 * 8 * 4)


@pytest.mark.parametrize("name", ["last", "best"])
def test_any_byte_of_a_checkpoint(copy: Path, make_runtime: Callable, name: str) -> None:
    path = copy / f"ckpt/{name}.safetensors"
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for at in rng.integers(8, len(whole), 25):
        flipped(path, int(at))
        with pytest.raises((ChecksumError, FormatError), match=path.name):
            verify_all(copy / "ckpt", make_runtime())
        path.write_bytes(whole)
    assert len(verify_all(copy / "ckpt", make_runtime())) == 2


def test_files_of_a_checkpoint_that_do_not_belong_together(copy: Path, make_runtime: Callable) -> None:
    oc.train(
        copy / "g",
        model=oc.ModelConfig("sage", hidden=4),
        training=oc.TrainConfig(epochs=2, learning_rate=0.5),
        sampling=oc.SampleConfig(fanouts=(2, 2), batch_size=20),
        loading=oc.InMemory(),
        checkpoint=copy / "other",
        observer=QUIET,
    )
    best = copy / "ckpt/best.safetensors"
    shutil.copy(copy / "other/best.safetensors", best)
    with pytest.raises(FormatError, match=r"best\.safetensors is missing, or has another model"):
        verify_all(copy / "ckpt", make_runtime())
    best.unlink()
    with pytest.raises(FormatError, match=r"best\.safetensors is missing, or has another model"):
        verify_all(copy / "ckpt", make_runtime())


def test_a_checkpoint_that_a_training_writes_meanwhile(copy: Path, make_runtime: Callable) -> None:
    (copy / "ckpt/best.safetensors").unlink()
    with (
        only_process_in(copy / "ckpt"),
        pytest.raises(IoError, match="ckpt is in use: another process trains there"),
    ):
        verify_all(copy / "ckpt", make_runtime())


def test_the_last_checkpoint_alone_as_a_file_is_whole(copy: Path, make_runtime: Callable) -> None:
    (copy / "ckpt/best.safetensors").unlink()
    assert len(verify_all(copy / "ckpt/last.safetensors", make_runtime())) == 1


def test_stages_that_were_not_made_of_one_another(copy: Path, make_runtime: Callable) -> None:
    prepare(small_graph(copy / "g2"), copy / "other", fanouts=[2, 2])
    for stage, message in (
        ("pack", "pack was made of another (sample|plan) stage"),
        ("sample", "of another sample stage"),
    ):
        shutil.copytree(copy / "run", copy / "mixed")
        shutil.rmtree(copy / "mixed" / stage)
        shutil.copytree(copy / "other" / stage, copy / "mixed" / stage)
        with pytest.raises(FormatError, match=message):
            verify_all(copy / "mixed", make_runtime())
        shutil.rmtree(copy / "mixed")


def test_what_a_run_says_of_itself_is_read(copy: Path, make_runtime: Callable) -> None:
    (copy / "run/run.json").write_bytes(b"garbage \0")
    with pytest.raises(FormatError, match=r"run\.json"):
        verify_all(copy / "run", make_runtime())


def test_the_best_model_alone_is_whole(copy: Path, make_runtime: Callable) -> None:
    (copy / "ckpt/last.safetensors").unlink()
    assert list(verify_all(copy / "ckpt", make_runtime())) == [str(copy / "ckpt/best.safetensors")]


def test_vectors_and_edges_of_an_embedding_run(copy: Path, make_runtime: Callable) -> None:
    """Of each slice one of two places holds what the checkpoint names: all bytes that hold anything are changed."""
    path = copy / "emb/tables/tables.bin"
    whole = path.read_bytes()
    for at in range(0, len(whole), 4096):
        if any(whole[at : at + 4096]):
            flipped(path, at)
    with pytest.raises(ChecksumError, match=r"tables\.bin: slice 0"):
        verify_all(copy / "emb", make_runtime())
    path.write_bytes(whole)
    flipped(copy / "emb/buckets/edges.bin", 5)
    with pytest.raises(ChecksumError, match=r"edges\.bin"):
        verify_all(copy / "emb", make_runtime())


@pytest.mark.parametrize("stage", ["sample", "plan", "pack"])
def test_a_run_that_lacks_the_manifest_of_a_stage(copy: Path, make_runtime: Callable, stage: str) -> None:
    (copy / "run" / stage / "manifest.json").unlink()
    with pytest.raises(FormatError, match=rf"{stage}/manifest\.json is missing"):
        verify_all(copy / "run", make_runtime())


def test_a_run_that_lacks_an_earlier_stage(copy: Path, make_runtime: Callable) -> None:
    shutil.rmtree(copy / "run/sample")
    with pytest.raises(FormatError, match=r"sample/manifest\.json is missing"):
        verify_all(copy / "run", make_runtime())
    for stage in ("plan", "pack"):
        shutil.rmtree(copy / "run" / stage)
    with pytest.raises(FormatError, match="no stage is finished yet: outcrop prepare again goes on"):
        verify_all(copy / "run", make_runtime())
