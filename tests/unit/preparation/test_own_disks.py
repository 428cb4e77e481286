"""Machines with disks of their own, which are folders here: after a kill at every call between them files are equal."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcrop as oc
from artifact_support import tree
from outcrop.config import PlanConfig, SampleConfig
from outcrop.errors import ArgumentError, CancelledError, ChecksumError
from outcrop.preparation.cluster import own_disks
from outcrop.preparation.cluster.move_pieces import ChunkReader, PieceOwner, owned_tables
from outcrop.preparation.cluster.own_disks import OwnDisks, machine_of
from outcrop.preparation.cluster.pieces import PieceSet, PieceTable, TableHead, prepare_pieces
from outcrop.preparation.pack import CopiedBytes, KeepsPartsApart, PackTask
from outcrop.preparation.pack_files import Journal, OutputFiles
from outcrop.preparation.prepare import PrepareReport, PrepareRequest, prepare_within_limits
from outcrop.store.graph import open_graph

PARTS = 4


class Killed(BaseException):
    """Ends the command as SIGKILL would: nobody is to catch it."""


class Folders:
    """Machines that are folders: ``run`` of the first is given, those of others lie elsewhere.

    Attributes:
        calls: Calls that others were sent so far; at that of number ``kill_at`` the command is killed.
    """

    def __init__(self, roots: dict[str, Path], kill_at: int = -1):
        self.roots, self.kill_at, self.calls = roots, kill_at, 0
        self.lost: set[str] = set()

    def names(self) -> list[str]:
        return [name for name in self.roots if name not in self.lost]

    def address(self, machine: str) -> str:
        return f"host {machine}"

    def there(self, machine: str, path: Path) -> Path:
        here = next(iter(self.roots.values()))
        return self.roots[machine] / path.relative_to(here) if path.is_relative_to(here) else path

    def call(self, machine: str, function: Callable[..., Any], *given: Any) -> Any:
        if machine in self.lost:
            raise CancelledError(f"{machine} is lost")
        if self.calls == self.kill_at:
            raise Killed
        self.calls += machine != self.names()[0]
        return function(*(self.there(machine, one) if isinstance(one, Path) else one for one in given))

    def call_each(self, machine: str, function: Callable[..., Any], each: Iterable[tuple[Any, ...]]) -> None:
        for given in each:
            self.call(machine, function, *given)


class Disks(KeepsPartsApart, AbstractContextManager[Any]):
    """Keeps parts in the folders of machines; rows are read and written by this process, in an order of its own."""

    def __init__(
        self, machines: Folders, run: Path, seed: int = 0, lose: str | None = None, kill_after: float = 1.0
    ):
        self.own, self.machines = OwnDisks(machines, run, PARTS, 1), machines
        self.chance, self.lose, self.kill_after = random.Random(seed), lose, kill_after

    def __exit__(self, *raised: object) -> None: ...

    @property
    def sent_bytes(self) -> int:
        return self.own.sent_bytes

    def lost_parts(self) -> list[int]:
        return self.own.lost_parts()

    def hand_out(self) -> dict[str, list[int]]:
        return self.own.hand_out()

    def __call__(self, packing: PackTask, files: OutputFiles, journal: Journal) -> CopiedBytes:
        cut = lambda: prepare_pieces(packing, files, 4096)  # noqa: E731
        return self.own.fill(packing, files, journal, cut, self._write)

    def _write(self, pieces: PieceSet, homes: Mapping[str, str]) -> CopiedBytes:
        here = self.machines.names()[0]
        owned = owned_tables(pieces, PARTS)
        places = [homes.get(next(h.output for heads in own for h in heads), here) for own in owned]
        folders = [self.machines.there(place, pieces.folder) for place in places]
        owners = [
            PieceOwner(replace(pieces, folder=folder), own)
            for folder, own in zip(folders, owned, strict=True)
        ]
        self._pull(pieces, folders, owned)
        reader, chunks = ChunkReader(pieces.rows), pieces.missing()
        self.chance.shuffle(chunks)
        try:
            for place, (number, chunk) in enumerate(chunks):
                if place > self.kill_after * len(chunks):
                    raise Killed
                for owner in owners:
                    owner.accept(number, chunk, reader.read(number, chunk, owner.wanted(number, chunk)))
                if place == len(chunks) // 2 and self.lose is not None:
                    self.machines.lost.add(self.lose)
                    self.lose = None
                    raise CancelledError("a machine is lost")
        finally:
            for one in (reader, *owners):
                one.close()
        self._pull(pieces, folders, owned)
        assert not pieces.missing()
        return CopiedBytes()

    def _pull(self, pieces: PieceSet, folders: list[Path], owned: list[list[list[TableHead]]]) -> None:
        for folder, own in zip(folders, owned, strict=True):
            for head in (head for heads in own for head in heads):
                noted = PieceTable(folder, head, "r")
                PieceTable(pieces.folder, head).take_over(np.array(noted.crc), np.array(noted.done))


@pytest.fixture(scope="module", params=["packed", "3,1"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A typed graph, so that there are several row files, and a run of one process."""
    folder = tmp_path_factory.mktemp("made")
    config = oc.GenerateConfig(nodes=600, edges=6000, kind="typed", features=16, train_fraction=0.3)
    graph = oc.generate_graph(folder / "g.oc", config, progress=False).path
    prepared(graph, folder / "want.run", request.param)
    return graph, folder / "want.run"


