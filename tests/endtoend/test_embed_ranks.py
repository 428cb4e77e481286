"""Several processes train one table of embeddings: vectors and losses of one process, for any number of them."""

from __future__ import annotations

import json
import re
import shutil
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcrop as oc
from embed_processes import GROUPS, LEARN, assert_equal, ended, scripted, stopped, torchrun, trained
from embed_support import knowledge_graph, random_triples, table_of
from outcrop.embed.buckets import open_buckets
from outcrop.embed.checkpoint import CHECKPOINT, FOLDER
from outcrop.embed.rounds import tournament
from outcrop.runtime.runtime import Runtime

PARTITIONS, SLICES, EPOCHS = 16, 2, 3


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Buckets that nothing was trained on; tests train on copies."""
    folder = tmp_path_factory.mktemp("embed-ranks")
    triples = random_triples(500, 6, 9000)
    graph = knowledge_graph(folder, Runtime(), train=triples, test=triples[:600], valid=triples[600:900])
    config = oc.BucketConfig(PARTITIONS, slices=SLICES)
    return oc.embed_prepare(graph, folder / "run", config, progress=False).path.parent


@pytest.fixture(scope="module")
def want(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process learns that trains the groups in turn, all partitions in memory."""
    run = tmp_path_factory.mktemp("one") / "run"
    shutil.copytree(prepared, run)
    found = trained(1, run)
    assert found["ranks"] == {}
    assert found["resident"]
    assert found["epochs"][-1]["loss"] < found["epochs"][0]["loss"]
    return found


@pytest.fixture
def run(prepared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(prepared, tmp_path / "run"))


