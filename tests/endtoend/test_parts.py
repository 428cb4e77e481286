"""Runs whose batches lie in parts: the same batches, rows and losses; a machine needs only what it trains with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcrop as oc
from artifact_support import manifest_at, small_graph
from outcrop.errors import ArgumentError, FormatError
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store import packed, samples
from outcrop.store.graph import Graph
from outcrop.store.placement import open_placement
from outcrop.store.verify import verify_artifact
from prepare_support import prepare

SAMPLING = oc.SampleConfig(fanouts=(3, 3), batch_size=8, seed=4)
QUIET = oc.Observer(progress=False)


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return small_graph(tmp_path / "graph")


@pytest.fixture
def typed(tmp_path: Path) -> Graph:
    config = oc.GenerateConfig(nodes=600, edges=9000, kind="typed", features=16, train_fraction=0.3)
    return oc.generate_graph(tmp_path / "typed", config, progress=False)


def made(graph: Graph, out: Path, parts: int, **changes: Any) -> oc.Run:
    packing = oc.PackConfig(parts=parts, layout=changes.pop("layout", "cost"))
    given = {"sampling": SAMPLING, "epochs": 2, "memory": "2MiB", "observer": QUIET, **changes}
    return oc.prepare(graph, out, packing=packing, **given)


def opened(run: Path) -> None:
    with Runtime() as runtime:
        sample_set = samples.open_samples(runtime, run / "sample")
        placement = open_placement(runtime, run / "plan")
        packed.open_packed(runtime, run / "pack", placement, sample_set)


def record_of_each_batch(run: Path, stage: str) -> dict[int, tuple[str, bytes]]:
    """File and bytes of each record, cut out of the files by the tables alone."""
    with Runtime() as runtime:
        sample_set = samples.open_samples(runtime, run / "sample")
        placement = open_placement(runtime, run / "plan")
        offsets, batches = sample_set.offsets, np.arange(sample_set.num_batches)
        if stage == "pack":
            offsets, batches = placement.offsets, placement.packed_batches
        manifest = manifests.read_any(run / stage)
        name = {"sample": "batches", "pack": "records"}[stage]
        count = manifest.attributes.get("parts", 1)
        of_epoch = {
            batch: number
            for group in sample_set.groups.values()
            for epoch in range(group.epochs)
            for number, batch in enumerate(group.batches(group.first_epoch + epoch))
        }
        found, at = {}, [0] * count
        for record, batch in enumerate(batches.tolist()):
            part, size = of_epoch[batch] % count, int(offsets[record + 1] - offsets[record])
            file = f"{name}.bin" if count == 1 else f"{name}.{part}.bin"
            found[batch] = (file, (run / stage / file).read_bytes()[at[part] : at[part] + size])
            at[part] += size
        for part in range(count):
            file = f"{name}.bin" if count == 1 else f"{name}.{part}.bin"
            assert at[part] == (run / stage / file).stat().st_size
        return found


@pytest.mark.parametrize("layout", ["packed", "4,1"])
@pytest.mark.parametrize("parts", [2, 3, 7])
def test_parts_have_the_records_of_one_file(graph: Graph, tmp_path: Path, parts: int, layout: str) -> None:
    """Also more parts than an evaluation split has batches."""
    one, several = (made(graph, tmp_path / f"{k}.run", k, layout=layout).path for k in (1, parts))
    for stage in ("sample", "pack") if layout == "packed" else ("sample",):
        want, found = record_of_each_batch(one, stage), record_of_each_batch(several, stage)
        assert {batch: record for batch, (_, record) in found.items()} == {b: r for b, (_, r) in want.items()}
        assert len({file for file, _ in found.values()}) == parts
    for stage in ("sample", "plan", "pack"):
        verify_artifact(several / stage, Runtime())
    for split in ("train", "valid", "test"):
        loaders = [oc.open_run(run).loader(split) for run in (one, several)]
        for ours, theirs in zip(*loaders, strict=True):
            assert ours.x.numpy().tobytes() == theirs.x.numpy().tobytes()
            assert ours.n_id.tolist() == theirs.n_id.tolist()
            assert ours.edge_index.tolist() == theirs.edge_index.tolist()
            del ours, theirs


@pytest.mark.parametrize("layout", ["packed", "4,1"])
def test_parts_of_a_graph_with_types(typed: Graph, tmp_path: Path, layout: str) -> None:
    sampling = oc.SampleConfig(fanouts=(3, 3), batch_size=16, seed=4)
    one, several = (
        made(typed, tmp_path / f"{parts}.run", parts, sampling=sampling, layout=layout).path
        for parts in (1, 3)
    )
    for stage in ("sample", "pack") if layout == "packed" else ("sample",):
        want, found = record_of_each_batch(one, stage), record_of_each_batch(several, stage)
        assert {batch: record for batch, (_, record) in found.items()} == {b: r for b, (_, r) in want.items()}
    for split in ("train", "valid", "test"):
        loaders = [oc.open_run(run).loader(split) for run in (one, several)]
        for ours, theirs in zip(*loaders, strict=True):
            assert ours.num_nodes_dict == theirs.num_nodes_dict
            for name, x in ours.x_dict.items():
                assert x.numpy().tobytes() == theirs.x_dict[name].numpy().tobytes()
            del ours, theirs, x


def test_training_learns_the_same(graph: Graph, tmp_path: Path) -> None:
    reports = [
        oc.train(
            graph,
            run=made(graph, tmp_path / f"{parts}.run", parts).path,
            training=oc.TrainConfig(epochs=3, trace_losses=True),
            observer=QUIET,
        )
        for parts in (1, 3)
    ]
    assert reports[0].batch_losses == reports[1].batch_losses
    assert reports[0].test_accuracy == reports[1].test_accuracy


def test_a_machine_needs_only_its_parts(graph: Graph, tmp_path: Path) -> None:
    whole = made(graph, tmp_path / "whole.run", 3)
    run = made(graph, tmp_path / "g.run", 3)
    for name in ("sample/batches.1.bin", "pack/records.1.bin", "sample/batches.2.bin", "pack/records.2.bin"):
        (run.path / name).unlink()
    found = verify_artifact(run.path / "pack", Runtime())
    assert found["elsewhere"] == 2
    ours = [batch.n_id.tolist() for batch in oc.open_run(run.path).loader(rank=0, world=3)]
    assert ours == [batch.n_id.tolist() for batch in whole.loader(rank=0, world=3)]
    with pytest.raises(
        FormatError, match=r"records\.1\.bin is not on this machine: it is part 1 of 3.*--parts 1"
    ):
        list(oc.open_run(run.path).loader())


def test_files_that_are_no_parts_must_be_there(graph: Graph, tmp_path: Path) -> None:
    run = made(graph, tmp_path / "g.run", 2)
    part = run.path / "pack" / "records.1.bin"
    part.write_bytes(part.read_bytes()[:-4096])
    with pytest.raises(FormatError, match=r"records.1.bin.*truncated"):
        manifests.read(run.path / "pack", packed.FORMAT, packed.VERSIONS)
    part.unlink()
    manifests.read(run.path / "pack", packed.FORMAT, packed.VERSIONS)
    (run.path / "pack" / "host_cache.bin").unlink()
    with pytest.raises(FormatError, match="host_cache"):
        list(oc.open_run(run.path).loader())


def test_other_parts_are_another_run(graph: Graph, tmp_path: Path) -> None:
    made(graph, tmp_path / "g.run", 2)
    with pytest.raises(ArgumentError, match=r"parts \(there 2, now 3\)"):
        made(graph, tmp_path / "g.run", 3)
    with pytest.raises(ArgumentError, match=r"parts \(there 2, now None\)"):
        made(graph, tmp_path / "g.run", 1)
    for parts in (0, 257):
        with pytest.raises(ArgumentError, match=f"{parts} parts: between 1 and 256"):
            oc.PackConfig(parts=parts)


@pytest.mark.parametrize(
    ("stage", "attribute", "value"),
    [
        *(("sample", "parts", value) for value in (0, -3, 10**9, "2", None, [2], 2.0, True, 3)),
        *(("pack", "parts", value) for value in (0, -3, 10**9, "2", None, [2], 1, 3)),
        *(
            ("plan", "part_batches", value)
            for value in (None, "x", [], [2**62] * 4, [13.0, 12.0], [-1], [10**30])
        ),
    ],
)
def test_impossible_parts_are_refused(
    graph: Graph, tmp_path: Path, stage: str, attribute: str, value: Any
) -> None:
    run = made(graph, tmp_path / "g.run", 2)
    path = run.path / stage / "manifest.json"
    raw = manifest_at(path)
    if attribute == "part_batches" and value == [2**62] * 4:  # whose sum wraps to the right one
        value = [*value, sum(raw["attributes"][attribute])]
    raw["attributes"][attribute] = value
    path.write_text(json.dumps(raw))
    with pytest.raises(FormatError):
        opened(run.path)


def test_names_of_parts_that_no_file_has(graph: Graph, tmp_path: Path) -> None:
    run = made(graph, tmp_path / "g.run", 2)
    path = run.path / "pack" / "manifest.json"
    raw = manifest_at(path)
    for name, file in (("records.1", "x" * 300 + ".bin"), ("records." + "9" * 5000, "a.bin")):
        changed = {**raw, "arrays": {**raw["arrays"], name: {**raw["arrays"]["records.1"], "file": file}}}
        path.write_text(json.dumps(changed))
        with pytest.raises(FormatError):
            manifests.read(run.path / "pack", packed.FORMAT, packed.VERSIONS)


def test_more_parts_are_told_before_anything_is_drawn_again(graph: Graph, tmp_path: Path) -> None:
    """Also where only batches are drawn yet."""
    options = {"fanouts": (3, 3), "batch_size": 8, "epochs": 2, "memory": "2MiB"}
    prepare(graph, tmp_path / "g.run", parts=2, stop_after="sample", **options)
    with pytest.raises(ArgumentError, match=r"parts \(there 2, now 3\)"):
        prepare(graph, tmp_path / "g.run", parts=3, **options)