def prepared(graph: Path, run: Path, layout: str, disks: Disks | None = None) -> PrepareReport:
    sampling = SampleConfig(fanouts=(3, 3), batch_size=20, epochs=1)
    limits = PlanConfig(memory=4 << 20, layout=layout, parts=PARTS)
    request = PrepareRequest(open_graph(graph), run, sampling, limits)
    if disks is not None:
        request = replace(request, fill=disks, disks=disks)
    return prepare_within_limits(request)


def check(want: Path, machines: Folders, *parts: list[int], more: bool = False) -> None:
    """Each machine has the files of one, but for those of other parts.

    Args:
        parts: Parts of each machine; one without any is not looked at.
        more: They may have other parts, too.
    """
    every = stages(want)
    for (name, root), own in zip(machines.roots.items(), parts, strict=True):
        if own:
            found = stages(root / "g.run")
            assert [file for file in found if found[file] != every[file]] == []
            others = [part for part in range(PARTS) if part not in own]
            expected = {f"pack/records.{part}.bin" for part in others}
            if name != machines.names()[0]:  # which draws all batches
                expected |= {f"sample/batches.{part}.bin" for part in others}
            lacking = every.keys() - found.keys()
            assert lacking <= expected if more else lacking == expected
            assert not [path for path in (root / "g.run").iterdir() if path.name.startswith(".")]


def stages(run: Path) -> dict[str, bytes]:
    return {name: data for name, data in tree(run).items() if name.split("/")[0] in own_disks.STAGES}


def roots_in(folder: Path, names: str = "ab") -> dict[str, Path]:
    for name in names:
        (folder / name).mkdir(exist_ok=True)
    return {name: folder / name for name in names}


def layout_of(want: Path) -> str:
    return oc.open_run(want).info.plan.layout


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.soak)])
def test_a_kill_at_every_call(made: tuple[Path, Path], tmp_path: Path, every: int) -> None:
    """The whole takes so many calls; a command is killed at each of them, and the next one goes on."""
    graph, want = made
    machines = Folders(roots_in(tmp_path))
    disks = Disks(machines, tmp_path / "a" / "g.run")
    report = prepared(graph, tmp_path / "a" / "g.run", layout_of(want), disks)
    check(want, machines, [0, 2], [1, 3])
    assert report.machines == {
        "parts": {"host a": [0, 2], "host b": [1, 3]},
        "files_bytes_sent": disks.sent_bytes,
    }
    assert machines.calls > 20
    for kill_at in range(0, machines.calls, every):
        for name in "ab":
            shutil.rmtree(tmp_path / name)
        killed = Folders(roots_in(tmp_path), kill_at)
        with pytest.raises(Killed):
            prepared(
                graph, tmp_path / "a" / "g.run", layout_of(want), Disks(killed, tmp_path / "a" / "g.run")
            )
        again = Folders(roots_in(tmp_path))
        prepared(
            graph, tmp_path / "a" / "g.run", layout_of(want), Disks(again, tmp_path / "a" / "g.run", kill_at)
        )
        check(want, again, [0, 2], [1, 3])
    left = Folders(roots_in(tmp_path))
    disks = Disks(left, tmp_path / "a" / "g.run")
    assert prepared(graph, tmp_path / "a" / "g.run", layout_of(want), disks).skipped == [
        "sample",
        "plan",
        "pack",
    ]
    assert disks.sent_bytes == 0


