"""Damaged, foreign and edited artifacts: an error that names the file, or the right rows; never a crash or a hang."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from artifact_support import (
    differences,
    fresh_runtime,
    manifest_at,
    memory_folder,
    prepare,
    small_graph,
    tree,
)
from outcrop.errors import ChecksumError, FormatError, IoError, OutcropError
from outcrop.loading.open import open_session
from outcrop.runtime.runtime import Runtime
from outcrop.store import record
from outcrop.store.graph import Graph, open_graph
from outcrop.store.placement import open_placement
from outcrop.store.samples import open_samples
from outcrop.store.verify import verify_artifact

STAGES = ("sample", "plan", "pack")
DAMAGE = (FormatError, ChecksumError, IoError)
LOADING_MEMORY = "6MiB"


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """A good graph and run; each test spoils a copy."""
    with memory_folder() as folder:
        prepare(small_graph(folder / "graph"), folder / "run")
        yield folder


@pytest.fixture(scope="module")
def features(made: Path) -> np.ndarray:
    graph = open_graph(made / "graph")
    with fresh_runtime() as runtime:
        return graph.array(runtime, "features").memmap().copy()


@pytest.fixture
def copy(made: Path) -> Iterator[Path]:
    with memory_folder() as folder:
        shutil.copytree(made, folder, dirs_exist_ok=True)
        yield folder


def load_everything(folder: Path, features: np.ndarray, mode: str = "packed", run: bool = True) -> None:
    """Loads all batches of two epochs and of the evaluation splits; whatever is delivered must be right."""
    graph = open_graph(folder / "graph")
    with fresh_runtime(LOADING_MEMORY) as runtime:
        _load(graph, runtime, mode, folder / "run" if run else None, features)


def _load(graph: Graph, runtime: Runtime, mode: str, run_folder: Path | None, features: np.ndarray) -> None:
    with open_session(graph, runtime, mode, run_folder=run_folder) as session:
        for split, epoch in (("train", 0), ("train", 1), ("valid", 0), ("test", 0)):
            with session.batches(split, epoch) as batches:
                for batch in batches:
                    assert np.array_equal(batch.x.numpy(), features[batch.graph.n_id]), "wrong rows"
                    del batch


def is_refused(
    folder: Path, features: np.ndarray, where: Path, mode: str = "packed", run: bool = True
) -> str:
    """Loading says what is wrong with ``where`` (or its folder). The message."""
    with pytest.raises(DAMAGE) as caught:
        load_everything(folder, features, mode, run)
    message = str(caught.value)
    caught.value.__traceback__ = None
    # Where two stages contradict each other, the later one may be named.
    assert str(folder / "run" if folder / "run" in where.parents else where.parent) in message, message
    assert "\n" not in message
    return message


def repaired_by_prepare(copy: Path, made: Path) -> None:
    prepare(open_graph(copy / "graph"), copy / "run")
    assert differences(tree(copy / "run"), tree(made / "run")) == []


def data_files(folder: Path) -> list[Path]:
    return sorted(f for f in folder.rglob("*.bin") if f.stat().st_size)


# Which mode reads a file. Nothing reads the ids of the device cache; the graphs of packed batches are in the records.
USED_BY = {
    name: "packed"
    for name in (
        "run/sample/offsets.bin",
        "run/sample/shape.bin",
        "run/plan/packed_batches.bin",
        "run/plan/packed_per_hop.bin",
        "run/plan/cached_rows.bin",
        "run/plan/offsets.bin",
        "run/plan/region_rows.bin",
        "run/plan/range_starts.bin",
        "run/plan/disk_pages.bin",
        "run/pack/records.bin",
        "run/pack/host_cache.bin",
        "run/pack/device_cache.bin",
        "run/pack/disk_cache.bin",
        "run/pack/page_crc.bin",
        "run/pack/rows_crc.bin",
    )
} | {"run/sample/batches.bin": "ondisk"}


def names_below(*folders: str) -> list[str]:
    """Paths of the array files of a run, known here so that pytest can list them."""
    arrays = {
        "graph": [
            *("features", "indices", "indptr", "labels", "test", "train", "valid"),
            *("features_page_crc", "indices_page_crc", "indptr_page_crc"),
        ],
        "run/sample": ["batches", "offsets", "shape"],
        "run/plan": [
            "host_ids",
            "device_ids",
            "packed_batches",
            "packed_per_hop",
            "cached_rows",
            "disk_pages",
            "offsets",
            "region_rows",
            "range_starts",
            "disk_ids",
            "disk_rank",
        ],
        "run/pack": ["records", "host_cache", "device_cache", "disk_cache", "page_crc", "rows_crc"],
    }
    return [f"{folder}/{name}.bin" for folder in folders for name in arrays[folder]]


# A topology that is read whole is compared with its checksum as a whole.
UNUSED = ("graph/indices_page_crc.bin", "graph/indptr_page_crc.bin")


def test_every_array_file_is_spoiled_below(made: Path) -> None:
    known = {made / name for name in names_below("graph", "run/sample", "run/plan", "run/pack")}
    assert known >= set(data_files(made))


def truncated(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 4096 if path.stat().st_size > 4096 else 17)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def lengthened(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def deleted(path: Path) -> None:
    path.unlink()


def made_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


SPOILS: list[Callable[[Path], None]] = [truncated, emptied, lengthened, deleted, made_a_folder]


@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("name", names_below("run/sample", "run/plan", "run/pack"))
def test_spoiled_file_of_a_run(copy: Path, made: Path, features: np.ndarray, name: str, spoil: Any) -> None:
    path = copy / name
    spoil(path)
    is_refused(copy, features, path)
    if spoil is made_a_folder:
        path.rmdir()
    repaired_by_prepare(copy, made)
    load_everything(copy, features)


@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("name", names_below("graph"))
def test_spoiled_file_of_a_graph(copy: Path, features: np.ndarray, name: str, spoil: Any) -> None:
    spoil(copy / name)
    is_refused(copy, features, copy / name)
    with pytest.raises(FormatError, match="graph"):
        open_graph(copy / "graph")
    with pytest.raises(FormatError), fresh_runtime() as runtime:
        verify_artifact(copy / "graph", runtime)


@pytest.mark.parametrize("name", names_below("graph", "run/sample", "run/plan", "run/pack"))
def test_foreign_file_of_the_right_size(copy: Path, features: np.ndarray, name: str) -> None:
    path = copy / name
    path.write_bytes(np.random.default_rng(0).bytes(path.stat().st_size))
    if name.startswith("graph/"):
        with pytest.raises(ChecksumError, match=path.name), fresh_runtime() as runtime:
            verify_artifact(copy / "graph", runtime)
        if name not in UNUSED:
            with pytest.raises(DAMAGE) as caught:
                prepare(open_graph(copy / "graph"), copy / "other")
            assert str(copy / "graph") in str(caught.value)
            caught.value.__traceback__ = None
    else:
        if name in USED_BY:
            is_refused(copy, features, path, USED_BY[name])
        else:
            load_everything(copy, features)
        with pytest.raises(ChecksumError, match=path.name), fresh_runtime() as runtime:
            verify_artifact(path.parent, runtime)


def flip(path: Path, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def flips(path: Path, count: int, data_bytes: int) -> Iterator[int]:
    """Bits of ``path``, flipped one at a time."""
    for bit in np.random.default_rng(1).integers(0, data_bytes * 8, count).tolist():
        flip(path, bit)
        yield bit
        flip(path, bit)


def data_bytes(folder: Path, name: str) -> int:
    raw = manifest_at(folder / Path(name).parent / "manifest.json")
    spec = raw["arrays"][Path(name).stem]
    return spec["shape"][0] * spec["stride_bytes"]


@pytest.mark.parametrize("name", names_below("run/sample", "run/plan", "run/pack"))
def test_flipped_bits_of_a_run(copy: Path, features: np.ndarray, name: str) -> None:
    path = copy / name
    for bit in flips(path, 12, data_bytes(copy, name)):
        if name in USED_BY and not (name == "run/pack/records.bin" and in_padding(copy, bit // 8)):
            is_refused(copy, features, path, USED_BY[name])
        else:
            load_everything(copy, features)
        with pytest.raises(ChecksumError, match=path.name), fresh_runtime() as runtime:
            verify_artifact(path.parent, runtime)


def in_padding(folder: Path, at: int) -> bool:
    """Whether byte ``at`` of the records lies around the rows of one: a bit that flips there harms nobody."""
    with fresh_runtime() as runtime:
        return _in_padding(folder / "run", runtime, at)


def _in_padding(run: Path, runtime: Runtime, at: int) -> bool:
    samples = open_samples(runtime, run / "sample")
    placement = open_placement(runtime, run / "plan")
    p = int(np.searchsorted(placement.offsets, at, side="right")) - 1
    nodes, rows = int(samples.num_nodes[placement.packed_batches[p]]), int(placement.files[0].num_packed[p])
    begin = int(placement.part_starts(samples)[p, 1])
    first = begin + record.shift_bytes(nodes, rows, placement.files[0].row_bytes)
    return at >= begin and not first <= at < first + rows * placement.files[0].row_bytes


@pytest.mark.parametrize("mode", ["online", "memory", "ondisk"])
@pytest.mark.parametrize("name", [n for n in names_below("graph") if "features" not in n])
def test_flipped_bits_of_a_graph(copy: Path, features: np.ndarray, name: str, mode: str) -> None:
    """Without a run the graph is all there is."""
    path = copy / name
    for bit in flips(path, 4, data_bytes(copy, name)):
        message = None
        try:
            load_everything(copy, features, mode, run=False)
        except DAMAGE as error:
            message = str(error)
        assert message or name in UNUSED, f"bit {bit} passed unseen"
        assert message is None or str(copy / "graph") in message, f"bit {bit}: {message}"
        with pytest.raises(DAMAGE, match=path.name), fresh_runtime() as runtime:
            verify_artifact(copy / "graph", runtime)


def test_flipped_bits_of_features_are_found_by_verify_and_in_memory(copy: Path, features: np.ndarray) -> None:
    path = copy / "graph/features.bin"
    for _ in flips(path, 6, features.nbytes):
        with pytest.raises(ChecksumError, match=r"features\.bin"), fresh_runtime() as runtime:
            verify_artifact(copy / "graph", runtime)
        assert "features.bin" in is_refused(copy, features, path, "memory")


def test_the_remedy_that_the_message_names(copy: Path, made: Path, features: np.ndarray) -> None:
    for name in (
        "run/pack/records.bin",
        "run/pack/host_cache.bin",
        "run/plan/offsets.bin",
        "run/sample/shape.bin",
    ):
        flip(copy / name, 8 * 700 if "records" in name else 3)
        message = is_refused(copy, features, copy / name)
        assert f"remove {copy / name}".rsplit("/", 1)[0] in message or "remove its folder" in message, message
        shutil.rmtree((copy / name).parent)
        repaired_by_prepare(copy, made)
        load_everything(copy, features)


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    raw = manifest_at(path)
    change(raw)
    path.write_text(json.dumps(raw))


def put(*keys: str | int, value: Any) -> Callable[[dict[str, Any]], object]:
    def change(raw: Any) -> None:
        for key in keys[:-1]:
            raw = next(iter(raw.values())) if key == "*" else raw[key]
        raw[keys[-1]] = value

    change.__name__ = f"{'.'.join(map(str, keys))}={value}"
    return change


def drop(*keys: str) -> Callable[[dict[str, Any]], object]:
    def change(raw: Any) -> None:
        for key in keys[:-1]:
            raw = next(iter(raw.values())) if key == "*" else raw[key]
        del raw[keys[-1]]

    change.__name__ = f"no {'.'.join(keys)}"
    return change


EDITS = [
    put("version", value=9),
    put("version", value="1"),
    put("version", value=None),
    put("format", value="outcrop.else"),
    put("format", value=7),
    drop("format"),
    drop("version"),
    drop("arrays"),
    drop("attributes"),
    drop("inputs"),
    drop("config"),
    put("arrays", value=[]),
    put("arrays", value={}),
    put("arrays", value={"x": 3}),
    put("attributes", value={}),
    put("attributes", value=None),
    put("inputs", value=3),
    put("arrays", "*", "dtype", value="float33"),
    put("arrays", "*", "dtype", value=8),
    put("arrays", "*", "shape", value=[]),
    put("arrays", "*", "shape", value=[-1]),
    put("arrays", "*", "shape", value=[1 << 62]),
    put("arrays", "*", "shape", value=[3, 1 << 40, 1 << 40]),
    put("arrays", "*", "shape", value="12"),
    put("arrays", "*", "shape", value=[1.5]),
    put("arrays", "*", "shape", value=[0]),
    put("arrays", "*", "stride_bytes", value=0),
    put("arrays", "*", "stride_bytes", value="8"),
    put("arrays", "*", "stride_bytes", value=-8),
    put("arrays", "*", "file_bytes", value=1 << 60),
    put("arrays", "*", "crc32c", value=1),
    put("arrays", "*", "crc32c", value="f"),
    put("arrays", "*", "file", value="../graph/features.bin"),
    put("arrays", "*", "file", value="/etc/passwd"),
    put("arrays", "*", "file", value=".."),
    put("arrays", "*", "file", value=""),
    put("arrays", "*", "file", value=4),
    put("arrays", "*", "file", value="manifest.json"),
    put("arrays", "*", "surprise", value=4),
    drop("arrays", "*", "shape"),
]


@pytest.mark.parametrize("change", EDITS, ids=lambda change: change.__name__)
@pytest.mark.parametrize("stage", ["graph", "run/sample", "run/plan", "run/pack"])
def test_edited_manifest(copy: Path, features: np.ndarray, stage: str, change: Any) -> None:
    path = copy / stage / "manifest.json"
    edit(path, change)
    if stage == "run/pack" and change.__name__ == "attributes={}":  # it has none that anybody reads
        return load_everything(copy, features)
    is_refused(copy, features, path)


ATTRIBUTES = [
    ("run/sample", put("attributes", "groups", value=3)),
    ("run/sample", put("attributes", "groups", "train", value={})),
    ("run/sample", put("attributes", "groups", "train", "first", value=-1)),
    ("run/sample", put("attributes", "groups", "train", "epochs", value=0)),
    ("run/sample", put("attributes", "groups", "train", "per_epoch", value=10**12)),
    ("run/sample", put("attributes", "hops", value=5)),
    ("run/sample", put("attributes", "id_bytes", value=2)),
    ("run/plan", put("attributes", "row_bytes", value=1)),
    ("run/plan", put("attributes", "slots", value=10**9)),
    ("run/plan", put("attributes", "slot_rows_bytes", value=16)),
    ("run/plan", drop("attributes", "slots")),
    ("run/plan", put("attributes", "slots", value="two")),
    ("graph", put("attributes", "num_nodes", value=5)),
    ("graph", put("attributes", "num_nodes", value="many")),
    ("graph", put("attributes", "num_nodes", value=-1)),
    ("graph", drop("attributes", "num_edges")),
    ("graph", put("attributes", "num_classes", value=2)),
    ("graph", put("attributes", "feature_dim", value=3)),
]


LIES = [
    put("attributes", "num_classes", value="three"),
    put("attributes", "num_classes", value=10**9),
    put("attributes", "num_classes", value=-2),
    put("attributes", "num_classes", value=True),
    put("attributes", "feature_dim", value=1.5),
    put("attributes", "feature_dim", value=100),
    put("arrays", "features", "shape", value=[6000, 50]),
    put("arrays", "features", "shape", value=[6000]),
    put("arrays", "indptr", "dtype", value="float64"),
    put("arrays", "indices", "dtype", value="float32"),
    put("arrays", "train", "stride_bytes", value=4),
    put("arrays", "train", "shape", value=[30, 2]),
    put("arrays", "valid", "dtype", value="int32"),
    put("arrays", "labels", "stride_bytes", value=4),
]


@pytest.mark.parametrize("change", LIES, ids=lambda change: change.__name__)
def test_a_graph_whose_manifest_contradicts_itself_is_not_opened(copy: Path, change: Any) -> None:
    edit(copy / "graph" / "manifest.json", change)
    with pytest.raises(FormatError, match=str(copy / "graph")):
        open_graph(copy / "graph")


@pytest.mark.parametrize(("stage", "change"), ATTRIBUTES, ids=[f"{s}-{c.__name__}" for s, c in ATTRIBUTES])
def test_edited_attribute(copy: Path, features: np.ndarray, stage: str, change: Any) -> None:
    edit(copy / stage / "manifest.json", change)
    is_refused(copy, features, copy / stage / "manifest.json")
    if stage == "run/sample":
        is_refused(copy, features, copy / stage / "manifest.json", "ondisk")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"{}", b"\x00" * 4096, b"1" * 5000]
)
@pytest.mark.parametrize(
    "name",
    [
        "graph/manifest.json",
        "run/run.json",
        "run/sample/manifest.json",
        "run/plan/manifest.json",
        "run/pack/manifest.json",
    ],
)
def test_manifest_that_is_none(
    copy: Path, made: Path, features: np.ndarray, name: str, content: bytes
) -> None:
    (copy / name).write_bytes(content)
    is_refused(copy, features, copy / name)
    if not name.startswith("graph"):
        repaired_by_prepare(copy, made)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("gone", ["manifest.json", "."])
def test_missing_stage(copy: Path, made: Path, features: np.ndarray, stage: str, gone: str) -> None:
    if gone == ".":
        shutil.rmtree(copy / "run" / stage)
    else:
        (copy / "run" / stage / gone).unlink()
    is_refused(copy, features, copy / "run" / stage / "manifest.json")
    repaired_by_prepare(copy, made)


RUN_EDITS = [
    drop("sample"),
    drop("graph_digest"),
    put("version", value=9),
    put("format", value="outcrop.graph"),
    put("sample", "fanouts", value=[0]),
    put("sample", "fanouts", value="10"),
    put("sample", "surprise", value=1),
    put("plan", value=[]),
    put("sample", "batch_size", value=-1),
    put("sample", "batch_size", value=14),
    put("sample", "seed", value=9),
    put("graph_digest", value="0" * 64),
    put("graph_digest", value=None),
]


@pytest.mark.parametrize("change", RUN_EDITS, ids=lambda change: change.__name__)
def test_edited_run_file(copy: Path, made: Path, features: np.ndarray, change: Any) -> None:
    edit(copy / "run" / "run.json", change)
    is_refused(copy, features, copy / "run" / "run.json")
    repaired_by_prepare(copy, made)


def test_run_of_another_state_of_the_graph(copy: Path, features: np.ndarray) -> None:
    shutil.rmtree(copy / "graph")
    graph = small_graph(copy / "graph", seed=5)
    assert "another state" in is_refused(copy, features, copy / "run")
    prepare(graph, copy / "run")
    with fresh_runtime() as runtime:
        now = graph.array(runtime, "features").memmap().copy()
    load_everything(copy, now)


@pytest.mark.parametrize("stages", [("sample",), ("plan",), ("pack",), ("sample", "plan"), ("plan", "pack")])
def test_stages_of_another_run(copy: Path, made: Path, features: np.ndarray, stages: tuple[str, ...]) -> None:
    """As after a prepare with other options that was interrupted between two stages."""
    prepare(open_graph(copy / "graph"), copy / "other", seed=3)
    for stage in stages:
        shutil.rmtree(copy / "run" / stage)
        shutil.copytree(copy / "other" / stage, copy / "run" / stage)
    assert "does not belong" in is_refused(copy, features, copy / "run")
    repaired_by_prepare(copy, made)


def test_interrupted_with_other_options(copy: Path, features: np.ndarray) -> None:
    prepare(open_graph(copy / "graph"), copy / "run", seed=3, stop_after="sample", overwrite=True)
    assert "does not belong" in is_refused(copy, features, copy / "run")
    prepare(open_graph(copy / "graph"), copy / "run", seed=3)
    load_everything(copy, features)


def test_graph_in_place_of_a_run_and_a_run_in_place_of_a_graph(copy: Path) -> None:
    graph = open_graph(copy / "graph")
    with fresh_runtime(LOADING_MEMORY) as runtime, pytest.raises(FormatError, match="no Outcrop run"):
        open_session(graph, runtime, "packed", run_folder=copy / "graph")
    for wrong in (copy / "run", copy / "run" / "sample"):
        with pytest.raises(FormatError, match="run"):
            open_graph(wrong)
    with pytest.raises(OutcropError, match="in the way"):
        prepare(graph, copy / "graph")
    assert isinstance(graph, Graph)
