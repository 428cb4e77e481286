"""What must hold in the manifest of a graph, so that what reads its arrays can rely on their shapes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from outcrop.config.sampling import SPLITS
from outcrop.store.coded_rows import coding_of, problem_of_coding
from outcrop.store.manifest import ArraySpec

EDGE_SPLITS = tuple(f"{split}_edges" for split in SPLITS)
MOST_NODES = (
    1 << 48
)  # of a graph whose nodes have types, some of which may have no array that would say otherwise
ORDERS = ("source",)  # of the edges of a list
MOST_CLASSES = 1 << 24  # more columns than any output layer has; a lie would be an allocation
_COUNTS = ("num_nodes", "num_edges", "num_classes", "feature_dim")
_OF_A_TYPE = re.compile(r"([ne])([0-9]+)\.")
Wanted = Mapping[
    str, tuple[int | None, tuple[int, ...] | None]
]  # rows and the shape of one by array; None: any
_DTYPES = {
    "indptr": ("int64",),
    "indices": ("uint32", "int64"),
    "edge_weight": ("float32",),
    "original": ("int64",),
    "names": ("uint8",),
    "name_offsets": ("int64",),
    **dict.fromkeys((*SPLITS, *EDGE_SPLITS), ("int64",)),
}


def problem(
    attributes: Mapping[str, Any], arrays: Mapping[str, ArraySpec], typed: bool = False
) -> str | None:
    """Says what is wrong with the numbers and shapes of a graph; None where nothing is.

    Args:
        attributes: Has all of num_nodes and num_edges; without types num_classes and feature_dim, too.
        arrays: Those of the manifest.
        typed: Whether the attributes list types of nodes and edges.
    """
    if typed:
        return _problem_of_typed(attributes, arrays)
    for name in _COUNTS:
        if wrong := _problem_of_count(f"its {name}", attributes[name]):
            return wrong
    if wrong := _problem_of_classes("it", attributes["num_classes"]):
        return wrong
    if wrong := problem_of_coding(attributes, arrays, ""):
        return wrong
    nodes, edges, dim = attributes["num_nodes"], attributes["num_edges"], attributes["feature_dim"]
    coding = coding_of(attributes)
    if coding is not None and coding.columns != dim:
        return (
            f"its feature_dim is {dim}, and its features in few bits or sparse have {coding.columns} columns"
        )
    columns = (dim,) if coding is None else None
    pairs = dict.fromkeys(EDGE_SPLITS, (None, (2,)))
    wanted = _of_topology(nodes, edges, edges) | _of_nodes("", nodes, columns) | pairs
    wanted |= {"e0.features": (edges, None), "e0.original": (edges, ())}
    return _problem_of_strays(arrays, 0, 1) or _problem_of_arrays(wanted, arrays)


def _problem_of_typed(attributes: Mapping[str, Any], arrays: Mapping[str, ArraySpec]) -> str | None:
    for name in ("num_nodes", "num_edges"):
        if wrong := _problem_of_count(f"its {name}", attributes[name]):
            return wrong
    if wrong := _problem_of_node_types(attributes) or _problem_of_edge_types(attributes):
        return wrong
    nodes, edges = attributes["node_types"], attributes["edge_types"]
    sizes = {one["name"]: one["num_nodes"] for one in nodes}
    lists = sum(sizes[one["target"]] for one in edges)
    weighted = sum(one["num_edges"] for one in edges if one.get("weighted", False))
    wanted = dict(_of_topology(lists, attributes["num_edges"], weighted))
    for number, one in enumerate(nodes):
        if wrong := problem_of_coding(one, arrays, f"n{number}."):
            return wrong
        wanted |= _of_nodes(f"n{number}.", one["num_nodes"], None)
        wanted |= {f"n{number}.names": (None, ()), f"n{number}.name_offsets": (one["num_nodes"] + 1, ())}
    for number, one in enumerate(edges):
        wanted |= {
            f"e{number}.features": (one["num_edges"], None),
            f"e{number}.original": (one["num_edges"], ()),
        }
        wanted |= dict.fromkeys((f"e{number}.{name}" for name in EDGE_SPLITS), (None, (2,)))
    if any(one.get("weighted", False) for one in edges) and "edge_weight" not in arrays:
        return "array 'edge_weight' is missing, and an edge type has weights"
    return _problem_of_strays(arrays, len(nodes), len(edges)) or _problem_of_arrays(wanted, arrays)


def _problem_of_node_types(attributes: Mapping[str, Any]) -> str | None:
    listed = attributes["node_types"]
    if wrong := _problem_of_list("node_types", listed):
        return wrong
    names: set[str] = set()
    for number, one in enumerate(listed):
        if wrong := _problem_of_word(f"the name of node type {number}", one["name"]):
            return wrong
        what = f"node type {one['name']!r}"
        if one["name"] in names:
            return f"{what} is listed twice"
        names.add(one["name"])
        if wrong := _problem_of_count(f"num_nodes of {what}", one["num_nodes"]):
            return wrong
        if wrong := _problem_of_count(f"num_classes of {what}", one["num_classes"]):
            return wrong
        if wrong := _problem_of_classes(what, one["num_classes"]):
            return wrong
        if wrong := _problem_of_names(what, one):
            return wrong
    total = sum(one["num_nodes"] for one in listed)
    if total != attributes["num_nodes"]:
        return f"its node types have {total} nodes together, its num_nodes is {attributes['num_nodes']}"
    return f"it says that it has {total} nodes, more than {MOST_NODES}" if total > MOST_NODES else None


def _problem_of_edge_types(attributes: Mapping[str, Any]) -> str | None:
    listed, nodes = attributes["edge_types"], {one["name"] for one in attributes["node_types"]}
    if wrong := _problem_of_list("edge_types", listed):
        return wrong
    keys: set[tuple[str, ...]] = set()
    for number, one in enumerate(listed):
        if wrong := _problem_of_word(f"the relation of edge type {number}", one["relation"]):
            return wrong
        for end in ("source", "target"):
            if not isinstance(one[end], str) or one[end] not in nodes:
                return f"the {end} of edge type {number} is {one[end]!r}, which is none of its node types"
        key = (one["source"], one["relation"], one["target"])
        what = f"edge type {' '.join(key)!r}"
        if key in keys:
            return f"{what} is listed twice"
        keys.add(key)
        if wrong := _problem_of_edges(what, one):
            return wrong
    total = sum(one["num_edges"] for one in listed)
    if total != attributes["num_edges"]:
        return f"its edge types have {total} edges together, its num_edges is {attributes['num_edges']}"
    return None


def _problem_of_edges(what: str, one: Mapping[str, Any]) -> str | None:
    if wrong := _problem_of_count(f"num_edges of {what}", one["num_edges"]):
        return wrong
    if one.get("order", ORDERS[0]) not in ORDERS:
        return f"the order of {what} is {one['order']!r}, {' or '.join(map(repr, ORDERS))} was expected"
    if not isinstance(one.get("weighted", False), bool):
        return f"{what} has {one['weighted']!r} for 'weighted', true or false was expected"
    return None


def _problem_of_list(name: str, listed: Any) -> str | None:
    if not isinstance(listed, list) or not listed or not all(isinstance(one, dict) for one in listed):
        return f"its {name} is {str(listed)[:80]!r}, a list of at least one table is needed"
    return None


def _problem_of_word(what: str, word: Any) -> str | None:
    if not isinstance(word, str) or not word:
        return f"{what} is {word!r}, text is needed"
    return None


def _problem_of_names(what: str, one: Mapping[str, Any]) -> str | None:
    names, integers = one.get("class_names", []), one.get("integer_names", False)
    if not isinstance(integers, bool):
        return f"{what} has {integers!r} for 'integer_names', true or false was expected"
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return f"{what} has class names {str(names)[:80]!r}, a list of text was expected"
    return None


def _problem_of_count(what: str, count: Any) -> str | None:
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        return f"{what} is {count!r}, a whole number of 0 or more is needed"
    return None


def _problem_of_classes(what: str, classes: int) -> str | None:
    if classes > MOST_CLASSES:
        return f"{what} says that it has {classes} classes, more than {MOST_CLASSES}"
    return None


def _problem_of_strays(arrays: Mapping[str, ArraySpec], nodes: int, edges: int) -> str | None:
    """Says which array belongs to a type that is not there."""
    for name in arrays:
        found = _OF_A_TYPE.match(name)
        if found and int(found[2]) >= (nodes if found[1] == "n" else edges):
            kind = "node" if found[1] == "n" else "edge"
            return (
                f"array {name!r} is of {kind} type {found[2]}, there are {nodes if kind == 'node' else edges}"
            )
    return None


def _of_topology(
    lists: int, edges: int, weighted: int
) -> dict[str, tuple[int | None, tuple[int, ...] | None]]:
    """Returns for each array how many rows it has, and the shape of one."""
    return {"indptr": (lists + 1, ()), "indices": (edges, ()), "edge_weight": (weighted, ())}


def _of_nodes(
    prefix: str, nodes: int, features: tuple[int, ...] | None
) -> dict[str, tuple[int | None, tuple[int, ...] | None]]:
    """Returns the same for the arrays of a node type, but labels, whose shape depends on their kind."""
    splits = {prefix + split: (None, ()) for split in SPLITS}
    return {f"{prefix}features": (nodes, features), **splits}


def _problem_of_arrays(wanted: Wanted, arrays: Mapping[str, ArraySpec]) -> str | None:
    for name in ("indptr", "indices"):
        if name not in arrays:
            return f"array {name!r} is missing"
    for name, shape in wanted.items():
        if name in arrays and (wrong := _problem_of_array(name, arrays[name], *shape)):
            return wrong
    return None


def _problem_of_array(
    name: str, spec: ArraySpec, rows: int | None, columns: tuple[int, ...] | None
) -> str | None:
    base = name.rpartition(".")[2]
    if rows is not None and spec.shape[0] != rows:
        return f"array {name!r} has {spec.shape[0]} rows, {rows} were expected"
    if columns is not None and spec.shape[1:] != columns:
        return f"array {name!r} has rows of shape {list(spec.shape[1:])}, {list(columns)} was expected"
    if base == "features" and len(spec.shape) != 2:
        return f"array {name!r} has shape {list(spec.shape)}, [rows, columns] was expected"
    if spec.dtype not in _DTYPES.get(base, (spec.dtype,)):
        return f"array {name!r} is {spec.dtype}, {' or '.join(_DTYPES[base])} was expected"
    # Rows of features may lie apart from each other; whole arrays are read without gaps.
    width = np.dtype(spec.dtype).itemsize * math.prod(spec.shape[1:]) if base != "features" else 0
    if base != "features" and spec.stride_bytes != width:
        return f"array {name!r} of {spec.dtype} has a row every {spec.stride_bytes} bytes"
    return None