def test_a_machine_is_lost_while_it_writes(made: tuple[Path, Path], tmp_path: Path) -> None:
    graph, want = made
    machines = Folders(roots_in(tmp_path, "abc"))
    run = tmp_path / "a" / "g.run"
    report = prepared(graph, run, layout_of(want), Disks(machines, run, lose="b"))
    assert report.machines is not None
    assert report.machines["parts"] == {"host a": [0, 2], "host c": [1, 3]}
    check(want, machines, [0, 2], [], [1, 3], more=True)


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 24))]
)
def test_kills_losses_and_other_ways_in_any_order(made: tuple[Path, Path], tmp_path: Path, seed: int) -> None:
    """Machines come and go, with their disks or without, and somebody packs on one machine in between."""
    graph, want = made
    chance, run = random.Random(seed), tmp_path / "a" / "g.run"
    for step in range(8):
        names, kill_at = (
            chance.choice(["a", "ab", "ab", "abc", "acb"]),
            chance.choice([-1, chance.randrange(60)]),
        )
        machines = Folders(roots_in(tmp_path, names), kill_at)
        lose = chance.choice(names[1:]) if len(names) > 1 and chance.random() < 0.3 else None
        disks = Disks(machines, run, seed + step, lose, chance.choice([0.3, 0.6, 1.0]))
        with suppress(Killed):
            prepared(graph, run, layout_of(want), None if chance.random() < 0.15 else disks)
        for name in "bc":
            if chance.random() < 0.2:
                shutil.rmtree(tmp_path / name, ignore_errors=True)
        if chance.random() < 0.1:
            shutil.rmtree(run)
    machines = Folders(roots_in(tmp_path))
    prepared(graph, run, layout_of(want), Disks(machines, run))
    check(want, machines, [0, 2], [1, 3], more=True)


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(
    "what", ["g.run", "g.run/pack/records.1.bin", "g.run/pack/manifest.json", "g.run/plan"]
)
def test_what_is_lost_comes_again(made: tuple[Path, Path], tmp_path: Path, what: str) -> None:
    graph, want = made
    machines, run = Folders(roots_in(tmp_path)), tmp_path / "a" / "g.run"
    prepared(graph, run, layout_of(want), Disks(machines, run))
    path = tmp_path / "b" / what
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    prepared(graph, run, layout_of(want), Disks(machines, run))
    check(want, machines, [0, 2], [1, 3])


def test_a_run_of_one_machine_is_handed_out(made: tuple[Path, Path], tmp_path: Path) -> None:
    graph, want = made
    machines, run = Folders(roots_in(tmp_path)), tmp_path / "a" / "g.run"
    prepared(graph, run, layout_of(want))
    report = prepared(graph, run, layout_of(want), Disks(machines, run))
    assert report.skipped == ["sample", "plan", "pack"]
    check(want, machines, [0, 1, 2, 3], [1, 3])


def test_what_was_damaged_on_its_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(bytes(range(100)))
    (sent,) = own_disks.slices_of(tmp_path / "a", "file")
    own_disks.receive(tmp_path / "b", sent)
    assert (tmp_path / "b" / "file").read_bytes() == bytes(range(100))
    sent.data[7] ^= 1
    with pytest.raises(ChecksumError, match=r"b/file: what another machine has sent was damaged"):
        own_disks.receive(tmp_path / "b", sent)


@pytest.mark.parametrize("seed", range(5))
def test_slices_of_places(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies elsewhere in the file is not touched."""
    monkeypatch.setattr(own_disks, "_SLICE_BYTES", 64)
    rng = np.random.default_rng(seed)
    content = rng.integers(0, 256, 1000).astype(np.uint8)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(content.tobytes())
    cuts = np.sort(rng.choice(1000, 20, replace=False))
    starts, lengths = cuts[::2], cuts[1::2] - cuts[::2]
    for sent in own_disks.slices_of(tmp_path / "a", "file", starts, lengths):
        assert len(sent.data) <= 64
        own_disks.receive(tmp_path / "b", sent)
    expected = np.zeros(1000, np.uint8)
    for start, length in zip(starts, lengths, strict=True):
        expected[start : start + length] = content[start : start + length]
    assert (tmp_path / "b" / "file").read_bytes() == expected.tobytes()


def test_machines_that_share_a_folder_are_named(made: tuple[Path, Path], tmp_path: Path) -> None:
    graph = open_graph(made[0])
    (tmp_path / "a").mkdir()
    machines = Folders({"a": tmp_path / "a", "b": tmp_path / "a"})
    with pytest.raises(
        ArgumentError, match=r"of the machine host a is the folder of host b, too: leave --own-disks"
    ):
        OwnDisks(machines, tmp_path / "a" / "g.run", 2, 1).check(graph.path, graph.digest())
    assert list((tmp_path / "a" / "g.run").iterdir()) == []


def test_a_machine_without_the_graph_is_named(made: tuple[Path, Path], tmp_path: Path) -> None:
    machines = Folders(roots_in(tmp_path))
    shutil.copytree(made[0], tmp_path / "a" / "g.oc")
    graph = open_graph(tmp_path / "a" / "g.oc")
    disks = OwnDisks(machines, tmp_path / "a" / "g.run", 2, 1)
    with pytest.raises(ArgumentError, match=r"the machine host b has no graph .* outcrop fetch URI brings"):
        disks.check(graph.path, graph.digest())
    oc.generate_graph(tmp_path / "b" / "g.oc", oc.GenerateConfig(nodes=100, edges=200), progress=False)
    with pytest.raises(ArgumentError, match="the machine host b has another graph at"):
        disks.check(graph.path, graph.digest())


def test_parts_lie_where_their_ranks_are() -> None:
    for machines in range(1, 5):
        for processes in range(1, 4):
            world = machines * processes
            for part in range(3 * world):
                assert machine_of(part, machines, processes) == (part % world) // processes
    with pytest.raises(ArgumentError, match="lacks ray"):
        oc.PackConfig(own_disks=True, parts=2)
    with pytest.raises(ArgumentError, match="lacks parts"):
        oc.PackConfig(own_disks=True, ray="auto")
