"""``paranoid``: a bit that flips anywhere between the row file and whoever uses a mini-batch is found, in every mode.

Flips are planted where rows lie or pass; without ``paranoid`` the same flip goes unseen, which proves that it arrives.
"""

from __future__ import annotations

import errno
import json
import re
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer.main as typer_main

import outcrop
from artifact_support import manifest_at
from outcrop.cli.main import app
from outcrop.config import CPU, SampleConfig
from outcrop.errors import ArgumentError, ChecksumError, CorruptionError, IoError
from outcrop.loading import session, transfer
from outcrop.loading.modes import (
    MODES,
    Belady,
    Dynamic,
    InMemory,
    Memmap,
    Mode,
    OnDisk,
    Online,
    Packed,
    Partition,
    mode_with,
)
from outcrop.loading.open import open_session
from outcrop.loading.row_check import RowCheck
from outcrop.rows import DiskRows, HotRows, PartitionRows, cached, host
from outcrop.runtime.runtime import Runtime
from outcrop.store import row_sums
from outcrop.store.arrays import DiskArray
from outcrop.store.graph import Graph
from outcrop.store.levels import Level
from run_support import a_graph, as_rows, random_features

NODES, WIDTH, TRAIN = 300, 16, 50
ROW_BYTES = WIDTH * 4
SAMPLING = {"fanouts": (3, 3), "batch_size": 20}


@pytest.fixture
def graph(tmp_path: Path, make_runtime: Callable[..., Runtime]) -> Graph:
    return a_graph(
        tmp_path / "g.oc", make_runtime(threads=1), nodes=NODES, edges=2500, width=WIDTH, train=TRAIN
    )


@pytest.fixture
def run(graph: Graph, tmp_path: Path) -> Path:
    return outcrop.prepare(graph, tmp_path / "run", epochs=1, progress=False, **SAMPLING).path


def paranoid(mode: Mode, on: bool = True) -> Mode:
    return mode_with(mode, {"paranoid": on})


def load(graph: Graph, run: Path, runtime: Runtime, mode: Mode, split: str = "train") -> int:
    """Loads an epoch; returns how many rows were not those of the graph."""
    features, wrong = as_rows(random_features(NODES, WIDTH, "float32")), 0
    with open_session(graph, runtime, mode, run_folder=run) as opened, opened.batches(split, 0) as batches:
        for batch in batches:
            x = batch.x.view(torch.uint8).numpy()
            wrong += int((x != features[batch.graph.n_id]).any(axis=1).sum())
            del batch, x
    return wrong


def crc_of(row: np.ndarray) -> int:
    """CRC-32C bit by bit, from its definition."""
    crc = 0xFFFFFFFF
    for byte in row.tobytes():
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_the_table_has_the_checksum_of_every_row(graph: Graph, make_runtime) -> None:
    (found,) = row_sums.open_row_sums(graph, make_runtime(threads=2))
    features = as_rows(random_features(NODES, WIDTH, "float32"))
    assert found.tolist() == [crc_of(row) for row in features]


