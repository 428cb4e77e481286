"""Features whose rows are bytes on disk, in whichever way: what a graph says of them, and what decodes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outcrop.store import quantised, sparse_rows
from outcrop.store.manifest import ArraySpec
from outcrop.store.quantised import SCALES_ARRAY, Quantisation, QuantisedDecoder
from outcrop.store.row_decoder import RowDecoder
from outcrop.store.sparse_rows import SparseDecoder, SparseLayout

ATTRIBUTES = (quantised.ATTRIBUTE, sparse_rows.ATTRIBUTE)  # a graph or a node type has one of them, or none
Coding = Quantisation | SparseLayout


def coding_of(attributes: Mapping[str, Any]) -> Coding | None:
    """Returns how features are stored, by the attributes of a graph or a node type; None: as they are.

    The attributes have been checked (:func:`problem_of_coding`).
    """
    return quantised.quantisation_of(attributes) or sparse_rows.sparse_layout_of(attributes)


def problem_of_coding(
    attributes: Mapping[str, Any], arrays: Mapping[str, ArraySpec], prefix: str
) -> str | None:
    """Says what is wrong with what a manifest says of features that are bytes on disk; None where nothing is.

    Args:
        attributes: Those of the graph or the node type.
        prefix: What the names of its arrays begin with.
    """
    if all(name in attributes for name in ATTRIBUTES):
        return f"array '{prefix}features' is said to be in few bits and to be sparse"
    return quantised.problem_of_quantisation(attributes, arrays, prefix) or sparse_rows.problem_of_sparse(
        attributes, arrays, prefix
    )


def decoder_of(
    coding: Coding | None, arrays: Mapping[str, ArraySpec], prefix: str, folder: Path
) -> RowDecoder | None:
    """Returns what decodes the features of a graph or a node type; None: they are used as they are.

    Args:
        prefix: What the names of its arrays begin with.
        folder: Folder of the graph.
    """
    if coding is None:
        return None
    file = arrays[f"{prefix}features"].file
    if isinstance(coding, SparseLayout):
        return SparseDecoder(coding, folder, file)
    return QuantisedDecoder(coding, folder, arrays.get(prefix + SCALES_ARRAY), file)
