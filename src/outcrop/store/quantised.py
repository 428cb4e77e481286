"""Features in few bits: what a graph stores of them, and how their values come back.

A value is kept as a code, a whole number from 0 to 255 (``int8``) or 15 (``uint4``), and is ``scale * code + offset``
where it is used. Each column has its scale and offset, in an array beside the features, or each row has its own, in
front of its codes. Whatever moves rows moves them as they lie on disk, uint8 [rows, row_bytes], and knows nothing of
it; what gives rows to a model makes values of them, float32, once (core/io/quantised.h has the arithmetic and the
layout of a row).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, final

import numpy as np

import outcrop._core as _core
from outcrop.config.graphs import QUANTISED_DTYPES, SCALES
from outcrop.errors import ChecksumError, FormatError, IoError
from outcrop.store.manifest import ArraySpec
from outcrop.store.row_decoder import RowDecoder, aligned

ATTRIBUTE = "quantised"  # of a graph without types, or of a node type: what is stored of its features
SCALES_ARRAY = "features_scale"  # float32 [2, columns]: scale and offset of each column
_HEAD_BYTES = 8  # of a row with a scale and an offset of its own


@dataclass(frozen=True)
class Quantisation:
    """Says how the values of a row file are stored.

    Attributes:
        dtype: ``int8``: codes of 8 bits; ``uint4``: of 4, two in a byte.
        scale: Whether each ``column`` has its scale and offset, or each ``row``.
        columns: Values of a row.
    """

    dtype: Literal["int8", "uint4"]
    scale: Literal["column", "row"]
    columns: int

    @property
    def bits(self) -> int:
        """Returns the bits of a code."""
        return 8 if self.dtype == "int8" else 4

    @property
    def head_bytes(self) -> int:
        """Counts the bytes of a row in front of its codes."""
        return _HEAD_BYTES if self.scale == "row" else 0

    @property
    def row_bytes(self) -> int:
        """Counts the bytes of a row."""
        return self.head_bytes + -(-self.columns * self.bits // 8)

    @property
    def words(self) -> str:
        """Returns what people are told of it: ``int8, a scale for each column``."""
        return f"{self.dtype}, a scale for each {self.scale}"

    def as_attribute(self) -> dict[str, Any]:
        """Returns what the manifest says of it."""
        return {"dtype": self.dtype, "scale": self.scale, "columns": self.columns}


def quantisation_of(attributes: Mapping[str, Any]) -> Quantisation | None:
    """Returns how features are stored, by the attributes of a graph or a node type; None: as they are.

    The attributes have been checked (:func:`problem_of_quantisation`).
    """
    stored = attributes.get(ATTRIBUTE)
    return None if stored is None else Quantisation(stored["dtype"], stored["scale"], stored["columns"])


def problem_of_quantisation(
    attributes: Mapping[str, Any], arrays: Mapping[str, ArraySpec], prefix: str
) -> str | None:
    """Says what is wrong with what a manifest says of features in few bits; None where nothing is.

    Args:
        attributes: Those of the graph or the node type.
        prefix: What the names of its arrays begin with.
    """
    stored, name, of_scales = attributes.get(ATTRIBUTE), f"{prefix}features", f"{prefix}{SCALES_ARRAY}"
    scales = arrays.get(of_scales)
    if stored is None:
        return f"array {of_scales!r} is there, and array {name!r} is not in few bits" if scales else None
    if not isinstance(stored, dict) or stored.keys() != {"dtype", "scale", "columns"}:
        return (
            f"array {name!r} is in few bits as {str(stored)[:80]!r}, dtype, scale and columns were expected"
        )
    columns = stored["columns"]
    if stored["dtype"] not in QUANTISED_DTYPES or stored["scale"] not in SCALES:
        return (
            f"array {name!r} is of dtype {stored['dtype']!r} with a scale by {stored['scale']!r}, which is unknown: it "
            "was made by a newer Outcrop, or changed by hand"
        )
    if type(columns) is not int or columns < 1:
        return f"array {name!r} has {columns!r} columns, a whole number of 1 or more is needed"
    spec, row_bytes = arrays.get(name), Quantisation(stored["dtype"], stored["scale"], columns).row_bytes
    if spec is None:
        return f"array {name!r} is missing, and is said to be in few bits"
    if spec.dtype != "uint8" or spec.shape[1:] != (row_bytes,) or spec.stride_bytes != row_bytes:
        return (
            f"array {name!r} is {spec.dtype} {list(spec.shape)}, uint8 with rows of {row_bytes} bytes was expected for "
            f"{columns} columns of {stored['dtype']}"
        )
    if (scales is None) != (stored["scale"] == "row"):
        return f"array {of_scales!r} is {'missing' if scales is None else 'there'}, and scales are by {stored['scale']}"
    if scales is not None and (
        scales.dtype != "float32" or scales.shape != (2, columns) or scales.stride_bytes != 4 * columns
    ):
        return (
            f"array {of_scales!r} is {scales.dtype} {list(scales.shape)}, float32 [2, {columns}] was expected"
        )
    return None


@final
class QuantisedDecoder(RowDecoder):
    """Makes float32 of the rows of a row file in few bits.

    Args:
        quantisation: How they are stored.
        spec: Array of the scales of columns; None: rows have their own.
    """

    dtype = "float32"

    def __init__(self, quantisation: Quantisation, folder: Path, spec: ArraySpec | None, file: str):
        super().__init__(folder, file)
        self.quantisation, self._spec = quantisation, spec
        self.columns, self.row_bytes = quantisation.columns, quantisation.row_bytes
        self.words, self.rows_can_be_wrong = quantisation.words, quantisation.scale == "row"

    @cached_property
    def scales(self) -> np.ndarray:
        """Returns float32 [2, columns], scale and offset of each column; [0, columns]: rows have their own.

        Raises:
            ChecksumError: They were damaged.
            FormatError: One is not finite.
            IoError: The file cannot be read.
        """
        columns = self.quantisation.columns
        if self._spec is None:
            return np.zeros((0, columns), np.float32)
        path = self._folder / self._spec.file
        try:
            found = np.fromfile(path, "<f4", 2 * columns)
        except OSError as error:
            raise IoError(error.errno, f"{path} cannot be read: {error.strerror}") from None
        crc = _core.crc32c(found.view(np.uint8))
        if len(found) != 2 * columns or crc != self._spec.crc32c:
            raise ChecksumError(
                f"{path}: checksum is {crc:08x}, the manifest says {self._spec.crc32c:08x}: the file was damaged after "
                f"it was written; remove {self._folder} and make it again"
            )
        if not (
            np.isfinite(found).all() and np.isfinite(self._largest_values(*found.reshape(2, columns))).all()
        ):
            raise FormatError(
                f"{path} has a scale or an offset that is not finite, or gives values that are not: import the graph "
                "again"
            )
        return found.reshape(2, columns)

    def check(self) -> None:
        _ = self.scales

    def values(
        self, rows: np.ndarray, workers: _core.WorkerPool, room: np.ndarray | None = None
    ) -> np.ndarray:
        """Returns the values of rows, float32 [n, columns], as :meth:`RowDecoder.values` says.

        Equals ``(codes.astype(float64) * scale + offset).astype(float32)``, scale and offset being float32 widened.
        """
        out = aligned(len(rows), self.columns, np.dtype(np.float32), room)
        rows = np.ascontiguousarray(rows)
        wrong = _core.dequantise_rows(workers, rows, self.quantisation.bits, self.scales, out)
        if wrong < len(rows):
            raise self.refusal(rows[wrong])
        return out

    def first_wrong(self, rows: np.ndarray) -> int:
        """Finds the first row with a scale and an offset of its own that give a value that is not finite.

        Equals ``np.flatnonzero(~np.isfinite(largest_code * scale + offset))[0]``, which is rounded to float32.
        """
        if self.quantisation.scale == "column":
            return len(rows)
        heads = np.ascontiguousarray(rows[:, :_HEAD_BYTES]).view("<f4")
        wrong = np.flatnonzero(~np.isfinite(self._largest_values(heads[:, 0], heads[:, 1])))
        return int(wrong[0]) if len(wrong) else len(rows)

    def fault(self, row: np.ndarray) -> str:
        scale, offset = row[:_HEAD_BYTES].view("<f4")
        return f"has scale {scale} and offset {offset}, which give values that are not finite"

    def _largest_values(self, scale: np.ndarray, offset: np.ndarray) -> np.ndarray:
        """Returns the values of the largest code, float32."""
        largest = (1 << self.quantisation.bits) - 1
        with np.errstate(over="ignore", invalid="ignore"):
            return (largest * scale.astype(np.float64) + offset).astype(np.float32)