def test_it_is_made_once_and_again_for_another_graph(
    graph: Graph, tmp_path: Path, make_runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    make = row_sums._make

    def counting(graph: Graph, *rest: Any) -> None:
        made.append(graph.path)
        make(graph, *rest)

    monkeypatch.setattr(row_sums, "_make", counting)
    runtime = make_runtime(threads=1)
    (first,) = row_sums.open_row_sums(graph, runtime)
    (again,) = row_sums.open_row_sums(graph, runtime)
    assert np.array_equal(first, again)
    assert len(made) == 1
    other = a_graph(tmp_path / "h.oc", runtime, nodes=NODES, edges=2500, width=WIDTH + 1, train=TRAIN)
    row_sums.row_sums_folder(graph).rename(row_sums.row_sums_folder(other))
    (found,) = row_sums.open_row_sums(other, runtime)
    assert len(made) == 2
    assert found[7] == crc_of(as_rows(random_features(NODES, WIDTH + 1, "float32"))[7])


def test_rows_larger_than_the_block_that_is_read(
    tmp_path: Path, make_runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of whole pages, of less, and of one row give the same table, within the budget."""
    runtime = make_runtime(threads=2)
    graph = a_graph(tmp_path / "w.oc", runtime, nodes=70, edges=90, width=1000, train=5)
    (found,) = row_sums.open_row_sums(graph, runtime)
    for free in (20_000, 8 << 10):  # the block has half of it
        narrow = make_runtime(memory=free + (64 << 10), threads=1)
        row_sums.row_sums_folder(graph).rename(tmp_path / f"before-{free}")
        (again,) = row_sums.open_row_sums(graph, narrow)
        assert np.array_equal(found, again)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_nothing_is_found_where_nothing_is_wrong(graph: Graph, run: Path, make_runtime, mode: Mode) -> None:
    assert load(graph, run, make_runtime(threads=2), paranoid(mode)) == 0


def flip(memory: np.ndarray) -> None:
    """Flips one bit of each 64 bytes: of every row, whatever the order."""
    flat = memory.reshape(-1).view(np.uint8)
    flat[::ROW_BYTES] ^= 0x10


@pytest.fixture
def in_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bit of the first row of each batch flips in its buffer, after it was put together."""
    deliver = session.LoadSession.batches

    def flipping(self: session.LoadSession, *args: Any, **options: Any) -> Any:
        inner = self._transfer.deliver  # type: ignore[attr-defined]

        def damaged(batch: Any, *rest: Any) -> Any:
            batch.lease.buffer.rows[0].x[3] ^= 0x40
            return inner(batch, *rest)

        monkeypatch.setattr(self._transfer, "deliver", damaged)
        return deliver(self, *args, **options)

    monkeypatch.setattr(session.LoadSession, "batches", flipping)


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.usefixtures("in_buffers")
def test_a_bit_that_flips_in_a_buffer_is_found(graph: Graph, run: Path, make_runtime, mode: Mode) -> None:
    wrong = load(graph, run, make_runtime(threads=1), mode)
    assert wrong > 0  # which nobody has noticed
    with pytest.raises(CorruptionError) as caught:
        load(graph, run, make_runtime(threads=1), paranoid(mode))
    said = str(caught.value)
    assert re.match(r"batch 0 of this pass over 'train' of epoch 0: 1 of \d+ rows of ", said)
    assert f"{graph.path / 'features.bin'} are not what the graph has" in said
    assert re.search(r"the first of them that of node \d+; 1 bit differs\. The file has the row right", said)
    assert "test the memory of the machine" in said


# What each mode caches rows in, and how a bit flips there once they are.


def in_the_cache_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    read = session.read_cache

    def damaged(*args: Any) -> np.ndarray:
        flip(held := read(*args))
        return held

    monkeypatch.setattr(session, "read_cache", damaged)


def in_the_static_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = HotRows.__init__

    def damaged(self: HotRows, cache: Any, *rest: Any) -> None:
        flip(cache.rows)
        begin(self, cache, *rest)

    monkeypatch.setattr(HotRows, "__init__", damaged)


def in_all_features(monkeypatch: pytest.MonkeyPatch) -> None:
    hold = host.hold

    def damaged(*args: Any) -> np.ndarray:
        flip(held := hold(*args))
        return held

    monkeypatch.setattr(host, "hold", damaged)


def in_a_cache_that_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    features = as_rows(random_features(NODES, WIDTH, "float32"))

    def damaged(self: cached.CacheReader, ids: np.ndarray, out: np.ndarray, *rest: Any) -> Any:
        """What the cache keeps is wrong; what the batch that brought it gets is right."""
        missing = np.empty(len(ids), np.int64)
        count = self._cache.lookup(ids, missing, *rest)
        new = out[(len(ids) - count) * ROW_BYTES :]
        self._below.read_rows(missing[:count], new)
        flip(new)
        self._cache.complete(self._workers, out)
        brought = np.isin(ids, missing[:count])
        out.reshape(len(ids), ROW_BYTES)[brought] = features[ids[brought]]
        return {Level.HOST: len(ids) - count, Level.DISK: count}

    monkeypatch.setattr(cached.CacheReader, "read", damaged)


def in_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    read = PartitionRows._read

    def damaged(self: PartitionRows, part: int, slot: int) -> None:
        read(self, part, slot)
        at = slot * self._slot_rows * ROW_BYTES
        flip(self._table[at : at + self._slot_rows * ROW_BYTES])

    monkeypatch.setattr(PartitionRows, "_read", damaged)


CACHES = [
    pytest.param(Packed(), in_the_cache_of_a_run, id="packed"),
    pytest.param(Online(), in_the_static_cache, id="online"),
    pytest.param(InMemory(), in_all_features, id="memory"),
    *(
        pytest.param(Dynamic(policy), in_a_cache_that_learns, id=policy)
        for policy in ("sieve", "lru", "s3fifo")
    ),
    pytest.param(Belady(), in_a_cache_that_learns, id="belady"),
    pytest.param(Partition(), in_partitions, id="partition"),
]


@pytest.mark.parametrize(("mode", "damage"), CACHES)
def test_a_bit_that_flips_in_a_cache_is_found(
    graph: Graph, run: Path, make_runtime, monkeypatch: pytest.MonkeyPatch, mode: Mode, damage: Any
) -> None:
    damage(monkeypatch)
    assert load(graph, run, make_runtime(threads=1), mode) > 0
    with pytest.raises(CorruptionError, match="The file has the row right"):
        load(graph, run, make_runtime(threads=1), paranoid(mode))


@pytest.mark.parametrize("mode", [Packed(), Online(), Memmap(), OnDisk()], ids=str)
def test_splits_that_were_not_packed_are_compared_too(
    graph: Graph, run: Path, make_runtime, in_buffers: None, mode: Mode
) -> None:
    with pytest.raises(CorruptionError, match="of this pass over 'test' of epoch 0"):
        load(graph, run, make_runtime(threads=1), paranoid(mode), "test")


def test_a_file_that_changed_afterwards_is_said_to_be(graph: Graph, run: Path, make_runtime) -> None:
    """A map reads it unchecked; the message does not blame memory."""
    row_sums.open_row_sums(graph, make_runtime(threads=1))
    path = graph.path / "features.bin"
    changed = np.fromfile(path, np.uint8)
    changed[: NODES * ROW_BYTES : ROW_BYTES] ^= 1
    path.write_bytes(changed.tobytes())
    assert load(graph, run, make_runtime(threads=1), Memmap()) > 0
    with pytest.raises(CorruptionError, match=r"the file has been changed since .* outcrop verify says"):
        load(graph, run, make_runtime(threads=1), paranoid(Memmap()))


def test_damage_gets_no_checksums(graph: Graph, make_runtime) -> None:
    runtime = make_runtime(threads=1)
    path = graph.path / "features.bin"
    changed = np.fromfile(path, np.uint8)
    changed[5000] ^= 1
    path.write_bytes(changed.tobytes())
    with pytest.raises(ChecksumError, match=re.escape(str(path))):
        row_sums.open_row_sums(graph, runtime)
    assert not row_sums.row_sums_folder(graph).exists()


def test_a_table_that_was_damaged_is_named(graph: Graph, make_runtime) -> None:
    row_sums.open_row_sums(graph, make_runtime(threads=1))
    path = row_sums.row_sums_folder(graph) / "features_row_crc.bin"
    content = bytearray(path.read_bytes())
    content[9] ^= 1
    path.write_bytes(content)
    with pytest.raises(ChecksumError, match=re.escape(str(path)) + ".*remove .* and make it again"):
        row_sums.open_row_sums(graph, make_runtime(threads=1))


def test_a_place_that_cannot_be_written_is_named(
    graph: Graph, make_runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_sums.os, "access", lambda *_: False)
    with pytest.raises(IoError, match=r"is not writable, where the checksums .* leave --paranoid out"):
        row_sums.open_row_sums(graph, make_runtime(threads=1))


def test_what_lies_where_they_would_be_is_kept(graph: Graph, make_runtime) -> None:
    place = row_sums.row_sums_folder(graph)
    shutil.copytree(graph.path, place)
    with pytest.raises(ArgumentError, match=r"in the way .* is of format outcrop.graph: move it"):
        row_sums.open_row_sums(graph, make_runtime(threads=1))
    assert outcrop.open_graph(place).num_nodes == graph.num_nodes
    shutil.rmtree(place)
    place.symlink_to(place.parent / "nowhere")
    with pytest.raises(ArgumentError, match="leads nowhere: remove it"):
        row_sums.open_row_sums(graph, make_runtime(threads=1))
    assert not (place.parent / "nowhere").exists()


def test_a_table_of_another_type_is_made_anew(graph: Graph, make_runtime) -> None:
    runtime = make_runtime(threads=1)
    (right,) = row_sums.open_row_sums(graph, runtime)
    path = row_sums.row_sums_folder(graph) / "manifest.json"
    path.write_text(json.dumps(manifest_at(path)).replace("uint32", "float32"))
    (again,) = row_sums.open_row_sums(graph, runtime)
    assert again.dtype == np.uint32
    assert np.array_equal(again, right)


def test_a_full_disk_is_named_with_what_to_do(
    graph: Graph, make_runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise IoError(errno.ENOSPC, "cannot write 2400 bytes: No space left on device")

    monkeypatch.setattr(row_sums.ArrayWriter, "append", full)
    with pytest.raises(
        IoError, match=rf"take {4 * graph.num_nodes} bytes: free some space, or leave --paranoid"
    ):
        row_sums.open_row_sums(graph, make_runtime(threads=1))


def test_a_node_that_is_none_is_named(graph: Graph, make_runtime) -> None:
    """As where the list of nodes of a batch was damaged, not its rows."""
    check = RowCheck(graph, make_runtime(threads=1), CPU)
    rows = as_rows(random_features(NODES, WIDTH, "float32"))
    check.compare_rows(0, np.arange(NODES), rows, "a batch")
    for bad in (NODES, -1, 1 << 62):
        with pytest.raises(CorruptionError, match=f"that of node {bad}; there are only {NODES}"):
            check.compare_rows(0, np.array([5, bad]), rows[[5, 6]], "a batch")


def typed_graph(folder: Path) -> Graph:
    """Two types of nodes and one of edges have rows, of three widths and dtypes."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    np.save(folder / "x.npy", rng.random((NODES, 5), np.float32))
    np.save(folder / "a.npy", rng.integers(0, 100, (60, 7)).astype(np.int16))
    np.save(folder / "w.npy", rng.random((900, 3)))
    np.save(folder / "y.npy", np.arange(NODES) % 5)
    np.save(folder / "train.npy", np.arange(TRAIN))
    np.save(folder / "cites.npy", rng.integers(0, NODES, (2500, 2)))
    np.save(folder / "writes.npy", np.stack([rng.integers(0, 60, 900), rng.integers(0, NODES, 900)], axis=1))
    (folder / "graph.toml").write_text(
        '[[nodes]]\nname = "paper"\nfeatures = "x.npy"\nlabels = "y.npy"\ntrain = "train.npy"\n'
        '[[nodes]]\nname = "author"\nfeatures = "a.npy"\n'
        '[[edges]]\nsource = "paper"\nrelation = "cites"\ntarget = "paper"\nfile = "cites.npy"\n'
        '[[edges]]\nsource = "author"\nrelation = "writes"\ntarget = "paper"\nfile = "writes.npy"\n'
        'features = "w.npy"\n'
    )
    return outcrop.import_graph(f"arrays:{folder}", folder.with_suffix(".oc"), progress=False)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode.loads_types], ids=str)
@pytest.mark.parametrize("row_file", [0, 1, 2])
def test_every_row_file_of_a_graph_with_types(
    tmp_path: Path, make_runtime, monkeypatch: pytest.MonkeyPatch, mode: Mode, row_file: int
) -> None:
    """Rows of edges, too; the message names the type."""
    graph = typed_graph(tmp_path / "typed")
    sampling = SampleConfig(fanouts=(4, 3), batch_size=20, edge_rows=True)
    run = outcrop.prepare(graph, tmp_path / "run", sampling=sampling, epochs=1, progress=False).path

    def passes(mode: Mode) -> None:
        runtime = make_runtime(threads=2)
        with open_session(graph, runtime, mode, run_folder=run) as opened:
            for batch in opened.batches("train", 0):
                del batch

    passes(paranoid(mode))
    visit = transfer._OnCpu.visit_rows

    def damaged(self: Any, see: Any, buffer: np.ndarray) -> None:
        assert len(self.batch.rows) == 3
        self.batch.rows[row_file].view(torch.uint8).numpy()[-1, -1] ^= 2
        visit(self, see, buffer)

    monkeypatch.setattr(transfer._OnCpu, "visit_rows", damaged)
    owner = ["node \\d+ of 'paper'", "node \\d+ of 'author'", "edge \\d+ of 'author writes paper'"][row_file]
    with pytest.raises(CorruptionError, match=f"that of {owner}; 1 bit differs"):
        passes(paranoid(mode))


@pytest.mark.parametrize(
    "more",
    [
        {"loading": Packed(paranoid=True)},
        {"loading": Online(paranoid=True)},
        {"loading": Packed(paranoid=True), "run": outcrop.Refresh(epochs=1)},
        {"loading": InMemory(paranoid=True)},
    ],
    ids=["packed", "online", "pools", "memory"],
)
def test_training_learns_the_same_and_stops_at_damage(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    asked = train_options(more)
    plain = outcrop.train(graph, **train_options(more, paranoid=False))
    checked = outcrop.train(graph, **asked)
    assert [epoch["loss"] for epoch in plain.epochs] == [epoch["loss"] for epoch in checked.epochs]
    visit = transfer._OnCpu.visit_rows

    def damaged(self: Any, see: Any, buffer: np.ndarray) -> None:
        self.batch.rows[0].view(torch.uint8).numpy()[0, 0] ^= 2
        visit(self, see, buffer)

    monkeypatch.setattr(transfer._OnCpu, "visit_rows", damaged)
    with pytest.raises(CorruptionError, match="batch 0 of this pass over 'train' of epoch 0"):
        outcrop.train(graph, **asked)


def train_options(more: dict[str, Any], *, paranoid: bool = True) -> dict[str, Any]:
    loading = mode_with(more["loading"], {"paranoid": paranoid})
    return {
        "model": outcrop.ModelConfig("sage", 8),
        "sampling": SampleConfig(**SAMPLING),
        "training": outcrop.TrainConfig(epochs=2, seed=3),
        "observer": outcrop.Observer(progress=False),
        **more,
        "loading": loading,
    }


def test_the_loaders_of_a_run_compare(graph: Graph, run: Path, in_buffers: None) -> None:
    loader = outcrop.open_run(run).loader(mode=Packed(paranoid=True))
    with pytest.raises(CorruptionError):
        next(iter(loader))
    drawn = outcrop.open_run(run).loader(np.arange(30), mode=Packed(paranoid=True))
    with pytest.raises(CorruptionError):  # by mode online, which stands in
        next(iter(drawn))


@pytest.mark.parametrize("method", ["layerwise", "sampled"])
@pytest.mark.parametrize("memory", ["1MiB", "64MiB"])
def test_inference_compares_what_it_computes_with(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, memory: str
) -> None:
    folder = tmp_path / "checkpoint"
    outcrop.train(graph, **train_options({"loading": InMemory()}, paranoid=False), checkpoint=folder)

    def predict(name: str, paranoid: bool) -> bytes:
        out = tmp_path / f"{name}.npy"
        sampling = outcrop.InferSampling(paranoid=paranoid)
        outcrop.infer(graph, model=folder, out=out, method=method, memory=memory, sampling=sampling)
        return out.read_bytes()

    right = predict("plain", False)
    assert predict("checked", True) == right
    read = DiskRows.read_rows

    def damaged(self: DiskRows, ids: np.ndarray, out: np.ndarray) -> Any:
        levels = read(self, ids, out)
        if self.row_bytes == ROW_BYTES:
            out[ROW_BYTES - 1 :: ROW_BYTES] ^= 0x40
        return levels

    check = DiskArray.check_pages

    def damaged_after(self: DiskArray, first: int, pages: np.ndarray) -> None:
        check(self, first, pages)
        if self.row_bytes == ROW_BYTES:
            pages[ROW_BYTES - 1 :: ROW_BYTES] ^= 0x40

    monkeypatch.setattr(DiskRows, "read_rows", damaged)
    monkeypatch.setattr(DiskArray, "check_pages", damaged_after)  # of layers by columns
    assert predict("wrong", False) != right
    with pytest.raises(CorruptionError, match="that of node "):
        predict("stopped", True)


def test_of_several_that_want_the_checksums_one_makes_them(
    graph: Graph, make_runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ranks do, which all open the graph at the same time."""
    together, made = threading.Barrier(4), []
    current, make = row_sums._current, row_sums._make

    def asked(graph: Graph, *rest: Any) -> Any:
        found = current(graph, *rest)
        if threading.current_thread() not in made_by:
            made_by.append(threading.current_thread())
            together.wait()  # all have seen that there are none
        return found

    def counting(graph: Graph, *rest: Any) -> None:
        made.append(graph)
        make(graph, *rest)

    made_by: list[threading.Thread] = []
    monkeypatch.setattr(row_sums, "_current", asked)
    monkeypatch.setattr(row_sums, "_make", counting)
    runtime = make_runtime(threads=1)
    with ThreadPoolExecutor(4) as several:
        every = list(several.map(lambda _: row_sums.open_row_sums(graph, runtime)[0], range(4)))
    assert len(made) == 1
    assert all(np.array_equal(every[0], one) for one in every)


@pytest.mark.parametrize("mode", ["packed", "online"])
def test_the_commands_take_it(graph: Graph, tmp_path: Path, in_buffers: None, mode: str) -> None:
    """Damage ends them with one line; without the option they know nothing of it."""
    checkpoint = str(tmp_path / "ckpt")
    options = ["--mode", mode, "--model", "sage", "--hidden", "8", "--fanouts", "3,3", "--epochs", "1"]
    command = ["train", str(graph.path), *options, "--checkpoint", checkpoint, "--quiet"]
    with pytest.raises(CorruptionError):
        typer_main.get_command(app).main([*command, "--paranoid"], standalone_mode=False)
    assert row_sums.row_sums_folder(graph).is_dir()
    typer_main.get_command(app).main(command, standalone_mode=False)
    out = str(tmp_path / "out.npy")
    scoring = [
        "infer",
        str(graph.path),
        "--checkpoint",
        checkpoint,
        "--out",
        out,
        "--method",
        "sampled",
        "--quiet",
    ]
    with pytest.raises(CorruptionError):
        typer_main.get_command(app).main([*scoring, "--paranoid"], standalone_mode=False)
