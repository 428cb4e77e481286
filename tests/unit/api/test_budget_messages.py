"""Refusals of a budget write every count of bytes so that a person reads its size and a program its number."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import outcrop as oc
from artifact_support import memory_folder
from outcrop import _core
from outcrop.advisor.choose import SpoolDecision
from outcrop.config import EmbedConfig, exact_bytes, format_bytes, least_bytes, parse_size
from outcrop.embed.sizing import fewest_partitions
from outcrop.errors import BudgetError
from outcrop.runtime.runtime import Runtime
from outcrop.runtime.smallest_budget import SMALLER_BATCHES, smallest
from outcrop.sampling.partitioned import fitting_partitions
from outcrop.store.graph import Graph
from outcrop.store.lock import only_process_in, opened
from outcrop.training import spool
from outcrop.training.fallback import Fallback

TRAIN = {"fanouts": (4, 4), "batch_size": 40, "hidden": 4, "epochs": 1, "progress": False}
MODES = ("packed", "online", "memory", "memmap", "ondisk", "dynamic")
COUNTS = ("rows", "nodes", "edges")  # what other large numbers are followed by


def unsized(text: str) -> list[str]:
    """The numbers of ``text`` with five digits or more that are no counts of something else and whose size is missing
    or wrong: another than the one below or, for what is the least that works, the one above."""
    return [
        found[0]
        for found in re.finditer(r"(?<![\w./-])(\d{5,})(?![\w/])(?: (\w+))?(?: \(([^)]*)\))?", text)
        if found[2] not in COUNTS and not (found[2] == "bytes" and is_sized(text[: found.start()], found))
    ]


def is_sized(before: str, found: re.Match[str]) -> bool:
    if found[3] is None:
        return False
    down, up = (write(int(found[1])).partition("(")[2].rstrip(")") for write in (exact_bytes, least_bytes))
    if re.search(r"(that can is|at least|that does is) $", before):
        return found[3] == up
    return found[3] in (down, up)


def about_tenths() -> list[int]:
    """Counts of bytes about tenths, halves and wholes of each unit that is printed."""
    edges = [int(k * 1024**power) for power in range(1, 5) for k in (1, 1.1, 1.5, 9.9, 1023, 1023.95, 1024)]
    return [edge + more for edge in edges for more in range(-2, 3) if edge + more >= 10_000]


def test_what_is_least_works_as_it_is_printed() -> None:
    """The size beside the number, typed as an option, is enough; one tenth less is not."""
    for count in [*about_tenths(), 10_000, 278_528, 1_671_168, 3_460_301]:
        text = least_bytes(count)
        number, size = re.fullmatch(r"(\d+) bytes \((.*)\)", text).groups()  # type: ignore[union-attr]
        assert int(number) == count
        value, unit = size.split()
        assert parse_size(size) >= count, text
        assert float(value) < 1024 or unit == "TiB"
        assert int(Fraction(Fraction(value) - Fraction(1, 10)) * parse_size(f"1{unit}")) < count, text
        with pytest.raises(BudgetError, match=re.escape(f"raise the budget to at least {text}") + "$"):
            _core.Budget.create(1).reserve("x", count)
    assert least_bytes(512) == "512 bytes"


def test_what_there_is_is_no_less_than_printed() -> None:
    """So that a budget that was refused does not look as large as the smallest one that works."""
    for count in [*about_tenths(), 10_000, 278_528, 1_671_168, 3_460_301]:
        text = exact_bytes(count)
        size = re.fullmatch(rf"{count} bytes \((.*)\)", text)[1]  # type: ignore[index]
        value, unit = size.split()
        tenth = Fraction(parse_size(f"1{unit}"), 10)
        assert 0 <= count - Fraction(value) * parse_size(f"1{unit}") < tenth, text
    assert exact_bytes(1_456_741) == "1456741 bytes (1.3 MiB)"
    assert least_bytes(1_456_742) == "1456742 bytes (1.4 MiB)"


def test_what_is_unsized() -> None:
    assert unsized("the smallest budget that can is 1677723 bytes (1.6 MiB)") == ["1677723 bytes (1.6 MiB)"]
    assert unsized("the smallest budget that can is 1677723 bytes (1.7 MiB), 1677723 bytes (1.6 MiB)") == []
    assert unsized("12345 bytes (12.1 KiB) of 9999 bytes, 54321 rows in /tmp/12345/g") == []
    assert unsized("12345 bytes (11.9 KiB), 54321 are free, 77777 bytes") == [
        "12345 bytes (11.9 KiB)",
        "54321 are",
        "77777 bytes",
    ]


@pytest.mark.parametrize(
    "count", [10_000, 1 << 20, 1_048_575, 1_456_741, (1 << 30) + (1 << 29), 1 << 40, 1 << 51]
)
def test_both_languages_write_sizes_alike(count: int) -> None:
    with pytest.raises(BudgetError) as refused:
        _core.Budget.create(count).reserve("x", count + 10_000)
    assert (
        f"memory budget of {exact_bytes(count)} cannot hold another {exact_bytes(count + 10_000)} for 'x'"
        in str(refused.value)
    )


@pytest.fixture(scope="module")
def graph() -> Iterator[Graph]:
    with memory_folder() as folder:
        yield oc.generate_graph(
            folder / "g",
            oc.GenerateConfig(nodes=600, edges=6000, features=200, classes=3, train_fraction=0.1),
        )


def calls(graph: Graph, out: Path) -> dict[str, Callable[[], Any]]:
    """Calls that are refused, at each of several limits in Python and in C++."""
    edges = np.random.default_rng(0).integers(0, 600, (6000, 2))
    oc.train(graph, mode="memory", model="gcn", checkpoint=out / "ckpt", **TRAIN)
    oc.embed_prepare(graph.path, out / "embed", oc.BucketConfig(partitions=8), progress=False)

    def training(mode: str, memory: int) -> Callable[[], Any]:
        return lambda: oc.train(graph, mode=mode, memory=memory, **TRAIN)

    def preparing(name: str, **limits: Any) -> Callable[[], Any]:
        where: dict[str, Any] = {
            "fanouts": (4, 4),
            "batch_size": 40,
            "epochs": 1,
            "progress": False,
            **limits,
        }
        return lambda: oc.prepare(graph, out / name, **where)

    return {
        **{f"{mode} {memory}": training(mode, memory) for mode in MODES for memory in (20_000,)},
        **{f"prepare {n}": preparing(f"p{n}", memory=n) for n in (20_000, 200_000)},
        "disk": preparing("disk", memory="4MiB", disk_space=50_000),
        "device": preparing("device", memory="4MiB", gpu_memory=20_000),
        "infer": lambda: oc.infer(
            graph, checkpoint=out / "ckpt", out=out / "o.npy", memory=300_000, progress=False
        ),
        **{f"import {n}": lambda n=n: oc.import_graph(edges, out / "i", memory=n) for n in (20_000, 700_000)},
        "generate": lambda: oc.generate_graph(out / "n", memory=100_000),
        "buckets": lambda: oc.embed_prepare(
            graph.path, out / "b", oc.BucketConfig(partitions=8), memory=200_000, progress=False
        ),
        "embed": lambda: oc.embed_train(out / "embed", dim=400, memory=500_000, progress=False),
        "sizing": lambda: fewest_partitions(10**9, 10**9, 0, EmbedConfig(dim=400), 10**6),
        "partitions": lambda: fitting_partitions(graph, 64, 2, 20_000, 0),
        "topology": lambda: _core.CscBuilder(
            (runtime := Runtime()).io, runtime.budget, runtime.workers, str(out), 10, memory_bytes=10_000
        ),
    }


def test_every_refusal_writes_sizes(graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the refusals that were turned into others on their way up."""
    monkeypatch.setattr(
        spool, "decide_spooling", lambda *_: SpoolDecision(0, None, "")
    )  # which would measure the machine
    said = set()
    for name, call in calls(graph, tmp_path).items():
        with pytest.raises(BudgetError) as refused:
            call()
        error: BaseException | None = refused.value
        while error is not None:
            said.add(re.sub(r"\d+", "0", str(error)))
            assert unsized(str(error)) == [], (name, str(error))
            error = error.__cause__ or error.__context__
    assert len(said) >= 12


