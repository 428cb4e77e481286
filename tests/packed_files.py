"""The files that packing writes, worked out with NumPy from the samples, the plan's id lists and the features alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from outcrop.config import PlanConfig, SampleConfig
from outcrop.preparation import pack as packing
from outcrop.preparation.cluster.pieces import PieceSet, finish_pieces, prepare_pieces
from outcrop.preparation.cluster.write_pieces import ChunkWriter
from outcrop.preparation.pack import CopiedBytes
from outcrop.preparation.plan import plan
from outcrop.preparation.sample import sample
from outcrop.runtime.runtime import Runtime
from outcrop.store import record, samples
from outcrop.store.address_table import AddressTable
from outcrop.store.graph import Graph
from outcrop.store.placement import Placement, open_placement
from outcrop.store.samples import SampleSet
from run_support import PAGE, Stages, a_graph, config_with_cache, meta_size, round_up, span_of

FILES = (
    "records.bin",
    "host_cache.bin",
    "device_cache.bin",
    "disk_cache.bin",
    "page_crc.bin",
    "rows_crc.bin",
)


@cache
def crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


@cache
def crc32c(data: bytes) -> int:
    """Bit by bit, from the definition (Castagnoli, reflected); kept: tests ask for the same bytes again."""
    table = crc_table()
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def disk_cache_nodes(run: Stages) -> np.ndarray:
    """The node of each row of the disk cache, from the plan's lists."""
    nodes = np.zeros(run.placement.files[0].num_disk_rows, np.int64)
    ids, rank = (run.placement.files[0].disk_array(name).read("test") for name in ("disk_ids", "disk_rank"))
    for first, stop in pairwise(run.placement.files[0].disk_blocks):
        nodes[first + rank[first:stop]] = ids[first:stop]
    return nodes


def rows_of_segment(run: Stages, nodes: np.ndarray, segment: int) -> dict[int, int]:
    ranges = range(len(run.placement.files[0].range_starts) - 1)
    return {int(nodes[row]): row for r in ranges for row in run.placement.files[0].region(r, segment)}


def expected_files(run: Stages, features: np.ndarray) -> dict[str, bytes]:
    """The files of the pack stage from the samples, the plan's id lists and the features alone."""
    host, device = run.placement.files[0].host_ids, run.placement.files[0].device_ids
    nodes, shared, segment = disk_cache_nodes(run), {}, -1
    row_bytes, out, crcs = features.shape[1], [], []
    for p, number in enumerate(run.placement.packed_batches):
        batch = run.batch(int(number))
        if run.placement.segment_batches and p // run.placement.segment_batches != segment:
            segment = p // run.placement.segment_batches
            shared = rows_of_segment(run, nodes, segment)
        in_host, in_device = np.isin(batch.n_id, host), np.isin(batch.n_id, device)
        at = [np.flatnonzero(where).astype(np.int32) for where in (in_host, in_device)]
        disk = sorted((shared[n], i) for i, n in enumerate(batch.n_id.tolist()) if n in shared)
        table = AddressTable(
            at[0],
            np.searchsorted(host, batch.n_id[at[0]]).astype(np.int32),
            at[1],
            np.searchsorted(device, batch.n_id[at[1]]).astype(np.int32),
            np.array([i for _, i in disk], np.int32),
            np.array([row for row, _ in disk], np.int32),
        )
        meta = record.encode(batch, (table,), run.samples.id_bytes).tobytes()
        assert len(meta) == round_up(meta_size(batch, table.num_cached))
        on_disk = np.isin(batch.n_id, list(shared))
        assert not (on_disk & (in_host | in_device)).any()
        rows = features[batch.n_id[~(in_host | in_device | on_disk)]].tobytes()
        blob = meta + (bytes(table.num_cached * row_bytes % PAGE) + rows if rows else b"")
        assert round_up(len(blob)) == span_of(batch, table.num_cached, row_bytes)
        out.append(blob + bytes(-len(blob) % PAGE))
        crcs.append(crc32c(rows))
    files = {"records.bin": b"".join(out), "rows_crc.bin": np.array(crcs, "<u4").tobytes()}
    for name, ids in (("host_cache", host), ("device_cache", device), ("disk_cache", nodes)):
        files[f"{name}.bin"] = features[ids].tobytes()
    disk = files["disk_cache.bin"] + bytes(-len(files["disk_cache.bin"]) % PAGE)
    sums = [crc32c(disk[at : at + PAGE]) for at in range(0, len(disk), PAGE)]
    files["page_crc.bin"] = np.array(sums, "<u4").tobytes()
    return {name: data + bytes(-len(data) % PAGE) for name, data in files.items()}


def check(run: Stages, features: np.ndarray, name: str = "pack") -> None:
    folder = run.folder / name
    expected = expected_files(run, features)
    for file in FILES:
        assert (folder / file).read_bytes() == expected[file], file
    assert {f.name for f in folder.iterdir()} == {*FILES, "manifest.json"}


def reopened(graph, folder: Path, runtime: Runtime) -> Stages:
    return Stages(
        graph,
        folder,
        samples.open_samples(runtime, folder / "sample"),
        open_placement(runtime, folder / "plan"),
        None,
    )


Work = Callable[[PieceSet, ChunkWriter], None]


def filled_by(work: Work, chunk_bytes: int) -> packing.RowFiller:
    """Packs by pieces that ``work`` makes in this process."""

    def fill(packing: packing.PackTask, files: Any, journal: Any) -> CopiedBytes:
        pieces = prepare_pieces(packing, files, chunk_bytes)
        writer = ChunkWriter(pieces, 64 << 20)
        work(pieces, writer)
        writer.close()
        finish_pieces(pieces, packing, journal)
        return CopiedBytes()

    return fill


def planned(
    folder: Path, runtime: Runtime, *, width: int, dtype: str, layout: str, parts: int
) -> tuple[Graph, SampleSet, Placement]:
    graph = a_graph(folder / "g", runtime, nodes=200, edges=1200, width=width, dtype=dtype, train=50)
    config = SampleConfig(fanouts=(3, 3), batch_size=9, epochs=1)
    sample(graph, config, folder / "sample", runtime, parts=parts)
    sample_set = samples.open_samples(runtime, folder / "sample")
    row_bytes = graph.row_files[0].row_bytes
    limits: PlanConfig = config_with_cache(sample_set, row_bytes, 30, 10, layout=layout)
    plan(graph, sample_set, limits, folder / "plan", runtime)
    return graph, sample_set, open_placement(runtime, folder / "plan")