def slab_bytes(run: Path) -> int:
    """Bytes of a slice on its way: rows of 16 floats, as many as fill pages, and a page with its checksum."""
    rows = -(-500 // (PARTITIONS * SLICES))
    return -(-rows * 64 // 4096) * 4096 + 4096


def slices_sent(world: int) -> int:
    """Slices that go from process to process in an epoch, when group ``i`` is trained by process ``i % world``."""
    rounds = tournament(GROUPS)
    sent = 0
    for here, after in pairwise(rounds):
        holder = {block: group % world for group, pair in enumerate(here) for block in pair}
        sent += sum(holder[block] != group % world for group, pair in enumerate(after) for block in pair)
    return sent * PARTITIONS // (2 * GROUPS) * SLICES


@pytest.mark.parametrize(
    ("world", "options"),
    [
        (2, ()),
        pytest.param(3, (), marks=pytest.mark.slow),
        pytest.param(4, ("--memory", "24MiB"), marks=pytest.mark.slow),
        pytest.param(2, ("--no-prefetch",), marks=pytest.mark.slow),
    ],
)
def test_any_number_of_processes_learns_what_one_does(
    run: Path, want: dict[str, Any], world: int, options: tuple[str, ...]
) -> None:
    found = trained(world, run, *options)
    assert_equal(found, want)
    assert found["ranks"]["world"] == world
    assert found["ranks"]["groups"] == GROUPS
    assert found["peak_host_bytes"] == sum(found["ranks"]["peak_host_bytes"])
    if options and options[0] == "--memory":
        assert found["peak_host_bytes"] <= 24 << 20
    assert [e["bytes_sent"] for e in found["epochs"]] == [slices_sent(world) * slab_bytes(run)] * EPOCHS
    assert len([*(run / FOLDER).glob("tables*.bin")]) == world


def test_validation_edges_are_ranked_by_all_processes(
    run: Path, tmp_path: Path, want: dict[str, Any]
) -> None:
    """Two processes rank and keep what one does; slices of the best vectors are in files of both."""
    alone = Path(shutil.copytree(run, tmp_path / "alone"))
    ranked = ("--evaluate-every", "2", "--candidates", "100")
    one, two = trained(1, alone, *ranked), trained(2, run, *ranked)
    assert [r["epoch"] for r in two["rankings"]] == [1, 2]
    assert two["rankings"] == one["rankings"]
    assert (two["best_epoch"], two["stopped_early"]) == (one["best_epoch"], False)
    assert [e["loss"] for e in two["epochs"]] == [e["loss"] for e in want["epochs"]]
    (kept,) = run.glob("best-*")
    assert len([*kept.glob("tables*.bin")]) == 2
    for epoch in ("best", "last"):
        np.testing.assert_array_equal(
            table_of(run, Runtime(), epoch)[0], table_of(alone, Runtime(), epoch)[0]
        )
    np.testing.assert_array_equal(table_of(run, Runtime(), "last")[0], want["nodes"])


def test_one_process_that_swaps_learns_the_same(run: Path, want: dict[str, Any]) -> None:
    found = trained(1, run, "--swapping")
    assert not found["resident"]
    assert_equal(found, want)


@pytest.mark.parametrize(
    "worlds",
    [
        (2, 1),
        pytest.param((1, 3, 2), marks=pytest.mark.slow),
        pytest.param((4, 2, 3, 1), marks=pytest.mark.slow),
    ],
)
def test_another_number_of_processes_goes_on(
    run: Path, want: dict[str, Any], worlds: tuple[int, ...]
) -> None:
    """Each is stopped some rounds after it began, within an epoch."""
    for world in worlds[:-1]:
        stopped(world, run, 40)
        assert (run / FOLDER / CHECKPOINT).exists()
    found = trained(worlds[-1], run, groups=None)  # as the checkpoint has it
    assert_equal(found, want)
    assert found["resumed_epoch"] is not None
    files = [path.name for path in (run / FOLDER).glob("tables*.bin")]
    assert len(files) == worlds[-1]
    assert (files == ["tables.bin"]) == (worlds[-1] == 1)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("units", [1, 17, 45])
def test_a_process_that_is_killed_is_started_again(
    run: Path, tmp_path: Path, want: dict[str, Any], rank: int, units: int
) -> None:
    mark = tmp_path / "killed"
    done = scripted(2, run, units, "--max-restarts=2", KILLED_RANK=str(rank), KILLED_MARK=str(mark))
    assert done.returncode == 0, done.stderr
    assert mark.exists()
    assert_equal(trained(2, run), want)
    assert len([*(run / FOLDER).glob("tables*.bin")]) == 2  # none is left of those that were killed


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("wrong", ["options", "loss", "late loss"])
def test_what_is_wrong_in_one_process_ends_all(run: Path, world: int, wrong: str) -> None:
    """Also those that wait for slices of it, and within seconds those that train."""
    done = scripted(world, run, WRONG=wrong)
    assert done.returncode != 0
    if wrong == "options":
        assert done.stderr.count("ArgumentError: ranks 0 and 1 do not train the same") == world, done.stderr
        assert "they differ in batch (64, and 65)" in done.stderr
    else:
        assert "outcrop.errors.NumericError: epoch 0: the loss is nan" in done.stderr
        said = "outcrop.errors.RankError: rank 1 of .* failed, and training ended: NumericError: epoch 0: the loss"
        assert len(re.findall(said, done.stderr)) == world - 1, done.stderr


@pytest.mark.slow
def test_machines_that_see_one_folder_keep_one_checkpoint(run: Path, want: dict[str, Any]) -> None:
    """None replaces the file while another does."""
    done = scripted(4, run, MACHINES="1")
    assert done.returncode == 0, done.stderr
    assert_equal(trained(1, run), want)


@pytest.mark.slow
def test_a_process_may_be_slower_than_the_limit_of_what_is_sent(run: Path) -> None:
    """The other has trained its part of the round by then, and goes on sending and receiving."""
    done = scripted(2, run, groups=2, WRONG="slow")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_impossible_processes(run: Path) -> None:
    for options, said in (
        (("--groups", "1"), "2 processes train, and there are 1 groups of partitions"),
        (("--groups", "3"), "16 partitions cannot be dealt to 6 blocks: prepare with --partitions 18"),
        (("--resident",), "leave --resident and --io gpu out"),
    ):
        done = ended([*torchrun(2), "-m", "outcrop", "--", "embed", "train", str(run), *LEARN, *options])
        assert done.returncode != 0
        assert said in done.stderr, done.stderr
    assert not (run / FOLDER).exists()


@pytest.mark.slow
def test_a_file_of_another_machine_is_missed(run: Path) -> None:
    trained(2, run)
    gone = next((run / FOLDER).glob("tables-*.bin"))
    gone.unlink()
    for command in (["train", str(run), *LEARN, "--epochs", "4"], ["eval", str(run)]):
        done = ended([sys.executable, "-m", "outcrop", "embed", *command])
        assert done.returncode == 1
        assert f"{gone} is missing" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_processes_rank_what_one_does(run: Path) -> None:
    """Each ranks a part of the edges."""
    trained(2, run)
    found = []
    for start in ([sys.executable], torchrun(3)):
        out = run / "eval.json"
        done = ended(
            [*start, "-m", "outcrop", "--", "embed", "eval", str(run), "--quiet", "--json", str(out)]
        )
        assert done.returncode == 0, done.stderr
        found.append(json.loads(out.read_text()))
    assert found[0] == found[1]
    assert found[0]["edges"] == 2 * open_buckets(run).count("test")


@pytest.mark.slow
def test_slices_without_edges_move(tmp_path: Path) -> None:
    """They were never written before another process needs them."""
    graph = knowledge_graph(tmp_path, Runtime(), train=random_triples(64, 6, 12))
    tables = []
    for world in (1, 2):
        run = tmp_path / f"run{world}"
        oc.embed_prepare(graph, run, oc.BucketConfig(4, slices=1), progress=False)
        trained(world, run, groups=2)
        tables.append(table_of(run, Runtime()))
    for one, other in zip(*tables, strict=True):
        np.testing.assert_array_equal(one, other)