def test_a_mode_that_works_is_named(graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where packing is refused a budget that another mode can train with: smaller batches may take more to pack."""
    monkeypatch.setattr(spool, "decide_spooling", lambda *_: SpoolDecision(0, None, ""))

    def refused(mode: str, memory: int) -> BudgetError:
        with pytest.raises(BudgetError) as found:
            oc.train(graph, mode=mode, memory=memory, **TRAIN)
        return found.value

    packed, online, ondisk = (refused(mode, 20_000).smallest for mode in ("packed", "online", "ondisk"))
    assert packed is not None
    assert online is not None
    assert ondisk is not None
    assert online < packed
    assert str(refused("packed", packed - 1)).endswith("; --mode online works with this budget")
    oc.train(graph, mode="online", memory=packed - 1, **TRAIN)
    if ondisk < online:
        assert str(refused("packed", online - 1)).endswith("; --mode ondisk works with this budget")
        assert str(refused("online", online - 1)).endswith("; --mode ondisk works with this budget")
    assert str(refused("packed", min(online, ondisk) - 1)).endswith(SMALLER_BATCHES)


@pytest.mark.parametrize("typed", [False, True])
def test_without_a_mode_the_one_that_works_is_taken(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: bool
) -> None:
    """Where packing is refused its memory and mode online is not: it learns the same, and leaves nothing."""
    monkeypatch.setattr(spool, "decide_spooling", lambda *_: SpoolDecision(0, None, ""))
    if typed:
        shape = oc.GenerateConfig(kind="typed", nodes=600, edges=6000, features=24, train_fraction=0.4)
        graph = oc.generate_graph(tmp_path / "typed", shape)
    model: dict[str, Any] = {"model": oc.ModelConfig("rsage", hidden=4, no_rows="random:4")} if typed else {}
    options: dict[str, Any] = {
        name: value for name, value in TRAIN.items() if not (typed and name == "hidden")
    } | model

    def smallest_of(mode: str | None) -> int:
        with pytest.raises(BudgetError) as refused:
            oc.train(graph, mode=mode, memory=20_000, **options)
        assert ("in mode" in str(refused.value)) == (mode is not None)
        assert refused.value.smallest is not None
        return refused.value.smallest

    packed, online = smallest_of("packed"), smallest_of("online")
    assert online < packed
    want = oc.train(graph, mode="online", memory=packed - 1, **options)
    before = set(graph.path.parent.iterdir())
    for memory in (packed - 1, online):
        found = oc.train(graph, memory=memory, **options)
        assert (found.mode, found.batch_losses) == ("online", want.batch_losses)
        assert re.fullmatch(
            r"new batches in every epoch: 1 epoch is prepared at once(, in up to about [\d.]+ KiB on disk)?\n"
            r"mode online instead: there is too little memory to prepare a run \(.*\)",
            found.chosen,
        )
        assert found.peak_host_bytes <= memory
        assert set(graph.path.parent.iterdir()) == before
    assert smallest_of(None) == online
    found = oc.train(graph, memory=packed, **options)
    assert (found.mode, found.batch_losses) == ("packed", want.batch_losses)


def tree(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_nothing_is_taken_back_that_was_there_or_is_anothers(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where preparing is refused: a run of other options stays, as do folders that somebody else has made or uses."""
    monkeypatch.setattr(spool, "decide_spooling", lambda *_: SpoolDecision(0, None, ""))
    with pytest.raises(BudgetError) as refused:
        oc.train(graph, mode="packed", memory=20_000, **TRAIN)
    assert refused.value.smallest is not None
    too_little = refused.value.smallest - 1
    run, pools = (graph.path.with_name(graph.path.name + suffix) for suffix in (".run", ".pools"))
    shutil.rmtree(run, ignore_errors=True)  # of other tests
    with pytest.raises(BudgetError) as refused:
        oc.train(graph, mode="packed", memory=too_little, **TRAIN)
    size = format_bytes(sum(len(content) for content in tree(run / "sample").values()))
    assert f"; {run} keeps the mini-batches that were drawn ({size}) for the next try; --mode" in str(
        refused.value
    )
    shutil.rmtree(run)

    def trained_while(meanwhile: Callable[[], object]) -> str:
        """Trains; right before preparing is refused, something happens in the folders beside the graph."""
        real = Fallback.give_up

        def give_up(*args: Any) -> Any:
            meanwhile()
            return real(*args)

        with monkeypatch.context() as patched:
            patched.setattr(Fallback, "give_up", give_up)
            return oc.train(graph, memory=too_little, **TRAIN).mode

    assert trained_while(lambda: None) == "online"
    assert not run.exists()
    with ExitStack() as held:  # another process waits for the lock, and has it
        assert trained_while(lambda: held.enter_context(only_process_in(run))) == "online"
        assert (run / "sample").is_dir()
    shutil.rmtree(run)
    assert trained_while(lambda: shutil.copytree(graph.path, run / "pack")) == "online"
    assert (run / "pack").is_dir()  # finished by another
    shutil.rmtree(run)

    with monkeypatch.context() as patched:  # another one finishes there right before the lock is had

        def late(folder: Path) -> Any:
            if folder == run:
                shutil.copytree(graph.path, run / "pack", dirs_exist_ok=True)
            return opened(folder)

        patched.setattr("outcrop.training.begun.opened", late)
        assert trained_while(lambda: None) == "online"
        assert (run / "pack").is_dir()
    shutil.rmtree(run)
    with monkeypatch.context() as patched:  # a file system without locks
        patched.setattr("outcrop.training.begun.try_lock", lambda handle, *, wait: None)
        assert trained_while(lambda: None) == "online"
        assert not run.exists()

    def others() -> None:
        pools.mkdir()
        (pools / "notes.txt").write_text("mine")

    assert trained_while(others) == "online"
    assert (run.exists(), (pools / "notes.txt").read_text()) == (False, "mine")
    shutil.rmtree(pools)
    for fanouts, mode in (((4, 4), "online"), ((2, 2), None)):
        oc.train(graph, mode="packed", **TRAIN | {"fanouts": fanouts})
        before = tree(run)
        if mode is not None:  # of the same batches: nothing of it is replaced before preparing is refused
            assert oc.train(graph, memory=too_little, **TRAIN).mode == mode
            assert tree(run) == before
    before = tree(run / "pack")
    with pytest.raises(BudgetError, match=r"in mode packed.*--mode online works with this budget"):
        oc.train(graph, memory=too_little, **TRAIN)
    assert tree(run / "pack") == before


@given(
    start=st.integers(20_000, 10**7),
    hole=st.integers(0, 1000),
    refused=st.lists(st.integers(1, 10**7), min_size=2, max_size=4),
)
def test_what_is_named_does_not_depend_on_what_was_refused(start: int, hole: int, refused: list[int]) -> None:
    """Also where a few budgets above the smallest do not work, as rounding brings with it."""

    def fits(limit: int) -> bool:
        return limit >= start and limit != start + hole

    below = [limit for limit in refused if not fits(limit)]
    assert len({smallest(limit, fits) for limit in below}) <= 1 + (hole > 0)
    assert all(fits(found) for limit in below if (found := smallest(limit, fits)) is not None)
