"""Verify: reads every byte of an artifact again. Describe: what an artifact is, from its manifest alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from outcrop.config.sampling import SPLITS
from outcrop.errors import FormatError
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store.arrays import DiskArray
from outcrop.store.coded_rows import coding_of, problem_of_coding
from outcrop.store.elsewhere import read_elsewhere
from outcrop.store.graph import FORMAT as GRAPH_FORMAT
from outcrop.store.graph import UNKNOWN_MULTILABEL, Graph, has_types, open_graph, paged_arrays
from outcrop.store.graph_types import EdgeType, NodeType, RowFile
from outcrop.store.manifest import PAGE_SUMS, Manifest
from outcrop.store.quantised import Quantisation
from outcrop.store.remote import without_keys
from outcrop.store.row_decoder import RowDecoder
from outcrop.store.sparse_rows import SparseLayout

_BLOCK_ROWS = 1 << 17
_BLOCK_BYTES = 1 << 20  # of rows of features


def verify_artifact(path: Path | str, runtime: Runtime) -> dict[str, Any]:
    """Compares the checksum of every array of any artifact; checks the structure of graphs too.

    Returns:
        ``{"format", "arrays", "bytes"}``: what was read and found right; ``"elsewhere"``: parts of a run that lie on
        other machines, where there are some.

    Raises:
        FormatError: No artifact, a file missing or of the wrong size, or a graph whose arrays contradict each other.
        ChecksumError: Bytes differ from those that were written.
    """
    path = Path(path)
    manifest = manifests.read_any(path)
    here = manifests.arrays_here(path, manifest)
    total = sum(spec.data_bytes for spec in here.values())
    runtime.progress.start("verify", total, "bytes")
    for spec in here.values():
        array = DiskArray(runtime, path, spec)
        try:
            array.verify()
            array.verify_padding()
        finally:
            array.close()
    runtime.progress.finish("verify")
    if manifest.format == GRAPH_FORMAT:
        _verify_graph(open_graph(path), runtime)
    elsewhere = len(manifest.arrays) - len(here)
    found = {"format": manifest.format, "arrays": len(here), "bytes": total}
    return {**found, "elsewhere": elsewhere} if elsewhere else found


def add_page_sums(path: Path | str, runtime: Runtime) -> list[str]:
    """Gives a graph that was made without them the checksums of its pages, which find damage where parts are read.

    Reads the arrays that lack them once. The graph keeps its digest, so runs that were prepared from it stay current.

    Returns:
        Names of the arrays whose pages have checksums now and had none.

    Raises:
        FormatError: No graph is at ``path``.
        ChecksumError: An array was damaged already; nothing is changed then.
    """
    graph = open_graph(path)
    arrays = dict(graph.manifest.arrays)
    missing = [name for name in paged_arrays(graph.manifest) if name + PAGE_SUMS not in arrays]
    runtime.progress.start("checksums", sum(arrays[name].data_bytes for name in missing), "bytes")
    for name in missing:
        array = graph.array(runtime, name)
        try:
            arrays[name + PAGE_SUMS] = array.write_page_sums()
        finally:
            array.close()
        runtime.progress.advance("checksums", arrays[name].data_bytes)
    runtime.progress.finish("checksums")
    if missing:
        manifests.write(graph.path, replace(graph.manifest, arrays=arrays))
    return missing


def _verify_graph(graph: Graph, runtime: Runtime) -> None:
    _verify_topology(graph, runtime)
    arrays = graph.manifest.arrays
    for of in graph.node_types:
        if of.array("labels") in arrays:
            _verify_labels(graph, of, runtime)
        for split in SPLITS:
            if of.array(split) in arrays:
                _verify_range(graph, runtime, of.array(split), 0, of.num_nodes, ascending=True)
    for rows in graph.row_files:
        if rows.decoder is not None:
            rows.decoder.check()
            _verify_coded_rows(graph, rows, rows.decoder, runtime)
    if graph.has("edge_weight"):
        _verify_weights(graph, runtime)


def _verify_topology(graph: Graph, runtime: Runtime) -> None:
    """Checks that ``indptr`` rises from 0 to the number of edges, and that ``indices`` are ids of the source type,
    ascending within a list.
    """
    indptr, indices = graph.array(runtime, "indptr"), graph.array(runtime, "indices")
    for of in graph.edge_types:
        last, stop = of.first_edge, of.first_edge + of.num_edges
        suffix = f" of edge type {' '.join(of.key)!r}" if graph.is_typed else ""
        for start in range(0, of.target.num_nodes, _BLOCK_ROWS):
            end = min(start + _BLOCK_ROWS, of.target.num_nodes)
            block = indptr.read("verify", of.first_list + start, of.first_list + end + 1)
            if block[0] != last or (block[1:] < block[:-1]).any() or block[-1] > stop:
                raise FormatError(
                    f"{indptr.path}: offsets fall or leave the {of.num_edges} edges{suffix} near node {start}"
                )
            last = int(block[-1])
            _verify_indices(indices, block, of, start)
        if last != stop:
            raise FormatError(
                f"{indptr.path} ends with {last}{suffix and ' the lists' + suffix}, the graph has {stop} edges"
                + (" up to there" if suffix else "")
            )


def _verify_indices(indices: DiskArray, indptr: np.ndarray, of: EdgeType, first_node: int) -> None:
    begin, end = int(indptr[0]), int(indptr[-1])
    low, high = of.source.first, of.source.first + of.source.num_nodes
    carried = np.zeros(0, indices.dtype)  # the last index of the block before, for the order across the seam
    for start in range(begin, end, _BLOCK_ROWS):
        block = indices.read("verify", start, min(start + _BLOCK_ROWS, end))
        bad = (block < low) | (block >= high)
        if bad.any():
            there = (
                f"nodes of type {of.source.name!r} are {low} to {high - 1}"
                if of.source.name
                else f"there are {high} nodes"
            )
            raise FormatError(
                f"{indices.path}: edge {start + int(np.argmax(bad))} has source {block[np.argmax(bad)]}, {there}"
            )
        run = np.concatenate([carried, block])
        falls = np.flatnonzero(run[1:] < run[:-1]) + start - len(carried) + 1
        inside = falls[~np.isin(falls, indptr)]
        if len(inside):
            raise FormatError(
                f"{indices.path}: the sources of a node fall at edge {inside[0]} (nodes from {first_node} on)"
            )
        carried = block[-1:].copy()


def _verify_labels(graph: Graph, of: NodeType, runtime: Runtime) -> None:
    if of.label_kind == "class":
        _verify_range(graph, runtime, of.array("labels"), -1, of.num_classes)
        return
    array = graph.array(runtime, of.array("labels"))
    for start in range(0, array.num_rows, _BLOCK_ROWS):
        block = array.read("verify", start, min(start + _BLOCK_ROWS, array.num_rows))
        bad = (
            np.isinf(block) if of.label_kind == "regression" else (block > 1) & (block != UNKNOWN_MULTILABEL)
        )
        rows = bad.reshape(len(block), -1).any(axis=1)
        if rows.any():
            row = int(np.argmax(rows))
            raise FormatError(
                f"{array.path}: row {start + row} is {block[row]}, no label of kind {of.label_kind}"
            )


def _verify_range(
    graph: Graph, runtime: Runtime, name: str, low: int, high: int, ascending: bool = False
) -> None:
    array = graph.array(runtime, name)
    last = low - 1
    for start in range(0, array.num_rows, _BLOCK_ROWS):
        block = array.read("verify", start, min(start + _BLOCK_ROWS, array.num_rows))
        bad = (block < low) | (block >= high)
        if bad.any():
            raise FormatError(
                f"{array.path}: row {start + int(np.argmax(bad))} is {block[np.argmax(bad)]}, outside "
                f"{low} to {high - 1}"
            )
        if ascending and (block[0] <= last or (block[1:] <= block[:-1]).any()):
            raise FormatError(f"{array.path}: node ids do not rise near row {start}")
        last = int(block[-1])


def _verify_coded_rows(graph: Graph, rows: RowFile, decoder: RowDecoder, runtime: Runtime) -> None:
    if not decoder.rows_can_be_wrong or graph.is_left(rows):
        return
    array = graph.open_rows(runtime, rows)
    step = max(_BLOCK_BYTES // rows.row_bytes, 1)
    try:
        for start in range(0, rows.num_rows, step):
            block = array.read("verify", start, min(start + step, rows.num_rows))
            if (wrong := decoder.first_wrong(block)) < len(block):
                raise decoder.refusal(block[wrong], start + wrong)
    finally:
        array.close()


def _verify_weights(graph: Graph, runtime: Runtime) -> None:
    array = graph.array(runtime, "edge_weight")
    for start in range(0, array.num_rows, _BLOCK_ROWS):
        block = array.read("verify", start, min(start + _BLOCK_ROWS, array.num_rows))
        bad = ~(np.isfinite(block) & (block >= 0))
        if bad.any():
            raise FormatError(
                f"{array.path}: edge {start + int(np.argmax(bad))} has weight {block[np.argmax(bad)]}; weights are "
                "finite and not negative"
            )


def describe(path: Path | str) -> dict[str, Any]:
    """Says what the artifact at ``path`` is: format, attributes, how it was made, dtype, shape and bytes per array.

    Raises:
        FormatError: No artifact, or a file missing or of the wrong size.
    """
    path = Path(path)
    manifest = manifests.read_any(path)
    about: dict[str, Any] = {
        "path": str(path),
        "format": manifest.format,
        "version": manifest.version,
        "digest": manifest.digest(),
        "bytes": sum(spec.file_bytes for spec in manifests.arrays_here(path, manifest).values()),
        "attributes": manifest.attributes,
        "config": manifest.config,
        "arrays": {
            name: {"dtype": spec.dtype, "shape": list(spec.shape), "bytes": spec.data_bytes}
            for name, spec in sorted(manifest.arrays.items())
        },
    }
    if manifest.format == GRAPH_FORMAT:
        about["graph"] = _describe_graph(manifest)
    elsewhere = read_elsewhere(path)
    if left := [name for name in elsewhere.files if not (path / name).exists()]:
        about["elsewhere"] = {"uri": without_keys(elsewhere.uri), "files": left}
    return about


def _describe_graph(manifest: Manifest) -> dict[str, Any]:
    attributes = manifest.attributes
    nodes, edges = attributes.get("num_nodes", 0), attributes.get("num_edges", 0)
    common = {
        "num_nodes": nodes,
        "num_edges": edges,
        "page_checksums": all(name + PAGE_SUMS in manifest.arrays for name in paged_arrays(manifest)),
    }
    if has_types(manifest):
        return common | {
            "node_types": [
                {"name": one.get("name"), "num_nodes": one.get("num_nodes")}
                | _describe_nodes(manifest, one, f"n{i}.")
                for i, one in enumerate(attributes.get("node_types", []))
            ],
            "edge_types": attributes.get("edge_types", []),
        }
    return common | {
        **_describe_nodes(manifest, attributes, ""),
        "mean_in_degree": edges / nodes if nodes else 0.0,
        "max_in_degree": attributes.get("max_in_degree"),
        "nodes_without_in_edges": attributes.get("nodes_without_in_edges"),
        "has_names": "names" in manifest.arrays,
    }


def _describe_nodes(manifest: Manifest, attributes: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Says what the nodes of a type have."""
    arrays = manifest.arrays
    features = arrays.get(f"{prefix}features")
    wrong = problem_of_coding(attributes, arrays, prefix)
    coding = None if wrong else coding_of(attributes)
    width = coding.columns if coding else features.shape[1] if features else 0
    return {
        "num_classes": attributes.get("num_classes", 0),
        "feature_dim": attributes.get("feature_dim", width),
        "feature_dtype": coding.dtype if coding else features.dtype if features else None,
        **({"scale": coding.scale} if isinstance(coding, Quantisation) else {}),
        **({"stored_values": coding.stored} if isinstance(coding, SparseLayout) else {}),
        "feature_bytes": features.data_bytes if features else 0,
        "splits": {split: arrays[prefix + split].shape[0] for split in SPLITS if prefix + split in arrays},
    }
