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

ATTRIBUTE = "quantised"  # of a graph without types, or of a node type: what is stored of its features
SCALES_ARRAY = "features_scale"  # float32 [2, columns]: scale and offset of each column
_ALIGNMENT = 64  # bytes
_HEAD_BYTES = 8  # of a row with a scale and an offset of its own
_SEARCHED_BYTES = 1 << 20  # of a file at a time, when an error has to name a row


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

    def stored(self) -> dict[str, Any]:
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
class RowDecoder:
    """Makes values of the rows of a row file in few bits.

    Args:
        quantisation: How they are stored.
        folder: Folder of the graph.
        spec: Array of the scales of columns; None: rows have their own.
        file: Name of the file of the rows in ``folder``.
    """

    def __init__(self, quantisation: Quantisation, folder: Path, spec: ArraySpec | None, file: str):
        self.quantisation, self._folder, self._spec, self._file = quantisation, folder, spec, file

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

    def values(self, rows: np.ndarray, workers: _core.WorkerPool) -> np.ndarray:
        """Returns the values of rows, float32 [n, columns].

        Equals ``(codes.astype(float64) * scale + offset).astype(float32)``, scale and offset being float32 widened.

        Args:
            rows: uint8 [n, row_bytes], as they lie on disk.

        Returns:
            A new array, aligned as models want their input (:func:`outcrop.nn.sparse.as_input`).

        Raises:
            FormatError: A row has a scale and an offset of its own that give a value that is not finite.
        """
        out = _aligned(len(rows), self.quantisation.columns)
        rows = np.ascontiguousarray(rows)
        wrong = _core.dequantise_rows(workers, rows, self.quantisation.bits, self.scales, out)
        if wrong < len(rows):
            raise self.refusal(rows[wrong])
        return out

    def first_wrong(self, rows: np.ndarray) -> int:
        """Finds the first row with a scale and an offset of its own that give a value that is not finite.

        Equals ``np.flatnonzero(~np.isfinite(largest_code * scale + offset))[0]``, which is rounded to float32.

        Args:
            rows: uint8 [n, row_bytes], as they lie on disk.

        Returns:
            Its position; n where there is none, or columns have scales.
        """
        if self.quantisation.scale == "column":
            return len(rows)
        heads = np.ascontiguousarray(rows[:, :_HEAD_BYTES]).view("<f4")
        wrong = np.flatnonzero(~np.isfinite(self._largest_values(heads[:, 0], heads[:, 1])))
        return int(wrong[0]) if len(wrong) else len(rows)

    def refusal(self, row: np.ndarray, number: int | None = None) -> FormatError:
        """Returns the error of a row that :meth:`first_wrong` finds.

        Args:
            row: uint8 [row_bytes], as it was read.
            number: Which it is in the file; None: the file is searched for the first with its bytes.
        """
        number = self._row_of(row) if number is None else number
        scale, offset = row[:_HEAD_BYTES].view("<f4")
        path = self._folder / self._file
        what = f"has scale {scale} and offset {offset}, which give values that are not finite"
        if number is None:
            return FormatError(
                f"a row that was read for {path} {what}, and the file has no such row here: records of a run, or a "
                "file in a store, were changed after they were written; prepare the run again, or fetch the graph again"
            )
        return FormatError(
            f"{path}: row {number} {what}: the file was changed after it was made, or another program made it; import "
            "the graph again"
        )

    def _row_of(self, row: np.ndarray) -> int | None:
        """Searches the file for a row; None: it has none that is equal, or cannot be read."""
        step = max(_SEARCHED_BYTES // len(row), 1)
        try:
            with (self._folder / self._file).open("rb") as file:
                first = 0
                while block := file.read(step * len(row)):
                    rows = np.frombuffer(block[: len(block) // len(row) * len(row)], np.uint8).reshape(
                        -1, len(row)
                    )
                    found = np.flatnonzero((rows == row).all(1))
                    if len(found):
                        return first + int(found[0])
                    first += len(rows)
        except OSError:
            return None
        return None

    def _largest_values(self, scale: np.ndarray, offset: np.ndarray) -> np.ndarray:
        """Returns the values of the largest code, float32."""
        largest = (1 << self.quantisation.bits) - 1
        with np.errstate(over="ignore", invalid="ignore"):
            return (largest * scale.astype(np.float64) + offset).astype(np.float32)


def _aligned(rows: int, columns: int) -> np.ndarray:
    """Returns a new float32 [rows, columns] that begins at a multiple of 64 bytes."""
    count = 4 * rows * columns
    held = np.empty(count + _ALIGNMENT, np.uint8)
    begin = -held.ctypes.data % _ALIGNMENT
    return held[begin : begin + count].view(np.float32).reshape(rows, columns)
